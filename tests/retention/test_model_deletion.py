"""Deleting a model: exactly what is its own goes, everywhere, for good, however it is disturbed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, open_repo
from swampstore.doctor import examine
from swampstore.errors import ModelNotFoundError
from swampstore.layout import ModelRef
from swampstore.repo.models import list_models
from swampstore.retention import ModelDeletion, delete_model
from tests.conftest import FakeClock
from tests.support.command_line import CommandLine
from tests.support.forked import die_at_new_line, in_child, sources
from tests.support.machines import Machine

MODEL, SIBLING, INNER = "aws/ec2/i-1", "aws/ec2/i-1-b", "aws/ec2/i-1/deep"
STAMP = "2026-05-14T20-19-51-042Z"
RECORDS = "outputs/aws/ec2/start"


def put(repo: Repo, rel: str, text: str) -> str:
    os.makedirs(os.path.dirname(repo.tree.path(rel)), exist_ok=True)
    with repo.tree.changing(rel) as change:
        change.write(rel, text.encode())
    return rel


def output(repo: Repo, model: str, *, stamp: str = STAMP, log: str = "") -> str:
    ref = ModelRef.parse(model)
    lines = [
        f"id: out-{ref.id}-{stamp}",
        f"definitionId: {ref.id}",
        "status: succeeded",
        "startedAt: '2026-05-14T20:19:51.042Z'",
        *([f"logFile: {log}"] if log else []),
    ]
    return put(repo, f"outputs/{ref.type}/start/{ref.id}-{stamp}.yaml", "\n".join([*lines, ""]))


def definition(repo: Repo, model: str, top: str = "definitions-evaluated") -> str:
    ref = ModelRef.parse(model)
    return put(repo, f"{top}/{ref.type}/web-{ref.id}.yaml", f"id: {ref.id}\nname: web\n")


def fill(repo: Repo) -> None:
    """Save the model, one of the same type whose id begins like its own, and one below its path."""
    for model in (MODEL, SIBLING, INNER):
        tags = {"modelName": f"web-{ModelRef.parse(model).id}"}
        repo.artifacts.save(model, "state", {"n": 1}, tags=tags)
        repo.artifacts.save(model, "state", {"n": 2}, tags=tags)
        repo.artifacts.save(model, "log", b"text")
        output(repo, model)
        definition(repo, model)
        definition(repo, model, "auto-definitions")


def files(directory: str | os.PathLike[str]) -> set[str]:
    """Return the paths of what sync would carry, without bookkeeping."""
    top = Path(directory)
    tops = ("data", "outputs", "definitions-evaluated", "auto-definitions", "logs")
    found = (path for one in tops for path in (top / one).rglob("*") if path.is_file())
    names = (path.relative_to(top).as_posix() for path in found)
    return {name for name in names if not name.rpartition("/")[2].startswith((".", "_"))}


def own(paths: set[str]) -> set[str]:
    """Return the paths of MODEL, told in another way than the code does."""
    starts = ("data/aws/ec2/i-1/state/", "data/aws/ec2/i-1/log/", f"{RECORDS}/i-1-{STAMP}")
    ends = "/ec2/web-i-1.yaml"
    return {path for path in paths if path.startswith(starts) or path.endswith(ends)}


def test_a_deletion_removes_what_is_the_models_own_and_nothing_else(repo: Repo) -> None:
    fill(repo)
    before = files(repo.config.base)
    report = delete_model(repo, MODEL)
    assert before - files(repo.config.base) == own(before)
    assert (report.plan.versions, report.plan.output_count) == (3, 1)
    assert len(report.plan.definitions) == 2
    assert not report.failed
    assert [str(one.model) for one in list_models(repo)] == [SIBLING, INNER]
    assert repo.latest(INNER, "state").json() == {"n": 2}
    assert examine(repo, deep=True).ok


def test_a_preview_shows_exactly_what_goes_and_changes_nothing(repo: Repo) -> None:
    fill(repo)
    before = files(repo.config.base)
    preview = delete_model(repo, MODEL, dry_run=True)
    assert files(repo.config.base) == before
    assert preview.dry_run
    assert delete_model(repo, MODEL).plan == preview.plan


def test_records_that_lie_about_their_model_are_told_by_what_they_say(repo: Repo) -> None:
    """A file may be called like those of one model and be another's."""
    fill(repo)
    foreign = put(
        repo, f"outputs/aws/ec2/stop/i-1-{STAMP}.yaml", "definitionId: somebody-else\nstatus: x\n"
    )
    named_otherwise = put(repo, "outputs/aws/ec2/stop/by-hand.yaml", "definitionId: i-1\n")
    broken = put(repo, f"outputs/aws/ec2/stop/i-1-{STAMP[:-4]}043Z.yaml", "{ no yaml")
    log = put(repo, f"outputs/aws/ec2/stop/i-1-{STAMP}.log", "a log")
    gone = set(delete_model(repo, MODEL).plan.outputs)
    assert {named_otherwise, broken, log} <= gone
    assert foreign not in gone
    assert os.path.exists(repo.tree.path(foreign))


