"""Reading what other namespaces hold, through a bucket that several machines share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import ModelRef
from swampstore.catalog import export
from swampstore.catalog.export import EXPORT
from swampstore.errors import ValidationError
from swampstore.marker import update_marker
from swampstore.namespaces.other import ContentMemory, ForeignStore, Wanted
from swampstore.stores import Store
from swampstore.stores.errors import StoreUnreachableError
from swampstore.sync.push import Push
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote, Remote

WEB = "aws/ec2/i-1"
MakeMachine = Callable[[str, str], Machine]


@pytest.fixture
def machine(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> MakeMachine:
    """Make machines by name, each in a namespace of one bucket."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()

    def make(name: str, namespace: str) -> Machine:
        made = Machine(tmp_path / name, capsysbinary, monkeypatch)
        made.use(bucket, namespace=namespace)
        return made

    return make


@pytest.fixture
def infra(machine: MakeMachine) -> Machine:
    infra = machine("infra-1", "infra")
    save(infra, WEB, "state", {"cpus": 4})
    publish(infra)
    return infra


@pytest.fixture
def app(machine: MakeMachine, infra: Machine) -> Machine:
    app = machine("app-1", "app")
    assert app("datastore", "catalog", "pull").status == 0
    return app


def save(machine: Machine, model: str, name: str, content: Any) -> None:
    with machine.open() as repo:
        repo.artifacts.save(model, name, content, tags={"modelName": "web"})


def publish(machine: Machine) -> None:
    """Do what every push of a namespace does."""
    with machine.open() as repo:
        repo.export_catalog()
        repo.sync.push()


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def published(machine: Machine, tmp_path: Path) -> list[tuple[str, str, int]]:
    rows = json.loads((tmp_path / "bucket/infra" / EXPORT).read_bytes())
    return [(row["model_id"], row["data_name"], row["version"]) for row in rows]


def published_sizes(tmp_path: Path, model: str) -> list[tuple[str, str, int, int]]:
    rows = json.loads((tmp_path / "bucket/infra" / EXPORT).read_bytes())
    found = [(row["model_id"], row["data_name"], row["version"], row["size"]) for row in rows]
    return sorted(one for one in found if one[0] == model)


# Publishing --------------------------------------------------------------------------------


def test_the_export_travels_as_an_ordinary_file(infra: Machine, tmp_path: Path) -> None:
    assert published(infra, tmp_path) == [("i-1", "state", 1)]
    index = json.loads((tmp_path / "bucket/infra/.datastore-index.json").read_bytes())
    assert EXPORT in index["entries"]
    with infra.open() as repo:
        assert repo.dirty.peek().is_empty


def test_an_unchanged_catalog_costs_a_push_nothing(infra: Machine) -> None:
    with infra.open() as repo:
        assert not repo.export_catalog()
        assert repo.dirty.peek().is_empty
        assert "connection" not in vars(repo)


def test_a_machine_that_pulled_one_model_publishes_the_others_too(
    infra: Machine, machine: MakeMachine, tmp_path: Path
) -> None:
    save(infra, "aws/ec2/i-2", "state", "2")
    publish(infra)
    second = machine("infra-2", "infra")
    with second.open() as repo:
        repo.sync.pull([ModelRef.parse(WEB)])
    save(second, WEB, "state", "3")
    publish(second)
    assert published(second, tmp_path) == [
        ("i-1", "state", 1),
        ("i-1", "state", 2),
        ("i-2", "state", 1),
    ]


def test_a_machine_that_pulled_everything_publishes_what_it_has(
    infra: Machine, machine: MakeMachine, tmp_path: Path
) -> None:
    save(infra, "aws/ec2/i-2", "state", "2")
    publish(infra)
    second = machine("infra-2", "infra")
    with second.open() as repo:
        repo.sync.pull()
        repo.artifacts.delete("aws/ec2/i-2", "state")
    publish(second)
    assert published(second, tmp_path) == [("i-1", "state", 1)]


