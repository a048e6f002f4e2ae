"""Reading versions from a snapshot where it still holds, and from the store where it does not.

A snapshot changes what a reading costs and nothing else. What it cannot prove, because a shard
has another fingerprint or a file is lost, is read as if there were none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.errors import NewerFormatError, NotFoundError
from swampstore.index.partitions import partition_of
from swampstore.index.state import same
from swampstore.layout import METADATA, DataRef
from swampstore.notices import notice
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins, each
from swampstore.pipeline.snapshots import rows_file
from swampstore.pipeline.snapshots.buckets import RowsFile
from swampstore.pipeline.snapshots.evidence import RememberedVersions, by_version
from swampstore.pipeline.snapshots.history import snapshot_at
from swampstore.pipeline.snapshots.manifest import Bucket, Manifest, Manifests, bucket_of
from swampstore.pipeline.snapshots.told import Said, Told, is_of, monolith_said, shard_said, told
from swampstore.pipeline.source.index import Commits
from swampstore.pipeline.source.scan import Wanted
from swampstore.pipeline.source.slices import File, shard_files
from swampstore.pipeline.source.versions import StoredVersions, Versions
from swampstore.stores.errors import StorePermissionError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa

_OPERATORS = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "in": "in"}
_A_SHARD = 100  # rows that take as long as reading one


class Part(NamedTuple):
    """A bucket of a snapshot: the file, the shards whose rows in it count, and those to be read.

    The file has `size` bytes, 0 if that is not known.
    """

    number: int
    rows: str | None
    use: tuple[str, ...]
    live: tuple[str, ...]
    size: int = 0


class Memory(NamedTuple):
    """What one task reads: parts of a snapshot.

    `moving` are shards that are not what they were, whose markers may be others. With `spread`
    all is in one document, which is not what it was: it is read for all shards of these parts.
    """

    parts: tuple[Part, ...]
    moving: frozenset[str] = frozenset()
    is_one: bool = False
    spread: int | None = None
    is_past: bool = False


def memories_at(
    place: Place, store: Store, tasks: int, may_hold: Callable[[str], bool], point: str
) -> list[Memory]:
    """Plan the reading of a place as a snapshot shows it; see `snapshot_at`.

    Raises NotFoundError, and ValidationError where there is no index.
    """
    manifest = snapshot_at(place, store, point)
    parts = []
    for bucket in manifest.buckets:
        use = tuple(filter(may_hold, bucket.shards))
        if bucket.live:
            notice("%d shards are not in snapshot %d", len(bucket.live), manifest.number)
        if use:
            parts.append((Part(bucket.number, bucket.rows, use, (), bucket.size), bucket.count))
    return [Memory(one, is_past=True) for one in _packed(parts, tasks)]


def memories(
    place: Place, store: Store, tasks: int, may_hold: Callable[[str], bool]
) -> list[Memory] | None:
    """Plan the reading of a place that has a snapshot; None if it has none that helps.

    Costs a listing, and if there is a snapshot one request for it and one or two for the index.
    """
    if not place.indexed:
        return None
    try:
        manifest = Manifests(store, place.names()).newest().manifest
    except (NewerFormatError, StorePermissionError) as error:
        notice("the snapshot is not used: %s", error.message)
        return None
    now = told(place, store) if manifest is not None else None
    if manifest is None or now is None or not is_of(manifest, now):
        return None
    if now.is_one:
        return _of_one(manifest, now, tasks, may_hold)
    return _of_shards(manifest, now, tasks, may_hold)


def _of_one(
    manifest: Manifest, now: Told, tasks: int, may_hold: Callable[[str], bool]
) -> list[Memory]:
    is_same = same(manifest.monolith, now.monolith)
    buckets = {one.number: one for one in manifest.buckets}
    parts = []
    for number in range(manifest.spread):
        bucket = buckets.get(number) or Bucket(number)
        use = tuple(filter(may_hold, bucket.shards)) if is_same else ()
        live = tuple(filter(may_hold, bucket.live)) if is_same else ()
        if use or live or not is_same:
            parts.append((Part(number, bucket.rows, use, live, bucket.size), bucket.count))
    spread = None if is_same else manifest.spread
    return [Memory(one, frozenset(), is_one=True, spread=spread) for one in _packed(parts, tasks)]


def _of_shards(
    manifest: Manifest, now: Told, tasks: int, may_hold: Callable[[str], bool]
) -> list[Memory]:
    covered, markers = manifest.shards, manifest.marker_shards
    use: dict[int, list[str]] = {}
    live: dict[int, list[str]] = {}
    for partition, etag in now.shards.items():
        if may_hold(partition):
            chosen = use if same(covered.get(partition), etag) else live
            chosen.setdefault(bucket_of(partition, manifest.spread), []).append(partition)
    changed = {p for p, etag in now.shards.items() if not same(markers.get(p), etag)}
    moving = frozenset(changed | (markers.keys() - now.shards.keys()))
    buckets = {one.number: one for one in manifest.buckets}
    parts = []
    for number in sorted(use.keys() | live.keys()):
        bucket = buckets.get(number) or Bucket(number)
        inside, outside = (tuple(one.get(number, ())) for one in (use, live))
        part = Part(number, bucket.rows, inside, outside, bucket.size)
        parts.append((part, bucket.count + _A_SHARD * len(part.live)))
    return [Memory(one, moving) for one in _packed(parts, tasks)]


def _packed(parts: list[tuple[Part, int]], tasks: int) -> Iterator[tuple[Part, ...]]:
    for some in bins(parts, lambda one: one[1], tasks):
        yield tuple(part for part, _ in some)


class Recalled(NamedTuple):
    """What was recalled of one part: rows that hold as they are, and files of the other versions.

    `versions` is where those are described.
    """

    rows: pa.Table
    files: list[File]
    versions: Versions


def recall(
    place: Place,
    memory: Memory,
    store: Store,
    wanted: Wanted,
    columns: Collection[str] | None = None,
) -> Iterator[Recalled]:
    """Yield the versions of some parts of a snapshot; at least those that are wanted.

    Rows that hold as they are have at least the `columns`, None: all.
    """
    reading = _Recalling(place, memory, store, wanted, columns)
    return map(reading.recalled, memory.parts)


class _Recalling:
    def __init__(
        self,
        place: Place,
        memory: Memory,
        store: Store,
        wanted: Wanted,
        columns: Collection[str] | None,
    ) -> None:
        self._place = place
        self._memory = memory
        self._store = store
        self._names = place.names()
        self._manifests = Manifests(store, self._names)
        self._filters = arrow_filters(wanted)
        self._columns = columns
        self._one: Said | None = None
        self._said: dict[str, Said | None] = {}

    def recalled(self, part: Part) -> Recalled:
        """Read one part."""
        found = self._remembered(part)
        if found is None:
            if self._memory.is_past and part.rows is not None:
                raise NotFoundError(
                    f"{part.rows} of a snapshot of {self._place} is gone",
                    hint="Ask for a later time; --keep of a refresh says how long files stay.",
                )
            if part.rows is not None:
                notice("%s of the snapshot is lost: its shards are read", part.rows)
            part = part._replace(use=(), live=(*part.use, *part.live))
            found = rows_file.SCHEMA.empty_table(), set()
        table, moved_names = found
        proven = rows_file.of_shards(table, part.use)
        if not (moved_names or self._needs_all(part)):
            return Recalled(proven, [], StoredVersions(self._store, self._names))
        moved_rows, plain = rows_file.split(proven, moved_names)
        moved = by_version(rows_file.remembered(moved_rows, self._names.namespace))
        files = [*self._live(part)]
        hashes: dict[str, str | None] = {file.rel: file.sha256 for file in files}
        rest = rows_file.of_shards(table, self._others(part, files))
        known = moved | by_version(rows_file.remembered(rest, self._names.namespace))
        for (ref, version), one in moved.items():
            rel = ref.file_rel(version, METADATA)
            hashes[rel] = one.metadata
            files += [File(rel, 0, one.metadata), *([one.raw] if one.raw else [])]
        markers = {ref.latest_rel: sha256 for ref, sha256 in rows_file.names_in(proven)}

        def hash_of(rel: str) -> str | None:
            return hashes[rel] if rel in hashes else self._marker(rel, markers)

        stored = StoredVersions(self._store, self._names)
        return Recalled(plain, files, RememberedVersions(stored, hash_of, known))

    def _needs_all(self, part: Part) -> bool:
        """Whether rows may have to be compared with documents, one by one."""
        return bool(part.live) or self._memory.spread is not None

    def _remembered(self, part: Part) -> tuple[pa.Table, set[DataRef]] | None:
        """Return the rows, and the names whose markers moved; None if the rows are lost.

        Only columns and rows that are needed are there if no marker moved.
        """
        if part.rows is None:
            return None
        file = RowsFile(self._store, self._manifests.key_of(part.rows), part.size)
        moved: set[DataRef] = set()
        if self._memory.moving:
            names = file.read(columns=rows_file.NAMING)
            if names is None:
                return None
            moved = self._moved(rows_file.of_shards(names, part.use))
        if moved or self._needs_all(part):
            table = file.read()
        else:
            columns = None if self._columns is None else {*self._columns, "partition"}
            table = file.read(self._filters, columns)
        return None if table is None else (table, moved)

    def _moved(self, proven: pa.Table) -> set[DataRef]:
        """Return the names whose markers are not what they were."""
        moving = self._memory.moving
        if not moving or not proven.num_rows:
            return set()
        names = [
            (ref, sha256)
            for ref, sha256 in rows_file.names_in(proven)
            if partition_of(ref.latest_rel) in moving
        ]
        self._read_shards({partition_of(ref.latest_rel) for ref, _ in names})
        return {ref for ref, sha256 in names if self._marker(ref.latest_rel, {}) != sha256}

    def _marker(self, rel: str, remembered: Mapping[str, str | None]) -> str | None:
        """Return the hash that the index gives a marker now, None if it gives none."""
        partition = partition_of(rel)
        if self._memory.is_one:
            found: Said | None = self._document() if self._memory.spread else None
            if found is None:
                return remembered.get(rel)
        elif partition in self._memory.moving:
            self._read_shards({partition})
            found = self._said[partition]
        else:
            return remembered.get(rel)
        file = found.files.get(rel) if found else None
        return file.sha256 if file else None

    def _read_shards(self, partitions: set[str]) -> None:
        commits = Commits(self._place, self._store)

        def read(partition: str) -> Said | None:
            return shard_said(self._place, self._store, partition, commits)

        self._said.update(each(self._place, read, partitions - self._said.keys()))

    def _live(self, part: Part) -> Iterator[File]:
        """Yield the files of versions in the shards that have to be read."""
        if self._memory.spread is not None:
            spread = self._memory.spread
            for file in self._document().versions():
                if bucket_of(partition_of(file.rel), spread) == part.number:
                    yield file
        elif self._memory.is_one and part.live:
            live = set(part.live)
            yield from (f for f in self._document().versions() if partition_of(f.rel) in live)
        else:
            read = {one: said for one in part.live if (said := self._said.get(one)) is not None}
            for said in read.values():
                yield from said.versions()
            unread = [one for one in part.live if one not in read]
            yield from shard_files(self._place, self._store, unread)

    def _document(self) -> Said:
        if self._one is None:
            self._one = monolith_said(self._place, self._store)
        return self._one

    def _others(self, part: Part, files: list[File]) -> set[str]:
        """Return the shards whose remembered rows may hold for some of their versions."""
        if self._memory.spread is None:
            return {*part.live}
        return {partition_of(file.rel) for file in files}


def arrow_filters(wanted: Wanted) -> rows_file.Filters:
    """Return the conditions that a Parquet file can answer; None if they leave nothing out."""
    filters: list[list[tuple[str, str, Any]]] = []
    for conditions in wanted.alternatives:
        known: list[tuple[str, str, Any]] = [
            (one.column, _OPERATORS[one.test], one.operand)
            for one in conditions
            if one.test in _OPERATORS and one.column in rows_file.FILTERED
        ]
        if not known:
            return None
        filters.append(known)
    return filters
