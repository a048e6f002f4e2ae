"""Making one bucket of a snapshot anew: what a task does. It decides nothing about others.

A file is written under a name that nobody has, so a task that runs twice only leaves one more.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from swampstore.catalog.schema import Row
from swampstore.index.partitions import partition_of
from swampstore.layout import METADATA, DataRef
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.snapshots import rows_file
from swampstore.pipeline.snapshots.evidence import ProvenVersions, Unproven, by_version
from swampstore.pipeline.snapshots.manifest import Bucket, Manifests, bucket_of
from swampstore.pipeline.snapshots.rows_file import Remembered
from swampstore.pipeline.snapshots.told import Said, monolith_said, shard_said
from swampstore.pipeline.source.index import File
from swampstore.pipeline.source.versions import Name, by_name
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import CountingStore

if TYPE_CHECKING:
    from swampstore.stores.wrapper import Tally


class Work(NamedTuple):
    """A bucket that is to be made anew.

    `old` is what it was, or the one that it is split from. `kept` are the shards that are what they
    were, `changed` those to be read, `gone` those that had markers and are there no more.
    """

    number: int
    old: Bucket | None
    kept: Mapping[str, str]
    changed: Sequence[str]
    gone: Sequence[str] = ()


class Remade(NamedTuple):
    """A bucket that was made anew.

    `moved` are the names whose markers are not what they were. `used` are the ETags of the
    documents that its rows rely on for their markers. `etag` is that of the one document, if any.
    `read` counts the documents that were read.
    """

    bucket: Bucket
    moved: frozenset[str] = frozenset()
    used: Mapping[str, str] = {}
    etag: str | None = None
    read: int = 0
    tally: Tally | None = None


def remake(place: Place, moving: frozenset[str] | None, works: Sequence[Work]) -> Iterator[Remade]:
    """Make buckets anew from their shards: a task.

    `moving` are all shards that are not what they were, None: every one.
    """
    with place.open() as opened:
        for work in works:
            store = CountingStore(opened)
            remade = _Remaking(place, store, moving).remade(work)
            yield remade._replace(tally=store.tally())


def remake_from_one(
    place: Place, spread: int, works: Sequence[tuple[int, Bucket | None]]
) -> Iterator[Remade]:
    """Make buckets anew from the one document of the index: a task. Those that are right stay."""
    with place.open() as opened:
        store = CountingStore(opened)
        said = monolith_said(place, store)
        numbers = {number for number, _ in works}
        shards: dict[int, dict[str, Said]] = {number: {} for number in numbers}
        files: dict[str, dict[str, File]] = defaultdict(dict)
        for file in said.versions():
            files[partition_of(file.rel)][file.rel] = file
        for partition, inside in files.items():
            number = bucket_of(partition, spread)
            if number in numbers:
                shards[number][partition] = Said(said.etag, inside)
        markers = said.markers()
        for number, old in works:
            remaking = _Remaking(place, store, None)
            remade = remaking.remade_from(number, old, shards[number], markers)
            yield remade._replace(etag=said.etag, tally=store.tally())
            store.reset()


class _Remaking:
    """One bucket being made."""

    def __init__(self, place: Place, store: Store, moving: frozenset[str] | None) -> None:
        self._place = place
        self._store = store
        self._moving = moving
        self._names = place.names()
        self._manifests = Manifests(store, self._names)
        self._said: dict[str, Said | None] = {}
        self._used: dict[str, str] = {}

    def remade(self, work: Work) -> Remade:
        """Make it from the shards that changed, and for the rest from what it was."""
        old = work.old or Bucket(work.number)
        kept, changed = work.kept, work.changed
        table = read_rows(self._store, self._manifests, old.rows)
        before = read_markers(self._store, self._manifests, old.markers)
        if (old.rows and table is None) or (old.markers and before is None):
            kept, changed = {}, [*kept, *changed]  # what is lost is made from the beginning
        table = rows_file.SCHEMA.empty_table() if table is None else table
        before = before or {}
        self._read(changed)
        said = {one: found for one in changed if (found := self._said[one]) is not None}
        markers = {one: before[one] for one in kept if one in before}
        markers |= {one: found.markers() for one, found in said.items() if found.markers()}
        proven = rows_file.of_shards(table, old.shards.keys())
        rows, unproven = self._rows(said, table, self._marker_hashes(said, proven))
        shards = {one: old.shards[one] for one in kept if one in old.shards}
        shards |= {one: found.etag for one, found in said.items() if one not in unproven}
        marker_shards = {one: old.marker_shards[one] for one in kept if one in old.marker_shards}
        marker_shards |= {one: found.etag for one, found in said.items()}
        moved = _moved(before, markers, [*changed, *work.gone])
        remembered = rows_file.of_shards(table, kept.keys())
        bucket = self._written(work.number, remembered, rows, markers)
        bucket = msgspec.structs.replace(bucket, shards=shards, marker_shards=marker_shards)
        return Remade(bucket, moved, self._used, read=len(self._said))

    def remade_from(
        self,
        number: int,
        old: Bucket | None,
        said: Mapping[str, Said],
        markers: Mapping[str, str],
    ) -> Remade:
        """Make it from what the one document says of its shards and of all markers."""
        digest = _digest(said, markers)
        table = read_rows(self._store, self._manifests, old.rows) if old else None
        if old is not None and old.digest == digest and (table is not None or old.rows is None):
            return Remade(old)
        table = rows_file.SCHEMA.empty_table() if table is None else table
        rows, unproven = self._rows(said, table, markers.get)
        bucket = self._written(number, rows_file.SCHEMA.empty_table(), rows, {})
        shards = {one: "" for one in said if one not in unproven}
        return Remade(
            msgspec.structs.replace(bucket, shards=shards, digest=digest, live=sorted(unproven))
        )

    def _rows(
        self,
        said: Mapping[str, Said],
        table: pa.Table,
        marker_hash: Callable[[str], str | None],
    ) -> tuple[list[Remembered], set[str]]:
        """Return the rows of shards, and which of these cannot be believed."""
        of_them = rows_file.of_shards(table, said.keys())
        known = by_version(rows_file.remembered(of_them, self._names.namespace))
        names: list[tuple[str, Name]] = []
        hashes: dict[str, str | None] = {}
        for partition, found in said.items():
            hashes |= {rel: file.sha256 for rel, file in found.files.items()}
            for ref, stored in by_name(found.versions()).items():
                names.append((partition, Name(ref, stored, stored.keys())))
                hashes[ref.latest_rel] = marker_hash(ref.latest_rel)
        versions = ProvenVersions(self._store, self._names, hashes.get, known)
        rows: list[Remembered] = []
        unproven: set[str] = set()
        jobs = ((one, version) for one in names for version in (None, *one[1].looked_at))

        def look(job: tuple[tuple[str, Name], int | None]) -> Row | int | Unproven | None:
            (_, name), version = job
            try:
                return (
                    versions.marker(name.ref)
                    if version is None
                    else versions.row(name.ref, version)
                )
            except Unproven as error:
                return error

        for ((partition, name), version), row in each(self._place, look, jobs):
            if isinstance(row, Unproven):
                unproven.add(partition)
            elif name.is_complete_with(version, row):
                for settled, raw in name.settled(versions):
                    metadata = hashes[settled.ref.file_rel(settled.version, METADATA)]
                    marker = hashes[name.ref.latest_rel]
                    assert metadata is not None
                    rows.append(Remembered(settled, partition, metadata, marker, raw))
        return rows, unproven

    def _marker_hashes(
        self, said: Mapping[str, Said], proven: pa.Table
    ) -> Callable[[str], str | None]:
        """Return what tells the hash of a marker as the index has it now."""
        remembered = {ref.latest_rel: sha256 for ref, sha256 in rows_file.names_in(proven)}

        def is_same(rel: str) -> bool:
            moving = self._moving
            return moving is not None and partition_of(rel) not in moving and rel in remembered

        rels = {ref.latest_rel for one in said.values() for ref in by_name(one.versions())}
        self._read({partition_of(rel) for rel in rels if not is_same(rel)} - self._said.keys())

        def marker_hash(rel: str) -> str | None:
            if is_same(rel):
                return remembered[rel]
            found = self._said[partition_of(rel)]
            if found is None:
                return None
            self._used[partition_of(rel)] = found.etag
            file = found.files.get(rel)
            return None if file is None else file.sha256 or ""

        return marker_hash

    def _read(self, partitions: Iterable[str]) -> None:
        """Read shards, many at once where that takes time."""

        def read(partition: str) -> Said | None:
            return shard_said(self._place, self._store, partition)

        self._said.update(each(self._place, read, partitions))

    def _written(
        self,
        number: int,
        kept: pa.Table,
        rows: Sequence[Remembered],
        markers: rows_file.Markers,
    ) -> Bucket:
        rows_name = markers_name = None
        count = kept.num_rows + len(rows)
        if count:
            rows_name = rows_file.file_name()
            data = rows_file.encode(kept, rows_file.table_of(rows))
            self._store.put(self._manifests.key_of(rows_name), data)
        if markers:
            markers_name = rows_file.markers_name()
            self._store.put(self._manifests.key_of(markers_name), rows_file.encode_markers(markers))
        return Bucket(number, rows_name, count, markers=markers_name)


def read_rows(
    store: Store, manifests: Manifests, file: str | None, filters: rows_file.Filters = None
) -> pa.Table | None:
    """Return the rows of a file of a snapshot, None if it is lost or damaged."""
    if file is None:
        return None
    try:
        return rows_file.decode(store.get(manifests.key_of(file)).data, filters)
    except (ObjectNotFoundError, pa.ArrowException, OSError):
        return None


def read_markers(
    store: Store, manifests: Manifests, file: str | None
) -> dict[str, dict[str, str]] | None:
    """Return the hashes of markers in a file of a snapshot, None if it is lost or damaged."""
    if file is None:
        return None
    try:
        return rows_file.decode_markers(store.get(manifests.key_of(file)).data)
    except (ObjectNotFoundError, msgspec.MsgspecError):
        return None


def _moved(
    before: rows_file.Markers, now: rows_file.Markers, partitions: Sequence[str]
) -> frozenset[str]:
    """Return the markers that some shards give another hash than before, or one or none."""
    found: set[str] = set()
    for partition in partitions:
        old, new = before.get(partition, {}), now.get(partition, {})
        found |= {rel for rel in old.keys() | new.keys() if old.get(rel) != new.get(rel)}
    return frozenset(found)


def _digest(said: Mapping[str, Said], markers: Mapping[str, str]) -> str:
    """Return what stands for all that shards say of versions, and for the markers of these."""
    digest = hashlib.sha256()
    refs: set[DataRef] = set()
    for partition in sorted(said):
        files = said[partition].files
        for rel in sorted(files):
            digest.update(f"{rel}\0{files[rel].size}\0{files[rel].sha256}\n".encode())
        refs |= by_name(said[partition].versions()).keys()
    for ref in sorted(refs):
        digest.update(f"{ref.latest_rel}\0{markers.get(ref.latest_rel)}\n".encode())
    return digest.hexdigest()
