"""A process killed at any line leaves the old state or the new one, on disk and in the catalog.

What comes from the remote in many pieces may stop between two of them, each old or new.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.killing import OPERATIONS, RESUMABLE

# What a kill leaves behind is not a matter of the disk, and memory is much faster.
MEMORY = "/dev/shm"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kill_at_any_line_leaves_the_old_state_or_the_new_one(
    operation: str,
) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as scratch:
        _check(operation, scratch)


@pytest.mark.parametrize("operation", RESUMABLE)
def test_a_kill_at_any_line_leaves_what_the_next_run_completes(operation: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as scratch:
        _check(operation, scratch)


def _check(operation: str, scratch: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killing", operation, scratch],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
