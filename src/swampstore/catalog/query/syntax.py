"""The parser: query source, which is CEL, to an expression tree."""

from __future__ import annotations

from typing import NoReturn, cast

from swampstore.catalog.query.tokens import Token, tokenize
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
    binary_level,
    children,
    complaint,
)
from swampstore.errors import QueryError

MAX_LENGTH = 32_768
"""The longest query in characters; every value of one still fits in one SQL statement."""

MAX_DEPTH = 32
"""How deep a query may nest; less than any recursion limit it meets later."""

KEYWORDS = frozenset({"true", "false", "null", "in"})
RESERVED = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let"}
    | {"loop", "package", "namespace", "return", "var", "void", "while"}
)
MACROS = {"exists": 1, "all": 1, "exists_one": 1, "filter": 1, "map": 2}
"""Comprehensions, and how many expressions may follow their variable."""

_METHODS_ONLY = frozenset({"contains", "startsWith", "endsWith", "matches"})
_BINARY_OPERATORS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%"})
_MAX_INT = (1 << 63) - 1
_MAX_UINT = (1 << 64) - 1
_WORDS = {"and": "&&", "or": "||", "not": "!", "is": "=="}


OPTIONAL = "?"
"""The name under which optional access, `a.?b` or `a[?b]`, is in the tree: a call of a method."""


def parse(source: str, *, optional: bool = False) -> Expr:
    """Return the tree of `source`; raise QueryError that points at the first mistake.

    `namespace` is a reserved word of CEL; it is read as its alias `ns`. Optional access is not
    part of the query language, but with `optional` of the language of this expression.
    """
    if len(source) > MAX_LENGTH:
        raise QueryError(
            f"The query has {len(source)} characters; at most {MAX_LENGTH} are accepted",
            hint="Shorten it, for example by splitting a long list over several queries.",
        )
    if any("\ud800" <= character <= "\udfff" for character in source):
        raise QueryError(
            "The query holds characters that are not valid Unicode",
            hint="Check the encoding of the terminal or of the file the query comes from.",
        )
    expr = _Parser(source, optional=optional).parse()
    _ensure_shallow(expr)
    return expr


def _ensure_shallow(expr: Expr) -> None:
    level = [expr]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in children(parent)]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> QueryError:
    return QueryError(
        f"The query nests deeper than {MAX_DEPTH} levels",
        hint="Remove parentheses, or split the query.",
    )


