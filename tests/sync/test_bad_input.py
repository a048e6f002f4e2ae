"""Whatever a remote, a disk or a user does in the middle of a sync: told clearly, nothing lost."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import obstore
import pytest

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.errors import NewerFormatError, SwampstoreError, ValidationError
from swampstore.index.errors import (
    IncompleteSyncError,
    IndexDamagedError,
    SyncTimeoutError,
)
from swampstore.index.removals import read_notes
from swampstore.index.results import Step
from swampstore.layout import ModelRef
from swampstore.marker import update_marker
from swampstore.stores import Store
from swampstore.stores.config import Limits
from swampstore.stores.errors import (
    StoreMissingError,
    StorePermissionError,
    StoreUnreachableError,
)
from swampstore.stores.obstore_store import ObstoreStore
from swampstore.stores.retry import RetryingStore
from tests.conftest import FakeClock
from tests.support.fault_proxy import FaultProxy, Hang, Meanwhile, Request, Slow, Status, Truncated
from tests.support.http_server import Answer
from tests.support.machines import Machine as CommandMachine
from tests.support.old_client import OldPeer
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.sync_harness import (
    META,
    MONOLITH,
    Machine,
    assert_sound,
    remote_files,
    remote_index,
)


def growing(name: str, version: int) -> bytes:
    """Return the metadata of a version that grows, and tells neither size nor hash."""
    draft = Draft(content_type="text/plain", streaming=True, id=f"id-{name}-{version}").checked()
    made = draft.metadata(name, version, Owner(ref="x"), "2026-05-14T20:19:51.042Z", 0, "")
    return encode(replace(made, size=None, checksum=None))


RAW = "data/aws/ec2/i-1/state/1/raw"
METADATA = "data/aws/ec2/i-1/state/1/metadata.yaml"
LATEST = "data/aws/ec2/i-1/state/latest"
NOTE = "files/note.txt"
LOG = "logs/today.txt"
EXTRA = "files/extra.txt"
FILES = {
    RAW: b"one",
    METADATA: growing("state", 1),
    LATEST: b"1",
    NOTE: b"note",
    LOG: b"log",
    EXTRA: b"extra",
}
SHARD = "_index/files.json"


class Ground:
    """Two machines, the server between them, and a way to change what it holds by hand."""

    def __init__(self, remote: ProxiedRemote, directory: Path, clock: FakeClock) -> None:
        self.remote = remote
        self.clock = clock
        self.proxy = remote.proxy
        self.store = remote.open()
        self.directory = directory
        self.here = Machine(directory / "here", remote.open(), clock=clock)
        self.there = Machine(directory / "there", remote.open(), clock=clock)

    def filled(self, *, version: int = 1) -> None:
        """Let `here` share some files, with the index of this version."""
        for rel, data in FILES.items():
            self.here.write(rel, data)
        self.here.push()
        if version == 2:
            self.here.service.migrate_index()
            self.here.write(LOG, b"first log")
            self.here.push()
            self.here.write(LOG, FILES[LOG])
            self.here.push()

    def edit(self, key: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change an index document the way a person with an editor would."""
        document = json.loads(self.store.get(key).data)
        change(document)
        self.store.put(key, json.dumps(document).encode())

    def plant(self, entries: Mapping[str, object], *, version: int = 1) -> None:
        """Put entries into the index as they are."""
        key = SHARD if version == 2 else MONOLITH
        self.edit(key, lambda document: document["entries"].update(entries))

    def kept(self) -> dict[str, bytes]:
        """Return the files on the remote that nobody is about to remove.

        Whether an object as old as the note of its removal is meant, nobody can tell for a day.
        """
        files, notes = remote_files(self.store), read_notes(self.store, self.here.names)
        named = remote_index(self.store).entries
        return {rel: files[rel] for rel in files if rel in named or not notes.mention(rel)}

    def assert_equal(self) -> None:
        """Sync both machines, and check that all three places are the same and sound."""
        # An index that somebody stopped changing half-way is noticed within a minute.
        self.clock.advance(minutes=2)
        for machine in (self.here, self.there, self.here):
            machine.sync()
        assert self.here.files() == self.there.files() == self.kept()
        assert set(remote_index(self.store).entries) == set(self.here.files())
        assert_sound(self.store)
        assert self.here.service.status().dirty_paths == ()


@pytest.fixture
def ground(s3_remote: ProxiedRemote, tmp_path: Path, clock: FakeClock) -> Iterator[Ground]:
    ground = Ground(s3_remote, tmp_path, clock)
    yield ground
    ground.proxy.heal()
    ground.here.close()
    ground.there.close()


def entry(rel: str, content: bytes, **members: object) -> dict[str, Any]:
    return {
        "key": rel,
        "size": len(content),
        "lastModified": "2026-01-01T00:00:00.000Z",
        "sha256": hashlib.sha256(content).hexdigest(),
        **members,
    }


def assert_helpful(error: SwampstoreError) -> None:
    assert error.code
    assert error.message
    assert error.hint


def is_payload(request: Request) -> bool:
    return not request.key.startswith(("_index/", MONOLITH)) and request.kind != "LIST"


def is_about(rel: str, request: Request) -> bool:
    return request.key == rel


def outside(directory: Path) -> dict[str, bytes]:
    """Everything that lies beside the caches of the machines."""
    return {
        str(path): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
        and not path.is_relative_to(directory / "here")
        and not path.is_relative_to(directory / "there")
    }


# Hostile names ------------------------------------------------------------------------------------

HOSTILE = (
    "../x",
    "../there-too/x",
    "/etc/swampstore-test",
    "files/../../x",
    "files//x",
    "files/./x",
    "files/x/",
    "",
    "..",
    "files/nul\0byte",
    "files\\x",
    "..\\x",
    "files/escape\x1b[2J",
    "files/new\nline",
    "files/del\x7f",
    "files/" + "k" * 5000,
    "files/" + "n" * 300,
    "files/" + "é" * 200,
    "secrets/key",
    "bundles/b.js",
    "datastore-bundles/b.js",
)


