"""Locks in a bucket that other clients use: what they see of ours, what we see of theirs."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from swampstore.errors import EXIT_LOCK_TIMEOUT
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.layout import ModelRef
from swampstore.locks import lock as lock_module
from swampstore.locks.inspection import Deletions, ProvenStore
from swampstore.locks.lock import StoreLock
from swampstore.locks.manager import LockManager, release_all
from swampstore.locks.process import new_record
from swampstore.locks.record import LockLostError, gate_key, global_key, model_key
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Store
from tests.support.fault_proxy import Request
from tests.support.http_server import Answer
from tests.support.locking import (
    KEY,
    ONE,
    TWO,
    Aside,
    MovableStore,
    eventually,
    held,
    manager,
    record_of,
)
from tests.support.machines import Machine
from tests.support.old_client import OldLock
from tests.support.remotes import ProxiedRemote, Remote

GATE, GLOBAL = gate_key(""), global_key("")
MODEL = str(ONE)
PROBE = "_control/probe/"


class ServedStore(MemoryStore):
    """A store that is a server's: what it claims has to be proved."""

    capabilities = MemoryStore.capabilities._replace(own_conditions=False)


class CarelessStore(ServedStore):
    """A server that takes the condition of a deletion and ignores it."""

    def delete_if_match(self, key: str, token: str) -> None:
        del token
        self.delete(key)


@dataclass
class Notes:
    """Facts that a machine remembers."""

    facts: dict[str, str] = field(default_factory=dict)

    def of(self, store: Store) -> Deletions:
        return Deletions(store, self.facts.get, self.facts.update)


