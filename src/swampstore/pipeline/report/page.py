"""The report as one HTML page: no other file, no request, and readable without its script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, timedelta
from importlib import resources

from swampstore import __version__
from swampstore.catalog.schema import ACTIVE
from swampstore.clock import to_iso
from swampstore.pipeline.report.charts import Size, Tile, growth_chart, spans_chart, treemap_chart
from swampstore.pipeline.report.growth import Growth, growth_of, spans_of
from swampstore.pipeline.report.run_figures import DAYS, MethodRuns
from swampstore.pipeline.report.summary import (
    COLOURED,
    Copy,
    Duplicate,
    ModelUsage,
    NameUsage,
    Source,
    StoredVersion,
    Summary,
    Usage,
)
from swampstore.pipeline.report.tables import Bar, Cell, bars, count, label, listing, size
from swampstore.pipeline.report.text import (
    Html,
    age_text,
    bytes_text,
    count_text,
    counted,
    day_text,
    html,
    moment_text,
    share_text,
)

_TITLE = "Datastore report"
_SHOWN = 12
_BARS = 10
_TILES = 40
_GROWTH = (Size("wide", 1040, 300), Size("narrow", 380, 240))
_WRITTEN = (Size("wide", 1040, 150), Size("narrow", 380, 140))
_MODELS = (Size("wide", 1040, 420), Size("narrow", 380, 480))
_FEW_MODELS = (Size("wide", 1040, 150), Size("narrow", 380, 200))
_FEW = 6
_MONTH = 30
_OTHERS = "c0"
_RULES = {
    "duration-expired": "Lifetime is over",
    "workflow-deleted": "Workflow run is gone",
    "job-deleted": "Job run is gone",
    "old-versions": "Beyond the version policy",
}


def page(summary: Summary) -> str:
    """Return the page of a summary."""
    style, script = _asset("page.css"), _asset("sorting.js")
    sections = _Sections(summary)
    return html(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="{}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>{}: {}</title>'
        "<style>{}</style></head>"
        "<body>{}<main>{}</main>{}<script>{}</script></body></html>\n",
        *(_policy(style, script), _TITLE, _subject(summary), style, _header(summary)),
        sections.all() if summary.totals.versions else _nothing(),
        *(_footer(summary, sections.labels), script),
    )


def _asset(name: str) -> Html:
    return Html(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    """Forbid everything but our own style and script: names in the datastore are not ours."""
    hashes = [
        f"{kind}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for kind, text in (("style", style), ("script", script))
    ]
    return "; ".join(["default-src 'none'", *hashes])


def _subject(summary: Summary) -> str:
    stores = list(dict.fromkeys(source.store for source in summary.sources))
    return stores[0] if len(stores) == 1 else counted(len(stores), "store")


def _header(summary: Summary) -> Html:
    totals, now = summary.totals, summary.generated_at

    def part(size: int) -> tuple[str, str]:
        return bytes_text(size), f"{share_text(size, totals.bytes)} of all"

    tiles = [
        ("Stored", bytes_text(totals.bytes), f"in {counted(totals.versions, 'version')}"),
        ("In latest versions", *part(totals.latest_bytes)),
        ("Names", count_text(totals.names), f"in {counted(totals.models, 'model')}"),
        ("Namespaces", count_text(totals.namespaces), f"and {counted(totals.types, 'type')}"),
        ("In duplicates", *part(totals.duplicate_bytes)),
        ("Garbage", *part(totals.freed_bytes)),
    ]
    drawn = [html("<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>", *tile) for tile in tiles]
    return html(
        '<header><h1>{}</h1><p class="about"><bdi class="subject">{}</bdi> as of '
        '<time datetime="{}">{}</time></p>{}</header>',
        *(_TITLE, _subject(summary), to_iso(now), moment_text(now)),
        html('<dl class="tiles">{}</dl>', drawn) if totals.versions else "",
    )


def _nothing() -> Html:
    return Html(
        '<section class="nothing"><h2>Nothing is stored here yet</h2><p>Everything was read, and'
        " there is not a single version. Save the first one:"
        " <code>swampstore data put MODEL NAME FILE</code></p></section>"
    )


def _footer(summary: Summary, labels: _Labels) -> Html:
    read = [html("<li><bdi>{}</bdi></li>", labels.source(*source)) for source in summary.sources]
    return html(
        "<footer><p>Bytes are those of content, as its metadata states them; metadata and indexes"
        " come on top. Days are days in UTC.</p>"
        "<details><summary>What was read: {}</summary><ul>{}</ul></details>"
        "<p>swampstore {}</p></footer>",
        *(counted(len(read), "namespace"), read, __version__),
    )


class _Labels:
    """What things are called on the page, and which colour they have throughout it.

    Stores are named only if there are several, namespaces only if there are any.
    """

    def __init__(self, summary: Summary) -> None:
        sources = summary.sources
        self._names_stores = len({source.store for source in sources}) > 1
        self._names_namespaces = len(sources) > 1 or any(source.namespace for source in sources)
        self._sources = [Source(*row.key) for row in summary.namespaces[:COLOURED]]
        self._models = {row.model_id: row.model_name for row in summary.models if row.model_name}
        self._types = [row.name for row in summary.types[:COLOURED]]

    def source(self, store: str, namespace: str) -> str:
        name = namespace or "(no namespace)"
        return f"{name} in {store}" if self._names_stores else name

    def place(self, row: Copy | ModelUsage | NameUsage | StoredVersion) -> str:
        model = f"{row.type_normalized}/{row.model_id}"
        named = f"{row.model_name} · {model}" if row.model_name else model
        if not self._names_namespaces:
            return named
        return f"{self.source(row.store, row.namespace)} · {named}"

    def garbage(self, rule: str, store: str, namespace: str, model_type: str) -> tuple[str, str]:
        why = _RULES.get(rule, rule)
        if self._names_namespaces:
            why += f" · {self.source(store, namespace)}"
        return model_type, why

    def owner(self, kind: str, ref: str) -> tuple[str, str]:
        name = self._models.get(ref)
        return (name, f"{kind} · {ref}") if name else (ref or "(none)", kind)

    def copies(self, row: Duplicate) -> tuple[str, str, str]:
        """Name the first copy, say where it is, and where some others are."""
        versions = [f"{copy.data_name}, version {copy.version}" for copy in row.examples]
        places = [self.place(copy) for copy in row.examples]
        pairs = zip(versions[1:], places[1:], strict=True)
        also = "; ".join(f"{version} of {place}" for version, place in pairs)
        more = " …" if row.copies > len(row.examples) else ""
        return versions[0], places[0], f"also {also}{more}"

    def source_colour(self, source: Source | None) -> str:
        return f"c{self._sources.index(source) + 1}" if source in self._sources else _OTHERS

    def type_colour(self, model_type: str) -> str:
        return f"c{self._types.index(model_type) + 1}" if model_type in self._types else _OTHERS


class _Sections:
    """The sections: each a heading, a sentence that says what matters, and the evidence."""

    def __init__(self, summary: Summary) -> None:
        self.labels = _Labels(summary)
        self._summary = summary
        self._totals = summary.totals

    def all(self) -> Iterator[Html]:
        """Yield the sections that have something to tell, in their order."""
        yield self._growth()
        if self._summary.run_days:
            yield self._runs()
        yield self._usage()
        yield self._models()
        yield self._largest()
        if self._summary.oldest:
            lead = "Names that were not written to for the longest time, without those that are"
            versions = self._versions("Oldest latest versions", self._summary.oldest)
            yield _section("oldest", "Oldest", f"{lead} deleted.", versions)
        yield self._duplicates()
        yield self._collectable()
        yield self._origins()
        yield self._deleted()

    def _growth(self) -> Html:
        today = self._summary.generated_at.astimezone(UTC).date()
        growth = growth_of(self._summary.additions, today, at_most=500)
        colours = [self.labels.source_colour(layer.source) for layer in growth.layers]
        since = today - timedelta(days=_MONTH)
        recent = sum(row.bytes for row in self._summary.additions if row.day and row.day > since)
        lead = (
            f"{bytes_text(recent)} of what is there today,"
            f" {share_text(recent, self._totals.bytes)}, were written in the last {_MONTH} days."
            " Versions that have been deleted since left no trace, and are not counted."
        )
        charts = [growth_chart(growth, colours, size) for size in _GROWTH]
        parts = [*charts, self._legend(growth), *self._written(growth), *self._odd_dates()]
        return _section("growth", "Growth", lead, *parts)

    def _legend(self, growth: Growth) -> Html:
        if len(growth.layers) < 2:
            return Html()
        entries = [
            html(
                '<li><span class="swatch {}"></span><bdi>{}</bdi></li>',
                self.labels.source_colour(layer.source),
                self.labels.source(*layer.source) if layer.source else "all others",
            )
            for layer in growth.layers
        ]
        return html('<ul class="legend">{}</ul>', entries)

    def _written(self, growth: Growth) -> Iterator[Html]:
        first, today = growth.days[0], growth.days[-1]
        days = (today - first).days + 1
        length, unit = next(
            (length, unit)
            for length, unit in ((1, "day"), (7, "week"), (30, "30 days"), (days, "period"))
            if days / length <= 120 or length == days
        )
        spans = spans_of(self._summary.additions, first, today, length)
        yield html("<h3>Written per {}</h3>", unit)
        yield from (spans_chart(spans, size) for size in _WRITTEN)

    def _odd_dates(self) -> Iterator[Html]:
        odd = {
            "Without a date, and counted as there from the start": self._totals.undated_versions,
            "With a date in the future, and counted as written today": self._totals.future_versions,
        }
        for told, number in odd.items():
            if number:
                yield html('<p class="note">{}: {}.</p>', told, counted(number, "version"))

    def _runs(self) -> Html:
        days, methods = self._summary.run_days, self._summary.methods
        runs, failed = sum(one.runs for one in days), sum(one.failed for one in days)
        lead = (
            f"{counted(runs, 'run')} of methods in the last {DAYS} days,"
            f" of which {count_text(failed)} failed."
        )
        number = {"Runs": "number", "Failed": "number"}
        by_day = listing(
            "Runs a day",
            {"Day": "", **number},
            [
                [
                    Cell(label(day_text(one.day)), one.day.toordinal()),
                    count(one.runs),
                    count(one.failed),
                ]
                for one in days
            ],
        )
        slowest = listing(
            "Slowest methods",
            {"Method": "", **number, "Mean seconds": "number", "Longest": "number minor"},
            [
                [
                    Cell(label(one.method_name, self._place_of(one)), one.method_name),
                    *(count(one.runs), count(one.failed)),
                    *(Cell(f"{took / 1000:.1f}", took) for took in (one.mean_ms, one.longest_ms)),
                ]
                for one in methods
            ],
        )
        return _section("runs", "Runs", lead, _columns([by_day, slowest]))

    def _place_of(self, row: MethodRuns) -> str:
        if len(self._summary.sources) < 2:
            return row.type_normalized
        return f"{self.labels.source(row.store, row.namespace)} · {row.type_normalized}"

    def _usage(self) -> Html:
        totals, labels = self._totals, self.labels
        largest = self._summary.types[0]
        lead = (
            f"{counted(totals.types, 'type')} in {counted(totals.namespaces, 'namespace')}."
            f" The largest type, {largest.name}, holds"
            f" {share_text(largest.bytes, totals.bytes)} of all bytes."
        )
        types = [
            _bar(row, row.name, colour=labels.type_colour(row.name))
            for row in self._summary.types[:_BARS]
        ]
        charts = [self._all_bars("Bytes by type", "Type", types, totals.types)]
        if len(self._summary.namespaces) > 1:
            namespaces = [
                _bar(row, labels.source(*row.key), colour=labels.source_colour(Source(*row.key)))
                for row in self._summary.namespaces[:_BARS]
            ]
            caption = "Bytes by namespace"
            charts.append(self._all_bars(caption, "Namespace", namespaces, totals.namespaces))
        return _section("usage", "Types and namespaces", lead, _columns(charts))

    def _all_bars(self, caption: str, what: str, rows: list[Bar], number: int) -> Html:
        """Return bars, with one more for what is not shown."""
        totals = self._totals
        if number > len(rows):
            name = html('<span class="name">{} more</span>', count_text(number - len(rows)))
            size = totals.bytes - sum(row.bytes for row in rows)
            versions = totals.versions - sum(row.versions for row in rows)
            rows = [*rows, Bar(name, size, versions, _OTHERS)]
        return bars(caption, what, rows, totals.bytes)

    def _models(self) -> Html:
        totals, models = self._totals, self._summary.models
        top = models[:_BARS]
        held = share_text(sum(row.bytes for row in top), totals.bytes)
        lead = (
            f"The largest {len(top)} of {counted(totals.models, 'model')} hold {held} of all bytes."
            if totals.models > len(top)
            else f"{counted(totals.models, 'model')} in all."
        )
        tiles = [
            Tile(
                row.model_name or row.model_id,
                f"{self.labels.place(row)}:"
                f" {bytes_text(row.bytes)} in {counted(row.versions, 'version')}",
                row.bytes,
                self.labels.type_colour(row.type_normalized),
            )
            for row in models[:_TILES]
            if row.bytes
        ]
        rest = totals.bytes - sum(tile.weight for tile in tiles)
        if rest > 0:
            others = f"{count_text(totals.models - len(tiles))} more"
            tiles.append(Tile(others, f"{others}: {bytes_text(rest)}", rest, _OTHERS))
            tiles.sort(key=lambda tile: -tile.weight)
        if not tiles:
            return _section("models", "Models", lead)
        pictures = _MODELS if len(tiles) > _FEW else _FEW_MODELS
        charts = [treemap_chart(tiles, size) for size in pictures]
        note = Html('<p class="note">Areas are bytes, colours are types as above.</p>')
        return _section("models", "Models", lead, *charts, note)

    def _largest(self) -> Html:
        totals = self._totals
        lead = (
            f"{counted(totals.names, 'name')} with {counted(totals.versions, 'version')} in all;"
            f" {bytes_text(totals.latest_bytes)} are in latest versions."
        )
        columns = {"Name": "", "Bytes": "number", "Share": "number minor", "Versions": "number"}
        rows = [
            (
                self._name(row),
                size(row.bytes),
                Cell(share_text(row.bytes, totals.bytes), row.bytes),
                count(row.versions),
                size(row.latest_bytes),
            )
            for row in self._summary.names[:_SHOWN]
        ]
        names = listing("Names with the most bytes", columns | {"Latest": "number minor"}, rows)
        versions = self._versions("Largest versions", self._summary.largest)
        return _section("largest", "Largest", lead, names, versions)

    def _name(self, row: NameUsage | StoredVersion) -> Cell:
        return Cell(label(row.data_name, self.labels.place(row)), row.data_name)

    def _versions(self, caption: str, found: Sequence[StoredVersion]) -> Html:
        columns = {"Name": "", "Content type": "minor", "Version": "number minor"}
        rows = [
            (
                self._name(row),
                Cell(label(row.content_type), row.content_type),
                count(row.version),
                size(row.size),
                self._written_cell(row),
            )
            for row in found[:_SHOWN]
        ]
        return listing(caption, columns | {"Bytes": "number", "Written": "number"}, rows)

    def _written_cell(self, row: StoredVersion) -> Cell:
        if row.created_at is None:
            return Cell("unknown", 0)
        moment = row.created_at.astimezone(UTC)
        age = age_text(moment, self._summary.generated_at)
        shown = html('<span>{}</span><span class="where">{}</span>', day_text(moment), age)
        return Cell(shown, int(moment.timestamp()))

    def _duplicates(self) -> Html:
        totals, title = self._totals, "Duplicates"
        if not self._summary.duplicates:
            return _section("duplicates", title, "No content is stored twice.")
        lead = (
            f"Contents with more than one copy: {count_text(totals.duplicate_contents)}. The"
            f" copies beyond the first take {bytes_text(totals.duplicate_bytes)},"
            f" {share_text(totals.duplicate_bytes, totals.bytes)} of all bytes."
        )
        columns = {"Content, and where it is": "", "Copies": "number", "Names": "number minor"}
        rows = [
            (
                Cell(label(*self.labels.copies(row)), row.checksum),
                *(count(row.copies), count(row.names), size(row.wasted_bytes)),
            )
            for row in self._summary.duplicates[:_SHOWN]
        ]
        columns |= {"Could be saved": "number"}
        table = listing("Contents stored more than once", columns, rows)
        return _section("duplicates", title, lead, table)

    def _collectable(self) -> Html:
        totals, title = self._totals, "What garbage collection would free"
        if not totals.freed_versions:
            lead = "Nothing: every version is within its lifetime and policy."
            return _section("gc", title, lead)
        lead = (
            f"{bytes_text(totals.freed_bytes)}, {share_text(totals.freed_bytes, totals.bytes)} of"
            f" all bytes: {counted(totals.freed_versions, 'version')} of"
            f" {counted(totals.freed_names, 'name')}."
        )
        rules = [_bar(row, _RULES.get(row.name, row.name)) for row in self._summary.rules]
        columns = {"Type, and why": "", "Names": "number minor", "Versions": "number"}
        rows = [
            (
                Cell(label(*self.labels.garbage(*row.key)), row.key[-1]),
                *(count(row.names), count(row.versions), size(row.bytes)),
            )
            for row in self._summary.freed[:_SHOWN]
        ]
        columns |= {"Bytes": "number"}
        return _section(
            *("gc", title, lead),
            bars("Bytes to free, by rule", "Rule", rules, totals.bytes),
            listing("Bytes to free, by type and rule", columns, rows),
            Html(
                '<p class="note">Nothing was removed. To do it:'
                " <code>swampstore pipeline gc</code></p>"
            ),
        )

    def _origins(self) -> Html:
        told = self._summary
        found = {
            "Content type": [_bar(row, row.name or "(none)") for row in told.content_types],
            "Owner": [_bar(row, *self.labels.owner(*row.key)) for row in told.owners],
            "Workflow": [_bar(row, row.name) for row in told.workflows],
        }
        charts = [
            bars(f"Bytes by {what.lower()}", what, rows[:_BARS], self._totals.bytes)
            for what, rows in found.items()
            if rows
        ]
        lead = "What kind of content it is, and who produced most of it."
        return _section("origins", "Content and producers", lead, _columns(charts))

    def _deleted(self) -> Html:
        totals, title = self._totals, "Deleted"
        if not totals.deleted_names:
            return _section("deleted", title, "No name ends with a deletion marker.")
        lead = (
            f"Names that end with a deletion marker: {count_text(totals.deleted_names)} of"
            f" {count_text(totals.names)}. The versions beneath the markers, and the markers,"
            f" still take {bytes_text(totals.deleted_bytes)}."
        )
        rows = [
            _bar(row, row.name, colour="c1" if row.name == ACTIVE else _OTHERS)
            for row in self._summary.lifecycles
        ]
        chart = bars("Bytes by state of the name", "State", rows, totals.bytes)
        return _section("deleted", title, lead, chart)


def _section(key: str, title: str, lead: str, *parts: Html) -> Html:
    template = '<section aria-labelledby="{0}"><h2 id="{0}">{1}</h2><p>{2}</p>{3}</section>'
    return html(template, key, title, lead, parts)


def _columns(charts: Iterable[Html]) -> Html:
    return html('<div class="columns">{}</div>', charts)


def _bar(row: Usage, *lines: str, colour: str = "c1") -> Bar:
    return Bar(label(*lines), row.bytes, row.versions, colour)
