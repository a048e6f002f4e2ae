"""How results look as text: blocks of fields, sizes, ages. Rows are in `listing`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TextIO

from swampstore.notices import escaped, escaped_lines

_UNITS = ("KB", "MB", "GB")
_DAY = 86_400
# From which number of seconds on an age is told in which unit.
_AGES = (
    (2 * 365 * _DAY, 365 * _DAY, "y"),
    (60 * _DAY, 30 * _DAY, "mo"),
    (_DAY, _DAY, "d"),
    (3600, 3600, "h"),
    (60, 60, "m"),
)
_NAMED = 20


def size_text(size: int) -> str:
    """Write a number of bytes for people: 212 B, 1.5 KB, 3.0 GB."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in _UNITS:
        amount /= 1024
        if amount < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{amount:.1f} {unit}"


def columns_of(stream: TextIO | None) -> int:
    """Return how many columns a stream shows, as far as somebody tells; else 80."""
    try:
        told = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        told = 0
    if told > 1:
        return told
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream else 80
    except (OSError, ValueError):
        return 80


def duration_text(milliseconds: int | None) -> str:
    """Return a duration as people read it; empty as long as there is none.

    >>> duration_text(1268), duration_text(75_000), duration_text(200_000), duration_text(None)
    ('1.3 s', '75 s', '3 min 20 s', '')
    """
    return "" if milliseconds is None else seconds_text(milliseconds / 1000)


def seconds_text(seconds: float) -> str:
    """Write a number of seconds for people."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def age_text(moment: str) -> str:
    """Return how long ago a moment was, as short as possible; as it is if it is none.

    >>> age_text("1999-12-31T23:59:59.000Z")[-1], age_text("soon")
    ('y', 'soon')
    """
    from swampstore.clock import from_iso, system_clock  # help needs no part of the library

    try:
        seconds = (system_clock() - from_iso(moment)).total_seconds()
    except ValueError:
        return moment
    for least, length, unit in _AGES:
        if seconds >= least:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def type_text(content_type: str) -> str:
    """Return a MIME type as people call it.

    >>> type_text("application/json"), type_text("text/plain; charset=utf-8")
    ('json', 'text')
    """
    kind = content_type.partition(";")[0].rpartition("/")[2].strip().lower()
    for beginning in ("vnd.apache.", "vnd.", "x-"):
        kind = kind.removeprefix(beginning)
    return {"plain": "text", "octet-stream": "bytes"}.get(kind, kind)


def printable(value: object) -> str:
    """Write a value so that no character in it can move the cursor or colour the terminal."""
    return escaped(value)


def printable_lines(text: str) -> str:
    """Do the same to each line of a text; tabs in it stay."""
    return escaped_lines(text)


def fields(members: Mapping[str, object]) -> str:
    """Return a block of names and values, one per line; empty values are left out."""
    words = {True: "yes", False: "no"}
    shown = {
        name: words[value] if isinstance(value, bool) else printable(value)
        for name, value in members.items()
        if value not in ("", None)
    }
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name:{width}}  {value}" for name, value in shown.items())


def named_lines(what: str, found: Iterable[str | tuple[str, ...]]) -> list[str]:
    """Return a line for each path, with what is said of it, if anything; many are counted."""
    every = [(one,) if isinstance(one, str) else one for one in found]
    lines = [": ".join([what, *map(printable, one)]) for one in every[:_NAMED]]
    if len(every) > _NAMED:
        lines.append(f"{what}: ... and {len(every) - _NAMED} more")
    return lines


def counted(number: int, noun: str) -> str:
    """Write `1 version`, `2 versions`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def footer_text(total: int, *, limited: bool) -> str:
    """Say how many results there are, and whether a limit may have kept others away."""
    return counted(total, "result") + (", limited; there may be more" if limited else "")