@pytest.mark.parametrize("version", [1, 2])
def test_hostile_names_in_an_index_are_told_and_never_land(ground: Ground, version: int) -> None:
    ground.filled(version=version)
    ground.plant({rel: entry(rel, b"evil") for rel in HOSTILE}, version=version)
    ground.proxy.fail(lambda one: one.key in HOSTILE, Answers(b"evil"), times=None)
    before = outside(ground.directory)
    pulled = ground.there.pull()
    assert ground.there.files() == FILES
    assert {one.rel for one in pulled.skipped} == set(HOSTILE)
    assert all(one.reason for one in pulled.skipped)
    assert outside(ground.directory) == before
    assert not Path("/etc/swampstore-test").exists()
    ground.there.write("files/new.txt", b"new")
    ground.there.push()
    ground.here.sync()
    assert ground.here.read("files/new.txt") == b"new"


@pytest.mark.parametrize("rel", ["../x", "/etc/passwd", "files/../../x", "files/nul\0byte", ""])
def test_nothing_is_hydrated_from_or_to_a_hostile_path(ground: Ground, rel: str) -> None:
    ground.filled()
    ground.plant({rel: entry(rel, b"evil")})
    with pytest.raises(ValidationError) as told:
        ground.there.service.hydrate(rel)
    assert_helpful(told.value)


def test_a_name_that_is_a_directory_of_another_one_leaves_the_rest_alone(ground: Ground) -> None:
    ground.filled()
    odd = {"files/a": b"file", "files/a/b": b"below"}
    for rel, data in odd.items():
        ground.plant({rel: entry(rel, data)})
    # No server that keeps files can hold both, so the proxy answers for them.
    for rel, data in odd.items():
        ground.proxy.fail(partial(is_about, rel), Answers(data), times=None)
    with pytest.raises(IncompleteSyncError) as told:
        ground.there.pull()
    assert_helpful(told.value)
    [failed] = told.value.failures
    installed = ground.there.files()
    assert installed == FILES | {rel: data for rel, data in odd.items() if rel != failed}
    ground.edit(MONOLITH, lambda document: [document["entries"].pop(rel) for rel in odd])
    ground.proxy.heal()
    assert ground.there.pull().deleted == 1
    ground.assert_equal()


@dataclass(frozen=True)
class Answers:
    """Answer with this body instead of the store's; without one as if it were not there."""

    body: bytes
    status: int = 200

    def spoil(self, forward: Callable[[], Answer], over: object) -> Answer:
        headers = {"etag": '"0123"', "last-modified": "Thu, 14 May 2026 20:19:51 GMT"}
        return Answer(HTTPStatus(self.status), headers, self.body)


@pytest.mark.parametrize("name", ["back\\slash", "new\nline", "n" * 200 + "é", "\udcff"])
def test_local_names_that_cannot_travel_are_told_and_keep_nothing_else_back(
    ground: Ground, name: str
) -> None:
    ground.filled()
    for rel in (f"files/{name}", f"files/{name}.d/file", f"files/ok/{name}/deep/file"):
        ground.here.service.mark_dirty(rel)
        path = f"{ground.here.cache}/{rel}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(b"odd")
    ground.here.write("files/plain.txt", b"plain")
    travels = name.endswith("é")
    if travels:
        assert ground.here.push().files == 4
        return
    with pytest.raises(IncompleteSyncError, match="give it another name"):
        ground.here.push()
    ground.here.write("files/later.txt", b"later")
    with pytest.raises(IncompleteSyncError) as told:
        ground.here.push(full=True)
    assert len(told.value.failures) == 3
    assert remote_files(ground.store).keys() >= {"files/plain.txt", "files/later.txt"}
    for rel in told.value.failures:
        ground.here.service.mark_dirty(rel)
        os.unlink(f"{ground.here.cache}/{rel}")
    assert ground.here.push().changes == 0


@pytest.mark.parametrize("rel", ["files/" + "n" * 250, "files/" + ("d" * 100 + "/") * 9 + "f"])
def test_both_contents_of_a_file_with_the_longest_name_are_kept(ground: Ground, rel: str) -> None:
    ground.filled()
    ground.here.write(rel, b"of here")
    ground.here.push()
    ground.there.write(rel, b"of there")
    [conflict] = ground.there.push().conflicts
    assert conflict.rel == rel
    ground.assert_equal()
    assert set(ground.here.files().values()) > {b"of here", b"of there"}


def test_marks_of_impossible_paths_keep_nothing_back(ground: Ground) -> None:
    ground.filled()
    for path in (
        "files/" + "n" * 300,
        "files/nul\0byte",
        "files/" + "d/" * 3000,
        "files/new\nline",
    ):
        ground.here.service.mark_dirty(path)
    ground.here.write(NOTE, b"edited")
    assert ground.here.push().files == 1
    ground.assert_equal()


# Symbolic links -----------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory that is none of sync's business."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "secret.txt").write_bytes(b"not yours")
    return path


@pytest.mark.parametrize("full", [False, True])
def test_h61_no_link_in_the_cache_is_followed_by_a_push(
    ground: Ground, elsewhere: Path, full: bool
) -> None:
    ground.filled()
    files = ground.here.path("files")
    (files / "link.txt").symlink_to(elsewhere / "secret.txt")
    (files / "dangling.txt").symlink_to(elsewhere / "nowhere")
    (files / "dir").symlink_to(elsewhere)
    links = {"files/link.txt", "files/dangling.txt", "files/dir"}
    for rel in (*links, "files/dir/secret.txt", "files/dir/gone.txt"):
        ground.here.service.mark_dirty(rel)
    ground.here.write("files/plain.txt", b"plain")
    pushed = ground.here.push(full=full)
    assert pushed.files == 1
    assert {one.rel for one in pushed.skipped} >= {"files/link.txt", "files/dangling.txt"}
    assert set(remote_files(ground.store)) == {*FILES, "files/plain.txt"}
    assert (elsewhere / "secret.txt").read_bytes() == b"not yours"


