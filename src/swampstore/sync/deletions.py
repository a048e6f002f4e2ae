"""Deletions: what somebody deleted, what somebody lost, and removing the objects of the former.

A deletion of ours is noted before the entries go, and the note goes after the objects; whoever was
stopped in between finishes that later. Other clients remove the object first and its entry
afterwards. So whatever has left the index while its object is there, and no note tells of it, was
not deleted by anybody: a client that takes a lost document for an empty one has written it with
its own entries alone. Such a client also begins with number 1 again, in the place of versions that
it does not see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping

from swampstore.errors import NewerFormatError
from swampstore.index.base import Known
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import (
    is_marker,
    is_metadata,
    metadata_beside,
    parted_from_metadata,
    unit_of,
    version_file,
)
from swampstore.index.removals import (
    REMOVALS,
    Note,
    Removal,
    Removed,
    Remover,
    new_note,
    read_note,
    read_notes,
    removal_of,
)
from swampstore.index.results import Skipped
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import RAW
from swampstore.stores.errors import ObjectNotFoundError, StoreError
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
    alone = {rel for rel in found if _is_all_there_is(rel, found, vanished)}
    found = {rel: info for rel, info in found.items() if rel not in alone}
    rescued = {rel for rel in found if is_vouched_for(rel, found, vanished)}
    return rescued | _lost_with_them(rescued, vanished)


def _is_all_there_is(rel: str, found: Collection[str], vanished: Mapping[str, Known]) -> bool:
    """Whether metadata is all there is of a version: its content is gone, and was never here.

    A request that came late has made it again, after others had deleted the version.
    """
    content = vanished.get(f"{rel.rpartition('/')[0]}/{RAW}") if is_metadata(rel) else None
    return content is not None and content.held is None and content.rel not in found


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


class Deletions:
    """The removals of one cache: noted on the remote, and in the base, until they are done."""

    def __init__(self, context: SyncContext, deadline: Deadline) -> None:
        self._context = context
        self._deadline = deadline
        limit = context.limits.push_concurrency
        self._remover = Remover(context.store, context.names, limit, deadline)

    def note(self, wanted: Collection[Removal]) -> Note | None:
        """Write down which objects the commit that follows leaves to be removed."""
        if not wanted:
            return None
        rel = new_note()
        # Before it is there: one that is not is forgotten, one that nobody knows of is not found.
        self._context.base.add_pending_deletes([rel, *(one.rel for one in wanted)])
        return self._remover.note(rel, wanted)

    def note_unnamed(self, gone: Mapping[str, Known]) -> Note | None:
        """Write down what was deleted here, left the index before, and has its object all the same.

        Nobody deleted it: a part of the index was lost, and whoever makes it anew once more would
        take the object for data. Costs a request for each path. `finish` removes the objects.
        """
        parted = {*parted_from_metadata(gone)}
        whole = {rel: known for rel, known in gone.items() if rel not in parted}
        left = not_deleted(self._context, whole, self._deadline)
        found = {rel: one for rel in left if (one := self._proven(whole[rel])) is not None}
        return self.note([one for rel, one in found.items() if is_vouched_for(rel, found, whole)])

    def _proven(self, known: Known) -> Removal | None:
        """Return an object that is what the base knows, by its token or else by its content."""
        if known.etag is not None:
            return removal_of(known)
        found = merge.remote_content(self._context, known.rel)
        if found is None or found.sha256 != known.sha256:
            return None
        return Removal(known.rel, known.size, known.sha256, found.token)

    def drop(self, note: Note | None) -> None:
        """Remove the note of a commit that did not happen; one that stays says nothing wrong."""
        if note is not None:
            with contextlib.suppress(StoreError):
                self._remover.drop(note)
                self._forget(note)

    def carry_out(self, note: Note) -> Removed:
        """Remove what the commit took out; what fails is tried again by the next push."""
        self._context.index.check_allowed()
        removed = self._remover.carry_out(note, self._context.index)
        if removed.is_settled:
            self._forget(note)
        return removed

    def unfinished(self, *, everything: bool) -> set[str]:
        """Return the notes that this cache has left, or all there are, which costs a listing."""
        context = self._context
        found = {rel for rel in context.base.pending_deletes() if rel.startswith(REMOVALS)}
        if everything:
            root = context.names.remote("")
            listed = context.store.list(context.names.remote(REMOVALS))
            found.update(info.key.removeprefix(root) for info in listed)
        return found

    def finish(self, rels: Collection[str]) -> list[Skipped]:
        """Finish what somebody was stopped at; return the notes that could not be."""
        base, skipped = self._context.base, []
        if rels:
            self._context.index.check_allowed()
        for rel in sorted(rels):
            try:
                self._finish(rel)
            except StoreError as error:
                skipped.append(Skipped(rel, error.message))
            except (IndexDamagedError, NewerFormatError) as error:
                skipped.append(Skipped(rel, error.message))
                base.drop_pending_deletes([rel])
        if rels and not self.unfinished(everything=False):
            base.drop_pending_deletes(base.pending_deletes())
        return skipped

    def _finish(self, rel: str) -> None:
        note = read_note(self._context.store, self._context.names, rel)
        if note is None:
            self._context.base.drop_pending_deletes([rel])
        elif not self._remover.finish(note, self._context.index).failures:
            # What could not be told now is for whoever comes across the note.
            self._forget(note)

    def _forget(self, note: Note) -> None:
        self._context.base.drop_pending_deletes([note.rel, *(one.rel for one in note.objects)])


def remove_from_remote(
    context: SyncContext, tokens: Mapping[str, str | None], deadline: Deadline
) -> None:
    """Take paths out of the index, then remove their objects. Files in the cache stay.

    An object with another token than the given one (None: that of an earlier upload of ours, if
    there is a note of one) stays, and so does its entry. One that cannot be removed now is removed
    by the next push. Raises IndexMovedError, and removes nothing, if others change the same paths
    at the same time.
    """
    if not tokens:
        return
    view = context.index.view({partition_of(rel) for rel in tokens})
    wanted, rels = _meant(context, tokens)
    deletions = Deletions(context, deadline)
    named = [rel for rel in rels if view.raw(rel) is not None]
    note = deletions.note(wanted)
    if named or view.is_unfinished:
        try:
            committed = context.index.commit(view, {}, named)
        except IndexMovedError:
            deletions.drop(note)
            raise
        context.base.apply(forgotten=rels, shards=committed.shards, facts=committed.facts)
    if note is not None:
        for error in deletions.carry_out(note).failures:
            raise error


def _meant(
    context: SyncContext, tokens: Mapping[str, str | None]
) -> tuple[list[Removal], list[str]]:
    """Return the objects that are still those that were meant, and the paths without any other."""
    noted = context.base.noted_uploads(tokens)
    wanted: list[Removal] = []
    rels: list[str] = []
    for rel, given in tokens.items():
        token = given or (noted[rel][1] if rel in noted else None)
        try:
            info = context.store.head(context.names.remote(rel))
        except ObjectNotFoundError:
            rels.append(rel)
            continue
        if not token or token == info.token:
            rels.append(rel)
            wanted.append(Removal(rel, info.size, token=info.token))
    return wanted, rels
