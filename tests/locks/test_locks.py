"""One lock on every kind of store: taken, kept, lost, taken over, given back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, TypeVar

import pytest

from swampstore.clock import asleep_too
from swampstore.errors import EXIT_LOCK_TIMEOUT, EXIT_NOT_PUSHED, LockTimeoutError
from swampstore.locks import lock as lock_module
from swampstore.locks.lock import Heartbeat, Patience, StoreLock
from swampstore.locks.process import new_record
from swampstore.locks.record import LockLostError
from swampstore.stores.errors import PreconditionFailedError, StoreUnreachableError
from swampstore.stores.protocol import Store, Written
from swampstore.stores.wrapper import Request as StoreRequest
from swampstore.stores.wrapper import StoreWrapper
from tests.locks.test_record import free_pid
from tests.support.fault_proxy import Lost, Request, Status
from tests.support.locking import (
    KEY,
    Aside,
    MovableStore,
    eventually,
    force_release,
    foreign_record,
    held,
    inspect,
    is_free,
    new_lock,
    put_foreign,
    record_of,
    soon,
)
from tests.support.remotes import ProxiedRemote, Remote

T = TypeVar("T")


@pytest.fixture(params=["memory", "directory", "s3", "freeing", "mongodb"])
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


# Taking and giving back


def test_a_lock_is_there_while_it_is_held_and_gone_afterwards(store: MovableStore) -> None:
    with held(store) as lock:
        record = record_of(store)
        assert record is not None
        assert (record.pid, record.hostname) == (os.getpid(), os.uname().nodename)
        lock.acquire(soon())
        assert record_of(store) == record
    assert not lock.is_held
    assert is_free(store)
    lock.release()


def test_a_second_holder_waits_for_the_first(store: MovableStore) -> None:
    order: list[str] = []

    def second() -> None:
        with held(store):
            order.append("second")

    with held(store):
        aside = Aside(second)
        time.sleep(0.3)
        order.append("first")
    aside.wait()
    assert order == ["first", "second"]
    assert is_free(store)


@pytest.mark.slow
def test_who_waits_too_long_is_told_who_holds_the_lock(
    store: MovableStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "_WORTH_TELLING", 0.2)
    record = put_foreign(store)
    began = time.monotonic()
    lock = new_lock(store, KEY)
    with pytest.raises(LockTimeoutError) as told:
        lock.acquire(soon(0.8))
    assert time.monotonic() - began < 20
    for part in (KEY, "bob@elsewhere", "host elsewhere", "pid 4242", " since 20"):
        assert part in told.value.message
    assert told.value.exit_status == EXIT_LOCK_TIMEOUT
    assert "datastore lock status" in (told.value.hint or "")
    assert "namespace" not in (told.value.hint or "")
    waits = [entry.getMessage() for entry in caplog.records]
    assert waits == [f"waiting for the lock {KEY}, held by {record}"]
    lock.release()
    assert record_of(store) == record


def test_namespaces_are_recommended_for_the_global_lock_of_all(memory: MovableStore) -> None:
    put_foreign(memory, ".datastore.lock")
    with pytest.raises(LockTimeoutError) as told:
        new_lock(memory, ".datastore.lock").acquire(soon(0))
    assert "namespaces" in (told.value.hint or "")


def test_a_lock_that_is_free_is_taken_even_if_there_is_no_time_to_wait(
    store: MovableStore,
) -> None:
    lock = new_lock(store, KEY)
    lock.acquire(soon(-1))
    lock.release()


def test_a_lock_stays_fresh_while_it_is_held(store: MovableStore) -> None:
    with held(store, ttl=0.6) as lock:
        first = record_of(store)
        assert first is not None
        eventually(lambda: record_of(store) not in {None, first})
        renewed = record_of(store)
        assert renewed is not None
        assert renewed.nonce == first.nonce
        lock.verify()


def test_what_is_asked_of_the_store(s3_remote: ProxiedRemote) -> None:
    store = s3_remote.open()
    with held(store) as lock:
        assert s3_remote.proxy.counts() == {"PUT": 1}
        lock.check()
        assert s3_remote.proxy.counts() == {"PUT": 1}
        lock.verify()
        assert s3_remote.proxy.counts() == {"PUT": 2}
    assert s3_remote.proxy.counts() == {"PUT": 2, "DELETE": 1}


def test_what_is_asked_of_a_store_that_is_not_known_to_delete_on_condition(
    s3_remote: ProxiedRemote,
) -> None:
    with held(s3_remote.open(), deletes=False) as lock:
        assert s3_remote.proxy.counts() == {"GET": 1, "PUT": 1}
        lock.verify()
    assert s3_remote.proxy.counts() == {"GET": 1, "PUT": 3}


# Staleness


def test_a_lock_of_a_holder_that_is_gone_is_taken_over(store: MovableStore) -> None:
    put_foreign(store)
    assert not _is_stale(store)
    store.pass_time(34)
    assert _is_stale(store)
    with held(store) as lock:
        lock.verify()
    assert is_free(store)


def test_a_lock_is_not_stale_before_a_second_more_than_its_time_has_passed(
    memory: MovableStore,
) -> None:
    put_foreign(memory)
    memory.pass_time(30.5)
    assert not _is_stale(memory)
    memory.pass_time(0.6)
    assert _is_stale(memory)


def _is_stale(store: Store) -> bool:
    state = inspect(store, KEY)
    assert state is not None
    return state.is_stale


def test_before_a_lock_that_was_taken_over_counts_as_held_its_holder_is_locked_out(
    store: MovableStore,
) -> None:
    put_foreign(store)
    store.pass_time(34)
    seen: list[str] = []

    def fence() -> None:
        record = record_of(store)
        assert record is not None
        seen.append(record.holder)

    with held(store, on_steal=fence):
        assert seen == [new_record(1.0).holder]
    with held(store, on_steal=fence):
        assert len(seen) == 1  # nothing was taken over


# Hazards


def test_h38_h42_release_leaves_the_lock_of_a_successor(
    store: MovableStore, caplog: pytest.LogCaptureFixture
) -> None:
    with held(store) as lock:
        successor = put_foreign(store)
        lock.release()
        assert record_of(store) == successor
    assert "was lost: it is held by bob@elsewhere" in caplog.text
    assert record_of(store) == successor


def test_h42_where_deletions_are_not_known_to_keep_to_a_condition_a_lock_is_freed(
    s3_remote: ProxiedRemote,
) -> None:
    stolen: list[bool] = []
    for _ in range(2):
        with held(s3_remote.open(), deletes=False, on_steal=lambda: stolen.append(True)):
            pass
    assert is_free(s3_remote.open())
    assert s3_remote.proxy.counts().get("DELETE", 0) == 0
    assert stolen == []


def test_h42_a_free_lock_is_stale_for_clients_that_do_not_know_of_free_locks(
    s3_remote: ProxiedRemote,
) -> None:
    store = s3_remote.open()
    with held(store, deletes=False):
        pass
    members = json.loads(store.get(KEY).data)
    assert members["acquiredAt"] < "1971"
    assert members["ttlMs"] == 1


def test_who_cannot_shut_the_former_holder_out_leaves_a_lock_that_has_to_be_taken_over(
    store: MovableStore,
) -> None:
    fences: list[bool] = []

    def fail() -> None:
        raise StoreUnreachableError("no answer", hint="")

    put_foreign(store)
    store.pass_time(40)
    with pytest.raises(StoreUnreachableError):
        new_lock(store, KEY, on_steal=fail).acquire(soon())
    assert record_of(store) is not None
    with held(store, on_steal=lambda: fences.append(True)):
        assert fences == [True]
    assert is_free(store)


def test_a_stolen_lock_says_only_when_others_are_shut_out_that_it_is_for_a_commit(
    store: MovableStore,
) -> None:
    seen: list[str] = []

    def look() -> None:
        record = record_of(store)
        assert record is not None
        seen.append(record.purpose)

    put_foreign(store)
    store.pass_time(40)
    with held(store, on_steal=look, purpose="commit") as lock:
        lock.verify()
        look()
    assert seen == ["", "commit"]


def test_h39_a_lock_of_another_machine_is_not_judged_by_our_processes(
    store: MovableStore,
) -> None:
    put_foreign(store, pid=free_pid())
    with pytest.raises(LockTimeoutError):
        new_lock(store, KEY).acquire(soon(0.2))
    put_foreign(store, pid=free_pid(), hostname=os.uname().nodename)
    with held(store, ttl=30.0):
        pass


@pytest.mark.parametrize("content", [b"", b'{"holder": "bob@else', b"[]", b"\xff\xfe"])
def test_h40_a_record_that_cannot_be_read_is_held_until_it_is_old(
    store: MovableStore, content: bytes
) -> None:
    store.put(KEY, content)
    state = inspect(store, KEY, ttl=2.0)
    assert state is not None
    assert (state.record, state.is_stale) == (None, False)
    with pytest.raises(LockTimeoutError, match="cannot be read"):
        new_lock(store, KEY, ttl=2.0).acquire(soon(0.1))
    store.pass_time(7)
    with held(store, ttl=2.0) as lock:
        lock.verify()


def test_h40_a_record_that_cannot_be_read_is_removed_by_force(store: MovableStore) -> None:
    store.put(KEY, b"")
    assert not force_release(store, KEY, "nonce")
    assert force_release(store, KEY, None)
    assert is_free(store)


@pytest.mark.parametrize("ahead", [0, 34])
def test_h41_a_lock_is_ours_though_the_answer_was_lost(store: MovableStore, ahead: int) -> None:
    stolen: list[bool] = []
    if ahead:
        put_foreign(store)
        store.pass_time(ahead)
    lock = new_lock(store, KEY, on_steal=lambda: stolen.append(True))
    # Nothing is there: look, unless it is surely so, create. A stale lock: the same, or look, ask
    # the time, take over.
    looks = 0 if store.capabilities.conditional_delete else 1
    store.fail_after(3 - looks if ahead else looks, is_done=True, kills=False)
    lock.acquire(soon())
    assert stolen == ([True] if ahead else [])
    lock.verify()
    lock.release()
    assert is_free(store)


def test_h41_s3_losing_answers_is_no_reason_to_wait_for_ourselves(
    s3_remote: ProxiedRemote,
) -> None:
    s3_remote.proxy.fail(lambda request: request.kind == "PUT", Lost())
    with held(s3_remote.open()) as lock:
        lock.verify()
    assert is_free(s3_remote.open())


def test_h41_an_attempt_that_failed_leaves_nothing_behind(store: MovableStore) -> None:
    lock = new_lock(store, KEY)
    with store.offline(), pytest.raises(StoreUnreachableError):
        lock.acquire(soon())
    store.put_if_absent(KEY, _written_by(lock))
    lock.release()
    assert is_free(store)


def test_h41_a_lock_that_is_written_after_it_was_given_up_is_not_waited_for_by_its_process(
    store: MovableStore,
) -> None:
    fences: list[bool] = []
    lock = new_lock(store, KEY)
    with store.offline(), pytest.raises(StoreUnreachableError):
        lock.acquire(soon())
    late = _written_by(lock)
    lock.release()
    store.delete(KEY)
    store.put_if_absent(KEY, late)
    with held(store, on_steal=lambda: fences.append(True)):
        assert fences == [True]
    assert is_free(store)


def _written_by(lock: StoreLock) -> bytes:
    """Return what an attempt wrote, or would have written."""
    assert lock._record is not None
    return lock._record.encode()


def test_h41b_a_conflict_is_a_reason_to_try_again(s3_remote: ProxiedRemote) -> None:
    rule = s3_remote.proxy.fail(_is_conditional, Status(409), times=4)
    with held(s3_remote.open()) as lock:
        lock.verify()
    assert rule.fired == 4
    assert is_free(s3_remote.open())


def test_h41b_conflicts_of_refreshes_do_not_revoke(s3_remote: ProxiedRemote) -> None:
    with held(s3_remote.open()) as lock:
        s3_remote.proxy.fail(_is_conditional, Status(409), times=5)
        lock.verify()
    assert is_free(s3_remote.open())


def _is_conditional(request: Request) -> bool:
    return request.kind == "PUT" and bool(request.conditions)


class Refusing(MovableStore):
    """A store in which somebody else is always faster, and which then fails altogether."""

    updates = 0

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        self.updates += 1
        if self.updates == 3:
            raise StoreUnreachableError("enough", hint="Wait.")
        raise PreconditionFailedError("somebody was faster", hint="Try again.")


def test_h43_who_loses_a_race_for_a_stale_lock_steps_back(
    place: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Refusing(place.open())
    put_foreign(store)
    store.pass_time(34)
    sleeps: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            sleeps.append(seconds)
        else:
            sleep(seconds)  # others have their own reasons

    monkeypatch.setattr(time, "sleep", note)
    with pytest.raises(StoreUnreachableError, match="enough"):
        new_lock(store, KEY).acquire(soon())
    first, pause, second, _ = sleeps
    assert 0.2 <= first <= 0.5
    assert 0.075 <= pause <= 0.125
    assert 0.2 <= second <= 0.5


def test_pauses_grow_differ_and_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    patience = Patience(130.0)
    while not patience.is_over:
        patience.pause()
    assert 0.075 <= sleeps[0] <= 0.125
    assert max(sleeps) <= 2.5
    assert sum(sleeps) == pytest.approx(30.0)
    assert all(1.5 <= seconds <= 2.5 for seconds in sleeps[10:-1])
    assert len(set(sleeps)) == len(sleeps)
    patience.pause()
    patience.step_back()
    assert sleeps[-2:] == [0.0, 0.0]


class Pausing(StoreWrapper):
    """A store in which one refresh waits until it is told to go on."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_refreshing, self.may_go_on = threading.Event(), threading.Event()

    def around(self, request: StoreRequest, send: Callable[[], T]) -> T:
        if request.operation == "put_if_match":
            self.is_refreshing.set()
            assert self.may_go_on.wait(30)
        return send()


