"""Kill a process before every system call of what it does with marks: no mark is ever lost.

Between two system calls nothing changes that a kill could leave behind, so that these are all
the lines that matter. A program of its own, because forking is cheap only where little is loaded:

    python -m tests.support.killing_marks SCRATCH
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from swampstore.sync.dirty import DirtyTracker, Snapshot
from swampstore.sync.journal import JOURNAL
from tests.support.old_client import OldClient

SYSTEM_CALLS = ("posix", "fcntl")


class Case(NamedTuple):
    """What is done to a cache, and which marks it has at the least, and in the end."""

    prepare: Callable[[Path], Snapshot]
    operate: Callable[[DirtyTracker, Snapshot], Any]
    always: set[str]
    finally_: set[str]
    bulk: bool = False
    bulk_meanwhile: bool = False


def clean(cache: Path) -> DirtyTracker:
    """Return the marks of a cache that was walked and has none."""
    tracker = DirtyTracker(str(cache), durable=False)
    tracker.settle(tracker.snapshot(), walked=True)
    tracker.mark("first")
    tracker.settle(tracker.snapshot(), walked=True)
    return tracker


def with_marks(cache: Path, count: int = 2) -> Snapshot:
    tracker = clean(cache)
    for number in range(count):
        tracker.mark(f"{number}")
    return Snapshot()


def with_push(cache: Path) -> Snapshot:
    with_marks(cache)
    snapshot = DirtyTracker(str(cache), durable=False).snapshot()
    DirtyTracker(str(cache), durable=False).mark("1")
    return snapshot


def with_bulk_push(cache: Path) -> Snapshot:
    tracker = clean(cache)
    tracker.mark("0")
    tracker.mark()
    snapshot = tracker.snapshot()
    tracker.mark("1")
    return snapshot


def with_another_client(cache: Path) -> Snapshot:
    with_marks(cache)
    client = OldClient(cache)
    client.push()
    client.mark("theirs")
    return Snapshot()


def with_damage(cache: Path) -> Snapshot:
    with_marks(cache)
    with (cache / JOURNAL).open("a") as journal:
        journal.write("torn")
    return Snapshot()


def with_nothing(cache: Path) -> Snapshot:
    cache.mkdir()
    return Snapshot()


def many(count: int) -> set[str]:
    return {str(number) for number in range(count)}


TWO = many(2)
CASES = {
    "the first mark of all": Case(
        with_nothing, lambda tracker, _: tracker.mark("0"), set(), {"0"}, bulk=True
    ),
    "mark": Case(with_marks, lambda tracker, _: tracker.mark("2"), TWO, many(3)),
    "mark again": Case(with_marks, lambda tracker, _: tracker.mark("1"), TWO, TWO),
    "mark everything": Case(with_marks, lambda tracker, _: tracker.mark(), TWO, TWO, bulk=True),
    "mark one too many": Case(
        lambda cache: with_marks(cache, 200),
        lambda tracker, _: tracker.mark("200"),
        many(200),
        many(201),
    ),
    "mark during a push": Case(with_push, lambda tracker, _: tracker.mark("0"), TWO, TWO),
    "mark after another client": Case(
        with_another_client,
        lambda tracker, _: tracker.mark("2"),
        {*TWO, "theirs"},
        {*many(3), "theirs"},
    ),
    "mark on a damaged journal": Case(
        with_damage, lambda tracker, _: tracker.mark("2"), TWO, many(3), bulk=True
    ),
    "begin a push": Case(
        with_another_client,
        lambda tracker, _: tracker.snapshot(),
        {*TWO, "theirs"},
        {*TWO, "theirs"},
    ),
    "settle": Case(with_push, lambda tracker, snapshot: tracker.settle(snapshot), {"1"}, {"1"}),
    "settle some": Case(
        with_push, lambda tracker, snapshot: tracker.settle(snapshot, ["1"]), TWO, TWO
    ),
    "let others mark": Case(
        with_push,
        lambda tracker, snapshot: tracker.let_others_mark(snapshot, ["0", "1"]),
        TWO,
        TWO,
    ),
    "settle everything": Case(
        with_bulk_push,
        lambda tracker, snapshot: tracker.settle(snapshot, walked=True),
        {"1"},
        {"1"},
        bulk_meanwhile=True,
    ),
    "verified": Case(
        with_another_client,
        lambda tracker, _: tracker.verified(fingerprint="f", commit_seq=1, lazy=True, at="now"),
        {*TWO, "theirs"},
        {*TWO, "theirs"},
    ),
}


def killed_at(cache: Path, case: Case, snapshot: Snapshot, call: int) -> bool:
    """Operate in a child that dies before its n-th system call; return whether it died."""
    child = os.fork()
    if child == 0:
        try:
            _operate_counted(cache, case, snapshot, call)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the operation failed in the child"
    return False


def _operate_counted(cache: Path, case: Case, snapshot: Snapshot, call: int) -> None:
    tracker = DirtyTracker(str(cache), durable=False)
    left = call

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        if event == "c_call" and arg.__module__ in SYSTEM_CALLS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    case.operate(tracker, snapshot)
    sys.setprofile(None)


def check_every_kill(case: Case, scratch: Path) -> int:
    """Assert that every kill leaves what must be there, and harms nobody; return how many."""
    template, cache = scratch / "template", scratch / "cache"
    snapshot = case.prepare(template)
    call, died = 0, True
    while died:
        call += 1
        shutil.copytree(template, cache)
        died = killed_at(cache, case, snapshot, call)
        seen = DirtyTracker(str(cache), durable=False).peek()
        assert case.always <= set(seen.paths), f"killed at call {call}: {seen}"
        assert case.bulk or case.bulk_meanwhile or not seen.bulk, f"killed at call {call}"
        tracker = DirtyTracker(str(cache), durable=False)
        case.operate(tracker, snapshot)
        seen = tracker.peek()
        assert case.finally_ <= set(seen.paths), f"done again after call {call}: {seen}"
        assert seen.bulk or not case.bulk, f"done again after call {call}"
        assert tracker.state().is_trusted
        tracker.settle(tracker.snapshot(), walked=True)
        assert tracker.peek().is_empty, f"pushed after call {call}"
        shutil.rmtree(cache)
    return call


if __name__ == "__main__":
    for number, (name, case) in enumerate(CASES.items()):
        scratch = Path(sys.argv[1], str(number))
        scratch.mkdir()
        assert check_every_kill(case, scratch) > 8, name
