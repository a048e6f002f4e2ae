"""Versions get new numbers with all they hold, and nobody's version is lost on the way."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore import Draft, Repo, open_repo
from swampstore.artifacts.metadata import decode
from swampstore.artifacts.renumber import renumber
from swampstore.errors import DiskError, MetadataError, ValidationError
from swampstore.marker import update_marker
from swampstore.sync.install import ArtifactInstaller, PlainInstaller
from tests.artifacts.test_many_processes import run_all
from tests.catalog.test_catalog import assert_equals_disk
from tests.support.staging import Staged

MODEL = "aws/ec2/i-1"
STATE = f"data/{MODEL}/state"


@pytest.fixture
def announced() -> list[str]:
    return []


@pytest.fixture
def repo(repo_dir: Path, announced: list[str]) -> Iterator[Repo]:
    """A repository with three versions, whose rows must be those of the files in the end."""
    with open_repo(repo_dir, durable=False, announce=announced.append) as repo:
        for text in ("one", "two", "three"):
            repo.artifacts.save(MODEL, "state", text, tags={"env": text})
        announced.clear()
        yield repo
        repo.ready(complete=True)
        assert_equals_disk(repo)
        assert repo.catalog.pending() == []


def path_of(repo: Repo, rel: str) -> Path:
    return Path(repo.tree.path(f"{STATE}/{rel}"))


def contents(repo: Repo) -> dict[int, str]:
    return {one.version: one.text() for one in repo.versions(MODEL, "state")}


def move(repo: Repo, moves: Mapping[int, int]) -> None:
    renumber(repo.mutations, repo.ref(MODEL, "state"), moves)


def test_versions_move_with_everything_but_their_number(repo: Repo, announced: list[str]) -> None:
    before = {one: decode(path_of(repo, f"{one}/metadata.yaml").read_bytes(), "") for one in (2, 3)}
    move(repo, {2: 3, 3: 4})
    assert contents(repo) == {1: "one", 3: "two", 4: "three"}
    assert repo.latest(MODEL, "state").version == 4
    assert path_of(repo, "latest").read_bytes() == b"4"
    for old, new in ((2, 3), (3, 4)):
        after = decode(path_of(repo, f"{new}/metadata.yaml").read_bytes(), "")
        assert after.version == new
        assert (after.id, after.checksum, after.tags) == (
            before[old].id,
            before[old].checksum,
            before[old].tags,
        )
    assert announced == [STATE]


def test_members_that_we_do_not_know_survive_the_move(repo: Repo) -> None:
    with path_of(repo, "3/metadata.yaml").open("a") as file:
        file.write("colour: blue\n")
    move(repo, {3: 9})
    assert "colour: blue\n" in path_of(repo, "9/metadata.yaml").read_text()


def test_versions_that_are_not_mentioned_stay(repo: Repo) -> None:
    old = path_of(repo, "1/metadata.yaml").stat()
    move(repo, {3: 7})
    assert path_of(repo, "1/metadata.yaml").stat() == old
    assert contents(repo) == {1: "one", 2: "two", 7: "three"}


def test_latest_names_the_highest_committed_version_wherever_that_came_from(repo: Repo) -> None:
    move(repo, {1: 8})
    assert contents(repo) == {2: "two", 3: "three", 8: "one"}
    assert repo.latest(MODEL, "state").version == 8


def test_a_deferred_version_moves_and_goes_on_waiting(repo: Repo) -> None:
    group = repo.artifacts.deferring()
    group.save(repo.ref(MODEL, "state"), b"later", Draft())
    move(repo, {3: 5, 4: 6})
    assert repo.latest(MODEL, "state").version == 5
    repo.rebuild_catalog()
    assert repo.latest(MODEL, "state").version == 5
    assert repo.version(MODEL, "state", 6).text() == "later"


def test_a_name_with_deferred_versions_only_has_no_latest_afterwards(repo: Repo) -> None:
    ref = repo.ref(MODEL, "fresh")
    group = repo.artifacts.deferring()
    group.save(ref, b"later", Draft())
    renumber(repo.mutations, ref, {1: 2})
    assert repo.latest(MODEL, "fresh", default=None) is None
    assert repo.list_versions(MODEL, "fresh") == [2]


def test_a_version_whose_content_is_not_here_moves(repo: Repo) -> None:
    path_of(repo, "3/raw").unlink()
    move(repo, {3: 4})
    assert os.listdir(path_of(repo, "4")) == ["metadata.yaml"]
    assert repo.latest(MODEL, "state").version == 4


def test_a_version_that_is_in_both_tiers_moves_in_both(repo_dir: Path) -> None:
    update_marker(str(repo_dir), {"datastore": {"path": "shared", "exclude": ["**/raw"]}})
    with open_repo(repo_dir, durable=False) as repo:
        for text in ("one", "two"):
            repo.artifacts.save(MODEL, "state", text)
        move(repo, {1: 2, 2: 3})
        assert contents(repo) == {2: "one", 3: "two"}
        assert (repo_dir / "shared" / STATE / "3" / "metadata.yaml").exists()
        assert (repo_dir / ".swamp" / STATE / "3" / "raw").exists()
        assert_equals_disk(repo)


def test_no_moves_change_nothing(repo: Repo, announced: list[str]) -> None:
    move(repo, {})
    assert announced == []


# What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        ({1: 2}, "version 2 of .* is taken"),
        ({2: 7, 3: 6}, "version 6 of .* is taken"),
        ({4: 9}, "version 4 of .* is not finished, or not there"),
        ({6: 9}, "version 6 of .* is not finished, or not there"),
        ({3: 2, 2: 4}, "version 3 of .* cannot become version 2"),
        ({3: 3}, "version 3 of .* cannot become version 3"),
        ({2: 9, 3: 9}, "cannot get the same number"),
    ],
)
def test_moves_that_cannot_be_are_refused_and_nothing_changes(
    repo: Repo, moves: dict[int, int], reason: str
) -> None:
    path_of(repo, "6").mkdir()
    with pytest.raises(ValidationError, match=reason):
        move(repo, moves)
    assert contents(repo) == {1: "one", 2: "two", 3: "three"}
    assert sorted(os.listdir(path_of(repo, ""))) == ["1", "2", "3", "6", "latest"]
    assert repo.catalog.pending() == []


def test_a_version_with_damaged_metadata_does_not_move(repo: Repo) -> None:
    path_of(repo, "3/metadata.yaml").write_bytes(b"{damaged")
    repo.rebuild_catalog()
    with pytest.raises(MetadataError):
        move(repo, {2: 8, 3: 9})
    assert contents(repo) == {1: "one", 2: "two"}


# What is interrupted ------------------------------------------------------------------------


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_disk_error_on_the_way_leaves_whole_versions_and_right_rows(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    rename, calls = os.rename, 0

    def once_full(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, "", arguments[1])
        rename(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", once_full)
        if failing < 6:  # each of two versions and its metadata, then the marker
            with pytest.raises(DiskError, match="disk is full"):
                move(repo, {2: 4, 3: 5})
        else:
            move(repo, {2: 4, 3: 5})
    assert contents(repo) == {1: "one", 4: "two", 5: "three"}
    assert repo.latest(MODEL, "state").version == 5


def interrupt(repo: Repo, moves: Mapping[int, int]) -> None:
    action = json.dumps({"op": "renumber", "moves": sorted(moves.items())})
    repo.catalog.intend({STATE: action})


def test_healing_leaves_a_version_whose_new_number_was_taken_meanwhile(repo: Repo) -> None:
    """Programs that do not know our locks may create a directory between two moves."""
    interrupt(repo, {2: 3, 3: 4})
    os.rename(path_of(repo, "3"), path_of(repo, "4"))
    path_of(repo, "3").mkdir()
    path_of(repo, "3/raw").write_bytes(b"somebody is writing")
    assert contents(repo) == {1: "one", 2: "two", 4: "three"}
    assert path_of(repo, "3/raw").read_bytes() == b"somebody is writing"


def test_healing_twice_moves_nothing_twice(repo: Repo) -> None:
    moves = {1: 2, 2: 3, 3: 4}
    for _ in range(2):
        interrupt(repo, moves)
        assert contents(repo) == {2: "one", 3: "two", 4: "three"}


def test_nobody_loses_a_version_when_writers_race_with_new_numbers(repo_dir: Path) -> None:
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", "first")

    def work(number: int) -> None:
        with open_repo(repo_dir, durable=False) as repo:
            if number == 0:
                for top in range(30):
                    newest = repo.latest(MODEL, "state").version
                    move_if_free(repo, {newest: newest + 2 + top % 3})
            else:
                for turn in range(20):
                    repo.artifacts.save(MODEL, "state", f"{number}-{turn}")

    run_all(3, work)
    with open_repo(repo_dir, durable=False) as repo:
        expected = {"first", *(f"{number}-{turn}" for number in (1, 2) for turn in range(20))}
        found = [one.text() for one in repo.versions(MODEL, "state")]
        assert len(found) == len(expected)
        assert set(found) == expected
        assert_equals_disk(repo)


def move_if_free(repo: Repo, moves: Mapping[int, int]) -> None:
    try:
        move(repo, moves)
    except ValidationError as error:
        assert "is taken" in error.message


@pytest.mark.parametrize("kind", ["artifacts", "plain"])
def test_landing_renumbers_and_announces_it(repo: Repo, announced: list[str], kind: str) -> None:
    installer = (
        PlainInstaller(repo.tree)
        if kind == "plain"
        else ArtifactInstaller(repo.mutations, repo.catalog)
    )
    installer.renumber(STATE, {2: 4, 3: 5})
    assert announced == [STATE]
    repo.rebuild_catalog()
    assert contents(repo) == {1: "one", 4: "two", 5: "three"}
    staged = Staged(repo.tree)
    installer.install(staged.version(STATE, 2, b"theirs"))
    repo.rebuild_catalog()
    assert contents(repo) == {1: "one", 2: "theirs", 4: "two", 5: "three"}
    assert repo.latest(MODEL, "state").version == 5
