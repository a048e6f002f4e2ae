"""Workflow runs: order, conditions, failures, retries, approvals, nesting; in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.layout import ModelRef
from swampstore.marker import update_marker
from swampstore.runs.errors import NotResumableError
from swampstore.runs.processes import Interruption
from swampstore.runs.workflow import approval
from swampstore.runs.workflow.events import Event, WorkflowListener
from swampstore.runs.workflow.files import Workflows
from swampstore.runs.workflow.preview import problems
from swampstore.runs.workflow.record import LiveRecord, RunRecord, RunRecords
from swampstore.runs.workflow.resume import find_run
from swampstore.runs.workflow.runner import (
    RunOptions,
    WorkflowResult,
    resume_workflow,
    run_workflow,
)
from tests.support.command_line import CommandLine
from tests.support.read_only import read_only


class Heard(WorkflowListener):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.output = b""

    def event(self, event: Event) -> None:
        self.events.append(event)

    def out(self, event: Event, stream: str, data: bytes) -> None:
        self.output += data

    def of(self, kind: str) -> list[str]:
        return [event.step or event.job for event in self.events if event.kind == kind]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    (tmp_path / "repo").mkdir()
    monkeypatch.chdir(tmp_path / "repo")
    with init_repo(tmp_path / "repo") as repo:
        yield repo


def command(text: str, model: str = "host/a", method: str = "look") -> dict[str, Any]:
    return {
        "type": "model_method",
        "modelIdOrName": model,
        "methodName": method,
        "command": text,
    }


def write(repo: Repo, name: str, jobs: list[Any], **members: Any) -> None:
    import json

    directory = Path(repo.config.repo_dir) / "workflows"
    directory.mkdir(exist_ok=True)
    document = {"name": name, "jobs": jobs, **members}
    (directory / f"workflow-{name}.yaml").write_text(json.dumps(document))


def run(repo: Repo, name: str = "w", heard: Heard | None = None, **members: Any) -> WorkflowResult:
    options = RunOptions(listener=heard or Heard())
    return run_workflow(repo, Workflows(repo).require(name), options=options, **members)


def steps(record: RunRecord) -> dict[str, str]:
    return {step.name: step.status for _, step in record.steps()}


def step(name: str, text: str = "echo '{}'", **members: Any) -> dict[str, Any]:
    return {"name": name, "task": command(text, model=f"host/{name}"), **members}


def after(name: str, condition: str = "succeeded") -> list[Any]:
    return [{"step": name, "condition": {"type": condition}}]


def test_steps_run_in_their_order_and_leave_data_with_their_name(repo: Repo) -> None:
    write(
        repo,
        "w",
        [{"name": "j", "steps": [step("b", dependsOn=after("a")), step("a", "echo '{\"n\": 1}'")]}],
        tags={"env": "prod"},
    )
    heard = Heard()
    result = run(repo, heard=heard, tags={"who": "me"})
    assert result.exit_code == 0
    assert heard.of("stepStarted") == ["a", "b"]
    found = repo.latest("host/a", "result")
    assert found.json() == {"n": 1}
    assert (found.row.step_name, found.row.job_name) == ("a", "j")
    assert found.row.workflow_run_id == result.record.id
    tags = found.metadata.tags
    assert (tags["env"], tags["who"], tags["workflow"]) == ("prod", "me", "w")
    saved = RunRecords(repo).find(result.record.id)
    assert saved.to_json() == result.record.to_json()
    assert saved.job("j").step("a").data_artifacts
    log = Path(repo.config.repo_dir) / str(saved.log_file)
    assert '{"n": 1}' in log.read_text()


def test_a_failure_stops_the_job_and_runs_what_is_there_for_it(repo: Repo) -> None:
    write(
        repo,
        "w",
        [
            {
                "name": "j",
                "steps": [
                    step("bad", "exit 3"),
                    step("good"),
                    step("next", dependsOn=after("good")),
                    step("needs", dependsOn=after("bad")),
                    step("cleanup", dependsOn=after("bad", "failed")),
                    step("told", dependsOn=after("cleanup")),
                    step("finally", dependsOn=after("bad", "completed")),
                ],
            },
            {"name": "later", "dependsOn": ["j"], "steps": [step("x")]},
            {
                "name": "sorry",
                "dependsOn": [{"job": "j", "condition": "failed"}],
                "steps": [step("y")],
            },
        ],
    )
    record = run(repo).record
    assert record.status == "failed"
    assert steps(record) == {
        "bad": "failed",
        "good": "succeeded",
        "next": "pending",
        "needs": "skipped",
        "cleanup": "succeeded",
        "told": "succeeded",
        "finally": "succeeded",
        "x": "skipped",
        "y": "succeeded",
    }
    document = record.to_json()
    assert document["failedStep"] == "bad"
    assert "exit status 3" in document["failureReason"]


def test_a_failure_that_is_allowed_stops_nothing(repo: Repo) -> None:
    write(
        repo,
        "w",
        [
            {
                "name": "j",
                "steps": [
                    step("bad", "exit 3", allowFailure=True),
                    step("next", dependsOn=after("bad", "completed")),
                ],
            }
        ],
    )
    record = run(repo).record
    assert record.status == "succeeded"
    assert steps(record) == {"bad": "failed", "next": "succeeded"}
    assert record.job("j").step("bad").allowed_failure is True


def test_a_step_is_tried_again_and_each_try_leaves_an_output(repo: Repo, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    text = f"test -e {flag} || {{ touch {flag}; exit 1; }}"
    write(
        repo,
        "w",
        [{"name": "j", "steps": [step("a", text, retry={"attempts": 3, "backoff": "10ms"})]}],
    )
    heard = Heard()
    record = run(repo, heard=heard).record
    assert record.status == "succeeded"
    found = record.job("j").step("a")
    assert (found.attempt, len(found.outputs or [])) == (2, 2)
    assert heard.of("attemptFailed") == ["a"]
    assert repo.list_versions("host/a", "result") == [1, 2]


def test_a_step_has_no_more_time_than_it_is_given(repo: Repo) -> None:
    write(repo, "w", [{"name": "j", "steps": [step("a", "sleep 20", timeout="200ms")]}])
    record = run(repo).record
    assert steps(record) == {"a": "failed"}
    assert "longer than" in str(record.job("j").step("a").error)


def test_members_of_a_level_run_at_once_up_to_the_limit(repo: Repo) -> None:
    text = "echo $$ > running.$$; ls running.* | wc -l; sleep 0.4; rm running.$$"
    members = [step(f"s{number}", text) for number in range(4)]
    write(repo, "w", [{"name": "j", "concurrency": 2, "steps": members}])
    run(repo)
    seen = [int(repo.latest(f"host/s{n}", "result").json()["stdout"]) for n in range(4)]
    assert max(seen) == 2


def test_each_item_gets_a_step_and_what_waits_for_them_waits_for_all(repo: Repo) -> None:
    each = {
        "name": "m",
        "forEach": {"item": "host", "in": "${{ inputs.hosts }}"},
        "task": {
            **command("echo '{}'"),
            "modelIdOrName": "host/${{ self.host }}",
        },
    }
    write(
        repo,
        "w",
        [{"name": "j", "steps": [each, step("end", dependsOn=after("m"))]}],
        inputs={"type": "object", "properties": {"hosts": {"type": "array"}}},
    )
    record = run(repo, inputs={"hosts": ["x", "y"]}).record
    assert steps(record) == {"m-x": "succeeded", "m-y": "succeeded", "end": "succeeded"}
    assert repo.latest("host/x", "result").row.step_name == "m-x"
    none = run(repo, inputs={"hosts": []}).record
    assert steps(none) == {"end": "succeeded"}
    assert none.status == "succeeded"


def test_a_guard_that_is_true_skips_its_step(repo: Repo) -> None:
    write(
        repo,
        "w",
        [
            {
                "name": "j",
                "steps": [
                    step("a", guard="inputs.quick"),
                    step("b", guard="${{ !inputs.quick }}"),
                    step("c", guard="nonsense("),
                ],
            }
        ],
        inputs={"type": "object", "properties": {"quick": {"type": "boolean"}}},
    )
    record = run(repo, inputs={"quick": True}).record
    assert steps(record) == {"a": "skipped", "b": "succeeded", "c": "failed"}
    assert record.job("j").step("a").reason == "guarded"


def test_a_step_whose_guard_could_not_be_asked_is_guarded_when_the_run_goes_on(repo: Repo) -> None:
    guard = "data.latest('host/x', 'state').attributes.done"
    write(repo, "w", [{"name": "j", "steps": [step("a", guard=guard)]}])
    record = run(repo).record
    assert steps(record) == {"a": "failed"}
    repo.artifacts.save("host/x", "state", {"done": True})
    record = resume_workflow(repo, record.id).record
    assert steps(record) == {"a": "skipped"}
    assert repo.catalog.names(ModelRef("host", "a")) == []


def test_a_step_that_was_killed_before_its_guard_was_asked_is_guarded(repo: Repo) -> None:
    write(repo, "w", [{"name": "j", "steps": [step("a", guard="true")]}])
    record = run(repo).record
    found = record.job("j").step("a")
    found.status, found.reason, found.model = "running", None, "host/a"
    record.status = record.job("j").status = "running"
    record.pid = 4_000_000
    RunRecords(repo).save(record)
    record = resume_workflow(repo, record.id).record
    assert steps(record) == {"a": "skipped"}


def test_an_assertion_sees_the_data_of_steps_before_it(repo: Repo) -> None:
    check = {
        "name": "check",
        "dependsOn": ["a"],
        "task": {
            "type": "assert",
            "expr": "data.latest('host/a', 'result').attributes.n == 1",
            "message": "not one",
        },
    }
    write(repo, "w", [{"name": "j", "steps": [step("a", "echo '{\"n\": 2}'"), check]}])
    record = run(repo).record
    found = record.job("j").step("check")
    assert (found.status, found.error) == ("failed", "not one")
    assert found.assert_result is not None
    assert found.assert_result["passed"] is False


def test_a_run_waits_for_approval_and_goes_on_after_it(repo: Repo) -> None:
    ask = {"name": "ask", "dependsOn": ["a"], "task": {"type": "manual_approval", "prompt": "Go?"}}
    write(repo, "w", [{"name": "j", "steps": [step("a"), ask, step("b", dependsOn=after("ask"))]}])
    result = run(repo)
    record = result.record
    assert (record.status, result.exit_code) == ("suspended", 76)
    assert steps(record) == {"a": "succeeded", "ask": "waiting_approval", "b": "pending"}
    assert resume_workflow(repo, record.id).record.status == "suspended"
    record = RunRecords(repo).find(record.id)
    approval.decide(
        record, None, approved=True, by="ana", at="2026-05-14T20:19:51.042Z", reason=None
    )
    RunRecords(repo).save(record)
    record = resume_workflow(repo, record.id).record
    assert record.status == "succeeded"
    assert repo.list_versions("host/a", "result") == [1]
    decision = record.job("j").step("ask").approval_decision
    assert decision is not None
    assert decision["decidedBy"] == "ana"


def test_a_rejected_step_fails(repo: Repo) -> None:
    ask = {"name": "ask", "task": {"type": "manual_approval", "prompt": "Go?"}}
    write(repo, "w", [{"name": "j", "steps": [ask]}])
    record = run(repo).record
    approval.decide(
        record, "ask", approved=False, by="bob", at="2026-05-14T20:19:51.042Z", reason="no"
    )
    RunRecords(repo).save(record)
    record = resume_workflow(repo, record.id).record
    assert record.status == "failed"
    assert record.job("j").step("ask").error == "rejected by bob: no"


def test_a_workflow_in_a_workflow_has_a_record_of_its_own(repo: Repo) -> None:
    nested = {"name": "call", "task": {"type": "workflow", "workflowIdOrName": "inner"}}
    write(repo, "w", [{"name": "j", "steps": [nested]}])
    write(repo, "inner", [{"name": "k", "steps": [step("a", "exit 1")]}])
    record = run(repo).record
    assert steps(record) == {"call": "failed"}
    child = RunRecords(repo).find(str(record.job("j").step("call").child))
    assert child.parent == {"runId": record.id, "job": "j", "step": "call"}
    assert child.status == "failed"
    write(repo, "inner", [{"name": "k", "steps": [step("a")]}])
    assert resume_workflow(repo, record.id).record.status == "succeeded"
    assert RunRecords(repo).find(child.id).status == "succeeded"


def test_a_workflow_is_not_part_of_itself(repo: Repo) -> None:
    nested = {"name": "call", "task": {"type": "workflow", "workflowIdOrName": "w"}}
    write(repo, "w", [{"name": "j", "steps": [nested]}])
    record = run(repo).record
    assert "part of itself" in str(record.job("j").step("call").error)


def test_a_failed_run_goes_on_from_what_failed(repo: Repo, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    members = [
        step("a"),
        step("b", f"test -e {flag}", dependsOn=after("a")),
        step("c", dependsOn=after("b")),
    ]
    write(repo, "w", [{"name": "j", "steps": members}])
    record = run(repo).record
    assert steps(record) == {"a": "succeeded", "b": "failed", "c": "skipped"}
    flag.touch()
    again = resume_workflow(repo, record.id[:8]).record
    assert steps(again) == {"a": "succeeded", "b": "succeeded", "c": "succeeded"}
    assert repo.list_versions("host/a", "result") == [1]
    with pytest.raises(NotResumableError, match="has succeeded"):
        resume_workflow(repo, record.id)
    resume_workflow(repo, record.id, from_step="b")
    assert [len(repo.list_versions(f"host/{name}", "result")) for name in "abc"] == [1, 3, 2]
    with pytest.raises(NotResumableError, match="no step 'z'"):
        resume_workflow(repo, record.id, from_step="z")


def test_a_cancelled_run_says_so_and_can_be_resumed(repo: Repo, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    write(
        repo,
        "w",
        [
            {
                "name": "j",
                "steps": [
                    step("a", f"echo begun; test -e {flag} || sleep 30"),
                    step("b", dependsOn=after("a")),
                ],
            }
        ],
    )
    cancelled = Interruption()
    options = RunOptions(cancelled=cancelled)
    threading.Timer(0.7, cancelled.strike).start()
    start = time.monotonic()
    result = run_workflow(repo, Workflows(repo).require("w"), options=options)
    assert time.monotonic() - start < 10
    assert (result.record.status, result.exit_code) == ("cancelled", 130)
    assert "cancel_reason" in (result.record.tags or {})
    flag.touch()
    record = resume_workflow(repo, result.record.id).record
    assert record.status == "succeeded"
    # What the cancelled attempt has written was taken back.
    assert repo.list_versions("host/a", "result") == [1]


def test_what_a_cancelled_step_has_replaced_is_there_until_a_step_comes_to_its_end(
    repo: Repo, tmp_path: Path
) -> None:
    there = Path(repo.config.repo_dir)
    update_marker(str(there), {"autoGc": True})
    flag, wrong = tmp_path / "flag", "${{ data.latest('no/such', 'x').attributes.y }}"
    once = [{"specName": "result", "garbageCollection": 1}]

    def define(text: str, **task: Any) -> None:
        one = {"name": "a", "task": command(text) | task, "dataOutputOverrides": once}
        write(repo, "w", [{"name": "j", "steps": [one]}])

    with open_repo(there) as pruning:
        define(f"test -e {flag} && sleep 30; echo '{{}}'")
        run(pruning)
        run(pruning)
        assert pruning.list_versions("host/a", "result") == [2]
        flag.touch()
        cancelled = Interruption()
        threading.Timer(0.7, cancelled.strike).start()
        workflow = Workflows(pruning).require("w")
        record = run_workflow(pruning, workflow, options=RunOptions(cancelled=cancelled)).record
        assert record.status == "cancelled"
        define("true", inputs={"x": wrong})
        assert resume_workflow(pruning, record.id).record.status == "failed"
        assert pruning.list_versions("host/a", "result") == [2]
        define("echo '{}'")
        assert resume_workflow(pruning, record.id).record.status == "succeeded"
        assert pruning.list_versions("host/a", "result") == [3]


def test_a_run_leaves_the_reports_that_its_workflow_requires(repo: Repo) -> None:
    write(repo, "w", [{"name": "j", "steps": [step("a")]}], reports={"require": ["summary"]})
    record = run(repo).record
    model = f"workflow/{record.workflow_id}"
    assert "| j | a | succeeded |" in repo.latest(model, "report-summary").text()
    assert repo.latest(model, "report-summary-json").json()["runId"] == record.id
    names = [one["name"] for one in record.workflow_data_artifacts or ()]
    assert names == ["report-summary", "report-summary-json"]
    resume_workflow(repo, record.id, from_step="a")
    assert repo.list_versions(model, "report-summary") == [1, 2]


def test_a_report_of_a_step_stays_when_the_step_is_looked_at_again(
    repo: Repo, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    models = Path(repo.config.repo_dir) / "models/command/shell"
    models.mkdir(parents=True)
    (models / "probe.yaml").write_text(
        "type: command/shell\nid: 5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10\nname: probe\n"
        f"methods:\n  execute:\n    arguments: {{ run: 'test -e {flag}' }}\n"
        "reports: { require: [summary] }\n"
    )
    task = {"type": "model_method", "modelIdOrName": "probe", "methodName": "execute"}
    write(repo, "w", [{"name": "j", "steps": [{"name": "a", "task": task}]}])
    record = run(repo).record
    assert record.status == "failed"
    flag.touch()
    assert resume_workflow(repo, record.id).record.status == "succeeded"
    model = "command/shell/5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10"
    assert repo.list_versions(model, "report-summary") == [1, 2]
    assert repo.list_versions(model, "result") == [1, 2]


# Where nothing can be written ------------------------------------------------------------------


def test_a_dead_run_is_shown_as_failed_where_nothing_can_be_written(repo: Repo) -> None:
    write(repo, "w", [{"name": "j", "steps": [step("a")]}])
    with LiveRecord(RunRecords(repo), run(repo).record) as record:
        record.status, record.completed_at, record.pid = "running", None, 4_000_000
    there = Path(repo.config.repo_dir)
    (listed,) = read_only(there, "workflow", "history")["runs"]
    assert (listed["id"], listed["status"]) == (record.id, "failed")
    assert read_only(there, "workflow", "show", record.id)["status"] == "failed"
    assert RunRecords(repo).find(record.id).status == "running"
    assert find_run(repo, record.id).status == "failed"
    assert RunRecords(repo).find(record.id).status == "failed"


def test_a_workflow_that_was_copied_with_its_name_and_id_is_told_of(
    repo: Repo, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Path(repo.config.repo_dir)
    cli = CommandLine(there, capsysbinary, monkeypatch)
    job = {"name": "scan", "steps": [{"name": "one", "task": {"type": "assert", "expr": "true"}}]}
    write(repo, "nightly", [job], id="9b2c6d52-6c0f-4d0e-9b7a-2d9a6f1d3c11")
    write(repo, "weekly", [job])
    assert cli("workflow", "validate").status == 0
    copied = (there / "workflows/workflow-nightly.yaml").read_text()
    (there / "workflows/workflow-copy.yaml").write_text(copied)
    outcome = cli("workflow", "validate")
    assert outcome.status == 1
    assert "2 workflows have this name: workflows/workflow-copy.yaml, " in outcome.out
    assert "2 workflows have this id: workflows/workflow-copy.yaml, " in outcome.out


@pytest.mark.parametrize(
    ("members", "member"),
    [
        ({"task": {"type": "assert", "expr": "1 +"}}, "task.expr"),
        ({"task": {"type": "assert", "expr": "${{ 1 + }}"}}, "task.expr"),
        ({"guard": "1 +"}, "guard"),
        ({"task": {"type": "manual_approval", "prompt": "go ${{ 1 + }}?"}}, "task.prompt"),
        (
            {"task": {"type": "workflow", "workflowIdOrName": "w", "inputs": {"a": ["${{1 +}}"]}}},
            "task.inputs.a[0]",
        ),
        ({"forEach": {"item": "i", "in": "${{ 1 + }}"}}, "forEach.in"),
    ],
)
def test_an_expression_that_cannot_be_parsed_is_told_of_before_a_run(
    repo: Repo, members: dict[str, Any], member: str
) -> None:
    task = {"type": "assert", "expr": "inputs.later == data.latest('a/b', 'c').attributes.d"}
    write(repo, "w", [{"name": "j", "steps": [{"name": "s", "task": task, **members}]}])
    problem = problems(repo, Workflows(repo).require("w"))[0]
    told = f"j/s: {member}: ${{{{ 1 + }}}}: The expression ends too early, at position 4. "
    assert problem.startswith(told)


def test_expressions_that_can_be_parsed_are_not_evaluated_to_be_checked(repo: Repo) -> None:
    text = "a ${{ inputs.none }} ${{ vault.get(some, key) }} ${{ self.x[?0].orValue('-') }}"
    steps = [step("s", text, guard="${{ data.latest('a/b', 'c').attributes.d > 1 }}")]
    write(repo, "w", [{"name": "j", "steps": steps}])
    assert not problems(repo, Workflows(repo).require("w"))


def test_a_run_tells_on_one_line_what_is_wrong_with_an_expression(repo: Repo) -> None:
    task = {"type": "assert", "expr": "1 +", "message": "no"}
    write(repo, "w", [{"name": "j", "steps": [{"name": "s", "task": task}]}])
    error = run(repo).record.jobs[0].steps[0].error
    assert error == "no: ${{ 1 + }}: The expression ends too early, at position 4"
