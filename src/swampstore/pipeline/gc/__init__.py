"""Garbage collection of everything at once: planned on Spark, marked, and swept after a while.

Start reading with `gc`. `candidates` finds what is garbage, `marks` writes it down, and `sweep`
looks again at what has been marked for long enough, and removes it. What is garbage is decided by
`swampstore.retention`, which `planner` runs inside Spark's tasks.

Why in these steps: docs/decisions/0034-garbage-is-marked-before-it-is-swept.md.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from swampstore.errors import SwampstoreError, ValidationError
from swampstore.index.results import Progress, Step, no_progress
from swampstore.pipeline.gc.candidates import Candidate, plan_places
from swampstore.pipeline.gc.local_engine import plan_here
from swampstore.pipeline.gc.marks import (
    Marked,
    MarkPages,
    Marks,
    beside,
    due_of,
    marks_of,
    without,
)
from swampstore.pipeline.gc.sweep import Due, Sweeper, batches, finish_pending_deletes
from swampstore.pipeline.index_writer import IndexWriter, committer
from swampstore.pipeline.metrics import NO_METRICS, Meter, Metrics, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.spool import Spool
from swampstore.retention import DataGc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.repo import Repo
    from swampstore.retention import GcReport

Kind = Literal["marked", "waiting", "due", "swept", "kept"]
KINDS: tuple[Kind, ...] = ("marked", "waiting", "due", "swept", "kept")


class Outcome(NamedTuple):
    """What became of some garbage: one version, or a whole name.

    It was `marked` for the first time (or anew), it is `waiting` for the grace period to end, it
    was `swept`, or `kept` for the reason that `detail` tells; `due` is what would be swept.
    """

    store: str
    namespace: str
    kind: Kind
    rel: str
    detail: str
    versions: int
    size: int

    def to_finding(self) -> dict[str, Any]:
        """Return it as a row of the table of findings."""
        return {
            "store": self.store,
            "namespace": self.namespace,
            "kind": self.kind,
            "rel": self.rel,
            "key": f"{self.namespace}/{self.rel}" if self.namespace else self.rel,
            "detail": self.detail,
            "severity": "warning" if self.kind == "kept" else "info",
            "repaired": self.kind == "swept",
        }


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did; with `dry_run`, what it would do.

    `unmarked` counts what an earlier collection marked and what is no garbage any more, or
    changed. `finished` counts objects that a collection which was stopped had left behind,
    `failed` places that could not be collected to the end; the warnings tell why. `metrics` tell
    what was asked of the stores.
    """

    dry_run: bool
    places: int
    outcomes: Collection[Outcome] = ()
    unmarked: int = 0
    finished: int = 0
    failed: int = 0
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    metrics: Metrics = NO_METRICS

    def sums(self) -> dict[Kind, tuple[int, int]]:
        """Return how many versions, of how many bytes, met each fate."""
        versions: Counter[Kind] = Counter()
        sizes: Counter[Kind] = Counter()
        for one in self.outcomes:
            versions[one.kind] += one.versions
            sizes[one.kind] += one.size
        return {kind: (versions[kind], sizes[kind]) for kind in KINDS}

    def to_json(self) -> dict[str, Any]:
        """Return the result document; `warnings` is a member only if there are any."""
        document: dict[str, Any] = {"dryRun": self.dry_run, "places": self.places}
        for kind, (versions, size) in self.sums().items():
            document[kind] = {"versions": versions, "bytes": size}
        document |= {
            "unmarked": self.unmarked,
            "finished": self.finished,
            "failed": self.failed,
            "metrics": self.metrics.to_json(),
            "seconds": round(self.seconds, 3),
        }
        return document | ({"warnings": list(self.warnings)} if self.warnings else {})


# All places --------------------------------------------------------------------------------------

GRACE = timedelta(hours=24)


