"""`data gc`, `data prune` and `run gc` preview, ask, delete and tell."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, open_repo
from swampstore.cli import main

MODEL = "aws/ec2/i-1"
COMMANDS = (["data", "gc"], ["data", "prune"], ["run", "gc"])


def days_ago(days: float) -> datetime:
    """Commands use the real clock, so what is old must really be old."""
    return datetime.now(UTC) - timedelta(days=days)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    monkeypatch.setattr("os.fsync", lambda _file: None)


@pytest.fixture
def filled(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    """A repository in which every cleanup finds something, and stands in as the current one."""
    monkeypatch.chdir(repo_dir)
    with open_repo(repo_dir, clock=lambda: days_ago(9)) as repo:
        for number in range(3):
            repo.artifacts.save(MODEL, "state", f"{number}", garbage_collection=1)
        repo.artifacts.save(MODEL, "old", "four", lifetime="7d")
        repo.artifacts.save("aws/ec2/i-2", "state", "orphan")
        (repo_dir / "models").mkdir()
        (repo_dir / "models/web.yaml").write_text("id: i-1\n")
        add_run(repo_dir)
        yield repo


def add_run(repo_dir: Path) -> None:
    path = repo_dir / ".swamp/workflow-runs/w/workflow-run-r.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"status: succeeded\nstartedAt: '{days_ago(40).isoformat()}'\n")
    os.utime(path, (days_ago(40).timestamp(),) * 2)


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Have a person at the terminal who says `text`."""
    stdin = io.StringIO(text)
    stdin.isatty = lambda: True  # type: ignore[method-assign]  # all that is asked of a terminal
    monkeypatch.setattr("sys.stdin", stdin)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def files(repo: Repo) -> list[str]:
    base = Path(repo.tree.base)
    return sorted(
        str(path.relative_to(base))
        for top in ("data", "workflow-runs")
        for path in (base / top).rglob("*")
        if path.is_file()
    )


def test_gc_as_json_deletes_without_asking(
    filled: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    preview = run_json(capsys, "data", "gc", "--dry-run")
    assert filled.list_versions(MODEL, "state") == [1, 2, 3]
    real = run_json(capsys, "data", "gc")
    assert real.pop("walPagesTotal") == real.pop("walPagesCheckpointed") > 0
    assert preview.pop("walPagesTotal") == preview.pop("walPagesCheckpointed") == 0
    assert real == preview | {"dryRun": False}
    assert real == {
        "dataEntriesExpired": 1,
        "versionsDeleted": 3,
        "bytesReclaimed": 6,
        "dryRun": False,
        "expiredEntries": [
            {
                "type": "aws/ec2",
                "modelId": "i-1",
                "dataName": "old",
                "reason": "duration-expired",
                "versionCount": 1,
            }
        ],
        "abandonedVersions": 0,
    }
    assert filled.list_versions(MODEL, "state") == [3]


def test_prune_as_json_deletes_without_asking(
    filled: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run_json(capsys, "data", "prune")
    assert document["modelsReclaimed"] == 1
    assert document["reclaimedModels"][0]["modelId"] == "i-2"
    assert filled.list_versions("aws/ec2/i-2", "state") == []


def test_run_gc_as_json_deletes_without_asking(
    filled: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_json(capsys, "run", "gc", "--older-than", "50d")["workflowRunsDeleted"] == 0
    document = run_json(capsys, "run", "gc")
    assert document["workflowRunsDeleted"] == 1
    assert list(document) == [
        "workflowRunsDeleted",
        "workflowRunBytesReclaimed",
        "outputsDeleted",
        "outputBytesReclaimed",
        "totalBytesReclaimed",
        "dryRun",
    ]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_dry_run_shows_and_keeps_everything(
    filled: Repo, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    before = files(filled)
    assert main([*command, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert "Would delete" in captured.out
    assert captured.out.splitlines()[0].endswith("  size")
    assert captured.err == ""
    assert files(filled) == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_person_sees_a_preview_and_may_say_no(
    filled: Repo,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    before = files(filled)
    answer(monkeypatch, "n\n")
    assert main(command) == 0
    captured = capsys.readouterr()
    assert "Would delete" in captured.err
    assert "[y/N]" in captured.err
    assert captured.out == "Cancelled, nothing was changed.\n"
    assert files(filled) == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_person_who_says_yes_gets_what_was_shown(
    filled: Repo,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    before = files(filled)
    answer(monkeypatch, "y\n")
    assert main(command) == 0
    captured = capsys.readouterr()
    shown = captured.err[: captured.err.index("Delete ")]
    assert captured.out.replace("Deleted", "Would delete").startswith(shown)
    assert len(files(filled)) < len(before)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("option", ["-y", "-f"])
def test_nobody_is_asked_after_yes(
    filled: Repo, capsys: pytest.CaptureFixture[str], command: list[str], option: str
) -> None:
    assert main([*command, option]) == 0
    captured = capsys.readouterr()
    assert "Deleted" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_person_to_ask_nothing_is_deleted(
    filled: Repo,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    before = files(filled)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(command) == 1
    assert "Pass -y" in capsys.readouterr().err
    assert files(filled) == before


def test_nothing_to_delete_needs_no_question(
    repo_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo_dir)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["data", "gc"]) == 0
    assert capsys.readouterr().out == "Deleted 0 versions, 0 B; 0 data names expired.\n"


def test_a_refused_prune_is_an_error_with_its_reason(
    filled: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(filled.config.repo_dir, "models/broken.yaml").write_text("id: [")
    assert main(["data", "prune", "-y", "--json"]) == 1
    document = json.loads(capsys.readouterr().err)
    assert document["code"] == "prune_refused"
    assert "models/broken.yaml" in document["error"]


def test_what_was_kept_in_doubt_is_told_on_the_side(
    filled: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.artifacts.save(MODEL, "scan", "x", lifetime="workflow")
    assert main(["data", "gc", "-y"]) == 0
    captured = capsys.readouterr()
    assert "warning: kept 1 data name" in captured.err
    assert main(["data", "gc", "-y", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["warnings"][0].startswith("kept 1 data name")


def test_a_duration_that_is_none_is_an_error(
    filled: Repo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "gc", "--older-than", "soon", "-y"]) == 1
    assert "'soon' is not a duration" in capsys.readouterr().err


def test_a_long_list_is_cut_and_counted(
    filled: Repo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.cli.data.gc._SHOWN", 1)
    assert main(["data", "gc", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "... and 1 more\n" in out
    assert out.count("aws/ec2/i-1") == 1
