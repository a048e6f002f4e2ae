"""What is left in a cache without what its base knew, of versions that the remote has or has not.

The base was lost, or started over with an index that was made anew. Nothing tells any more which
of them are still there. What else is here counts as new, and is shared.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from swampstore.artifacts.metadata import Metadata, decode
from swampstore.errors import MetadataError
from swampstore.files.signature import signature
from swampstore.index.errors import IndexDamagedError, SyncError
from swampstore.index.partitions import Scope, partition_of
from swampstore.index.path_kinds import is_metadata, unit_of
from swampstore.index.state import View
from swampstore.layout import METADATA, RAW
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync import merge
from swampstore.sync.arrivals import Arrival
from swampstore.sync.complete import is_content_here, local_metadata
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Staging
from swampstore.sync.hashing import hash_file, holds
from swampstore.sync.scan import LocalScan, is_covered

# The fact of a new base that the cache has not been compared as a whole since it lost the old one:
# when that was noticed.
LOST = "lost"


def note_if_lost(context: SyncContext) -> None:
    """Note it if the cache was synced, and nothing tells any more what others deleted since.

    What somebody read meanwhile, or was killed at, is in the new base already, and tells nothing.
    """
    is_told = context.base.fact("verified_at") is not None or context.base.fact(LOST) is not None
    if not is_told and context.tracker.state().last_verified_at:
        context.tracker.mark(None)
        with Staging(context.names.cache_dir) as staging:  # by the clock of the disk
            noticed = os.lstat(staging.path).st_ctime_ns
        context.base.apply(facts={LOST: str(noticed)})


def was_here_before(context: SyncContext, rel: str) -> bool:
    """Whether the base was lost, and a file is here unchanged since before that was noticed."""
    noticed, now = context.base.fact(LOST), signature(context.names.local(rel))
    return noticed is not None and now is not None and now.ctime_ns < int(noticed)


def told_again(context: SyncContext, metadata: Iterable[str]) -> set[str]:
    """Return the data names of versions that others may have under another number by now.

    Those are of the given metadata, which the base does not know, what others had before the base
    started over; if it was lost, that may be any of it.
    """
    if context.base.fact(LOST) is None:
        metadata = merge.known_to_others(context, metadata)
    return {unit_of(rel) for rel in metadata}


def has_come(context: SyncContext, name_rel: str) -> bool:
    """Whether the base knows any version of a data name: else nothing that is here is a copy."""
    return any(is_metadata(one.rel) for one in context.base.below(name_rel))


def still_to_come(
    context: SyncContext, name_rels: Collection[str]
) -> dict[str, dict[str, Metadata]]:
    """Return, by data name, the versions that cannot come as long as ours have their numbers.

    Costs a request for each, beside the index.
    """
    if not name_rels:
        return {}
    view = context.index.view({partition_of(f"{one}/1/{METADATA}") for one in name_rels})
    to_come = {name_rel: _kept_out(context, view, name_rel) for name_rel in name_rels}
    return {name_rel: found for name_rel, found in to_come.items() if found}


def _kept_out(context: SyncContext, view: View, name_rel: str) -> dict[str, Metadata]:
    rels = [rel for rel in view.entries_below(name_rel) if is_metadata(rel)]
    known = context.base.get_many(rels)
    found: dict[str, Metadata] = {}
    for rel in rels:
        version_rel, path = rel.rpartition("/")[0], context.names.local(rel)
        if rel in known or view.raw(f"{version_rel}/{RAW}") is None or not os.path.lexists(path):
            continue
        with contextlib.suppress(IndexDamagedError, ObjectNotFoundError, MetadataError):
            entry = view.entry(rel)
            if entry is not None and not holds(path, entry.sha256):
                data = context.store.get(context.names.remote(rel)).data
                found[version_rel] = decode(data, rel)
    return found


def numbered_anew(
    context: SyncContext, name_rel: str, to_come: Mapping[str, Metadata] = MappingProxyType({})
) -> Iterator[list[Arrival]]:
    """Yield what removes each version of a data name that is there under another number as well.

    Others have given it that number meanwhile: it is here under that, or is still `to_come`. With
    content, it is a copy, and the remote would have two. Without content, nobody will ever have any
    for this one, if the base was lost; otherwise somebody has removed that, and may put it back.
    """
    rels = [f"{name_rel}/{one}" for one in merge.local_versions(context, name_rel)]
    whole = {
        rel: local_metadata(context.names, rel) for rel in rels if merge.is_whole(context, rel)
    }
    ids = {one.id for one in whole.values() if one}
    theirs = {
        rel: one
        for rel, one in whole.items()
        if one is not None and context.base.get(f"{rel}/{METADATA}")
    } | dict(to_come)
    is_lost = context.base.fact(LOST) is not None
    for rel in rels:
        if not merge.is_committed(context, rel) or context.base.get(f"{rel}/{METADATA}"):
            continue
        if is_content_here(context.names, rel):
            yield from _copy(context, rel, theirs)
        elif is_lost and rel not in whole and merge.local_id(context, rel) in ids:
            yield [_without(context, f"{rel}/{METADATA}")]


def _copy(
    context: SyncContext, rel: str, theirs: Mapping[str, Metadata]
) -> Iterator[list[Arrival]]:
    """Yield what removes a version, if the remote has all of it, only under another number.

    Something may have been appended to it there. `theirs` are the versions that the remote has by
    what the base or the index tells, and the object itself has to show that it has these bytes:
    what is here may be the last copy of them.
    """
    metadata = _without(context, f"{rel}/{METADATA}")
    ours = local_metadata(context.names, rel)  # after that: what changes it from now on, is seen
    same = [
        (f"{one}/{RAW}", told)
        for one, told in theirs.items()
        if ours and one != rel and _speaks_of_it(told, ours)
    ]
    if not same:
        return
    try:
        sha256, now = hash_file(context.names.local(f"{rel}/{RAW}"))
    except (FileNotFoundError, SyncError):
        return  # it is somewhere else, or does not hold still
    if any(
        merge.has_content(context, raw, now.size, sha256)
        if told.allows(now.size, sha256)
        else merge.is_beginning(context, raw, now.size, sha256)
        for raw, told in same
    ):
        yield [metadata, Arrival(f"{rel}/{RAW}", None, now)]


def _speaks_of_it(theirs: Metadata, ours: Metadata) -> bool:
    """Whether metadata is that of the same version, be it after something was appended."""
    ours = replace(ours, version=theirs.version)
    if ours == theirs:
        return True
    is_longer = ours.streaming and (ours.size or 0) < (theirs.size or 0)
    return is_longer and replace(ours, size=theirs.size, checksum=theirs.checksum) == theirs


def hollow_versions(context: SyncContext, scope: Scope | None) -> list[Arrival]:
    """Return what removes metadata whose content is neither here, nor on the remote in any form.

    It was evicted here, or never came, and others deleted the version meanwhile. What is marked
    stays: somebody is writing it, or has removed its content and may put that back. So does all of
    it where a part of the index is lost, or there is none.
    """
    marks = context.tracker.peek().paths
    changed = LocalScan(context.names, context.base).everything(scope).changed
    hollow = {
        change.rel: Arrival(change.rel, None, change.signature)
        for change in changed
        if change.known is None and is_metadata(change.rel)
        if not is_covered(context.names.mark(change.rel), marks)
        if _is_hollow(context, change.rel.rpartition("/")[0])
    }
    view = context.index.view({partition_of(rel) for rel in hollow}) if hollow else None
    if view is None or not view.snapshot.exists or view.is_made_anew:
        return []
    return [one for rel, one in hollow.items() if not _is_named(view, rel)]


def _is_hollow(context: SyncContext, version_rel: str) -> bool:
    """Whether a version is saved, and there is no content of it, nor a link to any."""
    if not merge.is_committed(context, version_rel) or merge.is_whole(context, version_rel):
        return False
    raw = f"{version_rel}/{RAW}"
    if os.path.lexists(context.names.local(raw)):
        return False
    return context.base.get(raw) is None and not merge.has_object(context, raw)


def _is_named(view: View, metadata: str) -> bool:
    """Whether the index names a version here, however damaged its entries are."""
    raw = f"{metadata.rpartition('/')[0]}/{RAW}"
    return view.raw(metadata) is not None or view.raw(raw) is not None


def _without(context: SyncContext, rel: str) -> Arrival:
    return Arrival(rel, None, signature(context.names.local(rel)))
