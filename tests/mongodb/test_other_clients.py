"""Documents and caches as other clients leave them: taken as they are, and given back unharmed.

The documents are those of the format's description: paths with times of the client's own clock,
content in one document or in pieces, locks whose heartbeat moves only when they end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson.int64 import Int64

from swampstore.errors import LockTimeoutError
from swampstore.locks.record import global_key
from swampstore.stores import store_config
from swampstore.stores.mongodb_paths import stored_path
from tests.support.locking import held, new_lock, soon
from tests.support.mongodb import MongoRemote
from tests.support.sync_harness import Machine

ONE, TWO = "outputs/aws/ec2/run/one.yaml", "outputs/aws/ec2/run/two.yaml"
FIXTURES = Path(__file__).parent / "documents.json"
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


def stored() -> dict[str, list[dict[str, Any]]]:
    """Return the documents of the fixture, with dates and bytes as a database has them."""

    def real(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"$date"}:
            return datetime.fromisoformat(value["$date"])
        if isinstance(value, dict) and value.keys() == {"$text", "$times"}:
            return value["$text"].encode() * value["$times"]
        if isinstance(value, dict):
            return {name: real(one) for name, one in value.items()}
        return value

    document = json.loads(FIXTURES.read_text())
    return {kind: [real(one) for one in found] for kind, found in document.items()}


def test_documents_of_other_clients_are_pulled_and_stay_as_they_are(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, theirs = machine("ana"), stored()
    for kind, found in theirs.items():
        for one in found:
            mongodb_remote.collection(kind).insert_one(dict(one))
    ana.pull()
    live = {one["_id"]: one for one in theirs["paths"] if one["deletedAt"] is None}
    files = ana.files()
    assert {rel: hashlib.sha256(data).hexdigest() for rel, data in files.items()} == {
        rel: one["hash"] for rel, one in live.items()
    }
    ana.write("outputs/aws/ec2/run/ours.yaml", b"ours")
    ana.push()
    for kind in ("paths", "blobs"):
        for one in theirs[kind]:
            found = mongodb_remote.collection(kind).find_one({"_id": one["_id"]})
            assert {name: found[name] for name in one} == one, (kind, one["_id"])


def test_what_we_change_is_what_they_would_have_written(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, rel = machine("ana"), ONE
    mongodb_remote.plant("", {rel: b"written there"})
    ana.pull()
    ana.write(rel, b"changed here")
    ana.push()
    found = mongodb_remote.collection("paths").find_one({"_id": rel})
    assert found["hash"] == hashlib.sha256(b"changed here").hexdigest()
    assert (found["size"], found["deletedAt"]) == (12, None)
    ana.delete(rel)
    ana.push()
    found = mongodb_remote.collection("paths").find_one({"_id": rel})
    assert found["deletedAt"] == found["updatedAt"]
    blob = mongodb_remote.collection("blobs").find_one({"_id": found["hash"]})
    assert blob.keys() == {"_id", "size", "createdAt", "data"}


def test_a_lock_of_theirs_that_is_alive_is_waited_for_and_a_dead_one_is_taken_over(
    mongodb_remote: MongoRemote,
) -> None:
    """Their heartbeat moves `expiresAt` alone."""
    locks = mongodb_remote.collection("locks")
    now = datetime.now(UTC)
    lock = {"_id": "__global__", "holder": "they", "hostname": "there", "pid": 7}
    lock |= {"acquiredAtMs": int((now - timedelta(hours=1)).timestamp() * 1000), "ttlMs": 30_000}
    lock |= {"expiresAt": now + timedelta(seconds=30), "nonce": "theirs"}
    locks.insert_one(dict(lock))
    with mongodb_remote.open() as store:
        ours = new_lock(store, global_key(""))
        with pytest.raises(LockTimeoutError):
            ours.acquire(soon(0.5))
        [found] = locks.find({})
        assert (found["nonce"], found["acquiredAtMs"]) == ("theirs", lock["acquiredAtMs"])
        past = datetime.now(UTC) - timedelta(seconds=10)
        locks.update_one({"_id": "__global__"}, {"$set": {"expiresAt": past}})
        ours.acquire(soon())
        [found] = locks.find({})
        assert found["nonce"] != "theirs"
        assert found["expiresAt"] > datetime.now(UTC)
        ours.release()


@pytest.mark.parametrize("kept_as", [float, Int64], ids=["floating point", "64 bits"])
def test_a_lock_of_theirs_is_the_same_however_their_driver_keeps_its_numbers(
    kept_as: Callable[[int], Any], mongodb_remote: MongoRemote
) -> None:
    locks = mongodb_remote.collection("locks")
    now = datetime.now(UTC)
    lock = {"_id": "__global__", "holder": "they", "hostname": "there", "pid": kept_as(7)}
    lock |= {"acquiredAtMs": kept_as(int(now.timestamp() * 1000)), "ttlMs": kept_as(30_000)}
    locks.insert_one(lock | {"expiresAt": now + timedelta(seconds=30), "nonce": "theirs"})
    with mongodb_remote.open() as store:
        ours = new_lock(store, global_key(""))
        with pytest.raises(LockTimeoutError, match="they"):
            ours.acquire(soon(0.5))
        past = datetime.now(UTC) - timedelta(seconds=10)
        locks.update_one({"_id": "__global__"}, {"$set": {"expiresAt": past}})
        ours.acquire(soon())
        ours.release()


@pytest.mark.parametrize("kept_as", [float, Int64], ids=["floating point", "64 bits"])
def test_a_file_arrives_however_its_size_is_kept(
    kept_as: Callable[[int], Any], machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    """One of two gigabytes and more is kept with 64 bits by all."""
    mongodb_remote.plant("", {ONE: b"1"})
    mongodb_remote.collection("paths").update_one({"_id": ONE}, {"$set": {"size": kept_as(1)}})
    ana = machine("ana")
    assert not ana.pull().skipped
    assert ana.files() == {ONE: b"1"}


@pytest.mark.parametrize("size", [1.5, True, None])
def test_a_size_that_is_none_keeps_one_file_back_and_nobody_else(
    size: object, machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    mongodb_remote.plant("", {ONE: b"1", TWO: b"2"})
    mongodb_remote.collection("paths").update_one({"_id": ONE}, {"$set": {"size": size}})
    ana = machine("ana")
    assert [one.rel for one in ana.pull().skipped] == [ONE]
    ana.write("outputs/aws/ec2/run/three.yaml", b"3")
    ana.sync()
    ana.service.push(full=True)
    assert ana.files().keys() == {TWO, "outputs/aws/ec2/run/three.yaml"}


@pytest.mark.parametrize("size", [float("inf"), float("nan"), -1.0, 2.5, "1", None])
def test_a_document_whose_size_is_none_is_damaged(size: object) -> None:
    found = {"_id": ONE, "hash": "0" * 64, "updatedAt": datetime.now(UTC), "deletedAt": None}
    assert stored_path(found | {"size": size}).problem == f"its size is {size!r}"


def test_h37_a_lock_of_ours_that_is_alive_never_looks_older_than_its_ttl(
    mongodb_remote: MongoRemote,
) -> None:
    """What core judges by is `acquiredAtMs`; what takes a lock over is `expiresAt`."""
    locks = mongodb_remote.collection("locks")
    with mongodb_remote.open() as store, held(store) as lock:
        for _ in range(3):
            lock.verify()
            [found] = locks.find({})
            age = datetime.now(UTC).timestamp() * 1000 - found["acquiredAtMs"]
            assert age < found["ttlMs"]
            assert found["expiresAt"] > datetime.now(UTC)


def test_h69_a_path_whose_content_is_missing_does_not_hold_up_others_and_is_not_passed(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana = machine("ana")
    ana.pull()
    mongodb_remote.plant("", {ONE: b"1", TWO: b"2"})
    lost = mongodb_remote.collection("blobs").find_one_and_delete(
        {"_id": hashlib.sha256(b"1").hexdigest()}
    )
    for _ in range(2):
        ana.pull()
        assert ana.files() == {TWO: b"2"}
    mongodb_remote.collection("blobs").insert_one(lost)
    ana.pull()
    assert ana.files() == {ONE: b"1", TWO: b"2"}


@pytest.fixture
def an_hour_ago(mongodb_remote: MongoRemote) -> Callable[[], None]:
    """Make all that was committed an hour older."""

    def age() -> None:
        for one in mongodb_remote.collection("paths").find({}):
            before = {"updatedAt": one["updatedAt"] - timedelta(hours=1)}
            mongodb_remote.collection("paths").update_one({"_id": one["_id"]}, {"$set": before})

    return age


def theirs(remote: MongoRemote, rel: str, ago: timedelta, **change: Any) -> None:
    """Change a path as another client does whose clock says that this was some time ago."""
    moment = datetime.now(UTC) - ago
    change = {name: moment if one == "now" else one for name, one in change.items()}
    remote.collection("paths").update_one({"_id": rel}, {"$set": change | {"updatedAt": moment}})


def test_what_another_client_saved_before_a_commit_of_ours_is_still_looked_for(
    machine: NewMachine, mongodb_remote: MongoRemote, an_hour_ago: Callable[[], None]
) -> None:
    """A commit proves nothing of what others did since the last pull."""
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.push()
    an_hour_ago()
    ben.pull()
    mongodb_remote.plant("", {TWO: b"of another client"})
    theirs(mongodb_remote, TWO, timedelta(minutes=30))
    ben.write("outputs/aws/ec2/run/three.yaml", b"3")
    ben.push()
    ben.pull()
    assert ben.files().keys() == {ONE, TWO, "outputs/aws/ec2/run/three.yaml"}


@pytest.mark.parametrize("what", ["changed", "deleted"])
def test_a_file_of_ours_that_another_client_changed_before_a_commit_of_ours_is_looked_for(
    what: str, machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    """They leave the number of our commit where it is."""
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    if what == "changed":
        mongodb_remote.plant("", {ONE: b"changed there"})
    else:
        theirs(mongodb_remote, ONE, timedelta(0), deletedAt="now")
    ben.write(TWO, b"2")
    ben.push()
    ben.pull()
    assert ben.files() == {TWO: b"2"} | ({ONE: b"changed there"} if what == "changed" else {})


def test_a_clock_of_another_client_that_is_ahead_hides_nothing_of_the_others(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.push()
    mongodb_remote.plant("", {TWO: b"2"})
    theirs(mongodb_remote, TWO, -timedelta(days=1))
    ben.pull()
    mongodb_remote.plant("", {"outputs/aws/ec2/run/three.yaml": b"3"})
    ben.pull()
    assert ben.files() == {ONE: b"1", TWO: b"2", "outputs/aws/ec2/run/three.yaml": b"3"}


def test_a_clock_of_another_client_that_is_behind_hides_nothing_where_nobody_commits_afterwards(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    """What it dates before the last commit of ours is looked for, too."""
    ana, ben = machine("ana"), machine("ben")
    mongodb_remote.plant("", {"outputs/aws/ec2/run/three.yaml": b"3"})
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    mongodb_remote.plant("", {TWO: b"2"})
    theirs(mongodb_remote, TWO, timedelta(minutes=5))
    ben.pull()
    assert ben.read(TWO) == b"2"
    theirs(mongodb_remote, TWO, timedelta(minutes=4), deletedAt="now")
    ben.pull()
    assert not ben.path(TWO).exists()
    assert ben.pull().changes == 0


@pytest.mark.parametrize("what", ["changed", "deleted"])
def test_a_file_of_ours_that_a_clock_which_is_behind_dates_before_our_commit_is_looked_for(
    what: str, machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    """It keeps the number of our commit, and nobody commits afterwards."""
    ana, ben = machine("ana"), machine("ben")
    mongodb_remote.plant("", {TWO: b"so that they are known to write"})
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    if what == "changed":
        mongodb_remote.plant("", {ONE: b"changed there"})
        theirs(mongodb_remote, ONE, timedelta(minutes=5))
    else:
        theirs(mongodb_remote, ONE, timedelta(minutes=5), deletedAt="now")
    ben.pull()
    assert ben.files().get(ONE) == (b"changed there" if what == "changed" else None)


def test_h70_a_machine_deletes_what_it_has_itself_pushed_and_nothing_it_has_not_seen(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    """Two watermarks: up to where a pull has seen all, and what a push may delete."""
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.push()  # she has never pulled
    ana.delete(ONE)
    mongodb_remote.plant("", {TWO: b"of another client"})  # she has never seen it
    ana.push(full=True)
    ben.pull()
    assert ben.files() == {TWO: b"of another client"}
    paths = mongodb_remote.collection("paths")
    assert paths.find_one({"_id": ONE})["deletedAt"] is not None
    assert paths.find_one({"_id": TWO})["deletedAt"] is None


def test_h70_a_pull_of_a_part_does_not_move_the_watermark_of_the_whole(
    machine: NewMachine, mongodb_remote: MongoRemote
) -> None:
    from swampstore.layout import ModelRef

    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    ana.write(TWO, b"2")
    ana.write("outputs/gcp/vm/run/three.yaml", b"3")
    ana.push()
    ben.pull([ModelRef.parse("gcp/vm/i-1")])
    assert ben.path("outputs/gcp/vm/run/three.yaml").exists()
    assert not ben.path(TWO).exists()
    ben.push(full=True)  # what it has not seen is nothing that it deleted
    ben.pull()
    assert ben.files() == ana.files()
    assert mongodb_remote.collection("paths").count_documents({"deletedAt": None}) == 3


def test_h70_more_marks_than_are_kept_and_a_damaged_sidecar_lose_no_watermark(
    machine: NewMachine, tmp_path: Path
) -> None:
    ana, ben = machine("ana"), machine("ben")
    ana.write(ONE, b"1")
    ana.push()
    ben.pull()
    for number in range(10_100):
        ben.service.mark_dirty(f"outputs/aws/ec2/none/{number}.yaml")
    sidecar = tmp_path / "ben/.datastore-sync-state.json"
    sidecar.write_bytes(b'{"version":2,"bul')
    ana.write(TWO, b"2")
    ana.push()
    again = machine("ben")
    again.sync()
    assert again.files() == ana.files()
    ana.pull()
    assert len(ana.files()) == 2


@pytest.mark.parametrize(
    "sidecar",
    [
        {"version": 2, "bulkInvalidated": False, "lastPulledAt": "2026-11-01T00:00:00.000Z"}
        | {"lastReconciledAt": "2026-11-01T00:00:00.000Z", "lazyPullActive": False}
        | {"pushBootstrapped": True},
        {"version": 1, "dirtyPaths": [ONE]},
    ],
    ids=["version 2", "version 1"],
)
def test_a_cache_of_another_client_is_walked_and_nothing_of_it_is_lost(
    sidecar: dict[str, Any], machine: NewMachine, tmp_path: Path, mongodb_remote: MongoRemote
) -> None:
    """Their sidecar has the name of ours, and their journal is one path a line."""
    cache = tmp_path / "theirs"
    for rel, data in ((ONE, b"changed there"), (TWO, b"2")):
        (cache / rel).parent.mkdir(parents=True, exist_ok=True)
        (cache / rel).write_bytes(data)
    (cache / ".datastore-sync-state.json").write_text(json.dumps(sidecar, separators=(",", ":")))
    (cache / ".datastore-dirty.log").write_text(f"{ONE}\n")
    mongodb_remote.plant("", {TWO: b"2", "outputs/aws/ec2/run/new.yaml": b"3"})
    ours = machine("theirs")
    ours.sync()
    other = machine("other")
    other.pull()
    assert other.files() == ours.files()
    assert other.read(ONE) == b"changed there"
    assert len(other.files()) == 3
