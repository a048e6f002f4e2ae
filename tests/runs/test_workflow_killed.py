"""Workflow runs that are killed at random moments end, resumed, like runs that nobody disturbed.

`make stress` does the same with a hundred seeds.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.markdown_pages import ROOT


@pytest.mark.parametrize("first", [0, 5])
def test_a_killed_workflow_ends_with_the_same_data_as_an_undisturbed_one(first: int) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.killing_workflows"),
            *("--seeds", "5", "--first", str(first)),
        ],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
