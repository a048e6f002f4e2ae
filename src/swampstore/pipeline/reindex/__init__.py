"""Making the index of places anew from what is stored there.

Documents that can be read are believed; those that are lost or damaged are made from the objects
that belong to them. Nothing is ever deleted but entries and documents without meaning, and a
document that cannot be understood is kept in quarantine before it is replaced.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from swampstore.index.changes import index_moved
from swampstore.index.documents import Documents
from swampstore.index.results import Progress, no_progress
from swampstore.pipeline.evidence.gathering import (
    Chosen,
    Claims,
    Places,
    everything,
    gathered,
    shares_of,
    sums_in,
)
from swampstore.pipeline.evidence.index_state import IndexState, look, survey
from swampstore.pipeline.evidence.reading import Reading, share_of, tasks_of
from swampstore.pipeline.gc.sweep import finish_pending_deletes
from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.metrics import Meter, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.reindex.comparing import Agreement, Comparison
from swampstore.pipeline.reindex.planned import (
    CONTRADICTED,
    DROPPED,
    KEPT,
    LEAVING,
    NAMED,
    NEW,
    PLANNED,
    WAITING,
    Assumed,
    Plan,
    Reindexed,
    entries_in,
)
from swampstore.pipeline.reindex.writing import CONCURRENCY, Adding, Unwritten, Writing
from swampstore.pipeline.running import attentively, collected, forget, watched
from swampstore.pipeline.schemas import FINDINGS, arrow_schema
from swampstore.pipeline.source.scan import batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.index_writer import IndexWriter

__all__ = ["GRACE", "Rebuilding", "Reindexed", "reindex"]

GRACE = timedelta(hours=1)


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
        places = {0: self._place}
        with self._place.open() as store:
            before = look(self._place, store)
        with_frozen = False
        if before.has_shards_alone:
            state = self._counted(places)
            if state.is_sound and state.shards == before.shards:
                return self._compared(places, state)
            with_frozen = state.has_gaps
        return self._planned(places, with_frozen=with_frozen)

    def _planned(self, places: Places, *, with_frozen: bool) -> Reindexed:
        """Bring all that is said of a path together, whatever state the documents are in."""
        assert self._spark is not None
        state, claims = self._surveyed(places, Claims(with_raw=True, with_frozen=with_frozen))
        if state.has_gaps and not with_frozen:
            forget(claims)
            state, claims = self._surveyed(places, Claims(with_raw=True, with_frozen=True))
        with Reading(self._spark, places, None, self._progress, described=False) as reading:
            seen = reading.look(places, state.expected, everything, self._reads(state))
            evidence = claims.where("unit IS NOT NULL").unionByName(seen.rows)
            tasks = tasks_of(self._spark, seen.total)
            done = self._rebuilt(state, seen.number, evidence, tasks)
        forget(claims)
        return done

    def _compared(self, places: Places, state: IndexState) -> Reindexed:
        """Plan what differs from a sound index; the rest stays where it is, and as it is."""
        spark = self._spark
        assert spark is not None
        table = Comparison(
            secrets.randbits(53),
            reads=self._reads(state),
            described=False,
            shards={partition: info.etag for partition, info in state.shards},
        )
        shares = shares_of(table, places, tasks_for(spark))
        table = replace(table, budget=share_of(state.expected, len(shares)))
        listed = gathered(spark, table, places, shares).persist()
        with watched(spark, "list and read", len(shares), self._progress):
            agreement = Agreement(tuple(sums_in(listed).get(0, ())))
        if agreement.moved:
            raise index_moved(agreement.moved, ())
        evidence, claims = listed.where("unit IS NOT NULL"), None
        if agreement.misses_some(state):
            chosen = Claims(agreement.unaccounted, with_raw=True)
            claims = self._surveyed(places, chosen)[1]
            evidence = evidence.unionByName(claims.where("unit IS NOT NULL"))
        done = Reindexed(kept=agreement.agreeing)
        if claims is None and not agreement.differing.objects:
            documents = self._written(state, None, Adding)
            done += Reindexed(places=1, dry_run=self._writer is None, documents=documents)
        else:
            tasks = tasks_of(spark, agreement.differing)
            done += self._rebuilt(state, table.look, evidence, tasks, Adding)
        for frame in filter(None, (listed, claims)):
            forget(frame)
        return done

    def _counted(self, places: Places) -> IndexState:
        """Return what there is of the index; its entries are only counted."""
        assert self._spark is not None
        table = Claims(summed=True)
        shares = shares_of(table, places, tasks_for(self._spark))
        with watched(self._spark, "read the index", len(shares), self._progress):
            return survey(places, sums_in(gathered(self._spark, table, places, shares)))[0]

    def _surveyed(self, places: Places, table: Claims) -> tuple[IndexState, DataFrame]:
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

    def _rebuilt(
        self,
        state: IndexState,
        look: int,
        evidence: DataFrame,
        tasks: int,
        writing: type[Writing] = Writing,
    ) -> Reindexed:
        assert self._spark is not None
        plan = self._plan(state, look)
        rows = evidence.repartition(tasks, "unit").mapInArrow(plan.task(), PLANNED).persist()
        with watched(self._spark, "plan", tasks, self._progress):
            fates = dict(map(tuple, collected(rows.groupBy("fate").sum("count"))))
        dry_run = self._writer is None
        findings = _findings(rows, self._place, dry_run=dry_run) if {*fates} - {KEPT} else None
        done = Reindexed(places=1, dry_run=dry_run, findings=findings, **fates)
        named = None
        if writing is not Adding or {*fates} & {*NEW}:
            named = rows.where(rows["fate"].isin(*(NEW if writing is Adding else NAMED)))
        done = replace(done, documents=self._written(state, named, writing))
        forget(rows)
        return done

    def _written(self, state: IndexState, rows: DataFrame | None, writing: type[Writing]) -> int:
        if not state.version:
            return 0
        with self._documents() as documents:
            return writing(state, documents, rows, self._progress).run()

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
