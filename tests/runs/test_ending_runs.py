"""Runs in processes of their own: interrupted, killed, beside each other, out of reach."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, open_repo
from swampstore.audit import events
from swampstore.retention.runs import RunRecords
from swampstore.runs.method_request import MethodRequest, RunListener
from swampstore.runs.method_run import run_method
from swampstore.runs.outputs import Outputs
from swampstore.runs.tracker import Tracker
from swampstore.stores.errors import StoreUnreachableError
from tests.support.command_line import environment, run_process
from tests.support.machines import Machine

MODEL = "demo/host/web"
# Says when it began, and which signal it heard.
PATIENT = (
    "trap 'echo heard INT; exit 9' INT; trap 'echo heard TERM; exit 9' TERM; echo begun;"
    " while :; do sleep 0.05; done"
)
STUBBORN = "trap '' INT TERM; echo begun; while :; do sleep 0.05; done"


def start(repo: Path, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", "run", *args],
        env=environment(repo) | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def wait_for_first_line(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "INT"), (signal.SIGTERM, "TERM")])
def test_an_interruption_reaches_the_command_and_the_record_says_so(
    repo: Repo, repo_dir: Path, number: int, word: str
) -> None:
    with start(repo_dir, MODEL, "scan", "--", "sh", "-c", PATIENT) as process:
        wait_for_first_line(process)
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, f"heard {word}\n".encode())
    (output,) = Outputs(repo).all()
    assert output.status == "cancelled"
    # Some shells tell in between how their child ended.
    assert repo.latest(MODEL, "log").text().endswith(f"heard {word}\n")


def test_who_insists_has_the_command_killed_with_all_that_it_started(repo_dir: Path) -> None:
    marker = f"marker-{os.getpid()}"
    script = f"sh -c '{STUBBORN.replace('echo begun; ', '')}' {marker} & {STUBBORN}"
    with start(repo_dir, MODEL, "scan", "--", "sh", "-c", script) as process:
        wait_for_first_line(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    until(lambda: not _commands_with(marker))


def _commands_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if word in text and "\0-c\0" in text and "swampstore" not in text:
            found.append(text)
    return found


def test_an_interruption_ends_a_method_in_python(repo: Repo, repo_dir: Path) -> None:
    (repo_dir / "models").mkdir()
    (repo_dir / "models/host.py").write_text(
        "import time, swampstore\n"
        "@swampstore.model('demo/host')\n"
        "class Host:\n"
        "    state = swampstore.Resource()\n"
        "    def scan(self, context):\n"
        "        context.write_resource('state', 'state', {})\n"
        "        print('begun', flush=True)\n"
        "        time.sleep(60)\n"
    )
    with start(repo_dir, MODEL, "scan") as process:
        wait_for_first_line(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    (output,) = Outputs(repo).all()
    assert output.status == "cancelled"
    assert [one.name for one in output.artifacts] == ["state"]


def test_somebody_who_stops_reading_does_not_stop_the_command(repo: Repo, repo_dir: Path) -> None:
    script = "echo begun; for i in 1 2 3 4 5; do echo line; sleep 0.05; done"
    with start(repo_dir, MODEL, "scan", "--", "sh", "-c", script) as process:
        wait_for_first_line(process)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=20)
    assert repo.latest(MODEL, "log").text() == "begun\n" + "line\n" * 5


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_run_leaves_nothing_half_written(repo_dir: Path, seed: int) -> None:
    """Kill a run at a random moment: what is there is whole, and the next run goes on."""
    with open_repo(repo_dir, durable=False) as repo:
        Outputs(repo)
    script = "echo begun; printf '{\"n\": 1}' > /dev/null; sleep 0.05"
    with start(repo_dir, MODEL, "scan", "--", "sh", "-c", script) as process:
        time.sleep(random.Random(seed).uniform(0.1, 0.9))
        process.kill()
    after = run_process("run", MODEL, "scan", "--", "echo", "{}", repo=repo_dir)
    assert after.status == 0, after.err
    with open_repo(repo_dir, durable=False) as repo:
        for output in Outputs(repo).all():
            assert output.is_over
            for one in output.artifacts:
                assert repo.version(MODEL, one.name, one.version).bytes() is not None
        assert repo.latest(MODEL, "result").json() == {}
    doctor = run_process("doctor", "--deep", "--json", repo=repo_dir)
    assert doctor.status == 0, doctor.out


# With a remote ---------------------------------------------------------------------------------


def test_one_push_carries_artifacts_record_and_definition(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket)
    assert ana("run", "demo/host/db", "scan", "--", "true").status == 0
    assert ana("run", MODEL, "scan", "--", "echo", '{"a": 1}').status == 0
    assert bob("sync").status == 0
    with bob.open() as repo:
        (output,) = Outputs(repo).all(model=repo.model(MODEL))
        assert output.status == "succeeded"
        assert repo.latest(MODEL, "result").json() == {"a": 1}
        path = Outputs(repo).log_path(output)
        assert path is not None
        assert Path(path).read_text() == '{"a": 1}\n'
        assert repo.tree.size("auto-definitions/demo/host/web.yaml") is not None


def test_runs_of_one_model_take_turns_and_those_of_others_do_not_wait(
    ana: Machine, bob: Machine, bucket: Path, tmp_path: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket)
    diary = tmp_path / "diary"

    def both(first: str, second: str, meanwhile: str) -> list[str]:
        diary.write_text("")
        script = f"echo begin $0 >> {diary}; {meanwhile}; echo end $0 >> {diary}"
        runs = [
            start(
                machine.repo_dir, model, "scan", "--", "sh", "-c", script, who, env=machine.environ
            )
            for machine, model, who in ((ana, first, "ana"), (bob, second, "bob"))
        ]
        for process in runs:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err.decode()
        return [line.split()[0] for line in diary.read_text().splitlines()]

    assert both(MODEL, MODEL, "sleep 0.3") == ["begin", "end", "begin", "end"]
    # Each ends only when both have begun, however long it takes to start them.
    together = f"while test $(grep -c begin {diary}) -lt 2; do sleep 0.02; done"
    assert both("demo/host/a", "demo/host/b", together) == ["begin", "begin", "end", "end"]


def test_what_could_not_be_pushed_is_here_and_the_exit_status_is_74(
    ana: Machine, bob: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnreachableError("the cable is cut", hint="Plug it in.")

    ana.use(bucket)
    with monkeypatch.context() as patch:
        patch.setattr("swampstore.sync.service.SyncService.push", fail)
        outcome = ana("run", MODEL, "scan", "--json", "--", "echo", '{"b": 2}')
    assert outcome.status == 74
    assert json.loads(outcome.stdout)["status"] == "succeeded"
    assert ana("sync").status == 0
    bob.use(bucket)
    assert bob("sync").status == 0
    assert json.loads(bob.get(MODEL, "result")) == {"b": 2}


def test_a_lock_that_is_lost_fails_the_run_and_its_record_says_so(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket)
    ana("run", MODEL, "scan", "--", "true")
    script = "echo begun; sleep 2; echo '{}'"
    args = (MODEL, "scan", "--", "sh", "-c", script)
    with start(ana.repo_dir, *args, env=ana.environ) as process:
        wait_for_first_line(process)
        released = bob("datastore", "lock", "release", "--model", MODEL, "--force")
        assert released.status == 0, released.err
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1, err.decode()
    with ana.open() as repo:
        newest = next(Outputs(repo).all())
        assert newest.status == "failed"
        assert "lock" in (newest.error or {})["message"]


def test_a_lock_that_is_lost_at_the_end_fails_the_run_for_everybody_who_asks(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    class Taking(RunListener):
        def event(self, kind: str, **details: Any) -> None:
            del details
            if kind == "finished":
                released = bob("datastore", "lock", "release", "--model", MODEL, "--force")
                assert released.status == 0, released.err

    for machine in (ana, bob):
        machine.use(bucket)
    with ana.open() as repo:
        request = MethodRequest(MODEL, "scan", command=["true"])
        assert run_method(repo, request, listener=Taking()).status == "failed"
        assert [one.status for one in Outputs(repo).all()] == ["failed"]
        assert [one.status for one in Tracker(repo).list()] == ["failed"]
        *_, last = events(repo, kind="run")
        assert last.members["status"] == "failed"


def test_the_log_beside_a_record_goes_with_it_when_runs_are_collected(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket)
    failing = ("sh", "-c", "echo text; exit 1")
    assert ana("run", MODEL, "scan", "--rollback-on-failure", "--", *failing).status == 1
    assert bob("sync").status == 0
    with bob.open() as repo:
        (output,) = Outputs(repo).all()
        log = Outputs(repo).log_path(output)
        assert log is not None
        assert Path(log).read_text() == "text\n"
        later = repo.clock() + timedelta(days=60)
        records = RunRecords(repo.tree, repo.config.repo_dir, print)
        (facts,) = records.unchanged_since(later.timestamp())
        assert facts.log_file == os.path.realpath(log)


def test_a_run_of_a_command_loads_nothing_heavy(repo_dir: Path) -> None:
    program = (
        "import sys; from swampstore.cli import main; status = main(sys.argv[1:])\n"
        "print(*sys.modules, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", MODEL, "scan", "--", "true"],
        env=environment(repo_dir),
        capture_output=True,
        check=True,
    )
    modules = set(done.stderr.decode().splitlines()[-1].split())
    heavy = {"pyspark", "pyarrow", "pandas", "cel", "ruamel", "rich", "cryptography", "obstore"}
    heavy |= {"msgspec", "fastjsonschema", "logging", "asyncio", "tempfile", "importlib.metadata"}
    assert modules & heavy == set()
    ours = {"models", "expressions", "expression_values", "reports", "method_log", "workflow"}
    assert modules & {f"swampstore.runs.{name}" for name in ours} == set()
    assert not [
        name for name in modules if name.startswith(("swampstore.vaults", "swampstore.sync"))
    ]
