"""Finding artifacts from Python, and what the answers can become."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swampstore import Owner, Repo
from swampstore.errors import (
    MissingExtraError,
    ModelNotFoundError,
    NotFoundError,
    QueryError,
    ValidationError,
)
from tests.conftest import FakeClock

WEB = "aws/ec2/i-1"
DB = "aws/rds/db-1"


@pytest.fixture
def filled(repo: Repo, clock: FakeClock) -> Repo:
    for number, (model, model_name, env) in enumerate(
        [(WEB, "web", "prod"), (DB, "db", "prod"), ("aws/ec2/i-2", "web-2", "dev")]
    ):
        tags = {"env": env, "modelName": model_name, "specName": "state"}
        repo.artifacts.save(model, "state", {"cpus": 2**number}, tags=tags)
        clock.advance(minutes=1)
    repo.artifacts.save(WEB, "<log>", "text", tags={"env": "prod", "modelName": "web"})
    return repo


def test_tags_and_specs_find_the_latest_artifacts(filled: Repo) -> None:
    assert [str(found.ref) for found in filled.find_by_tag("env", "dev")] == ["aws/ec2/i-2 state"]
    assert len(filled.find_by_tag("env", "prod")) == 3
    assert filled.find_by_tag("env", 'x" || true') == []
    assert [found.name for found in filled.find_by_spec("web", "state")] == ["state"]
    assert filled.find_by_spec("web", "nothing") == []


def test_of_several_steps_each_one_is_found_once(repo: Repo) -> None:
    for step in ("a", "b", "a"):
        owner = Owner(ref="i-1", step_name=step)
        repo.artifacts.save(WEB, "x", step, owner=owner, tags={"env": "prod"})
    found = {(one.row.step_name, one.version) for one in repo.find_by_tag("env", "prod")}
    assert found == {("a", 3), ("b", 2)}


def test_queries_select_limit_and_order(filled: Repo) -> None:
    cpus = filled.query('name == "state"', select="attributes.cpus", order="createdAt desc")
    assert list(cpus) == [4, 2, 1]
    newest = filled.query(order="createdAt desc, name", limit=2)
    assert [found.name for found in newest] == ["<log>", "state"]
    assert newest.limited
    assert not filled.query(limit=50).limited
    assert len(filled.query('modelId == "i-1" && ns == ""')) == 2
    assert len(filled.query("tags.env in ['prod', 'dev'] && !(modelName == 'web')")) == 2
    assert len(filled.query('attributes.cpus > 1 && tags.env == "prod"')) == 1


def test_what_cannot_be_asked_is_explained(filled: Repo) -> None:
    with pytest.raises(QueryError, match=r"Unknown field nam.*available: .*modelName"):
        filled.query('nam == "x"')
    with pytest.raises(QueryError, match="limit"):
        filled.query(limit=-1)


def test_a_model_is_found_by_an_unambiguous_name(filled: Repo) -> None:
    assert filled.latest("db", "state").json() == {"cpus": 2}
    filled.artifacts.save("gcp/vm/v1", "state", b"", tags={"modelName": "db"})
    with pytest.raises(ValidationError, match=r"2 models: .*aws/rds/db-1"):
        filled.latest("db", "state")
    with pytest.raises(ModelNotFoundError) as told:
        filled.latest("nobody", "state")
    assert "web-2" in (told.value.hint or "")


def test_a_scoped_name_is_found_although_it_looks_like_an_address(repo: Repo) -> None:
    repo.artifacts.save(WEB, "state", b"1", tags={"modelName": "@team/probe"})
    assert repo.latest("@team/probe", "state").bytes() == b"1"
    repo.artifacts.save("@team/probe", "other", b"2")
    assert repo.latest(WEB, "other").bytes() == b"2"


def test_an_unknown_model_lists_those_of_its_type_first(filled: Repo) -> None:
    with pytest.raises(ModelNotFoundError) as told:
        filled.list_data("aws/rds/nope")
    assert "Models with data: aws/rds/db-1" in (told.value.hint or "")


def test_results_become_data_frames(filled: Repo) -> None:
    found = filled.query('name == "state"', order="createdAt")
    assert found.to_arrow().column("modelId").to_pylist() == ["i-1", "db-1", "i-2"]
    assert list(found.to_pandas()["size"]) == [found[0].size] * 3
    assert found.to_polars()["name"].to_list() == ["state"] * 3
    values = filled.query('name == "state"', select='{"cpus": attributes.cpus}')
    assert values.to_pandas()["cpus"].sum() == 7
    assert filled.query('name == "state"', select="version").to_polars()["value"].sum() == 3
    assert len(filled.query('name == "none"').to_arrow()) == 0


def test_a_missing_extra_says_what_to_install(
    filled: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError) as told:
        filled.query().to_arrow()
    assert told.value.hint == "Run: pip install 'swampstore[arrow]'"


def test_artifacts_and_results_show_themselves(filled: Repo) -> None:
    latest = filled.latest("web", "state")
    assert repr(latest) == (
        f"<Artifact aws/ec2/i-1 'state' v1 latest application/json {latest.size} bytes>"
    )
    found = filled.query('modelName == "web"')
    assert repr(found) == "<Results of 'modelName == \"web\"': 2>"
    assert "&lt;log&gt;" in found._repr_html_()
    assert "<log>" not in found._repr_html_()
    assert "2 result(s)" in found._repr_html_()
    assert "aws/ec2" in latest._repr_html_()
    assert "<Repo " in repr(filled)


def test_content_reads_in_every_form(filled: Repo) -> None:
    log = filled.latest("web", "<log>")
    assert log.text() == "text"
    with log.open() as file:
        assert file.read() == b"text"
    with pytest.raises(ValidationError, match="not JSON"):
        log.json()
    assert log.metadata.tags["modelName"] == "web"
    assert isinstance(log.path, Path)
    assert log.record(with_content=True)["content"] == "text"
    binary = filled.artifacts.save(WEB, "bin", b"\xff\xfe")
    with pytest.raises(ValidationError, match="not UTF-8"):
        binary.text()
    with pytest.raises(NotFoundError):
        filled.version("web", "bin", 2)


def test_queries_do_not_look_into_what_is_too_large(
    filled: Repo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled.artifacts.save("aws/ec2/i-1", "large.txt", "needle" + "x" * 1000)
    filled.artifacts.save("aws/ec2/i-1", "small.txt", "needle" + "x" * 10)
    monkeypatch.setattr("swampstore.artifact.LARGEST_PARSED", 1000)
    found = filled.query('content.contains("needle")')
    assert [artifact.name for artifact in found] == ["small.txt"]
    assert found.unhydrated == 0
    assert "large.txt version 1 is not looked into: it has 1006 bytes" in caplog.text
    assert filled.latest("aws/ec2/i-1", "large.txt").text().startswith("needle")
