"""Fetching objects into finished files beside the cache's own, ready to be moved into place."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from swampstore.files import disk_errors, remove_old_temps, temp_beside
from swampstore.index.errors import SyncError
from swampstore.index.format import Entry
from swampstore.index.path_map import Names
from swampstore.index.workers import Deadline, Done, in_parallel
from swampstore.layout import LATEST, METADATA, is_temp
from swampstore.stores import ObjectInfo, Store
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync.hashing import hash_file

# What has arrived is put in its place when it is so much; whoever is stopped loses no more.
BATCH = 512
# A transfer that began so many seconds ago is over, one way or the other.
STAGING_AGE = 86_400.0
# Where a directory cannot be renamed, downloads may make a few more files while it is removed.
_REMOVALS = 10
# What is read of a version as soon as it is here, and up to which size that is kept at hand.
_ASKED_FOR = (f"/{METADATA}", f"/{LATEST}")
_SMALL = 16 << 10


class Download(NamedTuple):
    """A path to fetch, and what the index says about it."""

    rel: str
    entry: Entry


class Fetched(NamedTuple):
    """A verified file in the staging directory.

    `data` is what it holds, if it is small and the catalog will ask for that.
    """

    rel: str
    path: str
    sha256: str
    size: int
    token: str | None
    data: bytes | None = None


class Dangling(NamedTuple):
    """The index names an object that is not there."""

    rel: str


Brought = Fetched | Dangling


class Staging:
    """A directory for files that are still arriving; a killed process leaves it.

    It is inside another one: the cache, or somebody else's staging directory. As long as its owner
    lives, it is locked; what the dead left in the same place can be taken from there.
    """

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self.path = temp_beside(f"{parent}/")
        self._numbers = itertools.count()
        self._of_thread = threading.local()
        self._lock: int | None = None
        self._left: dict[str, list[str]] | None = None
        self._guard = threading.Lock()

    def __enter__(self) -> Self:
        with disk_errors(self._parent):
            os.makedirs(self.path)
            self._lock = _locked(self.path, wait=True)
        return self

    def take_left(self, sha256: str | None, path: str) -> bool:
        """Move a finished file that the dead left, and that has this content, to a path.

        A directory within that of somebody else has no lock, and neither have those beside it:
        what is in them is on its way to that one.
        """
        if sha256 is None or self._lock is None:
            return False
        with self._guard:
            if self._left is None:
                self._left = _left_by_the_dead(self._parent)
            candidates = self._left.get(sha256, [])
        while candidates:
            with contextlib.suppress(OSError, IndexError, SyncError):
                os.rename(candidates.pop(), path)
                if hash_file(path)[0] == sha256:
                    return True
                os.unlink(path)  # its download was not finished
        return False

    def new_path(self, sha256: str | None = None) -> str:
        """Return a path for one more file, which tells what it will hold.

        Threads have directories of their own: in one they would wait for each other.
        """
        directory: str | None = getattr(self._of_thread, "directory", None)
        if directory is None:
            directory = f"{self.path}/{next(self._numbers)}"
            with disk_errors(self._parent):
                # Not a step more than that: whoever comes late finds that all is over.
                if self._lock is None:
                    os.makedirs(directory)
                else:
                    os.mkdir(directory)
            self._of_thread.directory = directory
        return f"{directory}/{next(self._numbers)}{f'-{sha256}' if sha256 else ''}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import shutil

        for _ in range(_REMOVALS):
            shutil.rmtree(self._out_of_reach(), ignore_errors=True)
            if not os.path.lexists(self.path):
                break
        if self._lock is not None:
            os.close(self._lock)

    def _out_of_reach(self) -> str:
        """Rename the directory: downloads that nobody waits for make no more files in it."""
        renamed = temp_beside(f"{self._parent}/")
        try:
            os.rename(self.path, renamed)
        except OSError:
            return self.path
        return renamed


def _locked(path: str, *, wait: bool = False) -> int | None:
    """Lock a directory for as long as this process lives; None if somebody else has it.

    `wait` for others who only find out whether it is locked.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _left_by_the_dead(parent: str) -> dict[str, list[str]]:
    """Return the files in staging directories whose owners are dead, by what they should hold."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if not is_temp(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):
                lock = _locked(entry.path)
                if lock is None:
                    continue
                os.close(lock)
                for directory, _, names in os.walk(entry.path):
                    for name in names:
                        _, dash, sha256 = name.partition("-")
                        if dash:
                            found.setdefault(sha256, []).append(f"{directory}/{name}")
    return found


def sweep_staging(names: Names, now: float) -> None:
    """Remove what pulls that were killed more than a day ago left behind."""
    with contextlib.suppress(OSError):
        remove_old_temps(names.cache_dir, now - STAGING_AGE)


class Downloader:
    """Fetches single objects; safe to call from many threads."""

    def __init__(self, store: Store, names: Names, staging: Staging) -> None:
        self._store = store
        self._names = names
        self._staging = staging

    def fetch(self, download: Download) -> Brought:
        """Fetch one object and verify its size and hash; raise CorruptObjectError."""
        rel, entry = download
        path = self._staging.new_path(entry.sha256)
        if self._staging.take_left(entry.sha256, path):
            assert entry.sha256 is not None
            return Fetched(rel, path, entry.sha256, entry.size, None)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError:
            with disk_errors(path):
                raise
        try:
            info = self._download(rel, entry, fd)
            data = self._at_hand(rel, entry, fd)
        except ObjectNotFoundError:
            self._discard(path)
            return Dangling(rel)
        except BaseException:
            self._discard(path)
            raise
        finally:
            os.close(fd)
        sha256 = entry.sha256 or hash_file(path)[0]
        return Fetched(rel, path, sha256, entry.size, info.token, data)

    def _download(self, rel: str, entry: Entry, fd: int) -> ObjectInfo:
        key = self._names.remote(rel)
        try:
            return self._store.download(key, fd, size=entry.size, sha256=entry.sha256)
        except ObjectNotFoundError:
            # An early client put the data of a namespace under its bare path.
            if key == rel or entry.sha256 is None:
                raise
        return self._store.download(rel, fd, size=entry.size, sha256=entry.sha256)

    @staticmethod
    def _at_hand(rel: str, entry: Entry, fd: int) -> bytes | None:
        if entry.size > _SMALL or not rel.endswith(_ASKED_FOR):
            return None
        try:
            data = os.pread(fd, entry.size, 0)
        except OSError:
            return None
        return data if len(data) == entry.size else None

    @staticmethod
    def _discard(path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)


def fetch_all(
    downloader: Downloader, downloads: Iterable[Download], concurrency: int, deadline: Deadline
) -> Iterator[Done[Download, Brought]]:
    """Fetch objects, many at once, and go on while a batch of them lands; the same everywhere."""
    return in_parallel(downloader.fetch, downloads, concurrency, deadline, ahead=BATCH)
