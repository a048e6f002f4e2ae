"""Mistakes that can be seen before any row is read: unknown functions, types that never fit.

CEL itself would answer most of them with "no row matches", which helps nobody.
"""

from __future__ import annotations

import re

from swampstore.catalog.query.fields import ensure_known, known_fields
from swampstore.catalog.query.tree import (
    Binary,
    Call,
    Comprehension,
    Conditional,
    Expr,
    Ident,
    Index,
    Kind,
    ListOf,
    Literal,
    Logical,
    MapOf,
    Member,
    MethodCall,
    Unary,
    children,
    complaint,
    render,
)
from swampstore.errors import QueryError
from swampstore.notices import did_you_mean, sentences

FUNCTIONS: dict[str, Kind | None] = {
    "bool": "bool",
    "bytes": "bytes",
    "double": "double",
    "duration": "duration",
    "dyn": None,
    "has": "bool",
    "int": "int",
    "size": "int",
    "string": "string",
    "timestamp": "timestamp",
    "type": "type",
    "uint": "uint",
}
"""Functions of one argument and the type of what they return."""

TEXT_METHODS = frozenset({"contains", "endsWith", "matches", "startsWith"})
TIME_METHODS = frozenset(
    {"getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear"}
    | {"getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds"}
)
_NUMBERS = frozenset({"int", "uint", "double"})
_ORDERED = _NUMBERS | {"bool", "bytes", "duration", "string", "timestamp"}
_SIZED = frozenset({"bytes", "list", "map", "string"})
_EQUALITY = frozenset({"==", "!="})
_ORDERING = frozenset({"<", "<=", ">", ">="})
_SUMS: dict[tuple[str, Kind, Kind], Kind] = {
    ("+", "string", "string"): "string",
    ("+", "bytes", "bytes"): "bytes",
    ("+", "list", "list"): "list",
    ("+", "timestamp", "duration"): "timestamp",
    ("+", "duration", "timestamp"): "timestamp",
    ("+", "duration", "duration"): "duration",
    ("-", "timestamp", "duration"): "timestamp",
    ("-", "timestamp", "timestamp"): "duration",
    ("-", "duration", "duration"): "duration",
}
_Names = frozenset[str]
_MOMENTS = frozenset({"createdAt", "startedAt", "completedAt", "heartbeatAt"})
# Part of a time will do: texts compare letter by letter.
_BEGINS_LIKE_A_TIME = re.compile(r"\d{4}|$")


def check_predicate(expr: Expr, source: str) -> None:
    """Raise QueryError if `expr` can never be true of a record, or names what is not there."""
    ensure_known(expr, source)
    checker = _Checker(source)
    checker.need_bool(expr, "A predicate", frozenset())


def check_expression(expr: Expr, source: str) -> None:
    """Raise QueryError if evaluating `expr` fails for every record."""
    ensure_known(expr, source)
    _Checker(source).kind(expr, frozenset())


