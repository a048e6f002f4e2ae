"""One lock: taken, kept fresh, proved and given back; and how to wait for one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from swampstore.clock import asleep_too, system_clock
from swampstore.errors import SwampstoreError
from swampstore.locks.inspection import LockState, look, remove, timed_out
from swampstore.locks.process import is_of, new_record
from swampstore.locks.record import LockLostError, LockRecord, decode
from swampstore.notices import notice
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnreachableError,
)
from swampstore.stores.protocol import Fetched, Store, Written

# A conditional write may be refused though nobody else was there; that does not happen for long.
_ATTEMPTS = 3
# Holdings of this process that it gave up: it may take them over without waiting.
_ABANDONED: set[str] = set()
# Seconds of a pause while waiting: they grow from the first to the longest, and differ a little.
_FIRST = 0.1
_LONGEST = 2.0
_JITTER = 0.25
_AFTER_A_LOST_RACE = (0.2, 0.5)
# Most locks are held for a moment; only of longer waits is there anything to tell.
_WORTH_TELLING = 1.0


def nothing() -> None:
    """Do nothing."""


class StoreLock:
    """A lock under one key of a store.

    `on_steal` is called when a stale lock was taken over, before it counts as held; it makes
    sure that nothing its former holder began can still be committed. `parent` is the process
    whose locks count as ours: they are borrowed, neither refreshed nor released here. `deletes`
    says that the store is known to keep to the condition of a deletion.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        ttl: float,
        on_steal: Callable[[], None] = nothing,
        heartbeat: Heartbeat | None = None,
        parent: int | None = None,
        purpose: str = "",
        deletes: bool = False,
    ) -> None:
        self.key = key
        self.is_borrowed = False
        self._store = store
        self._ttl = ttl
        self._on_steal = on_steal
        self._heartbeat = heartbeat or Heartbeat(ttl / 3)
        self._parent = parent
        self._purpose = purpose
        self._deletes = deletes
        # Held during every write of the record, so that none is under way when it is deleted.
        self._mutex = threading.Lock()
        # Held while another thread takes the lock, so that it is not given back before.
        self._taking = threading.Lock()
        self._record: LockRecord | None = None
        self._token: str | None = None
        self._proved = 0.0
        self._obstacle: LockState | None = None
        self._is_stealing = False
        self._is_releasing = False
        self._loss: LockLostError | None = None

    @property
    def is_held(self) -> bool:
        """Whether the lock was taken and not given back; it may have been lost meanwhile."""
        return self._token is not None

    def acquire(self, deadline: float) -> None:
        """Take the lock, waiting until `deadline` (of time.monotonic).

        Raises LockTimeoutError, naming the holder, and whatever the store raises. After an
        error of the store, `release` removes what may have been written all the same.
        """
        if self.is_held:
            return
        if self._record is None:
            self._prepare()
            # Where locks are deleted, there is hardly ever one; else a free one is what to expect.
            if self._deletes and self._create():
                return
        patience = Patience(deadline)
        while not self._try_again(patience):
            if patience.is_over:
                self._record = None
                raise timed_out(self.key, self._obstacle, patience.waited)
            patience.pause()

    def acquire_if_free(self) -> bool:
        """Take the lock if nobody holds it: waits for nobody, and takes nothing over.

        After False, `acquire` goes on from there. Another thread may have begun to give the lock
        back, if the one that wants it was interrupted: then nothing is written.
        """
        with self._taking:
            if self._is_releasing:
                return False
            self._prepare()
            if self._deletes:
                return self._create()
            state = look(self._store, self.key, ttl=self._ttl)
            if state is None:
                return self._create()
            return state.is_free and self._replace(state)

    def _try_again(self, patience: Patience) -> bool:
        state = look(self._store, self.key, ttl=self._ttl)
        if state is None:
            return self._create()
        if state.is_free:
            return self._replace(state)
        if self._claim(state, patience):
            return True
        patience.notice("waiting for the lock %s, held by %s", self.key, state.holder)
        self._obstacle = state
        return False

    def take_over(self, state: LockState) -> bool:
        """Take a stale lock in place of its holder; False if that is another one by now."""
        self._prepare()
        return self._steal(state)

    def _prepare(self) -> None:
        self._record = new_record(self._ttl, self._purpose)
        self._loss = None
        self._obstacle = None
        self._is_stealing = self._is_releasing = self.is_borrowed = False

    def _create(self) -> bool:
        return self._write(lambda data: self._store.put_if_absent(self.key, data))

    def _claim(self, state: LockState, patience: Patience) -> bool:
        """Make a lock that is there ours, if it is, or may be."""
        assert self._record is not None
        if state.nonce == self._record.nonce:
            return self._taken(state.token, self._proved)
        if is_of(state.record, self._parent):
            self._borrow(state)
            return True
        if state.is_stale or state.nonce in _ABANDONED:
            if self._steal(state):
                notice("took over the lock %s, left behind by %s", self.key, state.holder)
            else:
                patience.step_back()
        return self.is_held

    def _steal(self, state: LockState) -> bool:
        assert self._record is not None
        self._is_stealing = True
        # Its purpose lets others begin, who must not meet what the former holder left undone.
        self._record = self._record._replace(purpose="")
        return self._replace(state)

    def _replace(self, state: LockState) -> bool:
        return self._write(lambda data: self._store.put_if_match(self.key, data, state.token))

    def _write(self, write: Callable[[bytes], Written]) -> bool:
        """Try to make our record the lock's content."""
        assert self._record is not None
        self._record = self._record.renewed(system_clock())
        self._proved = asleep_too()
        try:
            token = write(self._record.encode()).token
        except PreconditionFailedError:
            return False
        except StoreUnreachableError:
            # Only the answer may have been lost.
            found, record = self._read()
            if found is None or record is None or record.nonce != self._record.nonce:
                raise
            token = found.info.token or ""
        return self._taken(token, self._proved)

    def _taken(self, token: str, proved: float) -> bool:
        """Hold the lock; one that was stolen only when its former holder is shut out.

        Without that it is neither held nor deleted. It is left to be stolen once more, because
        whoever found no lock at all would not suspect anything.
        """
        assert self._record is not None
        self._token, self._proved = token, proved
        self._heartbeat.add(self)
        if self._is_stealing:
            try:
                self._on_steal()
            except BaseException:
                self.abandon()
                raise
            self._is_stealing = False
            self._record = self._record._replace(purpose=self._purpose)
        return True

    def abandon(self) -> None:
        """Give the lock up without giving it back: whoever wants it has to take it over.

        For a holder that cannot say whether something it sent will still be done.
        """
        self._heartbeat.remove(self)
        with self._mutex:
            if self._record is not None and not self.is_borrowed:
                _ABANDONED.add(self._record.nonce)
            self._record = self._token = None

    def _borrow(self, state: LockState) -> None:
        self._record, self._token = state.record, state.token
        self._proved = asleep_too()
        self.is_borrowed = True

    def _read(self) -> tuple[Fetched | None, LockRecord | None]:
        try:
            found = self._store.get(self.key)
        except ObjectNotFoundError:
            return None, None
        return found, decode(found.data)

    def beat(self) -> None:
        """Refresh the lock; see Heartbeat. A failure is nothing to give up for, a loss is told."""
        with self._mutex:
            if self._is_releasing or self._loss is not None:
                return
            try:
                self._renew()
            except LockLostError as error:
                notice("%s", error.message)
            except SwampstoreError:
                return  # as long as the record is young nobody takes it; later `check` looks

    def check(self) -> None:
        """Raise LockLostError if the lock is known to be lost; ask only if that is long ago."""
        if self._loss is not None:
            raise self._loss
        if asleep_too() - self._proved >= self._ttl:
            self.verify()

    def verify(self, since: float = math.inf) -> None:
        """Prove by a write that the lock is ours at this moment; raise LockLostError if not.

        A write that began after the moment `since` (of `asleep_too`) is such a proof already, for
        as long as nobody can take the lock for stale: other clients that do shut nobody out.
        """
        with self._mutex:
            if self._loss is not None:
                raise self._loss
            is_young = asleep_too() - self._proved < self._ttl / 2
            if not self.is_borrowed and self._proved > since and is_young:
                return
            if self.is_borrowed:
                began = asleep_too()
                self._own_token()
                self._proved = began
            else:
                self._renew()

    def _renew(self) -> None:
        """Refresh the record, under the mutex."""
        assert self._record is not None
        assert self._token is not None
        for _ in range(_ATTEMPTS):
            began = asleep_too()
            self._record = self._record.renewed(system_clock())
            try:
                written = self._store.put_if_match(self.key, self._record.encode(), self._token)
            except PreconditionFailedError:
                # If it is ours after all, the answer to an earlier refresh was lost.
                self._token = self._own_token()
            else:
                self._token, self._proved = written.token, began
                return
        raise StoreUnreachableError(
            f"the lock {self.key} could not be refreshed", hint="Try again; nothing was lost."
        )

    def _own_token(self) -> str:
        """Return the token of our record as it is now; raise LockLostError if it is not there."""
        assert self._record is not None
        found, record = self._read()
        if found is not None and record is not None and record.nonce == self._record.nonce:
            assert found.info.token is not None
            return found.info.token
        now = "is gone" if found is None else f"is held by {record or 'somebody else'} now"
        self._loss = LockLostError(
            f"the lock {self.key} was lost: it {now}",
            hint="The data is safe here and marked as changed; the next sync brings it.",
        )
        raise self._loss

    def release(self) -> None:
        """Give the lock back. Never raises because it is lost, or the store does not answer."""
        self._is_releasing = True
        with self._taking:
            self._heartbeat.remove(self)
        with self._mutex:
            try:
                self._remove()
            except LockLostError as error:
                if self.is_held:
                    notice("%s", error.message)
                elif self._record is not None:
                    _ABANDONED.add(self._record.nonce)  # it may still be written
            except SwampstoreError as error:
                if self.is_held:
                    notice("the lock %s stays until it is stale: %s", self.key, error.message)
                elif self._record is not None:
                    _ABANDONED.add(self._record.nonce)
            self._record = self._token = None

    def _remove(self) -> None:
        if self._record is None or self.is_borrowed:
            return
        if self._is_stealing:  # whether it was, and nobody is shut out
            _ABANDONED.add(self._record.nonce)
            return
        if self._loss is not None:
            raise self._loss
        token = self._token
        for _ in range(_ATTEMPTS):
            token = token or self._own_token()
            try:
                remove(self._store, self.key, token, self._record, deletes=self._deletes)
            except PreconditionFailedError:
                token = None
            else:
                return


