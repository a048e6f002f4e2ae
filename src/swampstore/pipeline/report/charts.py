"""Charts as inline SVG. Text in a picture does not wrap, so each is drawn for one width."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from swampstore.pipeline.report.growth import Growth, Span
from swampstore.pipeline.report.markup import Html, element, joined, visible
from swampstore.pipeline.report.ticks import byte_ticks, day_ticks
from swampstore.pipeline.report.treemap import Box, treemap
from swampstore.pipeline.report.wording import bytes_text, counted, day_text

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 10, 26
_DAY_LABEL = 76
_LETTER = 6.6
_LINE = 15
_NARROWEST = 44


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


class _Plot:
    """Places values and days on a picture; `margin` is the room of a day beside its middle."""

    def __init__(
        self, size: Size, first: date, last: date, highest: int, *, margin: float = 0.0
    ) -> None:
        self.size = size
        self.margin = margin
        self.first, self.last = first, last
        self.ticks = byte_ticks(highest, at_most=max(2, size.height // 50))
        self.top = self.ticks[-1].value
        self.bottom = size.height - _BOTTOM

    def x(self, day: date) -> float:
        inner = self.size.width - _LEFT - _RIGHT
        days = (self.last - self.first).days + 2 * self.margin
        return _LEFT + inner * ((day - self.first).days + self.margin) / days

    def y(self, value: int) -> float:
        return self.bottom - (self.bottom - _TOP) * value / self.top

    def axes(self) -> Html:
        right = self.size.width - _RIGHT
        drawn = []
        for tick in self.ticks:
            y = self.y(tick.value)
            drawn.append(element("path", class_="grid", d=f"M{_LEFT} {y:.1f}H{right}"))
            drawn.append(
                element("text", tick.label, x=_LEFT - 8, y=f"{y + 4:.1f}", class_="at-end")
            )
        return joined([*drawn, *self._days()])

    def _days(self) -> list[Html]:
        at_most = (self.size.width - _LEFT - _RIGHT) // _DAY_LABEL
        drawn = []
        for day, label in day_ticks(self.first, self.last, at_most):
            x = self.x(day)
            is_cut = x + len(label) * _LETTER / 2 > self.size.width
            at, place = (self.size.width - 1, "at-end") if is_cut else (x, "at-middle")
            mark = element("path", class_="mark", d=f"M{x:.1f} {self.bottom}v5")
            name = element("text", label, x=f"{at:.1f}", y=self.size.height - 6, class_=place)
            drawn.append(joined([mark, name]))
        return drawn


def growth_chart(growth: Growth, colours: Sequence[str], size: Size) -> Html:
    """Draw the layers on top of each other; `colours` has a class of the style sheet for each."""
    totals = growth.totals
    plot = _Plot(size, growth.days[0], growth.days[-1], max(totals))
    drawn = []
    below = [0] * len(growth.days)
    for layer, colour in zip(growth.layers, colours, strict=True):
        above = [low + high for low, high in zip(below, layer.totals, strict=True)]
        drawn.append(element("path", class_=f"area {colour}", d=_area(plot, growth, below, above)))
        below = above
    drawn.append(element("path", class_="outline", d=_steps(plot, growth.days, totals)))
    told = (
        f"From {bytes_text(totals[0])} on {day_text(growth.days[0])}"
        f" to {bytes_text(totals[-1])} on {day_text(growth.days[-1])}."
    )
    return _picture("growth", "Bytes stored, by day", told, size, [plot.axes(), *drawn])


def spans_chart(spans: Sequence[Span], size: Size) -> Html:
    """Draw what was written in each span as columns."""
    highest = max(span.bytes for span in spans)
    plot = _Plot(size, spans[0].first, spans[-1].last, highest, margin=0.5)
    room = (size.width - _LEFT - _RIGHT) / len(spans)
    gap = min(2.0, room / 4)
    columns = [
        element(
            "rect",
            element("title", _span_text(span)),
            x=f"{_LEFT + at * room + gap / 2:.1f}",
            y=f"{plot.y(span.bytes):.1f}",
            width=f"{room - gap:.1f}",
            height=f"{plot.bottom - plot.y(span.bytes):.1f}",
            class_="column",
        )
        for at, span in enumerate(spans)
        if span.bytes
    ]
    told = f"At most {bytes_text(highest)} in one span."
    return _picture("written", "Bytes written", told, size, [plot.axes(), *columns])


def treemap_chart(tiles: Sequence[Tile], size: Size) -> Html:
    """Draw tiles, the heaviest first, as areas; labels go where there is room for them."""
    boxes = treemap([tile.weight for tile in tiles], Box(0, 0, size.width, size.height))
    drawn = [_tile(tile, box) for tile, box in zip(tiles, boxes, strict=True)]
    told = "; ".join(f"{tile.label}: {bytes_text(tile.weight)}" for tile in tiles[:3])
    return _picture("models", "Bytes by model", f"The largest: {told}.", size, drawn)


def bar(part: int, whole: int, colour: str) -> Html:
    """Draw a bar as long as the part that `part` is of `whole`."""
    percent = 100 * part / whole if whole else 0.0
    rect = element("rect", width=f"{percent:.2f}%", height="100%", rx=2, class_=colour)
    return element("svg", rect, class_="bar", aria_hidden="true")


def _picture(name: str, title: str, told: str, size: Size, parts: Sequence[Html]) -> Html:
    key = f"{name}-{size.name}"
    return element(
        "svg",
        element("title", title, id=f"{key}-title"),
        element("desc", told, id=f"{key}-desc"),
        *parts,
        class_=f"chart {size.name}",
        viewBox=f"0 0 {size.width} {size.height}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def _steps(plot: _Plot, days: Sequence[date], values: Sequence[int]) -> str:
    return "M" + "L".join(_points(plot, days, values))


def _area(plot: _Plot, growth: Growth, below: Sequence[int], above: Sequence[int]) -> str:
    edge = [*_points(plot, growth.days, above), *reversed(_points(plot, growth.days, below))]
    return "M" + "L".join(edge) + "Z"


def _points(plot: _Plot, days: Sequence[date], values: Sequence[int]) -> list[str]:
    return [
        f"{plot.x(day):.1f} {plot.y(value):.1f}" for day, value in zip(days, values, strict=True)
    ]


def _span_text(span: Span) -> str:
    days = day_text(span.last)
    if span.first != span.last:
        days = f"{day_text(span.first)} to {days}"
    return f"{days}: {bytes_text(span.bytes)} in {counted(span.versions, 'version')}"


def _tile(tile: Tile, box: Box) -> Html:
    # An inner picture clips what does not fit, however wide its letters are.
    return element(
        "svg",
        element("title", tile.title),
        element("rect", width="100%", height="100%", rx=3, class_=f"tile {tile.colour}"),
        *_tile_texts(tile, box),
        x=f"{box.x + 1:.1f}",
        y=f"{box.y + 1:.1f}",
        width=f"{max(box.width - 2, 0.5):.1f}",
        height=f"{max(box.height - 2, 0.5):.1f}",
    )


def _tile_texts(tile: Tile, box: Box) -> list[Html]:
    if box.width < _NARROWEST or box.height < _LINE + 6:
        return []
    texts = [element("text", _cut(tile.label, box.width - 14), x=7, y=17, class_="strong")]
    size = bytes_text(tile.weight)
    if box.height >= 2 * _LINE + 8 and box.width >= len(size) * _LETTER + 14:
        texts.append(element("text", size, x=7, y=17 + _LINE))
    return texts


def _cut(text: str, width: float) -> str:
    shown, letters = visible(text), max(int(width / _LETTER), 2)
    return shown if len(shown) <= letters else f"{shown[: letters - 1]}…"
