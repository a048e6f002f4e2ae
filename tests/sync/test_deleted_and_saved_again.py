"""A deletion stays, also if the same name is saved again before anybody heard of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore.files import Reception
from swampstore.index.remote_index import RemoteIndex
from swampstore.layout import LANDING
from swampstore.sync.downloads import Staging
from swampstore.sync.transfer import Transfer
from tests.support.broken_store import Killed
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"
HOME = "data/aws/ec2/i-1/state"


def synced(machine: Machine, *options: str) -> dict[str, Any]:
    outcome = machine("sync", *options, "--json")
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def versions(machine: Machine) -> dict[int, str]:
    with machine.open() as repo:
        return {found.version: found.text() for found in repo.versions(MODEL, "state")}


def delete(machine: Machine, version: int | None = None) -> None:
    """Delete without a session, as somebody without a network does."""
    with machine.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=version)


def save(machine: Machine, content: str) -> None:
    """Save without a session."""
    with machine.open() as repo:
        repo.artifacts.save(MODEL, "state", content)


@pytest.fixture
def both(ana: Machine, bob: Machine, bucket: Path) -> tuple[Machine, Machine]:
    """Two machines that share three versions; ana has their content only where she read it."""
    ana.use(bucket, hydrationStrategy=None)
    for content in ("one", "two", "three"):
        bob.put(MODEL, "state", content)
    synced(bob)
    synced(ana)
    assert ana.get(MODEL, "state", "--version", "2") == "two"
    return ana, bob


def test_a_name_that_was_deleted_and_saved_again_has_the_new_content_alone(
    both: tuple[Machine, Machine],
) -> None:
    ana, bob = both
    delete(ana)
    ana.put(MODEL, "state", "new")
    done = synced(ana)
    assert [one["outcome"] for one in done["conflicts"]] == [
        "it was deleted here and saved again, under the next free number: 1 is 4 now"
    ]
    synced(bob)
    synced(ana, "--full")
    assert versions(ana) == versions(bob) == {4: "new"}
    assert synced(ana)["conflicts"] == synced(bob)["skipped"] == []


def test_the_highest_version_stays_deleted_when_its_number_is_used_again(
    both: tuple[Machine, Machine],
) -> None:
    ana, bob = both
    delete(ana, 3)
    for content in ("new", "newer"):
        ana.put(MODEL, "state", content)
    synced(ana)
    synced(bob)
    assert versions(ana) == versions(bob) == {1: "one", 2: "two", 4: "new", 5: "newer"}


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("number", [1, None], ids=["version", "name"])
@pytest.mark.parametrize("content", ["deleted", "new"])
def test_a_number_that_is_used_again_brings_nothing_back_though_the_index_was_lost(
    ana: Machine, bob: Machine, bucket: Path, content: str, number: int | None, is_made_anew: bool
) -> None:
    bob.put(MODEL, "state", "deleted")
    synced(bob)
    shutil.rmtree(bucket / "_index")
    (bucket / ".datastore-index.json").unlink()
    delete(bob, number)
    save(bob, content)
    if is_made_anew:
        ana.put(MODEL, "other", "makes the index")
    for machine in (bob, ana, bob):
        synced(machine)
    assert versions(ana) == versions(bob) == {2: content}
    assert [path.read_text() for path in (bucket / HOME).rglob("raw")] == [content]


def test_what_another_machine_saved_meanwhile_stays(both: tuple[Machine, Machine]) -> None:
    ana, bob = both
    delete(ana)
    ana.put(MODEL, "state", "new")
    bob.put(MODEL, "state", "of bob")
    synced(bob)
    synced(ana)
    synced(bob)
    synced(ana)
    assert versions(ana) == versions(bob) == {4: "of bob", 5: "new"}


def test_what_another_machine_deleted_and_saved_again_as_well_stays(
    both: tuple[Machine, Machine],
) -> None:
    ana, bob = both
    for machine, content in ((bob, "of bob"), (ana, "of ana")):
        delete(machine)
        machine.put(MODEL, "state", content)
    for machine in (bob, ana, bob, ana):
        synced(machine)
    assert versions(ana) == versions(bob) == {4: "of bob", 5: "of ana"}


def test_a_version_that_another_machine_changed_meanwhile_comes_back_as_a_whole(
    ana: Machine, bob: Machine
) -> None:
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "line\n", streaming=True)
    synced(bob)
    synced(ana)
    delete(ana)
    ana.put(MODEL, "state", "new")
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", "more\n")
    for machine in (bob, ana, bob, ana):
        synced(machine)
    assert versions(ana) == versions(bob) == {1: "line\nmore\n", 2: "new"}


def test_what_others_append_to_a_version_stays_though_another_one_of_its_name_was_deleted_here(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, "state", "deleted")
    for machine in (ana, bob):
        synced(machine)
    delete(ana)
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "line\n", streaming=True)
    synced(bob)
    with ana.open() as repo:
        repo.sync.pull()
    for machine, line in ((bob, "of bob\n"), (ana, "of ana\n")):
        with machine.open() as repo:
            repo.artifacts.append(MODEL, "state", line)
    for machine in (bob, ana, ana, bob):
        synced(machine)
    assert versions(ana) == versions(bob) == {2: "line\nof bob\n", 3: "line\nof ana\n"}


def test_a_push_that_dies_after_it_gave_new_numbers_forgets_no_deletion(
    both: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, bob = both
    delete(ana)
    ana.put(MODEL, "state", "new")

    def die(*_arguments: object, **_options: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, ana.open() as repo, pytest.raises(Killed):
        patch.setattr(RemoteIndex, "commit", die)
        repo.sync.push()
    synced(ana)
    synced(bob)
    assert versions(ana) == versions(bob) == {4: "new"}


def test_saving_where_somebody_removed_a_part_of_the_cache_deletes_nothing(
    both: tuple[Machine, Machine],
) -> None:
    ana, bob = both
    shutil.rmtree(ana.cache / HOME)
    ana.put(MODEL, "state", "new")
    synced(ana)
    synced(ana, "--full")
    synced(bob)
    assert versions(ana) == versions(bob) == {1: "one", 2: "two", 3: "three", 4: "new"}


@pytest.fixture
def one_each(ana: Machine, bob: Machine) -> tuple[Machine, Machine]:
    """Two machines that share one version, with its content."""
    bob.put(MODEL, "state", "same")
    synced(bob)
    synced(ana)
    assert ana.get(MODEL, "state") == "same"
    return ana, bob


def test_a_deletion_does_not_concern_equal_content_that_others_saved_since(
    one_each: tuple[Machine, Machine],
) -> None:
    ana, bob = one_each
    delete(bob)
    synced(bob)
    with bob.open() as repo:
        again = repo.artifacts.save(MODEL, "state", "same")
    assert again.version == 1
    delete(ana)
    for machine in (bob, ana, bob, ana):
        synced(machine)
    assert versions(bob) == {1: "same"}
    assert versions(ana) == {1: "same"}


def test_equal_content_that_was_saved_here_since_does_not_go_with_what_others_deleted(
    one_each: tuple[Machine, Machine],
) -> None:
    ana, bob = one_each
    delete(ana)
    delete(bob)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "same")
    for machine in (ana, bob, ana):
        synced(machine)
    assert list(versions(ana).values()) == ["same"]
    assert versions(ana) == versions(bob)


def test_deleting_a_version_takes_no_equal_content_of_one_that_others_saved_under_its_number(
    ana: Machine, bob: Machine
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "same")
    bob.put(MODEL, "state", "same")
    synced(bob)
    with ana.open() as repo:
        repo.sync.pull()
    delete(ana)
    for machine in (ana, bob, ana):
        synced(machine)
    assert versions(ana) == versions(bob) == {1: "same"}


def test_what_others_append_to_does_not_grow_a_version_of_ours_that_was_equal(
    ana: Machine, bob: Machine
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "same\n")
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "same\n", streaming=True)
    synced(bob)
    with ana.open() as repo:
        repo.sync.pull()
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", "more\n")
    for machine in (bob, ana, bob, ana):
        synced(machine)
    assert versions(ana) == versions(bob) == {1: "same\nmore\n", 2: "same\n"}


def died(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture(params=["full", None], ids=["full", "lazy"])
def fetching(request: pytest.FixtureRequest, ana: Machine, bob: Machine, bucket: Path) -> Machine:
    """A machine that is about to fetch a version of somebody else."""
    bob.put(MODEL, "other", "x")
    synced(bob)
    ana.use(bucket, hydrationStrategy=request.param)
    synced(ana)
    bob.put(MODEL, "state", "theirs")
    synced(bob)
    return ana


def killed_at(machine: Machine, owner: object, name: str, after: Callable[..., object]) -> None:
    """Pull, and be killed: nothing tidies up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "__exit__", died)
        patch.setattr(owner, name, lambda *args: died(after(*args)))
        with machine.open() as repo, pytest.raises(Killed):
            repo.sync.pull()


