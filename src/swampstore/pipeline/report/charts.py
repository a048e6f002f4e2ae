"""Charts as inline SVG. Text in a picture does not wrap, so each is drawn for one width."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from itertools import accumulate, count, pairwise
from typing import NamedTuple

from swampstore.pipeline.report.summary import Addition, Source
from swampstore.pipeline.report.text import (
    UNITS,
    Html,
    bytes_text,
    counted,
    day_text,
    html,
    month_text,
    visible,
)

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 10, 26
_DAY_LABEL = 76
_LETTER = 6.6
_LINE = 15
_NARROWEST = 44
_DAYS = (1, 2, 7, 14)
_MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000)
_SHORTEST = timedelta(days=6)
_SPANS = (1, 7, 30)
_MOST_SPANS = 120
# A clock that was reset to 1970 must not squeeze the rest of the story into the last pixels.
_NEGLIGIBLE = 0.001


class Size(NamedTuple):
    """What a picture may take; `name` tells the style sheet on which screens it is shown."""

    name: str
    width: int
    height: int


class Tile(NamedTuple):
    """A part of a treemap."""

    label: str
    title: str
    weight: int
    colour: str


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


class Span(NamedTuple):
    """What was written from one day to another, both included."""

    first: date
    last: date
    versions: int = 0
    bytes: int = 0


class History(NamedTuple):
    """What was written when: in `spans` that end today, and how much there was after each of them.

    `layers` are the namespaces with the most bytes first, None (the rest) last.
    """

    spans: Sequence[Span]
    layers: dict[Source | None, Sequence[int]]

    @property
    def days(self) -> list[date]:
        """The last day of each span."""
        return [span.last for span in self.spans]

    @property
    def totals(self) -> list[int]:
        """The bytes of all layers after each span."""
        return [sum(day) for day in zip(*self.layers.values(), strict=True)]


def history_of(additions: Sequence[Addition], today: date) -> History:
    """Return the story up to today in days, weeks, months of 30 days or more, at most 120 of them.

    What has no day was there before the first span, what is dated in the future came today.
    """
    added = sorted((_shown_day(one, today), one.bytes) for one in additions)
    reached = accumulate(size for _, size in added)
    enough = _NEGLIGIBLE * sum(size for _, size in added)
    told = (day for (day, _), total in zip(added, reached, strict=True) if total >= enough)
    first = min(next((day for day in told if day > date.min), today), today - _SHORTEST)
    number = (today - first).days + 1
    length = next((one for one in _SPANS if number <= one * _MOST_SPANS), -(-number // _MOST_SPANS))
    ends = _days_back(first, today, length)
    spans = [Span(end - timedelta(days=length - 1), end) for end in ends]
    written: dict[Source | None, list[int]] = defaultdict(lambda: [0] * len(ends))
    for one in additions:
        day = _shown_day(one, today)
        at = bisect_left(ends, day)
        written[one.source][at] += one.bytes
        if day >= spans[0].first:
            span = spans[at]
            spans[at] = span._replace(
                versions=span.versions + one.versions, bytes=span.bytes + one.bytes
            )
    layers = [(source, list(accumulate(sizes))) for source, sizes in written.items()]
    layers.sort(key=lambda layer: (layer[0] is None, -layer[1][-1], layer[0] or ()))
    return History(spans, dict(layers))


def _shown_day(addition: Addition, today: date) -> date:
    return min(addition.day or date.min, today)


def _days_back(first: date, last: date, step: int) -> list[date]:
    """Return every so many days, counted back from the last, which readers look for."""
    number = (last - first).days // step
    return [last - timedelta(days=step * back) for back in range(number, -1, -1)]


# Pictures --------------------------------------------------------------------------------------


class _Plot:
    """Places values and days on a picture; `margin` is the room of a day beside its middle."""

    def __init__(
        self, size: Size, first: date, last: date, highest: int, margin: float = 0.0
    ) -> None:
        self.size, self.first, self.last, self.margin = size, first, last, margin
        self.room, self.bottom = size.width - _LEFT - _RIGHT, size.height - _BOTTOM
        self.ticks = byte_ticks(highest, at_most=max(2, size.height // 50))

    def x(self, day: date) -> float:
        days = (self.last - self.first).days + 2 * self.margin
        return _LEFT + self.room * ((day - self.first).days + self.margin) / days

    def y(self, value: int) -> float:
        return self.bottom - (self.bottom - _TOP) * value / self.ticks[-1][0]

    def points(self, days: Sequence[date], values: Iterable[int]) -> list[str]:
        return [
            f"{self.x(day):.1f} {self.y(one):.1f}" for day, one in zip(days, values, strict=True)
        ]

    def axes(self) -> Iterator[Html]:
        width, height = self.size[1:]
        for value, label in self.ticks:
            yield html(
                '<path class="grid" d="M{} {:.1f}H{}"></path>'
                '<text x="{}" y="{:.1f}" class="at-end">{}</text>',
                *(_LEFT, self.y(value), width - _RIGHT, _LEFT - 8, self.y(value) + 4, label),
            )
        for day, label in day_ticks(self.first, self.last, self.room // _DAY_LABEL):
            x = self.x(day)
            is_cut = x + len(label) * _LETTER / 2 > width
            yield html(
                '<path class="mark" d="M{:.1f} {}v5"></path>'
                '<text x="{:.1f}" y="{}" class="{}">{}</text>',
                *(x, self.bottom, width - 1 if is_cut else x, height - 6),
                *("at-end" if is_cut else "at-middle", label),
            )


def growth_chart(history: History, colours: Sequence[str], size: Size) -> Html:
    """Draw the layers on top of each other; `colours` has a class of the style sheet for each."""
    days, totals = history.days, history.totals
    plot = _Plot(size, days[0], days[-1], max(totals))
    drawn = [*plot.axes()]
    below = [0] * len(days)
    for layer, colour in zip(history.layers.values(), colours, strict=True):
        above = [low + high for low, high in zip(below, layer, strict=True)]
        edge = "L".join([*plot.points(days, above), *reversed(plot.points(days, below))])
        drawn.append(html('<path class="area {}" d="M{}Z"></path>', colour, edge))
        below = above
    outline = html('<path class="outline" d="M{}"></path>', "L".join(plot.points(days, totals)))
    told = (
        f"From {bytes_text(totals[0])} on {day_text(days[0])}"
        f" to {bytes_text(totals[-1])} on {day_text(days[-1])}."
    )
    return _picture("growth", "Bytes stored, by day", told, size, [*drawn, outline])


def spans_chart(spans: Sequence[Span], size: Size) -> Html:
    """Draw what was written in each span as columns."""
    highest = max(span.bytes for span in spans)
    plot = _Plot(size, spans[0].first, spans[-1].last, highest, margin=0.5)
    room = plot.room / len(spans)
    gap = min(2.0, room / 4)
    columns = [
        html(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="column">'
            "<title>{}{}: {} in {}</title></rect>",
            *(_LEFT + at * room + gap / 2, plot.y(span.bytes)),
            *(room - gap, plot.bottom - plot.y(span.bytes)),
            f"{day_text(span.first)} to " if span.first != span.last else "",
            *(day_text(span.last), bytes_text(span.bytes), counted(span.versions, "version")),
        )
        for at, span in enumerate(spans)
        if span.bytes
    ]
    told = f"At most {bytes_text(highest)} in one span."
    return _picture("written", "Bytes written", told, size, [*plot.axes(), *columns])


def treemap_chart(tiles: Sequence[Tile], size: Size) -> Html:
    """Draw tiles, the heaviest first, as areas; labels go where there is room for them."""
    boxes = treemap([tile.weight for tile in tiles], Box(0, 0, size.width, size.height))
    # An inner picture clips what does not fit, however wide its letters are.
    drawn = [
        html(
            '<svg x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title>'
            '<rect width="100%" height="100%" rx="3" class="tile {}"></rect>{}</svg>',
            *(box.x + 1, box.y + 1, max(box.width - 2, 0.5), max(box.height - 2, 0.5)),
            *(tile.title, tile.colour, _tile_texts(tile, box)),
        )
        for tile, box in zip(tiles, boxes, strict=True)
    ]
    told = "; ".join(f"{tile.label}: {bytes_text(tile.weight)}" for tile in tiles[:3])
    return _picture("models", "Bytes by model", f"The largest: {told}.", size, drawn)


def _tile_texts(tile: Tile, box: Box) -> Iterator[Html]:
    if box.width < _NARROWEST or box.height < _LINE + 6:
        return
    shown, letters = visible(tile.label), max(int((box.width - 14) / _LETTER), 2)
    cut = shown if len(shown) <= letters else f"{shown[: letters - 1]}…"
    yield html('<text x="7" y="17" class="strong">{}</text>', cut)
    size = bytes_text(tile.weight)
    if box.height >= 2 * _LINE + 8 and box.width >= len(size) * _LETTER + 14:
        yield html('<text x="7" y="{}">{}</text>', 17 + _LINE, size)


def _picture(name: str, title: str, told: str, size: Size, parts: Sequence[Html]) -> Html:
    return html(
        '<svg class="chart {0}" viewBox="0 0 {1} {2}" role="img"'
        ' aria-labelledby="{3}-title {3}-desc"><title id="{3}-title">{4}</title>'
        '<desc id="{3}-desc">{5}</desc>{6}</svg>',
        *(*size, f"{name}-{size.name}", title, told, parts),
    )


# Where things go -------------------------------------------------------------------------------


def byte_ticks(highest: int, at_most: int = 5) -> list[tuple[int, str]]:
    """Return round numbers of bytes from zero to the first that is not below `highest`."""
    power = min((max(highest, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    wanted = max(highest, 1) / 1024**power
    round_numbers = (number * 10**zeros for zeros in count() for number in (1, 2, 5))
    # Halves are round too, but there is no half of a byte.
    halves = power and wanted <= 0.5 * at_most
    step = 0.5 if halves else next(one for one in round_numbers if wanted <= one * at_most)
    numbers = [number * step for number in range(1, math.ceil(wanted / step) + 1)]
    return [(0, "0"), *((int(one * 1024**power), f"{one:,g} {UNITS[power]}") for one in numbers)]


def day_ticks(first: date, last: date, at_most: int) -> list[tuple[date, str]]:
    """Return round days from `first` to `last`: days, firsts of months, firsts of years."""
    span = (last - first).days
    for step in _DAYS:
        if span / step < at_most:
            days = _days_back(first, last, step)
            return [(day, f"{day.day} {month_text(day)}") for day in days]
    months = next(step for step in _MONTHS if span / (step * 30) < at_most or step == _MONTHS[-1])
    number = -(-(first.year * 12 + first.month - 1 + (first.day > 1)) // months) * months
    ticks = []
    while number < 12 * 10000 and (day := date(number // 12, number % 12 + 1, 1)) <= last:
        year = f" {day.year}" if day.month == 1 else ""
        ticks.append((day, str(day.year) if months >= 12 else f"{month_text(day)}{year}"))
        number += months
    return ticks


def treemap(weights: Sequence[int], room: Box) -> list[Box]:
    """Divide a room by weights above zero, the heaviest first; return a nearly square box for each.

    Tiles are laid in a row along the shorter side for as long as that makes none of them longer;
    what is left of the room is divided in the same way (squarified treemaps: Bruls, Huizing and
    van Wijk).
    """
    boxes: list[Box] = []
    while rest := weights[len(boxes) :]:
        is_wide = room.width >= room.height
        # The weight of a square on the shorter side; what is left may be too thin for any number.
        short, long = sorted(room[2:])
        square = sum(rest) * short / long if short else 1.0
        number = 1
        while number < len(rest) and _longest(rest, number + 1, square) <= _longest(
            rest, number, square
        ):
            number += 1
        row, others = rest[:number], rest[number:]
        strip, room = _slices(room, [sum(row), sum(others)], is_wide=is_wide)
        boxes += _slices(strip, row, is_wide=not is_wide)
    return boxes


def _longest(weights: Sequence[int], number: int, square: float) -> float:
    """Return how many times longer than wide a tile is, at most, in a row of the first weights."""
    total = sum(weights[:number]) ** 2
    return max(total / (square * weights[number - 1]), square * weights[0] / total)


def _slices(room: Box, weights: Sequence[int], *, is_wide: bool) -> list[Box]:
    """Cut a room into slices beside each other, or below each other if it is not wide."""
    x, y, width, height = room
    parts = [total / sum(weights) for total in accumulate(weights, initial=0)]
    if is_wide:
        return [Box(x + width * a, y, width * (b - a), height) for a, b in pairwise(parts)]
    return [Box(x, y + height * a, width, height * (b - a)) for a, b in pairwise(parts)]
