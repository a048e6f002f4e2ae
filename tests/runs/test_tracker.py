"""What runs is seen, here and elsewhere; what died is found; what should end hears of it."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from swampstore import Repo, open_repo
from swampstore.doctor import examine
from swampstore.errors import NewerFormatError, NotFoundError, ValidationError
from swampstore.layout import ModelRef, is_temp
from swampstore.locks.process import new_record
from swampstore.runs import control_area
from swampstore.runs.outputs import Outputs
from swampstore.runs.tracker import DIED, METHOD, WORKFLOW, Run, Tracker
from tests.conftest import FakeClock
from tests.support.machines import Machine
from tests.support.read_only import read_only

MODEL = ModelRef("aws/ec2", "i-1")
_RUNNER = """
import sys, time
from swampstore import open_repo
from swampstore.layout import ModelRef
from swampstore.runs.tracker import Tracker
with open_repo(sys.argv[1], durable=False) as repo:
    tracked = Tracker(repo).running(
        sys.argv[2], run_id=sys.argv[3], model=ModelRef("aws/ec2", "i-1"), method="scan",
        workflow="nightly" if sys.argv[2] == "workflow" else None)
    with tracked as run:
        print("ready", flush=True)
        if run.cancelled.wait(60):
            print(run.reason, flush=True)
            run.finish("cancelled")
