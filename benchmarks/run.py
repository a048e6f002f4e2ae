"""Measure what swampstore promises to cost and print one table.

Exit status 1 if a promise is not kept. `--quick` works on a twentieth of the data: good for
trying a benchmark out, not for judging.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import bulk_jobs
import catalog_reads
import command_line
import felt_speed
import growing
import machine
import rebuilding
import saving
import scaling
import setting_up
import spark_start
import sync_memory
import syncing
from measuring import Benchmark, Line, Setting, say

BENCHMARKS: dict[str, Benchmark] = {
    "catalog": catalog_reads.measure,
    "saving": saving.measure,
    "rebuild": rebuilding.measure,
    "cli": command_line.measure,
    "felt": felt_speed.measure,
    "sync": syncing.measure,
    "setup": setting_up.measure,
    "sync-memory": sync_memory.measure,
    "growing": growing.measure,
    "spark-start": spark_start.measure,
    "bulk": bulk_jobs.measure,
    "scale": scaling.measure,
}
# Takes hours, and is run by its name alone.
_LONG = "scale"
_QUICK = 20
_VERDICTS = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: ""}


class Outcome(NamedTuple):
    """What the benchmarks found on which machine."""

    machine: dict[str, str]
    lines: dict[str, list[Line]]

    @property
    def is_kept(self) -> bool:
        """Whether every promise was kept."""
        return all(line.is_kept is not False for lines in self.lines.values() for line in lines)


def main() -> int:
    """Run the chosen benchmarks; return the exit status."""
    options = _parser().parse_args()
    # Being stopped must not leave gigabytes behind: an exception cleans up, the signal does not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    directory = os.path.abspath(options.dir or tempfile.gettempdir())
    facts = machine.facts(directory)
    lines = {
        name: _measured(name, directory, _QUICK if options.quick else 1)
        for name in options.only or [one for one in BENCHMARKS if one != _LONG]
    }
    outcome = Outcome({**facts, "counts": "a twentieth" if options.quick else "full"}, lines)
    if options.json:
        print(json.dumps(_document(outcome), indent=2, ensure_ascii=False))
    else:
        _show(outcome)
    return 0 if outcome.is_kept else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="a twentieth of every count")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--dir", help="where to work (default: the directory for temporary files)")
    return parser


def _measured(name: str, directory: str, divisor: int) -> list[Line]:
    start = time.monotonic()
    print(name, file=sys.stderr, flush=True)
    lines = []
    with tempfile.TemporaryDirectory(prefix="swampstore-bench-", dir=directory) as place:
        for line in BENCHMARKS[name](Setting(place, divisor)):
            say(f"{line.what}: {_amount(line.value, line.unit)}")
            lines.append(line)
    say(f"took {time.monotonic() - start:.0f} s")
    return lines


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "machine": outcome.machine,
        "kept": outcome.is_kept,
        "lines": [
            {"benchmark": name, **line._asdict(), "kept": line.is_kept}
            for name, lines in outcome.lines.items()
            for line in lines
        ],
    }


def _show(outcome: Outcome) -> None:
    table = Table("what", title="Promised costs")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("promise", justify="right", no_wrap=True)
    table.add_column("ok?", justify="center")
    table.add_column("note")
    for lines in outcome.lines.values():
        for line in lines:
            promise = "" if line.limit is None else f"≤ {line.limit:g} {line.unit}"
            table.add_row(
                escape(line.what),
                _amount(line.value, line.unit),
                promise,
                _VERDICTS[line.is_kept],
                escape(line.note),
            )
        table.add_section()
    # Without a terminal nothing is known about the width, and a narrow table is hard to read.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(table)
    for name, value in outcome.machine.items():
        console.print(f"{name:>10}  {value}")


def _amount(value: float, unit: str) -> str:
    """Return a number with about three significant digits, and its unit."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


if __name__ == "__main__":
    raise SystemExit(main())
