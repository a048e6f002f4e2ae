"""Running a command as a method of a model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.redaction import Redactor
from swampstore.runs.capture import Capture, RunLog
from swampstore.runs.method_request import MethodRequest, MethodResult, RunListener
from swampstore.runs.method_run import run_method
from swampstore.runs.outputs import LIVE_LOGS, Outputs
from swampstore.runs.writing import WorkflowStep
from tests.support.command_line import CommandLine

MODEL = "demo/host/web"


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


class Hearing(RunListener):
    """Remembers what a run shows."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, bytes]] = []

    def out(self, stream: str, data: bytes) -> None:
        self.shown.append((stream, data))


def run(repo: Repo, *command: str, **details: object) -> MethodResult:
    request = MethodRequest(MODEL, "scan", command=command, **details)  # type: ignore[arg-type]
    return run_method(repo, request)


def test_what_a_command_prints_as_json_is_its_result(repo: Repo) -> None:
    result = run(repo, "echo", '{"disk": 81}')
    assert (result.status, result.exit_code) == ("succeeded", 0)
    assert repo.latest(MODEL, "result").json() == {"disk": 81}
    log = repo.latest(MODEL, "log")
    assert log.text() == '{"disk": 81}\n'
    assert (log.content_type, log.metadata.streaming) == ("text/plain", True)


def test_a_command_that_prints_something_else_has_an_account_of_it_as_result(repo: Repo) -> None:
    run(repo, "sh", "-c", "echo out; echo err >&2; exit 3")
    found = repo.latest(MODEL, "result").json()
    assert (found["exitCode"], found["stdout"], found["stderr"]) == (3, "out\n", "err\n")
    assert found["command"] == "sh -c 'echo out; echo err >&2; exit 3'"


def test_a_run_leaves_one_record_that_can_be_read_back(repo: Repo) -> None:
    result = run(repo, "false", inputs={"region": "eu"})
    assert (result.status, result.exit_code) == ("failed", 1)
    (found,) = Outputs(repo).all()
    assert found == result.output
    assert Outputs(repo).find(found.id[:8]) == found
    assert found.command == ["false"]
    assert found.extra["inputs"] == {"region": "eu"}
    assert [one.name for one in found.artifacts] == ["result", "log"]
    assert len(found.provenance.definition_hash) == 64
    assert found.error == {"message": "the command ended with exit status 1: false"}
    assert [*Outputs(repo).all(status="succeeded")] == []


