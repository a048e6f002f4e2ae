"""Version 2 of the index: the shards are the truth, and `_meta.json` counts the commits.

The monolith of before is frozen: it stays for clients that know nothing else, and proves nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from swampstore.clock import Clock
from swampstore.index.changes import NO_CHANGE, Change, index_moved, new_write_id, trust
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexMovedError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Document, RawEntries, encode_shard
from swampstore.index.meta import Meta, encode_meta
from swampstore.index.migration import Migration
from swampstore.index.origins import note_origin
from swampstore.index.partitions import META_KEY, Homes, Scope, shard_key
from swampstore.index.state import (
    COMMIT_SEQ,
    GONE,
    META_ETAG,
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    PARTIAL,
    Committed,
    Fingerprint,
    MetaSnapshot,
    Migrated,
    Proof,
    Slice,
    View,
    document,
    with_uncommitted,
)
from swampstore.index.version import IndexContext, IndexVersion, Rebuild
from swampstore.index.version2_commit import ShardCommit, after_shards
from swampstore.stores.errors import PreconditionFailedError, StoreError
from swampstore.stores.protocol import Fetched

if TYPE_CHECKING:
    from swampstore.index.remote_index import Reader
    from swampstore.index.repair import Recovery
    from swampstore.index.watch import Watch

_FEW = 16


class Version2(IndexVersion):
    """The shards count."""

    number = 2
    name = "sharded"
    counts_commits = True
    stale_facts = (MONOLITH_ETAG, MONOLITH_CHECKED)

    # Which documents count -----------------------------------------------------------------------

    def counts(self, partition: str | None) -> bool:
        """Whether it is a shard."""
        return partition is not None

    def documents(self, partitions: Iterable[str]) -> list[str]:
        """Return the shards of these partitions."""
        return sorted(map(shard_key, partitions))

    def entries(self, documents: Documents, partitions: Collection[str]) -> Iterator[RawEntries]:
        """Yield those of each shard."""
        for _, found in documents.shards(partitions):
            yield document(found).entries

    def lost_partitions(self, snapshot: MetaSnapshot, stored: Container[str]) -> set[str] | None:
        """Return the partitions that `_meta.json` tells of, and that have no shard."""
        lost = {
            partition
            for partition in (snapshot.meta.partitions if snapshot.meta else ())
            if shard_key(partition) not in stored
        }
        return lost if lost or snapshot.is_healed else None

    def untold_partitions(
        self, snapshot: MetaSnapshot, recorded: Iterable[Mapping[str, str]]
    ) -> set[str]:
        """Return the shards whose ETags another client, which committed last, has left out.

        And those that a pull has read otherwise than `_meta.json` tells of them.
        """
        meta = snapshot.meta
        if meta is None:
            return set()
        read = {
            partition
            for etags in recorded
            for partition, etag in etags.items()
            if etag not in (GONE, PARTIAL) and not is_named(meta.shards.get(partition, etag), etag)
        }
        return read | ({*meta.partitions} - meta.shards.keys())

    def with_left_out(
        self, context: IndexContext, snapshot: MetaSnapshot, *, is_proven: bool
    ) -> MetaSnapshot:
        """Look at what is stored: nothing but the shards would tell of it."""
        return context.recovery.with_stored(snapshot) if is_proven else snapshot

    # Noticing changes ----------------------------------------------------------------------------

    def is_unchanged(self, watch: Watch, agreed: Fingerprint) -> bool:
        """Every commit rewrites `_meta.json`, so there is nothing else to ask for."""
        del watch, agreed
        return True

    def proof(self, context: IndexContext, agreed: Fingerprint) -> Proof:
        """Return the number of the last commit."""
        seen, seq = context.base.facts(META_ETAG, COMMIT_SEQ)  # of one moment
        return Proof(commit_seq=int(seq)) if seq and seen == agreed.meta else Proof()

    def agreed_facts(self, state: Fingerprint, clock: Clock) -> dict[str, str | None]:
        """There is nothing else to remember."""
        del state, clock
        return {}

    # Reading -------------------------------------------------------------------------------------

    def recovered(self, recovery: Recovery, etag: str | None, token: str | None) -> MetaSnapshot:
        """Return what the shards show: it never becomes version 1 again."""
        return recovery.sharded(etag, token)

    def read(self, reader: Reader, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Read the changed shards."""
        assert snapshot.meta is not None
        current = reader.etags(snapshot.meta)
        outdated = reader.outdated(current)
        reader.mark_partial(outdated)
        is_whole = snapshot.is_sound
        for partition, found in reader.context.documents.shards(outdated):
            piece = self._slice(reader, partition, found, snapshot)
            is_whole = is_whole and piece.complete
            yield piece
        # Without `_meta.json` nobody can tell a partition that is gone from one that is lost.
        if not snapshot.is_healed:
            yield from reader.gone(current)
        reader.seen = snapshot.fingerprint(None) if is_whole else None

    def _slice(
        self, reader: Reader, partition: str, found: StoredDocument, snapshot: MetaSnapshot
    ) -> Slice:
        context = reader.context
        if found.doc is None:
            if self._was_dropped(context, partition, snapshot):
                return Slice(partition, {}, GONE, complete=True)
            rebuilt = document(context.recovery.rebuilt(partition, found, snapshot.meta))
            return Slice(partition, reader.covered(rebuilt.entries), None, complete=False)
        told = found
        found = context.recovery.completed(partition, told, snapshot)
        assert found.doc is not None
        if found is not told:
            reader.leaves_out |= context.recovery.were_left_out(partition, told, snapshot)
        is_complete = True
        if found.doc.removed and not snapshot.tells_of(partition, found):
            found = with_uncommitted(partition, found, context.watch.look_again())
            is_complete = not found.restored
        placed = {}
        homes = Homes()
        for rel, raw in document(found).entries.items():
            if homes.of(rel) == partition:
                placed[rel] = raw
            else:
                context.documents.report(
                    rel, f"its entry is in the wrong shard ({partition}); migrate-index moves it"
                )
        etag = found.etag if is_complete else None
        return Slice(partition, reader.covered(placed), etag, complete=is_complete)

    def _was_dropped(self, context: IndexContext, partition: str, snapshot: MetaSnapshot) -> bool:
        """Whether a shard is missing because its last entry was removed while we were reading."""
        meta = context.watch.look_again().meta if snapshot.is_sound else None
        is_ours = meta is not None and meta.version == self.number
        return meta is not None and is_ours and partition not in meta.partitions

    def view(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        partitions: set[str],
        additions: set[str],
        *,
        rels: Collection[str] = (),
    ) -> View:
        """Return the shards; those that should not be there are taken to be empty."""
        del rels
        assert snapshot.meta is not None
        assumed: set[str] = set()
        if context.documents.store.capabilities.conditional_create:
            new = additions - partitions - context.doubtful
            listed: Collection[str] = snapshot.meta.partitions
            # To look for a few in a long list takes less than to make a set of it.
            told = listed if len(new) <= _FEW else {*listed}
            assumed = {one for one in new if one not in told}
        wanted = (partitions | additions) - assumed
        own: dict[str, StoredDocument] = {}
        if snapshot.is_recalled:
            own = context.own_shards.recalled(snapshot.meta, wanted)
        shards = context.recovery.shards(wanted - own.keys(), snapshot) | own
        return View(
            snapshot, shards=shards | dict.fromkeys(assumed, StoredDocument(is_assumed=True))
        )

    # Writing -------------------------------------------------------------------------------------

    def commit(
        self,
        context: IndexContext,
        view: View,
        change: Change,
        scope: Scope | None,
        look_again: Callable[[Collection[str]], None],
    ) -> Committed:
        """Commit to the shards."""
        try:
            committed = ShardCommit(context, look_again).commit(view, change)
        except IndexMovedError:
            # Among the shards that `_meta.json` does not tell of are now some of this commit.
            context.doubtful.update(view.shards)
            raise
        return after_shards(context, committed, scope)

    def fence(self, context: IndexContext, meta: Meta, fetched: Fetched, *, is_new: bool) -> None:
        """Rewrite `_meta.json`."""
        del is_new
        data = encode_meta(meta, new_write_id())
        context.documents.put_meta(data, fetched.info.token, commits=False)

    def fence_without_meta(
        self,
        context: IndexContext,
        snapshot: MetaSnapshot,
        fetched: Fetched | None,
        *,
        is_new: bool,
    ) -> None:
        """Write `_meta.json`: what commits create has to be there already."""
        del is_new
        if fetched is None:
            view = View(snapshot, shards=context.recovery.shards((), snapshot))
            ShardCommit(context, trust).commit(view, NO_CHANGE)

    def migrate(self, context: IndexContext, snapshot: MetaSnapshot) -> Migrated | None:
        """Check all shards, and heal them."""
        return Migration(context).heal(snapshot)

    def rebuild(self, work: Rebuild) -> int:
        """Write the shards, then `_meta.json` as the next commit."""
        before = work.meta.origin if work.meta else None
        work = work.begun()
        seq = work.highest + 1
        etags, written = work.write_shards(seq)
        told = work.meta.partitions if work.meta else ()
        emptied = _empty(work, {*work.shards, *told} - etags.keys())
        if not written and not emptied and _is_told(work, etags):
            return 0
        meta = work.meta or Meta(self.number, ())
        made = replace(
            meta,
            partitions=tuple(sorted(etags)),
            commit_seq=seq,
            shards=dict(sorted(etags.items())),
            origin=work.origin(),
        )
        try:
            work.documents.put_meta(encode_meta(made, new_write_id()), work.token, commits=True)
        except PreconditionFailedError:
            raise index_moved(f"somebody else wrote {META_KEY}", ()) from None
        note_origin(work.documents, made.origin, before)
        if work.documents.store.capabilities.conditional_delete:
            for partition, token in emptied.items():
                with contextlib.suppress(StoreError):  # an empty shard does no harm
                    work.documents.delete_shard(partition, token)
        return written + len(emptied) + 1


def _is_told(work: Rebuild, etags: Mapping[str, str]) -> bool:
    """Whether `_meta.json` says already what is there."""
    meta = work.meta
    return (
        meta is not None
        and (meta.commit_seq or 0) >= work.highest
        and {*meta.partitions} == etags.keys()
        and all(is_named(meta.shards.get(one, etag), etag) for one, etag in etags.items())
    )


def _empty(work: Rebuild, partitions: Iterable[str]) -> dict[str, str]:
    """Write shards without entries where there should be none; return their tokens."""
    tokens: dict[str, str] = {}
    for partition in sorted(partitions):
        if partition in work.shards:
            now = work.documents.shard_as_it_is(partition)
            if now.doc is None or now.doc.entries:
                data = encode_shard((now.doc or Document({})).holding({}))
                tokens[partition] = work.documents.put_shard(partition, data, now.token).token
    return tokens