def test_h61_a_directory_that_became_a_link_deletes_nothing_on_the_remote(
    ground: Ground, elsewhere: Path
) -> None:
    ground.filled()
    ground.here.write("files/dir/a.txt", b"a")
    ground.here.push()
    directory = ground.here.path("files/dir")
    directory.rename(elsewhere / "moved")
    directory.symlink_to(elsewhere)
    ground.here.service.mark_dirty("files/dir")
    ground.here.service.mark_dirty("files/dir/a.txt")
    pushed = ground.here.push()
    assert pushed.changes == 0
    assert {one.rel for one in pushed.skipped} >= {"files/dir"}
    assert remote_files(ground.store)["files/dir/a.txt"] == b"a"
    directory.unlink()
    ground.here.pull(full=True)
    assert ground.here.read("files/dir/a.txt") == b"a"


@pytest.mark.parametrize("target", ["secret.txt", "nowhere"])
def test_h61_nothing_is_pulled_over_or_through_a_link(
    ground: Ground, elsewhere: Path, target: str
) -> None:
    ground.filled()
    ground.here.write("files/dir/secret.txt", b"mine")
    ground.here.push()
    files = ground.there.path("files")
    files.mkdir()
    (files / "note.txt").symlink_to(elsewhere / target)
    (files / "dir").symlink_to(elsewhere)
    with pytest.raises(IncompleteSyncError) as told:
        ground.there.pull()
    assert_helpful(told.value)
    assert set(told.value.failures) == {NOTE, "files/dir/secret.txt"}
    assert ground.there.push(full=True).files == 0
    assert (ground.there.read(RAW), ground.there.read(LOG)) == (b"one", b"log")
    assert sorted(path.name for path in elsewhere.iterdir()) == ["secret.txt"]
    assert (elsewhere / "secret.txt").read_bytes() == b"not yours"
    (files / "note.txt").unlink()
    (files / "dir").unlink()
    ground.assert_equal()


def test_h61_nothing_is_removed_through_a_link(ground: Ground, elsewhere: Path) -> None:
    ground.filled()
    ground.here.write("files/dir/secret.txt", b"not yours")
    ground.here.push()
    ground.there.pull()
    directory = ground.there.path("files/dir")
    (directory / "secret.txt").unlink()
    directory.rmdir()
    directory.symlink_to(elsewhere)
    ground.here.delete("files/dir/secret.txt")
    ground.here.push()
    with pytest.raises(IncompleteSyncError) as told:
        ground.there.pull()
    assert set(told.value.failures) == {"files/dir/secret.txt"}
    assert (elsewhere / "secret.txt").read_bytes() == b"not yours"
    directory.unlink()
    ground.assert_equal()


def test_h61_what_is_kept_of_a_conflict_is_not_written_through_a_link(
    ground: Ground, elsewhere: Path
) -> None:
    ground.filled()
    ground.there.pull()
    ground.there.path("files/conflicts").symlink_to(elsewhere)
    ground.here.write(NOTE, b"of here")
    ground.here.push()
    ground.there.write(NOTE, b"of there")
    ground.there.write("files/other.txt", b"other")
    with pytest.raises(IncompleteSyncError) as told:
        ground.there.push()
    assert_helpful(told.value)
    assert set(told.value.failures) == {NOTE}
    assert sorted(path.name for path in elsewhere.iterdir()) == ["secret.txt"]
    assert ground.there.read(NOTE) == b"of there"
    assert remote_files(ground.store)["files/other.txt"] == b"other"
    ground.there.path("files/conflicts").unlink()
    ground.assert_equal()
    assert set(ground.here.files().values()) >= {b"of here", b"of there"}


# Documents that are none --------------------------------------------------------------------------

