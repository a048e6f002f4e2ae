"""Making the index of places anew from what is stored there.

Documents that can be read are believed; those that are lost or damaged are made from the objects
that belong to them. Nothing is ever deleted but entries and documents without meaning, and a
document that cannot be understood is kept in quarantine before it is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from swampstore.clock import system_clock
from swampstore.index.changes import attempts, index_moved, new_write_id
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexMovedError
from swampstore.index.format import (
    Document,
    RawEntries,
    encode_shard,
    merged,
)
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.index.results import Progress, no_progress
from swampstore.index.version import Rebuild
from swampstore.pipeline.evidence.gathering import (
    Chosen,
    Claims,
    Places,
    Task,
    everything,
    gathered,
    shares_of,
    sums_in,
)
from swampstore.pipeline.evidence.index_state import IndexState, survey
from swampstore.pipeline.evidence.reading import Evidence, Reading, tasks_of
from swampstore.pipeline.gc.sweep import finish_pending_deletes
from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.metrics import Meter, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.quarantine import Quarantine
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
    Reindexed,
    entries_in,
)
from swampstore.pipeline.running import attentively, collected, forget, watched
from swampstore.pipeline.schemas import FINDINGS, arrow_schema
from swampstore.pipeline.source.scan import batches
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Store, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.index.results import Progress
    from swampstore.pipeline.index_writer import IndexWriter

__all__ = ["GRACE", "Rebuilding", "Reindexed", "reindex"]

GRACE = timedelta(hours=1)
CONCURRENCY = 10
WRITTEN = "partition string, etag string, token string, is_written boolean, error string"


def reindex(
    spark: SparkSession,
    places: Sequence[Place],
    *,
    rehash: bool = False,
    grace: timedelta = GRACE,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Reindexed:
    """Make the indexes of places whole, each under its lock; what is sound stays as it is.

    `rehash` also compares the content of all objects with the entries that are kept. Objects that
    no entry names are adopted when they are older than `grace`. Raises IndexMovedError if
    somebody commits in spite of the lock, LockTimeoutError.
    """
    started, meter = monotonic(), Meter(spark)
    done = Reindexed(dry_run=dry_run)
    for place in metered(places, meter):
        with ExitStack() as stack:
            writer = None if dry_run else stack.enter_context(editing(place))
            done += Rebuilding(
                spark, place, writer, rehash=rehash, grace=grace, progress=progress
            ).run()
    return replace(done, seconds=monotonic() - started, metrics=meter.read())


def write_shard(
    place: Place,
    store: Store,
    partition: str,
    wanted: RawEntries,
    expected: str | None,
    commit_seq: int | None = None,
    *,
    dry_run: bool = False,
) -> tuple[str, str, bool]:
    """Make a shard hold these entries; return its ETag, its token and whether it was written.

    With `dry_run` only find out whether it would be.
    `commit_seq` is the commit that writes it, if commits are counted. `expected` is the ETag that
    it had when the entries were settled. Raises IndexMovedError if somebody wrote another one.
    """
    documents = Documents(store, place.names(), CONCURRENCY)
    for _ in attempts(()):
        now = documents.shard_as_it_is(partition)
        if now.doc is not None and now.doc.entries == wanted:
            assert now.etag is not None
            return now.etag, now.token or "", False
        if now.etag != expected:
            key = place.names().remote(shard_key(partition))
            raise index_moved(f"somebody else wrote {key}", ())
        if dry_run:
            return UNWRITTEN.etag, UNWRITTEN.token, True
        current = now.doc or Document({})
        document = current.holding(merged(current.entries, wanted))
        as_written = (
            document.written_by(commit_seq) if commit_seq else document.written_as(new_write_id())
        )
        try:
            written = documents.put_shard(partition, encode_shard(as_written), now.token)
        except PreconditionFailedError:
            continue  # perhaps a twin of this task, whose shard is as good
        return written.etag, written.token, True
    raise AssertionError  # attempts() ends with an error


def shard_writer(
    place: Place, expected: Mapping[str, str], commit_seq: int | None, *, dry_run: bool
) -> Task:
    """Return what a task does with planned rows, which come sorted by partition."""
    schema = arrow_schema(WRITTEN)

    def write(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in incoming for row in zip(*_columns(batch), strict=True))
        with place.open() as store:
            for partition, group in groupby(rows, key=itemgetter(0)):
                wanted = wanted_in(body for _, body in group)
                found = expected.get(partition)
                answer = _answer(
                    place, store, partition, wanted, found, commit_seq, dry_run=dry_run
                )
                yield pa.RecordBatch.from_pylist([answer], schema=schema)

    return write


def wanted_in(bodies: Iterable[bytes]) -> RawEntries:
    """Return the entries of planned rows, sorted."""
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
    *,
    dry_run: bool,
) -> dict[str, Any]:
    try:
        etag, token, is_written = write_shard(
            place, store, partition, wanted, expected, commit_seq, dry_run=dry_run
        )
    except IndexMovedError as error:
        return {"partition": partition, "error": error.message}
    return {"partition": partition, "etag": etag, "token": token, "is_written": is_written}


class Rebuilding:
    """One run over one place; without a writer nothing is written.

    Unless it `adopts` them, objects that no entry names stay without one, however old they are.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        place: Place,
        writer: IndexWriter | None,
        *,
        rehash: bool,
        grace: timedelta,
        progress: Progress = no_progress,
        adopts: bool = True,
    ) -> None:
        self._spark = spark
        self._place = place
        self._writer = writer
        self._rehash = rehash
        self._grace = grace
        self._progress = progress
        self._adopts = adopts

    def run(self) -> Reindexed:
        """Plan, and write what is not as planned."""
        self._finish_deletes()
        assert self._spark is not None
        places = {0: self._place}
        state, claims = self._claims(places, Claims(with_raw=True))
        if state.has_gaps:
            forget(claims)
            state, claims = self._claims(places, Claims(with_raw=True, with_frozen=True))
        with Reading(self._spark, places, None, self._progress, described=False) as reading:
            look = reading.look(places, state.expected, everything, self._reads(state))
            entries = claims.where("unit IS NOT NULL")
            done = self._rebuilt(state, look, entries.unionByName(look.rows))
        forget(claims)
        return done

    def _claims(self, places: Places, table: Claims) -> tuple[IndexState, DataFrame]:
        """Return what there is of the index, and its entries, kept by Spark."""
        assert self._spark is not None
        shares = shares_of(table, places, tasks_for(self._spark))
        claims = gathered(self._spark, table, places, shares).persist()
        with watched(self._spark, "read the index", len(shares), self._progress):
            return survey(places, sums_in(claims))[0], claims

    def _finish_deletes(self) -> None:
        """Finish deletions that were stopped. A repair may need their content yet."""
        if self._writer is not None and self._adopts:
            finish_pending_deletes(self._writer)

    def _reads(self, state: IndexState) -> Chosen:
        """Return what is read while it is listed; what else is needed is read later."""
        if self._rehash:
            return everything
        return Assumed(state.trust_rules(self._grace))

    def _rebuilt(self, state: IndexState, look: Evidence, evidence: DataFrame) -> Reindexed:
        assert self._spark is not None
        tasks = tasks_of(self._spark, look.total)
        plan = self._plan(state, look.number)
        rows = evidence.repartition(tasks, "unit").mapInArrow(plan.task(), PLANNED).persist()
        with watched(self._spark, "plan", tasks, self._progress):
            fates = dict(map(tuple, collected(rows.groupBy("fate").sum("count"))))
        dry_run = self._writer is None
        findings = _findings(rows, self._place, dry_run=dry_run) if {*fates} - {KEPT} else None
        done = Reindexed(places=1, dry_run=dry_run, findings=findings, **fates)
        if state.version:
            named = rows.where(rows["fate"].isin(*NAMED))
            with self._documents() as documents:
                writing = Writing(state, documents, named, self._progress)
                done = replace(done, documents=writing.run())
        forget(rows)
        return done

    @contextmanager
    def _documents(self) -> Iterator[Documents]:
        """Yield the documents to be written, under the lock; without a writer none ever is."""
        if self._writer is None:
            with self._place.open() as store:
                yield Unwritten(store, self._place.names(), CONCURRENCY)
            return
        with self._writer.locks.committing() as guard:
            documents = Documents(self._writer.store, self._place.names(), CONCURRENCY)
            documents.guard = guard
            yield documents

    def _plan(self, state: IndexState, look: int) -> Plan:
        return Plan(
            self._place,
            look,
            state.trust_rules(self._grace),
            frozenset(state.unlisted),
            state.highest + 1 if _counts_commits(state) else None,
            adopts=self._adopts,
            rehash=self._rehash,
        )


