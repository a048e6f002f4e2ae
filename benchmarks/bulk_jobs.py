"""Bulk jobs on Spark beside the plain loop: time, memory, one processor and two, break-even."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

import sample
from measuring import Line, Setting, family, say
from swampstore import init_repo, open_repo
from swampstore.marker import update_marker

# 100,000 versions of two files each, and the marker of each name.
_MODELS = 100
_NAMES = 100
_VERSIONS = 10
# Java compiles what runs often, and is done with that after a few rounds.
_ROUNDS = 5
# Processes of the same kind, in turns with the others: a machine is not always as fast.
_TURNS = 2
# Promised: the time of Spark on two processors by that of the loop, and by that on one of them.
OF_THE_LOOP = 0.8
SCALING = 1.6
_CONTENT = b'{"status": "running", "cpus": 4}\n' * 30
_MIB = 1 << 20


class Cost(NamedTuple):
    """Seconds to start, of the first round and of the best later one; bytes of all processes.

    `busy` is the processor time of the later round that took the least of it.
    """

    started: float
    cold: float
    warm: float
    busy: float
    memory: int


def measure(setting: Setting) -> Iterator[Line]:
    """Make a datastore; let every job run on one processor, on two, and without Spark."""
    shape = sample.Shape(max(8, setting.scaled(_MODELS)), _NAMES, _VERSIONS)
    repo, bucket = f"{setting.directory}/repo", f"{setting.directory}/bucket"
    objects = _make(repo, bucket, shape)
    _run("reindex", f"file://{bucket}", "local[2]", 1)
    _shard(f"{setting.directory}/admin", bucket)
    targets = {"reindex": f"file://{bucket}", "verify": f"file://{bucket}", "catalog": repo}
    for job, target in targets.items():
        say(f"{job} of {objects:,} objects")
        yield from _compared(job, target, bucket if job != "catalog" else repo, objects)


def _compared(job: str, target: str, plain_target: str, objects: int) -> Iterator[Line]:
    turns = [
        (
            _run(job, plain_target, "", _ROUNDS),
            _run(job, target, "local[2]", _ROUNDS),
            _run(job, target, "local[1]", _ROUNDS, cpus=1),
        )
        for _ in range(_TURNS)
    ]
    plain, two, one = (_best(costs) for costs in zip(*turns, strict=True))
    yield Line(
        f"{job} of {objects:,} objects, local[2], warm",
        two.warm,
        "s",
        note=f"first time {two.cold:.1f} s after {two.started:.1f} s to start,"
        f" plain loop {plain.warm:.1f} s",
    )
    yield Line(
        f"{job}: time by that of the loop",
        two.warm / plain.warm,
        "x",
        OF_THE_LOOP,
        f"processor time {two.busy:.1f} s, {two.busy / plain.busy:.2f} times that of the loop",
    )
    yield Line(
        f"{job}: time on two processors by that on one",
        two.warm / one.warm,
        "x",
        1 / SCALING,
        f"{one.warm / two.warm:.2f} times as fast; one takes {one.warm:.1f} s",
    )
    yield Line(
        f"{job}: memory of all processes",
        two.memory / _MIB,
        "MiB",
        note=f"plain loop {plain.memory / _MIB:.0f} MiB",
    )
    yield _break_even(job, objects, two, plain)


def _break_even(job: str, objects: int, spark: Cost, plain: Cost) -> Line:
    """Return from how many objects on a cold Spark is faster than the loop."""
    saved = (plain.warm - spark.warm) / objects
    ahead = spark.started + spark.cold - spark.warm
    if saved <= 0:
        return Line(f"{job}: break-even", float("inf"), "objects", note="never on this machine")
    note = f"{ahead:.1f} s to start and warm up, {saved * 1e6:.0f} µs saved by each object"
    return Line(f"{job}: break-even", ahead / saved, "objects", note=note)


def _make(repo_dir: str, bucket: str, shape: sample.Shape) -> int:
    """Write the files of a repository, and the same ones as a bucket; return how many."""
    with init_repo(repo_dir) as repo:
        say(f"writing the files of {shape.artifacts * shape.versions:,} versions")
        versions = sample.write_files(repo.tree, shape, repeat(_CONTENT))
        data = repo.tree.path("data")
    os.makedirs(bucket)
    shutil.copytree(data, f"{bucket}/data", copy_function=os.link)
    os.sync()
    return 2 * versions + shape.artifacts


def _shard(repo_dir: str, bucket: str) -> None:
    """Make the index of the bucket the sharded one, as a repository that uses it does."""
    init_repo(repo_dir).close()
    update_marker(repo_dir, {"datastore": {"type": "file", "url": f"file://{bucket}"}})
    with open_repo(repo_dir, durable=False) as repo:
        repo.sync.migrate_index()


def _best(costs: Iterable[Cost]) -> Cost:
    """Return what the fastest turn took; memory is the most that any needed."""
    started, cold, warm, busy, memory = zip(*costs, strict=True)
    return Cost(min(started), min(cold), min(warm), min(busy), max(memory))


def _run(job: str, target: str, master: str, rounds: int, cpus: int | None = None) -> Cost:
    script = f"{os.path.dirname(os.path.abspath(__file__))}/bulk_once.py"
    command = [sys.executable, script, job, target, master, str(rounds)]
    allowed = sorted(os.sched_getaffinity(0))[:cpus]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),  # noqa: PLW1509 - no threads here
    ) as process:
        watch = _Memory(process.pid)
        out, _ = process.communicate()
        memory = watch.end()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    told = json.loads(out.splitlines()[-1])
    times, busy = told["rounds"], told["processor"]
    warm, least = min(times[1:], default=times[0]), min(busy[1:], default=busy[0])
    return Cost(told["started"], times[0], warm, least, memory)


class _Memory:
    """Looks now and then how much memory a process and all below it have, shared parts once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Return the most there was."""
        self._over.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            self._peak = max(self._peak, sum(map(_pss, family(self._pid))))


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            (line,) = (line for line in file if line.startswith("Pss:"))
            return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return 0
