"""A directory as a store: conditions between processes, links, names of its own."""

from __future__ import annotations

import errno
import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swampstore.errors import ConfigError, DiskError, ValidationError
from swampstore.stores import Store, directory_tree, open_store
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreNotMountedError,
    StorePermissionError,
)
from swampstore.stores.protocol import ObjectInfo, contents
from swampstore.stores.retry import RetryingStore
from swampstore.testing import StoreConformance
from tests.artifacts.test_many_processes import run_all


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def store(root: Path) -> Iterator[DirectoryStore]:
    with DirectoryStore(str(root), durable=False) as store:
        yield store


class TestDirectoryStore(StoreConformance):
    @pytest.fixture
    def store(self, root: Path) -> Iterator[Store]:
        with DirectoryStore(str(root), durable=False) as store:
            yield store


def test_no_update_of_eight_racing_processes_is_lost(root: Path) -> None:
    with DirectoryStore(str(root)) as store:
        store.put("counter", b"0")

    def work(number: int) -> None:
        with DirectoryStore(str(root), durable=False) as store:
            for _ in range(25):
                _increment(store)

    run_all(8, work)
    with DirectoryStore(str(root)) as store:
        assert store.get("counter").data == b"200"


def _increment(store: Store) -> None:
    while True:
        found = store.get("counter")
        assert found.info.token is not None
        try:
            store.put_if_match("counter", b"%d" % (int(found.data) + 1), found.info.token)
        except PreconditionFailedError:
            continue
        return


def test_of_eight_processes_that_create_one_object_one_wins(root: Path, tmp_path: Path) -> None:
    def work(number: int) -> None:
        with DirectoryStore(str(root), durable=False) as store:
            for turn in range(20):
                try:
                    store.put_if_absent(f"locks/{turn}", b"%d" % number)
                except PreconditionFailedError:
                    continue
                (tmp_path / f"won-{turn}-{number}").touch()

    run_all(8, work)
    with DirectoryStore(str(root)) as store:
        for turn in range(20):
            [winner] = tmp_path.glob(f"won-{turn}-*")
            assert winner.name.endswith(f"-{store.get(f'locks/{turn}').data.decode()}")


def test_processes_that_create_and_delete_in_one_directory_do_not_fail(root: Path) -> None:
    def work(number: int) -> None:
        with DirectoryStore(str(root), durable=False) as store:
            for _ in range(50):
                store.put(f"deep/er/{number}", b"x")
                store.delete(f"deep/er/{number}")

    run_all(4, work)
    assert [path.name for path in root.iterdir()] == [".swampstore-locks"]


def test_every_write_has_a_token_of_its_own(store: DirectoryStore) -> None:
    tokens = set()
    for _ in range(300):
        tokens.add(store.put("a", b"same").token)
        store.delete("a")
        tokens.add(store.put("a", b"same").token)
    assert len(tokens) == 600


def test_a_change_by_another_tool_is_noticed(store: DirectoryStore, root: Path) -> None:
    token = store.put("a", b"one").token
    (root / "a").write_bytes(b"two")
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("a", b"three", token)


