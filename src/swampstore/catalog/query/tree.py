"""The shape of a parsed query expression.

The parser leaves one spelling per meaning: `x.size()` is the call `size(x)`,
`contains(x, y)` is the method call `x.contains(y)`, and `a && b && c` is one node. Every node
knows where it stands in the source, `at`. Tell nodes apart with `match`, not with `==`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal as OneOf
from typing import TypeAlias, dataclass_transform

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


@dataclass_transform(frozen_default=True)
class Node:
    """A node of the tree: a data class that costs no start-up time to define."""

    __match_args__: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = tuple(cls.__annotations__)  # type: ignore[misc]  # set once, here

    def __init__(self, *values: object, **named: object) -> None:
        self.__dict__.update(zip(self.__match_args__, values, strict=False), **named)

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({members})"


class Literal(Node):
    """A constant; `kind` tells `1`, `1u`, `1.0` and `true` apart, which Python calls equal."""

    kind: Kind
    value: bool | int | float | str | bytes | None
    at: int = 0


class Ident(Node):
    """A field, a variable of a comprehension or the name of a type."""

    name: str
    at: int = 0


class Member(Node):
    """`operand.name`."""

    operand: Expr
    name: str
    at: int = 0


class Index(Node):
    """`operand[key]`."""

    operand: Expr
    key: Expr
    at: int = 0


class Call(Node):
    """`function(arguments)`."""

    function: str
    arguments: tuple[Expr, ...]
    at: int = 0


class MethodCall(Node):
    """`target.method(arguments)`."""

    target: Expr
    method: str
    arguments: tuple[Expr, ...]
    at: int = 0


class Comprehension(Node):
    """`target.macro(variable, body)`; `map` may have two bodies, a filter and a result."""

    target: Expr
    macro: str
    variable: str
    body: tuple[Expr, ...]
    at: int = 0


class ListOf(Node):
    """`[items]`."""

    items: tuple[Expr, ...]
    at: int = 0


class MapOf(Node):
    """`{key: value}`."""

    entries: tuple[tuple[Expr, Expr], ...]
    at: int = 0


class Unary(Node):
    """`!operand` or `-operand`."""

    operator: str
    operand: Expr
    at: int = 0


class Binary(Node):
    """Arithmetic, a comparison or `in`."""

    operator: str
    left: Expr
    right: Expr
    at: int = 0


class Logical(Node):
    """A chain of two or more operands with `&&` or with `||`."""

    operator: str
    operands: tuple[Expr, ...]
    at: int = 0


class Conditional(Node):
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
