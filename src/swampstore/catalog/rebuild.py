"""Filling the catalog from the files, a batch of names at a time.

While a batch is read and stored nobody on this machine changes any name, so a row can never be
older than the files it describes; between batches everybody goes on. Memory holds one batch. What
somebody has read ahead of its batch is stored only if it is surely still so.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal, NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.versions import data_names
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.disk_rows import (
    NameOnDisk,
    Problem,
    is_current,
    moment,
    read_early,
    read_name,
)
from swampstore.errors import MetadataError
from swampstore.files import Tree, disk_errors
from swampstore.layout import METADATA, DataRef
from swampstore.notices import notice

BATCH_NAMES = 200
# A name with more versions is stored piece by piece.
_HUGE = 2000
Progress = Callable[[int, int], None]
Kind = Literal["unreadable-directory", "undecodable-metadata", "removed-name"]
# Yields each name once, in any order, with what was read of it ahead of its batch, if anything.
ReadAhead = Callable[[Iterable[DataRef]], Iterator[NameOnDisk]]


class Rebuilt(NamedTuple):
    """What a rebuild found: names, versions, rows of names that are gone, unreadable branches."""

    names: int
    versions: int
    removed: int
    unreadable: int


class Noted(NamedTuple):
    """Something noteworthy: a branch or a version that was left out, a name that is gone.

    `rel` is its path in the datastore.
    """

    kind: Kind
    rel: str
    detail: str


Note = Callable[[Noted], None]


def forget(_noted: Noted) -> None:
    """Note nothing."""


def _nothing_ahead(refs: Iterable[DataRef]) -> Iterator[NameOnDisk]:
    return map(NameOnDisk, refs)


def rebuild(
    catalog: Catalog,
    mutations: Mutations,
    progress: Progress | None = None,
    read_ahead: ReadAhead = _nothing_ahead,
    note: Note = forget,
) -> Rebuilt:
    """Make the rows of the own namespace equal to what is on disk, then mark them complete.

    Rows of names whose directory is gone are removed; rows of other namespaces stay. `progress`
    is told the names and versions so far, `note` what is noteworthy. May be interrupted at any
    time and run again. Raises DiskError if there may be data, and none of it can be read.
    """
    mutations.recover()
    walk = _Walk(mutations.tree, note)
    names = versions = 0
    found = read_ahead(walk.names())
    while batch := list(islice(found, BATCH_NAMES)):
        versions += _store_batch(catalog, mutations, batch, note)
        names += len(batch)
        if progress:
            progress(names, versions)
    if names == 0:
        walk.check()
    removed = 0 if walk.unreadable else _remove_orphans(catalog, mutations, note)
    catalog.forget_unused_words()
    if not walk.unreadable:
        catalog.mark_populated()
    return Rebuilt(names, versions, removed, walk.unreadable)


def names_on_disk(tree: Tree, note: Note = forget) -> tuple[int, int]:
    """Return how many names a rebuild would find, and unreadable branches."""
    walk = _Walk(tree, note)
    return sum(1 for _ in walk.names()), walk.unreadable


class _Walk:
    """Finds the data names, and counts the branches that cannot be read."""

    def __init__(self, tree: Tree, note: Note) -> None:
        self.unreadable = 0
        self._first: OSError | None = None
        self._tree = tree
        self._note = note

    def names(self) -> Iterator[DataRef]:
        return data_names(self._tree, self._complain)

    def check(self) -> None:
        """Raise DiskError that names the first branch which could not be read, if there is one."""
        if self._first is not None:
            with disk_errors(self._tree.base):
                raise self._first

    def _complain(self, place: str, error: OSError) -> None:
        self.unreadable += 1
        self._first = self._first or error
        notice("%s cannot be read: %s", place, error.strerror)
        rel = _rel(self._tree, place)
        self._note(Noted("unreadable-directory", rel, error.strerror or str(error)))


def _rel(tree: Tree, place: str) -> str:
    """Return the path in the datastore of a directory in one of its tiers."""
    return place.removeprefix(f"{tree.base}/").removeprefix(f"{tree.local}/")


def read_slice(
    tree: Tree, namespace: str, refs: Iterable[DataRef], began_ns: int
) -> Iterator[NameOnDisk]:
    """Read some names early, wherever the files can be seen; see `read_early` for `began_ns`.

    What cannot be read, or is too much to be carried around, is left to the rebuild itself.
    """
    for ref in refs:
        reading = NameOnDisk(ref)
        with contextlib.suppress(OSError):
            if len(on_disk.version_numbers(tree, ref)) <= _HUGE:
                reading = read_early(tree, namespace, ref, began_ns)
        yield reading


def refresh(catalog: Catalog, mutations: Mutations, ref: DataRef) -> None:
    """Make the rows of one name equal to what is on disk."""
    with mutations.holding(ref):
        _, problems = _replace(catalog, mutations.tree, [NameOnDisk(ref)])
    _note_problems(problems, forget)


def _store_batch(
    catalog: Catalog, mutations: Mutations, batch: list[NameOnDisk], note: Note
) -> int:
    small: list[NameOnDisk] = []
    count = 0
    for reading in batch:
        if reading.is_early or len(on_disk.version_numbers(mutations.tree, reading.ref)) <= _HUGE:
            small.append(reading)
        else:
            count += _store_huge(catalog, mutations, reading.ref, note)
    with mutations.quiet():
        stored, problems = _replace(catalog, mutations.tree, small)
    _note_problems(problems, note)
    return count + stored


def _replace(
    catalog: Catalog, tree: Tree, readings: list[NameOnDisk]
) -> tuple[int, list[tuple[DataRef, Problem]]]:
    """Store these names in one transaction; return how many versions, and those left out."""

    def work(db: sqlite3.Connection) -> tuple[int, list[tuple[DataRef, Problem]]]:
        now = moment(db)
        count = 0
        problems: list[tuple[DataRef, Problem]] = []
        for reading in readings:
            if not (reading.is_early and (reading.since == now or is_current(tree, reading))):
                reading = read_name(tree, catalog.namespace, reading.ref)  # noqa: PLW2901 - true now
            count += catalog.replace_rows_within(db, reading.ref, reading.rows, reading.marker)
            problems += ((reading.ref, problem) for problem in reading.problems)
        return count, problems

    return catalog.change(work)


def _note_problems(problems: Iterable[tuple[DataRef, Problem]], note: Note) -> None:
    for ref, (version, message) in problems:
        notice("%s", message)
        note(Noted("undecodable-metadata", ref.file_rel(version, METADATA), message))


def _store_huge(catalog: Catalog, mutations: Mutations, ref: DataRef, note: Note) -> int:
    """Store a name with very many versions piece by piece, holding up only its own writers."""
    count = 0

    def complain(version: int, error: MetadataError) -> None:
        _note_problems([(ref, Problem(version, error.message))], note)

    with mutations.holding(ref):
        stored = on_disk.stored_versions(mutations.tree, ref, complain)
        marker = on_disk.effective_marker(mutations.tree, ref)
        known = set(catalog.version_numbers(ref))
        while batch := list(islice(stored, _HUGE)):
            catalog.store(ref, batch, (), marker)
            known.difference_update(version.metadata.version for version in batch)
            count += len(batch)
        catalog.store(ref, (), sorted(known), marker)
    return count


def _remove_orphans(catalog: Catalog, mutations: Mutations, note: Note) -> int:
    """Drop the rows of names that are not on disk any more."""
    removed = 0
    for ref, top in catalog.known_names():
        if os.path.lexists(mutations.tree.path(ref.file_rel(top, METADATA))):
            continue
        refresh(catalog, mutations, ref)
        note(Noted("removed-name", ref.rel, "the catalog had rows of it, and there are no files"))
        removed += 1
    return removed
