"""Where the lines of an axis go, and what is written at them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, timedelta
from typing import NamedTuple

from swampstore.pipeline.report.wording import UNITS, month_text

_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_DAYS = (1, 2, 7, 14)
_MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000)


class Tick(NamedTuple):
    """A place on an axis."""

    value: int
    label: str


def byte_ticks(highest: int, at_most: int = 5) -> list[Tick]:
    """Return round numbers of bytes from zero to the first that is not below `highest`."""
    power = 0
    while power < len(UNITS) - 1 and highest >= 1024 ** (power + 1):
        power += 1
    wanted = max(highest, 1) / 1024**power
    # Halves are round too, but there is no half of a byte.
    steps = (0.5, *_STEPS) if power else _STEPS
    step: float = next((step for step in steps if wanted <= step * at_most), _STEPS[-1])
    while wanted > step * at_most:  # beyond the largest unit, steps simply grow
        step *= 2
    return [
        Tick(int(number * step * 1024**power), f"{number * step:,g} {UNITS[power]}")
        if number
        else Tick(0, "0")
        for number in range(math.ceil(wanted / step) + 1)
    ]


def day_ticks(first: date, last: date, at_most: int) -> list[tuple[date, str]]:
    """Return round days from `first` to `last`: days, firsts of months, firsts of years."""
    span = (last - first).days
    for step in _DAYS:
        if span / step < at_most:
            return [(day, _day_label(day)) for day in _every_days(first, last, step)]
    months = next(step for step in _MONTHS if span / (step * 30) < at_most or step == _MONTHS[-1])
    return [(day, _month_label(day, months)) for day in _every_months(first, last, months)]


def _every_days(first: date, last: date, step: int) -> Iterator[date]:
    # Counted back from the last day, which is the one that readers look for.
    for number in range((last - first).days // step, -1, -1):
        yield last - timedelta(days=number * step)


def _every_months(first: date, last: date, step: int) -> Iterator[date]:
    number = -(-(first.year * 12 + first.month - 1 + (first.day > 1)) // step) * step
    while number < 12 * 10000 and (day := date(number // 12, number % 12 + 1, 1)) <= last:
        yield day
        number += step


def _day_label(day: date) -> str:
    return f"{day.day} {month_text(day)}"


def _month_label(day: date, step: int) -> str:
    if step >= 12:
        return str(day.year)
    return f"{month_text(day)} {day.year}" if day.month == 1 else month_text(day)
