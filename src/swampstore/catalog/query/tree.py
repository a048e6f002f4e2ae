"""The shape of a parsed query, how it is written down again, and errors that point into it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal as OneOf
from typing import TypeAlias, dataclass_transform

from swampstore.errors import QueryError

_MARGIN = 48


def complaint(problem: str, source: str, at: int, *, hint: str) -> QueryError:
    """Return an error that shows the line of `source` with a caret under position `at`."""
    start = source.rfind("\n", 0, at) + 1
    end = source.find("\n", at)
    line = source[start : end if end >= 0 else len(source)]
    column = at - start
    left = max(0, column - _MARGIN)
    shown = line[left : column + _MARGIN].replace("\t", " ").replace("\r", " ")
    caret = " " * (column - left) + "^"
    return QueryError(f"{problem}, at position {at + 1}:\n  {shown}\n  {caret}", hint=hint)


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


_TERNARY, _OR, _AND, _RELATION, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(8)
_BINARY_LEVELS = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT}
_NEEDS_ESCAPE = re.compile(r'[\x00-\x1f\x7f"\\]')


def binary_level(operator: str) -> int:
    """Return how tightly a binary operator binds: a higher level binds tighter."""
    return _BINARY_LEVELS.get(operator, _RELATION)


class Renderer:
    """Writes expressions as CEL source, with no more parentheses than needed."""

    def render(self, expr: Expr, outer: int = _TERNARY) -> str:
        """Return source that parses to `expr` where an operand of level `outer` is expected."""
        level, text = self._leveled(expr)
        return f"({text})" if level < outer else text

    def call(self, expr: Call) -> str:
        """Return the source of a function call; what an evaluator may want to spell otherwise."""
        return f"{expr.function}({self._listed(expr.arguments)})"

    def _leveled(self, expr: Expr) -> tuple[int, str]:
        match expr:
            case Unary(operator, operand):
                text = self.render(operand, _PRIMARY)
                # A minus right before a digit would become part of the number.
                return _UNARY, f"{operator}({text})" if text[0].isdigit() else operator + text
            case Binary(operator, left, right):
                level = binary_level(operator)
                sides = self.render(left, level), self.render(right, level + 1)
                return level, f"{sides[0]} {operator} {sides[1]}"
            case Logical(operator, operands):
                level = _OR if operator == "||" else _AND
                return level, f" {operator} ".join(self.render(x, level + 1) for x in operands)
            case Conditional(test, then, otherwise):
                sides = self.render(test, _OR), self.render(then, _OR)
                return _TERNARY, f"{sides[0]} ? {sides[1]} : {self.render(otherwise)}"
            case Literal():
                text = _literal(expr)
                return (_UNARY if text.startswith("-") else _PRIMARY), text
            case _:
                return _PRIMARY, self._primary(expr)

    def _primary(self, expr: Expr) -> str:  # noqa: PLR0911 - one per shape of node
        match expr:
            case Ident(name):
                return name
            case Member(operand, name):
                return f"{self.render(operand, _PRIMARY)}.{name}"
            case Index(operand, key):
                return f"{self.render(operand, _PRIMARY)}[{self.render(key)}]"
            case Call():
                return self.call(expr)
            case MethodCall(target, method, arguments):
                return f"{self.render(target, _PRIMARY)}.{method}({self._listed(arguments)})"
            case Comprehension(target, macro, variable, body):
                return f"{self.render(target, _PRIMARY)}.{macro}({variable}, {self._listed(body)})"
            case ListOf(items):
                return f"[{self._listed(items)}]"
            case MapOf(entries):
                inside = (f"{self.render(key)}: {self.render(value)}" for key, value in entries)
                return "{" + ", ".join(inside) + "}"
        raise TypeError(expr)

    def _listed(self, items: tuple[Expr, ...]) -> str:
        return ", ".join(self.render(item) for item in items)


def render(expr: Expr) -> str:
    """Return CEL source that parses to `expr` again."""
    return Renderer().render(expr)


def _literal(expr: Literal) -> str:
    match expr.value:
        case None:
            return "null"
        case bool():
            return "true" if expr.value else "false"
        case str():
            return '"' + _NEEDS_ESCAPE.sub(_escape, expr.value) + '"'
        case bytes():
            return 'b"' + "".join(f"\\x{byte:02x}" for byte in expr.value) + '"'
        case _:
            return f"{expr.value!r}u" if expr.kind == "uint" else repr(expr.value)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return "\\" + character if character in '"\\' else f"\\u{ord(character):04x}"