"""


@pytest.fixture
def tracker(repo: Repo) -> Iterator[Tracker]:
    tracker = Tracker(repo)
    yield tracker
    tracker.close()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start runs in processes of their own, which do not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(
        repo_dir: Path, run_id: str, kind: str = METHOD, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUNNER, str(repo_dir), kind, run_id],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def wait_for(what: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


# Here -------------------------------------------------------------------------------------------


def test_a_run_is_seen_while_it_goes_on_and_how_it_ended_afterwards(tracker: Tracker) -> None:
    with tracker.running(METHOD, run_id="one", model=MODEL, method="scan") as run:
        (seen,) = tracker.list()
        assert (seen.status, seen.model, seen.method) == ("running", MODEL, "scan")
        run.finish("succeeded")
    with (
        pytest.raises(ZeroDivisionError),
        tracker.running(METHOD, run_id="two", model=MODEL, method="scan"),
    ):
        raise ZeroDivisionError
    with (
        pytest.raises(KeyboardInterrupt),
        tracker.running(METHOD, run_id="three", model=MODEL, method="scan"),
    ):
        raise KeyboardInterrupt
    assert {run.id: run.status for run in tracker.list()} == {
        "one": "succeeded",
        "two": "failed",
        "three": "cancelled",
    }


def test_what_ended_a_week_ago_is_forgotten(tracker: Tracker, clock: FakeClock) -> None:
    with tracker.running(METHOD, run_id="old"):
        pass
    clock.advance(days=8)
    with tracker.running(METHOD, run_id="new"):
        assert [run.id for run in tracker.list()] == ["new"]


def test_a_run_is_found_by_how_its_id_begins(tracker: Tracker) -> None:
    for run_id in ("aabb-ccdd", "aabb-eeff", "11223344"):
        with tracker.running(METHOD, run_id=run_id):
            pass
    assert tracker.find("1122").id == "11223344"
    assert tracker.find("AABBCC").id == "aabb-ccdd"
    with pytest.raises(ValidationError, match="2 runs"):
        tracker.find("aab")
    with pytest.raises(ValidationError, match="too short"):
        tracker.find("aa")
    with pytest.raises(NotFoundError):
        tracker.find("ffff")


def test_a_run_in_another_process_hears_that_it_should_end(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(repo_dir, "11112222")
    with open_repo(repo_dir) as repo:
        tracker = Tracker(repo)
        assert tracker.find("1111").status == "running"
        tracker.cancel("1111", "wrong region")
        out, _ = process.communicate(timeout=20)
        assert out == "wrong region\n"
        ended = tracker.find("1111")
        assert (ended.status, ended.cancel_reason) == ("cancelled", "wrong region")
        with pytest.raises(ValidationError, match="is over"):
            tracker.cancel("1111")
        tracker.close()


def test_a_killed_run_is_reaped_and_gets_a_record_that_says_so(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(repo_dir, "11112222")
    with open_repo(repo_dir) as repo:
        tracker = Tracker(repo)
        assert tracker.reap() == []
        process.send_signal(signal.SIGKILL)
        process.wait()
        (reaped,) = tracker.reap()
        assert (reaped.id, reaped.status, reaped.cancel_reason) == ("11112222", "failed", DIED)
        assert tracker.reap() == []
        (output,) = Outputs(repo).all()
        assert (output.id, output.status, output.model) == ("11112222", "failed", MODEL)
        assert output.error == {"message": DIED}
        tracker.close()


def test_the_next_run_finds_the_dead(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(repo_dir, "11112222")
    process.kill()
    process.wait()
    with open_repo(repo_dir) as repo, Tracker(repo).running(METHOD, run_id="33334444"):
        assert [output.id for output in Outputs(repo).all()] == ["11112222"]


def test_the_doctor_finds_the_dead_and_sees_to_them(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(repo_dir, "11112222")
    with open_repo(repo_dir) as repo:
        assert all(finding.passed and not finding.warning for finding in examine(repo).findings)
        process.kill()
        process.wait()
        (found,) = [one for one in examine(repo).findings if one.warning]
        assert (found.check, found.details) == ("dead_runs", (f"11112222: {MODEL}",))
        examine(repo, repair=True)
        assert not [one for one in examine(repo).findings if one.warning]
        assert [output.status for output in Outputs(repo).all()] == ["failed"]


def test_many_who_reap_at_once_leave_one_record(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(repo_dir, "11112222")
    process.kill()
    process.wait()
    reaped: list[Run] = []

    def reap() -> None:
        with open_repo(repo_dir, durable=False) as repo:
            tracker = Tracker(repo)
            reaped.extend(tracker.reap())
            tracker.close()

    threads = [threading.Thread(target=reap) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.id for run in reaped] == ["11112222"]
    with open_repo(repo_dir) as repo:
        assert len(list(Outputs(repo).all())) == 1


def test_a_dead_workflow_says_so_in_its_record_and_still_where_it_was(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    process = start(repo_dir, "11112222", WORKFLOW)
    process.kill()
    process.wait()
    record = repo_dir / ".swamp/workflow-runs/w-1/workflow-run-11112222.yaml"
    record.parent.mkdir(parents=True)
    record.write_text(
        "id: '11112222'\nworkflowId: w-1\nworkflowName: nightly\nstatus: running\n"
        "startedAt: '2026-05-14T20:19:51.042Z'\njobs:\n  - jobName: scan\n    status: running\n"
        "    steps:\n      - stepName: measure\n        status: running\n"
    )
    with open_repo(repo_dir) as repo:
        tracker = Tracker(repo)
        assert [run.id for run in tracker.reap()] == ["11112222"]
        tracker.close()
    text = record.read_text()
    assert "status: failed\n" in text
    assert DIED in text
    assert "failedStep: measure\n" in text


def row_of(tracker: Tracker, repo: Repo, **changed: object) -> None:
    """Make a run that goes on say something else about itself."""
    with tracker.running(METHOD, run_id="11112222", model=MODEL, method="scan"):
        pass
    tracker.close()
    db = sqlite3.connect(f"{repo.config.local_dir}/run_tracker.db")
    with db:
        db.execute("UPDATE active_runs SET status = 'running', completed_at = NULL")
        for name, value in changed.items():
            table = "swampstore_runs" if name == "process" else "active_runs"
            db.execute(f"UPDATE {table} SET {name} = ?", [value])
    db.close()


def test_a_number_that_another_process_has_now_is_no_sign_of_life(
    tracker: Tracker, repo: Repo
) -> None:
    place = new_record(1).process.rsplit(":", 1)[0]
    row_of(tracker, repo, process=f"{place}:1")  # the same pid, started at another time
    assert [run.id for run in tracker.reap()] == ["11112222"]


def test_whoever_cannot_be_seen_from_here_has_time_to_show_that_it_lives(
    tracker: Tracker, repo: Repo, clock: FakeClock
) -> None:
    for changed in (
        {"hostname": "elsewhere"},
        {"process": "another-boot:1:2:3"},
        {"process": None, "pid": 2**22 - 3},
    ):
        row_of(tracker, repo, **changed)
        assert tracker.dead() == []
        clock.advance(seconds=91)
        assert [run.id for run in tracker.dead()] == ["11112222"]
        tracker.reap()


def test_a_live_process_is_never_reaped_however_long_it_was_asleep(
    tracker: Tracker, clock: FakeClock
) -> None:
    with tracker.running(METHOD, run_id="asleep", model=MODEL, method="scan"):
        clock.advance(days=2)
        assert tracker.reap() == []
    assert tracker.list()[0].status == "succeeded"


def test_what_was_said_first_about_an_end_holds(tracker: Tracker, repo: Repo) -> None:
    with tracker.running(METHOD, run_id="11112222", model=MODEL, method="scan") as run:
        db = sqlite3.connect(f"{repo.config.local_dir}/run_tracker.db")
        with db:
            db.execute("UPDATE active_runs SET status = 'failed'")
        db.close()
        run.finish("succeeded")
    assert tracker.list()[0].status == "failed"


def test_the_file_of_another_client_is_used_and_one_of_a_newer_one_left_alone(
    repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{repo.config.local_dir}/run_tracker.db"
    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE active_runs (id TEXT PRIMARY KEY, run_kind TEXT NOT NULL, model_type TEXT,"
        " method_name TEXT, workflow_name TEXT, pid INTEGER NOT NULL, hostname TEXT NOT NULL,"
        " started_at TEXT NOT NULL, heartbeat_at TEXT NOT NULL,"
        " status TEXT NOT NULL DEFAULT 'running', completed_at TEXT);"
        "CREATE TABLE run_tracker_meta (key TEXT PRIMARY KEY, value TEXT);"
        "INSERT INTO run_tracker_meta VALUES ('schema_version', '2');"
        "INSERT INTO active_runs VALUES ('theirs', 'model_method', 'aws/ec2', 'scan', NULL, 1,"
        " 'elsewhere', '2026-05-14T20:19:00.000Z', '2026-05-14T20:19:50.000Z', 'running', NULL)"
    )
    db.commit()
    tracker = Tracker(repo)
    with tracker.running(METHOD, run_id="ours", model=MODEL, method="scan"):
        assert {run.id for run in tracker.list()} == {"ours", "theirs"}
    db.execute("UPDATE run_tracker_meta SET value = '5'")
    db.commit()
    before = db.execute("SELECT * FROM active_runs").fetchall()
    with tracker.running(METHOD, run_id="later", model=MODEL, method="scan"):
        pass  # untracked, and done all the same
    assert "run tracker" in caplog.text
    with pytest.raises(NewerFormatError):
        tracker.list()
    assert db.execute("SELECT * FROM active_runs").fetchall() == before
    db.close()
    tracker.close()


def test_a_damaged_file_is_made_anew(repo: Repo) -> None:
    Path(repo.config.local_dir, "run_tracker.db").write_bytes(b"nothing of SQLite's" * 100)
    tracker = Tracker(repo)
    with tracker.running(METHOD, run_id="11112222"):
        assert [run.id for run in tracker.list()] == ["11112222"]
    tracker.close()


def test_runs_are_listed_where_nothing_can_be_written(
    repo_dir: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with (
        open_repo(repo_dir) as repo,
        Tracker(repo).running(METHOD, run_id="done", model=MODEL, method="scan"),
    ):
        pass
    killed = start(repo_dir, "killed")
    killed.kill()
    killed.wait()
    listed = read_only(repo_dir, "runs", "list", "--here")["runs"]
    assert {run["id"]: run["status"] for run in listed} == {
        "done": "succeeded",
        "killed": "running",
    }
    assert read_only(repo_dir, "runs", "show", "done", "--here")["status"] == "succeeded"
    with open_repo(repo_dir) as repo:
        assert [run.id for run in Tracker(repo).reap()] == ["killed"]


def test_a_full_disk_is_told_as_such_and_the_doctor_looks_at_the_rest(repo_dir: Path) -> None:
    with (
        open_repo(repo_dir) as repo,
        Tracker(repo).running(METHOD, run_id="done", model=MODEL, method="scan"),
    ):
        pass

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    def found(*command: str) -> dict[str, Any]:
        program = [sys.executable, "-m", "swampstore", *command, "--json", "--repo", str(repo_dir)]
        done = subprocess.run(program, capture_output=True, check=False, preexec_fn=fill_the_disk)
        assert b"defect" not in done.stderr
        return cast("dict[str, Any]", json.loads(done.stdout or done.stderr))

    assert found("runs", "list", "--here")["code"] == "disk_error"
    assert "strangers" in {check["check"] for check in found("doctor")["healthFindings"]}


# Elsewhere --------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_area, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(control_area, "_LOOK", 0.1)


def shown(bucket: Path) -> list[str]:
    # What is still being written stands beside its place, and nobody sees it there.
    found = [path.name for path in bucket.glob("_control/runs/*/*")]
    return sorted(name for name in found if not is_temp(name))


@pytest.mark.usefixtures("hasty")
def test_another_machine_sees_a_run_and_can_end_it(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    with ana.open() as here, bob.open() as there:
        tracker = Tracker(there)
        with Tracker(here).running(METHOD, run_id="11112222", model=MODEL, method="scan") as run:
            wait_for(lambda: shown(bucket))
            (seen,) = tracker.list(everywhere=True)
            assert (seen.id, seen.model, seen.status) == ("11112222", MODEL, "running")
            assert not seen.is_here
            assert tracker.list() == []
            tracker.cancel("1111", "by bob")
            assert run.cancelled.wait(15)
            assert run.reason == "by bob"
            run.finish("cancelled")
        assert shown(bucket) == []
        assert tracker.list(everywhere=True) == []


def test_a_short_run_asks_the_remote_nothing(ana: Machine, bucket: Path) -> None:
    with ana.open() as repo, Tracker(repo).running(METHOD, run_id="11112222"):
        time.sleep(0.7)
    assert not (bucket / "_control/runs").exists()


def test_a_machine_that_is_not_heard_of_is_lost_to_others(ana: Machine, bucket: Path) -> None:
    place = bucket / "_control/runs/_"
    place.mkdir(parents=True)
    document = {
        "id": "11112222",
        "kind": METHOD,
        "machine": "elsewhere",
        "pid": 7,
        "startedAt": "2026-05-14T20:19:51.042Z",
        "heartbeatAt": "2026-05-14T20:20:51.042Z",
    }
    (place / "11112222.json").write_text(json.dumps(document))
    (place / "nonsense.json").write_text("{")
    with ana.open() as repo:
        (run,) = Tracker(repo).list(everywhere=True)
    assert run.status == "lost"
    listed = ana("runs", "list", "--json").json
    assert [one["status"] for one in listed["runs"]] == ["lost"]
    assert ana("runs", "list", "--running", "--json").json["total"] == 0
    ana("runs", "gc", "-y")
    assert len(shown(bucket)) == 2
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(place / "11112222.json", (week_ago, week_ago))
    ana("runs", "gc", "-y")
    assert shown(bucket) == ["nonsense.json"]


@pytest.mark.usefixtures("hasty")
def test_no_namespace_sees_what_another_runs(ana: Machine, bob: Machine, bucket: Path) -> None:
    for machine, name in ((ana, "infra"), (bob, "web")):
        assert machine("datastore", "namespace", "set", name).status == 0
    with ana.open() as here, bob.open() as there:
        with Tracker(here).running(METHOD, run_id="11112222", model=MODEL, method="scan"):
            wait_for(lambda: list(bucket.glob("_control/runs/infra/*")))
            assert list(Tracker(there).list(everywhere=True)) == []
            with pytest.raises(NotFoundError):
                Tracker(there).cancel("1111")
        assert [run.id for run in Tracker(here).list(everywhere=True)] == ["11112222"]


def test_a_remote_that_does_not_answer_hides_only_what_runs_elsewhere(
    ana: Machine, bucket: Path
) -> None:
    with ana.open() as repo, Tracker(repo).running(METHOD, run_id="11112222"):
        pass
    bucket.rename(bucket.with_name("gone"))
    done = ana("runs", "list", "--json")
    assert [run["id"] for run in done.json["runs"]] == ["11112222"]
    assert "only what this machine knows" in done.err
