"""The catalog: written through, rebuilt and healed, always saying what the files say."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swampstore import Draft, Owner, Repo, init_repo, open_repo
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.groups import Deferral
from swampstore.artifacts.versions import data_names
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import MemoryDatabase
from swampstore.catalog.select import Query
from swampstore.catalog.statements import POINT_LOOKUPS
from swampstore.errors import ContentMissingError, DiskError, SwampstoreError
from swampstore.files import Tree

MODEL = "aws/ec2/i-1"
ROWS = "SELECT * FROM catalog ORDER BY namespace, type_normalized, model_id, data_name, version"
TAGS = (
    "SELECT tag.key, tag.value, data_name, version FROM tag JOIN catalog c ON c.rowid = tag.row"
    " ORDER BY 1, 2, 3, 4"
)


def rows(catalog: Catalog) -> list[Any]:
    return catalog.rows.read(lambda db: db.execute(ROWS).fetchall())


def tags(catalog: Catalog) -> list[Any]:
    return catalog.rows.read(lambda db: db.execute(TAGS).fetchall())


def fail(place: str, error: OSError) -> None:
    raise AssertionError(place) from error


def from_disk(tree: Tree) -> Catalog:
    """A fresh catalog that knows nothing but the files."""
    catalog = Catalog(MemoryDatabase())
    for ref in data_names(tree, fail):
        stored = on_disk.stored_versions(tree, ref)
        catalog.replace(ref, stored, on_disk.effective_marker(tree, ref))
    return catalog


def assert_equals_disk(repo: Repo) -> None:
    fresh = from_disk(repo.tree)
    assert rows(repo.catalog) == rows(fresh)
    assert tags(repo.catalog) == tags(fresh)
    fresh.close()


names = st.sampled_from(["a", "b", "7", "été"])
steps = st.sampled_from(["", "scan", "report"])


class WrittenThroughEqualsRebuilt(RuleBasedStateMachine):
    """Whatever is done in whatever order, the rows are those a rebuild would give."""

    @initialize()
    def open(self) -> None:
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        init_repo(self.directory.name).close()
        self.repo = open_repo(self.directory.name, durable=False)
        self.repo.rebuild_catalog()
        self.group: Deferral = self.repo.artifacts.deferring()

    def owner(self, step: str) -> Owner:
        return Owner(ref="i-1", step_name=step)

    @rule(name=names, step=steps, tag=st.sampled_from(["x", "y"]), streaming=st.booleans())
    def save(self, name: str, step: str, tag: str, streaming: bool) -> None:
        self.repo.artifacts.save(
            MODEL,
            name,
            b"content",
            owner=self.owner(step),
            tags={"env": tag, "modelName": "web"},
            streaming=streaming,
        )

    @rule(name=names)
    def append(self, name: str) -> None:
        try:
            self.repo.artifacts.append(MODEL, name, b"more")
        except SwampstoreError as error:
            assert error.code in ("not_found", "not_streaming", "model_not_found")

    @rule(name=names, step=steps)
    def defer(self, name: str, step: str) -> None:
        self.group.save(self.repo.ref(MODEL, name), b"deferred", Draft(owner=self.owner(step)))

    @rule()
    def commit(self) -> None:
        # A deferred version may have been deleted meanwhile; then there is nothing to commit.
        try:
            self.group.commit()
        except SwampstoreError as error:
            assert error.code == "metadata_invalid"

    @rule()
    def rollback(self) -> None:
        self.group.rollback()

    @rule(name=names, pick=st.integers(0, 5))
    def delete_version(self, name: str, pick: int) -> None:
        versions = self.repo.list_versions(MODEL, name)
        if versions:
            version = versions[pick % len(versions)]
            self.repo.artifacts.delete(MODEL, name, version=version)

    @rule(name=names)
    def delete_name(self, name: str) -> None:
        self.repo.store.delete(self.repo.ref(MODEL, name))

    @rule(old=names, new=names)
    def rename(self, old: str, new: str) -> None:
        try:
            self.repo.artifacts.rename(MODEL, old, new)
        except SwampstoreError as error:
            assert error.code in (
                "not_found",
                "model_not_found",
                "already_exists",
                "validation_failed",
            )

    @rule(name=names)
    def mark_deleted(self, name: str) -> None:
        try:
            self.repo.artifacts.mark_deleted(MODEL, name, method="destroy")
        except SwampstoreError as error:
            assert error.code == "not_found"

    @rule()
    def rebuild(self) -> None:
        self.repo.rebuild_catalog()

    @rule()
    def lose_the_catalog(self) -> None:
        os.unlink(self.repo.catalog.rows.path)  # type: ignore[attr-defined]
        self.repo.ready(complete=True)

    @invariant()
    def rows_equal_the_files(self) -> None:
        if hasattr(self, "repo"):
            assert_equals_disk(self.repo)
            assert self.repo.catalog.pending() == []

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            self.repo.close()
            self.directory.cleanup()


TestWrittenThroughEqualsRebuilt = WrittenThroughEqualsRebuilt.TestCase
TestWrittenThroughEqualsRebuilt.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_every_point_lookup_uses_an_index(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "a", b"x")
    for what, sql in POINT_LOOKUPS.items():
        count = sql.count("?")
        plan = repo.catalog.rows.read(
            lambda db, sql=sql, count=count: db.execute(  # type: ignore[misc]
                f"EXPLAIN QUERY PLAN {sql}", ("x",) * count
            ).fetchall()
        )
        details = [step[3] for step in plan]
        assert any("USING" in step and "INDEX" in step for step in details), (what, details)
        assert not any(step.startswith("SCAN catalog") for step in details), (what, details)


@pytest.mark.parametrize(
    ("predicate", "order", "access"),
    [
        ('tags.env == "prod"', None, "SEARCH t USING PRIMARY KEY (key=? AND value=?)"),
        ('"prod" == tags["env"]', "createdAt", "SEARCH c USING INTEGER PRIMARY KEY (rowid=?)"),
        (
            'tags.env == "prod" && modelType == "aws/ec2"',
            None,
            "SEARCH c USING INDEX latest_type (type_normalized=? AND created_at=? AND rowid=?)",
        ),
        (
            'tags.env == "prod" && dataType == "file" && name.startsWith("a")',
            "createdAt desc",
            "USING INDEX latest_data_type (data_type=? AND created_at=? AND rowid=?)",
        ),
        ('modelName == "web" && version > 1', None, "USING INDEX model_names"),
        ('modelType == "aws/ec2"', None, "USING INDEX latest_address"),
        ('name.startsWith("a")', None, "USING INDEX latest_data_name"),
        ("size > 100", None, "USING INDEX latest_size"),
        ('dataType == "file"', "createdAt desc", "USING INDEX latest_data_type"),
        ('specName == "x"', "createdAt desc", "USING INDEX latest_spec_name"),
        ('workflowRunId == "x"', None, "USING INDEX workflow_runs"),
        (None, "createdAt desc", "USING INDEX latest_created_at"),
    ],
)
def test_common_questions_are_answered_by_an_index(
    repo: Repo, predicate: str | None, order: str | None, access: str
) -> None:
    repo.artifacts.save(MODEL, "a", b"x", tags={"env": "prod"})

    def explain(db: sqlite3.Connection) -> list[str]:
        sql, params = Query(predicate, order=order).statement(db)
        return [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {sql}", params)]

    details = repo.catalog.rows.read(explain)
    assert any(access in step for step in details), details


def test_a_tag_that_many_have_does_not_lead_the_way(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.catalog.select._FEW", 3)
    for name in "abcd":
        repo.artifacts.save(MODEL, name, b"x", tags={"env": "prod", "only": name})
    query = Query('tags.env == "prod" && tags.only == "b"')
    sql, params = repo.catalog.rows.read(query.statement)
    assert sql.count("FROM tag") == 1
    assert params[:2] == ("only", "b")
    assert [found.name for found in repo.query('tags.env == "prod"', order="name desc")] == [
        *"dcba"
    ]


def test_two_steps_that_write_one_name_each_keep_a_latest_row(repo: Repo) -> None:
    for step in ("one", "two", "one"):
        repo.artifacts.save(MODEL, "a", step, owner=Owner(ref="i-1", step_name=step))
    found = {(row.row.step_name, row.version) for row in repo.query('name == "a"')}
    assert found == {("one", 3), ("two", 2)}
    assert repo.latest(MODEL, "a").version == 3


def test_latest_follows_the_marker_that_another_client_moved(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "a", b"1")
    repo.artifacts.save(MODEL, "a", b"2")
    marker = Path(repo.tree.path(repo.ref(MODEL, "a").latest_rel))
    marker.write_text("1")
    repo.rebuild_catalog()
    assert repo.latest(MODEL, "a").version == 1


def test_a_query_over_missing_content_ends_and_counts_each_row_once(repo: Repo) -> None:
    for name in "abcd":
        repo.artifacts.save(MODEL, name, {"ip": name})
    for name in "abc":
        repo.latest(MODEL, name).path.unlink()
    found = repo.query('attributes.ip == "d" || name == "a"')
    assert [one.name for one in found] == ["a", "d"]
    assert found.unhydrated == 3
    assert len(repo.query()) == 4


def test_a_version_removed_behind_our_back_is_forgotten_when_it_is_read(repo: Repo) -> None:
    import shutil

    repo.artifacts.save(MODEL, "a", b"1")
    second = repo.artifacts.save(MODEL, "a", b"2")
    shutil.rmtree(second.path.parent)
    with pytest.raises(ContentMissingError):
        repo.latest(MODEL, "a").bytes()
    assert repo.list_versions(MODEL, "a") == [1]


def test_a_model_addressed_by_its_name_keeps_it(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "a", b"1", tags={"modelName": "web"})
    repo.artifacts.save("web", "a", b"2")
    assert repo.latest("web", "a").bytes() == b"2"


class TestHealing:
    def test_a_missing_catalog_is_rebuilt_by_the_first_query(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{repo.config.local_dir}/swampstore.db{suffix}").unlink(missing_ok=True)
        with open_repo(repo.config.repo_dir) as fresh:
            assert [found.name for found in fresh.query()] == ["a"]

    def test_a_point_lookup_never_walks(self, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.close()
        Path(f"{repo.config.local_dir}/swampstore.db").unlink()
        monkeypatch.setattr("swampstore.catalog.rebuild.data_names", None)
        with open_repo(repo.config.repo_dir) as fresh:
            assert fresh.latest(MODEL, "a").bytes() == b"1"
            assert fresh.version(MODEL, "a", 1).bytes() == b"1"
            assert fresh.list_versions(MODEL, "a") == [1]

    @pytest.mark.parametrize(
        "damage",
        [
            b"",
            b"garbage",
            b"SQLite format 3\x00" + b"\xff" * 5000,
            bytes(8192),
        ],
    )
    def test_a_damaged_file_is_moved_aside_and_rebuilt(self, repo: Repo, damage: bytes) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.close()
        path = Path(f"{repo.config.local_dir}/swampstore.db")
        Path(f"{path}-wal").unlink(missing_ok=True)
        path.write_bytes(damage)
        with open_repo(repo.config.repo_dir) as fresh:
            assert fresh.artifacts.save(MODEL, "b", b"2").version == 1
            assert sorted(found.name for found in fresh.query()) == ["a", "b"]
            assert_equals_disk(fresh)

    def test_a_page_torn_in_the_middle_is_healed_while_open(self, repo: Repo) -> None:
        for number in range(300):
            repo.artifacts.save(MODEL, f"n{number}", b"x")
        repo.rebuild_catalog()
        repo.catalog.rows.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        path = Path(f"{repo.config.local_dir}/swampstore.db")
        with path.open("r+b") as file:
            file.seek(4096 * 3)
            file.write(b"\xde\xad" * 4096 * 4)
        with open_repo(repo.config.repo_dir) as fresh:
            assert len(fresh.query()) == 300
            assert_equals_disk(fresh)

    @pytest.mark.parametrize("version", [0, -1])
    def test_a_file_of_another_schema_is_moved_aside(self, repo: Repo, version: int) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.close()
        path = Path(f"{repo.config.local_dir}/swampstore.db")
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE catalog (something TEXT)")
            db.execute(f"PRAGMA user_version = {version}")
        db.close()
        with open_repo(repo.config.repo_dir) as fresh:
            assert [found.name for found in fresh.query()] == ["a"]
        assert Path(f"{path}.schema-{version}").exists()

    def test_a_file_deleted_while_open_is_replaced(self, repo: Repo) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        assert len(repo.query()) == 1
        for suffix in ("", "-wal", "-shm"):
            Path(f"{repo.config.local_dir}/swampstore.db{suffix}").unlink(missing_ok=True)
        repo.artifacts.save(MODEL, "b", b"2")
        assert sorted(found.name for found in repo.query()) == ["a", "b"]
        with open_repo(repo.config.repo_dir) as other:
            assert sorted(found.name for found in other.query()) == ["a", "b"]

    def test_a_name_removed_behind_our_back_disappears_on_rebuild(self, repo: Repo) -> None:
        import shutil

        repo.artifacts.save(MODEL, "a", b"1")
        repo.artifacts.save(MODEL, "b", b"1")
        shutil.rmtree(repo.tree.path(repo.ref(MODEL, "a").rel))
        done = repo.rebuild_catalog()
        assert (done.names, done.removed) == (1, 1)
        assert [found.name for found in repo.query()] == ["b"]

    def test_an_unreadable_branch_keeps_its_rows(
        self, repo: Repo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repo.artifacts.save(MODEL, "a", b"1")
        repo.artifacts.save("aws/s3/bucket", "b", b"1")
        hidden = repo.tree.path("data/aws/ec2")
        real = os.scandir

        def scandir(path: str) -> Any:
            if path == hidden:
                raise PermissionError(13, "Permission denied", path)
            return real(path)

        monkeypatch.setattr("swampstore.artifacts.versions.os.scandir", scandir)
        done = repo.rebuild_catalog()
        assert done.unreadable == 1
        assert repo.latest(MODEL, "a").bytes() == b"1"

    def test_data_of_which_nothing_can_be_read_is_not_taken_for_none(
        self, repo: Repo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scandir(path: str) -> Any:
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr("swampstore.artifacts.versions.os.scandir", scandir)
        place = re.escape(repo.tree.path("data"))
        with pytest.raises(DiskError, match=f"{place}: permission denied"):
            repo.rebuild_catalog()

    def test_a_rebuild_handles_a_name_with_very_many_versions(
        self, repo: Repo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("swampstore.catalog.rebuild._HUGE", 5)
        for _ in range(23):
            repo.artifacts.save(MODEL, "a", b"1")
        expected = rows(repo.catalog)
        repo.catalog.rows.write(
            lambda db: db.execute("UPDATE catalog SET version = 900 WHERE version = 3")
        )
        repo.rebuild_catalog()
        assert rows(repo.catalog) == expected
        assert_equals_disk(repo)
