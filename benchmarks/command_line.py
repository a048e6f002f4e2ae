"""What commands cost beyond starting the interpreter, and how soon one gives up on its remote."""

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
# A remote that nobody reaches is noticed by then, however much a command would ask of it.
UNREACHABLE_S = 1.5
ROUNDS = 25
_NAMES = 100
_RUN = "benchmark/command/one"
# Nobody listens on that port, and nobody has that name.
_NOWHERE = ("127.0.0.1:1", "no-such-host.invalid")
_TRIES = 5
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
    # Whatever else the machine does only adds to it.
    floor = min(times[0])
    for what, taken in zip(commands, times[1:], strict=True):
        yield Line(
            f"swampstore {what} above python -c pass",
            (min(taken) - floor) * 1000,
            "ms",
            RUN_LIMIT_MS if what.startswith("run") else LIMIT_MS,
            f"{min(taken) * 1000:.0f} and {floor * 1000:.0f} ms, the least of {ROUNDS} in turns,"
            f" medians {median_ms(taken):.0f} and {median_ms(times[0]):.0f},"
            f" among {shape.artifacts:,} artifacts, bytecode compiled before",
        )
    for address in _NOWHERE:
        taken = [seconds(_put_nowhere, program, place, address) for _ in range(_TRIES)]
        yield Line(
            f"swampstore data put, if its remote is at {address}",
            statistics.median(taken),
            "s",
            UNREACHABLE_S,
            f"the whole command, the median of {_TRIES}",
        )


def _put_nowhere(program: str, place: str, address: str) -> None:
    """Save something whose remote cannot be reached: it is safe here, and the status says so."""
    url = f"s3://bucket?endpoint=http://{address}&region=us-east-1"
    key = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    environ = {**os.environ, **key, "SWAMP_HOME": f"{place}-home", "SWAMP_DATASTORE": url}
    command = [program, "data", "put", "--repo", place, _RUN, "state", "--json-value", "1"]
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    if b"could not be reached" not in done.stderr:
        raise RuntimeError(f"{address} was reached: {done.stderr!r}")


def _in_turns(commands: Sequence[list[str]]) -> list[list[float]]:
    for command in commands:
        _run(command)
    rounds = [[seconds(_run, command) for command in commands] for _ in range(ROUNDS)]
    return [list(times) for times in zip(*rounds, strict=True)]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