@pytest.mark.parametrize("version", [1, None])
def test_what_was_deleted_after_a_pull_that_was_killed_before_it_noted_it_stays_deleted(
    fetching: Machine, bob: Machine, version: int | None
) -> None:
    killed_at(fetching, Transfer, "install", Transfer.install)
    assert versions_of_metadata(fetching) == [1]
    delete(fetching, version)
    synced(fetching)
    synced(bob)
    assert versions(fetching) == versions(bob) == {}


@pytest.mark.parametrize("version", [1, None])
def test_what_was_deleted_after_a_killed_pull_and_saved_again_has_the_new_content_alone(
    fetching: Machine, bob: Machine, version: int | None
) -> None:
    killed_at(fetching, Transfer, "install", Transfer.install)
    delete(fetching, version)
    fetching.put(MODEL, "state", "ours")
    synced(fetching)
    synced(bob)
    synced(fetching)
    assert versions(fetching) == versions(bob) == {2: "ours"}


@pytest.mark.parametrize("version", [1, None])
def test_what_a_killed_pull_never_installed_is_not_deleted_with_what_had_its_number(
    fetching: Machine, bob: Machine, version: int | None
) -> None:
    killed_at(fetching, Transfer, "install", lambda *_: None)
    assert versions_of_metadata(fetching) == []
    fetching.put(MODEL, "state", "ours")
    delete(fetching, version)
    synced(fetching)
    synced(bob)
    assert versions(fetching) == versions(bob) == {1: "theirs"}


