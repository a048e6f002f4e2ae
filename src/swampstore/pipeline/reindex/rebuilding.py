"""Making the index of one place anew: plan, write shards in tasks, then what makes them count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.clock import system_clock, to_iso
from swampstore.index.changes import attempts, index_moved, new_write_id
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import (
    Document,
    Meta,
    RawEntries,
    decode_monolith,
    decode_shard,
    encode_meta,
    encode_monolith,
    encode_shard,
)
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.pipeline.evidence.gathering import (
    Chosen,
    Claims,
    Task,
    arrow_schema,
    everything,
    gathered,
    shares_of,
    sums_in,
)
from swampstore.pipeline.evidence.index_state import IndexState, survey
from swampstore.pipeline.evidence.reading import Look, Reading, tasks_of
from swampstore.pipeline.gc.sweep import finish_pending_deletes
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.quarantine import Quarantine
from swampstore.pipeline.reindex import Reindexed
from swampstore.pipeline.reindex.planned import (
    CONTRADICTED,
    DROPPED,
    KEPT,
    LEAVING,
    NAMED,
    PLANNED,
    WAITING,
    Assumed,
    Plan,
    entries_in,
)
from swampstore.pipeline.running import watched
from swampstore.pipeline.schemas import FINDINGS
from swampstore.pipeline.source.scan import batches
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError, StoreError
from swampstore.stores.protocol import Store, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.index.report import Progress
    from swampstore.pipeline.index_writer import IndexWriter


WRITTEN = "partition string, etag string, token string, is_written boolean, error string"


class Current(NamedTuple):
    """A shard as it is on the store: without `etag` there is none, without `doc` no whole one."""

    doc: Document | None = None
    etag: str | None = None
    token: str | None = None


def merged(current: RawEntries, wanted: RawEntries) -> RawEntries:
    """Return the wanted entries in the order of the current ones, then the new ones."""
    kept = {rel: wanted[rel] for rel in current if rel in wanted}
    return kept | {rel: raw for rel, raw in sorted(wanted.items()) if rel not in kept}


def read_shard(store: Store, key: str) -> Current:
    """Return a shard with every entry that it has."""
    try:
        info, data = store.get(key)
    except ObjectNotFoundError:
        return Current()
    try:
        return Current(decode_shard(data), info.etag, info.token)
    except IndexDamagedError:
        return Current(None, info.etag, info.token)


def write_shard(
    place: Place,
    store: Store,
    partition: str,
    wanted: RawEntries,
    expected: str | None,
    commit_seq: int | None = None,
) -> tuple[str, str, bool]:
    """Make a shard hold these entries; return its ETag, its token and whether it was written.

    `commit_seq` is the commit that writes it on version 2. `expected` is the ETag that it had when
    the entries were settled. Raises IndexMovedError if somebody wrote another one since.
    """
    key = place.names().remote(shard_key(partition))
    for _ in attempts(()):
        now = read_shard(store, key)
        if now.doc is not None and now.doc.entries == wanted:
            assert now.etag is not None
            return now.etag, now.token or "", False
        if now.etag != expected:
            raise index_moved(f"somebody else wrote {key}", ())
        current = now.doc or Document({})
        document = current.holding(merged(current.entries, wanted))
        data = encode_shard(document.written_by(commit_seq) if commit_seq else document)
        try:
            written = _put(store, key, data, now.token)
        except PreconditionFailedError:
            continue  # perhaps a twin of this task, whose shard is as good
        return written.etag, written.token, True
    raise AssertionError  # attempts() ends with an error


def _put(store: Store, key: str, data: bytes, token: str | None) -> Written:
    able = store.capabilities
    if token is None and able.conditional_create:
        return store.put_if_absent(key, data)
    if token is not None and able.conditional_update:
        return store.put_if_match(key, data, token)
    return store.put(key, data)


def shard_writer(place: Place, expected: Mapping[str, str], commit_seq: int | None) -> Task:
    """Return what a task does with planned rows, which come sorted by partition."""
    schema = arrow_schema(WRITTEN)

    def write(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = (row for batch in incoming for row in zip(*_columns(batch), strict=True))
        with place.open() as store:
            for partition, group in groupby(rows, key=itemgetter(0)):
                wanted = wanted_in(body for _, body in group)
                found = expected.get(partition)
                answer = _answer(place, store, partition, wanted, found, commit_seq)
                yield pa.RecordBatch.from_pylist([answer], schema=schema)

    return write


def wanted_in(bodies: Iterable[bytes]) -> RawEntries:
    """Return the entries of planned rows, sorted."""
    import msgspec

    pairs = sorted(pair for body in bodies for pair in entries_in(body))
    return {rel: msgspec.Raw(entry) for rel, entry in pairs if entry is not None}


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in ("home", "body")]


def _answer(
    place: Place,
    store: Store,
    partition: str,
    wanted: RawEntries,
    expected: str | None,
    commit_seq: int | None,
) -> dict[str, Any]:
    from swampstore.index.errors import IndexMovedError

    try:
        etag, token, is_written = write_shard(place, store, partition, wanted, expected, commit_seq)
    except IndexMovedError as error:
        return {"partition": partition, "error": error.message}
    return {"partition": partition, "etag": etag, "token": token, "is_written": is_written}


_CONCURRENCY = 10


class Rebuilding:
    """One run over one place; without an editor nothing is written.

    Unless it `adopts` them, objects that no entry names stay without one, however old they are.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        editor: IndexWriter | None,
        *,
        rehash: bool,
        grace: timedelta,
        progress: Progress,
        adopts: bool = True,
    ) -> None:
        self._spark = spark
        self._place = place
        self._editor = editor
        self._rehash = rehash
        self._grace = grace
        self._progress = progress
        self._adopts = adopts

    def run(self) -> Reindexed:
        """Plan, and write what is not as planned."""
        if self._editor is not None and self._adopts:
            # Deletions that were stopped. A repair may need their content yet.
            finish_pending_deletes(self._editor)
        places = {0: self._place}
        table = Claims(with_raw=True)
        shares = shares_of(table, places, tasks_for(self._spark))
        claims = gathered(self._spark, table, places, shares).persist()
        ground = survey(places, sums_in(claims))[0]
        with Reading(self._spark, places, None, self._progress) as reading:
            look = reading.look(places, ground.expected, everything, self._reads(ground))
            entries = claims.where("unit IS NOT NULL")
            done = self._rebuilt(ground, look, entries.unionByName(look.rows))
        claims.unpersist()
        return done

    def _reads(self, ground: IndexState) -> Chosen:
        """Return what is read while it is listed; what else is needed is read later."""
        if self._rehash:
            return everything
        return Assumed(ground.outlook(self._grace))

    def _rebuilt(self, ground: IndexState, look: Look, evidence: DataFrame) -> Reindexed:
        tasks = tasks_of(self._spark, look.total)
        plan = self._plan(ground, look.number)
        rows = evidence.repartition(tasks, "unit").mapInArrow(plan.task(), PLANNED).persist()
        with watched(self._spark, "plan", tasks, self._progress):
            fates = dict(map(tuple, rows.groupBy("fate").sum("count").collect()))
        dry_run = self._editor is None
        findings = _findings(rows, self._place, dry_run=dry_run) if {*fates} - {KEPT} else None
        done = Reindexed(places=1, dry_run=dry_run, findings=findings, **fates)
        if self._editor is not None and ground.version:
            with self._editor.locks.committing() as guard:
                documents = Documents(self._editor.store, self._place.names(), _CONCURRENCY)
                documents.guard = guard
                named = rows.where(rows["fate"].isin(*NAMED))
                done = replace(
                    done, documents=Writing(ground, documents, named, self._progress).run()
                )
        rows.unpersist()
        return done

    def _plan(self, ground: IndexState, look: int) -> Plan:
        return Plan(
            self._place,
            look,
            ground.outlook(self._grace),
            frozenset(ground.unlisted),
            ground.highest + 1 if ground.version == 2 else None,
            adopts=self._adopts,
            rehash=self._rehash,
        )