@pytest.fixture(params=["memory", "directory", "s3", "gcs"])
def place(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.getfixturevalue(f"{request.param}_remote")
    return found


@pytest.fixture
def store(place: Remote) -> Iterator[Store]:
    with place.open() as store:
        yield store


def lock_keys(store: Store) -> list[str]:
    return sorted(info.key for info in store.list() if info.key.endswith(".lock"))


def leave_free(store: Store, key: str) -> None:
    """Leave what an earlier version of us left of a lock that it gave back."""
    store.put(key, new_record(30.0).freed().encode())


# What others see of ours -------------------------------------------------------------------------


def test_a_lock_that_was_given_back_leaves_nothing_that_others_could_take_for_stale(
    store: Store,
) -> None:
    ours = LockManager(store, "", timeout=60.0, ttl=30.0, environ={})
    theirs = OldLock(store, GLOBAL)
    with ours.models([ONE]), ours.committing():
        pass
    assert lock_keys(store) == []
    is_stale = theirs.looks_stale()
    with ours.models([ONE]), ours.committing() as verify:
        if is_stale:
            theirs.delete()
        verify()
    with ours.everything():
        pass
    assert list(store.list()) == []


def test_sessions_lose_no_lock_to_other_clients_that_come_and_go(
    s3_remote: ProxiedRemote,
) -> None:
    lost: list[str] = []
    theirs: list[OldLock] = []
    is_over = threading.Event()

    def other_client() -> None:
        store = s3_remote.open()
        while not is_over.is_set():
            for key in (KEY, GLOBAL):
                lock = OldLock(store, key, retry=0.01)
                theirs.append(lock)
                lock.acquire()
                lock.release()

    others = [Aside(other_client) for _ in range(2)]
    ours = LockManager(s3_remote.open(), "", timeout=60.0, ttl=30.0, environ={})
    for _ in range(12):
        try:
            with ours.models([ONE]), ours.committing() as verify:
                verify()
        except LockLostError as error:
            lost.append(error.message)
    is_over.set()
    for other in others:
        other.wait()
    assert lost == []
    assert sum(lock.deleted for lock in theirs) == 0
    assert not any(lock.is_lost for lock in theirs)
    assert len(theirs) > 4
    assert lock_keys(s3_remote.open()) == []


def test_a_lock_that_another_client_deleted_all_the_same_is_missed_before_the_commit(
    store: Store,
) -> None:
    ours = LockManager(store, "", timeout=60.0, ttl=30.0, environ={})
    with (
        pytest.raises(LockLostError, match="it is gone"),
        ours.models([ONE]),
        ours.committing() as verify,
    ):
        OldLock(store, KEY).delete()
        verify()


def test_a_deletion_that_comes_late_or_twice_does_not_hit_a_successor(store: Store) -> None:
    with held(store) as lock:
        token = lock._token
        assert token is not None
    with held(store, ttl=0.3) as successor:
        with pytest.raises(PreconditionFailedError):
            store.delete_if_match(KEY, token)
        successor.verify()
    store.delete_if_match(KEY, token)


def test_free_records_that_earlier_versions_left_are_deleted_when_they_are_met(
    store: Store,
) -> None:
    for key in (KEY, GATE, GLOBAL, model_key("", TWO)):
        leave_free(store, key)
    locks = LockManager(store, "", timeout=60.0, ttl=30.0, environ={})
    with locks.models([ONE]):
        pass
    assert lock_keys(store) == [model_key("", TWO)]
    with locks.everything():
        pass
    assert lock_keys(store) == []


def test_a_free_record_that_somebody_has_made_a_lock_of_is_not_deleted(
    memory_remote: Remote,
) -> None:
    class Meanwhile(MovableStore):
        def delete_if_match(self, key: str, token: str) -> None:
            if key == GATE and not taken:
                taken.append(StoreLock(self.inner, GATE, ttl=30.0, deletes=True))
                taken[0].acquire(time.monotonic() + 5)
            super().delete_if_match(key, token)

    taken: list[StoreLock] = []
    store = Meanwhile(memory_remote.open())
    leave_free(store, GATE)
    assert manager(store).inspect(GATE) is None
    taken[0].verify()
    taken[0].release()
    assert lock_keys(store) == []


# Whether deletions are known to keep to their condition ------------------------------------------


def test_where_a_server_ignores_the_condition_of_a_deletion_a_free_record_stays() -> None:
    bucket, notes = MemoryBucket(), Notes()
    store = CarelessStore("x", bucket)
    locks = LockManager(store, "", deletions=notes.of(store), timeout=60.0, ttl=30.0, environ={})
    with locks.models([ONE]):
        pass
    assert lock_keys(store) == [KEY]
    record = record_of(store)
    assert record is not None
    assert record.is_free
    with locks.everything():
        pass
    assert lock_keys(store) == sorted([KEY, GATE, GLOBAL])
    assert not notes.of(MovableStore(store)).are_proven()


@pytest.mark.parametrize("kind", [ServedStore, CarelessStore])
def test_a_store_claims_no_conditional_deletions_that_were_refuted(kind: type[Store]) -> None:
    deletions = Deletions(kind())
    proven = ProvenStore(kind(), deletions)
    assert proven.capabilities.conditional_delete  # nobody has tried
    is_careful = deletions.are_proven()
    assert is_careful is (kind is ServedStore)
    assert proven.capabilities.conditional_delete is is_careful
    assert proven.capabilities.repeats_tokens == kind().capabilities.repeats_tokens


def test_a_store_is_tried_once_and_not_again() -> None:
    notes, store = Notes(), MovableStore(ServedStore())
    assert not notes.of(store).is_known
    assert notes.of(store).are_proven()
    with store.offline():
        assert notes.of(store).are_proven()
        deletions = Deletions(store)
        assert not deletions.are_proven()
    assert deletions.are_proven()
    assert list(store.list()) == []


def test_a_trial_that_gets_no_answer_proves_nothing_and_is_not_remembered() -> None:
    notes, store = Notes(), MovableStore(ServedStore())
    for requests in range(5):
        store.fail_after(requests, is_done=False, kills=False)
        assert not notes.of(store).are_proven()
        assert notes.facts == {}
        store.mend()
    assert notes.of(store).are_proven()


def test_a_machine_that_never_ran_setup_tries_the_store_before_its_first_lock_only(
    ana: Machine, s3_remote: ProxiedRemote
) -> None:
    ana.use_remote("s3", s3_remote.config)
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == 0
    asked = [request.key for request in s3_remote.proxy.requests]
    last_of_trial = max(at for at, key in enumerate(asked) if key.startswith(PROBE))
    assert len([key for key in asked if key.startswith(PROBE)]) == 6
    assert last_of_trial < asked.index(KEY)
    s3_remote.proxy.reset()
    assert ana("data", "put", MODEL, "state", stdin=b"two").status == 0
    assert not any(request.key.startswith(PROBE) for request in s3_remote.proxy.requests)
    assert lock_keys(s3_remote.open()) == []


def test_after_setup_no_lock_is_left_and_nothing_has_to_be_tried(
    ana: Machine, s3_remote: ProxiedRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**s3_remote.config}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", settings.pop("accessKeyId"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", settings.pop("secretAccessKey"))
    outcome = ana("datastore", "setup", "s3", "--config", json.dumps(settings), "--json")
    assert outcome.status == 0, outcome.err
    s3_remote.proxy.reset()
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == 0
    assert not any(request.key.startswith(PROBE) for request in s3_remote.proxy.requests)
    assert lock_keys(s3_remote.open()) == []


