"""Looking at the base of a cache without healing, filling or creating it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from typing import Any

from swampstore.artifacts.content import There
from swampstore.files.sqlite_file import not_its_fault, view_sqlite
from swampstore.formats import refuse_newer
from swampstore.index.base import BASE, HELD_CONTENT
from swampstore.layout import METADATA

_PAGE = 1000
_STAMP_PREFIX = 9  # a checksum of the tables and a space
_METADATA_ROWS = (
    "SELECT rel, held_inode FROM known WHERE rel > ? AND rel < 'data0' AND rel LIKE ?"
    f" ORDER BY rel LIMIT {_PAGE}"
)


class BaseView:
    """The rows of a base file, as they are. Raises sqlite3.Error if the file cannot be read."""

    def __init__(self, cache_dir: str) -> None:
        path = self._path = f"{cache_dir}/{BASE}"
        self._db = view_sqlite(path)

    def complaint(self) -> str:
        """Return what is wrong with the file, empty if nothing is.

        Raises NewerFormatError, and sqlite3.Error where something else keeps it from being read.
        """
        try:
            refuse_newer("base", self._first("PRAGMA user_version"), self._path)
            verdict = self._first("PRAGMA quick_check(1)")
            self._first("SELECT stamp FROM owner")
        except sqlite3.Error as error:
            if not_its_fault(self._path, error):
                raise
            return str(error)
        return "" if verdict == "ok" else str(verdict)

    def owner(self) -> str:
        """Return the remote and the namespace that the rows are about."""
        return str(self._first("SELECT stamp FROM owner"))[_STAMP_PREFIX:]

    def metadata(self) -> Iterator[str]:
        """Yield the paths of all metadata that came here, page by page."""
        last = "data/"
        while page := self._db.execute(_METADATA_ROWS, (last, f"%/{METADATA}")).fetchall():
            yield from (rel for rel, inode in page if inode is not None)
            last = page[-1][0]

    def knows(self, rel: str) -> bool:
        """Whether a path is on the remote."""
        return bool(self._first("SELECT 1 FROM known WHERE rel = ?", rel))

    def sha256(self, rel: str) -> str:
        """Return what a path holds on the remote, empty if that is unknown."""
        return str(self._first("SELECT sha256 FROM known WHERE rel = ?", rel) or "")

    def shard_etags(self) -> dict[str, str]:
        """Return the ETag of each shard as it was last read, by partition."""
        return dict(self._db.execute("SELECT partition, etag FROM shards WHERE scope = ''"))

    def content(self, rel: str) -> There | None:
        """Return what a path holds on the remote, None if nothing is known of it."""
        row = self._db.execute("SELECT sha256, size FROM known WHERE rel = ?", (rel,)).fetchone()
        return There(row[0] or "", row[1]) if row else None

    def not_held(self) -> int:
        """Return how many files never came here: their content is fetched when it is read."""
        return int(self._first("SELECT count(*) FROM known WHERE held_inode IS NULL"))

    def summary(self) -> dict[str, int]:
        """Return how many files never came here, and the size of the content that is here."""
        size = self._first(f"SELECT total(size) FROM known WHERE {HELD_CONTENT}")
        return {"notHydrated": self.not_held(), "contentBytes": int(size)}

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def _first(self, sql: str, *parameters: str) -> Any:
        row = self._db.execute(sql, parameters).fetchone()
        return row[0] if row else ""


def owner_of(cache_dir: str) -> str | None:
    """Return which remote and namespace a cache was last synced with, None if that is unknown."""
    if not os.path.exists(f"{cache_dir}/{BASE}"):
        return None
    try:
        view = BaseView(cache_dir)
        try:
            return view.owner()
        finally:
            view.close()
    except sqlite3.Error:
        return None


def was_whole(cache_dir: str, version_rel: str) -> bool:
    """Whether a version is on the remote, so that what is missing of it here was lost here.

    A base that cannot be read might have said so.
    """
    if not os.path.exists(f"{cache_dir}/{BASE}"):
        return False
    try:
        view = BaseView(cache_dir)
        try:
            return view.knows(f"{version_rel}/{METADATA}")
        finally:
            view.close()
    except sqlite3.Error:
        return True


def known_content(cache_dir: str, rel: str) -> There | None:
    """Return what the remote has of a path; None if it has nothing, or the base cannot be read."""
    if not os.path.exists(f"{cache_dir}/{BASE}"):
        return None
    try:
        view = BaseView(cache_dir)
        try:
            return view.content(rel)
        finally:
            view.close()
    except sqlite3.Error:
        return None


def known_shards(cache_dir: str) -> dict[str, str]:
    """Return the ETags of the shards that were read here, none if the base cannot be read."""
    try:
        view = BaseView(cache_dir)
    except sqlite3.Error:
        return {}
    try:
        return view.shard_etags()
    except sqlite3.Error:
        return {}
    finally:
        view.close()
