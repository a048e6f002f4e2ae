"""The account that the demo gives of itself: chapters, commands as a shell shows them, claims.

A claim is checked when it is made. One that does not hold ends the demo.
"""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

_WIDTH = 100  # where there is no terminal that has one


class ClaimError(Exception):
    """Something that the demo says is not so."""


class Machine(NamedTuple):
    """Where commands are run, if it is not the one place that there is: its prompt says so."""

    name: str
    directory: Path
    variables: Mapping[str, str]


class Account:
    """Tells what happens in `directory`, and counts what turned out to be true."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.claims = 0
        self.chapters: list[tuple[str, float]] = []
        is_terminal = sys.stdout.isatty()
        self.console = Console(width=None if is_terminal else _WIDTH, highlight=False)
        self._tick = "✓" if self.console.encoding.startswith("utf") else "ok"

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.chapters[0][1]

    def chapter(self, title: str) -> None:
        """Begin the next chapter."""
        self.chapters.append((title, time.monotonic()))
        self.console.print()
        self.console.rule(f"[bold cyan]{len(self.chapters)}. {title}", align="left", style="cyan")

    def say(self, text: str) -> None:
        """Tell something."""
        self.console.print()
        self.console.print(text)

    def show_code(self, function: Callable[..., object]) -> None:
        """Show the source of a function that is about to run."""
        source = inspect.getsource(function).rstrip()
        self.console.print()
        code = Syntax(
            source, "python", theme="ansi_dark", word_wrap=True, background_color="default"
        )
        self.console.print(Padding(code, (0, 4), expand=False))

    def show_fields(self, rows: dict[str, str]) -> None:
        """Show names and values, one per line."""
        table = Table.grid(padding=(0, 2))
        for name, value in rows.items():
            table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
        self.console.print()
        self.console.print(Padding(table, (0, 4), expand=False))

    def run(self, line: str, *, fails: bool = False, on: Machine | None = None) -> None:
        """Run a command line as a person would, and show what it prints.

        It must go well, unless it is said that it `fails`.
        """
        self.echo(line, on)
        self._run(line, on, stdout=None, fails=fails)

    def ask(self, line: str, *, fails: bool = False, on: Machine | None = None) -> str:
        """Run a command line as `run` does, and return what it printed."""
        self.echo(line, on)
        printed = self._run(line, on, stdout=subprocess.PIPE, fails=fails)
        self.console.print(Text(printed.rstrip("\n")), soft_wrap=True)
        return printed

    def run_here(self, line: str, *, fails: bool = False) -> None:
        """Run a command of ours as `run` does, in this process: it finds what others left there."""
        from swampstore.cli import main

        self.echo(line)
        status = main(shlex.split(line)[1:])
        sys.stdout.flush()
        if bool(status) is not fails:
            raise ClaimError(f"{line}: exit status {status}")

    def _run(
        self, line: str, on: Machine | None, *, stdout: int | None, fails: bool = False
    ) -> str:
        done = subprocess.run(  # noqa: S603 - the demo runs its own words
            ["/bin/sh", "-c", line],
            cwd=on.directory if on else self.directory,
            env=self.environment() | dict(on.variables if on else {}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        if bool(done.returncode) is not fails:
            raise ClaimError(f"{line}: exit status {done.returncode} {done.stdout or ''}".rstrip())
        return done.stdout or ""

    def echo(self, line: str, on: Machine | None = None) -> None:
        """Show a command line."""
        prompt = f"{on.name}$ " if on else "$ "
        self.console.print()
        self.console.print(Text.assemble((prompt, "dim"), (line, "bold")), soft_wrap=True)
        # What the command prints comes after it.
        self.console.file.flush()

    def claim(self, text: str, holds: object) -> None:
        """Say something that can be checked; raise ClaimError if it is not so."""
        if not holds:
            raise ClaimError(text)
        self.claims += 1
        self.console.print(f"[bold green]{self._tick}[/] {text}")

    def environment(self) -> dict[str, str]:
        """Return an environment in which nothing but the defaults counts."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SWAMP")}
        return kept | {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}"}