class Patience:
    """The pauses of one wait: growing, never the same for two who wait, none past the deadline."""

    def __init__(self, deadline: float) -> None:
        self._began = time.monotonic()
        self._deadline = deadline
        self._next = _FIRST
        self._is_told = False

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    @property
    def waited(self) -> float:
        """How many seconds have passed."""
        return time.monotonic() - self._began

    def notice(self, message: str, *details: object) -> None:
        """Say, once and after a while, what is being waited for."""
        if not self._is_told and self.waited >= _WORTH_TELLING:
            self._is_told = True
            notice(message, *details)

    def pause(self) -> None:
        """Wait a little longer than the last time."""
        import random

        self._sleep(self._next * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - no secret
        self._next = min(self._next * 1.5, _LONGEST)

    def step_back(self) -> None:
        """Wait after a lost race, so that the winner's next write is not raced as well."""
        import random

        self._sleep(random.uniform(*_AFTER_A_LOST_RACE))  # noqa: S311 - no secret

    def _sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self._deadline - time.monotonic())))


class Heartbeat:
    """One thread that refreshes locks every `interval` seconds, until they are removed.

    It lives as long as there is something to keep fresh, and never keeps a process alive.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._changed = threading.Condition()
        self._members: list[StoreLock] = []
        self._thread: threading.Thread | None = None

    def add(self, member: StoreLock) -> None:
        """Keep this fresh from now on."""
        with self._changed:
            self._members.append(member)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="swampstore-locks", daemon=True
                )
                self._thread.start()

    def remove(self, member: StoreLock) -> None:
        """Do not begin another beat of this one; one that has begun may still end."""
        with self._changed:
            if member in self._members:
                self._members.remove(member)
            self._changed.notify_all()

    def _run(self) -> None:
        while members := self._wait():
            for member in members:
                member.beat()

    def _wait(self) -> list[StoreLock]:
        """Return what is to be kept fresh after one interval, nothing once all is removed."""
        due = time.monotonic() + self._interval
        with self._changed:
            while self._members and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            if not self._members:
                self._thread = None
            return list(self._members)


# A few requests at the same time ---------------------------------------------------------------


T = TypeVar("T")


class Beside(Generic[T]):
    """One piece of work that another thread does meanwhile."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        try:
            threading.Thread(target=self._run, name="swampstore-beside", daemon=True).start()
        except RuntimeError:  # the process is about to end, and starts no threads any more
            self._run()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait for its end, whatever became of it.

        Whoever is interrupted waits all the same: what a request has written must be there for
        those who then tidy up. A second interruption is heard at once.
        """
        try:
            self._ended.wait()  # after an interrupted `join`, Python takes a thread for ended
        except BaseException:
            self._ended.wait()
            raise

    def result(self) -> T:
        """Wait for what it returns, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all of these at the same time; return what they return, in their order.

    All have come to an end when the first error is raised.
    """
    if not works:
        return []
    others = [Beside(work) for work in works[1:]]
    try:
        first = works[0]()
    finally:
        for other in others:
            other.wait()
    return [first, *(other.result() for other in others)]
