"""What is removed from a remote is what was meant, and stays removed; what is lost comes back."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore.errors import NewerFormatError
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, partition_of, shard_key
from swampstore.index.path_map import Names
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.removals import REMOVALS, Removal, Remover, new_note, read_notes
from swampstore.locks.record import LockLostError
from swampstore.routing import Routing
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Written
from swampstore.sync.push import Push
from tests.support.broken_store import BrokenStore, Killed
from tests.support.sync_harness import Machine, assert_sound, remote_files, remote_index

HOME = "data/aws/ec2/i-1/state"
RAW, METADATA, LATEST = f"{HOME}/1/raw", f"{HOME}/1/metadata.yaml", f"{HOME}/latest"
FILES = {RAW: b"content", METADATA: b"version: 1\n", LATEST: b"1"}
OTHER = "data/aws/ec2/i-1/other/1/raw"
OTHERS = {
    OTHER: b"other",
    "data/aws/ec2/i-1/other/1/metadata.yaml": b"version: 1\n",
    "data/aws/ec2/i-1/other/latest": b"1",
}
TWO = {f"{HOME}/2/raw": b"two", f"{HOME}/2/metadata.yaml": b"version: 2\n"}
SHARD = shard_key(partition_of(RAW))


class Place:
    """A bucket whose clock goes on only if told to; `repeats`: its tokens are made of content."""

    def __init__(self, tmp_path: Path, *, repeats: bool = False) -> None:
        self.bucket = MemoryBucket()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self._repeats = repeats
        self._tmp_path = tmp_path
        self._machines: list[Machine] = []

    def store(self) -> BrokenStore:
        place = self

        class Store(MemoryStore):
            capabilities = MemoryStore.capabilities._replace(repeats_tokens=place._repeats)

            def clock(self) -> datetime:
                return place.now

            def _write(self, key: str, data: bytes) -> Written:
                written = super()._write(key, data)
                if not place._repeats:
                    return written
                found = place.bucket.objects[key]
                info = found.info._replace(token=found.info.etag)
                place.bucket.objects[key] = found._replace(info=info)
                return written._replace(token=info.etag)

        return BrokenStore(Store("place", self.bucket))

    def machine(self, name: str, store: BrokenStore | None = None) -> Machine:
        self._machines.append(Machine(self._tmp_path / name, store or self.store()))
        return self._machines[-1]

    def close(self) -> None:
        for machine in self._machines:
            machine.close()

    def notes(self) -> list[str]:
        return [key for key in self.bucket.objects if key.startswith(REMOVALS)]


NewPlace = Callable[..., Place]


@pytest.fixture
def new_place(tmp_path: Path) -> Iterator[NewPlace]:
    places: list[Place] = []

    def new(*, repeats: bool = False) -> Place:
        places.append(Place(tmp_path, repeats=repeats))
        return places[-1]

    yield new
    for place in places:
        place.close()


@pytest.fixture
def place(new_place: NewPlace) -> Place:
    return new_place()


def write(machine: Machine, files: Mapping[str, bytes]) -> None:
    for rel, data in files.items():
        machine.write(rel, data)


def fill(machine: Machine, version: int = 1) -> None:
    write(machine, {**FILES, **OTHERS})
    machine.push()
    if version == 2:
        machine.service.migrate_index()


def delete_all(machine: Machine) -> None:
    for rel in FILES:
        machine.delete(rel)


def kill_after_objects(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push, and die when the objects are gone, before that is noted."""

    def die(store: BrokenStore, key: str) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(BrokenStore, "delete", die)
        with pytest.raises(Killed):
            machine.push()


