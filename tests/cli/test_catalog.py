"""The commands that look after the catalog, and the completion that reads it."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.catalog.database import checkpoint, compact
from swampstore.cli.catalog import RebuildProgress
from swampstore.cli.session import Session
from tests.support.command_line import CommandLine, run_on_terminal

Complete = Callable[..., list[str]]


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


@pytest.fixture
def artifacts(repo: Repo) -> Repo:
    for name in ("state", "status", "log"):
        repo.artifacts.save("aws/ec2/i-1", name, "one", tags={"modelName": "web"})
    repo.artifacts.save("aws/ec2/i-1", "log", "two", tags={"modelName": "web"})
    repo.artifacts.save("azure/vm/v-1", "state", "one")
    return repo


# status, rebuild -------------------------------------------------------------------------------


def test_status_tells_what_the_catalog_knows(
    cli: CommandLine, artifacts: Repo, repo_dir: Path
) -> None:
    path = repo_dir / ".swamp/swampstore.db"
    document = cli("catalog", "status", "--json").json
    assert document["path"] == str(path)
    assert document["populated"] is False
    assert (document["versions"], document["latest"], document["pending"]) == (5, 4, 0)
    assert document["fileBytes"] == path.stat().st_size
    assert document["walBytes"] == os.stat(f"{path}-wal").st_size > 0
    assert "populated  no" in cli("catalog", "status").out


def test_rebuild_makes_the_catalog_complete(
    cli: CommandLine, artifacts: Repo, repo_dir: Path
) -> None:
    (repo_dir / ".swamp/data/aws/ec2/i-1/status").rename(repo_dir / "elsewhere")
    document = cli("catalog", "rebuild", "--json").json
    assert document.pop("seconds") >= 0
    found = {"names": 3, "versions": 4, "removed": 1, "unreadable": 0}
    assert document == {**found, "findings": {"removed-name": 1}, "engine": "local"}
    assert cli("catalog", "status", "--json").json["populated"] is True


def test_rebuild_as_text_says_the_same(cli: CommandLine, artifacts: Repo) -> None:
    outcome = cli("catalog", "rebuild")
    assert outcome.out.startswith("4 data names, 5 versions; 0 removed, 0 unreadable; ")
    assert outcome.err == ""


def test_progress_is_told_every_few_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = iter([0.0, 1.0, 5.0, 6.0, 11.0])
    progress = RebuildProgress(Session(), lambda: next(now))
    for names in (1, 2, 3, 4):
        progress(names, names * 10)
    progress.end()
    assert capsys.readouterr().err == "2 names, 20 versions\n4 names, 40 versions\n"


def test_progress_is_one_changing_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    now = iter([0.0, 0.05, 0.2, 0.4])
    progress = RebuildProgress(Session(), lambda: next(now))
    for names in (1, 2, 3):
        progress(names, names)
    progress.end()
    shown = capsys.readouterr().err
    assert shown == "\r\x1b[K2 names, 2 versions\r\x1b[K3 names, 3 versions\r\x1b[K"


# compact ---------------------------------------------------------------------------------------


def test_compact_gives_the_space_of_deleted_rows_back(
    cli: CommandLine, artifacts: Repo, repo_dir: Path
) -> None:
    path = repo_dir / ".swamp/swampstore.db"
    filler = [(f"path-{number}", "x" * 1000) for number in range(1000)]
    artifacts.catalog.rows.write(
        lambda db: db.executemany("INSERT INTO intent VALUES (?, ?)", filler)
    )
    artifacts.catalog.rows.write(lambda db: db.execute("DELETE FROM intent"))
    document = cli("catalog", "compact", "--json").json
    assert document["vacuumSkipped"] is False
    assert document["walPagesTotal"] == document["walPagesCheckpointed"] > 200
    assert document["dbBytesReclaimed"] > 1_000_000
    assert path.stat().st_size < 200_000
    assert os.stat(f"{path}-wal").st_size == 0
    assert artifacts.latest("web", "state").text() == "one"


def test_a_second_compact_has_nothing_to_do(cli: CommandLine, artifacts: Repo) -> None:
    cli("catalog", "compact")
    assert cli("catalog", "compact", "--json").json == {
        "walPagesTotal": 0,
        "walPagesCheckpointed": 0,
        "dbBytesReclaimed": 0,
        "vacuumSkipped": False,
    }
    assert cli("catalog", "compact").out == "Gave 0 B back.\n"


def test_compact_leaves_a_catalog_that_is_being_written_alone(
    artifacts: Repo, repo_dir: Path
) -> None:
    artifacts.catalog.rows.read(lambda db: db.execute("PRAGMA busy_timeout = 50"))
    other = sqlite3.connect(repo_dir / ".swamp/swampstore.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        compacted = compact(artifacts.catalog.rows)
    finally:
        other.close()
    assert compacted.vacuum_skipped
    assert compacted.wal_pages_total > 0


def test_a_checkpoint_empties_the_log(artifacts: Repo, repo_dir: Path) -> None:
    log = checkpoint(artifacts.catalog.rows)
    assert log.pages_total == log.pages_checkpointed > 0
    assert (repo_dir / ".swamp/swampstore.db-wal").stat().st_size == 0


# completion ------------------------------------------------------------------------------------


@pytest.fixture
def complete(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Complete:
    def completions(*words: str) -> list[str]:
        monkeypatch.setenv("_SWAMPSTORE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["swampstore", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        outcome = cli()
        assert (outcome.status, outcome.err) == (0, "")
        return [line.removeprefix("plain,") for line in outcome.out.splitlines() if line]

    return completions


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["da"], ["data", "datastore"]),
        (["data", "ver"], ["versions"]),
        (["data", "get", "aws"], ["aws/ec2/i-1"]),
        (["data", "get", "w"], ["web"]),
        (["data", "get", "web", "sta"], ["state", "status"]),
        (["data", "get", "aws/ec2/i-1", "l"], ["log"]),
        (["data", "rename", "web", "lo"], ["log"]),
        (["data", "get", "nobody", "x"], []),
        (["catalog", "status", "--js"], ["--json"]),
    ],
)
def test_words_are_completed_from_the_catalog(
    artifacts: Repo, complete: Complete, words: list[str], expected: list[str]
) -> None:
    assert complete(*words) == expected
    assert not artifacts.catalog.is_populated  # nobody waits for a rebuild


def test_completion_outside_of_a_repository_is_silent(complete: Complete, tmp_path: Path) -> None:
    assert complete("--repo", str(tmp_path), "data", "get", "a") == []


def test_completion_looks_into_the_repository_on_the_command_line(
    artifacts: Repo, complete: Complete, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWAMP_REPO_DIR")
    assert complete("--repo", str(repo_dir), "data", "get", "az") == ["azure/vm/v-1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(cli: CommandLine, shell: str) -> None:
    out = cli("completion", shell).out
    assert "_SWAMPSTORE_COMPLETE" in out
    assert cli("completion", shell, "--json").json == {"shell": shell, "script": out[:-1]}


def test_a_table_on_a_terminal_fits_its_width(artifacts: Repo, repo_dir: Path) -> None:
    artifacts.artifacts.save("aws/ec2/i-1", "a-long-name-" * 20, "one")
    shown = run_on_terminal("data", "list", "aws/ec2/i-1", repo=repo_dir)
    assert shown.status == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    assert plain.splitlines()[0].split() == ["type", "model", "name", "v", "size", "age", "content"]
    assert max(map(len, plain.splitlines())) <= 80