def test_the_log_that_an_output_names_goes_with_it(repo: Repo) -> None:
    fill(repo)
    log = put(repo, "logs/a.log", "what it said")
    output(repo, MODEL, stamp=STAMP.replace("051", "052"), log=f".swamp/{log}")
    outside = Path(repo.config.repo_dir, "important.log")
    outside.write_text("not ours")
    output(repo, MODEL, stamp=STAMP.replace("19-51", "19-53"), log="important.log")
    delete_model(repo, MODEL)
    assert not os.path.exists(repo.tree.path(log))
    assert outside.exists()


def test_expired_deleted_and_damaged_data_blocks_nothing(repo: Repo, clock: FakeClock) -> None:
    repo.artifacts.save(MODEL, "short", b"x", lifetime="1h")
    repo.artifacts.save(MODEL, "gone", {"a": 1})
    repo.artifacts.mark_deleted(MODEL, "gone", method="destroy")
    repo.artifacts.save(MODEL, "broken", b"x")
    Path(repo.tree.path(f"data/{MODEL}/broken/1/metadata.yaml")).write_text("{ no yaml")
    clock.advance(days=30)
    report = delete_model(repo, MODEL)
    assert {one.data_name for one in report.plan.names} == {"short", "gone", "broken"}
    assert not report.failed
    assert files(repo.config.base) == set()
    repo.rebuild_catalog()
    assert list_models(repo) == []


def test_what_was_saved_after_the_plan_was_shown_stays_and_is_named(repo: Repo) -> None:
    fill(repo)
    deletion = ModelDeletion(repo, MODEL)
    repo.artifacts.save(MODEL, "state", {"n": 3})
    repo.artifacts.save(MODEL, "fresh", b"new")
    report = deletion.run()
    assert {path for path, _ in report.failed} == {f"data/{MODEL}/state", f"data/{MODEL}/fresh"}
    assert repo.latest(MODEL, "state").json() == {"n": 3}
    assert repo.latest(MODEL, "fresh").bytes() == b"new"


