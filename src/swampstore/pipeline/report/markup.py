"""HTML that cannot be broken by what is put into it.

`element` escapes every text; only what is `Html` already goes in as it is. Characters that nobody
sees, or that turn the direction of a text around, are spelled out.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

# Without the joiners some scripts, and some emoji, would fall apart; the third is a space that
# keeps a number and its unit together.
_HARMLESS = "\u200c\u200d\u00a0"
_VOID = frozenset({"col", "meta"})


class Html(str):
    """Markup that is finished."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """Return an element; an attribute `class_` is written class, `data_value` data-value.

    Attributes that are None are left out. Texts and values are escaped, `Html` is not.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Return parts one after the other; texts among them are escaped."""
    return Html("".join(part if isinstance(part, Html) else _escaped(part) for part in parts))


def visible(text: str) -> str:
    """Return a text in which every invisible or direction-changing character is spelled out."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _HARMLESS else _spelled(character)
        for character in text
    )


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(text: str) -> str:
    return escape(visible(text), quote=True)
