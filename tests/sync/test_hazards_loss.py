"""Ways in which sync has lost data silently, each played through between machines and a remote.

The number in a test's name says which of them; all of them happened, or could have, to clients
that share remotes and caches with us. Those play their part here as `OldPeer` and `OldClient`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore.errors import DiskError
from swampstore.index.errors import IncompleteSyncError
from swampstore.index.partitions import META_KEY, MONOLITH_KEY
from swampstore.index.results import Step
from swampstore.layout import ModelRef
from swampstore.stores.errors import StoreError
from tests.support.broken_store import BrokenStore
from tests.support.fault_proxy import Status
from tests.support.old_client import SIDECAR, OldClient, OldPeer
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.sync_harness import Machine, assert_sound, remote_files, remote_index

Open = Callable[..., Machine]

MODEL = ModelRef("aws/ec2", "i-1")
HOME = f"{MODEL.rel}/state"
NOTES = "files/notes"


def version(number: int, home: str = HOME) -> dict[str, bytes]:
    """Return the files that saving one more version writes; all markers have the same size."""
    return {
        f"{home}/{number}/raw": b"content %d" % number,
        f"{home}/{number}/metadata.yaml": b"version: %d\n" % number,
        f"{home}/latest": b"%d" % number,
    }


def save(machine: Machine, files: Mapping[str, bytes]) -> None:
    for rel, data in files.items():
        machine.write(rel, data)


def sidecar(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((machine.cache / SIDECAR).read_bytes())
    return found


@pytest.fixture
def machine(memory_remote: Remote, tmp_path: Path) -> Iterator[Open]:
    """Opens machines by the name of their cache; opening one again is another process on it."""
    opened: list[Machine] = []

    def open_machine(name: str = "a", namespace: str = "") -> Machine:
        opened.append(Machine(tmp_path / name, memory_remote.open(), namespace))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.close()


@pytest.fixture
def peer(memory_remote: Remote) -> OldPeer:
    return OldPeer(memory_remote.open())


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def sharded(request: pytest.FixtureRequest, machine: Open) -> bool:
    """Whether the remote, still empty, has the sharded index."""
    if request.param == 2:
        machine("migrating").service.migrate_index()
    return bool(request.param == 2)


# H1, H2: the monolith of a sharded remote is frozen ------------------------------------------


@pytest.mark.parametrize("push", [OldPeer.push_monolith_only, OldPeer.push_v1])
def test_h1_a_reader_that_knows_the_monolith_from_before_a_migration_still_pulls(
    machine: Open, peer: OldPeer, push: Callable[..., object]
) -> None:
    a = machine()
    push(peer, version(1))
    a.pull()
    assert a.pull().changes == 0
    frozen = peer.store.get(MONOLITH_KEY).data
    peer.migrate()
    for number in (2, 3):
        peer.push_v2(version(number))
        assert machine().pull().files == 3
    assert a.files() == {**version(1), **version(2), **version(3)}
    assert peer.store.get(MONOLITH_KEY).data == frozen
    # What we tell other clients of this cache must not catch them either.
    assert sidecar(a)["remoteIndexETag"] == ""
    assert sidecar(a)["commitSeq"] == 3


def test_h1_work_from_before_a_migration_goes_to_the_shards(machine: Open, peer: OldPeer) -> None:
    a = machine()
    peer.push_v1(version(1))
    a.pull()
    peer.migrate()
    frozen = peer.store.get(MONOLITH_KEY).data
    save(a, version(2))
    a.push()
    assert peer.store.get(MONOLITH_KEY).data == frozen
    assert peer.read(META_KEY)["commitSeq"] == 2
    assert remote_index(peer.store).entries.keys() == a.files().keys()


def test_h2_a_model_without_a_shard_has_no_data_and_is_seen_when_it_gets_some(
    machine: Open, peer: OldPeer
) -> None:
    peer.push_v1(version(1))
    peer.migrate()
    peer.push_v2(dict.fromkeys(version(1)))
    a = machine()
    assert a.pull([MODEL]).changes == 0
    assert a.files() == {}
    assert sidecar(a)["remoteIndexETag"] == ""
    peer.push_v2(version(2))
    assert machine().pull([MODEL]).files == 3
    assert a.files() == version(2)


# H3: not everything of a model is in its shard -----------------------------------------------


@pytest.mark.parametrize("kind", ["probe", "aws/ec2", "a/b/c/d"])
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_h3_a_scoped_pull_brings_markers_outputs_and_definitions(
    machine: Open, peer: OldPeer, sharded: bool, kind: str, writer: str
) -> None:
    model, other = ModelRef(kind, "m"), ModelRef(kind, "n")
    output, definition = f"outputs/{kind}/run/x.yaml", f"definitions-evaluated/{kind}/n.yaml"
    own = {**version(1, f"{model.rel}/state"), output: b"1", definition: b"1"}
    if writer == "theirs":
        del own[definition]  # they leave some definitions out of every shard
    a, b = machine("a"), machine("b")

    def push(files: Mapping[str, bytes]) -> None:
        if writer == "ours":
            save(a, files)
            a.push()
        elif sharded:
            peer.push_v2(files)
        else:
            peer.push_v1(files)

    push({**own, **version(1, f"{other.rel}/state"), "logs/x": b"1"})
    b.pull([model])
    assert b.files() == own
    changed = {**version(2, f"{model.rel}/state"), output: b"2"}
    push({**changed, **version(2, f"{other.rel}/state")})
    b.pull([model])
    assert b.files() == {**own, **changed}


# H4, H5, H6: absence is deletion only with evidence ------------------------------------------

MANY = {f"files/{number:03}": b"%d" % number for number in range(250)}


@pytest.mark.slow
def test_h4_more_deletions_than_the_sidecar_can_name_delete_only_those(
    machine: Open, sharded: bool
) -> None:
    a, b = machine("a"), machine("b")
    save(a, MANY)
    a.push()
    save(b, {NOTES: b"of b", **version(1)})
    b.push()
    for rel in MANY:
        a.delete(rel)
    assert sidecar(a)["bulkInvalidated"]
    assert not sidecar(a).get("dirtyPathsOverflowed")
    assert machine("a").push().deleted == len(MANY)
    assert remote_files(a.store) == {NOTES: b"of b", **version(1)}
    assert remote_index(a.store).entries.keys() == {NOTES, *version(1)}


def test_h4_an_overflow_that_another_client_left_deletes_nothing(
    machine: Open, sharded: bool
) -> None:
    a, b = machine("a"), machine("b")
    save(b, {NOTES: b"of b", "files/000": b"of b"})
    b.push()
    old = OldClient(a.cache)
    for rel, data in MANY.items():
        old.mark(rel)
        if rel != "files/000":
            a.write_unmarked(rel, data)
    assert sidecar(a)["dirtyPathsOverflowed"]
    pushed = a.push()
    assert (pushed.files, pushed.deleted) == (len(MANY) - 1, 0)
    assert remote_files(a.store) == {**MANY, NOTES: b"of b", "files/000": b"of b"}


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Directories that cannot be listed, for whatever reason and whoever asks."""
    paths: set[str] = set()
    scandir = os.scandir

    def refusing(path: str = ".") -> object:
        if path in paths:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return paths


