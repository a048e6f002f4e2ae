"""Syncing one cache with its remote: the object that hosts and the command line talk to.

One sync of a cache runs at a time on a machine; marking, reading and hydrating go on meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Self

from swampstore.clock import to_iso
from swampstore.files.signature import signature
from swampstore.index.errors import (
    IncompleteSyncError,
    MadeAnewError,
    WrongNamespaceError,
)
from swampstore.index.partitions import Scope
from swampstore.index.path_kinds import goes_with_any_push
from swampstore.index.results import (
    Preview,
    Progress,
    Pulled,
    Pushed,
    SyncCapabilities,
    SyncStatus,
    no_progress,
)
from swampstore.index.state import Migrated
from swampstore.index.workers import Deadline
from swampstore.layout import ModelRef
from swampstore.locks.lock import nothing
from swampstore.sync.context import SyncContext
from swampstore.sync.deletions import remove_from_remote
from swampstore.sync.downloads import sweep_staging
from swampstore.sync.evict import CacheBound, Evicted
from swampstore.sync.hydrate import Hydrated, Hydration, hydrate
from swampstore.sync.lost_base import LOST
from swampstore.sync.pull import Pull
from swampstore.sync.pull_plan import PullPlanner, preview_of
from swampstore.sync.push import Push
from swampstore.sync.push_plan import PreparedPush
from swampstore.sync.start_over import is_wiped, start_over_if_made_anew
from swampstore.sync.transfer import THREADS, Transport
from swampstore.sync.unmigrated import check_migrated
from swampstore.telemetry import traced

if TYPE_CHECKING:
    from swampstore.sync.opening import CacheLock

# For the time of a commit, keeps others from committing, and does something while it comes to
# that; yields what is called, right before the write that counts, to make sure that this still
# holds.
CommitLock = Callable[[Callable[[], None]], AbstractContextManager[Callable[[float], None]]]


class SyncService:
    """Keeps one cache and its remote equal. Use it in a `with` block, or call `close()`.

    `lazy` says what pulls do with content that do not say it themselves: they leave it on the
    remote.
    """

    def __init__(
        self,
        context: SyncContext,
        cache_lock: CacheLock,
        bound: CacheBound,
        commit_lock: CommitLock,
    ) -> None:
        self.lazy = False
        self._context = context
        self._store = context.store
        self._cache_lock = cache_lock
        self._commit_lock = commit_lock
        self._bound = bound

    def is_alone(self) -> bool:
        """Whether the remote has nothing that the base does not know, and nothing was removed here.

        So nothing has to be fetched or deleted before everything that is here can be shared.
        """
        context = self._context
        if context.tracker.peek().removals or context.base.fact(LOST) is not None:
            return False
        with self._alone():
            if context.base.is_empty():
                return not context.index.refresh().exists
            return context.index.is_unchanged()

    def capabilities(self) -> SyncCapabilities:
        """Say what this service can do."""
        return SyncCapabilities()

    def bind(self, namespace: str) -> None:
        """Check that the caller means the namespace this service works on."""
        if namespace != self._context.names.namespace:
            raise WrongNamespaceError(
                f"this cache is bound to the namespace {self._context.names.namespace!r},"
                f" not to {namespace!r}",
                hint="Open the repository with the namespace you mean.",
            )

    def mark_dirty(self, path: str | None = None) -> None:
        """Remember, before it changes, that a path changes; None means anything might."""
        self._context.tracker.mark(path)

    def is_marked(self, models: Iterable[ModelRef] | None = None) -> bool:
        """Whether something (of these models) waits to be pushed; asks nobody.

        What goes with any push is not counted for models: whoever pushes next takes it along.
        """
        marked = self._context.tracker.peek()
        scope = _scope(models)
        if marked.bulk or scope is None:
            return not marked.is_empty
        rels = map(self._context.names.rel_of_mark, marked.paths)
        return any(rel and scope.meets(rel) and not goes_with_any_push(rel) for rel in rels)

    @traced("push")
    def push(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        full: bool = False,
        deadline: float | None = None,
        progress: Progress = no_progress,
        transport: Transport = THREADS,
    ) -> Pushed:
        """Bring what changed here to the remote: what was marked, or with `full` everything.

        `models` limits it to those models; the other marks stay. `deadline` is in seconds, and
        `transport` is who takes the files there. Raises IncompleteSyncError if some files could not
        be sent, StoreError if nothing could; what is not on the remote stays marked.
        """
        with self._alone(deadline):
            scope = _scope(models)
            if not full and self._has_nothing_to_push():
                return Pushed()
            self._check_migrated()

            def work(*, recalling: bool) -> Pushed:
                start_over_if_made_anew(self._context, recalling=recalling)
                push = self._push(scope, full=full, progress=progress, transport=transport)
                return self._commit(push, push.prepare(leaving_little=True))

            try:
                return work(recalling=not full)
            except MadeAnewError:  # since it was last looked at
                return work(recalling=False)

    def prepare_push(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        full: bool = False,
        deadline: float | None = None,
        progress: Progress = no_progress,
    ) -> PreparedPush:
        """Upload what changed and leave the index alone; `commit_push` makes it visible.

        Needs no lock that excludes other machines; the commit takes it, and is short.
        """
        with self._alone(deadline):
            self._check_migrated()

            def work() -> PreparedPush:
                start_over_if_made_anew(self._context)
                return self._push(_scope(models), full=full, progress=progress).prepare()

            try:
                return work()
            except MadeAnewError:  # a document is lost, as it turned out
                return work()

    def _check_migrated(self) -> None:
        """Raise UnmigratedDataError if a namespace was set, and data has not moved there yet."""
        check_migrated(self._context.names.cache_dir, self._context.names.namespace)

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
            try:
                return self._commit(push, prepared)
            except MadeAnewError:  # since that was prepared
                start_over_if_made_anew(self._context)
                return self._commit(push, push.prepare())

    def _commit(self, push: Push, prepared: PreparedPush) -> Pushed:
        if prepared.view is None:  # nothing that concerns others
            pushed = push.commit(prepared)
        else:
            upload = partial(push.upload_rest, prepared)
            with self._commit_lock(upload) as guard, self._context.index.guarded(guard):
                pushed = push.commit(prepared)
        self._bound.grew(pushed.bytes)
        self._note_verified()
        return pushed

    @traced("pull")
    def pull(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        metadata_only: bool | None = False,
        full: bool = False,
        certain: bool = False,
        deadline: float | None = None,
        progress: Progress = no_progress,
        transport: Transport = THREADS,
    ) -> Pulled:
        """Bring what changed elsewhere into the cache; local work is never overwritten.

        `models` limits it to everything of those models. `metadata_only` leaves content on the
        remote until it is read, None: if the cache is `lazy`. `full` compares every file instead
        of what changed, and so restores what was removed from the cache. `certain` also asks for
        the documents that others rarely write alone, and that are else asked for once in a while.
        `transport` is who brings the files. Raises IncompleteSyncError if some could not be had;
        the others are here.
        """
        metadata_only = self._leaves_content(metadata_only)
        with self._alone(deadline):
            scope = _scope(models)
            full = full or is_wiped(self._context)
            if not (full or certain) and self._is_current(scope, metadata_only):
                return Pulled()
            if start_over_if_made_anew(self._context):
                return Pulled()
            if metadata_only:
                last = self._context.base.fact("verified_at") or ""
                self._context.tracker.announce_absences(at=last)
            planner = self._planner(scope, metadata_only=metadata_only, full=full)
            pull = Pull(
                self._context,
                planner,
                deadline=self._store.deadline,
                progress=progress,
                transport=transport,
            )
            pulled = pull.run()
            # After it: what is left there tells it what had been installed.
            sweep_staging(self._context.names, time.time())
            self._bound.grew(pull.content_bytes)
            self._note_verified()
            return pulled

    def hydrate(self, path: str) -> bool:
        """Fetch the content of one path that is not here; False if the remote has none.

        `path` may have the namespace in front, as marks do. Raises ContentOutdatedError if others
        have changed it since the last pull.
        """
        names = self._context.names
        rel = names.rel_of_mark(path) or path
        if signature(names.local(rel)) is not None:
            return True
        size = hydrate(self._context, rel)
        if size is None:
            return False
        self._grew(size, frozenset([rel]))
        return True

    def hydrate_many(
        self,
        paths: Iterable[str],
        deadline: float | None = None,
        progress: Progress = no_progress,
    ) -> Hydrated:
        """Fetch the content of many paths at once; what is here already costs no request.

        Whatever arrives is verified, and kept if this is stopped. Raises IncompleteSyncError if
        some could not be had, StoreUnreachableError if nobody answers.
        """
        names = self._context.names
        rels = [names.rel_of_mark(path) or path for path in paths]
        self._bound.used(rels)
        hydration = Hydration(self._context, deadline=Deadline(deadline), progress=progress)
        hydrated = hydration.run(rels)
        self._grew(hydrated.bytes, frozenset(rels))
        return hydrated

    def evict(self, target: int | None = None, *, dry_run: bool = False) -> Evicted:
        """Give up content that the remote has as well until `target` bytes of it are left here.

        What was used last stays. None: somewhat less than the limit of the cache, and without a
        limit nothing. Nothing goes that is marked, or not known to be on the remote.
        """
        chosen = self._bound.target if target is None else target
        if chosen is None:
            return Evicted(held=self._context.base.content_bytes())
        with self._alone():
            return self._bound.preview(chosen) if dry_run else self._bound.evict(chosen)

    def limit_cache(self, limit: int | None) -> None:
        """Keep no more than so many bytes of content here that the remote has as well.

        Checked after everything that brings content in; None: there is no limit.
        """
        self._bound.limit = limit

    def preview(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        metadata_only: bool | None = False,
        full: bool = False,
    ) -> Preview:
        """Say what a sync would do, by path; nothing is changed anywhere."""
        metadata_only = self._leaves_content(metadata_only)
        with self._alone():
            scope = _scope(models)
            push = self._push(scope, full=full, progress=no_progress)
            planner = self._planner(scope, metadata_only=metadata_only, full=full)
            return preview_of(push.plan(), planner.plan())

    def migrate_index(self) -> Migrated:
        """Make the remote's index the sharded one; on a sharded one, check and heal it.

        What is lost of it is made anew by a push of everything that is here: so this cache knows
        what others have from then on, and what they delete.
        """
        self._context.tracker.peek()  # raises if a newer release works with this cache
        with self._alone():
            try:
                return self._migrate_index()
            except MadeAnewError:
                with contextlib.suppress(IncompleteSyncError):  # what is not sent stays marked
                    self.push(full=True)
                return self._migrate_index()

    def _migrate_index(self) -> Migrated:
        with self._commit_lock(nothing) as guard, self._context.index.guarded(guard):
            return self._context.index.migrate()

    def remove(self, tokens: Mapping[str, str | None]) -> None:
        """Take paths off the remote, index and objects, although this cache never held them.

        Objects that do not have the given token (None: any, but not another than a stopped push of
        ours has left there) stay. Files in the cache stay. Raises IndexMovedError if others change
        the same paths meanwhile.
        """
        with self._alone(), self._commit_lock(nothing) as guard, self._context.index.guarded(guard):
            remove_from_remote(self._context, tokens, self._store.deadline)

    def fence(self) -> None:
        """Make every commit that others have begun fail; for whoever took their lock."""
        self._context.index.fence()

    def version_without_meta(self) -> int | None:
        """Return which version the documents of the index show where `_meta.json` is lost."""
        return self._context.index.version_without_meta()

    def status(self) -> SyncStatus:
        """Say how the cache stands to its remote, without asking the remote."""
        context = self._context
        marked = context.tracker.peek()
        version, commit_seq, last_verified = context.base.facts(
            "index_version", "commit_seq", "verified_at"
        )
        return SyncStatus(
            identity=context.store.identity,
            namespace=context.names.namespace,
            cache_dir=context.names.cache_dir,
            files=context.base.count(),
            bytes=context.base.total_bytes(),
            not_hydrated=context.base.not_held(),
            content_bytes=context.base.content_bytes(),
            dirty_paths=marked.paths,
            needs_full_walk=marked.bulk,
            index_version=int(version) if version else None,
            commit_seq=int(commit_seq) if commit_seq else None,
            last_verified=last_verified,
        )

    def close(self) -> None:
        """Give the base and the store back."""
        self._bound.close()
        self._context.base.close()
        self._context.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _push(
        self,
        scope: Scope | None,
        *,
        full: bool,
        progress: Progress,
        transport: Transport = THREADS,
    ) -> Push:
        return Push(
            self._context,
            scope,
            full=full,
            deadline=self._store.deadline,
            progress=progress,
            transport=transport,
        )

    def _planner(self, scope: Scope | None, *, metadata_only: bool, full: bool) -> PullPlanner:
        return PullPlanner(
            self._context,
            scope,
            metadata_only=metadata_only,
            full=full,
            deadline=self._store.deadline,
        )

    def _leaves_content(self, metadata_only: bool | None) -> bool:
        """Whether a pull leaves content on the remote: what its caller says, else the cache."""
        return self.lazy if metadata_only is None else metadata_only

    def _has_nothing_to_push(self) -> bool:
        """Whether nothing is marked, and the remote is not an empty one that needs everything."""
        context = self._context
        if not context.tracker.peek().is_empty or context.base.pending_deletes():
            return False
        if context.index.is_unchanged():
            return True
        # Where everything starts over, everything is marked.
        return not start_over_if_made_anew(context) and context.tracker.peek().is_empty

    def _is_current(self, scope: Scope | None, metadata_only: bool) -> bool:
        if not self._context.index.is_unchanged(scope):
            return False
        return metadata_only or not self._context.base.lacks_content()

    def _note_verified(self) -> None:
        """Note when the cache was compared with the remote, also for other clients on it."""
        context = self._context
        now = to_iso(context.clock())
        context.base.apply(facts={"verified_at": now})
        proof = context.index.proof()
        context.tracker.verified(
            fingerprint=proof.fingerprint,
            commit_seq=proof.commit_seq,
            lazy=context.base.lacks_content(),
            at=max(now, proof.not_before),
        )

    @contextlib.contextmanager
    def _alone(self, deadline: float | None = None) -> Iterator[None]:
        """Hold the cache, so that one sync at a time runs on it; then the time starts to run.

        What the dead left half done is finished or undone first: neither may be shared.
        """
        with self.holding_cache(deadline):
            self._context.installer.recover()
            self._context.index.forget_look()
            self._store.deadline = Deadline(deadline)
            try:
                yield
            finally:
                self._store.deadline = Deadline()

    def holding_cache(self, patience: float | None = None) -> AbstractContextManager[None]:
        """Let nobody else sync this cache meanwhile. Within it, everything here still works.

        Take it before any lock that other machines wait for, never after.
        """
        return self._cache_lock.holding(patience)

    def _grew(self, size: int, keep: frozenset[str]) -> None:
        """Keep the cache within its limit after reading, unless somebody is syncing it now."""
        if self._bound.limit is None:
            return
        with self._cache_lock.trying() as is_held:
            if is_held:  # a reader does not wait for that; whoever comes next evicts
                self._bound.grew(size, keep)


def _scope(models: Iterable[ModelRef] | None) -> Scope | None:
    chosen = list(models or ())
    return Scope(chosen) if chosen else None