def test_an_export_of_a_push_that_was_killed_is_replaced_by_whoever_comes_across_it(
    infra: Machine, machine: MakeMachine, tmp_path: Path
) -> None:
    save(infra, WEB, "state", "2")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Push, "commit", stop)
        publish(infra)
    assert len(published(infra, tmp_path)) == 2
    second = machine("infra-2", "infra")
    with second.open() as repo:
        repo.sync.pull(metadata_only=False)
    publish(second)
    assert published(second, tmp_path) == [("i-1", "state", 1)]
    publish(infra)
    assert len(published(infra, tmp_path)) == 2


@pytest.mark.parametrize("index", ["v1", "sharded"])
def test_a_session_on_one_model_publishes_nothing_old_of_the_others(
    infra: Machine, machine: MakeMachine, tmp_path: Path, index: str
) -> None:
    save(infra, "aws/ec2/i-2", "state", "2")
    publish(infra)
    if index == "sharded":
        assert infra("datastore", "migrate-index").status == 0
    second = machine("infra-2", "infra")
    assert second("sync").status == 0
    save(infra, WEB, "state", "newer")
    with infra.open() as repo:
        repo.artifacts.delete("aws/ec2/i-2", "state")
    assert infra("sync").status == 0
    shown = [("i-1", "state", 1), ("i-1", "state", 2)]
    assert published(infra, tmp_path) == shown
    for model, expected in (("i-3", [("i-3", "state", 1)]), ("i-4", [("i-4", "state", 1)])):
        with second.open() as repo, repo.session([f"aws/ec2/{model}"]):
            repo.artifacts.save(f"aws/ec2/{model}", "state", "three")
        shown += expected
        assert sorted(published(infra, tmp_path)) == shown
    with second.open() as repo, repo.session(["aws/ec2/i-3"]):
        repo.artifacts.delete("aws/ec2/i-3", "state")
    assert sorted(published(infra, tmp_path)) == [*shown[:2], ("i-4", "state", 1)]


@pytest.mark.parametrize("small", [export.SMALL_BYTES, 1])
def test_an_export_that_could_not_be_pushed_hides_nothing_that_others_published_since(
    infra: Machine,
    machine: MakeMachine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: int,
) -> None:
    second = machine("infra-2", "infra")
    with second.open() as repo:
        repo.sync.pull([ModelRef.parse("aws/ec2/i-2")])
    save(second, "aws/ec2/i-2", "state", "2")
    with second.open() as repo:
        assert repo.export_catalog()  # nobody answers, and the push ends here
    monkeypatch.setattr(export, "SMALL_BYTES", small)
    save(infra, WEB, "state", "newer")
    publish(infra)
    publish(second)
    shown = [("i-1", "state", 1), ("i-1", "state", 2), ("i-2", "state", 1)]
    assert sorted(published(infra, tmp_path)) == shown
    with second.open() as repo:
        assert not repo.export_catalog()


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_was_pushed_while_exports_are_put_off_is_in_the_next_one(
    infra: Machine,
    machine: MakeMachine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_seen: bool,
) -> None:
    second, third = machine("infra-2", "infra"), machine("infra-3", "infra")
    for who in (second, third, second):
        assert who("sync", "--full").status == 0

    def work(who: Machine, model: str, text: str | None) -> None:
        with who.open() as repo, repo.session([f"aws/ec2/{model}"]):
            if text is None:
                repo.artifacts.delete(f"aws/ec2/{model}", "state")
            else:
                repo.artifacts.save(f"aws/ec2/{model}", "state", text)

    work(second, "i-2", "1")
    work(second, "i-3", "1")
    shown = [(one, "state", 1) for one in ("i-1", "i-2", "i-3")]
    assert sorted(published(infra, tmp_path)) == shown
    monkeypatch.setattr(export, "SMALL_ROWS", 0)
    work(second, "i-2", "2")
    work(second, "i-3", None)
    assert sorted(published(infra, tmp_path)) == shown
    monkeypatch.setattr(export, "SMALL_ROWS", 5_000)
    work(third, "i-4", "1")
    if is_seen:
        work(third, "i-2", "3")
    work(second, "i-5", "1")
    newer = [("i-2", "state", 2), ("i-2", "state", 3)][: 1 + is_seen]
    shown = [*newer, *((one, "state", 1) for one in ("i-1", "i-2", "i-4", "i-5"))]
    assert sorted(published(infra, tmp_path)) == sorted(shown)
    with second.open() as repo:
        assert repo.catalog.untold[1]
    work(third, "i-2", None)
    work(second, "i-5", None)
    shown = [("i-1", "state", 1), ("i-4", "state", 1)]
    assert sorted(published(infra, tmp_path)) == shown
    with second.open() as repo:
        assert not repo.catalog.untold[0]


