"""Sessions: some models, everything, a commit; who waits for whom, and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from swampstore.clock import asleep_too
from swampstore.errors import LockTimeoutError, ValidationError
from swampstore.layout import ModelRef
from swampstore.locks.inspection import LockState, Registry, new_entry, register
from swampstore.locks.manager import LockManager, release_all
from swampstore.locks.process import VARIABLE
from swampstore.locks.record import LockLostError, gate_key, global_key, model_key, registry_prefix
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Store
from tests.support.locking import (
    KEY,
    ONE,
    TWO,
    Aside,
    MovableStore,
    eventually,
    foreign_record,
    held,
    inspect,
    is_free,
    keys_of,
    manager,
    new_lock,
    put_foreign,
    record_of,
    soon,
)
from tests.support.remotes import ProxiedRemote, Remote

GATE, GLOBAL = gate_key(""), global_key("")
SESSIONS = registry_prefix("")
THREE = ModelRef("aws/ec2", "i-3")


@pytest.fixture(params=["memory", "directory", "s3", "freeing"])
def place(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.getfixturevalue(f"{request.param}_remote")
    return found


@pytest.fixture
def store(place: Remote) -> Iterator[MovableStore]:
    with MovableStore(place.open()) as store:
        yield store


@pytest.fixture
def memory(memory_remote: Remote) -> MovableStore:
    return MovableStore(memory_remote.open())


class Elsewhere:
    """Another client, at work in a thread of its own until it is told to stop."""

    def __init__(self, store: Store, *models: ModelRef, **options: float) -> None:
        self._locks = manager(store, **options)
        self._models = models
        self._may_end = threading.Event()
        self.is_inside = threading.Event()
        self.aside = Aside(self._work)

    def _work(self) -> None:
        wanted = self._locks.models(self._models) if self._models else self._locks.everything()
        with wanted:
            self.is_inside.set()
            assert self._may_end.wait(60)
            with self._locks.committing() as verify:
                verify()

    def end(self) -> None:
        self._may_end.set()
        self.aside.wait()


@contextlib.contextmanager
def elsewhere(store: Store, *models: ModelRef) -> Iterator[Elsewhere]:
    """Let another client work on some models, or on everything, while a block runs."""
    other = Elsewhere(store, *models)
    assert other.is_inside.wait(30)
    try:
        yield other
    finally:
        other.end()


def asked_of(remote: ProxiedRemote) -> list[tuple[str, str]]:
    """Return the requests so far, without the names of entries."""
    return [
        (request.kind, SESSIONS if request.key.startswith(SESSIONS) else request.key)
        for request in remote.proxy.requests
    ]


def enter(store: Store, *models: ModelRef) -> str:
    """Write the entry of another client's session; return its key."""
    entry = new_entry("")
    register(store, entry, models, foreign_record())
    return entry


def locked(
    store: Store, namespace: str = "", *, walk: bool = False
) -> list[tuple[ModelRef, LockState]]:
    """Return the locks that are told of."""
    found = Registry(store, namespace, ttl=30.0, walk=walk).registered()
    return [(model, state) for model, state in found if not state.is_free]


# Models


def test_a_session_locks_its_models_and_leaves_nothing_behind(store: MovableStore) -> None:
    locks = manager(store)
    with locks.models([TWO, ONE, TWO]):
        assert locks.held == [model_key("", ONE), model_key("", TWO)]
        assert all(not is_free(store, key) for key in locks.held)
        assert [model for model, _ in locked(store)] == [ONE, TWO]
        locks.check()
        locks.verify()
    assert locks.held == []
    assert keys_of(store) == []


def test_a_session_in_a_namespace_does_not_meet_others(store: MovableStore) -> None:
    ours, theirs = manager(store, namespace="infra"), manager(store)
    with theirs.everything(), ours.models([ONE]):
        assert not is_free(store, "infra/data/aws/ec2/i-1/.lock")
        with ours.committing():
            assert not is_free(store, ".locks/infra.lock")
    with ours.everything(), theirs.models([ONE]):
        assert not is_free(store, "infra/_control/locks/gate.lock")


