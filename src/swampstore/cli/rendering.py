"""How results look as text: tables, blocks of fields, sizes; and how far long work is.

Progress goes to standard error: a bar on a terminal, JSON lines elsewhere. A phase that is done
within a second says nothing.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from swampstore.notices import escaped, escaped_lines

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from swampstore.artifact import Artifact
    from swampstore.index.results import Progress, Step

_UNITS = ("KB", "MB", "GB")
_WIDE = 100_000
_NAMED = 20


def size_text(size: int) -> str:
    """Write a number of bytes for people: 212 B, 1.5 KB, 3.0 GB."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in _UNITS:
        amount /= 1024
        if amount < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{amount:.1f} {unit}"


def duration_text(milliseconds: int | None) -> str:
    """Return a duration as people read it; empty as long as there is none.

    >>> duration_text(1268), duration_text(75_000), duration_text(None)
    ('1.3 s', '1:15 min', '')
    """
    if milliseconds is None:
        return ""
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    if minutes < 60:
        return f"{minutes}:{seconds:02} min"
    return f"{minutes // 60}:{minutes % 60:02} h"


def printable(value: object) -> str:
    """Write a value so that no character in it can move the cursor or colour the terminal."""
    return escaped(value)


def printable_lines(text: str) -> str:
    """Do the same to each line of a text; tabs in it stay."""
    return escaped_lines(text)


def fields(members: Mapping[str, object]) -> str:
    """Return a block of names and values, one per line; empty values are left out."""
    shown = {name: printable(value) for name, value in members.items() if value not in ("", None)}
    width = max(map(len, shown), default=0)
    return "\n".join(f"{name:{width}}  {value}" for name, value in shown.items())


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = ()
) -> str:
    """Return a bordered table; the columns named in `right` are aligned to the right.

    On a terminal it fits the width, elsewhere nothing is cut or wrapped.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table()
    for column in columns:
        drawn.add_column(
            printable(column), justify="right" if column in right else "left", overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(printable(value)) for value in row))
    console = Console(
        file=sys.stdout,
        width=None if sys.stdout is not None and sys.stdout.isatty() else _WIDE,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as capture:
        console.print(drawn)
    return capture.get().rstrip("\n")


def named_lines(what: str, found: Iterable[str | tuple[str, ...]]) -> list[str]:
    """Return a line for each path, with what is said of it, if anything; many are counted."""
    every = [(one,) if isinstance(one, str) else one for one in found]
    lines = [": ".join([what, *map(printable, one)]) for one in every[:_NAMED]]
    if len(every) > _NAMED:
        lines.append(f"{what}: ... and {len(every) - _NAMED} more")
    return lines


def counted(number: int, noun: str) -> str:
    """Write `1 version`, `2 versions`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def footer_text(total: int, *, limited: bool) -> str:
    """Say how many results there are, and whether a limit may have kept others away."""
    return f"{total} result(s)" + (", limited; there may be more" if limited else "")


def records_text(artifacts: Sequence[Artifact], footer: str, is_namespaced: bool) -> str:
    """Return the table of what a query or a search found, if anything, and the footer."""
    if not artifacts:
        return footer
    columns = ["name", "modelName", "specName", "dataType", "version", "size"]
    rows = [
        [
            row.data_name,
            row.model_name,
            row.spec_name,
            row.data_type,
            row.version,
            size_text(row.size),
        ]
        for row in (artifact.row for artifact in artifacts)
    ]
    if is_namespaced and any(artifact.row.namespace for artifact in artifacts):
        columns.insert(0, "namespace")
        for line, artifact in zip(rows, artifacts, strict=True):
            line.insert(0, artifact.row.namespace)
    return f"{table(columns, rows, right=('version', 'size'))}\n{footer}"


def values_text(values: Sequence[object]) -> str:
    """Return projected values; the first one that is not null decides on their shape.

    Maps become a table with the keys of that map, lists one with numbered columns, anything
    else is one value per line.
    """
    first = next((value for value in values if value is not None), None)
    if isinstance(first, dict):
        keys = list(first)
        cells = [
            [row.get(key) for key in keys] if isinstance(row, dict) else [row] for row in values
        ]
        return table([str(key) for key in keys], [_cells(row, len(keys)) for row in cells])
    if isinstance(first, list):
        lists = [value if isinstance(value, list) else [value] for value in values]
        width = max(map(len, lists))
        numbers = [str(number + 1) for number in range(width)]
        return table(numbers, [_cells(row, width) for row in lists])
    return "\n".join(printable_lines(_cell(value, indent=2)) for value in values)


def _cells(values: Sequence[object], width: int) -> list[str]:
    return [_cell(value) for value in values] + [""] * (width - len(values))


def _cell(value: object, *, indent: int | None = None) -> str:
    match value:
        case None:
            return ""
        case str():
            return value
    return json.dumps(value, ensure_ascii=False, indent=indent)


PATIENCE = 1.0


@contextlib.contextmanager
def progress_shown() -> Iterator[Progress]:
    """Yield what to call with each step of a long operation, from any thread."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    shown = ProgressBar() if on_terminal else ProgressLines()
    try:
        yield shown
    finally:
        shown.end()


class ProgressLines:
    """One JSON object per line, at most one per second, and one at the end of each phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started = self._told = 0.0
        self._step: Step | None = None
        self._is_told = False

    def __call__(self, step: Step) -> None:
        """Print a step, or keep it in mind for the end of its phase."""
        with self._lock:
            if self._step is None or self._step.phase != step.phase:
                self._end_phase()
                self._started = self._told = self._clock()
            self._step, self._is_told = step, False
            if self._clock() - self._told >= PATIENCE:
                self._print(step)

    def end(self) -> None:
        """Print the last step."""
        with self._lock:
            self._end_phase()

    def _end_phase(self) -> None:
        is_long = self._clock() - self._started >= PATIENCE
        if self._step is not None and not self._is_told and is_long:
            self._print(self._step)

    def _print(self, step: Step) -> None:
        self._told = self._clock()
        self._is_told = True
        document = {
            "phase": step.phase,
            "files": step.files,
            "totalFiles": step.total_files,
            "bytes": step.bytes,
            "totalBytes": step.total_bytes,
        }
        click.echo(json.dumps(document), err=True)


class ProgressBar:
    """A bar per phase with files, bytes, rate and remaining time; gone when all is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: tuple[str, float] = ("", 0.0)
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, step: Step) -> None:
        """Move the bar of the step's phase."""
        with self._lock:
            if self._phase[0] != step.phase:
                self._phase = (step.phase, self._clock())
            if self._bars is None and self._clock() - self._phase[1] < PATIENCE:
                return
            self._bars = self._bars or _start_bars()
            if step.phase not in self._tasks:
                self._tasks[step.phase] = self._bars.add_task(step.phase, files="")
            self._bars.update(
                self._tasks[step.phase],
                completed=step.bytes,
                total=step.total_bytes or None,
                files=f"{step.files}/{step.total_files} files",
            )

    def end(self) -> None:
        """Remove the bars."""
        with self._lock:
            if self._bars is not None:
                self._bars.stop()


def _start_bars() -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    bars.start()
    return bars
