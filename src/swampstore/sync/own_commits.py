"""After a push that was stopped between its commit and the note of it: what was ours is known.

Without that, deleting such a version here would say nothing about the one on the remote: it would
come back with the next pull, as if another machine had made it.
"""

from __future__ import annotations

from collections.abc import Mapping

from swampstore.files.signature import Signature
from swampstore.index.base import Known
from swampstore.index.errors import SyncError
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import version_file
from swampstore.layout import METADATA
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import hash_file
from swampstore.sync.scan import is_covered

_UNKNOWN = Signature(0, 0, 0, 0)


def learn_own_commits(parts: SyncContext) -> None:
    """Tell the base of uploads that the index names, and whose files were removed here since.

    Asks the remote only if there are such files.
    """
    noted = parts.base.all_noted_uploads()
    if not noted:
        return
    removals = parts.tracker.peek().removals
    known = parts.base.get_many(noted)
    gone = {
        rel: sha256
        for rel, sha256 in noted.items()
        if rel not in known
        and is_covered(parts.names.mark(rel), removals)
        and not _is_still_here(parts, rel, sha256)
    }
    if not gone:
        return
    view = parts.index.view({partition_of(rel) for rel in gone})
    entries = {rel: view.entry(rel) for rel in gone}
    parts.base.apply(
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


def _is_still_here(parts: SyncContext, rel: str, sha256: str) -> bool:
    try:
        return hash_file(parts.names.local(rel))[0] == sha256
    except FileNotFoundError:
        return False
    except SyncError:
        return True  # no file, or one that keeps changing: not the moment to decide anything
