"""Committing to an index that is a collection of paths, and the view that a commit is based on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from swampstore.clock import EPOCH, from_iso, to_iso
from swampstore.index.changes import (
    Change,
    attempts,
    index_moved,
    is_all_known,
    new_write_id,
    scopes_of,
    seen_facts,
)
from swampstore.index.documents import Documents
from swampstore.index.format import Entry, decode_entry, encode_entry
from swampstore.index.meta import Meta, MetaText, encode_meta
from swampstore.index.partitions import META_KEY, Scope
from swampstore.index.path_kinds import unit_of
from swampstore.index.state import (
    Agreements,
    Committed,
    Fingerprint,
    MetaSnapshot,
    View,
    others_write,
)
from swampstore.stores.errors import PreconditionFailedError, StoreError
from swampstore.stores.paths import (
    PathChange,
    PathCursor,
    PathsCommit,
    PathsMovedError,
    SeenPath,
    StoredPath,
)

if TYPE_CHECKING:
    from swampstore.index.version import IndexContext, Rebuild


def raw_of(one: StoredPath) -> msgspec.Raw:
    """Return the entry of a path as it stands in other indexes."""
    if one.problem:
        return msgspec.Raw(msgspec.json.encode({"key": one.rel, "problem": one.problem}))
    modified = to_iso(one.modified or EPOCH)
    entry = Entry(one.size, modified, one.sha256, commit_seq=one.commit_seq or None)
    return encode_entry(one.rel, entry)


def mark_of(commit_seq: int, modified: datetime) -> str:
    """Write a cursor down, in place of the ETag of a monolith."""
    return f"{commit_seq}@{to_iso(modified)}"


def cursor_of(agreed: Fingerprint) -> PathCursor:
    """Return the cursor of a state that a base agrees with."""
    seq, _, moment = (agreed.monolith or "").partition("@")
    try:
        return PathCursor(int(seq), from_iso(moment))
    except ValueError:
        return PathCursor(0, EPOCH)


class PathsView(View):
    """Paths as they were when they were read: those that were named at first in few requests.

    Others are read when they are asked for, with all that belongs to the same data name.
    """

    def __init__(
        self,
        snapshot: MetaSnapshot,
        documents: Documents,
        rels: Collection[str],
        *,
        is_unfinished: bool = False,
    ) -> None:
        super().__init__(snapshot)
        self._documents = documents
        self._entries: dict[str, msgspec.Raw] = {}
        self._seen: set[str] = set()
        self._sorted: list[str] | None = None
        self._is_unfinished = is_unfinished
        self._load({unit_of(rel): rel for rel in rels})

    @property
    def is_unfinished(self) -> bool:
        """Whether a path that was read has the number of a commit that nobody was told of."""
        return self._is_unfinished

    @property
    def is_as_told(self) -> bool:
        """Whether no path that was read is newer than what `_meta.json` tells of."""
        return self.snapshot.meta is not None and not self._is_unfinished

    @property
    def is_made_anew(self) -> bool:
        """Nothing is ever guessed here."""
        return False

    def raw(self, rel: str) -> msgspec.Raw | None:
        """Return the entry of a path."""
        unit = unit_of(rel)
        if unit not in self._seen:
            self._load({unit: rel})
        return self._entries.get(rel)

    def entries_below(self, prefix: str) -> Iterator[str]:
        """Yield the paths equal to `prefix` or below it, in order."""
        if prefix not in self._seen:
            self._load({prefix: ""})
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        for start, end in ((prefix, f"{prefix}\0"), (f"{prefix}/", f"{prefix}0")):
            first = bisect_left(self._sorted, start)
            yield from self._sorted[first : bisect_left(self._sorted, end, first)]

    def _load(self, units: dict[str, str]) -> None:
        """Read data names (and single paths), unless that was done."""
        wanted = {unit: rel for unit, rel in units.items() if unit not in self._seen}
        if not wanted:
            return
        single = [unit for unit, rel in wanted.items() if unit == rel]
        names = [unit for unit, rel in wanted.items() if unit != rel]
        told = (self.snapshot.meta.commit_seq if self.snapshot.meta else None) or 0
        found = self._documents.paths.known_paths(self._documents.root, single, names)
        for one in found:
            if (one.commit_seq or 0) > told:
                self._is_unfinished = True
            if not one.is_deleted:
                self._entries[one.rel] = raw_of(one)
        self._seen.update(wanted)
        self._sorted = None


def commit(
    context: IndexContext, view: PathsView, change: Change, scope: Scope | None, number: int
) -> Committed:
    """Put a change into the paths, and tell of it in `_meta.json`."""
    onto = view.snapshot
    if not change.rels and not view.is_unfinished:
        return Committed(onto.meta.commit_seq if onto.meta else None, {}, {})
    documents = context.documents
    for _ in attempts(change.rels):
        meta, data, is_next = _next_meta(context, onto, number)
        assert meta.commit_seq is not None
        work = PathsCommit(META_KEY, data, onto.token, meta.commit_seq, list(_changes(change)))
        documents.check_allowed()  # a server alone changes paths before the condition is asked
        try:
            written = documents.paths.commit_paths(documents.root, work)
        except PathsMovedError as error:
            raise index_moved(error.message, error.rels) from None
        except PreconditionFailedError:
            onto = context.watch.look_again()
            continue
        now = MetaSnapshot(number, meta, MetaText.of(data, meta), written.etag, written.token)
        if not is_next:
            # What nobody was told of has to be read first, here as everywhere.
            return Committed(meta.commit_seq, seen_facts(context.base, now), {})
        return _remembered(context, onto, now, change, scope)
    raise AssertionError  # attempts() ends with an error


def _next_meta(context: IndexContext, onto: MetaSnapshot, number: int) -> tuple[Meta, bytes, bool]:
    """Return the `_meta.json` of a commit, and whether its number comes right after the last told.

    A number that some path has is never used again: it is that of a commit which was stopped
    before anybody was told, and who has seen the next one of that number would never look for it.
    """
    documents = context.documents
    before = onto.meta or Meta(number, (), origin=None)
    told = before.commit_seq or 0
    last = max(told, documents.paths.last_path_commit(documents.root))
    meta = replace(before, commit_seq=last + 1, origin=context.watch.origin(onto.meta))
    return meta, encode_meta(meta, new_write_id()), last == told or onto.meta is None


def _changes(change: Change) -> Iterator[PathChange]:
    for rel in sorted(change.rels):
        expected = _seen(rel, change.expected[rel])
        entry = change.upserts.get(rel)
        if entry is None:
            if expected is not None:
                yield PathChange(rel, None, 0, expected)
        else:
            if entry.sha256 is None:
                raise index_moved("nobody knows its hash yet", {rel})
            yield PathChange(rel, entry.sha256, entry.size, expected)


def _seen(rel: str, raw: msgspec.Raw | None) -> SeenPath | None:
    if raw is None:
        return None
    entry = decode_entry(rel, raw)
    return SeenPath(from_iso(entry.last_modified), entry.sha256)


def _remembered(
    context: IndexContext,
    onto: MetaSnapshot,
    now: MetaSnapshot,
    change: Change,
    scope: Scope | None,
) -> Committed:
    """Return what to remember of a commit: if the base agreed before, it still does.

    Unless somebody who does not write `_meta.json` changed a path since: that is found by its time,
    and nobody looks for it any more where a later time is agreed with.
    """
    assert now.meta is not None
    assert now.meta.commit_seq is not None
    seq = now.meta.commit_seq
    facts = seen_facts(context.base, now)
    agreements = Agreements(context.base)
    agreed = {one: agreements.of(one) for one in scopes_of(scope)}
    cursors = {
        one: cursor_of(state)
        for one, state in agreed.items()
        if state is not None and (state.version, state.meta) == (now.version, onto.etag)
    }
    moment = _last_change(context, change, seq, cursors.values()) if cursors else None
    if moment is not None:
        for one, cursor in cursors.items():
            state = now.fingerprint(mark_of(seq, max(cursor.modified, moment)))
            facts |= agreements.fact(one, state, agreements.epoch)
    return Committed(seq, facts, {})


def _last_change(
    context: IndexContext, change: Change, seq: int, known: Collection[PathCursor]
) -> datetime | None:
    """Return the time of a commit of ours, None if others changed what the base does not know."""
    documents = context.documents
    since = PathCursor(seq, min(one.modified for one in known), others_write(context.base))
    try:
        found = documents.paths.changed_paths(documents.root, since)
        return _last_of_ours(context, change, found)
    except StoreError:
        return None  # the commit is done, and the next pull looks


def _last_of_ours(
    context: IndexContext, change: Change, found: Iterator[StoredPath]
) -> datetime | None:
    last = EPOCH
    theirs = []
    for one in found:
        if one.rel not in change.rels:
            theirs.append(one)
            continue
        entry = change.upserts.get(one.rel)
        if (entry and entry.sha256) != (None if one.is_deleted else one.sha256):
            return None
        last = max(last, one.modified or EPOCH)
    return last if is_all_known(context.documents, context.base, theirs) else None


def rebuilt(work: Rebuild, number: int) -> int:
    """Make the paths those that somebody has settled; return how many had to be changed."""
    documents = work.documents
    wanted = work.entries()
    there = {
        one.rel: one
        for one in documents.paths.changed_paths(documents.root, None)
        if not one.is_deleted
    }
    changes = []
    for rel, raw in sorted(wanted.items()):
        entry, found = decode_entry(rel, raw), there.get(rel)
        if entry.sha256 is None:
            continue  # what has no hash cannot be named here
        if found is None or (found.sha256, found.size) != (entry.sha256, entry.size):
            changes.append(PathChange(rel, entry.sha256, entry.size, found and found.seen))
    for rel, found in sorted(there.items()):
        if rel not in wanted:
            changes.append(PathChange(rel, None, 0, found.seen))
    if not changes and work.meta is not None:
        return 0
    before = work.meta or Meta(number, ())
    seq = max(work.highest, documents.paths.last_path_commit(documents.root)) + 1
    meta = replace(before, version=number, commit_seq=seq, origin=work.origin())
    data = encode_meta(meta, new_write_id())
    commit_now = PathsCommit(META_KEY, data, work.token, seq, changes)
    stored = documents.meta()
    if (stored.info.token if stored else None) != work.token:
        # A server alone changes paths before it is asked about `_meta.json`.
        raise index_moved("somebody has committed meanwhile", ())
    try:
        documents.paths.commit_paths(documents.root, commit_now)
    except PreconditionFailedError as error:
        raise index_moved(error.message, ()) from None
    return len(changes) + 1