def _counts_commits(state: IndexState) -> bool:
    return state.version is not None and state.version.counts_commits


def _findings(rows: DataFrame, place: Place, *, dry_run: bool) -> DataFrame:
    """Return what became of all paths but those that stay as they are, kept by Spark."""
    schema = arrow_schema(FINDINGS)

    def in_batches(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(findings(incoming), schema)

    def findings(incoming: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        for batch in incoming:
            for fate, body in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield from finding_rows(place, fate, body, dry_run=dry_run)

    noteworthy = rows.where(rows["fate"] != KEPT).select("fate", "body")
    found = noteworthy.mapInArrow(in_batches, FINDINGS).persist()
    attentively(found.sparkSession, found.count)
    return found


def finding_rows(
    place: Place, fate: str, body: bytes, *, dry_run: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield the findings about the paths of one planned row."""
    severity = {CONTRADICTED: "error", DROPPED: "warning"}.get(fate, "info")
    is_done = not dry_run and fate not in (CONTRADICTED, WAITING, LEAVING)
    names, where = place.names(), (place.identity, place.namespace)
    for rel, _ in entries_in(body):
        yield (*where, fate, rel, names.remote(rel), "", severity, is_done)


UNWRITTEN = Written("not written", "not written")


class Unwritten(Documents):
    """Documents that are read and never written, to find out what would be."""

    def put_meta(self, data: bytes, token: str | None, *, commits: bool) -> Written:
        """Do nothing."""
        del data, token, commits
        return UNWRITTEN

    def put_monolith(self, data: bytes, token: str | None) -> Written:
        """Do nothing."""
        del data, token
        return UNWRITTEN

    def put_shard(self, partition: str, data: bytes, token: str | None) -> Written:
        """Do nothing."""
        del partition, data, token
        return UNWRITTEN

    def delete_shard(self, partition: str, token: str | None) -> None:
        """Do nothing."""


class Writing:
    """Writes the documents of one place as its rows say."""

    def __init__(
        self,
        state: IndexState,
        documents: Documents,
        rows: DataFrame | None,
        progress: Progress = no_progress,
    ) -> None:
        self._state = state
        self._place = state.place
        self._documents = documents
        self._rows = rows
        self._progress = progress
        self._quarantine = Quarantine(documents.store, state.place.names())

    @property
    def _is_dry(self) -> bool:
        return isinstance(self._documents, Unwritten)

    def run(self) -> int:
        """Write what has to be written; return how many documents that were."""
        if not self._is_dry:
            self._keep_evidence()
        state = self._state
        assert state.version is not None
        return state.version.rebuild(
            Rebuild(
                self._documents,
                state.meta,
                state.token,
                dict(state.shards),
                state.highest,
                self._write_shards,
                self._entries,
                system_clock,
            )
        )

    def _keep_evidence(self) -> None:
        damaged = [one.document for one in self._state.summaries if one.problem or one.nonsense]
        if self._state.is_damaged:
            damaged.append(META_KEY)
        for rel in sorted({*damaged}):
            self._quarantine.keep(rel)

    def _entries(self) -> RawEntries:
        assert self._rows is not None
        bodies = self._rows.select("body")
        return wanted_in(attentively(bodies.sparkSession, bodies.toArrow).column(0).to_pylist())

    def _write_shards(self, commit_seq: int | None) -> tuple[dict[str, str], int]:
        """Write all shards in tasks; return their ETags, and how many were not as planned."""
        assert self._rows is not None
        spark = self._rows.sparkSession
        tasks = tasks_for(spark)
        expected = {partition: info.etag for partition, info in self._state.shards}
        write = shard_writer(self._place, expected, commit_seq, dry_run=self._is_dry)
        frame = self._rows.repartition(tasks, "home").sortWithinPartitions("home")
        with watched(spark, "write shards", tasks, self._progress):
            answers = collected(frame.mapInArrow(write, WRITTEN))
        for answer in answers:
            if answer["error"]:
                raise index_moved(answer["error"], ())
        etags = {answer["partition"]: answer["etag"] for answer in answers}
        return etags, sum(answer["is_written"] for answer in answers)
