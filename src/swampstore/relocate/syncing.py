"""How a setup syncs with the new remote: push, pull, the kind of index, and earlier copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swampstore.index.results import Progress, Pulled, Pushed, Step
from swampstore.index.versions import known_version, version_named
from swampstore.relocate.destinations import Cache
from swampstore.relocate.earlier import set_aside
from swampstore.relocate.moving import Relocation
from swampstore.relocate.report import SetupReport
from swampstore.repo import Repo
from swampstore.sync.lost_base import LOST
from swampstore.sync.service import SyncService
from swampstore.sync.transfer import THREADS, Transport


def begin(progress: Progress, phase: str) -> None:
    """Say that something else begins."""
    progress(Step(phase, 0, 0, 0, 0))


class Syncing:
    """The syncs of `repo`, which is open with the new settings; `report` hears what they did.

    `timeout` is in seconds, for each direction; None: as the settings say.
    """

    def __init__(
        self, repo: Repo, report: SetupReport, timeout: float | None, progress: Progress
    ) -> None:
        self._repo = repo
        self._report = report
        self._timeout = timeout
        self._progress = progress

    def push(
        self,
        service: SyncService | None = None,
        *,
        full: bool = False,
        transport: Transport = THREADS,
    ) -> Pushed:
        """Push the files of the cache, or those that another service is for."""
        begin(self._progress, "push")
        service = service or self._repo.connection.service
        return service.push(
            full=full, deadline=self._deadline(), progress=self._progress, transport=transport
        )

    def pull(self, *, full: bool = False) -> Pulled:
        """Pull, content only if the settings say so."""
        remote = self._repo.config.remote
        assert remote is not None
        begin(self._progress, "pull")
        pulled = self._repo.connection.service.pull(
            metadata_only=remote.is_lazy,
            full=full,
            deadline=self._deadline(),
            progress=self._progress,
        )
        self._report.files_pulled += pulled.files
        return pulled

    def _deadline(self) -> float:
        remote = self._repo.config.remote
        assert remote is not None
        return remote.deadline(self._timeout)

    def choose_index(self, service: SyncService, index: str | None) -> None:
        """Have the index that was asked for, if the remote can have it."""
        wanted = version_named(index) if index else None
        if wanted is not None and wanted.successor is None:
            service.migrate_index()
        found = known_version(service.status().index_version)
        if wanted not in (None, found):
            self._report.warnings.append(
                f"the index of the remote is the {found.name} one, and stays so"
            )

    # What an earlier setup left ----------------------------------------------------------------

    def settle_earlier_copies(
        self, moves: Mapping[str, Relocation], cache: Cache, aside: str | None
    ) -> None:
        """Compare what an earlier setup left in the cache with the remote.

        What must not be in the cache is put `aside`; None: others may work there.
        """
        # Nothing tells the copies from new versions, as in a cache that has lost its base.
        self._repo.connection.base.apply(facts={LOST: "1"})
        conflicts = self.pull(full=True).conflicts
        if aside:
            left = set_aside(cache, moves, aside)
            what = f"copied earlier, and gone or changed there since; it is in {aside}"
            self._report.warn(what, left)
        if conflicts:
            self.share_earlier_copies(moves.values())

    def share_earlier_copies(self, moves: Iterable[Relocation]) -> None:
        """Share what only the cache has, before more comes that may have the same names.

        An earlier setup, or another source, has left it there, perhaps under other numbers. Where
        it took the place of something else, the remote has that still. Once it is shared, each
        version is recognised wherever it is, comes before those that are copied now, and gives
        way to one that has its number here.
        """
        for move in moves:
            move.renew(self._progress)
        pushed = self.push(full=True)
        self._report.files_pushed += pushed.files
        self._report.warn_about(pushed.conflicts)
        self.pull(full=True)


def share_deletions(repo: Repo) -> None:
    """Push if something was deleted here that is still to be: who has left cannot tell it later.

    What was saved here can wait in the cache, or comes along. Raises what pushes raise.
    """
    if repo.config.remote is None:
        return
    deleted = map(repo.connection.names.rel_of_mark, repo.dirty.peek().removals)
    if any(rel is not None for rel in deleted):
        repo.connection.service.push(deadline=repo.config.remote.deadline(None))
