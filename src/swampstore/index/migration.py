"""Making a remote version 2, and healing one that is.

From then on the shards are the truth. Everything in the monolith goes into a shard before
`_meta.json` says so. The monolith is written anew on both sides of that moment. Before, so that
a commit which began on version 1 cannot be finished without looking again; after, so that
clients which only compare its ETag look again and find out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from swampstore.clock import to_iso
from swampstore.index.changes import NO_CHANGE, attempts, new_write_id, trust
from swampstore.index.documents import StoredDocument
from swampstore.index.errors import IndexMovedError, MadeAnewError
from swampstore.index.format import Document, RawEntries, encode_monolith, encode_shard
from swampstore.index.meta import Meta, MetaText, encode_meta
from swampstore.index.partitions import partition_of
from swampstore.index.state import (
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    Agreements,
    MetaSnapshot,
    Migrated,
    View,
    document,
    grouped,
    meta_facts,
    same,
)
from swampstore.index.version2_commit import ShardCommit, after_shards
from swampstore.stores.errors import PreconditionFailedError
from swampstore.stores.protocol import Written

if TYPE_CHECKING:
    from swampstore.index.version import IndexContext


class Migration:
    """Migrates one remote from version 1 to version 2, or heals one of version 2.

    The commit number of a remote only ever grows.
    """

    def __init__(self, context: IndexContext) -> None:
        self._context = context
        self._documents = context.documents
        self._copy = context.copy
        self._recovery = context.recovery
        self._watch = context.watch
        self._base = context.base
        self._clock = context.clock

    # From version 1 ----------------------------------------------------------------------------

    def migrate(self, snapshot: MetaSnapshot) -> Migrated | None:
        """Write all shards and `_meta.json`; None if somebody committed meanwhile."""
        found = snapshot.discovered or self._copy.fetch()
        if found.doc is None:
            found = self._recovery.discover(snapshot).discovered or StoredDocument()
        if self._watch.must_start_over(View(snapshot, monolith=found)):
            raise MadeAnewError
        if found.is_guess:  # before any of it can be seen
            try:
                snapshot = self._watch.begin_anew(snapshot)
            except IndexMovedError:
                return None
        origin = self._watch.origin(snapshot.meta, document(found).origin)
        doc = document(found).of_origin(origin)
        groups = grouped(doc.entries)
        assert sum(map(len, groups.values())) == len(doc.entries)
        etags = self._write_shards(groups)
        touched = self._touch_monolith(doc, found.token) if etags is not None else None
        if etags is None or touched is None:
            return None
        extra = snapshot.meta.extra if snapshot.meta else {}
        meta = Meta(
            2, tuple(sorted(groups)), commit_seq=1, shards=etags, extra=extra, origin=origin
        )
        data = encode_meta(meta, new_write_id())
        try:
            written = self._documents.put_meta(data, snapshot.token, commits=True)
        except PreconditionFailedError:
            return None
        text = MetaText.of(data, meta)
        done = MetaSnapshot(2, meta, text, written.etag, written.token)
        self._watch.tell_of_origin(meta, snapshot.meta)
        self._touch_monolith(doc, touched.token, is_frozen=True)
        self._remember(done, None if found.is_recovered else found.etag)
        return Migrated(2, len(groups), len(doc.entries), 1, already=False)

    def _write_shards(self, groups: Mapping[str, RawEntries]) -> dict[str, str] | None:
        """Write all shards; None if somebody else wrote one meanwhile.

        None of them is like one of before: a request for such a one that arrives late finds
        another than it was to replace.
        """
        there = self._documents.replaceable(dict.fromkeys(self._documents.listed_shards()))
        tokens = {partition: found.token for partition, found in there.items()}

        def write(partition: str) -> str:
            data = encode_shard(Document(groups[partition]).written_as(new_write_id()))
            return self._documents.put_shard(partition, data, tokens.get(partition)).etag

        def remove(partition: str) -> None:
            self._documents.delete_shard(partition, tokens[partition])

        try:
            # Leftovers that are not in use would come back to life as soon as somebody uses them.
            self._documents.all(remove, tokens.keys() - groups.keys())
            return self._documents.all(write, groups)
        except PreconditionFailedError:
            return None

    def _touch_monolith(
        self, doc: Document, token: str | None, *, is_frozen: bool = False
    ) -> Written | None:
        """Write the monolith anew, with the same entries; None if it is another one by now."""
        data = encode_monolith(doc, to_iso(self._clock()), new_write_id(), is_frozen=is_frozen)
        try:
            return self._documents.put_monolith(data, token)
        except PreconditionFailedError:
            return None

    def _remember(self, done: MetaSnapshot, monolith: str | None) -> None:
        assert done.meta is not None
        assert done.text is not None
        assert done.etag is not None
        stale = (MONOLITH_ETAG, MONOLITH_CHECKED)
        facts = meta_facts(self._base, done.meta, done.text, done.etag, done.token, stale)
        shards: dict[tuple[str, str], str] = {}
        agreements = Agreements(self._base)
        agreed = agreements.of(None)
        if agreed is not None and same(agreed.monolith, monolith):
            facts |= agreements.fact(None, done.fingerprint(None), agreements.epoch)
            shards = {(partition, ""): etag for partition, etag in done.meta.shards.items()}
        self._base.apply(facts=facts, shards=shards)

    # On version 2 ------------------------------------------------------------------------------

    def heal(self, snapshot: MetaSnapshot) -> Migrated | None:
        """Read every shard and put right what is not; the monolith is never looked at.

        None if somebody committed meanwhile.
        """
        assert snapshot.meta is not None
        partitions = {*snapshot.meta.partitions, *self._documents.listed_shards()}
        moved = self._move_strays(self._documents.all(self._documents.shard, partitions))
        found = self._recovery.shards(partitions | moved, snapshot, moved)
        view = View(snapshot, shards={one: shard for one, shard in found.items() if shard.doc})
        if self._watch.is_outdated(view):
            return None
        if self._watch.must_start_over(view):
            raise MadeAnewError
        done = ShardCommit(self._context, trust).commit(view, NO_CHANGE)
        committed = after_shards(self._context, done, None)
        self._base.apply(facts=committed.facts, shards=committed.shards)
        entries = sum(len(document(shard).entries) for shard in view.shards.values())
        meta = done.snapshot.meta
        assert meta is not None
        assert meta.commit_seq is not None
        self._watch.tell_of_origin(meta)
        return Migrated(2, len(meta.partitions), entries, meta.commit_seq, already=True)

    def _move_strays(self, found: Mapping[str, StoredDocument]) -> set[str]:
        """Put entries into the shards they belong to; return the shards that changed.

        First into the right one, then out of the wrong one, so that they are always in one.
        """
        strays: dict[str, RawEntries] = {}
        sources: set[str] = set()
        for partition, shard in found.items():
            for rel, raw in document(shard).entries.items():
                if (target := partition_of(rel)) != partition:
                    strays.setdefault(target, {})[rel] = raw
                    sources.add(partition)
        for target, entries in strays.items():
            self._edit(target, partial(_joined, entries))
        for source in sources:
            self._edit(source, partial(_belonging, source))
        return sources | strays.keys()

    def _edit(self, partition: str, edit: Callable[[RawEntries], RawEntries]) -> None:
        for _ in attempts(()):
            found = self._documents.shard(partition)
            doc = document(found)
            changed = doc.holding(edit(doc.entries))
            try:
                self._documents.put_shard(partition, encode_shard(changed), found.token)
            except PreconditionFailedError:
                continue
            return


def _joined(strays: RawEntries, entries: RawEntries) -> RawEntries:
    return {**strays, **entries}


def _belonging(partition: str, entries: RawEntries) -> RawEntries:
    return {rel: raw for rel, raw in entries.items() if partition_of(rel) == partition}
