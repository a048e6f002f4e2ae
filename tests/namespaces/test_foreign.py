"""Reading what other namespaces hold, where several repositories share a directory in place."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Repo, init_repo, open_repo
from swampstore.catalog.export import EXPORT, ExportedRows, decode_row, write_rows
from swampstore.catalog.foreign import FOREIGN_CATALOG, ForeignCatalogs
from swampstore.catalog.schema import COLUMNS, Row
from swampstore.catalog.statements import POINT_LOOKUPS
from swampstore.errors import (
    ContentMissingError,
    ModelNotFoundError,
    NotFoundError,
    ValidationError,
)
from swampstore.layout import split_namespace
from swampstore.marker import update_marker
from tests.conftest import FakeClock

WEB = "aws/ec2/i-1"


class Team:
    """Repositories that share a directory, by their namespaces."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.share = directory / "share"
        self._directory = directory
        self._clock = clock
        self._open: dict[str, Repo] = {}

    def __getitem__(self, namespace: str) -> Repo:
        if namespace not in self._open:
            path = self._directory / f"repo-{namespace}"
            init_repo(path).close()
            section = {"type": "filesystem", "path": str(self.share)}
            update_marker(
                str(path), {"datastore": section | ({"namespace": namespace} if namespace else {})}
            )
            self._open[namespace] = open_repo(path, durable=False, clock=self._clock)
        return self._open[namespace]

    def close(self) -> None:
        for repo in self._open.values():
            repo.close()


@pytest.fixture
def team(tmp_path: Path, clock: FakeClock) -> Iterator[Team]:
    team = Team(tmp_path, clock)
    yield team
    team.close()


@pytest.fixture
def app(team: Team) -> Repo:
    """The repository of `app`, after `infra` has saved something and `app` pulled its catalog."""
    tags = {"modelName": "web", "specName": "state", "env": "prod"}
    team["infra"].artifacts.save(WEB, "state", {"cpus": 4}, tags=tags)
    team["infra"].artifacts.save(WEB, "state", {"cpus": 8}, tags=tags)
    team["infra"].artifacts.save(WEB, "log", "up since noon", tags={"modelName": "web"})
    app = team["app"]
    app.artifacts.save("app/site/s-1", "state", {"cpus": 1}, tags={"modelName": "site"})
    app.pull_catalogs()
    return app


# Models of other namespaces ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("web", ("", "web")),
        (":web", ("", "web")),
        ("infra:web", ("infra", "web")),
        ("infra:aws/ec2/i-1", ("infra", "aws/ec2/i-1")),
        ("infra:AWS::EC2/i-1", ("infra", "AWS::EC2/i-1")),
        ("*:web", ("*", "web")),
        ("AWS::EC2::VPC/i-1", ("", "AWS::EC2::VPC/i-1")),
        ("aws::ec2::vpc/i-1", ("", "aws::ec2::vpc/i-1")),
        ("aws/ec2/arn:aws:i-1", ("", "aws/ec2/arn:aws:i-1")),
        ("infra:a:b", ("infra", "a:b")),
        (":a:b", ("", "a:b")),
        ("Infra:web", ("", "Infra:web")),
        ("-x:web", ("", "-x:web")),
    ],
)
def test_a_namespace_is_what_is_before_a_single_colon(text: str, parts: tuple[str, str]) -> None:
    assert split_namespace(text) == parts


def test_models_of_other_namespaces_are_read_by_name_and_address(app: Repo) -> None:
    for model in ("infra:web", f"infra:{WEB}", "*:web", f"*:{WEB}"):
        assert app.latest(model, "state").json() == {"cpus": 8}
        assert app.version(model, "state", 1).json() == {"cpus": 4}
        assert app.list_versions(model, "state") == [1, 2]
        assert [one.version for one in app.versions(model, "state", limit=1)] == [2]
        assert [one.name for one in app.list_data(model)] == ["log", "state"]
        assert [one.version for one in app.find_by_spec(model, "state")] == [2]
        assert app.locate(model) == ("infra", app.ref(WEB, "state").model)


