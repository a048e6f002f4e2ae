"""Run one bulk job several times in one Spark session; print the times as JSON.

Usage: bulk_once.py JOB TARGET MASTER ROUNDS, where JOB is verify, reindex or catalog, or a plan of
`scaling.py`. The first round has everything to warm up; without a MASTER the job runs as a plain
loop in this process. A target may be an imaginary store.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bulk_loops
import task_times
from measuring import ProcessorTime, peak_rss
from swampstore import open_repo
from swampstore.index.results import no_progress

_STAGES = 5
_HEAP = "1g"
# The share of content that `verify` has to read at least.
_NEXT_TO_NOTHING = 1e-9


def main() -> None:
    job, target, master, rounds = sys.argv[1:]
    if target.startswith("imaginary:"):
        _register()
    start = time.perf_counter()
    spark = _session(master, target) if master else None
    started = time.perf_counter() - start
    work = _job(job, target, spark)
    times, processor, busy = [], [], ProcessorTime()
    for _ in range(int(rounds)):
        start, before = time.perf_counter(), busy.seconds()
        work()
        times.append(time.perf_counter() - start)
        processor.append(busy.seconds() - before)
    told = {"started": started, "rounds": times, "processor": processor, "rss": peak_rss()}
    if spark is not None:
        found = task_times.stages(spark)
        told |= {"jvm": task_times.jvm_peak(spark), "spread": task_times.unevenness(found)}
        told["stages"] = [(*one, one.spread) for one in found[:_STAGES]]
    print(json.dumps(told))


def _register() -> None:
    """Make imaginary stores known, which the tests have as well."""
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.support.imaginary import register

    register(tempfile.mkdtemp(prefix="swampstore-bench-"))


def _session(master: str, target: str) -> Any:
    from swampstore.pipeline.settings import SparkSettings
    from swampstore.pipeline.spark.session import session

    # Of imaginary stores there may be any number of objects; whatever grows must show.
    conf = {"spark.driver.memory": _HEAP} if target.startswith("imaginary:") else {}
    return session(SparkSettings(master=master, conf=conf))


def _job(job: str, target: str, spark: Any) -> Callable[[], object]:
    if spark is None:
        return bulk_loops.LOOPS[job](target)
    from swampstore.pipeline import places_of

    match job:
        case "verify":
            from swampstore.pipeline.verify import verify

            return lambda: verify(spark, places_of(target), progress=no_progress)
        case "reindex":
            from swampstore.pipeline.reindex import reindex

            return lambda: reindex(spark, places_of(target), rehash=True, progress=no_progress)
        case "catalog":
            return lambda: _rebuild(target)
        case _:
            return lambda: _plan(job, target, spark)


def _plan(job: str, target: str, spark: Any) -> None:
    """Do what a job does before it changes or reads data."""
    from swampstore.pipeline import places_of

    places = places_of(target)
    match job:
        case "verify-metadata":
            from swampstore.pipeline.verify import verify

            verify(spark, places, sample=_NEXT_TO_NOTHING, progress=no_progress)
        case "reindex-plan":
            from swampstore.pipeline.reindex import reindex

            reindex(spark, places, dry_run=True, progress=no_progress)
        case "gc-plan":
            from swampstore.pipeline.gc import gc

            gc(spark, places, dry_run=True, progress=no_progress)
        case "copy-plan":
            from swampstore.pipeline.copy import copy

            with tempfile.TemporaryDirectory(prefix="swampstore-bench-") as empty:
                copy(spark, places, f"file://{empty}", dry_run=True, progress=no_progress)
        case _:
            from swampstore.pipeline.snapshots.refresh import refresh

            refresh(places, engine="spark", progress=no_progress)


def _rebuild(target: str) -> None:
    from swampstore.pipeline.catalog import rebuild

    bulk_loops.lose_catalog(target)
    with open_repo(target, durable=False) as repo:
        rebuild(repo, engine="spark")


if __name__ == "__main__":
    main()
