"""Ways in which clients, transfers and settings have failed a sync, each played through.

The number in a test's name says which of them, as in the tests of silent loss and of the index.
Those that need a misbehaving server are among the tests of bad input and of the stores.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from swampstore.errors import DiskError
from swampstore.index.results import Step
from swampstore.routing import Routing
from swampstore.stores import Store, store_config
from swampstore.stores.cloud import Bucket, Remedies, translate
from swampstore.stores.config import Limits
from swampstore.stores.errors import (
    StoreCredentialsError,
    StorePermissionError,
    StoreUnreachableError,
)
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Written
from swampstore.stores.s3 import S3Config
from swampstore.sync.downloads import Staging
from swampstore.sync.install import PlainInstaller
from swampstore.testing.store import AWKWARD_KEYS
from tests.support.broken_store import Killed
from tests.support.fault_proxy import Reset, Slow, Status
from tests.support.machines import Machine as CommandMachine
from tests.support.old_client import SIDECAR, OldPeer
from tests.support.remotes import BUCKET, ProxiedRemote, Remote
from tests.support.servers import S3_KEY, S3Server
from tests.support.sync_harness import (
    META,
    MONOLITH,
    Machine,
    assert_sound,
    remote_files,
    remote_index,
)

Open = Callable[..., Machine]

RAW = "data/aws/ec2/i-1/state/1/raw"
METADATA = "data/aws/ec2/i-1/state/1/metadata.yaml"
LATEST = "data/aws/ec2/i-1/state/latest"
NOTE = "files/note.txt"
FILES = {RAW: b"one", METADATA: b"version: 1\n", LATEST: b"1", NOTE: b"note"}


@pytest.fixture
def machine(memory_remote: Remote, tmp_path: Path) -> Iterator[Open]:
    """Opens machines by the name of their cache; opening one again is another process on it."""
    opened: list[Machine] = []

    def open_machine(name: str = "a", namespace: str = "", **options: Any) -> Machine:
        opened.append(Machine(tmp_path / name, memory_remote.open(), namespace, **options))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.close()


def fill(machine: Machine) -> None:
    for rel, data in FILES.items():
        machine.write(rel, data)
    machine.push()


def sidecar(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((machine.cache / SIDECAR).read_bytes())
    return found


# H47, H49: credentials ----------------------------------------------------------------------------


@pytest.mark.parametrize("disabled", [{}, {"AWS_EC2_METADATA_DISABLED": "false"}])
def test_h47_looking_for_credentials_changes_nothing_for_the_rest_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disabled: dict[str, str]
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    before = dict(os.environ)
    config = store_config("s3://swamp", environ={"HOME": str(tmp_path), **disabled})
    assert isinstance(config, S3Config)
    assert config.credentials is None  # so a machine in the cloud may still be asked for its own
    config.open().close()
    assert dict(os.environ) == before


def test_h49_an_expired_session_is_not_called_a_missing_one() -> None:
    answer = (
        "Generic GCS error: Error performing token request: Error performing POST "
        "https://oauth2.googleapis.com/token in 80ms - Server returned non-2xx status code: 400 "
        'Bad Request: {"error": "invalid_grant", "error_description": "Token has been expired."}'
    )
    remedies = Remedies("Run `gcloud auth application-default login`.", "a role")
    bucket = Bucket("gs://swamp", "version", "", 1.0, remedies, signs=False, largest=1)
    told = translate(OSError(answer), bucket, "get", "a")
    assert isinstance(told, StoreCredentialsError)
    assert "session has expired" in told.message
    assert "invalid_grant" in told.message
    assert told.hint == remedies.sign_in


# H48: copies --------------------------------------------------------------------------------------


def test_h48_objects_of_any_name_and_size_are_copied_whole(remote: Remote) -> None:
    store = remote.open()
    for key in AWKWARD_KEYS:
        store.put(key, key.encode())
        store.copy(key, f"copy/{key}")
        assert store.get(f"copy/{key}").data == key.encode()
    large = os.urandom(6 << 20)
    store.put("large", large)
    store.copy("large", "copy of large")
    assert store.get("copy of large").data == large


# H50: retries -------------------------------------------------------------------------------------


def test_h50_a_connection_that_is_reset_is_tried_again_by_one_layer_only(
    s3_remote: ProxiedRemote, tmp_path: Path
) -> None:
    with Machine(tmp_path / "a", s3_remote.open()) as a:
        s3_remote.proxy.fail(lambda one: one.key == META, Reset(), times=2)
        fill(a)
        s3_remote.proxy.fail(lambda _: True, Reset(), times=None)
        s3_remote.proxy.reset()
        with pytest.raises(StoreUnreachableError):
            a.pull()
        assert len(s3_remote.proxy.requests) == 3


# H53: a disk that refuses the last notes ----------------------------------------------------------


def test_h53_a_push_that_is_through_does_not_fail_for_its_notes(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = machine()
    fill(a)
    a.write(NOTE, b"edited")
    rename = os.rename

    def refusing(source: str, target: str, **options: Any) -> None:
        if target.endswith(SIDECAR):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)
        rename(source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refusing)
        assert a.push().files == 1
    assert remote_files(a.store)[NOTE] == b"edited"
    a.cost()
    assert a.push().changes == 0
    a.write(NOTE, b"edited again")
    assert a.push().files == 1


# A disk that is full before everything has arrived ------------------------------------------------


def test_a_full_disk_is_told_as_ours_and_ends_a_pull_with_what_has_arrived(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machine("a"), machine("b")
    fill(a)
    write, room, guard = os.write, 2, threading.Lock()

    def refusing(fd: int, data: bytes) -> int:
        nonlocal room
        with guard:  # files arrive in several threads
            room -= ".tmp/" in os.readlink(f"/proc/self/fd/{fd}")
            is_full = room < 0
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refusing)
        with pytest.raises(DiskError, match=r"this machine .*the disk is full") as told:
            b.pull()
    assert "Free some space" in (told.value.hint or "")
    b.pull()
    assert {rel: (b.cache / rel).read_bytes() for rel in FILES} == FILES


def test_a_full_device_is_not_the_fault_of_the_store(memory_remote: Remote) -> None:
    store = memory_remote.open()
    store.put("a", b"content")
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        with pytest.raises(DiskError, match="the copy on this machine of a in"):
            store.download("a", fd)
    finally:
        os.close(fd)


# H54, H55: what a fresh clone and a second process know -------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_h54_a_fresh_clone_has_nothing_to_push(
    s3_remote: ProxiedRemote, tmp_path: Path, version: int
) -> None:
    with Machine(tmp_path / "a", s3_remote.open()) as a:
        if version == 2:
            a.service.migrate_index()
        fill(a)
    with Machine(tmp_path / "b", s3_remote.open()) as b:
        assert b.pull().files == len(FILES)
        s3_remote.proxy.reset()
        assert b.push().changes == 0
        assert b.push(full=True).changes == 0
        for rel in ("data", NOTE):
            b.service.mark_dirty(rel)
        assert b.push().changes == 0
        assert {one.kind for one in s3_remote.proxy.requests} <= {"GET", "HEAD", "LIST"}


def test_h55_a_fresh_copy_of_the_index_does_not_stand_for_the_remote(
    machine: Open, memory_remote: Remote
) -> None:
    peer = OldPeer(memory_remote.open())
    peer.push_v1(FILES)
    first = machine()
    first.pull()
    peer.push_v1({NOTE: b"newer", "files/new.txt": b"new"})
    copy = first.cache / MONOLITH
    copy.write_bytes(copy.read_bytes())  # as if another process had fetched it just now
    assert machine().pull().files == 2
    assert first.read(NOTE) == b"newer"


# H56, H59: what marks mean ------------------------------------------------------------------------


def test_h56_files_directories_and_paths_that_are_neither_may_be_marked(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    fill(a)
    for rel, mark in {
        "files/one.txt": "files/one.txt",
        "files/deep/two.txt": "files/deep",
        "logs/a/b/three.txt": "logs",
    }.items():
        a.service.mark_dirty(mark)
        a.write_unmarked(rel, rel.encode())
    a.service.mark_dirty("files/never-written.txt")
    a.service.mark_dirty("outputs")
    assert a.push().files == 3
    b.pull()
    assert {rel: (b.cache / rel).read_bytes() for rel in FILES} == FILES
    assert a.service.status().dirty_paths == ()


def test_h59_a_mark_of_everything_deletes_nothing(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    fill(a)
    b.pull()
    b.write(NOTE, b"edited")
    b.path(RAW).unlink()
    b.service.mark_dirty()
    assert b.push().deleted == 0
    assert remote_files(b.store) == FILES | {NOTE: b"edited"}
    cold = machine("cold")
    cold.service.mark_dirty()
    assert cold.push().changes == 0
    assert set(remote_index(a.store).entries) == set(FILES)


# H57: changes that leave no trace in size and time ------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_h57_a_rewrite_of_the_same_size_and_time_is_pushed(machine: Open, full: bool) -> None:
    a = machine()
    fill(a)
    path = a.path(LATEST)
    before = path.stat()
    a.service.mark_dirty(LATEST)
    with path.open("r+b") as file:
        file.write(b"2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert a.push(full=full).files == 1
    assert remote_files(a.store)[LATEST] == b"2"


# H58: dangling entries ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_h58_an_entry_without_its_object_blocks_nothing(machine: Open, version: int) -> None:
    a, b = machine("a"), machine("b")
    if version == 2:
        a.service.migrate_index()
    fill(a)
    a.store.delete(NOTE)
    pulled = b.pull()
    assert [one.rel for one in pulled.skipped] == [NOTE]
    assert b.files() == {rel: data for rel, data in FILES.items() if rel != NOTE}
    b.write("files/new.txt", b"new")
    b.push()
    assert b.pull().changes == 0
    a.pull()
    a.write(NOTE, b"again")
    a.push()
    b.pull()
    assert b.files() == a.files() == FILES | {NOTE: b"again", "files/new.txt": b"new"}
    assert_sound(a.store)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("metadata_only", [False, True])
def test_h58_a_marker_without_its_object_is_sent_again_by_whoever_pulls_its_versions(
    machine: Open, version: int, metadata_only: bool
) -> None:
    a, b = machine("a"), machine("b")
    if version == 2:
        a.service.migrate_index()
    fill(a)
    # A deletion of one that said the same, which came late.
    a.store.delete(LATEST)
    assert [one.rel for one in b.pull(metadata_only=metadata_only).skipped] == [LATEST]
    assert b.read(LATEST) == FILES[LATEST]
    b.push()
    assert remote_files(a.store)[LATEST] == FILES[LATEST]
    assert_sound(a.store)
    assert b.push().files == 0


# H60, H61, H71: what never crosses ----------------------------------------------------------------


def test_h60_the_manifest_of_a_namespace_is_neither_sent_nor_removed(machine: Open) -> None:
    a, b = machine("a", "team"), machine("b", "team")
    a.store.put("team/.namespace.json", b'{"namespace": "team"}')
    for one in (a, b):
        one.write_unmarked(".namespace.json", b"local copy")
    fill(a)
    b.pull()
    b.service.mark_dirty("team/.namespace.json")
    b.path(".namespace.json").unlink()
    b.push(full=True)
    a.pull(full=True)
    assert a.store.get("team/.namespace.json").data == b'{"namespace": "team"}'
    assert a.read(".namespace.json") == b"local copy"
    assert set(remote_index(a.store, "team").entries) == set(FILES)


def test_h61_what_unfinished_writes_leave_behind_is_never_sent(machine: Open) -> None:
    a = machine()
    fill(a)
    temp = f".{uuid.uuid4()}.tmp"
    for rel in (temp, f"{temp}.d/../{temp}2/half", f"files/{temp}", f"data/aws/{temp}/x"):
        path = Path(os.path.normpath(f"{a.cache}/{rel}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    (a.cache / f".{uuid.uuid4()}.tmp").mkdir()
    for mark in ("files", temp, f"files/{temp}", None):
        a.service.mark_dirty(mark)
    staged = a.cache / f".{uuid.uuid4()}.tmp"
    staged.mkdir()
    (staged / "0123").write_bytes(b"fetched by a pull that was killed")
    pushed = a.push(full=True)
    assert {rel for rel in remote_files(a.store) if ".tmp" in rel} == {f"{temp}2/half"}
    assert pushed.files == 1


LOCAL = {
    "secrets/key": b"s",
    "bundles/b.js": b"b",
    "vault-bundles/v.js": b"v",
    "driver-bundles/d.js": b"d",
    "report-bundles/r.js": b"r",
    "datastore-bundles/x.js": b"x",
}


@pytest.mark.parametrize("directories", [None, ["data", "files", "secrets", "bundles"]])
def test_h71_secrets_and_bundles_never_leave_whatever_is_marked_or_configured(
    machine: Open, directories: list[str] | None
) -> None:
    a = machine(routing=Routing(directories))
    fill(a)
    for rel, data in LOCAL.items():
        a.write(rel, data)
        a.service.mark_dirty(rel.partition("/")[0])
    assert a.push().changes == 0
    a.service.mark_dirty()
    assert a.push(full=True).changes == 0
    assert set(remote_files(a.store)) == set(remote_index(a.store).entries) == set(FILES)
    assert {rel: (a.cache / rel).read_bytes() for rel in LOCAL} == LOCAL


@pytest.mark.parametrize("version", [1, 2])
def test_h71_secrets_and_bundles_never_arrive_even_if_an_index_names_them(
    machine: Open, memory_remote: Remote, version: int
) -> None:
    peer = OldPeer(memory_remote.open())
    peer.push_v1(FILES | LOCAL)
    if version == 2:
        machine("migrating").service.migrate_index()
    b = machine("b", routing=Routing(["data", "files", "secrets", "bundles"]))
    pulled = b.pull()
    assert pulled.files == len(FILES)
    assert {one.rel for one in pulled.skipped} == set(LOCAL)
    for rel in LOCAL:
        assert not b.service.hydrate(rel)
        assert not (b.cache / rel).exists()
    b.write("secrets/key", b"mine")
    b.pull(full=True)
    peer.push_v1(dict.fromkeys(LOCAL)) if version == 1 else peer.push_v2(dict.fromkeys(LOCAL))
    b.pull(full=True)
    assert (b.cache / "secrets/key").read_bytes() == b"mine"


# H63, H74: where a remote is ----------------------------------------------------------------------


def test_h63_slashes_around_a_prefix_make_no_other_place(
    s3_server: S3Server, tmp_path: Path
) -> None:
    prefix = uuid.uuid4().hex

    def opened(spelling: str) -> Store:
        config = {"bucket": BUCKET, "prefix": spelling, "endpoint": s3_server.url, **S3_KEY}
        return store_config("s3", config, environ={}).open()

    with Machine(tmp_path / "a", opened(f"/{prefix}/")) as a:
        fill(a)
    with Machine(tmp_path / "a", opened(prefix)) as again:
        assert again.push(full=True).changes == again.pull().changes == 0
    with Machine(tmp_path / "b", opened(f"{prefix}//")) as b:
        assert b.pull().files == len(FILES)
        assert all("//" not in info.key for info in b.store.list())


def test_h74_equal_numbers_of_commits_make_no_equal_remotes(tmp_path: Path) -> None:
    stores = [MemoryStore(name, MemoryBucket()) for name in ("one", "other")]
    for number, store in enumerate(stores):
        with Machine(tmp_path / f"writer-{number}", store) as writer:
            writer.service.migrate_index()
            writer.write(NOTE, b"note %d" % number)
            writer.write(f"files/{number}.txt", b"only there")
            writer.push()
    seqs = [json.loads(store.get(META).data)["commitSeq"] for store in stores]
    assert seqs[0] == seqs[1]
    with Machine(tmp_path / "b", stores[0]) as b:
        b.pull()
    with Machine(tmp_path / "b", stores[1]) as b:
        pulled = b.pull()
        assert pulled.files == 1
        assert [one.rel for one in pulled.conflicts] == [NOTE]
        assert b.read("files/1.txt") == b"only there"
        b.push(full=True)
        assert set(remote_files(stores[1]).values()) == {b"note 0", b"note 1", b"only there"}
    assert set(remote_files(stores[0])) == {NOTE, "files/0.txt"}


# H65: rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [META, NOTE])
def test_h65_a_refusal_instead_of_an_absence_is_told_with_the_missing_right(
    s3_remote: ProxiedRemote, tmp_path: Path, key: str
) -> None:
    """Without the right to list, S3 says 403 where it would have said 404."""
    s3_remote.proxy.fail(
        lambda one: one.kind in {"GET", "HEAD"} and one.key == key, Status(403), times=None
    )
    with Machine(tmp_path / "a", s3_remote.open()) as a:
        for rel, data in FILES.items():
            a.write(rel, data)
        if key == META:
            with pytest.raises(StorePermissionError) as told:
                a.push()
            assert "s3:ListBucket" in (told.value.hint or "")
            assert "even a missing object is refused" in (told.value.hint or "")
            assert set(a.service.status().dirty_paths) == set(FILES)
            s3_remote.proxy.heal()
        assert a.push().files == len(FILES)


# H66: many transfers at once ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PUT", "GET"])
def test_h66_one_slow_file_does_not_hold_up_the_others(
    s3_remote: ProxiedRemote, tmp_path: Path, kind: str
) -> None:
    limits = Limits(pull_concurrency=2, push_concurrency=2)
    files = {f"files/{number:02}.txt": b"x" for number in range(20)}
    slow = s3_remote.proxy.fail(
        lambda one: one.kind == kind and one.key == "files/03.txt", Slow(1.0)
    )
    steps: list[tuple[int, float]] = []
    began = time.monotonic()

    def progress(step: Step) -> None:
        if step.phase == {"PUT": "push", "GET": "pull"}[kind]:
            steps.append((step.files, time.monotonic() - began))

    with (
        Machine(tmp_path / "a", s3_remote.open(), limits=limits) as a,
        Machine(tmp_path / "b", s3_remote.open(), limits=limits) as b,
    ):
        for rel, data in files.items():
            a.write(rel, data)
        began = time.monotonic()
        a.service.push(progress=progress)
        if kind == "GET":
            began = time.monotonic()
        b.service.pull(progress=progress)
    assert slow.fired == 1
    times = [at for _, at in steps]
    assert len(times) == 20
    assert times[18] < 1.0 <= times[19]


def test_h66_a_large_file_is_never_in_memory_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes | BinaryIO] = []
    store = MemoryStore()
    put = store.put_if_absent

    def watched(key: str, body: bytes | BinaryIO) -> Written:
        bodies.append(body)
        return put(key, body)

    monkeypatch.setattr(store, "put_if_absent", watched)
    with Machine(tmp_path / "a", store) as a:
        a.write("files/large", b"x" * (5 << 20))
        a.write("files/larger", b"y" * (6 << 20))
        a.push()
        assert len(bodies) >= 2
        assert not [body for body in bodies if isinstance(body, bytes) and len(body) > 4 << 20]
        assert remote_files(store) == a.files()


# H72: who did the work ----------------------------------------------------------------------------


def test_h72_a_sync_counts_the_work_that_it_did(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    ana, bob = (CommandMachine(tmp_path / name, capsysbinary, monkeypatch) for name in "ab")
    for one in (ana, bob):
        one.use(tmp_path / "bucket")
    for number in range(4):
        ana.put("aws/ec2/i-1", f"name-{number}", "x")
    assert ana("sync", "--json").json["filesPushed"] == 12
    bob.put("aws/ec2/i-1", "own", "y")
    document = bob("sync", "--json").json
    assert (document["filesPulled"], document["filesPushed"]) == (12, 3)
    again = bob("sync", "--json").json
    assert (again["filesPulled"], again["filesPushed"]) == (0, 0)


# H73, H75: caches without content -----------------------------------------------------------------


class Died(BaseException):
    """The process ended here."""


def test_h73_content_that_was_left_away_is_not_forgotten_whenever_a_process_dies(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(machine("a"))
    b = machine("b")
    with monkeypatch.context() as patch:

        def die() -> None:
            raise Died

        patch.setattr(b.service, "_note_verified", die)
        with pytest.raises(Died):
            b.pull(metadata_only=True)
    assert not b.path(RAW).exists()
    assert sidecar(b)["lazyPullActive"] is True
    again = machine("b")
    again.pull(metadata_only=True)
    assert sidecar(again)["lazyPullActive"] is True
    assert machine("b").pull().files == 1
    assert again.files() == FILES
    assert sidecar(again)["lazyPullActive"] is False


@pytest.mark.parametrize("version", [1, 2])
def test_h75_a_version_without_its_content_can_be_deleted_and_stays_so(
    machine: Open, version: int
) -> None:
    a, b = machine("a"), machine("b")
    if version == 2:
        a.service.migrate_index()
    fill(a)
    b.pull(metadata_only=True)
    b.service.mark_dirty(os.path.dirname(LATEST))
    for rel in (METADATA, LATEST):
        b.delete(rel)
    assert b.push().deleted == 3
    b.pull()
    assert b.files() == {NOTE: b"note"}
    a.pull()
    assert a.files() == {NOTE: b"note"}


def test_h75_content_that_was_never_here_is_not_deleted_with_what_was(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    fill(a)
    b.pull(metadata_only=True)
    b.delete(NOTE)
    b.service.mark_dirty("data")
    assert b.push().deleted == 1
    assert set(remote_files(a.store)) == {RAW, METADATA, LATEST}
    assert b.pull().files == 1
    assert b.read(RAW) == b"one"


@pytest.mark.parametrize("sharded", [False, True])
def test_a_remote_that_was_emptied_and_filled_by_a_partial_cache_deletes_nothing_elsewhere(
    directory_remote: Remote, tmp_path: Path, sharded: bool
) -> None:
    rels = [f"files/{number}.txt" for number in range(3)]
    with (
        Machine(tmp_path / "whole", directory_remote.open()) as whole,
        Machine(tmp_path / "part", directory_remote.open()) as part,
    ):
        for rel in rels:
            whole.write(rel, rel.encode())
        whole.push()
        if sharded:
            whole.service.migrate_index()
            whole.pull()
        part.pull()
        for path in (tmp_path / "remote").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for rel in rels[1:]:
            part.path(rel).unlink()
        part.push()
        whole.pull()
        assert set(whole.files()) == set(rels)
        whole.push()
        part.pull()
        assert set(part.files()) == set(rels)
        assert set(remote_files(whole.store)) == set(rels)


def test_what_a_pull_that_was_killed_had_fetched_is_not_fetched_again(
    memory_remote: Remote, tmp_path: Path
) -> None:
    with Machine(tmp_path / "a", memory_remote.open()) as a:
        for number in range(20):
            a.write(f"files/{number}", b"content %d" % number)
        a.push()
    with Machine(tmp_path / "b", memory_remote.open()) as b:
        with pytest.MonkeyPatch.context() as patch:
            # Killed: nothing tidies up, and the locks of a process go with it.
            patch.setattr(Staging, "__exit__", _die)
            patch.setattr(PlainInstaller, "install", _die)
            with pytest.raises(Killed):
                b.pull()
        assert b.cost().requests["get"] > 20
        assert b.pull().files == 20
        assert b.cost().requests["get"] < 5  # the index
        assert b.files() == {f"files/{number}": b"content %d" % number for number in range(20)}


def test_downloads_that_nobody_waits_for_leave_nothing_behind(tmp_path: Path) -> None:
    def arrive(staging: Staging, begun: threading.Event) -> None:
        with contextlib.suppress(DiskError, OSError):  # the end of it
            while True:
                os.close(os.open(staging.new_path(), os.O_CREAT | os.O_WRONLY))
                begun.set()

    with Staging(str(tmp_path)) as staging:
        begun = [threading.Event() for _ in range(3)]
        late = [threading.Thread(target=arrive, args=(staging, event)) for event in begun]
        for thread, event in zip(late, begun, strict=True):
            thread.start()
            assert event.wait(10)
    for thread in late:
        thread.join(10)
        assert not thread.is_alive()
    assert not list(tmp_path.iterdir())


def test_what_somebody_is_still_fetching_or_never_finished_is_left_alone(tmp_path: Path) -> None:
    whole = hashlib.sha256(b"whole").hexdigest()
    with Staging(str(tmp_path)) as alive, Staging(str(tmp_path)) as reader:
        Path(alive.new_path(whole)).write_bytes(b"whole")
        assert not reader.take_left(whole, f"{tmp_path}/taken")
    dead = Staging(str(tmp_path))
    (tmp_path / Path(dead.path).name).mkdir()
    Path(dead.new_path(whole)).write_bytes(b"who")
    Path(dead.new_path(whole)).write_bytes(b"whole")
    with Staging(str(tmp_path)) as reader:
        assert reader.take_left(whole, f"{tmp_path}/taken")
        assert not reader.take_left(whole, f"{tmp_path}/again")
    assert (tmp_path / "taken").read_bytes() == b"whole"


def _die(staging: object, *_arguments: object) -> None:
    if isinstance(staging, Staging) and staging._lock is not None:
        os.close(staging._lock)
    raise Killed
