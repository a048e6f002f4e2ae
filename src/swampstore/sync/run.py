"""Running a sync: what is pulled, what is pushed, in which order, and what is said if it fails.

The command `sync`, sessions and clean-ups run theirs here. The locks of models and of everything
are the business of sessions; a push takes the lock that its commit needs by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from swampstore.errors import EXIT_NOT_PUSHED, SwampstoreError
from swampstore.index.errors import IncompleteSyncError, NotPushedError, SyncError
from swampstore.index.results import Preview, Progress, Pulled, Pushed, Step, no_progress
from swampstore.layout import ModelRef
from swampstore.notices import notice
from swampstore.stores.errors import StoreError, StoreUnreachableError
from swampstore.sync.opening import OpenRepo
from swampstore.sync.transfer import THREADS, Transport


class SyncRun:
    """One sync of a repository, or of some of its models, with its remote.

    `metadata_only` leaves content on the remote, `timeout` is in seconds for each direction; both
    are what the settings say if they are None. `certain` is what a pull means by it.
    `transport_errors` are those that `transport` raises.
    `pulled` and `pushed` are what was done so far.
    """

    def __init__(
        self,
        repo: OpenRepo,
        models: Collection[ModelRef] | None = None,
        *,
        full: bool = False,
        certain: bool = False,
        metadata_only: bool | None = None,
        timeout: float | None = None,
        progress: Progress = no_progress,
        transport: Transport = THREADS,
        transport_errors: tuple[type[SwampstoreError], ...] = (),
    ) -> None:
        self.pulled: Pulled | None = None
        self.pushed: Pushed | None = None
        self._repo = repo
        self._service = repo.connection.service
        remote = repo.config.remote
        assert remote is not None
        self._metadata_only = metadata_only
        self._deadline = remote.deadline(timeout)
        self._models = models
        self._full = full
        self._certain = certain
        self._progress = progress
        self._transport = transport
        self._transport_errors = transport_errors

    def run(self, *, pull: bool = True, push: bool = True) -> None:
        """Pull, push, and pull again if others had something there is room for only by now.

        Raises IncompleteSyncError, after the push, if some files could not be pulled: what others
        did to a file is no reason to keep our work from them.
        """
        failed: IncompleteSyncError | None = None
        if pull:
            try:
                self.pull()
            except IncompleteSyncError as error:
                failed = error
        if push:
            self.push()
        if self.pulled and self.pushed and (self.pulled.is_partial or self.pushed.conflicts):
            self.pull()
        if failed:
            raise failed

    def pull(self) -> Pulled:
        """Bring what changed elsewhere here; raise what `SyncService.pull` raises."""
        self._progress(Step("pull", 0, 0, 0, 0))
        pulled = self._service.pull(
            self._models,
            metadata_only=self._metadata_only,
            full=self._full,
            certain=self._certain,
            deadline=self._deadline,
            progress=self._progress,
            transport=self._transport,
        )
        self.pulled = pulled if self.pulled is None else _added(self.pulled, pulled)
        return pulled

    def push(self, *, all_models: bool = False) -> Pushed:
        """Bring what changed here to the remote; raise NotPushedError if not all of it is there.

        With `all_models` that is done whatever the models of this sync are.
        """
        self._progress(Step("push", 0, 0, 0, 0))
        self._repo.export_catalog()
        self._repo.seal_audit(everything=all_models or self._models is None)
        with raised_as_not_pushed(*self._transport_errors):
            self.pushed = self._push(None if all_models else self._models)
        return self.pushed

    def settle_leftovers(self) -> None:
        """Push what somebody saved on this machine and did not push.

        It may have numbers that others have used since; what they pushed could not be seen then.
        """
        if self._service.is_marked(self._models):
            try:
                self._push(self._models)
            except SyncError as error:
                notice("%s", error.message)  # what is wrong with that is told again at the end

    def preview(self) -> Preview:
        """Say what a sync would do, by path; nothing is changed anywhere."""
        return self._service.preview(
            self._models, metadata_only=self._metadata_only, full=self._full
        )

    def _push(self, models: Collection[ModelRef] | None) -> Pushed:
        return self._service.push(
            models,
            full=self._full,
            deadline=self._deadline,
            progress=self._progress,
            transport=self._transport,
        )


def catch_up(repo: OpenRepo) -> StoreUnreachableError | None:
    """Pull everything, if there is a remote; return the error if it could not be reached."""
    if repo.config.remote is None or repo.config.is_offline:
        return None
    try:
        SyncRun(repo).pull()
    except StoreUnreachableError as error:
        return error
    return None


def fetch_everything(
    repo: OpenRepo, *, timeout: float | None = None, progress: Progress = no_progress
) -> Pulled:
    """Bring everything of a remote that is about to be left into its cache, content included.

    What was changed on both sides is only here as a whole once that is settled: then our changes
    are pushed first. Nobody else may work on the remote meanwhile.
    """
    remote = repo.config.remote
    assert remote is not None
    repo.connection.service.limit_cache(None)
    run = SyncRun(repo, certain=True, metadata_only=False, timeout=timeout, progress=progress)
    pulled = run.pull()
    if pulled.is_partial:
        progress(Step("push", 0, 0, 0, 0))
        repo.connection.service.push(deadline=remote.deadline(timeout), progress=progress)
        pulled = _added(pulled, run.pull())
    return pulled


@contextmanager
def raised_as_not_pushed(*also: type[SwampstoreError]) -> Iterator[None]:
    """Raise what keeps a push from its end as NotPushedError: nothing is lost by that."""
    expected: tuple[type[SwampstoreError], ...] = (StoreError, SyncError, *also)
    try:
        yield
    except expected as error:
        if error.exit_status == EXIT_NOT_PUSHED:
            raise
        raise NotPushedError(
            f"the data is safe here, but not all of it is on the remote: {error.message}",
            hint=error.hint,
        ) from error


def _added(first: Pulled, second: Pulled) -> Pulled:
    return Pulled(
        first.files + second.files,
        first.bytes + second.bytes,
        first.deleted + second.deleted,
        second.conflicts,
        first.skipped + second.skipped,
        second.left,
    )
