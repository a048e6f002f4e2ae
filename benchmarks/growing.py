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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import sample
from contestants import Machine
from measuring import (
    Line,
    Setting,
    compile_package,
    forget_peak,
    peak_rss,
    processor_seconds,
    say,
)
from peers import run_quietly
from swampstore import Repo
from swampstore.index.format import decode_monolith, encode_monolith
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, partition_of, shard_key
from swampstore.layout import DataRef
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.wrapper import CountingStore, Request
from sync_memory import as_version_1, make_up

FILES = (1_000, 10_000, 100_000, 1_000_000)
ANSWER = 0.03
MOST_REQUESTS = 16
MOST_IN_A_ROW = 8
MOST_PROCESSOR_TIME = 1.1
LARGEST_META = 1.2
# What `_meta.json` has beside lists, however few partitions there are.
_HEAD = 200
# What is neither the list of partitions nor the shard of a type does not grow.
MOST_GROWTH = 1.2
MOST_SECONDS = 0.5
MOST_OF_TRANSFER = 2.0
# Up to so many files, what a put computes is not to grow.
_MANY = 100_000
_FILES_OF_A_MODEL = 20
_NAMES = 6
_TIMES = 3
# A put into a name takes longer the more versions it has: after some turns, another model is taken.
_MODELS = 3
_TURNS = 20
_COMMANDS = 5


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


class Grown(NamedTuple):
    """A remote of one size, and what was done there: `flat` is what should not depend on it."""

    files: int
    machine: Machine
    shape: sample.Shape
    put: Cost
    flat: dict[str, int]

    def place(self, number: int) -> Place:
        """Return a place to put artifacts into; another one for each number, as far as there is."""
        return Place(self.machine, str(sample.model_ref(self.shape, number % self.shape.models)))


class Place(NamedTuple):
    """A model of a repository."""

    machine: Machine
    model: str


