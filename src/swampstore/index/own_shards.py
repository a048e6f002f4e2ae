"""The shards that this cache wrote last: whoever changes the same model again need not read them.

They are kept in the base, as they were sent, for as long as `_meta.json` names their ETags. What is
built on one is written on the condition that it is still there, so nothing depends on it but the
cost of a commit. Only those of one commit are kept, and no large ones: the base stays small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from swampstore.index.base import Base
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Meta

_FACT = "own_shards"
_MOST_BYTES = 4 << 20


class OwnShard(msgspec.Struct, array_like=True, frozen=True):
    """A shard as it was sent, and how the store calls it."""

    etag: str
    token: str
    text: str


def remembered(shards: Mapping[str, OwnShard]) -> dict[str, str | None]:
    """Return the fact that keeps these, instead of those of the commit before."""
    kept: dict[str, OwnShard] = {}
    room = _MOST_BYTES
    for partition, shard in sorted(shards.items(), key=lambda one: len(one[1].text)):
        room -= len(shard.text)
        if room >= 0:
            kept[partition] = shard
    return {_FACT: msgspec.json.encode(kept).decode() if kept else None}


def recalled(
    base: Base, documents: Documents, meta: Meta, partitions: Collection[str]
) -> dict[str, StoredDocument]:
    """Return those of the shards that are kept, and that `_meta.json` names."""
    text = base.fact(_FACT)
    if not text or not documents.store.capabilities.conditional_update:
        return {}
    try:
        kept = msgspec.json.decode(text, type=dict[str, OwnShard])
    except msgspec.MsgspecError:
        return {}
    found: dict[str, StoredDocument] = {}
    for partition in partitions:
        one = kept.get(partition)
        if one is not None and is_named(meta.shards.get(partition), one.etag):
            try:
                doc = documents.read_shard(partition, one.text.encode(), one.etag, one.token)
            except IndexDamagedError:
                continue
            found[partition] = doc
    return found
