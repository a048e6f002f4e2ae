"""Names and tags stay from version to version, unless somebody says otherwise."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.errors import ValidationError
from tests.support.command_line import CommandLine

MODEL = "aws/ec2/i-3"


@pytest.fixture
def cli(
    repo: Repo,
    repo_dir: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def test_a_second_put_by_address_keeps_the_name_of_the_model(cli: CommandLine) -> None:
    cli("data", "put", MODEL, "state", "--model-name", "web-3", "--tag", "env=prod", stdin=b"1")
    cli("data", "put", MODEL, "state", stdin=b"2")
    assert cli("data", "get", "web-3", "state", "--raw").stdout == b"2"
    assert cli("data", "get", MODEL, "state", "--json").json["tags"] == {
        "modelName": "web-3",
        "env": "prod",
        "type": "file",
    }


def test_one_tag_is_changed_and_one_removed(cli: CommandLine) -> None:
    cli("data", "put", MODEL, "x", "--tag", "env=prod", "--tag", "team=a", stdin=b"1")
    done = cli(
        "data", "put", MODEL, "x", "--tag", "env=dev", "--untag", "team", "--json", stdin=b"2"
    )
    assert done.json["tags"] == {"env": "dev", "type": "file"}
    anew = cli("data", "put", MODEL, "x", "--no-inherit", "--json", stdin=b"3")
    assert anew.json["tags"] == {"type": "file"}


def test_a_tag_that_is_not_there_cannot_be_removed(cli: CommandLine, repo: Repo) -> None:
    cli("data", "put", MODEL, "x", "--tag", "team=a", stdin=b"1")
    outcome = cli("data", "put", MODEL, "x", "--untag", "taem", stdin=b"2")
    assert "Did you mean 'team'?" in outcome.err
    assert repo.list_versions(MODEL, "x") == [1]
    assert cli("data", "put", MODEL, "x", "--untag", "a", "--no-inherit", stdin=b"2").status == 2


def test_a_save_in_python_keeps_them_too(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "x", b"1", tags={"modelName": "web", "env": "prod"})
    assert repo.artifacts.save(MODEL, "x", b"2").tags["env"] == "prod"
    assert repo.artifacts.save(MODEL, "x", io.BytesIO(b"3")).tags["modelName"] == "web"
    assert repo.artifacts.save(MODEL, "x", b"4", tags={"env": None}).tags.keys() == {
        "modelName",
        "type",
    }
    assert repo.artifacts.save(MODEL, "x", b"5", inherit=False).tags == {"type": "file"}
    with pytest.raises(ValidationError, match="no tag 'env'"):
        repo.artifacts.save(MODEL, "x", io.BytesIO(b"6"), tags={"env": None})
    assert repo.list_versions(MODEL, "x") == [1, 2, 3, 4, 5]


def test_what_says_which_run_wrote_it_does_not_stay(repo: Repo) -> None:
    step = {"source": "step-output", "workflowRunId": "r1", "job": "j", "step": "s"}
    repo.artifacts.save(MODEL, "x", b"1", tags={**step, "modelName": "web", "team": "workflow"})
    assert repo.artifacts.save(MODEL, "x", b"2").tags == {"modelName": "web", "type": "file"}
    repo.artifacts.save(MODEL, "y", b"1", tags={"initiatedBy": "me", "env": "prod"})
    assert repo.artifacts.save(MODEL, "y", b"2").tags == {"env": "prod", "type": "file"}


def test_the_type_follows_the_content_unless_the_user_gave_one(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "x", b"1")
    assert repo.artifacts.save(MODEL, "x", {"a": 1}).tags == {"type": "resource"}
    repo.artifacts.save(MODEL, "y", b"1", tags={"type": "log"})
    assert repo.artifacts.save(MODEL, "y", b"2").tags == {"type": "log"}
    assert repo.artifacts.save(MODEL, "y", b"3", tags={"type": "file"}).tags == {"type": "file"}


def test_what_was_deleted_begins_anew(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "x", b"1", tags={"modelName": "web", "env": "prod"})
    repo.artifacts.mark_deleted(MODEL, "x", method="delete")
    assert repo.artifacts.save(MODEL, "x", b"2").tags == {"modelName": "web", "type": "file"}


def test_a_rename_says_before_it_acts_where_the_history_stays(cli: CommandLine) -> None:
    for content in (b"1", b"2", b"3"):
        cli("data", "put", MODEL, "old", "--model-name", "web", stdin=content)
    outcome = cli("data", "rename", "web", "old", "new")
    assert outcome.err.splitlines()[0] == (
        "2 earlier versions of old stay under that name: `swampstore log web old`."
    )
    assert len(cli("log", "web", "old").out.splitlines()) == 4
