"""What a file looks like from outside, when that can be believed, and what is in it."""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from swampstore.errors import DiskError
from swampstore.files.signature import Signature, is_surely_unchanged, signature, signature_of
from swampstore.index.errors import SyncError
from swampstore.sync import hashing as module
from swampstore.sync.hashing import hash_file

SECOND = 1_000_000_000
NOON = 1_778_760_000 * SECOND


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def after_each_read(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], object]) -> None:
    """Let something happen to the file after each piece that is read of it."""
    read = os.read

    def read_then_change(fd: int, size: int) -> bytes:
        piece = read(fd, size)
        if piece:
            change(piece)
        return piece

    monkeypatch.setattr(os, "read", read_then_change)


def test_a_signature_shows_every_change_that_a_file_system_notes(tmp_path: Path) -> None:
    file = tmp_path / "raw"
    file.write_bytes(b"12345")
    before = signature(str(file))
    assert before is not None
    assert before.size == 5
    assert signature(str(file)) == before
    os.utime(file, ns=(NOON, NOON))
    touched = signature(str(file))
    assert touched is not None
    assert touched.mtime_ns == NOON
    (tmp_path / "other").write_bytes(b"12345")
    os.utime(tmp_path / "other", ns=(NOON, NOON))
    os.replace(tmp_path / "other", file)
    replaced = signature(str(file))
    assert replaced is not None
    assert replaced.inode != touched.inode


def test_only_regular_files_have_a_signature(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("link", "pipe", "directory", "missing", "file/below"):
        assert signature(str(tmp_path / name)) is None


def test_a_path_that_cannot_be_looked_at_is_not_taken_for_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="too long"):
        signature(str(tmp_path / ("n" * 300)))
    with pytest.raises(DiskError, match="too long"):
        hash_file(str(tmp_path / ("n" * 300)))


def test_an_inode_of_64_bits_fits_into_a_signed_integer() -> None:
    found = os.stat_result((0o100644, (1 << 64) - 1, 0, 1, 0, 0, 3, 1, 1, 1))
    assert 0 <= signature_of(found).inode < 1 << 63


def test_an_old_file_that_looks_the_same_is_surely_unchanged() -> None:
    held = Signature(3, NOON, NOON, 7)
    assert is_surely_unchanged(held, held, NOON + 3 * SECOND)


@pytest.mark.parametrize("field", Signature._fields)
def test_any_difference_asks_for_a_look_at_the_content(field: str) -> None:
    held = Signature(3, NOON, NOON, 7)
    now = held._replace(**{field: getattr(held, field) - 1})
    assert not is_surely_unchanged(held, now, NOON + 3 * SECOND)


@pytest.mark.parametrize(
    ("mtime", "ctime", "recorded"),
    [
        pytest.param(NOON, NOON, NOON, id="written in the moment of recording"),
        pytest.param(NOON, NOON, NOON + SECOND, id="written a second before"),
        pytest.param(0, NOON, NOON + SECOND, id="renamed or re-dated a second before"),
        pytest.param(NOON, 0, NOON + SECOND, id="dated a second before"),
        pytest.param(NOON, 0, NOON - 9 * SECOND, id="dated in the future"),
        pytest.param(NOON, NOON, 0, id="recorded at an unknown time"),
    ],
)
def test_h57_a_file_that_was_young_when_recorded_is_hashed(
    mtime: int, ctime: int, recorded: int
) -> None:
    held = Signature(3, mtime, ctime, 7)
    assert not is_surely_unchanged(held, held, recorded)


def test_h57_a_second_write_within_one_tick_of_the_clock_is_found(tmp_path: Path) -> None:
    file = tmp_path / "latest"
    file.write_bytes(b"1")
    found = os.stat(file)
    digest, held = hash_file(str(file))
    with file.open("r+b") as same_inode:
        same_inode.write(b"2")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    now = signature(str(file))
    assert now is not None
    now = now._replace(ctime_ns=held.ctime_ns)  # as a coarse file system would show it
    assert now == held
    assert not is_surely_unchanged(held, now, held.mtime_ns)
    assert hash_file(str(file))[0] != digest


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 21) + 1])
def test_a_hash_covers_every_byte(tmp_path: Path, size: int) -> None:
    file = tmp_path / "raw"
    data = os.urandom(size)
    file.write_bytes(data)
    assert hash_file(str(file)) == (sha256(data), signature(str(file)))


def test_h64_a_file_that_changes_while_it_is_hashed_is_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "raw"
    file.write_bytes(b"first")
    later = b"second, longer"
    after_each_read(monkeypatch, lambda piece: piece == b"first" and file.write_bytes(later))
    assert hash_file(str(file)) == (sha256(later), signature(str(file)))


def test_h64_a_file_that_is_replaced_while_it_is_hashed_is_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, new = tmp_path / "raw", tmp_path / "new"
    file.write_bytes(b"first")
    new.write_bytes(b"again")
    after_each_read(monkeypatch, lambda piece: piece == b"first" and new.replace(file))
    assert hash_file(str(file)) == (sha256(b"again"), signature(str(file)))


def test_h64_a_file_that_never_stops_changing_is_reported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "raw"
    file.write_bytes(b"x")
    times = itertools.count(NOON)
    after_each_read(monkeypatch, lambda _: os.utime(file, ns=(NOON, next(times))))
    with pytest.raises(SyncError, match=r"raw keeps changing") as told:
        hash_file(str(file))
    assert told.value.hint


def test_a_file_that_vanishes_is_file_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "raw"
    with pytest.raises(FileNotFoundError):
        hash_file(str(file))
    file.write_bytes(b"x")
    with pytest.raises(FileNotFoundError):
        hash_file(str(file / "below"))
    hash_once = module._hash_once

    def vanishing(path: str) -> tuple[str, Signature]:
        found = hash_once(path)
        file.unlink()
        return found

    monkeypatch.setattr(module, "_hash_once", vanishing)
    with pytest.raises(FileNotFoundError):
        hash_file(str(file))


def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(tmp_path / "socket"))
        for name in ("link", "pipe", "directory", "socket"):
            with pytest.raises(SyncError, match=f"{name} is not a regular file"):
                hash_file(str(tmp_path / name))
    finally:
        listener.close()
