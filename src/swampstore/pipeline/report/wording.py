"""Numbers, sizes and times in the words of people; spaces in them do not break."""

from __future__ import annotations

from datetime import UTC, date, datetime

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# What belongs together stays on one line.
_SPACE = "\u00a0"
_AGES = ((365, "year"), (30, "month"), (1, "day"))


def bytes_text(size: int) -> str:
    """Write a number of bytes with three digits: 212 B, 1.50 KiB, 12.3 GiB."""
    amount = float(size)
    for unit in UNITS:
        digits = 0 if unit == "B" or amount >= 99.95 else 1 if amount >= 9.995 else 2
        if round(amount, digits) < 1024 or unit == UNITS[-1]:
            return f"{amount:,.{digits}f}{_SPACE}{unit}"
        amount /= 1024
    raise AssertionError


def count_text(number: int) -> str:
    """Write a count with its thousands apart: 12,345."""
    return f"{number:,}"


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
