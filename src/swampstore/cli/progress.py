"""Telling on standard error how far a sync is: a bar on a terminal, JSON lines elsewhere.

A phase that is done within a second says nothing.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from swampstore.index.report import Progress, Step

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
