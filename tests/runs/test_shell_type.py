"""The built-in type command/shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from swampstore import Repo
from swampstore.runs.errors import InputError
from swampstore.runs.method_request import MethodRequest, MethodResult
from swampstore.runs.method_run import run_method
from swampstore.runs.outputs import Outputs
from swampstore.vaults import Vaults

SECRET = "sw0rd'fish $HOME"


def define(repo_dir: Path, arguments: str, more: str = "") -> None:
    """Write the definition of the model `usage`."""
    path = repo_dir / "models/command/shell/usage.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "type: command/shell\nid: 5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10\nname: usage\nversion: 1\n"
        f"methods:\n  execute:\n    arguments:\n{arguments}{more}"
    )


def run(repo: Repo, **details: object) -> MethodResult:
    return run_method(repo, MethodRequest("usage", "execute", **details))  # type: ignore[arg-type]


def test_a_definition_says_what_the_shell_runs(repo: Repo, repo_dir: Path) -> None:
    (repo_dir / "sub").mkdir()
    define(
        repo_dir,
        "      run: 'pwd; echo $A $B >&2'\n      workingDir: sub\n      env: {A: x, B: 2}\n",
    )
    result = run(repo)
    assert result.status == "succeeded"
    found = repo.latest("usage", "result")
    document = found.json()
    assert document.pop("executedAt").endswith("Z")
    assert document.pop("durationMs") >= 0
    assert document == {
        "exitCode": 0,
        "command": "pwd; echo $A $B >&2",
        "stdout": f"{repo_dir}/sub\n",
        "stderr": "x 2\n",
    }
    assert (found.metadata.lifetime, found.metadata.garbage_collection) == ("infinite", 10)
    log = repo.latest("usage", "log")
    assert (log.content_type, log.metadata.streaming) == ("text/plain", True)
    (output,) = Outputs(repo).all()
    assert output.provenance.model_version == "2026.02.09.1"


def test_an_exit_status_fails_the_run_after_all_was_written_unless_it_is_ignored(
    repo: Repo, repo_dir: Path
) -> None:
    define(repo_dir, "      run: echo half; exit 7\n")
    result = run(repo)
    assert (result.status, result.exit_code) == ("failed", 7)
    assert repo.latest("usage", "result").json()["exitCode"] == 7
    define(repo_dir, "      run: echo half; exit 7\n      ignoreExitCode: true\n")
    result = run(repo)
    assert (result.status, result.exit_code) == ("succeeded", 0)
    assert repo.latest("usage", "result").json()["exitCode"] == 7


def test_a_timeout_is_in_milliseconds(repo: Repo, repo_dir: Path) -> None:
    define(repo_dir, "      run: echo begun; sleep 30\n      timeout: 300\n")
    result = run(repo)
    assert result.status == "failed"
    assert "took longer than 0.3 seconds" in (result.output.error or {})["message"]
    assert repo.latest("usage", "log").text() == "begun\n"


def test_arguments_are_checked_and_inputs_may_replace_them(repo: Repo, repo_dir: Path) -> None:
    define(repo_dir, "      run: echo a\n")
    assert run(repo, inputs={"run": "echo b"}).status == "succeeded"
    assert repo.latest("usage", "log").text() == "b\n"
    define(repo_dir, "      runn: echo a\n")
    with pytest.raises(InputError, match="runn"):
        run(repo)


def test_expressions_are_evaluated_and_secrets_reach_the_shell_as_variables(
    repo: Repo, repo_dir: Path
) -> None:
    Vaults(repo).create("local_encryption", "ops")
    Vaults(repo).open("ops").put("db", SECRET)
    define(
        repo_dir,
        "      run: |-\n"
        "        echo ${{ inputs.host }} ${{ vault.get('ops','db') }}\n"
        "        tr '\\0' ' ' < /proc/$$/cmdline | grep -c sw0r[d]\n"
        '        printf %s "$TOKEN" | wc -c\n'
        "      env: {TOKEN: \"${{ vault.get('ops','db') }}\"}\n"
        "      ignoreExitCode: true\n",
        "inputs:\n  type: object\n  properties: {host: {type: string}}\n",
    )
    result = run(repo, inputs={"host": "web-1"})
    assert result.status == "succeeded", result.output.error
    assert repo.latest("usage", "log").text().split() == ["web-1", "***", "0", str(len(SECRET))]
    assert "vault.get" in repo.latest("usage", "result").json()["command"]
    kept = (repo_dir / ".swamp/definitions-evaluated/command/shell/usage.yaml").read_text()
    assert "echo web-1 ${{ vault.get('ops','db') }}" in kept
    for path in repo_dir.rglob("*"):
        assert not path.is_file() or b"sw0rd'fish" not in path.read_bytes(), path


def test_a_secret_is_never_an_argument_of_a_command(repo: Repo) -> None:
    Vaults(repo).create("local_encryption", "ops")
    Vaults(repo).open("ops").put("db", SECRET)

    def command(*argv: str, **inputs: str) -> MethodResult:
        return run_method(repo, MethodRequest("a/b", "scan", command=argv, inputs=inputs))

    refused = command("echo", "${{ vault.get('ops','db') }}")
    assert refused.status == "failed"
    assert "everybody on this machine" in (refused.output.error or {})["message"]
    assert command("sh", "-c", "echo ${{ vault.get('ops','db') }}").status == "succeeded"
    assert repo.latest("a/b", "log").text() == "***\n"
    script = '[ -n "$SWAMPSTORE_INPUT_DB" ] && printenv SWAMPSTORE_INPUT_DB'
    assert command("sh", "-c", script, db="${{ vault.get('ops','db') }}").status == "succeeded"
    assert repo.latest("a/b", "log").text() == "***\n"