def test_sessions_of_different_models_run_at_once(store: MovableStore) -> None:
    with elsewhere(store, ONE), manager(store).models([TWO]):
        pass


def test_a_session_waits_for_one_that_has_a_model_of_its_own(store: MovableStore) -> None:
    with elsewhere(store, TWO) as other:
        waiting = Elsewhere(store, ONE, TWO, THREE)
        time.sleep(0.3)
        assert not waiting.is_inside.is_set()
        other.end()
        assert waiting.is_inside.wait(30)
        waiting.end()
    assert keys_of(store) == []


def test_a_session_that_gets_not_all_its_locks_keeps_none(store: MovableStore) -> None:
    theirs = put_foreign(store, model_key("", TWO))
    locks = manager(store, timeout=0.3)
    with pytest.raises(LockTimeoutError, match="i-2"), locks.models([ONE, TWO]):
        pytest.fail("the second model is locked by somebody else")
    assert locks.held == []
    assert keys_of(store) == [model_key("", TWO)]
    assert record_of(store, model_key("", TWO)) == theirs
    with locks.models([ONE]):
        pass


def test_a_session_inside_a_session_joins_it(s3_remote: ProxiedRemote) -> None:
    locks = manager(s3_remote.open())
    with locks.models([ONE, TWO]):
        before = len(s3_remote.proxy.requests)
        with locks.models([TWO]), locks.models([]):
            assert len(locks.held) == 2
        assert len(locks.held) == 2
        assert len(s3_remote.proxy.requests) == before


def test_a_session_cannot_grow(memory: MovableStore) -> None:
    locks = manager(memory)
    with locks.models([ONE]):
        with pytest.raises(ValidationError, match="i-2") as told, locks.models([ONE, TWO]):
            pytest.fail("a session is opened once")
        assert told.value.hint == "Open one session for all of them."
        with pytest.raises(ValidationError, match="everything"), locks.everything():
            pytest.fail("that could never end")
        assert locks.held == [KEY]
        locks.verify()


def test_a_session_belongs_to_one_thread(memory: MovableStore) -> None:
    locks = manager(memory)
    with locks.models([ONE]):
        for block in (locks.models([ONE]), locks.models([TWO]), locks.everything()):
            aside = Aside(block.__enter__)
            with pytest.raises(ValidationError, match="another thread"):
                aside.wait()
        locks.verify()


def test_models_inside_everything_need_no_locks_of_their_own(store: MovableStore) -> None:
    locks = manager(store)
    with locks.everything():
        with locks.models([ONE]), locks.everything():
            assert locks.held == [GATE, GLOBAL]
        assert locks.held == [GATE, GLOBAL]
        locks.verify()
    assert keys_of(store) == []


def test_what_a_session_asks_of_the_store(s3_remote: ProxiedRemote) -> None:
    locks = manager(s3_remote.open())
    with locks.models([ONE]):
        # The entry is there before anybody is looked at, so that one of two sees the other.
        asked = asked_of(s3_remote)
        assert asked[:2] == [("PUT", KEY), ("PUT", SESSIONS)]
        assert sorted(asked[2:]) == sorted([("GET", GATE), ("GET", GLOBAL)])
        read = asleep_too()
        with locks.committing() as verify:
            # Both locks were written since the index was read: there is nothing left to prove.
            verify(read)
            assert s3_remote.proxy.counts() == {"PUT": 4, "GET": 2}
    assert s3_remote.proxy.counts() == {"PUT": 4, "GET": 2, "DELETE": 3}
    assert list(s3_remote.open().list()) == []


# Everything


def test_what_everything_asks_of_the_store(s3_remote: ProxiedRemote) -> None:
    with manager(s3_remote.open()).everything():
        assert asked_of(s3_remote) == [
            ("PUT", GATE),
            ("LIST", SESSIONS),
            ("PUT", GLOBAL),
            ("LIST", "data/"),
        ]


