"""What several machines do at the same time, in the orders that once went wrong."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from swampstore.index.changes import index_moved
from swampstore.index.errors import IndexMovedError
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.workers import Deadline, Done
from swampstore.layout import METADATA, RAW, DataRef, ModelRef
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Written
from swampstore.sync import transfer
from swampstore.sync.downloads import Brought, Download, Downloader
from swampstore.sync.install import PlainInstaller
from swampstore.sync.service import SyncService
from swampstore.testing.sync import Host
from tests.support.broken_store import BrokenStore, Killed
from tests.support.remotes import Remote
from tests.support.staging import metadata_of
from tests.support.sync_harness import Machine, assert_sound, remote_index
from tests.sync.test_conformance import RestartingMachine

STATE = DataRef(ModelRef("aws/ec2", "i-1"), "state")
OTHER = DataRef(ModelRef("probe", "p"), "state")
PLAIN = "files/notes.txt"

NewHost = Callable[[], Host]


@pytest.fixture
def new_host(memory_remote: Remote, tmp_path: Path) -> Iterator[NewHost]:
    machines: list[RestartingMachine] = []

    def new() -> Host:
        machines.append(RestartingMachine(tmp_path / str(len(machines)), memory_remote, ""))
        return Host(machines[-1])

    yield new
    for machine in machines:
        machine.close()


def service(host: Host) -> SyncService:
    assert isinstance(host.machine, RestartingMachine)
    return host.machine.service


def agree(*hosts: Host) -> None:
    for _ in range(2):
        for host in hosts:
            host.pull()
            host.push()
    for host in hosts:
        host.pull()
        assert host.files() == hosts[0].files()


def contents(host: Host, ref: DataRef) -> list[bytes | None]:
    return list(host.versions(ref).values())


# An object that a push has met


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("prepared_before", [0, 1])
def test_what_a_push_met_on_the_remote_and_others_removed_meanwhile_is_uploaded(
    new_host: NewHost, memory_remote: Remote, *, is_replaced: bool, prepared_before: int
) -> None:
    dead, host, fresh = new_host(), new_host(), new_host()
    fresh.save(OTHER, b"so that there is an index")
    fresh.push()
    for one in (dead, host):
        one.write(PLAIN, b"equal")
    dead.service.prepare_push()
    for _ in range(prepared_before):
        host.service.prepare_push()
    prepared = host.service.prepare_push()
    with memory_remote.open() as store:
        store.delete(PLAIN)
        if is_replaced:
            store.put(PLAIN, b"other")
    host.service.commit_push(prepared)
    agree(host, fresh)
    assert b"equal" in fresh.files().values()


def test_a_push_of_a_model_that_is_overtaken_looks_again_at_all_of_it(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, fresh = new_host(), new_host()
    host.save(STATE, b"content")
    marks = service(host)._context.tracker
    marks.settle(marks.snapshot())  # so that nothing but a look at all files tells of it
    commit = RemoteIndex.commit

    def be_overtaken(*_: object, **__: object) -> None:
        monkeypatch.setattr(RemoteIndex, "commit", commit)
        raise index_moved("others were faster", ())

    monkeypatch.setattr(RemoteIndex, "commit", be_overtaken)
    assert service(host).push([STATE.model], full=True).files == 3
    agree(host, fresh)
    assert contents(fresh, STATE) == [b"content"]


def _fail_to_delete(store: BrokenStore, key: str) -> None:
    raise StoreUnreachableError(f"{key} cannot be deleted from {store}", hint="Try again.")


def test_what_others_told_of_meanwhile_is_not_removed_with_what_a_push_left(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, other, fresh = new_host(), new_host(), new_host()
    host.write(PLAIN, b"equal")
    host.push()
    host.remove(PLAIN)
    with monkeypatch.context() as patch:
        patch.setattr(BrokenStore, "delete", _fail_to_delete)
        host.push()
    host.write("files/more.txt", b"more")
    other.write(PLAIN, b"equal")
    prepared, meanwhile = host.service.prepare_push(), other.service.prepare_push()
    other.service.commit_push(meanwhile)
    host.service.commit_push(prepared)
    agree(other, fresh)
    assert fresh.files()[PLAIN] == b"equal"


# A push that is never finished


def test_what_others_took_for_data_before_the_first_commit_is_told_with_its_hash(
    new_host: NewHost, memory_remote: Remote
) -> None:
    host, other = new_host(), new_host()
    host.save(STATE, b"ours")
    prepared = host.service.prepare_push()
    other.save(OTHER, b"theirs")
    other.push()  # as there is no index, it names also what has just been sent
    with memory_remote.open() as store:
        entries = remote_index(store).entries
        assert not any("sha256" in one for rel, one in entries.items() if "i-1" in rel)
        host.service.commit_push(prepared)
        assert all("sha256" in one for one in remote_index(store).entries.values())
    agree(host, other)
    assert contents(host, STATE) == [b"ours"]


def test_what_others_put_in_the_place_of_an_upload_without_a_hash_is_not_replaced(
    new_host: NewHost, memory_remote: Remote
) -> None:
    host, other = new_host(), new_host()
    host.save(STATE, b"ours")
    prepared = host.service.prepare_push()
    other.save(OTHER, b"theirs")
    other.push()
    other.pull()
    other.remove(STATE.rel)
    other.push()
    other.save(STATE, b"also")
    other.push()
    host.service.commit_push(prepared)
    agree(host, other)
    assert contents(host, STATE) == [b"also", b"ours"]


def test_a_push_that_died_does_not_keep_others_from_pulling(new_host: NewHost) -> None:
    dead, other, fresh = new_host(), new_host(), new_host()
    other.save(STATE, b"1")
    other.write(PLAIN, b"old")
    other.push()
    dead.pull()
    dead.save(STATE, b"2")
    dead.write(PLAIN, b"new")
    dead.service.prepare_push()
    pulled = service(fresh).pull()
    assert fresh.versions(STATE) == {1: b"1"}
    assert fresh.latest(STATE) == 1
    assert PLAIN not in fresh.files()
    assert {one.rel for one in pulled.skipped} == {STATE.latest_rel, PLAIN}
    dead.push()
    agree(dead, other, fresh)
    assert fresh.files()[PLAIN] == b"new"
    assert fresh.latest(STATE) == 2


def test_the_marker_of_a_push_that_died_does_not_keep_others_from_pushing(
    new_host: NewHost,
) -> None:
    dead, other, fresh = new_host(), new_host(), new_host()
    other.save(STATE, b"1")
    other.push()
    dead.pull()
    dead.save(STATE, b"dead")
    dead.service.prepare_push()
    fresh.pull()
    for host, content in ((fresh, b"of fresh"), (other, b"of other")):
        host.save(STATE, content)
        host.push()
    agree(fresh, other)
    assert contents(other, STATE) == [b"1", b"of fresh", b"of other"]
    assert other.latest(STATE) == max(other.versions(STATE))
    agree(fresh, other, dead)
    assert contents(other, STATE)[-1] == b"dead"
    assert other.latest(STATE) == max(other.versions(STATE))


def test_what_a_push_that_died_has_overwritten_is_restored(new_host: NewHost) -> None:
    host, fresh = new_host(), new_host()
    host.save(STATE, b"1")
    host.write(PLAIN, b"old")
    host.push()
    host.write(PLAIN, b"new")
    host.save(STATE, b"2")
    host.service.prepare_push()
    host.machine.restart()
    host.write(PLAIN, b"old")
    host.mark(STATE.rel)
    host.remove(STATE.version_rel(2))
    host.put(STATE.latest_rel, b"1")
    host.push()
    assert not service(fresh).pull().skipped
    assert fresh.files() == host.files()


def test_versions_that_move_out_of_the_way_are_sent_again(new_host: NewHost) -> None:
    first, second = new_host(), new_host()
    first.write(PLAIN, b"the remote has an index")
    first.push()
    second.save(STATE, b"1")
    second.save(STATE, b"2")
    first.save(STATE, b"prepared")
    first.service.prepare_push()
    second.push()
    fresh = new_host()
    fresh.pull()
    assert contents(fresh, STATE) == [b"1", b"2"]
    agree(first, second, fresh)
    assert contents(fresh, STATE) == [b"1", b"2", b"prepared"]


def test_a_prepared_push_is_not_about_what_another_push_has_settled(new_host: NewHost) -> None:
    host, other = new_host(), new_host()
    host.save(OTHER, b"1")
    host.write(PLAIN, b"1")
    prepared = host.service.prepare_push()
    host.push()
    shutil.rmtree(host.path(OTHER.rel))
    host.service.commit_push(prepared)
    other.pull()
    assert other.versions(OTHER) == {1: b"1"}


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_commit_that_began_before_a_migration_looks_again(
    new_host: NewHost, memory_remote: Remote, is_empty: bool
) -> None:
    slow, migrating, third = new_host(), new_host(), new_host()
    if not is_empty:
        migrating.write(PLAIN, b"1")
        migrating.push()
    slow.save(STATE, b"slow")
    prepared = slow.service.prepare_push()
    service(migrating).migrate_index()
    third.save(OTHER, b"third")
    third.push()
    slow.service.commit_push(prepared)
    index = remote_index(memory_remote.open())
    assert index.version == 2
    assert {STATE.file_rel(1, "raw"), OTHER.file_rel(1, "raw")} <= index.entries.keys()
    agree(slow, migrating, third)
    assert contents(migrating, STATE) == [b"slow"]
    assert contents(migrating, OTHER) == [b"third"]


# Deletions that cross, or are none


def test_content_of_which_not_even_the_metadata_arrived_is_not_deleted(new_host: NewHost) -> None:
    first, second = new_host(), new_host()
    first.save(STATE, b"1")
    first.push()
    machine = second.machine
    assert isinstance(machine, RestartingMachine)
    for requests in range(6):
        machine.store.fail_after(requests, is_done=True, kills=True)
        with contextlib.suppress(Killed):
            second.service.pull(metadata_only=True)
        machine.restart()
        second.mark(STATE.rel)
        second.push()
    first.pull()
    assert first.versions(STATE) == {1: b"1"}


def test_two_deletions_of_versions_leave_a_marker_that_is_right(new_host: NewHost) -> None:
    first, second = new_host(), new_host()
    for number in (1, 2, 3):
        first.save(STATE, b"%d" % number)
    first.push()
    second.pull()
    first.mark(STATE.rel)
    first.remove(STATE.version_rel(3))
    first.put(STATE.latest_rel, b"2")
    second.remove(STATE.version_rel(2))
    first.push()
    second.push()
    agree(first, second)
    assert first.versions(STATE) == {1: b"1"}
    assert first.latest(STATE) == 1


@pytest.mark.parametrize("batch", [1, 3, 5, 100])
def test_a_marker_that_was_right_when_it_came_is_looked_at_again_after_more_came(
    new_host: NewHost, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_host(), new_host()
    first.save(STATE, b"1")
    first.push()
    first.put(STATE.file_rel(2, METADATA), metadata_of(STATE.name, 2, b"2"))
    first.put(STATE.file_rel(2, RAW), b"2")
    first.mark(STATE.rel)
    first.push()
    assert first.latest(STATE) == 1
    monkeypatch.setattr(transfer, "BATCH", batch)
    monkeypatch.setattr(transfer, "fetch_all", _in_order_of_versions)
    second.pull()
    assert second.latest(STATE) == 2


def _in_order_of_versions(
    downloader: Downloader, downloads: Iterable[Download], concurrency: int, deadline: Deadline
) -> Iterator[Done[Download, Brought]]:
    """Fetch the first version with the marker, and the second one afterwards."""
    del concurrency, deadline
    for one in sorted(downloads, key=lambda one: "/2/" in one.rel):
        yield Done(one, downloader.fetch(one), None)


def test_a_name_that_is_deleted_by_somebody_who_had_not_all_of_it_gets_a_marker(
    new_host: NewHost,
) -> None:
    first, second = new_host(), new_host()
    first.save(STATE, b"first")
    first.push()
    second.save(STATE, b"second")
    second.push()
    second.remove(STATE.rel)
    second.push()
    agree(first, second)
    assert second.versions(STATE) == {1: b"first"}
    assert second.latest(STATE) == 1


def test_a_file_that_was_taken_over_in_a_conflict_is_deleted_with_the_others(
    new_host: NewHost,
) -> None:
    first, second = new_host(), new_host()
    first.write("definitions/x", b"first")
    first.push()
    second.write("definitions/x", b"second")
    second.push()
    assert second.files()["definitions/x"] == b"first"
    first.remove("definitions/x")
    first.push()
    agree(first, second)
    assert list(second.files().values()) == [b"second"]


def test_versions_past_all_others_keep_their_numbers(new_host: NewHost) -> None:
    first, second = new_host(), new_host()
    first.save(STATE, b"1")
    first.push()
    second.save(STATE, b"mine")
    second.put(STATE.file_rel(2, "raw"), b"gap")
    assert second.save(STATE, b"mine, too") == 3
    shutil.rmtree(second.path(STATE.version_rel(2)))
    second.push()
    agree(first, second)
    assert first.versions(STATE) == {1: b"1", 2: b"mine", 3: b"mine, too"}


def test_who_is_killed_when_a_version_has_got_another_number_fetches_the_one_that_took_its_place(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_host(), new_host()
    first.save(STATE, b"theirs")
    first.push()
    second.pull()
    # Somebody removes it from the cache by hand, so the numbers begin anew.
    shutil.rmtree(second.path(STATE.rel))
    assert second.save(STATE, b"mine") == 1
    service(second)._context.tracker.settle(service(second)._context.tracker.snapshot())
    for file in ("raw", "metadata.yaml"):
        service(second)._context.tracker.mark_written(STATE.file_rel(1, file))
    real = PlainInstaller.renumber

    def killed_after(installer: PlainInstaller, name_rel: str, moves: Mapping[int, int]) -> None:
        real(installer, name_rel, moves)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PlainInstaller, "renumber", killed_after)
        with pytest.raises(Killed):
            second.push()
    agree(first, second)
    assert second.versions(STATE) == {1: b"theirs", 2: b"mine"}


@pytest.mark.parametrize("rel", [".catalog-export.json", "definitions-evaluated/a/b/c.yaml"])
def test_what_is_computed_again_is_never_kept_twice(new_host: NewHost, rel: str) -> None:
    a, b = new_host(), new_host()
    a.write(PLAIN, b"so that there is an index")
    agree(a, b)
    a.write(rel, b"made by a")
    service(a).prepare_push()
    b.write(rel, b"made by b")
    b.push()
    a.push()
    agree(a, b)
    assert a.files().keys() == {PLAIN, rel}


@pytest.mark.parametrize("rel", [".catalog-export.json", "definitions-evaluated/a/b/c.yaml"])
def test_what_was_computed_again_here_is_shared_though_others_have_removed_it(
    new_host: NewHost, rel: str
) -> None:
    a, b = new_host(), new_host()
    a.write(rel, b"made by a")
    agree(a, b)
    a.remove(rel)
    a.push()
    b.write(rel, b"made by b")
    agree(b, a)
    assert a.files() == {rel: b"made by b"}


# Records of runs


def _record(*statuses: str) -> bytes:
    steps = [{"stepName": str(at), "status": one} for at, one in enumerate(statuses)]
    jobs = [{"jobName": "j", "steps": steps}]
    return json.dumps({"id": "r", "workflowId": "w", "jobs": jobs}).encode()


def test_a_run_that_goes_on_while_its_record_is_settled_keeps_what_it_said_last(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rel = "workflow-runs/w/workflow-run-r.yaml"
    a, b = new_host(), new_host()
    a.write(rel, _record("succeeded", "pending", "pending"))
    a.push()
    b.write(rel, _record("succeeded", "succeeded", "pending"))
    keep, copies = PlainInstaller.keep_copy, []

    def go_on(installer: PlainInstaller, source: str, target: str) -> None:
        keep(installer, source, target)
        copies.append(target)
        if len(copies) == 2:
            b.write(rel, _record("succeeded", "succeeded", "succeeded"))

    monkeypatch.setattr(PlainInstaller, "keep_copy", go_on)
    agree(b, a)
    assert a.files()[rel] == _record("succeeded", "succeeded", "succeeded")


def test_a_run_that_went_on_is_where_it_is_though_a_killed_push_had_sent_where_it_was(
    new_host: NewHost, memory_remote: Remote, tmp_path: Path
) -> None:
    """Nobody has told of that, and a base that was lost does not tell whose it is."""
    rel, cache = "workflow-runs/w/workflow-run-r.yaml", tmp_path / "host"
    other = new_host()
    other.write(PLAIN, b"so that there is an index")
    other.push()
    with Machine(cache, memory_remote.open()) as before:
        before.write(rel, _record("succeeded", "waiting_approval"))
        before.service.prepare_push()
    for one in cache.glob("_catalog.db-base*"):
        one.unlink()
    with Machine(cache, memory_remote.open()) as after:
        after.write(rel, _record("succeeded", "succeeded"))
        _, pushed = after.sync()
        assert [one.rel for one in pushed.conflicts] == [rel]
        assert after.read(rel) == _record("succeeded", "succeeded")
    other.pull()
    found = other.files()
    assert found.pop(rel) == _record("succeeded", "succeeded")
    assert _record("succeeded", "waiting_approval") in found.values()
    with memory_remote.open() as store:
        assert_sound(store)


# Large content


def _before_the_content_is_written(
    monkeypatch: pytest.MonkeyPatch, host: Host, meanwhile: Callable[[], object]
) -> list[str]:
    """Do something between whatever a push looked at and its first write of content.

    The other files of the version wait until the content is there.
    """
    assert isinstance(host.machine, RestartingMachine)
    store, met, is_written = host.machine.store, list[str](), threading.Event()

    def hooked(operation: str, write: Callable[..., Written], key: str, *args: object) -> Written:
        if not key.endswith("/raw"):
            assert not key.startswith("data/") or is_written.wait(30)
            return write(key, *args)
        met.append(operation)
        if len(met) == 1:
            meanwhile()
        try:
            return write(key, *args)
        finally:
            is_written.set()

    for operation in ("put", "put_if_absent", "put_if_match"):
        write = getattr(store, operation)
        monkeypatch.setattr(store, operation, partial(hooked, operation, write))
    return met


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_of_two_machines_that_save_a_large_version_1_at_once_none_loses_its_bytes(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    remote: Remote = request.getfixturevalue(f"{kind}_remote")
    size = 5 << 20
    with contextlib.ExitStack() as stack:
        machines = [RestartingMachine(tmp_path / name, remote, "") for name in "abc"]
        ana, bob, fresh = (Host(stack.enter_context(contextlib.closing(one))) for one in machines)
        fresh.save(OTHER, b"so that there is an index")
        fresh.push()
        ana.save(STATE, b"a" * size)
        bob.save(STATE, b"b" * size)
        met = _before_the_content_is_written(monkeypatch, ana, bob.push)
        with contextlib.suppress(IndexMovedError):
            ana.push()
        assert met[0] == "put_if_absent"
        agree(ana, bob, fresh)
        for host in (ana, bob, fresh):
            assert {content[:1] for content in contents(host, STATE) if content} == {b"a", b"b"}
            assert {len(content or b"") for content in contents(host, STATE)} == {size}
