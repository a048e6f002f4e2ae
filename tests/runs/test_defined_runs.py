"""Running what a definition says: inputs, expressions, what is kept of them, and reports."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo
from swampstore.runs.definitions import Definitions
from swampstore.runs.errors import ExpressionError, InputError, ReportNotFoundError
from swampstore.runs.method_request import MethodRequest, MethodResult
from swampstore.runs.method_run import run_method
from swampstore.runs.reports import report, safe_name
from swampstore.runs.workflow.files import Workflows
from swampstore.runs.workflow.runner import run_workflow
from swampstore.vaults import Vaults, local_encryption

ID = "5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10"
GREET = f"""\
type: command/shell
id: {ID}
name: greet
tags:
  host: ${{{{ inputs.host }}}}
globalArguments:
  place: ${{{{ inputs.host }}}}
methods:
  execute:
    arguments:
      run: >-
        echo "hello ${{{{ inputs.host }}}}
        ${{{{ data.latest('host/facts', 'n').?attributes.n.orValue(0) }}}}"
inputs:
  type: object
  properties:
    host: {{ type: string }}
    times: {{ type: integer, default: 2 }}
  required: [host]
"""


@pytest.fixture
def write(repo: Repo) -> Any:
    def write(path: str, text: str) -> Path:
        file = Path(repo.config.repo_dir, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return file

    return write


def execute(repo: Repo, model: str = "greet", **details: Any) -> MethodResult:
    return run_method(repo, MethodRequest(model, "execute", **details))


def test_a_definition_is_run_with_its_inputs(repo: Repo, write: Any) -> None:
    write("models/greet.yaml", GREET)
    result = execute(repo, inputs={"host": "web"})
    assert result.status == "succeeded"
    found = repo.latest(f"command/shell/{ID}", "result")
    assert found.json()["stdout"] == "hello web 0\n"
    assert found.tags["host"] == "web"
    assert found.model_name == "greet"
    assert result.output.provenance.definition_hash == Definitions(repo).require("greet").hash


def test_what_is_wrong_with_inputs_is_said_before_anything_runs(repo: Repo, write: Any) -> None:
    path = write("models/greet.yaml", GREET)
    with pytest.raises(InputError, match=rf"{path}: the input host is missing"):
        execute(repo)
    with pytest.raises(InputError, match=rf"{path}: the input times must be integer"):
        execute(repo, inputs={"host": "a", "times": "b"})
    assert not repo.catalog.models(10, like="command/shell")


def test_the_evaluated_definition_is_used_again(repo: Repo, write: Any) -> None:
    write("models/greet.yaml", GREET)
    execute(repo, inputs={"host": "web"})
    kept = Path(repo.config.base, "definitions-evaluated/command/shell/greet.yaml").read_text()
    assert "hello web 0" in kept
    repo.artifacts.save("host/facts", "n", {"n": 7})
    execute(repo, inputs={"host": "db"})
    latest = repo.latest(f"command/shell/{ID}", "result")
    assert latest.json()["stdout"] == "hello db 7\n"
    repo.artifacts.save("host/facts", "n", {"n": 8})
    result = execute(repo, last_evaluated=True)
    assert result.status == "succeeded"
    latest = repo.latest(f"command/shell/{ID}", "result")
    assert latest.version == 3
    assert latest.json()["stdout"] == "hello db 7\n"


def test_a_secret_is_used_and_kept_nowhere(
    repo: Repo, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="the extra `vaults` is not installed")
    monkeypatch.setattr(local_encryption, "_ITERATIONS", 10)
    vaults = Vaults(repo)
    vaults.create("local_encryption", "ops")
    vaults.open("ops").put("web-token", "hunter2hunter2")
    counting = "printf %s ${{ vault.get('ops', inputs.host + '-token') }} | wc -c"
    write("models/greet.yaml", re.sub(r">-\n.*\n.*\n", f"{counting}\n", GREET))
    result = execute(repo, inputs={"host": "web"})
    assert repo.latest(f"command/shell/{ID}", "result").json()["stdout"] == "14\n"
    assert result.status == "succeeded"
    files = [path for path in Path(repo.config.base).rglob("*") if path.is_file()]
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    kept = Path(repo.config.base, "definitions-evaluated/command/shell/greet.yaml").read_text()
    assert "vault.get('ops','web-token')" in kept.replace("''", "'")


def test_a_mistake_in_an_expression_names_its_place(repo: Repo, write: Any) -> None:
    path = write(
        "models/greet.yaml", GREET.replace("hello ${{ inputs.host", "hello ${{ inputs.hots")
    )
    result = execute(repo, inputs={"host": "web"})
    assert result.status == "failed"
    message = (result.output.error or {})["message"]
    assert f"{path}: methods.execute.arguments.run: ${{{{ inputs.hots }}}}" in message
    assert issubclass(ExpressionError, ValueError)


# Reports -------------------------------------------------------------------------------------

REPORTS = """
    import swampstore

    @swampstore.report("@acme/cost")
    def cost(context):
        text = context.read("result")["stdout"].strip()
        return f"# {context.name} said {text}", {"said": text, "status": context.status}

    @swampstore.report("broken")
    def broken(context):
        raise RuntimeError("no idea")

    @swampstore.report("silent")
    def silent(context):
        return ""
