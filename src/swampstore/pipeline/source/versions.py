"""The versions of a data name: where they are described, and which of them are latest.

Rows arrive in any order, many at once from a remote; `Name` puts them together and applies the rule
of the catalog.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import LatestOfSteps, latest_of, parse_marker
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.clock import from_iso
from swampstore.errors import MetadataError
from swampstore.files import Tree
from swampstore.index.path_kinds import version_file
from swampstore.index.path_map import Names
from swampstore.layout import METADATA, DataRef, ref_of
from swampstore.notices import notice
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.slices import File
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

LARGEST_SIZE = 2**63 - 1


@dataclass(frozen=True)
class StoredVersions:
    """Versions as objects of a store. What is deferred never gets there."""

    store: Store
    names: Names

    def marker(self, ref: DataRef) -> int | None:
        """Return the version that a name's marker names, None if it is absent or nonsense."""
        data = self._read(ref.latest_rel)
        return None if data is None else parse_marker(data)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """Return a version's row, None if it is gone; raise MetadataError if it is damaged."""
        key = self.names.remote(ref.file_rel(version, METADATA))
        data = self._read(ref.file_rel(version, METADATA))
        if data is None:
            return None
        metadata = on_disk.parse_metadata(data, ref, version, key)
        return row_of(self.names.namespace, ref, metadata, deferred=False)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """Whether a version was written to be committed later, and was not yet."""
        del ref, version
        return False

    def _read(self, rel: str) -> bytes | None:
        try:
            return self.store.get(self.names.remote(rel)).data
        except ObjectNotFoundError:
            return None


@dataclass(frozen=True)
class VersionsInPlace:
    """Versions as files of a directory that is used in place, read just as the catalog does."""

    tree: Tree
    namespace: str

    def marker(self, ref: DataRef) -> int | None:
        """See StoredVersions.marker."""
        return on_disk.read_marker(self.tree, ref)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """See StoredVersions.row."""
        metadata = on_disk.read_metadata(self.tree, ref, version)
        if metadata is None:
            return None
        deferred = self.is_deferred(ref, version)
        return row_of(self.namespace, ref, metadata, deferred=deferred)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """See StoredVersions.is_deferred."""
        return on_disk.is_deferred(self.tree, ref, version)


class Versions(Protocol):
    """Where versions are described: objects, files, or what a snapshot remembers of them."""

    def marker(self, ref: DataRef) -> int | None:
        """Return the version that a name's marker names, None if it is absent or nonsense."""

    def row(self, ref: DataRef, version: int) -> Row | None:
        """Return a version's row, None if it is gone; raise MetadataError if it is damaged."""

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """Whether a version was written to be committed later, and was not yet."""


def versions_of(place: Place, store: Store) -> Versions:
    """Return where the versions of a place are described."""
    if place.indexed or place.root is None:
        return StoredVersions(store, place.names())
    base = os.path.join(place.root, place.namespace).removesuffix("/")
    return VersionsInPlace(Tree.only_read(base), place.namespace)


def look(versions: Versions, name: Name, version: int | None) -> Row | int | None:
    """Return a name's marker (without a version) or a version's row; damage is only reported."""
    if version is None:
        return versions.marker(name.ref)
    try:
        return versions.row(name.ref, version)
    except MetadataError as error:
        notice("%s", error.message)
        return None


class Name:
    """A data name while its marker and its metadata arrive, in any order.

    `stored` has the content of every version there is. `looked_at` are the wanted ones, and the
    newest: it nearly always settles whether older ones are the latest of their step.
    """

    def __init__(
        self, ref: DataRef, stored: Mapping[int, File | None], wanted: Collection[int]
    ) -> None:
        self.ref = ref
        self.stored = stored
        self.looked_at = frozenset(wanted) | {max(stored)}
        self._wanted = frozenset(wanted)
        self._marker: int | None = None
        self._rows: dict[int, Row] = {}
        self._arrived = 0

    def is_complete_with(self, version: int | None, found: Row | int | None) -> bool:
        """Take the marker (without a version) or a row; return whether all has arrived."""
        if isinstance(found, Row):
            self._rows[found.version] = found
        elif version is None:
            self._marker = found
        self._arrived += 1
        return self._arrived == 1 + len(self.looked_at)

    def settled(self, versions: Versions) -> Iterator[tuple[Row, File | None]]:
        """Yield the wanted rows, newest first, with what the catalog says about being latest."""
        steps = LatestOfSteps(self._effective_marker(versions))
        others = sorted(version for version in self.stored if version not in self.looked_at)
        for version in sorted(self._rows, reverse=True):
            row = self._rows[version]
            deferred = bool(row.deferred)
            if steps.counts(version, deferred=deferred):
                while others and others[-1] > version and not steps.knows(row.step_name):
                    self._show(steps, versions, others.pop())
            is_latest = steps.is_latest(version, row.step_name, deferred=deferred)
            if version in self._wanted:
                yield row._replace(is_latest=int(is_latest)), self.stored[version]

    def _effective_marker(self, versions: Versions) -> int:
        if self._marker is not None:
            return self._marker
        return latest_of(self.stored, lambda one: not versions.is_deferred(self.ref, one))

    def _show(self, steps: LatestOfSteps, versions: Versions, version: int) -> None:
        """Let a version that nobody wants be the latest one of its step, if it is."""
        if not steps.counts(version, deferred=False):
            return
        row = look(versions, self, version)
        if isinstance(row, Row):
            steps.is_latest(version, row.step_name, deferred=bool(row.deferred))


def by_name(files: Iterable[File]) -> dict[DataRef, dict[int, File | None]]:
    """Return the content of every version that has metadata, by data name."""
    stored: dict[str, dict[int, File | None]] = {}
    contents: dict[tuple[str, int], File] = {}
    for file in files:
        found = version_file(file.rel)
        if found is None:
            continue
        if file.rel.endswith(METADATA):
            stored.setdefault(found.name_rel, {})[found.version] = None
        else:
            contents[found] = file
    return {
        ref_of(name): {version: contents.get((name, version)) for version in versions}
        for name, versions in stored.items()
    }


def columns_of(place: Place, row: Row) -> tuple[Any, ...] | None:
    """Return a row as Spark has it; None, and a notice, if a number is beyond what Spark holds."""
    if row.size > LARGEST_SIZE:
        notice("%s version %d claims a size of %d", row.ref, row.version, row.size)
        return None
    return (place.identity, *typed(row))


def typed(row: Row) -> tuple[Any, ...]:
    """Return the columns of a row with the types that the table has."""
    return row._replace(
        is_latest=bool(row.is_latest),
        deferred=bool(row.deferred),
        streaming=bool(row.streaming),
        created_at=_moment(row.created_at),  # type: ignore[arg-type]  # typed as Spark has it
        tags=list(json.loads(row.tags).items()),  # type: ignore[arg-type]  # the same
    )


def _moment(text: str) -> datetime | None:
    try:
        return from_iso(text).astimezone(UTC)
    except (ValueError, OverflowError):  # digits in the right places need not be a date
        return None
