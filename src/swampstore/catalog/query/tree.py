"""The shape of a parsed query expression.

The parser leaves one spelling per meaning: `x.size()` is the call `size(x)`,
`contains(x, y)` is the method call `x.contains(y)`, and `a && b && c` is one node. Every node
knows where it stands in the source, `at`. Nodes are tuples because those cost no start-up time
to define; tell them apart with `match`, not with `==`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal as OneOf
from typing import NamedTuple, TypeAlias

Kind: TypeAlias = OneOf[
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null",
    "string",
    "timestamp",
    "type",
    "uint",
]
"""The types of CEL; where a type cannot be known before a row is seen, it is `None`."""


class Literal(NamedTuple):
    """A constant; `kind` tells `1`, `1u`, `1.0` and `true` apart, which Python calls equal."""

    kind: Kind
    value: bool | int | float | str | bytes | None
    at: int = 0


class Ident(NamedTuple):
    """A field, a variable of a comprehension or the name of a type."""

    name: str
    at: int = 0


class Member(NamedTuple):
    """`operand.name`."""

    operand: Expr
    name: str
    at: int = 0


class Index(NamedTuple):
    """`operand[key]`."""

    operand: Expr
    key: Expr
    at: int = 0


class Call(NamedTuple):
    """`function(arguments)`."""

    function: str
    arguments: tuple[Expr, ...]
    at: int = 0


class MethodCall(NamedTuple):
    """`target.method(arguments)`."""

    target: Expr
    method: str
    arguments: tuple[Expr, ...]
    at: int = 0


class Comprehension(NamedTuple):
    """`target.macro(variable, body)`; `map` may have two bodies, a filter and a result."""

    target: Expr
    macro: str
    variable: str
    body: tuple[Expr, ...]
    at: int = 0


class ListOf(NamedTuple):
    """`[items]`."""

    items: tuple[Expr, ...]
    at: int = 0


class MapOf(NamedTuple):
    """`{key: value}`."""

    entries: tuple[tuple[Expr, Expr], ...]
    at: int = 0


class Unary(NamedTuple):
    """`!operand` or `-operand`."""

    operator: str
    operand: Expr
    at: int = 0


class Binary(NamedTuple):
    """Arithmetic, a comparison or `in`."""

    operator: str
    left: Expr
    right: Expr
    at: int = 0


class Logical(NamedTuple):
    """A chain of two or more operands with `&&` or with `||`."""

    operator: str
    operands: tuple[Expr, ...]
    at: int = 0


class Conditional(NamedTuple):
    """`test ? then : otherwise`."""

    test: Expr
    then: Expr
    otherwise: Expr
    at: int = 0


Expr: TypeAlias = (
    Literal
    | Ident
    | Member
    | Index
    | Call
    | MethodCall
    | Comprehension
    | ListOf
    | MapOf
    | Unary
    | Binary
    | Logical
    | Conditional
)


def children(expr: Expr) -> tuple[Expr, ...]:  # noqa: PLR0911 - one per shape of node
    """Return the expressions directly inside `expr`, in source order."""
    match expr:
        case Literal() | Ident():
            return ()
        case Member(operand) | Unary(_, operand):
            return (operand,)
        case Index(left, right) | Binary(_, left, right):
            return (left, right)
        case Call(_, items) | ListOf(items) | Logical(_, items):
            return items
        case MethodCall(target, _, items) | Comprehension(target, _, _, items):
            return (target, *items)
        case MapOf(entries):
            return tuple(part for entry in entries for part in entry)
        case Conditional(test, then, otherwise):
            return (test, then, otherwise)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield `expr` and everything inside it."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def conjuncts(expr: Expr) -> list[Expr]:
    """Return what must all hold for `expr` to hold: the operands of its outermost `&&`."""
    if isinstance(expr, Logical) and expr.operator == "&&":
        return [part for operand in expr.operands for part in conjuncts(operand)]
    return [expr]