def test_a_create_never_replaces_what_a_program_without_our_locks_creates(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unique = directory_tree.make_unique

    def create_in_between(fd: int, parent: int, name: str) -> str:
        token = make_unique(fd, parent, name)
        (root / "sub/a").write_bytes(b"theirs")
        return token

    monkeypatch.setattr(directory_tree, "make_unique", create_in_between)
    with pytest.raises(PreconditionFailedError, match="sub/a"):
        store.put_if_absent("sub/a", b"ours")
    assert (root / "sub/a").read_bytes() == b"theirs"
    assert [path.name for path in (root / "sub").iterdir()] == ["a"]


def test_eight_processes_and_as_many_without_our_locks_create_each_object_once(
    root: Path, tmp_path: Path
) -> None:
    def work(number: int) -> None:
        with DirectoryStore(str(root), durable=False) as store:
            for turn in range(40):
                try:
                    if number % 2:
                        with (root / f"{turn}").open("xb") as file:
                            file.write(b"%d" % number)
                    else:
                        store.put_if_absent(f"{turn}", b"%d" % number)
                except (PreconditionFailedError, FileExistsError):
                    continue
                (tmp_path / f"won-{turn}-{number}").touch()

    run_all(8, work)
    for turn in range(40):
        [winner] = tmp_path.glob(f"won-{turn}-*")
        assert winner.name.endswith(f"-{(root / str(turn)).read_text()}")


def test_a_created_object_has_one_name_and_the_token_that_was_told(
    store: DirectoryStore, root: Path
) -> None:
    written = store.put_if_absent("a/b", b"x")
    assert store.head("a/b").token == written.token
    assert (root / "a/b").stat().st_nlink == 1
    assert [path.name for path in (root / "a").iterdir()] == ["b"]
    store.put_if_match("a/b", b"y", written.token)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_creates_by_renaming(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    written = store.put_if_absent("a", b"x")
    assert store.head("a").token == written.token
    with pytest.raises(PreconditionFailedError):
        store.put_if_absent("a", b"y")
    assert sorted(path.name for path in root.iterdir()) == [".swampstore-locks", "a"]


def test_a_link_whose_answer_was_lost_counts_as_made(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_twice(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        for _ in range(2):
            link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "link", link_twice)
    written = store.put_if_absent("a", b"x")
    assert (store.get("a").data, store.head("a").token) == (b"x", written.token)
    assert (root / "a").stat().st_nlink == 1


def test_a_link_in_the_place_of_a_new_object_is_replaced(
    store: DirectoryStore, root: Path, tmp_path: Path
) -> None:
    (root / "a").symlink_to(tmp_path / "outside")
    store.put_if_absent("a", b"x")
    assert store.get("a").data == b"x"
    assert not (tmp_path / "outside").exists()
    (root / "d").mkdir()
    with pytest.raises(DiskError):
        store.put_if_absent("d", b"x")


def test_links_are_not_followed(store: DirectoryStore, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for key in ("dir/secret", "file"):
        with pytest.raises(ObjectNotFoundError):
            store.get(key)
    with pytest.raises(DiskError):
        store.put("dir/new", b"x")
    store.put("file", b"own")
    store.delete("dir/secret")
    assert [info.key for info in store.list()] == ["file"]
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"s"


def test_a_pipe_is_no_object_and_blocks_nobody(store: DirectoryStore, root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(ObjectNotFoundError):
        store.get("pipe")
    assert list(store.list()) == []


def test_unfinished_writes_and_lock_files_are_not_listed(store: DirectoryStore, root: Path) -> None:
    store.put("a", b"x")
    (root / ".12345678-1234-1234-1234-123456789abc.tmp").write_bytes(b"half")
    assert [info.key for info in store.list()] == ["a"]
    assert (root / ".swampstore-locks").is_dir()


def kill_a_writer(root: Path, key: str) -> Path:
    """Kill a process in the middle of a put; return the temporary file that it leaves."""

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                os.kill(os.getpid(), signal.SIGKILL)
            return super().read(3)

    before = set(root.rglob("*"))
    child = os.fork()
    if child == 0:
        DirectoryStore(str(root)).put(key, Endless(b"content"))
    os.waitpid(child, 0)
    [temp] = [path for path in root.rglob(".*.tmp") if path not in before]
    assert temp.read_bytes() == b"con"
    return temp


def test_what_killed_writers_left_is_swept_by_a_listing_an_hour_later(
    store: DirectoryStore, root: Path
) -> None:
    store.put("data/kept", b"x")
    old = [kill_a_writer(root, key) for key in ("data/half", "data/new/deep/half", "top")]
    young = kill_a_writer(root, "data/kept")
    elsewhere = kill_a_writer(root, "other/half")
    for temp in (*old, elsewhere):
        os.utime(temp, (0, time.time() - 3605))
    os.utime(young, (0, time.time() - 3500))
    assert [info.key for info in store.list("data/")] == ["data/kept"]
    assert [temp.exists() for temp in old] == [False, False, True]
    assert not (root / "data/new").exists()
    assert young.exists()
    assert elsewhere.exists()
    assert [info.key for info in store.list()] == ["data/kept"]
    assert sorted(path.name for path in root.iterdir()) == [".swampstore-locks", "data"]


def test_a_listing_that_may_not_sweep_lists_all_the_same(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"x")
    temp = kill_a_writer(root, "b")
    os.utime(temp, (0, 0))

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "unlink", refuse)
    assert [info.key for info in store.list()] == ["a"]
    assert temp.exists()


@pytest.mark.parametrize(
    "key", [".swampstore-locks/00", "a/.12345678-1234-1234-1234-123456789abc.tmp"]
)
def test_the_names_of_its_own_files_are_refused(store: DirectoryStore, key: str) -> None:
    with pytest.raises(ValidationError, match="own files"):
        store.put(key, b"x")


def test_a_failed_write_leaves_nothing_behind(store: DirectoryStore, root: Path) -> None:
    store.put("a", b"x")
    with pytest.raises(PreconditionFailedError):
        store.put_if_absent("a", b"y")
    with pytest.raises(DiskError, match="directory belongs"):
        store.put("a/b", b"y")
    with pytest.raises(PreconditionFailedError):
        store.put_if_match("new/deep/c", b"y", "token")
    assert sorted(path.name for path in root.iterdir()) == [".swampstore-locks", "a"]


def test_a_deletion_takes_empty_directories_with_it(store: DirectoryStore, root: Path) -> None:
    store.put("x/y/z/1", b"1")
    store.put("x/2", b"2")
    store.delete("x/y/z/1")
    assert [path.name for path in (root / "x").iterdir()] == ["2"]


def test_a_listing_is_ordered_by_key(store: DirectoryStore) -> None:
    keys = ["a-b", "a/c", "a.d", "b", "a/b/c", "aa"]
    for key in keys:
        store.put(key, b"x")
    assert [info.key for info in store.list()] == sorted(keys)


def test_a_directory_that_is_missing_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreNotMountedError, match="not a directory") as told:
        open_store(f"file://{tmp_path}/nowhere")
    assert "Mount" in (told.value.hint or "")
    assert not (tmp_path / "nowhere").exists()


def test_a_url_with_a_host_or_a_relative_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="names the host 'mnt'"):
        open_store("file://mnt/share")
    with pytest.raises(ConfigError, match="path"):
        open_store("file", {"path": "share"})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_reported_as_such(
    store: DirectoryStore, root: Path
) -> None:
    root.chmod(0o555)
    try:
        with pytest.raises(StorePermissionError):
            store.put("a", b"x")
    finally:
        root.chmod(0o755)


@pytest.mark.parametrize("durable", [False, True])
def test_only_a_durable_store_waits_for_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(os, "fsync", waits.append)
    with DirectoryStore(str(root), durable=durable) as store:
        token = store.put_if_absent("a/b/c", b"x").token
        store.put_if_match("a/b/c", b"y", token)
        store.delete("a/b/c")
    # Two new directories; twice a file and its directory; the directory of what was deleted.
    assert len(waits) == (7 if durable else 0)


def test_all_descriptors_are_given_back(root: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with DirectoryStore(str(root), durable=False) as store:
        store.put("a/b", b"x")
        store.get("a/b")
        next(store.list())
        for attempt in (store.get, store.head):
            with pytest.raises(ObjectNotFoundError):
                attempt("a/missing")
        with pytest.raises(PreconditionFailedError):
            store.put_if_absent("a/b", b"x")
        store.clock()
        store.delete("a/b")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_hands_content_out_with_its_listing(root: Path, store: DirectoryStore) -> None:
    for key in ("a/1/raw", "a/1/metadata.yaml", "a/latest", "b"):
        store.put(key, key.encode())
    (root / "a/1/link").symlink_to(root / "b")
    found = list(contents(RetryingStore(store), "a/", lambda _: True, 1000))
    keys = ["a/1/metadata.yaml", "a/1/raw", "a/latest"]
    assert [(one.info.key, one.data) for one in found] == [(key, key.encode()) for key in keys]
    assert [one.info for one in found] == list(store.list("a/"))


def test_content_that_vanishes_or_grows_during_a_listing_is_not_made_up(
    root: Path, store: DirectoryStore
) -> None:
    for key in ("a", "b", "c"):
        store.put(key, b"old")
    before = store.head("b").etag

    def wanted(info: ObjectInfo) -> bool:
        if info.key in ("a", "b"):
            store.put(info.key, b"newer")
        return True

    # Who wanted the first one is about to get the second one, which is open already.
    newer, opened, same = contents(store, "", wanted, 1000)
    assert (newer.data, newer.info.etag) == (b"newer", store.head("a").etag)
    assert (opened.data, opened.info.size, opened.info.etag) == (b"old", 3, before)
    assert same.data == b"old"

    def removed(_: ObjectInfo) -> bool:
        (root / "a").unlink(missing_ok=True)
        return True

    gone, *_ = contents(store, "", removed, 1000)
    assert (gone.info.key, gone.is_wanted, gone.data) == ("a", True, None)


def test_a_directory_that_somebody_fills_just_now_is_taken_for_mounted(root: Path) -> None:
    def is_known() -> bool:
        """Another process writes there for the first time, and notes that."""
        with DirectoryStore(str(root), durable=False) as other:
            other.put("data/x", b"first")
        return True

    with DirectoryStore(str(root), durable=False, is_known=is_known) as store:
        assert store.get("data/x").data == b"first"


def test_an_empty_directory_that_is_known_is_taken_for_one_that_is_not_mounted(root: Path) -> None:
    store = DirectoryStore(str(root), durable=False, is_known=lambda: True)
    with store, pytest.raises(StoreNotMountedError, match="holds nothing any more"):
        store.reach()