def _findings(rows: DataFrame, place: Place, *, dry_run: bool) -> DataFrame:
    """Return what became of all paths but those that stay as they are, kept by Spark."""
    schema = arrow_schema(FINDINGS)

    def in_batches(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(findings(incoming), schema)

    def findings(incoming: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        names = place.names()
        for batch in incoming:
            for fate, body in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                severity = {CONTRADICTED: "error", DROPPED: "warning"}.get(fate, "info")
                is_done = not dry_run and fate not in (CONTRADICTED, WAITING, LEAVING)
                for rel, _ in entries_in(body):
                    where = place.identity, place.namespace
                    yield (*where, fate, rel, names.remote(rel), "", severity, is_done)

    noteworthy = rows.where(rows["fate"] != KEPT).select("fate", "body")
    found = noteworthy.mapInArrow(in_batches, FINDINGS).persist()
    found.count()
    return found


class Writing:
    """Writes the documents of one place as its rows say."""

    def __init__(
        self, ground: IndexState, documents: Documents, rows: DataFrame, progress: Progress
    ) -> None:
        self._ground = ground
        self._place = ground.place
        self._documents = documents
        self._rows = rows
        self._progress = progress
        self._quarantine = Quarantine(documents.store, ground.place.names())

    def run(self) -> int:
        """Write what has to be written; return how many documents that were."""
        self._keep_evidence()
        return self._sharded() if self._ground.version == 2 else self._monolithic()

    def _keep_evidence(self) -> None:
        damaged = [one.document for one in self._ground.summaries if one.problem or one.nonsense]
        if self._ground.is_damaged:
            damaged.append(META_KEY)
        for rel in sorted({*damaged}):
            self._quarantine.keep(rel)

    # Version 2 ---------------------------------------------------------------------------------

    def _sharded(self) -> int:
        seq = self._ground.highest + 1
        etags, written = self._write_shards(seq)
        emptied = self._empty({*dict(self._ground.shards), *self._ground.listed} - etags.keys())
        if not written and not emptied and self._is_told(etags):
            return 0
        meta = self._ground.meta or Meta(2, ())
        self._put_meta(
            replace(
                meta,
                partitions=tuple(sorted(etags)),
                commit_seq=seq,
                shards=dict(sorted(etags.items())),
                origin=meta.origin or new_write_id(),
            ),
            commits=True,
        )
        self._remove(emptied)
        return written + len(emptied) + 1

    def _is_told(self, etags: Mapping[str, str]) -> bool:
        """Whether `_meta.json` says already what is there."""
        meta = self._ground.meta
        return (
            meta is not None
            and (meta.commit_seq or 0) >= self._ground.highest
            and {*meta.partitions} == etags.keys()
            and all(meta.shards.get(one, etag) == etag for one, etag in etags.items())
        )

    def _empty(self, partitions: Iterable[str]) -> dict[str, str]:
        """Write shards without entries where there should be none; return their tokens."""
        tokens: dict[str, str] = {}
        there = dict(self._ground.shards)
        for partition in sorted(partitions):
            if partition in there:
                key = self._place.names().remote(shard_key(partition))
                now = read_shard(self._documents.store, key)
                if now.doc is None or now.doc.entries:
                    data = encode_shard((now.doc or Document({})).holding({}))
                    tokens[partition] = self._documents.put_shard(partition, data, now.token).token
        return tokens

    def _remove(self, emptied: Mapping[str, str]) -> None:
        if self._documents.store.capabilities.conditional_delete:
            for partition, token in emptied.items():
                with contextlib.suppress(StoreError):  # an empty shard does no harm
                    self._documents.delete_shard_if(partition, token)

    # Version 1 ---------------------------------------------------------------------------------

    def _monolithic(self) -> int:
        etag, is_written = self._write_monolith()
        etags, written = self._write_shards(None)
        leftovers = sorted(dict(self._ground.shards).keys() - etags.keys())
        for partition in leftovers:
            self._documents.delete_shard(partition)
        written += is_written + len(leftovers)
        meta = self._ground.meta
        if not written and meta and meta.monolith == etag and {*meta.partitions} == etags.keys():
            return 0
        known = [one for one in (meta.partitions if meta else ()) if one in etags]
        partitions = tuple(dict.fromkeys((*known, *sorted(etags))))
        self._put_meta(
            Meta(
                version=1,
                partitions=partitions,
                shards={one: etags[one] for one in partitions},
                monolith=etag,
                extra=meta.extra if meta else {},
                origin=(meta and meta.origin) or new_write_id(),
            ),
            commits=False,
        )
        return written + 1

    def _write_monolith(self) -> tuple[str, bool]:
        fetched = self._documents.monolith()
        token = fetched.info.token if fetched else None
        current = _decoded(fetched.data) if fetched else None
        wanted = wanted_in(self._rows.select("body").toArrow().column(0).to_pylist())
        if fetched is not None and current is not None and current.entries == wanted:
            return fetched.info.etag, False
        before = current or Document({})
        doc = Document(merged(before.entries, wanted), before.extra)
        data = encode_monolith(doc, to_iso(system_clock()), new_write_id())
        try:
            return self._documents.put_monolith(data, token).etag, True
        except PreconditionFailedError:
            raise index_moved(f"somebody else wrote {MONOLITH_KEY}", ()) from None

    # Both --------------------------------------------------------------------------------------

    def _write_shards(self, commit_seq: int | None) -> tuple[dict[str, str], int]:
        """Write all shards in tasks; return their ETags, and how many were not as planned."""
        spark = self._rows.sparkSession
        tasks = tasks_for(spark)
        expected = {partition: info.etag for partition, info in self._ground.shards}
        write = shard_writer(self._place, expected, commit_seq)
        frame = self._rows.repartition(tasks, "home").sortWithinPartitions("home")
        with watched(spark, "write shards", tasks, self._progress):
            answers = frame.mapInArrow(write, WRITTEN).collect()
        for answer in answers:
            if answer["error"]:
                raise index_moved(answer["error"], ())
        etags = {answer["partition"]: answer["etag"] for answer in answers}
        return etags, sum(answer["is_written"] for answer in answers)

    def _put_meta(self, meta: Meta, *, commits: bool) -> None:
        data = encode_meta(meta, new_write_id())
        try:
            self._documents.put_meta(data, self._ground.token, commits=commits)
        except PreconditionFailedError:
            raise index_moved(f"somebody else wrote {META_KEY}", ()) from None


def _decoded(data: bytes) -> Document | None:
    try:
        return decode_monolith(data)
    except IndexDamagedError:
        return None
