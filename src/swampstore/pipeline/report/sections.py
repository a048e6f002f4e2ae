"""The sections of the page: each a heading, a sentence that says what matters, and the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, timedelta
from typing import Protocol

from swampstore.catalog.schema import ACTIVE
from swampstore.pipeline.report.charts import (
    Size,
    Tile,
    growth_chart,
    spans_chart,
    treemap_chart,
)
from swampstore.pipeline.report.growth import Growth, growth_of, spans_of
from swampstore.pipeline.report.labels import OTHERS, Labels, rule_text
from swampstore.pipeline.report.listing import (
    Bar,
    Cell,
    Column,
    bars,
    counts,
    label,
    listing,
    sizes,
)
from swampstore.pipeline.report.markup import Html, element, joined
from swampstore.pipeline.report.summary import (
    Duplicate,
    Freed,
    NameUsage,
    Source,
    StoredVersion,
    Summary,
)
from swampstore.pipeline.report.wording import (
    age_text,
    bytes_text,
    count_text,
    counted,
    day_text,
    share_text,
)

_SHOWN = 12
_BARS = 10
_TILES = 40
_GROWTH = (Size("wide", 1040, 300), Size("narrow", 380, 240))
_WRITTEN = (Size("wide", 1040, 150), Size("narrow", 380, 140))
_MODELS = (Size("wide", 1040, 420), Size("narrow", 380, 480))
_FEW_MODELS = (Size("wide", 1040, 150), Size("narrow", 380, 200))
_FEW = 6
_MONTH = 30


class _Use(Protocol):
    """What any row of usage tells."""

    @property
    def bytes(self) -> int: ...
    @property
    def versions(self) -> int: ...


def sections(summary: Summary) -> Iterator[Html]:
    """Yield the sections that have something to tell, in their order."""
    labels = Labels(summary)
    yield _growth(summary, labels)
    yield _usage(summary, labels)
    yield _models(summary, labels)
    yield _largest(summary, labels)
    if summary.oldest:
        yield _oldest(summary, labels)
    yield _duplicates(summary, labels)
    yield _collectable(summary, labels)
    yield _origins(summary, labels)
    yield _deleted(summary)


def _section(key: str, title: str, lead: str, *parts: Html) -> Html:
    heading = element("h2", title, id=key)
    return element("section", heading, element("p", lead), *parts, aria_labelledby=key)


def _growth(summary: Summary, labels: Labels) -> Html:
    today = summary.generated_at.astimezone(UTC).date()
    growth = growth_of(summary.additions, today, at_most=500)
    colours = [labels.source_colour(layer.source) for layer in growth.layers]
    recent = sum(
        row.bytes
        for row in summary.additions
        if row.day and row.day > today - timedelta(days=_MONTH)
    )
    lead = (
        f"{bytes_text(recent)} of what is there today, {share_text(recent, summary.totals.bytes)},"
        f" were written in the last {_MONTH} days. Versions that have been deleted since left no"
        " trace, and are not counted."
    )
    return _section(
        "growth",
        "Growth",
        lead,
        *(growth_chart(growth, colours, size) for size in _GROWTH),
        _legend(growth, labels),
        *_written(summary, growth),
        *_odd_dates(summary),
    )


def _legend(growth: Growth, labels: Labels) -> Html:
    if len(growth.layers) < 2:
        return Html()
    entries = [
        element(
            "li",
            element("span", class_=f"swatch {labels.source_colour(layer.source)}"),
            element("bdi", labels.source(*layer.source) if layer.source else "all others"),
        )
        for layer in growth.layers
    ]
    return element("ul", *entries, class_="legend")


def _written(summary: Summary, growth: Growth) -> Iterator[Html]:
    first, today = growth.days[0], growth.days[-1]
    days = (today - first).days + 1
    length, unit = next(
        (length, unit)
        for length, unit in ((1, "day"), (7, "week"), (30, "30 days"), (days, "period"))
        if days / length <= 120 or length == days
    )
    spans = spans_of(summary.additions, first, today, length)
    yield element("h3", f"Written per {unit}")
    for size in _WRITTEN:
        yield spans_chart(spans, size)


def _odd_dates(summary: Summary) -> Iterator[Html]:
    for number, told in (
        (summary.totals.undated_versions, "Without a date, and counted as there from the start"),
        (summary.totals.future_versions, "With a date in the future, and counted as written today"),
    ):
        if number:
            yield element("p", f"{told}: {counted(number, 'version')}.", class_="note")


def _usage(summary: Summary, labels: Labels) -> Html:
    totals = summary.totals
    largest = summary.types[0]
    lead = (
        f"{counted(totals.types, 'type')} in {counted(totals.namespaces, 'namespace')}."
        f" The largest type, {largest.type_normalized}, holds"
        f" {share_text(largest.bytes, totals.bytes)} of all bytes."
    )
    types = [
        _bar(row, row.type_normalized, colour=labels.type_colour(row.type_normalized))
        for row in summary.types[:_BARS]
    ]
    charts = [_bars("Bytes by type", "Type", types, summary, totals.types)]
    if len(summary.namespaces) > 1:
        sources = [(row, Source(row.store, row.namespace)) for row in summary.namespaces[:_BARS]]
        namespaces = [
            _bar(row, labels.source(*source), colour=labels.source_colour(source))
            for row, source in sources
        ]
        charts.append(
            _bars("Bytes by namespace", "Namespace", namespaces, summary, totals.namespaces)
        )
    return _section(
        "usage", "Types and namespaces", lead, element("div", *charts, class_="columns")
    )


def _bar(row: _Use, *lines: str, colour: str = "c1") -> Bar:
    return Bar(label(*lines), row.bytes, row.versions, colour)


def _bars(caption: str, what: str, rows: list[Bar], summary: Summary, count: int) -> Html:
    """Return bars, with one more for what is not shown."""
    totals = summary.totals
    if count > len(rows):
        rest = Bar(
            element("span", f"{count_text(count - len(rows))} more", class_="name"),
            totals.bytes - sum(row.bytes for row in rows),
            totals.versions - sum(row.versions for row in rows),
            OTHERS,
        )
        rows = [*rows, rest]
    return bars(caption, what, rows, totals.bytes)


def _models(summary: Summary, labels: Labels) -> Html:
    totals = summary.totals
    top = summary.models[:_BARS]
    held = share_text(sum(row.bytes for row in top), totals.bytes)
    lead = (
        f"The largest {len(top)} of {counted(totals.models, 'model')} hold {held} of all bytes."
        if totals.models > len(top)
        else f"{counted(totals.models, 'model')} in all."
    )
    shown = [row for row in summary.models[:_TILES] if row.bytes]
    tiles = [
        Tile(
            row.model_name or row.model_id,
            f"{labels.place(row)}: {bytes_text(row.bytes)} in {counted(row.versions, 'version')}",
            row.bytes,
            labels.type_colour(row.type_normalized),
        )
        for row in shown
    ]
    rest = totals.bytes - sum(tile.weight for tile in tiles)
    if rest > 0:
        others = f"{count_text(totals.models - len(shown))} more"
        tiles.append(Tile(others, f"{others}: {bytes_text(rest)}", rest, OTHERS))
        tiles.sort(key=lambda tile: -tile.weight)
    sizes = _MODELS if len(tiles) > _FEW else _FEW_MODELS
    pictures = [treemap_chart(tiles, size) for size in sizes] if tiles else []
    note = element("p", "Areas are bytes, colours are types as above.", class_="note")
    return _section("models", "Models", lead, *pictures, *([note] if tiles else []))


def _largest(summary: Summary, labels: Labels) -> Html:
    totals = summary.totals
    lead = (
        f"{counted(totals.names, 'name')} with {counted(totals.versions, 'version')} in all;"
        f" {bytes_text(totals.latest_bytes)} are in latest versions."
    )
    columns: list[Column[NameUsage]] = [
        Column("Name", lambda row: Cell(label(row.data_name, labels.place(row)), row.data_name)),
        sizes("Bytes", lambda row: row.bytes),
        Column(
            "Share",
            lambda row: Cell(share_text(row.bytes, totals.bytes), row.bytes),
            is_number=True,
            minor=True,
        ),
        counts("Versions", lambda row: row.versions),
        sizes("Latest", lambda row: row.latest_bytes, minor=True),
    ]
    names = listing("Names with the most bytes", columns, summary.names[:_SHOWN])
    versions = _versions("Largest versions", summary.largest, summary, labels)
    return _section("largest", "Largest", lead, names, versions)


def _oldest(summary: Summary, labels: Labels) -> Html:
    lead = "Names that were not written to for the longest time, without those that are deleted."
    versions = _versions("Oldest latest versions", summary.oldest, summary, labels)
    return _section("oldest", "Oldest", lead, versions)


def _versions(
    caption: str, rows: Sequence[StoredVersion], summary: Summary, labels: Labels
) -> Html:
    columns: list[Column[StoredVersion]] = [
        Column("Name", lambda row: Cell(label(row.data_name, labels.place(row)), row.data_name)),
        Column(
            "Content type", lambda row: Cell(label(row.content_type), row.content_type), minor=True
        ),
        counts("Version", lambda row: row.version, minor=True),
        sizes("Bytes", lambda row: row.size),
        Column("Written", lambda row: _written_cell(row, summary), is_number=True),
    ]
    return listing(caption, columns, rows[:_SHOWN])


def _written_cell(row: StoredVersion, summary: Summary) -> Cell:
    if row.created_at is None:
        return Cell("unknown", 0)
    moment = row.created_at.astimezone(UTC)
    age = element("span", age_text(moment, summary.generated_at), class_="where")
    return Cell(joined([element("span", day_text(moment)), age]), int(moment.timestamp()))


def _duplicates(summary: Summary, labels: Labels) -> Html:
    totals = summary.totals
    if not summary.duplicates:
        return _section("duplicates", "Duplicates", "No content is stored twice.")
    lead = (
        f"Contents with more than one copy: {count_text(totals.duplicate_contents)}. The copies"
        f" beyond the first take {bytes_text(totals.duplicate_bytes)},"
        f" {share_text(totals.duplicate_bytes, totals.bytes)} of all bytes."
    )
    columns: list[Column[Duplicate]] = [
        Column(
            "Content, and where it is", lambda row: Cell(label(*labels.copies(row)), row.checksum)
        ),
        counts("Copies", lambda row: row.copies),
        counts("Names", lambda row: row.names, minor=True),
        sizes("Could be saved", lambda row: row.wasted_bytes),
    ]
    table = listing("Contents stored more than once", columns, summary.duplicates[:_SHOWN])
    return _section("duplicates", "Duplicates", lead, table)


def _collectable(summary: Summary, labels: Labels) -> Html:
    totals = summary.totals
    title = "What garbage collection would free"
    if not totals.freed_versions:
        return _section("gc", title, "Nothing: every version is within its lifetime and policy.")
    lead = (
        f"{bytes_text(totals.freed_bytes)}, {share_text(totals.freed_bytes, totals.bytes)} of all"
        f" bytes: {counted(totals.freed_versions, 'version')} of"
        f" {counted(totals.freed_names, 'name')}."
    )
    rules = [_bar(row, rule_text(row.rule)) for row in summary.rules]
    columns: list[Column[Freed]] = [
        Column("Type, and why", lambda row: Cell(label(*labels.garbage(row)), row.type_normalized)),
        counts("Names", lambda row: row.names, minor=True),
        counts("Versions", lambda row: row.versions),
        sizes("Bytes", lambda row: row.bytes),
    ]
    command = element("code", "swampstore pipeline gc")
    return _section(
        "gc",
        title,
        lead,
        bars("Bytes to free, by rule", "Rule", rules, totals.bytes),
        listing("Bytes to free, by type and rule", columns, summary.freed[:_SHOWN]),
        element("p", "Nothing was removed. To do it: ", command, class_="note"),
    )


def _origins(summary: Summary, labels: Labels) -> Html:
    kinds = [_bar(row, row.content_type or "(none)") for row in summary.content_types[:_BARS]]
    owners = [_bar(row, *labels.owner(row)) for row in summary.owners[:_BARS]]
    workflows = [_bar(row, row.workflow_name) for row in summary.workflows[:_BARS]]
    charts = [
        bars(f"Bytes by {what.lower()}", what, rows, summary.totals.bytes)
        for what, rows in (("Content type", kinds), ("Owner", owners), ("Workflow", workflows))
        if rows
    ]
    lead = "What kind of content it is, and who produced most of it."
    return _section(
        "origins", "Content and producers", lead, element("div", *charts, class_="columns")
    )


def _deleted(summary: Summary) -> Html:
    totals = summary.totals
    if not totals.deleted_names:
        return _section("deleted", "Deleted", "No name ends with a deletion marker.")
    lead = (
        f"Names that end with a deletion marker: {count_text(totals.deleted_names)} of"
        f" {count_text(totals.names)}. The versions beneath the markers, and the markers, still"
        f" take {bytes_text(totals.deleted_bytes)}."
    )
    rows = [
        _bar(row, row.lifecycle, colour="c1" if row.lifecycle == ACTIVE else OTHERS)
        for row in summary.lifecycles
    ]
    return _section(
        "deleted", "Deleted", lead, bars("Bytes by state of the name", "State", rows, totals.bytes)
    )
