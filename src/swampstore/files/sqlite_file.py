"""A SQLite file that heals itself, shared by processes and threads.

Such a file is a cache. Whatever is wrong with it (missing, damaged, deleted while open, another one
in its place) the answer is a fresh one, and never an error as long as the disk can be written. Only
one of a newer release, which may be in use by that release, is left alone: NewerFormatError.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import ClassVar, TypeVar

from swampstore.errors import DiskError, SwampstoreError
from swampstore.files.disk import make_shared
from swampstore.files.hold import alone
from swampstore.formats import refuse_newer

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
# What tells files apart that had the same path, None where there was none.
FileIds = tuple[tuple[int, int] | None, ...]

LOG = ("-wal", "-shm")
_BUSY_SECONDS = 5.0
_ATTEMPTS = 5
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
# A crowd that opens the log at the same moment is what SQLite calls a protocol error.
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DISK = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
    }
)


class ReplacedError(sqlite3.Error):
    """The file at the path is another one now; open it again."""


class SqliteFile(ABC):
    """What does not depend on what is in the file, and on who has which connection to it.

    `kind` is that of `swampstore.formats`, `beside` what comes between the path and the names of
    the files that belong to it.
    """

    # Which of its files make it another one if they are replaced behind our back.
    watched: ClassVar[tuple[str, ...]] = ("",)
    # How often this process, or one that it descends from, was forked.
    forks: ClassVar[int] = 0

    def __init__(self, path: str, kind: str, beside: str) -> None:
        self.path = path
        self._kind = kind
        self._beside = beside
        self._forks = SqliteFile.forks
        self._watched = [f"{path}{suffix}" for suffix in self.watched]

    @property
    @abstractmethod
    def _opened(self) -> FileIds | None:
        """The files that the connection was opened to, also if that has failed."""

    @abstractmethod
    def _connection(self) -> sqlite3.Connection:
        """Return the connection, a new one if another file has taken the path."""

    @abstractmethod
    def _forget(self) -> None:
        """Close the connection, if there is one."""

    @abstractmethod
    def _disown(self) -> None:
        """Give up, in a forked child, what the parent has open: neither use nor close it."""

    @abstractmethod
    def _stuck(self) -> SwampstoreError:
        """Return the error for a file that stays busy or damaged."""

    def _is_damage(self, error: sqlite3.Error) -> bool:
        return code_of(error) in _DAMAGED

    def _run(self, work: Work[T]) -> T:
        """Run `work` on the connection, again if the file was busy or had to be healed."""
        self._heed_fork()
        for attempt in range(_ATTEMPTS):
            try:
                return work(self._connection())
            except sqlite3.Error as error:
                self._after_failure(error, attempt)
        raise self._stuck()

    def _heed_fork(self) -> None:
        if self._forks != SqliteFile.forks:
            self._forks = SqliteFile.forks
            self._disown()

    def _after_failure(self, error: sqlite3.Error, attempt: int) -> None:
        if isinstance(error, ReplacedError):
            return
        if code_of(error) in _BUSY:
            import random

            time.sleep(0.1 * 2**attempt + random.uniform(0, 0.05))  # noqa: S311 - only jitter
        elif not self._is_current():
            self._forget()
        elif is_about_the_disk(error) and not os.path.isdir(self.path):
            self._forget()
            raise unusable(self.path, error) from error
        elif self._is_damage(error):
            self._heal()
        else:
            raise error

    def _ids(self) -> FileIds:
        return tuple([_file_id(path) for path in self._watched])

    def _is_current(self) -> bool:
        """Whether the files that the connection was opened to are still those at the path."""
        return self._opened == self._ids()

    def _heal(self) -> None:
        """Move a damaged file out of the way, unless another process did so already."""
        with self._alone():
            is_ours_to_heal = self._is_current()
            self._forget()  # only now: the last to close a file removes its log
            if is_ours_to_heal:
                self._set_aside("damaged")

    def _set_aside(self, why: str) -> None:
        set_aside(self.path, f"{self.path}{self._beside}{why}")

    def _alone(self) -> AbstractContextManager[None]:
        """Let one process at a time create or replace the file."""
        return alone(f"{self.path}{self._beside}lock")

    def _make(self) -> None:
        """Make the file, if it is not there: SQLite itself would keep the group out."""
        make_shared(self.path)

    def _checked_version(self, db: sqlite3.Connection) -> int:
        """Return the version of the tables; raise NewerFormatError if we do not know it."""
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        refuse_newer(self._kind, version, self.path)
        return version


def set_aside(path: str, aside: str) -> None:
    """Move a SQLite file out of the way, and its log with it."""
    for suffix in ("", *LOG):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{suffix}", f"{aside}{suffix}")


def open_sqlite(path: str, *, uri: bool = False) -> sqlite3.Connection:
    """Return a connection without transactions of its own, which any thread may use."""
    return sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri
    )


def view_sqlite(path: str) -> sqlite3.Connection:
    """Return a connection that only reads, and works where nothing can be written either."""
    from urllib.parse import quote

    # Where nothing can be written, not even the shared memory of a log could be made. If both are
    # there, from a process that was killed or still runs, they can be read, and must be.
    has_log = all(os.path.exists(f"{path}{suffix}") for suffix in LOG)
    mode = "mode=ro" if has_log or os.access(os.path.dirname(path), os.W_OK) else "immutable=1"
    return open_sqlite(f"file:{quote(path)}?{mode}", uri=True)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Keep all that is done in the block, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.commit()
    except BaseException:
        db.rollback()
        raise


def code_of(error: sqlite3.Error) -> int:
    """Return what SQLite calls an error, 0 if it was not SQLite that raised it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_about_the_disk(error: sqlite3.Error) -> bool:
    """Whether the disk refuses, and not the file."""
    return code_of(error) in _DISK


def unusable(path: str, error: sqlite3.Error) -> DiskError:
    """Return the error for a file that the disk keeps from being used."""
    return DiskError(
        f"{path} cannot be used: {error}",
        hint="Check free space and permissions; nothing was lost, it can be made anew.",
    )


def not_its_fault(path: str, error: sqlite3.Error) -> DiskError | None:
    """Return the error for a file that may be sound, None if the file itself is to blame.

    The disk refuses, or others are at work on it for longer than anybody waits.
    """
    if code_of(error) in _BUSY:
        return DiskError(
            f"{path} cannot be used: {error}",
            hint="Try again when no other program works on it; nothing was lost.",
        )
    is_disk = is_about_the_disk(error) and not os.path.isdir(path)
    return unusable(path, error) if is_disk else None


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _count_fork() -> None:
    SqliteFile.forks += 1


os.register_at_fork(after_in_child=_count_fork)