def measure(setting: Setting) -> Iterator[Line]:
    """Do the same on remotes of several sizes."""
    compile_package()
    with ExitStack() as opened:
        first: Grown | None = None
        for number, files in enumerate(FILES):
            directory = f"{setting.directory}/{files}"
            os.makedirs(f"{directory}/store")
            count = max(1, setting.scaled(files) // _FILES_OF_A_MODEL)
            grown = yield from _of_size(directory, count)
            opened.callback(grown.machine.repo.close)
            first = first or grown
            # Models of which neither has more versions than the other.
            pairs = range(_MODELS * number, _MODELS * (number + 1))
            places = [(first.place(2 * pair), grown.place(2 * pair + 1)) for pair in pairs]
            most = MOST_PROCESSOR_TIME if files <= _MANY else None
            yield from _lines_beside(first, grown, places, most)
            yield _line_of_meta(f"{directory}/store/{META_KEY}", grown.files)
    # Of fewer files, what every put takes would be most of it.
    yield _on_version_1(f"{setting.directory}/version-1", _MANY)


def _lines_beside(
    first: Grown, grown: Grown, places: Sequence[tuple[Place, Place]], most: float | None
) -> Iterator[Line]:
    """Yield by how much more an operation takes than among the fewest files."""
    size = f"among {grown.files:,} files"
    few, many = _in_turns(_of_call, places, _TURNS)
    quick, slow = _in_turns(_of_command, places, _COMMANDS)
    yield Line(
        f"processor time of a put {size}, to that among the fewest",
        many / few,
        "x",
        most,
        f"{few * 1e3:.1f} and {many * 1e3:.1f} ms, the least of {_MODELS * _TURNS}",
    )
    yield Line(
        f"the same of the command `swampstore data put`, {size}",
        slow / quick,
        "x",
        most,
        f"{slow * 1e3:.0f} ms, with the start of the program, the least of {_MODELS * _COMMANDS}",
    )
    for what, amount in grown.flat.items():
        yield Line(f"{what}, {size}, to that", amount / first.flat[what], "x", MOST_GROWTH)
    waits = grown.put.in_a_row * ANSWER
    yield Line(
        f"a put at 30 ms a request, {size}: requests in a row and processor time",
        waits + many,
        "s",
        MOST_SECONDS,
        f"{grown.put.slowly:.2f} s by the clock",
    )
    yield Line(
        f"the same of the command `swampstore data put`, {size}",
        waits + slow,
        "s",
        MOST_SECONDS,
    )


def _line_of_meta(meta: str, files: int) -> Line:
    with open(meta, "rb") as file:
        listed = len(json.dumps(json.load(file)["partitions"], separators=(",", ":")))
    size = os.path.getsize(meta)
    return Line(
        f"`_meta.json` of {files:,} files but for {_HEAD} bytes, to its list of partitions",
        (size - _HEAD) / listed,
        "x",
        LARGEST_META,
        f"{size:,} and {listed:,} bytes",
    )


def _in_turns(
    take: Callable[[Place], float], places: Sequence[tuple[Place, Place]], times: int
) -> tuple[float, float]:
    """Return the least of the places on either side, whatever else the machine does."""
    taken = [(take(few), take(many)) for few, many in places for _ in range(times)]
    return min(few for few, _ in taken), min(many for _, many in taken)


def _of_call(place: Place) -> float:
    """Return the processor time of a put in a program that has the repository open."""
    return processor_seconds(_put, place.machine.repo, place.model)


def _of_size(directory: str, models: int) -> Generator[Line, None, Grown]:
    shape = sample.Shape(models, _NAMES, versions=2, every=_NAMES)
    say(f"making up a remote of {models * _FILES_OF_A_MODEL:,} files")
    here, there = (_machine(f"{directory}/{name}", directory, shape) for name in ("a", "b"))
    ours = here.repo
    model = sample.model_ref(shape, models // 2)
    with there.repo as theirs:
        ours.sync.push()
        put = _cost(ours, lambda: _put(ours, str(model)))
        pull = _cost(theirs, theirs.sync.pull, before=lambda: _put(ours, str(model)))
        scoped = _cost(
            theirs, lambda: theirs.sync.pull([model]), before=lambda: _put(ours, str(model))
        )
        theirs.sync.pull()
        nothing = _cost(theirs, theirs.sync.pull)
    files = models * _FILES_OF_A_MODEL
    size = f"among {files:,} files"
    yield _line(f"put of one artifact {size}", put, MOST_REQUESTS)
    yield Line(f"the same, in a row, {size}", put.in_a_row, "requests", MOST_IN_A_ROW)
    yield _line(f"pull of one artifact {size}", pull)
    yield _line(f"pull of one model {size}", scoped)
    yield _line(f"pull of nothing {size}", nothing, 1)
    of_type = partition_of(DataRef(model, "one-more").latest_rel)
    store = f"{directory}/store"
    lists = sum(os.path.getsize(f"{store}/{key}") for key in (META_KEY, shard_key(of_type)))
    beside = "beside `_meta.json` and the shard of the type"
    flat = {
        "requests of a put": put.requests,
        f"bytes that a put sends {beside}": put.sent - lists,
        "requests of a pull": pull.requests,
        f"bytes that a pull receives {beside}": pull.received - lists,
        "requests of a pull of one model": scoped.requests,
        f"bytes that a pull of one model receives {beside}": scoped.received - lists,
    }
    return Grown(files, here, shape, put, flat)


def _on_version_1(directory: str, files: int) -> Line:
    """Compare a put with the transfer of the monolith that version 1 asks for, and no more."""
    os.makedirs(f"{directory}/store")
    models = max(1, files // _FILES_OF_A_MODEL)
    shape = sample.Shape(models, _NAMES, versions=2, every=_NAMES)
    say(f"making up a remote of {files:,} files with an index of version 1")
    store = DirectoryStore(f"{directory}/store", durable=False)
    machine = _machine(f"{directory}/a", directory, shape, as_version_1)
    model = str(sample.model_ref(shape, models // 2))
    puts, transfers = [], []
    with machine.repo as repo:
        repo.sync.push()
        for _ in range(_TURNS // 2):
            puts.append(processor_seconds(_put, repo, model))
            transfers.append(processor_seconds(_transfer, store))
    return Line(
        f"a put on version 1 among {files:,} files, to the transfer of the monolith",
        min(puts) / min(transfers),
        "x",
        MOST_OF_TRANSFER,
        f"{min(puts) * 1e3:.0f} and {min(transfers) * 1e3:.0f} ms of processor time;"
        " it is read, decoded, encoded and written once",
    )


def _transfer(store: DirectoryStore) -> None:
    doc = decode_monolith(store.get(MONOLITH_KEY).data)
    store.put("transferred", encode_monolith(doc, "2026-05-14T08:00:00.000Z", "transferred"))


def _of_command(place: Place) -> float:
    """Return the processor time of a process that does nothing but put an artifact."""
    program = f"{os.path.dirname(sys.executable)}/swampstore"
    content = ["--json-value", str(time.time_ns())]
    where = ["--repo", place.machine.repo.config.repo_dir]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [program, "data", "put", place.model, "one-more", *content, *where]
    run_quietly(command, place.machine.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _line(what: str, cost: Cost, limit: float | None = None) -> Line:
    note = (
        f"{cost.in_a_row} in a row; {cost.sent / 1e3:,.1f} kB sent, {cost.received / 1e3:,.1f} kB"
        f" received; {cost.processor * 1e3:.0f} ms of processor time, {cost.memory / 1e6:.0f} MB;"
        f" {cost.seconds:.2f} s, {cost.slowly:.2f} s at 30 ms each"
    )
    return Line(what, cost.requests, "requests", limit, note)


def _machine(
    place: str,
    directory: str,
    shape: sample.Shape,
    then: Callable[[DirectoryStore], None] = lambda _: None,
) -> Machine:
    os.makedirs(place)
    machine = Machine.new(place, f"file://{directory}/store")
    # The second one writes the same once more: then both bases agree with what is there.
    store = DirectoryStore(f"{directory}/store", durable=False)
    make_up(machine.repo.connection.base, store, shape)
    then(store)
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