def test_a_version_that_a_killed_pull_had_not_put_in_its_place_yet_is_not_deleted(
    ana: Machine, bob: Machine
) -> None:
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "one\n", streaming=True)
    synced(bob)
    synced(ana)
    delete(ana)
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", "more\n")
    synced(bob)

    def adopt(reception: Reception, rel: str, staged: str) -> str:
        if rel.endswith("/metadata.yaml"):
            raise Killed
        return real(reception, rel, staged)

    real = Reception.adopt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reception, "adopt", adopt)
        patch.setattr(Staging, "__exit__", died)
        patch.setattr("swampstore.sync.arrivals.tidy", lambda *_: None)
        with ana.open() as repo, pytest.raises(Killed):
            repo.sync.pull()
    assert list(ana.cache.rglob(LANDING))
    for machine in (ana, bob, ana):
        synced(machine)
    assert versions(ana) == versions(bob) == {1: "one\nmore\n"}


def versions_of_metadata(machine: Machine) -> list[int]:
    with machine.open() as repo:
        return [found.version for found in repo.versions(MODEL, "state")]


def test_content_that_grew_beyond_what_its_metadata_says_takes_nobodys_place(
    ana: Machine, bob: Machine
) -> None:
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "one\n", streaming=True)
    synced(bob)
    synced(ana)
    with (ana.cache / HOME / "1/raw").open("a") as file:
        file.write("begun and nev")
    (ana.cache / "_catalog.db-base").unlink()
    ana("sync")
    synced(bob)
    assert versions(bob)[1] == "one\n"


def test_a_number_that_is_used_again_brings_nothing_back_beside_what_a_killed_push_had_sent(
    ana: Machine,
    bob: Machine,
    bucket: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ana.put(MODEL, "state", "old")
    for machine in (ana, bob):
        synced(machine)
    delete(bob)
    synced(bob)
    eve = Machine(tmp_path / "eve", capsysbinary, monkeypatch)
    eve.use(bucket)
    save(eve, "new")
    synced(eve)

    def be_killed(*_: object, **__: object) -> None:
        raise Killed

    save(ana, "sent")
    with ana.open() as repo, monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RemoteIndex, "commit", be_killed)
        repo.sync.push()
    delete(ana, 2)
    for machine in (ana, bob, eve, ana):
        synced(machine)
    assert versions(ana) == versions(bob) == versions(eve) == {1: "new"}
    assert sorted(path.parent.name for path in (bucket / HOME).rglob("raw")) == ["1"]
