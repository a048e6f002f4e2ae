"""What to show of each record, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from swampstore.catalog.query.check import check_expression
from swampstore.catalog.query.evaluate import EVALUATION_ERRORS, Record, evaluator
from swampstore.catalog.query.fields import CONTENT_FIELDS, FIELDS, field_list, roots
from swampstore.catalog.query.syntax import parse
from swampstore.catalog.query.tree import Expr, Ident, Index, ListOf, Literal, MapOf, Member
from swampstore.errors import QueryError
from swampstore.notices import did_you_mean, sentences

_SORTABLE = {
    name: field.column
    for name, field in FIELDS.items()
    if field.column is not None and field.kind != "map"
} | {"namespace": FIELDS["ns"].column}
_DIRECTIONS = {"asc": "", "desc": " DESC"}


def order_by(order: str) -> str:
    """Return what follows ORDER BY for an order such as `createdAt desc, name`.

    Rows that are equal in it come in the order in which they entered the catalog. Raises
    QueryError for what cannot be sorted by.
    """
    keys = [_order_key(part, order) for part in order.split(",")]
    return ", ".join([*keys, "c.rowid"])


def _order_key(part: str, order: str) -> str:
    words = part.split()
    field = words[0] if words else ""
    direction = " ".join(words[1:]).lower() or "asc"
    column = _SORTABLE.get(field)
    if column is None:
        problem = f"cannot sort by {field}" if field else "a field is missing"
        raise QueryError(
            f"In the order {order!r} {problem}",
            hint=sentences(
                did_you_mean(field, _SORTABLE, 1), f"Sortable fields: {field_list(_SORTABLE)}."
            ),
        )
    if direction not in _DIRECTIONS:
        raise QueryError(
            f"In the order {order!r}, {direction!r} is no direction",
            hint=f"Write {field} asc or {field} desc; commas separate fields.",
        )
    return f"c.{column}{_DIRECTIONS[direction]}"


_Reader = Callable[[Record], Any]


class Projection:
    """A function from a record to the value a select expression asks for.

    It reads `fields`, and with them the content of the artifact if `needs_content`. The value is
    what JSON can hold; None for a record on which the evaluation fails.
    """

    __slots__ = ("_read", "fields", "needs_content")

    def __init__(self, fields: frozenset[str], read: _Reader) -> None:
        self.fields = fields
        self.needs_content = not fields.isdisjoint(CONTENT_FIELDS)
        self._read = read

    def __call__(self, record: Record) -> Any:
        """Return the value for a record, which must have every one of `fields`."""
        try:
            return self._read(record)
        except EVALUATION_ERRORS:
            return None


def projection(select: str) -> Projection:
    """Return the projection for `select`; raise QueryError if it is not valid.

    Fields, their members, constants, and lists and maps of those need no CEL library.
    """
    expr = parse(select)
    check_expression(expr, select)
    return Projection(roots(expr), _reader(expr, select))


def _reader(expr: Expr, source: str) -> _Reader:
    if _is_path(expr):
        return _path(expr)
    match expr:
        case Literal():
            return _constant(expr)
        case ListOf(items):
            readers = [_reader(item, source) for item in items]
            return lambda record: [read(record) for read in readers]
        case MapOf(entries):
            # Not left to the library, which forgets the order of the keys.
            pairs = [(_reader(key, source), _reader(value, source)) for key, value in entries]
            return lambda record: {_key(key(record)): value(record) for key, value in pairs}
    evaluate = evaluator(expr, source)
    return lambda record: _json_value(evaluate(record))


def _is_path(expr: Expr) -> bool:
    match expr:
        case Ident(name):
            return name in FIELDS
        case Member(operand) | Index(operand, Literal("string" | "int")):
            return _is_path(operand)
    return False


def _path(expr: Expr) -> _Reader:
    match expr:
        case Ident(name):
            return lambda record: record[name]
        case Member(operand, key) | Index(operand, Literal(_, key)):
            read = _path(operand)
            return lambda record: _part(read(record), key)
    raise TypeError(expr)


def _part(value: object, key: object) -> Any:
    if isinstance(value, Mapping):
        return value[key]
    if isinstance(value, list) and isinstance(key, int) and key >= 0:
        return value[key]
    raise TypeError(key)


def _constant(literal: Literal) -> _Reader:
    value = _json_value(literal.value)
    return lambda _: value


def _key(value: object) -> object:
    if isinstance(value, str | int):
        return value
    raise TypeError(value)


def _json_value(value: object) -> Any:
    """Return times, durations and bytes in the form they have in protobuf's JSON."""
    match value:
        case dict():
            return {key: _json_value(item) for key, item in value.items()}
        case list():
            return [_json_value(item) for item in value]
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            seconds = f"{value.days * 86400 + value.seconds}.{value.microseconds:06}"
            return seconds.rstrip("0").rstrip(".") + "s"
        case bytes():
            from base64 import b64encode

            return b64encode(value).decode()
    return value
