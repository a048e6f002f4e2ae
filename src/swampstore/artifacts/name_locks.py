"""Mutual exclusion between the processes and threads of one machine, per data name.

Names share a fixed number of lock files, so nothing accumulates and a lock needs no directory
of its data. Whoever holds a name's lock is the only one on this machine that changes it; a lock
nobody holds proves that whatever was left unfinished under it was left by the dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import zlib
from collections.abc import Iterable, Iterator

from swampstore.errors import DiskError, LockTimeoutError
from swampstore.files import disk_errors, open_shared

STRIPES = 64
_FIRST_WAIT = 0.0005
_LONGEST_WAIT = 0.02


class NameLocks:
    """Lock files in one directory of the local tier. `timeout` bounds every wait, in seconds."""

    def __init__(self, directory: str, timeout: float = 60.0) -> None:
        self._directory = directory
        self.timeout = timeout

    @contextlib.contextmanager
    def hold(self, *rels: str, only_reading: bool = False) -> Iterator[None]:
        """Hold the locks of these names; raise LockTimeoutError if they stay taken.

        Whoever is `only_reading` goes on without them on media that cannot be written.
        """
        with self._held({_stripe(rel) for rel in rels}, rels[0], only_reading):
            yield

    @contextlib.contextmanager
    def hold_all(self, *, only_reading: bool = False) -> Iterator[None]:
        """Hold every lock, so that no name changes meanwhile."""
        with self._held(range(STRIPES), "every data name", only_reading):
            yield

    @contextlib.contextmanager
    def try_hold(self, *rels: str) -> Iterator[bool]:
        """Hold the locks of these names if all are free right now; yields whether they are held."""
        fds: list[int] = []
        try:
            yield all(self._try_open(stripe, fds) for stripe in {_stripe(rel) for rel in rels})
        finally:
            for fd in fds:
                os.close(fd)

    def _try_open(self, stripe: int, fds: list[int]) -> bool:
        try:
            fds.append(self._open(stripe))
        except OSError:  # on media that cannot be written there is nothing to lock or to heal
            return False
        return _try_lock(fds[-1])

    @contextlib.contextmanager
    def _held(self, stripes: Iterable[int], what: str, only_reading: bool) -> Iterator[None]:
        deadline = time.monotonic() + self.timeout
        fds: list[int] = []
        try:
            # One order for everybody, so that two holders of several locks never wait in a ring.
            for stripe in sorted(stripes):
                try:
                    with disk_errors(self._directory):
                        fds.append(self._open(stripe))
                except DiskError:
                    if only_reading:
                        break
                    raise
                self._wait(fds[-1], deadline, what)
            yield
        finally:
            for fd in reversed(fds):
                os.close(fd)

    def _wait(self, fd: int, deadline: float, what: str) -> None:
        pause = _FIRST_WAIT
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise LockTimeoutError(
                    f"{what} is being changed by another process for over {self.timeout:g} s",
                    hint="Wait for it, or stop it; SWAMP_LOCK_TIMEOUT_MS sets how long to wait.",
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_WAIT)

    def _open(self, stripe: int) -> int:
        path = f"{self._directory}/{stripe:02}"
        try:
            return open_shared(path)
        except FileNotFoundError:
            os.makedirs(self._directory, exist_ok=True)
            return open_shared(path)


def _stripe(rel: str) -> int:
    return zlib.crc32(rel.encode()) % STRIPES


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
