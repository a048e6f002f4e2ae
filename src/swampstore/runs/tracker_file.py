"""The SQLite file of the run tracker, which other clients use as well: its tables, version 4.

Beside their table of active runs we keep one of our own, with what theirs has no column for. A file
of an older version gets what it lacks, one of a newer one is left alone.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TypeVar

from swampstore.files.sqlite_file import Work, code_of, is_about_the_disk, unusable, view_sqlite
from swampstore.formats import NEWEST, refuse_newer
from swampstore.index.base_file import BaseFile
from swampstore.index.errors import SyncError

T = TypeVar("T")
KIND = "run tracker"
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
ACTIVE, OURS, _META = "active_runs", "swampstore_runs", "run_tracker_meta"
_COLUMNS = {
    "id": "TEXT PRIMARY KEY",
    "run_kind": "TEXT NOT NULL",
    "model_type": "TEXT",
    "method_name": "TEXT",
    "workflow_name": "TEXT",
    "pid": "INTEGER NOT NULL",
    "hostname": "TEXT NOT NULL",
    "started_at": "TEXT NOT NULL",
    "heartbeat_at": "TEXT NOT NULL",
    "status": "TEXT NOT NULL DEFAULT 'running'",
    "completed_at": "TEXT",
    "cancel_reason": "TEXT",
    "initiated_by": "TEXT",
    "instance_id": "TEXT",
}


class TrackerFile(BaseFile):
    """The file of one repository; processes and threads may share it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, (), "", kind=KIND)

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        """Whether the tables are there as they should be; raise NewerFormatError if it is newer."""
        try:
            sql = f"SELECT value FROM {_META} WHERE key = 'schema_version'"
            found: tuple[str] | None = db.execute(sql).fetchone()
            version = int(found[0]) if found and str(found[0]).isdigit() else 0
            refuse_newer(KIND, version, self.path)
            db.execute(f"SELECT 1 FROM {OURS} LIMIT 1")
        except sqlite3.OperationalError as error:
            if code_of(error) == sqlite3.SQLITE_ERROR:  # no such table
                return False
            raise
        return version == NEWEST[KIND]

    def view(self, work: Work[T]) -> T | None:
        """Run `work` on the file as it is, without a byte written; None if it is not ours yet.

        Raises DiskError where not even that is possible: SQLite needs memory beside a log.
        """
        try:
            with contextlib.closing(view_sqlite(self.path)) as db:
                return work(db) if self._is_ours(db) else None
        except sqlite3.Error as error:
            if is_about_the_disk(error):
                raise unusable(self.path, error) from error
            raise

    def _start_afresh(self, db: sqlite3.Connection) -> None:
        """Make what is missing; what is there, perhaps another client's, stays."""
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        db.execute(f"CREATE TABLE IF NOT EXISTS {ACTIVE} ({columns})")
        known = {row[1] for row in db.execute(f"PRAGMA table_info({ACTIVE})").fetchall()}
        for name, kind in _COLUMNS.items():
            if name not in known:
                addable = kind.replace(" NOT NULL", "") if "DEFAULT" not in kind else kind
                db.execute(f"ALTER TABLE {ACTIVE} ADD COLUMN {name} {addable}")
        for name in ("status", "heartbeat_at"):
            db.execute(f"CREATE INDEX IF NOT EXISTS idx_{ACTIVE}_{name} ON {ACTIVE} ({name})")
        db.execute(f"CREATE TABLE IF NOT EXISTS {_META} (key TEXT PRIMARY KEY, value TEXT)")
        db.execute(
            f"INSERT OR REPLACE INTO {_META} VALUES ('schema_version', ?)", [str(NEWEST[KIND])]
        )
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {OURS}"
            " (id TEXT PRIMARY KEY, namespace TEXT, model_id TEXT, process TEXT)"
        )

    def _is_damage(self, error: sqlite3.Error) -> bool:
        """Whether the file is none of SQLite's; everything else may be another client's way."""
        return code_of(error) in _DAMAGED

    def _stuck(self) -> SyncError:
        return SyncError(
            f"{self.path} stays busy or damaged",
            hint="Stop other processes that use it, or delete it: it only knows what runs now.",
        )
