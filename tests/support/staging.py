"""Files as a pull has fetched them: finished, beside the tree, ready to land in it."""

from __future__ import annotations

import hashlib
import os
import uuid

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.files import Tree, read_file
from swampstore.files.signature import Signature, signature
from swampstore.sync.arrivals import Arrival

_NOW = "2026-05-14T20:19:51.042Z"
_AS_IT_IS = Signature(-1, -1, -1, -1)


def metadata_of(name: str, version: int, content: bytes, *, step: str = "") -> bytes:
    """Return the metadata.yaml that another machine wrote for a version."""
    checked = Draft(content_type="text/plain", id=f"id-{name}-{version}").checked()
    owner = Owner(ref="elsewhere", step_name=step)
    digest = hashlib.sha256(content).hexdigest()
    return encode(checked.metadata(name, version, owner, _NOW, len(content), digest))


class Staged:
    """A directory for fetched files on the file system of a tree.

    What they hold is `at_hand`, as it is of small files right after they were fetched, or not.
    """

    def __init__(self, tree: Tree, *, at_hand: bool = True) -> None:
        self._tree = tree
        self._at_hand = at_hand
        self._directory = f"{tree.base}/.{uuid.uuid4()}.tmp"
        os.makedirs(self._directory)

    def read(self, rel: str) -> bytes | None:
        """Return what the tree has at a path."""
        return read_file(self._tree.shared_path(rel))

    def arrival(
        self, rel: str, data: bytes | None, expected: Signature | None = _AS_IT_IS
    ) -> Arrival:
        """Return the arrival of some bytes (None: of a removal), decided upon as things are."""
        if expected is _AS_IT_IS:
            expected = signature(self._tree.shared_path(rel))
        if data is None:
            return Arrival(rel, None, expected)
        path = f"{self._directory}/{uuid.uuid4().hex}"
        with open(path, "wb") as file:
            file.write(data)
        return Arrival(rel, path, expected, data if self._at_hand else None)

    def version(
        self, name_rel: str, version: int, content: bytes, *, step: str = ""
    ) -> list[Arrival]:
        """Return the arrivals of both files of a version."""
        metadata = metadata_of(name_rel.rpartition("/")[2], version, content, step=step)
        return [
            self.arrival(f"{name_rel}/{version}/metadata.yaml", metadata),
            self.arrival(f"{name_rel}/{version}/raw", content),
        ]

    def latest(self, name_rel: str, version: int) -> Arrival:
        """Return the arrival of a marker."""
        return self.arrival(f"{name_rel}/latest", b"%d" % version)

    @property
    def left(self) -> list[str]:
        """The staged files that are still there."""
        return sorted(os.listdir(self._directory))