"""


def reporting(*names: str) -> str:
    return f"{GREET}reports:\n  require: {json.dumps(names)}\n  skip: [skipped]\n"


def test_reports_are_saved_beside_the_data(repo: Repo, write: Any) -> None:
    write("models/greet.yaml", reporting("@acme/cost", "summary", "silent", "skipped"))
    write("models/reports.py", REPORTS)
    result = execute(repo, inputs={"host": "web"})
    assert result.status == "succeeded"
    model = f"command/shell/{ID}"
    cost = repo.latest(model, "report-acme-cost")
    assert cost.text() == "# greet said hello web 0"
    assert cost.content_type == "text/markdown"
    assert (cost.metadata.lifetime, cost.metadata.garbage_collection) == ("30d", 5)
    assert cost.tags == {"type": "report", "reportName": "@acme/cost", "reportScope": "method"}
    said = repo.latest(model, "report-acme-cost-json").json()
    assert said == {"said": "hello web 0", "status": "succeeded"}
    assert "| host | web |" in repo.latest(model, "report-summary").text()
    assert repo.latest(model, "report-summary-json").json()["artifacts"][0]["name"] == "result"
    assert repo.latest(model, "report-silent", default=None) is None
    assert [one.name for one in result.reports] == ["@acme/cost", "summary", "silent"]
    assert [one.name for one in result.artifacts] == ["result", "log"]
    told = result.to_json()["reports"][0]
    assert [one["name"] for one in told["dataArtifacts"]] == [cost.name, f"{cost.name}-json"]


def test_a_report_that_raises_makes_the_run_a_failed_one(repo: Repo, write: Any) -> None:
    write("models/greet.yaml", reporting("broken", "@acme/cost"))
    write("models/reports.py", REPORTS)
    result = execute(repo, inputs={"host": "web"})
    assert (result.status, result.exit_code) == ("failed", 1)
    assert result.output.error == {"message": "the report broken failed: no idea"}
    model = f"command/shell/{ID}"
    assert repo.latest(model, "report-broken-json").json() == {
        "error": True,
        "reportName": "broken",
        "scope": "method",
        "message": "no idea",
    }
    assert repo.latest(model, "report-acme-cost").version == 1
    assert repo.latest(model, "result").version == 1


def test_a_failed_method_is_reported_as_one(repo: Repo, write: Any) -> None:
    write("models/greet.yaml", reporting("summary").replace("echo", "exit 3; echo"))
    result = execute(repo, inputs={"host": "web"})
    assert (result.status, result.exit_code) == ("failed", 3)
    text = repo.latest(f"command/shell/{ID}", "report-summary").text()
    assert text.startswith("# greet execute: failed")
    assert "> exit status 3" in text or "3" in text


def test_a_report_that_is_nowhere_is_missed_before_anything_runs(repo: Repo, write: Any) -> None:
    write("models/greet.yaml", reporting("@acme/cost"))
    with pytest.raises(ReportNotFoundError) as error:
        execute(repo, inputs={"host": "web"})
    assert error.value.hint == "There is: summary."
    write("models/reports.py", "import nonsense_that_is_not_there")
    with pytest.raises(ValueError, match="cannot be imported"):
        execute(repo, inputs={"host": "web"})
    assert not repo.catalog.models(10, like="command/shell")


def test_a_report_has_a_name_and_a_scope_that_can_be() -> None:
    assert safe_name("@acme/net/cost") == "report-acme-net-cost"
    with pytest.raises(ValueError, match="scope 'job'"):
        report("x", scope="job")


def test_steps_at_once_do_not_see_half_a_module(repo: Repo, write: Any) -> None:
    write(
        "models/slow/thing.py",
        """
        import time
        import swampstore

        time.sleep(0.3)

        @swampstore.model("slow/thing")
        class Thing:
            found = swampstore.Resource()

            def look(self, context):
                context.write_resource("found", "found", {})
        """,
    )
    steps = "".join(
        f"""
          - name: look-{number}
            task: {{ type: model_method, modelIdOrName: slow/thing/{number}, methodName: look }}"""
        for number in range(4)
    )
    write("workflows/all.yaml", f"name: all\njobs:\n      - name: all\n        steps:{steps}\n")
    result = run_workflow(repo, Workflows(repo).require("all"))
    assert [step.error for _, step in result.record.steps()] == [None] * 4
