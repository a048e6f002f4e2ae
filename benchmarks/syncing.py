"""Syncing with a bucket, beside programs that do nothing else: one server, one tree, in turns."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import peers
import repository_peers
import sample
from contestants import BUCKET, Bare, CommandLine, Contestant, Library, Other
from measuring import Line, Setting, compile_package, say, seconds

MODELS = 1000
# Six names for each model, one of which has two versions: twenty files.
_NAMES = 6
COLD_ROUNDS = 3
WARM_ROUNDS = 5
# What a pull does beside moving bytes may take so much of the time that the client alone takes. A
# push does more: it says that nothing may be there, and writes the index.
RATIO_TO_BARE = 1.1
# A peer that takes so many times as long as the fastest is not asked to do the same again.
_HOPELESS = 3.0
# Peers compare times, and those of some have no fractions of a second.
_TICK = 1.1
_MEMORY = "/dev/shm"
_ROOM = 4 << 30


class Operation(NamedTuple):
    """Something to be timed; `share` is how much of the fastest peer's time is promised.

    Where what is moved is the whole of an index of version 1, only `growing` promises something.
    `to_bare` is what is promised beside what the client alone takes.
    """

    what: str
    share: float
    unit: str
    run: Callable[[Contestant], None]
    moves_index: bool = False
    to_bare: float | None = None


COLD = (
    Operation("cold push", 1, "s", lambda one: one.push(cold=True)),
    Operation("cold pull", 1, "s", lambda one: one.pull(cold=True), to_bare=RATIO_TO_BARE),
)
WARM = (
    Operation(
        "push of one artifact", 1 / 20, "ms", lambda one: one.push(cold=False), moves_index=True
    ),
    Operation(
        "pull of one artifact", 1 / 20, "ms", lambda one: one.pull(cold=False), moves_index=True
    ),
    Operation("push of nothing", 1 / 20, "ms", lambda one: one.push(cold=False)),
    Operation("pull of nothing", 1 / 20, "ms", lambda one: one.pull(cold=False)),
)


def measure(setting: Setting) -> Iterator[Line]:
    """Let everybody do the same in turns, and compare the medians."""
    shape = sample.Shape(max(10, setting.scaled(MODELS)), _NAMES, versions=2, every=_NAMES)
    with server(setting.directory) as account, contextlib.ExitStack() as opened:
        say(f"writing a tree of {_files(shape):,} files for everybody")
        others: list[Other] = [
            Other(peer, f"{setting.directory}/{peer.name.partition(' ')[0]}", shape)
            for peer in peers.installed(account, setting.directory)
        ]
        more, missing = repository_peers.available(setting.directory, shape, account)
        others += more
        ourselves = _ourselves(setting.directory, shape, account)
        bare = Bare(f"{setting.directory}/bare", shape, account)
        for one in (*others, *ourselves, bare):
            opened.callback(one.close)
        compile_package()
        contest = Contest(others, ourselves, bare, shape)
        contest.warm_up()
        contest.run_cold()
        contest.run_warm()
        for operation in (*COLD, *WARM):
            yield from contest.lines(operation)
        for operation in COLD:
            yield from contest.lines_beside_bare(operation)
        for name, reason in missing.items():
            yield Line(f"{name} is missing: it could not be had", 1, "peer", note=reason)


def _is_promised(operation: Operation, one: Contestant) -> bool:
    # What a program needs to start is nobody's promise.
    return type(one) is Library and (one.sharded or not operation.moves_index)


def _files(shape: sample.Shape) -> int:
    return shape.models * (3 * shape.names + 2)


def _ourselves(directory: str, shape: sample.Shape, account: peers.Account) -> list[Library]:
    kinds = {"swampstore": Library, "command `swampstore sync`": CommandLine}
    return [
        kind(
            f"{name}, {index} index",
            f"{directory}/{kind.__name__.lower()}-{index}",
            shape,
            account,
            sharded=index == "v2",
        )
        for name, kind in kinds.items()
        for index in ("v1", "v2")
    ]


@contextlib.contextmanager
def server(directory: str) -> Iterator[peers.Account]:
    """Run an S3 server, and have the key to it in the environment.

    Its files are in memory, if there is room: on the disk of the trees, whoever makes a tree
    durable would wait for the server's files as well, which elsewhere are on another machine.
    """
    sys.path.append(str(Path(__file__).parent.parent))
    from tests.support.servers import S3_KEY, seaweedfs

    roomy = os.path.isdir(_MEMORY) and shutil.disk_usage(_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(
        prefix="swampstore-bench-", dir=_MEMORY if roomy else directory
    ) as place:
        say(f"starting a server in {place}")
        with seaweedfs(Path(place)) as server:
            server.make_bucket(BUCKET)
            account = peers.Account(server.url, S3_KEY["accessKeyId"], S3_KEY["secretAccessKey"])
            before = dict(os.environ)
            os.environ.update(account.environ())
            try:
                yield account
            finally:
                os.environ.clear()
                os.environ.update(before)


class Contest:
    """Rounds in which everybody does the same, one after the other, each being first at times."""

    def __init__(
        self,
        others: Sequence[Other],
        ourselves: Sequence[Library],
        bare: Bare,
        shape: sample.Shape,
    ) -> None:
        self._bare = bare
        self._others = others
        self._ourselves = ourselves
        self._shape = shape
        self._contents = sample.small_contents()
        # By operation and contestant.
        self._times: dict[str, dict[str, list[float]]] = {}
        self._spent: dict[tuple[str, str], str] = {}
        self._turns = 0

    def warm_up(self) -> None:
        """Let the server make the files of the bucket, for which the first write waits seconds."""
        self._others[0].start_over(0)
        self._others[0].push(cold=True)

    def run_cold(self) -> None:
        """Push everything to an empty place, and pull it into an empty directory."""
        for number in range(1, COLD_ROUNDS + 1):
            say(f"pushing and pulling everything, round {number} of {COLD_ROUNDS}")
            contestants = [one for one in self._in_turn() if not self._is_done(one, COLD)]
            contestants.insert(number % len(contestants), self._bare)
            for one in contestants:
                one.start_over(number)
            for operation in COLD:
                for one in contestants:
                    os.sync()  # else it would wait for what the one before it has written
                    self._time(operation, one)
            for one in contestants:
                one.check()

    def run_warm(self) -> None:
        """Push and pull one artifact that changed, then nothing, again and again."""
        for number in range(WARM_ROUNDS):
            say(f"pushing and pulling one artifact, and nothing, round {number + 1}")
            # Commands take little, so that they are asked each time.
            contestants = [
                one
                for one in self._in_turn()
                if isinstance(one, CommandLine) or not self._is_done(one, WARM)
            ]
            time.sleep(_TICK)
            for one, content in zip(contestants, self._contents, strict=False):
                one.change(self._shape, number, content)
            for operation in WARM:
                for one in contestants:
                    self._time(operation, one)
            for one in contestants:
                one.check()

    def _in_turn(self) -> list[Contestant]:
        everybody = [*self._others, *self._ourselves]
        self._turns += 1
        first = self._turns * 2 % len(everybody)
        return everybody[first:] + everybody[:first]

    def _time(self, operation: Operation, one: Contestant) -> None:
        taken = seconds(operation.run, one)
        say(f"{operation.what}: {one.name} {taken:.3g} s")
        self._times.setdefault(operation.what, {}).setdefault(one.name, []).append(taken)
        self._spent[operation.what, one.name] = one.spent

    def _median(self, operation: Operation, one: Contestant) -> float:
        return statistics.median(self._times[operation.what][one.name])

    def _fastest(self, operation: Operation) -> Other:
        """Return the fastest of those who leave every file an object of its own, as we do."""
        alike = [other for other in self._others if type(other) is Other]
        return min(alike, key=lambda other: self._median(operation, other))

    def _is_done(self, one: Contestant, operations: Sequence[Operation]) -> bool:
        """Whether one round of these is enough: nothing is judged by it."""
        if operations[0].what not in self._times or type(one) is Library:
            return False
        return isinstance(one, CommandLine) or all(
            self._median(operation, one)
            > _HOPELESS * self._median(operation, self._fastest(operation))
            for operation in operations
        )

    def lines(self, operation: Operation) -> Iterator[Line]:
        """Yield what an operation took each of them, and how that compares."""
        fastest = self._fastest(operation)
        scale = 1000 if operation.unit == "ms" else 1
        limit = self._median(operation, fastest) * operation.share * scale
        for one in (*self._others, *self._ourselves):
            yield Line(
                f"{operation.what}, {_files(self._shape):,} files: {one.name}",
                self._median(operation, one) * scale,
                operation.unit,
                float(f"{limit:.3g}") if _is_promised(operation, one) else None,
                self._note(operation, one, fastest, scale),
            )

    def lines_beside_bare(self, operation: Operation) -> Iterator[Line]:
        """Yield how long an operation took us, to what our client alone takes."""
        bare = self._median(operation, self._bare)
        for one in self._ourselves:
            if type(one) is Library:
                yield Line(
                    f"{operation.what}, to {self._bare.name}: {one.name}",
                    self._median(operation, one) / bare,
                    "x",
                    operation.to_bare,
                    f"{bare:.1f} s alone, with as many transfers at once",
                )

    def _note(self, operation: Operation, one: Contestant, fastest: Other, scale: int) -> str:
        times = self._times[operation.what][one.name]
        low, high = min(times) * scale, max(times) * scale
        digits = 0 if operation.unit == "ms" else 1
        ratio = self._median(operation, one) / self._median(operation, fastest)
        parts = [
            "" if one is fastest else f"{ratio:.3g} of {fastest.name}",
            f"{low:,.{digits}f} to {high:,.{digits}f} {operation.unit}",
            self._spent[operation.what, one.name],
        ]
        return "; ".join(filter(None, parts))
