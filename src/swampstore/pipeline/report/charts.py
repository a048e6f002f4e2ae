"""Charts as inline SVG. Text in a picture does not wrap, so each is drawn for one width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from swampstore.pipeline.report.growth import Growth, Span
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
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_DAYS = (1, 2, 7, 14)
_MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000)


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


class Tick(NamedTuple):
    """A place on an axis of bytes."""

    value: int
    label: str


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


# Pictures --------------------------------------------------------------------------------------


class _Plot:
    """Places values and days on a picture; `margin` is the room of a day beside its middle."""

    def __init__(
        self, size: Size, first: date, last: date, highest: int, *, margin: float = 0.0
    ) -> None:
        self.size = size
        self.room = size.width - _LEFT - _RIGHT
        self.margin = margin
        self.first, self.last = first, last
        self.ticks = byte_ticks(highest, at_most=max(2, size.height // 50))
        self.bottom = size.height - _BOTTOM

    def x(self, day: date) -> float:
        days = (self.last - self.first).days + 2 * self.margin
        return _LEFT + self.room * ((day - self.first).days + self.margin) / days

    def y(self, value: int) -> float:
        return self.bottom - (self.bottom - _TOP) * value / self.ticks[-1].value

    def points(self, days: Sequence[date], values: Sequence[int]) -> list[str]:
        pairs = zip(days, values, strict=True)
        return [f"{self.x(day):.1f} {self.y(value):.1f}" for day, value in pairs]

    def axes(self) -> Iterable[Html]:
        grid = '<path class="grid" d="M{} {:.1f}H{}"></path>'
        for value, label in self.ticks:
            y = self.y(value)
            yield html(grid, _LEFT, y, self.size.width - _RIGHT)
            yield html('<text x="{}" y="{:.1f}" class="at-end">{}</text>', _LEFT - 8, y + 4, label)
        for day, label in day_ticks(self.first, self.last, self.room // _DAY_LABEL):
            x = self.x(day)
            is_cut = x + len(label) * _LETTER / 2 > self.size.width
            at, place = (self.size.width - 1, "at-end") if is_cut else (x, "at-middle")
            yield html('<path class="mark" d="M{:.1f} {}v5"></path>', x, self.bottom)
            text = '<text x="{:.1f}" y="{}" class="{}">{}</text>'
            yield html(text, at, self.size.height - 6, place, label)


def growth_chart(growth: Growth, colours: Sequence[str], size: Size) -> Html:
    """Draw the layers on top of each other; `colours` has a class of the style sheet for each."""
    days, totals = growth.days, growth.totals
    plot = _Plot(size, days[0], days[-1], max(totals))
    drawn = [*plot.axes()]
    below = [0] * len(days)
    for layer, colour in zip(growth.layers, colours, strict=True):
        above = [low + high for low, high in zip(below, layer.totals, strict=True)]
        edge = "L".join([*plot.points(days, above), *reversed(plot.points(days, below))])
        drawn.append(html('<path class="area {}" d="M{}Z"></path>', colour, edge))
        below = above
    outline = "L".join(plot.points(days, totals))
    drawn.append(html('<path class="outline" d="M{}"></path>', outline))
    told = (
        f"From {bytes_text(totals[0])} on {day_text(days[0])}"
        f" to {bytes_text(totals[-1])} on {day_text(days[-1])}."
    )
    return _picture("growth", "Bytes stored, by day", told, size, drawn)


def spans_chart(spans: Sequence[Span], size: Size) -> Html:
    """Draw what was written in each span as columns."""
    highest = max(span.bytes for span in spans)
    plot = _Plot(size, spans[0].first, spans[-1].last, highest, margin=0.5)
    room = plot.room / len(spans)
    gap = min(2.0, room / 4)
    column = (
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="column">'
        "<title>{}</title></rect>"
    )
    columns = []
    for at, span in enumerate(spans):
        if span.bytes:
            x, y = _LEFT + at * room + gap / 2, plot.y(span.bytes)
            columns.append(html(column, x, y, room - gap, plot.bottom - y, _span_text(span)))
    told = f"At most {bytes_text(highest)} in one span."
    return _picture("written", "Bytes written", told, size, [*plot.axes(), *columns])


def _span_text(span: Span) -> str:
    since = f"{day_text(span.first)} to " if span.first != span.last else ""
    amount = f"{bytes_text(span.bytes)} in {counted(span.versions, 'version')}"
    return f"{since}{day_text(span.last)}: {amount}"


def treemap_chart(tiles: Sequence[Tile], size: Size) -> Html:
    """Draw tiles, the heaviest first, as areas; labels go where there is room for them."""
    boxes = treemap([tile.weight for tile in tiles], Box(0, 0, size.width, size.height))
    drawn = [_tile(tile, box) for tile, box in zip(tiles, boxes, strict=True)]
    told = "; ".join(f"{tile.label}: {bytes_text(tile.weight)}" for tile in tiles[:3])
    return _picture("models", "Bytes by model", f"The largest: {told}.", size, drawn)


def _tile(tile: Tile, box: Box) -> Html:
    # An inner picture clips what does not fit, however wide its letters are.
    return html(
        '<svg x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title>'
        '<rect width="100%" height="100%" rx="3" class="tile {}"></rect>{}</svg>',
        *(box.x + 1, box.y + 1, max(box.width - 2, 0.5), max(box.height - 2, 0.5)),
        *(tile.title, tile.colour, _tile_texts(tile, box)),
    )


def _tile_texts(tile: Tile, box: Box) -> Iterable[Html]:
    if box.width < _NARROWEST or box.height < _LINE + 6:
        return
    shown, letters = visible(tile.label), max(int((box.width - 14) / _LETTER), 2)
    cut = shown if len(shown) <= letters else f"{shown[: letters - 1]}…"
    yield html('<text x="7" y="17" class="strong">{}</text>', cut)
    size = bytes_text(tile.weight)
    if box.height >= 2 * _LINE + 8 and box.width >= len(size) * _LETTER + 14:
        yield html('<text x="7" y="{}">{}</text>', 17 + _LINE, size)


def bar(part: int, whole: int, colour: str) -> Html:
    """Draw a bar as long as the part that `part` is of `whole`."""
    return html(
        '<svg class="bar" aria-hidden="true">'
        '<rect width="{:.2f}%" height="100%" rx="2" class="{}"></rect></svg>',
        *(100 * part / whole if whole else 0.0, colour),
    )


def _picture(name: str, title: str, told: str, size: Size, parts: Sequence[Html]) -> Html:
    return html(
        '<svg class="chart {0}" viewBox="0 0 {1} {2}" role="img"'
        ' aria-labelledby="{3}-title {3}-desc"><title id="{3}-title">{4}</title>'
        '<desc id="{3}-desc">{5}</desc>{6}</svg>',
        *(*size, f"{name}-{size.name}", title, told, parts),
    )


# Where things go -------------------------------------------------------------------------------


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
    numbers = [number * step for number in range(1, math.ceil(wanted / step) + 1)]
    unit = UNITS[power]
    return [Tick(0, "0"), *(Tick(int(one * 1024**power), f"{one:,g} {unit}") for one in numbers)]


def day_ticks(first: date, last: date, at_most: int) -> list[tuple[date, str]]:
    """Return round days from `first` to `last`: days, firsts of months, firsts of years."""
    span = (last - first).days
    for step in _DAYS:
        if span / step < at_most:
            # Counted back from the last day, which is the one that readers look for.
            days = (last - timedelta(days=step * number) for number in range(span // step, -1, -1))
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
    """Divide a room by weights above zero, in descending order; return a box for each.

    Bruls, Huizing and van Wijk: a row along the shorter side takes boxes as long as that makes
    its worst box less elongated, then the rest of the room is divided.
    """
    boxes: list[Box] = []
    while weights:
        # Anew for each row, so that rounding does not add up.
        x, y, width, height = room
        side, is_wide = min(width, height), width >= height
        scale = width * height / sum(weights)
        row = _row([weight * scale for weight in weights], side)
        thickness = sum(row) / side
        for area in row:
            length = area / thickness
            boxes.append(Box(x, y, thickness, length) if is_wide else Box(x, y, length, thickness))
            x, y = (x, y + length) if is_wide else (x + length, y)
        # Rounding must not leave a room without any width: the last boxes would divide by it.
        left = max(max(width, height) - thickness, 1e-9)
        room = (
            Box(room.x + thickness, room.y, left, height)
            if is_wide
            else Box(room.x, room.y + thickness, width, left)
        )
        weights = weights[len(row) :]
    return boxes


def _row(areas: Sequence[float], side: float) -> Sequence[float]:
    count = 1
    while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
        count += 1
    return areas[:count]


def _worst(row: Sequence[float], side: float) -> float:
    """Return how elongated the worst box of a row is; 1 is a square."""
    thickness = sum(row) / side
    return max(row[0] / thickness**2, thickness**2 / row[-1])
