"""The catalog's SQLite file, which heals itself (see `swampstore.files.sqlite_file`).

One of an older schema is moved aside like a damaged one. On a disk that cannot be written, the
catalog is used as it is.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import NamedTuple, Protocol, TypeVar

from swampstore.catalog.schema import DDL, SCHEMA_VERSION, UPGRADES
from swampstore.errors import CatalogError, DiskError
from swampstore.files.sqlite_file import (
    LOG,
    FileIds,
    ReplacedError,
    SqliteFile,
    Work,
    is_about_the_disk,
    open_sqlite,
    transaction,
)

T = TypeVar("T")
_CHECKPOINT_PAGES = 4000


class Rows(Protocol):
    """Where a catalog keeps its rows.

    `generation` grows whenever an empty file has taken the place of the one that was read
    before: an answer during which it grew may have missed everything.
    """

    generation: int

    def read(self, work: Work[T]) -> T:
        """Run `work` on a connection."""

    def write(self, work: Work[T], *, flush: bool = False) -> T:
        """Run `work` in one transaction."""

    def close(self) -> None:
        """Release every connection."""


class Database(SqliteFile):
    """One SQLite file with a connection per thread, reopened whenever the file was replaced."""

    def __init__(self, path: str, *, durable: bool = True) -> None:
        super().__init__(path, "catalog", ".")
        self._durable = durable
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()
        self._guard = threading.Lock()
        self._inherited: object = None
        self._known: FileIds | None = None
        self.generation = 0

    def read(self, work: Work[T]) -> T:
        """Run `work` on a connection. It may run again if the file had to be healed."""
        return self._run(work)

    def write(self, work: Work[T], *, flush: bool = False) -> T:
        """Run `work` in one transaction; with `flush` the commit is on disk when this returns.

        `work` may run again if the file was damaged, or was deleted behind our back.
        """

        def in_transaction(db: sqlite3.Connection) -> T:
            if flush and self._local.is_standin:
                self._forget()  # the next attempt finds out whether the disk is well again
                raise DiskError(
                    f"the catalog {self.path} cannot be written",
                    hint="Check free space and permissions; nothing was changed.",
                )
            db.execute(f"PRAGMA synchronous = {self._level(flush=flush)}")
            with transaction(db):
                return work(db)

        while True:
            result = self._run(in_transaction)
            # A file deleted since has taken the commit with it; the new one must get it too.
            if self._is_current():
                return result

    def _level(self, *, flush: bool) -> str:
        if not self._durable:
            return "OFF"
        return "FULL" if flush else "NORMAL"

    def close(self) -> None:
        """Close the connections of every thread."""
        self._heed_fork()
        with self._guard:
            for connection in self._open:
                connection.close()
            self._open.clear()
        self._local = threading.local()

    def _stuck(self) -> CatalogError:
        return CatalogError(
            f"the catalog {self.path} stays busy or damaged",
            hint="Stop other processes that use it, delete it, and try again: it is rebuilt.",
        )

    def _disown(self) -> None:
        self._inherited = (self._local, self._open)
        self._local, self._open, self._guard = threading.local(), set(), threading.Lock()

    @property
    def _opened(self) -> FileIds | None:
        opened: FileIds | None = getattr(self._local, "opened", None)
        return opened

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None and self._is_current():
            return connection
        self._forget()
        connection = self._connect()
        self._local.connection = connection
        with self._guard:
            self._open.add(connection)
        return connection

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
        if not all(_is_writable(f"{self.path}{suffix}") for suffix in LOG):
            # Left by somebody who could read the catalog and not write it. It is made anew.
            with self._alone():
                self._set_aside("locked")
        with contextlib.suppress(OSError):  # what that means is found out by opening it
            self._make()
        self._local.opened = self._ids()
        try:
            connection = open_sqlite(self.path)
        except sqlite3.OperationalError as error:
            if os.path.isfile(self.path) or not os.path.lexists(self.path):
                raise
            raise DiskError(
                f"the catalog {self.path} cannot be opened: {error}",
                hint="Move away what is in its place: it is made anew.",
            ) from error
        try:
            self._prepare(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error) and is_about_the_disk(error):
                return self._connect_read_only()
            raise
        self._local.opened = self._ids()
        self._local.is_standin = False
        if self._local.opened != self._known:
            self._known = self._local.opened
            self.generation += 1
        return connection

    def _connect_read_only(self) -> sqlite3.Connection:
        """On a disk that cannot be written, use the catalog as it is, or a stand-in in memory.

        A stand-in may be filled for reading, but no change may begin with it.
        """
        self._local.opened = self._ids()
        self._local.is_standin = True
        found = self._open_as_it_is()
        if found is not None and _is_populated(found):
            return found
        memory = open_sqlite(":memory:")
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
        if not os.path.exists(self.path) or (os.path.exists(log) and os.path.getsize(log)):
            return None
        connection = open_sqlite(f"file:{quote(self.path)}?immutable=1", uri=True)
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

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._checked_version(connection) != SCHEMA_VERSION:
            with self._alone():
                self._bring_to_schema(connection)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA synchronous = {self._level(flush=False)}")

    def _bring_to_schema(self, connection: sqlite3.Connection) -> None:
        version = self._checked_version(connection)
        if version == SCHEMA_VERSION:
            return
        if version in UPGRADES and _has_tables(connection):
            _upgrade(connection, version)
            return
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            # An unknown schema: keep it out of the way, start afresh.
            self._set_aside(f"schema-{version}")
            raise ReplacedError
        # Switching the journal mode takes an exclusive lock, so it happens once per file.
        connection.execute("PRAGMA journal_mode = WAL")
        create_schema(connection)


def _is_writable(path: str) -> bool:
    return not os.path.lexists(path) or os.access(path, os.W_OK)


def _is_populated(connection: sqlite3.Connection) -> bool:
    sql = "SELECT 1 FROM catalog_meta WHERE key = 'populated'"
    return connection.execute(sql).fetchone() is not None


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether this is a catalog of an older schema, and not something else that says so."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    return {"catalog", "tag", "tag_added", "tag_gained", "tag_lost", "tag_removed"} <= found


def _upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a catalog of an older schema to ours: its rows, and what is being changed, stay."""
    with transaction(connection):
        for statement in UPGRADES[version]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


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
        self._connection = open_sqlite(":memory:")
        create_schema(self._connection)

    def read(self, work: Work[T]) -> T:
        """Run `work` on the connection, one thread at a time."""
        with self._guard:
            return work(self._connection)

    def write(self, work: Work[T], *, flush: bool = False) -> T:
        """Run `work` in one transaction; there is nothing to flush."""
        del flush
        with self._guard, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)

    def close(self) -> None:
        """Drop everything."""
        self._connection.close()


