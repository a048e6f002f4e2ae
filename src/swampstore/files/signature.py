"""What a local file looks like from outside, to tell later whether it is still the same.

A signature is cheap and can deceive: a file system with coarse timestamps shows the same one
before and after a quick second write. `is_surely_unchanged` and `can_deceive` say when it can be
believed.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from swampstore.files.disk import disk_errors

RACY_NS = 2_000_000_000  # the coarsest timestamps in use (FAT) have steps of two seconds
_INODE_MASK = (1 << 63) - 1  # some file systems use all 64 bits, SQLite's integers have a sign


class Signature(NamedTuple):
    """The outside of a file or a directory at one moment."""

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
    """Return the signature that a stat shows."""
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
    return held == now and not can_deceive(held, recorded_ns)


def can_deceive(seen: Signature, at_ns: int) -> bool:
    """Say whether something was so young at a time that a later write may not show.

    `at_ns` is a time before the signature was taken, by the clock of the file system.
    """
    return max(seen.mtime_ns, seen.ctime_ns) >= at_ns - RACY_NS
