"""How far long work is, on standard error: one line that moves, or a sentence now and then.

On a terminal one line is overwritten. Into a log goes a sentence at most every ten seconds, and
never the same one twice. With `--json` each step is a JSON object, at most one per second.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from swampstore.cli.rendering import columns_of, printable, size_text

if TYPE_CHECKING:
    from swampstore.index.results import Progress, Step

PATIENCE = 1.0
_BETWEEN_SENTENCES = 10.0
_BETWEEN_MOVES = 0.1
_CLEAR = "\r\x1b[K"


def can_move() -> bool:
    """Whether what is on standard error can be overwritten: it is a terminal, and no dumb one."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


@contextlib.contextmanager
def progress_shown() -> Iterator[Progress]:
    """Yield what to call with each step of a long operation, from any thread."""
    from swampstore.cli.session import Session

    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context else None
    shown: Events | MovingLine | Sentences | Silence
    if session is not None and session.json:
        shown = Events()
    elif session is not None and session.quiet:
        shown = Silence()
    else:
        shown = MovingLine() if can_move() else Sentences()
    try:
        yield shown
    finally:
        shown.end()


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Say what is being done while the block lasts; on a terminal it is gone afterwards."""
    from swampstore.cli.session import Session

    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context else None
    if session is not None and (session.json or session.quiet):
        yield
        return
    is_moving = can_move()
    click.echo(f"{what} ..." if is_moving else f"{what}.", nl=not is_moving, err=True)
    try:
        yield
    finally:
        if is_moving:
            click.echo(_CLEAR, nl=False, err=True)


class Silence:
    """Says nothing."""

    def __call__(self, step: Step) -> None:
        """Take no notice of a step."""

    def end(self) -> None:
        """Do nothing."""


class Events:
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


class Sentences:
    """What a log is told: a sentence at most every ten seconds, never a repeated one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: tuple[str, float] = ("", 0.0)
        self._told_at: float | None = None
        self._told = ""

    def __call__(self, step: Step) -> None:
        """Tell a step, unless something was told just now."""
        with self._lock:
            now = self._clock()
            if self._phase[0] != step.phase:
                self._phase = (step.phase, now)
            if now - self._phase[1] < PATIENCE:
                return
            if self._told_at is not None and now - self._told_at < _BETWEEN_SENTENCES:
                return
            text = step_text(step, now - self._phase[1])
            if text != self._told:
                self._told_at, self._told = now, text
                click.echo(printable(text), err=True)

    def end(self) -> None:
        """Do nothing: the result tells the rest."""


class MovingLine:
    """One line on a terminal, overwritten by each step, gone when all is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._phase: tuple[str, float] = ("", 0.0)
        self._moved = -_BETWEEN_MOVES
        self._is_shown = False

    def __call__(self, step: Step) -> None:
        """Show a step, unless the line has just been written."""
        with self._lock:
            now = self._clock()
            is_new = self._phase[0] != step.phase
            if is_new:
                self._phase = (step.phase, now)
            self._began = now if self._began is None else self._began
            if now - self._began < PATIENCE or (not is_new and now - self._moved < _BETWEEN_MOVES):
                return
            self._moved, self._is_shown = now, True
            text = printable(step_text(step, now - self._phase[1]))
            click.echo(f"{_CLEAR}{text[: _columns() - 1]}", nl=False, err=True)

    def end(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._is_shown:
                click.echo(_CLEAR, nl=False, err=True)
                self._is_shown = False


def _columns() -> int:
    return columns_of(sys.stderr)


def step_text(step: Step, seconds: float) -> str:
    """Return a step as people read it: what is counted, how much, how fast, how long still.

    `seconds` is how long its phase has taken so far.
    """
    if not step.total_files and not step.files:
        return step.phase
    if step.unit == "tasks":
        parts = [f"{100 * step.files // max(step.total_files, 1)} %"]
    elif step.files < step.total_files:
        parts = [f"{step.files:,} of {step.total_files:,} {step.unit}"]
    else:
        parts = [f"{step.files:,} {step.unit}"]
    if step.total_bytes:
        of = f" of {size_text(step.total_bytes)}" if step.bytes < step.total_bytes else ""
        parts.append(f"{size_text(step.bytes)}{of}")
    if seconds >= 1 and step.bytes:
        parts.append(f"{size_text(int(step.bytes / seconds))}/s")
    elif seconds >= 1 and step.unit != "tasks" and step.files >= seconds:
        parts.append(f"{step.files / seconds:,.0f} {step.unit}/s")
    done, total = (
        (step.bytes, step.total_bytes) if step.total_bytes else (step.files, step.total_files)
    )
    if seconds >= 1 and 0 < done < total:
        parts.append(f"{_left_text(seconds * (total - done) / done)} left")
    return f"{step.phase}: {', '.join(parts)}"


def _left_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.0f} h"
