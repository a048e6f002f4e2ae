"""What is written into a store, as the client takes it: in one piece, but not in memory.

The client knows conditions only for bodies in one piece. A mapped file is one: the system reads
its pages when they are sent and forgets them afterwards. The file must not become shorter
meanwhile; content is replaced or grows, and is cut only after a writer was killed.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from typing import BinaryIO

# Smaller files are read: mapping one costs more than that.
_MAPPED_FROM = 1 << 20
_CHUNK = 1 << 20


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
    while chunk := body.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