# What we see of theirs ---------------------------------------------------------------------------


def test_the_lock_of_another_client_on_a_model_that_nobody_knows_is_waited_for(
    store: Store,
) -> None:
    unknown = ModelRef("brand/new", "one")
    theirs = OldLock(store, model_key("", unknown))
    theirs.acquire()
    locks = manager(store)
    assert [model for model, _ in locks.locked_models()] == [unknown]
    assert [model for model, _ in locks.locked_models([ONE, unknown])] == [unknown]
    order: list[str] = []

    def structural() -> None:
        with locks.everything():
            order.append("everything")

    aside = Aside(structural)
    eventually(lambda: record_of(store, GATE) is not None)
    time.sleep(0.2)
    order.append("other client")
    theirs.release()
    aside.wait()
    assert order == ["other client", "everything"]
    assert lock_keys(store) == []


def test_waiting_for_another_client_does_not_list_all_data_again_and_again(
    s3_remote: ProxiedRemote,
) -> None:
    store = s3_remote.open()
    theirs = OldLock(store, KEY)
    theirs.acquire()
    locks = manager(store)

    def structural() -> None:
        with locks.everything():
            pass

    def count(kind: str, key: str) -> int:
        requests = list(s3_remote.proxy.requests)
        return len([one for one in requests if (one.kind, one.key) == (kind, key)])

    aside = Aside(structural)
    eventually(lambda: count("GET", KEY) > 4)
    theirs.release()
    aside.wait()
    assert count("LIST", "data/") == 2


def test_lock_status_shows_the_lock_of_another_client_on_a_model_that_nobody_knows(
    ana: Machine, s3_remote: ProxiedRemote
) -> None:
    ana.use_remote("s3", s3_remote.config)
    OldLock(s3_remote.open(), "data/brand/new/one/.lock").acquire()
    [shown] = ana("datastore", "lock", "status", "--json").json["locks"]
    assert (shown["model"], shown["holder"]) == ("brand/new/one", "bob@elsewhere")


@pytest.mark.parametrize("key", ["data/brand/new/one/.lock", ".datastore.lock"])
@pytest.mark.parametrize(
    "command", [("datastore", "migrate-index"), ("data", "gc", "--yes")], ids=" ".join
)
def test_work_on_everything_waits_for_the_lock_of_another_client(
    ana: Machine,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    key: str,
) -> None:
    for content in (b"one", b"two"):
        options = ("--gc", "1")
        assert ana("data", "put", MODEL, "state", *options, stdin=content).status == 0
    monkeypatch.setenv("SWAMP_LOCK_TIMEOUT_MS", "300")
    with DirectoryStore(str(bucket), durable=False) as store:
        theirs = OldLock(store, key)
        theirs.acquire()
        outcome = ana(*command)
        assert outcome.status == EXIT_LOCK_TIMEOUT
        assert "bob@elsewhere" in outcome.err
        theirs.release()
        outcome = ana(*command)
        assert outcome.status == 0, outcome.err
        assert lock_keys(store) == []