def test_the_record_names_the_commit_of_the_repository(repo: Repo, repo_dir: Path) -> None:
    git = ["git", "-C", str(repo_dir), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert run(repo, "true").output.extra["gitCommit"] == commit.stdout.strip()
    subprocess.run([*git, "pack-refs", "--all"], check=True)
    assert run(repo, "true").output.extra["gitCommit"] == commit.stdout.strip()


def test_a_command_that_is_not_there_is_a_failed_run(repo: Repo) -> None:
    result = run(repo, "no-such-command")
    assert (result.status, result.exit_code) == ("failed", 127)
    assert result.output.error == {"message": "there is no command 'no-such-command'"}


def test_output_comes_while_the_command_runs_and_streams_stay_apart(repo: Repo) -> None:
    heard = Hearing()
    request = MethodRequest(MODEL, "scan", command=["sh", "-c", "echo a; sleep 0.1; echo b >&2"])
    run_method(repo, request, listener=heard)
    assert heard.shown == [("stdout", b"a\n"), ("stderr", b"b\n")]


def test_a_secret_that_is_split_over_both_streams_is_never_put_together(repo: Repo) -> None:
    log = RunLog(repo, "split")
    shown: list[bytes] = []
    with Capture(log, Redactor(["hunter2"]), lambda _, data: shown.append(data)) as capture:
        for stream, data in (
            ("stdout", b"it is hunt"),
            ("stderr", b"er2, then"),
            ("stdout", b"\n"),
        ):
            capture.take(stream, data)
        capture.finish()
    assert b"hunter2" not in b"".join(shown)
    assert b"hunter2" not in Path(log.path).read_bytes()


def test_output_of_any_size_is_kept(repo: Repo) -> None:
    run(repo, "sh", "-c", "yes 0123456789 | head -c 90000000")
    assert repo.latest(MODEL, "log").size == 90_000_000
    account = repo.latest(MODEL, "result").json()
    assert account["stdoutTruncated"] is True
    assert len(account["stdout"]) == 1 << 20


def test_what_a_command_leaves_running_is_not_waited_for(repo: Repo) -> None:
    result = run(repo, "sh", "-c", "sleep 30 & echo started")
    assert result.status == "succeeded"
    assert result.output.duration_ms is not None
    assert result.output.duration_ms < 5000


def test_a_command_that_takes_too_long_is_ended(repo: Repo) -> None:
    result = run(repo, "sleep", "30", timeout=0.2)
    assert result.status == "failed"
    assert "took longer than 0.2 seconds" in (result.output.error or {})["message"]


def test_a_command_finds_its_inputs_and_who_runs_it_in_variables(repo: Repo) -> None:
    script = 'echo "$SWAMPSTORE_MODEL $SWAMPSTORE_METHOD $SWAMPSTORE_INPUT_MAX_AGE"'
    run(repo, "sh", "-c", script, inputs={"max-age": 3})
    assert repo.latest(MODEL, "log").text() == "demo/host/web scan 3\n"


def test_no_log_is_left_where_it_was_while_the_run_went_on(repo: Repo, repo_dir: Path) -> None:
    run(repo, "echo", "x")
    assert [*(repo_dir / ".swamp" / LIVE_LOGS).iterdir()] == []


def test_what_a_model_wrote_without_a_definition_is_not_left_over(cli: CommandLine) -> None:
    cli("run", MODEL, "scan", "--", "true")
    assert cli("data", "prune", "--dry-run", "--json").json["modelsReclaimed"] == 0


def test_a_failed_run_that_is_to_be_rolled_back_leaves_its_record_and_log_only(repo: Repo) -> None:
    run(repo, "echo", "first")
    result = run(repo, "sh", "-c", "echo second; exit 1", rollback_on_failure=True)
    assert result.status == "failed"
    assert result.artifacts == ()
    assert result.output.artifacts == ()
    assert repo.list_versions(MODEL, "log") == [1]
    path = Outputs(repo).log_path(result.output)
    assert path is not None
    assert Path(path).read_text() == "second\n"
    run(repo, "echo", "third", rollback_on_failure=True)
    assert repo.latest(MODEL, "log").text() == "third\n"


def test_a_run_with_the_kind_delete_leaves_deletion_markers(repo: Repo) -> None:
    run_method(repo, MethodRequest(MODEL, "create", command=["echo", '{"id": 7}']))
    run_method(repo, MethodRequest(MODEL, "delete", command=["echo", '{"gone": true}']))
    newest = repo.versions(MODEL, "result")[0]
    assert newest.is_deleted
    assert newest.json()["deletedByMethod"] == "delete"
    refused = run_method(repo, MethodRequest(MODEL, "get", command=["echo", "{}"]))
    assert refused.status == "failed"
    assert "was deleted" in (refused.output.error or {})["message"]
    assert run_method(repo, MethodRequest(MODEL, "create", command=["true"])).status == "succeeded"


def test_tags_of_every_layer_are_there_and_the_later_one_wins(repo: Repo) -> None:
    step = WorkflowStep("w-1", "r-1", "nightly", "scan", "measure", tags={"env": "dev", "a": "1"})
    overrides = [
        {"specName": "result", "vary": ["host"], "tags": {"env": "prod"}, "lifetime": "7d"}
    ]
    run(
        repo,
        *("echo", "{}"),
        inputs={"host": {"name": "web/1"}},
        tags={"a": "2"},
        step=step,
        overrides=overrides,
    )
    found = repo.latest(MODEL, "result-web--1")
    assert found.tags == {
        "type": "resource",
        "specName": "result",
        "modelName": "web",
        "source": "step-output",
        "workflow": "nightly",
        "workflowId": "w-1",
        "workflowRunId": "r-1",
        "job": "scan",
        "step": "measure",
        "env": "prod",
        "a": "2",
    }
    assert found.metadata.lifetime == "7d"
    assert (found.metadata.owner.type, found.metadata.owner.ref) == ("model-method", "web")
    assert found.metadata.owner.workflow_run_id == "r-1"
    (output,) = Outputs(repo).all()
    assert (output.provenance.triggered_by, output.provenance.step_name) == ("workflow", "measure")


# On the command line -------------------------------------------------------------------------


def test_the_output_of_a_command_is_passed_through_with_its_exit_status(cli: CommandLine) -> None:
    outcome = cli("run", MODEL, "scan", "--", "sh", "-c", "echo out; echo err >&2; exit 5")
    assert (outcome.status, outcome.out) == (5, "out\n")
    assert outcome.err.startswith("err\ndemo/host/web scan failed in ")


def test_with_json_there_is_one_document_and_the_output_goes_to_standard_error(
    cli: CommandLine,
) -> None:
    outcome = cli("run", MODEL, "scan", "--json", "--tag", "env=prod", "--", "echo", '{"a": 1}')
    document = outcome.json
    assert outcome.err == '{"a": 1}\n'
    assert document["status"] == "succeeded"
    assert document["dataArtifacts"][0]["attributes"] == {"a": 1}
    assert cli("data", "search", "result", "--tag", "env=prod", "--json").json["total"] == 1
    failed = cli("run", MODEL, "scan", "--json", "--", "false")
    assert failed.status == 1
    assert json.loads(failed.stdout)["error"].startswith("the command ended with exit status 1")


def test_run_gc_is_still_there(cli: CommandLine) -> None:
    assert "outputsDeleted" in cli("run", "gc", "--dry-run", "--json").json
    assert "outputsDeleted" in cli("run", "--json", "gc", "--dry-run").json
    assert cli("run", "a/gc", "scan", "--", "true").status == 0


def test_a_model_that_nobody_knows_is_an_error_that_says_what_there_is(cli: CommandLine) -> None:
    cli("run", MODEL, "scan", "--", "true")
    error = cli("run", "wep", "scan", "--json").error
    assert error["code"] == "model_not_found"
    assert "web" in error["hint"]
    error = cli("run", MODEL, "scan", "--json").error
    assert error["code"] == "model_type_not_found"
