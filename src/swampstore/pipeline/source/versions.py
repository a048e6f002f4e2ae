"""What the versions of a data name say, and which of them are latest: the catalog's rule.

The catalog settles it from rows in SQLite. Here the marker and the metadata of a name arrive one
by one from anywhere, and only those versions are read that a query needs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import LatestOfSteps, latest_of, parse_marker
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.errors import MetadataError
from swampstore.files import Tree
from swampstore.layout import METADATA, DataRef
from swampstore.notices import notice
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.committed import File
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store
from swampstore.sync.names import Names


class Versions(Protocol):
    """Where the versions of a place are described."""

    def marker(self, ref: DataRef) -> int | None:
        """Return the version that a name's marker names, None if it is absent or nonsense."""

    def row(self, ref: DataRef, version: int) -> Row | None:
        """Return a version's row, None if it is gone; raise MetadataError if it is damaged."""

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """Whether a version was written to be committed later, and was not yet."""


@dataclass(frozen=True)
class StoredVersions:
    """Versions as objects of a store. What is deferred never gets there."""

    store: Store
    names: Names

    def marker(self, ref: DataRef) -> int | None:
        """See Versions.marker."""
        data = self._read(ref.latest_rel)
        return None if data is None else parse_marker(data)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """See Versions.row."""
        key = self.names.remote(ref.file_rel(version, METADATA))
        data = self._read(ref.file_rel(version, METADATA))
        if data is None:
            return None
        metadata = on_disk.parse_metadata(data, ref, version, key)
        return row_of(self.names.namespace, ref, metadata, deferred=False)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """See Versions.is_deferred."""
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
        """See Versions.marker."""
        return on_disk.read_marker(self.tree, ref)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """See Versions.row."""
        metadata = on_disk.read_metadata(self.tree, ref, version)
        if metadata is None:
            return None
        deferred = self.is_deferred(ref, version)
        return row_of(self.namespace, ref, metadata, deferred=deferred)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """See Versions.is_deferred."""
        return on_disk.is_deferred(self.tree, ref, version)


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
