"""A remote that somebody emptied, and perhaps filled again, at moments when nobody looks."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.index import unversioned, watch
from swampstore.index.base import Base
from swampstore.index.documents import Documents
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, ORIGINS_KEY, partition_of, shard_key
from swampstore.index.removals import Remover
from swampstore.index.state import FOREIGN_WRITER, View
from swampstore.index.version2 import Version2
from swampstore.layout import ModelRef
from swampstore.stores.errors import StoreUnreachableError
from swampstore.sync import start_over
from swampstore.sync.pull_plan import PullPlanner
from tests.support.broken_store import Killed
from tests.support.old_client import OldPeer
from tests.support.remotes import Remote
from tests.support.sync_harness import Machine, remote_files, remote_index

MODEL = ModelRef("aws/ec2", "i-1")
Open = Callable[[str], Machine]


def version(number: int, name: str = "state") -> dict[str, bytes]:
    home = f"{MODEL.rel}/{name}"
    return {
        f"{home}/{number}/raw": b"content %d" % number,
        f"{home}/{number}/metadata.yaml": b"version: %d\n" % number,
        f"{home}/latest": b"%d" % number,
    }


def save(machine: Machine, files: dict[str, bytes]) -> None:
    for rel, data in files.items():
        machine.write(rel, data)


@pytest.fixture
def machine(memory_remote: Remote, tmp_path: Path) -> Iterator[Open]:
    opened: list[Machine] = []

    def open_machine(name: str) -> Machine:
        opened.append(Machine(tmp_path / name, memory_remote.open()))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.close()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def pair(request: pytest.FixtureRequest, machine: Open) -> tuple[Machine, Machine]:
    """Two machines that have the same, and have just been told that nothing has changed."""
    here, there = machine("here"), machine("there")
    if request.param == 2:
        here.service.migrate_index()
    for number in (1, 2, 3):
        save(here, version(number))
        here.push()
    for one in (there, here, there, here):
        one.pull()
    return here, there


def empty(machine: Machine) -> None:
    for info in list(machine.store.list()):
        machine.store.delete(info.key)


def fill_as_others_do(machine: Machine) -> dict[str, bytes]:
    """Let a client of another make begin anew, which gives its index no origin.

    On version 1 that looks as if it had deleted all the rest, so nobody does it there.
    """
    if machine.base.fact("index_version") == "1":
        return {}
    peer, files = OldPeer(machine.store), version(1, "theirs")
    peer.push_v1(files)
    peer.migrate()
    return files


def assert_all_have(files: dict[str, bytes], *machines: Machine) -> None:
    for one in machines * 3:
        assert one.pull().deleted == 0
        one.push()
    for one in machines:
        assert one.files() == files


@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "filled"])
def test_a_push_that_recalls_a_look_at_what_is_gone_by_now_takes_nothing_for_deleted(
    pair: tuple[Machine, Machine], *, is_filled: bool
) -> None:
    here, there = pair
    everything = here.files() | version(4)
    empty(here)
    if is_filled:
        everything |= fill_as_others_do(there)
    save(here, version(4))
    here.push()
    assert_all_have(everything, here, there)


def test_a_push_between_whose_upload_and_commit_the_remote_is_made_anew_takes_nothing_for_deleted(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    save(here, version(4))
    everything = here.files()
    prepared = here.service.prepare_push()
    empty(here)
    everything |= fill_as_others_do(there)
    here.service.commit_push(prepared)
    assert_all_have(everything, here, there)


def test_who_is_killed_between_noticing_and_starting_over_still_knows(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    everything = here.files()
    empty(here)
    everything |= fill_as_others_do(there)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Base, "clear", killed)
        with pytest.raises(Killed):
            here.pull()
    assert_all_have(everything, here, there)


def test_a_certain_pull_sees_what_was_committed_after_this_process_last_looked(
    pair: tuple[Machine, Machine],
) -> None:
    """Whoever leaves a remote for good takes everything of it along."""
    here, there = pair
    # Then a look that finds nothing new asks for the monolith of version 1 as well.
    there.base.apply(facts={FOREIGN_WRITER: "1"})
    there.pull()
    save(here, version(4))
    here.push()
    there.service.pull(certain=True)
    assert there.files() == here.files()


def lose_index(machine: Machine) -> None:
    """Lose every document of the index; the objects stay."""
    for info in [*machine.store.list("_index/"), *machine.store.list(".datastore-index.json")]:
        machine.store.delete(info.key)


def test_a_deletion_after_a_start_over_that_was_killed_stays_though_no_entry_has_a_hash(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    lose_index(here)
    there.pull()
    there.push()  # makes the index anew, from the objects

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PullPlanner, "plan", killed)
        with pytest.raises(Killed):
            here.pull()
    entry = remote_index(here.store).entries[f"{MODEL.rel}/state/1/metadata.yaml"]
    assert "sha256" not in entry
    here.service.mark_dirty(f"{MODEL.rel}/state/1")
    shutil.rmtree(here.path(f"{MODEL.rel}/state/1"))
    for one in (here, there, here):
        one.sync()
    for one in (here, there):
        assert not one.path(f"{MODEL.rel}/state/1").exists()
        assert one.path(f"{MODEL.rel}/state/2/raw").exists()


def test_a_cache_that_holds_nothing_is_of_no_origin_but_that_of_what_it_gets(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    shutil.rmtree(there.path("data"))
    there.base.clear()
    there.base.apply(facts={"origin": "of what was there long ago"})
    peer = OldPeer(here.store)
    push = peer.push_v1 if here.base.fact("index_version") == "1" else peer.push_v2
    push(dict(version(1, "theirs")))  # which drops the origin
    there.pull(full=True)
    here.pull()
    here.service.mark_dirty(f"{MODEL.rel}/state/2")
    shutil.rmtree(here.path(f"{MODEL.rel}/state/2"))
    here.push()  # which writes it again
    for one in (there, here):
        one.sync()
    assert not there.path(f"{MODEL.rel}/state/2").exists()
    assert here.files() == there.files()


def test_a_push_that_starts_over_pushes(pair: tuple[Machine, Machine]) -> None:
    here, there = pair
    there.push()
    assert not there.service.is_marked()
    lose_index(here)
    for rel in [rel for rel in here.files() if rel.startswith(f"{MODEL.rel}/state/2/")]:
        here.store.delete(rel)
    there.push()
    assert remote_files(there.store) == there.files()
    assert remote_index(there.store).entries.keys() == there.files().keys()


def lose_shard_of_what_one_has_not_seen(here: Machine, there: Machine) -> None:
    """Lose the shard of a model that `here` wrote last: nobody else knows what was in it."""
    there.service.migrate_index()
    there.push()
    save(here, version(4))
    here.sync()
    here.store.delete("_index/data--aws--ec2--i-1.json")


def delete_version(machine: Machine, number: int) -> None:
    for name in ("raw", "metadata.yaml"):
        machine.delete(f"{MODEL.rel}/state/{number}/{name}")


def test_who_heals_an_index_knows_what_others_have_from_then_on(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    lose_shard_of_what_one_has_not_seen(here, there)
    there.service.migrate_index()
    assert remote_index(there.store).entries.keys() == here.files().keys()
    here.sync()
    delete_version(here, 2)
    here.push()
    for one in (there, here, there):
        one.sync()
    assert not there.path(f"{MODEL.rel}/state/2/raw").exists()
    assert remote_index(here.store).entries.keys() == here.files().keys() == there.files().keys()


def test_who_makes_a_lost_shard_anew_by_removing_something_pulls_nothing_as_if_it_were_the_old_one(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    lose_shard_of_what_one_has_not_seen(here, there)
    there.service.remove({f"{MODEL.rel}/stray/1/raw": None})
    there.pull()
    assert there.path(f"{MODEL.rel}/state/4/raw").exists()
    delete_version(here, 4)
    here.write(f"{MODEL.rel}/state/latest", b"3")
    for one in (here, there, here, there):
        one.sync()
    assert not there.path(f"{MODEL.rel}/state/4/raw").exists()
    assert not here.path(f"{MODEL.rel}/state/4/raw").exists()


def test_who_has_started_over_once_starts_over_again_when_a_shard_is_lost_again(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    lose_shard_of_what_one_has_not_seen(here, there)
    save(there, version(1, "theirs"))
    there.push()
    here.sync()
    save(here, version(5))
    here.push()
    here.store.delete("_index/data--aws--ec2--i-1.json")
    for name in ("raw", "metadata.yaml"):
        here.store.delete(f"{MODEL.rel}/state/2/{name}")
    save(there, version(2, "theirs"))
    there.push()
    there.pull()
    assert there.path(f"{MODEL.rel}/state/2/raw").exists()
    there.push()
    assert remote_index(there.store).entries.keys() >= version(2).keys()


def test_content_that_only_an_object_has_is_named_again_though_it_could_not_be_fetched_at_first(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("here"), machine("there")
    here.service.migrate_index()
    save(here, described(1, b"content"))
    here.push()
    there.pull(metadata_only=True)
    lose_index(here)
    fill_as_others_do(there)  # and take nothing else into their index

    def unreachable(*_: object) -> bool:
        raise StoreUnreachableError("503", hint="Wait.")

    with monkeypatch.context() as patch:
        patch.setattr(start_over, "take_remote", unreachable)
        with pytest.raises(StoreUnreachableError):
            there.pull(metadata_only=True)
    there.sync()
    there.sync()
    assert there.read(f"{MODEL.rel}/state/1/raw") == b"content"
    assert remote_index(there.store).entries.keys() >= version(1).keys()


def test_what_is_seen_by_a_push_without_work_is_not_built_on_later(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    lose_shard_of_what_one_has_not_seen(here, there)
    there.service.remove({f"{MODEL.rel}/stray/1/raw": None})
    assert f"{MODEL.rel}/state/4/raw" in remote_index(there.store).entries


def test_a_lost_document_that_others_made_anew_and_lost_again_is_not_written_as_it_was_before(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    is_sharded = here.base.fact("index_version") == "2"
    document = "_index/data--aws--ec2--i-1.json" if is_sharded else ".datastore-index.json"
    here.store.delete(document)
    save(there, version(1, "theirs"))
    prepared = there.service.prepare_push()
    save(here, version(4))
    here.push()
    here.store.delete(document)
    there.service.commit_push(prepared)
    everything = here.files() | there.files() | version(4)
    assert remote_index(there.store).entries.keys() == everything.keys()
    assert_all_have(everything, here, there)


def test_a_deletion_stays_though_meta_is_lost_after_others_appended_to_another_version(
    machine: Open,
) -> None:
    here, there = machine("here"), machine("there")
    for number in (1, 2, 3):
        save(here, version(number))
    here.push()
    there.pull()
    delete_version(here, 2)
    here.push()
    save(here, {f"{MODEL.rel}/state/3/raw": b"content 3, and more"})
    here.push()
    lose_meta(here)
    for one in (there, here, there):
        one.sync()
    assert not there.path(f"{MODEL.rel}/state/2/raw").exists()
    assert remote_index(here.store).entries.keys() == here.files().keys() == there.files().keys()


@pytest.mark.parametrize("saved", [version(4), version(1, "other")], ids=["same", "other"])
@pytest.mark.parametrize("when", ["before", "beside"])
def test_a_deletion_stays_though_meta_is_lost_between_the_look_and_the_commit_of_a_push(
    pair: tuple[Machine, Machine], saved: dict[str, bytes], when: str
) -> None:
    here, there = pair
    before = remote_index(here.store).version
    delete_version(here, 2)
    if when == "before":
        here.push()
        here.pull()
    save(here, saved)
    here.store.delete(META_KEY)
    here.push()
    assert remote_index(here.store).version == before
    for one in (there, here, there):
        one.sync()
    assert not there.path(f"{MODEL.rel}/state/2/raw").exists()
    assert remote_index(here.store).entries.keys() == here.files().keys() == there.files().keys()


def test_uploads_of_a_killed_push_that_were_deleted_here_are_no_data_when_the_index_is_lost(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    save(here, version(1, "never"))
    here.service.prepare_push()  # and is killed before the commit
    here.service.mark_dirty(f"{MODEL.rel}/never")
    shutil.rmtree(here.path(f"{MODEL.rel}/never"))
    here.sync()
    lose_index(here)
    for one in (there, here, there):
        one.sync()
    for one in pair:
        assert not one.path(f"{MODEL.rel}/never").exists()
    assert not [rel for rel in remote_files(here.store) if "/never/1/" in rel]


def test_uploads_of_a_very_first_push_that_was_killed_are_no_data_once_they_were_deleted_here(
    machine: Open,
) -> None:
    here, there = machine("here"), machine("there")
    save(here, version(1))
    here.service.prepare_push()  # and is killed before the commit: there is no index yet
    here.service.mark_dirty(f"{MODEL.rel}/state")
    shutil.rmtree(here.path(f"{MODEL.rel}/state"))
    for one in (here, there, here):
        one.sync()
    assert here.files() == there.files() == remote_files(here.store) == {}


def described(number: int, content: bytes) -> dict[str, bytes]:
    """Return a version whose metadata can be read."""
    draft = Draft(id=str(uuid.uuid4())).checked()
    sha256 = hashlib.sha256(content).hexdigest()
    at = "2026-06-01T10:00:00.000Z"
    metadata = draft.metadata("state", number, Owner(), at, len(content), sha256)
    home = f"{MODEL.rel}/state"
    return {
        f"{home}/{number}/raw": content,
        f"{home}/{number}/metadata.yaml": encode(metadata),
        f"{home}/latest": b"%d" % number,
    }


def test_what_a_killed_push_had_sent_stays_deleted_though_others_took_it_for_data_meanwhile(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    save(here, described(4, b"sent and deleted"))
    here.service.prepare_push()  # and is killed before the commit
    lose_index(here)
    there.sync()
    here.service.mark_dirty(f"{MODEL.rel}/state/4")
    shutil.rmtree(here.path(f"{MODEL.rel}/state/4"))
    for one in (here, there, here):
        one.sync()
    for one in pair:
        assert not one.path(f"{MODEL.rel}/state/4").exists()
    assert not [rel for rel in remote_files(here.store) if "/state/4/" in rel]


def test_what_others_put_in_the_place_of_a_version_without_meta_is_not_told_of_in_old_words(
    pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unversioned, "_PRECISION", timedelta(0))  # of the store in memory
    here, there = pair
    save(here, described(4, b"ours"))
    here.push()
    there.pull()
    here.store.delete("_index/_meta.json")
    theirs = described(4, b"them")  # of the same size
    for rel, data in theirs.items():
        here.store.put(rel, data)
    for one in (here, there, here):
        one.pull(full=True)
        one.push(full=True)
    index, stored = remote_index(here.store).entries, remote_files(here.store)
    assert stored.items() >= theirs.items() - {(f"{MODEL.rel}/state/latest", b"4")}
    for rel, data in stored.items():
        assert index[rel].get("sha256") in (None, hashlib.sha256(data).hexdigest())


def test_content_that_was_lost_from_an_index_without_hashes_is_sent_again_under_its_number(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    lose_index(here)
    there.sync()
    for one in pair:
        one.store.delete(f"{MODEL.rel}/state/1/raw")
    here.pull()
    here.push()
    assert remote_files(here.store) == here.files()
    assert not here.path(f"{MODEL.rel}/state/4").exists()


def test_a_deletion_that_was_not_pushed_stays_though_somebody_empties_the_remote(
    pair: tuple[Machine, Machine],
) -> None:
    here, there = pair
    delete_version(here, 1)
    empty(here)
    here.pull()  # finds nothing at all
    here.pull()
    there.sync()  # sends everything that it has
    assert f"{MODEL.rel}/state/1/raw" in remote_files(here.store)
    for one in (here, there, here):
        one.sync()
    for one in pair:
        assert not one.path(f"{MODEL.rel}/state/1").exists()
        assert one.path(f"{MODEL.rel}/state/2/raw").exists()
    assert remote_files(here.store) == here.files() == there.files()


def test_who_deleted_something_fills_a_remote_that_somebody_emptied(
    pair: tuple[Machine, Machine],
) -> None:
    here, _ = pair
    delete_version(here, 1)
    empty(here)
    here.sync()
    here.push()
    assert remote_files(here.store) == here.files()
    assert remote_index(here.store).entries.keys() == here.files().keys()


def test_a_deletion_stays_though_another_client_left_the_origin_of_a_new_index_out(
    machine: Open,
) -> None:
    here, there, third = machine("here"), machine("there"), machine("third")
    save(here, version(1))
    here.push()
    there.pull()
    lose_index(here)
    third.pull()
    save(third, version(2))
    third.push()  # makes the index anew
    OldPeer(here.store).push_v1(dict(version(1, "theirs")))
    there.sync()  # knows the origin of the index that was lost
    delete_version(there, 2)
    there.write(f"{MODEL.rel}/state/latest", b"1")
    for one in (there, third, here, there, third):
        one.sync()
    for one in (here, there, third):
        assert not one.path(f"{MODEL.rel}/state/2").exists()
        assert one.path(f"{MODEL.rel}/state/1/raw").exists()
        assert one.path(f"{MODEL.rel}/theirs/1/raw").exists()


def test_who_migrates_an_index_that_another_client_wrote_last_keeps_its_origin(
    machine: Open,
) -> None:
    here, there = machine("here"), machine("there")
    save(here, version(1))
    here.push()
    origin = here.base.fact("origin")
    OldPeer(here.store).push_v1(dict(version(1, "theirs")))
    there.service.migrate_index()
    meta = remote_index(there.store).meta
    assert meta is not None
    assert meta["swampstore"]["origin"] == origin


def test_a_deletion_stays_if_the_push_of_an_append_before_it_was_killed_right_after_its_commit(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("here"), machine("there")
    save(here, version(1))
    here.push()
    there.pull()
    here.write(f"{MODEL.rel}/state/1/raw", b"content 1, and more")
    here.write(f"{MODEL.rel}/state/1/metadata.yaml", b"version: 1\nsize: 19\n")

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Base, "apply", killed)
        with pytest.raises(Killed):
            here.push()
    here.service.mark_dirty(f"{MODEL.rel}/state")
    shutil.rmtree(here.path(f"{MODEL.rel}/state"))
    for one in (here, there, here):
        one.sync()
    assert remote_files(here.store) == here.files() == there.files() == {}


@pytest.mark.parametrize("is_scoped", [False, True])
def test_a_commit_without_meta_is_told_of_though_a_pull_has_read_it_since(
    machine: Open, monkeypatch: pytest.MonkeyPatch, *, is_scoped: bool
) -> None:
    here, there = machine("here"), machine("there")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    there.pull()
    save(there, version(1, "theirs"))
    there.push()
    save(here, version(2))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Documents, "put_meta", lambda *_, **__: _be_killed())
        here.push()
    models = [MODEL] if is_scoped else None
    here.pull(models=models)
    here.push(models=models)
    there.pull()
    assert there.files() == version(1) | version(2) | version(1, "theirs")


def _be_killed() -> None:
    raise Killed


def test_a_shard_whose_last_entry_others_remove_while_a_push_looks_is_not_taken_for_a_lost_one(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("here"), machine("there")
    save(here, version(1))
    here.push()
    there.service.migrate_index()
    there.pull()
    save(here, version(1, "another"))
    view = Version2.view

    def after_a_deletion(*args: Any, **options: Any) -> View:
        if there.path(f"{MODEL.rel}/state").exists():
            there.service.mark_dirty(f"{MODEL.rel}/state")
            shutil.rmtree(there.path(f"{MODEL.rel}/state"))
            there.push()
        return view(*args, **options)

    monkeypatch.setattr(Version2, "view", after_a_deletion)
    here.push()
    for one in (here, there):
        one.sync()
    assert here.files() == there.files() == version(1, "another")


def lose_meta(machine: Machine) -> None:
    machine.store.delete(META_KEY)


def lose_shard(machine: Machine) -> None:
    machine.store.delete(shard_key(partition_of(f"{MODEL.rel}/state/1/raw")))


def lose_both(machine: Machine) -> None:
    lose_meta(machine)
    lose_shard(machine)


@pytest.mark.parametrize("lose", [lose_index, lose_meta, lose_shard, lose_both])
@pytest.mark.parametrize("is_new", [True, False], ids=["newcomer", "known"])
def test_a_deletion_stays_though_another_client_left_the_origin_of_new_shards_out(
    machine: Open, lose: Callable[[Machine], None], is_new: bool
) -> None:
    here, there, third = machine("here"), machine("there"), machine("third")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    there.pull()
    lose(here)
    maker = third if is_new else here
    maker.pull()
    save(maker, version(2))
    maker.push()  # makes the index anew
    peer = OldPeer(here.store)
    is_sharded = remote_index(here.store).version == 2
    (peer.push_v2 if is_sharded else peer.push_v1)(dict(version(1, "theirs")))
    there.sync()  # knows the origin of the index that was lost
    delete_version(there, 2)
    there.write(f"{MODEL.rel}/state/latest", b"1")
    for one in (there, third, here, there, third):
        one.sync()
    for one in (here, there, third):
        assert not one.path(f"{MODEL.rel}/state/2").exists()
        assert one.path(f"{MODEL.rel}/state/1/raw").exists()
        assert one.path(f"{MODEL.rel}/theirs/1/raw").exists()


@pytest.mark.parametrize("teller", ["monolith", "base"])
def test_a_deletion_stays_though_nobody_listed_the_origin_that_lost_shards_had(
    machine: Open, teller: str
) -> None:
    before, later = machine("before"), machine("later")
    save(before, version(1))
    before.push()
    peer = OldPeer(before.store)
    peer.migrate()
    if teller == "base":
        save(before, version(1, "more"))
        before.push()  # which tells everybody
        before.store.delete(MONOLITH_KEY)
    for one in (before, later):
        one.pull()
    for info in list(before.store.list("_index/")):
        before.store.delete(info.key)
    later.pull()
    save(later, version(2))
    later.push()  # makes the index anew
    peer.push_v2(dict(version(1, "theirs")))
    before.sync()
    delete_version(before, 2)
    before.write(f"{MODEL.rel}/state/latest", b"1")
    for one in (before, later, before, later):
        one.sync()
    for one in (before, later):
        assert not one.path(f"{MODEL.rel}/state/2").exists()
        assert one.path(f"{MODEL.rel}/state/1/raw").exists()
        assert one.path(f"{MODEL.rel}/theirs/1/raw").exists()


@pytest.mark.parametrize("monolith", [b"garbage", b'{"version": 7}'])
def test_a_monolith_of_before_that_nobody_understands_tells_no_origin(
    machine: Open, monolith: bytes
) -> None:
    here = machine("here")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    here.store.put(MONOLITH_KEY, monolith)
    here.store.delete(ORIGINS_KEY)
    known = here.base.fact("origin")
    lose_both(here)
    here.sync()
    save(here, version(2))
    here.push()
    told = json.loads(here.store.get(ORIGINS_KEY).data)["origins"]
    assert told == [known, here.base.fact("origin")]


def test_who_is_killed_before_it_lists_a_new_origin_misleads_nobody(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("here"), machine("there")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    lose_both(here)
    with monkeypatch.context() as patch:
        patch.setattr(watch, "note_origin", lambda *_: None)
        save(here, version(2))
        here.push()
    there.pull()
    known = there.base.fact("origin")
    assert known == here.base.fact("origin") is not None
    OldPeer(here.store).push_v2(dict(version(1, "theirs")))
    there.pull()
    assert not there.service._context.index.is_made_anew
    assert there.base.fact("origin") == known


def test_a_list_of_origins_that_nobody_understands_tells_nothing_and_is_made_anew(
    machine: Open,
) -> None:
    here = machine("here")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    known = here.base.fact("origin")
    here.store.put(ORIGINS_KEY, b"garbage")
    OldPeer(here.store).push_v2(dict(version(1, "theirs")))
    here.sync()
    assert here.path(f"{MODEL.rel}/theirs/1/raw").exists()
    lose_both(here)
    here.sync()
    save(here, version(2))
    here.push()
    told = json.loads(here.store.get(ORIGINS_KEY).data)["origins"]
    assert told == [known, here.base.fact("origin")]  # the monolith tells the one before


@pytest.mark.parametrize("last", [r"\ud800", "", r"\u0000"])
def test_an_origin_that_cannot_be_one_is_nobodys(machine: Open, last: str) -> None:
    here = machine("here")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    known = here.base.fact("origin")
    here.store.put(ORIGINS_KEY, f'{{"origins": ["{known}", "{last}"]}}'.encode())
    OldPeer(here.store).push_v2(dict(version(1, "theirs")))
    here.sync()
    assert here.path(f"{MODEL.rel}/theirs/1/raw").exists()
    assert here.base.fact("origin") == known


def test_a_list_of_origins_keeps_what_we_do_not_know(machine: Open) -> None:
    here = machine("here")
    here.service.migrate_index()
    save(here, version(1))
    here.push()
    known = here.base.fact("origin")
    told = {"origins": [known], "later": {"than": "us"}}
    here.store.put(ORIGINS_KEY, json.dumps(told).encode())
    lose_both(here)
    here.sync()
    save(here, version(2))
    here.push()
    found = json.loads(here.store.get(ORIGINS_KEY).data)
    assert found == told | {"origins": [known, here.base.fact("origin")]}
    assert len(set(found["origins"])) == 2


def test_an_origin_that_is_written_from_memory_is_listed_as_the_last_one(machine: Open) -> None:
    here, there = machine("here"), machine("there")
    there.service.migrate_index()
    save(here, version(1))
    here.sync()
    known = here.base.fact("origin")
    here.store.delete(META_KEY)
    there.push(full=True)  # what was lost is guessed: another origin
    here.store.delete(META_KEY)
    save(here, version(2))
    here.push()  # this one knows exactly what was lost, and nothing of the first loss
    told = json.loads(here.store.get(ORIGINS_KEY).data)["origins"]
    assert told[-1] == known == here.base.fact("origin")
    assert told.count(known) == 1
    assert len(told) == 2
    OldPeer(here.store).push_v2(dict(version(1, "theirs")))
    here.pull()
    assert not here.service._context.index.is_made_anew


@pytest.mark.parametrize("has_meta", [True, False])
def test_nobody_concludes_anything_from_a_migration_of_a_guess_that_was_killed(
    machine: Open, monkeypatch: pytest.MonkeyPatch, has_meta: bool
) -> None:
    here, there, third = machine("here"), machine("there"), machine("third")
    for number in (1, 2):
        save(here, version(number))
    here.push()
    there.sync()
    lost = [MONOLITH_KEY, f"{MODEL.rel}/state/1/raw", f"{MODEL.rel}/state/1/metadata.yaml"]
    lost += [shard_key(partition_of(lost[-1]))] if has_meta else [META_KEY]
    for key in lost:
        here.store.delete(key)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("swampstore.index.migration.encode_meta", killed)
        third.service.migrate_index()
    for one in (there, here, there):
        one.sync()
        assert one.read(f"{MODEL.rel}/state/1/raw") == b"content 1"
    assert remote_files(here.store) == here.files() == there.files()


def test_content_that_was_lost_is_sent_again_by_who_knows_an_index_that_had_hashes(
    machine: Open,
) -> None:
    here, there = machine("here"), machine("there")
    OldPeer(here.store).push_v1(dict(version(1)))  # whose index has no origin
    here.pull()
    for info in [one for one in here.store.list() if not one.key.startswith("data/")]:
        here.store.delete(info.key)
    there.pull()
    there.push(full=True)  # makes it anew from the objects
    raw = f"{MODEL.rel}/state/1/raw"
    here.store.delete(raw)
    here.push(full=True)
    assert remote_files(here.store)[raw] == b"content 1"


def test_metadata_that_a_late_request_made_again_revives_no_version_without_content(
    machine: Open,
) -> None:
    here, there = machine("here"), machine("there")
    for number in (1, 2):
        save(here, version(number))
    here.push()
    there.pull(metadata_only=True)
    metadata = f"{MODEL.rel}/state/2/metadata.yaml"
    late, known = here.store.get(metadata).data, there.base.get(metadata)
    assert known is not None
    # Where tokens are made of content, nothing tells the object from the one before.
    there.base.apply(known=[known._replace(etag=None)])
    delete_version(here, 2)
    here.write(f"{MODEL.rel}/state/latest", b"1")
    here.push()
    here.store.put(metadata, late)
    there.pull(metadata_only=True)
    assert not there.path(metadata).exists()
    assert there.path(f"{MODEL.rel}/state/1/metadata.yaml").exists()


@pytest.mark.parametrize("lose", [lose_meta, lose_both])
def test_a_deletion_whose_objects_are_not_gone_yet_stays_where_documents_are_lost(
    pair: tuple[Machine, Machine],
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[Machine], None],
) -> None:
    here, there = pair
    delete_version(here, 1)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Remover, "carry_out", killed)
        with pytest.raises(Killed):
            here.push()
    lose(here)
    there.sync()  # starts over, and holds the version that was deleted
    for one in (here, there, here, there):
        one.sync()
    assert not here.path(f"{MODEL.rel}/state/1").exists()
    assert here.files() == there.files()
    assert remote_index(here.store).entries.keys() == here.files().keys()
    here.push(full=True)  # comes across the note
    assert remote_files(here.store) == here.files()


@pytest.mark.parametrize("is_new", [True, False], ids=["newcomer", "known"])
def test_a_sharded_index_of_which_only_the_monolith_of_before_is_left_can_be_written_again(
    machine: Open, is_new: bool
) -> None:
    here, there, third = machine("here"), machine("there"), machine("third")
    save(here, version(1))
    here.push()
    there.pull()
    here.service.migrate_index()
    for rel in version(1):
        here.delete(rel)
    here.push()  # with the last entry of a shard goes the shard
    lose_meta(here)
    left = {info.key for info in here.store.list() if "lock" not in info.key}
    assert left == {MONOLITH_KEY, ORIGINS_KEY}
    if is_new:
        third.pull()
        save(third, version(2, "new"))
        third.push()
    for one in (there, here, third, there, here, third):
        one.sync()
    # Nobody knows any more whether what one still has was deleted.
    assert here.files() == there.files() == third.files()
    assert here.files().items() >= version(1).items()
    assert remote_files(here.store).items() >= here.files().items()
    assert remote_index(here.store).version == 2
