"""What a sync makes up for before it begins: the last one was stopped, or the remote is another.

A push or a pull that was stopped had done things that it could not remember; the base learns of
them. A remote that is not the one it was, or a cache that was emptied, has the sync start over:
from the old base nothing is concluded about a remote whose index was made anew. What is missing in
such an index was not deleted by anybody, so everything here counts as new. What was deleted here,
and not pushed yet, stays deleted: of that the base tells on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Container, Iterator, Mapping
from typing import TYPE_CHECKING

from swampstore.files.signature import Signature, signature
from swampstore.index.base import ARRIVING, LEAVING, Known
from swampstore.index.errors import IndexDamagedError, SyncError
from swampstore.index.format import Entry, decode_entry, entry_known
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_marker, is_metadata, unit_of, version_file
from swampstore.index.removals import read_notes
from swampstore.index.results import Conflict
from swampstore.index.state import INDEX_VERSION, LEFT_OUT, ORIGIN, ORIGIN_BEFORE
from swampstore.layout import DATASTORE_SUBDIRS, LANDING, LATEST, METADATA, RAW
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError
from swampstore.sync import merge
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import hash_file, holds
from swampstore.sync.lost_base import note_if_lost
from swampstore.sync.scan import LocalScan, Scan, is_covered, removed_rels
from swampstore.sync.transfer import take_remote

if TYPE_CHECKING:
    import msgspec


def learn_own_commits(context: SyncContext) -> bool:
    """Tell the base of uploads that the index names, and whose files were removed here since.

    Returns whether there were any. Asks the remote only if there are such files. Another process
    may remove some at any moment, so a pull asks again before it fetches what is not here, and a
    push once it knows what was marked.
    """
    noted = context.base.all_noted_uploads()
    if not noted:
        return False
    removals = context.tracker.peek().removals
    known = context.base.get_many(noted)
    gone = {
        rel: sha256
        for rel, sha256 in noted.items()
        if (rel not in known or known[rel].sha256 != sha256)
        and is_covered(context.names.mark(rel), removals)
        # Where nobody can tell, it is not the moment to decide anything.
        and holds(context.names.local(rel), sha256) is False
    }
    if not gone:
        return False
    view = context.index.view({partition_of(rel) for rel in gone})
    entries = {rel: view.entry(rel) for rel in gone}
    ours = {rel: gone[rel] for rel in gone if _is_ours(context, rel, entries, noted)}
    learnt = [_once_here(rel, view.entry(rel), sha256) for rel, sha256 in ours.items()]
    learnt += [_once_here(rel, view.entry(rel)) for rel in _contents_of(context, ours)]
    learnt += [_given_up(context, rel) for rel, entry in entries.items() if entry is None]
    found = [known for known in learnt if known is not None]
    context.base.apply(known=found)
    return bool(found)


def _contents_of(context: SyncContext, ours: Collection[str]) -> Iterator[str]:
    """Yield content that went with its metadata, where nobody noted it: a pull would bring it."""
    for rel in ours:
        raw = f"{rel.rpartition('/')[0]}/{RAW}"
        if not is_metadata(rel) or raw in ours or context.base.get(raw) is not None:
            continue
        if not os.path.lexists(os.path.dirname(context.names.local(raw))):
            yield raw


def _given_up(context: SyncContext, rel: str) -> Known | None:
    """Return an upload that no index names, and whose file was deleted here since.

    To whoever makes an index anew from the objects, it would be data.
    """
    sha256, token = context.base.noted_uploads([rel])[rel]
    try:
        info = context.store.head(context.names.remote(rel))
    except ObjectNotFoundError:
        return None
    # What others had, too, was noted by its content alone.
    is_ours = info.token == token if token else merge.remote_sha256(context, rel) == sha256
    if not is_ours:
        return None
    return Known(rel, info.size, sha256, "", token or None, Signature(info.size, 0, 0, 0))


def _once_here(rel: str, entry: Entry | None, sha256: str | None = None) -> Known | None:
    """Return what the index names as something that was here; how it looked, nobody can say."""
    if entry is None:
        return None
    seen = Signature(entry.size, 0, 0, 0)
    return Known(rel, entry.size, sha256 or entry.sha256, entry.last_modified, None, seen)


def _is_ours(
    context: SyncContext,
    rel: str,
    entries: Mapping[str, Entry | None],
    noted: Mapping[str, str],
) -> bool:
    """Whether the index names what was uploaded here; of a version, its metadata proves it.

    An index that was made anew from the objects has no hashes: then the object tells.
    """
    found = version_file(rel)
    for one in {rel, f"{found.name_rel}/{found.version}/{METADATA}" if found else rel}:
        entry = entries.get(one)
        if entry is None or one not in noted:
            return False
        if (entry.sha256 or merge.remote_sha256(context, one)) != noted[one]:
            return False
    return True


def remember_installed(context: SyncContext) -> None:
    """Let the base know what was installed, and removed. Who does this holds the lock of the cache.

    Else it would count as new here, and be shared again after others deleted it. And what was
    deleted here since would come back.
    """
    _forget_removed(context)
    noted = context.base.noted_arrivals()
    if not noted:
        return
    began_ns = time.time_ns()
    held = {one: _held(context, one) for one in noted}
    known = [one._replace(held=now, recorded_ns=began_ns) for one, now in held.items() if now]
    known += _deleted_since(context, noted, held)
    context.base.apply(known=known, facts={ARRIVING: None})


def _forget_removed(context: SyncContext) -> None:
    """Let the base forget what a pull has removed that was stopped before it could note that.

    If somebody shares just the same again, nothing else would tell that it is not here. What was
    deleted here since stays known, for the next push to tell of.
    """
    leaving = context.base.noted_leaving()
    if not leaving:
        return
    names, removals = context.names, context.tracker.peek().removals
    gone = [
        rel
        for rel in leaving
        if not os.path.lexists(names.local(rel)) and not is_covered(names.mark(rel), removals)
    ]
    context.base.apply(forgotten=gone, facts={LEAVING: None})


def _deleted_since(
    context: SyncContext,
    noted: Mapping[Known, str | None],
    held: Mapping[Known, Signature | None],
) -> Iterator[Known]:
    """Yield files of versions that were installed whole, and deleted before anybody noted it.

    Something else may have been saved in their place. What was installed has left the directory
    that it came from, and nobody else takes metadata from there before this was looked at.
    """
    removals = removed_rels(context.names, context.tracker.peek())
    staying = {
        one.rel.rpartition("/")[0]
        for one, staged in noted.items()
        if not _has_left(staged)
        or _is_landing(context, one)
        or (is_metadata(one.rel) and held[one])
    }
    for one in noted:
        if not version_file(one.rel) or one.rel.rpartition("/")[0] in staying:
            continue
        if held[one] is None and is_covered(one.rel, removals):
            yield one._replace(held=Signature(one.size, 0, 0, 0))


def _is_landing(context: SyncContext, one: Known) -> bool:
    """Whether whoever was stopped had not put the whole version in its place yet."""
    return os.path.lexists(f"{os.path.dirname(context.names.local(one.rel))}/{LANDING}")


def _has_left(staged: str | None) -> bool:
    """Whether a file is gone from the directory in which it waited, which is still there."""
    if staged is None or os.path.lexists(staged):
        return False
    return os.path.lexists(os.path.dirname(staged))


def _held(context: SyncContext, one: Known) -> Signature | None:
    """Return the signature of a file that is what was about to be installed, None if it is not.

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


