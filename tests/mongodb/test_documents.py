"""Documents as other clients write them: read, and written back unharmed."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore.errors import NewerFormatError
from swampstore.layout import ModelRef
from swampstore.stores.mongodb_store import database_of
from swampstore.stores.protocol import level
from tests.support.mongodb import MongoRemote
from tests.support.sync_harness import Machine

MODEL = ModelRef.parse("aws/ec2/vpc/i-1")
RAW = "outputs/aws/ec2/run.yaml"
LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def paths(mongodb_remote: MongoRemote) -> Any:
    return mongodb_remote.collection("paths")


@pytest.fixture
def blobs(mongodb_remote: MongoRemote) -> Any:
    return mongodb_remote.collection("blobs")


class Fleet:
    """Machines that share one tenant."""

    def __init__(self, directory: Path, remote: MongoRemote) -> None:
        self.directory = directory
        self.remote = remote
        self.machines: list[Machine] = []

    def machine(self, namespace: str = "") -> Machine:
        place = self.directory / f"machine-{len(self.machines)}" / "cache"
        self.machines.append(Machine(place, self.remote.open(), namespace))
        return self.machines[-1]


@pytest.fixture
def fleet(tmp_path: Path, mongodb_remote: MongoRemote) -> Any:
    fleet = Fleet(tmp_path, mongodb_remote)
    yield fleet
    for machine in fleet.machines:
        machine.close()


def write(machine: Machine, rel: str, content: bytes) -> None:
    machine.service.mark_dirty(rel)
    path = Path(machine.service._context.names.local(rel))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def read(machine: Machine, rel: str) -> bytes | None:
    path = Path(machine.service._context.names.local(rel))
    return path.read_bytes() if path.exists() else None


def test_what_another_client_wrote_is_pulled(fleet: Fleet, paths: Any) -> None:
    fleet.remote.plant("", {RAW: b"theirs"})
    machine = fleet.machine()
    machine.service.pull()
    assert read(machine, RAW) == b"theirs"
    assert paths.count_documents({}) == 1


def test_a_document_keeps_what_nobody_knows(fleet: Fleet, paths: Any) -> None:
    fleet.remote.plant("", {RAW: b"theirs"})
    paths.update_one({"_id": RAW}, {"$set": {"origin": "elsewhere", "labels": ["a"]}})
    machine = fleet.machine()
    machine.service.pull()
    write(machine, RAW, b"ours")
    machine.service.push()
    found = paths.find_one({"_id": RAW})
    assert found["hash"] == sha256(b"ours")
    assert found["size"] == 4
    assert found["deletedAt"] is None
    assert isinstance(found["updatedAt"], datetime)
    assert (found["origin"], found["labels"]) == ("elsewhere", ["a"])


def test_a_file_of_ours_is_a_document_as_others_write_it(
    fleet: Fleet, paths: Any, blobs: Any
) -> None:
    machine = fleet.machine()
    write(machine, RAW, b"ours")
    machine.service.push()
    found = paths.find_one({"_id": RAW})
    assert found.keys() == {"_id", "hash", "size", "updatedAt", "deletedAt", "commitSeq"}
    blob = blobs.find_one({"_id": found["hash"]})
    assert blob.keys() == {"_id", "size", "createdAt", "data"}
    assert bytes(blob["data"]) == b"ours"
    assert abs(found["updatedAt"] - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_deletion_of_theirs_arrives_and_one_of_ours_is_a_tombstone(
    fleet: Fleet, paths: Any
) -> None:
    ana, ben = fleet.machine(), fleet.machine()
    for rel in (RAW, "outputs/aws/ec2/second.yaml"):
        write(ana, rel, b"x")
    ana.service.push()
    ben.service.pull()
    now = datetime.now(UTC)
    paths.update_one({"_id": RAW}, {"$set": {"updatedAt": now, "deletedAt": now}})
    ben.service.pull(full=True)
    assert read(ben, RAW) is None
    ben.service.mark_dirty("outputs/aws/ec2/second.yaml")
    Path(ben.service._context.names.local("outputs/aws/ec2/second.yaml")).unlink()
    ben.service.push()
    found = paths.find_one({"_id": "outputs/aws/ec2/second.yaml"})
    assert found["deletedAt"] == found["updatedAt"]
    assert found["hash"] == sha256(b"x")


def test_large_content_is_in_pieces_and_its_head_comes_last(fleet: Fleet, blobs: Any) -> None:
    content = bytes(range(256)) * (17 << 12)
    ana, ben = fleet.machine(), fleet.machine()
    write(ana, "files/large", content)
    ana.service.push()
    head = blobs.find_one({"_id": sha256(content)})
    assert head.keys() == {"_id", "size", "createdAt", "chunkCount"}
    assert (head["size"], head["chunkCount"]) == (len(content), 3)
    pieces = [blobs.find_one({"_id": f"{sha256(content)}:{one}"}) for one in range(3)]
    assert [one["size"] for one in pieces] == [8 << 20, 8 << 20, len(content) - (16 << 20)]
    ben.service.pull()
    assert read(ben, "files/large") == content


def test_h69_a_cursor_does_not_pass_what_it_could_not_resolve(fleet: Fleet, blobs: Any) -> None:
    ana, ben = fleet.machine(), fleet.machine()
    write(ana, RAW, b"first")
    ana.service.push()
    ben.service.pull()
    write(ana, RAW, b"second")
    ana.service.push()
    lost = blobs.find_one_and_delete({"_id": sha256(b"second")})
    ben.service.pull()
    assert read(ben, RAW) == b"first"
    write(ana, "outputs/aws/ec2/other.yaml", b"other")
    ana.service.push()
    blobs.insert_one(lost)
    ben.service.pull()
    assert read(ben, RAW) == b"second"
    assert read(ben, "outputs/aws/ec2/other.yaml") == b"other"


def test_h69_what_a_client_with_a_slow_clock_wrote_is_found(fleet: Fleet, paths: Any) -> None:
    ana, ben = fleet.machine(), fleet.machine()
    write(ana, RAW, b"ours")
    ana.service.push()
    ben.service.pull()
    fleet.remote.plant("", {"outputs/aws/ec2/late.yaml": b"late", RAW: b"theirs"})
    behind = datetime.now(UTC) - timedelta(minutes=5)
    paths.update_many({"_id": {"$regex": "^outputs"}}, {"$set": {"updatedAt": behind}})
    write(ana, "outputs/aws/ec2/more.yaml", b"more")
    ana.service.push()
    ben.service.pull()
    assert read(ben, "outputs/aws/ec2/late.yaml") == b"late"
    write(ana, "outputs/aws/ec2/even.yaml", b"more")
    ana.service.push()
    ben.service.pull()  # now it is known that others write too
    assert read(ben, RAW) == b"theirs"


def test_a_dropped_collection_deletes_nothing_and_is_filled_again(fleet: Fleet, paths: Any) -> None:
    ana = fleet.machine()
    for number in range(3):
        write(ana, f"outputs/aws/ec2/{number}.yaml", b"%d" % number)
    ana.service.push()
    ana.service.pull()
    paths.drop()
    report = ana.service.pull(full=True)
    assert read(ana, "outputs/aws/ec2/1.yaml") == b"1"
    assert any("empty" in one.reason for one in report.skipped)
    ana.service.push()
    ben = fleet.machine()
    ben.service.pull()
    assert read(ben, "outputs/aws/ec2/1.yaml") == b"1"


def test_a_damaged_document_is_told_of_and_the_rest_arrives(fleet: Fleet, paths: Any) -> None:
    fleet.remote.plant("", {RAW: b"good", "outputs/aws/ec2/bad.yaml": b"bad"})
    paths.update_one({"_id": "outputs/aws/ec2/bad.yaml"}, {"$set": {"size": "many"}})
    machine = fleet.machine()
    report = machine.service.pull()
    assert read(machine, RAW) == b"good"
    assert "outputs/aws/ec2/bad.yaml" in {one.rel for one in report.skipped}


def test_documents_that_are_named_by_no_path_stop_nobody(
    fleet: Fleet, paths: Any, blobs: Any
) -> None:
    """Somebody inserted them by hand: then the database names them."""
    machine = fleet.machine()
    write(machine, RAW, b"good")
    machine.service.push()
    [good] = paths.find({})
    for kind in ("paths", "locks", "objects", "blobs", "contents", "more"):
        found = {name: value for name, value in good.items() if name != "_id"}
        fleet.remote.collection(kind).insert_many([dict(found), {"_id": 7, **found}])
    other = fleet.machine()
    other.service.pull(full=True)
    assert read(other, RAW) == b"good"
    write(other, "outputs/aws/ec2/2.yaml", b"2")
    other.service.push(full=True)
    with fleet.remote.open() as store:
        names = {info.key for info in store.list("")}
        assert names >= {RAW, "outputs/aws/ec2/2.yaml"}
        assert level(store).folders
        database = database_of(store)
        assert database is not None
        database.sweep("", remove=True)
    machine.service.pull(full=True)
    assert read(machine, "outputs/aws/ec2/2.yaml") == b"2"
    assert blobs.find_one({"_id": good["hash"]})


def test_a_newer_client_is_not_overruled(fleet: Fleet) -> None:
    ana = fleet.machine()
    write(ana, RAW, b"ours")
    ana.service.push()
    objects = fleet.remote.collection("objects")
    data = objects.find_one({"_id": "_index/_meta.json"})["data"]
    newer = data.replace(b'"version":3', b'"version":4')
    objects.update_one(
        {"_id": "_index/_meta.json"}, {"$set": {"data": newer, "hash": sha256(newer)}}
    )
    ben = fleet.machine()
    with pytest.raises(NewerFormatError):
        ben.service.pull()


def test_h70_content_that_nobody_names_is_swept_after_a_grace_and_not_before(
    fleet: Fleet, blobs: Any
) -> None:
    ana = fleet.machine()
    write(ana, RAW, b"first")
    ana.service.push()
    write(ana, RAW, b"second")
    ana.service.push()
    database = database_of(fleet.remote.open())
    assert database is not None
    with database:
        assert database.sweep("", remove=True).unused == 0
        old = datetime.now(UTC) - timedelta(hours=2)
        blobs.update_many({}, {"$set": {"createdAt": old}})
        assert database.sweep("", remove=False)[:2] == (1, 5)
        assert database.sweep("", remove=True).removed == 1
    assert blobs.find_one({"_id": sha256(b"first")}) is None
    assert blobs.find_one({"_id": sha256(b"second")}) is not None


def test_h70_a_sweep_does_not_take_content_from_under_a_push(fleet: Fleet, blobs: Any) -> None:
    """Content that is there already is made new by the push that relies on it."""
    ana = fleet.machine()
    write(ana, RAW, b"again")
    ana.service.push()
    write(ana, RAW, b"other")
    ana.service.push()
    blobs.update_many({}, {"$set": {"createdAt": datetime.now(UTC) - timedelta(hours=2)}})
    write(ana, "outputs/aws/ec2/copy.yaml", b"again")
    prepared = ana.service.prepare_push()
    database = database_of(fleet.remote.open())
    assert database is not None
    with database:
        database.sweep("", remove=True)
    ana.service.commit_push(prepared)
    ben = fleet.machine()
    ben.service.pull()
    assert read(ben, "outputs/aws/ec2/copy.yaml") == b"again"


def test_content_that_was_swept_by_others_is_uploaded_again(fleet: Fleet, blobs: Any) -> None:
    ana = fleet.machine()
    write(ana, RAW, b"content")
    prepared = ana.service.prepare_push()
    blobs.delete_many({})
    ana.service.commit_push(prepared)
    ben = fleet.machine()
    ben.service.pull()
    assert read(ben, RAW) == b"content"


def test_what_others_do_not_walk_is_out_of_their_sight(fleet: Fleet, paths: Any) -> None:
    ana, ben = fleet.machine(), fleet.machine()
    write(ana, "notes.txt", b"in the root")
    ana.service.push()
    ben.service.pull()
    assert read(ben, "notes.txt") == b"in the root"
    assert paths.find_one({"_id": "notes.txt"}) is None


def test_a_namespace_has_the_collections_that_others_call_so(fleet: Fleet) -> None:
    ana = fleet.machine("team")
    ana.service.mark_dirty(f"team/{RAW}")
    path = Path(ana.service._context.names.local(RAW))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"of the team")
    ana.service.push()
    assert fleet.remote.collection("paths", "team").find_one({"_id": RAW})["size"] == 11
    assert fleet.remote.collection("paths").find_one({}) is None