class _Parser:
    """Recursive descent, with precedence climbing for the binary operators."""

    def __init__(self, source: str, *, optional: bool = False) -> None:
        self._source = source
        self._optional = optional
        self._tokens = list(tokenize(source))
        self._next = 0
        self._nesting = 0

    def parse(self) -> Expr:
        expr = self._expression()
        if self._peek().kind != "end":
            self._unexpected("an operator or the end")
        return expr

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _advance(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token.kind in ("operator", "ident") and token.text in texts

    def _accept(self, text: str) -> bool:
        if self._is(text):
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        if not self._is(text):
            self._unexpected(text)
        return self._advance()

    def _unexpected(self, wanted: str) -> NoReturn:
        token = self._peek()
        problem = f"Unexpected {token.text}" if token.text else "The query ends too early"
        hint = f"Here {wanted} is expected."
        if operator := _WORDS.get(token.text.lower()):
            hint = f"Write {operator} instead of {token.text}."
        raise complaint(problem, self._source, token.at, hint=hint)

    def _expression(self) -> Expr:
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise _too_deep()
        test = self._logical("||")
        if self._is("?"):
            at = self._advance().at
            then = self._logical("||")
            self._expect(":")
            test = Conditional(test, then, self._expression(), at)
        self._nesting -= 1
        return test

    def _logical(self, operator: str) -> Expr:
        operands = [self._operand(operator)]
        at = self._peek().at
        while self._accept(operator):
            operands.append(self._operand(operator))
        return operands[0] if len(operands) == 1 else Logical(operator, tuple(operands), at)

    def _operand(self, operator: str) -> Expr:
        return self._logical("&&") if operator == "||" else self._binary(0)

    def _binary(self, loosest: int) -> Expr:
        left = self._unary()
        while self._is(*_BINARY_OPERATORS):
            operator = self._peek()
            level = binary_level(operator.text)
            if level < loosest:
                break
            self._advance()
            left = Binary(operator.text, left, self._binary(level + 1), operator.at)
        return left

    def _unary(self) -> Expr:
        operators: list[Token] = []
        while self._is("!") or (self._is("-") and not self._at_negative_number()):
            operators.append(self._advance())
        expr = self._member()
        for operator in reversed(operators):
            expr = Unary(operator.text, expr, operator.at)
        return expr

    def _at_negative_number(self) -> bool:
        return self._is("-") and self._peek(1).kind in ("int", "double")

    def _member(self) -> Expr:
        expr = self._primary()
        while True:
            at = self._peek().at
            if self._accept("."):
                expr = self._selection(expr, at)
            elif self._accept("["):
                is_optional = self._optional and self._accept("?")
                key = self._expression()
                expr = (
                    MethodCall(expr, OPTIONAL, (key,), at) if is_optional else Index(expr, key, at)
                )
                self._expect("]")
            elif self._is("{") and isinstance(expr, Ident | Member):
                self._unexpected("an operator or the end")
            else:
                return expr

    def _selection(self, target: Expr, at: int) -> Expr:
        if self._is("?") and not self._optional:
            raise complaint(
                "Optional access (.?) is not part of the query language",
                self._source,
                at,
                hint="A row that lacks the member does not match; test for it with has(a.b).",
            )
        is_optional = self._accept("?")
        token = self._peek()
        if token.kind != "ident":
            self._unexpected("the name of a member")
        if token.text in KEYWORDS:
            raise complaint(
                f"{token.text} is a keyword and cannot follow a dot",
                self._source,
                token.at,
                hint=f'Write it as a string in brackets: ["{token.text}"].',
            )
        self._advance()
        if is_optional:
            return MethodCall(
                target, OPTIONAL, (Literal("string", token.text, token.at),), token.at
            )
        if not self._accept("("):
            return Member(target, token.text, token.at)
        if token.text in MACROS:
            return self._comprehension(target, token)
        arguments = self._items(")")
        if token.text == "size" and not arguments:
            return Call("size", (target,), token.at)
        return MethodCall(target, token.text, arguments, token.at)

    def _comprehension(self, target: Expr, macro: Token) -> Expr:
        variable = self._peek()
        if variable.kind != "ident" or variable.text in KEYWORDS | RESERVED:
            self._unexpected("the name of a variable")
        self._advance()
        self._expect(",")
        body = self._items(")")
        if not 1 <= len(body) <= MACROS[macro.text]:
            raise complaint(
                f"{macro.text} does not take {len(body) + 1} arguments",
                self._source,
                macro.at,
                hint=f"Write a variable and an expression: .{macro.text}(x, ...).",
            )
        return Comprehension(target, macro.text, variable.text, body, macro.at)

    def _items(self, closing: str) -> tuple[Expr, ...]:
        items: list[Expr] = []
        while not self._accept(closing):
            items.append(self._expression())
            if not self._accept(","):
                self._expect(closing)
                break
        return tuple(items)

    def _primary(self) -> Expr:
        token = self._peek()
        if token.kind == "ident":
            return self._name()
        if token.kind == "operator":
            return self._bracketed()
        if token.kind == "end":
            self._unexpected("a field, a value or a parenthesis")
        return self._constant(self._advance(), token.at)

    def _bracketed(self) -> Expr:
        at = self._peek().at
        if self._at_negative_number():
            self._advance()
            return self._constant(self._advance(), at, negative=True)
        if self._accept("("):
            expr = self._expression()
            self._expect(")")
            return expr
        if self._accept("["):
            return ListOf(self._items("]"), at)
        if self._accept("{"):
            return MapOf(self._entries(), at)
        return self._unexpected("a field, a value or a parenthesis")

    def _entries(self) -> tuple[tuple[Expr, Expr], ...]:
        entries: list[tuple[Expr, Expr]] = []
        while not self._accept("}"):
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._accept(","):
                self._expect("}")
                break
        return tuple(entries)

    def _constant(self, token: Token, at: int, *, negative: bool = False) -> Expr:
        value = token.value
        if isinstance(value, int):
            limit = _MAX_UINT if token.kind == "uint" else _MAX_INT + negative
            if value > limit:
                raise complaint(
                    f"The number {token.text} does not fit in 64 bits",
                    self._source,
                    at,
                    hint="Use a smaller number, or write it with a decimal point.",
                )
        if negative and isinstance(value, int | float):
            value = -value
        return Literal(cast("Kind", token.kind), value, at)

    def _name(self) -> Expr:
        token = self._peek()
        if token.text == "in" or (token.text in RESERVED and token.text != "namespace"):
            raise complaint(
                f"{token.text} is a reserved word",
                self._source,
                token.at,
                hint="Text is written in quotes.",
            )
        self._advance()
        if token.text in ("true", "false"):
            return Literal("bool", token.text == "true", token.at)
        if token.text == "null":
            return Literal("null", None, token.at)
        if self._accept("("):
            return self._call(token)
        return Ident("ns" if token.text == "namespace" else token.text, token.at)

    def _call(self, name: Token) -> Expr:
        arguments = self._items(")")
        if name.text in _METHODS_ONLY and len(arguments) == 2:
            return MethodCall(arguments[0], name.text, arguments[1:], name.at)
        if name.text == "has" and not (len(arguments) == 1 and isinstance(arguments[0], Member)):
            raise complaint(
                "has() takes the member to look for",
                self._source,
                name.at,
                hint='Write has(tags.env); for other names write "a-b" in tags.',
            )
        return Call(name.text, arguments, name.at)
