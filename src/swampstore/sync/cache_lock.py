"""One sync of a cache at a time on a machine, by a lock of the operating system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from swampstore.errors import LockTimeoutError
from swampstore.files import disk_errors, open_shared

_FILE = "_catalog.db-sync-lock"
_PAUSE = 0.05


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
            yield _is_locked(fd)

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
        end = time.monotonic() + patience
        while not _is_locked(fd):
            if time.monotonic() > end:
                raise LockTimeoutError(
                    f"another sync of {self._cache_dir} is running for over {patience:g} s",
                    hint="Wait for it; SWAMP_LOCK_TIMEOUT_MS sets how long.",
                )
            time.sleep(_PAUSE)


def _is_locked(fd: int) -> bool:
    """Lock a file, unless somebody else has; return whether it is ours."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
