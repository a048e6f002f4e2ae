"""Looking at the catalog without healing, filling or creating it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import SCHEMA_VERSION
from swampstore.doctor.findings import Finding
from swampstore.formats import refuse_newer

T = TypeVar("T")
_CHECK = "catalog"
_REMEDY = "Run `swampstore doctor --repair`, or just go on: the next query builds a new one."


class ReadOnlyRows:
    """The rows of a catalog file, as they are."""

    def __init__(self, path: str) -> None:
        self.generation = 0
        # Where nothing can be written, not even the shared memory of a log could be.
        mode = "mode=ro" if os.access(os.path.dirname(path), os.W_OK) else "immutable=1"
        self._connection = sqlite3.connect(
            f"file:{quote(path)}?{mode}", uri=True, isolation_level=None
        )

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the connection."""
        return work(self._connection)

    def write(self, work: Callable[[sqlite3.Connection], T], *, flush: bool = False) -> T:
        """Refuse: who examines must not change."""
        del work, flush
        raise AssertionError("an examination does not write to the catalog")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()


def look_at_catalog(path: str, namespace: str) -> tuple[Finding, Catalog | None]:
    """Check a catalog file; return it too if it can be used. Raises NewerFormatError."""
    if not os.path.lexists(path):
        return Finding(_CHECK, passed=True, message="there is none yet; a query makes one"), None
    try:
        rows = ReadOnlyRows(path)
    except sqlite3.Error as error:
        return _damaged(path, str(error)), None
    complaint = _complaint(rows, path)
    if complaint:
        rows.close()
        return _damaged(path, complaint), None
    return Finding(_CHECK, passed=True, message="the catalog is sound"), Catalog(rows, namespace)


def _complaint(rows: ReadOnlyRows, path: str) -> str:
    try:
        (version,) = rows.read(lambda db: db.execute("PRAGMA user_version").fetchone())
        refuse_newer("catalog", version, path)
        if version != SCHEMA_VERSION:
            return f"its schema is {version}, ours is {SCHEMA_VERSION}"
        (verdict,) = rows.read(lambda db: db.execute("PRAGMA quick_check(1)").fetchone())
    except sqlite3.Error as error:
        return str(error)
    return "" if verdict == "ok" else str(verdict)


def _damaged(path: str, complaint: str) -> Finding:
    return Finding(
        _CHECK, passed=False, message=f"{path} cannot be used: {complaint}", remedy=_REMEDY
    )


def set_catalog_aside(path: str) -> None:
    """Move a catalog that cannot be used out of the way; the next use makes a new one."""
    for suffix in ("-wal", "-shm", ""):
        if os.path.lexists(f"{path}{suffix}"):
            os.replace(f"{path}{suffix}", f"{path}.damaged{suffix}")
