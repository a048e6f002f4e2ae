"""The three-way decision for one path, and the new numbers of versions that clash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Container, Iterable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from swampstore.artifacts.latest import is_right, latest_of, parse_marker
from swampstore.artifacts.metadata import decode
from swampstore.artifacts.versions import marker_at
from swampstore.errors import DiskError, MetadataError
from swampstore.files import disk_errors, read_file
from swampstore.index.errors import SyncError
from swampstore.index.format import Entry, entry_known
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_metadata, metadata_beside, version_file
from swampstore.index.results import Conflict
from swampstore.layout import DEFERRED, LATEST, METADATA, RAW, parse_version
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError
from swampstore.stores.protocol import excerpt, hash_object
from swampstore.sync.complete import is_complete, is_content_here, local_metadata
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import hash_file, holds
from swampstore.sync.scan import is_covered

if TYPE_CHECKING:
    from swampstore.index.base import Known

# How much of an object is read at a time, to compare it.
_PIECE = 4 << 20


class Local(Enum):
    """How the local file stands to the base.

    A file without a base is CHANGED. DELETED is a claim that needs evidence: the path was
    marked and the base shows that this cache held it; a file that is merely not there, or never
    was hydrated, is ABSENT.
    """

    SAME = auto()
    CHANGED = auto()
    ABSENT = auto()
    DELETED = auto()


class Decision(Enum):
    """What has to be done about one path."""

    NOTHING = auto()
    PUSH = auto()
    PULL = auto()
    DELETE_REMOTE = auto()
    DELETE_LOCAL = auto()
    ADOPT = auto()
    """Both sides have the same content already; only the base has to learn it."""
    FORGET = auto()
    """Neither side has it any more; only the base has to learn it."""
    CONFLICT = auto()


_NOWHERE_ELSE = {
    Local.SAME: Decision.NOTHING,
    Local.CHANGED: Decision.PUSH,
    Local.ABSENT: Decision.NOTHING,
    Local.DELETED: Decision.NOTHING,
}
_GONE_FROM_REMOTE = {
    Local.SAME: Decision.DELETE_LOCAL,
    Local.CHANGED: Decision.PUSH,
    Local.ABSENT: Decision.FORGET,
    Local.DELETED: Decision.FORGET,
}
_NEW_ON_REMOTE = {
    Local.SAME: Decision.PULL,
    Local.CHANGED: Decision.CONFLICT,
    Local.ABSENT: Decision.PULL,
    Local.DELETED: Decision.PULL,
}
_AS_IT_WAS_ON_REMOTE = {
    Local.SAME: Decision.NOTHING,
    Local.CHANGED: Decision.PUSH,
    Local.ABSENT: Decision.PULL,
    Local.DELETED: Decision.DELETE_REMOTE,
}
# A file at a path whose content never came here was not made from that content.
_NEVER_HYDRATED = _AS_IT_WAS_ON_REMOTE | {
    Local.CHANGED: Decision.CONFLICT,
    Local.ABSENT: Decision.NOTHING,
}


def remote_changed(known: Known | None, entry: Entry | None) -> bool:
    """Say whether the remote is not what the base knows.

    Where both have a SHA-256 it decides alone, otherwise size and time of modification do.
    """
    if known is None or entry is None:
        return (known is None) != (entry is None)
    if known.sha256 and entry.sha256:
        return known.sha256 != entry.sha256
    return (known.size, known.modified) != (entry.size, entry.last_modified)


def is_as_known(context: SyncContext, known: Known, entry: Entry) -> bool:
    """Whether the remote has what the base knows.

    Where the index does not tell, the object does; and where it tells otherwise, too: an index of
    long ago, which others took for the current one, speaks of what was there before.
    """
    if not remote_changed(known, entry):
        return True
    return has_content(context, known.rel, known.size, known.sha256)


def recognised(context: SyncContext, known: Known, entry: Entry | None) -> Entry | None:
    """Return the entry of something that was deleted here, in the words of the base if it fits.

    An index that others have made anew from the objects speaks of the same in other words.
    """
    if entry is None or not is_as_known(context, known, entry):
        return entry
    return entry_known(known)


def decide(
    local: Local, local_sha256: str | None, known: Known | None, entry: Entry | None
) -> Decision:
    """Decide what to do about one path. `local_sha256` is needed when the file is CHANGED."""
    if local is Local.CHANGED and local_sha256 is not None:
        if entry is not None and local_sha256 == entry.sha256:
            return Decision.ADOPT
        if known is not None and local_sha256 == known.sha256:
            local = Local.SAME
    return _rules(known, entry)[local]


def _rules(known: Known | None, entry: Entry | None) -> dict[Local, Decision]:
    if entry is None:
        return _NOWHERE_ELSE if known is None else _GONE_FROM_REMOTE
    if known is None or remote_changed(known, entry):
        return _NEW_ON_REMOTE
    return _NEVER_HYDRATED if known.held is None else _AS_IT_WAS_ON_REMOTE


def local_versions(context: SyncContext, name_rel: str) -> list[int]:
    """Return the version directories of a data name in the cache, ascending."""
    path = context.names.local(name_rel)
    with disk_errors(path):
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return []
    return sorted(one for name in names if (one := parse_version(name)) is not None)


def plan_moves(mine: Collection[int], theirs: Collection[int], clashing: int) -> dict[int, int]:
    """Return new numbers for our unshared versions from the first clashing one on, in order.

    `mine` are the versions only this machine has, `theirs` every number that is taken elsewhere.
    A version that is past all of those and in order stays.

    >>> plan_moves({4, 5, 9}, {1, 2, 3, 4}, 4)
    {4: 5, 5: 6}
    """
    moves: dict[int, int] = {}
    free = max([*theirs, clashing]) + 1
    for version in sorted(version for version in mine if version >= clashing):
        if version < free:
            moves[version] = free
        free = max(free, version) + 1
    return moves


def renumber(
    context: SyncContext,
    name_rel: str,
    clashing: set[int],
    taken: Iterable[int],
    removals: Container[str] = frozenset(),
    common: Container[str] = frozenset(),
) -> Conflict:
    """Move our versions of a data name out of the way of those on the remote.

    Those whose metadata is `common`, because the remote has them as well, stay. Of what was deleted
    here before its number was used again, the base still tells afterwards: without the file, that
    is a deletion to be pushed.
    """
    shared = {
        found.version
        for known in context.base.below(name_rel)
        if (found := version_file(known.rel)) and found.version not in clashing
    }
    here = set(local_versions(context, name_rel))
    metadata = {f"{name_rel}/{one}/{METADATA}": one for one in here - clashing}
    shared |= {one for rel, one in metadata.items() if rel in common}
    shared |= {metadata[rel] for rel in known_to_others(context, metadata)}
    unfinished = {one for one in here if not is_finished(context, f"{name_rel}/{one}")}
    mine = here - shared - (unfinished - clashing)
    moves = plan_moves(mine, {*taken, *shared, *clashing, *unfinished}, min(clashing))
    deleted = {one for one in moves if _was_replaced(context, f"{name_rel}/{one}", removals)}
    gone = [
        known.rel
        for known in context.base.below(name_rel)
        if (found := version_file(known.rel)) and found.version in moves.keys() - deleted
    ]
    # Before anything moves: whoever is killed then has still to fetch what is there instead.
    context.index.read_again({partition_of(f"{name_rel}/{one}") for one in (LATEST, f"1/{RAW}")})
    context.base.apply(forgotten=gone)
    context.installer.renumber(name_rel, moves)
    told = ", ".join(f"{old} is {new} now" for old, new in sorted(moves.items()))
    if deleted.issuperset(clashing):
        return Conflict(
            name_rel, f"it was deleted here and saved again, under the next free number: {told}"
        )
    return Conflict(name_rel, f"the version was taken by another machine; ours was kept: {told}")


def known_to_others(context: SyncContext, metadata: Iterable[str]) -> dict[str, str]:
    """Return which of these are of versions that others had before the base started over.

    With their hashes: it counts only as long as the file here is the one that they had.
    """
    noted = context.base.noted_uploads(metadata)
    return {
        rel: sha256
        for rel, (sha256, token) in noted.items()
        if not token and holds(context.names.local(rel), sha256)
    }


def was_deleted(context: SyncContext, version_rel: str, removals: Container[str]) -> bool:
    """Whether the version that the base knows was deleted here, whatever has its number now.

    `removals` are the paths below which something was removed: without one of them, somebody
    emptied the cache, and the numbers started anew.
    """
    if not is_covered(version_rel, removals):
        return False
    known = context.base.get(f"{version_rel}/{METADATA}")
    return known is not None and known.held is not None


def _was_replaced(context: SyncContext, version_rel: str, removals: Container[str]) -> bool:
    """Whether what is here was saved under the number of a version that was deleted before.

    A removal may also be of something else of that name. Then what is here is what the remote has,
    and both sides have appended to it.
    """
    if not was_deleted(context, version_rel, removals):
        return False
    return have_one_id(context, f"{version_rel}/{METADATA}") is not True


def is_finished(context: SyncContext, version_rel: str) -> bool:
    """Whether a version is there as a whole, so that it can move; others are being written."""
    return is_committed(context, version_rel) and is_content_here(context.names, version_rel)


def remote_marker(context: SyncContext, rel: str) -> int:
    """Return the version that a `latest` marker on the remote names, 0 if it names none."""
    try:
        data = context.store.get(context.names.remote(rel)).data
    except ObjectNotFoundError:
        return 0
    return parse_marker(data) or 0


def remote_sha256(context: SyncContext, rel: str) -> str | None:
    """Return the hash of an object, None if there is none. Reads all of it."""
    found = remote_content(context, rel)
    return None if found is None else found.sha256


class Content(NamedTuple):
    """What an object holds, and the token of the object that held it."""

    sha256: str
    token: str | None


def remote_content(context: SyncContext, rel: str) -> Content | None:
    """Read an object, without holding a large one in memory; None if there is none."""
    try:
        sha256, info = hash_object(context.store, context.names.remote(rel))
    except ObjectNotFoundError:
        return None
    return Content(sha256, info.token)


def has_object(context: SyncContext, rel: str) -> bool:
    """Whether there is anything at all where the index says that there is."""
    try:
        context.store.head(context.names.remote(rel))
    except ObjectNotFoundError:
        return False
    return True


def has_content(context: SyncContext, rel: str, size: int, sha256: str | None) -> bool:
    """Whether an object has this content, whatever the index says. Reads one of that size."""
    try:
        if sha256 is None or context.store.head(context.names.remote(rel)).size != size:
            return False
    except ObjectNotFoundError:
        return False
    return remote_sha256(context, rel) == sha256


def describe_one_artifact(context: SyncContext, rel: str) -> bool:
    """Whether our `metadata.yaml` and the remote's of the same path have the same id.

    True also if one of the two cannot be read: then nothing says that they differ.
    """
    return have_one_id(context, rel) is not False


def have_one_id(context: SyncContext, rel: str) -> bool | None:
    """Whether our metadata and the remote's have the same id, None if one cannot be read."""
    path = context.names.local(rel)
    try:
        theirs = decode(context.store.get(context.names.remote(rel)).data, rel)
        with disk_errors(path):
            ours = decode(read_file(path) or b"", path)
    except (ObjectNotFoundError, MetadataError):
        return None
    return ours.id == theirs.id


