"""Collections that are killed, lose their lock, or meet others who are at work."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from swampstore.index import removals as removing
from swampstore.index.format import Entry
from swampstore.index.removals import REMOVALS, Remover
from swampstore.index.workers import Deadline, Done, in_parallel
from swampstore.layout import ModelRef
from swampstore.locks.manager import LockManager
from swampstore.locks.record import LockLostError, global_key, model_key
from swampstore.pipeline.gc import PlaceCollection
from swampstore.pipeline.gc import sweep as sweeping
from swampstore.pipeline.gc.candidates import Candidate
from swampstore.pipeline.gc.marks import MarkPages
from swampstore.pipeline.gc.sweep import Due, Verdict, judge, remover_of
from swampstore.pipeline.index_writer import IndexWriter, committer
from swampstore.retention.rules import Removal
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StorePermissionError
from tests.support.forked import in_child
from tests.support.garbage import (
    AT_ONCE,
    DAY,
    MODEL,
    Clock,
    data_in,
    garbage_of,
    healthy,
    kinds,
    listing,
    save,
    version,
)
from tests.support.locking import inspect
from tests.support.machines import Machine, contents
from tests.support.old_client import OldLock

T = TypeVar("T")
R = TypeVar("R")


def records(bucket: Path) -> list[str]:
    """Return the records of objects that are to be removed."""
    return [rel for rel in listing(bucket) if rel.startswith(REMOVALS)]


# Stopped ---------------------------------------------------------------------------------------


def kill(*_: object, **__: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die_when_left(
    paths: set[str], survivors: int, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be killed, instead of deleting another object, when so many of these are left."""
    delete = DirectoryStore.delete_if_match

    def delete_some(self: DirectoryStore, key: str, token: str) -> None:
        if key.startswith("data/") and len(paths & data_in(bucket)) == survivors:
            kill()
        delete(self, key, token)

    monkeypatch.setattr(DirectoryStore, "delete_if_match", delete_some)
    monkeypatch.setattr(removing, "in_parallel", one_by_one)


def one_by_one(
    work: Callable[[T], R], tasks: Iterable[T], _concurrency: int, deadline: Deadline
) -> Iterator[Done[T, R]]:
    return in_parallel(work, tasks, 1, deadline)


