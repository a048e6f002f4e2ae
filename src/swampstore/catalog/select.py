"""Answering a query: rows from SQL, the residual predicate per row, content only when asked for."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from swampstore.catalog.database import Rows
from swampstore.catalog.query.plan import matcher, plan
from swampstore.catalog.query.projection import order_by
from swampstore.catalog.schema import COLUMNS, DDL, INSERT, Row, record_of, sql_limit
from swampstore.catalog.words import mentions, rows_mentioning
from swampstore.errors import CatalogError, QueryError

_COLUMNS = ", ".join(f"c.{name}" for name in Row._fields)
_BY_NUMBER = "c.rowid IN (SELECT value FROM json_each(?))"
_BY_TAG = "t.key = ? AND t.value = ?"
_IN_TAG = "c.rowid IN (SELECT row FROM tag WHERE key = ? AND value = ?)"
_TAGGED = (
    "EXISTS (SELECT 1 FROM tag"
    " WHERE key = ? AND value = ? AND created_at = c.created_at AND row = c.rowid)"
)
# Indexes of the latest versions by a column and the time: a row that a tag names is found in them,
# or is not, without being read.
_BY_TIME = {
    "type_normalized": "latest_type",
    "spec_name": "latest_spec_name",
    "data_type": "latest_data_type",
}
_AT_ITS_TIME = "c.created_at >= '' AND c.created_at = t.created_at"
_HAVING_TAG = "SELECT 1 FROM tag WHERE key = ? AND value = ?"
# Columns that an index of the latest versions begins with.
_INDEXED = frozenset(
    {"data_name", "data_type", "model_id", "model_name", "spec_name", "type_normalized"}
    | {"workflow_name", "workflow_run_id"}
)
_FEW = 10_000
_FEW_MENTIONS = 5_000
# A tag leads unless something else leads to far fewer: its rows come in the order of time, and
# rarely are all of them looked at.
_RATHER = 4
_PAGE = 500
# Returns (attributes, content) of a row; both None if the content is not on this machine.
LoadContent = Callable[[Row], tuple[Any, Any]]


class Query:
    """A checked predicate, ordering and limit, ready to run on any catalog.

    With a `word`, only rows are meant that mention it in a name or in a tag.
    """

    def __init__(
        self,
        predicate: str | None = None,
        *,
        order: str | None = None,
        limit: int | None = None,
        word: str | None = None,
    ) -> None:
        if limit is not None and limit < 0:
            raise QueryError(f"the limit is {limit}", hint="Give a limit of 0 or more.")
        self.predicate = predicate
        self.limit = limit
        self._plan = plan(predicate)
        self._order = "" if order is None else order_by(order)
        self._word = word

    def statement(self, db: sqlite3.Connection) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL, without its limit, and the parameters that suit this catalog.

        What leads to the rows is a word that few of them mention; or a tag, in the order of time,
        unless another condition leads to fewer; or whatever SQLite finds best. A word that is
        mentioned everywhere, and other tags, are checked on the rows that are led to.
        """
        if self._word and self._plan.implicit_latest:
            numbers = rows_mentioning(db, self._word, _FEW_MENTIONS)
            if numbers is not None:
                # Sort the few, whatever index has that order.
                order = self._order.replace("c.", "+c.")
                return self._sql("catalog c", [_BY_NUMBER], [json.dumps(numbers)], order)
        tags = self._leading_tags(db)
        index = next((_BY_TIME[name] for name, _ in self._indexed if name in _BY_TIME), None)
        if tags and not self._order and self._indexed and not index:
            # The entries of an index are compared with those of the tag; rows are not read for it.
            return self._sql("catalog c", [_IN_TAG], [*tags[0]], "")
        if tags:
            conditions = [_BY_TAG, *[_TAGGED] * (len(tags) - 1)]
            order = self._order.replace("c.created_at", "t.created_at").replace("c.rowid", "t.row")
            source = "tag t CROSS JOIN catalog c ON c.rowid = t.row"
            if index:
                conditions.append(_AT_ITS_TIME)
                source = source.replace(" ON ", f" INDEXED BY {index} ON ")
            return self._sql(source, conditions, [text for tag in tags for text in tag], order)
        return self._sql("catalog c", [], [], self._order)

    @property
    def _indexed(self) -> list[tuple[str, str]]:
        """The columns with an index that must have a value."""
        return [(name, value) for name, value in self._plan.equal if name in _INDEXED and value]

    def _sql(
        self, source: str, leading: list[str], params: list[str], order: str
    ) -> tuple[str, tuple[Any, ...]]:
        where = " AND ".join([*leading, self._plan.where])
        sql = f"SELECT {_COLUMNS} FROM {source} WHERE {where}"
        return f"{sql} ORDER BY {order}" if order else sql, (*params, *self._plan.params)

    def _leading_tags(self, db: sqlite3.Connection) -> list[tuple[str, str]]:
        """Return the tags that lead to the rows, the rarest first; none if others lead better."""
        counted = sorted((_count(db, _HAVING_TAG, tag, _FEW), tag) for tag in self._plan.tags)
        if not counted:
            return []
        fewest = counted[0][0]
        by_time = self._order.startswith("c.created_at") or not self._order
        if fewest >= _FEW and not (self._plan.only_tags and by_time):
            return []
        for column, value in self._indexed:
            # The second time as the indexes say it that leave empty texts out.
            rows = f"SELECT 1 FROM catalog WHERE is_latest = 1 AND {column} = ?1"
            rows += f" AND {column} != ''"
            if _count(db, rows, (value,), fewest // _RATHER) < fewest // _RATHER:
                return []
        return [counted[0][1], *(tag for count, tag in counted[1:] if count < _FEW)]

    @property
    def namespace(self) -> str | None:
        """The only namespace whose rows can match, None if any can."""
        return self._plan.namespace

    def run(self, rows: Rows, load: LoadContent) -> list[Row]:
        """Return the matching rows, in order if one was asked for, at most `limit` of them."""
        matches = matcher(self._plan)

        def answer(db: sqlite3.Connection) -> list[Row]:
            sql, params = self.statement(db)
            found = db.execute(f"{sql} LIMIT ?", (*params, sql_limit(self.limit)))
            return [Row._make(values) for values in found]

        def answer_by_row(db: sqlite3.Connection) -> list[Row]:
            found: list[Row] = []
            for values in db.execute(*self.statement(db)):
                if self.limit is not None and len(found) >= self.limit:
                    break
                row = Row._make(values)
                if self._word and not mentions(row, self._word):
                    continue
                if matches is None or matches(self._record(row, load)):
                    found.append(row)
            return found

        return rows.read(answer if matches is None and not self._word else answer_by_row)

    def stream(self, rows: Rows, load: LoadContent) -> Iterator[Row]:
        """Yield the matching rows as `run` returns them, without holding more than a page.

        Raises CatalogError if the catalog turns out to be damaged after the first page.
        """
        matches = matcher(self._plan)

        def begin(db: sqlite3.Connection) -> tuple[sqlite3.Cursor, list[Any]]:
            sql, params = self.statement(db)
            limit = self.limit if matches is None and not self._word else None
            cursor = db.execute(f"{sql} LIMIT ?", (*params, sql_limit(limit)))
            # What is damaged is usually met here, and healed.
            return cursor, cursor.fetchmany(_PAGE)

        cursor, page = rows.read(begin)
        found = 0
        with _closing(cursor):
            while page:
                for row in map(Row._make, page):
                    if self.limit is not None and found >= self.limit:
                        return
                    if self._word and not mentions(row, self._word):
                        continue
                    if matches is None or matches(self._record(row, load)):
                        found += 1
                        yield row
                try:
                    page = cursor.fetchmany(_PAGE)
                except sqlite3.Error as error:
                    raise CatalogError(
                        f"the catalog cannot be read to the end: {error}",
                        hint="Run it again: a damaged catalog is made anew.",
                    ) from error

    @property
    def needs_content(self) -> bool:
        """Whether the predicate reads the content of artifacts."""
        return self._plan.needs_content

    def candidates(self, rows: Rows) -> list[Row]:
        """Return the rows that SQL leaves to `judge`, in order, without a limit."""

        def answer(db: sqlite3.Connection) -> list[Row]:
            return [Row._make(values) for values in db.execute(*self.statement(db))]

        return rows.read(answer)

    def judge(self, candidates: Iterable[Row], load: LoadContent) -> list[Row]:
        """Return those of the candidates that match."""
        matches = matcher(self._plan)
        return [row for row in candidates if not matches or matches(self._record(row, load))]

    def _record(self, row: Row, load: LoadContent) -> dict[str, Any]:
        record: dict[str, Any] = record_of(row) if self._plan.needs_row else {}
        record["attributes"] = record["content"] = None
        if self._plan.needs_content:
            record["attributes"], record["content"] = load(row)
        return record

    def merge(self, *answers: Iterable[Row]) -> list[Row]:
        """Combine answers of several catalogs: each version once, first one wins, ordered anew."""
        unique: dict[tuple[object, ...], Row] = {}
        for answer in answers:
            for row in answer:
                unique.setdefault(row[:5], row)
        rows = list(unique.values())
        return (_sorted(rows, self._order) if self._order else rows)[: self.limit]


@contextlib.contextmanager
def _closing(cursor: sqlite3.Cursor) -> Iterator[None]:
    """Close a cursor after the block; whoever stopped reading may have closed the catalog first."""
    try:
        yield
    finally:
        with contextlib.suppress(sqlite3.ProgrammingError):
            cursor.close()


def _count(db: sqlite3.Connection, rows: str, params: tuple[str, ...], most: int) -> int:
    """Return how many rows there are, counting no further than `most`."""
    found: int = db.execute(f"SELECT count(*) FROM ({rows} LIMIT {most})", params).fetchone()[0]
    return found


def _sorted(rows: Sequence[Row], order: str) -> list[Row]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(DDL[0])
        db.executemany(INSERT, rows)
        sql = f"SELECT {COLUMNS} FROM catalog c ORDER BY {order}"
        return [Row._make(found) for found in db.execute(sql)]