def forget_vain_removals(context: SyncContext) -> None:
    """Take back that something was removed here which nobody else ever had.

    There is nothing to delete elsewhere. What arrives in its place, and is missing later, was not
    deleted by whoever left that mark.
    """
    removals = context.tracker.peek().removals
    noted = context.base.all_noted_uploads() if removals else {}
    for mark in sorted(removals):
        rel = context.names.rel_of_mark(mark)
        name_rel = _data_name(rel) if rel else None
        if rel is None or name_rel is None or next(context.base.below(rel), None) is not None:
            continue
        if any(is_covered(one, {rel}) for one in noted):
            continue
        # Whoever removes something right now holds that lock.
        with context.installer.trying_to_hold([name_rel]) as is_held:
            if is_held:
                before = context.tracker.snapshot()
                context.tracker.mark_written(mark)
                context.tracker.settle(before, [mark])


def _data_name(rel: str) -> str | None:
    """Return the data name that a path is, or is a version of."""
    if is_marker(f"{rel}/{LATEST}"):
        return rel
    found = version_file(f"{rel}/{METADATA}")
    return found.name_rel if found else None


def have_fetched(context: SyncContext, missing: Collection[Known]) -> list[Conflict]:
    """Let the next pull fetch what is missing here and nobody is known to have removed.

    Who did may have lost the marks that told of it, or removed files by hand. Whoever removes
    something marks it first, so the marks are looked at after it was missed.
    """
    if not missing:
        return []
    removals = removed_rels(context.names, context.tracker.peek())
    gone = [known.rel for known in missing if not is_covered(known.rel, removals)]
    if gone:
        # In this order: who has forgotten them, and takes the rest for read, never looks again.
        context.index.read_again({partition_of(rel) for rel in gone})
        context.base.apply(forgotten=gone)
    names = dict.fromkeys(unit_of(rel) for rel in gone)
    return [Conflict(one, "files of it are missing here; they are fetched again") for one in names]


