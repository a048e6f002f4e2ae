"""The catalog as an examination sees it: read without healing it, and compared with the disk."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from swampstore.artifacts import versions as on_disk
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import SCHEMA_VERSION
from swampstore.doctor import checks
from swampstore.doctor.data import NameHealth
from swampstore.doctor.findings import Completeness, Finding, Problems
from swampstore.errors import SwampstoreError
from swampstore.files import Tree
from swampstore.files.sqlite_file import not_its_fault, set_aside, view_sqlite
from swampstore.formats import refuse_newer
from swampstore.layout import METADATA, DataRef

T = TypeVar("T")
_CHECK = "catalog"
_REMEDY = "Run `swampstore doctor --repair`, or just go on: the next query builds a new one."


class ReadOnlyRows:
    """The rows of a catalog file, as they are."""

    def __init__(self, path: str) -> None:
        self.generation = 0
        self._connection = view_sqlite(path)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the connection."""
        return work(self._connection)

    def write(self, work: Callable[[sqlite3.Connection], T], *, flush: bool = False) -> T:
        """Refuse: who examines must not change."""
        del work, flush
        raise AssertionError("an examination does not write to the catalog")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()


def look_at_catalog(path: str, namespace: str) -> tuple[Finding, Catalog | None]:
    """Check a catalog file; return it too if it can be used.

    Raises NewerFormatError, and DiskError where something else keeps it from being read.
    """
    if not os.path.lexists(path):
        return Finding(_CHECK, passed=True, message="there is none yet; a query makes one"), None
    try:
        rows = ReadOnlyRows(path)
    except sqlite3.Error as error:
        return _damaged(path, _said_of(path, error)), None
    try:
        complaint = _complaint(rows, path)
    except SwampstoreError:
        rows.close()
        raise
    if complaint:
        rows.close()
        return _damaged(path, complaint), None
    return Finding(_CHECK, passed=True, message="the catalog is sound"), Catalog(rows, namespace)


def _complaint(rows: ReadOnlyRows, path: str) -> str:
    try:
        (version,) = rows.read(lambda db: db.execute("PRAGMA user_version").fetchone())
        refuse_newer("catalog", version, path)
        if version != SCHEMA_VERSION:
            return f"its schema is {version}, ours is {SCHEMA_VERSION}"
        (verdict,) = rows.read(lambda db: db.execute("PRAGMA quick_check(1)").fetchone())
    except sqlite3.Error as error:
        return _said_of(path, error)
    return "" if verdict == "ok" else str(verdict)


def _said_of(path: str, error: sqlite3.Error) -> str:
    """Return what is said against a file; raises DiskError if the file may be sound."""
    if kept_from := not_its_fault(path, error):
        raise kept_from from error
    return str(error)


def _damaged(path: str, complaint: str) -> Finding:
    return Finding(
        _CHECK, passed=False, message=f"{path} cannot be used: {complaint}", remedy=_REMEDY
    )


def set_catalog_aside(path: str) -> None:
    """Move a catalog that cannot be used out of the way; the next use makes a new one."""
    set_aside(path, f"{path}.damaged")


class Known(NamedTuple):
    """What the catalog says of one name: its versions and the latest of them, 0 if none is."""

    versions: list[int]
    latest: int

    def agrees_with(self, health: NameHealth) -> bool:
        """Whether the disk says the same."""
        return self.versions == health.versions and self.latest == health.latest


class Comparison:
    """Counts, per type, what is on disk, what is in the catalog, and where they differ.

    `catalog` is None if there is none that could be read: then everything is missing from it.
    """

    def __init__(self, tree: Tree, catalog: Catalog | None) -> None:
        self.completeness = Completeness()
        self._tree = tree
        self._catalog = catalog
        # What was said of a name and of those that follow it up to another one: nearly always
        # they are asked for in that order.
        self._from: DataRef | None = None
        self._to: str | None = None
        self._page: dict[str, list[tuple[int, bool]]] = {}

    def known(self, ref: DataRef, *, anew: bool = False) -> Known | None:
        """Return what the catalog says of a name, None without a catalog.

        It may be what was said when a name before it was asked for, unless `anew`.
        """
        if self._catalog is None:
            return None
        if not anew and not self._is_in_page(ref):
            self._page, self._to = self._catalog.numbers_from(ref)
            self._from = ref
        if anew or not self._is_in_page(ref):
            row = self._catalog.latest(ref)
            return Known(self._catalog.version_numbers(ref), row.version if row else 0)
        found = self._page.get(ref.name, [])
        latest = max((version for version, is_latest in found if is_latest), default=0)
        return Known([version for version, _ in found], latest)

    def _is_in_page(self, ref: DataRef) -> bool:
        return (
            self._from is not None
            and self._from.model == ref.model
            and self._from.name <= ref.name
            and (self._to is None or ref.name < self._to)
        )

    def add(self, ref: DataRef, health: NameHealth, known: Known | None) -> None:
        """Count one name that was found on disk."""
        known = known or Known([], 0)
        tally = self.completeness.of(ref.model.type)
        tally.disk += health.latest > 0
        tally.catalog += known.latest > 0
        if known.agrees_with(health):
            return
        if health.latest and not known.latest:
            tally.missing += 1
        else:
            tally.outdated += 1

    def candidates_for_excess(self) -> Iterator[DataRef]:
        """Yield the names whose highest version in the catalog is not on disk."""
        for ref, top in self._catalog.known_names() if self._catalog else ():
            if not os.path.lexists(self._tree.path(ref.file_rel(top, METADATA))):
                yield ref

    def add_excess(self, ref: DataRef) -> None:
        """Count a name of the catalog if nothing of it is on disk."""
        known = self.known(ref, anew=True)
        if known is None or not known.versions or self._is_on_disk(ref):
            return
        tally = self.completeness.of(ref.model.type)
        tally.catalog += known.latest > 0
        tally.excess += 1

    def _is_on_disk(self, ref: DataRef) -> bool:
        return any(
            os.path.lexists(self._tree.path(ref.file_rel(version, METADATA)))
            for version in on_disk.version_numbers(self._tree, ref)
        )

    def problems(self) -> Problems:
        """Return every difference, with a line per type."""
        problems = Problems(checks.COMPLETENESS)
        for name, tally in sorted(self.completeness.types.items()):
            if tally.differences:
                problems.add(
                    f"{name}: {tally.disk} on disk, {tally.catalog} in the catalog;"
                    f" {tally.missing} missing, {tally.excess} too many,"
                    f" {tally.outdated} out of date",
                    count=tally.differences,
                )
        return problems
