"""A lock that was asked for, given up and made after all: nobody holds it, nobody waits long."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from swampstore.locks import lock as lock_module
from swampstore.locks.record import decode
from swampstore.stores import retry, signed_requests
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import Written
from swampstore.stores.retry import RetryingStore
from tests.support.locking import (
    KEY,
    ONE,
    PLENTY,
    MovableStore,
    eventually,
    inspect,
    manager,
)


class Late(MemoryStore):
    """Makes the first lock when told to, whoever still waits for it."""

    def __init__(self) -> None:
        super().__init__("late")
        self.capabilities = self.capabilities._replace(endpoint="http://127.0.0.1:1")
        self.may_go_on = threading.Event()
        self.outcome: list[str] = []

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        if key != KEY or self.outcome or self.may_go_on.is_set():
            return super().put_if_absent(key, body)
        self.outcome.append("asked")
        self.may_go_on.wait(PLENTY)
        try:
            written = super().put_if_absent(key, body)
        except BaseException:
            self.outcome.append("refused")
            raise
        self.outcome.append("made")
        return written


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[Late]:
    """A store of which nobody takes a connection, and that does what it was asked all the same."""
    monkeypatch.setattr(retry, "_DOUBT", 0.01)
    monkeypatch.setattr(signed_requests, "is_silent", lambda *_: True)
    monkeypatch.setattr(lock_module, "_ABANDONED", set())
    store = Late()
    yield store
    store.may_go_on.set()


def given_up(store: RetryingStore) -> None:
    """Begin a session that finds out that nobody answers."""
    with pytest.raises(StoreUnreachableError), manager(store).models([ONE]):
        pytest.fail("nothing is locked")
    store._silent_until = 0.0  # the network is back


def test_a_lock_that_is_made_after_its_session_gave_up_is_not_taken_for_held(late: Late) -> None:
    here = RetryingStore(late)
    given_up(here)
    late.may_go_on.set()
    eventually(lambda: late.outcome == ["asked", "made"])
    left = decode(late.get(KEY).data)
    fences: list[bool] = []
    locks = manager(here)
    locks.on_steal = lambda: fences.append(True)
    with locks.models([ONE]):
        held = decode(late.get(KEY).data)
    # Its own process knows that nobody works under it, and takes it over without waiting.
    assert (fences, left is not None, held != left) == ([True], True, True)
    assert inspect(late, KEY) is None


def test_others_wait_for_a_lock_that_nobody_holds_until_it_is_stale_and_no_longer(
    late: Late,
) -> None:
    given_up(RetryingStore(late))
    late.may_go_on.set()
    eventually(lambda: late.outcome == ["asked", "made"])
    lock_module._ABANDONED.clear()  # as on another machine
    elsewhere = MovableStore(late)
    state = inspect(elsewhere, KEY)
    assert state is not None
    assert not state.is_stale
    elsewhere.pass_time(31)
    with manager(elsewhere).models([ONE]):
        pass
    assert inspect(elsewhere, KEY) is None


def test_a_lock_that_somebody_has_meanwhile_is_not_replaced_by_a_late_one(late: Late) -> None:
    given_up(RetryingStore(late))
    with manager(late).models([ONE]):
        held = late.get(KEY).data
        late.may_go_on.set()
        eventually(lambda: late.outcome == ["asked", "refused"])
        assert late.get(KEY).data == held
    assert inspect(late, KEY) is None


def test_whoever_is_interrupted_while_a_lock_is_on_its_way_waits_for_its_end() -> None:
    may_go_on, is_over = threading.Event(), threading.Event()

    def request() -> None:
        assert may_go_on.wait(PLENTY)
        is_over.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    beside = lock_module.Beside(request)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        threading.Timer(0.4, may_go_on.set).start()
        with pytest.raises(KeyboardInterrupt):
            beside.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert is_over.is_set()


def test_a_lock_that_is_given_back_before_its_request_was_made_is_not_taken(late: Late) -> None:
    lock = lock_module.StoreLock(late, "other.lock", ttl=30.0)
    lock.release()
    assert not lock.acquire_if_free()
    assert inspect(late, "other.lock") is None
