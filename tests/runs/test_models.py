"""Models in Python: found, run, and what their methods may do."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest

import swampstore
from swampstore import Repo
from swampstore.errors import ValidationError
from swampstore.runs.errors import (
    InputError,
    MethodFailedError,
    MethodNotFoundError,
    ModelTypeError,
)
from swampstore.runs.method_request import MethodRequest, MethodResult
from swampstore.runs.method_run import run_method
from swampstore.runs.outputs import Outputs
from swampstore.vaults import Vaults
from tests.support.command_line import CommandLine

MODEL = "demo/host/web"


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def define(repo_dir: Path, source: str, name: str = "host.py") -> None:
    """Write a module with models of the type demo/host."""
    path = repo_dir / "models" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "import swampstore\nfrom concurrent.futures import ThreadPoolExecutor\n"
    path.write_text(head + dedent(source))


def run(repo: Repo, method: str, model: str = MODEL, **details: object) -> MethodResult:
    return run_method(repo, MethodRequest(model, method, **details))  # type: ignore[arg-type]


def why(result: MethodResult) -> str:
    return (result.output.error or {}).get("message", "")


SCAN = """
    @swampstore.model("demo/host", version="2026.05.14.1")
    class Host:
        state = swampstore.Resource({"properties": {"cpus": {"type": "integer"}}}, lifetime="30d")
        dump = swampstore.File("application/gzip")

        def scan(self, context, cpus: int, region: str = "eu"):
            context.logger.info("scanning %s", region)
            context.write_resource("state", "state", {"cpus": cpus, "region": region})
            with context.file_writer("dump", "dump", tags={"a": "b"}) as file:
                file.write(b"1" * cpus)
            assert context.read_resource("state") == {"cpus": cpus, "region": region}
