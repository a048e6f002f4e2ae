"""The rows of a data name as its files have them, and whether the files still say that.

`moment` says cheaply whether anybody else has changed rows meanwhile: every change of a data name
on this machine is a commit to the catalog's file, before and after.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.metadata import Metadata
from swampstore.catalog.schema import ACTIVE, Row, tags_json
from swampstore.errors import MetadataError
from swampstore.files import Tree
from swampstore.files.signature import Signature, can_deceive, signature_of
from swampstore.layout import METADATA, DataRef


class Moment(NamedTuple):
    """A moment in the life of a catalog, as one connection sees it.

    Two are equal if, between them, nobody committed anything through another connection.
    """

    connection: sqlite3.Connection
    data_version: int


def moment(db: sqlite3.Connection) -> Moment:
    """Return the present moment."""
    (data_version,) = db.execute("PRAGMA data_version").fetchone()
    return Moment(db, data_version)


def row_of(namespace: str, ref: DataRef, metadata: Metadata, *, deferred: bool) -> Row:
    """Return the row of a version; whether it is a latest one is settled when it is stored."""
    owner, tags = metadata.owner, metadata.tags
    return Row(
        namespace=namespace,
        type_normalized=ref.model.type,
        model_id=ref.model.id,
        data_name=ref.name,
        version=metadata.version,
        id=metadata.id,
        is_latest=0,
        deferred=int(deferred),
        lifecycle=metadata.lifecycle or ACTIVE,
        renamed_to=metadata.renamed_to,
        model_name=tags.get("modelName", ""),
        spec_name=tags.get("specName", ""),
        data_type=tags.get("type", ""),
        content_type=metadata.content_type,
        lifetime=metadata.lifetime,
        garbage_collection=str(metadata.garbage_collection),
        owner_type=owner.type,
        streaming=int(metadata.streaming),
        size=metadata.size or 0,
        checksum=metadata.checksum or "",
        created_at=metadata.created_at,
        tags=tags_json(tags),
        owner_ref=owner.ref,
        workflow_id=owner.workflow_id,
        workflow_run_id=owner.workflow_run_id,
        workflow_name=owner.workflow_name,
        job_name=owner.job_name,
        step_name=owner.step_name,
        source=owner.source,
    )


class Problem(NamedTuple):
    """Why a version had to be left out."""

    version: int
    message: str


class NameOnDisk(NamedTuple):
    """What the files of a data name say. `problems` are about versions that had to be left out.

    Of what is read early, `looks` stands for how the files looked before; it is empty if that may
    deceive. `since` is a moment before that.
    """

    ref: DataRef
    rows: tuple[Row, ...] = ()
    marker: int = 0
    problems: tuple[Problem, ...] = ()
    looks: bytes | None = None
    since: Moment | None = None

    @property
    def is_early(self) -> bool:
        """Whether the name was read ahead of its batch."""
        return self.looks is not None


def read_name(tree: Tree, namespace: str, ref: DataRef) -> NameOnDisk:
    """Read all versions of a name; raise OSError if the files do not allow that."""
    problems: list[Problem] = []

    def complain(version: int, error: MetadataError) -> None:
        problems.append(Problem(version, error.message))

    rows = tuple(
        row_of(namespace, ref, metadata, deferred=deferred)
        for metadata, deferred in on_disk.stored_versions(tree, ref, complain)
    )
    marker = on_disk.effective_marker(tree, ref)
    return NameOnDisk(ref, rows, marker, tuple(problems))


def read_early(tree: Tree, namespace: str, ref: DataRef, began_ns: int) -> NameOnDisk:
    """Read a name that may change meanwhile or later; `is_current` tells whether it did.

    `began_ns` is a time before this, by the clock of the file system.
    """
    looks = list(_looks(tree, ref))
    deceives = any(can_deceive(look, began_ns) for look in looks if look)
    known = b"" if deceives else _digest(looks)
    return read_name(tree, namespace, ref)._replace(looks=known)


def is_current(tree: Tree, reading: NameOnDisk) -> bool:
    """Whether the files of a name surely still look as they did when it was read early."""
    return bool(reading.looks) and _digest(list(_looks(tree, reading.ref))) == reading.looks


def _digest(looks: list[Signature | None]) -> bytes:
    return hashlib.sha256(repr([look and tuple(look) for look in looks]).encode()).digest()


def _looks(tree: Tree, ref: DataRef) -> Iterator[Signature | None]:
    """Look at everything that decides about the rows: directories, the marker, the metadata."""
    yield from map(_look, tree.places(ref.rel))
    yield _look(tree.path(ref.latest_rel))
    for version in on_disk.version_numbers(tree, ref):
        yield from map(_look, tree.places(ref.version_rel(version)))
        yield _look(tree.path(ref.file_rel(version, METADATA)), follow=True)


def _look(path: str, *, follow: bool = False) -> Signature | None:
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return signature_of(found)
