"""What one change costs as a remote grows: requests, requests in a row, bytes and processor time.

The remote is a directory with a made-up index, so that a million files are made in a minute. What
is asked of it is what would be asked of any other. In the end, each answer takes 30 ms.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import sample
from contestants import Machine
from measuring import Line, Setting, compile_package, forget_peak, peak_rss, say
from peers import run_quietly
from swampstore import Repo
from swampstore.index.partitions import META_KEY
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.wrapper import CountingStore, Request
from sync_memory import make_up

FILES = (1_000, 10_000, 100_000, 1_000_000)
ANSWER = 0.03
MOST_REQUESTS = 16
MOST_IN_A_ROW = 8
MOST_PROCESSOR_TIME = 1.1
LARGEST_META = 1.2
# Up to so many files, what a put computes is not to grow.
_MANY = 100_000
_FILES_OF_A_MODEL = 20
_NAMES = 6
_TIMES = 3
_COMMANDS = 10


class Cost(NamedTuple):
    """What one operation took; `slowly` with answers that take 30 ms.

    `memory` is by how much the program grew meanwhile.
    """

    requests: int
    in_a_row: int
    sent: int
    received: int
    processor: float
    memory: int
    seconds: float
    slowly: float


def measure(setting: Setting) -> Iterator[Line]:
    """Do the same on remotes of several sizes."""
    compile_package()
    smallest: float | None = None
    quickest: float | None = None
    for files in FILES:
        count = setting.scaled(files)
        directory = f"{setting.directory}/{files}"
        os.makedirs(f"{directory}/store")
        put, command = yield from _of_size(directory, max(1, count // _FILES_OF_A_MODEL))
        smallest = smallest or put.processor
        quickest = quickest or command
        yield Line(
            f"processor time of a put among {count:,} files, to that among the fewest",
            put.processor / smallest,
            "x",
            MOST_PROCESSOR_TIME if files <= _MANY else None,
        )
        yield Line(
            f"the same of the command `swampstore data put`, among {count:,} files",
            command / quickest,
            "x",
            MOST_PROCESSOR_TIME if files <= _MANY else None,
            f"{command * 1e3:.0f} ms, with the start of the program",
        )
        meta = f"{directory}/store/{META_KEY}"
        yield Line(
            f"`_meta.json` of {count:,} files, to its list of partitions",
            os.path.getsize(meta) / _size_of_list(meta),
            "x",
            LARGEST_META,
        )


def _size_of_list(meta: str) -> int:
    with open(meta, "rb") as file:
        return len(json.dumps(json.load(file)["partitions"], separators=(",", ":")))


def _of_size(directory: str, models: int) -> Generator[Line, None, tuple[Cost, float]]:
    shape = sample.Shape(models, _NAMES, versions=2, every=_NAMES)
    say(f"making up a remote of {models * _FILES_OF_A_MODEL:,} files")
    here, there = (_machine(f"{directory}/{name}", directory, shape) for name in ("a", "b"))
    model = sample.model_ref(shape, models // 2)
    with here.repo as ours, there.repo as theirs:
        ours.sync.push()
        put = _cost(ours, lambda: _put(ours, str(model)))
        pull = _cost(theirs, theirs.sync.pull, before=lambda: _put(ours, str(model)))
        scoped = _cost(
            theirs, lambda: theirs.sync.pull([model]), before=lambda: _put(ours, str(model))
        )
        theirs.sync.pull()
        nothing = _cost(theirs, theirs.sync.pull)
    command = min(_of_command(here, str(model), number) for number in range(_COMMANDS))
    size = f"among {models * _FILES_OF_A_MODEL:,} files"
    yield _line(f"put of one artifact {size}", put, MOST_REQUESTS)
    yield Line(f"the same, in a row, {size}", put.in_a_row, "requests", MOST_IN_A_ROW)
    yield _line(f"pull of one artifact {size}", pull)
    yield _line(f"pull of one model {size}", scoped)
    yield _line(f"pull of nothing {size}", nothing, 1)
    return put, command


def _of_command(machine: Machine, model: str, number: int) -> float:
    """Return the processor time of a process that does nothing but put an artifact."""
    program = f"{os.path.dirname(sys.executable)}/swampstore"
    content = ["--json-value", str(number), "--repo", machine.repo.config.repo_dir]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_quietly([program, "data", "put", model, "one-more", *content], machine.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _line(what: str, cost: Cost, limit: float | None = None) -> Line:
    note = (
        f"{cost.in_a_row} in a row; {cost.sent / 1e3:,.1f} kB sent, {cost.received / 1e3:,.1f} kB"
        f" received; {cost.processor * 1e3:.0f} ms of processor time, {cost.memory / 1e6:.0f} MB;"
        f" {cost.seconds:.2f} s, {cost.slowly:.2f} s at 30 ms each"
    )
    return Line(what, cost.requests, "requests", limit, note)


def _machine(place: str, directory: str, shape: sample.Shape) -> Machine:
    os.makedirs(place)
    machine = Machine.new(place, f"file://{directory}/store")
    # The second one writes the same once more: then both bases agree with what is there.
    make_up(
        machine.repo.connection.base, DirectoryStore(f"{directory}/store", durable=False), shape
    )
    os.makedirs(machine.repo.tree.path("data"), exist_ok=True)
    machine.repo.sync.pull(metadata_only=True)
    machine.repo.dirty.settle(machine.repo.dirty.snapshot(), walked=True)
    return machine


def _put(repo: Repo, model: str) -> None:
    with repo.session([model]):
        repo.artifacts.save(model, "one-more", os.urandom(20))


def _cost(
    repo: Repo, operation: Callable[[], object], before: Callable[[], object] = lambda: None
) -> Cost:
    """Return what an operation costs that was done before, and has something to do each time."""
    before()
    operation()
    counting = repo.connection.counting
    processor, quick, memory = [], [], []
    for _ in range(_TIMES):
        before()
        counting.reset()
        forget_peak()
        held = peak_rss()
        began, at = time.process_time(), time.perf_counter()
        operation()
        processor.append(time.process_time() - began)
        quick.append(time.perf_counter() - at)
        memory.append(peak_rss() - held)
    tally = counting.tally()
    slow = []
    for _ in range(_TIMES):
        before()
        with _slowly(counting) as asked:
            began = time.perf_counter()
            operation()
            slow.append((_in_a_row(asked), time.perf_counter() - began))
    # On a busy machine, what is asked at once may be asked one after the other.
    in_a_row, took = min(slow)
    requests = sum(tally.requests.values())
    return Cost(
        requests,
        in_a_row,
        tally.bytes_sent,
        tally.bytes_received,
        min(processor),
        max(memory),
        min(quick),
        took,
    )


@contextmanager
def _slowly(counting: CountingStore) -> Iterator[list[tuple[float, float]]]:
    """Let every answer take its time; yield when each request began and ended."""
    asked: list[tuple[float, float]] = []
    mutex = threading.Lock()
    real = counting.around

    def around(request: Request, send: Callable[[], Any]) -> Any:
        began = time.monotonic()
        time.sleep(ANSWER)
        try:
            return real(request, send)
        finally:
            with mutex:
                asked.append((began, time.monotonic()))

    counting.around = around  # type: ignore[method-assign]  # for this store only
    try:
        yield asked
    finally:
        counting.around = real  # type: ignore[method-assign]


def _in_a_row(asked: list[tuple[float, float]]) -> int:
    """Return how many requests there are of which each began after the one before had ended."""
    count, last = 0, 0.0
    for began, ended in sorted(asked, key=lambda one: one[1]):
        if began >= last:
            count, last = count + 1, ended
    return count
