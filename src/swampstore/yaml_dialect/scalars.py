"""What a scalar means and how it is spelled: the one definition for readers and writers."""

from __future__ import annotations

import math
import re
from typing import Any

from swampstore.errors import ValidationError

MAX_DEPTH = 100
"""Collections nested deeper than this are refused: no honest file is, and recursion is finite."""

KEYWORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_DECIMAL = re.compile(r"[-+]?(?:[0-9]++(?:(\.)[0-9]*+)?|(\.)[0-9]++)(?:([eE])[-+]?[0-9]++)?")
_OCTAL_OR_HEXADECIMAL = re.compile(r"0(?:o[0-7]++|x[0-9a-fA-F]++)")

_YAML_1_1_BOOLEANS = frozenset(
    spelling
    for word in ("y", "n", "yes", "no", "on", "off")
    for spelling in (word, word.capitalize(), word.upper())
)
# Keywords aside: text that no YAML 1.1 or 1.2 reader takes for anything else without quotes.
_CERTAINLY_TEXT = re.compile(
    r"""(?!\.?[0-9_][0-9_.,:]*(?:[eE][-+]?[0-9_]*)?\Z)       # decimal, float, base 60
        (?!0[xXoObB][0-9a-fA-F_]*\Z)
        (?![0-9]{4}-[0-9][0-9]?-)                           # dates and times
        \.?[\w/$][\w/$.@+~=%,()-]*+
        (?:(?:[ ](?=[\w/$(])|:(?=[\w/]))[\w/$.@+~=%,()-]*+)*""",
    re.VERBOSE,
)
_ESCAPED = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]')
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0", '"': '\\"', "\\": "\\\\"}


def type_plain_scalar(text: str) -> bool | int | float | str | None:
    """Give the value of an unquoted scalar in the YAML 1.2 core schema.

    Raises ValueError for a number with more digits than Python accepts.
    """
    if text in KEYWORDS:
        return KEYWORDS[text]
    if text.isdecimal() and text.isascii():  # the common number, far quicker than a match
        return int(text)
    if text[0] not in "0123456789.+-":
        return text
    if found := _DECIMAL.fullmatch(text):
        return int(text) if found.lastindex is None else float(text)
    return int(text, 0) if _OCTAL_OR_HEXADECIMAL.fullmatch(text) else text


def scalar_text(value: Any) -> str:
    """One scalar spelled so that YAML 1.1 and 1.2 readers both get it back."""
    if isinstance(value, str):
        return _string_text(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer_text(value)
    if isinstance(value, float):
        return _float_text(value)
    raise not_writable(value)


def not_writable(value: Any) -> ValidationError:
    """Return the error for a value that has no place in our files."""
    return ValidationError(
        f"{value!r:.60} is a {type(value).__name__}, which cannot be written as YAML",
        hint="Use text, numbers, booleans, lists and mappings; write times as ISO-8601 text.",
    )


def _string_text(text: str) -> str:
    is_keyword = text in KEYWORDS or text in _YAML_1_1_BOOLEANS
    if not is_keyword and _CERTAINLY_TEXT.fullmatch(text):
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found.group()
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        raise ValidationError(
            f"the text {found.string[:40]!r} holds half a character (U+{code:04X})",
            hint="The text was cut or decoded wrongly; give it as valid Unicode.",
        )
    return _SHORT_ESCAPES.get(character) or (f"\\x{code:02X}" if code < 256 else f"\\u{code:04X}")


def _integer_text(value: int) -> str:
    try:
        return f"{value:d}"
    except ValueError as error:
        raise ValidationError(
            "a number has too many digits to be written", hint="Write it as text."
        ) from error


def _float_text(value: float) -> str:
    if math.isfinite(value):
        text = repr(value)
        # YAML 1.1 wants a point in the mantissa: 1e+16 would be text.
        return text if "." in text else text.replace("e", ".0e")
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