# Signals -----------------------------------------------------------------------------------------


_WATCHED = ("/locks/lock.py", "/locks/manager.py", "/stores/memory.py")


class Interruption(BaseException):
    """A signal that is heard."""


@contextlib.contextmanager
def interrupted(at: int) -> Iterator[list[str]]:
    """Raise at the n-th moment at which Python looks for signals; yield where that was."""
    left, where = at, list[str]()

    def profile(frame: object, event: str, _: object) -> None:
        nonlocal left
        code = getattr(frame, "f_code")  # noqa: B009 - the type of frames is private
        if event in {"call", "c_return"} and code.co_filename.endswith(_WATCHED):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                where.append(f"{code.co_qualname} {event}")
                raise Interruption

    sys.setprofile(profile)
    try:
        with contextlib.suppress(Interruption):
            yield where
    finally:
        sys.setprofile(None)


def test_an_interruption_at_any_moment_leaves_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "_ABANDONED", set())
    at, where = 0, ["the beginning"]
    while where:
        at += 1
        store = MemoryStore()
        locks = LockManager(store, "", timeout=60.0, ttl=30.0, environ={})
        with interrupted(at) as where, locks.models([ONE]), locks.committing() as verify:
            verify()
        release_all()
        assert lock_keys(store) == [], where
    assert at > 150


@dataclass(frozen=True)
class HeldAnswer:
    """Let the store do what it was asked, and say so when told to."""

    is_done: threading.Event
    may_go_on: threading.Event

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        del over
        answer = forward()
        self.is_done.set()
        assert self.may_go_on.wait(30)
        return answer


@dataclass(frozen=True)
class HeldRequest:
    """Let the store do what it was asked when told to, not before."""

    is_done: threading.Event
    may_go_on: threading.Event

    def spoil(self, forward: Callable[[], Answer], over: threading.Event) -> Answer:
        del over
        self.is_done.set()
        assert self.may_go_on.wait(30)
        return forward()


@pytest.mark.parametrize("held", [HeldAnswer, HeldRequest])
@pytest.mark.parametrize(
    ("key", "is_proven"), [(KEY, False), (KEY, True), (GLOBAL, False), (MONOLITH_KEY, False)]
)
def test_a_signal_before_the_answer_to_the_write_of_a_lock_or_of_the_index_leaves_no_lock(
    key: str,
    is_proven: bool,
    held: type[HeldAnswer | HeldRequest],
    ana: Machine,
    s3_remote: ProxiedRemote,
    tmp_path: Path,
) -> None:
    ana.use_remote("s3", s3_remote.config)
    if is_proven:  # then the lock is the first thing that the store is asked for
        assert ana("datastore", "status", "--check").status == 0

    def is_acquisition(request: Request) -> bool:
        return request.kind == "PUT" and request.key == key

    answer = held(threading.Event(), threading.Event())
    s3_remote.proxy.fail(is_acquisition, answer, times=1)
    source = tmp_path / "content"
    source.write_bytes(b"one")
    command = [sys.executable, "-m", "swampstore.cli", "data", "put", MODEL, "state", str(source)]
    with subprocess.Popen(command, env=ana.environ, stderr=subprocess.PIPE) as process:
        assert answer.is_done.wait(30)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: not _is_pending(process.pid, signal.SIGTERM))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # whoever does not wait for the answer would be gone
        answer.may_go_on.set()
        process.communicate(timeout=30)
    assert process.returncode == 143
    assert lock_keys(s3_remote.open()) == []
    assert ana("sync").status == 0


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that has not noticed it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    lines = [line.split() for line in status.splitlines() if "Pnd:" in line]
    return any(int(mask, 16) & (1 << (number - 1)) for _, mask in lines)
