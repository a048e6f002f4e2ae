"""Syncing one cache with its remote: the object that hosts and the command line talk to.

One sync of a cache runs at a time on a machine; marking, reading and hydrating go on meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from swampstore.clock import Clock, system_clock, to_iso
from swampstore.errors import LockTimeoutError
from swampstore.files import disk_errors
from swampstore.layout import DATASTORE_SUBDIRS, ModelRef
from swampstore.stores import Store
from swampstore.sync.base import Base
from swampstore.sync.dirty import DirtyTracker
from swampstore.sync.downloads import sweep_staging
from swampstore.sync.errors import WrongNamespaceError
from swampstore.sync.index_format import Entry
from swampstore.sync.landing import Landing
from swampstore.sync.names import Names
from swampstore.sync.partitions import Scope, partition_of
from swampstore.sync.parts import Parts
from swampstore.sync.previewing import preview
from swampstore.sync.pull import Pull, take_remote
from swampstore.sync.pull_plan import PullPlanner
from swampstore.sync.push import PreparedPush, Push
from swampstore.sync.remote import Migrated, RemoteIndex, State
from swampstore.sync.report import (
    Preview,
    Progress,
    Pulled,
    Pushed,
    SyncCapabilities,
    SyncStatus,
    no_progress,
)
from swampstore.sync.signature import signature
from swampstore.sync.waiting import AttentiveStore
from swampstore.sync.workers import Deadline

if TYPE_CHECKING:
    from swampstore.stores.config_fields import Limits

_LOCK = "_catalog.db-sync-lock"
_PAUSE = 0.05


class SyncService:
    """Keeps one cache and its remote equal. Use it in a `with` block, or call `close()`.

    `lock_timeout` is how long to wait for another sync of the same cache, in seconds.
    """

    def __init__(
        self,
        store: Store,
        tracker: DirtyTracker,
        base: Base,
        names: Names,
        landing: Landing,
        *,
        limits: Limits,
        clock: Clock = system_clock,
        lock_timeout: float = 60.0,
    ) -> None:
        self._store = AttentiveStore(store)
        index = RemoteIndex(self._store, names, base, clock=clock)
        self._parts = Parts(self._store, names, base, tracker, landing, index, limits, clock)
        self._lock_timeout = lock_timeout

    def capabilities(self) -> SyncCapabilities:
        """Say what this service can do."""
        return SyncCapabilities()

    def bind(self, namespace: str) -> None:
        """Check that the caller means the namespace this service works on."""
        if namespace != self._parts.names.namespace:
            raise WrongNamespaceError(
                f"this cache is bound to the namespace {self._parts.names.namespace!r},"
                f" not to {namespace!r}",
                hint="Open the repository with the namespace you mean.",
            )

    def mark_dirty(self, path: str | None = None) -> None:
        """Remember, before it changes, that a path changes; None means anything might."""
        self._parts.tracker.mark(path)

    def push(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        full: bool = False,
        deadline: float | None = None,
        progress: Progress = no_progress,
    ) -> Pushed:
        """Bring what changed here to the remote: what was marked, or with `full` everything.

        `models` limits it to those models; the other marks stay. `deadline` is in seconds. Raises
        IncompleteSyncError if some files could not be sent, StoreError if nothing could; what is
        not on the remote stays marked.
        """
        with self._alone(deadline):
            scope = _scope(models)
            if not full and self._has_nothing_to_push():
                return Pushed()
            self._start_over_if_made_anew()
            push = self._push(scope, full=full, progress=progress)
            pushed = push.commit(push.prepare())
            self._note_verified()
            return pushed

    def prepare_push(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        full: bool = False,
        deadline: float | None = None,
        progress: Progress = no_progress,
    ) -> PreparedPush:
        """Upload what changed and leave the index alone; `commit_push` makes it visible.

        Needs no lock that excludes other machines; the commit does, and is short.
        """
        with self._alone(deadline):
            self._start_over_if_made_anew()
            push = self._push(_scope(models), full=full, progress=progress)
            return push.prepare()

    def commit_push(
        self,
        prepared: PreparedPush,
        *,
        deadline: float | None = None,
        progress: Progress = no_progress,
    ) -> Pushed:
        """Put what was prepared into the index as it is now, and settle the marks."""
        with self._alone(deadline):
            push = self._push(prepared.scope, full=False, progress=progress)
            pushed = push.commit(prepared)
            self._note_verified()
            return pushed

    def pull(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        metadata_only: bool = False,
        full: bool = False,
        deadline: float | None = None,
        progress: Progress = no_progress,
    ) -> Pulled:
        """Bring what changed elsewhere into the cache; local work is never overwritten.

        `models` limits it to everything of those models. `metadata_only` leaves content on the
        remote until it is read. `full` compares every file instead of what changed, and so
        restores what was removed from the cache. Raises IncompleteSyncError if some files could
        not be had; the others are here.
        """
        with self._alone(deadline):
            scope = _scope(models)
            full = full or self._is_wiped()
            if not full and self._is_current(scope, metadata_only):
                return Pulled()
            if self._start_over_if_made_anew():
                return Pulled()
            sweep_staging(self._parts.names, time.time())
            if metadata_only:
                self._announce_absences()
            planner = self._planner(scope, metadata_only=metadata_only, full=full)
            pull = Pull(self._parts, planner, deadline=self._store.deadline, tell=progress)
            pulled = pull.run()
            self._note_verified()
            return pulled

    def hydrate(self, path: str) -> bool:
        """Fetch the content of one path that is not here; False if the remote has none.

        `path` may have the namespace in front, as marks do.
        """
        names = self._parts.names
        rel = names.rel_of_mark(path) or path
        if signature(names.local(rel)) is not None:
            return True
        if names.why_not(rel):
            return False
        known = self._parts.base.get(rel)
        if known is None:
            entry = self._parts.index.view([partition_of(rel)]).entry(rel)
        else:
            entry = Entry(known.size, known.modified, known.sha256)
        return entry is not None and take_remote(self._parts, rel, entry, None)

    def preview(self, models: Iterable[ModelRef] | None = None, *, full: bool = False) -> Preview:
        """Say what a sync would do, by path; nothing is changed anywhere."""
        with self._alone():
            scope = _scope(models)
            push = self._push(scope, full=full, progress=no_progress)
            return preview(push, self._planner(scope, metadata_only=False, full=full))

    def migrate_index(self) -> Migrated:
        """Make the remote's index the sharded one; on a sharded one, check and heal it."""
        with self._alone():
            return self._parts.index.migrate()

    def status(self) -> SyncStatus:
        """Say how the cache stands to its remote, without asking the remote."""
        parts = self._parts
        marked = parts.tracker.peek()
        version = parts.base.fact("index_version")
        commit_seq = parts.base.fact("commit_seq")
        return SyncStatus(
            identity=parts.store.identity,
            namespace=parts.names.namespace,
            cache_dir=parts.names.cache_dir,
            files=parts.base.count(),
            bytes=parts.base.total_bytes(),
            not_hydrated=parts.base.not_held(),
            dirty_paths=marked.paths,
            needs_full_walk=marked.bulk,
            index_version=int(version) if version else None,
            commit_seq=int(commit_seq) if commit_seq else None,
            last_verified=parts.base.fact("verified_at"),
        )

    def close(self) -> None:
        """Give the base and the store back."""
        self._parts.base.close()
        self._parts.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _push(self, scope: Scope | None, *, full: bool, progress: Progress) -> Push:
        return Push(self._parts, scope, full=full, deadline=self._store.deadline, tell=progress)

    def _planner(self, scope: Scope | None, *, metadata_only: bool, full: bool) -> PullPlanner:
        return PullPlanner(
            self._parts,
            scope,
            metadata_only=metadata_only,
            full=full,
            deadline=self._store.deadline,
        )

    def _has_nothing_to_push(self) -> bool:
        """Whether nothing is marked, and the remote is not an empty one that needs everything."""
        parts = self._parts
        if not parts.tracker.peek().is_empty or parts.base.doomed():
            return False
        return parts.index.is_unchanged() or not self._start_over_if_made_anew()

    def _start_over_if_made_anew(self) -> bool:
        """Mark everything if the remote is not the one it was; return whether it holds nothing.

        Somebody emptied it, and others may have begun to fill it again. Then what is missing there
        was not deleted: nobody deleted anything.
        """
        base = self._parts.base
        before = (base.fact("index_version"), base.fact("commit_seq"), base.fact("origin"))
        state = self._parts.index.refresh()
        if base.count() and (not state.exists or _is_another(state, *before)):
            base.clear()
            self._parts.tracker.mark(None)
            return not state.exists
        return False

    def _is_current(self, scope: Scope | None, metadata_only: bool) -> bool:
        if not self._parts.index.is_unchanged(scope):
            return False
        return metadata_only or not self._parts.base.not_held()

    def _is_wiped(self) -> bool:
        """Whether a whole directory that the base knows files in is gone from the cache."""
        return any(
            not os.path.lexists(self._parts.names.local(name))
            and any(known.held for known in self._parts.base.below(name))
            and not self._parts.tracker.covers(self._parts.names.mark(name))
            for name in DATASTORE_SUBDIRS
        )

    def _announce_absences(self) -> None:
        """Tell other clients on this cache, before it is so, that absence is no deletion here."""
        last = self._parts.base.fact("verified_at") or ""
        self._parts.tracker.verified(fingerprint=None, commit_seq=None, lazy=True, at=last)

    def _note_verified(self) -> None:
        """Note when the cache was compared with the remote, also for other clients on it."""
        parts = self._parts
        now = to_iso(parts.clock())
        parts.base.apply(facts={"verified_at": now})
        proof = parts.index.proof()
        parts.tracker.verified(
            fingerprint=proof.fingerprint,
            commit_seq=proof.commit_seq,
            lazy=bool(parts.base.not_held()),
            at=max(now, proof.not_before),
        )

    @contextlib.contextmanager
    def _alone(self, deadline: float | None = None) -> Iterator[None]:
        """Hold the cache, so that one sync at a time runs on it; then the time starts to run."""
        cache = self._parts.names.cache_dir
        with disk_errors(cache):
            os.makedirs(cache, exist_ok=True)
            fd = os.open(f"{cache}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait(fd)
            self._store.deadline = Deadline(deadline)
            yield
        finally:
            self._store.deadline = Deadline()
            os.close(fd)

    def _wait(self, fd: int) -> None:
        end = time.monotonic() + self._lock_timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise LockTimeoutError(
                        f"another sync of {self._parts.names.cache_dir} is running for over"
                        f" {self._lock_timeout:g} s",
                        hint="Wait for it; SWAMP_LOCK_TIMEOUT_MS sets how long.",
                    ) from None
                time.sleep(_PAUSE)
            else:
                return


def _scope(models: Iterable[ModelRef] | None) -> Scope | None:
    if models is None:
        return None
    chosen = list(models)
    return Scope(chosen) if chosen else None


def _is_another(
    state: State, version: str | None, commit_seq: str | None, origin: str | None
) -> bool:
    """Whether an index is not the one it was: another origin, or numbers that went back."""
    if state.meta and state.meta.origin and origin and state.meta.origin != origin:
        return True
    if version is not None and state.version < int(version):
        return True
    if state.commit_seq is None or commit_seq is None:
        return False
    return state.commit_seq < int(commit_seq)
