"""Whatever a remote, a disk or a user does in the middle of a sync: told clearly, nothing lost."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from swampstore.errors import SwampstoreError, ValidationError
from swampstore.stores import Store
from swampstore.stores.config_fields import Limits
from swampstore.stores.errors import (
    StoreMissingError,
    StorePermissionError,
    StoreUnreachableError,
)
from swampstore.sync.errors import (
    IncompleteSyncError,
    IndexDamagedError,
    SyncTimeoutError,
)
from swampstore.sync.report import Step
from tests.fault_proxy import FaultProxy, Meanwhile, Request, Slow, Status, Truncated
from tests.http_server import Answer
from tests.remotes import ProxiedRemote
from tests.sync_harness import META, MONOLITH, Machine, assert_sound, remote_files, remote_index

RAW = "data/aws/ec2/i-1/state/1/raw"
LATEST = "data/aws/ec2/i-1/state/latest"
NOTE = "files/note.txt"
LOG = "logs/today.txt"
FILES = {RAW: b"one", LATEST: b"1", NOTE: b"note", LOG: b"log"}
SHARD = "_index/files.json"


class Ground:
    """Two machines, the server between them, and a way to change what it holds by hand."""

    def __init__(self, remote: ProxiedRemote, directory: Path) -> None:
        self.remote = remote
        self.proxy = remote.proxy
        self.store = remote.open()
        self.directory = directory
        self.here = Machine(directory / "here", remote.open())
        self.there = Machine(directory / "there", remote.open())

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

    def assert_equal(self) -> None:
        """Sync both machines, and check that all three places are the same and sound."""
        for machine in (self.here, self.there, self.here):
            machine.sync()
        assert self.here.files() == self.there.files() == remote_files(self.store)
        assert set(remote_index(self.store).entries) == set(self.here.files())
        assert_sound(self.store)
        assert self.here.service.status().dirty_paths == ()


@pytest.fixture
def ground(s3_remote: ProxiedRemote, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(s3_remote, tmp_path)
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
    for rel in HOSTILE:
        with contextlib.suppress(ValidationError):
            ground.store.put(rel, b"evil")
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
        ground.proxy.fail(lambda one, rel=rel: one.key == rel, Answers(data), times=None)
    with pytest.raises(IncompleteSyncError) as told:
        ground.there.pull()
    assert_helpful(told.value)
    [failed] = told.value.failures
    landed = ground.there.files()
    assert landed == FILES | {rel: data for rel, data in odd.items() if rel != failed}
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
    pushed = ground.here.push()
    assert pushed.files == (4 if travels else 1)
    assert len(pushed.skipped) == (0 if travels else 3)
    ground.here.write("files/later.txt", b"later")
    assert ground.here.push(full=True).files == 1
    assert ground.here.push().changes == 0


# Symbolic links -----------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory that is none of sync's business."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    (path / "secret.txt").write_bytes(b"not yours")
    return path


@pytest.mark.parametrize("full", [False, True])
def test_no_link_in_the_cache_is_followed_by_a_push(
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


def test_a_directory_that_became_a_link_deletes_nothing_on_the_remote(
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
def test_nothing_is_pulled_over_or_through_a_link(
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


def test_nothing_is_removed_through_a_link(ground: Ground, elsewhere: Path) -> None:
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


def test_what_is_kept_of_a_conflict_is_not_written_through_a_link(
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
    "no object": b"[]",
    "null": b"null",
    "no members": b"{}",
    "wrong members": b'{"version": 1, "entries": [], "partitions": {}}',
    "no text": b"\xff\xfe\x00" * 50,
    "binary in a string": b'{"version": 1, "entries": {"a\xff": {}}, "partitions": []}',
    "deep": b'{"version":1,"entries":' + b"[" * 200_000,
    "much": b"x" * (8 << 20),
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
        with pytest.raises(IndexDamagedError, match="version 99") as told:
            work()
        assert "newer" in (told.value.hint or "")
    assert json.loads(ground.store.get(META).data)["version"] == 99


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize(
    "name",
    [".datastore-sync-state.json", "_catalog.db-dirty", "_catalog.db-base", ".datastore-index.json"],
)
def test_damaged_bookkeeping_of_the_cache_costs_time_and_no_work(
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


def test_a_missing_object_is_told_and_the_rest_comes(ground: Ground) -> None:
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


def test_a_body_that_always_breaks_off_leaves_what_was_there(ground: Ground) -> None:
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
