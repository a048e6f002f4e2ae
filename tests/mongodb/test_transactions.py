"""Commits as transactions: every branch, on a stand-in for a replica set that proves nothing.

See `tests.support.mongodb_proxy`. What two transactions at once do to each other, and how an
election really goes, only MongoDB can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swampstore.stores import mongodb_paths, store_config
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.probe import examine
from swampstore.stores.retry import RetryingStore, RetryPolicy
from tests.support.command_line import run_process
from tests.support.mongodb import MongoRemote
from tests.support.mongodb_proxy import (
    NO_TRANSACTION,
    NOT_PRIMARY,
    RETRYABLE,
    SET,
    STEPPED_DOWN,
    TRANSIENT,
    UNKNOWN,
    WRITE_CONFLICT,
    ReplicaSet,
    replica_set,
)
from tests.support.sync_harness import Machine

RELS = [f"outputs/aws/ec2/run/{number}.yaml" for number in range(3)]
SHUTDOWN = (91, "ShutdownInProgress")
CONCERN = (64, "WriteConcernFailed")


@pytest.fixture
def members(mongodb_server: str) -> Iterator[ReplicaSet]:
    with replica_set(mongodb_server) as found:
        yield found


class Fleet:
    def __init__(self, directory: Path, members: ReplicaSet, remote: MongoRemote) -> None:
        self.members = members
        self.remote = remote
        self.url = (
            f"mongodb://{members.address}/tests?tenantId={remote.tenant}&replicaSet={SET}"
            "&requestTimeoutMs=4000"
        )
        self._directory = directory
        self._open: list[Machine] = []

    def machine(self, name: str, attempts: int = 3) -> Machine:
        policy = RetryPolicy(attempts, first_delay=0.01)
        store = RetryingStore(store_config(self.url, environ={}).open(), policy)
        self._open.append(Machine(self._directory / name, store))
        return self._open[-1]

    def close(self) -> None:
        for one in self._open:
            one.close()

    def numbers(self) -> set[int]:
        """Return the numbers of the commits that the paths have."""
        return {one["commitSeq"] for one in self.remote.collection("paths").find({})}


@pytest.fixture
def fleet(tmp_path: Path, members: ReplicaSet, mongodb_remote: MongoRemote) -> Iterator[Fleet]:
    found = Fleet(tmp_path, members, mongodb_remote)
    yield found
    found.close()


def in_transaction(command: dict[str, Any]) -> bool:
    return command.get("autocommit") is False


def of_paths(command: dict[str, Any]) -> bool:
    return in_transaction(command) and str(command.get("update")).endswith("_paths")


Strike = Callable[[ReplicaSet], Any]
STRIKES: dict[str, Strike] = {
    "a conflict at meta": lambda one: one.fail(
        "update", WRITE_CONFLICT, labels=(TRANSIENT,), where=in_transaction
    ),
    "conflicts at the paths": lambda one: one.fail(
        "update", WRITE_CONFLICT, labels=(TRANSIENT,), where=of_paths, times=3
    ),
    "a member that steps down": lambda one: one.fail(
        "update", STEPPED_DOWN, labels=(TRANSIENT,), where=of_paths
    ),
    "no primary within the transaction": lambda one: one.fail(
        "update", NOT_PRIMARY, labels=(TRANSIENT,), where=of_paths
    ),
    "a connection that is cut within": lambda one: one.fail("update", where=of_paths),
    "an answer that is lost within": lambda one: one.fail("update", where=of_paths, is_done=True),
    "a commit that is not made": lambda one: one.fail(
        "commitTransaction", NO_TRANSACTION, labels=(TRANSIENT,)
    ),
    "a commit that is asked for again": lambda one: one.fail(
        "commitTransaction", SHUTDOWN, labels=(RETRYABLE, UNKNOWN)
    ),
    "a commit that is cut before": lambda one: one.fail("commitTransaction"),
    "a commit whose answer is lost": lambda one: one.fail("commitTransaction", is_done=True),
    "a commit whose answers are lost": lambda one: one.fail(
        "commitTransaction", is_done=True, times=2
    ),
    "a majority that does not answer": lambda one: one.fail(
        "commitTransaction", CONCERN, labels=(UNKNOWN,), is_concern=True, times=2
    ),
    "content without a primary": lambda one: one.fail(
        "update", NOT_PRIMARY, labels=(RETRYABLE,), where=lambda found: not in_transaction(found)
    ),
    "an election": lambda one: one.step_down(1.0),
}


@pytest.mark.parametrize("strike", STRIKES.values(), ids=STRIKES.keys())
def test_a_commit_that_something_happens_to_is_made_once_and_as_one(
    strike: Strike, fleet: Fleet
) -> None:
    ana, ben = fleet.machine("ana"), fleet.machine("ben")
    for rel in RELS:
        ana.write(rel, b"before")
    ana.push()
    ben.pull()
    assert fleet.numbers() == {1}
    ana.delete(RELS[0])
    ana.write(RELS[1], b"after")
    ana.write("outputs/aws/ec2/run/new.yaml", b"new")
    strike(fleet.members)
    ana.push()
    assert all(not one.times for one in fleet.members.faults)
    assert fleet.numbers() == {1, 2}
    ben.pull()
    assert ben.files() == ana.files()
    ana.write(RELS[2], b"once more")
    ana.push()
    ben.pull()
    assert ben.files() == ana.files()


def test_a_commit_that_nobody_hears_the_end_of_is_an_error_and_not_made_twice(
    fleet: Fleet,
) -> None:
    ana, ben = fleet.machine("ana"), fleet.machine("ben")
    ana.write(RELS[0], b"before")
    ana.push()
    ana.write(RELS[0], b"after")
    lost = fleet.members.fail("commitTransaction", is_done=True, times=100)
    with pytest.raises(StoreUnreachableError, match="does not answer"):
        ana.push()
    lost.times = 0
    ben.pull()
    assert ben.read(RELS[0]) == b"after"
    ben.write(RELS[0], b"of ben")
    ben.push()
    ana.sync()  # she cannot know that his is a change of hers
    ben.pull()
    assert ana.files() == ben.files()
    assert ana.read(RELS[0]) == b"of ben"
    assert set(ana.files().values()) == {b"of ben", b"after"}


def test_conflicts_that_do_not_end_are_an_error_and_nothing_is_half_done(fleet: Fleet) -> None:
    ana = fleet.machine("ana")
    for rel in RELS:
        ana.write(rel, b"before")
    ana.push()
    for rel in RELS:
        ana.write(rel, b"after")
    ever = fleet.members.fail(
        "update", WRITE_CONFLICT, labels=(TRANSIENT,), where=of_paths, times=1000
    )
    with pytest.raises(StoreUnreachableError, match="WriteConflict"):
        ana.push()
    assert fleet.numbers() == {1}
    ever.times = 0
    ana.push()
    assert fleet.numbers() == {2}


def test_what_others_changed_meanwhile_undoes_the_whole_transaction(fleet: Fleet) -> None:
    ana, ben = fleet.machine("ana"), fleet.machine("ben")
    for rel in RELS:
        ana.write(rel, b"before")
    ana.push()
    ben.pull()
    for rel in RELS:
        ana.write(rel, b"of ana")
    prepared = ana.service.prepare_push()
    fleet.remote.plant("", {RELS[1]: b"of another client"})
    ana.service.commit_push(prepared)
    assert fleet.members.log["abortTransaction"] >= 1
    ben.pull(full=True)
    ana.pull(full=True)
    contents = set(ben.files().values())
    assert {b"of ana", b"of another client"} <= contents
    assert ben.files() == ana.files()


def test_a_machine_that_is_cut_off_at_any_command_of_a_push_loses_nothing(fleet: Fleet) -> None:
    ben = fleet.machine("ben")
    with fleet.machine("ana") as ana:
        for rel in RELS:
            ana.write(rel, b"before")
        ana.push()
    for number in range(60):
        ana = fleet.machine("ana", attempts=1)
        ana.write(RELS[0], b"%d" % number)
        ana.write(f"outputs/aws/ec2/new/{number}.yaml", b"%d" % number)
        ana.delete(RELS[1]) if number % 2 == 0 else ana.write(RELS[1], b"%d" % number)
        fault = fleet.members.fail("update", skip=number, times=1000)
        try:
            ana.push()
        except StoreUnreachableError:
            is_through = False
        else:
            is_through = fault.times == 1000
        fault.times = 0
        ben.pull()
        for rel in RELS[:1]:  # either all of it or nothing
            is_new = ben.read(rel) == b"%d" % number
            assert is_new == ben.path(f"outputs/aws/ec2/new/{number}.yaml").exists(), number
        ana.push()
        ben.pull()
        assert ben.files() == ana.files(), number
        if is_through:
            return
        ana.close()
        fleet.members.faults.clear()
    pytest.fail("a push never came through")


def test_a_commit_too_large_for_a_transaction_is_made_in_order(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongodb_paths, "LARGEST_TRANSACTION", 2)
    ana, ben = fleet.machine("ana"), fleet.machine("ben")
    for rel in RELS:
        ana.write(rel, b"many")
    ana.push()
    assert not fleet.members.log["commitTransaction"]
    ben.pull()
    assert ben.files() == ana.files()


def test_a_secondary_that_is_named_directly_is_refused_and_a_primary_is_not(fleet: Fleet) -> None:
    ana = fleet.machine("ana")
    ana.write(RELS[0], b"1")
    ana.push()
    url = f"{fleet.url}&directConnection=true".replace(f"&replicaSet={SET}", "")
    with store_config(url, environ={}).open() as store:
        fleet.members.step_down(1000)
        with pytest.raises(StoreUnreachableError, match="secondary") as told:
            store.get(RELS[0])
        assert "directConnection" in (told.value.hint or "")
        assert not examine(store).healthy
        fleet.members.step_down(0)
        assert store.get(RELS[0]).data == b"1"


def test_a_password_that_is_not_accepted_is_told_of_and_shown_nowhere(
    fleet: Fleet, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is in the file `.env` of the repository."""
    monkeypatch.delenv("DB_SECRET", raising=False)
    (repo_dir / ".env").write_text("DB_SECRET=hush-hush\n")
    url = f"{fleet.url}&passwordEnv=DB_SECRET".replace("mongodb://", "mongodb://swamp@")
    setup = run_process("datastore", "setup", url, "--json", repo=repo_dir)
    assert setup.error["code"] == "store_credentials"
    assert "passwordEnv" in setup.error["hint"]
    assert "does not accept" in setup.error["error"]
    marker = repo_dir / ".swamp.yaml"
    assert "mongodb" not in marker.read_text()
    settings = f"datastore:\n  type: mongodb\n  url: {url}\n"
    marker.write_text(marker.read_text() + settings)
    doctor = run_process("doctor", "--json", repo=repo_dir)
    assert doctor.status != 0
    assert "does not accept the credentials" in doctor.out + doctor.err
    assert b"hush-hush" not in setup.stdout + setup.stderr + doctor.stdout + doctor.stderr


def test_a_set_of_another_name_is_told_of(fleet: Fleet) -> None:
    url = fleet.url.replace(f"replicaSet={SET}", "replicaSet=other").replace("4000", "1000")
    nobody = pytest.raises(StoreUnreachableError)
    with store_config(url, environ={}).open() as store, nobody as told:
        store.get("a")
    assert "replicaSet" in (told.value.hint or "")