@pytest.mark.parametrize("change", ["delete", "delete version", "append", "rename"])
@pytest.mark.parametrize("is_published", [False, True])
def test_a_change_of_what_was_exported_before_exports_were_put_off_is_in_the_next_one(
    infra: Machine,
    machine: MakeMachine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    is_published: bool,
) -> None:
    # Stores date objects in whole seconds: within one, every row counts as newer than the export.
    monkeypatch.setattr(export, "_is_after", lambda *_: False)
    model = "aws/ec2/i-2"
    second = machine("infra-2", "infra")
    assert second("sync", "--full").status == 0
    with second.open() as repo, repo.session([model]):
        repo.artifacts.save(model, "state", "1")
        repo.artifacts.save(model, "state", "2", streaming=True)
    with infra.open() as repo, repo.session([WEB]):
        repo.artifacts.save(WEB, "other", "x")
    monkeypatch.setattr(export, "SMALL_ROWS", 0)
    with second.open() as repo, repo.session([model]):
        if change == "append":
            repo.artifacts.append(model, "state", "and more")
        elif change == "rename":
            repo.artifacts.rename(model, "state", "new")
        else:
            version = 1 if change == "delete version" else None
            repo.artifacts.delete(model, "state", version=version)
    old = [("i-2", "state", 1, 1), ("i-2", "state", 2, 1)]
    assert published_sizes(tmp_path, "i-2") == old
    monkeypatch.setattr(export, "SMALL_ROWS", 5_000)
    if is_published:
        with infra.open() as repo, repo.session([WEB]):
            repo.artifacts.save(WEB, "other", "y")
        assert published_sizes(tmp_path, "i-2") == old
    with second.open() as repo, repo.session(["aws/ec2/i-3"]):
        repo.artifacts.save("aws/ec2/i-3", "state", "1")
    assert (
        published_sizes(tmp_path, "i-2")
        == {
            "delete": [],
            "delete version": old[1:],
            "append": [old[0], ("i-2", "state", 2, 9)],
            "rename": [("i-2", "new", 1, 1), *old],
        }[change]
    )


def test_two_machines_of_a_namespace_do_not_quarrel_about_the_export(
    infra: Machine, machine: MakeMachine, tmp_path: Path
) -> None:
    second = machine("infra-2", "infra")
    save(second, "aws/ec2/i-2", "state", "2")
    save(infra, WEB, "state", "2")
    publish(infra)
    publish(second)
    with infra.open() as repo:
        pulled = repo.sync.pull()
        assert pulled.conflicts == ()
        repo.export_catalog()
        assert repo.sync.push().conflicts == ()
    assert published(infra, tmp_path) == [
        ("i-1", "state", 1),
        ("i-1", "state", 2),
        ("i-2", "state", 1),
    ]
    assert not (tmp_path / "bucket/infra/files").exists()


# Reading -----------------------------------------------------------------------------------


def test_what_another_machine_saved_in_another_namespace_is_read(app: Machine) -> None:
    with app.open() as repo:
        assert repo.latest("infra:web", "state").json() == {"cpus": 4}
        assert [one.json() for one in repo.query("attributes.cpus == 4")] == [{"cpus": 4}]
    assert list(app.cache.rglob("raw")) == []


