"""Working on a datastore that others work on too: lock, pull, work, push, unlock.

    with repo.session(["aws/ec2/i-1"]) as session:
        repo.artifacts.save("aws/ec2/i-1", "state", {...})

A session holds the locks of its models (or, structural, the lock of everything) for as long as the
block runs, starts from what others have pushed, and pushes what the block changed. If the remote
cannot be reached the work goes on here, and a later session or sync brings it there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swampstore.clock import to_iso
from swampstore.errors import NewerFormatError, SwampstoreError, ValidationError, code_of
from swampstore.layout import DataRef, ModelRef
from swampstore.notices import notice
from swampstore.telemetry import span

if TYPE_CHECKING:
    from swampstore.index.errors import NotPushedError
    from swampstore.index.results import Progress, Pulled, Pushed
    from swampstore.locks.manager import LockManager
    from swampstore.repo import Repo
    from swampstore.stores.errors import StoreUnreachableError
    from swampstore.sync.opening import OpenRepo

# Set in the base while something waits that no session is responsible for any more.
_LEFT_BEHIND = "left_behind"
# How often a session begins again if others who have the same cache save while it pulls.
_ROUNDS = 3


class Session:
    """Work that is going on. `models` is None if everything is locked.

    `is_offline` says that the remote could not be reached, or should not be, so that nothing is
    locked and nothing will be pushed. `pulled` is what came in at the start, `pushed` what went
    out at the end; both are None without a remote. `not_pushed` says why what is saved stays here
    for now: nobody answered.
    """

    def __init__(self, models: frozenset[ModelRef] | None, locks: LockManager | None) -> None:
        self.models = models
        self.pulled: Pulled | None = None
        self.pushed: Pushed | None = None
        self.not_pushed: NotPushedError | None = None
        self._locks = locks

    @property
    def is_offline(self) -> bool:
        """Whether nothing is locked, because the remote was not reached."""
        return self._locks is None

    def check(self) -> None:
        """Raise LockLostError if somebody is known to have taken over a lock of this session."""
        if self._locks is None:
            return
        from swampstore.stores.errors import StoreUnreachableError

        # Work here goes on while nobody answers; the commit will not, before it is certain.
        with contextlib.suppress(StoreUnreachableError):
            self._locks.check()

    def check_covers(self, models: Iterable[ModelRef] | None) -> None:
        """Raise ValidationError if one of these models (None: any) is not part of this session."""
        if self.models is None:
            return
        missing = ["everything"] if models is None else sorted(set(models) - self.models)
        if missing:
            raise ValidationError(
                f"{', '.join(map(str, missing))} is not part of the session on"
                f" {', '.join(map(str, sorted(self.models)))}",
                hint="Open one session for everything that the work changes.",
            )


@contextlib.contextmanager
def open_session(
    repo: OpenRepo,
    models: Iterable[ModelRef] | None,
    *,
    timeout: float | None,
    progress: Progress | None,
) -> Iterator[Session]:
    """Lock, pull, let the block work, push, unlock; see `Repo.session`."""
    chosen = None if models is None else frozenset(models)
    if chosen is not None and not chosen:
        raise ValidationError("a session without models", hint="Name at least one model.")
    if repo.config.remote is None:
        with span("session", models=len(chosen or ())), _locked(repo.locks, chosen):
            if repo.config.is_shared_in_place:
                _see_what_others_saved(repo, chosen)
            yield Session(chosen, repo.locks)
            repo.locks.verify()
        return
    work = _RemoteWork(repo, chosen, timeout, progress)
    with span("session", models=len(chosen or ())), contextlib.ExitStack() as stack:
        session = work.begin(stack)
        try:
            yield session
        except BaseException:
            work.leave_behind()
            raise
        work.end(session)


@contextlib.contextmanager
def _locked(locks: LockManager, models: frozenset[ModelRef] | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with span("lock", models=len(models or ())):
            stack.enter_context(locks.everything() if models is None else locks.models(models))
        yield


def _see_what_others_saved(repo: OpenRepo, models: frozenset[ModelRef] | None) -> None:
    """Bring the catalog, which is this machine's, up to date with a directory that is not."""
    if models is None:
        repo.rebuild_catalog()
        return
    for model in models:
        known = repo.catalog.names(model)
        for name in sorted({*known, *repo.tree.subdirs(model.rel)}):
            repo.refresh(DataRef(model, name))


