"""What people wait for: the processor time of whole commands, and of other tools doing the nearest.

Processor time, because it is nearly the same on a busy machine. `git` is measured where it is
installed; `sqlite-utils` and `dvc` are installed into an environment of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import peers
import sample
from measuring import Line, Setting, compile_package, say
from swampstore import init_repo

ARTIFACTS = 5_000
MANY = 100_000
ROUNDS = 5
_NAMES = 100
_FLAT_MB = 100
_TABLE_RATIO = 3


class Cost(NamedTuple):
    """What a command took: milliseconds of processor time, and the most memory in megabytes."""

    ms: float
    mb: float


def measure(setting: Setting) -> Iterator[Line]:
    """Run commands among 5,000 artifacts, then among 100,000."""
    compile_package()
    program = f"{os.path.dirname(sys.executable)}/swampstore"
    place = f"{setting.directory}/few"
    shape = sample.Shape(setting.scaled(ARTIFACTS // _NAMES), _NAMES)
    _make(place, shape)
    model, name = sample.model_name(shape.models // 2), sample.names(shape)[7]
    note = f"among {shape.artifacts:,} artifacts, best of {ROUNDS}"
    for limit, command in [
        (110, ["--version"]),
        (110, ["data", "get", model, name]),
        (110, ["ls"]),
        (110, ["status"]),
        (150, ["data", "put", "benchmark/felt/one", "value", "--json-value", "1"]),
        (250, ["data", "query", "attributes.fifth == true"]),
        (300, ["data", "gc", "--dry-run"]),
        (300, ["data", "query", "true", "--json"]),
        (600, ["doctor"]),
    ]:
        best = min(_cost([program, *command], place) for _ in range(ROUNDS))
        yield Line(f"swampstore {' '.join(command)}"[:60], best.ms, "ms", limit, note)
    yield from _peers(place, shape, note)
    yield from _many(setting, program)


def _many(setting: Setting, program: str) -> Iterator[Line]:
    place = f"{setting.directory}/many"
    shape = sample.Shape(setting.scaled(MANY // _NAMES), _NAMES)
    _make(place, shape)
    note = f"among {shape.artifacts:,} artifacts"
    costs = {
        words: _cost([program, *words.split()], place)
        for words in (
            "data query true --format jsonl",
            "data query true --format table",
            "data query true --json",
            "data gc --dry-run",
            "doctor",
        )
    }
    for words, cost in costs.items():
        yield Line(f"swampstore {words}", cost.ms / 1000, "s", None, note)
        yield Line(f"memory of {words}", cost.mb, "MB", _FLAT_MB, note)
    lines, table = (costs[f"data query true --format {form}"].ms for form in ("jsonl", "table"))
    yield Line("a table, compared with JSON lines", table / lines, "times", _TABLE_RATIO, note)


def _peers(place: str, shape: sample.Shape, note: str) -> Iterator[Line]:
    """Let others do the nearest thing to the same files, or to the same rows."""
    data = f"{place}/.swamp/data"
    path = f"{sample.model_ref(shape, shape.models // 2)}/{sample.names(shape)[7]}/1/raw"
    tools = peers.environment("bench-tools.txt") / "bin"
    database = f"{place}/.swamp/swampstore.db"
    sql = "select * from catalog where is_latest = 1"
    rows = [f"{tools}/sqlite-utils", "query", database, sql]
    yield _nearest("sqlite-utils query (query --json)", rows, data, note)
    yield from _dvc(f"{tools}/dvc", data, f"{place}/dvc", path, note)
    if shutil.which("git") is None:
        say("git is not installed: it is left out")
        return
    # Else git packs what was committed beside what is measured here.
    alone = "config gc.auto 0"
    for words in ("init -q", alone, "add .", "-c user.name=b -c user.email=b@b commit -q -m all"):
        _run(["git", *words.split()], data)
    for what, command in {
        "git show (data get)": ["git", "show", f"HEAD:{path}"],
        "git status (status)": ["git", "status", "--short"],
        "git ls-files (query)": ["git", "ls-files"],
        "git grep (query on attributes)": ["git", "grep", "-l", '"fifth": true'],
        "git fsck (doctor)": ["git", "fsck"],
    }.items():
        yield _nearest(what, command, data, note)


def _dvc(program: str, data: str, place: str, path: str, note: str) -> Iterator[Line]:
    """Let dvc track a copy of the files as one directory, then change one of them."""
    shutil.copytree(data, f"{place}/data")
    for words in ("init -q --no-scm", "config core.analytics false", "add -q data"):
        _run([program, *words.split()], place)
    yield _nearest("dvc --version", [program, "--version"], place, note)
    yield _nearest("dvc status (status)", [program, "status"], place, note)
    with open(f"{place}/data/{path}", "a") as file:
        file.write(" ")
    cost = _cost([program, "add", "-q", "data"], place)
    yield Line("dvc add (data put)", cost.ms, "ms", None, f"{note}; this one once")


def _nearest(what: str, command: list[str], directory: str, note: str) -> Line:
    best = min(_cost(command, directory) for _ in range(ROUNDS))
    return Line(what, best.ms, "ms", None, note)


def _run(command: list[str], directory: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def _make(place: str, shape: sample.Shape) -> None:
    say(f"making a repository of {shape.artifacts:,} artifacts")
    with init_repo(place) as repo:
        sample.write_files(repo.tree, shape, _contents())
        repo.rebuild_catalog()
    os.sync()


def _contents() -> Iterator[bytes]:
    number = 0
    while True:
        yield json.dumps({"status": "running", "number": number, "fifth": number % 5 == 0}).encode()
        number += 1


def _cost(command: list[str], directory: str) -> Cost:
    process = subprocess.Popen(
        command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost((used.ru_utime + used.ru_stime) * 1000, used.ru_maxrss / 1024)
