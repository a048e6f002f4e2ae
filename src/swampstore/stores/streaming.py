"""Receiving an object into a file, hashing while it comes in."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from swampstore.files import disk_errors
from swampstore.stores.errors import CorruptObjectError

CHUNK = 1 << 20


def receive(
    chunks: Iterable[bytes], fd: int, *, what: str, size: int | None, sha256: str | None
) -> None:
    """Replace the content of an open file; raise CorruptObjectError if it is not as expected."""
    digest = hashlib.sha256()
    received = 0
    _rewind(fd, what)
    for chunk in chunks:
        digest.update(chunk)
        received += len(chunk)
        if size is not None and received > size:
            break
        _write(fd, chunk, what)
    if size is not None and received != size:
        got = f"more than the {size}" if received > size else f"only {received} of {size}"
        raise _corrupt(what, f"has {got} bytes expected")
    if sha256 is not None and digest.hexdigest() != sha256.lower():
        raise _corrupt(what, f"has the SHA-256 {digest.hexdigest()}, expected {sha256}")


def _rewind(fd: int, what: str) -> None:
    """Empty a file. A new one is not touched: once cut, it is written out when it is closed."""
    try:
        if os.lseek(fd, 0, os.SEEK_END) > 0:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        with disk_errors(_here(what)):
            raise


def _write(fd: int, chunk: bytes, what: str) -> None:
    try:
        written = os.write(fd, chunk)
        while written < len(chunk):
            written += os.write(fd, memoryview(chunk)[written:])
    except OSError:
        with disk_errors(_here(what)):
            raise


def _here(what: str) -> str:
    """Name the file that is written: it is the disk of this machine that refuses."""
    return f"the copy on this machine of {what}"


def _corrupt(what: str, wrong: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"{what} {wrong}",
        hint="It was replaced meanwhile, or damaged: pull again; verify the store if it stays.",
    )
