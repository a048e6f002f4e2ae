"""Giving a repository another datastore, and taking its data along.

Copy, push, pull, read everything back, then the setting, and only then the removal of what was
copied: whenever it is stopped, the data is where the configuration says, and doing it again goes
on from there. Where nothing has to be settled with others, the files of the repository's own
directory are not copied, but renamed into the cache after the setting (see `own_directory`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from swampstore.audit.segments import announce_move, carry_over
from swampstore.config import Config, Hydration
from swampstore.datastore_address import Address
from swampstore.errors import ConfigError, LockTimeoutError, SwampstoreError
from swampstore.index.errors import IncompleteSyncError
from swampstore.index.results import Progress, Step, no_progress
from swampstore.index.workers import Deadline
from swampstore.namespaces import list_namespaces, register_namespace
from swampstore.relocate.destinations import (
    Cache,
    Destination,
    check_apart,
    check_no_repository,
    check_writable,
    destination_of,
    is_below,
)
from swampstore.relocate.earlier import has_unshared
from swampstore.relocate.moving import Relocation
from swampstore.relocate.own_directory import OwnDirectory, give
from swampstore.relocate.refusals import check_all_fit, check_names, not_there
from swampstore.relocate.report import NAMED, SetupReport
from swampstore.relocate.settings import configured, write_settings
from swampstore.relocate.syncing import Syncing, begin, share_deletions
from swampstore.repo import Repo
from swampstore.repo.open import CATALOG
from swampstore.stores.errors import StoreError
from swampstore.stores.probe import examine, probe
from swampstore.stores.protocol import admitted_limits
from swampstore.sync.handover import withdraw
from swampstore.sync.run import fetch_everything
from swampstore.sync.service import SyncService
from swampstore.sync.staged_cache import StagedCache, setting_up

IndexKind = Literal["v1", "sharded"]


class Setup:
    """One move of a repository's datastore: `here` has the old settings, `there` the new ones.

    As long as the old settings hold, their catalog must not hear of the new place: `there` has
    one of its own, which is the same whenever the setup is run again. `left_behind` is a directory
    of data that an earlier setup was stopped at, `staged` the cache that is being made.
    """

    def __init__(
        self,
        here: Repo,
        there: Repo,
        address: Address,
        *,
        left_behind: str | None = None,
        staged: StagedCache | None = None,
        timeout: float | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._here = here
        self._staged = staged
        self._there = there
        self._address = address
        self._left_behind = left_behind
        self._timeout = timeout
        self._progress = progress
        config = there.config
        self._report = SetupReport(config.datastore_type, config.base, config.namespace)
        self._syncing = Syncing(there, self._report, timeout, progress)
        # Whether the own directory was given to the cache, and what could not be.
        self._given = False
        self._left: list[str] = []

    def check(self) -> None:
        """Make sure, before anything is done, that the destination can be relied on.

        Raises UntrustworthyStoreError and other errors of the store, DiskError for a directory,
        ValidationError for a bucket that is the repository itself.
        """
        config = self._there.config
        if config.remote is None:
            check_writable(config.base)
            return
        store = self._there.connection.store
        check_no_repository(config.repo_dir, store)
        examine(store).check()
        report = probe(store)
        report.check()
        limits = admitted_limits(store)
        self._report.warnings += [f"{limit.name}: {limit.problem}" for limit in limits]
        # From now on the cache says whose it is.
        self._there.connection.base.count()
        self._there.connection.locks.deletions.learn(proven=report.proves_conditional_delete)

    def run(self, *, migrate: bool = True, index: IndexKind | None = None) -> SetupReport:
        """Do it all, up to the new settings; `migrate=False` leaves the data where it is.

        Raises errors of the stores, AlreadyExistsError if other data is in the way,
        CorruptObjectError or DiskError if something is not there as it was sent,
        StoreNotMountedError if that holds for all of it; the old settings hold then.
        """
        if migrate:
            self._here.require_mounted()
        self._there.mutations.recover()
        destination = destination_of(self._there)
        moves = self._moves(destination) if migrate else {}
        if not self._give_own_directory(moves, index):
            self._move_files(moves, destination, migrate=migrate, index=index)
        return self._report

    def _move_files(
        self,
        moves: Mapping[str, Relocation],
        destination: Destination,
        *,
        migrate: bool,
        index: IndexKind | None,
    ) -> None:
        """Bring the files one by one to where the new settings mean, and write those."""
        if migrate:
            if isinstance(destination, Cache):
                check_names(moves.values())
            self._bring_everything_here(moves)
            self._copy(moves, destination)
        else:
            self._warn_of_unpushed()
        if isinstance(destination, Cache):
            self._sync(destination, migrate=migrate, index=index)
            # What has made room came back as others have it: ours may go on from there.
            if any(one.has_made_room for one in moves.values()):
                self._syncing.share_earlier_copies(moves.values())
        self._verify(moves, destination)
        # From here on, rows are read from where the settings say, whenever we are stopped.
        self._here.catalog.clear()
        if self._staged is not None:
            self._staged.announce()
        self._write_settings()

    def _write_settings(self) -> None:
        self._report.warnings += write_settings(self._there.config, self._address)

    def finish(self, there: Repo, *, migrate: bool) -> None:
        """Do what is left when the settings hold, which `there` is open with."""
        if self._given:
            self._catch_up(there)
        if migrate:
            self.remove_moved(there)
        if not self._given or there.config.namespace != self._here.config.namespace:
            there.rebuild_catalog()

    # Giving the own directory to the cache -----------------------------------------------------

    def _give_own_directory(self, moves: Mapping[str, Relocation], index: IndexKind | None) -> bool:
        """Do it all by renaming, if that is possible; False if the files have to be moved.

        Nothing here has changed then.
        """
        own = self._own_directory(moves)
        if own is None or not own.may_be_given():
            return False
        try:
            pushed = self._syncing.push(own.service, full=True, transport=own.transport)
        except IncompleteSyncError:
            return False  # what is wrong with some of it, is told by who moves the files
        if pushed.skipped:
            return False
        self._report.files_pushed = pushed.files
        self._syncing.choose_index(own.service, index)
        self._check_none_wrong(own.wrong(Deadline(self._timeout)), own.service)
        return self._hand_over(own)

    def _own_directory(self, moves: Mapping[str, Relocation]) -> OwnDirectory | None:
        """Return what has to be moved if it is the own directory alone, and a cache is its goal."""
        here, is_in_place = self._here.config, self._staged and self._staged.is_in_place
        if here.remote is not None or not is_in_place or list(moves) != [self._own]:
            return None
        return OwnDirectory(self._own, self._there)

    def _hand_over(self, own: OwnDirectory) -> bool:
        """Write the settings, and rename; no writer of ours is at work on data meanwhile."""
        here, there = self._here, self._there
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(here.mutations.quiet())
            except LockTimeoutError:
                return False
            if not own.is_whole():
                return False
            # What was changed since it was pushed comes along: who looks next, looks at all of it.
            there.dirty.mark()
            if here.config.namespace != there.config.namespace:
                here.catalog.clear()
            handover = own.handover(here.config.namespace)
            handover.announce(there.config)
            self._write_settings()
            self._given = True
            self._left = give(there.config, handover)
        self._report.directories += handover.subdirs
        self._report.files_copied = self._report.files_removed = own.files
        self._report.bytes_copied = there.connection.base.total_bytes()
        return True

    def _catch_up(self, there: Repo) -> None:
        """Move what something was in the way of, and share what was changed meanwhile.

        Everything that was here before is on the remote: if this fails, the next sync does it.
        """
        destination = destination_of(there)
        try:
            if self._left:
                subdirs = tuple({rel.partition("/")[0] for rel in self._left})
                left = Relocation(self._own, destination, subdirs, may_link=True)
                left.copy(self._progress, durable=there.config.durable)
            syncing = Syncing(there, self._report, self._timeout, self._progress)
            syncing.pull()
            syncing.push()
            there.sync.evict()
        except SwampstoreError as error:
            self._report.warnings.append(f"not everything is synced yet: {error.message}")

    def remove_moved(self, there: Repo) -> None:
        """Remove what is on the new datastore now, which `there` is open with."""
        has_new_cache = self._there.config.base != there.config.base
        for source, move in self._moves(destination_of(there)).items():
            if has_new_cache and is_below(source, there.config.base):
                continue  # it is another directory by now
            if not is_below(source, self._here.config.local_dir):
                # Others may use it: a directory that is shared, a cache of the same repository.
                self._report.warnings.append(f"{source} was copied and is left as it is")
                continue
            removed = move.remove_safe()
            self._report.files_removed += removed.files
            self._report.warn("not on the new datastore, and stays where it is", removed.left)

    # Before anything moves ---------------------------------------------------------------------

    @property
    def _own(self) -> str:
        """Where the repository has data that is in no cache, and nobody else's."""
        here = self._here.config
        return replace(here, base=here.local_dir).datastore_dir

    def _moves(self, destination: Destination) -> dict[str, Relocation]:
        """Return what has to be moved, by the directory that it is in."""
        here, own = self._here.config, self._own
        found = [here.datastore_dir]
        if here.remote:
            # A setup that was stopped before its end may have left some behind.
            found.append(own)
        if self._left_behind:
            found.append(self._left_behind)
        there = self._there.config
        # The own directory is nobody else's, and given up in the end.
        moves = {
            path: Relocation(path, destination, there.routing.subdirs, may_link=path == own)
            for path in found
            if path != there.datastore_dir
        }
        for path in moves:
            if is_below(path, here.local_dir):
                check_apart(path, destination.directory, there.routing.subdirs)
        return moves

    def _bring_everything_here(self, moves: Mapping[str, Relocation]) -> None:
        """Before a remote is left, everything of it must be in its cache."""
        here = self._here.config
        if here.remote is None or here.datastore_dir not in moves:
            return
        try:
            share_deletions(self._here)
        except SwampstoreError as error:
            self._report.warnings.append(
                f"what was deleted here stays on the remote that is left: {error.message}"
            )
        try:
            pulled = fetch_everything(self._here, timeout=self._timeout, progress=self._progress)
        except (StoreError, ConfigError) as error:
            error.hint = f"{error.hint or ''} Or leave the data behind: --skip-migration.".strip()
            raise
        self._report.files_pulled += pulled.files
        skipped = dict.fromkeys(f"{one.rel}: {one.reason}" for one in pulled.skipped)
        self._report.warnings += list(skipped)[:NAMED]
        # The new settings may have their base in the same place.
        self._here.connection.base.close()

    def _warn_of_unpushed(self) -> None:
        if self._here.config.remote and (marked := self._here.dirty.peek().paths):
            self._report.warnings.append(
                f"{len(marked)} changed path(s) in {self._here.config.base} were never pushed"
            )

    # Moving --------------------------------------------------------------------------------------

    def _copy(self, moves: Mapping[str, Relocation], destination: Destination) -> None:
        if isinstance(destination, Cache):
            self._there.dirty.mark()
            if moves and os.path.isdir(self._there.config.datastore_dir):
                aside = self._staged.aside if self._staged is not None else None
                self._syncing.settle_earlier_copies(moves, destination, aside)
        begin(self._progress, "copy")
        for move in moves.values():
            if isinstance(destination, Cache) and not move.is_empty() and has_unshared(destination):
                self._syncing.share_earlier_copies(moves.values())
            copied = move.copy(self._progress, durable=self._there.config.durable)
            check_all_fit(copied, self._there.config.datastore_dir)
            self._report.files_copied += copied.files
            self._report.bytes_copied += copied.bytes
            self._report.directories += copied.directories
            self._report.warn("never finished, and stays where it is", copied.unfinished)
            self._report.warn("a link, and stays where it is", copied.links)
            self._report.warn("no regular file, and stays where it is", copied.special)
            self._report.warn("its content is not here, so it stays where it is", copied.hollow)

    def _sync(self, cache: Cache, *, migrate: bool, index: IndexKind | None) -> None:
        if migrate:
            pushed = self._syncing.push(full=True)
            self._report.files_pushed += pushed.files
            self._report.warn_about(pushed.conflicts)
        self._syncing.choose_index(self._there.connection.service, index)
        self._syncing.pull(full=cache.released > 0)

    def _verify(self, moves: Mapping[str, Relocation], destination: Destination) -> None:
        """Read everything back: what is not there as it was sent must not be given up here."""
        # Without an express limit it may take its time: unlike a push, it starts over.
        looks = (destination.wrong(one.moved(), Deadline(self._timeout)) for one in moves.values())
        config = self._there.config
        service = self._there.connection.service if config.remote else None
        self._check_none_wrong(chain.from_iterable(looks), service)

    def _check_none_wrong(self, looks: Iterable[str | None], service: SyncService | None) -> None:
        """Raise CorruptObjectError or DiskError if something is not there as it was sent."""
        begin(self._progress, "verify")
        wrong: list[str] = []
        for files, found in enumerate(looks, start=1):
            self._progress(Step("verify", files, files, 0, 0))
            if found is not None:
                wrong.append(found)
        if wrong:
            if service is not None:
                self._syncing.push(service, full=True)  # what was lost is sent anew
            raise not_there(wrong, self._there.config)


