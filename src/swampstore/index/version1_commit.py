"""Committing to a version 1 remote: the monolith, then the touched shards, then `_meta.json`.

The monolith is the truth, so the commit is done once it is written; it is replaced only if it is
still the one that the change was merged onto. The shards are copies of its parts. `_meta.json`
names the monolith and the shards that agree with each other; whoever reads shards checks that, so
a shard that could not be written, or that a slower writer replaced, costs others the download of
the monolith and nothing more. A commit that finds no agreement restores it: it also writes the
shards that are not those of the last monolith that there was agreement about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from swampstore.clock import Clock, to_iso
from swampstore.index.base import Base
from swampstore.index.changes import (
    Change,
    Shards,
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
from swampstore.index.format import Document, RawEntries, encode_monolith, encode_shard
from swampstore.index.meta import Meta, MetaText, encode_meta
from swampstore.index.partitions import Scope, partition_of
from swampstore.index.state import (
    GONE,
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    Agreements,
    Committed,
    MetaSnapshot,
    View,
    document,
    from_monolith,
    grouped,
    same,
    slices_of,
)
from swampstore.notices import notice
from swampstore.stores.errors import PreconditionFailedError

if TYPE_CHECKING:
    from swampstore.index.version import IndexContext

_MUCH = 1_000_000
_TOLD = "told_of_index_size"


class MonolithCommitted(msgspec.Struct, frozen=True):
    """The remote after a commit.

    `monolith_before` and `monolith` are the ETags of the monolith. `snapshot` is the `_meta.json`
    that goes with it, None if a later commit of somebody else takes care of that. `onto` is the
    one it was built on; `touched` are the partitions of the change.
    """

    snapshot: MetaSnapshot | None
    onto: MetaSnapshot
    monolith_before: str | None
    monolith: str | None
    touched: frozenset[str]


class _Written(msgspec.Struct, frozen=True):
    """A monolith of ours, the one it replaced, and what was seen of the remote before."""

    before: StoredDocument
    doc: Document
    etag: str
    onto: MetaSnapshot
    origin: str | None

    def changed(self, rels: Collection[str]) -> frozenset[str]:
        """Return the partitions of those of these paths whose entries are not what they were."""
        before, now = document(self.before).entries, self.doc.entries
        return frozenset(partition_of(rel) for rel in rels if before.get(rel) != now.get(rel))


class _Shards(msgspec.Struct, frozen=True):
    """The shards of a monolith by now; `is_whole`: all of them are what they should be."""

    partitions: tuple[str, ...]
    etags: Mapping[str, str]
    is_whole: bool


class MonolithCommit:
    """Commits changes to one version 1 remote."""

    def __init__(
        self, context: IndexContext, look_again: Callable[[Collection[str]], None]
    ) -> None:
        self._look_again = look_again
        self._context = context
        self._documents = context.documents
        self._copy = context.copy
        self._watch = context.watch
        self._clock = context.clock
        self._base = context.base

    def commit(self, view: View, change: Change) -> MonolithCommitted:
        """Put the change into the monolith, and what follows from it into the shards."""
        before = view.monolith
        assert before is not None
        if not change.rels and not before.is_dirty and not view.is_unfinished:
            return MonolithCommitted(
                view.snapshot, view.snapshot, before.etag, before.etag, frozenset()
            )
        if before.is_recovered and not self._watch.is_same(view.snapshot):
            raise index_moved("others were about to commit", change.rels)
        touched = frozenset(change.by_partition())
        seen = self._watch.begin_anew(view.snapshot) if view.begins_anew else view.snapshot
        mono = self._write_monolith(seen, before, change)
        changed = mono.changed(change.rels)
        onto, snapshot = mono.onto, None
        found = view.copies if onto is seen else copies(self._context, onto, touched)
        for _ in attempts(change.rels):
            # What was seen may be as old as the uploads took long. If others migrated meanwhile,
            # the shards are theirs: writing them would take out what was committed since.
            if self._watch.is_same(onto):
                shards = self._write_shards(onto, mono, changed, found)
                snapshot = self._write_meta(onto, shards, mono)
            if snapshot is None:
                onto = self._watch.look_again()
                if onto.version != 1:
                    raise index_moved("the remote was migrated to version 2", change.rels)
                if self._is_latest(mono):
                    found = copies(self._context, onto, touched)
                    continue
            return MonolithCommitted(snapshot, onto, mono.before.etag, mono.etag, touched)
        raise AssertionError  # attempts() ends with an error

    # The monolith ------------------------------------------------------------------------------

    def _write_monolith(
        self, onto: MetaSnapshot, found: StoredDocument, change: Change
    ) -> _Written:
        for _ in attempts(change.rels):
            origin = self._origin(onto, found)
            merged = change.onto(document(found)).of_origin(origin)
            data = encode_monolith(merged, to_iso(self._clock()), new_write_id())
            try:
                written = self._documents.put_monolith(data, found.token)
            except PreconditionFailedError:
                onto = self._watch.look_again()
                if found.is_guess:
                    raise index_moved("somebody else is healing the index", change.rels) from None
                found = self._copy.fetch()
                self._watch.hear(onto, document(found))
                if onto.version != 1 or found.doc is None or self._watch.is_another:
                    raise index_moved("the remote has another index now", change.rels) from None
                change.check(found.doc.entries)
                self._look_again(change.upserts.keys())
                continue
            self._copy.save(data, written.etag, written.token, merged)
            self._tell_of_size(len(data))
            if found.is_guess:
                found = replace(found, etag=None)  # nobody has agreed with these entries
            return _Written(found, merged, written.etag, onto, origin)
        raise AssertionError  # attempts() ends with an error

    def _tell_of_size(self, size: int) -> None:
        """Say once for each cache that every push moves the whole index, when that is much."""
        if size <= _MUCH or self._base.fact(_TOLD):
            return
        self._base.apply(facts={_TOLD: str(size)})
        notice(
            "each push to this remote moves all of its index, %.1f MB now;"
            " `swampstore datastore migrate-index` makes it cost what changed"
            " (clients that only know the old index cannot read the new one)",
            size / 1_000_000,
        )

    def _is_latest(self, mono: _Written) -> bool:
        """Whether nobody committed on top of ours, who then sees to the rest."""
        info = self._documents.monolith_info()
        return info is not None and info.etag == mono.etag

    # Shards ------------------------------------------------------------------------------------

    def _write_shards(
        self,
        onto: MetaSnapshot,
        mono: _Written,
        changed: Collection[str],
        found: Mapping[str, StoredDocument],
    ) -> _Shards:
        """Write the changed shards in the place of those that were found."""
        if onto.meta is None or not onto.agrees_with(mono.before.etag):
            return self._restore_shards(onto, mono)
        slices = slices_of(mono.doc.entries, changed)
        written, failed = self._write(slices, found)
        etags = {**onto.meta.shards, **written}
        partitions = dict.fromkeys((*onto.meta.partitions, *slices))
        return _shards_of((one for one in partitions if slices.get(one, True)), etags, failed)

    def _restore_shards(self, onto: MetaSnapshot, mono: _Written) -> _Shards:
        """Write every shard that is not the one of this monolith.

        One that cannot be read now, or that a newer release wrote, stays as it is.
        """
        listed = {one: info.etag for one, info in self._documents.listed_shards().items()}
        groups = grouped(mono.doc.entries)
        current = self._current_shards(groups, listed)
        unsure = (groups.keys() | listed.keys()) - current.keys()
        found, newer = self._documents.tried(self._documents.shard, unsure & listed.keys())
        current |= {
            one: shard.etag
            for one, shard in found.items()
            if shard.etag and one in groups and _holds(shard, groups[one])
        }
        outdated = unsure - current.keys() - newer.keys()
        written, failed = self._write({one: groups.get(one, {}) for one in outdated}, found)
        known = onto.meta.partitions if onto.meta else ()
        partitions = dict.fromkeys((*known, *groups))
        is_short = failed or bool(newer)
        chosen = (one for one in partitions if one in groups)
        return _shards_of(chosen, {**current, **written}, is_short)

    def _current_shards(
        self, groups: Mapping[str, RawEntries], listed: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the ETags of shards that are, like their entries, as when there was agreement."""
        agreed = self._copy.last_agreed()
        if agreed is None:
            return {}
        entries = grouped(agreed.entries)
        return {
            partition: etag
            for partition, etag in agreed.meta.shards.items()
            if partition in groups
            and listed.get(partition) == etag
            and entries.get(partition) == groups[partition]
        }

    def _write(
        self, slices: Mapping[str, RawEntries], found: Mapping[str, StoredDocument]
    ) -> tuple[dict[str, str], bool]:
        """Write shards, remove those without entries; return ETags, and whether any failed.

        Each replaces the one that was found, and is like no other: a request that arrives once
        more, perhaps when the shards have become the truth, replaces nothing.
        """

        def write(partition: str) -> str | None:
            token = found[partition].token if partition in found else None
            if slices[partition]:
                data = encode_shard(Document(slices[partition]).written_as(new_write_id()))
                return self._documents.put_shard(partition, data, token).etag
            self._documents.delete_shard(partition, token)
            return None

        done, failed = self._documents.tried(write, slices)
        return {one: etag for one, etag in done.items() if etag is not None}, bool(failed)

    # _meta.json --------------------------------------------------------------------------------

    def _write_meta(
        self, onto: MetaSnapshot, shards: _Shards, mono: _Written
    ) -> MetaSnapshot | None:
        meta = Meta(
            version=1,
            partitions=shards.partitions,
            shards=shards.etags,
            monolith=mono.etag if shards.is_whole else None,
            extra=onto.meta.extra if onto.meta else {},
            origin=(onto.meta and onto.meta.origin) or mono.origin,
        )
        data = encode_meta(meta, new_write_id())
        try:
            written = self._documents.put_meta(data, onto.token, commits=False)
        except PreconditionFailedError:
            return None
        if shards.is_whole:
            self._copy.agrees(mono.etag, data.decode())
        text = MetaText.of(data, meta)
        return MetaSnapshot(1, meta, text, written.etag, written.token)

    def _origin(self, onto: MetaSnapshot, found: StoredDocument) -> str | None:
        if found.is_guess and onto.meta is None:
            return new_write_id()  # nobody may take what is missing for deleted
        return self._watch.origin(onto.meta, document(found).origin)


