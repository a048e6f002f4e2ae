"""Tables of the page, plain ones and those whose rows are bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from swampstore.pipeline.report.charts import bar
from swampstore.pipeline.report.markup import Html, element, joined
from swampstore.pipeline.report.wording import bytes_text, count_text, share_text

R = TypeVar("R")
_BAR_COLUMNS = ("label", "bar", "bytes", "share minor", "versions minor")


class Cell(NamedTuple):
    """What a cell shows, and what it is sorted by if that is another thing."""

    shown: str
    value: object = None


class Column(NamedTuple, Generic[R]):
    """A column, and what it shows of a row; `minor` ones are left out on small screens."""

    title: str
    cell: Callable[[R], Cell]
    is_number: bool = False
    minor: bool = False


def sizes(title: str, of: Callable[[R], int], *, minor: bool = False) -> Column[R]:
    """Return a column with numbers of bytes."""
    return _numbers(title, of, bytes_text, minor=minor)


def counts(title: str, of: Callable[[R], int], *, minor: bool = False) -> Column[R]:
    """Return a column with counts."""
    return _numbers(title, of, count_text, minor=minor)


def _numbers(
    title: str, of: Callable[[R], int], text: Callable[[int], str], *, minor: bool
) -> Column[R]:
    return Column(title, lambda row: Cell(text(of(row)), of(row)), is_number=True, minor=minor)


class Bar(NamedTuple):
    """One row of a bar chart."""

    label: Html
    bytes: int
    versions: int
    colour: str = "c1"


def label(name: str, *below: str) -> Html:
    """Return a name, and small lines below it that say where it is; all are cut if too long."""
    lines = [element("bdi", line, class_="where", title=line) for line in below]
    return joined([element("bdi", name, class_="name", title=name), *lines])


def listing(caption: str, columns: Sequence[Column[R]], rows: Iterable[R]) -> Html:
    """Return a table whose first column names the rows; a script can sort it."""
    first, *others = columns
    body = [
        element(
            "tr",
            _cell("th", first, row, scope="row"),
            *(_cell("td", column, row) for column in others),
        )
        for row in rows
    ]
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *(_heading(column) for column in columns))),
        element("tbody", *body),
        class_="sortable",
    )
    return _scrolling(table, caption)


def bars(caption: str, what: str, rows: Sequence[Bar], whole: int) -> Html:
    """Return rows with bars, the first as long as there is room; shares are those of `whole`."""
    longest = max((row.bytes for row in rows), default=0)
    head = element(
        "tr",
        element("th", what, scope="col"),
        element("th", "Bytes", scope="col", colspan=2, class_="number"),
        element("th", "Share", scope="col", class_="number minor"),
        element("th", "Versions", scope="col", class_="number minor"),
    )
    body = [
        element(
            "tr",
            element("th", row.label, scope="row"),
            element("td", bar(row.bytes, longest, row.colour), class_="bar-cell"),
            element("td", bytes_text(row.bytes), class_="number"),
            element("td", share_text(row.bytes, whole), class_="number minor"),
            element("td", count_text(row.versions), class_="number minor"),
        )
        for row in rows
    ]
    widths = [element("col", class_=name) for name in _BAR_COLUMNS]
    table = element(
        "table",
        element("caption", caption),
        element("colgroup", *widths),
        element("thead", head),
        element("tbody", *body),
        class_="bars",
    )
    return _scrolling(table, caption)


def _scrolling(table: Html, caption: str) -> Html:
    # Who uses a keyboard must be able to scroll what is wider than the screen.
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _heading(column: Column[R]) -> Html:
    return element("th", column.title, scope="col", class_=_classes(column))


def _cell(name: str, column: Column[R], row: R, *, scope: str | None = None) -> Html:
    shown, value = column.cell(row)
    return element(name, shown, scope=scope, class_=_classes(column), data_value=value)


def _classes(column: Column[R]) -> str | None:
    kinds = ["number"] * column.is_number + ["minor"] * column.minor
    return " ".join(kinds) or None
