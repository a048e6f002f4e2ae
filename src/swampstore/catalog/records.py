"""Choosing records that are no artifacts, such as runs and events, with the query language.

    chosen = matching(records, 'status == "failed" && durationMs > 1000', FIELDS)

A record has a value for each field. What it does not say is empty, 0 or false: in SQL, NULL would
stand for an error of CEL.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from swampstore.catalog.query.fields import Field
from swampstore.catalog.query.plan import selection

_KINDS = {"int": "INTEGER", "bool": "INTEGER"}


def columns(known: Mapping[str, Field]) -> str:
    """Return the columns of a SQL table for records with these fields."""
    return ", ".join(
        f"{one.column} {_KINDS.get(str(one.kind), 'TEXT')} NOT NULL" for one in known.values()
    )


def values_of(members: Mapping[str, Any], known: Mapping[str, Field]) -> dict[str, Any]:
    """Return the record of something with these members: a value for each field, of its kind."""
    return {name: _value(members.get(name), str(one.kind)) for name, one in known.items()}


def _value(value: object, kind: str) -> str | int:
    if kind == "string":
        return value if isinstance(value, str) else "" if value is None else str(value)
    return value if isinstance(value, int) else 0


def matching(
    records: Sequence[Mapping[str, Any]], predicate: str | None, known: Mapping[str, Field]
) -> list[int]:
    """Return the places of the records for which a predicate holds; raise QueryError."""
    chosen = selection(predicate, known)
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE record (place INTEGER PRIMARY KEY, {columns(known)})")
        marks = ", ".join("?" * (1 + len(known)))
        rows = ((place, *(one[name] for name in known)) for place, one in enumerate(records))
        db.executemany(f"INSERT INTO record VALUES ({marks})", rows)
        sql = f"SELECT place FROM record c WHERE {chosen.where} ORDER BY place"
        found = [place for (place,) in db.execute(sql, chosen.params)]
    if chosen.matches is None:
        return found
    return [place for place in found if chosen.matches(records[place])]
