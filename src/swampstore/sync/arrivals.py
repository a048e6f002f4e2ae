"""What arrives from the remote, and the order in which it may be seen.

A file takes its place only if the local one is still what the decision was made about.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.install import Way, make_way, tidy
from swampstore.artifacts.mutation import Outcome
from swampstore.artifacts.versions import StoredVersion
from swampstore.errors import MetadataError, ValidationError
from swampstore.files import Reception, Tree
from swampstore.files.signature import Signature, signature
from swampstore.layout import LANDING, METADATA, DataRef
from swampstore.notices import notice


class Arrival(NamedTuple):
    """What the remote has at a path, or that it has nothing there any more.

    `staged` is a finished temporary file on the file system of the tree, None to remove the local
    file. `expected` is the local file that the decision was based on, None if there was none.
    """

    rel: str
    staged: str | None
    expected: Signature | None


class Landed(NamedTuple):
    """A path that is now as the remote has it; `signature` is None if the file was removed."""

    rel: str
    signature: Signature | None


def is_expected(tree: Tree, arrival: Arrival, *, over_link: bool = False) -> bool:
    """Whether the local file is still what the decision was based on.

    Raises ValidationError if something that is no regular file is in the way.
    """
    path = tree.shared_path(arrival.rel)
    if arrival.expected is not None:
        return signature(path) == arrival.expected
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return True
    if stat.S_ISREG(mode):
        return False
    if over_link and stat.S_ISLNK(mode):
        return True
    raise ValidationError(
        f"{path} is in the way: it is no regular file",
        hint="Move it away; the remote has a file of that name.",
    )


def take_place(tree: Tree, reception: Reception, arrival: Arrival) -> Landed:
    """Put a file that is expected in its place, or remove it."""
    if arrival.staged is None:
        reception.remove(arrival.rel)
        return Landed(arrival.rel, None)
    reception.adopt(arrival.rel, arrival.staged)
    return Landed(arrival.rel, signature(tree.shared_path(arrival.rel)))


class NameArrivals:
    """What arrives for one data name. Its lock is held while this lands.

    The files of one version land together, or none of them does: content first, then the
    metadata that makes it a version, then the marker; what goes, goes in the opposite order.
    """

    def __init__(self, tree: Tree, ref: DataRef, arrivals: Sequence[Arrival]) -> None:
        self.ref = ref
        self.arrivals = arrivals
        self.landed: list[Landed] = []
        self._tree = tree
        self._marker: Arrival | None = None
        self._versions: dict[int, list[Arrival]] = {}
        self._described: set[int] = set()
        below = len(ref.rel) + 1
        for arrival in arrivals:
            version, _, file = arrival.rel[below:].partition("/")
            if file:
                self._versions.setdefault(int(version), []).append(arrival)
            else:
                self._marker = arrival
            if file == METADATA:
                self._described.add(int(version))

    def land(self, reception: Reception) -> None:
        """Let in what is expected, noting each file in `landed`."""
        ready = {
            version: arrivals
            for version, arrivals in sorted(self._versions.items())
            if self._is_ready(reception, version, arrivals)
        }
        is_complete = len(ready) == len(self._versions)
        for version, arrivals in ready.items():
            if staged := [arrival for arrival in arrivals if arrival.staged]:
                is_complete &= self._store(reception, version, staged)
        # The marker of a version that has to wait would name nothing, and a repair would move it.
        if is_complete and self._marker and is_expected(self._tree, self._marker, over_link=True):
            self._take(reception, self._marker)
        for version, arrivals in ready.items():
            if gone := [arrival for arrival in arrivals if not arrival.staged]:
                self._remove(reception, version, gone)
        if any(one.signature is None for one in self.landed):
            reception.remove_empty_dir(self.ref.rel)

    def _is_ready(self, reception: Reception, version: int, arrivals: Sequence[Arrival]) -> bool:
        """Whether every file of a version is as expected; without its directory, there is none.

        What the dead began is nothing.
        """
        is_there = os.path.lexists(self._tree.shared_path(self.ref.version_rel(version)))
        if not is_there or claims.clear(self._tree, reception, self.ref, version):
            return all(arrival.expected is None for arrival in arrivals)
        return all(is_expected(self._tree, arrival) for arrival in arrivals)

    def _take(self, reception: Reception, arrival: Arrival) -> None:
        self.landed.append(take_place(self._tree, reception, arrival))

    def _store(self, reception: Reception, version: int, arrivals: Sequence[Arrival]) -> bool:
        """Let the files of a version in; False if somebody here is writing that version."""
        content = [arrival for arrival in arrivals if not _is_metadata(arrival)]
        metadata = next((arrival for arrival in arrivals if _is_metadata(arrival)), None)
        try:
            way = make_way(self._tree, reception, self.ref, version)
            if way is Way.TAKEN:
                return False
            if way is Way.FRESH and content:
                metadata = self._mark(reception, version, metadata)
            for arrival in content:
                self._take(reception, arrival)
            if metadata:
                self._take(reception, metadata)
        except BaseException:
            tidy(self._tree, reception, self.ref, version)
            raise
        if metadata and way is Way.OPEN:
            tidy(self._tree, reception, self.ref, version)
        return True

    def _mark(self, reception: Reception, version: int, metadata: Arrival | None) -> Arrival | None:
        """Mark a directory as no claim; the metadata itself does, if it waits for its content."""
        mark = self.ref.file_rel(version, LANDING)
        if metadata is None or metadata.staged is None:
            reception.mark(mark)
            return None
        reception.adopt(mark, metadata.staged)
        return metadata._replace(staged=self._tree.shared_path(mark))

    def _remove(self, reception: Reception, version: int, arrivals: Sequence[Arrival]) -> None:
        for arrival in sorted(arrivals, key=_is_metadata, reverse=True):
            self._take(reception, arrival)
        tidy(self._tree, reception, self.ref, version)

    def outcome(self) -> Outcome:
        """Return what the catalog must know, read from the files as they are now."""
        return outcome_of(self._tree, self.ref, self._described)


def outcome_of(tree: Tree, ref: DataRef, versions: Iterable[int]) -> Outcome:
    """Return what the catalog must know of some versions, read from the files as they are now."""
    stored, removed = [], []
    for version in sorted(versions):
        try:
            metadata = on_disk.read_metadata(tree, ref, version)
        except MetadataError as error:
            notice("%s", error.message)
            metadata = None
        if metadata is None:
            removed.append(version)
        else:
            stored.append(StoredVersion(metadata, on_disk.is_deferred(tree, ref, version)))
    return Outcome(ref, on_disk.effective_marker(tree, ref), stored, removed)


def _is_metadata(arrival: Arrival) -> bool:
    return arrival.rel.endswith(f"/{METADATA}")
