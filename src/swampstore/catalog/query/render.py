"""Expressions written down again, as CEL source."""

from __future__ import annotations

import re

from swampstore.catalog.query.tree import (
    Binary,
    Call,
    Comprehension,
    Conditional,
    Expr,
    Ident,
    Index,
    ListOf,
    Literal,
    Logical,
    MapOf,
    Member,
    MethodCall,
    Unary,
)

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
