"""Simulated fleets, in a process of their own: they take the place of its operating system."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))


def fleet(*args: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.fleet", *args]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, env=environ, cwd=root, capture_output=True, text=True, check=False, timeout=300
    )


def test_nothing_that_was_acknowledged_is_lost_and_nothing_deleted_comes_back() -> None:
    ended = fleet("--seed", "short", "--steps", "1500", "--budget", "20")
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr
    assert ", 0 violations" in ended.stdout or "\n0 violations" in ended.stdout


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_went_wrong_once_goes_well_now(path: Path) -> None:
    ended = fleet("--replay", str(path))
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr


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