def is_content_of_ours(context: SyncContext, rel: str, entry: Entry) -> bool:
    """Whether content of the remote can be what the metadata here, if there is any, speaks of.

    Of what can be appended to, it tells no hash. Where the base does not know that metadata, it may
    be of another version than the remote's: then the ids decide, which costs a request.
    """
    ours = local_metadata(context.names, rel.rpartition("/")[0])
    if ours is None or not ours.allows(entry.size, entry.sha256):
        return ours is None
    metadata = metadata_beside(rel)
    is_told = ours.checksum is not None and ours.checksum == entry.sha256
    return (
        is_told
        or context.base.get(metadata) is not None
        or have_one_id(context, metadata) is not False
    )


def went_on_with_ours(context: SyncContext, version_rel: str) -> bool:
    """Whether others appended to the very version that is here, and have all of ours in theirs.

    A push of ours had sent it, which was stopped then; or nothing tells any more that it came from
    the remote, since the base was lost or the index made anew.
    """
    if not _is_as_sent(context, version_rel) and not _begins_theirs(context, version_rel):
        return False
    return have_one_id(context, f"{version_rel}/{METADATA}") is True


def _is_as_sent(context: SyncContext, version_rel: str) -> bool:
    """Whether all of a version is here as it was sent."""
    noted = context.base.noted_uploads([f"{version_rel}/{RAW}", f"{version_rel}/{METADATA}"])
    local = context.names.local
    return len(noted) == 2 and all(
        token and holds(local(rel), sent) for rel, (sent, token) in noted.items()
    )


