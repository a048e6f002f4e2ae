"""The query language for records that are no artifacts: outputs, runs, events of the audit.

    found = selection('status == "failed" && durationMs > 1000', FIELDS)
    db.execute(f"SELECT ... FROM output c WHERE {found.where}", found.params)

Every column that a field names must be NOT NULL: in SQL, NULL stands for an error of CEL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from swampstore.catalog.query.check import check_predicate
from swampstore.catalog.query.evaluate import EVALUATION_ERRORS, Record, evaluator
from swampstore.catalog.query.fields import Field, asking_about
from swampstore.catalog.query.sql import SqlValue, joined, translate
from swampstore.catalog.query.syntax import parse
from swampstore.catalog.query.tree import Kind, Logical, conjuncts


class Selection(NamedTuple):
    """A condition over the row `c`, and the test for what SQL left open, None if nothing."""

    where: str
    params: tuple[SqlValue, ...]
    matches: Callable[[Record], bool] | None


def fields(**kinds: tuple[str, Kind]) -> dict[str, Field]:
    """Return fields by name, each given as its column and its type."""
    return {name: Field(name, column, kind) for name, (column, kind) in kinds.items()}


def selection(predicate: str | None, known: Mapping[str, Field]) -> Selection:
    """Return how to find the records for which a predicate holds; raise QueryError.

    The CEL library is only imported if something is left that SQL cannot answer.
    """
    if predicate is None:
        return Selection("1", (), None)
    with asking_about(known):
        expr = parse(predicate)
        check_predicate(expr, predicate)
        parts = [(part, translate(part)) for part in conjuncts(expr)]
        left = [part for part, sql in parts if sql is None]
        evaluate = None
        if left:
            whole = left[0] if len(left) == 1 else Logical("&&", tuple(left))
            evaluate = evaluator(whole, predicate)
    answered = [sql for _, sql in parts if sql is not None]
    return Selection(
        joined("AND", [sql.text for sql in answered]) if answered else "1",
        tuple(value for sql in answered for value in sql.params),
        None if evaluate is None else _matcher(evaluate),
    )


def _matcher(evaluate: Callable[[Record], object]) -> Callable[[Record], bool]:
    def matches(record: Record) -> bool:
        try:
            return evaluate(record) is True
        except EVALUATION_ERRORS:
            return False

    return matches