@pytest.mark.parametrize("moment", ["before the commit", "after it", "marker gone", "one left"])
def test_a_collection_that_is_killed_is_finished_by_the_next(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save(ana, "state", "1", "2", lifetime="1h")
    save(ana, "other", "1")
    going = {*version("state", 1, 2), "state/latest"}
    clock = Clock(bucket)

    def collect() -> None:
        if moment == "before the commit":
            monkeypatch.setattr(IndexWriter, "commit", kill)
        elif moment == "after it":
            monkeypatch.setattr(Remover, "carry_out", kill)
        else:
            survivors = {"marker gone": 4, "one left": 1}[moment]
            die_when_left(going, survivors, bucket, monkeypatch)
        clock.collect(grace=AT_ONCE)

    assert in_child(collect)
    left = going & data_in(bucket)
    assert left
    # Whoever saves the name anew before the end is not to find its old marker alone.
    assert "state/latest" not in left or left == going
    assert len(records(bucket)) == 1

    if moment == "before the commit":
        assert kinds(clock.collect(dry_run=True)) == {"state": "waiting"}
        assert kinds(clock.collect(grace=AT_ONCE)) == {"state": "swept"}
    else:
        assert clock.collect().finished == len(left)
    assert data_in(bucket) == {*version("other", 1), "other/latest"}
    assert records(bucket) == []
    with ana.open() as repo:
        repo.sync.pull()
        assert repo.latest(MODEL, "state", default=None) is None
    assert healthy(ana)


def test_what_took_the_place_of_a_doomed_object_stays(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)

    def collect() -> None:
        monkeypatch.setattr(Remover, "carry_out", kill)
        clock.collect(grace=AT_ONCE)

    assert in_child(collect)
    (bucket / f"data/{MODEL}/state/1/raw").write_bytes(b"another")

    assert clock.collect().finished == 1
    assert data_in(bucket) == {*version("state", 2), "state/latest", "state/1/raw"}


def test_a_marker_that_cannot_be_deleted_keeps_its_versions(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", "1", lifetime="1h")
    clock = Clock(bucket)
    remove = Remover._remove_noted

    def refuse(remover: Remover, one: removing.Removal) -> bool:
        if one.rel.endswith("/latest"):
            raise StorePermissionError("not yours", hint="")
        return remove(remover, one)

    with monkeypatch.context() as patched:
        patched.setattr(Remover, "_remove_noted", refuse)
        collected = clock.collect(grace=AT_ONCE)
    assert collected.warnings == ["not yours"]
    assert data_in(bucket) == {*version("state", 1), "state/latest"}
    assert clock.collect().finished == 3


def test_a_collection_that_has_lost_its_lock_deletes_no_more(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", *"123456789", garbage_collection=1)
    clock = Clock(bucket)
    delete = DirectoryStore.delete_if_match

    deleted: list[str] = []

    def check(_: object) -> None:
        if deleted:
            raise LockLostError("somebody has taken it over", hint="")

    def delete_and_lose(self: DirectoryStore, key: str, token: str) -> None:
        delete(self, key, token)
        deleted.extend([key] if key.startswith("data/") else [])

    with monkeypatch.context() as patched:
        patched.setattr(LockManager, "check", check)
        patched.setattr(DirectoryStore, "delete_if_match", delete_and_lose)
        patched.setattr(removing, "in_parallel", one_by_one)
        with pytest.raises(LockLostError):
            clock.collect(grace=AT_ONCE)
    assert len(version("state", *range(1, 9)) & data_in(bucket)) == 15
    assert len(records(bucket)) == 1
    assert clock.collect().finished == 15


def test_a_collection_that_has_lost_its_lock_takes_nothing_out_of_the_index(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    assert ana("datastore", "migrate-index").status == 0
    clock = Clock(bucket)
    before = listing(bucket / "_index")

    def asleep_for_long(*args: Any, **options: Any) -> Verdict:
        """Be overtaken by somebody who has waited in vain."""
        store, key = DirectoryStore(str(bucket)), global_key("")
        state = inspect(store, key)
        assert state is not None
        LockManager(store, "", timeout=60.0, ttl=30.0).force_release(key, state.nonce)
        return judge(*args, **options)

    monkeypatch.setattr(sweeping, "judge", asleep_for_long)
    with pytest.raises(LockLostError):
        clock.collect(grace=AT_ONCE)
    assert listing(bucket / "_index") == before
    assert version("state", 1, 2) < data_in(bucket)


def test_many_versions_of_one_name_go_a_part_at_a_time_and_the_newest_first(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", *"123456", garbage_collection=1)
    save(ana, "other", *"12", garbage_collection=1)
    monkeypatch.setattr(sweeping, "_VERSIONS", 2)
    seen: list[list[list[int]]] = []
    sweep = sweeping.Sweeper.sweep

    def observed(self: sweeping.Sweeper, batch: Sequence[Due]) -> list[sweeping.Swept]:
        seen.append([sorted(one.versions) for one in batch])
        return sweep(self, batch)

    monkeypatch.setattr(sweeping.Sweeper, "sweep", observed)
    swept = kinds(Clock(bucket).collect(grace=AT_ONCE))
    assert set(swept.values()) == {"swept"}
    assert seen == [[[1], [4, 5]], [[2, 3]], [[1]]]
    assert data_in(bucket) == {
        *(*version("state", 6), *version("other", 2)),
        *("state/latest", "other/latest"),
    }


# Others at work --------------------------------------------------------------------------------


def test_a_push_that_is_under_way_is_not_harmed(ana: Machine, bob: Machine, bucket: Path) -> None:
    save(ana, "state", "1", lifetime="1h")
    with bob.open() as repo:
        repo.sync.pull()
        repo.artifacts.save(MODEL, "state", "2", lifetime="1h")
        prepared = repo.sync.prepare_push()
        collected = Clock(bucket).collect(grace=AT_ONCE)
        repo.sync.commit_push(prepared)
    assert kinds(collected) == {"state": "kept"}
    with ana.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["1", "2"]


def test_what_is_uploaded_while_a_name_goes_is_there_after_its_commit(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    save(ana, "state", "1", lifetime="1h")
    with bob.open() as repo:
        repo.sync.pull()
        repo.artifacts.save(MODEL, "state", "2", lifetime="1h")
        prepared = repo.sync.prepare_push()
        # As if the marker were still on its way.
        (bucket / f"data/{MODEL}/state/latest").write_bytes(b"1")
        collected = Clock(bucket).collect(grace=AT_ONCE)
        repo.sync.commit_push(prepared)
    assert kinds(collected) == {"state": "swept"}
    with ana.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["2"]
    assert healthy(ana)


def test_offline_work_on_a_name_that_was_collected_is_kept(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    save(ana, "state", "1", "2", lifetime="1h")
    with bob.open() as repo:
        repo.sync.pull()
    bob.put(MODEL, "state", "3")
    assert kinds(Clock(bucket).collect(grace=AT_ONCE)) == {"state": "swept"}

    with bob.open() as repo:
        repo.sync.push()
        repo.sync.pull()
        assert contents(repo, MODEL, "state")[-1] == "3"
    with ana.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["3"]
        found = repo.latest(MODEL, "state")
        assert found is not None
        assert found.text() == "3"
    assert healthy(ana)
    assert healthy(bob)


def test_a_model_that_somebody_has_locked_is_left_alone(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    with ana.open() as repo, repo.session([MODEL]):
        assert kinds(clock.collect(grace=AT_ONCE)) == {"state/1": "kept"}
    assert kinds(clock.collect(grace=AT_ONCE)) == {"state/1": "swept"}


def test_a_model_that_another_client_has_locked_is_left_alone(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    with DirectoryStore(str(bucket)) as store:
        theirs = OldLock(store, model_key("", ModelRef.parse(MODEL)))
        theirs.acquire()
        assert kinds(clock.collect(grace=AT_ONCE)) == {"state/1": "kept"}
        theirs.release()
    assert kinds(clock.collect(grace=AT_ONCE)) == {"state/1": "swept"}


def test_two_collections_at_once_do_no_harm(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    garbage = garbage_of(clock.place, clock.now)
    first, second = (PlaceCollection(clock.place, garbage, clock.now, AT_ONCE) for _ in range(2))
    first.run()
    second.run()

    assert kinds(first) == {"state/1": "swept"}
    assert kinds(second) == {"state/1": "kept"}
    assert healthy(ana)


@pytest.mark.parametrize("sharded", [False, True])
def test_what_others_change_without_the_lock_stays(
    ana: Machine, bob: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    save(ana, "state", "1", lifetime="1h")
    save(ana, "other", "1", "2", garbage_collection=1)
    if sharded:
        assert ana("datastore", "migrate-index").status == 0
    commit = IndexWriter.commit

    def after_another(self: IndexWriter, *args: Any, **options: Any) -> None:
        monkeypatch.setattr(IndexWriter, "commit", commit)
        with monkeypatch.context() as patched:
            patched.setattr(LockManager, "committing", without_lock)
            save(bob, "state", "2", lifetime="1h")
        commit(self, *args, **options)

    with bob.open() as repo:
        repo.sync.pull()
    monkeypatch.setattr(IndexWriter, "commit", after_another)
    clock = Clock(bucket)
    assert kinds(clock.collect(grace=AT_ONCE)) == {"state": "kept", "other/1": "kept"}
    assert records(bucket) == []
    with ana.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["1", "2"]
        assert contents(repo, MODEL, "other") == ["1", "2"]
    assert healthy(ana)


@contextlib.contextmanager
def without_lock(_: LockManager, meanwhile: Callable[[], None]) -> Iterator[Callable[..., None]]:
    meanwhile()
    yield lambda *_: None


def test_a_record_of_doomed_objects_removes_nothing_but_data(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1")
    clock = Clock(bucket)
    with committer(clock.place) as writer:
        rels = ["_index/_meta.json", f"data/{MODEL}/state/1/raw"]
        wanted = [removing.Removal(rel, writer.store.head(rel).size) for rel in rels]
        remover_of(writer).note(removing.new_note(), wanted)
    before = listing(bucket)

    assert clock.collect().finished == 0
    assert listing(bucket).items() >= {rel: before[rel] for rel in rels}.items()


def test_content_that_was_uploaded_and_not_committed_yet_keeps_its_name(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    save(ana, "log", "1", streaming=True, lifetime="1h")
    raw = bucket / f"data/{MODEL}/log/1/raw"
    with bob.open() as repo:
        repo.sync.pull()
        repo.artifacts.append(MODEL, "log", b"more")
        metadata = raw.with_name("metadata.yaml").read_bytes()
        prepared = repo.sync.prepare_push()
        # As if the metadata were still on its way.
        raw.with_name("metadata.yaml").write_bytes(metadata)
        assert kinds(Clock(bucket).collect(grace=AT_ONCE)) == {"log": "kept"}
        assert raw.read_bytes() == b"1more"
        del prepared


def test_a_name_that_is_saved_anew_while_a_collection_is_finished_is_whole(
    ana: Machine, bob: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", "old", lifetime="1h")
    clock = Clock(bucket)

    def collect() -> None:
        die_when_left({*version("state", 1), "state/latest"}, 1, bucket, monkeypatch)
        clock.collect(grace=AT_ONCE)

    assert in_child(collect)
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "new")
        prepared = repo.sync.prepare_push()
        clock.collect()
        repo.sync.commit_push(prepared)
    with ana.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["new"]
    assert healthy(ana)


# Marks -----------------------------------------------------------------------------------------


def test_what_was_swept_is_marked_no_more(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    clock.collect()
    assert kinds(clock.collect(after=DAY)) == {"state/1": "swept"}
    before = listing(bucket)
    assert clock.collect().unmarked == 0
    assert listing(bucket) == before


def test_a_mark_that_a_wrong_clock_made_begins_anew(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    assert kinds(clock.collect(after=10 * DAY)) == {"state/1": "marked"}
    assert kinds(clock.collect(after=-9 * DAY)) == {"state/1": "marked"}
    assert kinds(clock.collect(after=DAY / 2)) == {"state/1": "waiting"}
    assert kinds(clock.collect(after=DAY / 2)) == {"state/1": "swept"}


def test_of_two_collections_that_mark_at_once_the_marks_of_one_stand(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    listed = MarkPages.listed

    def before_another(pages: MarkPages) -> Any:
        found = listed(pages)
        monkeypatch.setattr(MarkPages, "listed", listed)
        clock.collect()
        return found

    monkeypatch.setattr(MarkPages, "listed", before_another)
    late = PlaceCollection(clock.place, garbage_of(clock.place, clock.now), clock.now + DAY, DAY)
    late.run()
    assert late.warnings == ["another collection marked at the same time; its marks stand"]
    assert kinds(clock.collect(after=DAY)) == {"state/1": "swept"}


# What is read ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due", "marker", "read"),
    [
        ({0}, b"6", [1, 2, 3, 4, 5, 6]),
        ({3, 4}, b"6", [3, 4, 5, 6]),
        ({4}, b"2", [2, 4, 5, 6]),
        ({4}, b"nonsense", [4, 5, 6]),
    ],
)
def test_only_metadata_that_can_matter_is_read(
    due: set[int], marker: bytes, read: list[int]
) -> None:
    removal = Removal("aws/ec2", "i-1", "state", ())
    base = f"data/{MODEL}/state"
    files = {f"data/{MODEL}/{rel}" for rel in version("state", *range(1, 7))}
    entries = dict.fromkeys({*files, f"{base}/latest"}, Entry(1, ""))
    candidate = Candidate(removal, dict.fromkeys(due, ""))
    found = sweeping._decisive_metadata(
        Due(candidate, frozenset(due)), entries, {f"{base}/latest": marker}
    )
    assert found == [f"{base}/{one}/metadata.yaml" for one in read]
