"""A version that others once had, and have by now under another number, is there once."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from swampstore.index.base import Base
from swampstore.sync.pull import Pull
from tests.support.broken_store import Killed
from tests.support.machines import Machine, contents
from tests.support.sync_harness import remote_index

MODEL = "aws/ec2/i-1"
HOME = "data/aws/ec2/i-1/state"


@pytest.fixture
def others(
    tmp_path: Path,
    bucket: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> list[Machine]:
    made = [Machine(tmp_path / name, capsysbinary, monkeypatch) for name in ("eve", "dan")]
    for machine in made:
        machine.use(bucket)
    return made


@pytest.fixture
def eve(others: list[Machine]) -> Machine:
    return others[0]


@pytest.fixture
def dan(others: list[Machine]) -> Machine:
    return others[1]


def synced(machine: Machine) -> None:
    outcome = machine("sync", "--json")
    assert outcome.status == 0, outcome.err


def objects(machine: Machine) -> set[str]:
    """Return what content the index of the remote names below the data name of these tests."""
    with machine.open() as repo:
        entries = remote_index(repo.connection.store).entries
    rels = (rel.removeprefix(f"{HOME}/") for rel in entries if rel.startswith(HOME))
    return {rel for rel in rels if rel.endswith("/raw")}


def here(machine: Machine) -> set[str]:
    return {path.parent.name for path in (machine.cache / HOME).rglob("raw")}


def lose_index(bucket: Path) -> None:
    (bucket / ".datastore-index.json").unlink()
    shutil.rmtree(bucket / "_index")


@pytest.fixture
def told_again(ana: Machine, bob: Machine, eve: Machine, dan: Machine, bucket: Path) -> None:
    """Bob shares a version again as number 3, which Ana deleted, and Eve and Dan have as number 1.

    None of them had heard of that when all of the index was lost. Bob has lost his base as well.
    """
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "one", streaming=True)
    for machine in (ana, bob, eve, dan):
        synced(machine)
    ana.put(MODEL, "state", "two")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    (bob.cache / "_catalog.db-base").unlink()
    lose_index(bucket)
    synced(bob)
    assert objects(bob) == {"2/raw", "3/raw"}


def kill_a_pull(machine: Machine) -> None:
    """Let a pull be killed when it has brought everything, and looked at nothing else."""

    def be_killed(*_: object) -> None:
        raise Killed

    with machine.open() as repo, pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Pull, "_clear_leftovers", be_killed)
        repo.sync.pull()


def push(machine: Machine) -> None:
    with machine.open() as repo:
        repo.sync.push()


@pytest.mark.usefixtures("told_again")
def test_what_others_share_again_after_losses_is_not_shared_once_more(
    ana: Machine, bob: Machine, eve: Machine, dan: Machine
) -> None:
    for machine in (eve, ana, dan, bob, eve):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["two", "one"]
    assert objects(eve) == {"2/raw", "3/raw"}


@pytest.mark.usefixtures("told_again")
def test_who_only_pulls_has_what_others_share_again_once(eve: Machine) -> None:
    with eve.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["two", "one"]


@pytest.mark.usefixtures("told_again")
def test_a_push_shares_nothing_twice_though_the_pull_before_it_was_killed(eve: Machine) -> None:
    kill_a_pull(eve)
    assert here(eve) == {"1", "2", "3"}
    with eve.open() as repo:
        repo.artifacts.save(MODEL, "state", "new")
    push(eve)
    assert objects(eve) == {"2/raw", "3/raw", "4/raw"}
    assert here(eve) == {"2", "3", "4"}


@pytest.mark.usefixtures("told_again")
@pytest.mark.parametrize("is_killed", [False, True])
def test_nothing_is_noted_any_more_of_what_went(eve: Machine, is_killed: bool) -> None:
    """A note would tell that what somebody has there later may be replaced."""
    if is_killed:
        kill_a_pull(eve)
        push(eve)
    with eve.open() as repo:
        repo.sync.pull()
        identity = f"{repo.connection.store.identity}#"
    with contextlib.closing(Base(str(eve.cache), identity)) as base:
        assert not base.is_empty()
        assert base.all_noted_uploads() == {}


@pytest.mark.usefixtures("told_again")
def test_a_pull_of_another_model_leaves_it_to_one_of_this(eve: Machine) -> None:
    kill_a_pull(eve)
    with eve.open() as repo:
        repo.sync.pull([repo.model("aws/ec2/i-2")])
    assert here(eve) == {"1", "2", "3"}
    with eve.open() as repo:
        repo.sync.pull([repo.model(MODEL)], certain=True)
    assert here(eve) == {"2", "3"}


@pytest.mark.usefixtures("told_again")
def test_metadata_stays_whose_content_somebody_removed_until_that_is_put_back(
    eve: Machine, tmp_path: Path
) -> None:
    raw = eve.cache / HOME / "1/raw"
    raw.rename(tmp_path / "raw")
    synced(eve)
    assert (raw.parent / "metadata.yaml").exists()
    (tmp_path / "raw").rename(raw)
    synced(eve)
    assert objects(eve) == {"2/raw", "3/raw"}


@pytest.mark.usefixtures("told_again")
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_appended_here_stays_though_others_have_that_version_under_another_number(
    ana: Machine, eve: Machine, is_killed: bool
) -> None:
    with eve.open() as repo:
        assert repo.artifacts.append(MODEL, "state", b" and more").version == 1
    if is_killed:
        kill_a_pull(eve)
        push(eve)
    for machine in (eve, ana):
        synced(machine)
        with machine.open() as repo:
            assert sorted(contents(repo, MODEL, "state")) == ["one", "one and more", "two"]


@pytest.mark.usefixtures("told_again")
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_last_copy_stays_though_others_name_that_version_under_another_number(
    eve: Machine, bucket: Path, is_killed: bool
) -> None:
    (bucket / HOME / "3/raw").unlink()
    if is_killed:
        kill_a_pull(eve)
        push(eve)
    eve("sync", "--json")
    assert b"one" in [path.read_bytes() for path in (eve.cache / HOME).rglob("raw")]


@pytest.mark.usefixtures("told_again")
@pytest.mark.parametrize("is_killed", [False, True])
def test_latest_is_right_where_the_highest_version_has_a_lower_number_by_now(
    ana: Machine, eve: Machine, dan: Machine, bucket: Path, is_killed: bool
) -> None:
    synced(eve)
    assert here(eve) == {"2", "3"}
    shutil.rmtree(bucket / HOME / "3")
    lose_index(bucket)
    synced(dan)  # which has not heard of another number
    assert objects(dan) == {"1/raw", "2/raw"}
    if is_killed:
        kill_a_pull(eve)
        push(eve)
        assert (bucket / HOME / "latest").read_text() == "2"
    for machine in (eve, ana):
        synced(machine)
        assert machine.get(MODEL, "state") == "two"
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one", "two"]
    assert objects(eve) == {"1/raw", "2/raw"}


def test_equal_content_of_another_version_is_no_copy(
    ana: Machine, eve: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "one")
    for machine in (ana, eve):
        synced(machine)
    ana.put(MODEL, "state", "one")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    lose_index(bucket)
    for machine in (ana, eve, ana):
        synced(machine)
    assert objects(ana) == {"1/raw", "2/raw"}


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("strategy", ["full", None], ids=["full", "lazy"])
def test_what_others_share_again_with_more_appended_is_not_shared_once_more_without_that(
    ana: Machine, bob: Machine, eve: Machine, bucket: Path, strategy: str | None, is_killed: bool
) -> None:
    eve.use(bucket, hydrationStrategy=strategy)
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    for machine in (ana, bob, eve):
        synced(machine)
        assert machine.get(MODEL, "state") == "one"
    ana.put(MODEL, "state", "two")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", b" and more")
    lose_index(bucket)
    synced(bob)
    assert objects(bob) == {"2/raw", "3/raw"}
    if is_killed:
        kill_a_pull(eve)
        push(eve)
    for machine in (eve, ana, bob, eve):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["two", "one and more"]


@pytest.mark.usefixtures("told_again")
@pytest.mark.parametrize("is_appended_to", [False, True])
def test_what_cannot_come_because_something_of_ours_has_its_number_is_not_shared_once_more(
    ana: Machine, bob: Machine, eve: Machine, dan: Machine, is_appended_to: bool
) -> None:
    if is_appended_to:
        with bob.open() as repo:
            assert repo.artifacts.append(MODEL, "state", b" and more").version == 3
        synced(bob)
    theirs = "one and more" if is_appended_to else "one"
    for content in ("mine", "mine, too"):
        eve.put(MODEL, "state", content)
    for machine in (eve, ana, dan, bob, eve):
        synced(machine)
        with machine.open() as repo:
            found = contents(repo, MODEL, "state")
        assert sorted(found) == sorted(["two", theirs, "mine", "mine, too"])


def test_what_came_along_into_a_namespace_and_back_is_shared_once(
    ana: Machine, bob: Machine, eve: Machine
) -> None:
    shutil.copy(ana.repo_dir / ".swamp.yaml", eve.repo_dir / ".swamp.yaml")
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    assert eve("datastore", "namespace", "set", "team").status == 0
    eve.put(MODEL, "state", "theirs")
    synced(eve)
    assert ana("datastore", "namespace", "set", "team").status == 0
    assert ana("datastore", "namespace", "migrate", "--confirm").status == 0
    assert ana("datastore", "namespace", "unset", "--migrate", "--confirm").status == 0
    for machine in (ana, bob, ana):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one", "theirs"]
