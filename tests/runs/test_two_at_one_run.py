"""Two who are at one workflow run at the same time: none undoes what the other one has said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.runs import inputs
from swampstore.runs.errors import NotResumableError
from swampstore.runs.tracker import Tracker
from swampstore.runs.workflow.approval import decide_step
from swampstore.runs.workflow.files import Workflows
from swampstore.runs.workflow.record import RunRecord, RunRecords
from swampstore.runs.workflow.resume import find_run, past_runs, reap
from swampstore.runs.workflow.runner import WorkflowResult, resume_workflow, run_workflow
from tests.support.machines import Machine

ASK = {"name": "ask", "task": {"type": "manual_approval", "prompt": "Go?"}}


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    with init_repo(tmp_path / "repo") as repo:
        yield repo


def step(name: str, text: str = "echo '{}'", **members: Any) -> dict[str, Any]:
    task = {
        "type": "model_method",
        "modelIdOrName": f"host/{name}",
        "methodName": "look",
        "command": text,
    }
    return {"name": name, "task": task, **members}


def define(repo: Repo, jobs: dict[str, list[Any]], name: str = "w") -> None:
    directory = Path(repo.config.repo_dir) / "workflows"
    directory.mkdir(exist_ok=True)
    document = {"name": name, "jobs": [{"name": one, "steps": jobs[one]} for one in jobs]}
    (directory / f"workflow-{name}.yaml").write_text(json.dumps(document))


def until(flag: Path) -> str:
    return f"touch {flag}-begun; while ! test -e {flag}; do sleep 0.02; done; echo '{{}}'"


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


@contextmanager
def going_on(repo: Repo, flag: Path, name: str = "w") -> Iterator[Future[WorkflowResult]]:
    """Have a run go on until `flag` is there, or the block ends."""

    def work() -> WorkflowResult:
        with open_repo(repo.config.repo_dir) as own:
            return run_workflow(own, Workflows(own).require(name))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            wait_for(flag.with_name(f"{flag.name}-begun"))
            yield future
        finally:
            flag.touch()


def only(repo: Repo) -> RunRecord:
    (record,) = RunRecords(repo).all()
    return record


def test_nobody_approves_a_step_of_a_run_that_goes_on_and_forgets_it(
    repo: Repo, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    define(repo, {"ask": [ASK], "work": [step("a", until(flag))]})
    with going_on(repo, flag) as future:
        while only(repo).job("ask").step("ask").status != "waiting_approval":
            time.sleep(0.02)
        with pytest.raises(NotResumableError, match="going on"):
            decide_step(repo, only(repo).id, "ask", approved=True)
    assert future.result().record.status == "suspended"
    decide_step(repo, only(repo).id, "ask", approved=True)
    assert resume_workflow(repo, only(repo).id).record.status == "succeeded"


def test_a_run_that_ends_while_somebody_lists_the_runs_is_not_called_dead(
    repo: Repo, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    define(repo, {"j": [step("a", until(flag))]})
    with going_on(repo, flag) as future:
        read = only(repo)
        assert read.status == "running"
        flag.touch()
        assert future.result().record.status == "succeeded"
    assert reap(repo, read).status == "succeeded"
    assert only(repo).status == "succeeded"


def test_a_list_of_runs_tells_of_each_as_it_is_when_it_is_told(repo: Repo, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    define(repo, {"j": [step("a", until(first))]}, "one")
    define(repo, {"j": [step("b", until(second))]}, "two")
    with going_on(repo, first, "one") as one, going_on(repo, second, "two") as two:
        told = past_runs(repo)
        assert (found := next(told)).status == "running", found
        for flag, future in ((first, one), (second, two)):
            flag.touch()
            future.result()
        assert next(told).status == "succeeded"
    assert {record.status for record in RunRecords(repo).all()} == {"succeeded"}


def test_a_step_does_not_run_again_though_another_one_resumed_the_run_meanwhile(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag"
    define(repo, {"j": [step("a", f"test -e {flag}"), step("b", dependsOn=["a"])]})
    run_id = run_workflow(repo, Workflows(repo).require("w")).record.id
    flag.touch()
    check = inputs.check_inputs

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr("swampstore.runs.workflow.runner.check_inputs", check)
        with open_repo(repo.config.repo_dir) as other:
            assert resume_workflow(other, run_id).record.status == "succeeded"
        return check(*args)

    monkeypatch.setattr("swampstore.runs.workflow.runner.check_inputs", meanwhile)
    with pytest.raises(NotResumableError, match="meanwhile"):
        resume_workflow(repo, run_id)
    assert only(repo).status == "succeeded"
    assert repo.list_versions("host/b", "result") == [1]


def test_a_run_that_waits_and_is_cancelled_is_over_for_everybody(repo: Repo) -> None:
    define(repo, {"j": [ASK, step("b", dependsOn=["ask"])]})
    run_id = run_workflow(repo, Workflows(repo).require("w")).record.id
    tracker = Tracker(repo)
    tracker.cancel(run_id, "not on a Friday")
    assert tracker.list()[0].status == "cancelled"
    tracker.close()
    found = find_run(repo, run_id)
    assert found.status == "cancelled"
    assert (found.tags or {})["cancel_reason"] == "not on a Friday"


def test_a_run_that_waits_is_cancelled_with_the_run_in_it_that_does(repo: Repo) -> None:
    call = {"name": "call", "task": {"type": "workflow", "workflowIdOrName": "inner"}}
    define(repo, {"j": [call]})
    define(repo, {"k": [ASK]}, "inner")
    run_id = run_workflow(repo, Workflows(repo).require("w")).record.id
    tracker = Tracker(repo)
    tracker.cancel(run_id)
    tracker.close()
    assert {one.status for one in RunRecords(repo).all()} == {"cancelled"}
    assert {one.status for one in Tracker(repo).list()} == {"cancelled"}


def test_a_run_that_waits_is_cancelled_though_a_run_in_it_has_failed(repo: Repo) -> None:
    jobs: dict[str, list[Any]] = {}
    for name in ("first", "second"):
        task = {"type": "workflow", "workflowIdOrName": name}
        jobs[name] = [{"name": name, "task": task}]
        define(repo, {"k": [ASK]}, name)
    define(repo, jobs)
    run_id = run_workflow(repo, Workflows(repo).require("w")).record.id
    first = next(one.id for one in RunRecords(repo).all() if one.workflow_name == "first")
    decide_step(repo, first, None, approved=False)
    assert resume_workflow(repo, first).record.status == "failed"
    tracker = Tracker(repo)
    tracker.cancel(run_id)
    tracker.close()
    ended = {one.workflow_name: one.status for one in RunRecords(repo).all()}
    assert ended == {"w": "cancelled", "first": "failed", "second": "cancelled"}
    assert {one.workflow: one.status for one in Tracker(repo).list()} == ended


def test_a_run_that_ended_elsewhere_is_not_cancelled_where_it_waited(
    ana: Machine, bob: Machine
) -> None:
    for machine in (ana, bob):
        with machine.open() as repo:
            define(repo, {"j": [ASK]})
    with ana.open() as repo:
        run_id = run_workflow(repo, Workflows(repo).require("w")).record.id
    assert bob("sync", "--pull").status == 0
    assert bob("workflow", "approve", run_id, "--resume").status == 0
    outcome = ana("runs", "cancel", run_id)
    assert outcome.status != 0
    assert "is over: it is succeeded" in outcome.stderr.decode()
    with ana.open() as repo:
        assert only(repo).status == "succeeded"
        assert Tracker(repo).list()[0].status == "succeeded"
