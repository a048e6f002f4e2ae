"""What one `swampstore data get` and one `swampstore run` cost beyond starting the interpreter."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import repeat

import sample
from measuring import Line, Setting, compile_package, median_ms, say, seconds
from swampstore import init_repo

ARTIFACTS = 100_000
LIMIT_MS = 120
RUN_LIMIT_MS = 150
ROUNDS = 25
_NAMES = 100
_RUN = "benchmark/command/one"
_CONTENT = b'{"status": "running", "zone": "eu-central-1b"}\n'


def measure(setting: Setting) -> Iterator[Line]:
    """Start commands and bare interpreters in turns."""
    shape = sample.Shape(setting.scaled(ARTIFACTS // _NAMES), _NAMES)
    place = f"{setting.directory}/repo"
    with init_repo(place) as repo:
        say(f"making a repository of {shape.artifacts:,} artifacts")
        sample.write_files(repo.tree, shape, repeat(_CONTENT))
        repo.rebuild_catalog()
    os.sync()
    compile_package()
    program = f"{os.path.dirname(sys.executable)}/swampstore"
    ref = str(sample.model_ref(shape, shape.models // 2))
    name = sample.names(shape)[7]
    get = [program, "data", "get", "--repo", place]
    commands = {
        "data get TYPE/ID NAME": [*get, ref, name],
        "data get TYPE/ID NAME --json": [*get, ref, name, "--json"],
        "data get MODEL-NAME NAME": [*get, sample.model_name(shape.models // 2), name],
        "run TYPE/ID METHOD -- true": [program, "run", "--repo", place, _RUN, "scan", "--", "true"],
    }
    say(f"running {len(commands)} commands {ROUNDS} times")
    bare = [sys.executable, "-c", "pass"]
    times = _in_turns([bare, *commands.values()])
    floor = statistics.median(times[0])
    for what, taken in zip(commands, times[1:], strict=True):
        yield Line(
            f"swampstore {what} above python -c pass",
            (statistics.median(taken) - floor) * 1000,
            "ms",
            RUN_LIMIT_MS if what.startswith("run") else LIMIT_MS,
            f"medians {median_ms(taken):.0f} and {floor * 1000:.0f} ms of {ROUNDS},"
            f" among {shape.artifacts:,} artifacts, bytecode compiled before",
        )


def _in_turns(commands: Sequence[list[str]]) -> list[list[float]]:
    for command in commands:
        _run(command)
    rounds = [[seconds(_run, command) for command in commands] for _ in range(ROUNDS)]
    return [list(times) for times in zip(*rounds, strict=True)]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
