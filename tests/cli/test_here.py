"""`status`, familiar words, and how help is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import Repo, __version__
from swampstore.cli.shortcuts import cat
from swampstore.marker import update_marker
from tests.support.command_line import CommandLine


@pytest.fixture
def cli(
    repo: Repo,
    repo_dir: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    repo.artifacts.save("aws/ec2/i-1", "state", "one", tags={"modelName": "web"})
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


@pytest.fixture
def shared(
    cli: CommandLine, repo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """A repository with a directory as its remote."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    (tmp_path / "store").mkdir()
    assert cli("datastore", "setup", f"file://{tmp_path}/store").status == 0
    return cli


def test_status_tells_what_is_here(cli: CommandLine, repo_dir: Path) -> None:
    document = cli("status", "--json").json
    assert document["repository"] == str(repo_dir)
    assert (document["models"], document["dataNames"], document["versions"]) == (1, 1, 1)
    assert document["bytes"] == 3
    text = cli("status").out
    assert "1 model, 1 data name, 1 version, 3 B" in text
    assert "There is no remote" in cli("status", "--remote").out


def test_status_tells_what_waits_without_asking_anybody(
    cli: CommandLine, repo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    update_marker(str(repo_dir), {"datastore": {"url": "s3://nobody-answers/here"}})
    monkeypatch.setenv("SWAMPSTORE_OFFLINE", "1")
    cli("data", "put", "aws/ec2/i-1", "state", stdin=b"two")
    document = cli("status", "--json").json
    assert any("aws/ec2/i-1/state" in path for path in document["waiting"])
    assert document["lastSync"] is None
    text = cli("status").out
    assert "next push: `swampstore push`" in text
    assert "last sync     never" in text


def test_status_after_a_sync(shared: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMPSTORE_OFFLINE", "1")
    shared("data", "put", "aws/ec2/i-1", "state", stdin=b"two")
    assert "waiting to be pushed: `swampstore push`" in shared("status").out
    monkeypatch.delenv("SWAMPSTORE_OFFLINE")
    shared("push")
    document = shared("status", "--json").json
    assert document["waiting"] == []
    assert document["conflicts"] == []
    assert document["lastSync"]
    asked = shared("status", "--remote", "--json").json["remote"]
    assert asked == {
        "answers": True,
        "locks": [],
        "toPull": 0,
        "toPullBytes": 0,
        "keepsVersions": None,
    }
    assert "Nothing waits to be pushed." in shared("status", "--remote").out


def test_familiar_words_do_what_the_long_ones_do(shared: CommandLine) -> None:
    assert shared("cat", "web", "state").stdout == b"one"
    assert shared("log", "web", "state").out == shared("data", "versions", "web", "state").out
    assert shared("push", "--dry-run", "--json").json["dryRun"] is True
    assert shared("pull", "--json").json["mode"] == "pull"
    assert shared("rm", "web", "state", "--json").json["versionsDeleted"] == 1
    assert cat.help


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["get"], "swampstore data get"),
        (["statsu"], "swampstore status"),
        (["data", "lst"], "swampstore data list"),
        (["gc"], "swampstore data gc"),
    ],
)
def test_a_word_that_is_no_command_leads_to_one(
    cli: CommandLine, words: list[str], meant: str
) -> None:
    outcome = cli(*words)
    assert outcome.status == 2
    assert f"`{meant}`" in outcome.err


def test_quiet_leaves_notes_out_and_verbose_tells_more(cli: CommandLine) -> None:
    asked = ["data", "query", "true", "--limit", "1"]
    assert cli(*asked).err == "1 result, limited; there may be more\n"
    assert cli(*asked, "-q").err == ""
    told = cli("-v", *asked).err
    assert told.startswith("repository /")
    assert told.endswith(" s\n")
    assert "Traceback" in cli("-v", "data", "get", "no", "such").err


@pytest.mark.slow
def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "swampstore", "--version"], capture_output=True, check=True
    )
    assert done.stdout.decode() == f"swampstore {__version__}\n"


def test_variables_of_both_prefixes_are_read(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_DATASTORE", "filesystem:/nowhere")
    monkeypatch.setenv("SWAMPSTORE_DATASTORE", f"filesystem:{tmp_path}/elsewhere")
    assert cli("status", "--json").json["location"] == f"{tmp_path}/elsewhere"
    option = f"filesystem:{tmp_path}/third"
    assert cli("status", "--datastore", option, "--json").json["location"] == f"{tmp_path}/third"


def test_completion_is_installed_where_the_shell_looks(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    done = cli("completion", "install", "--json").json
    assert done["path"] == f"{tmp_path}/.config/fish/completions/swampstore.fish"
    assert "complete" in Path(done["path"]).read_text()
    assert "fpath+=~/.zfunc" in cli("completion", "install", "zsh").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "name one of bash, zsh, fish" in cli("completion", "install").err
    assert cli("completion", "bash", "zsh").status == 2


def test_a_push_that_moves_much_of_an_index_says_so_once(
    shared: CommandLine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return caplog.text.count("`swampstore datastore migrate-index` makes it cost what changed")

    shared("data", "put", "aws/ec2/i-1", "state", stdin=b"two")
    assert told() == 0
    monkeypatch.setattr("swampstore.index.version1_commit._MUCH", 100)
    for content in (b"three", b"four"):
        shared("data", "put", "aws/ec2/i-1", "state", stdin=content)
    assert told() == 1


def test_a_namespace_that_is_set_and_unset_leaves_the_doctor_content(cli: CommandLine) -> None:
    assert cli("datastore", "namespace", "set", "team-a").status == 0
    assert cli("datastore", "namespace", "unset").status == 0
    outcome = cli("doctor")
    assert outcome.status == 0, outcome.out
