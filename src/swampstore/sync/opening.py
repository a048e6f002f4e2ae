"""Connecting an open repository with its remote: which store, which cache, who does what.

A cache and its remote are put together here, of parts that get what they work with. A job without
a cache puts its index together in `pipeline.index_writer`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from swampstore.artifacts.name_lock import Mutations
from swampstore.catalog.catalog import Catalog
from swampstore.clock import Clock, system_clock
from swampstore.config import Config
from swampstore.errors import LockTimeoutError
from swampstore.files import Tree, disk_errors, open_shared
from swampstore.files.hold import lock_until, try_lock
from swampstore.index.base import Base
from swampstore.index.path_map import Names
from swampstore.index.remote_index import open_index
from swampstore.index.state import ORIGIN
from swampstore.index.workers import AttentiveStore
from swampstore.layout import DataRef
from swampstore.locks.inspection import Deletions, ProvenStore
from swampstore.locks.manager import LockManager
from swampstore.stores import Store
from swampstore.stores.config import StoreConfig, store_config
from swampstore.stores.directory import open_later
from swampstore.stores.retry import RetryingStore
from swampstore.stores.wrapper import CountingStore
from swampstore.sync.access_times import Uses
from swampstore.sync.context import SyncContext
from swampstore.sync.dirty import DirtyTracker
from swampstore.sync.evict import CacheBound
from swampstore.sync.install import ArtifactInstaller, PlainInstaller
from swampstore.sync.service import CommitLock, SyncService

if TYPE_CHECKING:
    from swampstore.stores.config import Limits

_FILE = "_catalog.db-sync-lock"


class CacheLock:
    """The lock of one cache. Whoever holds it may enter it again."""

    def __init__(self, cache_dir: str, timeout: float) -> None:
        self._cache_dir = cache_dir
        self._timeout = timeout
        self._is_held = False

    @contextlib.contextmanager
    def holding(self, patience: float | None = None) -> Iterator[None]:
        """Wait for the lock, for `patience` seconds if that is longer than usual, and hold it."""
        if self._is_held:
            yield
            return
        with self._opened() as fd:
            self._wait(fd, max(patience or 0.0, self._timeout))
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    @contextlib.contextmanager
    def trying(self) -> Iterator[bool]:
        """Hold the lock if nobody does; say whether that is so."""
        with self._opened() as fd:
            yield try_lock(fd)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        with disk_errors(self._cache_dir):
            os.makedirs(self._cache_dir, exist_ok=True)
            path = f"{self._cache_dir}/{_FILE}"
            fd = open_shared(path)
        try:
            yield fd
        finally:
            os.close(fd)

    def _wait(self, fd: int, patience: float) -> None:
        if not lock_until(fd, time.monotonic() + patience):
            raise LockTimeoutError(
                f"another sync of {self._cache_dir} is running for over {patience:g} s",
                hint="Wait for it; SWAMP_LOCK_TIMEOUT_MS sets how long.",
            )


class OpenRepo(Protocol):
    """What sessions, syncs, the audit and other namespaces need of an open repository.

    `recorded` counts the events of the audit that were written by way of this object.
    """

    recorded: int

    @property
    def config(self) -> Config:
        """Its settings."""

    @property
    def clock(self) -> Clock:
        """What tells the time."""

    @property
    def tree(self) -> Tree:
        """Its files."""

    @property
    def catalog(self) -> Catalog:
        """The rows of its artifacts."""

    @property
    def mutations(self) -> Mutations:
        """The way of every change."""

    @property
    def dirty(self) -> DirtyTracker:
        """Which paths wait to be pushed."""

    @property
    def connection(self) -> Connection:
        """Its remote; raises SyncNotSupportedError if it has none."""

    @property
    def locks(self) -> LockManager:
        """The locks of its datastore."""

    def ready(self, *, complete: bool = False) -> None:
        """Heal what needs healing; with `complete`, also fill the catalog."""

    def refresh(self, ref: DataRef) -> None:
        """Make the rows of one name equal to what is on disk."""

    def rebuild_catalog(self) -> object:
        """Make all rows equal to what is on disk."""

    def export_catalog(self) -> bool:
        """Publish the rows for other namespaces, if that is due."""

    def seal_audit(self, *, everything: bool) -> None:
        """Let a push take events of the audit along: those that are due, or all of them."""


class SyncParts(NamedTuple):
    """What a sync is made of."""

    context: SyncContext
    uses: Uses
    cache_lock: CacheLock
    commit_lock: CommitLock

    def service(self) -> SyncService:
        """Put them together, without a limit of the cache."""
        bound = CacheBound(self.context, self.uses)
        return SyncService(self.context, self.cache_lock, bound, self.commit_lock)


class Connection(msgspec.Struct, frozen=True):
    """A cache and its remote. `counting` sees every request, repetitions included."""

    service: SyncService
    locks: LockManager
    store: RetryingStore
    counting: CountingStore
    base: Base
    names: Names
    parts: SyncParts

    def pushing_from(self, names: Names) -> SyncService:
        """Return what pushes files that are not in the cache yet, and changes none of them.

        What would have to be changed is not pushed, and told of by an IncompleteSyncError. It has
        the connections and files of this one, and is not closed.
        """
        parts = self.parts
        installer = parts.context.installer.refusing()
        context = replace(parts.context, names=names, installer=installer)
        return parts._replace(context=context).service()

    def close(self) -> None:
        """Give connections and files back."""
        self.service.close()


def connect(repo: OpenRepo) -> Connection:
    """Open the remote of a repository; nothing is sent yet.

    Raises ConfigError for settings that the store cannot use.
    """
    config, remote = repo.config, repo.config.remote
    assert remote is not None
    settings = store_config(remote.target, remote.config)
    opened, base = open_remote(config, settings)
    counting = CountingStore(opened)
    store = RetryingStore(counting)
    names = Names(config.base, config.namespace, config.routing)
    deletions = Deletions(store, base.fact, lambda facts: base.apply(facts=facts))
    locks = LockManager(
        store,
        config.namespace,
        timeout=config.locks.timeout,
        ttl=config.locks.ttl,
        deletions=deletions,
    )
    parts = sync_parts(
        ProvenStore(store, deletions),
        repo.dirty,
        base,
        names,
        ArtifactInstaller(repo.mutations, repo.catalog),
        limits=settings.limits,
        clock=repo.clock,
        lock_timeout=config.locks.timeout,
        commit_lock=locks.committing,
    )
    service = parts.service()
    service.lazy = remote.is_lazy
    service.limit_cache(remote.cache_limit)
    locks.on_steal = service.fence
    locks.before_global = service.holding_cache
    return Connection(service, locks, store, counting, base, names, parts)


def open_remote(config: Config, settings: StoreConfig) -> tuple[Store, Base]:
    """Return the store of a repository's remote, and what its cache knows of it."""
    store = open_later(settings, lambda: not base.is_empty() or base.fact(ORIGIN) is not None)
    base = Base(config.base, f"{store.identity}#{config.namespace}")
    return store, base


@contextlib.contextmanager
def _no_lock(meanwhile: Callable[[], None]) -> Iterator[Callable[[float], None]]:
    meanwhile()
    yield lambda _since: None


def sync_parts(
    store: Store,
    tracker: DirtyTracker,
    base: Base,
    names: Names,
    installer: PlainInstaller,
    *,
    limits: Limits,
    clock: Clock = system_clock,
    lock_timeout: float,
    commit_lock: CommitLock = _no_lock,
) -> SyncParts:
    """Return what a sync is made of.

    `lock_timeout` is how long to wait for another sync of the same cache, in seconds. A sync waits
    for as long as its own work may take, if that is longer.
    """
    waiting = AttentiveStore(store)
    index = open_index(waiting, names, base, clock=clock)
    context = SyncContext(waiting, names, base, tracker, installer, index, limits, clock)
    lock = CacheLock(names.cache_dir, lock_timeout)
    return SyncParts(context, Uses(names.cache_dir), lock, commit_lock)
