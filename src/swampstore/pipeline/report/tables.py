"""Tables of the page: plain ones that can be sorted, and those whose rows are bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from swampstore.pipeline.report.charts import bar
from swampstore.pipeline.report.text import Html, bytes_text, count_text, html, share_text

_BAR_COLUMNS = ("label", "bar", "bytes", "share minor", "versions minor")


class Cell(NamedTuple):
    """What a cell shows, and what it is sorted by."""

    shown: str
    value: object


class Bar(NamedTuple):
    """One row of a bar chart."""

    label: Html
    bytes: int
    versions: int
    colour: str = "c1"


def size(number: int) -> Cell:
    """Return a cell with a number of bytes."""
    return Cell(bytes_text(number), number)


def count(number: int) -> Cell:
    """Return a cell with a count."""
    return Cell(count_text(number), number)


def label(name: str, *below: str) -> Html:
    """Return a name, and small lines below it that say where it is; all are cut if too long."""
    lines = [html('<bdi class="where" title="{0}">{0}</bdi>', line) for line in below]
    return html('<bdi class="name" title="{0}">{0}</bdi>{1}', name, lines)


def listing(caption: str, columns: Mapping[str, str], rows: Iterable[Sequence[Cell]]) -> Html:
    """Return a table whose first column names the rows; a script can sort it.

    `columns` are titles with their classes: `number` is aligned as such, `minor` is left out on
    small screens.
    """
    classes = [html(' class="{}"', kinds) if kinds else Html() for kinds in columns.values()]
    heads = zip(classes, columns, strict=True)
    body = [
        html(
            '<tr><th scope="row"{} data-value="{}">{}</th>{}</tr>',
            *(classes[0], str(row[0].value), row[0].shown),
            [
                html('<td{} data-value="{}">{}</td>', kinds, str(cell.value), cell.shown)
                for kinds, cell in zip(classes[1:], row[1:], strict=True)
            ],
        )
        for row in rows
    ]
    head = [html('<th scope="col"{}>{}</th>', kinds, title) for kinds, title in heads]
    parts = html("<thead><tr>{}</tr></thead><tbody>{}</tbody>", head, body)
    return _scrolling("sortable", caption, parts)


def bars(caption: str, what: str, rows: Sequence[Bar], whole: int) -> Html:
    """Return rows with bars, the first as long as there is room; shares are those of `whole`."""
    longest = max((row.bytes for row in rows), default=0)
    body = [
        html(
            '<tr><th scope="row">{}</th><td class="bar-cell">{}</td><td class="number">{}</td>'
            '<td class="number minor">{}</td><td class="number minor">{}</td></tr>',
            *(row.label, bar(row.bytes, longest, row.colour), bytes_text(row.bytes)),
            *(share_text(row.bytes, whole), count_text(row.versions)),
        )
        for row in rows
    ]
    parts = html(
        '<colgroup>{}</colgroup><thead><tr><th scope="col">{}</th>'
        '<th scope="col" colspan="2" class="number">Bytes</th>'
        '<th scope="col" class="number minor">Share</th>'
        '<th scope="col" class="number minor">Versions</th></tr></thead><tbody>{}</tbody>',
        *([html('<col class="{}">', name) for name in _BAR_COLUMNS], what, body),
    )
    return _scrolling("bars", caption, parts)


def _scrolling(kind: str, caption: str, parts: Html) -> Html:
    # Who uses a keyboard must be able to scroll what is wider than the screen.
    return html(
        '<div class="scroll" tabindex="0" role="region" aria-label="{0}"><table class="{1}">'
        "<caption>{0}</caption>{2}</table></div>",
        *(caption, kind, parts),
    )
