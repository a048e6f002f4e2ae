"""How long it takes until Spark works: our way to start its JVM beside Spark's own launcher.

Run as a program, it is one session in a process of its own, which prints its times.
"""

from __future__ import annotations

import glob
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from measuring import Line, Setting, say, seconds

ROUNDS = 3
LIMIT = 0.6
_ARCHIVE_TIMEOUT = 300.0
# Any variable of the launcher makes us leave the start to it; this one says what it does anyway.
_LAUNCHER = {"PYSPARK_SUBMIT_ARGS": "pyspark-shell"}


class Times(NamedTuple):
    """Seconds of one process."""

    start: float
    first_job: float
    second_job: float


def measure(setting: Setting) -> Iterator[Line]:
    """Start sessions in both ways in turns, after two, of which one leaves its classes behind."""
    cache = {"XDG_CACHE_HOME": setting.directory}
    say("starting Spark for the first time, and for the second")
    cold, _ = _run(cache), _run(cache)
    waited = seconds(_wait_for_archive, setting.directory)
    say(f"starting Spark {2 * ROUNDS} times")
    rounds = [(_run(cache), _run(cache | _LAUNCHER)) for _ in range(ROUNDS)]
    ours, launched = (_medians(times) for times in zip(*rounds, strict=True))
    yield Line("start of a session", ours.start, "s", note=f"the very first one {cold.start:.1f} s")
    for name in Times._fields:
        mine, theirs = getattr(ours, name), getattr(launched, name)
        yield Line(
            f"{name.replace('_', ' ')} of a session / of one by Spark's launcher",
            mine / theirs,
            "x",
            LIMIT if name == "start" else None,
            f"medians {mine:.2f} and {theirs:.2f} s of {ROUNDS}",
        )
    size = sum(map(os.path.getsize, _archives(setting.directory))) / 1e6
    yield Line("archive of classes", size, "MB", note=f"complete {waited:.1f} s after the session")


def _run(variables: dict[str, str]) -> Times:
    program = [sys.executable, __file__]
    done = subprocess.run(
        program, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return Times(*json.loads(done.stdout))


def _medians(times: tuple[Times, ...]) -> Times:
    return Times(*map(statistics.median, zip(*times, strict=True)))


def _archives(directory: str) -> list[str]:
    return glob.glob(f"{directory}/swampstore/classes/*.archive")


def _wait_for_archive(directory: str) -> None:
    deadline = time.monotonic() + _ARCHIVE_TIMEOUT
    while not _archives(directory):
        if time.monotonic() > deadline:
            raise TimeoutError("the first session wrote no archive of its classes")
        time.sleep(0.1)


def _session() -> Times:
    """Start a session and let it run the same small job twice, with Python in its tasks."""
    begin = time.perf_counter()
    from swampstore.pipeline.settings import SparkSettings
    from swampstore.pipeline.spark.session import session, stop

    spark = session(SparkSettings(master="local[*]", conf={"spark.driver.memory": "1g"}))
    start = time.perf_counter() - begin

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    def job() -> None:
        rows = spark.range(1000, numPartitions=4).mapInArrow(work, "id long")
        rows.groupBy("id").count().count()

    jobs = seconds(job), seconds(job)
    stop(spark)
    return Times(start, *jobs)


if __name__ == "__main__":
    print(json.dumps(_session()))
