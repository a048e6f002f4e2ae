"""A predicate split in two: what SQL answers, and what is left to evaluate on each row.

`plan` is for artifacts, `selection` for other records, outputs and runs:

    found = selection('status == "failed" && durationMs > 1000', FIELDS)
    db.execute(f"SELECT ... FROM output c WHERE {found.where}", found.params)

Every column that a field of `selection` names must be NOT NULL: in SQL, NULL stands for an error
of CEL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from swampstore.catalog.query.check import check_predicate
from swampstore.catalog.query.evaluate import EVALUATION_ERRORS, Record, evaluator
from swampstore.catalog.query.fields import CONTENT_FIELDS, FIELDS, Field, asking_about, roots
from swampstore.catalog.query.sql import Sql, SqlValue, joined, translate
from swampstore.catalog.query.syntax import parse
from swampstore.catalog.query.tree import (
    Binary,
    Expr,
    Ident,
    Index,
    Kind,
    Literal,
    Logical,
    Member,
    conjuncts,
    render,
)

_VERSION_FIELDS = frozenset({"version", "isLatest"})


class Plan(NamedTuple):
    """How to find the records a predicate asks for.

    `where` is a condition over the catalog row `c`, with `params` for its placeholders. Rows that
    pass it match if `residual`, a CEL expression, is None or true of their record;
    `needs_content` says whether the predicate reads the content of artifacts, `needs_row` whether
    the residual reads anything else.
    `implicit_latest` says that only latest versions were meant, as the predicate names no other.
    `tags` are the tags that every match must have, as far as the tag table knows them, `equal`
    the columns that must have a value, `only_tags` says that nothing else is asked, and
    `namespace` is the namespace that every match must be in, None if none is named.
    """

    where: str
    params: tuple[SqlValue, ...]
    residual: str | None
    needs_content: bool
    implicit_latest: bool
    tags: tuple[tuple[str, str], ...] = ()
    namespace: str | None = None
    equal: tuple[tuple[str, str], ...] = ()
    only_tags: bool = False
    needs_row: bool = False


def plan(predicate: str | None) -> Plan:
    """Return the plan for `predicate`, or for all latest versions if there is none.

    Raises QueryError if the predicate is not valid. The CEL library is only imported if
    something is left that SQL cannot answer.
    """
    if predicate is None:
        return _planned([], [], frozenset())
    expr = parse(predicate)
    check_predicate(expr, predicate)
    answered: list[tuple[Expr, Sql]] = []
    left: list[Expr] = []
    for part in conjuncts(expr):
        sql = translate(part)
        if sql is None:
            left.append(part)
        else:
            answered.append((part, sql))
    if left:
        evaluator(_conjunction(left), predicate)  # fails here rather than on every row
    return _planned(answered, left, roots(expr))


def matcher(plan: Plan) -> Callable[[Record], bool] | None:
    """Return the test for what SQL left open, or None if it left nothing open.

    A record maps field names to values and must have every field the residual mentions. It
    matches if the residual is exactly true; one on which the evaluation fails does not.
    """
    if plan.residual is None:
        return None
    return _matcher(evaluator(parse(plan.residual), plan.residual))


def _planned(answered: list[tuple[Expr, Sql]], left: list[Expr], asked: frozenset[str]) -> Plan:
    implicit_latest = not asked & _VERSION_FIELDS
    # The tag table knows the tags of latest versions only.
    tags = tuple(tag for part, _ in answered for tag in _tag(part)) if implicit_latest else ()
    # What waits for the commit of its group is there for those who know its number.
    conditions = [Sql("c.is_latest = 1" if implicit_latest else "c.deferred = 0", (), "bool")]
    conditions.append(Sql("c.lifecycle = 'active'", (), "bool"))
    for part, sql in answered:
        conditions += [*_shortcut(part), sql]
    return Plan(
        where=joined("AND", [condition.text for condition in conditions]),
        params=tuple(value for condition in conditions for value in condition.params),
        residual=render(_conjunction(left)) if left else None,
        needs_content=bool(asked & CONTENT_FIELDS),
        implicit_latest=implicit_latest,
        tags=tags,
        namespace=next((found for part, _ in answered for found in _namespace(part)), None),
        equal=tuple(found for part, _ in answered for found in _column(part)),
        needs_row=any(roots(part) - CONTENT_FIELDS for part in left),
        only_tags=bool(tags) and len(tags) == len(answered) and not left,
    )


def _conjunction(parts: list[Expr]) -> Expr:
    return parts[0] if len(parts) == 1 else Logical("&&", tuple(parts))


def _equality(part: Expr) -> tuple[Expr, str] | None:
    """Return what `part` says is equal to which text, if that is what it says."""
    match part:
        case Binary("==", subject, Literal("string", str(value))):
            return subject, value
        case Binary("==", Literal("string", str(value)), subject):
            return subject, value
    return None


def _shortcut(part: Expr) -> list[Sql]:
    """Return a condition that follows from `part` and leads to an index."""
    match _equality(part):
        case (Ident(name), str(value)) if value:
            # Fields that are mostly empty have indexes of the rows where they are not.
            return [Sql(f"c.{FIELDS[name].column} != ''", (), "bool")]
    return []


def _column(part: Expr) -> list[tuple[str, str]]:
    match _equality(part):
        case (Ident(name), value) if column := FIELDS[name].column:
            return [(column, value)]
    return []


def _namespace(part: Expr) -> list[str]:
    match _equality(part):
        case (Ident("ns"), str(value)):
            return [value]
    return []


def _tag(part: Expr) -> list[tuple[str, str]]:
    match _equality(part):
        case (Member(Ident("tags"), key), value):
            return [(key, value)]
        case (Index(Ident("tags"), Literal("string", str(key))), value):
            return [(key, value)]
    return []


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
        evaluate = evaluator(_conjunction(left), predicate) if left else None
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
