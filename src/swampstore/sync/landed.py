"""What a pull that was stopped had put in its place, and could not remember."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from swampstore.files.signature import Signature
from swampstore.index.base import ARRIVING, Known
from swampstore.index.errors import SyncError
from swampstore.index.path_kinds import version_file
from swampstore.layout import METADATA
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import hash_file


def remember_landed(parts: SyncContext) -> None:
    """Let the base know what has landed. Whoever does this holds the lock of the cache.

    Else it would count as new here, and be shared again after others deleted it.
    """
    noted = parts.base.noted_arrivals()
    if not noted:
        return
    began_ns = time.time_ns()
    held = {one: _held(parts, one) for one in noted}
    known = [replace(one, held=now, recorded_ns=began_ns) for one, now in held.items() if now]
    parts.base.apply(known=known, facts={ARRIVING: None})


def _held(parts: SyncContext, one: Known) -> Signature | None:
    """Return the looks of a file that is what was about to land, None if there is no such file.

    Of a version that is not whole nothing counts: the next pull looks at all of it.
    """
    path = parts.names.local(one.rel)
    if version_file(one.rel) and not os.path.lexists(f"{os.path.dirname(path)}/{METADATA}"):
        return None
    try:
        sha256, now = hash_file(path)
    except (FileNotFoundError, NotADirectoryError, SyncError):
        return None
    return now if sha256 == one.sha256 else None