def test_what_defines_a_model_in_git_stays_and_is_named(repo: Repo) -> None:
    fill(repo)
    path = Path(repo.config.repo_dir, "models/aws/ec2/web.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("id: i-1\nname: web\ntype: aws/ec2\n")
    assert delete_model(repo, MODEL).definitions_kept == ("models/aws/ec2/web.yaml",)
    assert path.exists()
    with pytest.raises(ModelNotFoundError) as caught:
        delete_model(repo, MODEL)
    assert "models/aws/ec2/web.yaml" in str(caught.value.hint)


DELETING = sources(
    *("retention/model_deletion.py", "retention/apply.py", "files/tree.py", "files/change.py"),
    *("artifacts/name_lock.py", "retention/runs.py", "repo/models.py"),
)


def test_a_deletion_that_is_killed_anywhere_is_finished_by_another(
    repo_dir: Path, tmp_path: Path
) -> None:
    import shutil

    with open_repo(repo_dir, durable=False) as repo:
        fill(repo)
        repo.rebuild_catalog()
    before = files(repo_dir / ".swamp")

    def deleted(directory: Path) -> None:
        with open_repo(directory, durable=False) as repo:
            delete_model(repo, MODEL)

    half_way = 0
    for line in range(1, 400, 23):
        directory = tmp_path / str(line)
        ignored = shutil.ignore_patterns("swampstore.locks", ".datastore.lock", ".lock")
        shutil.copytree(repo_dir, directory, ignore=ignored)

        def killed(directory: Path = directory, line: int = line) -> None:
            die_at_new_line(line, DELETING)
            deleted(directory)

        was_killed = in_child(killed)
        shutil.rmtree(directory / ".swamp/.locks", ignore_errors=True)
        (directory / ".swamp/.datastore.lock").unlink(missing_ok=True)
        left = own(files(directory / ".swamp"))
        half_way += bool(left) and left != own(before)
        if left:
            deleted(directory)
        assert files(directory / ".swamp") == before - own(before), f"killed at line {line}"
        with open_repo(directory, durable=False) as repo:
            assert [str(one.model) for one in list_models(repo)] == [SIBLING, INNER]
        shutil.rmtree(directory)
        if not was_killed:
            break
    assert half_way > 1


# With others -------------------------------------------------------------------------------


def test_a_deleted_model_is_gone_everywhere_and_stays_so(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    with ana.open() as repo:
        fill(repo)
    assert ana("sync").status == 0
    assert bob("sync").status == 0
    before = files(bucket)
    assert own(before)
    shown = bob("model", "delete", MODEL, "--dry-run", "--json").json
    done = bob("model", "delete", MODEL, "-y", "--json").json
    assert {**shown, "dryRun": False} == done
    assert files(bucket) == before - own(before)
    assert ana("sync").status == 0
    assert files(ana.cache) == before - own(before)
    # A full comparison brings nothing back either.
    for machine in (ana, bob):
        assert machine("sync", "--full").status == 0
    assert files(bucket) == before - own(before)


def test_a_lazy_machine_deletes_what_it_never_fetched(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    with ana.open() as repo:
        fill(repo)
    assert ana("sync").status == 0
    bob.use(bucket, hydrationStrategy="lazy")
    before = files(bucket)
    assert bob("model", "delete", "web-i-1", "-y").status == 0
    assert files(bucket) == before - own(before)


def test_a_model_of_another_namespace_is_not_touched(ana: Machine, bob: Machine) -> None:
    for machine, namespace in ((ana, "infra"), (bob, "web")):
        assert machine("datastore", "namespace", "set", namespace).status == 0
        with machine.open() as repo, repo.session():
            fill(repo)
    assert ana("model", "delete", MODEL, "-y").status == 0
    assert "another namespace" in ana("model", "delete", f"web:{MODEL}", "-y").err
    assert bob("sync").status == 0
    with bob.open() as repo:
        assert [str(one.model) for one in list_models(repo)] == [MODEL, SIBLING, INNER]


# Commands ----------------------------------------------------------------------------------


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    with open_repo(repo_dir, durable=False) as repo:
        fill(repo)
        output(repo, "aws/ec2/only-outputs")
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


def test_models_are_listed_with_what_they_have(cli: CommandLine) -> None:
    listed: dict[str, Any] = cli("model", "list", "--json").json
    by_id = {one["modelId"]: one for one in listed["models"]}
    assert listed["total"] == 4
    own = by_id["i-1"]
    assert (own["modelName"], own["dataNames"], own["versions"]) == ("web-i-1", 2, 3)
    assert (own["outputs"], own["bytes"]) == (1, 2 * len('{\n  "n": 1\n}') + 4)
    assert by_id["only-outputs"] | {"modelType": ""} == {
        "modelType": "",
        "modelId": "only-outputs",
        "modelName": "",
        "dataNames": 0,
        "versions": 0,
        "bytes": 0,
        "lastChange": None,
        "outputs": 1,
    }
    assert "only-outputs" in cli("model", "list").out


def test_a_model_is_shown_by_name_or_address(cli: CommandLine) -> None:
    shown = cli("model", "show", "web-i-1", "--json").json
    assert [one["name"] for one in shown["data"]] == ["log", "state"]
    assert len(shown["derivedDefinitions"]) == 2
    assert "2 data names" in cli("model", "show", MODEL).out
    assert cli("model", "show", "aws/ec2/nobody", "--json").error["code"] == "model_not_found"


def test_nothing_goes_unless_somebody_agreed(cli: CommandLine, repo_dir: Path) -> None:
    before = files(repo_dir / ".swamp")
    refused = cli("model", "delete", MODEL)
    assert refused.status == 1
    assert "Would delete 2 data names, 3 versions" in refused.err
    assert "nobody is there to be asked" in refused.err
    assert files(repo_dir / ".swamp") == before
    assert "Deleted 2 data names" in cli("model", "delete", MODEL, "-y").out
    assert cli("model", "delete", MODEL, "-y", "--json").error["code"] == "model_not_found"


def test_what_real_runs_left_goes_with_their_model(cli: CommandLine, repo_dir: Path) -> None:
    def left() -> set[str]:
        return {path for path in files(repo_dir / ".swamp") if "command/shell" in path}

    for model in ("web", "db"):
        assert cli("run", f"command/shell/{model}", "execute", "--", "echo", "hi").status == 0
    before = left()
    assert cli("model", "delete", "web", "-y").status == 0
    assert before - left() == {path for path in before if "/web" in path}
    assert {path.partition("/")[0] for path in before - left()} == {
        *("data", "outputs", "auto-definitions"),
    }
    assert cli("model", "show", "command/shell/db", "--json").json["outputs"] == 1
