"""Fetching objects into finished files beside the cache's own, ready to be moved into place."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

from swampstore.files import disk_errors, remove_old_temps
from swampstore.stores import ObjectInfo, Store
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync.index_format import Entry
from swampstore.sync.names import Names
from swampstore.sync.signature import hash_file
from swampstore.sync.workers import Deadline, Done, in_parallel

# What has arrived is put in its place when it is so much; whoever is stopped loses no more.
BATCH = 512
# A transfer that began so many seconds ago is over, one way or the other.
STAGING_AGE = 86_400.0


class Download(NamedTuple):
    """A path to fetch, and what the index says about it."""

    rel: str
    entry: Entry


class Fetched(NamedTuple):
    """A verified file in the staging directory."""

    rel: str
    path: str
    sha256: str
    size: int
    token: str | None


class Dangling(NamedTuple):
    """The index names an object that is not there."""

    rel: str


Brought = Fetched | Dangling


class Staging:
    """A directory for files that are still arriving; a killed process leaves it.

    It is inside another one: the cache, or somebody else's staging directory.
    """

    def __init__(self, parent: str) -> None:
        self._parent = parent
        self.path = f"{parent}/.{uuid.uuid4()}.tmp"
        self._numbers = itertools.count()
        self._of_thread = threading.local()

    def __enter__(self) -> Self:
        with disk_errors(self._parent):
            os.makedirs(self.path)
        return self

    def new_path(self) -> str:
        """Return a path for one more file.

        Threads have directories of their own: in one they would wait for each other.
        """
        directory: str | None = getattr(self._of_thread, "directory", None)
        if directory is None:
            directory = f"{self.path}/{next(self._numbers)}"
            with disk_errors(self._parent):
                os.makedirs(directory)
            self._of_thread.directory = directory
        return f"{directory}/{next(self._numbers)}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


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
        path = self._staging.new_path()
        rel, entry = download
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError:
            with disk_errors(path):
                raise
        try:
            info = self._download(rel, entry, fd)
        except ObjectNotFoundError:
            self._discard(path)
            return Dangling(rel)
        except BaseException:
            self._discard(path)
            raise
        finally:
            os.close(fd)
        sha256 = entry.sha256 or hash_file(path)[0]
        return Fetched(rel, path, sha256, entry.size, info.token)

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
    def _discard(path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)


def fetch_all(
    downloader: Downloader, downloads: Iterable[Download], concurrency: int, deadline: Deadline
) -> Iterator[Done[Download, Brought]]:
    """Fetch objects, many at once, and go on while a batch of them lands; the same everywhere."""
    return in_parallel(downloader.fetch, downloads, concurrency, deadline, ahead=BATCH)