@pytest.mark.slow
def test_everything_waits_for_those_at_work_who_can_still_commit(store: MovableStore) -> None:
    with elsewhere(store, ONE) as other:
        structural = Elsewhere(store)
        eventually(lambda: not is_free(store, GATE))
        late = Elsewhere(store, TWO)
        time.sleep(0.5)
        assert not structural.is_inside.is_set()
        assert not late.is_inside.is_set()
        other.end()
        assert structural.is_inside.wait(30)
        assert not late.is_inside.is_set()
        structural.end()
        assert late.is_inside.wait(30)
        late.end()
    assert keys_of(store) == []


@pytest.mark.slow
def test_sessions_that_come_again_and_again_do_not_keep_everything_waiting(
    store: MovableStore,
) -> None:
    is_over = threading.Event()
    inside: list[int] = []

    def come_and_go() -> None:
        locks = manager(store)
        while not is_over.is_set():
            with locks.models([ONE]):
                inside.append(1)
                time.sleep(0.02)
                inside.pop()

    asides = [Aside(come_and_go) for _ in range(3)]
    try:
        with manager(store).everything():
            assert not inside
            # Who comes now takes its lock, sees ours, and steps back.
            eventually(lambda: all(state.is_stale for _, state in locked(store)))
            assert not inside
    finally:
        is_over.set()
    for aside in asides:
        aside.wait()
    assert keys_of(store) == []


def test_two_who_want_everything_take_turns(store: MovableStore) -> None:
    inside: list[int] = []

    def work() -> None:
        locks = manager(store)
        for _ in range(2):
            with locks.everything():
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    for aside in [Aside(work) for _ in range(3)]:
        aside.wait()


def test_the_hook_is_entered_between_the_drain_and_the_global_lock(memory: MovableStore) -> None:
    locks = manager(memory)
    seen: list[tuple[str, bool, bool]] = []

    @contextlib.contextmanager
    def hook() -> Iterator[None]:
        seen.append(("enter", is_free(memory, GATE), is_free(memory, GLOBAL)))
        yield
        seen.append(("leave", is_free(memory, GATE), is_free(memory, GLOBAL)))

    locks.before_global = hook
    with locks.everything():
        pass
    assert seen == [("enter", False, True), ("leave", False, True)]


def test_everything_that_times_out_names_who_is_at_work_and_lets_go(store: MovableStore) -> None:
    with held(store, KEY):
        enter(store, ONE)
        locks = manager(store, timeout=0.3)
        with pytest.raises(LockTimeoutError, match="i-1") as told, locks.everything():
            pytest.fail("somebody is at work")
        assert f"pid {os.getpid()}" in told.value.message
        assert is_free(store, GATE)
        assert is_free(store, GLOBAL)


def test_a_global_lock_that_is_held_for_a_commit_stops_nobody(store: MovableStore) -> None:
    with manager(store).committing(), manager(store, timeout=0.5).models([ONE]):
        pass


@pytest.mark.slow
def test_a_session_waits_for_an_older_client_that_holds_the_global_lock(
    store: MovableStore,
) -> None:
    theirs = put_foreign(store, GLOBAL)
    locks = manager(store, timeout=0.4)
    with pytest.raises(LockTimeoutError, match="bob@elsewhere"), locks.models([ONE]):
        pytest.fail("everything is locked")
    assert keys_of(store) == [GLOBAL]
    assert record_of(store, GLOBAL) == theirs
    waiting = Elsewhere(store, ONE)
    time.sleep(0.3)
    assert not waiting.is_inside.is_set()
    store.delete(GLOBAL)
    assert waiting.is_inside.wait(30)
    waiting.end()


# Committing


def test_a_commit_holds_the_global_lock_as_long_as_it_lasts(store: MovableStore) -> None:
    locks = manager(store)
    with locks.committing() as verify:
        with locks.committing() as again:
            again()
        verify()
        record = record_of(store, GLOBAL)
        assert record is not None
        assert record.purpose == "commit"
    assert keys_of(store) == []


