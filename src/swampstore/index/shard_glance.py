"""A shard read in one go, for whoever has the same question about all of its entries.

Nearly every shard is sound, and has thousands of entries: one after the other, they take five times
as long. A glance never says anything else than `format` does. Where it might, it says nothing, and
the shard has to be read entry by entry.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from swampstore.index.format import COMMIT_SEQ, SHARD_VERSION, Document, EntryMembers
from swampstore.index.partitions import are_all_of
from swampstore.layout import are_plain

_HASH = 64
_ABSENT = msgspec.Raw(b"")


class _Shard(msgspec.Struct, rename="camel"):
    version: msgspec.Raw
    entries: dict[str, EntryMembers]
    commit_seq: msgspec.Raw = _ABSENT
    removed: msgspec.Raw = _ABSENT
    frozen: msgspec.Raw = _ABSENT


_shard = msgspec.json.Decoder(_Shard)


class Glance(NamedTuple):
    """The entries of a shard, each of which can be understood, with hashes in lower case.

    `written` is `Document.commit_seq`. If it `tells_removed`, a commit took entries out, which may
    not have come to its end.
    """

    entries: dict[str, EntryMembers]
    written: int | None
    tells_removed: bool

    def is_in_place(self, partition: str) -> bool:
        """Whether all entries belong into the shard of a partition, and none is a danger.

        If not, that may still be so.
        """
        return are_all_of(partition, self.entries) and are_plain(self.entries)

    @property
    def bytes(self) -> int:
        """How much all that it names has."""
        return sum(one.size for one in self.entries.values())

    @property
    def highest(self) -> int:
        """The highest commit number of an entry."""
        return max((one.commit_seq or 0 for one in self.entries.values()), default=0)


def glance(data: bytes) -> Glance | None:
    """Return what a shard says, None if it has to be read entry by entry."""
    try:
        if not data.isascii():
            data.decode()  # also what is skipped must be text
        found = _shard.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if found.version != SHARD_VERSION or found.frozen:
        return None
    hashes = [one.sha256 for one in found.entries.values() if one.sha256 is not None]
    if not _are_hashes(hashes):
        return None
    extra = {COMMIT_SEQ: found.commit_seq} if found.commit_seq else {}
    written = Document({}, extra).commit_seq
    return Glance(found.entries, written, tells_removed=bool(found.removed))


def _are_hashes(texts: Collection[str]) -> bool:
    """Whether all are hashes as we write them."""
    joined = "".join(texts)
    if any(len(text) != _HASH for text in texts) or joined != joined.lower():
        return False
    try:
        return len(bytes.fromhex(joined)) * 2 == len(joined)  # spaces would make it shorter
    except ValueError:
        return False
