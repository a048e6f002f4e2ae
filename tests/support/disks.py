"""File systems that are small, or become read-only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk_at(directory: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte at a directory, which is made; else skip the test."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def remount(disk: Path, mode: str) -> None:
    """Make a file system read-only (`ro`), or writable again (`rw`)."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)