def start_over_if_made_anew(context: SyncContext, *, recalling: bool = False) -> bool:
    """Mark everything if the remote is not the one it was; return whether it holds nothing.

    Somebody emptied it, and others may have begun to fill it again. Then what is missing there
    was not deleted: nobody deleted anything. `recalling` is what `RemoteIndex.refresh` means by it.
    """
    note_if_lost(context)
    state = context.index.refresh(recalling=recalling)
    is_emptied = not state.exists and not context.base.is_empty()
    if not is_emptied:  # also before the very first commit: objects are all that tells of data then
        learn_own_commits(context)
    if is_emptied or context.index.is_made_anew:
        _start_over(context, is_emptied=is_emptied)
    return is_emptied


def is_wiped(context: SyncContext) -> bool:
    """Whether a whole directory that the base knows files in is gone from the cache."""
    names, base, tracker = context.names, context.base, context.tracker
    gone = [name for name in DATASTORE_SUBDIRS if not os.path.lexists(names.local(name))]
    return base.is_held_below(gone) and any(
        base.is_held_below([name]) and not tracker.covers(names.mark(name)) for name in gone
    )


def _start_over(context: SyncContext, *, is_emptied: bool) -> None:
    """Forget what was synced with the index that is gone, except for what was deleted."""
    context.tracker.mark(None)
    deleted = _deleted_here(context)
    others = [] if is_emptied else _being_removed(context)
    going = {known.rel: known for known in (*others, *deleted)}
    if not is_emptied:
        _rescue_content(context, going)
    shared = _shared_versions(context, going)
    # In one step: whoever is stopped in between would never hear of the deletions again. An index
    # that was sharded stays so, if nothing else tells: a monolith that is left is of long ago. What
    # others left out is still to be looked for.
    named = deleted if is_emptied else list(_as_named(context, going.values()))
    version, left_out, *origins = context.base.facts(INDEX_VERSION, LEFT_OUT, ORIGIN, ORIGIN_BEFORE)
    facts = {ORIGIN_BEFORE: next(filter(None, origins), None)}
    if not is_emptied:
        facts |= {INDEX_VERSION: version, LEFT_OUT: left_out}
    # Objects of our own stay known as such: in an index that is made of objects they are nobody's.
    noted = context.base.noted_uploads(context.base.all_noted_uploads())
    sent = {rel: note for rel, note in noted.items() if note[1]}
    context.base.clear(keep=named, uploads=sent | shared, facts=facts)
    context.index.started_over()
    context.index.refresh()


