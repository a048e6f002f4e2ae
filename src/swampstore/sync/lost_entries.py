"""Telling entries that were deleted from such that somebody has lost with a part of the index.

A deletion of ours is noted before the entries go, and the note goes after the objects. Other
clients remove the object first and its entry afterwards. So whatever has left the index while its
object is there, and no note tells of it, was not deleted by anybody: a client that takes a lost
document for an empty one has written it with its own entries alone.

Such a client also begins with number 1 again, in the place of versions that it does not see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from swampstore.index.base import Known
from swampstore.index.path_kinds import (
    is_marker,
    is_metadata,
    metadata_beside,
    unit_of,
    version_file,
)
from swampstore.index.removals import read_notes
from swampstore.index.workers import Deadline, in_parallel
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import ObjectInfo
from swampstore.sync import merge
from swampstore.sync.context import SyncContext


def not_deleted(
    context: SyncContext, vanished: Mapping[str, Known], deadline: Deadline
) -> set[str]:
    """Return those of the paths that left the index though nobody deleted them.

    Costs a request for each; more only if some of their objects are there.
    """
    found = _stored(context, vanished, vanished, deadline)
    if not found:
        return set()
    notes = read_notes(context.store, context.names)
    unnoted = [
        rel for rel, info in found.items() if not notes.name(rel, info, vanished[rel].sha256)
    ]
    # A note goes after its objects: what is there without one now is there to stay.
    found = _stored(context, vanished, unnoted, deadline)
    rescued = {rel for rel in found if is_vouched_for(rel, found, vanished)}
    return rescued | _lost_with_them(rescued, vanished)


def _lost_with_them(rescued: Collection[str], vanished: Mapping[str, Known]) -> set[str]:
    """Return files of versions that nobody deleted, which are here and have lost their objects."""
    versions = {rel.rpartition("/")[0] for rel in rescued if is_metadata(rel)}
    return {
        rel
        for rel, known in vanished.items()
        if known.held is not None and version_file(rel) and rel.rpartition("/")[0] in versions
    }


def is_vouched_for(rel: str, found: Collection[str], vanished: Collection[str]) -> bool:
    """Whether a file is not just equal to what somebody is saving anew under the same name.

    Content and markers may be; metadata has an id of its own.
    """
    if version_file(rel):
        metadata = metadata_beside(rel)
        return metadata in found or metadata not in vanished
    if is_marker(rel):
        name_rel = unit_of(rel)
        return any(is_metadata(one) and unit_of(one) == name_rel for one in found)
    return True


def _stored(
    context: SyncContext, vanished: Mapping[str, Known], rels: Collection[str], deadline: Deadline
) -> dict[str, ObjectInfo]:
    """Return the objects of these paths that are those which the base knows."""

    def head(rel: str) -> ObjectInfo | None:
        try:
            return context.store.head(context.names.remote(rel))
        except ObjectNotFoundError:
            return None

    found: dict[str, ObjectInfo] = {}
    for rel, info, error in in_parallel(head, rels, context.limits.pull_concurrency, deadline):
        if error is not None:
            raise error
        known = vanished[rel]
        if info is not None and info.size == known.size and known.etag in (None, info.token):
            found[rel] = info
    return found


def overwritten(context: SyncContext, replaced: Iterable[str], deadline: Deadline) -> list[str]:
    """Return the metadata of whole versions here in whose place the remote has another id.

    Costs a request for each whole version.
    """
    whole = [rel for rel in replaced if merge.is_finished(context, rel.rpartition("/")[0])]

    def is_same(rel: str) -> bool:
        return merge.describe_one_artifact(context, rel)

    found = []
    for rel, same, error in in_parallel(is_same, whole, context.limits.pull_concurrency, deadline):
        if error is not None:
            raise error
        if not same:
            found.append(rel)
    return found
