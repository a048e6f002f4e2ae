"""Making one bucket of a snapshot anew: what a task does. It decides nothing about others.

A file is written under a name that nobody has, so a task that runs twice only leaves one more.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from swampstore.catalog.schema import Row
from swampstore.index.partitions import partition_of
from swampstore.index.state import same
from swampstore.layout import METADATA, DataRef
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.snapshots import rows_file
from swampstore.pipeline.snapshots.evidence import ProvenVersions, Unproven, by_version
from swampstore.pipeline.snapshots.manifest import Bucket, Manifests, bucket_of
from swampstore.pipeline.snapshots.rows_file import Remembered
from swampstore.pipeline.snapshots.told import Said, monolith_said, shard_said
from swampstore.pipeline.source.index import Commits
from swampstore.pipeline.source.slices import File
from swampstore.pipeline.source.versions import Name, by_name
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import CountingStore

if TYPE_CHECKING:
    from swampstore.stores.wrapper import Tally


# To fetch so much takes no longer than to ask once more.
_FETCHED_WHOLE = 1 << 20


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
    drafts: Sequence[Drafted] = ()


class Draft(NamedTuple):
    """Rows of some shards of a bucket that are to be made beforehand, because others are many.

    `parts` are the shards: of each, names of the parts with these numbers of so many.
    """

    number: int
    old: Bucket | None
    parts: Mapping[str, tuple[frozenset[int], int]]


class Drafted(NamedTuple):
    """Rows that were made beforehand, and are in a file that no manifest names.

    They are those of documents with these ETags; of `unproven` shards they do not count. `used`,
    `read` and `tally` are those of Remade.
    """

    draft: Draft
    file: str | None
    etags: Mapping[str, str]
    unproven: frozenset[str]
    used: Mapping[str, str]
    read: int
    tally: Tally | None = None


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


def remake(
    place: Place, moving: frozenset[str] | None, works: Sequence[Work | Draft]
) -> Iterator[Remade | Drafted]:
    """Make buckets anew from their shards, or drafts for them: a task.

    `moving` are all shards that are not what they were, None: every one.
    """
    with place.open() as opened:
        for work in works:
            store = CountingStore(opened)
            remaking = _Remaking(place, store, moving)
            if isinstance(work, Draft):
                yield remaking.drafted(work)._replace(tally=store.tally())
            else:
                yield remaking.remade(work)._replace(tally=store.tally())


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
        self._commits = Commits(place, store)
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
        drafted, done, unproven = self._of_drafts(work.drafts, said)
        rest = {one: found for one, found in said.items() if one not in done}
        rows, doubtful = self._rows(rest, table, self._marker_hashes(rest, proven))
        unproven |= doubtful
        shards = {one: old.shards[one] for one in kept if one in old.shards}
        shards |= {one: found.etag for one, found in said.items() if one not in unproven}
        marker_shards = {one: old.marker_shards[one] for one in kept if one in old.marker_shards}
        marker_shards |= {one: found.etag for one, found in said.items()}
        moved = _moved(before, markers, [*changed, *work.gone])
        remembered = pa.concat_tables([rows_file.of_shards(table, kept.keys()), *drafted])
        bucket = self._written(work.number, remembered, rows, markers)
        bucket = msgspec.structs.replace(bucket, shards=shards, marker_shards=marker_shards)
        read = len(self._said) + sum(one.read for one in work.drafts)
        used = _agreed([self._used, *(one.used for one in work.drafts)])
        return Remade(bucket, moved, used, read=read)

    def drafted(self, draft: Draft) -> Drafted:
        """Make rows that `remade` only has to put together with others."""
        old = draft.old or Bucket(draft.number)
        table = read_rows(self._store, self._manifests, old.rows)
        table = rows_file.SCHEMA.empty_table() if table is None else table
        self._read(draft.parts)
        said = {
            one: Said(found.etag, dict(_parts_of(found, *parts)))
            for one, parts in draft.parts.items()
            if (found := self._said[one]) is not None
        }
        proven = rows_file.of_shards(table, old.shards.keys())
        rows, unproven = self._rows(said, table, self._marker_hashes(said, proven))
        file = None
        if rows:
            file = rows_file.file_name()
            data = rows_file.encode(rows_file.table_of(rows))
            self._store.put(self._manifests.key_of(file), data)
        etags = {one: found.etag for one, found in said.items()}
        return Drafted(draft, file, etags, frozenset(unproven), self._used, len(self._said))

    def _of_drafts(
        self, drafts: Sequence[Drafted], said: Mapping[str, Said]
    ) -> tuple[list[pa.Table], set[str], set[str]]:
        """Return rows of drafts, the shards that these are all rows of, and which are unproven.

        A shard whose document has changed meanwhile, or whose draft is lost, is not among them.
        """
        tables = [
            read_rows(self._store, self._manifests, one.file) if one.file else None
            for one in drafts
        ]
        done = {one for drafted in drafts for one in drafted.draft.parts} & said.keys()
        for drafted, table in zip(drafts, tables, strict=True):
            for one in drafted.draft.parts:
                is_same = one in said and same(drafted.etags.get(one), said[one].etag)
                if not is_same or (drafted.file is not None and table is None):
                    done.discard(one)
        unproven = {one for drafted in drafts for one in drafted.unproven} & done
        found = [rows_file.of_shards(one, done - unproven) for one in tables if one is not None]
        return found, done, unproven

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
            return shard_said(self._place, self._store, partition, self._commits)

        self._said.update(each(self._place, read, partitions))

    def _written(
        self,
        number: int,
        kept: pa.Table,
        rows: Sequence[Remembered],
        markers: rows_file.Markers,
    ) -> Bucket:
        rows_name = markers_name = None
        size = 0
        count = kept.num_rows + len(rows)
        if count:
            rows_name = rows_file.file_name()
            data = rows_file.encode(kept, rows_file.table_of(rows))
            size = len(data)
            self._store.put(self._manifests.key_of(rows_name), data)
        if markers:
            markers_name = rows_file.markers_name()
            self._store.put(self._manifests.key_of(markers_name), rows_file.encode_markers(markers))
        return Bucket(number, rows_name, count, markers=markers_name, size=size)


def _agreed(used: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return what documents were relied on; where several were seen, an ETag that none has."""
    found: dict[str, str] = {}
    for one in used:
        for partition, etag in one.items():
            found[partition] = etag if same(found.get(partition, etag), etag) else ""
    return found


