"""A workflow that somebody ends: with `runs cancel` from another process, or with a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.runs.outputs import Outputs
from swampstore.runs.processes import Interruption
from swampstore.runs.workflow import runner
from tests.support.command_line import CommandLine, environment

WORKFLOW = """
name: long
jobs:
  - name: work
    steps:
      - name: wait
        task:
          type: model_method
          modelType: command/shell
          modelName: waits
          methodName: execute
          inputs: {run: "touch begun; exec sleep 60"}
      - name: after
        dependsOn: [{step: wait, condition: {type: succeeded}}]
        task:
          type: model_method
          modelType: command/shell
          modelName: after
          methodName: execute
          inputs: {run: touch after}
"""


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if path.exists():
            return
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError(f"{path} did not come")


def test_a_workflow_is_cancelled_from_another_shell(
    repo: Repo, repo_dir: Path, cli: CommandLine
) -> None:
    (repo_dir / "workflows").mkdir()
    (repo_dir / "workflows" / "long.yaml").write_text(WORKFLOW)
    command = [sys.executable, "-m", "swampstore.cli", "workflow", "run", "long"]
    with subprocess.Popen(
        command,
        env=environment(repo_dir),
        cwd=repo_dir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        wait_for(repo_dir / "begun", process)
        listed = cli("runs", "list", "--json").json["runs"]
        (run,) = [one for one in listed if one["kind"] == "workflow"]
        assert cli("runs", "cancel", run["id"]).status == 0
        told, _ = process.communicate(timeout=30)
    assert process.returncode == 130, told
    (found,) = cli("workflow", "history", "--json").json["runs"]
    assert found["status"] == "cancelled"
    (output,) = Outputs(repo).all()
    assert output.status == "cancelled"
    assert not (repo_dir / "after").exists()
    assert {one["status"] for one in cli("runs", "list", "--json").json["runs"]} == {"cancelled"}


def test_a_signal_that_another_thread_was_given_is_heard() -> None:
    wish = Interruption()
    heard: list[bool] = []

    def work() -> None:
        time.sleep(0.3)  # by then the main thread waits
        # As if the kernel had chosen this thread, which happens while it starts a command.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        heard.append(wish.wait(10))

    before = signal.signal(signal.SIGINT, lambda number, _: wish.strike(number))
    try:
        runner._watched(work, wish)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [True]