"""


def test_a_class_in_the_repository_is_run_by_name_of_its_type(
    repo: Repo, repo_dir: Path, cli: CommandLine
) -> None:
    define(repo_dir, SCAN)
    document = cli("run", MODEL, "scan", "--input", "cpus=4", "--json").json
    assert document["status"] == "succeeded"
    assert document["methodArguments"] == {"cpus": 4}
    found = repo.latest(MODEL, "state")
    assert found.json() == {"cpus": 4, "region": "eu"}
    assert found.metadata.lifetime == "30d"
    assert repo.latest(MODEL, "dump").tags["a"] == "b"
    (output,) = Outputs(repo).all()
    assert output.provenance.model_version == "2026.05.14.1"
    path = Outputs(repo).log_path(output)
    assert path is not None
    assert "INFO scanning eu" in Path(path).read_text()


def test_a_method_can_be_run_from_python(repo: Repo, repo_dir: Path) -> None:
    define(repo_dir, SCAN)
    result = swampstore.run(repo, MODEL, "scan", inputs={"cpus": 2}, tags={"env": "dev"})
    assert [one.name for one in result.artifacts] == ["state", "dump"]
    assert result.artifacts[0].attributes == {"cpus": 2, "region": "eu"}
    assert repo.latest(MODEL, "state").tags["env"] == "dev"


def test_inputs_are_checked_before_anything_runs(repo: Repo, repo_dir: Path) -> None:
    define(repo_dir, SCAN)
    with pytest.raises(InputError, match="cpus"):
        run(repo, "scan", inputs={"cpus": "many"})
    with pytest.raises(InputError, match="cpus"):
        run(repo, "scan")
    with pytest.raises(ValidationError, match="takes no input 'cpu'"):
        run(repo, "scan", inputs={"cpu": 1})
    with pytest.raises(MethodNotFoundError, match="no method 'scann'"):
        run(repo, "scann")
    assert [*Outputs(repo).all()] == []


def test_a_definition_gives_arguments_and_tags(repo: Repo, repo_dir: Path) -> None:
    define(repo_dir, SCAN)
    (repo_dir / "models/demo/host").mkdir(parents=True)
    (repo_dir / "models/demo/host/web.yaml").write_text(
        "type: demo/host\nid: 5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10\nname: web\nversion: 1\n"
        "tags: {team: platform}\nglobalArguments: {}\n"
        "methods:\n  scan:\n    arguments: {cpus: '${{ inputs.cpus * 2 }}', region: us}\n"
        "inputs:\n  type: object\n  properties: {cpus: {type: integer}}\n  required: [cpus]\n"
        "resources:\n  state: {lifetime: 7d}\n"
    )
    assert run(repo, "scan", "web", inputs={"cpus": 2}).status == "succeeded"
    found = repo.latest("web", "state")
    assert found.json() == {"cpus": 4, "region": "us"}
    assert (found.tags["team"], found.tags["modelName"]) == ("platform", "web")
    assert found.metadata.lifetime == "7d"
    assert found.model.id == "5d0f2b0a-6f57-4c53-9f5e-0a4f8c2f9f10"
    assert run(repo, "scan", "web", last_evaluated=True).status == "succeeded"
    assert repo.latest("web", "state").json() == {"cpus": 4, "region": "us"}


def test_what_was_written_before_a_failure_stays_and_the_record_says_why(
    repo: Repo, repo_dir: Path
) -> None:
    define(
        repo_dir,
        """
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource()
            def scan(self, context):
                context.write_resource("state", "first", {})
                raise RuntimeError("no answer")
            @swampstore.method(rollback_on_failure=True)
            def careful(self, context):
                context.write_resource("state", "second", {})
                raise RuntimeError("no answer")
        """,
    )
    result = run(repo, "scan")
    assert (result.status, result.exit_code) == ("failed", 1)
    assert why(result) == "RuntimeError: no answer"
    assert "host.py" in (result.output.error or {})["stack"]
    assert [one.name for one in result.output.artifacts] == ["first"]
    assert run(repo, "careful").output.artifacts == ()
    assert repo.list_versions(MODEL, "second") == []
    with pytest.raises(MethodFailedError, match="no answer") as failed:
        swampstore.run(repo, MODEL, "scan")
    assert failed.value.result.status == "failed"


def test_what_is_not_declared_cannot_be_written_and_another_form_is_a_warning(
    repo: Repo, repo_dir: Path
) -> None:
    define(
        repo_dir,
        """
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource({"properties": {"cpus": {"type": "integer"}}})
            def wrong(self, context):
                context.write_resource("stat", "state", {})
            def odd(self, context):
                context.write_resource("state", "state", {"cpus": "many", "more": 1})
        """,
    )
    assert "declares no resource 'stat'" in why(run(repo, "wrong"))
    result = run(repo, "odd")
    assert result.status == "succeeded"
    path = Outputs(repo).log_path(result.output)
    assert path is not None
    assert "WARNING state is not as it is declared" in Path(path).read_text()


def test_many_threads_write_through_one_context(repo: Repo, repo_dir: Path) -> None:
    define(
        repo_dir,
        """
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource()
            log = swampstore.File("text/plain")
            def scan(self, context):
                def one(number):
                    context.write_resource("state", f"state-{number}", {"n": number})
                    with context.file_writer("log", f"log-{number}") as file:
                        file.write_line(str(number))
                    return context.read_resource(f"state-{number}")["n"]
                with ThreadPoolExecutor(8) as pool:
                    assert list(pool.map(one, range(40))) == list(range(40))
        """,
    )
    result = run(repo, "scan")
    assert result.status == "succeeded", why(result)
    assert len(result.output.artifacts) == 80
    assert repo.latest(MODEL, "state-39").json() == {"n": 39}


@pytest.mark.slow
def test_methods_run_methods_of_other_models_up_to_a_depth_and_never_themselves(
    repo: Repo, repo_dir: Path
) -> None:
    define(
        repo_dir,
        """
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource()
            def outer(self, context):
                found = context.run_model("demo/host/db", "inner", {"n": 1})
                context.write_resource("state", "state", {"got": found.artifacts[0].attributes})
                context.run_model(str(context.model), "inner", {"n": 2})
            def inner(self, context, n):
                context.write_resource("state", "inner", {"n": n})
            def ring(self, context):
                context.run_model("demo/host/db", "ring")
            def deep(self, context, n: int = 0):
                context.run_model(f"demo/host/h{n}", "deep", {"n": n + 1})
            def often(self, context):
                for n in range(101):
                    context.run_model("demo/host/db", "nothing", check=False)
            def nothing(self, context):
                pass
        """,
    )
    result = run(repo, "outer")
    assert result.status == "succeeded", why(result)
    assert repo.latest(MODEL, "state").json() == {"got": {"n": 1}}
    assert repo.latest(MODEL, "inner").json() == {"n": 2}
    nested = [one for one in Outputs(repo).all() if one.method == "inner"]
    assert {one.provenance.triggered_by for one in nested} == {"model"}
    assert {one.provenance.parent_output_id for one in nested} == {result.output.id}
    assert "would run inside of itself" in why(run(repo, "ring"))
    assert "more than 10 deep" in why(run(repo, "deep"))
    assert "at most 100 methods" in why(run(repo, "often"))


def test_checks_run_before_methods_that_change_something(repo: Repo, repo_dir: Path) -> None:
    define(
        repo_dir,
        """
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource()
            @swampstore.check
            def quota(self, context):
                return "nothing left"
            @swampstore.check(optional=True)
            def weather(self, context):
                raise RuntimeError("it rains")
            def create(self, context):
                context.write_resource("state", "state", {})
            def get(self, context):
                pass
        """,
    )
    assert why(run(repo, "create")) == "the check quota of demo/host/web failed: nothing left"
    assert run(repo, "get").status == "succeeded"
    assert run(repo, "create", skip_checks=True).status == "succeeded"
    (repo_dir / "models/web.yaml").write_text(
        "type: demo/host\nid: web\nname: web\nversion: 1\nchecks: {require: [weather],"
        " skip: [quota]}\n"
    )
    assert "weather of demo/host/web failed: RuntimeError: it rains" in why(run(repo, "create"))
    (repo_dir / "models/web.yaml").write_text(
        "type: demo/host\nid: web\nname: web\nversion: 1\nchecks: {require: [wether]}\n"
    )
    assert "requires the check wether" in why(run(repo, "create"))


def test_secrets_are_in_nothing_that_a_method_leaves_behind(
    repo: Repo, repo_dir: Path, cli: CommandLine
) -> None:
    Vaults(repo).create("local_encryption", "ops")
    Vaults(repo).open("ops").put("api", "sw0rdfish-42")
    define(
        repo_dir,
        """
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource({"properties": {"token": {"sensitive": True}}})
            log = swampstore.File("text/plain")
            def scan(self, context, password: str = ""):
                secret = context.secret("ops", "api")
                print("printed", secret)
                context.logger.info("logged %s %s", secret, password)
                context.write_resource("state", "state", {"a": secret, "token": "t0ken-of-me"})
                assert context.read_resource("state")["token"] == "t0ken-of-me"
                with context.file_writer("log", "log") as file:
                    file.write(secret[:5].encode())
                    file.write(secret[5:].encode())
                with open((other := context.file_writer("log", "other")).path, "w") as file:
                    file.write(f"outside {secret} t0ken-of-me")
                other.finalize()
                raise RuntimeError(f"cannot log in with {secret}")
        """,
    )
    reference = "password=${{ vault.get('ops','api') }}"
    outcome = cli("run", MODEL, "scan", "--input", reference)
    assert outcome.status == 1
    assert "printed ***" in outcome.out
    assert "logged *** ***" in outcome.err
    assert repo.latest(MODEL, "other").text() == "outside *** ***"
    assert repo.latest(MODEL, "state").json()["token"].startswith("${{ vault.get('ops',")
    for secret in (b"sw0rdfish-42", b"t0ken-of-me"):
        assert secret not in outcome.stdout + outcome.stderr
        for path in repo_dir.rglob("*"):
            if path.is_file() and "models" not in path.parts:
                assert secret not in path.read_bytes(), path


def test_a_broken_module_is_named_and_others_go_on(repo: Repo, repo_dir: Path) -> None:
    define(repo_dir, "import no_such_module\n", "broken.py")
    with pytest.raises(ModelTypeError, match=r"broken\.py cannot be imported: ModuleNotFound"):
        run(repo, "scan")
    define(repo_dir, SCAN)
    assert run(repo, "scan", inputs={"cpus": 1}).status == "succeeded"


def test_modules_of_a_repository_import_each_other_by_relative_names(
    repo: Repo, repo_dir: Path
) -> None:
    define(repo_dir, "FACTOR = 3\n", "shared/numbers.py")
    define(
        repo_dir,
        """
        from ..shared.numbers import FACTOR
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource()
            def scan(self, context):
                context.write_resource("state", "state", {"factor": FACTOR})
        """,
        "demo/host.py",
    )
    result = run(repo, "scan")
    assert result.status == "succeeded", why(result)
    assert repo.latest(MODEL, "state").json() == {"factor": 3}


def test_an_installed_package_can_bring_models(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "hosts-1.dist-info").mkdir(parents=True)
    (site / "hosts-1.dist-info/METADATA").write_text("Name: hosts\nVersion: 1\n")
    (site / "hosts-1.dist-info/entry_points.txt").write_text(
        "[swampstore.models]\ndemo/host = hosts_of_a_package:Host\n"
    )
    (site / "hosts_of_a_package.py").write_text("import swampstore\n" + dedent(SCAN))
    monkeypatch.syspath_prepend(str(site))
    assert run(repo, "scan", inputs={"cpus": 1}).status == "succeeded"
    sys.modules.pop("hosts_of_a_package")


def test_a_method_hears_that_it_should_end(repo: Repo, repo_dir: Path) -> None:
    define(
        repo_dir,
        """
        import time
        @swampstore.model("demo/host")
        class Host:
            state = swampstore.Resource()
            def scan(self, context):
                while True:
                    context.write_resource("state", "state", {})
                    context.check_cancelled()
                    time.sleep(0.01)
        """,
    )
    event = threading.Event()
    threading.Timer(0.2, event.set).start()
    result = run_method(repo, MethodRequest(MODEL, "scan"), cancelled=event)
    assert (result.status, result.exit_code) == ("cancelled", 130)
    late = run(repo, "scan", timeout=0.2)
    assert late.status == "failed"
    assert why(late) == "the method took longer than 0.2 seconds"


def test_a_reserved_type_and_a_class_without_methods_are_refused() -> None:
    with pytest.raises(ModelTypeError, match="reserved"):
        swampstore.model("@swamp/host")
    with pytest.raises(ModelTypeError, match="has no method"):
        swampstore.model("demo/host")(type("Empty", (), {}))
