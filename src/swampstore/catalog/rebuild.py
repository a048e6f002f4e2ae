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
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.mutation import Mutations
from swampstore.artifacts.walk import data_names
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.readings import Reading, is_current, read_early, read_name
from swampstore.files import Tree
from swampstore.layout import METADATA, DataRef
from swampstore.notices import notice

BATCH_NAMES = 200
# A name with more versions is stored piece by piece.
_HUGE = 2000
Progress = Callable[[int, int], None]
# Yields each name once, in any order, with what was read of it ahead of its batch, if anything.
ReadAhead = Callable[[Iterable[DataRef]], Iterator[Reading]]


class Rebuilt(NamedTuple):
    """What a rebuild found: names, versions, rows of names that are gone, unreadable branches."""

    names: int
    versions: int
    removed: int
    unreadable: int


def _nothing_ahead(refs: Iterable[DataRef]) -> Iterator[Reading]:
    return map(Reading, refs)


def rebuild(
    catalog: Catalog,
    mutations: Mutations,
    progress: Progress | None = None,
    read_ahead: ReadAhead = _nothing_ahead,
) -> Rebuilt:
    """Make the rows of the own namespace equal to what is on disk, then mark them complete.

    Rows of names whose directory is gone are removed; rows of other namespaces stay. `progress`
    is told the names and versions so far. May be interrupted at any time and run again.
    """
    mutations.recover()
    unreadable: list[str] = []

    def complain(place: str, error: OSError) -> None:
        unreadable.append(place)
        notice("%s cannot be read: %s", place, error.strerror)

    names = versions = 0
    found = read_ahead(data_names(mutations.tree, complain))
    while batch := list(islice(found, BATCH_NAMES)):
        versions += _store_batch(catalog, mutations, batch)
        names += len(batch)
        if progress:
            progress(names, versions)
    removed = 0 if unreadable else _remove_orphans(catalog, mutations)
    if not unreadable:
        catalog.mark_populated()
    return Rebuilt(names, versions, removed, len(unreadable))


def read_slice(
    tree: Tree, namespace: str, refs: Iterable[DataRef], began_ns: int
) -> Iterator[Reading]:
    """Read some names early, wherever the files can be seen; see `read_early` for `began_ns`.

    What cannot be read, or is too much to be carried around, is left to the rebuild itself.
    """
    for ref in refs:
        reading = Reading(ref)
        with contextlib.suppress(OSError):
            if len(on_disk.version_numbers(tree, ref)) <= _HUGE:
                reading = read_early(tree, namespace, ref, began_ns)
        yield reading


def refresh(catalog: Catalog, mutations: Mutations, ref: DataRef) -> None:
    """Make the rows of one name equal to what is on disk."""
    with mutations.holding(ref):
        _replace(catalog, mutations.tree, [Reading(ref)])


def _store_batch(catalog: Catalog, mutations: Mutations, batch: list[Reading]) -> int:
    small: list[Reading] = []
    count = 0
    for reading in batch:
        if reading.looks or len(on_disk.version_numbers(mutations.tree, reading.ref)) <= _HUGE:
            small.append(reading)
        else:
            count += _store_huge(catalog, mutations, reading.ref)
    with mutations.quiet():
        return count + _replace(catalog, mutations.tree, small)


def _replace(catalog: Catalog, tree: Tree, readings: list[Reading]) -> int:
    def work(db: sqlite3.Connection) -> int:
        return sum(_replace_name(db, catalog, tree, reading) for reading in readings)

    return catalog.change(work)


def _replace_name(db: sqlite3.Connection, catalog: Catalog, tree: Tree, reading: Reading) -> int:
    if not is_current(tree, reading):
        reading = read_name(tree, catalog.namespace, reading.ref)
    for problem in reading.problems:
        notice("%s", problem)
    return catalog.replace_rows_within(db, reading.ref, reading.rows, reading.marker)


def _store_huge(catalog: Catalog, mutations: Mutations, ref: DataRef) -> int:
    """Store a name with very many versions piece by piece, holding up only its own writers."""
    count = 0
    with mutations.holding(ref):
        stored = on_disk.stored_versions(mutations.tree, ref)
        marker = on_disk.effective_marker(mutations.tree, ref)
        known = set(catalog.version_numbers(ref))
        while batch := list(islice(stored, _HUGE)):
            catalog.store(ref, batch, (), marker)
            known.difference_update(version.metadata.version for version in batch)
            count += len(batch)
        catalog.store(ref, (), sorted(known), marker)
    return count


def _remove_orphans(catalog: Catalog, mutations: Mutations) -> int:
    """Drop the rows of names that are not on disk any more."""
    removed = 0
    for ref, top in catalog.known_names():
        if os.path.lexists(mutations.tree.path(ref.file_rel(top, METADATA))):
            continue
        refresh(catalog, mutations, ref)
        removed += 1
    return removed
