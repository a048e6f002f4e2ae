"""Reading a file to be uploaded: what is hashed is what is sent, whatever happens to the file."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pytest

from swampstore.errors import ContentDamagedError, DiskError
from swampstore.files.signature import signature
from swampstore.index.base import Known
from swampstore.index.errors import SyncError, SyncTimeoutError
from swampstore.index.path_map import Names
from swampstore.index.workers import Deadline
from swampstore.layout import METADATA, RAW
from swampstore.routing import Routing
from swampstore.stores import Written
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import NewObject
from swampstore.sync import complete
from swampstore.sync.uploads import Occupied, Upload, Uploaded, Uploader, Vanished, put_all
from tests.conftest import FakeClock
from tests.support.staging import metadata_of

REL = "files/note"
UPLOAD = Upload(REL, None)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def uploader(tmp_path: Path, store: MemoryStore, clock: FakeClock) -> Uploader:
    (tmp_path / "files").mkdir()
    return Uploader(store, Names(str(tmp_path), "", Routing()), clock)


@pytest.fixture
def file(tmp_path: Path, uploader: Uploader) -> Path:
    del uploader
    return tmp_path / REL


@pytest.fixture
def after_reading(monkeypatch: pytest.MonkeyPatch, file: Path) -> Iterator[Callable[..., None]]:
    """Does things to the file, one each time that it was read."""
    todo: list[Callable[[], object]] = []
    read, opened = os.read, os.open
    descriptors: set[int] = set()

    def opening(path: str, *args: int) -> int:
        fd = opened(path, *args)
        if path == str(file):
            descriptors.add(fd)
        return fd

    def reading(fd: int, length: int) -> bytes:
        data = read(fd, length)
        if fd in descriptors and todo:
            todo.pop(0)()
        return data

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "read", reading)
    yield lambda *actions: todo.extend(actions)
    assert not todo


@pytest.mark.parametrize("content", [b"", b"x", b"y" * 100_000, b"z" * ((4 << 20) + 1)], ids=len)
def test_a_file_is_described_as_it_was_sent(
    uploader: Uploader, store: MemoryStore, file: Path, content: bytes
) -> None:
    file.write_bytes(content)
    began = time.time_ns()
    done = uploader.put(UPLOAD)
    assert isinstance(done, Uploaded)
    assert store.get(REL).data == content
    assert done.entry.sha256 == done.known.sha256 == hashlib.sha256(content).hexdigest()
    assert done.entry.size == done.known.size == done.sent == len(content)
    assert done.known.held == signature(str(file))
    assert began <= done.known.recorded_ns <= time.time_ns()


def test_a_file_that_is_written_while_it_is_read_is_read_again(
    uploader: Uploader, store: MemoryStore, file: Path, after_reading: Callable[..., None]
) -> None:
    file.write_bytes(b"old")
    after_reading(lambda: file.write_bytes(b"new!"))
    done = uploader.put(UPLOAD)
    assert isinstance(done, Uploaded)
    assert store.get(REL).data == b"new!"
    assert done.entry.sha256 == hashlib.sha256(b"new!").hexdigest()
    assert done.known.held == signature(str(file))


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    uploader: Uploader, store: MemoryStore, file: Path, after_reading: Callable[..., None]
) -> None:
    """The new one has the same size and times; only that it is another file tells."""
    file.write_bytes(b"old")
    other = file.with_name("other")

    def replace() -> None:
        before = file.stat()
        other.write_bytes(b"new")
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(file)

    after_reading(replace)
    done = uploader.put(UPLOAD)
    assert isinstance(done, Uploaded)
    assert store.get(REL).data == b"new"


def test_a_file_that_keeps_growing_is_put_off(
    uploader: Uploader, store: MemoryStore, file: Path, after_reading: Callable[..., None]
) -> None:
    def grow() -> None:
        with file.open("ab") as growing:
            growing.write(b"more")

    file.write_bytes(b"log")
    after_reading(grow, grow, grow)
    with pytest.raises(SyncError, match=r"note keeps changing while it is read"):
        uploader.put(UPLOAD)
    assert list(store.list()) == []


def test_a_file_that_is_removed_while_it_is_read_has_vanished(
    uploader: Uploader, store: MemoryStore, file: Path, after_reading: Callable[..., None]
) -> None:
    file.write_bytes(b"x")
    after_reading(file.unlink)
    assert uploader.put(UPLOAD) == Vanished(REL)
    assert list(store.list()) == []


def test_a_file_that_a_disk_gives_in_pieces_is_whole(
    uploader: Uploader, store: MemoryStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, length: read(fd, min(length, 7)))
    file.write_bytes(b"0123456789" * 10)
    assert isinstance(uploader.put(UPLOAD), Uploaded)
    assert store.get(REL).data == b"0123456789" * 10


@pytest.mark.parametrize("kind", ["nothing", "directory", "link", "fifo", "below a file"])
def test_what_is_no_regular_file_any_more_has_vanished(
    uploader: Uploader, store: MemoryStore, file: Path, kind: str
) -> None:
    if kind == "directory":
        file.mkdir()
    elif kind == "link":
        target = file.with_name("target")
        target.write_bytes(b"not to be sent")
        file.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind == "below a file":
        file.parent.rmdir()
        file.parent.write_bytes(b"")
    assert uploader.put(UPLOAD) == Vanished(REL)
    assert list(store.list()) == []


def test_a_disk_that_cannot_be_read_is_told_of(
    uploader: Uploader, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, length: int) -> bytes:
        raise OSError(5, f"Input/output error ({fd}, {length})")

    file.write_bytes(b"x")
    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(DiskError, match=r"note: Input/output error"):
        uploader.put(UPLOAD)


class Crowd(MemoryStore):
    """A store that answers when as many put something at once as are waited for."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(parties)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        self._barrier.wait(10)
        return super().put_if_absent(key, body)


