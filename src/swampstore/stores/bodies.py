"""Content on its way into a store and out of it: in one piece, but not in memory.

The client knows conditions only for bodies in one piece. A mapped file is one: the system reads
its pages when they are sent and forgets them afterwards. The file must not become shorter
meanwhile; content is replaced or grows, and is cut only after a writer was killed. What is received
goes into an open file, and is hashed while it comes in.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from collections.abc import Iterable
from typing import BinaryIO

from swampstore.files import disk_errors, write_all
from swampstore.stores.errors import CorruptObjectError

# Smaller files are read: mapping one costs more than that.
_MAPPED_FROM = 1 << 20
CHUNK = 1 << 20


def payload(body: bytes | BinaryIO) -> bytes | memoryview:
    """Return the whole of a body, from its start."""
    if isinstance(body, bytes):
        return body
    body.flush()
    size = size_of(body)
    if size >= _MAPPED_FROM:
        try:
            fd = body.fileno()
        except io.UnsupportedOperation:
            pass
        else:
            return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    body.seek(0)
    return body.read()


def size_of(body: bytes | BinaryIO) -> int:
    """Return how many bytes a body has."""
    return len(body) if isinstance(body, bytes) else body.seek(0, os.SEEK_END)


def sha256_of(body: bytes | BinaryIO) -> str:
    """Return the SHA-256 of a body, in hex."""
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest()
    digest = hashlib.sha256()
    body.seek(0)
    while chunk := body.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


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
        write_all(fd, chunk)
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