def test_an_artifact_of_another_namespace_has_content_and_metadata_but_no_file(app: Repo) -> None:
    found = app.latest("infra:web", "log")
    assert found.text() == "up since noon"
    assert found.metadata.tags["modelName"] == "web"
    assert found.row.namespace == "infra"
    with found.open() as file:
        assert file.read(2) == b"up"
    with pytest.raises(ContentMissingError, match="no file on this machine"):
        _ = found.path


def test_names_without_a_namespace_mean_the_own_one(app: Repo) -> None:
    with pytest.raises(ModelNotFoundError):
        app.latest("web", "state")
    assert app.latest(WEB, "state", default=None) is None
    for model in ("site", ":site", "app:site", "*:site", ":app/site/s-1"):
        assert app.latest(model, "state").json() == {"cpus": 1}
        assert app.locate(model)[0] == "app"
    assert app.find_by_tag("env", "prod") == []


def test_what_several_namespaces_have_is_not_guessed(team: Team, app: Repo) -> None:
    team["ops"].artifacts.save(WEB, "state", "1", tags={"modelName": "web"})
    app.pull_catalogs()
    with pytest.raises(ValidationError, match="infra, ops"):
        app.latest("*:web", "state")
    # Only one of them has this.
    assert app.latest("*:web", "log").text() == "up since noon"
    app.artifacts.save(WEB, "log", "own")
    with pytest.raises(ValidationError, match="app, infra"):
        app.latest(f"*:{WEB}", "log")


def test_what_is_not_there_is_told_with_what_is(app: Repo) -> None:
    with pytest.raises(NotFoundError, match="ops was not pulled") as caught:
        app.latest("ops:web", "state")
    assert "--namespaces ops" in str(caught.value.hint)
    with pytest.raises(ModelNotFoundError, match="infra has no model 'db'") as caught_model:
        app.latest("infra:db", "state")
    assert "web" in str(caught_model.value.hint)
    with pytest.raises(NotFoundError, match="no data named 'x'") as caught_name:
        app.latest("infra:web", "x")
    assert "log, state" in str(caught_name.value.hint)
    with pytest.raises(NotFoundError, match="no version 3"):
        app.version("infra:web", "state", 3)
    with pytest.raises(ModelNotFoundError):
        app.list_data("infra:no/such-model")
    assert app.latest("infra:no/such-model", "x", default=None) is None
    assert app.latest("infra:web", "x", default=None) is None
    with pytest.raises(NotFoundError):
        app.latest("*:nobody", "x")


def test_an_own_model_with_a_colon_in_its_name_is_found_with_one_in_front(app: Repo) -> None:
    app.artifacts.save("a/b", "x", "1", tags={"modelName": "db:primary"})
    with pytest.raises(NotFoundError, match="db was not pulled") as caught:
        app.latest("db:primary", "x")
    assert ":a:b" in str(caught.value.hint)
    assert app.latest(":db:primary", "x").text() == "1"


def test_a_repository_without_a_namespace_reads_others_too(team: Team, app: Repo) -> None:
    team[""].pull_catalogs()
    assert team[""].latest("infra:web", "state").json() == {"cpus": 8}
    assert team[""].latest("app:site", "state").json() == {"cpus": 1}


# Writing -----------------------------------------------------------------------------------


def test_nothing_is_written_to_another_namespace(team: Team, app: Repo) -> None:
    for model in ("infra:web", f"infra:{WEB}", "*:web"):
        for write in (
            lambda model=model: app.artifacts.save(model, "state", "1"),
            lambda model=model: app.artifacts.append(model, "state", "1"),
            lambda model=model: app.artifacts.delete(model, "state"),
            lambda model=model: app.artifacts.rename(model, "state", "other"),
            lambda model=model: app.artifacts.mark_deleted(model, "state", method="x"),
        ):
            with pytest.raises(ValidationError, match="can only be read"):
                write()
    assert team["infra"].list_versions(WEB, "state") == [1, 2]
    assert app.catalog.counts()["versions"] == 1


