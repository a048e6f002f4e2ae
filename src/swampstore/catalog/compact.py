"""Giving the space that the catalog's file no longer needs back to the disk."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from swampstore.catalog.database import Rows

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