def test_content_is_fetched_once_for_a_command(app: Machine) -> None:
    with app.open() as repo:
        for _ in range(3):
            assert repo.query("attributes.cpus == 4", select="attributes.cpus")[0] == 4
        assert repo.latest("infra:web", "state").json() == {"cpus": 4}
        assert repo.connection.counting.tally().requests == {"get": 1}


def test_a_query_that_needs_no_content_asks_for_none(app: Machine) -> None:
    with app.open() as repo:
        assert len(repo.query('ns == "infra" && modelName == "web"')) == 1
        assert "connection" not in vars(repo)


def test_an_unchanged_export_costs_one_small_request(app: Machine) -> None:
    with app.open() as repo:
        repo.pull_catalogs(["infra"])
        assert repo.connection.counting.tally().requests == {"head": 1}


def test_without_the_remote_the_own_data_is_still_found(
    app: Machine, infra: Machine, tmp_path: Path
) -> None:
    save(app, "app/site/s-1", "state", {"cpus": 4})
    (tmp_path / "bucket").rename(tmp_path / "unmounted")
    with app.open() as repo:
        results = repo.query("attributes.cpus == 4")
        assert [one.row.namespace for one in results] == ["app"]
        assert results.unhydrated == 1
        assert len(repo.query('ns == "infra"')) == 1


def test_a_namespace_that_published_nothing_is_skipped(
    machine: MakeMachine, app: Machine, tmp_path: Path
) -> None:
    silent = machine("silent-1", "silent")
    save(silent, WEB, "state", "1")
    with silent.open() as repo:
        repo.sync.push()
    (tmp_path / "bucket/silent/.namespace.json").write_text("{}")
    document = app("datastore", "catalog", "pull", "--json").json
    assert document["skipped"] == [
        {"namespace": "silent", "reason": "it has not published its catalog"}
    ]
    assert [one["namespace"] for one in document["pulled"]] == ["infra"]