def test_the_own_prefix_is_no_part_of_the_name_that_is_saved(app: Repo) -> None:
    saved = app.artifacts.save("app:site", "facts", "1")
    assert saved.model_name == "site"
    assert app.artifacts.save(":site", "facts", "2").version == 2


# Queries -----------------------------------------------------------------------------------


def test_a_query_is_about_every_namespace_unless_it_names_one(app: Repo) -> None:
    def found(predicate: str) -> list[tuple[str, str]]:
        results = app.query(predicate, order="ns, name")
        return [(one.row.namespace, one.name) for one in results]

    every = [("app", "state"), ("infra", "log"), ("infra", "state")]
    assert found("size >= 0") == every
    assert found('ns == "infra"') == every[1:]
    assert found('ns == "app"') == every[:1]
    assert found('ns != "app"') == every[1:]
    assert found('ns == "infra" || ns == "app"') == every
    assert found('ns == "infra" && ns == "app"') == []
    assert found('ns == ""') == []
    assert found('tags.env == "prod"') == [("infra", "state")]
    assert found('modelName == "web" && version == 1') == [("infra", "log"), ("infra", "state")]


def test_a_query_reads_the_content_of_other_namespaces(app: Repo) -> None:
    assert [one.json() for one in app.query("attributes.cpus > 2")] == [{"cpus": 8}]
    values = app.query('name == "state"', select="attributes.cpus", order="ns")
    assert list(values) == [1, 8]
    assert values.unhydrated == 0
    assert list(app.query('content.contains("noon")', select="ns")) == ["infra"]
    assert [one.row.namespace for one in app.query("attributes.cpus > 0", limit=1)] == ["app"]


def test_a_limit_holds_for_all_namespaces_together(app: Repo) -> None:
    assert len(app.query(limit=2)) == 2
    newest = app.query(order="createdAt desc, name", limit=2)
    assert [one.name for one in newest] == ["log", "state"]


def test_content_that_is_gone_is_counted_and_not_an_error(team: Team, app: Repo) -> None:
    shutil.rmtree(team.share / "infra/data/aws/ec2/i-1/state")
    results = app.query("attributes.cpus > 0")
    assert [one.row.namespace for one in results] == ["app"]
    assert results.unhydrated == 1
    with pytest.raises(ContentMissingError, match="cannot be read") as caught:
        app.latest("infra:web", "state").bytes()
    assert "catalog pull" in str(caught.value.hint)


# Content that is not what was promised ------------------------------------------------------


def _raw(team: Team, name: str) -> Path:
    [*_, newest] = sorted((team.share / f"infra/data/aws/ec2/i-1/{name}").glob("*/raw"))
    return newest


@pytest.mark.parametrize("content", [b"", b"x" * 13, b"x" * 1000])
def test_content_of_another_size_or_hash_is_refused(team: Team, app: Repo, content: bytes) -> None:
    _raw(team, "log").write_bytes(content)
    with pytest.raises(ContentMissingError, match=r"bytes expected|SHA-256"):
        app.latest("infra:web", "log").bytes()