JUNK = {
    "nothing": b"",
    "half": b'{"version": 1, "entries": {"files/x": {"key": "fi',
    "no text": b'{"version": 1, "entries": {"a\xff": {}}, "partitions": []}',
    "much": b"[" * (2 << 20),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_damaged_monolith_stops_a_sync_and_nothing_is_lost(ground: Ground, junk: bytes) -> None:
    ground.filled()
    ground.there.pull()
    sound = ground.store.get(MONOLITH).data
    ground.store.put(MONOLITH, junk)
    ground.store.delete(META)
    ground.there.write(NOTE, b"edited")
    for work in (ground.there.pull, ground.there.push):
        with pytest.raises(IndexDamagedError, match=r"\.datastore-index\.json") as told:
            work()
        assert_helpful(told.value)
        assert len(told.value.message) < 500
    assert ground.there.files() == FILES | {NOTE: b"edited"}
    assert NOTE in ground.there.service.status().dirty_paths
    assert ground.store.get(MONOLITH).data == junk
    ground.store.put(MONOLITH, sound)
    ground.assert_equal()
    assert ground.here.read(NOTE) == b"edited"


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize(("version", "key"), [(1, META), (1, SHARD), (2, META), (2, SHARD)])
def test_a_damaged_part_of_the_index_is_made_anew(
    ground: Ground, version: int, key: str, junk: bytes
) -> None:
    ground.filled(version=version)
    ground.store.put(key, junk)
    assert ground.there.pull().files == len(FILES)
    assert ground.there.files() == FILES
    ground.there.write("files/new.txt", b"new")
    ground.there.push()
    ground.assert_equal()
    assert remote_index(ground.store).version == version


def test_an_index_of_a_newer_program_is_left_alone(ground: Ground) -> None:
    ground.filled()
    ground.edit(META, lambda document: document.update(version=99))
    ground.there.write(LOG, b"other")
    for work in (ground.there.pull, ground.there.push):
        with pytest.raises(NewerFormatError, match="newer version of swampstore: its format is 99"):
            work()
    assert json.loads(ground.store.get(META).data)["version"] == 99


def test_logs_of_runs_that_an_index_names_stay_there_and_nobody_is_told_of_each(
    tmp_path: Path, memory_remote: Remote
) -> None:
    """Earlier releases have sent them; each pull that reads what else is there meets them."""
    log, record = (f"workflow-runs/w/workflow-run-r.{kind}" for kind in ("log", "yaml"))
    with Machine(tmp_path / "a", memory_remote.open()) as machine:
        OldPeer(machine.store).push_v1({log: b"lines", record: b"id: r"})
        assert machine.pull().skipped == ()
        assert machine.files() == {record: b"id: r"}
        machine.write(record, b"id: r, again")
        machine.push()
        assert machine.pull(full=True).skipped == ()
        assert remote_files(machine.store)[log] == b"lines"
        assert_sound(machine.store)


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize(
    "name",
    [
        ".datastore-sync-state.json",
        "_catalog.db-dirty",
        "_catalog.db-base",
        ".datastore-index.json",
    ],
)
def test_h52_damaged_bookkeeping_of_the_cache_costs_time_and_no_work(
    ground: Ground, name: str, junk: bytes
) -> None:
    ground.filled()
    ground.there.pull()
    ground.there.write(NOTE, b"edited")
    ground.there.write("files/new.txt", b"new")
    ground.there.close()
    for aside in ground.there.cache.glob(f"{name}-*"):
        aside.unlink()
    (ground.there.cache / name).write_bytes(junk)
    with Machine(ground.there.cache, ground.remote.open()) as again:
        assert again.push().files == 2
        remote = remote_files(ground.store)
        assert set(remote) >= {*FILES, "files/new.txt"}
        # Without its base a machine cannot know which of two contents is the newer one.
        kept = [NOTE] if "base" not in name else [rel for rel in remote if NOTE in rel]
        assert b"edited" in [remote[rel] for rel in kept]
        assert again.pull().changes == 0
        assert again.push().changes == 0


# Entries that lie ---------------------------------------------------------------------------------

WRONG_SHAPES: dict[str, object] = {
    "null": None,
    "number": 5,
    "text": "x",
    "list": [],
    "empty": {},
    "no size": {"lastModified": "2026-01-01T00:00:00.000Z"},
    "negative size": {"size": -1, "lastModified": "2026-01-01T00:00:00.000Z"},
    "size as text": {"size": "1", "lastModified": "2026-01-01T00:00:00.000Z"},
    "size as truth": {"size": True, "lastModified": "2026-01-01T00:00:00.000Z"},
    "size as fraction": {"size": 1.5, "lastModified": "2026-01-01T00:00:00.000Z"},
    "size past any": {"size": 1 << 70, "lastModified": "2026-01-01T00:00:00.000Z"},
    "no time": {"size": 1},
    "time as number": {"size": 1, "lastModified": 5},
    "hash of nothing": {"size": 1, "lastModified": "", "sha256": "zz"},
    "hash as number": {"size": 1, "lastModified": "", "sha256": 5},
}


@pytest.mark.parametrize("version", [1, 2])
def test_entries_of_a_wrong_shape_are_told_kept_and_healed_by_their_owner(
    ground: Ground, version: int
) -> None:
    ground.filled(version=version)
    odd = {f"files/{name}": value for name, value in WRONG_SHAPES.items()}
    ground.plant(odd, version=version)
    pulled = ground.there.pull()
    assert ground.there.files() == FILES
    assert {one.rel for one in pulled.skipped} == set(odd)
    ground.there.write("files/new.txt", b"new")
    ground.there.push()
    entries = remote_index(ground.store).entries
    assert {rel: entries[rel] for rel in odd} == odd
    for rel in odd:
        ground.here.write(rel, b"sound")
    assert ground.here.push().files == len(odd)
    ground.assert_equal()


def test_a_deletion_is_not_held_up_by_an_entry_of_a_wrong_shape(ground: Ground) -> None:
    ground.filled()
    refuse = ground.proxy.fail(lambda one: one.kind == "DELETE", Status(403), times=None)
    ground.here.delete(NOTE)
    ground.here.push()
    assert refuse.fired
    assert NOTE in remote_files(ground.store)
    ground.proxy.heal()
    ground.plant({NOTE: {"size": "huge"}})
    ground.here.write("files/new.txt", b"new")
    assert ground.here.push().files == 1
    assert ground.here.service.status().dirty_paths == ()


@pytest.mark.parametrize("wrong", [{"size": 9}, {"size": 3}, {"sha256": "0" * 64}])
def test_an_object_that_is_not_what_the_index_says_does_not_land(
    ground: Ground, wrong: dict[str, object]
) -> None:
    ground.filled()
    ground.there.pull()
    changed = {RAW: b"raw changed", NOTE: b"note changed", LOG: b"log changed"}
    for rel, data in changed.items():
        ground.here.write(rel, data)
    ground.here.push()
    for rel in (RAW, NOTE):
        ground.plant({rel: entry(rel, changed[rel], **wrong)})
    with pytest.raises(IncompleteSyncError, match=RAW) as told:
        ground.there.pull()
    assert_helpful(told.value)
    assert told.value.failures.keys() == {RAW}
    assert ground.there.files() == FILES | {LOG: b"log changed"}
    ground.plant({RAW: entry(RAW, changed[RAW])})
    pulled = ground.there.pull()
    assert [one.rel for one in pulled.skipped] == [NOTE]
    assert ground.there.files() == FILES | changed | {NOTE: FILES[NOTE]}
    assert ground.there.push(full=True).files == 0
    ground.plant({NOTE: entry(NOTE, changed[NOTE])})
    ground.assert_equal()


def test_h58_a_missing_object_is_told_and_the_rest_comes(ground: Ground) -> None:
    ground.filled()
    ground.store.delete(NOTE)
    pulled = ground.there.pull()
    assert [one.rel for one in pulled.skipped] == [NOTE]
    assert ground.there.files() == {rel: data for rel, data in FILES.items() if rel != NOTE}
    ground.there.write(NOTE, b"again")
    ground.there.push()
    ground.assert_equal()
    assert ground.here.read(NOTE) == b"again"


# Bodies -------------------------------------------------------------------------------------------


def test_a_body_that_breaks_off_is_asked_for_again(ground: Ground) -> None:
    ground.filled()
    ground.proxy.fail(lambda one: one.kind == "GET", Truncated(), times=2)
    assert ground.there.pull().files == len(FILES)
    assert ground.there.files() == FILES


def test_h62_a_body_that_always_breaks_off_leaves_what_was_there(ground: Ground) -> None:
    ground.filled()
    ground.there.pull()
    ground.here.write(NOTE, b"a longer note")
    ground.here.write(LOG, b"a longer log")
    ground.here.push()
    ground.proxy.fail(lambda one: one.key == NOTE, Truncated(), times=None)
    with pytest.raises(IncompleteSyncError, match=NOTE) as told:
        ground.there.pull()
    assert_helpful(told.value)
    assert ground.there.files() == FILES | {LOG: b"a longer log"}
    assert ground.there.push().changes == 0
    ground.proxy.heal()
    ground.assert_equal()
    assert ground.there.read(NOTE) == b"a longer note"


def test_a_listing_that_breaks_off_is_gone_on_with(ground: Ground) -> None:
    ground.filled()
    ground.store.delete(MONOLITH)
    ground.store.delete(META)
    ground.proxy.fail(lambda one: one.kind == "LIST", Truncated(), times=2)
    assert ground.there.pull().files == len(FILES)
    assert ground.there.files() == FILES


def in_parts(store: Store, key: str, body: bytes) -> str:
    """Upload as other clients do; return the ETag."""
    assert isinstance(store, RetryingStore)
    assert isinstance(store.inner, ObstoreStore)
    put = obstore.put(store.inner._client, key, body, use_multipart=True, chunk_size=5 << 20)
    return put["e_tag"] or ""


@pytest.mark.parametrize("count", [1, 2])
def test_h51_etags_of_multipart_uploads_prove_nothing(ground: Ground, count: int) -> None:
    ground.filled()
    ground.there.pull()
    for number in range(count):
        rel = f"files/{number}.txt"
        ground.store.put(rel, b"new")
        document = json.loads(ground.store.get(MONOLITH).data)
        document["entries"][rel] = entry(rel, b"new")
        # Written by a client that uploads in parts, and which knows nothing of `_meta.json`.
        body = json.dumps(document).encode() + b" " * (11 << 20)
        assert in_parts(ground.store, MONOLITH, body).endswith('-3"')
        ground.clock.advance(minutes=2)
        assert ground.there.pull().files == 1
    sidecar = json.loads((ground.there.cache / ".datastore-sync-state.json").read_bytes())
    assert sidecar["remoteIndexETag"] == ""
    ground.assert_equal()


# Files that do not hold still ---------------------------------------------------------------------


@pytest.mark.parametrize("rel", ["files/big.bin", "data/aws/ec2/i-1/state/2/raw"])
def test_h64_a_large_file_that_grows_while_it_is_sent_is_sent_again(
    ground: Ground, rel: str
) -> None:
    ground.filled()
    ground.here.write("data/aws/ec2/i-1/state/2/metadata.yaml", growing("state", 2))
    ground.here.write("data/aws/ec2/i-1/state/2/raw", b"begun")
    ground.here.write(rel, b"x" * (5 << 20))
    path = ground.here.path(rel)

    def grow() -> None:
        with path.open("ab") as file:
            file.write(b"more")

    ground.proxy.fail(lambda one: one.kind != "GET" and one.key == rel, Meanwhile(grow))
    assert ground.here.push().conflicts == ()
    assert remote_files(ground.store)[rel] == b"x" * (5 << 20) + b"more"
    ground.assert_equal()


@contextlib.contextmanager
def restless(monkeypatch: pytest.MonkeyPatch, path: Path) -> Iterator[None]:
    """Touch a file whenever somebody opens it, and again when he closes it."""
    opened, closed = os.open, os.close
    descriptors: set[int] = set()

    def touch() -> None:
        os.utime(path, ns=(0, time.time_ns()))

    def opening(file: str, *args: Any, **options: Any) -> int:
        fd = opened(file, *args, **options)
        if file == str(path):
            descriptors.add(fd)
            touch()
        return fd

    def closing(fd: int) -> None:
        closed(fd)
        if fd in descriptors:
            descriptors.discard(fd)
            touch()

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opening)
        patch.setattr(os, "close", closing)
        yield


