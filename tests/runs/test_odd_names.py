"""Names, arguments and inputs that no record could hold, and callers that closed their streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.errors import ValidationError
from swampstore.runs.errors import InputError
from swampstore.runs.inputs import parse_pairs
from swampstore.runs.method_request import MethodRequest
from swampstore.runs.method_run import run_method
from swampstore.runs.outputs import Outputs

MODEL = "demo/host/web"
NO_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("method", ["scan\x1b[31m", "scan\n", "scan\x7f"])
def test_a_method_whose_record_no_store_would_take_is_refused_before_it_runs(
    repo: Repo, repo_dir: Path, method: str
) -> None:
    ran = repo_dir / "ran"
    with pytest.raises(ValidationError, match="could not be shared"):
        run_method(repo, MethodRequest(MODEL, method, command=["touch", str(ran)]))
    assert not ran.exists()


def test_a_model_whose_record_would_have_too_long_a_name_is_refused_before_it_runs(
    repo: Repo, repo_dir: Path
) -> None:
    ran = repo_dir / "ran"
    with pytest.raises(ValidationError, match="too long"):
        run_method(repo, MethodRequest(f"demo/{'x' * 240}", "go", command=["touch", str(ran)]))
    assert not ran.exists()


def test_a_tag_that_cannot_be_saved_is_refused_before_anything_runs(
    repo: Repo, repo_dir: Path
) -> None:
    ran = repo_dir / "ran"
    request = MethodRequest(MODEL, "scan", command=["touch", str(ran)], tags={"k": NO_UTF8})
    with pytest.raises(ValidationError, match="tag"):
        run_method(repo, request)
    assert not ran.exists()


@pytest.mark.parametrize("command", [["printf", NO_UTF8], [f"no-{NO_UTF8}"]])
def test_a_command_with_arguments_that_are_no_text_has_a_record(
    repo: Repo, command: list[str]
) -> None:
    result = run_method(repo, MethodRequest(MODEL, "scan", command=command))
    (found,) = Outputs(repo).all()
    assert found.id == result.output.id
    assert "caf\\udce9" in str(found.command).replace("\\\\", "\\")


def test_an_input_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="UTF-8"):
        parse_pairs([f"place={NO_UTF8}"], None)


def test_an_input_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="longer than"):
        parse_pairs(["endless=@/dev/zero"], None)


@pytest.mark.parametrize("printed", [r'{"half": "\ud83d"}', '{"ratio": NaN}', "[1e999]"])
def test_a_command_that_prints_almost_json_has_an_account_of_it_as_result(
    repo: Repo, printed: str
) -> None:
    result = run_method(repo, MethodRequest(MODEL, "scan", command=["printf", "%s", printed]))
    assert result.status == "succeeded"
    assert repo.latest(MODEL, "result").json()["stdout"] == printed


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_caller_that_closed_its_streams_gets_the_exit_status(
    repo: Repo, repo_dir: Path, closed: str
) -> None:
    line = f'"$0" -m swampstore.cli run demo/host/web scan -- sh -c "echo x; exit 7" {closed}'
    ended = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], cwd=repo_dir, capture_output=True, check=False
    )
    assert ended.returncode == 7, ended.stderr
    assert b"defect" not in ended.stderr
