"""The directory of a data name may be that of a model: `aws/ec2 prod` and `aws/ec2/prod state`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, open_repo
from swampstore.errors import ValidationError
from swampstore.files import Tree
from swampstore.retention.data_gc import gc
from swampstore.retention.model_deletion import delete_model
from tests.catalog.test_catalog import assert_equals_disk
from tests.support.broken_store import Killed
from tests.support.machines import Machine

OUTER = "aws/ec2"
INNER = "aws/ec2/prod"
NAMES = ("state", "2024", "2")


@pytest.fixture
def repo(repo_dir: Path) -> Iterator[Repo]:
    """A model whose address is that of a data name of another one."""
    with open_repo(repo_dir, durable=False) as repo:
        for name in NAMES:
            repo.artifacts.save(INNER, name, name)
            repo.artifacts.save(INNER, name, f"{name} again")
        yield repo
        repo.ready(complete=True)
        assert_equals_disk(repo)
        assert_inner_is_whole(repo)


def assert_inner_is_whole(repo: Repo) -> None:
    for name in NAMES:
        found = {one.version: one.text() for one in repo.versions(INNER, name)}
        assert found == {1: name, 2: f"{name} again"}
        assert repo.latest(INNER, name).version == 2


def save_outer(repo: Repo) -> None:
    repo.artifacts.save(OUTER, "prod", "outer")
    repo.artifacts.save(OUTER, "prod", "outer again")


DELETIONS: dict[str, Callable[[Repo], object]] = {
    "the name": lambda repo: repo.artifacts.delete(OUTER, "prod"),
    "the model": lambda repo: delete_model(repo, OUTER),
    "each version": lambda repo: [
        repo.artifacts.delete(OUTER, "prod", version=one)
        for one in repo.list_versions(OUTER, "prod")
    ],
}


@pytest.mark.parametrize("how", DELETIONS)
def test_deleting_a_name_leaves_the_data_of_a_model_that_is_called_so(repo: Repo, how: str) -> None:
    save_outer(repo)
    DELETIONS[how](repo)
    assert repo.list_versions(OUTER, "prod") == []
    assert not Path(repo.tree.path(f"data/{OUTER}/prod/latest")).exists()
    assert repo.model(INNER).id == "prod"


def test_a_plan_counts_no_data_name_of_a_model_within_as_a_version(repo: Repo) -> None:
    save_outer(repo)
    assert [one.version_count for one in delete_model(repo, OUTER, dry_run=True).plan.names] == [2]


def test_a_name_that_has_expired_goes_though_there_is_data_of_a_model_within(
    repo_dir: Path, repo: Repo
) -> None:
    repo.artifacts.save(OUTER, "prod", "outer", lifetime="1h")
    later = repo.clock() + timedelta(hours=2)
    with open_repo(repo_dir, durable=False, clock=lambda: later) as once_more:
        assert gc(once_more).warnings == ()
    assert repo.list_versions(OUTER, "prod") == []


def test_a_deletion_that_was_killed_between_versions_is_finished(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_outer(repo)
    drop = Tree.drop_dir
    dropped = []

    def kill_at_the_second(tree: Tree, above: str, rel: str, *look: Any) -> None:
        dropped.append(rel)
        if len(dropped) > 1:
            raise Killed
        drop(tree, above, rel, *look)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "drop_dir", kill_at_the_second)
        with pytest.raises(Killed):
            repo.artifacts.delete(OUTER, "prod")
    repo.ready()
    assert repo.list_versions(OUTER, "prod") == []


def test_nothing_is_saved_into_the_directory_of_a_version(repo: Repo) -> None:
    with open_repo(repo.config.repo_dir, durable=False) as other:
        other.artifacts.save(OUTER, "host", "outer")
        with pytest.raises(ValidationError, match="is that of aws/ec2 host version 1"):
            other.artifacts.save(f"{OUTER}/host", "1", "inner")
        other.artifacts.save(f"{OUTER}/host", "3", "inner")


def test_others_keep_the_data_of_the_model_as_well(ana: Machine, bob: Machine) -> None:
    for name in NAMES:
        ana.put(INNER, name, name)
        ana.put(INNER, name, f"{name} again")
    ana.put(OUTER, "prod", "outer")
    for machine in (ana, bob):
        assert machine("sync").status == 0
    assert bob("data", "delete", OUTER, "prod").status == 0
    for machine in (bob, ana, bob):
        assert machine("sync", "--full").status == 0
    for machine in (ana, bob):
        with machine.open() as repo:
            assert_inner_is_whole(repo)
            assert repo.list_versions(OUTER, "prod") == []
    found = ana("pipeline", "verify", "--engine", "local", "--grace", "0")
    assert found.status == 0, found.out
