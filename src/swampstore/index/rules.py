"""What is wrong with an index: rules without any I/O, for whoever has looked at it.

`doctor` asks about what a few requests show, `pipeline verify` about what tasks have read. Both get
the same answer about the same documents; how bad that is and what to do about it is their business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from swampstore.index.fingerprints import is_named
from swampstore.index.meta import Meta
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.index.version import IndexVersion
from swampstore.stores.protocol import ObjectInfo

# Documents.
MISSING_META = "missing-meta"
UNDECODABLE_META = "undecodable-meta"
MISSING_MONOLITH = "missing-monolith"
UNDECODABLE_MONOLITH = "undecodable-monolith"
OTHER_MONOLITH = "other-monolith"
MISSING_SHARD = "missing-shard"
UNDECODABLE_SHARD = "undecodable-shard"
UNLISTED_SHARD = "unlisted-shard"
OTHER_SHARD = "other-shard"
WRONG_SEQUENCE = "wrong-sequence"
# Entries and objects.
MISSING_OBJECT = "missing-object"
ORPHAN = "orphan"
IN_FLIGHT = "in-flight"


class Fault(NamedTuple):
    """Something that is wrong with a document.

    `is_loss` says that entries are lost or unseen with it; otherwise others only need longer. A
    fault of a document that is there tells when that was `written`: a commit may be going on.
    """

    kind: str
    rel: str
    detail: str = ""
    is_loss: bool = True
    partition: str | None = None
    written: datetime | None = None


class ShardContent(NamedTuple):
    """A shard that was read: how many entries it has, and of which highest commit.

    `problem` says why it cannot be understood.
    """

    entries: int = 0
    highest: int = 0
    problem: str | None = None


class IndexDocuments(msgspec.Struct, frozen=True):
    """The documents of one index as somebody has seen them.

    Without `meta` there is none that can be used; it `is_meta_damaged` if there is one all the
    same. `read` is what is known of shards that were read, `monolith_problem` why the monolith
    cannot be understood.
    """

    version: IndexVersion
    meta: Meta | None = None
    is_meta_damaged: bool = False
    monolith: ObjectInfo | None = None
    monolith_problem: str | None = None
    shards: Mapping[str, ObjectInfo] = msgspec.field(default_factory=dict)
    read: Mapping[str, ShardContent] = msgspec.field(default_factory=dict)

    @property
    def listed(self) -> frozenset[str]:
        """The partitions that readers look for."""
        return frozenset(self.meta.partitions if self.meta is not None else self.shards)

    @property
    def is_monolith_lost(self) -> bool:
        """Whether the monolith is the truth, and is missing or damaged."""
        is_usable = self.monolith is not None and self.monolith_problem is None
        return self.version.counts(None) and not is_usable

    @property
    def damaged(self) -> frozenset[str]:
        """The partitions whose shard is the truth, and whose entries nobody can tell."""
        unreadable = {partition for partition, one in self.read.items() if one.problem}
        lost = (self.listed - self.shards.keys()) | unreadable
        return frozenset(filter(self.version.counts, lost))


def faults(seen: IndexDocuments) -> Iterator[Fault]:
    """Yield what is wrong with each document, in the order meta, monolith, shards."""
    yield from _of_meta(seen)
    if seen.version.counts(None):
        yield from _of_monolith(seen)
    for partition in sorted(seen.listed - seen.shards.keys()):
        is_loss = seen.version.counts(partition)
        yield Fault(MISSING_SHARD, shard_key(partition), "", is_loss, partition)
    for partition, content in seen.read.items():
        if partition in seen.shards:
            yield from _of_shard(seen, partition, content)


def _of_meta(seen: IndexDocuments) -> Iterator[Fault]:
    if seen.is_meta_damaged:
        yield Fault(UNDECODABLE_META, META_KEY)
    elif seen.meta is None and seen.shards:
        # Without shards there never was one.
        is_loss = any(map(seen.version.counts, seen.shards))
        yield Fault(MISSING_META, META_KEY, is_loss=is_loss)


def _of_monolith(seen: IndexDocuments) -> Iterator[Fault]:
    if seen.monolith is None:
        yield Fault(MISSING_MONOLITH, MONOLITH_KEY)
    if seen.monolith_problem is not None:
        yield Fault(UNDECODABLE_MONOLITH, MONOLITH_KEY, seen.monolith_problem)


def _of_shard(seen: IndexDocuments, partition: str, content: ShardContent) -> Iterator[Fault]:
    def fault(kind: str, detail: str) -> Fault:
        is_loss, written = seen.version.counts(partition), seen.shards[partition].last_modified
        return Fault(kind, shard_key(partition), detail, is_loss, partition, written)

    if content.problem:
        yield fault(UNDECODABLE_SHARD, content.problem)
    elif seen.meta is None:
        return
    elif partition not in seen.listed:
        # What has no entries is left where the last version of a model was deleted.
        if content.entries and not seen.is_monolith_lost:
            yield fault(UNLISTED_SHARD, f"it has {content.entries} entries")
    elif seen.version.counts_commits and content.highest > (seen.meta.commit_seq or 0):
        last = seen.meta.commit_seq or 0
        yield fault(
            WRONG_SEQUENCE, f"it has entries of commit {content.highest}, the last one is {last}"
        )


def strangers(seen: IndexDocuments) -> Iterator[Fault]:
    """Yield documents that are not those of which `_meta.json` tells: others wrote them since."""
    meta = seen.meta
    if meta is None:
        return
    for partition, info in sorted(seen.shards.items()):
        told = meta.shards.get(partition, info.etag)
        if partition not in meta.partitions or not is_named(told, info.etag):
            rel, written = shard_key(partition), info.last_modified
            yield Fault(OTHER_SHARD, rel, "", False, partition, written)  # noqa: FBT003
    monolith = seen.monolith if seen.version.counts(None) else None
    if monolith is not None and meta.monolith not in (None, monolith.etag):
        yield Fault(OTHER_MONOLITH, MONOLITH_KEY, is_loss=False, written=monolith.last_modified)


def is_settled(written: datetime | None, since: datetime) -> bool:
    """Whether something is old enough that no commit can be going on with it."""
    return written is None or written <= since


def fault_of_object(*, is_named: bool, is_there: bool, is_young: bool = False) -> str | None:
    """Return what is wrong with a path: an entry without an object, or the other way round.

    An object that `is_young` may belong to a push that is going on.
    """
    if is_named:
        return None if is_there else MISSING_OBJECT
    return IN_FLIGHT if is_young else ORPHAN
