"""How much there was on each day, from what was written and still exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import accumulate
from typing import NamedTuple

from swampstore.pipeline.report.summary import Addition, Source

_SHORTEST = timedelta(days=6)
# A clock that was reset to 1970 must not squeeze the rest of the story into the last pixels.
_NEGLIGIBLE = 0.001


class Layer(NamedTuple):
    """One namespace, or None for all the smaller ones: its bytes on each day of the story."""

    source: Source | None
    totals: Sequence[int]


class Growth(NamedTuple):
    """A story of days; layers come with the largest first, the smaller namespaces last."""

    days: Sequence[date]
    layers: Sequence[Layer]

    @property
    def totals(self) -> list[int]:
        """The bytes of all layers on each day."""
        return [sum(day) for day in zip(*(layer.totals for layer in self.layers), strict=True)]


class Span(NamedTuple):
    """What was written from one day to another, both included."""

    first: date
    last: date
    versions: int
    bytes: int


def growth_of(additions: Sequence[Addition], today: date, at_most: int) -> Growth:
    """Return the story up to today, with `at_most` days in it.

    What has no day was there from the start, what is dated in the future came today.
    """
    everything: dict[date, int] = defaultdict(int)
    layers: dict[Source | None, dict[date, int]] = defaultdict(lambda: defaultdict(int))
    for addition in additions:
        for by_day in (everything, layers[addition.source]):
            by_day[_shown_day(addition, today)] += addition.bytes
    days = _story(everything, today, at_most)
    told = [Layer(source, _totals(by_day, days)) for source, by_day in layers.items()]
    told.sort(key=lambda layer: (layer.source is None, -layer.totals[-1], layer.source or ()))
    return Growth(days, told)


def spans_of(additions: Sequence[Addition], first: date, today: date, length: int) -> list[Span]:
    """Return what was written in spans of `length` days, the last of which ends today."""
    count = (today - first).days // length + 1
    versions, sizes = [0] * count, [0] * count
    for addition in additions:
        day = _shown_day(addition, today)
        if day >= first:
            at = count - 1 - (today - day).days // length
            versions[at] += addition.versions
            sizes[at] += addition.bytes
    ends = [today - timedelta(days=length * (count - 1 - at)) for at in range(count)]
    starts = [end - timedelta(days=length - 1) for end in ends]
    return [Span(*span) for span in zip(starts, ends, versions, sizes, strict=True)]


def _shown_day(addition: Addition, today: date) -> date:
    return min(addition.day or date.min, today)


def _story(by_day: Mapping[date, int], today: date, at_most: int) -> list[date]:
    """Return the days to show: all that matter, or as many as can be told apart."""
    days = sorted(by_day)
    reached = zip(days, accumulate(by_day[day] for day in days), strict=True)
    enough = _NEGLIGIBLE * sum(by_day.values())
    first = next((day for day, total in reached if day > date.min and total >= enough), today)
    first = min(first, today - _SHORTEST)
    every = -(-((today - first).days + 1) // at_most)
    count = (today - first).days // every
    return [today - timedelta(days=every * number) for number in range(count, -1, -1)]


def _totals(by_day: Mapping[date, int], days: Sequence[date]) -> list[int]:
    totals = []
    total = 0
    pending = sorted(by_day.items(), reverse=True)
    for day in days:
        while pending and pending[-1][0] <= day:
            total += pending.pop()[1]
        totals.append(total)
    return totals