class _Checker:
    """Finds the type of an expression; `bound` are the comprehension variables in sight."""

    def __init__(self, source: str) -> None:
        self._source = source

    def kind(self, expr: Expr, bound: _Names) -> Kind | None:  # noqa: PLR0911 - one per node
        """Return the type of `expr`, None if only a row can tell; raise QueryError on a misfit."""
        match expr:
            case Literal(kind):
                return kind
            case Ident(name):
                return self._ident(name, bound)
            case Member(operand) | Index(operand):
                return self._part(expr, operand, bound)
            case Call():
                return self._call(expr, bound)
            case MethodCall():
                return self._method(expr, bound)
            case Comprehension():
                return self._comprehension(expr, bound)
            case Unary() | Logical() | Conditional():
                return self._logic(expr, bound)
            case Binary():
                return self._binary(expr, bound)
            case ListOf() | MapOf():
                for child in children(expr):
                    self.kind(child, bound)
                return "list" if isinstance(expr, ListOf) else "map"

    def need_bool(self, expr: Expr, what: str, bound: _Names) -> None:
        kind = self.kind(expr, bound)
        if kind not in ("bool", None):
            raise self._complaint(
                f"{what} must be true or false; {render(expr)} is {_a(kind)}",
                expr,
                f"Compare it: {render(expr)} == {_example(kind)}.",
            )

    def _complaint(self, problem: str, expr: Expr, hint: str) -> QueryError:
        return complaint(problem, self._source, expr.at, hint=hint)

    def _ident(self, name: str, bound: _Names) -> Kind | None:
        if name in bound:
            return None
        fields = known_fields()
        return fields[name].kind if name in fields else "type"

    def _part(self, expr: Member | Index, operand: Expr, bound: _Names) -> Kind | None:
        kind = self.kind(operand, bound)
        wanted = ("map", None) if isinstance(expr, Member) else ("map", "list", None)
        if kind not in wanted:
            raise self._complaint(
                f"{render(operand)} is {_a(kind)} and has no members",
                expr,
                "Only tags, attributes and content have members: tags.env, attributes.a.b[0].",
            )
        if isinstance(expr, Index):
            self.kind(expr.key, bound)
        return "string" if _is_tags(operand, bound) else None

    def _call(self, expr: Call, bound: _Names) -> Kind | None:
        if expr.function not in FUNCTIONS:
            known = FUNCTIONS.keys() | TEXT_METHODS
            raise self._complaint(
                f"Unknown function {expr.function}",
                expr,
                sentences(
                    did_you_mean(expr.function, known, 1), f"Functions: {', '.join(sorted(known))}."
                ),
            )
        if len(expr.arguments) != 1:
            raise self._complaint(
                f"{expr.function}() takes one argument",
                expr,
                f"Write {expr.function}(x) with one value or field.",
            )
        kind = self.kind(expr.arguments[0], bound)
        if expr.function == "size" and kind not in (*_SIZED, None):
            raise self._complaint(
                f"{render(expr.arguments[0])} is {_a(kind)} and has no size",
                expr,
                "size() counts the characters of a text or the entries of a list or map.",
            )
        return FUNCTIONS[expr.function]

    def _method(self, expr: MethodCall, bound: _Names) -> Kind | None:
        kinds = [self.kind(part, bound) for part in children(expr)]
        if expr.method in TEXT_METHODS:
            wrong = next((kind for kind in kinds if kind not in ("string", None)), None)
            if wrong is not None or len(kinds) != 2:
                raise self._complaint(
                    f"{expr.method} works on a string and takes a string"
                    + (f", not {_a(wrong)}" if wrong else ""),
                    expr,
                    f'Write name.{expr.method}("text"); string(x) turns a number into text.',
                )
            return "bool"
        if expr.method in TIME_METHODS and len(kinds) == 1:
            if kinds[0] not in ("timestamp", "duration", None):
                raise self._complaint(
                    f"{expr.method} works on a timestamp, not on {_a(kinds[0])}",
                    expr,
                    f"Convert first: timestamp(createdAt).{expr.method}().",
                )
            return "int"
        known = TEXT_METHODS | TIME_METHODS | {"size", "exists", "all", "map", "filter"}
        raise self._complaint(
            f"Unknown method {expr.method} with {len(kinds) - 1} arguments",
            expr,
            sentences(did_you_mean(expr.method, known, 1), f"Methods: {', '.join(sorted(known))}."),
        )

    def _comprehension(self, expr: Comprehension, bound: _Names) -> Kind:
        kind = self.kind(expr.target, bound)
        if kind not in ("list", "map", None):
            raise self._complaint(
                f"{render(expr.target)} is {_a(kind)}; {expr.macro} needs a list or a map",
                expr,
                'Use it on tags, attributes or a list: tags.exists(k, k == "env").',
            )
        inside = bound | {expr.variable}
        *filters, last = expr.body
        tests = filters if expr.macro == "map" else expr.body
        for test in tests:
            self.need_bool(test, f"The condition of {expr.macro}", inside)
        self.kind(last, inside)
        return "list" if expr.macro in ("map", "filter") else "bool"

    def _logic(self, expr: Unary | Logical | Conditional, bound: _Names) -> Kind | None:
        if isinstance(expr, Conditional):
            self.need_bool(expr.test, "What stands before ?", bound)
            kinds = {self.kind(expr.then, bound), self.kind(expr.otherwise, bound)}
            return kinds.pop() if len(kinds) == 1 else None
        if expr.operator == "-":
            kind = self.kind(expr.operand, bound)  # type: ignore[union-attr]  # only a Unary has -
            if kind not in ("int", "double", "duration", None):
                raise self._complaint(f"{_a(kind)} cannot be negated", expr, "Use - on numbers.")
            return kind
        place = "What follows" if isinstance(expr, Unary) else "Each side of"
        for operand in children(expr):
            self.need_bool(operand, f"{place} {expr.operator}", bound)
        return "bool"

    def _binary(self, expr: Binary, bound: _Names) -> Kind | None:
        left, right = self.kind(expr.left, bound), self.kind(expr.right, bound)
        if expr.operator == "in":
            self._membership(expr, left, right, bound)
            return "bool"
        if expr.operator in _EQUALITY | _ORDERING:
            self._comparison(expr, left, right)
            return "bool"
        if left is None or right is None:
            return None
        if left == right and left in _NUMBERS and (expr.operator != "%" or left != "double"):
            return left
        result = _SUMS.get((expr.operator, left, right))
        if result is None:
            raise self._complaint(
                f"{_a(left)} {expr.operator} {_a(right)} has no meaning",
                expr,
                "Both sides must have one type; convert with int(), double() or string().",
            )
        return result

    def _comparison(self, expr: Binary, left: Kind | None, right: Kind | None) -> None:
        for field, other in ((expr.left, expr.right), (expr.right, expr.left)):
            self._check_moment(field, other)
        if left is None or right is None:
            return
        if not _same_family(left, right):
            raise self._mismatch(expr, left, right)
        if expr.operator in _ORDERING and left not in _ORDERED:
            raise self._complaint(
                f"{_a(left)} has no order", expr, "Lists and maps compare with == and != only."
            )

    def _membership(
        self, expr: Binary, left: Kind | None, right: Kind | None, bound: _Names
    ) -> None:
        if right not in ("list", "map", None):
            raise self._complaint(
                f"{render(expr.right)} is {_a(right)}; in needs a list or tags",
                expr,
                f"Write {render(expr.left)} in [...], or x.contains(y) for text.",
            )
        if left is None:
            return
        if _is_tags(expr.right, bound):
            kinds: list[Kind | None] = ["string"]
        elif isinstance(expr.right, ListOf):
            kinds = [self.kind(item, bound) for item in expr.right.items]
        else:
            return
        if kinds and not any(kind is None or _same_family(left, kind) for kind in kinds):
            raise self._mismatch(expr, left, kinds[0] or "null")

    def _check_moment(self, field: Expr, other: Expr) -> None:
        """Refuse to compare a time with text that is none: no row, or every row, would match."""
        match field, other:
            case Ident(name), Literal("string", str() as text) if name in _MOMENTS:
                if not _BEGINS_LIKE_A_TIME.match(text):
                    raise self._complaint(
                        f"{name} is compared with {text!r}, which is no time",
                        other,
                        f'Write {name} > "2026-05-14T08:00:00Z"; or ask for an age:'
                        " swampstore data search --since 1d.",
                    )

    def _mismatch(self, expr: Binary, left: Kind, right: Kind) -> QueryError:
        subject, kind, other, misfit = expr.left, left, expr.right, right
        if isinstance(subject, Literal):
            subject, kind, other, misfit = expr.right, right, expr.left, left
        return self._complaint(
            f"{render(subject)} is {_a(kind)} and cannot be compared with {_a(misfit)}",
            expr,
            _rewrite(expr.operator, subject, kind, other, misfit),
        )


