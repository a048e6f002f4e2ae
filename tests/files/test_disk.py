"""Files that are replaced in one step, and how that ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swampstore.files import Hold, replace_file, replacing, try_writing
from swampstore.layout import is_temp
from swampstore.relocate import namespace_moving as moving


def test_readers_see_the_old_bytes_until_all_of_the_new_ones_are_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(str(path), durable=True) as temp:
        assert is_temp(os.path.basename(temp))
        Path(temp).write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_of_what_fails_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(str(path), durable=False) as temp:
        Path(temp).write_bytes(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        replace_file(str(path), b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_trial_leaves_nothing(tmp_path: Path) -> None:
    try_writing(str(tmp_path))
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        try_writing(str(tmp_path / "missing"))


def test_a_file_is_on_the_other_disk_before_it_leaves_this_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    steps: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    def noted_sync(fd: int) -> None:
        steps.append("sync")
        fsync(fd)

    def noted_unlink(path: str) -> None:
        steps.append(f"unlink {os.path.basename(path)}")
        unlink(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", no_link)
        patch.setattr(os, "fsync", noted_sync)
        patch.setattr(os, "unlink", noted_unlink)
        moving._place(str(source), str(target))
    assert steps == ["sync", "sync", "unlink source"]
    assert target.read_bytes() == b"content"


def test_nothing_is_claimed_on_a_disk_without_room_for_the_file_of_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        Hold().prepare(str(tmp_path))
    assert os.listdir(tmp_path) == []
