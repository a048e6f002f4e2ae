"""What a repository locks: some models, or everything, and the moment of a commit.

Whoever works on models locks those, says so in the registry, and then looks whether somebody
wants everything. Whoever wants everything takes the gate first, and then looks at the registry.
So one of them sees the other: the first gives way, the second waits until those who came before
it are done. The global lock is what older clients know. It is taken last and never held while
waiting for models, because those who have locked models need it for their commit.

Locks that are still held when the process ends are given back.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from functools import partial

from swampstore.errors import SwampstoreError, ValidationError
from swampstore.layout import ModelRef
from swampstore.locks.inspection import (
    Deletions,
    LockState,
    Registry,
    each,
    look,
    new_entry,
    register,
    timed_out,
)
from swampstore.locks.lock import Beside, Heartbeat, Patience, StoreLock, at_once, nothing
from swampstore.locks.process import holder_variable, is_of, new_record
from swampstore.locks.record import COMMIT, gate_key, global_key, model_key
from swampstore.stores.protocol import Store


class LockManager:
    """The locks of one repository in one namespace of a store; one session at a time.

    `timeout` is how many seconds a session waits until it has all its locks, `ttl` how long a
    lock lives without its holder. `walk` says that the store is a directory that is used in place,
    where locks are found by a walk (see `registry`). `deletions` tells whether locks that are given
    back are deleted. Assign `on_steal` (see StoreLock) and `before_global`, which is entered before
    the global lock is taken for everything, before use.

    A child process works inside the locks of a parent that says its pid in the environment.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        timeout: float,
        ttl: float,
        walk: bool = False,
        deletions: Deletions | None = None,
        environ: MutableMapping[str, str] = os.environ,
    ) -> None:
        self.store = store
        self.namespace = namespace
        self.walk = walk
        self.deletions = deletions or Deletions(store)
        self.on_steal: Callable[[], None] = nothing
        self.before_global: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
        self._timeout = timeout
        self.ttl = ttl
        self._variable = holder_variable(environ)
        self._gate = gate_key(namespace)
        self._global = global_key(namespace)
        self._registry = Registry(store, namespace, ttl=ttl, walk=walk)
        self._begin()

    def _begin(self) -> None:
        """Hold nothing."""
        self._pid = os.getpid()
        self._heartbeat = Heartbeat(self.ttl / 3)
        self._mutex = threading.Lock()
        self._owner: int | None = None
        self._is_flagged = False
        self._locks: dict[str, StoreLock] = {}
        self._entry: str | None = None
        self._models: frozenset[ModelRef] = frozenset()
        self._dropping: list[Beside[None]] = []

    def _forget_before_fork(self) -> None:
        """In the child of a fork this is a copy, and what it holds is the parent's."""
        if self._pid != os.getpid():
            self._begin()

    @property
    def held(self) -> list[str]:
        """The keys of the locks that are held."""
        return list(self._locks)

    def check(self) -> None:
        """Raise LockLostError if a lock is lost; asks the store only after a long silence."""
        for lock in list(self._locks.values()):
            lock.check()

    def verify(self, since: float = math.inf) -> None:
        """Prove that every lock is ours at this moment; raise LockLostError if one is not.

        What proved it after the moment `since` (of `asleep_too`) need not be proven again.
        """
        self._end_drops()
        at_once([partial(lock.verify, since) for lock in self._locks.values()])

    @contextlib.contextmanager
    def models(self, models: Iterable[ModelRef]) -> Iterator[None]:
        """Work on these models alone. Joins a session that has them, or everything, locked.

        Raises ValidationError inside a session for other models, LockTimeoutError.
        """
        wanted = sorted(set(models), key=str)
        if self._is_inside(wanted):
            yield
            return
        with self._session():
            self._enter(wanted, time.monotonic() + self._timeout)
            yield

    def _is_inside(self, wanted: list[ModelRef]) -> bool:
        """Whether there is nothing left to lock."""
        self._check_thread()
        missing = [model for model in wanted if model not in self._models]
        if not missing or self._gate in self._locks:
            return True
        if self._locks:
            raise ValidationError(
                f"{missing[0]} is not among the models that this session has locked",
                hint="Open one session for all of them.",
            )
        return False

    def _enter(self, wanted: list[ModelRef], deadline: float) -> None:
        while True:
            for model in wanted:
                self._take(model_key(self.namespace, model), deadline)
            if not self.walk:
                # Only now: an entry without any lock may be swept away.
                self._entry = new_entry(self.namespace)
                register(self.store, self._entry, wanted, new_record(self.ttl))
            obstacle = self._obstacle()
            if obstacle is None:
                self._models = frozenset(wanted)
                return
            self._leave()
            self._wait_for(obstacle, deadline)

    def _obstacle(self) -> LockState | None:
        """Return the lock of whoever wants everything, None if work may begin."""
        looks = [partial(self.inspect, key) for key in (self._gate, self._global)]
        for state in at_once(looks):
            if state is not None and self._blocks(state):
                return None if self._is_parent_inside() else state
        return None

    def _blocks(self, state: LockState) -> bool:
        if is_of(state.record, self._variable.parent()):
            return False
        if state.is_stale:
            return not self._break(state)
        return state.record is None or state.record.purpose != COMMIT

    def _is_parent_inside(self) -> bool:
        """Whether our parent has locked models: who wants everything waits for it, it for us."""
        parent = self._variable.parent()
        return parent is not None and any(
            is_of(state.record, parent) for _, state in self.locked_models()
        )

    def _wait_for(self, obstacle: LockState, deadline: float) -> None:
        patience = Patience(deadline)
        state: LockState | None = obstacle
        while state is not None and self._blocks(state):
            patience.notice("waiting for the lock %s, held by %s", state.key, state.holder)
            if patience.is_over:
                raise timed_out(state.key, state, patience.waited)
            patience.pause()
            state = self.inspect(obstacle.key)

    @contextlib.contextmanager
    def everything(self) -> Iterator[None]:
        """Work alone: wait until nobody has locked a model, and let nobody begin.

        Raises ValidationError inside a session for some models, LockTimeoutError.
        """
        self._check_thread()
        if self._gate in self._locks:
            yield
            return
        if self._locks:
            raise ValidationError(
                "a session that has locked some models cannot lock everything",
                hint="End it first.",
            )
        with self._session(), contextlib.ExitStack() as stack:
            deadline = time.monotonic() + self._timeout
            self._take(self._gate, deadline)
            self._take_global(stack, deadline)
            self._locks[self._gate].check()
            yield

    def _take_global(self, stack: contextlib.ExitStack, deadline: float) -> None:
        """Take the global lock at a moment when no model is locked."""
        strangers = self._strangers(self._registry.registered())
        while True:
            self._drain(strangers, deadline)
            stack.enter_context(self.before_global())
            stack.callback(self._drop, self._global)
            self._take(self._global, deadline)
            # A client that does not know the gate may have begun before the global lock was ours.
            # It does not register either, so this is a search; one is enough.
            strangers = self._strangers(self._registry.everywhere())
            if not strangers:
                return
            stack.close()

    def _drain(self, strangers: dict[ModelRef, LockState], deadline: float) -> None:
        """Wait until those at work, and all that come meanwhile, are done."""
        patience = Patience(deadline)
        while strangers:
            first = next(iter(strangers.values()))
            if patience.is_over:
                raise timed_out(first.key, first, patience.waited)
            patience.notice("waiting for the work of %s to end", first.holder)
            patience.pause()
            strangers = self._strangers(self._registry.registered(strangers))

    def _strangers(self, locks: list[tuple[ModelRef, LockState]]) -> dict[ModelRef, LockState]:
        """Return the locks of models whose holders may be at work; stale ones are removed."""
        parent = self._variable.parent()
        others = [one for one in self._tidied(locks) if not is_of(one[1].record, parent)]
        return {
            model: state for model, state in others if not (state.is_stale and self._break(state))
        }

    def locked_models(
        self, models: Iterable[ModelRef] | None = None
    ) -> list[tuple[ModelRef, LockState]]:
        """Return which of these models (None: of all) are locked, by whatever client.

        Stale locks are among them. Costs a request for each model; for all of them a listing of
        all data, which is a request for each thousand objects.
        """
        found = self._registry.everywhere() if models is None else self._registry.of(models)
        return self._tidied(found)

    def registered_models(self) -> list[tuple[ModelRef, LockState]]:
        """Return which models sessions of swampstore tell to have locked: a cheap look."""
        return self._tidied(self._registry.registered())

    def inspect(self, key: str) -> LockState | None:
        """Return the state of a lock, None if nobody holds it."""
        state = look(self.store, key, ttl=self.ttl)
        if state is None or not state.is_free:
            return state
        self._tidy([state])
        return None

    def _tidied(self, locks: list[tuple[ModelRef, LockState]]) -> list[tuple[ModelRef, LockState]]:
        self._tidy([state for _, state in locks if state.is_free])
        return [(model, state) for model, state in locks if not state.is_free]

    def _tidy(self, free: list[LockState]) -> None:
        """Delete records of locks that were given back, where none are left behind any more.

        Other clients take such a record for a stale lock, and delete what is in its place by then.
        """
        if free and self.deletions.is_known and self.deletions.are_proven():
            each(self._delete, free)

    def _delete(self, state: LockState) -> None:
        with contextlib.suppress(SwampstoreError):
            self.store.delete_if_match(state.key, state.token)

    def force_release(self, key: str, nonce: str | None) -> bool:
        """Remove a lock whoever holds it, if it still has this nonce (None: cannot be read).

        Returns False if it is gone or somebody else's by now. Its holder is shut out like one
        whose lock was stale.
        """
        state = self.inspect(key)
        return state is not None and state.nonce == nonce and self._break(state)

    def _break(self, state: LockState) -> bool:
        """Remove a lock, so that its holder, if it comes back, knows; False if it is another."""
        lock = self._new_lock(state.key)
        try:
            return lock.take_over(state)
        finally:
            lock.release()

    @contextlib.contextmanager
    def committing(self, meanwhile: Callable[[], None] = nothing) -> Iterator[Callable[..., None]]:
        """Hold the global lock while something is committed, inside or outside of a session.

        `meanwhile` is done while the lock is taken; the block begins when both are done. Yields
        `verify`, to be called after the document to replace was read and before it is replaced.
        Raises LockTimeoutError. If the block ends without knowing whether its last request is
        still under way, no lock is given back: each has to be taken over, and whoever does that
        sees to it that the request comes too late. If it is interrupted and the store answers, we
        do that ourselves, and nobody has to wait.
        """
        self._check_thread()
        if self._global in self._locks:
            meanwhile()
            with self._giving_up_if_unsure():
                yield self.verify
            return
        with self._session():
            try:
                self._take_for_commit(meanwhile)
                with self._giving_up_if_unsure():
                    yield self.verify
            finally:
                self._drop_meanwhile(self._global)

    def _take_for_commit(self, meanwhile: Callable[[], None]) -> None:
        """Take the global lock, and have the others proven by the time that it is ours."""
        works: list[Callable[[], object]] = [lock.verify for lock in self._locks.values()]
        lock = self._begin_to_take(self._global, COMMIT)
        # Whoever has to wait, or to take it over, does that where an interruption is heard.
        requests = Beside(partial(at_once, [*works, lock.acquire_if_free]))
        try:
            meanwhile()
        finally:
            requests.wait()
        requests.result()
        self._take_on(lock, time.monotonic() + self._timeout)

    @contextlib.contextmanager
    def _giving_up_if_unsure(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionError, TimeoutError):
            self._give_up()
            raise
        except Exception:
            raise
        except BaseException:  # an interruption
            if not self._shuts_itself_out():
                self._give_up()
            raise

    def _give_up(self) -> None:
        for lock in self._locks.values():
            lock.abandon()
        self._entry = None  # it has to lead others to the locks

    def _shuts_itself_out(self) -> bool:
        """Whether what this process may have sent and not heard of comes too late from now on."""
        try:
            self.on_steal()
        except BaseException:  # noqa: BLE001 - the interruption is what is told
            return False
        return True

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        """Own the manager; the outermost session gives everything back at its end."""
        self._forget_before_fork()
        with self._mutex:
            self._check_thread()
            is_outermost = self._owner is None
            self._owner = threading.get_ident()
        if not is_outermost:
            yield
            return
        release_at_exit(self)
        try:
            yield
        finally:
            self.release()

    def _check_thread(self) -> None:
        self._forget_before_fork()
        if self._owner not in {None, threading.get_ident()}:
            raise ValidationError(
                "another thread has a session with these locks",
                hint="Open the repository once per thread.",
            )
        self._end_drops()

    def release(self) -> None:
        """Give everything back and end the session. Raises nothing for what cannot be."""
        self._leave()
        if self._is_flagged:
            self._is_flagged = False
            self._variable.lower_flag()
        self._owner = None

    def _leave(self) -> None:
        """Give all locks back, and the entry that tells of them."""
        self._forget_before_fork()
        self._models = frozenset()
        # The work is done, and nobody has to see the one go before the other.
        works: list[Callable[[], None]] = [partial(self._drop, key) for key in reversed(self.held)]
        at_once([*works, self._delete_entry])
        self._end_drops()

    def _delete_entry(self) -> None:
        if self._entry is not None:
            with contextlib.suppress(SwampstoreError):
                self.store.delete(self._entry)
        self._entry = None

    def _take(self, key: str, deadline: float) -> None:
        self._take_on(self._begin_to_take(key), deadline)

    def _begin_to_take(self, key: str, purpose: str = "") -> StoreLock:
        """Return a lock to be taken.

        It is among the held ones at once: an interrupted attempt may leave a record to remove.
        """
        self._end_drops()
        lock = self._locks[key] = self._new_lock(key, purpose=purpose)
        return lock

    def _take_on(self, lock: StoreLock, deadline: float) -> None:
        lock.acquire(deadline)
        # Who only borrows leaves the variable alone: children then borrow from the same process.
        if not lock.is_borrowed and not self._is_flagged:
            self._is_flagged = True
            self._variable.raise_flag()

    def _drop(self, key: str) -> None:
        self._forget_before_fork()
        lock = self._locks.get(key)
        if lock is not None:
            lock.release()
            self._locks.pop(key, None)

    def _drop_meanwhile(self, key: str) -> None:
        """Give a lock back without waiting for it; the next that is taken waits."""
        self._forget_before_fork()
        if key in self._locks:
            self._dropping.append(Beside(partial(self._drop, key)))

    def _end_drops(self) -> None:
        while self._dropping:
            self._dropping.pop().wait()

    def _new_lock(self, key: str, *, purpose: str = "") -> StoreLock:
        return StoreLock(
            self.store,
            key,
            ttl=self.ttl,
            on_steal=self.on_steal,
            heartbeat=self._heartbeat,
            parent=self._variable.parent(),
            purpose=purpose,
            deletes=self.deletions.are_proven(),
        )


_HOLDERS: weakref.WeakSet[LockManager] = weakref.WeakSet()


def release_at_exit(holder: LockManager) -> None:
    """Remember a holder until it is gone."""
    # The last to register is the first to run: before anything that a release needs is shut down.
    atexit.unregister(release_all)
    atexit.register(release_all)
    _HOLDERS.add(holder)


def release_all() -> None:
    """Give back what anybody in this process holds."""
    for holder in list(_HOLDERS):
        holder.release()
