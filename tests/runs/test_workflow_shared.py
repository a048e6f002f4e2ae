"""Workflow runs on a shared bucket: what other machines see, and when; going on there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from swampstore.runs.control_area import open_control_area
from swampstore.runs.outputs import Outputs
from swampstore.runs.tracker import Run, Tracker
from swampstore.runs.workflow.record import RunRecords
from swampstore.runs.workflow.resume import find_run
from swampstore.sync.run_progress import goes_on_from
from tests.support.command_line import run_on_terminal
from tests.support.machines import Machine, ana, bob, bucket

__all__ = ["ana", "bob", "bucket"]


def define(machine: Machine, name: str, steps: list[Any]) -> None:
    directory = machine.repo_dir / "workflows"
    directory.mkdir(exist_ok=True)
    document = {"name": name, "jobs": [{"name": "j", "steps": steps}]}
    (directory / f"{name}.yaml").write_text(json.dumps(document))


def step(name: str, command: str, **members: Any) -> dict[str, Any]:
    task = {
        "type": "model_method",
        "modelIdOrName": f"host/{name}",
        "methodName": "look",
        "command": command,
    }
    return {"name": name, "task": task, **members}


def started(machine: Machine, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", *args],
        env=machine.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def test_the_line_about_a_step_arrives_with_what_the_step_wrote(
    ana: Machine, bob: Machine, tmp_path: Path
) -> None:
    flag, release = tmp_path / "flag", tmp_path / "release"
    define(
        ana,
        "w",
        [
            step("first", "echo '{\"n\": 1}'"),
            step(
                "second",
                f"touch {flag}; while ! test -e {release}; do sleep 0.02; done",
                dependsOn=["first"],
            ),
        ],
    )
    process = started(ana, "workflow", "run", "w")
    try:
        wait_for(flag)
        assert bob("sync", "--pull").status == 0
        with bob.open() as repo:
            (record,) = RunRecords(repo).all()
            assert record.status == "running"
            assert record.job("j").step("first").status == "succeeded"
            assert repo.latest("host/first", "result").json() == {"n": 1}
    finally:
        release.touch()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert bob("sync", "--pull").status == 0
    with bob.open() as repo:
        (record,) = RunRecords(repo).all()
        assert record.status == "succeeded"
    # What runs leave is all there: nothing waits for a push of everything.
    with ana.open() as repo:
        assert not repo.sync.status().dirty_paths


def test_a_run_is_approved_and_gone_on_with_on_another_machine(ana: Machine, bob: Machine) -> None:
    ask = {"name": "ask", "dependsOn": ["a"], "task": {"type": "manual_approval", "prompt": "Go?"}}
    for machine in (ana, bob):
        define(
            machine, "w", [step("a", "echo '{}'"), ask, step("b", "echo '{}'", dependsOn=["ask"])]
        )
    outcome = ana("workflow", "run", "w", "--json")
    assert outcome.status == 76
    run_id = json.loads(outcome.stdout)["id"]
    assert bob("sync", "--pull").status == 0
    approved = bob("workflow", "approve", run_id, "--reason", "fine", "--json").json
    assert approved["approved"] is True
    assert bob("workflow", "resume", run_id[:8], "--json").json["status"] == "succeeded"
    assert ana("sync", "--pull").status == 0
    shown = ana("workflow", "show", run_id, "--json").json
    assert shown["status"] == "succeeded"
    assert shown["jobs"][0]["steps"][1]["approvalDecision"]["reason"] == "fine"
    with ana.open() as repo:
        assert repo.list_versions("host/a", "result") == [1]
        assert repo.list_versions("host/b", "result") == [1]


def test_a_run_that_may_go_on_elsewhere_is_only_resumed_once_that_machine_is_lost(
    ana: Machine, bob: Machine, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    steps = [
        step("a", "echo '{}'"),
        step("b", f"test -e {flag} || {{ touch {flag}; sleep 60; }}", dependsOn=["a"]),
    ]
    for machine in (ana, bob):
        define(machine, "w", steps)
    process = started(ana, "workflow", "run", "w")
    wait_for(flag)
    process.kill()
    process.communicate()
    with ana.open() as repo:
        (record,) = RunRecords(repo).all()
        assert record.status == "running"
        assert record.job("j").step("b").status == "running"
    assert bob("sync", "--pull").status == 0
    with bob.open() as repo:
        # As if it were another machine, which the name of the host tells.
        (record,) = RunRecords(repo).all()
        record.host = "elsewhere"
        RunRecords(repo).save(record)
    refused = bob("workflow", "resume", record.id, "--json")
    assert refused.error["code"] == "workflow_not_resumable"
    with bob.open() as repo:
        # What the run would have shown of itself, had it gone on for some seconds; long ago.
        at = "2026-01-01T00:00:00.000Z"
        shown = Run(record.id, "workflow", "running", at, at, "elsewhere", 1, workflow="w")
        with open_control_area(repo.config) as area:
            area.show(shown, at)
    assert bob("workflow", "resume", record.id).status == 0
    with bob.open() as repo:
        assert repo.list_versions("host/a", "result") == [1]


def test_what_a_step_wrote_stays_though_it_runs_again_with_another_method(ana: Machine) -> None:
    document = step("a", "echo '{}'")
    define(ana, "w", [document])
    run_id = ana("workflow", "run", "w", "--json").json["id"]
    document["task"]["methodName"] = "see"
    define(ana, "w", [document])
    assert ana("workflow", "resume", run_id, "--from", "a").status == 0
    with ana.open() as repo:
        assert repo.list_versions("host/a", "result") == [1, 2]


def test_what_a_step_wrote_stays_though_its_output_is_gone(ana: Machine) -> None:
    define(ana, "w", [step("a", "echo '{}'")])
    run_id = ana("workflow", "run", "w", "--json").json["id"]
    with ana.open() as repo:
        for output in Outputs(repo).all():
            assert output.rel is not None
            with repo.tree.changing(output.rel) as change:
                change.remove(output.rel)
    assert ana("workflow", "resume", run_id, "--from", "a").status == 0
    with ana.open() as repo:
        assert repo.list_versions("host/a", "result") == [1, 2]


def test_workflows_of_different_models_do_not_wait_for_each_other(
    ana: Machine, bob: Machine, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    # Each ends only once the other one has begun.
    for machine, mine, other in ((ana, here, there), (bob, there, here)):
        command = f"touch {mine}; while ! test -e {other}; do sleep 0.02; done"
        define(machine, "w", [step(mine.name, command, timeout="30s")])
    processes = [started(machine, "workflow", "run", "w") for machine in (ana, bob)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_dead_run_is_marked_by_whoever_meets_it(ana: Machine, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    define(ana, "w", [step("a", f"touch {flag}; sleep 60")])
    process = started(ana, "workflow", "run", "w")
    wait_for(flag)
    assert ana("workflow", "history", "--json").json["runs"][0]["status"] == "running"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (found,) = ana("workflow", "history", "--json").json["runs"]
    assert found["status"] == "failed"
    assert str(process.pid) in found["tags"]["interrupt_reason"]
    with ana.open() as repo:
        record = find_run(repo, found["id"])
        assert record.job("j").step("a").status == "failed"
        assert "interrupted" in str(record.job("j").step("a").error)


@pytest.mark.parametrize("how", ["signal", "tracker"])
def test_a_run_that_is_interrupted_says_so_and_ends_its_commands(
    ana: Machine, tmp_path: Path, how: str
) -> None:
    flag = tmp_path / "flag"
    define(ana, "w", [step("a", f"echo $$ > {flag}; sleep 60"), step("b", "sleep 60")])
    process = started(ana, "workflow", "run", "w", "--json")
    wait_for(flag)
    if how == "signal":
        process.send_signal(signal.SIGINT)
    else:
        with ana.open() as repo:
            (record,) = RunRecords(repo).all()
            Tracker(repo).cancel(record.id, "enough")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    document = json.loads(out)
    assert document["status"] == "cancelled"
    assert document["tags"]["cancel_reason"] == ("interrupted" if how == "signal" else "enough")
    assert not os.path.exists(f"/proc/{int(flag.read_text())}")


def test_a_run_by_another_name_of_the_remote_is_not_seen_by_accident(
    ana: Machine, bob: Machine
) -> None:
    for machine, namespace in ((ana, "one"), (bob, "two")):
        machine.use(machine.repo_dir.parents[1] / "bucket", namespace=namespace)
        define(machine, "w", [step("a", "echo '{}'")])
    assert ana("workflow", "run", "w").status == 0
    assert bob("sync", "--pull").status == 0
    assert bob("workflow", "history", "--json").json["runs"] == []
    assert len(ana("workflow", "history", "--json").json["runs"]) == 1


def test_on_a_terminal_a_tree_of_jobs_and_steps_shows_how_it_goes_on(ana: Machine) -> None:
    long = "x" * 70
    steps = [step("first", f"sleep 0.6; echo {long} {long}"), step(f"{long}-1", "exit 1")]
    define(ana, "w", steps)
    shown = run_on_terminal("workflow", "run", "w", repo=ana.repo_dir)
    assert shown.status == 1
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", plain)
    lines = [line.strip("\r") for line in plain.split("\n")]
    assert any("● first running" in line for line in lines)
    assert "    ✓ first" in shown.out
    assert max(map(len, lines)) <= 80


def test_elsewhere_there_is_a_line_for_each_event(ana: Machine) -> None:
    define(ana, "w", [step("a", "echo one; echo two")])
    outcome = ana("workflow", "run", "w", "--show-output")
    assert [line for line in outcome.err.splitlines() if "run " not in line] == [
        "j: started",
        "j/a: started",
        "j/a | one",
        "j/a | two",
        "j/a: succeeded",
        "j: succeeded",
    ]
    events = [json.loads(line) for line in ana("workflow", "run", "w", "--json").err.splitlines()]
    assert [event["event"] for event in events] == [
        *("runStarted", "jobStarted", "stepStarted", "stepEnded", "jobEnded", "runEnded")
    ]


def test_a_run_commits_once_for_each_step_and_once_at_its_end(ana: Machine) -> None:
    define(ana, "w", [step("a", "echo '{}'"), step("b", "echo '{}'", dependsOn=["a"])])
    assert ana("datastore", "migrate-index").status == 0
    assert ana("workflow", "run", "w").status == 0
    assert ana("sync").status == 0

    def commits() -> int:
        with ana.open() as repo:
            return repo.sync.status().commit_seq or 0

    before = commits()
    assert ana("workflow", "run", "w").status == 0
    assert commits() == before + 3


def test_a_run_that_ended_elsewhere_is_over_also_where_it_waited_before(
    ana: Machine, bob: Machine, bucket: Path, tmp_path: Path
) -> None:
    ask = {"name": "ask", "dependsOn": ["a"], "task": {"type": "manual_approval", "prompt": "Go?"}}
    define(ana, "w", [step("a", "echo '{}'"), ask])
    run_id = json.loads(ana("workflow", "run", "w", "--json").stdout)["id"]
    (other := tmp_path / "other").mkdir()
    assert ana("datastore", "setup", f"file://{other}").status == 0
    assert ana("workflow", "approve", run_id, "--resume").status == 0
    back = ana("datastore", "setup", f"file://{bucket}")
    assert back.status == 0
    assert "the run went on here" in back.stdout.decode()
    assert ana("workflow", "show", run_id, "--json").json["status"] == "succeeded"
    assert bob("sync", "--pull").status == 0
    assert bob("workflow", "show", run_id, "--json").json["status"] == "succeeded"


def test_only_what_says_all_of_a_record_and_more_goes_on_from_it() -> None:
    def record(*steps: dict[str, Any], **members: Any) -> bytes:
        jobs = [{"jobName": "j", "steps": list(steps)}]
        return json.dumps({"id": "r", "workflowId": "w", "jobs": jobs, **members}).encode()

    def at(status: str, *outputs: str, name: str = "a", **members: Any) -> dict[str, Any]:
        return {"stepName": name, "status": status, "outputs": list(outputs), **members}

    yes, no = {"approved": True}, {"approved": False}
    for before, after in (
        (record(at("pending")), record(at("running"))),
        (record(at("waiting_approval")), record(at("succeeded", approvalDecision=yes))),
        (record(at("failed", "1")), record(at("succeeded", "1", "2"))),
        (record(at("pending", name="x")), record(at("pending", name="x-1"))),
        (record(at("succeeded")), record(at("failed"))),
        (record(at("succeeded", "1")), record(at("succeeded", "2"))),
        (record(at("failed", approvalDecision=no)), record(at("succeeded", approvalDecision=yes))),
        (record(at("running"), id="q"), record(at("succeeded"))),
        (b"{", record(at("succeeded"))),
        (record(), b"jobs: 1"),
    ):
        is_later = before in (record(at("pending")), record(at("waiting_approval"))) or (
            b'"failed", "outputs": ["1"]' in before
        )
        assert goes_on_from(before, after) is is_later, (before, after)
        assert not goes_on_from(after, before)
        assert not goes_on_from(after, after)
