"""How the command line fails: messages, codes and exit statuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import DataRef, ModelRef, Repo
from swampstore.cli.session import Session
from tests.support.command_line import CommandLine, run_on_terminal, run_process


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.delenv("SWAMP_DEBUG", raising=False)
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def _fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def raise_it(_session: Session) -> None:
        raise error

    monkeypatch.setattr(Session, "open_repo", raise_it)


def test_an_error_is_a_message_and_a_hint(cli: CommandLine) -> None:
    outcome = cli("data", "get", "a/b", "x")
    assert outcome.status == 1
    assert outcome.err == "error: the model a/b has no data\nhint: No model has data yet.\n"
    assert outcome.out == ""


def test_an_error_in_json_is_one_object(cli: CommandLine) -> None:
    assert cli("data", "get", "a/b", "x", "--json").error == {
        "error": "the model a/b has no data",
        "code": "model_not_found",
        "hint": "No model has data yet.",
    }


def test_a_directory_that_is_no_repository_is_an_error(cli: CommandLine, tmp_path: Path) -> None:
    error = cli("data", "list", "a/b", "--repo", str(tmp_path), "--json").error
    assert error["code"] == "repo_not_found"
    assert "swampstore init" in error["hint"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dtaa"], "Did you mean `swampstore data`?"),
        (["data", "gte"], "Did you mean `swampstore data get`?"),
        (["data", "get"], "Missing argument 'MODEL'"),
        (["data", "get", "a/b", "x", "--vrsion", "1"], "Did you mean"),
        (["data", "get", "a/b", "x", "--version", "0"], "--version"),
        (["data", "list", "a/b", "surplus"], "surplus"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_a_command_line_that_is_wrong_exits_with_2(
    cli: CommandLine, arguments: list[str], words: str
) -> None:
    outcome = cli(*arguments)
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")
    assert words in outcome.err
    assert "--help`" in outcome.err.splitlines()[-1]
    error = cli(*arguments, "--json").error
    assert error["code"] == "usage"
    assert words in error["error"]


def test_an_interrupt_exits_with_130(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(monkeypatch, KeyboardInterrupt())
    outcome = cli("data", "list", "a/b")
    assert (outcome.status, outcome.err) == (130, "error: interrupted\n")
    assert cli("data", "list", "a/b", "--json").error["code"] == "interrupted"


def test_a_lock_that_somebody_holds_exits_with_75(
    cli: CommandLine, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_LOCK_TIMEOUT_MS", "50")
    with repo.mutations.holding(DataRef(ModelRef("a", "b"), "x")):
        outcome = cli("data", "put", "a/b", "x", "--json", stdin=b"1")
    assert outcome.status == 75
    assert outcome.error["code"] == "lock_timeout"


def test_a_defect_is_told_without_its_traceback(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_with(monkeypatch, ZeroDivisionError("oops"))
    outcome = cli("data", "list", "a/b")
    assert outcome.status == 1
    assert outcome.err.splitlines()[0] == "error: ZeroDivisionError: oops"
    assert "SWAMP_DEBUG=1" in outcome.err
    assert "Traceback" not in outcome.err
    assert cli("data", "list", "a/b", "--json").error["code"] == "internal_error"


def test_debugging_shows_the_traceback(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMP_DEBUG", "1")
    _fail_with(monkeypatch, ZeroDivisionError("oops"))
    assert "raise_it" in cli("data", "list", "a/b").err
    assert "raise_it" in cli("data", "list", "a/b", "--json").error["stack"]


def test_what_the_operating_system_refuses_is_told_with_its_path(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_with(monkeypatch, PermissionError(13, "Permission denied", "/some/file"))
    error = cli("data", "list", "a/b", "--json").error
    assert error == {"error": "/some/file: Permission denied", "code": "disk_error"}


NOT_UTF8 = "caf\udce9"  # how Python spells the Latin-1 bytes of an argument


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "get", f"a/{NOT_UTF8}", "x"],
        ["data", "get", f"{NOT_UTF8}/b", "x"],
        ["data", "get", NOT_UTF8, "x"],
        ["data", "get", "a/b", NOT_UTF8],
        ["data", "put", "a/b", "x", "--tag", f"k={NOT_UTF8}", "--json-value", "1"],
        ["data", "put", "a/b", "x", "--json-value", f'"{NOT_UTF8}"'],
        ["data", "search", "--type", NOT_UTF8],
        ["data", "search", "--model", NOT_UTF8],
        ["data", "query", f'name == "{NOT_UTF8}"'],
    ],
)
def test_arguments_that_are_not_utf8_are_refused(cli: CommandLine, arguments: list[str]) -> None:
    assert cli(*arguments, "--json").error["code"] in ("validation_failed", "query_failed")
    assert cli(*arguments).status == 1


def test_errors_send_no_escape_sequences_to_the_terminal(cli: CommandLine) -> None:
    outcome = cli("data", "get", "a/\x1b[2J", "x")
    assert outcome.err.startswith(r"error: the model a/\x1b[2J has no data")


def test_the_place_of_a_mistake_in_a_predicate_is_shown_on_lines_of_its_own(
    cli: CommandLine,
) -> None:
    assert len(cli("data", "query", "name == ").err.splitlines()) > 2


def test_a_file_whose_name_is_not_utf8_is_saved(repo_dir: Path, tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/caf\xe9.txt"
    with open(path, "wb") as file:
        file.write(b"text")
    outcome = run_process("data", "put", "a/b", "x", path, repo=repo_dir)
    assert outcome.status == 0, outcome.err
    missing = run_process("data", "put", "a/b", "x", path + b"2", repo=repo_dir)
    assert rb"caf\udce9.txt2" in missing.stderr


def test_colours_are_for_terminals_that_want_them(repo_dir: Path) -> None:
    coloured = run_on_terminal("data", "get", "a/b", "x", repo=repo_dir)
    assert coloured.stdout.startswith(b"\x1b[31merror:\x1b[0m the model a/b")
    plain = run_on_terminal("data", "get", "a/b", "x", repo=repo_dir, no_color=True)
    assert plain.stdout.startswith(b"error: the model a/b")


_CLEANING_UP_FOR_LONG = """
import os, signal, time
from swampstore.cli import errors
from swampstore.cli.session import Session

errors._GRACE = 0.1
session = Session()
session.json = {json}
with errors.heard_signals(session):
    try:
        os.kill(os.getpid(), signal.{signal})
    finally:
        time.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "json", "status", "told"),
    [
        ("SIGTERM", False, 143, "error: terminated\n"),
        ("SIGINT", False, 130, "error: interrupted\n"),
        ("SIGINT", True, 130, '"code": "interrupted"'),
    ],
)
def test_what_takes_too_long_to_clean_up_ends_with_its_line(
    name: str, json: bool, status: int, told: str
) -> None:
    program = _CLEANING_UP_FOR_LONG.format(signal=name, json=json)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr
