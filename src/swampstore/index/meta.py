"""`_meta.json`, the directory of an index: which format a remote has, and which partitions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from swampstore.errors import ValidationError
from swampstore.index.decoding import (
    WRITE,
    CommitSeq,
    damaged,
    decoded,
    decoded_if_sound,
    encode,
    members_of,
    refuse_newer_document,
    without,
)
from swampstore.index.fingerprints import packed, unpacked, unpacked_etags
from swampstore.index.partition_list import PartitionList
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.stores.protocol import check_key


class Meta(msgspec.Struct, frozen=True):
    """`_meta.json`: which format the remote has, and which partitions.

    Version 1: the monolith is the truth and shards are advisory. Version 2: the shards are the
    truth and `commit_seq` counts the commits. `shards` and `monolith` are the ETags that our last
    commit left behind, on version 2 perhaps only their fingerprints (compare them by `is_named`);
    they are gone as soon as another client commits. `origin` is the same for
    as long as a remote is: one that was emptied and filled again has another. On version 1 the
    monolith has it, too, for whoever comes when `_meta.json` is lost.
    """

    version: int
    partitions: Sequence[str]
    commit_seq: int | None = None
    shards: Mapping[str, str] = msgspec.field(default_factory=dict)
    monolith: str | None = None
    extra: Mapping[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    origin: str | None = None


class MetaText(NamedTuple):
    """What a `_meta.json` is written as: its list of partitions, and the rest, around it.

    The list is most of it, and nearly always the same. It is empty if it was not told apart.
    """

    rest: str
    listed: str = ""
    at: int = 0

    @classmethod
    def of(cls, data: bytes, meta: Meta) -> MetaText:
        """Return the text of a document that was understood, or written."""
        listed = PartitionList.of(meta.partitions).as_json
        written = listed.encode()
        at = data.find(b"[")
        if not data.startswith(written, at):
            return cls(data.decode())
        before = data[:at].decode()
        return cls(before + data[at + len(written) :].decode(), listed, len(before))

    @property
    def whole(self) -> str:
        """All of it."""
        return self.around(self.listed)

    @property
    def data(self) -> bytes:
        """What is stored."""
        return self.whole.encode()

    def around(self, listed: str) -> str:
        """Return the rest around another list."""
        return f"{self.rest[: self.at]}{listed}{self.rest[self.at :]}"


class _MetaMembers(msgspec.Struct, rename="camel"):
    version: Annotated[int, msgspec.Meta(ge=1)]
    partitions: list[str]
    commit_seq: CommitSeq | None = None


class _OwnMembers(msgspec.Struct):
    """What we add to `_meta.json` for ourselves."""

    shards: dict[str, str] = {}
    fingerprints: str | None = None
    etags: str | list[str | None] | None = None
    of: str | None = None
    monolith: str | None = None
    origin: str | None = None
    paths: bool = False


_OWN = "swampstore"
_PATHS = 3
_EMPTY = "[]"
_META_MEMBERS = frozenset({"version", "partitions", "commitSeq", _OWN})

# Letters first: neither `_meta`, nor `.`, nor anything that is not what it looks like.
_PLAIN = r"[a-z][A-Za-z0-9@_.-]{0,199}+"
_PLAIN_LINES = re.compile(rf"{_PLAIN}(?:\n{_PLAIN})*")

_meta_members = msgspec.json.Decoder(_MetaMembers)
_own_members = msgspec.json.Decoder(_OwnMembers)


def decode_meta(data: bytes) -> Meta:
    """Read the directory of the partitions."""
    members = members_of(data, META_KEY)
    own = _own(members)
    known = decoded(_meta_members, data, META_KEY)
    _check_numbered(known)
    for partition in _perhaps_no_partitions(known.partitions):
        # Reading or removing such a shard would reach for another object.
        if not _is_partition(partition):
            raise damaged(META_KEY, f"{partition[:80]!r} is no partition")
    return _meta(known, PartitionList.of(known.partitions), own, members)


def recall_meta(text: MetaText, digest: str | None = None) -> Meta:
    """Read what was read, or written, before; its list of partitions need not be looked at again.

    Only if it is of our own making, and tells of all shards: the digest of the list shows that,
    which is computed unless it is known.
    """
    if not text.listed:
        return decode_meta(text.data)
    data = text.around(_EMPTY).encode()
    members = members_of(data, META_KEY)
    own = _own(members)
    partitions = PartitionList.recalled(text.listed, own.of, digest) if own.of else None
    if partitions is None:
        return decode_meta(text.data)
    known = decoded(_meta_members, data, META_KEY)
    _check_numbered(known)
    return _meta(known, partitions, own, members)


def _own(members: Mapping[str, msgspec.Raw]) -> _OwnMembers:
    """Return what we added for ourselves; raise NewerFormatError."""
    # Without our own members things only take longer, so damage of them does not matter.
    own = decoded_if_sound(_own_members, members.get(_OWN)) or _OwnMembers()
    refuse_newer_document(members, "meta of paths" if own.paths else "meta", META_KEY)
    return own


def _check_numbered(known: _MetaMembers) -> None:
    if known.version == 2 and known.commit_seq is None:
        raise damaged(META_KEY, "version 2 without a commitSeq")


def _meta(
    known: _MetaMembers,
    partitions: PartitionList,
    own: _OwnMembers,
    members: Mapping[str, msgspec.Raw],
) -> Meta:
    return Meta(
        known.version,
        partitions,
        known.commit_seq,
        own.shards
        or unpacked(partitions, own.fingerprints, own.of)
        or unpacked_etags(partitions, own.etags, own.of),
        own.monolith,
        without(members, _META_MEMBERS),
        own.origin,
    )


def _perhaps_no_partitions(names: list[str]) -> list[str]:
    """Return the names to look at one by one: none if all of them are plain at a glance."""
    lines = "\n".join(names)
    # As many lines as names: none has a line of its own in it.
    is_plain = _PLAIN_LINES.fullmatch(lines) and lines.count("\n") == len(names) - 1
    return [] if is_plain else names


def _is_partition(name: str) -> bool:
    """Whether there can be a shard of that name, and nothing else at its place."""
    try:
        check_key(shard_key(name))
    except ValidationError:
        return False
    return bool(name) and "/" not in name and shard_key(name) != META_KEY


def encode_meta(meta: Meta, write_id: str) -> bytes:
    """Write the directory of the partitions; `write_id` tells this very write from any other."""
    return written_meta(meta, write_id).data


def written_meta(meta: Meta, write_id: str) -> MetaText:
    """Return how the directory of the partitions is written."""
    partitions = PartitionList.of(meta.partitions)
    if meta.version == 2:
        partitions = partitions.in_order
    known: dict[str, Any] = {"version": meta.version, "partitions": msgspec.Raw(_EMPTY)}
    if meta.commit_seq is not None:
        known["commitSeq"] = meta.commit_seq
    own: dict[str, Any] = {} if meta.monolith is None else {"monolith": meta.monolith}
    own |= {} if meta.origin is None else {"origin": meta.origin}
    if meta.version == _PATHS:
        own["paths"] = True  # what other clients may once call version 3 is something else
    if meta.version == 2:
        own |= packed(partitions, meta.shards)
    else:
        own["shards"] = meta.shards
    own[WRITE] = write_id
    text = encode(known | without(meta.extra, _META_MEMBERS) | {_OWN: own}).decode()
    before, _, after = text.partition(_EMPTY)
    return MetaText(before + after, partitions.as_json, len(before))