def test_h44_no_refresh_brings_a_lock_back_that_was_released(memory: MovableStore) -> None:
    store = Pausing(memory)
    lock = new_lock(store, KEY, ttl=0.15)
    lock.acquire(soon())
    assert store.is_refreshing.wait(30)
    aside = Aside(lock.release)
    time.sleep(0.1)
    assert not is_free(memory)
    store.may_go_on.set()
    aside.wait()
    assert is_free(memory)
    store.is_refreshing.clear()
    lock.beat()
    time.sleep(0.3)
    assert not store.is_refreshing.is_set()
    assert is_free(memory)


def test_h44_a_late_refresh_cannot_bring_a_deleted_lock_back(store: MovableStore) -> None:
    lock = new_lock(store, KEY)
    lock.acquire(soon())
    token = store.get(KEY).info.token
    assert token is not None
    lock.release()
    with pytest.raises(PreconditionFailedError):
        store.put_if_match(KEY, foreign_record().encode(), token)
    assert is_free(store)


def test_h45_of_two_who_take_over_one_stale_lock_one_succeeds(store: MovableStore) -> None:
    put_foreign(store)
    store.pass_time(34)
    state = inspect(store, KEY)
    assert state is not None
    first, second = new_lock(store, KEY), new_lock(store, KEY)
    assert first.take_over(state)
    assert not second.take_over(state)
    second.release()
    first.verify()
    first.release()
    assert is_free(store)


