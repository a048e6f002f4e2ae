"""When the content in a cache was last used, and what is on its way out.

A SQLite file of its own beside the base: noting a use needs no remote, and must neither wait for
a sync nor leave a trace on the content itself. Like the base it can be thrown away; then what is
in the cache counts as never used. Paths are those of marks: relative to the cache.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from swampstore.errors import DiskError
from swampstore.index.base_file import BaseFile
from swampstore.index.errors import SyncError

_HOUR_NS = 3_600_000_000_000
_PARAMETERS = 500
SCHEMA = (
    "CREATE TABLE used (path TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE leaving (path TEXT PRIMARY KEY) WITHOUT ROWID",
)


class Uses:
    """The uses of one cache directory. Threads and processes may share it."""

    def __init__(self, cache_dir: str, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._file = BaseFile(f"{cache_dir}/_catalog.db-uses", SCHEMA, "", kind="uses")
        self._now_ns = now_ns
        self._noted: dict[str, int] = {}

    def note(self, paths: Iterable[str]) -> None:
        """Remember that content is being used; written at most once an hour for each.

        Nobody who reads is kept from it by this: on a disk that refuses, nothing is remembered.
        """
        now = self._now_ns()
        due = [path for path in paths if self._noted.get(path, 0) < now - _HOUR_NS]
        if not due:
            return
        with contextlib.suppress(DiskError, SyncError):
            known = self.last(due)
            rows = [(path, now) for path in due if known.get(path, 0) < now - _HOUR_NS]
            self._write(("INSERT OR REPLACE INTO used VALUES (?, ?)", rows))
            self._noted |= {path: known.get(path, now) for path in due} | dict(rows)

    def last(self, paths: Iterable[str]) -> dict[str, int]:
        """Return when these were last used, in nanoseconds; what never was is left out."""
        found: dict[str, int] = {}
        for chunk in _chunks(paths):
            found.update(self._last(chunk))
        return found

    def _last(self, paths: Sequence[str]) -> list[tuple[str, int]]:
        sql = f"SELECT path, at FROM used WHERE path IN ({', '.join('?' * len(paths))})"
        return self._file.read(lambda db: db.execute(sql, paths).fetchall())

    def begin_leaving(self, paths: Iterable[str]) -> None:
        """Note, before anything is done to it, that content is about to be evicted."""
        rows = [(path,) for path in paths]
        self._write(("INSERT OR IGNORE INTO leaving VALUES (?)", rows))

    def leaving(self) -> list[str]:
        """Return what was about to be evicted and is not known to be gone: somebody was killed."""
        sql = "SELECT path FROM leaving ORDER BY path"
        return [path for (path,) in self._file.read(lambda db: db.execute(sql).fetchall())]

    def end_leaving(self, paths: Iterable[str]) -> None:
        """Drop the notes about content that is gone, or stays after all."""
        rows = [(path,) for path in paths]
        self._write(
            ("DELETE FROM leaving WHERE path = ?", rows), ("DELETE FROM used WHERE path = ?", rows)
        )
        for (path,) in rows:
            self._noted.pop(path, None)

    def close(self) -> None:
        """Release the file; using it again opens it again."""
        self._file.close()

    def _write(self, *changes: tuple[str, Sequence[tuple[object, ...]]]) -> None:
        def work(db: sqlite3.Connection) -> None:
            for sql, rows in changes:
                db.executemany(sql, rows)

        if any(rows for _, rows in changes):
            self._file.write(work)


def _chunks(paths: Iterable[str]) -> Iterator[Sequence[str]]:
    wanted = list(paths)
    for start in range(0, len(wanted), _PARAMETERS):
        yield tuple(wanted[start : start + _PARAMETERS])
