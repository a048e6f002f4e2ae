"""`runs cancel` on a workflow that runs in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.runs.outputs import Outputs
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
