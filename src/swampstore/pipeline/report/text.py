"""The texts of the page: markup that nothing can break, and numbers in the words of people.

`html` escapes every text; only what is `Html` already goes in as it is. Characters that nobody
sees, or that turn the direction of a text around, are spelled out. Spaces within a number or a
date do not break.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from html import escape
from string import Formatter
from typing import Any

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_AGES = ((365, "year"), (30, "month"), (1, "day"))
_SPACE = "\u00a0"
# Without the joiners some scripts, and some emoji, would fall apart.
_HARMLESS = f"\u200c\u200d{_SPACE}"


class Html(str):
    """Markup that is finished."""

    __slots__ = ()


class _Escaping(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Html):
            return value
        if isinstance(value, str | int | float):
            return escape(visible(format(value, format_spec)), quote=True)
        return "".join(self.format_field(part, format_spec) for part in value)


_ESCAPING = _Escaping()


def html(template: str, *values: object, **named: object) -> Html:
    """Fill the braces of a template: texts are escaped, `Html` is not, parts of a list joined."""
    return Html(_ESCAPING.vformat(template, values, named))


def visible(text: str) -> str:
    """Return a text in which every invisible or direction-changing character is spelled out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _HARMLESS else _spelled(one) for one in text)


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def bytes_text(size: int) -> str:
    """Write a number of bytes with three digits: 212 B, 1.50 KiB, 12.3 GiB."""
    amount = float(size)
    for unit in UNITS:
        digits = 0 if unit == "B" or amount >= 99.95 else 1 if amount >= 9.995 else 2
        if round(amount, digits) < 1024 or unit == UNITS[-1]:
            return f"{amount:,.{digits}f}{_SPACE}{unit}"
        amount /= 1024
    raise AssertionError


def counted(number: int, noun: str) -> str:
    """Write `1 version`, `2,000 versions`."""
    return f"{number:,}{_SPACE}{noun}" if number == 1 else f"{number:,}{_SPACE}{noun}s"


def share_text(part: int, whole: int) -> str:
    """Write what part of a whole something is: 12 %, < 1 %."""
    if not whole or not part:
        return f"0{_SPACE}%"
    percent = 100 * part / whole
    if percent < 1:
        return f"<{_SPACE}1{_SPACE}%"
    return f"{min(round(percent), 99 if part < whole else 100)}{_SPACE}%"


def day_text(day: date) -> str:
    """Write a day: 14 May 2026."""
    return f"{day.day}{_SPACE}{month_text(day)}{_SPACE}{day.year}"


def month_text(day: date) -> str:
    """Write the month of a day: May. Independent of the locale."""
    return _MONTHS[day.month - 1]


def moment_text(moment: datetime) -> str:
    """Write a moment: 14 May 2026, 20:19 UTC."""
    moment = moment.astimezone(UTC)
    return f"{day_text(moment)}, {moment:%H:%M} UTC"


def age_text(moment: datetime, now: datetime) -> str:
    """Write how long ago a moment was, roughly: 3 years ago, today."""
    days = (now - moment).days
    if days < 0:
        return "in the future"
    for length, unit in _AGES:
        if days >= length:
            return f"{counted(days // length, unit)} ago"
    return "today"
