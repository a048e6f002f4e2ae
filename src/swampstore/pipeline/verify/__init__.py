"""Comparing all that a store holds with what its index and its metadata say of it.

Every object is read and hashed. That needs no lock and disturbs nobody; a repair then looks once
more under the lock, where what was read before is not read again.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as f

from swampstore.index.results import Progress, no_progress
from swampstore.layout import LOCAL_DIR
from swampstore.notices import notice
from swampstore.pipeline.evidence.reading import Reading
from swampstore.pipeline.evidence.rows import ROWS_FORMAT
from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.metrics import Meter, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.reindex import GRACE, Rebuilding
from swampstore.pipeline.running import collected
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.examination import FOUND, Selection, examine, is_settled
from swampstore.pipeline.verify.outcome import NAMED, Finding, Verified, is_wrong
from swampstore.pipeline.verify.repair import Repair
from swampstore.pipeline.verify.selection import checked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.evidence.reading import Copy
    from swampstore.pipeline.index_writer import IndexWriter
    from swampstore.pipeline.verify.examination import Examination
    from swampstore.pipeline.verify.repair import Mended

_WORK = "pipeline"

__all__ = ["Finding", "Verified", "verify"]


def verify(
    spark: SparkSession,
    places: Sequence[Place],
    *,
    shard: tuple[int, int] | None = None,
    sample: float | None = None,
    work_dir: str | None = None,
    repair: bool = False,
    dry_run: bool = False,
    grace: timedelta = GRACE,
    progress: Progress = no_progress,
) -> Verified:
    """Compare everything, or slice `shard` (k, n) of it, k from 1, with content of a `sample`.

    `work_dir` keeps what was read until the run is over, so that one that is stopped can go on;
    all executors must see it. None: below the repository, if there is one and Spark is on this
    machine. What is younger than `grace` may belong to a push that is going on, and is no
    failure. `repair` mends what can be mended; with `dry_run` it only counts what it would do.
    """
    selection = checked(places, shard, sample, grace, repair=repair)
    started, meter = monotonic(), Meter(spark)
    places = metered(places, meter)
    directory = _directory(spark, places, selection, work_dir)
    numbered = dict(enumerate(places))
    with Reading(spark, numbered, directory, progress) as reading:
        job = _Job(spark, reading, selection, progress)
        seen = job.examine(numbered)
        outcome = job.repair(seen, dry_run=dry_run) if repair else job.confirmed(seen)
        verified = _verified(seen, outcome, dry_run=repair and dry_run)
    return replace(verified, seconds=monotonic() - started, metrics=meter.read())


def _directory(
    spark: SparkSession, places: Sequence[Place], selection: Selection, work_dir: str | None
) -> str | None:
    """Return where this run, or one like it, keeps what it read."""
    if work_dir is None:
        is_local = str(spark.conf.get("spark.master", "")).startswith("local")
        target = places[0].target if places else ""
        if not is_local or not os.path.isdir(target):
            return None
        work_dir = os.path.join(target, LOCAL_DIR, _WORK)
    chosen = repr((selection.slice, selection.sample))
    what = "\n".join([*map(str, places), chosen, ROWS_FORMAT])
    return os.path.join(work_dir, f"verify-{hashlib.sha256(what.encode()).hexdigest()[:16]}")


class _Outcome(NamedTuple):
    """The findings after all, how many there are of each kind, repaired or not; what was done."""

    findings: DataFrame
    counts: Mapping[tuple[str, bool], int]
    actions: Mapping[str, int] = {}
    quarantine: tuple[str, ...] = ()


def _counted(findings: DataFrame) -> _Outcome:
    findings = findings.persist()
    rows = collected(findings.groupBy("kind", "repaired").count())
    return _Outcome(findings, {(kind, repaired): count for kind, repaired, count in rows})


_IDENTITY = ("store", "namespace", "kind", "rel")


def _with_repaired(found: DataFrame, left: DataFrame | None = None) -> DataFrame:
    """Add how bad findings are; repaired is what is not `left`."""
    severity = f.create_map(
        *(f.lit(text) for kind, one in kinds.KINDS.items() for text in (kind, one.severity))
    )
    rows = found.withColumn("severity", severity[f.col("kind")])
    if left is None:
        return rows.withColumn("repaired", f.expr("false"))
    still = left.select(*_IDENTITY).distinct().withColumn("is_left", f.expr("true"))
    is_left = f.col("is_left").isNotNull() | (f.col("severity") == "info")
    return rows.join(still, [*_IDENTITY], "left").withColumn("repaired", ~is_left).drop("is_left")


class _Job:
    """Examines places, and mends them, each under its lock."""

    def __init__(
        self, spark: SparkSession, reading: Reading, selection: Selection, progress: Progress
    ) -> None:
        self._spark = spark
        self._reading = reading
        self._selection = selection
        self._progress = progress

    def examine(self, places: Mapping[int, Place]) -> Examination:
        """Look at places."""
        return examine(self._spark, places, self._reading, self._selection, self._progress)

    def confirmed(self, seen: Examination) -> _Outcome:
        """Return what is found in two looks, if others committed or deleted during the first."""
        found = _with_repaired(seen.found)
        if not any(map(is_wrong, seen.counts)) or is_settled(seen):
            return _Outcome(found, {(kind, False): count for kind, count in seen.counts.items()})
        again = self.examine({number: one.place for number, one in seen.states.items()})
        both = found.join(again.found.select(*_IDENTITY), [*_IDENTITY], "left_semi")
        outcome = _counted(both)
        again.forget()
        return outcome

    def repair(self, seen: Examination, *, dry_run: bool) -> _Outcome:
        """Mend what was seen, and look whether that helped."""
        chosen = {number: seen.states[number].place for number in seen.damaged()}
        actions: Counter[str] = Counter()
        lost: list[tuple[Any, ...]] = []
        kept: list[str] = []
        for number, place in chosen.items():
            mended = self._repair(number, place, seen, dry_run=dry_run)
            actions.update(mended.done)
            lost += [
                (place.identity, place.namespace, kinds.LOST, rel, None, why)
                for rel, why in mended.lost
            ]
            if mended.quarantine:
                kept.append(place.names().remote(mended.quarantine))
        told = self._spark.createDataFrame(lost, FOUND)
        if dry_run or not chosen:
            outcome = _counted(_with_repaired(seen.found.unionByName(told)))
            return outcome._replace(actions=actions)
        again = self.examine(chosen)
        # What came to light by the repair is told, too.
        new = again.found.join(seen.found.select(*_IDENTITY), [*_IDENTITY], "left_anti")
        left = again.found.unionByName(told)
        every = seen.found.unionByName(told).unionByName(new)
        outcome = _counted(_with_repaired(every, left))
        again.forget()
        return outcome._replace(actions=actions, quarantine=tuple(kept))

    def _repair(self, number: int, place: Place, seen: Examination, *, dry_run: bool) -> Mended:
        def having(hashes: Iterable[str]) -> Iterable[tuple[str, Copy]]:
            return self._reading.having(hashes, place.identity)

        def run(looked: Examination, writer: IndexWriter | None) -> Mended:
            units = looked.units(place)
            return Repair(place, units, having, writer, gives_up=self._selection.is_all).run()

        if dry_run:
            return run(seen, None)
        with editing(place) as writer:
            documents = self._rebuild(place, seen, writer)
            now = self.examine({number: place})
            mended = run(now, writer)
            mended.done["document"] += documents
            now.forget()
        for rel, why in mended.left.items():
            notice("%s was left as it is: %s", rel, why)
        return mended

    def _rebuild(self, place: Place, seen: Examination, writer: IndexWriter) -> int:
        """Make the index whole, if it is not; return how many documents were written."""
        if seen.of(place).where(f"kind IN ({_quoted(kinds.OF_DOCUMENTS)})").isEmpty():
            return 0
        rebuilding = Rebuilding(
            self._spark,
            place,
            writer,
            rehash=False,
            adopts=False,
            grace=self._selection.grace,
            progress=self._progress,
        )
        return rebuilding.run().documents


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(f"'{text}'" for text in sorted(texts))


def _verified(seen: Examination, outcome: _Outcome, *, dry_run: bool) -> Verified:
    totals: Counter[str] = Counter()
    wrong: Counter[bool] = Counter()
    for (kind, is_repaired), count in outcome.counts.items():
        totals[kind] += count
        if is_wrong(kind) and kind != kinds.LOST:
            wrong[is_repaired] += count
    has_some = any(map(is_wrong, totals))
    return Verified(
        places=len(seen.states),
        objects=seen.total.objects,
        bytes=seen.total.bytes,
        kinds=dict(sorted(totals.items())),
        open=wrong[False],
        repaired=wrong[True],
        lost=totals[kinds.LOST],
        actions=outcome.actions,
        first=tuple(_first(outcome.findings)) if has_some else (),
        dry_run=dry_run,
        seconds=0.0,
        findings=outcome.findings.select(*Finding._fields),
        quarantine=outcome.quarantine,
    )


def _first(findings: DataFrame) -> Iterator[Finding]:
    rows = findings.where("severity != 'info'").sort("store", "namespace", "rel", "kind")
    return (Finding(*row) for row in collected(rows.select(*Finding._fields).limit(NAMED)))