def test_h45_a_holder_that_comes_back_in_time_keeps_its_lock(store: MovableStore) -> None:
    with held(store) as lock:
        store.pass_time(34)
        state = inspect(store, KEY)
        assert state is not None
        assert state.is_stale
        lock.verify()
        assert not new_lock(store, KEY).take_over(state)
        lock.verify()


def test_a_proof_from_before_the_machine_slept_is_none(store: MovableStore) -> None:
    before = asleep_too()
    with held(store, ttl=0.4, heartbeat=Heartbeat(60.0)) as lock:
        lock.verify(since=before)
        time.sleep(0.5)
        put_foreign(store)  # another client took it for stale, and makes no commit of ours fail
        with pytest.raises(LockLostError):
            lock.verify(since=before)


def test_h46_one_failed_refresh_does_not_give_the_lock_up(store: MovableStore) -> None:
    with held(store) as lock:
        with store.offline():
            lock.beat()
            lock.check()
            with pytest.raises(StoreUnreachableError):
                lock.verify()
        lock.check()
        lock.verify()


def test_h46_after_a_long_silence_a_check_asks_the_store(
    store: MovableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(store) as lock:
        later = asleep_too() + 31
        monkeypatch.setattr(lock_module, "asleep_too", lambda: later)
        with store.offline(), pytest.raises(StoreUnreachableError):
            lock.check()
        lock.check()
        with store.offline():
            lock.check()


@pytest.mark.parametrize("is_gone", [False, True])
def test_h46_who_has_lost_a_lock_is_told(
    store: MovableStore, is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with held(store) as lock:
        if is_gone:
            store.delete(KEY)
        else:
            put_foreign(store)
        lock.check()  # not known yet
        lock.beat()
        message = "it is gone" if is_gone else "it is held by bob@elsewhere"
        assert caplog.text.count(message) == 1
        with pytest.raises(LockLostError, match=message):
            lock.check()
        with pytest.raises(LockLostError, match=message) as told:
            lock.verify()
        assert told.value.exit_status == EXIT_NOT_PUSHED
        assert "next sync" in (told.value.hint or "")
        before = record_of(store)
        lock.beat()
        assert record_of(store) == before


def test_h46_a_refresh_whose_answer_was_lost_is_not_a_loss(store: MovableStore) -> None:
    with held(store) as lock:
        store.fail_after(0, is_done=True, kills=False)
        lock.beat()
        lock.verify()
        lock.check()


def test_h46_a_lock_stays_if_the_store_is_gone_at_its_release(
    store: MovableStore, caplog: pytest.LogCaptureFixture
) -> None:
    lock = new_lock(store, KEY)
    lock.acquire(soon())
    with store.offline():
        lock.release()
    assert "stays until it is stale" in caplog.text
    assert not lock.is_held
    assert not is_free(store)
    store.pass_time(34)
    with held(store):
        pass


def test_h46e_the_clocks_of_holder_and_observer_do_not_matter(
    store: MovableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_foreign(store, acquired_at=datetime(2001, 1, 1, tzinfo=UTC))
    assert not _is_stale(store)
    put_foreign(store, acquired_at=datetime(2101, 1, 1, tzinfo=UTC))
    assert not _is_stale(store)
    for years in (-50, 50):
        moment = datetime.now(UTC) + timedelta(days=365 * years)
        monkeypatch.setattr(lock_module, "system_clock", lambda now=moment: now)
        assert not _is_stale(store)
        with pytest.raises(LockTimeoutError):
            new_lock(store, KEY).acquire(soon(0.1))
    store.pass_time(34)
    assert _is_stale(store)


def test_h46e_a_holder_whose_clock_stands_still_refreshes_all_the_same(
    store: MovableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "system_clock", lambda: datetime(2001, 1, 1, tzinfo=UTC))
    with held(store) as lock:
        tokens = [store.get(KEY).info.token]
        for _ in range(3):
            lock.verify()
            tokens.append(store.get(KEY).info.token)
    assert len(set(tokens)) == 4


def test_h46e_a_lock_from_the_future_of_the_store_is_not_stale(store: MovableStore) -> None:
    put_foreign(store)
    store.pass_time(-3600)
    state = inspect(store, KEY)
    assert state is not None
    assert (state.age, state.is_stale) == (0.0, False)


# Looking, and force


def test_a_lock_is_inspected_without_being_touched(store: MovableStore) -> None:
    assert inspect(store, KEY) is None
    record = put_foreign(store)
    before = store.get(KEY).info.token
    store.pass_time(10)
    state = inspect(store, KEY)
    assert state is not None
    assert (state.key, state.record, state.token) == (KEY, record, before)
    assert 9 <= state.age < 25
    assert store.get(KEY).info.token == before


def test_force_removes_the_lock_that_was_seen_and_no_other(store: MovableStore) -> None:
    first = put_foreign(store)
    second = put_foreign(store)
    assert not force_release(store, KEY, first.nonce)
    assert not force_release(store, KEY, None)
    assert record_of(store) == second
    assert force_release(store, KEY, second.nonce)
    assert is_free(store)
    assert not force_release(store, KEY, second.nonce)


def test_a_holder_whose_lock_was_removed_by_force_knows(store: MovableStore) -> None:
    with held(store) as lock:
        record = record_of(store)
        assert record is not None
        assert force_release(store, KEY, record.nonce)
        with pytest.raises(LockLostError):
            lock.verify()
    assert is_free(store)


def test_a_lock_that_changes_hands_meanwhile_is_not_removed_by_force(place: Remote) -> None:
    class Racing(MovableStore):
        def _replace(self) -> None:
            self.inner.put(KEY, foreign_record(holder="eve").encode())

        def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
            self._replace()
            return super().put_if_match(key, body, token)

        def delete_if_match(self, key: str, token: str) -> None:
            self._replace()
            super().delete_if_match(key, token)

    store = Racing(place.open())
    record = put_foreign(store)
    assert not force_release(store, KEY, record.nonce)
    left = record_of(store)
    assert left is not None
    assert left.holder == "eve"


# Many threads


def test_of_many_threads_one_at_a_time_holds_the_lock(memory_remote: Remote) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        store = memory_remote.open()
        for _ in range(3):
            with held(store) as lock:
                inside.append(1)
                most.append(len(inside))
                lock.verify()
                inside.pop()

    for aside in [Aside(work) for _ in range(4)]:
        aside.wait()
    assert most == [1] * 12
