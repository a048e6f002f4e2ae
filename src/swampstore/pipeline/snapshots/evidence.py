"""What the index proves about versions, so that nobody has to ask for their objects again.

The index gives the hash of each file. Metadata with the hash that a remembered row was made from
has that row; a marker with the hash of "17" names version 17.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import marker_sha256, parse_marker
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.errors import MetadataError
from swampstore.index.path_map import Names
from swampstore.layout import METADATA, DataRef
from swampstore.pipeline.snapshots.rows_file import Remembered
from swampstore.pipeline.source.versions import LARGEST_SIZE, StoredVersions
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

# Hashes of so many markers are known; those of higher versions are asked for.
_NUMBERS = 5_000

# The hash of a path in the index, None if it has none; for a marker: None if there is no marker.
Hashes = Callable[[str], str | None]


class Unproven(Exception):  # noqa: N818 - not an error: that name stays out of the snapshot
    """An object is not what the index says, or the index does not say what it should be."""


@cache
def _numbers() -> Mapping[str, int]:
    return {marker_sha256(number): number for number in range(1, _NUMBERS + 1)}


def named_by(sha256: str) -> int | None:
    """Return the version that a marker with this hash names, None if that cannot be told.

    >>> named_by(hashlib.sha256(b"17").hexdigest())
    17
    """
    return _numbers().get(sha256)


def by_version(rows: Iterable[Remembered]) -> dict[tuple[DataRef, int], Remembered]:
    """Return remembered rows by what they are rows of."""
    return {(one.row.ref, one.row.version): one for one in rows}


class ProvenVersions:
    """Versions as the index proves them; raises Unproven where it does not.

    What is remembered with the same hash is not asked for.
    """

    def __init__(
        self,
        store: Store,
        names: Names,
        hashes: Hashes,
        known: Mapping[tuple[DataRef, int], Remembered],
    ) -> None:
        self._store = store
        self._names = names
        self._hashes = hashes
        self._known = known

    def marker(self, ref: DataRef) -> int | None:
        """Return the version that a name's marker names, None if there is none."""
        sha256 = self._hashes(ref.latest_rel)
        if sha256 is None:
            if self._found(ref.latest_rel) is not None:
                raise Unproven(ref.latest_rel)
            return None
        number = named_by(sha256)
        return number if number is not None else parse_marker(self._proven(ref.latest_rel, sha256))

    def row(self, ref: DataRef, version: int) -> Row:
        """Return a version's row."""
        rel = ref.file_rel(version, METADATA)
        sha256 = self._hashes(rel)
        known = self._known.get((ref, version))
        if sha256 is None:
            raise Unproven(rel)
        if known is not None and known.metadata == sha256:
            return known.row
        data = self._proven(rel, sha256)
        try:
            metadata = on_disk.parse_metadata(data, ref, version, self._names.remote(rel))
        except MetadataError as error:
            raise Unproven(rel) from error
        row = row_of(self._names.namespace, ref, metadata, deferred=False)
        if row.size > LARGEST_SIZE:
            raise Unproven(rel)
        return row

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """Return False: what is deferred never gets to a store."""
        del ref, version
        return False

    def _proven(self, rel: str, sha256: str) -> bytes:
        data = self._found(rel)
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            raise Unproven(rel)
        return data

    def _found(self, rel: str) -> bytes | None:
        try:
            return self._store.get(self._names.remote(rel)).data
        except ObjectNotFoundError:
            return None


class RememberedVersions:
    """Versions as they are now; what the index proves to be remembered is not asked for."""

    def __init__(
        self,
        stored: StoredVersions,
        hashes: Hashes,
        known: Mapping[tuple[DataRef, int], Remembered],
    ) -> None:
        self._stored = stored
        self._hashes = hashes
        self._known = known

    def marker(self, ref: DataRef) -> int | None:
        """See StoredVersions.marker."""
        sha256 = self._hashes(ref.latest_rel)
        number = named_by(sha256) if sha256 is not None else None
        return number if number is not None else self._stored.marker(ref)

    def row(self, ref: DataRef, version: int) -> Row | None:
        """See StoredVersions.row."""
        known = self._known.get((ref, version))
        sha256 = self._hashes(ref.file_rel(version, METADATA)) if known is not None else None
        if known is not None and sha256 == known.metadata:
            return known.row
        return self._stored.row(ref, version)

    def is_deferred(self, ref: DataRef, version: int) -> bool:
        """See StoredVersions.is_deferred."""
        return self._stored.is_deferred(ref, version)