def _begins_theirs(context: SyncContext, version_rel: str) -> bool:
    """Whether content that the base does not know is how longer content of the remote begins.

    Where the base knows it, it was appended to here as well, be it by the same bytes: both stay.
    Costs requests only of what can be appended to.
    """
    told, raw = local_metadata(context.names, version_rel), f"{version_rel}/{RAW}"
    if told is None or not told.streaming or context.base.get(raw) is not None:
        return False
    try:
        sha256, now = hash_file(context.names.local(raw))
    except (FileNotFoundError, SyncError, DiskError):
        return False  # it cannot be read, or does not hold still
    return now.size == told.size and is_beginning(context, raw, now.size, sha256)


def is_beginning(context: SyncContext, rel: str, size: int, sha256: str) -> bool:
    """Whether content of this size and hash is how longer content of the remote begins.

    Reads as much of the object.
    """
    key, digest = context.names.remote(rel), hashlib.sha256()
    try:
        if context.store.head(key).size <= size:
            return False
        for start in range(0, size, _PIECE):
            digest.update(excerpt(context.store, key, start, min(_PIECE, size - start)))
    except (ObjectNotFoundError, CorruptObjectError):
        return False  # it does not hold still
    return digest.hexdigest() == sha256


def is_metadata_there(context: SyncContext, rel: str) -> bool:
    """Whether the remote has metadata at this path that can be read."""
    try:
        decode(context.store.get(context.names.remote(rel)).data, rel)
    except (ObjectNotFoundError, MetadataError):
        return False
    return True


