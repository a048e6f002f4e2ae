"""How rows look, whatever is listed: as a table, tab-separated, as CSV or as JSON lines.

On a terminal a table fits the width: the least important columns go first, then what is long is
cut. Into a pipe go tab-separated columns, sizes in bytes and times in full. Rows are written as
they come: nothing here holds more of them than the first page, which decides on the widths.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import click

from swampstore.cli.rendering import columns_of
from swampstore.notices import did_you_mean, escaped, escaped_lines, sentences

FORMATS = ("table", "tsv", "csv", "json", "jsonl")
_PAGE = 200
_GAP = "  "
_SHORT = 20  # a longer cell is cut before another column has to go
_CUT = "…"


def same(value: Any) -> Any:
    """Return the value of a column whose items are values."""
    return value


def item(key: str) -> Callable[[Any], Any]:
    """Return what has a member of items that are mappings; one that is not there is None."""
    return lambda one: one.get(key)


class Column(NamedTuple):
    """One column: what programs get of an item, and how people see that.

    `rank` 0 stays; of the others the highest goes first where room is short. `is_extra` columns
    are only there with `--wide`, or if they are asked for by name.
    """

    name: str
    value: Callable[[Any], Any]
    text: Callable[[Any], str] | None = None
    right: bool = False
    rank: int = 0
    heading: str = ""
    is_extra: bool = False


class Listing(NamedTuple):
    """What is listed. `record` is what `--json` says of an item, `members` the names in it.

    `footer` and `empty` are for people, and asked for after the last row; so is `is_cut`, whether
    rows were left out that the footer tells about. A plain listing is one value per line, without
    a heading.
    """

    columns: Sequence[Column]
    items: Iterable[Any]
    record: Callable[[Any], dict[str, Any]]
    footer: Callable[[], str] = str
    empty: str = ""
    members: Sequence[str] = ()
    is_plain: bool = False
    is_cut: Callable[[], bool] = bool


class RowOptions:
    """What `--format`, `--fields` and `--wide` asked for."""

    def __init__(self) -> None:
        self.format: str | None = None
        self.fields: str | None = None
        self.wide = False

    def format_for(self, *, as_json: bool) -> str:
        """Return the format: as asked for, else what suits the other end."""
        if self.format is not None:
            return self.format
        if as_json:
            return "json"
        return "table" if _is_terminal() else "tsv"


def write_rows(
    listing: Listing, options: RowOptions, form: str, write: Callable[[str], None]
) -> None:
    """Write a listing in a format, which is any but a JSON document without `--fields`."""
    chosen = _chosen(listing, options)
    if form == "table":
        _write_table(listing, chosen, options, write)
    else:
        _write_for_programs(listing, chosen, options, form, write)


def _write_for_programs(
    listing: Listing,
    chosen: Sequence[Column],
    options: RowOptions,
    form: str,
    write: Callable[[str], None],
) -> None:
    match form:
        case "tsv":
            for item in listing.items:
                write("\t".join(_plain(column.value(item)) for column in chosen) + "\n")
        case "csv":
            _write_csv(listing, chosen, write)
        case "jsonl":
            for record in _records(listing, chosen, options):
                write(json.dumps(record, ensure_ascii=False) + "\n")
        case _:
            _write_array(_records(listing, chosen, options), write)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> str:
    """Return a table of few rows that are part of a longer text; what is long goes over lines.

    On a terminal it fits the width, elsewhere nothing is cut or wrapped.
    """
    cells = [[_shown(value) for value in row] for row in rows]
    headings = [escaped(column) for column in columns]
    widths = _natural([headings, *cells])
    room = terminal_width()
    if room is not None:
        widths = _narrowed(widths, room)
    is_right = [column in set(right) for column in columns]
    lines = [_heading(headings, widths, is_right)]
    for row in cells:
        folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for number in range(max(map(len, folded))):
            line = [parts[number] if number < len(parts) else "" for parts in folded]
            lines.append(_line(line, widths, is_right))
    return "\n".join(lines)


def terminal_width() -> int | None:
    """Return how many columns standard output has; None if it is no terminal."""
    return columns_of(sys.stdout) if _is_terminal() else None


def may_style() -> bool:
    """Whether standard output shows colours and bold text, and nobody asked it not to."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return _is_terminal() and not plain


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


# Columns -----------------------------------------------------------------------------------------


def _chosen(listing: Listing, options: RowOptions) -> list[Column]:
    """Return the columns that were asked for by name, else those that are there anyway."""
    if options.fields is None:
        return [one for one in listing.columns if options.wide or not one.is_extra]
    known = {one.name: one for one in listing.columns}
    chosen = []
    for name in (part.strip() for part in options.fields.split(",")):
        if name in known:
            chosen.append(known[name])
        elif name.partition(".")[0] in listing.members:
            chosen.append(Column(name, _member(listing, name)))
        else:
            names = list(dict.fromkeys([*known, *listing.members]))
            raise click.UsageError(
                sentences(
                    f"--fields names {name!r}, which is no field here.",
                    did_you_mean(name, names),
                    f"Fields: {', '.join(names)}.",
                )
            )
    return chosen


def _member(listing: Listing, path: str) -> Callable[[Any], Any]:
    def value(item: Any) -> Any:
        found: Any = listing.record(item)
        whole, _, rest = path.partition(".")
        found = found.get(whole)
        # The key of a tag may hold dots itself.
        while rest and isinstance(found, dict):
            if rest in found:
                return found[rest]
            step, _, rest = rest.partition(".")
            found = found.get(step)
        return None if rest else found

    return value


