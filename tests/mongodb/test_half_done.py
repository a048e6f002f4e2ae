"""What is left of a commit, an upload or a sweep that was stopped half-way never hides anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore.stores import store_config
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.mongodb_blobs import Blobs
from swampstore.stores.mongodb_objects import Objects
from swampstore.stores.mongodb_paths import Paths
from swampstore.stores.mongodb_place import GRACE
from swampstore.stores.mongodb_store import database_of
from swampstore.stores.paths import PathsCommit
from tests.support.mongodb import MongoRemote
from tests.support.sync_harness import Machine

ONE, TWO, THREE = (f"outputs/aws/ec2/run/{name}.yaml" for name in ("one", "two", "three"))
LARGE = "files/large"


class Stopped(BaseException):
    """The process is gone."""


NewMachine = Callable[[str], Machine]


@pytest.fixture
def machine(tmp_path: Path, mongodb_remote: MongoRemote) -> Iterator[NewMachine]:
    machines: list[Machine] = []

    def new(name: str) -> Machine:
        store = store_config(mongodb_remote.url, environ={}).open()
        machines.append(Machine(tmp_path / name, store))
        return machines[-1]

    yield new
    for one in machines:
        one.close()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Let a process end where it would do something, once."""

    def at(owner: type, name: str) -> None:
        def gone(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            raise Stopped

        monkeypatch.setattr(owner, name, gone)

    return at


CONTENT = bytes(range(250)) * 10


@pytest.fixture
def small_pieces() -> Iterator[None]:
    """Cut content into pieces of a thousand bytes, whatever else a test undoes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swampstore.stores.mongodb_blobs.INLINE", 1500)
        patch.setattr("swampstore.stores.mongodb_paths.INLINE", 1500)
        patch.setattr("swampstore.stores.mongodb_blobs.PIECE", 1000)
        patch.setattr("swampstore.sync.uploads.IN_MEMORY", 1500)
        yield


def test_a_commit_after_one_that_was_stopped_does_not_hide_it_from_its_own_machine(
    machine: NewMachine, stopped: Callable[..., Any]
) -> None:
    """Both would have had the same number, and whoever knows the one never asks for the other."""
    ana, ben, cy = machine("ana"), machine("ben"), machine("cy")
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    cy.pull()
    ana.write(TWO, b"2")
    stopped(Paths, "_write_meta")
    with pytest.raises(Stopped):
        ana.push()
    ben.write(THREE, b"3")
    ben.push()
    for one in (ben, cy):
        one.pull()
        assert one.files() == {ONE: b"1", TWO: b"2", THREE: b"3"}


def test_what_is_committed_again_after_others_were_first_gets_the_new_number(
    machine: NewMachine, mongodb_remote: MongoRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its paths have the number of the other commit, which others have read since."""
    ana, ben, cy = machine("ana"), machine("ben"), machine("cy")
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    cy.pull()
    ana.write(TWO, b"2")
    write = Paths._write_meta

    def late(self: Paths, commit: PathsCommit, session: Any) -> Any:
        monkeypatch.undo()
        # While ana is held up, ben commits with the same number, and cy reads that.
        mongodb_remote.collection("paths").update_one(
            {"_id": TWO}, {"$set": {"updatedAt": datetime(2020, 1, 1, tzinfo=UTC)}}
        )
        hidden = mongodb_remote.collection("paths").find_one_and_delete({"_id": TWO})
        mongodb_remote.collection("locks").delete_many({})
        ben.write(THREE, b"3")
        ben.push()
        cy.pull()
        mongodb_remote.collection("paths").insert_one(hidden)
        return write(self, commit, session)

    monkeypatch.setattr(Paths, "_write_meta", late)
    try:
        ana.push()
    except Exception:  # noqa: BLE001 - that her lock is gone may be told first
        ana.push()
    cy.pull()
    assert cy.files() == {ONE: b"1", TWO: b"2", THREE: b"3"}


def test_a_change_in_the_same_millisecond_is_not_overlooked(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"before")
    ana.push()
    ben.pull()
    paths = mongodb_remote.collection("paths")
    seen = paths.find_one({"_id": ONE})["updatedAt"]
    ana.write(ONE, b"of ana")
    prepared = ana.service.prepare_push()
    ben.write(ONE, b"of ben")
    push = Paths.commit

    def after_ben(self: Paths, commit: PathsCommit) -> Any:
        Paths.commit = push  # type: ignore[method-assign]
        mongodb_remote.collection("locks").delete_many({})
        ben.push()
        paths.update_one({"_id": ONE}, {"$set": {"updatedAt": seen}})
        return push(self, commit)

    Paths.commit = after_ben  # type: ignore[method-assign]
    try:
        ana.service.commit_push(prepared)
    except Exception:  # noqa: BLE001 - that her lock is gone may be told first
        ana.sync()
    finally:
        Paths.commit = push  # type: ignore[method-assign]
    for one in (ana, ben):
        one.pull(full=True)
    assert {b"of ana", b"of ben"} <= set(ana.files().values())


def test_who_renames_and_is_stopped_leaves_both_names_and_never_none(
    machine: NewMachine, mongodb_remote: MongoRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of one, stopped after each: the file is always there under some name."""
    monkeypatch.setattr("swampstore.stores.mongodb_paths.BATCH", 1)
    ana = machine("ana")
    ana.write(ONE, b"content")
    ana.push()
    ana.write(TWO, b"content")
    ana.delete(ONE)
    write = Paths._write
    seen = []

    def looked(self: Paths, *args: Any) -> Any:
        done = write(self, *args)
        live = mongodb_remote.collection("paths").find({"deletedAt": None})
        seen.append({one["_id"] for one in live})
        return done

    monkeypatch.setattr(Paths, "_write", looked)
    ana.push()
    assert seen == [{ONE, TWO}, {TWO}]


def test_a_note_that_its_push_could_not_remove_any_more_stands_in_nobodys_way(
    machine: NewMachine, mongodb_remote: MongoRemote, stopped: Callable[..., Any]
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"of ana")
    stopped(Objects, "unstage")
    with pytest.raises(Stopped):
        ana.push()
    assert mongodb_remote.collection("objects").count_documents({"isStaged": True}) == 1
    mongodb_remote.plant("", {ONE: b"of another client"})
    ben.pull()
    store = mongodb_remote.open()
    assert store.get(ONE).data == b"of another client"
    assert [info.size for info in store.list("outputs/")] == [17]
    ben.write(ONE, b"of ben")
    assert not ben.push().conflicts
    assert store.get(ONE).data == b"of ben"
    store.close()


@pytest.mark.usefixtures("small_pieces")
def test_content_that_lost_a_piece_is_missing_and_whoever_has_it_brings_it_back(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(LARGE, CONTENT)
    ana.push()
    blobs = mongodb_remote.collection("blobs")
    blobs.delete_one({"_id": f"{hashlib.sha256(CONTENT).hexdigest()}:1"})
    with mongodb_remote.open() as store:
        assert LARGE not in {info.key for info in store.list("files/")}
    ben.pull()
    assert not ben.path(LARGE).exists()
    ana.push(full=True)
    ben.pull()
    assert ben.read(LARGE) == CONTENT


@pytest.mark.usefixtures("small_pieces")
def test_content_whose_piece_vanishes_before_the_commit_is_uploaded_again(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(LARGE, CONTENT)
    prepared = ana.service.prepare_push()
    mongodb_remote.collection("blobs").delete_one({"_id": {"$regex": ":0$"}})
    ana.service.commit_push(prepared)
    ben.pull()
    assert ben.read(LARGE) == CONTENT


@pytest.mark.usefixtures("small_pieces")
def test_h70_pieces_of_an_upload_that_takes_longer_than_the_grace_are_not_swept_from_under_it(
    machine: NewMachine, mongodb_remote: MongoRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(LARGE, CONTENT)
    insert = Blobs._insert
    blobs = mongodb_remote.collection("blobs")

    def slow(self: Blobs, name: str, fields: dict[str, Any]) -> None:
        insert(self, name, fields)
        if name.endswith(":0"):
            old = datetime.now(UTC) - 2 * GRACE
            blobs.update_many({}, {"$set": {"createdAt": old}})
            database = database_of(mongodb_remote.open())
            assert database is not None
            with database:
                monkeypatch.undo()
                assert database.sweep("", remove=True).removed == 1

    monkeypatch.setattr(Blobs, "_insert", slow)
    ana.push()
    ben.pull()
    assert ben.read(LARGE) == CONTENT


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("rel", [ONE, LARGE])
def test_content_that_is_not_what_its_name_says_can_be_put_again(
    rel: str, machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, ben = machine("ana"), machine("ben")
    good = CONTENT if rel == LARGE else b"good"
    ana.write(rel, good)
    ana.push()
    sha256 = hashlib.sha256(good).hexdigest()
    name = f"{sha256}:1" if rel == LARGE else sha256
    mongodb_remote.collection("blobs").update_one({"_id": name}, {"$set": {"data": b"bad"}})
    with mongodb_remote.open() as store:
        store.put_if_match(rel, good, sha256)
    ben.pull()
    assert ben.read(rel) == good


@pytest.mark.parametrize("kind", ["paths", "blobs", "locks", "objects", "more", "contents"])
def test_a_dropped_collection_costs_nobody_a_file(
    kind: str, machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.write("notes.txt", b"out of the sight of others")
    ana.write("audit/2026-11-17.jsonl", b"{}")
    ana.push()
    ben.pull()
    before = ana.files()
    mongodb_remote.collection(kind).drop()
    for one in (ben, ana):
        one.pull()
        assert one.files() == before
    for one in (ana, ben):
        one.pull(full=True)
        one.push(full=True)
        assert one.files() == before
    cy = machine("cy")
    cy.pull()
    assert cy.files() == before


def test_paths_out_of_the_sight_of_others_alone_are_no_collection_that_was_lost(
    machine: NewMachine,
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write("notes.txt", b"1")
    ana.push()
    ben.pull()
    ana.delete("notes.txt")
    ana.push()
    ana.write("other.txt", b"2")
    ana.push()
    for _ in range(2):
        report = ben.pull()
        assert not report.skipped
        assert ben.push().changes == 0
    assert ben.files() == ana.files() == {"other.txt": b"2"}


def test_a_lock_that_is_lost_in_the_middle_of_a_push_loses_neither_change(
    machine: NewMachine, mongodb_remote: MongoRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"of ana")
    prepared = ana.service.prepare_push()
    ben.write(ONE, b"of ben")
    commit = Paths.commit

    def paused(self: Paths, work: PathsCommit) -> Any:
        monkeypatch.undo()
        mongodb_remote.collection("locks").delete_many({})
        ben.push()
        return commit(self, work)

    monkeypatch.setattr(Paths, "commit", paused)
    ana.service.commit_push(prepared)
    ben.sync()
    ana.sync()
    assert ben.files() == ana.files()
    assert {b"of ana", b"of ben"} <= set(ben.files().values())


def test_the_time_of_this_machine_is_nowhere_in_the_database(
    tmp_path: Path, mongodb_remote: MongoRemote
) -> None:
    """Whoever has a wrong clock neither hides his changes nor misses those of others."""
    machines = [
        Machine(
            tmp_path / str(days),
            mongodb_remote.open(),
            clock=lambda days=days: datetime.now(UTC) + timedelta(days=days),  # type: ignore[misc]
        )
        for days in (-400, 400)
    ]
    slow, fast = machines
    for number, one in enumerate((slow, fast, slow, fast)):
        one.write(f"outputs/aws/ec2/run/{number}.yaml", b"%d" % number)
        one.push()
        for other in machines:
            other.pull()
    assert slow.files() == fast.files()
    assert len(slow.files()) == 4
    for found in mongodb_remote.collection("paths").find({}):
        assert abs(found["updatedAt"] - datetime.now(UTC)) < timedelta(minutes=1)
    for one in machines:
        one.close()


def test_a_server_that_stops_answering_is_an_error_that_says_so(
    machine: NewMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymongo.errors import AutoReconnect

    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")

    def lost(*args: Any, **options: Any) -> Any:
        raise AutoReconnect("connection closed")

    with monkeypatch.context() as patched:
        patched.setattr("pymongo.synchronous.collection.Collection.bulk_write", lost)
        with pytest.raises(StoreUnreachableError, match="connection closed"):
            ana.push()
    ana.push()
    ben.pull()
    assert ben.files() == ana.files()
