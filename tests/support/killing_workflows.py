"""Kill workflow runs at random moments, resume them, and compare what is left with a quiet run.

    python -m tests.support.killing_workflows [--seeds 100] [--first 0]

Each seed has a directory as bucket, and two machines. One runs a workflow with parallel levels,
expansions, retries, an allowed failure and a nested workflow; it is killed up to four times, the
process alone or its group, and resumed each time. Then both machines must have the same versions,
numbers and content as after a run that nobody disturbed, and each step one output that succeeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swampstore import Repo, init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.runs import expressions  # noqa: F401 - loaded before anything forks
from swampstore.runs.outputs import Outputs
from swampstore.runs.workflow.files import Workflows
from swampstore.runs.workflow.record import RunRecords
from swampstore.runs.workflow.runner import resume_workflow, run_workflow
from swampstore.sync.run import catch_up
from tests.support.forked import in_child

MOST_KILLS = 4
LIST = json.dumps({"hosts": ["a", "b", "c"]})
REPO_ID = "00000000-0000-4000-8000-000000000001"


def _command(model: str, text: str, **members: Any) -> dict[str, Any]:
    return {
        "type": "model_method",
        "modelIdOrName": model,
        "methodName": "look",
        "command": text,
        **members,
    }


EACH = {"item": "host", "in": "${{ data.latest('w/list', 'result').attributes.hosts }}"}
OUTER = {
    "id": "00000000-0000-4000-8000-00000000000a",
    "name": "outer",
    "tags": {"env": "test"},
    "jobs": [
        {
            "name": "prepare",
            "steps": [
                {
                    "name": "list",
                    "task": _command("w/list", f"echo '{LIST}'"),
                },
                {
                    "name": "flaky",
                    "task": _command("w/flaky", "echo try; test ${{ self.attempt }} -ge 2"),
                    "retry": {"attempts": 3, "backoff": "5ms"},
                },
            ],
        },
        {
            "name": "scan",
            "dependsOn": ["prepare"],
            "concurrency": 3,
            "steps": [
                {
                    "name": "measure",
                    "forEach": EACH,
                    "task": _command(
                        "host/${{ self.host }}",
                        'echo \'{"host": "${{ self.host }}", "n": 1}\'',
                    ),
                },
                {
                    "name": "again-${{ self.host }}",
                    "forEach": EACH,
                    "dependsOn": ["measure"],
                    "task": _command("host/${{ self.host }}", "echo '{\"n\": 2}'"),
                },
                {
                    "name": "vary",
                    "forEach": EACH,
                    "dataOutputOverrides": [
                        {"specName": "result", "vary": ["host"]},
                        {"specName": "log", "vary": ["host"]},
                    ],
                    "task": _command(
                        "w/all", "echo '{\"v\": 1}'", inputs={"host": "${{ self.host }}"}
                    ),
                },
            ],
        },
        {
            "name": "end",
            "dependsOn": ["scan"],
            "steps": [
                {"name": "bad", "task": _command("w/bad", "exit 3"), "allowFailure": True},
                {
                    "name": "because",
                    "dependsOn": [{"step": "bad", "condition": "failed"}],
                    "task": _command("w/because", "echo '{\"handled\": true}'"),
                },
                {"name": "nested", "task": {"type": "workflow", "workflowIdOrName": "inner"}},
            ],
        },
    ],
}
INNER = {
    "id": "00000000-0000-4000-8000-00000000000b",
    "name": "inner",
    "jobs": [
        {
            "name": "one",
            "steps": [
                {"name": "x", "task": _command("w/x", "echo '{\"x\": 1}'")},
                {"name": "y", "dependsOn": ["x"], "task": _command("w/x", "echo '{\"x\": 2}'")},
            ],
        }
    ],
}

Version = tuple[int, str, str, str, str]
Data = dict[str, list[Version]]


class Machine:
    """A repository with a cache of its own, in front of a bucket that another one shares."""

    def __init__(self, directory: Path, bucket: Path) -> None:
        self.repo_dir = directory / "repo"
        self.environ = {
            **os.environ,
            "SWAMP_HOME": str(directory / "home"),
            "SWAMPSTORE_FSYNC": "0",
        }
        self.environ["SWAMPSTORE_LOCK_TTL_MS"] = "1000"
        init_repo(self.repo_dir).close()
        section = {"type": "file", "url": f"file://{bucket}", "hydrationStrategy": "full"}
        update_marker(str(self.repo_dir), {"repoId": REPO_ID, "datastore": section})
        workflows = self.repo_dir / "workflows"
        workflows.mkdir()
        for document in (OUTER, INNER):
            (workflows / f"workflow-{document['name']}.yaml").write_text(json.dumps(document))

    def open(self) -> Repo:
        return open_repo(self.repo_dir, environ=self.environ)

    def go_on(self) -> None:
        """Run the workflow, or resume the run that there is; in the process that calls it."""
        os.chdir(self.repo_dir)
        with self.open() as repo:
            known = list(RunRecords(repo).all(str(OUTER["id"])))
            if known:
                result = resume_workflow(repo, known[0].id)
            else:
                result = run_workflow(repo, Workflows(repo).require("outer"))
            assert result.exit_code == 0, json.dumps(result.to_json(), indent=1)

    def go_on_if_not_over(self) -> None:
        """Do the same, unless the last kill came after the end."""
        with self.open() as repo:
            known = list(RunRecords(repo).all(str(OUTER["id"])))
            is_over = bool(known) and known[0].status == "succeeded"
            if is_over:
                with repo.session([f"workflow/{OUTER['id']}"]):
                    return
        self.go_on()


def data_of(repo: Repo) -> Data:
    """Return every version of every name: its number, content, and the step that wrote it."""
    repo.rebuild_catalog()
    found: Data = {}
    for model in repo.catalog.models(1000):
        for name in repo.catalog.names(model):
            found[f"{model}/{name}"] = [
                (
                    one.version,
                    _content(one),
                    one.row.job_name,
                    one.row.step_name,
                    one.metadata.tags.get("env", ""),
                )
                for one in reversed(repo.versions(model, name))
            ]
    return found


def _content(artifact: Any) -> str:
    """Return content without what differs between any two runs."""
    try:
        document = artifact.json()
    except Exception:  # noqa: BLE001 - then it is the log, which is text
        return str(artifact.text())
    if isinstance(document, dict):
        document = {
            key: value
            for key, value in document.items()
            if key not in ("executedAt", "durationMs", "command")
        }
    return json.dumps(document, sort_keys=True)


def check(machine: Machine, expected: Data) -> None:
    """Check what a machine has, once it has caught up with the bucket."""
    with machine.open() as repo:
        assert catch_up(repo) is None
        found = data_of(repo)
        assert found == expected, _difference(expected, found)
        (record,) = RunRecords(repo).all(str(OUTER["id"]))
        assert record.status == "succeeded", record.to_json()
        assert all(job.status == "succeeded" for job in record.jobs)
        succeeded = Counter(
            (output.provenance.workflow_run_id, output.provenance.step_name)
            for output in Outputs(repo).all(status="succeeded")
        )
        twice = [key for key, count in succeeded.items() if count != 1]
        assert not twice, f"these succeeded more than once: {twice}"
        (child,) = RunRecords(repo).all(str(INNER["id"]))
        assert child.status == "succeeded"


def _difference(expected: Data, found: Data) -> str:
    lines = [
        f"{name}:\n  expected {expected.get(name)}\n  found    {found.get(name)}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]
    return "\n".join(lines)


def quiet_run(directory: Path) -> tuple[Data, float]:
    """Return what a run leaves that nobody disturbs, and how long it takes."""
    bucket = directory / "bucket"
    bucket.mkdir(parents=True)
    machine = Machine(directory / "one", bucket)
    began = time.monotonic()
    in_child(machine.go_on)
    took = time.monotonic() - began
    out = directory / "expected.json"

    def note() -> None:
        with machine.open() as repo:
            out.write_text(json.dumps(data_of(repo)))

    in_child(note)
    raw = json.loads(out.read_text())
    return {name: [tuple(one) for one in versions] for name, versions in raw.items()}, took


def killed(work: Callable[[], None], after: float, *, group: bool) -> bool:
    """Do something in a child that is killed after a while; return whether it was."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent only sees the status
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    end = time.monotonic() + after
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0, "the run failed by itself"
            return False
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def trial(directory: Path, seed: int, expected: Data, took: float) -> int:
    """Disturb one run, and check both machines; return how often it was killed."""
    choose = random.Random(seed)
    bucket = directory / "bucket"
    bucket.mkdir(parents=True)
    one, two = Machine(directory / "one", bucket), Machine(directory / "two", bucket)
    kills = 0
    for _ in range(choose.randint(1, MOST_KILLS)):
        group = choose.random() < 0.5
        if not killed(one.go_on_if_not_over, choose.uniform(0, took * 1.1), group=group):
            break
        kills += 1
    else:
        in_child(one.go_on_if_not_over)
    in_child(lambda: check(one, expected))
    in_child(lambda: check(two, expected))
    return kills


def main() -> int:
    """Run many seeds, and say which of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="Keep the directories of failures.")
    options = parser.parse_args()
    began, kills, failed = time.monotonic(), 0, []
    root = Path(tempfile.mkdtemp(prefix="workflows-", dir=_memory()))
    expected, took = quiet_run(root / "quiet")
    for seed in range(options.first, options.first + options.seeds):
        place = root / str(seed)
        try:
            kills += trial(place, seed, expected, took)
        except AssertionError as error:
            failed.append(seed)
            sys.stdout.write(f"seed {seed}: {error}\n")
            if options.keep:
                continue
        shutil.rmtree(place, ignore_errors=True)
    if not (failed and options.keep):
        shutil.rmtree(root, ignore_errors=True)
    sys.stdout.write(
        f"workflows killed and resumed: {options.seeds} seeds, {kills} kills, {len(failed)} failed"
        f" {failed or ''} (a quiet run takes {took:.1f} s), {time.monotonic() - began:.0f} s\n"
    )
    return 1 if failed else 0


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


if __name__ == "__main__":
    sys.exit(main())