def _is_tags(expr: Expr, bound: _Names) -> bool:
    return isinstance(expr, Ident) and expr.name == "tags" and "tags" not in bound


def _same_family(left: Kind, right: Kind) -> bool:
    return left == right or (left in _NUMBERS and right in _NUMBERS)


def _rewrite(operator: str, subject: Expr, kind: Kind, other: Expr, misfit: Kind) -> str:
    """Say how a comparison of `subject` is written with the type it has."""
    name = render(subject)
    if kind == "bool":
        return f"Write {name} or !{name}."
    if kind == "string" and misfit == "timestamp":
        return f"Convert it first: timestamp({name}) {operator} {render(other)}."
    if isinstance(other, Literal) and operator != "in":
        if kind == "string" and other.value is None:
            return f'It is never null: write {name} {operator} "".' + _presence(subject)
        if kind == "string" and isinstance(other.value, bool | int | float):
            return f'Write {name} {operator} "{render(other)}".'
        if kind == "int" and isinstance(other.value, str) and other.value.strip().isdecimal():
            return f"Write {name} {operator} {int(other.value)}."
    return f"Compare it with {_a(kind)}, such as {_example(kind)}."


def _presence(subject: Expr) -> str:
    return (
        f" Whether a tag is there: has({render(subject)})." if isinstance(subject, Member) else ""
    )


def _a(kind: Kind | None) -> str:
    return "null" if kind == "null" else f"an {kind}" if kind == "int" else f"a {kind}"


def _example(kind: Kind | None) -> str:
    examples = {
        "int": "3",
        "uint": "3u",
        "double": "1.5",
        "string": '"text"',
        "bytes": 'b"text"',
        "list": "[]",
        "map": "{}",
        "timestamp": 'timestamp("2026-01-01T00:00:00Z")',
        "duration": 'duration("1h")',
        "type": "string",
    }
    return examples.get(kind or "", "null")
