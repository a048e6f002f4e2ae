"""Telling on standard error how far a sync is: a bar on a terminal, JSON lines elsewhere.

Whatever is done within a second says nothing.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from swampstore.sync.report import Progress, Step

PATIENCE = 1.0


class _Teller(Protocol):
    def __call__(self, step: Step) -> None: ...

    def end(self) -> None: ...


@contextlib.contextmanager
def progress_shown() -> Iterator[Progress]:
    """Yield what to call with each step of a long operation, from any thread."""
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    teller: _Teller = ProgressBar() if on_terminal else ProgressLines()
    try:
        yield teller
    finally:
        teller.end()


class ProgressLines:
    """One JSON object per line, at most one per second, and one at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started = self._told = clock()
        self._untold: Step | None = None

    def __call__(self, step: Step) -> None:
        """Tell a step, or keep it in mind for the end."""
        with self._lock:
            self._untold = step
            if self._clock() - self._told >= PATIENCE:
                self._tell(step)

    def end(self) -> None:
        """Tell the last step, if there was time to wait for it."""
        with self._lock:
            if self._untold and self._clock() - self._started >= PATIENCE:
                self._tell(self._untold)

    def _tell(self, step: Step) -> None:
        self._told = self._clock()
        self._untold = None
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
        self._started = clock()
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, step: Step) -> None:
        """Move the bar of the step's phase."""
        with self._lock:
            if self._bars is None:
                if self._clock() - self._started < PATIENCE:
                    return
                self._bars = _start_bars()
            if step.phase not in self._tasks:
                self._tasks[step.phase] = self._bars.add_task(step.phase, files="")
            self._bars.update(
                self._tasks[step.phase],
                completed=step.bytes,
                total=step.total_bytes,
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