def _records(
    listing: Listing, chosen: Sequence[Column], options: RowOptions
) -> Iterator[dict[str, Any]]:
    for item in listing.items:
        if options.fields is None:
            yield listing.record(item)
        else:
            yield {column.name: _jsonable(column.value(item)) for column in chosen}


def _jsonable(value: Any) -> Any:
    plain = value is None or isinstance(value, str | int | float | list | dict)
    return value if plain else str(value)


def _plain(value: Any) -> str:
    """Write a value for a program that reads lines: nothing in it ends a cell or a line."""
    match value:
        case None:
            return ""
        case str():
            return value if value.isprintable() else escaped(value)
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return escaped(json.dumps(value, ensure_ascii=False))
    return escaped(value)


def _write_csv(listing: Listing, chosen: Sequence[Column], write: Callable[[str], None]) -> None:
    write(",".join(_quoted(column.name) for column in chosen) + "\n")
    for item in listing.items:
        write(",".join(_quoted(_raw(column.value(item))) for column in chosen) + "\n")


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else _plain(value)


def _quoted(text: str) -> str:
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _write_array(records: Iterable[dict[str, Any]], write: Callable[[str], None]) -> None:
    opening = "["
    for record in records:
        write(f"{opening}\n  {json.dumps(record, ensure_ascii=False)}")
        opening = ","
    write("[]\n" if opening == "[" else "\n]\n")


# Tables ------------------------------------------------------------------------------------------


def _write_table(
    listing: Listing, chosen: Sequence[Column], options: RowOptions, write: Callable[[str], None]
) -> None:
    if listing.is_plain:
        for item in listing.items:
            write(_lines(item) + "\n")
        return
    room = None if options.wide or options.fields is not None else terminal_width()
    items = iter(listing.items)
    first = [_texts(item, chosen) for item in islice(items, _PAGE)]
    if not first:
        write(f"{listing.empty or listing.footer()}\n")
        return
    headings = [escaped(column.heading or column.name) for column in chosen]
    widths = _natural([headings, *first])
    kept = _fitting(chosen, widths, room)
    widths = [widths[index] for index in kept]
    if room is not None:
        widths = _narrowed(widths, room)
    is_right = [chosen[index].right for index in kept]
    write(_heading([headings[index] for index in kept], widths, is_right) + "\n")
    for row in chain(first, (_texts(item, chosen) for item in items)):
        cells = [row[index] for index in kept]
        if room is not None:
            cells = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
        write(_line(cells, widths, is_right) + "\n")
    footer = listing.footer()
    hidden = len(chosen) - len(kept)
    if hidden:
        more = f"--wide shows {hidden} more column{'s' * (hidden > 1)}"
        footer = f"{footer}; {more}" if footer else more
    if footer:
        write(f"{footer}\n")


def _texts(item: Any, columns: Sequence[Column]) -> list[str]:
    return [
        _shown(value if column.text is None or value is None else column.text(value))
        for column in columns
        for value in [column.value(item)]
    ]


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return _plain(value)


def _lines(value: Any) -> str:
    """Write a value that has lines of its own; what is nested is indented."""
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, indent=2)
    elif not isinstance(value, str):
        return _plain(value)
    return escaped_lines(value)


def _natural(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is if nothing is cut."""
    return [max(map(width_of, cells)) for cells in zip(*rows, strict=True)]


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int | None) -> list[int]:
    """Return which columns stay: as many as there is room for, if long cells are cut short."""
    kept = list(range(len(columns)))
    if room is None:
        return kept
    for index in sorted(kept, key=lambda index: -columns[index].rank):
        needed = sum(min(widths[each], _SHORT) + len(_GAP) for each in kept) - len(_GAP)
        if needed <= room or columns[index].rank == 0:
            break
        kept.remove(index)
    return kept


def _narrowed(widths: Sequence[int], room: int) -> list[int]:
    """Return widths that fit: short columns keep theirs, the long ones share what is left."""
    left = room - len(_GAP) * (len(widths) - 1)
    if sum(widths) <= left:
        return list(widths)
    narrowed = [0] * len(widths)
    by_width = sorted(range(len(widths)), key=lambda index: widths[index])
    for place, index in enumerate(by_width):
        fair = max(1, left // (len(widths) - place))
        narrowed[index] = min(widths[index], fair)
        left -= narrowed[index]
    return narrowed


def _heading(headings: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    cut = [_cut(cell, width) for cell, width in zip(headings, widths, strict=True)]
    line = _line(cut, widths, is_right)
    return click.style(line, bold=True) if may_style() else line


def _line(cells: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, is_right, strict=True):
        blank = " " * (width - width_of(cell))
        padded.append(f"{blank}{cell}" if right else f"{cell}{blank}")
    return _GAP.join(padded).rstrip()


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text
    )


def _cut(text: str, width: int) -> str:
    """Shorten a text; of an address both ends stay, of anything else how it begins."""
    if width_of(text) <= width:
        return text
    if width < 2:
        return _CUT
    tail = (width - 1) // 2 if "/" in text and " " not in text else 0
    return f"{_beginning(text, width - 1 - tail)}{_CUT}{_beginning(text[::-1], tail)[::-1]}"


def _beginning(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for index, each in enumerate(text):
        taken += width_of(each)
        if taken > width:
            return text[:index]
    return text


def _folded(text: str, width: int) -> list[str]:
    """Return a text as lines that are no wider than this, broken between words where possible."""
    if width_of(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if width_of(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        while width_of(word) > width:
            piece = _beginning(word, width) or word[0]
            lines.append(piece)
            word = word[len(piece) :]  # noqa: PLW2901 - what is left of it
        line = word
    return [*lines, line] if line else lines