def test_what_is_done_while_the_lock_is_taken_has_ended_when_the_commit_begins(
    store: MovableStore,
) -> None:
    locks = manager(store)
    done: list[str] = []
    with locks.committing(lambda: done.append("outside")):
        assert record_of(store, GLOBAL) is not None
        with locks.committing(lambda: done.append("inside")):
            assert done == ["outside", "inside"]


def test_a_commit_that_has_to_wait_for_its_lock_works_first(store: MovableStore) -> None:
    put_foreign(store, GLOBAL)
    with manager(store).committing(lambda: store.delete(GLOBAL)) as verify:
        verify()
    assert keys_of(store) == []


def test_a_stale_lock_is_taken_over_when_what_is_done_meanwhile_has_ended(
    store: MovableStore,
) -> None:
    put_foreign(store, GLOBAL)
    store.pass_time(34)
    locks, order = manager(store), list[str]()
    locks.on_steal = lambda: order.append("fence")

    def work() -> None:
        time.sleep(0.2)
        order.append("work")

    with locks.committing(work):
        assert order == ["work", "fence"]


def test_nothing_stays_locked_if_what_is_done_meanwhile_fails(store: MovableStore) -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError), manager(store).committing(fail):  # noqa: PT011 - ours
        pytest.fail("the commit began")
    assert keys_of(store) == []


def test_a_commit_is_refused_to_whoever_has_lost_a_lock(store: MovableStore) -> None:
    locks = manager(store)
    with locks.models([ONE]):
        with locks.committing() as verify:
            verify()
            theirs = put_foreign(store)
            with pytest.raises(LockLostError, match="bob@elsewhere"):
                verify()
        with pytest.raises(LockLostError):
            locks.check()
    assert record_of(store) == theirs
    assert keys_of(store) == [KEY]


def test_whoever_takes_over_a_lock_first_makes_commits_of_its_holder_impossible(
    store: MovableStore,
) -> None:
    put_foreign(store)
    put_foreign(store, GLOBAL)
    store.pass_time(34)
    locks = manager(store)
    fences: list[str] = []
    locks.on_steal = lambda: fences.append("fence")
    with locks.models([ONE]), locks.committing() as verify:
        verify()
        # One for the lock of the model, one for the global lock, which was in the way.
        assert len(fences) == 2
    assert keys_of(store) == []


# Stale locks