def gc(
    spark: SparkSession | None,
    places: Sequence[Place],
    *,
    now: datetime | None = None,
    grace: timedelta = GRACE,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Collected:
    """Mark what is garbage; remove what has been, unchanged, since it was marked a grace ago.

    Without Spark this process finds out what is garbage, which is faster where little is stored.
    Ages are judged by the clocks of the stores, unless `now` is given. What cannot be decided
    stays and is named in the warnings. Of several places one that fails does not keep the others
    from being collected; see `Collected.failed`. Raises ValidationError for a directory that is
    used in place, and for a single place whatever went wrong, LockTimeoutError for example.
    """
    began, meter = time.monotonic(), Meter(spark)
    _check(places)
    places = metered(places, meter)
    moments = [now or _clock(place) for place in places]
    # Of several clocks the slowest counts: nothing goes before its time.
    if spark is None:
        found, warnings = plan_here(places, min(moments))
    else:
        found, warnings = plan_places(spark, places, min(moments), progress)
    collections = [
        PlaceCollection(place, found.get((place.identity, place.namespace), ()), moment, grace)
        for place, moment in zip(places, moments, strict=True)
    ]
    for one in collections:
        with _outlived_by_others(one, collections):
            one.preview() if dry_run else one.run(progress)
    told = [f"{one.place}: {warning}" for one in collections for warning in one.warnings]
    return Collected(
        dry_run=dry_run,
        places=len(places),
        outcomes=Spool(outcome for one in collections for outcome in one.outcomes),
        unmarked=sum(one.unmarked for one in collections),
        finished=sum(one.finished for one in collections),
        failed=sum(one.failed for one in collections),
        warnings=(*warnings, *told),
        seconds=time.monotonic() - began,
        metrics=meter.read(),
    )


def _check(places: Sequence[Place]) -> None:
    for place in places:
        if not place.indexed:
            raise used_in_place(place)
    if not places:
        raise ValidationError("there is no place to collect", hint="Name a repository or a URL.")


@contextlib.contextmanager
def _outlived_by_others(
    one: PlaceCollection, collections: Sequence[PlaceCollection]
) -> Iterator[None]:
    try:
        yield
    except SwampstoreError as error:
        if len(collections) == 1:
            raise
        one.failed = True
        one.warnings.append(f"not collected to the end: {error.message}")


def _clock(place: Place) -> datetime:
    with place.open() as store:
        return store.clock()


# One place ---------------------------------------------------------------------------------------


class PlaceCollection:
    """The collection of one place, whose candidates are known."""

    def __init__(
        self, place: Place, candidates: Collection[Candidate], now: datetime, grace: timedelta
    ) -> None:
        self.place = place
        self.outcomes: Spool[Outcome] = Spool()
        self.warnings: list[str] = []
        self.unmarked = 0
        self.finished = 0
        self.failed = False
        self._candidates = candidates
        self._now = now
        self._grace = grace

    def preview(self) -> None:
        """Find out what `run` would do; change nothing."""
        with self.place.open() as store:
            pages = MarkPages(store, self.place.names())
            for one, _, ripe in self._marked(pages.marks(pages.listed())):
                self._record(one, ripe, "due")
        self.warnings += pages.problems

    def run(self, progress: Progress = no_progress) -> None:
        """Finish what was left, mark, and sweep what was marked long enough ago."""
        with committer(self.place) as writer:
            self.finished, failures = finish_pending_deletes(writer)
            self.warnings += failures
            pages = MarkPages(writer.store, writer.names)
            before = pages.listed()
            marked: Spool[Marked] = Spool()
            due: Spool[Due] = Spool()
            for one, marks, ripe in self._marked(pages.marks(before)):
                marked.append(Marked(one.ref.rel, marks))
                if ripe:
                    due.append(Due(one, ripe))
            self.warnings += pages.problems
            written = pages.replace(before, marked)
            swept = self._sweep(writer, due, progress)
            if written is not None and swept:
                written = pages.replace(written, without(marked, swept))
            if written is None:
                self.warnings.append("another collection marked at the same time; its marks stand")

    def _marked(
        self, before: Iterable[Marked]
    ) -> Iterator[tuple[Candidate, Marks, frozenset[int]]]:
        """Tell what is marked; yield all garbage with its marks, and what of it is due."""
        for one, old in beside(self._candidates, before):
            marks = marks_of(one, old, self._now) if one else {}
            self.unmarked += sum(marks.get(version) != mark for version, mark in old.items())
            if one is None:
                continue
            ripe = due_of(marks, self._now, self._grace)
            green = marks.keys() - ripe
            known = {version for version in green if old.get(version) == marks[version]}
            self._record(one, green - known, "marked")
            self._record(one, known, "waiting")
            yield one, marks, ripe

    def _sweep(
        self, writer: IndexWriter, due: Collection[Due], progress: Progress
    ) -> Spool[tuple[str, frozenset[int]]]:
        """Remove what is due; return what of it was, in the order of names."""
        sweeper = Sweeper(writer, self._now, self._grace)
        swept: Spool[tuple[str, frozenset[int]]] = Spool()
        done = 0
        for batch in batches(due):
            for one in sweeper.sweep(batch):
                candidate, verdict = one.due.candidate, one.verdict
                self._record(candidate, verdict.goes, "swept")
                self._record(candidate, verdict.stays, "kept", verdict.stays)
                if verdict.goes:
                    swept.append((candidate.ref.rel, frozenset(verdict.goes)))
            done += len(batch)
            progress(Step("sweep", done, len(due), 0, 0, "names"))
        self.warnings += sweeper.failures
        return swept

    def _record(
        self,
        one: Candidate,
        versions: Iterable[int],
        kind: Kind,
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        """Note what became of some versions of a name; 0 stands for all of it."""
        removal, rel = one.removal, one.ref.rel
        sizes = {fact.version: fact.size for fact in removal.versions}
        for version in sorted(versions):
            self.outcomes.append(
                Outcome(
                    store=self.place.identity,
                    namespace=self.place.namespace,
                    kind=kind,
                    rel=f"{rel}/{version}" if version else rel,
                    detail=(reasons or {}).get(version) or removal.reason or "old version",
                    versions=1 if version else len(sizes),
                    size=sizes[version] if version else sum(sizes.values()),
                )
            )


# A datastore that is used in place ---------------------------------------------------------------


def used_in_place(place: Place) -> ValidationError:
    """Return the error that tells who collects a directory without an index."""
    return ValidationError(
        f"{place} is used in place: it is collected by the repository that uses it",
        hint="Run `swampstore data gc` in that repository.",
    )


def gc_in_place(repo: Repo, *, dry_run: bool = False) -> Collected:
    """Collect the repository's own datastore, which has no index to mark anything against.

    Nobody pushes there: whoever writes holds the lock of the name, so nothing has to wait.
    """
    began = time.monotonic()
    collection = DataGc(repo)
    if dry_run:
        report = collection.preview()
    else:
        with repo.session():
            report = collection.run()
    return Collected(
        dry_run=dry_run,
        places=1,
        outcomes=_outcomes(repo, report, "due" if dry_run else "swept"),
        warnings=report.warnings,
        seconds=time.monotonic() - began,
    )


def _outcomes(repo: Repo, report: GcReport, kind: Kind) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            store=f"file://{repo.config.datastore_dir}",
            namespace=repo.config.namespace,
            kind=kind,
            rel=f"data/{removal.model_type}/{removal.model_id}/{removal.name}",
            detail=removal.reason or "old versions",
            versions=removal.version_count,
            size=removal.size,
        )
        for removal in report.plan.removals
    )


__all__ = ["GRACE", "Collected", "Outcome", "gc", "gc_in_place", "used_in_place"]