def test_a_real_s3_server_serves_catalogs_and_content(
    s3_remote: ProxiedRemote,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = {}
    for name in ("infra", "app"):
        machines[name] = Machine(tmp_path / name, capsysbinary, monkeypatch)
        section = {"type": "@swamp/s3-datastore", "config": dict(s3_remote.config)}
        update_marker(str(machines[name].repo_dir), {"datastore": {**section, "namespace": name}})
    for number in range(20):
        save(machines["infra"], f"aws/ec2/i-{number}", "state", {"number": number})
    publish(machines["infra"])
    with machines["app"].open() as repo:
        result = repo.pull_catalogs()
        assert [(one.namespace, one.rows) for one in result.pulled] == [("infra", 20)]
        found = repo.query("attributes.number >= 15", select="attributes.number")
        assert sorted(found) == [15, 16, 17, 18, 19]
        assert repo.latest("infra:aws/ec2/i-3", "state").json() == {"number": 3}
        repo.pull_catalogs()
        requests = repo.connection.counting.tally().requests
        assert requests["get"] == 21
        assert requests["list"] == 2


# Content in memory -------------------------------------------------------------------------


def test_content_beyond_the_budget_is_forgotten_oldest_first() -> None:
    memory = ContentMemory(budget=10)
    for key in "abc":
        memory.keep(key, b"1234")
    assert [memory.get(key) for key in "abc"] == [None, b"1234", b"1234"]
    memory.keep("b", b"12")
    memory.keep("d", b"1234")
    assert [memory.get(key) for key in "bcd"] == [b"12", b"1234", b"1234"]
    memory.keep("huge", b"x" * 11)
    assert memory.get("huge") is None
    assert memory.get("c") == b"1234"


@pytest.mark.parametrize("size", [None, 4, 100])
def test_content_of_any_size_can_be_opened(memory_remote: Remote, size: int | None) -> None:
    with memory_remote.open() as store:
        data = b"x" * (size or 50)
        store.put("infra/data/raw", data)
        foreign = ForeignStore(lambda: store, ContentMemory(budget=10))
        with foreign.open(Wanted("infra/data/raw", size)) as file:
            assert file.read() == data
        assert foreign.peek(Wanted("infra/data/raw", size)) == data


def test_a_key_that_leaves_the_namespace_is_never_asked_for(app: Machine, tmp_path: Path) -> None:
    (tmp_path / "bucket/secret").write_text("x")
    with app.open() as repo:
        row = repo.latest("infra:web", "state").row._replace(model_id="..", size=1, checksum="")
        artifact = repo.artifact(row)
        with pytest.raises(ValidationError):
            artifact.bytes()
        assert artifact.parsed() == (None, None)


def test_a_store_that_fails_is_asked_once() -> None:
    calls = 0

    def open_store() -> Store:
        nonlocal calls
        calls += 1
        raise StoreUnreachableError("nobody answers", hint="")

    foreign = ForeignStore(open_store, ContentMemory())
    assert [foreign.peek(Wanted(key)) for key in "abc"] == [None, None, None]
    assert calls == 1


# The command line ----------------------------------------------------------------------------


def test_the_commands_read_other_namespaces(app: Machine) -> None:
    assert json.loads(app.get("infra:web", "state")) == {"cpus": 4}
    described = app("data", "get", "infra:web", "state", "--json").json
    assert (described["content"], described["namespace"]) == ({"cpus": 4}, "infra")
    assert described["contentPath"].endswith("bucket/infra/data/aws/ec2/i-1/state/1/raw")
    assert app("data", "get", "infra:web", "state").out.splitlines()[0].split()[1] == "infra"
    listed = app("data", "list", "infra:web", "--json").json
    assert (listed["namespace"], listed["modelId"], listed["total"]) == ("infra", "i-1", 1)
    versions = app("data", "versions", "infra:web", "state", "--json").json
    assert (versions["modelId"], versions["total"]) == ("i-1", 1)
    found = app("data", "search", "--model", "infra:web", "--json").json
    assert [one["namespace"] for one in found["results"]] == ["infra"]
    [record] = app("data", "query", 'ns == "infra"', "--json").json["results"]
    assert record["content"] == {"cpus": 4}
    assert app("data", "versions", "infra:web", "nothing").status == 1
    assert "infra" in app("data", "query", 'name == "state"').out


def test_the_commands_refuse_to_write_to_other_namespaces(app: Machine) -> None:
    for command in (
        ("put", "infra:web", "state", "--json-value", "1"),
        ("delete", "infra:web", "state"),
        ("delete", "infra:web", "--all", "-y"),
        ("rename", "infra:web", "state", "other"),
    ):
        outcome = app("data", *command, "--json")
        assert outcome.error["code"] == "validation_failed"
        assert "can only be read" in outcome.error["error"]


def test_the_export_is_written_on_request(app: Machine) -> None:
    document = app("datastore", "catalog", "export", "--json").json
    assert document == {"namespace": "app", "path": str(app.cache / EXPORT)}
    assert json.loads((app.cache / EXPORT).read_bytes()) == []
    app.use(Path("/nowhere"), namespace=None)
    assert app("datastore", "catalog", "export").status == 1


def test_a_pull_tells_what_it_found(app: Machine, tmp_path: Path) -> None:
    out = app("datastore", "catalog", "pull").out
    assert "infra" in out
    (tmp_path / "bucket/infra" / EXPORT).write_text('[{"a": 1}, 7]')
    assert "2 rows of infra could not be understood." in app("datastore", "catalog", "pull").out
    (tmp_path / "bucket/infra" / EXPORT).write_text("{")
    assert "infra is skipped: " in app("datastore", "catalog", "pull").out
    assert app("datastore", "catalog", "pull", "--namespaces", "app").status == 1


def test_nobody_else_is_no_error(machine: MakeMachine) -> None:
    alone = machine("alone-1", "alone")
    assert alone("datastore", "catalog", "pull").out == "There are no other namespaces.\n"
