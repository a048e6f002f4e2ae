"""Run one bulk job several times in one Spark session; print the times as JSON.

Usage: bulk_once.py JOB TARGET MASTER ROUNDS, where JOB is verify, reindex or catalog. The first
round has everything to warm up; without a MASTER the job runs as a plain loop in this process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import bulk_loops
from measuring import peak_rss
from swampstore import open_repo
from swampstore.index.results import no_progress


def main() -> None:
    job, target, master, rounds = sys.argv[1:]
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
        case _:
            return lambda: _rebuild(target)


def _rebuild(target: str) -> None:
    from swampstore.pipeline.catalog import rebuild

    bulk_loops.lose_catalog(target)
    with open_repo(target, durable=False) as repo:
        rebuild(repo, engine="spark")


if __name__ == "__main__":
    main()
