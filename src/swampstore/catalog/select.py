"""Answering a query: rows from SQL, the residual predicate per row, content only when asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from swampstore.catalog.database import MemoryDatabase, Rows
from swampstore.catalog.query import matcher, order_by
from swampstore.catalog.query import plan as plan_query
from swampstore.catalog.schema import COLUMNS, INSERT, Row, record_of, sql_limit
from swampstore.errors import QueryError

_TAGGED = "c.rowid IN (SELECT row FROM tag WHERE key = ? AND value = ?)"
_FEW = 10_000
# Returns (attributes, content) of a row; both None if the content is not on this machine.
LoadContent = Callable[[Row], tuple[Any, Any]]


class Query:
    """A checked predicate, ordering and limit, ready to run on any catalog."""

    def __init__(
        self, predicate: str | None = None, *, order: str | None = None, limit: int | None = None
    ) -> None:
        if limit is not None and limit < 0:
            raise QueryError(f"the limit is {limit}", hint="Give a limit of 0 or more.")
        self.predicate = predicate
        self.limit = limit
        self._plan = plan_query(predicate)
        self._order = order_by(order) if order else ""

    def statement(self, db: sqlite3.Connection) -> tuple[str, tuple[Any, ...]]:
        """Return the SQL, without its limit, and the parameters that suit this catalog.

        A tag that few artifacts have leads straight to them; one that many have would lead to a
        long list first, so it is only checked on the rows that something else leads to.
        """
        rare = [tag for tag in self._plan.tags if _is_rare(db, tag)]
        columns = ", ".join(f"c.{name}" for name in Row._fields)
        where = " AND ".join([self._plan.where, *[_TAGGED] * len(rare)])
        order = self._order
        if rare:
            order = order.replace("c.", "+c.")  # sort the few, whatever index has that order
        sql = f"SELECT {columns} FROM catalog c WHERE {where}"
        params = (*self._plan.params, *(text for tag in rare for text in tag))
        return f"{sql} ORDER BY {order}" if order else sql, params

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
            assert matches is not None
            for values in db.execute(*self.statement(db)):
                if self.limit is not None and len(found) >= self.limit:
                    break
                row = Row._make(values)
                if matches(self._record(row, load)):
                    found.append(row)
            return found

        return rows.read(answer if matches is None else answer_by_row)

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
        record = record_of(row)
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


def _is_rare(db: sqlite3.Connection, tag: tuple[str, str]) -> bool:
    """Whether few artifacts have a tag; counts no further than that takes."""
    sql = "SELECT count(*) FROM (SELECT 1 FROM tag WHERE key = ? AND value = ? LIMIT ?)"
    count: int = db.execute(sql, (*tag, _FEW)).fetchone()[0]
    return count < _FEW


def _sorted(rows: Sequence[Row], order: str) -> list[Row]:
    memory = MemoryDatabase()
    try:
        memory.write(lambda db: db.executemany(INSERT, rows))
        sql = f"SELECT {COLUMNS} FROM catalog c ORDER BY {order}"
        return memory.read(lambda db: [Row._make(found) for found in db.execute(sql)])
    finally:
        memory.close()
