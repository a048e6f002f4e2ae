"""What tests of locks share: a store whose time can be moved, and locks of somebody else."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from swampstore.layout import ModelRef
from swampstore.locks.inspection import Deletions, LockState, look
from swampstore.locks.lock import StoreLock
from swampstore.locks.manager import LockManager
from swampstore.locks.process import new_record
from swampstore.locks.record import LockRecord, decode
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store
from tests.support.broken_store import BrokenStore

KEY = "data/aws/ec2/i-1/.lock"
ONE, TWO = ModelRef("aws/ec2", "i-1"), ModelRef("aws/ec2", "i-2")
# Long enough for a slow machine never to exceed it where nothing is waited for.
PLENTY = 30.0


class MovableStore(BrokenStore):
    """A store that can be told how much later it is; nothing in it is refreshed meanwhile."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.ahead = timedelta()

    def pass_time(self, seconds: float) -> None:
        self.ahead += timedelta(seconds=seconds)

    def clock(self) -> datetime:
        return super().clock() + self.ahead


def inspect(store: Store, key: str, *, ttl: float = 30.0) -> LockState | None:
    """Return the state of a lock, None if nobody holds it."""
    state = look(store, key, ttl=ttl)
    return None if state is None or state.is_free else state


def soon(seconds: float = PLENTY) -> float:
    return time.monotonic() + seconds


def foreign_record(**changes: Any) -> LockRecord:
    """Return a record as another client on another machine writes it."""
    theirs: dict[str, Any] = {"holder": "bob@elsewhere", "hostname": "elsewhere", "since": None}
    return new_record(30.0)._replace(**{**theirs, "process": "", "pid": 4242, **changes})


def put_foreign(store: Store, key: str = KEY, **changes: Any) -> LockRecord:
    record = foreign_record(**changes)
    store.put(key, record.encode())
    return record


def record_of(store: Store, key: str = KEY) -> LockRecord | None:
    """Return the record under a key; None if there is nothing, or nothing readable."""
    try:
        return decode(store.get(key).data)
    except ObjectNotFoundError:
        return None


def is_free(store: Store, key: str = KEY) -> bool:
    return inspect(store, key) is None


def force_release(store: Store, key: str, nonce: str | None) -> bool:
    return manager(store).force_release(key, nonce)


# A command that removes a lock says so in the audit.
_OF_EVENTS = ("audit/", "swampstore.")


def keys_of(store: Store) -> list[str]:
    """Return everything that is there, but for events, and what is left of locks given back."""
    found = (info.key for info in store.list() if not info.key.startswith(_OF_EVENTS))
    return sorted(key for key in found if not key.endswith(".lock") or not is_free(store, key))


def eventually(condition: Callable[[], bool], seconds: float = PLENTY) -> None:
    """Wait until something is so; fail if it does not become so."""
    deadline = soon(seconds)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def new_lock(store: Store, key: str = KEY, **options: Any) -> StoreLock:
    """Return a lock of a store whose claim about conditional deletions is believed."""
    deletes = store.capabilities.conditional_delete
    return StoreLock(store, key, **{"deletes": deletes, "ttl": 30.0, **options})


@contextlib.contextmanager
def held(store: Store, key: str = KEY, **options: Any) -> Iterator[StoreLock]:
    lock = new_lock(store, key, **options)
    lock.acquire(soon())
    try:
        yield lock
    finally:
        lock.release()


def manager(store: Store, **options: Any) -> LockManager:
    """Return a manager with an environment of its own, of a store whose claims are believed."""
    defaults = {"namespace": "", "timeout": PLENTY, "ttl": 30.0, "environ": {}}
    return LockManager(store, **{**defaults, "deletions": believed(store), **options})


def believed(store: Store) -> Deletions:
    """Return what is known of a store that keeps to what it claims."""
    deletions = Deletions(store)
    deletions.learn(proven=store.capabilities.conditional_delete)
    return deletions


class Aside:
    """Something that is done in another thread; its failure is the test's."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._failure: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._failure = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(PLENTY)
        assert self.is_over
        if self._failure is not None:
            raise self._failure