@pytest.mark.parametrize("key", [GATE, GLOBAL])
def test_h46b_a_stale_lock_of_everything_stops_nobody_and_is_removed(
    store: MovableStore, key: str
) -> None:
    put_foreign(store, key)
    store.pass_time(34)
    locks = manager(store, timeout=5.0)
    with locks.models([ONE]):
        assert is_free(store, key)
    assert keys_of(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", [GATE, GLOBAL])
def test_h46b_a_lock_that_becomes_stale_is_not_waited_for(store: MovableStore, key: str) -> None:
    put_foreign(store, key)
    waiting = Elsewhere(store, ONE)
    time.sleep(0.3)
    assert not waiting.is_inside.is_set()
    store.pass_time(34)
    assert waiting.is_inside.wait(30)
    waiting.end()


def test_h46b_who_wanted_everything_and_was_passed_by_cannot_come_back(
    store: MovableStore,
) -> None:
    paused = manager(store)
    with paused.everything():
        store.pass_time(34)
        with manager(store).models([ONE]), pytest.raises(LockLostError):
            paused.verify()


def test_a_paused_session_that_everything_did_not_wait_for_cannot_come_back(
    store: MovableStore,
) -> None:
    paused = manager(store)
    fences: list[str] = []
    structural = manager(store)
    structural.on_steal = lambda: fences.append("fence")
    with paused.models([ONE]):
        store.pass_time(34)
        with structural.everything():
            assert fences == ["fence"]
            with pytest.raises(LockLostError):
                paused.verify()


def test_a_stale_lock_whose_holder_comes_back_at_the_last_moment_is_waited_for(
    memory: MovableStore,
) -> None:
    with held(memory) as lock:
        enter(memory, ONE)
        memory.pass_time(34)
        state = inspect(memory, KEY)
        lock.verify()
        memory.pass_time(-34)
        assert state is not None
        assert state.is_stale
        locks = manager(memory, timeout=0.2)
        assert not locks._break(state)
        with pytest.raises(LockTimeoutError), locks.everything():
            pytest.fail("it is at work")
        lock.verify()


# The second look


@pytest.mark.slow
def test_h46c_who_did_not_see_the_gate_is_waited_for_without_the_global_lock(
    store: MovableStore,
) -> None:
    locks = manager(store)
    entered: list[bool] = []

    @contextlib.contextmanager
    def slip_in() -> Iterator[None]:
        entered.append(True)
        if len(entered) == 1:
            put_foreign(store)
            enter(store, ONE)
        yield

    locks.before_global = slip_in
    is_inside, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with locks.everything():
            is_inside.set()
            assert may_end.wait(30)

    aside = Aside(work)
    eventually(lambda: entered == [True])
    time.sleep(0.5)
    assert not is_inside.is_set()
    eventually(lambda: is_free(store, GLOBAL))
    store.delete(KEY)
    assert is_inside.wait(30)
    assert entered == [True, True]
    may_end.set()
    aside.wait()
    assert [key for key in keys_of(store) if not key.startswith(SESSIONS)] == []


# Locks of clients that do not register


@pytest.fixture
def in_place(tmp_path: Path) -> Path:
    for rel in (
        "data/aws/ec2/i-1/state/1/raw",
        "data/aws/ec2/i-1/state/latest",
        "data/x/7/y/1/raw",
    ):
        path = tmp_path / "base" / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    return tmp_path / "base"


def lock_file(base: Path, rel: str) -> Path:
    path = base / rel / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(foreign_record().encode())
    return path


def test_in_a_directory_the_locks_of_older_clients_are_found_by_a_walk(in_place: Path) -> None:
    for rel in ("data/aws/ec2/i-1", "data/t/1", "data/t/2", "data/only/1", "data/t/2/3"):
        lock_file(in_place, rel)
    lock_file(in_place, "data/aws/ec2/i-1/state/1")  # below a data name
    lock_file(in_place, "data/t")  # no model
    lock_file(in_place, "infra/data/n/1")
    (in_place / "data/t/latest").mkdir()
    (in_place / "data/link").symlink_to(in_place / "data/t")
    with DirectoryStore(str(in_place), durable=False) as store:
        found = [str(model) for model, _ in locked(store, walk=True)]
        assert found == ["aws/ec2/i-1", "only/1", "t/1", "t/2", "t/2/3"]
        assert [str(model) for model, _ in locked(store, "infra", walk=True)] == ["n/1"]
        assert locked(store, "none", walk=True) == []
        assert locked(store) == []


def test_locks_in_a_directory_that_serves_as_a_bucket_are_found_without_a_look_into_versions(
    in_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rel in ("data/aws/ec2/i-1", "data/t/1", "data/t/2/3", "data/aws/ec2/i-1/state/new"):
        lock_file(in_place, rel)
    lock_file(in_place, "data/aws/ec2/i-1/state")  # a data name, and a model
    looked_into: list[str] = []
    scandir = os.scandir

    def scanned(path: Any) -> Any:
        if isinstance(path, str):  # and no descriptor of the store's own
            looked_into.append(os.path.relpath(path, in_place))
        return scandir(path)

    with DirectoryStore(str(in_place), durable=False) as store:
        monkeypatch.setattr("swampstore.locks.inspection.os.scandir", scanned)
        found = Registry(store, "", ttl=30.0, walk=False).everywhere()
    names = ["aws/ec2/i-1", "aws/ec2/i-1/state", "aws/ec2/i-1/state/new", "t/1", "t/2/3"]
    assert [str(model) for model, _ in found] == names
    assert "data/aws/ec2/i-1/state" in looked_into
    assert "data/aws/ec2/i-1/state/1" not in looked_into


def test_everything_in_a_directory_waits_for_older_clients(in_place: Path) -> None:
    path = lock_file(in_place, "data/aws/ec2/i-1")
    with DirectoryStore(str(in_place), durable=False) as store:
        structural = Elsewhere(store, timeout=30.0, walk=True)
        time.sleep(0.4)
        assert not structural.is_inside.is_set()
        path.unlink()
        assert structural.is_inside.wait(30)
        structural.end()


def test_a_lock_in_a_directory_is_where_older_clients_look_for_it(in_place: Path) -> None:
    with DirectoryStore(str(in_place), durable=False) as store:
        locks = manager(store, walk=True)
        with locks.models([ONE]), locks.committing():
            record = json.loads((in_place / "data/aws/ec2/i-1/.lock").read_bytes())
            assert record["pid"] == os.getpid()
            assert (in_place / ".datastore.lock").is_file()
        assert not (in_place / "data/aws/ec2/i-1/.lock").exists()
        assert (in_place / "data/aws/ec2/i-1/state/1/raw").exists()


# The registry


def test_entries_of_sessions_that_died_are_removed_after_a_while(store: MovableStore) -> None:
    enter(store, ONE)
    store.put(f"{SESSIONS}garbage.json", b"{")
    kept = enter(store, ONE, TWO)
    put_foreign(store, model_key("", TWO))
    store.pass_time(590)
    locked(store)
    assert len([key for key in keys_of(store) if key.startswith(SESSIONS)]) == 3
    store.pass_time(15)
    [(model, state)] = locked(store)
    assert (model, state.is_stale) == (TWO, True)
    assert [key for key in keys_of(store) if key.startswith(SESSIONS)] == [kept]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"models": [1]}', b'{"models": ["../x"]}'])
def test_an_entry_that_cannot_be_read_says_nothing(memory: MovableStore, content: bytes) -> None:
    memory.put(f"{SESSIONS}x.json", content)
    assert locked(memory) == []


# Failures and the end


def test_a_session_that_cannot_begin_leaves_nothing(store: MovableStore) -> None:
    for requests in range(8):
        locks = manager(store)
        store.fail_after(requests, is_done=True, kills=False)
        with contextlib.suppress(StoreUnreachableError), locks.models([ONE]):
            store.mend()
        store.mend()
        assert locks.held == []
        assert keys_of(store) == []


def test_an_interruption_while_waiting_leaves_nothing(memory: MovableStore) -> None:
    put_foreign(memory, model_key("", TWO))
    locks = manager(memory)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt), locks.models([ONE, TWO]):
            pytest.fail("the second is locked")
    assert keys_of(memory) == [model_key("", TWO)]