def test_a_link_out_of_the_namespace_is_not_followed(team: Team, app: Repo, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("up since noon")
    raw = _raw(team, "log")
    raw.unlink()
    raw.symlink_to(secret)
    with pytest.raises(ContentMissingError):
        app.latest("infra:web", "log").bytes()


def test_a_streaming_version_may_have_grown(team: Team, app: Repo) -> None:
    infra = team["infra"]
    infra.artifacts.save(WEB, "tail", "a", streaming=True)
    app.pull_catalogs()
    infra.artifacts.append(WEB, "tail", "b")
    assert app.latest(f"infra:{WEB}", "tail").text() == "ab"


def test_nothing_of_another_namespace_stays_on_disk(app: Repo) -> None:
    assert len(app.query('content.contains("noon")')) == 1
    assert app.latest("infra:web", "log").bytes() == b"up since noon"
    here = [path for path in Path(app.config.repo_dir).rglob("*") if path.is_file()]
    assert not any(b"up since noon" in path.read_bytes() for path in here)


# Pulling -----------------------------------------------------------------------------------


def test_without_an_export_the_files_are_read(app: Repo, clock: FakeClock) -> None:
    document = app.pull_catalogs().to_json()
    [pulled] = document["pulled"]
    assert pulled == {
        "namespace": "infra",
        "rows": 3,
        "exportedAt": "2026-05-14T20:19:51.042Z",
        "badRows": 0,
    }
    assert document["skipped"] == []
    assert document["totalRows"] == 3


def test_an_export_is_read_where_there_is_one(team: Team, app: Repo) -> None:
    team["infra"].export_catalog()
    team["infra"].artifacts.save(WEB, "state", "9")
    assert app.pull_catalogs(["infra"]).total_rows == 3
    assert app.list_versions("infra:web", "state") == [1, 2]
    team["infra"].export_catalog()
    assert app.pull_catalogs().total_rows == 4
    assert app.list_versions("infra:web", "state") == [1, 2, 3]


def test_what_was_deleted_upstream_goes_here(team: Team, app: Repo) -> None:
    infra = team["infra"]
    infra.artifacts.delete(WEB, "log")
    infra.artifacts.delete(WEB, "state", version=1)
    infra.artifacts.save("aws/ec2/i-9", "state", "new", tags={"env": "prod"})
    for publish in (False, True):
        if publish:
            infra.export_catalog()
        app.pull_catalogs()
        found = [(str(one.ref), one.version) for one in app.query('ns == "infra" && version > 0')]
        assert sorted(found) == [("aws/ec2/i-1 state", 2), ("aws/ec2/i-9 state", 1)]
        tagged = app.query('tags.env == "prod"', order="modelId")
        assert [one.model.id for one in tagged] == ["i-1", "i-9"]
        infra.artifacts.save("aws/ec2/i-9", "gone", "x")
        infra.artifacts.delete("aws/ec2/i-9", "gone")


def test_rows_become_equal_to_any_export(team: Team, app: Repo) -> None:
    """Changed tags and steps, moved latest, new and vanished rows: nothing of before is left."""
    path = team.share / "infra" / EXPORT
    team["infra"].export_catalog()
    rows = json.loads(path.read_text())
    for changed in (
        [row | {"tags": '{"env":"dev","new":"1"}'} for row in rows],
        [row | {"is_latest": 1 - row["is_latest"]} for row in rows],
        [],
        [row | {"data_name": f"{row['data_name']}-2"} for row in rows] + rows,
        rows[:1] * 3,
        list(reversed(rows)),
    ):
        path.write_text(json.dumps(changed))
        count = app.pull_catalogs().total_rows
        unique = {(row["data_name"], row["version"]): row for row in changed}
        assert count == len(unique)
        found = app.query("version > 0 && ns == 'infra'")
        assert {
            (one.name, one.version, one.is_latest, tuple(one.tags.items())) for one in found
        } == {
            (*key, bool(row["is_latest"]), tuple(json.loads(row["tags"]).items()))
            for key, row in unique.items()
        }
        tags = app.others._catalogs.rows.read(
            lambda db: db.execute(
                "SELECT key, value, row FROM tag EXCEPT SELECT j.key, j.value, c.rowid"
                " FROM catalog c, json_each(c.tags) j WHERE c.is_latest = 1"
            ).fetchall()
        )
        assert tags == []


def test_bad_rows_are_counted_and_the_others_come(team: Team, app: Repo) -> None:
    path = team.share / "infra" / EXPORT
    team["infra"].export_catalog()
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([{"type_normalized": "../.."}, *rows, "x"]))
    for _ in range(2):
        [pulled] = app.pull_catalogs().pulled
        assert (pulled.rows, pulled.bad_rows) == (3, 2)


