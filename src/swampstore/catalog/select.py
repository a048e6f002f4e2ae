"""Answering a query: rows from SQL, the residual predicate per row, content only when asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from swampstore.catalog.database import MemoryDatabase, Rows
from swampstore.catalog.query import matcher, order_by
from swampstore.catalog.query import plan as plan_query
from swampstore.catalog.schema import COLUMNS, INSERT, Row, record_of
from swampstore.errors import QueryError

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
        self._order = order_by(order)

    @property
    def sql(self) -> str:
        """The statement, without its limit."""
        columns = ", ".join(f"c.{name}" for name in Row._fields)
        return f"SELECT {columns} FROM catalog c WHERE {self._plan.where} ORDER BY {self._order}"

    def run(self, rows: Rows, load: LoadContent) -> list[Row]:
        """Return the matching rows in order, at most `limit` of them."""
        matches = matcher(self._plan)
        params = self._plan.params
        if matches is None:
            limit = -1 if self.limit is None else self.limit
            sql = f"{self.sql} LIMIT ?"
            return rows.read(
                lambda db: [Row._make(found) for found in db.execute(sql, (*params, limit))]
            )

        def work(db: sqlite3.Connection) -> list[Row]:
            found: list[Row] = []
            for values in db.execute(self.sql, params):
                if self.limit is not None and len(found) >= self.limit:
                    break
                row = Row._make(values)
                if matches(self._record(row, load)):
                    found.append(row)
            return found

        return rows.read(work)

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
        return _sorted(list(unique.values()), self._order)[: self.limit]


def _sorted(rows: Sequence[Row], order: str) -> list[Row]:
    memory = MemoryDatabase()
    try:
        memory.write(lambda db: db.executemany(INSERT, rows))
        sql = f"SELECT {COLUMNS} FROM catalog c ORDER BY {order}"
        return memory.read(lambda db: [Row._make(found) for found in db.execute(sql)])
    finally:
        memory.close()