def _parts_of(said: Said, numbers: Collection[int], count: int) -> Iterator[tuple[str, File]]:
    """Yield the files of versions whose names are of some of so many parts."""
    for file in said.versions():
        name = file.rel.rsplit("/", 2)[0]
        if zlib.crc32(name.encode()) % count in numbers:
            yield file.rel, file


class RowsFile:
    """A file of rows. Of a long one whose size is known only what is asked for is fetched."""

    def __init__(self, store: Store, key: str, size: int = 0) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._data: bytes | None = None

    def read(
        self, filters: rows_file.Filters = None, columns: Collection[str] | None = None
    ) -> pa.Table | None:
        """Return rows, at least those that pass the filters, None if they are lost or damaged."""
        try:
            is_all = filters is None and columns is None
            if self._data is None and self._is_long and not is_all:
                return rows_file.fetch(self._store, self._key, self._size, filters, columns)
            if self._data is None:
                self._data = self._store.get(self._key).data
            return rows_file.decode(self._data, filters, columns)
        except (ObjectNotFoundError, CorruptObjectError, pa.ArrowException, OSError):
            return None

    @property
    def _is_long(self) -> bool:
        return self._size > _FETCHED_WHOLE


def read_rows(store: Store, manifests: Manifests, file: str | None) -> pa.Table | None:
    """Return the rows of a file of a snapshot, None if it is lost or damaged."""
    return None if file is None else RowsFile(store, manifests.key_of(file)).read()


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
