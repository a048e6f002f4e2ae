"""The SQLite file of a base, which heals itself (see `swampstore.files.sqlite_file`).

Each transaction first looks whether the file still belongs to this schema and this remote, so
that two processes with different ideas of that never see each other's rows.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from swampstore.files import disk_errors
from swampstore.files.sqlite_file import (
    FileIds,
    SqliteFile,
    Work,
    code_of,
    open_sqlite,
    transaction,
)
from swampstore.formats import NEWEST
from swampstore.index.errors import SyncError

T = TypeVar("T")
_NOTHING: Mapping[str, str | None] = MappingProxyType({})
_CALLERS_MISTAKES = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError)


class BaseFile(SqliteFile):
    """One SQLite file that holds the tables of `schema` for one owner, and nothing else ever.

    One connection, used by one thread at a time. `work` must be repeatable: it runs again if the
    file had to be healed, and then finds empty tables. A file whose `kind` has a higher version
    than this release knows raises NewerFormatError, whatever is done with it.
    """

    # Its log as well: either may be removed behind our back.
    watched = ("", "-wal")

    def __init__(self, path: str, schema: Sequence[str], owner: str, *, kind: str = "base") -> None:
        super().__init__(path, kind, "-")
        self._schema = schema
        # Other tables make another stamp, without a version number that could be forgotten.
        self._stamp = f"{zlib.crc32(repr(schema).encode()):08x} {owner}"
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._ids_opened: FileIds = ()
        self._inherited: sqlite3.Connection | None = None
        self._recalled: dict[str, str | None] = {}
        # What SQLite counts of others' commits, when what is recalled was read.
        self._commits: int | None = None

    def read(self, work: Work[T]) -> T:
        """Run `work` on one consistent state of the file."""
        return self._run(lambda db: self._read(db, work))

    def recall(self, names: Sequence[str], work: Work[list[str | None]]) -> list[str | None]:
        """Return what `work` reads under these names; it is read only if somebody wrote since.

        Others are noticed. Whoever changes it through this object says so (see `write`).
        """

        def attempt(db: sqlite3.Connection) -> list[str | None]:
            commits = _commits_of_others(db)
            if commits != self._commits:
                self._commits = commits
                self._recalled.clear()
            elif self._recalled.keys() >= set(names):
                return [self._recalled[name] for name in names]
            # If others commit in between, this is newer than it need be, and is read again.
            self._recalled.update(zip(names, self._read(db, work), strict=True))
            return [self._recalled[name] for name in names]

        return self._run(attempt)

    def write(self, work: Work[T], *, recalled: Mapping[str, str | None] = _NOTHING) -> T:
        """Run `work` in one transaction: all of it is kept, or nothing.

        `recalled` is what `work` writes of what can be recalled: nobody need read it again.
        """

        def attempt(db: sqlite3.Connection) -> T:
            try:
                result = self._write(db, work)
            except BaseException:
                self._recalled.clear()
                raise
            self._recalled.update(recalled)
            return result

        return self._run(attempt)

    def unwritten(
        self, db: sqlite3.Connection, facts: Collection[tuple[str, str]]
    ) -> Collection[tuple[str, str]]:
        """Return what the file, as far as that can be recalled, does not have yet, for `work`."""
        if self._commits != _commits_of_others(db):
            return facts
        return [(name, value) for name, value in facts if self._recalled.get(name) != value]

    def clear(self, then: Work[object] = lambda _: None) -> None:
        """Drop everything, and run `then` in the same transaction."""

        def work(db: sqlite3.Connection) -> None:
            self._start_afresh(db)
            then(db)

        self.write(work)

    def close(self) -> None:
        """Release the file."""
        self._heed_fork()
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None

    def _read(self, db: sqlite3.Connection, work: Work[T]) -> T:
        db.execute("BEGIN DEFERRED")
        try:
            if self._is_ours(db):
                return work(db)
        finally:
            db.rollback()  # nothing was written
        return self._write(db, work)

    def _write(self, db: sqlite3.Connection, work: Work[T]) -> T:
        with transaction(db):
            if not self._is_ours(db):
                self._start_afresh(db)
            return work(db)

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        try:
            found: tuple[str] | None = db.execute("SELECT stamp FROM owner").fetchone()
        except sqlite3.OperationalError as error:
            if code_of(error) == sqlite3.SQLITE_ERROR:  # no such table
                return False
            raise
        return found == (self._stamp,)

    def _start_afresh(self, db: sqlite3.Connection) -> None:
        """Drop every table and create ours, inside a transaction.

        The file itself stays: others may have it open, and SQLite's log belongs to its name.
        """
        self._recalled.clear()
        self._checked_version(db)
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
        for (name,) in db.execute(tables).fetchall():
            quoted = name.replace('"', '""')
            db.execute(f'DROP TABLE "{quoted}"')
        for statement in self._schema:
            db.execute(statement)
        db.execute("CREATE TABLE owner (stamp TEXT NOT NULL)")
        db.execute("INSERT INTO owner VALUES (?)", (self._stamp,))
        db.execute(f"PRAGMA user_version = {NEWEST[self._kind]}")

    def _run(self, work: Work[T]) -> T:
        self._heed_fork()
        with self._lock:
            return super()._run(work)

    def _stuck(self) -> SyncError:
        return SyncError(
            f"{self.path} stays busy or damaged",
            hint="Stop other processes that use it, delete it, and sync again: it is rebuilt.",
        )

    def _is_damage(self, error: sqlite3.Error) -> bool:
        """Whether it may be the file's fault: a base can always be thrown away."""
        return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, _CALLERS_MISTAKES)

    @property
    def _opened(self) -> FileIds:
        return self._ids_opened

    def _connection(self) -> sqlite3.Connection:
        if self._db is None or not self._is_current():
            self.close()
            with disk_errors(self.path):
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                with self._alone():
                    self._ids_opened = self._ids()
                    self._db = self._open()
                    self._ids_opened = self._ids()
        return self._db

    def _open(self) -> sqlite3.Connection:
        self._commits = None
        self._make()
        db = open_sqlite(self.path)
        try:
            self._checked_version(db)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            # Reading opens the log as well, while nobody can replace it.
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _heal(self) -> None:
        with disk_errors(self.path):
            super()._heal()

    def _forget(self) -> None:
        self.close()

    def _disown(self) -> None:
        self._inherited, self._db = self._db, None
        self._lock = threading.RLock()


def _commits_of_others(db: sqlite3.Connection) -> int:
    """Return a number that is another one as soon as another connection has committed."""
    number: int = db.execute("PRAGMA data_version").fetchone()[0]
    return number
