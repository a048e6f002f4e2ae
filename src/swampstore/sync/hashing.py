"""What is in a local file, read while nothing about it changes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from hashlib import md5, sha256

from swampstore.artifacts.content import hash_beginning
from swampstore.errors import DiskError
from swampstore.files import disk_errors
from swampstore.files.signature import Signature, signature, signature_of
from swampstore.index.errors import SyncError

_PIECE = 1 << 20
# Without O_NONBLOCK, opening a FIFO would wait for somebody to write into it.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ATTEMPTS = 3
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO})  # open() of a symbolic link, of a socket


def hash_file(path: str) -> tuple[str, Signature]:
    """Return the SHA-256 (hex) of a regular file and the signature of what was hashed.

    The file looked the same before and after it was read; one that changes meanwhile is read
    again. Raises FileNotFoundError if it is not there (any more), SyncError if it keeps
    changing or is no regular file, DiskError if it cannot be read.
    """
    for _ in range(_ATTEMPTS):
        digest, before = _hash_once(path)
        if signature(path) == before:
            return digest, before
    raise _keeps_changing(path)


def read_small(path: str, most: int) -> bytes | None:
    """Return all that a file holds, None if that is more, or cannot be read; told at a glance.

    Nobody looks whether it changes meanwhile.
    """
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        data = os.read(fd, most + 1)
    except OSError:
        return None
    finally:
        os.close(fd)
    return data if len(data) <= most else None


def holds(path: str, sha256: str | None) -> bool | None:
    """Whether there is a file with content of this hash.

    None if nobody can tell: it keeps changing, is no regular file, or cannot be read.
    """
    try:
        return hash_file(path)[0] == sha256
    except FileNotFoundError:
        return False
    except (SyncError, DiskError):
        return None


def sha256_and_md5(path: str) -> tuple[str, str]:
    """Return both hashes (hex) of one state of a regular file; raises what `hash_file` raises."""
    for _ in range(_ATTEMPTS):
        other = md5(usedforsecurity=False)
        digest, before = _hash_once(path, other.update)
        if signature(path) == before:
            return digest, other.hexdigest()
    raise _keeps_changing(path)


def hash_beginning_of(path: str, size: int) -> str:
    """Return the hash of the first bytes of a regular file; raises what `hash_file` raises."""
    fd = _open_regular(path)
    try:
        with disk_errors(path):
            return hash_beginning(fd, size)
    finally:
        os.close(fd)


def _keeps_changing(path: str) -> SyncError:
    return SyncError(
        f"{path} keeps changing while it is read",
        hint="Sync again when whatever writes to it is done; nothing was lost.",
    )


def _hash_once(path: str, update: Callable[[bytes], object] | None = None) -> tuple[str, Signature]:
    fd = _open_regular(path)
    try:
        before = signature_of(os.fstat(fd))
        digest = sha256()
        with disk_errors(path):
            while piece := os.read(fd, _PIECE):
                digest.update(piece)
                if update is not None:
                    update(piece)
        return digest.hexdigest(), before
    finally:
        os.close(fd)


def _open_regular(path: str) -> int:
    try:
        fd = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_regular(path) from error
        with disk_errors(path):
            raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _not_regular(path)


def _not_regular(path: str) -> SyncError:
    return SyncError(
        f"{path} is not a regular file",
        hint="Only regular files are synced: move links, pipes and devices out of the cache.",
    )