class _RemoteWork:
    """The two ends of a session on a cache."""

    def __init__(
        self,
        repo: OpenRepo,
        models: frozenset[ModelRef] | None,
        timeout: float | None,
        progress: Progress | None,
    ) -> None:
        from swampstore.index.results import no_progress
        from swampstore.sync.run import SyncRun

        self._repo = repo
        self._models = models
        self._sync = SyncRun(repo, models, timeout=timeout, progress=progress or no_progress)
        self._base = repo.connection.base

    def begin(self, stack: contextlib.ExitStack) -> Session:
        """Lock and pull. Without an answer from the remote, say so and go on without."""
        from swampstore.stores.errors import StoreUnreachableError

        if self._repo.config.is_offline:
            return Session(self._models, None)
        try:
            with contextlib.ExitStack() as starting:
                starting.enter_context(_locked(self._repo.locks, self._models))
                session = Session(self._models, self._repo.locks)
                for _ in range(_ROUNDS):
                    # A push makes room for what others have; else this session would not see it.
                    self._sync.settle_leftovers()
                    session.pulled = self._pull()
                    if session.pulled is None or not session.pulled.is_partial:
                        break
                stack.push(starting.pop_all())
                return session
        except StoreUnreachableError as error:
            _say_offline(error)
            session = Session(self._models, None)
            session.not_pushed = _unreached()
            return session

    def end(self, session: Session) -> None:
        """Push what changed; raise NotPushedError, the data being safe here, if that fails."""
        if session.is_offline:
            self.leave_behind()
            return
        from swampstore.sync.run import raised_as_not_pushed

        try:
            with raised_as_not_pushed(NewerFormatError):
                session.pushed = self._push()
                if not session.pushed.changes:
                    # Nothing was committed, so nobody has looked. Another process on this machine
                    # may have pushed what we saved, though it was not ours to change any more.
                    self._repo.locks.verify()
                if session.pushed.conflicts:
                    self._pull()  # what others have, which ours has made room for
        except SwampstoreError:
            self.leave_behind()
            raise

    def leave_behind(self) -> None:
        """Have the next session, whatever its models are, push what this one did not."""
        self._base.apply(facts={_LEFT_BEHIND: to_iso(self._repo.clock())})

    def _pull(self) -> Pulled | None:
        from swampstore.index.errors import IncompleteSyncError

        try:
            return self._sync.pull()
        except IncompleteSyncError as error:
            # What is wrong with some files is no reason not to work on the others.
            notice("%s", error.message)
            return None

    def _push(self) -> Pushed:
        left_behind = self._base.fact(_LEFT_BEHIND)
        pushed = self._sync.push(all_models=bool(left_behind))
        if left_behind and self._base.fact(_LEFT_BEHIND) == left_behind:
            self._base.apply(facts={_LEFT_BEHIND: None})
        return pushed


_told_offline = False


def _say_offline(error: StoreUnreachableError) -> None:
    global _told_offline  # noqa: PLW0603 - said once, however many sessions there are
    if not _told_offline:
        _told_offline = True
        notice(
            "working offline, nothing is locked: %s. The next sync pushes what is saved.",
            error.message,
        )


def _unreached() -> NotPushedError:
    from swampstore.index.errors import NotPushedError

    return NotPushedError(
        "the data is safe here, and not on the remote, which could not be reached",
        hint="Any later command that reaches it pushes this too, or `swampstore sync --push`.",
    )


def record_session(
    repo: Repo, models: list[ModelRef] | None, failure: BaseException | None
) -> None:
    """Write one event for a session of a program, unless its user has written a better one."""
    from swampstore.audit.events import record

    named = sorted(set(map(str, models))) if models is not None else []
    record(
        repo,
        "session",
        command=" ".join(["session", *named]),
        model=models[0] if models and len(named) == 1 else None,
        models=named if len(named) > 1 else None,
        error=code_of(failure) if failure else None,
    )