def fail_to_remove(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push, while the store deletes nothing."""

    def fail(store: BrokenStore, key: str, token: str = "") -> None:
        raise StoreUnreachableError("503", hint="Wait.")

    with monkeypatch.context() as patch:
        patch.setattr(BrokenStore, "delete", fail)
        patch.setattr(BrokenStore, "delete_if_match", fail)
        machine.push()


# An object is only deleted if it is the one that was meant


@pytest.fixture(params=[True, False], ids=["", "nobody looks twice"])
def _second_look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether those look again at their uploads who are about to commit: nothing depends on it."""
    if not request.param:
        monkeypatch.setattr(RemoteIndex, "renew", lambda *_: None)
        monkeypatch.setattr(Push, "_check", lambda *_: None)


@pytest.mark.usefixtures("_second_look")
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("seconds", [0, 5])
@pytest.mark.parametrize("again", [b"content", b"changed"])
def test_what_was_saved_again_after_a_killed_deletion_stays(
    new_place: NewPlace,
    monkeypatch: pytest.MonkeyPatch,
    *,
    repeats: bool,
    seconds: int,
    again: bytes,
) -> None:
    place = new_place(repeats=repeats)
    a, b, fresh = place.machine("a"), place.machine("b"), place.machine("fresh")
    fill(a)
    place.now += timedelta(seconds=seconds)
    delete_all(a)
    kill_after_objects(a, monkeypatch)
    place.now += timedelta(seconds=seconds)
    saved = FILES | {RAW: again}
    write(b, saved)
    prepared = b.service.prepare_push()
    place.machine("a").sync()
    b.service.commit_push(prepared)
    fresh.pull()
    assert {rel: fresh.files().get(rel) for rel in FILES} == saved


def test_an_upload_of_a_killed_push_is_looked_at_again_before_the_commit(place: Place) -> None:
    b, fresh = place.machine("b"), place.machine("fresh")
    b.write("files/x", b"so that there is an index")
    b.push()
    write(b, FILES)
    b.service.prepare_push()  # and dies
    prepared = b.service.prepare_push()
    place.bucket.objects.pop(RAW)
    b.service.commit_push(prepared)
    fresh.pull()
    assert fresh.read(RAW) == b"content"


@pytest.mark.parametrize("version", [1, 2])
def test_an_upload_whose_path_came_and_went_meanwhile_is_looked_at_again(
    place: Place, version: int
) -> None:
    a, b, fresh = place.machine("a"), place.machine("b"), place.machine("fresh")
    a.write("files/x", b"so that there is an index")
    a.push()
    if version == 2:
        a.service.migrate_index()
    b.write("logs/x", b"equal")
    prepared = b.service.prepare_push()
    a.write("logs/x", b"equal")
    a.push()
    a.delete("logs/x")
    a.push()
    b.service.commit_push(prepared)
    fresh.pull()
    assert fresh.read("logs/x") == b"equal"


@pytest.mark.parametrize("moment", ["before it", "after a look at an equal one"])
def test_what_takes_the_place_of_an_object_that_is_being_removed_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store = place.store()
    store.put(RAW, b"old")
    remover = Remover(store, Names("/nowhere", "", Routing()), 1)
    sha256 = hashlib.sha256(b"old").hexdigest()
    note = remover.note(new_note(), [Removal(RAW, 3, sha256)])
    has_content = Remover._has_content

    def look_and_be_late(*looking: Any) -> bool:
        is_equal = has_content(*looking)
        store.put(RAW, b"new")
        return is_equal

    if moment == "before it":
        store.put(RAW, b"new")
    else:
        store.put(RAW, b"old")
        monkeypatch.setattr(Remover, "_has_content", look_and_be_late)
    with contextlib.closing(place.machine("a")) as machine:
        removed = remover.carry_out(note, machine.service._context.index)
    assert (removed.objects, removed.is_settled) == (0, True)
    assert store.get(RAW).data == b"new"


@pytest.mark.usefixtures("_second_look")
def test_an_object_that_somebody_is_about_to_commit_survives_the_deletion_of_the_old_one(
    place: Place,
) -> None:
    a, b, fresh = place.machine("a"), place.machine("b"), place.machine("fresh")
    fill(a)
    b.pull()
    b.write(OTHER, b"changed")
    prepared = b.service.prepare_push()
    for rel in OTHERS:
        a.delete(rel)
    a.push()
    b.service.commit_push(prepared)
    fresh.pull()
    assert fresh.read(OTHER) == b"changed"


@pytest.mark.parametrize("repeats", [False, True])
def test_a_deletion_that_failed_is_finished_by_the_next_push(
    new_place: NewPlace, monkeypatch: pytest.MonkeyPatch, *, repeats: bool
) -> None:
    place = new_place(repeats=repeats)
    a = place.machine("a")
    fill(a)
    place.now += timedelta(seconds=5)
    delete_all(a)
    fail_to_remove(a, monkeypatch)
    assert len(place.notes()) == 1
    assert RAW in place.bucket.objects
    a.push()
    assert remote_files(a.store) == OTHERS
    assert place.notes() == []
    assert a.base.pending_deletes() == []


def test_another_machine_finishes_a_deletion_when_it_looks_at_everything(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = place.machine("a"), place.machine("b")
    fill(a)
    b.pull()
    delete_all(a)
    fail_to_remove(a, monkeypatch)
    b.sync()
    assert RAW in place.bucket.objects
    b.push(full=True)
    assert remote_files(b.store) == OTHERS
    assert place.notes() == []


def test_what_cannot_be_told_from_a_new_upload_is_removed_a_day_later(
    new_place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(repeats=True)
    a = place.machine("a")
    fill(a)
    delete_all(a)
    fail_to_remove(a, monkeypatch)
    a.push()
    assert RAW in place.bucket.objects
    assert len(place.notes()) == 1
    place.now += timedelta(days=2)
    a.push(full=True)
    assert RAW not in place.bucket.objects
    assert place.notes() == []


def test_a_note_of_a_newer_version_is_left_alone(place: Place) -> None:
    a = place.machine("a")
    fill(a)
    key = f"{REMOVALS}new.json"
    a.store.put(key, b'{"version":2,"objects":[]}')
    with pytest.raises(NewerFormatError, match="newer"):
        read_notes(a.store, a.names)
    pushed = a.push(full=True)
    assert [one.rel for one in pushed.skipped] == [key]
    assert place.notes() == [key]


def test_a_note_removes_nothing_but_data(place: Place) -> None:
    a = place.machine("a")
    fill(a)
    note = b'{"version":1,"objects":[{"rel":"_index/_meta.json","size":1},{"rel":"../x","size":1}]}'
    a.store.put(f"{REMOVALS}odd.json", note)
    a.push(full=True)
    assert META_KEY in place.bucket.objects
    assert place.notes() == []


# A commit that is refused takes nothing out


def test_a_refused_commit_leaves_the_entries_that_it_was_to_remove(place: Place) -> None:
    a, fresh = place.machine("a"), place.machine("fresh")
    fill(a, 2)
    before = remote_index(a.store).entries
    delete_all(a)
    prepared = a.service.prepare_push()
    asked: list[int] = []

    def guard(_since: float) -> None:
        asked.append(1)
        if len(asked) > 1:
            raise LockLostError("somebody else has the lock", hint="Try again.")

    a.service._commit_lock = lambda _: contextlib.nullcontext(guard)
    with pytest.raises(LockLostError):
        a.service.commit_push(prepared)
    a.service._commit_lock = lambda _: contextlib.nullcontext(lambda _since: None)
    assert len(asked) == 2
    assert remote_index(a.store).entries.keys() == before.keys()
    fresh.pull()
    assert fresh.files().keys() == {*FILES, *OTHERS}
    a.push()
    assert remote_index(a.store).entries.keys() == OTHERS.keys()


@pytest.mark.parametrize("behind", [False, True])
def test_a_commit_that_is_killed_before_meta_has_removed_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, behind: bool
) -> None:
    a, b, c = place.machine("a"), place.machine("b"), place.machine("c")
    fill(a, 2)
    c.pull()
    if behind:
        a.write(LATEST, b"1 ")
        a.push()
    b.pull()
    delete_all(a)
    put = BrokenStore.put_if_match

    def die(store: BrokenStore, key: str, body: bytes, token: str) -> Written:
        if key == META_KEY:
            raise Killed
        return put(store, key, body, token)

    with monkeypatch.context() as patch:
        patch.setattr(BrokenStore, "put_if_match", die)
        with pytest.raises(Killed):
            a.push()
    assert RAW not in remote_index(b.store).entries
    for machine in (c, place.machine("fresh")):
        machine.sync()
        assert machine.files().keys() == {*FILES, *OTHERS}
    write(b, TWO)
    b.push()
    assert RAW in remote_index(b.store).entries
    place.machine("a").sync()
    b.sync()
    assert b.files().keys() >= {*OTHERS, *TWO}
    assert not {RAW, METADATA} & b.files().keys()
    assert_sound(b.store)


# A lost document is damage


LOST: dict[str, tuple[int, tuple[str, ...]]] = {
    "shard": (2, (SHARD,)),
    "all shards": (2, ("_index/data",)),
    "all": (2, ("_index/",)),
    "monolith": (1, (MONOLITH_KEY,)),
    "monolith and meta": (1, (MONOLITH_KEY, META_KEY)),
    "all of version 1": (1, (MONOLITH_KEY, "_index/")),
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("is_new", [False, True])
def test_what_is_lost_while_somebody_commits_deletes_nothing(
    place: Place, lost: str, *, is_new: bool
) -> None:
    version, prefixes = LOST[lost]
    a, b, c = place.machine("a"), place.machine("b"), place.machine("c")
    fill(a, version)
    c.pull()
    if not is_new:
        b.pull()
    write(b, TWO)
    prepared = b.service.prepare_push()
    for key in [key for key in place.bucket.objects if key.startswith(prefixes)]:
        place.bucket.objects.pop(key)
    place.bucket.objects.pop(OTHER)  # so that no listing shows it either
    b.service.commit_push(prepared)
    for _ in range(2):
        for machine in (c, a, b):
            machine.sync()
    everything = {*FILES, *OTHERS, *TWO}
    for machine in (a, b, c):
        if machine is not b or not is_new:
            assert machine.files().keys() == everything, machine.cache
    a.push(full=True)
    assert remote_index(a.store).entries.keys() == everything
    assert remote_files(a.store).keys() == everything


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("metadata_only", [False, True])
def test_what_a_client_that_takes_loss_for_emptiness_left_out_of_the_index_comes_back(
    place: Place, version: int, *, metadata_only: bool
) -> None:
    a, b, c = place.machine("a"), place.machine("b"), place.machine("c")
    fill(a, version)
    b.pull(metadata_only=metadata_only)
    a.store.put(MONOLITH_KEY if version == 1 else SHARD, b'{"version":1,"entries":{}}')
    if version == 2:
        meta = json.loads(a.store.get(META_KEY).data)
        del meta["swampstore"]
        a.store.put(META_KEY, json.dumps(meta).encode())
    c.write("logs/x", b"of a machine that knows nothing of it")
    c.push()
    assert b.pull(metadata_only=metadata_only).deleted == 0
    b.push()
    c.pull()
    assert c.files().keys() == {*FILES, *OTHERS, "logs/x"}
    assert_sound(c.store)


def test_what_is_left_of_a_deletion_does_not_come_back_with_a_lost_shard(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, fresh = place.machine("a"), place.machine("fresh")
    fill(a, 2)
    for rel in (RAW, METADATA, LATEST):
        a.delete(rel)
    fail_to_remove(a, monkeypatch)
    place.bucket.objects.pop(SHARD)
    assert RAW in place.bucket.objects
    fresh.pull()
    assert fresh.files().keys() == {*OTHERS}


# An object that is lost


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("knows", [True, False])
def test_a_lost_object_is_uploaded_again_by_whoever_has_the_content(
    place: Place, version: int, *, knows: bool
) -> None:
    a, fresh = place.machine("a"), place.machine("fresh")
    fill(a, version)
    for rel in (RAW, OTHER):
        place.bucket.objects.pop(rel)
    if not knows:
        a.base.clear()
    assert a.push().files == 0
    assert a.push(full=True).files == 2
    fresh.pull()
    assert fresh.files() == {**FILES, **OTHERS}
    assert_sound(a.store)