@pytest.mark.parametrize("content", [b"etan", b"x" * 10, b"x" * (5 << 20)], ids=len)
def test_h64_a_file_that_never_holds_still_waits_and_keeps_nothing_else_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    ground.filled()
    ground.here.write(NOTE, content)
    ground.here.write(LOG, b"other work")
    with (
        restless(monkeypatch, ground.here.path(NOTE)),
        pytest.raises(IncompleteSyncError, match="keeps changing") as told,
    ):
        ground.here.push()
    assert_helpful(told.value)
    assert set(told.value.failures) == {NOTE}
    assert remote_files(ground.store) == FILES | {LOG: b"other work"}
    assert ground.here.service.status().dirty_paths == (NOTE,)
    ground.assert_equal()
    assert ground.there.read(NOTE) == content


@contextlib.contextmanager
def vanishing(monkeypatch: pytest.MonkeyPatch, path: Path) -> Iterator[None]:
    """Remove a file right before somebody opens it."""
    opened = os.open

    def opening(file: str, *args: Any, **options: Any) -> int:
        if file == str(path):
            path.unlink(missing_ok=True)
        return opened(file, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opening)
        yield


def test_a_file_that_vanishes_while_it_is_sent_is_deleted_by_the_next_push(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.filled()
    ground.there.pull()
    ground.here.write(NOTE, b"short-lived")
    ground.here.write(LOG, b"other work")
    with vanishing(monkeypatch, ground.here.path(NOTE)):
        assert ground.here.push().files == 1
    assert ground.here.push().deleted == 1
    ground.assert_equal()
    assert NOTE not in ground.there.files()


def test_a_file_that_vanishes_before_a_conflict_is_decided_stays_marked(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.filled()
    ground.there.pull()
    ground.there.write(NOTE, b"of there")
    ground.there.push()
    ground.here.write(NOTE, b"of here, longer")
    with (
        vanishing(monkeypatch, ground.here.path(NOTE)),
        pytest.raises(IncompleteSyncError, match="was removed") as told,
    ):
        ground.here.push()
    assert_helpful(told.value)
    ground.assert_equal()
    assert ground.here.read(NOTE) == b"of there"


# A full disk --------------------------------------------------------------------------------------


class FullDisk:
    """Lets some system calls below a directory succeed, then none: there is no space left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, spared: int) -> None:
        self._spared = spared
        self.refused = 0
        original = getattr(os, call)

        def refusing(*args: Any, **options: Any) -> Any:
            if self._spared <= 0:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._spared -= 1
            return original(*args, **options)

        monkeypatch.setattr(os, call, refusing)


@pytest.mark.parametrize("spared", [0, 2, 6])
@pytest.mark.parametrize("call", ["write", "rename", "mkdir"])
def test_a_disk_that_is_full_in_the_middle_of_a_pull_leaves_whole_files(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, call: str, spared: int
) -> None:
    ground.filled()
    more = {f"files/dir/{number}.txt": b"%d" % number * 1000 for number in range(10)}
    for rel, data in more.items():
        ground.here.write(rel, data)
    ground.here.push()
    ground.there.write("files/mine.txt", b"mine")
    everything = FILES | more | {"files/mine.txt": b"mine"}
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, call, spared)
        try:
            ground.there.pull()
        except SwampstoreError as error:
            assert_helpful(error)
            assert "disk is full" in str(error)
        else:
            assert not disk.refused
        installed = ground.there.files()
        assert installed.items() <= everything.items()
        assert installed["files/mine.txt"] == b"mine"
    assert ground.there.service.status().dirty_paths == ("files/mine.txt",)
    ground.assert_equal()
    assert ground.there.files() == everything
    assert not list(ground.there.cache.glob(".*.tmp"))


# Buckets that go and come -------------------------------------------------------------------------


@dataclass(frozen=True)
class NoBucket:
    """Say what a server says about a bucket that does not exist."""

    def spoil(self, forward: Callable[[], Answer], over: object) -> Answer:
        return Answer(HTTPStatus.NOT_FOUND, body=b"<Error><Code>NoSuchBucket</Code></Error>")


@pytest.mark.parametrize("after", [0, 3, 6, 9])
@pytest.mark.parametrize("version", [1, 2])
def test_a_bucket_that_vanishes_in_the_middle_takes_nothing_with_it(
    ground: Ground, version: int, after: int
) -> None:
    ground.filled(version=version)
    ground.there.pull()
    ground.here.write(NOTE, b"of here")
    ground.here.delete(LOG)
    ground.here.push()
    ground.there.write("files/new.txt", b"of there")
    ground.there.delete(EXTRA)
    before = ground.there.files()
    for work in (ground.there.pull, ground.there.push):
        gone = ground.proxy.fail(lambda _: True, NoBucket(), times=None, after=after)
        try:
            work()
        except (StoreMissingError, IncompleteSyncError) as error:
            assert_helpful(error)
            assert "does not exist" in str(error)
        else:
            assert gone.fired < 3, "only an object that could not be removed may go untold"
        ground.proxy.heal()
        assert ground.there.files().keys() | {LOG} == before.keys()
        assert ground.there.read(NOTE) in {b"note", b"of here"}
        assert ground.there.read("files/new.txt") == b"of there"
    ground.assert_equal()
    assert ground.here.files().keys() == before.keys() - {LOG}
    assert ground.here.read(NOTE) == b"of here"


def empty(store: Store) -> None:
    for info in list(store.list()):
        store.delete(info.key)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", ["pull", "push"])
def test_a_bucket_that_comes_back_empty_is_filled_again(
    ground: Ground, version: int, first: str
) -> None:
    ground.filled(version=version)
    ground.there.pull()
    empty(ground.store)
    ground.there.write("files/new.txt", b"new")
    work = ground.there.pull if first == "pull" else ground.there.push
    work()
    assert ground.there.files() == FILES | {"files/new.txt": b"new"}
    ground.assert_equal()
    assert ground.here.files() == FILES | {"files/new.txt": b"new"}


def test_what_is_missing_in_a_remote_that_was_made_anew_was_not_deleted(ground: Ground) -> None:
    ground.filled(version=2)
    ground.there.pull([ModelRef("aws/ec2", "i-1")])
    empty(ground.store)
    # A machine that has only a part of it all is the first to notice.
    ground.there.sync()
    assert set(remote_files(ground.store)) == {RAW, METADATA, LATEST}
    assert ground.here.pull().deleted == 0
    assert ground.here.files() == FILES
    ground.assert_equal()
    assert ground.there.files() == FILES


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_without_the_right_to_write_everything_waits(ground: Ground, version: int) -> None:
    ground.filled(version=version)
    ground.there.pull()
    ground.here.write(LOG, b"new log")
    ground.here.push()
    ground.proxy.fail(lambda one: one.kind in {"PUT", "POST", "DELETE"}, Status(403), times=None)
    ground.there.write(NOTE, b"edited")
    ground.there.delete(EXTRA)
    assert ground.there.pull().files == 1
    with pytest.raises((StorePermissionError, IncompleteSyncError), match="AccessDenied") as told:
        ground.there.push()
    assert_helpful(told.value)
    assert set(ground.there.service.status().dirty_paths) == {NOTE, EXTRA}
    assert remote_files(ground.store) == FILES | {LOG: b"new log"}
    ground.proxy.heal()
    ground.assert_equal()
    assert ground.here.files().keys() == FILES.keys() - {EXTRA}
    assert (ground.here.read(LOG), ground.here.read(NOTE)) == (b"new log", b"edited")


def test_a_deletion_that_is_refused_is_made_up_for(ground: Ground) -> None:
    ground.filled()
    ground.proxy.fail(lambda one: one.kind == "DELETE", Status(403), times=None)
    ground.here.delete(NOTE)
    ground.here.push()
    assert NOTE not in remote_index(ground.store).entries
    assert NOTE in remote_files(ground.store)
    ground.proxy.heal()
    ground.here.push()
    ground.assert_equal()
    assert NOTE not in ground.kept()


@pytest.mark.parametrize("after", [0, 3, 6, 9])
@pytest.mark.parametrize("version", [1, 2])
def test_a_storm_that_outlasts_the_retries_loses_nothing(
    ground: Ground, version: int, after: int
) -> None:
    ground.filled(version=version)
    ground.there.pull()
    ground.here.write(NOTE, b"of here")
    ground.here.push()
    ground.there.write("files/new.txt", b"of there")
    ground.there.delete(LOG)
    for work in (ground.there.pull, ground.there.push):
        ground.proxy.fail(lambda _: True, Status(503), times=None, after=after)
        try:
            work()
        except (StoreUnreachableError, IncompleteSyncError) as error:
            assert_helpful(error)
            assert "503" in str(error)
        ground.proxy.heal()
        assert ground.there.read("files/new.txt") == b"of there"
    ground.assert_equal()
    assert ground.here.files().keys() == {*FILES, "files/new.txt"} - {LOG}
    assert ground.there.read(NOTE) == b"of here"


# Stopped in the middle ----------------------------------------------------------------------------

MANY = {f"files/{number:02}.txt": b"%d" % number for number in range(40)}


@pytest.fixture
def slow(ground: Ground) -> Ground:
    """Machines that transfer four files at a time, each of which takes a while."""
    ground.here.close()
    ground.there.close()
    limits = Limits(pull_concurrency=4, push_concurrency=4)
    for name in ("here", "there"):
        cache, store = ground.directory / name, ground.remote.open()
        setattr(ground, name, Machine(cache, store, limits=limits, clock=ground.clock))
    ground.here.write(NOTE, b"there is an index")
    ground.here.push()
    return ground


def transfers(ground: Ground, kind: str) -> int:
    return sum(one.kind == kind and one.key in MANY for one in ground.proxy.requests)


class Stop:
    """Presses Ctrl-C when so many files are done."""

    def __init__(self, files: int) -> None:
        self._files = files

    def __call__(self, step: Step) -> None:
        if step.files == self._files:
            raise KeyboardInterrupt


def test_a_push_that_is_stopped_goes_on_where_it_was(slow: Ground) -> None:
    for rel, data in MANY.items():
        slow.here.write(rel, data)
    with pytest.raises(KeyboardInterrupt):
        slow.here.service.push(progress=Stop(20))
    assert slow.here.files().items() > MANY.items()
    assert set(slow.here.service.status().dirty_paths) == set(MANY)
    assert set(remote_index(slow.store).entries) == {NOTE}
    time.sleep(0.2)
    slow.proxy.reset()
    assert slow.here.push().files == 40
    assert transfers(slow, "PUT") <= 24
    slow.assert_equal()


def test_a_pull_that_is_stopped_goes_on_where_it_was(slow: Ground) -> None:
    for rel, data in MANY.items():
        slow.here.write(rel, data)
    slow.here.push()
    slow.there.write(LOG, b"mine")
    with pytest.raises(KeyboardInterrupt):
        slow.there.service.pull(progress=Stop(20))
    installed = slow.there.files()
    assert len(installed) == 20
    assert installed.items() < (slow.here.files() | {LOG: b"mine"}).items()
    assert slow.there.service.status().dirty_paths == (LOG,)
    time.sleep(0.2)
    slow.proxy.reset()
    assert slow.there.pull().files == 22
    assert 21 <= transfers(slow, "GET") <= 22
    slow.assert_equal()


def test_a_push_whose_time_is_over_goes_on_where_it_was(slow: Ground) -> None:
    for rel, data in MANY.items():
        slow.here.write(rel, data)
    slow.proxy.fail(lambda one: one.key in MANY, Slow(0.1), times=None)
    with pytest.raises(SyncTimeoutError) as told:
        slow.here.service.push(deadline=0.7)
    assert_helpful(told.value)
    assert set(slow.here.service.status().dirty_paths) == set(MANY)
    slow.proxy.heal()
    time.sleep(0.2)
    slow.proxy.reset()
    assert slow.here.push().files == 40
    assert transfers(slow, "PUT") < 36
    slow.assert_equal()


def test_a_pull_whose_time_is_over_goes_on_where_it_was(slow: Ground) -> None:
    for rel, data in MANY.items():
        slow.here.write(rel, data)
    slow.here.push()
    slow.proxy.fail(lambda one: one.key in MANY, Slow(0.1), times=None)
    with pytest.raises(SyncTimeoutError) as told:
        slow.there.service.pull(deadline=0.7)
    assert_helpful(told.value)
    installed = slow.there.files()
    assert len(installed) > 4
    assert installed.items() < slow.here.files().items()
    slow.proxy.heal()
    assert slow.there.pull().files == len(slow.here.files()) - len(installed)
    slow.assert_equal()


@pytest.mark.parametrize("key", [META, MONOLITH])
def test_h68_the_time_is_also_over_while_the_index_is_waited_for(ground: Ground, key: str) -> None:
    ground.filled()
    ground.there.write(EXTRA, FILES[EXTRA])
    ground.proxy.fail(lambda one: one.key == key, Hang(), times=None)
    for work in (ground.there.service.pull, ground.there.service.push):
        began = time.monotonic()
        with pytest.raises(SyncTimeoutError):
            work(deadline=0.3)
        assert time.monotonic() - began < 3
    ground.proxy.heal()
    ground.assert_equal()


# Processes that are stopped -----------------------------------------------------------------------


@pytest.fixture
def people(
    s3_remote: ProxiedRemote,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> People:
    """Two people with a repository each, and one bucket behind a proxy."""
    section = {
        "type": "@swamp/s3-datastore",
        "config": {**s3_remote.config, "pullConcurrency": 4, "pushConcurrency": 4},
        "hydrationStrategy": "full",
    }
    ana = CommandMachine(tmp_path / "ana", capsysbinary, monkeypatch)
    bob = CommandMachine(tmp_path / "bob", capsysbinary, monkeypatch)
    for machine in (ana, bob):
        update_marker(str(machine.repo_dir), {"datastore": section})
    return People(ana, bob, s3_remote.proxy)


class People(NamedTuple):
    ana: CommandMachine
    bob: CommandMachine
    proxy: FaultProxy

    def save_many(self, artifacts: int) -> None:
        """Let ana share an artifact, and save others, each of which is three files."""
        self.ana.put("t/u", "first", "shared")
        self.ana("sync")
        with self.ana.open() as repo:
            for number in range(artifacts):
                repo.artifacts.save("t/u", f"name-{number:03}", b"%d" % number)

    def count(self, kind: str) -> int:
        """Return how many data files went through the proxy."""
        return sum(one.kind == kind and is_payload(one) for one in self.proxy.requests)

    def assert_equal(self, artifacts: int) -> None:
        contents = []
        for machine in (self.ana, self.bob):
            assert machine("sync").status == 0
            with machine.open() as repo:
                contents.append(
                    {
                        (found.name, found.version, found.is_latest): found.bytes()
                        for found in repo.query()
                    }
                )
        assert contents[0] == contents[1]
        assert len(contents[0]) == artifacts + 1


@contextlib.contextmanager
def running_sync(machine: CommandMachine) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "swampstore.cli", "sync"]
    with subprocess.Popen(
        command, env=machine.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(("number", "artifacts"), [(signal.SIGKILL, 100), (signal.SIGINT, 30)])
def test_a_process_stopped_while_it_pushes_has_less_to_do_the_next_time(
    people: People, number: signal.Signals, artifacts: int
) -> None:
    people.save_many(artifacts)
    people.proxy.reset()
    people.proxy.fail(lambda one: one.kind == "PUT" and is_payload(one), Slow(0.02), times=None)
    with running_sync(people.ana) as process:
        wait_until(lambda: people.count("PUT") > 1.5 * artifacts)
        process.send_signal(number)
        _, complaints = process.communicate()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert complaints.splitlines()[-1] == b"error: interrupted"
    else:
        assert process.returncode == -number
    assert not any(one.key == META and one.kind == "PUT" for one in people.proxy.requests)
    people.proxy.heal()
    people.proxy.reset()
    document = people.ana("sync", "--json").json
    assert document["filesPushed"] == 3 * artifacts
    assert people.count("PUT") <= 2.1 * artifacts
    people.assert_equal(artifacts)


@pytest.mark.parametrize(("number", "artifacts"), [(signal.SIGKILL, 100), (signal.SIGINT, 30)])
def test_a_process_stopped_while_it_pulls_has_less_to_do_the_next_time(
    people: People, number: signal.Signals, artifacts: int
) -> None:
    people.save_many(artifacts)
    people.ana("sync")
    people.proxy.fail(lambda one: one.kind == "GET" and is_payload(one), Slow(0.05), times=None)
    people.proxy.reset()
    data = people.bob.cache / "data"
    while True:  # on a busy machine it may have come to its end before the signal: once more
        shutil.rmtree(people.bob.cache, ignore_errors=True)
        people.proxy.reset()
        with running_sync(people.bob) as process:
            wait_until(lambda: people.count("GET") > artifacts)
            if number == signal.SIGKILL:  # who is asked nicely puts what has come in its place
                wait_until(lambda: list(data.rglob("*")))  # the first name lands
            process.send_signal(number)
            _, complaints = process.communicate()
        if process.returncode != 0:
            break
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert complaints.splitlines()[-1] == b"error: interrupted"
    else:
        assert process.returncode == -number
    people.proxy.heal()
    people.proxy.reset()
    document = people.bob("sync", "--json").json
    assert 0 < document["filesPulled"] <= 3 * artifacts
    assert people.count("GET") <= 2.5 * artifacts
    people.assert_equal(artifacts)


def test_h68_ctrl_c_is_heard_while_the_remote_says_nothing(people: People) -> None:
    people.proxy.fail(lambda _: True, Hang(), times=None)
    with running_sync(people.ana) as process:
        wait_until(lambda: people.proxy.requests)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate()
        assert time.monotonic() - began < 5
    assert (process.returncode, complaints) == (130, b"error: interrupted\n")
