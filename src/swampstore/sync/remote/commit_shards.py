"""Committing to a version 2 remote: the touched shards first, then `_meta.json`.

Each document is replaced only if it is still the one that the change was merged onto. When
somebody else was faster, his document is read and the change merged onto that, so concurrent
commits of different paths both succeed. Entries carry the number of the commit that made them
visible; if `_meta.json` moved on, the shards are written again with the next number. So are the
entries of a commit that stopped before `_meta.json`, by the commit that comes across them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from swampstore.stores.errors import PreconditionFailedError, StoreError
from swampstore.sync.index_format import Document, Meta, encode_meta, encode_shard
from swampstore.sync.remote.documents import Documents, Found
from swampstore.sync.remote.merging import (
    NO_CHANGE,
    Change,
    adopted,
    attempts,
    index_moved,
    new_write_id,
)
from swampstore.sync.remote.recovery import Recovery
from swampstore.sync.remote.sighting import Sighting
from swampstore.sync.remote.view import View, document
from swampstore.sync.remote.watch import Watch

# Stands for the ETag of entries that no base can have agreed with.
_MADE_ANEW = "made anew"


@dataclass(frozen=True, slots=True)
class _Shard:
    """A touched shard: what is on the store now, and the ETag of the entries it replaced."""

    found: Found
    etag_before: str | None


@dataclass(frozen=True, slots=True)
class ShardsCommitted:
    """The remote after a commit.

    `onto` is the `_meta.json` it was built on, `etags_before` the shards it was merged onto (by
    partition, None: no entries), `etags` what they are now (None: no entries left).
    """

    sighting: Sighting
    onto: Sighting
    etags_before: Mapping[str, str | None]
    etags: Mapping[str, str | None]


class ShardCommit:
    """Commits changes to one version 2 remote."""

    def __init__(self, documents: Documents, recovery: Recovery, watch: Watch) -> None:
        self._documents = documents
        self._recovery = recovery
        self._watch = watch

    def commit(self, view: View, change: Change) -> ShardsCommitted:
        """Put the change into the shards of the view, and whatever of them has to be healed."""
        parts = change.by_partition()
        for partition, found in view.shards.items():
            if found.is_dirty or view.is_untold(partition):
                parts.setdefault(partition, NO_CHANGE)
        ground = view.sighting
        shards = {partition: _Shard(view.shards[partition], None) for partition in parts}
        if not parts and not ground.is_healed:
            return ShardsCommitted(ground, ground, {}, {})
        before: dict[str, str | None] = {}
        untold = {
            partition: document(view.shards[partition]).commit_seq or 0
            for partition in parts
            if view.is_untold(partition)
        }
        for _ in attempts(change.rels):
            seq = self._last_seq(ground) + 1
            written = self._write_shards(parts, shards, seq, untold)
            for partition, shard in written.items():
                if partition not in before or shard.etag_before != shards[partition].found.etag:
                    before[partition] = shard.etag_before
            shards = written
            numbers = {
                one: document(shard.found).commit_seq or seq for one, shard in shards.items()
            }
            is_free = {*numbers.values()} <= {seq}
            sighting = self._write_meta(ground, shards, seq) if is_free else None
            if sighting is not None:
                self._remove_empty(shards)
                return ShardsCommitted(sighting, ground, before, _etags(shards))
            untold = numbers
            ground = self._watch.look_again()
            if ground.version != 2:
                raise index_moved("the remote is no longer of version 2", change.rels)
        raise AssertionError  # attempts() ends with an error

    def _last_seq(self, ground: Sighting) -> int:
        assert ground.meta is not None
        if ground.is_healed:
            return self._recovery.last_commit_seq(ground.meta)
        return ground.meta.commit_seq or 0

    # Shards ------------------------------------------------------------------------------------

    def _write_shards(
        self,
        parts: Mapping[str, Change],
        shards: Mapping[str, _Shard],
        seq: int,
        untold: Mapping[str, int],
    ) -> dict[str, _Shard]:
        def write(partition: str) -> _Shard:
            found = shards[partition].found
            if partition in untold and found.doc is not None:
                found = replace(found, doc=adopted(found.doc, untold[partition], seq))
            return self._write_shard(partition, parts[partition], found, seq)

        return self._documents.all(write, parts)

    def _write_shard(self, partition: str, change: Change, found: Found, seq: int) -> _Shard:
        for _ in attempts(change.rels):
            merged = change.onto(document(found), seq).written_by(seq)
            try:
                written = self._documents.put_shard(partition, encode_shard(merged), found.token)
            except PreconditionFailedError:
                before, found = found, self._shard_again(partition, found)
                if before.is_assumed and _has_entries(found.doc):
                    raise index_moved("nobody told what is there already", change.rels) from None
                change.check(document(found).entries)
                # Whoever was faster may have used our number, and readers know entries by theirs.
                seq = max(seq, (document(found).commit_seq or 0) + 1)
                continue
            return _Shard(Found(merged, written.etag, written.token), _name_of(found))
        raise AssertionError  # attempts() ends with an error

    def _shard_again(self, partition: str, before: Found) -> Found:
        found = self._documents.shard(partition)
        if found.doc is None and (found.etag is not None or before.is_dirty):
            return self._recovery.rebuilt(partition, found)
        return found

    def _remove_empty(self, shards: Mapping[str, _Shard]) -> None:
        """Remove shards without entries, unless others use them again; without that they stay.

        Only a removal on condition is safe: somebody may be putting an entry in right now.
        """
        if not self._documents.store.capabilities.conditional_delete:
            return
        for partition, shard in shards.items():
            if not document(shard.found).entries and shard.found.token is not None:
                with contextlib.suppress(StoreError):  # an empty shard does no harm
                    self._documents.delete_shard_if(partition, shard.found.token)

    # _meta.json --------------------------------------------------------------------------------

    def _write_meta(
        self, ground: Sighting, shards: Mapping[str, _Shard], seq: int
    ) -> Sighting | None:
        assert ground.meta is not None
        meta = replace(self._next_meta(ground.meta, shards), commit_seq=seq)
        data = encode_meta(meta, new_write_id())
        try:
            written = self._documents.put_meta(data, ground.token, commits=True)
        except PreconditionFailedError:
            return None
        return Sighting(2, meta, data.decode(), written.etag, written.token)

    def _next_meta(self, meta: Meta, shards: Mapping[str, _Shard]) -> Meta:
        etags = dict(meta.shards)
        if any(partition not in etags for partition in meta.partitions):
            # Another client committed last, and left out what it does not know.
            listed = self._documents.listed_shards()
            etags |= {one: listed[one].etag for one in meta.partitions if one in listed}
        partitions = set(meta.partitions)
        for partition, etag in _etags(shards).items():
            if etag is None:
                partitions.discard(partition)
            else:
                partitions.add(partition)
                etags[partition] = etag
        return replace(
            meta,
            partitions=tuple(sorted(partitions)),
            shards={one: etags[one] for one in sorted(partitions) if one in etags},
            monolith=None,
            origin=meta.origin or self._watch.origin(),
        )


def _name_of(found: Found) -> str | None:
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
