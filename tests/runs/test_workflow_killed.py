"""Workflow runs that are killed at random moments end, resumed, like runs that nobody disturbed.

`make stress` does the same with a hundred seeds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swampstore import init_repo
from swampstore.runs.errors import NotResumableError
from swampstore.runs.workflow.record import RUNNING, RunRecord
from swampstore.runs.workflow.resume import carrying_out, check_resumable
from tests.support.forked import in_child
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


def test_a_command_that_was_about_to_start_does_not_keep_a_killed_run_going(tmp_path: Path) -> None:
    with init_repo(tmp_path) as repo:
        record = RunRecord("r1", "w1", "w", "2026-01-01T00:00:00.000Z", [], status=RUNNING)

        reader, writer = os.pipe()

        def be_killed_while_a_command_starts() -> None:
            os.write(writer, b"%d" % os.getpid())
            with carrying_out(repo, record):
                if os.fork() == 0:
                    time.sleep(0.5)  # as between fork and exec: all that was open still is
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(be_killed_while_a_command_starts)
        record.pid = int(os.read(reader, 20))
        os.close(reader)
        os.close(writer)
        check_resumable(repo, record)
        with carrying_out(repo, record):
            record.pid = os.getpid()
            with pytest.raises(NotResumableError, match="another process"):
                check_resumable(repo, record)
