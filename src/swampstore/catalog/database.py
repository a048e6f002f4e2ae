"""The catalog's SQLite file: opening, sharing between processes and threads, healing.

The file is a cache. Whatever is wrong with it (missing, damaged, of an older schema, deleted
while open) the answer is a fresh one, and never an error as long as the disk can be written. Only
one of a newer release, which may be in use by that release, is left alone: NewerFormatError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from swampstore.catalog.schema import DDL, SCHEMA_VERSION
from swampstore.errors import CatalogError, DiskError
from swampstore.files import make_shared, open_shared
from swampstore.formats import refuse_newer

T = TypeVar("T")
BUSY_TIMEOUT_MS = 5000
_ATTEMPTS = 5
_CHECKPOINT_PAGES = 4000
_LOG = ("-wal", "-shm")
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DISK = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class _ReplacedError(sqlite3.Error):
    """The file at the path is another one now; open it again."""


class Rows(Protocol):
    """Where a catalog keeps its rows.

    `generation` grows whenever an empty file has taken the place of the one that was read
    before: an answer during which it grew may have missed everything.
    """

    generation: int

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a connection."""

    def write(self, work: Callable[[sqlite3.Connection], T], *, flush: bool = False) -> T:
        """Run `work` in one transaction."""

    def close(self) -> None:
        """Release every connection."""