def test_files_are_put_at_once_however_small(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "files").mkdir()
    uploads = [Upload(f"files/{number}", None) for number in range(64)]
    for upload in uploads:
        (tmp_path / upload.rel).write_bytes(b"x")
    uploader = Uploader(Crowd(8), Names(str(tmp_path), "", Routing()), clock)
    done = list(put_all(uploader, uploads, 8, Deadline()))
    assert sorted(one.task.rel for one in done) == sorted(one.rel for one in uploads)
    assert all(isinstance(one.result, Uploaded) for one in done)


def test_content_is_compared_with_metadata_that_was_sent_just_before(
    tmp_path: Path, clock: FakeClock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "data/t/id/name/1"
    (tmp_path / version).mkdir(parents=True)
    good = hashlib.sha256(b"good").hexdigest()
    (tmp_path / version / "metadata.yaml").write_text(f"name: name\nsize: 4\nchecksum: {good}\n")
    (tmp_path / version / "raw").write_bytes(b"good")
    uploader = Uploader(store, Names(str(tmp_path), "", Routing()), clock)
    read: list[str] = []
    monkeypatch.setattr(complete, "read_file", read.append)
    assert isinstance(uploader.put(Upload(f"{version}/metadata.yaml", None)), Uploaded)
    assert isinstance(uploader.put(Upload(f"{version}/raw", None)), Uploaded)
    assert not read


def test_metadata_is_read_once_more_before_content_is_called_damaged(
    tmp_path: Path, clock: FakeClock, store: MemoryStore
) -> None:
    version = "data/t/id/name/1"
    (tmp_path / version).mkdir(parents=True)
    metadata, raw = tmp_path / version / "metadata.yaml", tmp_path / version / "raw"
    metadata.write_text("name: name\nchecksum: " + hashlib.sha256(b"old").hexdigest() + "\n")
    raw.write_bytes(b"old")
    uploader = Uploader(store, Names(str(tmp_path), "", Routing()), clock)
    uploader.put(Upload(f"{version}/metadata.yaml", None))
    # Something was appended meanwhile.
    raw.write_bytes(b"old and new")
    told = hashlib.sha256(b"old and new").hexdigest()
    metadata.write_text(f"name: name\nsize: 11\nchecksum: {told}\n")
    assert isinstance(uploader.put(Upload(f"{version}/raw", None)), Uploaded)


class Bulk(MemoryStore):
    """Creates many objects from one thread, until it has created so many."""

    capabilities = MemoryStore.capabilities._replace(creates_many=True)

    def __init__(self, most: int) -> None:
        super().__init__()
        self.alone: list[str] = []
        self._most = most

    def create_many(
        self, objects: Iterator[NewObject], at_once: int, remaining: Callable[[], float | None]
    ) -> Iterator[tuple[NewObject, Written | None]]:
        assert at_once == 8
        remaining()
        for one in islice(objects, self._most):
            try:
                yield one, super().put_if_absent(one.key, one.data)
            except PreconditionFailedError:
                yield one, None

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        self.alone.append(key)
        return super().put_if_absent(key, body)


@pytest.fixture
def many(tmp_path: Path) -> list[Upload]:
    (tmp_path / "files").mkdir()
    uploads = [Upload(f"files/{number:03}", None) for number in range(250)]
    for upload in uploads:
        (tmp_path / upload.rel).write_bytes(upload.rel.encode())
    return uploads


@pytest.mark.parametrize(("most", "alone"), [(0, 249), (100, 149), (1000, 2)])
def test_many_small_files_are_sent_from_one_thread_as_far_as_the_store_goes(
    tmp_path: Path, clock: FakeClock, many: list[Upload], most: int, alone: int
) -> None:
    store = Bulk(most)
    store.put("files/003", b"somebody else's")
    (tmp_path / "files/004").unlink()
    (tmp_path / "files/005").write_bytes(bytes(1 << 20))
    many[6] = many[6]._replace(replaces=Known("files/006", 0, "", "", None, None))
    uploader = Uploader(store, Names(str(tmp_path), "", Routing()), clock)
    done = {one.task.rel: one.result for one in put_all(uploader, many, 8, Deadline())}
    assert set(done) == {one.rel for one in many}
    assert isinstance(done.pop("files/003"), Occupied)
    assert isinstance(done.pop("files/004"), Vanished)
    for rel, placed in done.items():
        assert isinstance(placed, Uploaded)
        found = store.get(rel)
        assert placed.known.etag == found.info.token
        assert placed.entry.sha256 == hashlib.sha256(found.data).hexdigest()
        assert placed.sent == len(found.data)
    assert {"files/005", "files/006"} <= set(store.alone)
    assert len(store.alone) == alone


def test_few_files_are_not_worth_connections_of_their_own(
    tmp_path: Path, clock: FakeClock, many: list[Upload]
) -> None:
    store = Bulk(1000)
    uploader = Uploader(store, Names(str(tmp_path), "", Routing()), clock)
    assert len(list(put_all(uploader, many[:199], 8, Deadline()))) == 199
    assert len(store.alone) == 199


def test_damaged_content_is_not_sent_from_one_thread_either(
    tmp_path: Path, clock: FakeClock, many: list[Upload]
) -> None:
    version = "data/test/thing/m-1/state/1"
    (tmp_path / version).mkdir(parents=True)
    (tmp_path / version / METADATA).write_bytes(metadata_of("state", 1, b"saved"))
    (tmp_path / version / RAW).write_bytes(b"other")
    store = Bulk(1000)
    uploader = Uploader(store, Names(str(tmp_path), "", Routing()), clock)
    uploads = [*many, *(Upload(f"{version}/{name}", None) for name in (METADATA, RAW))]
    failed = [one for one in put_all(uploader, uploads, 8, Deadline()) if one.error]
    assert [one.task.rel for one in failed] == [f"{version}/{RAW}"]
    assert isinstance(failed[0].error, ContentDamagedError)
    assert [info.key for info in store.list(version)] == [f"{version}/{METADATA}"]


def test_a_push_that_is_out_of_time_ends_in_one_thread_as_well(
    tmp_path: Path, clock: FakeClock, many: list[Upload]
) -> None:
    uploader = Uploader(Bulk(1000), Names(str(tmp_path), "", Routing()), clock)
    with pytest.raises(SyncTimeoutError):
        list(put_all(uploader, many, 8, Deadline(0)))
