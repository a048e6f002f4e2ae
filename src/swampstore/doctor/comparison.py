"""Comparing the catalog with the disk, name by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.catalog.catalog import Catalog
from swampstore.doctor import checks
from swampstore.doctor.findings import Completeness, Problems
from swampstore.doctor.name_health import NameHealth
from swampstore.files import Tree
from swampstore.layout import METADATA, DataRef


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

    def known(self, ref: DataRef) -> Known | None:
        """Return what the catalog says of a name, None without a catalog."""
        if self._catalog is None:
            return None
        row = self._catalog.latest(ref)
        return Known(self._catalog.version_numbers(ref), row.version if row else 0)

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
        known = self.known(ref)
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
