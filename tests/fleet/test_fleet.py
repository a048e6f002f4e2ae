"""Simulated fleets, in a process of their own: they take the place of its operating system."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
ROOT = Path(__file__).parents[2]
ENVIRON = {**os.environ, "PYTHONHASHSEED": "0"}
FLEET = (sys.executable, "-m", "tests.fleet")
_PATIENCE = 300


def fleet(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FLEET, *args],
        env=ENVIRON,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )


@pytest.fixture(scope="module")
def violation_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """Return what tells how a script ends: one process for all, since its start takes longest."""
    told = tmp_path_factory.mktemp("fleet") / "told"
    with (
        told.open("w") as errors,
        subprocess.Popen(
            [*FLEET, "--replay-each"],
            env=ENVIRON,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def violation(path: Path) -> str:
            watch = threading.Timer(_PATIENCE, process.kill)
            watch.start()
            asked.write(f"{path}\n")
            asked.flush()
            answer = answers.readline()
            watch.cancel()
            return str(json.loads(answer)) if answer else f"it ended: {told.read_text()[-3000:]}"

        yield violation
        asked.close()


def test_nothing_that_was_acknowledged_is_lost_and_nothing_deleted_comes_back() -> None:
    ended = fleet("--seed", "short", "--steps", "1500", "--budget", "20")
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr
    assert ", 0 violations" in ended.stdout or "\n0 violations" in ended.stdout


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_went_wrong_once_goes_well_now(
    path: Path, violation_of: Callable[[Path], str]
) -> None:
    violation = violation_of(path)
    assert not violation, violation + fleet("--replay", str(path)).stdout[-3000:]


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(fleet("--show", "same").stdout)
    first, second = (fleet("--replay", str(script)).stdout for _ in range(2))
    assert len(first.splitlines()) > 500
    assert _without_places(first) == _without_places(second)


# Files of events say which copy of a repository wrote them, which is told by where it is.
_PLACE_OF_EVENTS = re.compile(r"-[0-9a-f]{4}-(?=[0-9a-f]{8}\.jsonl)")


def _without_places(text: str) -> list[str]:
    lines = (line.partition("/dev/")[0].partition("/tmp/")[0] for line in text.splitlines())
    return [_PLACE_OF_EVENTS.sub("-....-", line) for line in lines]