@pytest.mark.parametrize("data", [b"", b"{}", b"[{", b"\xff" * 100, b"[" * 10_000])
def test_a_damaged_export_is_skipped_and_the_rows_of_before_stay(
    team: Team, app: Repo, data: bytes
) -> None:
    (team.share / "infra" / EXPORT).write_bytes(data)
    team["ops"].artifacts.save(WEB, "state", "1")
    result = app.pull_catalogs()
    [skipped] = result.skipped
    assert skipped.namespace == "infra"
    assert "no JSON array" in skipped.reason
    assert [one.namespace for one in result.pulled] == ["ops"]
    assert app.latest("infra:web", "state").json() == {"cpus": 8}


def test_a_namespace_that_is_gone_takes_its_rows_with_it(team: Team, app: Repo) -> None:
    shutil.rmtree(team.share / "infra")
    [skipped] = app.pull_catalogs().skipped
    assert (skipped.namespace, skipped.reason) == ("infra", "it is gone, and its rows with it")
    with pytest.raises(NotFoundError, match="was not pulled"):
        app.latest("infra:web", "state")
    assert app.pull_catalogs().skipped == []


def test_a_registered_namespace_without_anything_is_skipped(team: Team, app: Repo) -> None:
    (team.share / "fresh").mkdir()
    (team.share / "fresh/.namespace.json").write_text("{}")
    [skipped] = app.pull_catalogs().skipped
    assert (skipped.namespace, skipped.reason) == ("fresh", "it has not published its catalog")


def test_only_other_namespaces_can_be_pulled(team: Team, app: Repo) -> None:
    (team.share / "Not A Namespace/data/x").mkdir(parents=True)
    (team.share / "data/aws/ec2/i-1/state/1").mkdir(parents=True)
    assert [one.namespace for one in app.pull_catalogs().pulled] == ["infra"]
    for name, problem in (("app", "is the namespace of this"), ("../x", "is not a namespace")):
        with pytest.raises(ValidationError, match=problem):
            app.pull_catalogs([name])
    [skipped] = app.pull_catalogs(["nobody"]).skipped
    assert skipped.reason == "there is no such namespace"


def test_a_namespace_that_is_a_link_is_none(team: Team, app: Repo, tmp_path: Path) -> None:
    (team.share / "infra").rename(tmp_path / "elsewhere")
    (team.share / "infra").symlink_to(tmp_path / "elsewhere")
    (team.share / "linked").mkdir()
    (team.share / "linked/data").symlink_to(tmp_path / "elsewhere/data")
    result = app.pull_catalogs(["infra", "linked"])
    assert result.pulled == []
    assert [one.reason for one in result.skipped] == [
        "it is gone, and its rows with it",
        "there is no such namespace",
    ]


def test_a_pull_of_some_leaves_the_others_as_they_were(team: Team, app: Repo) -> None:
    team["ops"].artifacts.save(WEB, "state", "1")
    team["infra"].artifacts.save(WEB, "state", "3")
    app.pull_catalogs(["ops"])
    assert app.list_versions("infra:web", "state") == [1, 2]
    assert app.others.names() == ["infra", "ops"]


# The own data ------------------------------------------------------------------------------


def test_rows_of_others_are_nobodys_business_but_that_of_reads(team: Team, app: Repo) -> None:
    from swampstore.doctor import examine
    from swampstore.retention import gc

    assert app.catalog.counts()["versions"] == 1
    app.rebuild_catalog()
    Path(app.config.local_dir, "swampstore.db").unlink()
    assert len(app.query()) == 3
    assert examine(app).ok
    assert gc(app, dry_run=False).plan.version_count == 0
    app.catalog.clear()
    assert app.latest("infra:web", "state").json() == {"cpus": 8}
    app.export_catalog(force=True)
    exported = json.loads((team.share / "app" / EXPORT).read_text())
    assert {row["namespace"] for row in exported} == {"app"}