_REFUSED = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
)


class Checkpoint(NamedTuple):
    """How many pages the log held, and how many of them are in the file now."""

    pages_total: int
    pages_checkpointed: int


class Compacted(NamedTuple):
    """What became of the log, and by how much the file shrank."""

    wal_pages_total: int
    wal_pages_checkpointed: int
    bytes_reclaimed: int
    vacuum_skipped: bool


def checkpoint(rows: Rows) -> Checkpoint:
    """Write the log back into the file and empty it, as far as others who read it allow."""

    def work(db: sqlite3.Connection) -> Checkpoint:
        # Emptying the log resets the numbers, so they are taken from a run that does not.
        _, total, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return Checkpoint(max(total, 0), max(moved, 0))

    return rows.read(work)


def compact(rows: Rows) -> Compacted:
    """Write the log back, then write the file anew without its free pages.

    The second step is skipped while somebody else uses the catalog or if the disk is too full:
    nothing depends on it.
    """
    log = checkpoint(rows)
    before = rows.read(_file_size)
    skipped = not rows.read(_vacuum)
    if not skipped:
        checkpoint(rows)
    after = rows.read(_file_size)
    return Compacted(log.pages_total, log.pages_checkpointed, max(before - after, 0), skipped)


def _vacuum(db: sqlite3.Connection) -> bool:
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _REFUSED:
            raise
        return False
    return True


def _file_size(db: sqlite3.Connection) -> int:
    (pages,), (page_size,) = (
        db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
    )
    return int(pages * page_size)