def copies(
    context: IndexContext, snapshot: MetaSnapshot, partitions: Collection[str]
) -> dict[str, StoredDocument]:
    """Return the shards of these partitions that a commit to version 1 would replace.

    Raises NewerFormatError if a newer release wrote one of them.
    """
    if snapshot.meta is None:
        return {}  # whoever writes shards then reads all of them
    known = context.base.shard_etags()
    seen = {one: etag for one, etag in snapshot.meta.shards.items() if known.get(one) == etag}
    there = {*partitions}.intersection(snapshot.meta.partitions)
    return context.documents.replaceable({one: seen.get(one) for one in there})


def _holds(shard: StoredDocument, entries: RawEntries) -> bool:
    """Whether a shard is what it would be written as."""
    return shard.doc is not None and not shard.is_dirty and shard.doc.entries == entries


def _shards_of(partitions: Iterable[str], etags: Mapping[str, str], failed: bool) -> _Shards:
    chosen = tuple(partitions)
    known = {one: etags[one] for one in chosen if one in etags}
    return _Shards(chosen, known, not failed and len(known) == len(chosen))


def after_monolith(
    base: Base, done: MonolithCommitted, scope: Scope | None, clock: Clock
) -> Committed:
    """Return what to remember of a commit to a version 1 remote."""
    if done.snapshot is done.onto:
        return Committed(None, {}, {})
    if done.snapshot is None or done.snapshot.meta is None:
        return Committed(None, {}, record_shards(done.touched, {}, None))
    facts = seen_facts(base, done.snapshot) | {MONOLITH_CHECKED: to_iso(clock())}
    now = _shards_now(done, done.snapshot.meta)
    shards: Shards = {}
    for one in scopes_of(scope):
        known = base.shard_etags(scope_key(one))
        if _held_everything(base, done, one):
            state = done.snapshot.fingerprint(done.monolith)
            facts |= Agreements.fact(one, state, Agreements(base).epoch)
            if one is None:
                facts[MONOLITH_ETAG] = done.monolith
            chosen = {part for part in now if one is None or part in done.touched}
        else:
            chosen = _followed(base, done, known)
        current = {part: now[part] for part in chosen if known.get(part) != (now[part] or GONE)}
        shards |= record_shards(done.touched - chosen, current, one)
    return Committed(None, facts, shards)


def _shards_now(done: MonolithCommitted, meta: Meta) -> dict[str, str | None]:
    """Return the ETags of all shards, None for touched ones without entries."""
    assert done.monolith is not None
    unsharded = from_monolith(done.monolith)
    return dict.fromkeys(done.touched) | {
        partition: meta.shards.get(partition, unsharded) for partition in meta.partitions
    }


def _held_everything(base: Base, done: MonolithCommitted, scope: Scope | None) -> bool:
    """Whether the base had all that the monolith had before the commit."""
    if done.monolith_before is None:
        return not done.onto.exists and base.is_empty()
    agreed = Agreements(base).of(scope)
    return agreed is not None and same(agreed.monolith, done.monolith_before)


def _followed(base: Base, done: MonolithCommitted, known: Mapping[str, str]) -> set[str]:
    """Return the touched partitions that the base had before the commit as they were."""
    before = done.onto.meta
    if before is None or not done.onto.agrees_with(done.monolith_before):
        return set()
    return {
        partition
        for partition in done.touched
        if has_followed(base, known, partition, before.shards.get(partition))
    }
