"""What a local file looks like from outside, and what is in it.

A signature is cheap and can deceive: a file system with coarse timestamps shows the same one
before and after a quick second write. `is_surely_unchanged` says when it can be believed.
"""

from __future__ import annotations

import errno
import os
import stat
from hashlib import sha256
from typing import NamedTuple

from swampstore.files import disk_errors
from swampstore.sync.errors import SyncError

_RACY_NS = 2_000_000_000  # the coarsest timestamps in use (FAT) have steps of two seconds
_PIECE = 1 << 20
_ATTEMPTS = 3
_INODE_MASK = (1 << 63) - 1  # some file systems use all 64 bits, SQLite's integers have a sign
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO})  # open() of a symbolic link, of a socket


class Signature(NamedTuple):
    """The outside of a regular file at one moment."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def signature(path: str) -> Signature | None:
    """Return the signature of a regular file, None if there is none (links are not followed)."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        with disk_errors(path):
            raise
    return signature_of(found) if stat.S_ISREG(found.st_mode) else None


def signature_of(found: os.stat_result) -> Signature:
    """Return the signature that a stat of a regular file shows."""
    return Signature(
        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino & _INODE_MASK
    )


def is_surely_unchanged(held: Signature, now: Signature, recorded_ns: int) -> bool:
    """Say whether a file that looked like `held` at `recorded_ns` and like `now` is the same.

    False means: hash it. That is so when anything differs, and when the file was so young at
    `recorded_ns` that a later write may have left every timestamp as it was. `recorded_ns` is a
    time before `held` was looked at, never after: writes in between would stay unseen. 0 stands
    for unknown.
    """
    return held == now and max(held.mtime_ns, held.ctime_ns) < recorded_ns - _RACY_NS


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
    raise SyncError(
        f"{path} keeps changing while it is read",
        hint="Sync again when whatever writes to it is done; nothing was lost.",
    )


def _hash_once(path: str) -> tuple[str, Signature]:
    fd = _open_regular(path)
    try:
        before = signature_of(os.fstat(fd))
        digest = sha256()
        with disk_errors(path):
            while piece := os.read(fd, _PIECE):
                digest.update(piece)
        return digest.hexdigest(), before
    finally:
        os.close(fd)


def _open_regular(path: str) -> int:
    # Without O_NONBLOCK, opening a FIFO would wait for somebody to write into it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags)
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