def local_marker(context: SyncContext, rel: str) -> int:
    """Return the version that a `latest` marker in the cache names, 0 if it names none."""
    path = context.names.local(rel)
    with disk_errors(path):
        return marker_at(path) or 0


def repair_marker(context: SyncContext, name_rel: str) -> None:
    """Let the `latest` marker of a data name in the cache name its highest complete version.

    Unless a higher one is missing here, and others have it: then it is right as soon as that is
    fetched again.
    """
    versions = local_versions(context, name_rel)
    newest = latest_of(versions, lambda one: is_whole(context, f"{name_rel}/{one}"))
    if is_right(local_marker(context, f"{name_rel}/{LATEST}"), newest):
        return
    if all(one < newest for one in _missing_versions(context, name_rel)):
        context.installer.repoint(name_rel, {one for one in versions if one > newest})


def _missing_versions(context: SyncContext, name_rel: str) -> set[int]:
    """Return the versions of a data name that were here, and that nobody is known to have removed.

    Somebody has removed them by hand. The base knows them still, as others do.
    """
    removals = context.tracker.peek().removals
    return {
        found.version
        for known in context.base.below(name_rel)
        if known.held is not None and is_metadata(known.rel) and (found := version_file(known.rel))
        if not os.path.lexists(context.names.local(known.rel))
        if not is_covered(context.names.mark(known.rel), removals)
    }


def local_id(context: SyncContext, version_rel: str) -> str | None:
    """Return the id of a version in the cache, None if its metadata does not tell."""
    path = context.names.local(f"{version_rel}/{METADATA}")
    try:
        with disk_errors(path):
            return decode(read_file(path) or b"", path).id
    except MetadataError:
        return None


def is_whole(context: SyncContext, version_rel: str) -> bool:
    """Whether a version is committed here, and its content is here or on the remote."""
    if not is_committed(context, version_rel):
        return False
    if is_content_here(context.names, version_rel):
        return True
    known = context.base.get(f"{version_rel}/{RAW}")
    entry = entry_known(known) if known else None
    return is_complete(context, version_rel, entry)


def is_committed(context: SyncContext, version_rel: str) -> bool:
    """Whether a version is complete; somebody may still be writing one that is not."""
    is_deferred = os.path.lexists(context.names.local(f"{version_rel}/{DEFERRED}"))
    return not is_deferred and os.path.lexists(context.names.local(f"{version_rel}/{METADATA}"))


def taken_versions(rels: Iterable[str]) -> Mapping[str, set[int]]:
    """Return the version numbers that paths belong to, by data name."""
    taken: dict[str, set[int]] = {}
    for rel in rels:
        if found := version_file(rel):
            taken.setdefault(found.name_rel, set()).add(found.version)
    return taken
