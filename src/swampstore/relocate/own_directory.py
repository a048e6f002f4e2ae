"""The directory of a repository, which becomes a part of the cache of its remote as it is.

Its files are pushed from where they are, and read back. Then the settings name the remote, and the
directories are renamed into the cache: nothing is made anew, and nothing removed. That takes a
directory in which everything may go, a cache that has nothing yet, and a remote on which others
have nothing. Everything else is moved file by file (see `moving`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from swampstore.config import Config
from swampstore.errors import DiskError
from swampstore.files import temp_beside
from swampstore.index.errors import SyncError
from swampstore.index.path_kinds import is_marker
from swampstore.index.path_map import NamesElsewhere
from swampstore.index.workers import Deadline
from swampstore.layout import METADATA, RAW
from swampstore.relocate.destinations import Cache, Moved
from swampstore.relocate.pairs import Directory, is_damaged
from swampstore.repo import Repo
from swampstore.repo.open import CATALOG
from swampstore.sync.handover import Handover, withdraw
from swampstore.sync.staged_cache import owner_of_remote


class OwnDirectory:
    """The files in `source`, below the local directory of a repository, and the cache of `there`.

    `files` says how many there are, as of the last look.
    """

    def __init__(self, source: str, there: Repo) -> None:
        connection = there.connection
        self.files = 0
        self._source = source
        self._there = there
        self._names = NamesElsewhere(connection.names, source)
        self.service = service = connection.pushing_from(self._names)
        self._cache = Cache(self._names, connection.base, connection.store, service.hydrate)

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

        `deep` also reads the content of versions, none of which may be damaged.
        """
        self.files = 0
        try:
            for rel in self.subdirs:
                for directory in self._directories(rel):
                    if directory is None or not self._may_go(directory, deep=deep):
                        return False
                    self.files += len(directory.files)
        except (OSError, SyncError, DiskError):
            return False
        return True

    def _directories(self, top: str) -> Iterator[Directory | None]:
        """Yield every directory, or None instead of one with links or other special files."""
        pending = [top]
        while pending:
            rel = pending.pop()
            subdirs, files = [], []
            with os.scandir(self._names.local(rel)) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        subdirs.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(entry.name)
                    else:
                        yield None
            yield Directory(rel, subdirs, files)
            pending.extend(f"{rel}/{name}" for name in subdirs)

    def _may_go(self, directory: Directory, *, deep: bool) -> bool:
        rel, subdirs, files = directory
        if any(self._names.why_not(f"{rel}/{name}") for name in (*subdirs, *files)):
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
        sent = (Moved(one.rel, one.rel, one.sha256) for one in known if not is_marker(one.rel))
        return self._cache.wrong(sent, deadline)

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
