"""Listing what ran: many records at once, asked in CEL, with their logs also while they run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swampstore import Repo, open_repo
from swampstore.errors import QueryError
from swampstore.layout import ModelRef
from swampstore.runs.outputs import Output, Outputs, Provenance
from swampstore.runs.summaries import OutputIndex, select_runs
from swampstore.runs.tracker import METHOD, Run
from tests.support.command_line import CommandLine, environment
from tests.support.machines import Machine

MODEL = ModelRef("aws/ec2", "i-1")
OUTPUT = Output(
    id="",
    model=MODEL,
    method="scan",
    status="succeeded",
    started_at="2026-05-14T20:19:51.042Z",
    completed_at="2026-05-14T20:19:52.042Z",
    duration_ms=1000,
)


@pytest.fixture
def index(repo: Repo) -> OutputIndex:
    return OutputIndex(repo)


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def save(repo: Repo, number: int, **changed: object) -> Output:
    started = f"2026-05-14T{number // 60 % 24:02}:{number % 60:02}:00.000Z"
    output = OUTPUT._replace(id=f"{number:08x}-0000", started_at=started)
    return Outputs(repo).save(output._replace(**changed))  # type: ignore[arg-type]


def ids(index: OutputIndex, predicate: str | None = None) -> list[int]:
    found, _ = index.find(predicate)
    return [int(str(one.values["id"])[:8], 16) for one in found]


def fill(repo: Repo) -> None:
    save(repo, 1)
    save(repo, 2, status="failed", duration_ms=5000, error={"message": "timeout of db"})
    save(repo, 3, status="failed", duration_ms=10, error={"message": "no"})
    save(repo, 4, model=ModelRef("probe", "p"), method="measure", model_name="prober")
    save(repo, 5, provenance=Provenance(triggered_by="workflow", step_name="measure"))


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (None, [5, 4, 3, 2, 1]),
        ('status == "failed" && durationMs > 1000', [2]),
        ('error.contains("timeout") || modelName == "prober"', [4, 2]),
        ('triggeredBy == "workflow" && stepName.startsWith("mea")', [5]),
        ('modelType == "probe" && modelId == "p"', [4]),
        ('method in ["measure", "x"]', [4]),
        ('startedAt > "2026-05-14T00:02:30"', [5, 4, 3]),
        # SQL cannot answer this one, so that every record is asked.
        ('timestamp(startedAt).getMinutes() == 3 || error.matches("^no$")', [3]),
    ],
)
def test_outputs_are_found_by_predicates(
    repo: Repo, index: OutputIndex, predicate: str | None, expected: list[int]
) -> None:
    fill(repo)
    assert ids(index, predicate) == expected


def test_what_is_no_field_is_refused_with_those_there_are(index: OutputIndex) -> None:
    with pytest.raises(QueryError, match="durationMs"):
        index.find("duration > 5")
    with pytest.raises(QueryError, match="cannot be compared"):
        index.find('durationMs > "5"')


def test_the_index_follows_the_records(repo: Repo, index: OutputIndex) -> None:
    fill(repo)
    assert index.refresh() == 5
    assert index.refresh() == 0
    changed = save(repo, 6, status="running")
    Outputs(repo).save(changed._replace(status="failed"))
    assert ids(index, 'status == "failed"') == [6, 3, 2]
    for path in Path(repo.tree.path("outputs/probe")).rglob("*.yaml"):
        path.unlink()
    assert ids(index) == [6, 5, 3, 2, 1]
    index.close()
    Path(repo.config.local_dir, "swampstore.outputs.db").write_bytes(b"damaged" * 1000)
    assert ids(index) == [6, 5, 3, 2, 1]


def test_what_makes_no_sense_is_left_out_and_large_records_are_not_read_whole(
    repo: Repo, index: OutputIndex, caplog: pytest.LogCaptureFixture
) -> None:
    fill(repo)
    home = Path(repo.tree.path("outputs/aws/ec2/scan"))
    (home / "i-1-broken.yaml").write_text("{")
    large = home / "i-1-2026-05-14T00-09-00-000Z.yaml"
    junk = "".join(f"    - {{dataId: x, name: n{n}, version: {n}}}\n" for n in range(10_000))
    large.write_text(
        "id: '00000009-0000'\ndefinitionId: i-1\nmethodName: scan\nstatus: succeeded\n"
        f"startedAt: '2026-05-14T00:09:00.000Z'\nartifacts:\n  dataArtifacts:\n{junk}"
        "durationMs: 7\n"
    )
    assert large.stat().st_size > 256 * 1024
    assert ids(index, "durationMs == 7") == [9]
    assert "broken" in caplog.text


def test_outputs_are_listed_where_nothing_can_be_written(
    repo: Repo, index: OutputIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(repo)
    expected = ids(OutputIndex(repo))
    (Path(repo.config.local_dir) / "swampstore.outputs.db").unlink()
    refuse_new_files_below(repo.config.local_dir, monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ids(index) == expected
    index.close()
    assert not [*tmp_path.glob("swampstore-*")]


def refuse_new_files_below(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a directory what it would be on a file system that is mounted read-only."""
    really = os.open

    def opened(path: str, flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith(directory) and flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", opened)


def test_thousands_of_records_are_listed_at_once(
    repo: Repo, index: OutputIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(repo.tree.path("outputs/aws/ec2/scan"))
    home.mkdir(parents=True)
    for number in range(3000):
        (home / f"i-1-{number}.yaml").write_text(
            f"id: '{number:08x}'\ndefinitionId: i-1\nmethodName: scan\nstatus: succeeded\n"
            f"startedAt: '2026-05-14T20:19:51.042Z'\ndurationMs: {number}\n"
        )
    index.refresh()
    # Once they were read, a list opens none of them again.
    monkeypatch.setattr("swampstore.runs.summaries.members_of", None)
    found, total = index.find("durationMs >= 2000", limit=10)
    assert (len(found), total) == (10, 1000)


def test_runs_are_chosen_by_predicates() -> None:
    runs = [
        Run(str(number), METHOD, status, "2026-05-14T20:19:51.042Z", "", "here", 1, MODEL, "scan")
        for number, status in enumerate(["running", "failed", "succeeded"])
    ]
    assert [run.id for run in select_runs(runs, 'status != "failed" && isHere')] == ["0", "2"]
    assert [run.id for run in select_runs(runs, 'model == "aws/ec2/i-1"')] == ["0", "1", "2"]
    assert select_runs(runs, "!isHere") == []
    with pytest.raises(QueryError):
        select_runs([], "nothing == 1")


# Commands ---------------------------------------------------------------------------------------


def test_outputs_are_listed_filtered_and_shown(cli: CommandLine, repo: Repo) -> None:
    fill(repo)
    listed = cli("output", "list", "--json").json
    assert listed["total"] == 5
    assert listed["outputs"][0]["triggeredBy"] == "workflow"
    filters = ["--model", str(MODEL), "--method", "scan", "--status", "failed", "--limit", "1"]
    found = cli("output", "list", *filters, "--json").json
    assert (found["total"], len(found["outputs"])) == (2, 1)
    assert cli("output", "list", "--since", "1h", "--json").json["total"] == 0
    as_table = cli("output", "list", 'status == "failed"', "--format", "table")
    assert "2 outputs" in as_table.out + as_table.err
    shown = cli("output", "show", "00000002", "--json").json
    assert (shown["id"], shown["modelType"]) == ("00000002-0000", "aws/ec2")
    assert "timeout of db" in cli("output", "show", "00000002").out
    assert cli("output", "show", "0000000", "--json").error["code"] == "validation_failed"
    assert cli("output", "show", "ffff", "--json").error["code"] == "not_found"
    assert cli("output", "logs", "00000002", "--json").error["code"] == "not_found"


def test_a_run_is_shown_as_it_was_typed_and_in_words(cli: CommandLine) -> None:
    assert cli("run", "a/b", "m", "--", "sh", "-c", "echo one two").status == 0
    (shown,) = cli("output", "list", "--json").json["outputs"]
    assert "command       sh -c 'echo one two'\n" in cli("output", "show", shown["id"]).out
    assert "isHere       yes\n" in cli("runs", "show", shown["id"]).out


def test_a_log_is_followed_until_its_run_ends(repo_dir: Path) -> None:
    def started(*args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "swampstore.cli", *args],
            env=environment(repo_dir),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    script = "echo one; sleep 2; echo two"
    run = started("run", "host/local/me", "check", "--", "sh", "-c", script)
    with open_repo(repo_dir) as repo:
        from swampstore.runs.tracker import Tracker

        tracker = Tracker(repo)
        end = time.monotonic() + 20
        while not (found := tracker.list()):
            assert time.monotonic() < end
            time.sleep(0.05)
        tracker.close()
    follow = started("output", "logs", found[0].id, "--follow")
    out, _ = follow.communicate(timeout=20)
    assert out.split() == ["one", "two"]
    run.communicate(timeout=20)
    again = started("output", "logs", found[0].id)
    assert again.communicate(timeout=20)[0].split() == ["one", "two"]


def test_the_log_of_a_run_is_its_own_though_another_one_has_its_number_now(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {}
    monkeypatch.setenv("SWAMPSTORE_OFFLINE", "1")
    for machine, word in ((ana, "first"), (bob, "second")):
        assert machine("run", "host/one", "check", "--", "echo", word).status == 0
        ids[word] = machine("output", "list", "--json").json["outputs"][0]["id"]
    monkeypatch.delenv("SWAMPSTORE_OFFLINE")
    for machine in (ana, bob, ana):
        machine("sync")
    for machine in (ana, bob):
        for word, output_id in ids.items():
            assert machine("output", "logs", output_id).out == f"{word}\n"
    # One that is gone is not taken for the one that has its number.
    ana("data", "delete", "host/one", "log", "--version", "2", "--yes")
    assert ana("output", "logs", ids["second"], "--json").error["code"] == "not_found"


def test_no_namespace_sees_the_outputs_of_another(ana: Machine, bob: Machine) -> None:
    for machine, name in ((ana, "infra"), (bob, "web")):
        assert machine("datastore", "namespace", "set", name).status == 0
        assert machine("run", f"{name}/host/one", "check", "--", "true").status == 0
        machine("sync")
    for machine, name in ((ana, "infra"), (bob, "web")):
        machine("sync", "--full")
        listed = machine("output", "list", "--json").json["outputs"]
        assert [one["modelType"] for one in listed] == [f"{name}/host"]
        assert [one["model"] for one in machine("runs", "list", "--json").json["runs"]] == [
            f"{name}/host/one"
        ]
        told = machine("audit", "list", "--kind", "run", "--json").json["events"]
        assert [one["model"] for one in told] == [f"{name}/host/one"]
