"""What other namespaces of the datastore hold, as far as their catalogs were pulled.

The rows are in a file of their own, with the tables of the catalog. So nothing that looks after
the own data (lookups, retention, the doctor, a rebuild) can mistake one for its own, and the own
rows are found as fast as if there were no others.
"""

from __future__ import annotations

import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import Database
from swampstore.catalog.schema import COLUMNS, INSERT, Row

FOREIGN_CATALOG = "swampstore.foreign.db"
_STAMP = "foreign:"
_ORIGIN = "datastore"
_BY_NAMESPACE = "CREATE INDEX IF NOT EXISTS by_namespace ON catalog (namespace)"
_FIND = (
    f"SELECT rowid, {COLUMNS} FROM catalog WHERE type_normalized = ? AND model_id = ?"
    " AND data_name = ? AND version = ? AND namespace = ?"
)
_VALUES = ", ".join("?" * len(Row._fields))
_INSERT_AT = f"INSERT INTO catalog (rowid, {COLUMNS}) VALUES (?, {_VALUES})"
_DELETE = "DELETE FROM catalog WHERE rowid = ?"
_ROWIDS = "SELECT rowid FROM catalog WHERE namespace = ? AND rowid <= ?"
_SET_META = "INSERT OR REPLACE INTO catalog_meta VALUES (?, ?)"


class Pulled(NamedTuple):
    """The state of a pulled catalog: its rows, when its export was made, and which one it was.

    `bad` counts what could not be understood.
    """

    rows: int
    exported_at: str
    etag: str = ""
    bad: int = 0


class PublishedRows(ABC):
    """Rows that are read once; afterwards `bad` counts what could not be understood."""

    bad = 0

    @abstractmethod
    def __iter__(self) -> Iterator[Row]:
        """Yield them."""


class ForeignCatalogs:
    """The pulled catalogs of one datastore, which `origin` identifies.

    What was pulled from another datastore counts as nothing. Nothing is created before something
    is pulled.
    """

    def __init__(self, path: str, origin: str, *, durable: bool = True) -> None:
        self._path = path
        self._origin = origin
        self.rows = Database(path, durable=durable)

    def namespaces(self) -> dict[str, Pulled]:
        """Return the namespaces that were pulled, sorted, and their states."""
        if not os.path.lexists(self._path):
            return {}
        meta = self.rows.read(
            lambda db: dict(db.execute("SELECT key, value FROM catalog_meta ORDER BY key"))
        )
        if meta.get(_ORIGIN) != self._origin:
            return {}
        return {
            key.removeprefix(_STAMP): Pulled(**json.loads(value))
            for key, value in meta.items()
            if key.startswith(_STAMP)
        }

    def catalog(self, namespace: str) -> Catalog:
        """Return the rows of one namespace, for lookups."""
        return Catalog(self.rows, namespace)

    def replace(
        self, namespace: str, read: Callable[[], PublishedRows], exported_at: str, etag: str = ""
    ) -> Pulled:
        """Make the rows of a namespace equal to those that `read` returns, all at once.

        Rows that are as they were are not written, so it costs writing what changed. If reading
        fails, everything stays as it was.
        """

        def work(db: sqlite3.Connection) -> Pulled:
            self._claim(db)
            rows = read()
            count = _replace(db, namespace, rows)
            pulled = Pulled(count, exported_at, etag, rows.bad)
            db.execute(_SET_META, (f"{_STAMP}{namespace}", json.dumps(pulled._asdict())))
            return pulled

        return self.rows.write(work)

    def remove(self, namespace: str) -> None:
        """Forget a namespace."""

        def work(db: sqlite3.Connection) -> None:
            self._claim(db)
            db.execute("DELETE FROM catalog WHERE namespace = ?", (namespace,))
            db.execute("DELETE FROM catalog_meta WHERE key = ?", (f"{_STAMP}{namespace}",))

        self.rows.write(work)

    def _claim(self, db: sqlite3.Connection) -> None:
        """Forget what came from another datastore."""
        found = db.execute("SELECT value FROM catalog_meta WHERE key = ?", (_ORIGIN,)).fetchone()
        if found == (self._origin,):
            return
        db.execute("DELETE FROM catalog")
        db.execute("DELETE FROM catalog_meta")
        db.execute(_BY_NAMESPACE)
        # Without this, a disk that cannot be written would be given a copy in memory.
        db.executemany(_SET_META, [(_ORIGIN, self._origin), ("populated", "true")])

    def close(self) -> None:
        """Release the file."""
        self.rows.close()


def _replace(db: sqlite3.Connection, namespace: str, rows: Iterable[Row]) -> int:
    """Within a transaction, make the rows of a namespace those given; return their number."""
    (highest,) = db.execute("SELECT ifnull(max(rowid), 0) FROM catalog").fetchone()
    seen = bytearray(highest // 8 + 1)  # one bit per row that was there: flat for any number
    for row in rows:
        key = (row.type_normalized, row.model_id, row.data_name, row.version, namespace)
        found = db.execute(_FIND, key).fetchone()
        if found is None:
            db.execute(INSERT, row)
            continue
        rowid = found[0]
        if found[1:] != row:
            db.execute(_DELETE, (rowid,))
            db.execute(_INSERT_AT, (rowid, *row))
        if rowid <= highest:
            seen[rowid // 8] |= 1 << rowid % 8
    before = db.execute(_ROWIDS, (namespace, highest)).fetchall()
    gone = [(rowid,) for (rowid,) in before if not seen[rowid // 8] >> rowid % 8 & 1]
    db.executemany(_DELETE, gone)
    sql = "SELECT count(*) FROM catalog WHERE namespace = ?"
    count: int = db.execute(sql, (namespace,)).fetchone()[0]
    return count