def _being_removed(context: SyncContext) -> list[Known]:
    """Return what somebody has deleted whose objects are not gone yet, as a note tells.

    It stays known: then the next pull removes it here, unless it turns out that nobody did.
    """
    notes = read_notes(context.store, context.names)
    mentioned = {one.rel for note in notes.notes for one in note.objects}
    return [*filter(notes.tell_of, context.base.get_many(mentioned).values())]


def _deleted_here(context: SyncContext) -> list[Known]:
    """Return what was deleted here and is still to be pushed."""
    marked = context.tracker.peek()
    rels, removals = (
        {rel for mark in marks if (rel := context.names.rel_of_mark(mark))}
        for marks in (marked.paths, marked.removals)
    )
    if not removals:
        return []
    scan = LocalScan(context.names, context.base).paths(rels, removals=removals)
    return [*scan.deleted, *_used_again(context, scan, removals)]


def _used_again(context: SyncContext, scan: Scan, removals: Container[str]) -> Iterator[Known]:
    """Yield the files of versions that were deleted here, and whose numbers were used again.

    The next push finds another version there, and gives ours the next free number.
    """
    for change in scan.changed:
        version_rel = change.rel.rpartition("/")[0]
        if not is_metadata(change.rel) or not merge.was_deleted(context, version_rel, removals):
            continue
        if not merge.describe_one_artifact(context, change.rel):
            yield from context.base.below(version_rel)


def _shared_versions(context: SyncContext, deleted: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the metadata of versions that others had, too: each of them keeps its number.

    Else two machines that tell of one again would each give it another one. Those that the base
    started over with before, and that no index has named since, are among them.
    """
    before = merge.known_to_others(context, filter(is_metadata, context.base.all_noted_uploads()))
    named = {
        known.rel: known.sha256
        for known in context.base.below("data")
        if known.sha256 and is_metadata(known.rel)
    }
    return {rel: (sha256, "") for rel, sha256 in (before | named).items() if rel not in deleted}


def _rescue_content(context: SyncContext, deleted: Collection[str]) -> None:
    """Fetch content that is only on the remote, and that its index has lost.

    Without a base it is new here then, and the next push tells of it. Raises what keeps it from
    coming: as soon as the base has started over, nobody would look for it any more.
    """
    lost = {
        known.rel: known
        for known in context.base.below("data")
        if known.held is None and known.rel not in deleted
    }
    if not lost:
        return
    for piece in context.index.changes(everything=True):
        for rel, raw in piece.entries.items():
            if rel in lost and not _is_wrong(context, lost[rel], raw):
                del lost[rel]
    for rel, known in lost.items():
        try:
            take_remote(context, rel, entry_known(known), None)
        except CorruptObjectError:
            continue  # nobody has it any more; the push tells
        except SyncError:
            if signature(context.names.local(rel)) is None:
                raise
            # Somebody who reads it was faster.


def _is_wrong(context: SyncContext, known: Known, raw: msgspec.Raw) -> bool:
    """Whether an index that was lost speaks of other content than there is, and was."""
    try:
        entry = decode_entry(known.rel, raw)
    except IndexDamagedError:
        return False
    if entry.size == known.size and entry.sha256 in (None, known.sha256):
        return False
    return merge.has_content(context, known.rel, known.size, known.sha256)


def _as_named(context: SyncContext, deleted: Collection[Known]) -> Iterator[Known]:
    """Yield what was deleted in the words of the index that is there now.

    What others have put in its place is left out. What the index does not name may have an object.
    """
    view = context.index.view({partition_of(known.rel) for known in deleted}) if deleted else None
    for known in deleted:
        assert view is not None
        try:
            entry = view.entry(known.rel)
        except IndexDamagedError:
            continue
        if entry is None:
            yield known
        elif merge.is_as_known(context, known, entry):
            yield known._replace(modified=entry.last_modified)