def test_what_was_pulled_from_one_datastore_is_not_known_of_another(
    app: Repo, tmp_path: Path
) -> None:
    repo_dir = app.config.repo_dir
    (tmp_path / "elsewhere").mkdir()
    with open_repo(repo_dir, datastore=f"filesystem:{tmp_path}/elsewhere") as other:
        assert other.others.names() == []
        assert len(other.query('ns == "infra"')) == 0
        with pytest.raises(NotFoundError):
            other.latest("infra:web", "state")
    assert len(app.query('ns == "infra"')) == 2


def test_a_damaged_file_of_foreign_rows_is_set_aside(app: Repo) -> None:
    path = Path(app.config.local_dir, FOREIGN_CATALOG)
    app.others.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    path.write_bytes(b"nonsense" * 1000)
    assert len(app.query()) == 1
    app.pull_catalogs()
    assert app.latest("infra:web", "state").json() == {"cpus": 8}


@pytest.mark.parametrize("lookup", POINT_LOOKUPS)
def test_lookups_in_other_namespaces_use_an_index(app: Repo, lookup: str) -> None:
    sql = POINT_LOOKUPS[lookup]
    values = ["x"] * sql.count("?")
    plan = app.others._catalogs.rows.read(
        lambda db: [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    )
    assert not any(step.startswith("SCAN") for step in plan), plan


rows_of = st.builds(
    lambda name, version, latest, env: decode_row(
        {
            "type_normalized": "a",
            "model_id": "b",
            "data_name": name,
            "version": version,
            "is_latest": latest,
            "tags": {"env": env},
            "created_at": "2026-05-14T20:19:51.042Z",
        },
        "infra",
    ),
    st.sampled_from("xyz"),
    st.integers(1, 3),
    st.integers(0, 1),
    st.sampled_from(["prod", "dev"]),
)


class _Rows(list[Row]):
    bad = 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["infra", "ops"]), st.lists(rows_of)), max_size=5))
def test_the_last_replacement_of_each_namespace_is_what_counts(
    replacements: list[tuple[str, list[Row]]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        catalogs = ForeignCatalogs(f"{directory}/foreign.db", "here", durable=False)
        expected: dict[str, dict[object, Row]] = {"infra": {}, "ops": {}}
        for namespace, rows in replacements:
            moved = _Rows(row._replace(namespace=namespace) for row in rows)
            expected[namespace] = {row[:5]: row for row in moved}
            pulled = catalogs.replace(namespace, lambda moved=moved: moved, "now")  # type: ignore[misc]
            assert pulled.rows == len(expected[namespace])
        wanted = [row for rows in expected.values() for row in rows.values()]
        found = catalogs.rows.read(
            lambda db: db.execute(f"SELECT {COLUMNS} FROM catalog").fetchall()
        )
        assert sorted(found) == sorted(map(tuple, wanted))
        tags = catalogs.rows.read(
            lambda db: db.execute(
                "SELECT namespace, data_name, version, value FROM tag JOIN catalog c"
                " ON c.rowid = tag.row"
            ).fetchall()
        )
        assert sorted(tags) == sorted(
            (row.namespace, row.data_name, row.version, json.loads(row.tags)["env"])
            for row in wanted
            if row.is_latest
        )
        catalogs.close()


def test_a_failed_replacement_changes_nothing(tmp_path: Path, app: Repo) -> None:
    catalogs = ForeignCatalogs(str(tmp_path / "foreign.db"), "here", durable=False)
    [row] = [one.row for one in app.query('ns == "infra" && name == "state"')]
    file = io.StringIO()
    write_rows([row, row], file)
    whole, broken = file.getvalue().encode(), file.getvalue()[:-9].encode()
    catalogs.replace("infra", lambda: ExportedRows(io.BytesIO(whole), "infra"), "then")
    with pytest.raises(ValidationError):
        catalogs.replace("infra", lambda: ExportedRows(io.BytesIO(broken), "infra"), "now")
    assert catalogs.catalog("infra").latest(row.ref) == row
    assert catalogs.namespaces()["infra"].exported_at == "then"
    assert catalogs.namespaces()["infra"].rows == 1
    catalogs.close()
