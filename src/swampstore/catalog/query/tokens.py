"""Query source cut into tokens: CEL's identifiers, operators, numbers, strings and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from swampstore.catalog.query.tree import complaint

_BLANK = re.compile(r"(?:[ \t\r\n\f]+|//[^\n]*)+")
_NUMBER = re.compile(
    r"(?P<double>\d*\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    r"|(?P<int>0x[0-9a-fA-F]+|\d+)(?P<unsigned>[uU]?)"
)
_IDENT = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_OPERATOR = re.compile(r"&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}]")
_QUOTE = re.compile(r"(?P<bytes>[bB]?)(?P<raw>[rR]?)(?P<quote>'''|\"\"\"|'|\")")
# Compiled when one is met, which for most of them is never.
_BODIES = {
    ("'", False): r"((?:[^\\'\r\n]|\\.)*)'",
    ('"', False): r'((?:[^\\"\r\n]|\\.)*)"',
    ("'", True): r"([^'\r\n]*)'",
    ('"', True): r'([^"\r\n]*)"',
    ("'''", False): r"(?s)((?:[^\\]|\\.)*?)'''",
    ('"""', False): r'(?s)((?:[^\\]|\\.)*?)"""',
    ("'''", True): r"(?s)(.*?)'''",
    ('"""', True): r'(?s)(.*?)"""',
}
_ESCAPE = (
    r"(?s)\\(?:(?P<char>[abfnrtv\\?'\"`])|[xX](?P<byte>[0-9a-fA-F]{2})|(?P<octal>[0-3][0-7]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<wrong>.|$))"
)
_CHARACTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HINTS = {
    "=": "Write == to compare.",
    "&": "Write && for and.",
    "|": "Write || for or.",
    "`": 'Write the name as a string in brackets: tags["a-b"].',
    ";": "A query is one expression.",
}


class Token(NamedTuple):
    """A piece of the source; numbers and strings carry their value."""

    kind: Literal["int", "uint", "double", "string", "bytes", "ident", "operator", "end"]
    text: str
    at: int
    value: int | float | str | bytes | None = None


def tokenize(source: str) -> Iterator[Token]:
    """Yield the tokens of `source` and an `end` token; raise QueryError at the first bad one."""
    at = 0
    while True:
        if blank := _BLANK.match(source, at):
            at = blank.end()
        if at == len(source):
            break
        token = _token(source, at)
        yield token
        at += len(token.text)
    yield Token("end", "", at)


def _token(source: str, at: int) -> Token:
    if opening := _QUOTE.match(source, at):
        return _quoted(source, opening)
    if number := _NUMBER.match(source, at):
        return _number(source, number)
    if ident := _IDENT.match(source, at):
        return Token("ident", ident[0], at)
    if operator := _OPERATOR.match(source, at):
        return Token("operator", operator[0], at)
    character = source[at]
    hint = _HINTS.get(character, "Text is written in quotes; operators are those of CEL.")
    raise complaint(f"Unexpected character {character!r}", source, at, hint=hint)


def _number(source: str, found: re.Match[str]) -> Token:
    text, at = found[0], found.start()
    if after := _IDENT.match(source, found.end()):
        raise complaint(
            f"The number {text} runs into {after[0]}",
            source,
            after.start(),
            hint="Text is written in quotes; a number is followed by an operator.",
        )
    if found["double"]:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise complaint(
                f"The number {text} is too large", source, at, hint="Use a smaller one."
            )
        return Token("double", text, at, value)
    digits = found["int"]
    # Beyond any 64-bit number, and beyond what Python converts, there is no need to look closer.
    fits = len(digits) < 99
    value = int(digits, 16 if digits.startswith("0x") else 10) if fits else 1 << 64
    return Token("uint" if found["unsigned"] else "int", text, at, value)


def _quoted(source: str, opening: re.Match[str]) -> Token:
    raw = bool(opening["raw"])
    closed = re.compile(_BODIES[opening["quote"], raw]).match(source, opening.end())
    if closed is None:
        raise complaint(
            f"The text that starts with {opening[0]} has no end",
            source,
            opening.start(),
            hint=f"Close it with {opening['quote']} on this line, or use ''' for several.",
        )
    text = source[opening.start() : closed.end()]
    pieces = _pieces(
        source, closed.start(1), closed.end(1), raw=raw, as_bytes=bool(opening["bytes"])
    )
    if opening["bytes"]:
        return Token("bytes", text, opening.start(), b"".join(map(_encoded, pieces)))
    return Token("string", text, opening.start(), "".join(map(str, pieces)))


def _encoded(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


def _pieces(
    source: str, start: int, end: int, *, raw: bool, as_bytes: bool
) -> Iterator[str | bytes]:
    """Yield the stretches of a quoted body, with every escape replaced by what it stands for."""
    if raw or "\\" not in source[start:end]:
        yield source[start:end]
        return
    for escape in re.compile(_ESCAPE).finditer(source, start, end):
        yield source[start : escape.start()]
        yield _unescaped(source, escape, as_bytes=as_bytes)
        start = escape.end()
    yield source[start:end]


def _unescaped(source: str, escape: re.Match[str], *, as_bytes: bool) -> str | bytes:
    if character := escape["char"]:
        return _CHARACTERS.get(character, character)
    octal, byte = escape["octal"], escape["byte"]
    code = int(octal, 8) if octal else int(byte or escape["short"] or escape["long"] or "-1", 16)
    if as_bytes and (octal or byte):
        return bytes([code])
    if not as_bytes and _is_character(code):
        return chr(code)
    raise complaint(
        f"{escape[0]} stands for no character",
        source,
        escape.start(),
        hint=r"Write \\ for a backslash, or put r before the quote to switch escapes off.",
    )


def _is_character(code: int) -> bool:
    return 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