def test_locks_are_given_back_if_the_work_fails(store: MovableStore) -> None:
    locks = manager(store)
    with pytest.raises(RuntimeError), locks.models([ONE]), locks.committing():
        raise RuntimeError
    with pytest.raises(RuntimeError), locks.everything():
        raise RuntimeError
    assert keys_of(store) == []


def test_what_is_held_at_the_end_of_the_process_is_given_back(store: MovableStore) -> None:
    locks = manager(store)
    block = locks.models([ONE])
    block.__enter__()
    assert not is_free(store)
    release_all()
    assert keys_of(store) == []
    block.__exit__(None, None, None)


AT_EXIT = """
import sys
from swampstore.layout import ModelRef
from swampstore.locks.manager import LockManager
from swampstore.stores.directory import DirectoryStore
locks = LockManager(DirectoryStore(sys.argv[1], durable=False), "", timeout=60.0, ttl=30.0)
block = locks.models([ModelRef("aws/ec2", "i-1")])
block.__enter__()
print(locks.held)
sys.exit(3)
"""


def test_a_process_that_exits_in_the_middle_gives_its_locks_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, f"{[KEY]}\n"), done.stderr
    with DirectoryStore(str(tmp_path), durable=False) as store:
        assert keys_of(store) == []


def test_a_forked_child_does_not_give_back_what_its_parent_holds(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), durable=False)
    locks = manager(store)
    with locks.models([ONE]):
        before = keys_of(store)
        child = os.fork()
        if child == 0:
            locks.release()
            os._exit(0 if locks.held == [] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert keys_of(store) == before
        locks.verify()


def test_a_forked_child_may_leave_the_blocks_that_its_parent_entered(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), durable=False)
    locks = manager(store)
    child = -1
    with contextlib.ExitStack() as stack:
        stack.enter_context(locks.models([ONE]))
        stack.enter_context(locks.committing())
        before = keys_of(store)
        child = os.fork()
        if child == 0:
            try:
                stack.close()
                with locks.models([TWO]):
                    os._exit(0 if locks.held == [model_key("", TWO)] else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        left = [key for key in keys_of(store) if not key.startswith(SESSIONS)]
        assert left == [key for key in before if not key.startswith(SESSIONS)] + [
            model_key("", TWO)
        ]
        locks.verify()


# Parents and children


def test_h46d_a_process_says_that_it_holds_locks(memory: MovableStore) -> None:
    environ: dict[str, str] = {"HOME": "/"}
    locks = manager(memory, environ=environ)
    with locks.models([ONE]):
        assert environ[VARIABLE] == str(os.getpid())
        with locks.models([ONE]), locks.committing():
            pass
        assert environ[VARIABLE] == str(os.getpid())
    assert environ == {"HOME": "/"}


CHILD = """
import sys
from swampstore.layout import ModelRef
from swampstore.locks.manager import LockManager
from swampstore.stores.directory import DirectoryStore
path, what, timeout, commits = sys.argv[1:]
locks = LockManager(DirectoryStore(path, durable=False), "", timeout=float(timeout), ttl=30.0)
block = locks.everything() if what == "everything" else locks.models([ModelRef.parse(what)])
with block:
    locks.check()
    if commits == "True":
        with locks.committing() as verify:
            verify()
    print("inside", len(locks.held))
"""


def run_child(
    path: Path, what: str, parent: int | None, *, timeout: float = 10.0, commits: bool = True
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(path), what, str(timeout), str(commits)],
        env=environ | ({} if parent is None else {VARIABLE: str(parent)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["aws/ec2/i-1", "aws/ec2/i-2", "everything"])
@pytest.mark.parametrize("ours", ["model", "everything", "global"])
def test_h46d_a_child_works_inside_the_locks_of_its_parent(
    tmp_path: Path, ours: str, what: str
) -> None:
    with DirectoryStore(str(tmp_path), durable=False) as store:
        locks = manager(store)
        blocks = {
            "model": locks.models([ONE]),
            "everything": locks.everything(),
            "global": locks.committing(),
        }
        with blocks[ours]:
            before = locks.held
            done = run_child(tmp_path, what, os.getpid())
            assert "inside" in done.stdout, done.stderr
            assert locks.held == before
            locks.verify()
        assert keys_of(store) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", [GATE, GLOBAL])
def test_h46d_a_child_goes_on_though_somebody_waits_for_its_parent(
    tmp_path: Path, key: str
) -> None:
    with DirectoryStore(str(tmp_path), durable=False) as store:
        with manager(store).models([ONE]):
            put_foreign(store, key)
            for what in ("aws/ec2/i-1", "aws/ec2/i-2"):
                done = run_child(tmp_path, what, os.getpid(), commits=False)
                assert "inside" in done.stdout, done.stderr
        # Now that the parent is done, nobody waits for it any more.
        done = run_child(tmp_path, "aws/ec2/i-2", os.getpid(), timeout=0.3)
        assert "LockTimeoutError" in done.stderr


def test_h46d_somebody_elses_child_waits(tmp_path: Path) -> None:
    with DirectoryStore(str(tmp_path), durable=False) as store, manager(store).models([ONE]):
        for parent in (None, 1):
            done = run_child(tmp_path, "aws/ec2/i-1", parent, timeout=0.3)
            assert "LockTimeoutError" in done.stderr


def test_h46d_a_borrowed_lock_that_the_parent_gave_back_is_lost(memory: MovableStore) -> None:
    parent = os.getppid()
    record = put_foreign(memory, pid=parent, hostname=os.uname().nodename)
    locks = manager(memory, environ={VARIABLE: str(parent)})
    with locks.models([ONE]):
        locks.verify()
        assert record_of(memory) == record
        memory.delete(KEY)
        with pytest.raises(LockLostError):
            locks.verify()


def test_h46d_who_only_borrows_leaves_the_variable_to_the_lender(memory: MovableStore) -> None:
    parent = os.getppid()
    put_foreign(memory, pid=parent, hostname=os.uname().nodename)
    environ = {VARIABLE: str(parent)}
    with manager(memory, environ=environ).models([ONE]):
        assert environ == {VARIABLE: str(parent)}
    with manager(memory, environ=environ).models([TWO]):
        assert environ == {VARIABLE: str(os.getpid())}
    assert environ == {VARIABLE: str(parent)}


def test_two_managers_of_one_process_do_not_borrow_from_each_other(memory: MovableStore) -> None:
    environ: dict[str, str] = {}
    first = LockManager(memory, "", environ=environ, timeout=60.0, ttl=30.0)
    second = LockManager(memory, "", environ=environ, timeout=0.2, ttl=30.0)
    with (
        first.models([ONE]),
        pytest.raises(LockTimeoutError, match=f"pid {os.getpid()}"),
        second.models([ONE]),
    ):
        pytest.fail("it is locked")


def test_times_in_the_registry_are_those_of_everything_else(memory: MovableStore) -> None:
    with manager(memory).models([ONE]):
        [entry] = [json.loads(memory.get(info.key).data) for info in memory.list(SESSIONS)]
    assert entry["models"] == ["aws/ec2/i-1"]
    assert (entry["pid"], entry["hostname"]) == (os.getpid(), os.uname().nodename)
    assert abs((datetime.fromisoformat(entry["at"]) - datetime.now(UTC)).total_seconds()) < 60


def test_a_heartbeat_keeps_all_locks_of_a_session_fresh(store: MovableStore) -> None:
    with manager(store, ttl=0.9).models([ONE, TWO]):
        first = {key: store.get(key).info.token for key in (KEY, model_key("", TWO))}
        eventually(lambda: all(store.get(key).info.token != first[key] for key in first))


def test_a_single_lock_of_a_session_can_be_lost_while_others_are_kept(
    store: MovableStore,
) -> None:
    locks = manager(store)
    with locks.models([ONE, TWO]):
        put_foreign(store)
        with pytest.raises(LockLostError, match="i-1"):
            locks.verify()
        other = new_lock(store, model_key("", TWO))
        with pytest.raises(LockTimeoutError):
            other.acquire(soon(0.1))
    assert is_free(store, model_key("", TWO))
    assert not is_free(store)


@pytest.mark.parametrize("error", [StoreUnreachableError("no answer"), KeyboardInterrupt()])
def test_a_commit_whose_outcome_is_unknown_leaves_locks_that_have_to_be_taken_over(
    store: MovableStore, error: BaseException
) -> None:
    def fail() -> None:
        raise StoreUnreachableError("no answer", hint="")

    fences: list[bool] = []
    here, there = manager(store), manager(store)
    here.on_steal, there.on_steal = fail, lambda: fences.append(True)
    with pytest.raises(type(error)), here.models([ONE]), here.committing():
        raise error
    assert not is_free(store)
    assert not is_free(store, GLOBAL)
    assert locked(store) != []
    with there.models([ONE]), there.committing():
        assert len(fences) == 2


def test_an_interrupted_commit_sees_to_it_that_it_comes_too_late_and_gives_its_locks_back(
    store: MovableStore,
) -> None:
    held_at_fences: list[list[str]] = []
    locks = manager(store)
    locks.on_steal = lambda: held_at_fences.append(locks.held)
    with pytest.raises(KeyboardInterrupt), locks.models([ONE]), locks.committing():
        raise KeyboardInterrupt
    assert held_at_fences == [[KEY, GLOBAL]]
    assert keys_of(store) == []


def test_a_commit_that_surely_failed_gives_its_locks_back(store: MovableStore) -> None:
    locks = manager(store)
    with pytest.raises(ValueError), locks.models([ONE]), locks.committing():  # noqa: PT011 - ours
        raise ValueError
    assert keys_of(store) == []
