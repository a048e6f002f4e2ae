"""What a push or a pull that was stopped had done, and could not remember."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace

from swampstore.files.signature import Signature
from swampstore.index.base import ARRIVING, Known
from swampstore.index.errors import SyncError
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import version_file
from swampstore.layout import METADATA
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import hash_file
from swampstore.sync.scan import is_covered

_UNKNOWN = Signature(0, 0, 0, 0)


def learn_own_commits(context: SyncContext) -> None:
    """Tell the base of uploads that the index names, and whose files were removed here since.

    Asks the remote only if there are such files.
    """
    noted = context.base.all_noted_uploads()
    if not noted:
        return
    removals = context.tracker.peek().removals
    known = context.base.get_many(noted)
    gone = {
        rel: sha256
        for rel, sha256 in noted.items()
        if rel not in known
        and is_covered(context.names.mark(rel), removals)
        and not _is_still_here(context, rel, sha256)
    }
    if not gone:
        return
    view = context.index.view({partition_of(rel) for rel in gone})
    entries = {rel: view.entry(rel) for rel in gone}
    context.base.apply(
        known=[
            # Only that it was here counts: how it looked, nobody can say any more.
            Known(
                rel, entry.size, sha256, entry.last_modified, None, Signature(entry.size, 0, 0, 0)
            )
            for rel, sha256 in gone.items()
            if (entry := entries[rel]) is not None and _is_ours(rel, entries, noted)
        ]
    )


def _is_ours(rel: str, entries: Mapping[str, Entry | None], noted: Mapping[str, str]) -> bool:
    """Whether the index names what was uploaded here; of a version, its metadata proves it."""
    found = version_file(rel)
    for one in {rel, f"{found.name_rel}/{found.version}/{METADATA}" if found else rel}:
        entry = entries.get(one)
        if entry is None or entry.sha256 is None or entry.sha256 != noted.get(one):
            return False
    return True


def _is_still_here(context: SyncContext, rel: str, sha256: str) -> bool:
    try:
        return hash_file(context.names.local(rel))[0] == sha256
    except FileNotFoundError:
        return False
    except SyncError:
        return True  # no file, or one that keeps changing: not the moment to decide anything


def remember_landed(context: SyncContext) -> None:
    """Let the base know what has landed. Whoever does this holds the lock of the cache.

    Else it would count as new here, and be shared again after others deleted it.
    """
    noted = context.base.noted_arrivals()
    if not noted:
        return
    began_ns = time.time_ns()
    held = {one: _held(context, one) for one in noted}
    known = [replace(one, held=now, recorded_ns=began_ns) for one, now in held.items() if now]
    context.base.apply(known=known, facts={ARRIVING: None})


def _held(context: SyncContext, one: Known) -> Signature | None:
    """Return the looks of a file that is what was about to land, None if there is no such file.

    Of a version that is not whole nothing counts: the next pull looks at all of it.
    """
    path = context.names.local(one.rel)
    if version_file(one.rel) and not os.path.lexists(f"{os.path.dirname(path)}/{METADATA}"):
        return None
    try:
        sha256, now = hash_file(path)
    except (FileNotFoundError, NotADirectoryError, SyncError):
        return None
    return now if sha256 == one.sha256 else None