def test_h5_a_directory_that_cannot_be_walked_stops_the_push_and_nothing_is_clean(
    machine: Open, unreadable: set[str], sharded: bool
) -> None:
    a = machine()
    save(a, {"files/gone": b"1", "audit/shared": b"1"})
    a.push()
    a.delete("files/gone")
    a.write_unmarked("audit/new", b"2")
    a.service.mark_dirty()
    unreadable.add(str(a.path("audit")))
    with pytest.raises(DiskError, match="audit"):
        a.push()
    assert remote_files(a.store) == {"files/gone": b"1", "audit/shared": b"1"}
    unreadable.clear()
    pushed = machine().push()
    assert (pushed.files, pushed.deleted) == (1, 1)
    assert remote_files(a.store) == {"audit/shared": b"1", "audit/new": b"2"}


def test_h5_files_and_directories_that_vanish_during_a_walk_do_not_end_it(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = machine()
    for rel in ("audit/1", "audit/2", "files/1", "logs/deep/1", "logs/deep/2"):
        a.write_unmarked(rel, b"x")
    scandir = os.scandir

    def too_late(path: str) -> object:
        with scandir(path) as entries:
            found = list(entries)
        if path == str(a.path("audit")):
            a.path("audit/1").unlink()
        if path == str(a.path("logs")):
            a.path("logs/deep/1").unlink()
            a.path("logs/deep/2").unlink()
            a.path("logs/deep").rmdir()
        return contextlib.nullcontext(found)

    monkeypatch.setattr(os, "scandir", too_late)
    assert a.push().files == 2
    assert remote_files(a.store).keys() == {"audit/2", "files/1"}


def test_h6_a_marked_directory_in_a_cold_cache_deletes_no_siblings(
    machine: Open, sharded: bool
) -> None:
    a, cold = machine("a"), machine("cold")
    shared = {**version(1), "files/d/1": b"1", "outputs/aws/ec2/run/1.yaml": b"1"}
    save(a, shared)
    a.push()
    cold.push()  # so that no walk is due, and it is the marks that count
    for rel in (HOME, "data", "files/d", "outputs"):
        cold.service.mark_dirty(rel)
    cold.write_unmarked("files/d/2", b"2")
    pushed = cold.push()
    assert (pushed.files, pushed.deleted) == (1, 0)
    assert remote_files(a.store) == {**shared, "files/d/2": b"2"}
    assert remote_index(a.store).entries.keys() == {*shared, "files/d/2"}


def test_h6_a_scoped_pull_is_no_evidence_about_the_rest(machine: Open, sharded: bool) -> None:
    a, partial = machine("a"), machine("partial")
    other = ModelRef("aws/ec2", "i-2")
    save(a, {**version(1), **version(1, f"{other.rel}/state")})
    a.push()
    partial.pull([MODEL])
    partial.push()
    partial.service.mark_dirty("data/aws/ec2")
    partial.service.mark_dirty(other.rel)
    assert partial.push().changes == 0
    assert remote_index(a.store).entries.keys() == a.files().keys()


# H7: deletions by others ---------------------------------------------------------------------


@pytest.mark.parametrize("pulls", [True, False], ids=["pulled", "not pulled"])
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_h7_what_others_deleted_is_not_uploaded_by_the_next_full_walk(
    machine: Open, peer: OldPeer, sharded: bool, pulls: bool, writer: str
) -> None:
    a, b = machine("a"), machine("b")
    save(a, {**version(1), NOTES: b"1", "files/kept": b"1"})
    a.push()
    b.pull()
    gone = dict.fromkeys([*version(1), NOTES])
    if writer == "theirs":
        (peer.push_v2 if sharded else peer.push_v1)(gone)
    else:
        for rel in gone:
            a.delete(rel)
        a.push()
    if pulls:
        assert b.pull().deleted == len(gone)
        assert b.files() == {"files/kept": b"1"}
    b.service.mark_dirty()
    b.push(full=True)
    assert remote_files(b.store) == {"files/kept": b"1"}
    b.pull()
    assert b.files() == {"files/kept": b"1"}


# H8: lazy caches -----------------------------------------------------------------------------


@pytest.mark.parametrize("models", [None, [MODEL]], ids=["full", "scoped"])
def test_h8_a_new_process_after_a_lazy_pull_fetches_the_content(
    machine: Open, sharded: bool, models: list[ModelRef] | None
) -> None:
    a = machine("a")
    save(a, version(1))
    a.push()
    machine("b").pull(metadata_only=True)
    b = machine("b")
    assert f"{HOME}/1/raw" not in b.files()
    assert b.pull(metadata_only=True).files == 0
    assert b.pull(models).files == 1
    assert b.files() == version(1)


# H9: changes of the same size ----------------------------------------------------------------


@pytest.mark.parametrize("hashes", [True, False], ids=["with hashes", "without"])
@pytest.mark.parametrize("pulls", [True, False], ids=["pulled", "not pulled"])
def test_h9_a_marker_of_the_same_size_is_pulled_and_never_pushed_back(
    machine: Open, peer: OldPeer, hashes: bool, pulls: bool
) -> None:
    peer.push_v1({**version(1), NOTES: b"one"}, hashes=hashes)
    a = machine()
    a.pull()
    a.push()
    peer.push_v1({**version(2), NOTES: b"two"}, hashes=hashes)
    if pulls:
        a.pull()
        assert (a.read(f"{HOME}/latest"), a.read(NOTES)) == (b"2", b"two")
    else:
        a.service.mark_dirty(HOME)
    a.service.mark_dirty()
    a.push(full=True)
    assert peer.store.get(f"{HOME}/latest").data == b"2"
    assert peer.store.get(NOTES).data == b"two"
    machine().pull()
    assert a.files() == {**version(1), **version(2), NOTES: b"two"}


def test_h9_a_change_of_the_same_size_travels_between_our_own_machines(
    machine: Open, sharded: bool
) -> None:
    a, b = machine("a"), machine("b")
    save(a, {**version(1), NOTES: b"one"})
    a.push()
    b.pull()
    save(a, {**version(2), NOTES: b"two"})
    a.push()
    b.pull()
    b.push(full=True)
    assert b.files() == a.files()
    assert remote_files(b.store) == a.files()


# H10: a failed push, and a pull after it -----------------------------------------------------


@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_h10_a_pull_after_a_failed_push_keeps_the_edits_and_their_marks(
    memory_remote: Remote, tmp_path: Path, machine: Open, peer: OldPeer, sharded: bool, writer: str
) -> None:
    other = machine("other")
    save(other, {NOTES: b"1", "files/other": b"1"})
    other.push()
    store = BrokenStore(memory_remote.open())
    with Machine(tmp_path / "a", store) as a:
        a.pull()
        a.push()
        save(a, {NOTES: b"edited here", "files/new": b"new"})
        with store.offline(), pytest.raises(StoreError):
            a.push()
        theirs = {NOTES: b"edited there!", "files/other": b"2"}
        if writer == "ours":
            save(other, theirs)
            other.push()
        else:
            (peer.push_v2 if sharded else peer.push_v1)(theirs)
        a.pull()
        assert a.files() == {
            NOTES: b"edited here",
            "files/new": b"new",
            "files/other": b"2",
        }
        assert sidecar(a)["localDirty"]
        assert set(sidecar(a)["dirtyPaths"]) == {NOTES, "files/new"}
    a = machine("a")
    a.push()
    on_remote = remote_files(a.store)
    assert on_remote["files/new"] == b"new"
    assert {b"edited here", b"edited there!"} < set(on_remote.values())
    assert_sound(a.store)


# H11: migrating twice ------------------------------------------------------------------------


def test_h11_migrating_a_sharded_remote_again_takes_nothing_back(
    machine: Open, peer: OldPeer
) -> None:
    peer.push_v1({**version(1), NOTES: b"1"})
    peer.migrate()
    peer.push_v2({**version(2), NOTES: None})
    a = machine()
    for _ in range(2):
        assert a.service.migrate_index().already
        assert remote_index(a.store).entries.keys() == {**version(1), **version(2)}.keys()
        assert peer.read(META_KEY)["commitSeq"] >= 2
    save(a, {"files/x": b"1"})
    a.push()
    assert peer.read(META_KEY)["commitSeq"] >= 3
    b = machine("b")
    b.pull()
    assert b.files() == {**version(1), **version(2), "files/x": b"1"}


# H12, H13, H14: marks that must not get lost -------------------------------------------------


@pytest.mark.parametrize("fresh", [True, False], ids=["new process", "same process"])
@pytest.mark.parametrize("phases", [1, 2])
def test_h12_a_path_that_was_pushed_can_be_marked_and_pushed_again(
    machine: Open, sharded: bool, fresh: bool, phases: int
) -> None:
    a = machine()
    for content in (b"1", b"2", b"3"):
        a = machine() if fresh else a
        a.write(NOTES, content)
        assert sidecar(a)["localDirty"]
        if phases == 1:
            a.push()
        else:
            a.service.commit_push(a.service.prepare_push())
        assert remote_files(a.store) == {NOTES: content}
        assert (sidecar(a)["localDirty"], sidecar(a)["dirtyPaths"]) == (False, [])
        assert not sidecar(a)["bulkInvalidated"]


def test_h12_marks_that_another_client_left_in_a_clean_sidecar_are_pushed(machine: Open) -> None:
    a = machine()
    a.push()
    left = {**sidecar(a), "localDirty": False, "dirtyPaths": [NOTES]}
    (a.cache / SIDECAR).write_text(json.dumps(left))
    a.write_unmarked(NOTES, b"1")
    assert machine().push().files == 1


def test_h13_a_process_that_pushes_leaves_the_marks_of_another_that_dies(
    machine: Open, sharded: bool
) -> None:
    first, second = machine(), machine()
    first.push()
    first.write(NOTES, b"of the first")
    prepared = first.service.prepare_push()
    second.write("files/second", b"of the second")
    second.close()
    first.service.commit_push(prepared)
    assert remote_files(first.store) == {NOTES: b"of the first"}
    assert machine().push().files == 1
    assert remote_files(first.store).keys() == {NOTES, "files/second"}


def test_h13_another_client_that_says_clean_does_not_take_our_marks_along(machine: Open) -> None:
    a = machine()
    a.push()
    old = OldClient(a.cache)
    old.mark("files/old")
    a.write_unmarked("files/old", b"of the other client")
    a.write(NOTES, b"ours")
    old.push()  # it knows of nothing but its own
    assert sidecar(a)["dirtyPaths"] == []
    machine().push()
    assert NOTES in remote_files(a.store)


def test_h14_what_is_marked_and_written_during_a_push_waits_for_the_next(
    machine: Open, sharded: bool
) -> None:
    a = machine()
    a.push()
    save(a, {NOTES: b"old!", "files/other": b"1"})

    def write_more(step: Step) -> None:
        if step.files == 1:
            save(a, {NOTES: b"new!", "files/late": b"late"})

    a.service.push(progress=write_more)
    assert set(sidecar(a)["dirtyPaths"]) == {NOTES, "files/late"}
    machine().push()
    assert remote_files(a.store) == {NOTES: b"new!", "files/late": b"late", "files/other": b"1"}
    assert_sound(a.store)


def test_h14_a_mark_of_everything_during_a_full_walk_survives_it(machine: Open) -> None:
    a = machine()
    a.write_unmarked(NOTES, b"1")

    def mark_all(step: Step) -> None:
        a.service.mark_dirty()
        a.write_unmarked("files/late", b"late")

    a.service.push(progress=mark_all)
    machine().push()
    assert remote_files(a.store) == {NOTES: b"1", "files/late": b"late"}


# H15: hydrating in a namespace ---------------------------------------------------------------


@pytest.mark.parametrize("bound", [True, False], ids=["bound", "unbound"])
@pytest.mark.parametrize("prefix", ["team/", ""])
def test_h15_content_in_a_namespace_lands_where_it_is_looked_for(
    machine: Open, bound: bool, prefix: str
) -> None:
    a = machine("a", "team")
    save(a, version(1))
    a.push()
    machine("b", "team").pull(metadata_only=True)
    b = machine("b", "team")
    if bound:
        b.push()
        b.pull(metadata_only=True)
    raw = f"{HOME}/1/raw"
    assert b.service.hydrate(prefix + raw)
    assert (b.cache / "team" / raw).read_bytes() == b"content 1"
    assert not (b.cache / "team/team").exists()
    assert not (b.cache / "data").exists()
    assert not b.service.hydrate(f"{prefix}{HOME}/7/raw")


# H16, H17, H18, H19: the sidecar -------------------------------------------------------------

OLD_SIDECAR = {
    "version": 1,
    "remoteIndexETag": "9b2c",
    "lastVerifiedAt": "2026-04-24T10:00:00.000Z",
    "localDirty": False,
}


@pytest.mark.parametrize(
    "found",
    [
        None,
        b"{ not json",
        json.dumps(OLD_SIDECAR).encode(),
        json.dumps({**OLD_SIDECAR, "localDirty": True}).encode(),
        json.dumps({**OLD_SIDECAR, "version": "9"}).encode(),
    ],
    ids=["missing", "corrupt", "clean v1", "dirty v1", "unknown"],
)
def test_h16_a_mark_beside_a_sidecar_of_no_use_does_not_hide_older_work(
    machine: Open, found: bytes | None
) -> None:
    a = machine()
    a.write(NOTES, b"1")
    a.push()
    a.write_unmarked("files/older", b"never pushed")
    a.close()
    (a.cache / SIDECAR).unlink()
    if found is not None:
        (a.cache / SIDECAR).write_bytes(found)
    again = machine()
    again.write(NOTES, b"2")
    assert machine().push().files == 2
    assert remote_files(again.store) == {NOTES: b"2", "files/older": b"never pushed"}


def test_h16_older_work_is_looked_for_again_after_a_push_that_failed(
    memory_remote: Remote, tmp_path: Path, machine: Open
) -> None:
    store = BrokenStore(memory_remote.open())
    with Machine(tmp_path / "a", store) as a:
        a.write_unmarked("files/older", b"1")
        a.write(NOTES, b"1")
        store.fail_after(3, is_done=False, kills=False)
        with pytest.raises((StoreError, IncompleteSyncError)):
            a.push()
    machine("a").push()
    assert remote_files(store).keys() == {NOTES, "files/older"}
    assert remote_index(store).entries.keys() == {NOTES, "files/older"}


@pytest.mark.parametrize("lazy", [True, False], ids=["lazy", "scoped"])
def test_h17_caches_that_lack_a_part_become_clean_and_keep_exact_marks(
    machine: Open, sharded: bool, lazy: bool
) -> None:
    a, b = machine("a"), machine("b")
    save(a, {**version(1), **version(1, "data/aws/ec2/i-2/state"), NOTES: b"1"})
    a.push()
    b.pull(metadata_only=True) if lazy else b.pull([MODEL])
    b.push()
    for content in (b"2", b"3"):
        b.write("outputs/aws/ec2/run/x.yaml", content)
        b.write_unmarked("audit/unmarked", content)
        assert sidecar(b)["dirtyPaths"] == ["outputs/aws/ec2/run/x.yaml"]
        assert not sidecar(b)["bulkInvalidated"]
        assert b.push().files == 1  # only what was marked
        assert (sidecar(b)["localDirty"], sidecar(b)["bulkInvalidated"]) == (False, False)
    assert remote_index(b.store).entries.keys() == {*a.files(), "outputs/aws/ec2/run/x.yaml"}


@pytest.mark.parametrize("phases", [1, 2])
def test_h18_a_first_namespaced_push_whose_uploads_fail_stays_dirty(
    s3_remote: ProxiedRemote, tmp_path: Path, phases: int
) -> None:
    with Machine(tmp_path / "a", s3_remote.open(), "team") as a:
        a.write(NOTES, b"1")
        s3_remote.proxy.fail(lambda one: one.kind == "PUT", Status(503), times=None)
        with pytest.raises(IncompleteSyncError):
            a.push() if phases == 1 else a.service.commit_push(a.service.prepare_push())
        assert sidecar(a)["localDirty"]
        assert sidecar(a)["dirtyPaths"] == [f"team/{NOTES}"]
    s3_remote.proxy.heal()
    with Machine(tmp_path / "a", s3_remote.open(), "team") as a:
        assert a.push().files == 1
        assert remote_files(a.store, "team") == {NOTES: b"1"}
        assert not sidecar(a)["localDirty"]


def test_h19_what_others_note_in_the_sidecar_survives_and_no_push_lists_the_bucket(
    s3_remote: ProxiedRemote, tmp_path: Path
) -> None:
    noted = {"dataKeyMigrated": True, "lastCatalogHash": "ab" * 32, "fromTheFuture": {"x": [1]}}
    with Machine(tmp_path / "a", s3_remote.open(), "team") as a:
        a.write(NOTES, b"1")
        (a.cache / SIDECAR).write_text(json.dumps({**sidecar(a), **noted}))
        a.push()
        a.pull()
        s3_remote.proxy.reset()
        a.write(NOTES, b"2")
        a.push()
        a.pull(metadata_only=True)
        assert sidecar(a).items() >= noted.items()
        assert not [one for one in s3_remote.proxy.requests if one.kind == "LIST"]


# H20: readers do not write -------------------------------------------------------------------


@pytest.mark.parametrize("sharded_remote", [False, True], ids=["v1", "v2"])
def test_h20_a_reader_that_finds_a_dangling_entry_writes_nothing(
    s3_remote: ProxiedRemote, tmp_path: Path, sharded_remote: bool
) -> None:
    with (
        Machine(tmp_path / "a", s3_remote.open()) as a,
        Machine(tmp_path / "b", s3_remote.open()) as b,
    ):
        if sharded_remote:
            a.service.migrate_index()
        save(a, {NOTES: b"1", "files/lost": b"2"})
        a.push()
        a.store.delete("files/lost")
        s3_remote.proxy.reset()
        pulled = b.pull()
        assert {one.kind for one in s3_remote.proxy.requests} <= {"GET", "HEAD", "LIST"}
        assert [one.rel for one in pulled.skipped] == ["files/lost"]
        assert b.files() == {NOTES: b"1"}
        # Nor does it push the absence when its own turn to write comes.
        b.write("files/b", b"3")
        b.push()
        assert remote_index(b.store).entries.keys() == {NOTES, "files/lost", "files/b"}