# The catalog of the new place, until the settings say that it is the place.
_STAGING = "swampstore.setup.db"


def set_up_datastore(
    repo: Repo,
    address: Address,
    *,
    namespace: str | None = None,
    hydration: Hydration | None = None,
    migrate: bool = True,
    index: IndexKind | None = None,
    timeout: float | None = None,
    progress: Progress = no_progress,
    environ: Mapping[str, str] | None = None,
) -> SetupReport:
    """Move the datastore of a repository to another address, and write that to its marker.

    `hydration` says whether pulls bring content; without it that stays as it is. `timeout` is in
    seconds, for each direction of a sync. Open the repository anew afterwards.
    Raises what `Setup.run` raises; the old settings hold then, and it can be done again.
    """
    environ = os.environ if environ is None else environ
    _refuse_newer(repo)
    config = configured(repo.config, address, environ, namespace, hydration)
    with setting_up(config.local_dir) as is_alone:
        if not is_alone:
            raise LockTimeoutError(
                "another setup of this repository is running",
                hint="Wait for it, then see with `swampstore datastore status` where the data is.",
            )
        setup = _SettingUp(repo, config, address, timeout, progress)
        return setup.run(migrate=migrate, index=index)


@dataclass(frozen=True, slots=True)
class _SettingUp:
    """All of a setup, with the caches that change places."""

    repo: Repo
    config: Config
    address: Address
    timeout: float | None
    progress: Progress

    def run(self, *, migrate: bool, index: IndexKind | None) -> SetupReport:
        repo, config = self.repo, self.config
        # Of a setup that was stopped before the settings meant it.
        withdraw(config.local_dir)
        cache = StagedCache(repo.config, config) if config.remote else None
        left_behind = cache.finish() if cache else None
        new = cache.config() if cache else config
        is_elsewhere = new.datastore_dir != repo.config.datastore_dir
        catalog = _STAGING if is_elsewhere else CATALOG
        with Repo(new, clock=repo.clock, catalog=catalog) as there, contextlib.ExitStack() as stack:
            setup = Setup(
                *(repo, there, self.address),
                left_behind=left_behind,
                staged=cache,
                timeout=self.timeout,
                progress=self.progress,
            )
            setup.check()
            if migrate:
                stack.enter_context(_alone(repo, there))
            # Before anything is put there: it must not be somebody else's.
            register_namespace(there)
            others = _warn_of_others(there)
            announce_move(repo.config, config)
            report = setup.run(migrate=migrate, index=index)
        report.warnings += others
        report.location = config.base
        if cache and (old := cache.put_in_place()):
            report.warnings.append(f"the cache that was in use until now is {old}")
        _discard_staging(config.local_dir)
        carry_over(repo.config, config)
        with Repo(config, clock=repo.clock) as moved:
            setup.finish(moved, migrate=migrate)
        return report


