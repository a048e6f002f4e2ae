"""Reading the rows of a data name from its files, and telling later whether they still say that.

What is read while nobody may change the name is true. What was read before can be believed if
nothing about the files looks different now, and nothing was so young that looks may deceive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.catalog.rows import row_of
from swampstore.catalog.schema import Row
from swampstore.errors import MetadataError
from swampstore.files import Tree
from swampstore.layout import METADATA, DataRef

# The coarsest timestamps in use (FAT) have steps of two seconds.
_RACY_NS = 2_000_000_000


class Look(NamedTuple):
    """What a file or a directory looks like from outside."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class Reading(NamedTuple):
    """What the files of a data name say. `problems` are about versions that had to be left out.

    Of what is read early, `looks` is how the files looked before, and `began_ns` a time before
    that, by the clock of their file system.
    """

    ref: DataRef
    rows: tuple[Row, ...] = ()
    marker: int = 0
    problems: tuple[str, ...] = ()
    looks: tuple[Look | None, ...] = ()
    began_ns: int = 0


def read_name(tree: Tree, namespace: str, ref: DataRef) -> Reading:
    """Read all versions of a name; raise OSError if the files do not allow that."""
    rows: list[Row] = []
    problems: list[str] = []
    for version in reversed(on_disk.version_numbers(tree, ref)):
        try:
            metadata = on_disk.read_metadata(tree, ref, version)
        except MetadataError as error:
            problems.append(error.message)
            continue
        if metadata is not None:
            deferred = on_disk.is_deferred(tree, ref, version)
            rows.append(row_of(namespace, ref, metadata, deferred=deferred))
    marker = on_disk.effective_marker(tree, ref)
    return Reading(ref, tuple(rows), marker, tuple(problems))


def read_early(tree: Tree, namespace: str, ref: DataRef, began_ns: int) -> Reading:
    """Read a name that may change meanwhile or later; `is_current` tells whether it did."""
    looks = tuple(_looks(tree, ref))
    return read_name(tree, namespace, ref)._replace(looks=looks, began_ns=began_ns)


def is_current(tree: Tree, reading: Reading) -> bool:
    """Whether a name is surely still what was read of it early; False if that was not done."""
    if not reading.looks:
        return False
    youngest = reading.began_ns - _RACY_NS
    if any(max(look.mtime_ns, look.ctime_ns) >= youngest for look in reading.looks if look):
        return False
    return tuple(_looks(tree, reading.ref)) == reading.looks


def _looks(tree: Tree, ref: DataRef) -> Iterator[Look | None]:
    """Look at everything that decides about the rows: directories, the marker, the metadata."""
    yield from map(_look, tree.places(ref.rel))
    yield _look(tree.path(ref.latest_rel))
    for version in on_disk.version_numbers(tree, ref):
        yield from map(_look, tree.places(ref.version_rel(version)))
        yield _look(tree.path(ref.file_rel(version, METADATA)), follow=True)


def _look(path: str, *, follow: bool = False) -> Look | None:
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Look(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
