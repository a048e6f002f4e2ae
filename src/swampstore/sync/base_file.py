"""The SQLite file of a base: opening, sharing between processes and threads, healing.

Each transaction first looks whether the file still belongs to this schema and this remote, so
that two processes with different ideas of that never see each other's rows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from swampstore.errors import DiskError
from swampstore.files import disk_errors, make_shared, open_shared
from swampstore.formats import NEWEST, refuse_newer
from swampstore.sync.errors import SyncError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
_FileId = tuple[int, int]

_BUSY_SECONDS = 5.0
_ATTEMPTS = 5
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
_CALLERS_MISTAKES = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError)


class BaseFile:
    """One SQLite file that holds the tables of `schema` for one owner, and nothing else ever.

    One connection, used by one thread at a time. `work` must be repeatable: it runs again if the
    file had to be healed, and then finds empty tables. A file whose `kind` has a higher version
    than this release knows raises NewerFormatError, whatever is done with it.
    """

    def __init__(self, path: str, schema: Sequence[str], owner: str, *, kind: str = "base") -> None:
        self._path = path
        self._schema = schema
        self._kind = kind
        # Other tables make another stamp, without a version number that could be forgotten.
        self._stamp = f"{zlib.crc32(repr(schema).encode()):08x} {owner}"
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[_FileId | None, ...] = ()
        self._inherited: sqlite3.Connection | None = None

    def read(self, work: Work[T]) -> T:
        """Run `work` on one consistent state of the file."""

        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN DEFERRED")
            try:
                if self._is_ours(db):
                    return work(db)
            finally:
                db.rollback()  # nothing was written
            return self._write(db, work)

        return self._run(transaction)

    def write(self, work: Work[T]) -> T:
        """Run `work` in one transaction: all of it is kept, or nothing."""
        return self._run(lambda db: self._write(db, work))

    def clear(self) -> None:
        """Drop everything."""
        self.write(self._start_afresh)

    def close(self) -> None:
        """Release the file."""
        self._leave_parents_connection()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _write(self, db: sqlite3.Connection, work: Work[T]) -> T:
        with _transaction(db):
            if not self._is_ours(db):
                self._start_afresh(db)
            return work(db)

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        try:
            found: tuple[str] | None = db.execute("SELECT stamp FROM owner").fetchone()
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_ERROR:  # no such table
                return False
            raise
        return found == (self._stamp,)

    def _start_afresh(self, db: sqlite3.Connection) -> None:
        """Drop every table and create ours, inside a transaction.

        The file itself stays: others may have it open, and SQLite's log belongs to its name.
        """
        self._refuse_newer(db)
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
        for (name,) in db.execute(tables).fetchall():
            quoted = name.replace('"', '""')
            db.execute(f'DROP TABLE "{quoted}"')
        for statement in self._schema:
            db.execute(statement)
        db.execute("CREATE TABLE owner (stamp TEXT NOT NULL)")
        db.execute("INSERT INTO owner VALUES (?)", (self._stamp,))
        db.execute(f"PRAGMA user_version = {NEWEST[self._kind]}")

    def _refuse_newer(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        refuse_newer(self._kind, version, self._path)

    def _run(self, work: Work[T]) -> T:
        self._leave_parents_connection()
        with self._lock:
            for attempt in range(_ATTEMPTS):
                try:
                    return work(self._current())
                except _CALLERS_MISTAKES:
                    raise
                except sqlite3.DatabaseError as error:
                    self._after_failure(error, attempt)
        raise SyncError(
            f"{self._path} stays busy or damaged",
            hint="Stop other processes that use it, delete it, and sync again: it is rebuilt.",
        )

    def _after_failure(self, error: sqlite3.DatabaseError, attempt: int) -> None:
        code = _code(error)
        if code in _BUSY:
            time.sleep(0.05 * 2**attempt)
        elif self._opened != self._file_ids():
            self.close()
        elif code in _DISK and not os.path.isdir(self._path):
            self.close()
            raise DiskError(
                f"{self._path} cannot be used: {error}",
                hint="Check free space and permissions; nothing was lost.",
            ) from error
        else:
            self._set_aside()

    def _current(self) -> sqlite3.Connection:
        """Return the connection, a new one if another file has taken the path."""
        if self._connection is None or self._opened != self._file_ids():
            self.close()
            with disk_errors(self._path), self._alone():
                self._opened = self._file_ids()
                self._connection = self._open()
                self._opened = self._file_ids()
        return self._connection

    def _file_ids(self) -> tuple[_FileId | None, ...]:
        """Return what identifies the file and its log; either may be removed behind our back."""
        return _file_id(self._path), _file_id(f"{self._path}-wal")

    def _set_aside(self) -> None:
        """Move a damaged file out of the way, unless another process did so already."""
        opened = self._opened
        with disk_errors(self._path), self._alone():
            if opened == self._file_ids():
                self.close()
                os.replace(self._path, f"{self._path}-damaged")
                for suffix in ("-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(f"{self._path}{suffix}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from opening or replacing the file meanwhile."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fd = open_shared(f"{self._path}-lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _open(self) -> sqlite3.Connection:
        make_shared(self._path)  # SQLite itself would keep the group out
        db = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._refuse_newer(db)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            # Reading opens the log as well, while nobody can replace it.
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _leave_parents_connection(self) -> None:
        """After a fork: what the parent has open is neither used nor closed here."""
        if self._pid != os.getpid():
            self._inherited, self._connection = self._connection, None
            self._lock = threading.RLock()
            self._pid = os.getpid()


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.commit()
    except BaseException:
        db.rollback()
        raise


def _file_id(path: str) -> _FileId | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