def _refuse_newer(repo: Repo) -> None:
    """Raise NewerFormatError before anything moves away from under a newer release."""
    repo.catalog.rows.read(lambda _: None)
    if repo.config.remote is not None:
        repo.dirty.peek()


@contextlib.contextmanager
def _alone(here: Repo, there: Repo) -> Iterator[None]:
    """Let nobody on other machines work on the datastore that is left.

    If it is the same place as the new one, the commits there have to do. One that cannot be
    reached is told of when its data is asked for.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(StoreError, ConfigError):
            if here.config.is_shared and here.locks.store.identity != _identity(there):
                # Its cache is not held: the new one may be in the same place, and is synced.
                here.locks.before_global = contextlib.nullcontext
                stack.enter_context(here.locks.everything())
        yield


def _identity(repo: Repo) -> str:
    return repo.connection.store.identity if repo.config.remote else repo.locks.store.identity


def _warn_of_others(there: Repo) -> list[str]:
    """Say so if others share the datastore in namespaces, and this repository has none."""
    if there.config.remote is None or there.config.namespace:
        return []
    others = [found.namespace for found in list_namespaces(there)]
    if not others:
        return []
    return [
        f"others have namespaces there ({', '.join(others)}), and this repository has none;"
        " `swampstore datastore namespace set` gives it one"
    ]


def _discard_staging(local_dir: str) -> None:
    for name in os.listdir(local_dir):
        if name.startswith(_STAGING):
            os.unlink(f"{local_dir}/{name}")