class Database:
    """One SQLite file with a connection per thread, reopened whenever the file was replaced."""

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self.path = path
        self._durable = durable
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._known: tuple[int, int] | None = None
        self.generation = 0

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a connection. It may run again if the file had to be healed."""
        return self._run(work)

    def write(self, work: Callable[[sqlite3.Connection], T], *, flush: bool = False) -> T:
        """Run `work` in one transaction; with `flush` the commit is on disk when this returns.

        `work` may run again if the file was damaged, or was deleted behind our back.
        """

        def transaction(db: sqlite3.Connection) -> T:
            if flush and self._local.is_standin:
                self._forget()  # the next attempt finds out whether the disk is well again
                raise DiskError(
                    f"the catalog {self.path} cannot be written",
                    hint="Check free space and permissions; nothing was changed.",
                )
            db.execute(f"PRAGMA synchronous = {self._level(flush=flush)}")
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
            except BaseException:
                db.rollback()
                raise
            db.commit()
            return result

        while True:
            result = self._run(transaction)
            # A file deleted since has taken the commit with it; the new one must get it too.
            if self._is_current():
                return result

    def _level(self, *, flush: bool) -> str:
        if not self._durable:
            return "OFF"
        return "FULL" if flush else "NORMAL"

    def close(self) -> None:
        """Close the connections of every thread."""
        with self._guard:
            for connection in self._open:
                connection.close()
            self._open.clear()
        self._local = threading.local()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return work(self._connection())
            except sqlite3.Error as error:
                self._after_failure(error, attempt)
        raise CatalogError(
            f"the catalog {self.path} stays busy or damaged",
            hint="Stop other processes that use it, delete it, and try again: it is rebuilt.",
        )

    def _after_failure(self, error: sqlite3.Error, attempt: int) -> None:
        code = _primary_code(error)
        if isinstance(error, _ReplacedError):
            return
        if code in _DAMAGED:
            self._quarantine()
        elif code in _BUSY:
            import random

            time.sleep(0.1 * 2**attempt + random.uniform(0, 0.05))  # noqa: S311 - only jitter
        elif not self._is_current():
            self._forget()
        elif code in _DISK:
            self._forget()
            raise DiskError(
                f"the catalog {self.path} cannot be written: {error}",
                hint="Check free space and permissions; the data itself is not affected.",
            ) from error
        else:
            raise error

    def _connection(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            # A forked child must not touch, nor even close, what its parent has open.
            self._local, self._open, self._pid = threading.local(), set(), os.getpid()
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None and self._is_current():
            return connection
        self._forget()
        connection = self._connect()
        self._local.connection = connection
        with self._guard:
            self._open.add(connection)
        return connection

    def _file_id(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (found.st_dev, found.st_ino)

    def _is_current(self) -> bool:
        """Whether the file that this thread has open is still the one at the path."""
        return getattr(self._local, "file", None) == self._file_id()

    def _forget(self) -> None:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            with self._guard:
                self._open.discard(connection)
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        directory = os.path.dirname(self.path)
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise DiskError(
                f"{directory} cannot be created: {error.strerror}",
                hint="Check permissions, or whether a file is in the way.",
            ) from error
        if not os.access(directory, os.W_OK) or not _is_writable(self.path):
            return self._connect_read_only()
        if not all(_is_writable(f"{self.path}{suffix}") for suffix in _LOG):
            # Left by somebody who could read the catalog and not write it. It is made anew.
            with self._healing():
                self._move_aside("locked")
        self._make_file()
        connection = _open_file(self.path)
        try:
            self._prepare(connection)
        except BaseException as error:
            self._local.file = None
            connection.close()
            if isinstance(error, sqlite3.Error) and _primary_code(error) in _DISK:
                return self._connect_read_only()
            raise
        self._local.file = self._file_id()
        self._local.is_standin = False
        if self._local.file != self._known:
            self._known = self._local.file
            self.generation += 1
        return connection

    def _make_file(self) -> None:
        """Make the file, if it is not there: SQLite itself would keep the group out."""
        with contextlib.suppress(OSError):  # what that means is found out by opening it
            make_shared(self.path)

    def _connect_read_only(self) -> sqlite3.Connection:
        """On a disk that cannot be written, use the catalog as it is, or a stand-in in memory.

        A stand-in may be filled for reading, but no change may begin with it.
        """
        self._local.file = self._file_id()
        self._local.is_standin = True
        found = self._open_as_it_is()
        if found is not None and _is_populated(found):
            return found
        memory = _open_file(":memory:")
        if found is None:
            create_schema(memory)
            return memory
        with contextlib.closing(found):
            found.backup(memory)
        return memory

    def _open_as_it_is(self) -> sqlite3.Connection | None:
        """Open the file without writing a byte; None if that would not show all of it."""
        from urllib.parse import quote

        log = f"{self.path}-wal"
        if self._file_id() is None or (os.path.exists(log) and os.path.getsize(log)):
            return None
        connection = _open_file(f"file:{quote(self.path)}?immutable=1", uri=True)
        try:
            if self._checked_version(connection) == SCHEMA_VERSION:
                return connection
        except sqlite3.DatabaseError:
            pass
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def _checked_version(self, connection: sqlite3.Connection) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        refuse_newer("catalog", version, self.path)
        return version

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._checked_version(connection) != SCHEMA_VERSION:
            with self._healing():
                self._bring_to_schema(connection)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA synchronous = {self._level(flush=False)}")

    def _bring_to_schema(self, connection: sqlite3.Connection) -> None:
        version = self._checked_version(connection)
        if version == SCHEMA_VERSION:
            return
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            # An older schema: keep it out of the way, start afresh.
            self._move_aside(f"schema-{version}")
            raise _ReplacedError
        # Switching the journal mode takes an exclusive lock, so it happens once per file.
        connection.execute("PRAGMA journal_mode = WAL")
        create_schema(connection)

    def _quarantine(self) -> None:
        """Move a damaged file aside, unless another process did so already."""
        opened = getattr(self._local, "file", None)
        self._forget()
        with self._healing():
            unchanged = self._file_id() == opened
            if unchanged if opened else self._is_unreadable():
                self._move_aside("damaged")

    def _is_unreadable(self) -> bool:
        connection = _open_file(self.path)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError:
            return True
        finally:
            connection.close()
        return False

    def _move_aside(self, why: str) -> None:
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{self.path}.{why}{suffix}")

    @contextlib.contextmanager
    def _healing(self) -> Iterator[None]:
        """Let one process at a time create or replace the file."""
        fd = open_shared(f"{self.path}.lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _is_writable(path: str) -> bool:
    return not os.path.lexists(path) or os.access(path, os.W_OK)


def _open_file(path: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=BUSY_TIMEOUT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
        uri=uri,
    )


def _is_populated(connection: sqlite3.Connection) -> bool:
    sql = "SELECT 1 FROM catalog_meta WHERE key = 'populated'"
    return connection.execute(sql).fetchone() is not None


def create_schema(connection: sqlite3.Connection) -> None:
    """Create every table in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in DDL:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


class MemoryDatabase:
    """The same tables in memory, for data that must not outlive the process."""

    def __init__(self) -> None:
        self.generation = 0
        self._guard = threading.RLock()
        self._connection = _open_file(":memory:")
        create_schema(self._connection)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the connection, one thread at a time."""
        with self._guard:
            return work(self._connection)

    def write(self, work: Callable[[sqlite3.Connection], T], *, flush: bool = False) -> T:
        """Run `work` in one transaction; there is nothing to flush."""
        del flush
        with self._guard, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)

    def close(self) -> None:
        """Drop everything."""
        self._connection.close()
