"""Committing to a version 2 remote: the touched shards first, then `_meta.json`.

Each document is replaced only if it is still the one that the change was merged onto. When
somebody else was faster, his document is read and the change merged onto that, so concurrent
commits of different paths both succeed. Entries carry the number of the commit that made them
visible; if `_meta.json` moved on, the shards are written again with the next number. So are the
entries of a commit that stopped before `_meta.json`, by the commit that comes across them.

What it took out comes back: a shard keeps the entries that its commit removed, until the next one
writes it, and they are gone only if `_meta.json` tells of that shard. A commit that is refused puts
them back itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from swampstore.errors import SwampstoreError
from swampstore.index.changes import (
    NO_CHANGE,
    Change,
    Shards,
    adopted,
    attempts,
    has_followed,
    index_moved,
    new_write_id,
    record_shards,
    scope_key,
    scopes_of,
    seen_facts,
)
from swampstore.index.documents import StoredDocument
from swampstore.index.fingerprints import Fingerprints, is_named
from swampstore.index.format import Document, RawEntries, encode_shard
from swampstore.index.meta import Meta, written_meta
from swampstore.index.partition_list import PartitionList
from swampstore.index.partitions import Scope, shard_key
from swampstore.index.state import (
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    Agreements,
    Committed,
    MetaSnapshot,
    View,
    document,
    with_uncommitted,
)
from swampstore.stores.errors import PreconditionFailedError, StoreError

if TYPE_CHECKING:
    from swampstore.index.version import IndexContext

# Stands for the ETag of entries that no base can have agreed with.
_MADE_ANEW = "made anew"


class _Shard(msgspec.Struct, frozen=True):
    """A touched shard: what is on the store now, and the ETag of the entries it replaced.

    `data` is what was written, empty if nothing was.
    """

    found: StoredDocument
    etag_before: str | None
    data: bytes = b""


class ShardsCommitted(msgspec.Struct, frozen=True):
    """The remote after a commit.

    `onto` is the `_meta.json` it was built on, `etags_before` the shards it was merged onto (by
    partition, None: no entries), `etags` what they are now (None: no entries left). `written` are
    the shards that it wrote, and what was sent.
    """

    snapshot: MetaSnapshot
    onto: MetaSnapshot
    etags_before: Mapping[str, str | None]
    etags: Mapping[str, str | None]
    written: Mapping[str, tuple[StoredDocument, bytes]] = msgspec.field(default_factory=dict)


class ShardCommit:
    """Commits changes to one version 2 remote."""

    def __init__(
        self, context: IndexContext, look_again: Callable[[Collection[str]], None]
    ) -> None:
        self._look_again = look_again
        self._documents = context.documents
        self._recovery = context.recovery
        self._watch = context.watch

    def commit(self, view: View, change: Change) -> ShardsCommitted:
        """Put the change into the shards of the view, and whatever of them has to be healed."""
        parts = change.by_partition()
        for partition, found in view.shards.items():
            if found.is_dirty or view.is_untold(partition):
                parts.setdefault(partition, NO_CHANGE)
        onto = view.snapshot
        if not parts and not onto.is_healed:
            return ShardsCommitted(onto, onto, {}, {})
        self._prepare(view, parts, change)
        if any(view.shards[one].is_guess for one in parts) and not onto.is_healed:
            onto = self._watch.begin_anew(onto)
        written: dict[str, _Shard] = {}
        with self._putting_back(parts, written):
            return self._commit(view, change, parts, onto, written)

    def _prepare(self, view: View, parts: Collection[str], change: Change) -> None:
        """Raise what would stand in the way of the commit, before the first entry is taken out."""
        if change.removals:
            self._documents.check_allowed()
        # What was put back, or put together, is what there was when it was looked at.
        is_made = any(view.shards[one].restored or view.shards[one].is_recovered for one in parts)
        if is_made and not self._watch.is_same(view.snapshot):
            raise index_moved("others were about to commit", change.rels)

    @contextlib.contextmanager
    def _putting_back(
        self, parts: Mapping[str, Change], written: Mapping[str, _Shard]
    ) -> Iterator[None]:
        """Leave the entries as they were if the commit is refused.

        Where the store failed it may have happened all the same, and nothing is touched.
        """
        try:
            yield
        except StoreError:
            raise
        except SwampstoreError:
            for partition, shard in written.items():
                doc = parts[partition].undone(document(shard.found).with_removed())
                with contextlib.suppress(SwampstoreError):
                    self._documents.put_shard(partition, encode_shard(doc), shard.found.token)
            raise

    def _commit(
        self,
        view: View,
        change: Change,
        parts: Mapping[str, Change],
        onto: MetaSnapshot,
        shards: dict[str, _Shard],
    ) -> ShardsCommitted:
        """Commit; `shards` are those that were written, by partition, at any time."""
        seen = {partition: _Shard(view.shards[partition], None) for partition in parts}
        before: dict[str, str | None] = {}
        untold = {
            partition: document(view.shards[partition]).commit_seq or 0
            for partition in parts
            if view.is_untold(partition)
        }
        for _ in attempts(change.rels):
            seq = self._last_seq(onto) + 1
            self._write_shards(parts, seen, seq, untold, shards)
            for partition, shard in shards.items():
                if partition not in before or shard.etag_before != seen[partition].found.etag:
                    before[partition] = shard.etag_before
            seen = dict(shards)
            numbers = {
                one: document(shard.found).commit_seq or seq for one, shard in shards.items()
            }
            is_free = {*numbers.values()} <= {seq}
            snapshot = self._write_meta(onto, shards, seq) if is_free else None
            if snapshot is not None:
                self._remove_empty(shards)
                written = {one: (shard.found, shard.data) for one, shard in shards.items()}
                return ShardsCommitted(snapshot, onto, before, _etags(shards), written)
            untold = numbers
            with self._recovery.during(_under_way(shards, before)):
                onto = self._watch.look_again()
            if onto.version != 2 or self._watch.is_another:
                raise index_moved("the remote has another index now", change.rels)
            seen |= _committed_after_all(view, seen, onto)
            # A shard that was not there may have come and gone, and objects with it.
            self._look_again(
                {
                    rel
                    for partition, part in parts.items()
                    if view.shards[partition].token is None
                    for rel in part.upserts
                }
            )
        raise AssertionError  # attempts() ends with an error

    def _last_seq(self, onto: MetaSnapshot) -> int:
        assert onto.meta is not None
        if onto.is_healed:
            return self._recovery.last_commit_seq(onto.meta)
        return onto.meta.commit_seq or 0

    # Shards ------------------------------------------------------------------------------------

    def _write_shards(
        self,
        parts: Mapping[str, Change],
        shards: Mapping[str, _Shard],
        seq: int,
        untold: Mapping[str, int],
        written: dict[str, _Shard],
    ) -> None:
        def write(partition: str) -> None:
            found = shards[partition].found
            # What an earlier attempt of this commit took out.
            removed = document(found).removed if partition in written else {}
            if partition in untold and found.doc is not None:
                found = replace(found, doc=adopted(found.doc, untold[partition], seq))
            written[partition] = self._write_shard(partition, parts[partition], found, seq, removed)

        self._documents.all(write, parts)

    def _write_shard(
        self, partition: str, change: Change, found: StoredDocument, seq: int, removed: RawEntries
    ) -> _Shard:
        for _ in attempts(change.rels):
            entries = document(found).entries
            taken = removed | {rel: entries[rel] for rel in change.removals if rel in entries}
            merged = change.onto(document(found), seq).written_by(seq, taken)
            data = encode_shard(merged)
            try:
                written = self._documents.put_shard(partition, data, found.token)
            except PreconditionFailedError:
                before, found, removed = found, self._shard_again(partition, found, change), {}
                if before.is_assumed and _has_entries(found.doc):
                    raise index_moved("nobody told what is there already", change.rels) from None
                change.check(document(found).entries)
                self._look_again(change.upserts.keys())
                # Whoever was faster may have used our number, and readers know entries by theirs.
                seq = max(seq, (document(found).commit_seq or 0) + 1)
                continue
            stored = StoredDocument(merged, written.etag, written.token)
            return _Shard(stored, _name_of(found), data)
        raise AssertionError  # attempts() ends with an error

    def _shard_again(
        self, partition: str, before: StoredDocument, change: Change
    ) -> StoredDocument:
        """Return what somebody else made of a shard; raise IndexMovedError if it is lost."""
        found = self._documents.shard(partition)
        if found.doc is not None:
            if not found.doc.removed:
                return found
            return with_uncommitted(partition, found, self._watch.look_again())
        if found.etag is None:
            if before.etag is None and not before.is_dirty:
                return found
            onto = self._watch.look_again()
            if onto.is_sound and onto.meta and partition not in onto.meta.partitions:
                return found  # its last entry was removed
        raise index_moved(f"{shard_key(partition)} is lost, and is recovered first", change.rels)

    def _remove_empty(self, shards: Mapping[str, _Shard]) -> None:
        """Remove shards without entries, unless others use them again; without that they stay.

        Only a removal on condition is safe: somebody may be putting an entry in right now.
        """
        if not self._documents.store.capabilities.conditional_delete:
            return
        for partition, shard in shards.items():
            if not document(shard.found).entries and shard.found.token is not None:
                with contextlib.suppress(StoreError):  # an empty shard does no harm
                    self._documents.delete_shard(partition, shard.found.token)

    # _meta.json --------------------------------------------------------------------------------

    def _write_meta(
        self, onto: MetaSnapshot, shards: Mapping[str, _Shard], seq: int
    ) -> MetaSnapshot | None:
        meta = replace(self._next_meta(onto, shards), commit_seq=seq)
        text = written_meta(meta, new_write_id())
        try:
            written = self._documents.put_meta(text.data, onto.token, commits=True)
        except PreconditionFailedError:
            return None
        if onto.is_healed:
            self._watch.tell_of_origin(meta)
        self._watch.wrote(meta, text)
        return MetaSnapshot(2, meta, text, written.etag, written.token)

    def _next_meta(self, onto: MetaSnapshot, shards: Mapping[str, _Shard]) -> Meta:
        meta = onto.meta
        assert meta is not None
        origin = self._watch.origin(meta)
        if onto.is_healed and not onto.is_exact:
            origin = new_write_id()  # nobody may take what is missing for deleted
        meta = replace(meta, monolith=None, origin=origin)
        now = _etags(shards)
        there = {one: etag for one, etag in now.items() if etag is not None}
        told = meta.shards
        is_same_list = there.keys() == now.keys() and all(map(told.__contains__, now))
        if isinstance(told, Fingerprints) and is_same_list:
            return replace(meta, shards=told.but(there))
        etags = dict(told.items())
        if not all(map(etags.__contains__, meta.partitions)):
            # Another client committed last, and left out what it does not know.
            listed = self._documents.listed_shards()
            etags |= {one: listed[one].etag for one in meta.partitions if one in listed}
        names = PartitionList.of({*meta.partitions} - now.keys() | there.keys())
        # As it will be read again: so the next commit need not go through all of them either.
        partitions = names.in_order
        etags |= there
        return replace(meta, partitions=partitions, shards=Fingerprints.of(partitions, etags))


def _committed_after_all(
    view: View, shards: Mapping[str, _Shard], onto: MetaSnapshot
) -> dict[str, _Shard]:
    """Return the shards into which entries were put back whose removal counts by now."""
    again: dict[str, _Shard] = {}
    for partition, shard in shards.items():
        before, meta = view.shards[partition], onto.meta
        told = meta.shards.get(partition) if meta else None
        if before.restored and meta and is_named(told, before.etag):
            doc = document(shard.found)
            entries = {rel: raw for rel, raw in doc.entries.items() if rel not in before.restored}
            found = replace(shard.found, doc=Document(entries, doc.extra))
            again[partition] = replace(shard, found=found)
    return again


def _under_way(
    shards: Mapping[str, _Shard], before: Mapping[str, str | None]
) -> dict[str, tuple[str, str | None]]:
    """Return the ETags of the shards that were written, and of those that they replaced."""
    return {
        partition: (shard.found.etag, before[partition])
        for partition, shard in shards.items()
        if shard.found.etag is not None
    }


def _name_of(found: StoredDocument) -> str | None:
    """Return the ETag that a base agreeing with these entries has; None: there are no entries."""
    if found.is_dirty:
        return _MADE_ANEW
    return found.etag if _has_entries(found.doc) else None


def _etags(shards: Mapping[str, _Shard]) -> dict[str, str | None]:
    """Return the ETags of shards, None for those without entries."""
    return {
        partition: shard.found.etag if _has_entries(shard.found.doc) else None
        for partition, shard in shards.items()
    }


def _has_entries(doc: Document | None) -> bool:
    return doc is not None and bool(doc.entries)


def after_shards(context: IndexContext, done: ShardsCommitted, scope: Scope | None) -> Committed:
    """Return what to remember of a commit to a version 2 remote."""
    base = context.base
    meta = done.snapshot.meta
    assert meta is not None
    if done.snapshot is done.onto:
        return Committed(meta.commit_seq, {}, {})
    # The frozen monolith must never again prove anything.
    facts = seen_facts(base, done.snapshot) | dict.fromkeys((MONOLITH_ETAG, MONOLITH_CHECKED))
    context.own_shards.keep(done.written)
    agreements = Agreements(base)
    shards: Shards = {}
    for one in scopes_of(scope):
        known = base.shard_etags(scope_key(one), done.etags)
        followed = {
            partition: etag
            for partition, etag in done.etags.items()
            if has_followed(base, known, partition, done.etags_before[partition])
        }
        shards |= record_shards(done.etags.keys() - followed.keys(), followed, one)
        if agreements.of(one) == done.onto.fingerprint(None) and followed == done.etags:
            facts |= agreements.fact(one, done.snapshot.fingerprint(None), agreements.epoch)
    return Committed(meta.commit_seq, facts, shards)
