"""Marks: nothing that was marked is forgotten before a push that began later is through with it."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from swampstore.errors import DiskError, LockTimeoutError
from swampstore.layout import SIDECAR, is_internal
from swampstore.sync import dirty
from swampstore.sync import sidecar as sidecar_module
from swampstore.sync.dirty import LOCK, DirtyTracker, Snapshot
from swampstore.sync.journal import EVERYTHING, JOURNAL, Marks, Record
from tests.artifacts.test_many_processes import run_all
from tests.support import old_client
from tests.support.old_client import OldClient

ROOT = Path(__file__).parents[2]
MEMORY = "/dev/shm"


def open_tracker(cache: Path, **options: Any) -> DirtyTracker:
    return DirtyTracker(str(cache), durable=False, **options)


def write_sidecar(cache: Path, **members: Any) -> None:
    """Write what another client would have written."""
    written = {
        "version": 2,
        "remoteIndexETag": "etag",
        "lastVerifiedAt": "2026-06-01T10:00:00.001Z",
        "localDirty": False,
        "dirtyPaths": [],
        "bulkInvalidated": False,
        "lazyPullActive": False,
        **members,
    }
    (cache / SIDECAR).write_text(json.dumps(written, indent=2))


def sidecar(cache: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cache / SIDECAR).read_text())
    return found


def seen(cache: Path) -> tuple[set[str], bool]:
    """What a process that starts now would push: the paths, and whether it walks."""
    found = open_tracker(cache).peek()
    assert len(found.paths) == len(set(found.paths))
    return set(found.paths), found.bulk


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that is clean, as another client left it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    write_sidecar(cache)
    return cache


@pytest.fixture
def tracker(cache: Path) -> DirtyTracker:
    return open_tracker(cache)


# The eight rules of marking -----------------------------------------------------------------


def test_rule_1_a_path_is_marked_before_it_exists(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("data/a/b/state")
    assert seen(cache) == ({"data/a/b/state"}, False)
    assert not (cache / "data").exists()


def test_rule_2_a_path_that_is_gone_stays_marked_so_that_it_is_deleted_remotely(
    tracker: DirtyTracker, cache: Path
) -> None:
    (cache / "outputs").mkdir()
    tracker.mark("outputs")
    (cache / "outputs").rmdir()
    assert tracker.snapshot().paths == ("outputs",)


def test_rule_3_a_mark_without_a_path_asks_for_a_walk(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark()
    assert seen(cache) == (set(), True)
    assert sidecar(cache)["bulkInvalidated"] is sidecar(cache)["localDirty"] is True


def test_rule_4_marks_outlive_a_process_that_is_killed(cache: Path) -> None:
    child = os.fork()
    if child == 0:
        DirtyTracker(str(cache)).mark("data/a")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert seen(cache) == ({"data/a"}, False)


@pytest.mark.parametrize(
    ("given_path", "marked"),
    [
        ("data/a", "data/a"),
        ("a//b/./c/", "a/b/c"),
        ("/etc/x", "etc/x"),
        ("//etc/x", "etc/x"),
        ("a/../b", "b"),
        ("./a", "a"),
        ("a\\b", "a\\b"),
        ("...", "..."),
        ("line\nbreak ü \udc80", "line\nbreak ü \udc80"),
        ("../cache/a", "a"),
    ],
)
def test_rule_5_paths_are_relative_to_the_cache_and_have_one_spelling(
    given_path: str, marked: str, cache: Path, tracker: DirtyTracker
) -> None:
    tracker.mark(given_path)
    tracker.mark(marked)
    assert seen(cache) == ({marked}, False)
    assert sidecar(cache)["dirtyPaths"] == [marked]


@pytest.mark.parametrize("outside", ["..", "../x", "a/../../b", "/../x", ".", "a/.."])
def test_rule_5_a_path_that_is_not_below_the_cache_asks_for_a_walk(
    outside: str, cache: Path, tracker: DirtyTracker
) -> None:
    tracker.mark(outside)
    assert seen(cache) == (set(), True)


@pytest.mark.parametrize("nothing", [None, ""])
def test_rule_6_the_path_is_optional(nothing: str | None, tracker: DirtyTracker) -> None:
    tracker.mark(nothing)
    assert tracker.peek() == Snapshot(bulk=True)


def test_rule_7_a_push_takes_the_marks_of_everybody(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("data/mine")
    OldClient(cache).mark("data/theirs")
    open_tracker(cache).mark("data/other")
    assert open_tracker(cache).snapshot().paths == ("data/mine", "data/other", "data/theirs")


def test_rule_8_everything_is_not_made_less_by_a_path(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("data/before")
    tracker.mark()
    tracker.mark("data/after")
    assert seen(cache)[1]
    tracker.settle(tracker.snapshot())
    assert seen(cache) == (set(), True)
    tracker.settle(tracker.snapshot(), walked=True)
    assert seen(cache) == (set(), False)


# What is on disk decides --------------------------------------------------------------------

CORRUPT = object()
DIRTY_V1 = {"version": 1, "localDirty": True}


@pytest.mark.parametrize("mark", [None, "data/new"])
@pytest.mark.parametrize(
    ("on_disk", "paths", "bulk"),
    [
        (None, set(), True),
        (CORRUPT, set(), True),
        ({"version": "3"}, set(), True),
        (DIRTY_V1, set(), True),
        ({"version": 1}, set(), True),
        ({}, set(), False),
        ({"localDirty": True}, set(), True),
        ({"localDirty": True, "dirtyPaths": ["data/a"]}, {"data/a"}, False),
        ({"localDirty": True, "bulkInvalidated": True}, set(), True),
        ({"localDirty": True, "dirtyPaths": ["a"], "bulkInvalidated": True}, {"a"}, True),
        ({"localDirty": True, "dirtyPaths": ["x//y", "x/y/"]}, {"x/y"}, False),
        ({"localDirty": True, "dirtyPaths": ["../x", "a"]}, {"a"}, True),
        ({"dirtyPaths": ["data/left"]}, {"data/left"}, False),
        ({"bulkInvalidated": True}, set(), True),
    ],
)
def test_h16_what_the_next_push_looks_at(
    on_disk: Any, paths: set[str], bulk: bool, mark: str | None, tmp_path: Path
) -> None:
    if on_disk is CORRUPT:
        (tmp_path / SIDECAR).write_text('{"version": 2')
    elif on_disk is not None:
        write_sidecar(tmp_path, **on_disk)
    if mark is not None:
        open_tracker(tmp_path).mark(mark)
        assert sidecar(tmp_path)["version"] == 2
        assert sidecar(tmp_path)["localDirty"]
        assert sidecar(tmp_path)["bulkInvalidated"] is bulk
    expected = (paths | ({mark} if mark else set()), bulk)
    assert seen(tmp_path) == expected
    tracker = open_tracker(tmp_path)
    snapshot = tracker.snapshot()
    assert (set(snapshot.paths), snapshot.bulk) == expected
    assert seen(tmp_path) == expected
    tracker.settle(snapshot, walked=True)
    assert seen(tmp_path) == (set(), False)
    assert open_tracker(tmp_path).state().is_clean


def test_h16_older_work_is_looked_for_until_a_walk_succeeded(tmp_path: Path) -> None:
    tracker = open_tracker(tmp_path)
    tracker.mark("data/a")
    tracker.settle(tracker.snapshot())
    tracker.mark("data/b")
    assert seen(tmp_path) == ({"data/b"}, True)
    assert sidecar(tmp_path)["bulkInvalidated"] is sidecar(tmp_path)["localDirty"] is True


def test_a_cache_that_is_not_there_is_created_by_its_first_mark(tmp_path: Path) -> None:
    cache = tmp_path / "a/b"
    assert open_tracker(cache).peek() == Snapshot(bulk=True)
    assert open_tracker(cache).covers("data")
    assert not cache.exists()
    open_tracker(cache).mark("data")
    assert seen(cache) == ({"data"}, True)


def test_a_clean_cache_is_only_looked_at(tracker: DirtyTracker, cache: Path) -> None:
    before = (cache / SIDECAR).read_bytes()
    snapshot = tracker.snapshot()
    assert snapshot.is_empty
    tracker.settle(snapshot, walked=True)
    assert (cache / SIDECAR).read_bytes() == before
    assert not (cache / JOURNAL).exists()


def test_what_is_written_never_crosses_to_the_remote(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("a")
    tracker.settle(tracker.snapshot())
    assert {path.name for path in cache.iterdir()} == {SIDECAR, JOURNAL, LOCK}
    assert all(is_internal(path.name) for path in cache.iterdir())


# During a push ------------------------------------------------------------------------------


def test_h14_a_mark_during_a_push_survives_it(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("data/a")
    tracker.mark("data/b")
    snapshot = tracker.snapshot()
    tracker.mark("data/a")
    open_tracker(cache).mark("data/c")
    tracker.settle(snapshot)
    assert seen(cache) == ({"data/a", "data/c"}, False)
    assert set(sidecar(cache)["dirtyPaths"]) == {"data/a", "data/c"}
    assert sidecar(cache)["localDirty"]


def test_h14_a_mark_of_everything_during_a_walk_survives_it(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.mark()
    snapshot = tracker.snapshot()
    tracker.mark()
    tracker.settle(snapshot, walked=True)
    assert seen(cache) == (set(), True)
    assert sidecar(cache)["bulkInvalidated"]


def test_h14_a_mark_of_another_client_during_a_push_survives_it(
    tracker: DirtyTracker, cache: Path
) -> None:
    client = OldClient(cache)
    client.pull_lazily()
    tracker.mark("data/a")
    snapshot = tracker.snapshot()
    client.mark("data/a")
    tracker.settle(snapshot, walked=True)
    assert seen(cache) == ({"data/a"}, False)
    tracker.settle(tracker.snapshot())
    assert seen(cache) == (set(), False)


def test_h12_a_settled_path_can_be_marked_again(tracker: DirtyTracker, cache: Path) -> None:
    for _ in range(3):
        tracker.mark("data/a")
        assert sidecar(cache)["localDirty"] is True
        assert seen(cache) == ({"data/a"}, False)
        tracker.settle(tracker.snapshot())
        assert sidecar(cache)["localDirty"] is False
        assert sidecar(cache)["dirtyPaths"] == []


def test_h12_marking_again_says_dirty_after_another_client_said_clean(
    tracker: DirtyTracker, cache: Path
) -> None:
    client = OldClient(cache)
    client.pull_lazily()
    tracker.mark("data/a")
    tracker.mark("data/b")
    client.push()
    assert sidecar(cache)["localDirty"] is False
    tracker.mark("data/b")
    assert sidecar(cache)["localDirty"] is True
    assert sidecar(cache)["dirtyPaths"] == ["data/a", "data/b"]
    write_sidecar(cache, dirtyPaths=["data/b"])
    tracker.mark("data/b")
    assert sidecar(cache)["localDirty"] is True


def test_h17_a_push_of_some_paths_settles_those(tracker: DirtyTracker, cache: Path) -> None:
    for name in "abc":
        tracker.mark(f"data/{name}")
    snapshot = tracker.snapshot()
    tracker.settle(snapshot, ["data/a"])
    assert seen(cache) == ({"data/b", "data/c"}, False)
    tracker.settle(snapshot, ["data/b", "data/never-marked"])
    assert seen(cache) == ({"data/c"}, False)


def test_h18_nothing_is_clean_before_it_is_settled(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("data/a")
    tracker.snapshot()
    tracker.verified(fingerprint="new", commit_seq=None, lazy=None, at="now")
    assert sidecar(cache)["localDirty"] is True
    assert seen(cache) == ({"data/a"}, False)


def test_h56_directories_and_files_are_marked_alike(tracker: DirtyTracker, cache: Path) -> None:
    (cache / "data/a").mkdir(parents=True)
    (cache / "data/f").write_text("x")
    for path in ("data/a", "data/f", "data/neither"):
        tracker.mark(path)
    assert seen(cache) == ({"data/a", "data/f", "data/neither"}, False)


def test_h59_everything_marked_names_no_path_as_gone(tracker: DirtyTracker) -> None:
    tracker.mark("data/a")
    tracker.mark()
    snapshot = tracker.snapshot()
    assert snapshot.bulk
    assert snapshot.paths == ("data/a",)


def test_h75_a_deletion_that_could_not_be_pushed_stays_marked(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.verified(fingerprint="f", commit_seq=None, lazy=True, at="now")
    tracker.mark("data/deleted")
    tracker.mark("data/saved")
    tracker.settle(tracker.snapshot(), ["data/saved"], walked=True)
    tracker.verified(fingerprint="g", commit_seq=None, lazy=False, at="later")
    assert seen(cache) == ({"data/deleted"}, False)


def test_two_pushes_at_once_each_settle_what_they_began_with(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.mark("a")
    first = tracker.snapshot()
    tracker.mark("b")
    second = open_tracker(cache).snapshot()
    tracker.mark("c")
    open_tracker(cache).settle(second)
    assert seen(cache) == ({"c"}, False)
    tracker.mark("a")
    tracker.settle(first)
    assert seen(cache) == ({"a", "c"}, False)


def test_pushes_that_fail_leave_nothing_that_grows(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("a")
    tracker.snapshot()
    size = (cache / JOURNAL).stat().st_size
    for _ in range(10):
        open_tracker(cache).snapshot()
    assert (cache / JOURNAL).stat().st_size == size
    for _ in range(1200):
        tracker.snapshot()
        tracker.mark("a")
    assert (cache / JOURNAL).stat().st_size < 1200 * 60
    assert seen(cache) == ({"a"}, False)


def test_a_settled_journal_is_as_small_as_an_empty_one(tracker: DirtyTracker, cache: Path) -> None:
    sizes = set()
    for _ in range(3):
        tracker.mark("a")
        tracker.snapshot()  # of a push that never ends
        tracker.mark("b")
        tracker.settle(tracker.snapshot())
        sizes.add((cache / JOURNAL).stat().st_size)
    assert len(sizes) == 1
    assert (cache / JOURNAL).read_bytes().count(b"\n") == 1


def test_a_push_without_a_beginning_settles_nothing(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("a")
    tracker.settle(tracker.peek(), walked=True)
    tracker.settle(Snapshot(("a",), push="unknown"), walked=True)
    assert seen(cache) == ({"a"}, False)


# Other members, other clients ---------------------------------------------------------------


def test_h19_members_of_others_survive_all_we_do(cache: Path) -> None:
    kept = {"lastCatalogHash": "00ff", "dataKeyMigrated": True, "new": {"x": [1]}, "commitSeq": 7}
    write_sidecar(cache, **kept)
    tracker = open_tracker(cache)
    tracker.mark("a")
    tracker.mark()
    tracker.settle(tracker.snapshot(), walked=True)
    assert {name: sidecar(cache)[name] for name in kept} == kept
    tracker.verified(fingerprint="f", commit_seq=8, lazy=None, at="now")
    assert {name: sidecar(cache)[name] for name in kept} == {**kept, "commitSeq": 8}


def test_h73_a_proof_is_one_write(
    tracker: DirtyTracker, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[str] = []
    rename = os.rename

    def count(source: str, target: str) -> None:
        renamed.append(os.path.basename(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", count)
    tracker.verified(fingerprint='"quoted"', commit_seq=9, lazy=True, at="now")
    assert renamed == [SIDECAR]
    written = sidecar(cache)
    assert (written["remoteIndexETag"], written["commitSeq"]) == ("quoted", 9)
    assert (written["lastVerifiedAt"], written["lazyPullActive"]) == ("now", True)


def test_a_proof_takes_away_what_it_does_not_prove(tracker: DirtyTracker, cache: Path) -> None:
    tracker.verified(fingerprint="f", commit_seq=9, lazy=True, at="now")
    tracker.verified(fingerprint=None, commit_seq=None, lazy=None, at="later")
    state = tracker.state()
    assert (state.fingerprint, state.commit_seq, state.lazy_pull_active) == ("", None, True)
    assert "commitSeq" not in sidecar(cache)


def test_a_proof_does_not_make_a_missing_sidecar_clean(tmp_path: Path) -> None:
    open_tracker(tmp_path).verified(fingerprint="f", commit_seq=None, lazy=None, at="now")
    assert seen(tmp_path) == (set(), True)
    assert sidecar(tmp_path)["localDirty"] is sidecar(tmp_path)["bulkInvalidated"] is True


def test_h13_a_clean_write_of_another_client_erases_no_mark_of_ours(
    tracker: DirtyTracker, cache: Path
) -> None:
    client = OldClient(cache)
    client.pull_lazily()
    tracker.mark("data/a")
    client.push()
    assert sidecar(cache)["dirtyPaths"] == []
    assert seen(cache) == ({"data/a"}, False)


def test_others_mark_again_what_a_push_is_through_with_and_we_know_it_until_it_is_settled(
    tracker: DirtyTracker, cache: Path
) -> None:
    for path in ("data/a", "data/b"):
        tracker.mark(path)
    snapshot = tracker.snapshot()
    tracker.let_others_mark(snapshot, ["data/a"])
    assert sidecar(cache)["dirtyPaths"] == ["data/b"]
    assert seen(cache) == ({"data/a", "data/b"}, False)
    assert OldClient(cache).mark("data/a")
    tracker.settle(snapshot, ["data/a"])
    assert seen(cache) == ({"data/a", "data/b"}, False)
    tracker.settle(tracker.snapshot())
    assert seen(cache) == (set(), False)


def test_h13_two_processes_on_one_cache_never_erase_each_others_marks(cache: Path) -> None:
    def work(number: int) -> None:
        tracker = open_tracker(cache)
        for turn in range(30):
            tracker.mark(f"data/{number}/kept-{turn}")
            tracker.mark(f"data/{number}/pushed-{turn}")
            tracker.mark("data/shared")
            if turn % 5 == 4:
                snapshot = tracker.snapshot()
                mine = f"data/{number}/pushed-"
                tracker.settle(snapshot, [path for path in snapshot.paths if mine in path])

    run_all(4, work)
    kept = {f"data/{number}/kept-{turn}" for number in range(4) for turn in range(30)}
    assert seen(cache) == ({*kept, "data/shared"}, False)


def test_h13_threads_share_one_tracker(tracker: DirtyTracker, cache: Path) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            tracker.mark(f"{number}/{turn}")
            assert tracker.covers(f"{number}/{turn}/below")
            tracker.settle(tracker.snapshot(), [f"{number}/{turn}"] if turn % 2 else [])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen(cache) == ({f"{a}/{b}" for a in range(4) for b in range(0, 20, 2)}, False)


# Many marks ---------------------------------------------------------------------------------


def test_h4_five_thousand_marks_are_exact_and_need_no_walk(
    tracker: DirtyTracker, cache: Path
) -> None:
    paths = [f"data/aws/ec2/i-1/state/{number}" for number in range(5000)]
    for path in paths:
        tracker.mark(path)
    snapshot = open_tracker(cache).snapshot()
    assert snapshot.paths == tuple(paths)
    assert not snapshot.bulk
    written = sidecar(cache)
    assert written["dirtyPaths"] == paths[:200]
    assert written["bulkInvalidated"] is True
    assert not written.get("dirtyPathsOverflowed")
    tracker.settle(snapshot, paths[1:])
    assert seen(cache) == ({paths[0]}, False)


def test_after_many_marks_other_clients_walk_until_somebody_did(
    tracker: DirtyTracker, cache: Path
) -> None:
    for number in range(201):
        tracker.mark(f"{number}")
    assert not OldClient(cache).mark("theirs"), "it keeps this in memory, and may be killed"
    tracker.settle(tracker.snapshot())
    assert seen(cache) == (set(), False)
    assert sidecar(cache)["localDirty"] is sidecar(cache)["bulkInvalidated"] is True
    tracker.settle(tracker.snapshot(), walked=True)
    assert sidecar(cache)["localDirty"] is sidecar(cache)["bulkInvalidated"] is False


def test_another_clients_overflow_needs_a_walk(tracker: DirtyTracker, cache: Path) -> None:
    for number in range(200):
        tracker.mark(f"{number}")
    OldClient(cache).mark("one-too-many")
    assert seen(cache) == ({str(number) for number in range(200)}, True)


class Work(Counter[str]):
    """Counts system calls, and the bytes that they move."""

    CALLS = ("open", "close", "fstat", "stat", "read", "pread", "write", "fsync", "rename")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            self[name] += 1
            self["bytes"] += len(result) if isinstance(result, bytes) else 0
            return result

        return counted

    def taken(self) -> dict[str, int]:
        found = dict(self)
        self.clear()
        return found


def test_the_five_thousandth_mark_costs_what_the_three_hundredth_does(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = open_tracker(cache)
    for number in range(1000, 1300):
        tracker.mark(f"{number}")
    work = Work(monkeypatch)
    tracker.mark("1300")
    cost = work.taken()
    assert sum(cost[call] for call in cost if call != "bytes") < 20
    assert "rename" not in cost
    for number in range(1301, 5000):
        tracker.mark(f"{number}")
    work.clear()
    tracker.mark("5000")
    assert work.taken() == cost


def test_a_repeated_mark_writes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, other = DirtyTracker(str(cache)), open_tracker(cache)
    for number in range(1000, 1300):
        other.mark(f"{number}")
    work = Work(monkeypatch)
    tracker.mark("1000")
    assert work.taken()["fsync"] == 1, "the process that wrote it may have been killed before"
    tracker.mark("1000")
    cost = work.taken()
    assert not {"write", "rename", "fsync"} & set(cost)
    assert cost["open"] == 3
    assert cost["bytes"] < (cache / SIDECAR).stat().st_size + 100


def test_a_mark_waits_for_the_disk_once_if_it_is_durable(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = DirtyTracker(str(cache))
    tracker.mark("a")
    work = Work(monkeypatch)
    tracker.mark("b")
    assert work.taken()["fsync"] == 1
    open_tracker(cache).mark("c")
    assert "fsync" not in work.taken()


def test_marks_of_other_processes_cost_no_more_than_what_they_added(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, other = open_tracker(cache), open_tracker(cache)
    for number in range(1000, 2000):
        tracker.mark(f"{number}")
    other.mark("a")
    work = Work(monkeypatch)
    tracker.mark("b")
    assert work.taken()["bytes"] < (cache / SIDECAR).stat().st_size + 200


# Questions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "is_covered"),
    [
        ("data/a/b", True),
        ("data/a/b/1/raw", True),
        ("data/a", True),
        ("data", True),
        ("", True),
        ("data//a/./b/", True),
        ("data/a/bc", False),
        ("data/a/b.", False),
        ("data/ab", False),
        ("data/a/c", False),
        ("dat", False),
    ],
)
def test_a_path_is_covered_by_marks_of_it_and_above_and_below_it(
    path: str, is_covered: bool, tracker: DirtyTracker
) -> None:
    assert not tracker.covers(path)
    tracker.mark("data/a/b")
    assert tracker.covers(path) is is_covered
    tracker.settle(tracker.snapshot())
    assert not tracker.covers(path)


def test_covering_follows_what_everybody_marks(tracker: DirtyTracker, cache: Path) -> None:
    assert not tracker.covers("a")
    open_tracker(cache).mark("a")
    assert tracker.covers("a")
    OldClient(cache).mark("b")
    assert tracker.covers("b")
    assert not tracker.covers("c")
    OldClient(cache).mark()
    assert tracker.covers("c")


# Damage and trouble -------------------------------------------------------------------------


def test_a_journal_cut_anywhere_means_a_walk_and_keeps_what_is_left(
    tracker: DirtyTracker, cache: Path
) -> None:
    for name in ("a", "b", "ccc"):
        tracker.mark(name)
    whole = (cache / JOURNAL).read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole)):
        write_sidecar(cache)
        (cache / JOURNAL).write_bytes(whole[:size])
        paths, bulk = seen(cache)
        assert bulk is (size not in ends)
        assert paths == set(["a", "b", "ccc"][: max(sum(size >= end for end in ends) - 1, 0)])
        open_tracker(cache).mark("new")
        assert seen(cache) == ({*paths, "new"}, bulk)


@pytest.mark.parametrize("at", [0, 5, 12, 40, -1])
def test_a_damaged_byte_means_a_walk_and_keeps_the_other_marks(
    at: int, tracker: DirtyTracker, cache: Path
) -> None:
    for number in range(10):
        tracker.mark(f"{number}")
    data = bytearray((cache / JOURNAL).read_bytes())
    data[at] ^= 1
    (cache / JOURNAL).write_bytes(data)
    paths, bulk = seen(cache)
    assert bulk
    assert len(paths) >= 9
    other = open_tracker(cache)
    other.mark("again")
    assert seen(cache) == ({*paths, "again"}, True)
    other.settle(other.snapshot())
    assert seen(cache) == (set(), True), "only a walk finds what was lost"
    other.settle(other.snapshot(), walked=True)
    assert seen(cache) == (set(), False)


@pytest.mark.parametrize(
    "junk",
    [b"", b"\0" * 500, b"\n" * 50, b"x" * 100_000, b'00000000 "a"\n', b"7f7f7f7f " + b"[" * 5000],
    ids=lambda junk: repr(junk)[:20],
)
def test_a_journal_of_junk_means_a_walk(junk: bytes, tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("a")
    (cache / JOURNAL).write_bytes(junk)
    assert seen(cache) == ({"a"}, True)
    tracker.mark("b")
    tracker.settle(tracker.snapshot(), walked=True)
    assert seen(cache) == (set(), False)


def test_a_record_of_a_kind_that_is_not_known_means_a_walk(
    tracker: DirtyTracker, cache: Path
) -> None:
    import zlib

    tracker.mark("a")
    for text in (b'["future", "x"]', b"7", b"[1]", b"[]", b'["push"]'):
        with (cache / JOURNAL).open("ab") as journal:
            journal.write(b"%08x %b\n" % (zlib.crc32(text), text))
        assert seen(cache) == ({"a"}, True)
        tracker.settle(tracker.snapshot(), [], walked=True)
        assert seen(cache) == ({"a"}, False)


@pytest.mark.parametrize("mark", [None, "data/new"])
def test_a_journal_that_was_removed_means_a_walk_if_the_sidecar_relied_on_it(
    mark: str | None, tracker: DirtyTracker, cache: Path
) -> None:
    for number in range(201):
        tracker.mark(f"{number}")
    (cache / JOURNAL).unlink()
    if mark:
        open_tracker(cache).mark(mark)
    assert seen(cache) == ({*map(str, range(200)), *filter(None, [mark])}, True)
    snapshot = tracker.snapshot()
    assert snapshot.bulk
    tracker.settle(snapshot)
    assert seen(cache) == (set(), True)


def test_a_push_of_some_paths_keeps_the_others_that_only_the_sidecar_has_left(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.mark("a")
    tracker.mark("b")
    (cache / JOURNAL).unlink()
    tracker.settle(tracker.snapshot(), ["a"])
    assert seen(cache) == ({"b"}, False)


def test_what_only_the_sidecar_has_left_stays_a_removal_when_it_is_written_again(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.mark("a")
    (cache / JOURNAL).unlink()
    assert tracker.peek().removals == {"a"}
    tracker.mark_written("a")
    assert tracker.peek().removals == {"a"}
    assert open_tracker(cache).peek().removals == {"a"}


def test_what_only_the_sidecar_has_left_is_no_removal_if_nothing_was_removed(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.mark_written("a")
    tracker.mark_written("b")
    tracker.mark("b")
    tracker.mark("c")
    tracker.mark_written("c")
    (cache / JOURNAL).unlink()
    assert tracker.peek().removals == {"b", "c"}
    open_tracker(cache).mark_written("d")
    assert open_tracker(cache).peek().removals == {"b", "c"}
    assert set(open_tracker(cache).peek().paths) == {"a", "b", "c", "d"}


def test_everything_can_be_marked_after_the_journal_was_removed(cache: Path) -> None:
    tracker = DirtyTracker(str(cache))
    for number in range(201):
        open_tracker(cache).mark(f"{number}")
    (cache / JOURNAL).unlink()
    tracker.mark()
    assert seen(cache)[1]
    assert (cache / JOURNAL).exists()


def test_a_journal_replaced_behind_our_back_is_read_from_its_start(
    tracker: DirtyTracker, cache: Path
) -> None:
    """Inode numbers are used again at once, and sizes are the same by chance."""
    tracker.mark("a")
    other = open_tracker(cache)
    for _ in range(4):
        other.settle(other.snapshot())
        other.mark("b")
    tracker.mark("a")
    assert seen(cache) == ({"a", "b"}, False)


def test_a_cache_removed_under_a_tracker_starts_anew(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark("a")
    shutil.rmtree(cache)
    tracker.mark("a")
    assert seen(cache) == ({"a"}, True)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fill the disk: from the call on, only a few bytes of anything can be written."""
    write = os.write

    def write_little(fd: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[: len(data) // 2])

    return lambda: monkeypatch.setattr(os, "write", write_little)


def test_a_mark_that_cannot_be_written_is_an_error_and_leaves_no_damage(
    tracker: DirtyTracker, cache: Path, full_disk: Callable[[], None]
) -> None:
    tracker.mark("a")
    full_disk()
    with pytest.raises(DiskError, match="disk is full") as told:
        tracker.mark("b")
    assert str(cache) in str(told.value)
    assert tracker.peek() == Snapshot(("a",), removals=frozenset({"a"}))
    assert seen(cache) == ({"a"}, False)


def test_what_is_only_written_is_no_removal(tracker: DirtyTracker, cache: Path) -> None:
    tracker.mark_written("data/t/m/state")
    tracker.mark("data/t/m/other")
    for one in (tracker, DirtyTracker(str(cache), durable=False)):
        assert set(one.peek().paths) == {"data/t/m/state", "data/t/m/other"}
        assert one.peek().removals == {"data/t/m/other"}


def test_a_removal_counts_until_it_is_pushed_however_often_its_path_is_written(
    tracker: DirtyTracker,
) -> None:
    tracker.mark_written("a")
    tracker.mark("a")
    tracker.mark_written("a")
    assert tracker.peek().removals == {"a"}
    snapshot = tracker.snapshot()
    tracker.mark_written("a")
    assert tracker.peek().removals == {"a"}
    tracker.settle(snapshot)
    assert tracker.peek() == Snapshot(("a",))
    tracker.settle(tracker.snapshot())
    assert tracker.peek().is_empty


def test_a_removal_after_the_push_began_is_left_to_the_next_one(tracker: DirtyTracker) -> None:
    tracker.mark_written("a")
    snapshot = tracker.snapshot()
    tracker.mark("a")
    tracker.settle(snapshot)
    assert tracker.peek().removals == {"a"}


def test_a_path_that_another_client_lists_may_mean_a_removal(
    tracker: DirtyTracker, cache: Path
) -> None:
    tracker.mark_written("ours")
    sidecar = cache / ".datastore-sync-state.json"
    state = json.loads(sidecar.read_text())
    del state["swampstoreChain"]
    state["dirtyPaths"].append("theirs")
    sidecar.write_text(json.dumps(state))
    assert tracker.peek().removals == {"theirs"}
    assert tracker.snapshot().removals == {"theirs"}


def test_h53_a_full_disk_does_not_fail_a_sync_that_is_through(
    tracker: DirtyTracker,
    cache: Path,
    full_disk: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker.mark("a")
    snapshot = tracker.snapshot()
    full_disk()
    with caplog.at_level(logging.WARNING, "swampstore"):
        tracker.settle(snapshot, walked=True)
        tracker.verified(fingerprint="f", commit_seq=1, lazy=False, at="now")
    assert [str(cache) in record.getMessage() for record in caplog.records] == [True, True]
    assert seen(cache) == ({"a"}, False)
    assert not [path for path in cache.iterdir() if path.suffix == ".tmp"]


def test_h53_a_push_from_a_full_disk_knows_what_to_push_and_settles_nothing(
    tracker: DirtyTracker,
    cache: Path,
    full_disk: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker.mark("a")
    full_disk()
    snapshot = tracker.snapshot()
    assert snapshot.paths == ("a",)
    assert "will look at the same paths again" in caplog.text
    tracker.settle(snapshot)
    assert seen(cache) == ({"a"}, False)


@pytest.mark.parametrize("name", [LOCK, JOURNAL, SIDECAR])
def test_something_in_the_way_is_named(name: str, tracker: DirtyTracker, cache: Path) -> None:
    (cache / name).unlink(missing_ok=True)
    (cache / name).mkdir()
    with pytest.raises(DiskError, match=name):
        tracker.mark("a")
    assert tracker.peek().bulk is (name != LOCK)


def test_a_file_where_the_cache_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("x")
    with pytest.raises(DiskError, match=str(tmp_path / "cache")):
        open_tracker(tmp_path / "cache").mark("a")
    assert open_tracker(tmp_path / "cache").snapshot() == Snapshot(bulk=True)


@pytest.fixture
def held(cache: Path) -> Iterator[None]:
    import fcntl

    fd = os.open(cache / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


@pytest.mark.usefixtures("held")
def test_a_process_that_hangs_is_reported_and_not_waited_for_for_ever(
    tracker: DirtyTracker, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirty, "_TIMEOUT", 0.01)
    with pytest.raises(LockTimeoutError, match=str(cache)):
        tracker.mark("a")


@pytest.mark.usefixtures("held")
def test_a_process_that_hangs_lets_a_sync_end_that_is_through(
    tracker: DirtyTracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dirty, "_TIMEOUT", 0.01)
    begun = Snapshot(("a",), push="1")
    with caplog.at_level(logging.WARNING):
        tracker.let_others_mark(begun, ["a"])
        tracker.settle(begun)
        tracker.verified(fingerprint="etag", commit_seq=1, lazy=False, at="2026-06-01T10:00:00Z")
    assert [one.getMessage().rpartition("; ")[2] for one in caplog.records] == [
        "what others change meanwhile may wait for `sync --full`",
        "what was pushed stays marked",
        "the next sync will compare everything again",
    ]


@pytest.mark.usefixtures("held")
def test_nothing_may_become_absent_before_other_clients_could_be_told(
    tracker: DirtyTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dirty, "_TIMEOUT", 0.01)
    with pytest.raises(LockTimeoutError):
        tracker.announce_absences(at="2026-06-01T10:00:00Z")


@pytest.mark.slow
def test_a_kill_before_any_system_call_loses_no_mark() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.killing_marks", scratch],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


# Any order of anything ----------------------------------------------------------------------

PATHS = ["a", "b", "a/b", "c"]
marked = st.lists(st.sampled_from([*PATHS, EVERYTHING]), max_size=5)


@given(marked, marked, marked, marked, st.sets(st.sampled_from(PATHS)))
def test_rewriting_a_journal_changes_nothing_of_what_it_says(
    first: list[Record],
    second: list[Record],
    third: list[Record],
    last: list[Record],
    done: set[str],
) -> None:
    marks = Marks([*first, ("push", "1"), *second, ("push", "2"), *third])
    rewritten = Marks(marks.records())
    for record in last:
        marks.add(record)
        rewritten.add(record)
    assert marks.records() == rewritten.records()
    assert marks.latest_push() == rewritten.latest_push()
    assert [*map(marks.is_fresh, PATHS)] == [*map(rewritten.is_fresh, PATHS)]
    assert rewritten.waste <= marks.waste
    for push in ("1", "2"):
        for everything in (False, True):
            left = marks.settled(push, done, everything=everything)
            assert left == rewritten.settled(push, done, everything=everything)


class SharedCache(RuleBasedStateMachine):
    """Several trackers and processes of another client on one cache, in any order.

    What is owed is kept with the time since when: by our marks, and by what the other client
    wrote down last. Only a push that began later pays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = Path(tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None))
        self.trackers = [open_tracker(self.cache) for _ in range(3)]
        self.clients = [OldClient(self.cache) for _ in range(2)]
        self.pushes: list[tuple[int, Snapshot]] = []
        self.now = 0
        self.ours: dict[str, int] = {}
        self.theirs: dict[str, int] = {}
        self.has_client_written = False

    def teardown(self) -> None:
        tracker = open_tracker(self.cache)
        tracker.settle(tracker.snapshot(), walked=True)
        assert seen(self.cache) == (set(), False), "a full push settles everything"
        shutil.rmtree(self.cache)

    @initialize(is_clean=st.booleans())
    def start(self, is_clean: bool) -> None:
        if is_clean:
            write_sidecar(self.cache)
        else:
            self.theirs[""] = 0

    @rule(which=st.integers(0, 2), path=st.sampled_from(["", *PATHS]))
    def mark(self, which: int, path: str) -> None:
        self.now += 1
        self.trackers[which].mark(path)
        self.ours[path] = self.now
        said = sidecar(self.cache)
        assert said["localDirty"]
        assert said["bulkInvalidated"] or path in said["dirtyPaths"]

    @rule(which=st.integers(0, 2))
    def die(self, which: int) -> None:
        self.trackers[which] = open_tracker(self.cache)

    @rule(which=st.integers(0, 2))
    def begin_push(self, which: int) -> None:
        self.now += 1
        self.pushes.append((self.now, self.trackers[which].snapshot()))
        for path, since in self.theirs.items():  # now the journal has them, whatever others do
            self.ours[path] = max(since, self.ours.get(path, 0))

    @precondition(lambda self: self.pushes)
    @rule(
        which=st.integers(0, 2),
        number=st.integers(0, 9),
        walked=st.booleans(),
        paths=st.none() | st.sets(st.sampled_from(PATHS)),
    )
    def settle(self, which: int, number: int, walked: bool, paths: set[str] | None) -> None:
        began, snapshot = self.pushes[number % len(self.pushes)]
        self.trackers[which].settle(snapshot, paths, walked=walked)
        done = set(snapshot.paths) if paths is None else paths & set(snapshot.paths)
        for owed in (self.ours, self.theirs):
            for path, since in [*owed.items()]:
                if since < began and (path in done or (walked and not path)):
                    del owed[path]
        said = sidecar(self.cache)
        if not said["localDirty"] and "swampstoreChain" in said:
            assert not said["dirtyPaths"]
            assert not said["bulkInvalidated"]

    @rule(which=st.integers(0, 2))
    def verify(self, which: int) -> None:
        self.trackers[which].verified(fingerprint="f", commit_seq=1, lazy=True, at="now")

    @rule(which=st.integers(0, 1), path=st.sampled_from(["", *PATHS]))
    def client_marks(self, which: int, path: str) -> None:
        if self.clients[which].mark(path):
            self._client_wrote(which)

    @rule(which=st.integers(0, 1), is_lazy=st.booleans())
    def client_syncs(self, which: int, is_lazy: bool) -> None:
        client = self.clients[which]
        (client.pull_lazily if is_lazy else client.push)()
        self._client_wrote(which)

    @rule(which=st.integers(0, 1))
    def client_starts(self, which: int) -> None:
        self.clients[which] = OldClient(self.cache)

    def _client_wrote(self, which: int) -> None:
        """What it wrote is all there is of others: it erases what it does not know."""
        self.now += 1
        client = self.clients[which]
        self.has_client_written = True
        self.theirs = dict.fromkeys(client.paths, self.now)
        if client.bulk:
            self.theirs[""] = self.now

    @invariant()
    def everybody_knows_what_is_owed(self) -> None:
        owed = self.ours.keys() | self.theirs.keys()
        paths, bulk = seen(self.cache)
        assert owed - {""} <= paths
        assert bulk or "" not in owed
        for tracker in self.trackers:
            found = tracker.peek()
            assert (set(found.paths), found.bulk) == (paths, bulk)

    @invariant()
    def among_ourselves_nothing_is_looked_at_in_vain(self) -> None:
        if not self.has_client_written:
            owed = self.ours.keys() | self.theirs.keys()
            assert seen(self.cache) == (owed - {""}, "" in owed)


def test_h13_h14_no_order_of_anything_loses_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar_module, "MAX_PATHS", 3)
    monkeypatch.setattr(old_client, "LIMIT", 3)
    run_state_machine_as_test(
        SharedCache, settings=settings(max_examples=50, stateful_step_count=20, deadline=None)
    )
