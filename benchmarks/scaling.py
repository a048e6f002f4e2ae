"""Bulk jobs on stores of up to ten million objects that nobody has to make: time and memory.

The stores are imaginary: they answer listings, documents and small objects from a formula. So what
is measured is what a job itself takes, and what its driver holds.

Run as a program it is one plan of one size: `scaling.py JOB MODELS`, where 20,000 models are ten
million objects. It prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from measuring import Line, Setting, say

# Models of 24 data names with 10 versions each are 504 objects.
_MODELS = (200, 2_000, 20_000)
_NAMES = 24
_VERSIONS = 10
_OBJECTS_OF_A_MODEL = _NAMES * (2 * _VERSIONS + 1)
JOBS = ("verify-metadata", "reindex-plan", "gc-plan", "copy-plan", "refresh")
# Ten times the objects may take so many times as long: starting up counts for less and less.
_LINEAR = 11.0
_DRIVER = 1024.0
_MIB = 1 << 20


class Cost(NamedTuple):
    """What a job took once Spark was there.

    Seconds, those of all processors, the most bytes that the Python of its driver and the JVM had,
    and how much longer the longest task of a stage took than the mean.
    """

    seconds: float
    processor: float
    memory: int
    jvm: int
    spread: float


def measure(setting: Setting) -> Iterator[Line]:
    """Let each job run on stores of growing size, each in a process of its own."""
    for job in JOBS:
        before: Cost | None = None
        for models in (setting.scaled(one) for one in _MODELS):
            objects = models * _OBJECTS_OF_A_MODEL
            say(f"{job} of {objects:,} objects")
            cost = _run(job, models, setting.directory)
            yield Line(
                f"{job} of {objects:,} objects",
                cost.seconds,
                "s",
                note=f"the longest task of a stage took {cost.spread:.2f} times the mean",
            )
            yield Line(
                f"{job} of {objects:,} objects: memory of the driver",
                cost.memory / _MIB,
                "MiB",
                _DRIVER,
                f"the JVM, which also runs the tasks, {cost.jvm / _MIB:.0f} MiB",
            )
            if before is not None:
                yield Line(
                    f"{job}: ten times the objects take, in processor time",
                    cost.processor / before.processor,
                    "x",
                    _LINEAR,
                )
            before = cost


def _run(job: str, models: int, directory: str) -> Cost:
    here = os.path.dirname(os.path.abspath(__file__))
    target = f"imaginary://{models}x{_NAMES}x{_VERSIONS}?dir={directory}/{job}-{models}"
    command = [sys.executable, f"{here}/bulk_once.py", job, target, "local[2]", "1"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return Cost(told["rounds"][0], told["processor"][0], told["rss"], told["jvm"], told["spread"])


def main() -> None:
    """Run one plan, and say what it took."""
    job, models = sys.argv[1], int(sys.argv[2])
    if job not in JOBS:
        sys.exit(f"there is no plan {job}, only {', '.join(JOBS)}")
    with tempfile.TemporaryDirectory(prefix="swampstore-bench-") as directory:
        cost = _run(job, models, directory)
    print(json.dumps({"plan": job, "objects": models * _OBJECTS_OF_A_MODEL, **cost._asdict()}))


if __name__ == "__main__":
    main()
