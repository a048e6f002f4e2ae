"""The directory of a repository, which becomes a part of the cache of its remote as it is.

Its files are pushed from where they are, and read back. Then the settings name the remote, and the
directories are renamed into the cache: nothing is made anew, and nothing removed. That takes a
directory in which everything may go, a cache that has nothing yet, and a remote on which others
have nothing. Everything else is moved file by file (see `moving`).
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from swampstore.config import Config
from swampstore.errors import DiskError
from swampstore.files import temp_beside
from swampstore.files.signature import Signature, can_deceive, signature_of
from swampstore.index.errors import SyncError
from swampstore.index.path_kinds import is_marker
from swampstore.index.path_map import NamesElsewhere
from swampstore.index.workers import Deadline
from swampstore.layout import METADATA, RAW, stays_beside_runs
from swampstore.relocate.destinations import Cache
from swampstore.relocate.pairs import Directory, is_damaged
from swampstore.repo import Repo
from swampstore.repo.open import CATALOG
from swampstore.sync.handover import Handover, withdraw
from swampstore.sync.staged_cache import owner_of_remote
from swampstore.sync.transfer import Threads


class _Seen(NamedTuple):
    """How a directory looked, which directories are in it, and how many files."""

    signature: Signature
    subdirs: list[str]
    files: int


class OwnDirectory:
    """The files in `source`, below the local directory of a repository, and the cache of `there`.

    `files` says how many there are, as of the last look. `transport` is who takes them to the
    remote, if it is to be known afterwards what was sent.
    """

    def __init__(self, source: str, there: Repo) -> None:
        connection = there.connection
        self.files = 0
        self._source = source
        self._there = there
        self._seen: dict[str, _Seen] = {}
        self._names = NamesElsewhere(connection.names, source)
        self.service = service = connection.pushing_from(self._names)
        self._cache = Cache(self._names, connection.base, connection.store, service.hydrate)
        self.transport = Threads(self._cache.hear)

    def may_be_given(self) -> bool:
        """Whether all of it may be given to the cache; costs a walk, and a look at the remote."""
        root = self._there.connection.names.root
        try:
            os.makedirs(root, exist_ok=True)
            is_free = not any(os.path.lexists(f"{root}/{name}") for name in self.subdirs)
            may_rename = is_free and self._is_on(root) and _can_rename(self._source, root)
        except OSError:
            return False
        return may_rename and self.service.is_alone() and self.is_whole(deep=True)

    @property
    def subdirs(self) -> tuple[str, ...]:
        """The directories that have something in them."""
        found = []
        for name in self._names.routing.subdirs:
            try:
                if os.listdir(f"{self._source}/{name}"):
                    found.append(name)
            except FileNotFoundError:
                continue
        return tuple(found)

    def _is_on(self, root: str) -> bool:
        """Whether all of it is on the file system of a directory, and no link leads there."""
        device = os.stat(root).st_dev
        looks = [os.lstat(f"{self._source}/{name}") for name in self.subdirs]
        return all(stat.S_ISDIR(one.st_mode) and one.st_dev == device for one in looks)

    def is_whole(self, *, deep: bool = False) -> bool:
        """Whether there is nothing in it that would have to stay, and no version is incomplete.

        `deep` also reads the content of versions, none of which may be damaged. Whoever looks again
        looks at the names in those directories only that have changed since, or may have.
        """
        self.files = 0
        try:
            pending = [*self.subdirs]
            while pending:
                rel = pending.pop()
                seen = None if deep else self._as_seen(rel)
                seen = seen or self._look_at(rel, deep=deep)
                if seen is None:
                    return False
                self.files += seen.files
                pending.extend(f"{rel}/{name}" for name in seen.subdirs)
        except (OSError, SyncError, DiskError):
            return False
        return True

    def _as_seen(self, rel: str) -> _Seen | None:
        """Return what was seen of a directory if the same names are in it as then."""
        seen = self._seen.get(rel)
        if seen is None or seen.signature != signature_of(os.lstat(f"{self._source}/{rel}")):
            return None
        return seen

    def _look_at(self, rel: str, *, deep: bool) -> _Seen | None:
        """Look at what is in a directory, None if something would have to stay."""
        began_ns = time.time_ns()
        now = signature_of(os.lstat(f"{self._source}/{rel}"))
        directory = self._directory(rel)
        if directory is None or not self._may_go(directory, deep=deep):
            return None
        seen = _Seen(now, directory.subdirs, len(directory.files))
        # A directory changes with the names in it, and with what kind of a thing each stands for.
        if not can_deceive(now, began_ns):
            self._seen[rel] = seen
        return seen

    def _directory(self, rel: str) -> Directory | None:
        """Return what is in a directory, None if that is also links or other special files.

        What a machine keeps beside its runs is left out: whoever moves the directory leaves it.
        """
        subdirs, files = [], []
        with os.scandir(f"{self._source}/{rel}") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    subdirs.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    if not stays_beside_runs(f"{rel}/{entry.name}"):
                        files.append(entry.name)
                else:
                    return None
        return Directory(rel, subdirs, files)

    def _may_go(self, directory: Directory, *, deep: bool) -> bool:
        rel, subdirs, files = directory
        names = (*subdirs, *files)
        if not self._names.may_all_cross(rel, names) and any(
            self._names.why_not(f"{rel}/{name}") for name in names
        ):
            return False
        if not directory.is_version:
            return True
        if METADATA not in files or RAW not in files:
            return False
        return not deep or not is_damaged(self._names, rel)

    def wrong(self, deadline: Deadline) -> Iterator[str | None]:
        """Look at every object that was pushed; yield its path if it is not as sent, else None.

        What was changed here since comes along, and is pushed from the cache.
        """
        known = self._there.connection.base.below("")
        return self._cache.wrong_of((one for one in known if not is_marker(one.rel)), deadline)

    def handover(self, namespace: str) -> Handover:
        """Return what is to be done when the settings name the remote; see there."""
        owner = owner_of_remote(self._there.config)
        return Handover(owner, namespace, self.subdirs, CATALOG)


def give(config: Config, handover: Handover) -> list[str]:
    """Carry it out; return the paths of what stays."""
    left = handover.carry_out(config)
    withdraw(config.local_dir)
    return left


def _can_rename(source: str, target: str) -> bool:
    """Whether a directory can be renamed from one place to the other: each may be a mount."""
    trial, there = temp_beside(f"{source}/"), temp_beside(f"{target}/")
    os.mkdir(trial)
    try:
        os.rename(trial, there)
    except OSError:
        os.rmdir(trial)
        return False
    os.rmdir(there)
    return True
