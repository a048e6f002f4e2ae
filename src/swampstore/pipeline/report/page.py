"""The report as one HTML page: no other file, no request, and readable without its script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from string import Formatter
from typing import Any, NamedTuple

from swampstore import __version__
from swampstore.catalog.schema import ACTIVE
from swampstore.clock import to_iso
from swampstore.pipeline.report import charts
from swampstore.pipeline.report.summary import COLOURED, RUN_DAYS, Duplicate, Summary, Usage
from swampstore.pipeline.report.text import (
    Html,
    age_text,
    bytes_text,
    counted,
    day_text,
    html,
    moment_text,
    share_text,
)

# What columns are called, and how they show the member of a row that they are named after.
COLUMNS = {
    "bar": ("", ""),
    "bytes": ("Bytes", "bytes"),
    "content_type": ("Content type", ""),
    "copies": ("Copies", "count"),
    "created_at": ("Written", "age"),
    "failed": ("Failed", "count"),
    "latest_bytes": ("Latest", "bytes"),
    "longest_ms": ("Longest", "seconds"),
    "mean_ms": ("Mean", "seconds"),
    "names": ("Names", "count"),
    "runs": ("Runs", "count"),
    "share": ("Share", "share"),
    "size": ("Bytes", "bytes"),
    "version": ("Version", "count"),
    "versions": ("Versions", "count"),
    "wasted_bytes": ("Could be saved", "bytes"),
}
# Columns of tables; those in parentheses are left out on small screens.
BAR = "bar bytes (share) (versions)"
_VERSION = "(content_type) (version) size created_at"


class Section(NamedTuple):
    """What a section says first, and its tables by the list of the summary that they show.

    A table has a caption, a title of its first column, and other columns. Without any row there is
    no table, and without any table the section says `empty`, or is left out.
    """

    title: str
    lead: str
    tables: Mapping[str, tuple[str, str, str]] = {}
    empty: str = ""
    note: Html = Html()
    is_wide: bool = True


SECTIONS = {
    "growth": Section(
        "Growth",
        "{recent:bytes} of what is there today, {recent:share}, were written in the last {month}"
        " days. Versions that have been deleted since left no trace, and are not counted.",
    ),
    "runs": Section(
        "Runs",
        "{runs:run} of methods in the last {run_days} days, of which {failed:count} failed.",
        {
            "run_days": ("Runs a day", "Day", "runs failed"),
            "methods": ("Slowest methods", "Method", "runs failed mean_ms (longest_ms)"),
        },
        is_wide=False,
    ),
    "usage": Section(
        "Types and namespaces",
        "{types:type} in {namespaces:namespace}. The largest type, {largest.name}, holds"
        " {largest.bytes:share} of all bytes.",
        {
            "types": ("Bytes by type", "Type", BAR),
            "namespaces": ("Bytes by namespace", "Namespace", BAR),
        },
        is_wide=False,
    ),
    "models": Section("Models", "{about_models}"),
    "largest": Section(
        "Largest",
        "{names:name} with {versions:version} in all; {latest_bytes:bytes} are in latest versions.",
        {
            "names": ("Names with the most bytes", "Name", "bytes (share) versions (latest_bytes)"),
            "largest": ("Largest versions", "Name", _VERSION),
        },
    ),
    "oldest": Section(
        "Oldest",
        "Names that were not written to for the longest time, without those that are deleted.",
        {"oldest": ("Oldest latest versions", "Name", _VERSION)},
    ),
    "duplicates": Section(
        "Duplicates",
        "Contents with more than one copy: {duplicate_contents:count}. The copies beyond the first"
        " take {duplicate_bytes:bytes}, {duplicate_bytes:share} of all bytes.",
        {
            "duplicates": (
                *("Contents stored more than once", "Content, and where it is"),
                "copies (names) wasted_bytes",
            )
        },
        empty="No content is stored twice.",
    ),
    "gc": Section(
        "What garbage collection would free",
        "{freed_bytes:bytes}, {freed_bytes:share} of all bytes: {freed_versions:version} of"
        " {freed_names:name}.",
        {
            "rules": ("Bytes to free, by rule", "Rule", BAR),
            "freed": ("Bytes to free, by type and rule", "Type, and why", "(names) versions bytes"),
        },
        empty="Nothing: every version is within its lifetime and policy.",
        note=Html("Nothing was removed. To do it: <code>swampstore pipeline gc</code>"),
    ),
    "origins": Section(
        "Content and producers",
        "What kind of content it is, and who produced most of it.",
        {
            "content_types": ("Bytes by content type", "Content type", BAR),
            "owners": ("Bytes by owner", "Owner", BAR),
            "workflows": ("Bytes by workflow", "Workflow", BAR),
        },
        is_wide=False,
    ),
    "deleted": Section(
        "Deleted",
        "Names that end with a deletion marker: {deleted_names:count} of {names:count}. The"
        " versions beneath the markers, and the markers, still take {deleted_bytes:bytes}.",
        {"lifecycles": ("Bytes by state of the name", "State", BAR)},
        empty="No name ends with a deletion marker.",
    ),
}
TOTALS = (
    ("Stored", "{bytes:bytes}", "in {versions:version}"),
    ("In latest versions", "{latest_bytes:bytes}", "{latest_bytes:share} of all"),
    ("Names", "{names:count}", "in {models:model}"),
    ("Namespaces", "{namespaces:count}", "and {types:type}"),
    ("In duplicates", "{duplicate_bytes:bytes}", "{duplicate_bytes:share} of all"),
    ("Garbage", "{freed_bytes:bytes}", "{freed_bytes:share} of all"),
)


_SHOWN = 12
_BARS = 10
_TILES = 40
_FEW = 6
_MONTH = 30
_OTHERS = "c0"
# Lists whose rows differ in colour.
_COLOURED = ("types", "namespaces", "lifecycles")
_RULES = {
    "duration-expired": "Lifetime is over",
    "workflow-deleted": "Workflow run is gone",
    "job-deleted": "Job run is gone",
    "old-versions": "Beyond the version policy",
}
_BAR = (
    '<td class="bar"><svg aria-hidden="true"><rect width="{:.2f}%" height="100%" rx="2"'
    ' class="{}"></rect></svg></td>'
)
_NOTHING = Html(
    '<section class="nothing"><h2>Nothing is stored here yet</h2><p>Everything was read, and'
    " there is not a single version. Save the first one:"
    " <code>swampstore data put MODEL NAME FILE</code></p></section>"
)


def page(summary: Summary) -> str:
    """Return the page of a summary."""
    files = resources.files(__package__)
    frame, style, script = (
        Html((files / one).read_text("utf-8")) for one in ("page.html", "page.css", "sorting.js")
    )
    # Only our own style and script may do anything: names in the datastore are not ours.
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()) for one in (style, script)]
    drawn, now, is_empty = _Page(summary), summary.generated_at, not summary.totals.versions
    several = counted(len(drawn.stores), "store")
    read = [html("<li><bdi>{}</bdi></li>", drawn.source(*source)) for source in summary.sources]
    return html(
        frame,
        *(one.decode() for one in hashes),
        style=style,
        script=script,
        version=__version__,
        now=to_iso(now),
        moment=moment_text(now),
        read=read,
        number=counted(len(read), "namespace"),
        subject=drawn.stores[0] if len(drawn.stores) == 1 else several,
        totals="" if is_empty else drawn.total_tiles(),
        sections=_NOTHING if is_empty else drawn.sections(),
    )


class _Page(Formatter):
    """The parts of a page. As a formatter, it writes numbers as people like to read them.

    Stores are named only if there are several, namespaces only if there are any; a namespace and a
    type have the same colour throughout.
    """

    def __init__(self, told: Summary) -> None:
        self.told, self.totals = told, told.totals
        self.stores = list(dict.fromkeys(source.store for source in told.sources))
        self.names_namespaces = len(told.sources) > 1 or any(one.namespace for one in told.sources)
        self.models = {row.model_id: row.model_name for row in told.models if row.model_name}
        self.colours = {
            (what, row.key): f"c{number}"
            for what in ("types", "namespaces")
            for number, row in enumerate(getattr(told, what)[:COLOURED], 1)
        } | {("lifecycles", (ACTIVE,)): "c1"}
        self.formats: dict[str, Callable[[Any], str]] = {
            "": str,
            "age": self.age,
            "bytes": bytes_text,
            "count": "{:,}".format,
            "seconds": lambda number: f"{number / 1000:,.1f}\u00a0s",
            "share": lambda size: share_text(size, self.totals.bytes),
        }
        # The lines that name a row of a list; other rows are named by their keys.
        self.lines: dict[str, Callable[[Any], Sequence[str]]] = {
            **dict.fromkeys(
                ("names", "largest", "oldest"), lambda row: (row.data_name, self.place(row))
            ),
            "run_days": lambda row: (day_text(row.day),),
            "methods": lambda row: (
                row.method_name,
                self.within(row, row.type_normalized, len(told.sources) > 1),
            ),
            "namespaces": lambda row: (self.source(*row.key),),
            "content_types": lambda row: (row.name or "(none)",),
            "rules": lambda row: (_RULES.get(row.name, row.name),),
            "duplicates": self.copies,
            "freed": self.garbage,
            "owners": self.owner,
        }

    # Words

    def format_field(self, value: Any, format_spec: str) -> str:
        shown = self.formats.get(format_spec)
        return shown(value) if shown else counted(value, format_spec)

    def say(self, template: str, **facts: object) -> str:
        return self.vformat(template, (), self.totals._asdict() | facts)

    def age(self, moment: datetime | None) -> str:
        if moment is None:
            return "unknown"
        told = day_text(moment.astimezone(UTC)), age_text(moment, self.told.generated_at)
        return html('<span>{}</span><span class="where">{}</span>', *told)

    def source(self, store: str, namespace: str) -> str:
        name = namespace or "(no namespace)"
        return f"{name} in {store}" if len(self.stores) > 1 else name

    def within(self, row: Any, name: str, is_named: bool) -> str:
        return f"{self.source(row.store, row.namespace)} · {name}" if is_named else name

    def place(self, row: Any) -> str:
        model = f"{row.type_normalized}/{row.model_id}"
        named = f"{row.model_name} · {model}" if row.model_name else model
        return self.within(row, named, self.names_namespaces)

    def copies(self, row: Duplicate) -> Sequence[str]:
        """Name the first copy, say where it is, and where some others are."""
        found = [(f"{one.data_name}, version {one.version}", one) for one in row.examples]
        (name, first), *others = [(version, self.place(one)) for version, one in found]
        also = "; ".join(f"{version} of {place}" for version, place in others)
        return name, first, f"also {also}{' …' if row.copies > len(found) else ''}"

    def garbage(self, row: Usage) -> Sequence[str]:
        rule, store, namespace, model_type = row.key
        place = f" · {self.source(store, namespace)}" if self.names_namespaces else ""
        return model_type, _RULES.get(rule, rule) + place

    def owner(self, row: Usage) -> Sequence[str]:
        kind, ref = row.key
        name = self.models.get(ref)
        return (name, f"{kind} · {ref}") if name else (ref or "(none)", kind)

    # Sections

    def total_tiles(self) -> Html:
        tile = "<div><dt>{}</dt><dd>{}<small>{}</small></dd></div>"
        tiles = [html(tile, *map(self.say, texts)) for texts in TOTALS]
        return html('<dl class="tiles">{}</dl>', tiles)

    def sections(self) -> Iterator[Html]:
        told = self.told
        today = told.generated_at.astimezone(UTC).date()
        since, top = today - timedelta(days=_MONTH), told.models[:_BARS]
        about = "The largest {top} of {models:model} hold {held:share} of all bytes."
        if self.totals.models <= len(top):
            about = "{models:model} in all."
        facts = {
            "recent": sum(row.bytes for row in told.additions if row.day and row.day > since),
            "month": _MONTH,
            "run_days": RUN_DAYS,
            "largest": told.types[0],
            "runs": sum(row.runs for row in told.run_days),
            "failed": sum(row.failed for row in told.run_days),
            "about_models": self.say(about, top=len(top), held=sum(row.bytes for row in top)),
        }
        template = '<section aria-labelledby="{0}"><h2 id="{0}">{1}</h2><p>{2}</p>{3}</section>'
        drawn = {"growth": self.growth, "models": self.model_areas}
        for key, section in SECTIONS.items():
            parts = [*drawn[key]()] if key in drawn else self.tables(section)
            lead = section.lead if parts or not section.tables else section.empty
            if lead:
                yield html(template, key, section.title, self.say(lead, **facts), parts)

    def growth(self) -> Iterator[Html]:
        added, today = self.told.additions, self.told.generated_at.astimezone(UTC).date()
        history = charts.history_of(added, today)
        colours = [self.colours.get(("namespaces", one or ()), _OTHERS) for one in history.layers]
        names = [self.source(*source) if source else "all others" for source in history.layers]
        yield from (charts.growth_chart(history, colours, size) for size in _sizes(300, 240))
        if len(names) > 1:
            entry = '<li><span class="swatch {}"></span><bdi>{}</bdi></li>'
            entries = [html(entry, *one) for one in zip(colours, names, strict=True)]
            yield html('<ul class="legend">{}</ul>', entries)
        length = (history.spans[0].last - history.spans[0].first).days + 1
        unit = {1: "day", 7: "week"}.get(length, f"{length} days")
        yield html("<h3>Written per {}</h3>", unit)
        yield from (charts.spans_chart(history.spans, size) for size in _sizes(150, 140))
        odd = {
            "Without a date, and counted as there from the start": self.totals.undated_versions,
            "With a date in the future, and counted as written today": self.totals.future_versions,
        }
        yield from (
            _note(f"{text}: {counted(one, 'version')}.") for text, one in odd.items() if one
        )

    def model_areas(self) -> Iterator[Html]:
        tiles = [
            charts.Tile(
                row.model_name or row.model_id,
                f"{self.place(row)}: {bytes_text(row.bytes)} in {counted(row.versions, 'version')}",
                row.bytes,
                self.colours.get(("types", (row.type_normalized,)), _OTHERS),
            )
            for row in self.told.models[:_TILES]
            if row.bytes
        ]
        rest = self.totals.bytes - sum(tile.weight for tile in tiles)
        if rest > 0:
            others = f"{self.totals.models - len(tiles):,} more"
            tiles.append(charts.Tile(others, f"{others}: {bytes_text(rest)}", rest, _OTHERS))
            tiles.sort(key=lambda tile: -tile.weight)
        if tiles:
            sizes = _sizes(420, 480) if len(tiles) > _FEW else _sizes(150, 200)
            yield from (charts.treemap_chart(tiles, size) for size in sizes)
            yield _note("Areas are bytes, colours are types as above.")

    # Tables

    def tables(self, section: Section) -> list[Html]:
        found = {name: self.rows(name, spec[-1] == BAR) for name, spec in section.tables.items()}
        drawn = [self.table(rows, *section.tables[name]) for name, rows in found.items() if rows]
        if drawn and not section.is_wide:
            return [html('<div class="columns">{}</div>', drawn)]
        return [*drawn, _note(section.note)] if drawn and section.note else drawn

    def rows(self, name: str, has_bars: bool) -> list[tuple[Any, Sequence[str], str]]:
        """Return the rows of a list that are shown, with the lines that name them and a colour."""
        found, totals = getattr(self.told, name), self.totals
        # All in one namespace, or nothing deleted: there is nothing to compare.
        if {"namespaces": len(found) < 2, "lifecycles": not totals.deleted_names}.get(name):
            return []
        shown = found if name == "run_days" else found[: _BARS if has_bars else _SHOWN]
        lines = self.lines.get(name, _key)
        if name not in _COLOURED:
            return [(row, lines(row), "c1") for row in shown]
        rows = [(row, lines(row), self.colours.get((name, row.key), _OTHERS)) for row in shown]
        more = getattr(totals, name, 0) - len(rows)
        if more > 0:
            versions = totals.versions - sum(row.versions for row in shown)
            rest = Usage((), 0, versions, totals.bytes - sum(row.bytes for row in shown))
            rows.append((rest, (f"{more:,} more",), _OTHERS))
        return rows

    def table(
        self, rows: Sequence[tuple[Any, Sequence[str], str]], caption: str, what: str, columns: str
    ) -> Html:
        """Return a table; a script can sort it, unless its rows have bars."""
        longest = max(getattr(row, "bytes", 0) for row, *_ in rows) or 1
        head = [html('<th scope="col">{}</th>', what)]
        name = '<th scope="row" data-value="{}">{}</th>'
        body = [
            [html(name, str(getattr(row, "day", lines[0])), _label(*lines))]
            for row, lines, _ in rows
        ]
        for column in columns.split():
            key = column.strip("()")
            title, spec = COLUMNS[key]
            kind = " ".join([key] + ["number"] * bool(spec) + ["minor"] * (key != column))
            cell = '<th scope="col" class="{}">{}</th>' if title else '<td class="{}">{}</td>'
            head.append(html(cell, kind, title))
            for cells, (row, _, colour) in zip(body, rows, strict=True):
                if key == "bar":
                    cells.append(html(_BAR, 100 * row.bytes / longest, colour))
                    continue
                value = getattr(row, "bytes" if key == "share" else key)
                shown = self.format_field(value, spec) if spec else _label(value)
                order = int(value.timestamp()) if isinstance(value, datetime) else value
                order = 0 if order is None else order
                cells.append(html('<td class="{}" data-value="{}">{}</td>', kind, order, shown))
        # Who uses a keyboard must be able to scroll what is wider than the screen.
        return html(
            '<div class="scroll" tabindex="0" role="region" aria-label="{0}"><table class="{1}">'
            "<caption>{0}</caption><thead><tr>{2}</tr></thead><tbody>{3}</tbody></table></div>",
            *(caption, "bars" if columns == BAR else "sortable", head),
            [html("<tr>{}</tr>", cells) for cells in body],
        )


def _label(name: str, *below: str) -> Html:
    """Return a name, and small lines below it that say where it is; all are cut if too long."""
    lines = [html('<bdi class="where" title="{0}">{0}</bdi>', line) for line in below]
    return html('<bdi class="name" title="{0}">{0}</bdi>{1}', name, lines)


def _key(row: Usage) -> Sequence[str]:
    return row.key


def _note(text: str) -> Html:
    return html('<p class="note">{}</p>', text)


def _sizes(wide: int, narrow: int) -> tuple[charts.Size, charts.Size]:
    return charts.Size("wide", 1040, wide), charts.Size("narrow", 380, narrow)
