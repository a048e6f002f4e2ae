"""The demo runs from start to end, and what it claims is checked by itself."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from swampstore import open_repo
from tests.support.markdown_pages import ROOT

DEMO = ROOT / "demo"
CHAPTERS = (
    "Make a repository",
    "A nightly scan saves what it finds",
    "Run something",
    "Look something up",
    "Ask a question",
    "Use a secret",
    "Kill a workflow, and go on",
    "Kill writers in the middle of their work",
    "Lose the catalog",
    "Share it with another machine",
    "Clean up",
    "Back it up, and restore it",
    "See the doctor",
    "Look after all of it",
    "What happened",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def told(place: Path) -> str:
    """What the demo tells where there is no terminal; settings of the user do not matter to it."""
    done = subprocess.run(
        [sys.executable, str(DEMO / "demo.py"), "--dir", str(place)],
        env=os.environ | {"SWAMP_DATASTORE": "filesystem:/nowhere", "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_it_tells_every_chapter_in_order(told: str) -> None:
    headings = re.findall(r"^(\d+)\. (.+?) ─+$", told, re.MULTILINE)
    assert headings == [(str(number), title) for number, title in enumerate(CHAPTERS, 1)]


def test_it_shows_the_commands_that_it_runs(told: str) -> None:
    prompt = r"^(?:server|laptop)?\$ (?:.*\| )?"
    shown = re.findall(rf"{prompt}swampstore ([a-z]+(?: [a-z]+)?)", told, re.MULTILINE)
    assert {"data get", "data put", "data query", "data gc", "doctor"} <= set(shown)
    assert {"datastore setup", "sync", "pipeline verify", "pipeline report"} <= set(shown)
    assert {"run disks", "run demo", "output list", "vault create"} <= set(shown)
    assert {"workflow run", "workflow resume", "backup create", "backup restore"} <= set(shown)


def test_it_makes_claims_and_all_of_them_hold(told: str) -> None:
    claims = re.findall(r"^✓ (.+)$", told, re.MULTILINE)
    assert f"{len(claims)} made, {len(claims)} held" in told
    for claim in (
        "the writer was killed",
        "version 2 never came to be",
        "every version that was acknowledged is there",
        "every row is back",
        "the method has seen three machines",
        "what a command printed is data",
        "a run without its input never began",
        "the run had the secret",
        "nobody saw it",
        "it is in no file",
        "the workflow was killed",
        "its record shows where it was",
        "no step that had finished ran again",
        "the secret is not",
        "the laptop has the same versions",
        "but no content yet: that comes when it is read",
        "a question fetches what it has to look into",
        "nothing to do took one request in each direction",
        "nothing is lost, on the server",
        "nor on the laptop",
        "the data is in the repository again, all of it",
        "another backup sends only what changed since then",
        "every version is there again",
        "the secret is in no backup",
        "nothing is wrong, after all of this",
        "that is found, and nothing else",
        "the report needs nothing but a browser",
    ):
        assert claim in claims
    assert any(re.fullmatch(r"one artifact took 1\d requests", claim) for claim in claims)


def test_it_is_plain_where_there_is_no_terminal(told: str) -> None:
    assert "\x1b" not in told


def test_it_leaves_a_repository_and_a_report_to_look_at(told: str, place: Path) -> None:
    assert f"rm -r {place}" in told
    assert re.search(rf"^ +report +{place}/report.html *$", told, re.MULTILINE)
    assert (place / "report.html").read_text("utf-8").startswith("<!doctype html>")
    with open_repo(place) as repo:
        assert repo.latest("web-1", "state").version == 8


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of the demo, whose plain names are free again after the test."""
    monkeypatch.syspath_prepend(DEMO)
    yield importlib.import_module
    for file in DEMO.glob("*.py"):
        sys.modules.pop(file.stem, None)


def test_a_claim_that_does_not_hold_ends_it_with_a_message(
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    demo = load("demo")

    def lie(account: Any) -> None:
        account.chapter("A lie")
        account.claim("one is two", holds=False)

    monkeypatch.setattr(demo, "CHAPTERS", (lie, lambda _: pytest.fail("it went on")))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--dir", str(tmp_path)])
    assert demo.main() == 1
    assert "This does not hold: one is two" in capsys.readouterr().out


@pytest.mark.parametrize(("line", "fails"), [("exit 3", False), ("true", True)])
def test_a_command_with_another_outcome_than_told_ends_it(
    line: str, fails: bool, load: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    account = load("account")
    with pytest.raises(account.ClaimError, match=line):
        account.Account(tmp_path).run(line, fails=fails)


def test_a_command_may_be_run_on_another_machine_and_asked_what_it_says(
    load: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account = load("account")
    (tmp_path / "there").mkdir()
    laptop = account.Machine("laptop", tmp_path / "there", {"SWAMP_HOME": "/its/home"})
    printed = account.Account(tmp_path).ask('basename "$PWD"; echo $SWAMP_HOME', on=laptop)
    assert printed == "there\n/its/home\n"
    assert capsys.readouterr().out == f'\nlaptop$ basename "$PWD"; echo $SWAMP_HOME\n{printed}'
