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
from measuring import peak_rss
from swampstore import open_repo
from swampstore.index.results import no_progress

# The share of content that `verify` has to read at least.
_NEXT_TO_NOTHING = 1e-9


def main() -> None:
    job, target, master, rounds = sys.argv[1:]
    if target.startswith("imaginary:"):
        _register()
    start = time.perf_counter()
    spark = _session(master) if master else None
    started = time.perf_counter() - start
    work = _job(job, target, spark)
    times = []
    for _ in range(int(rounds)):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(json.dumps({"started": started, "rounds": times, "rss": peak_rss()}))


def _register() -> None:
    """Make imaginary stores known, which the tests have as well."""
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.support.imaginary import register

    register(tempfile.mkdtemp(prefix="swampstore-bench-"))


def _session(master: str) -> Any:
    from swampstore.pipeline.settings import SparkSettings
    from swampstore.pipeline.spark.session import session

    return session(SparkSettings(master=master))


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
