"""Files that are locked for as long as somebody lives who needs what they stand for.

The operating system frees the lock when its process ends, however it ends. The file says on which
running system that is so: elsewhere, across a network, a free lock proves nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from functools import cache
from types import TracebackType
from typing import Self

from swampstore.files.disk import open_shared, temp_beside

_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Hold:
    """A lock that any number of files share, which are links to one; hardly ever more.

    Others may share it, and nobody can take it over meanwhile. It ends with the process, or when
    it is released or forgotten.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._newest = ""
        self._prepared = ""

    def prepare(self, directory: str) -> None:
        """Make a file ready, unless there is one, so that it is locked wherever it appears.

        Media without such locks get none: there, age alone tells the dead. Raises OSError if the
        disk has no room for it.
        """
        if self._newest or self._prepared:
            return
        path = temp_beside(f"{directory}/")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            os.unlink(path)
            return
        try:
            os.write(fd, running_system().encode())
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        self._fds.append(fd)
        self._prepared = path

    def place(self, path: str) -> None:
        """Let a locked file appear at a path."""
        if self._newest:
            try:
                os.link(self._newest, path)
                self._newest = path
            except OSError:  # it is gone, or has too many links, or the disk knows none
                self._newest = ""
                self.prepare(os.path.dirname(os.path.dirname(path)))
        if self._prepared:
            os.rename(self._prepared, path)
            self._newest, self._prepared = path, ""

    def join(self, path: str) -> bool:
        """Share the lock of a file that somebody else made; False if it is being removed."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(fd), os.stat(path))
        except OSError:
            is_there = False
        if not is_there or self._has(fd):
            os.close(fd)
        else:
            self._fds.append(fd)
        return is_there

    def _has(self, fd: int) -> bool:
        return any(os.path.sameopenfile(fd, one) for one in self._fds)

    def seal(self) -> None:
        """Let the lock prove nothing from now on: what was held is about to be finished."""
        for fd in self._fds:
            os.ftruncate(fd, 0)

    def __del__(self) -> None:
        # Whoever forgets what they held will never come back for it.
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock up."""
        fds, prepared = self._fds, self._prepared
        self._fds, self._newest, self._prepared = [], "", ""
        for fd in fds:
            os.close(fd)
        if prepared:
            with contextlib.suppress(OSError):
                os.unlink(prepared)


@contextlib.contextmanager
def taking_over(path: str, patience: float = 0.0) -> Iterator[bool | None]:
    """Yield whether whoever held a file is dead, None if that cannot be told from the file.

    Nobody can share or take over the lock of a dead one before the block ends. `patience` is for
    how many seconds that is waited for.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # it is not there, or not ours to judge
        yield None
        return
    try:
        yield _is_free(fd, path, time.monotonic() + patience)
    finally:
        os.close(fd)


def _is_free(fd: int, path: str, deadline: float) -> bool | None:
    try:
        if not lock_until(fd, deadline):
            return False
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            return False  # somebody else was faster, and another one has it now
        return os.read(fd, 100).decode("ascii", "replace") == running_system() or None
    except OSError:
        return None


@cache
def running_system() -> str:
    """Return what tells this running system from every other one."""
    if boot := boot_id():
        return boot
    import platform

    return platform.node()


def boot_id() -> str:
    """Return what this start of the system is called; empty where it has no name."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # only Linux has it
        return ""


def try_lock(fd: int) -> bool:
    """Lock an open file, unless somebody else has; return whether it is ours."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_until(fd: int, deadline: float) -> bool:
    """Lock an open file; False if others have it up to a time of the monotonic clock."""
    pause = _FIRST_WAIT
    while not try_lock(fd):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_WAIT)
    return True


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Let one process at a time into the block; others wait. `path` is a file only for that."""
    fd = open_shared(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
