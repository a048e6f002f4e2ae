"""The documents of a remote that hold the entries of its index: the monolith and the shards.

Other clients, newer ones too, write the same documents. So entries stay the bytes they came as
until somebody needs one of them, and members that we do not know are written back byte for byte.
Everything is compact JSON in UTF-8. What cannot be understood raises IndexDamagedError, in
whatever way it is broken; but a document with a higher version than we know is not broken, and
raises NewerFormatError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from swampstore.clock import from_ms, to_iso, to_ms
from swampstore.formats import LARGEST_NUMBER
from swampstore.index.base import Known
from swampstore.index.decoding import (
    RAW_MEMBERS,
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
from swampstore.index.partitions import MONOLITH_KEY, shard_key

RawEntries = dict[str, msgspec.Raw]


class Entry(msgspec.Struct, frozen=True, eq=False):
    """What the index says about one file.

    `last_modified` is the time of its upload and `local_mtime` the mtime of the uploaded file,
    both by the machine that did it. Entries made from a listing of the store have no `sha256`.
    `like` is an entry as it came from elsewhere: this one is written with those of its members
    that we do not know. An entry that was read has none.
    """

    size: int
    last_modified: str
    sha256: str | None = None
    local_mtime: str | None = None
    commit_seq: int | None = None
    like: bytes | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self._told() == other._told()

    def __hash__(self) -> int:
        return hash(self._told())

    def _told(self) -> tuple[int, str, str | None, str | None, int | None]:
        """Return what is said of the file, however it is written."""
        return self.size, self.last_modified, self.sha256, self.local_mtime, self.commit_seq


def entry_known(known: Known) -> Entry:
    """Return what the index said of a path when the base took note of it."""
    return Entry(known.size, known.modified, known.sha256)


class Document(msgspec.Struct):
    """A monolith or a shard: entries by path, and the members beside `version` and `entries`."""

    entries: RawEntries
    extra: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)

    @property
    def commit_seq(self) -> int | None:
        """The commit that wrote this shard, as far as our own client did; told or not."""
        return decoded_if_sound(_commit_seq, self.extra.get(COMMIT_SEQ))

    @property
    def removed(self) -> RawEntries:
        """The entries that the commit which wrote this shard took out of it."""
        return decoded_if_sound(RAW_MEMBERS, self.extra.get(_REMOVED)) or {}

    @property
    def is_frozen(self) -> bool:
        """Whether this monolith is what a migration to version 2 left of it."""
        return self.extra.get(_FROZEN) == _TRUE

    @property
    def origin(self) -> str | None:
        """The origin of the remote, as far as a monolith tells it; see `Meta`."""
        return decoded_if_sound(_text, self.extra.get(_ORIGIN))

    def of_origin(self, origin: str | None) -> Document:
        """Return the monolith with that origin."""
        extra = without(self.extra, frozenset({_ORIGIN}))
        if origin is not None:
            extra[_ORIGIN] = msgspec.Raw(encode(origin))
        return Document(self.entries, extra)

    def written_as(self, write_id: str) -> Document:
        """Return the shard as one write of a copy, which has no commit number to tell it by."""
        return Document(self.entries, self.extra | {WRITE: msgspec.Raw(encode(write_id))})

    def written_by(self, commit_seq: int, removed: RawEntries | None = None) -> Document:
        """Return the shard as this commit writes it, after it took some entries out."""
        extra = without(self.extra, frozenset({_REMOVED, WRITE}))
        extra[COMMIT_SEQ] = msgspec.Raw(b"%d" % commit_seq)
        if removed:
            extra[_REMOVED] = msgspec.Raw(encode(removed))
        return Document(self.entries, extra)

    def holding(self, entries: RawEntries) -> Document:
        """Return the shard with other entries; what an earlier commit took out is gone for good."""
        return Document(entries, without(self.extra, frozenset({_REMOVED})))

    def with_removed(self) -> Document:
        """Return the shard with the entries that a commit took out which did not come to its end.

        What it put in stays: the objects are there.
        """
        return self.holding(self.removed | self.entries)


_Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]


class EntryMembers(msgspec.Struct, rename="camel", gc=False):
    """An entry as it is written; `decode_entry` says what else it must be like."""

    size: _Size
    last_modified: str
    local_mtime: str | None = None
    sha256: str | None = None
    commit_seq: CommitSeq | None = None


class _WrittenEntry(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """An entry as we write it, if there is nothing in it that we do not know."""

    key: str
    size: int
    last_modified: str
    local_mtime: str | None = None
    sha256: str | None = None
    commit_seq: int | None = None


_ENTRY_MEMBERS = frozenset({"key", "size", "lastModified", "localMtime", "sha256", "commitSeq"})
_FROZEN = "frozen"
_MONOLITH_MEMBERS = frozenset({"version", "lastPulled", "entries", WRITE, _FROZEN})
_SHARD_MEMBERS = frozenset({"version", "entries"})
SHARD_VERSION = msgspec.Raw(b"1")
_TRUE = msgspec.Raw(b"true")
COMMIT_SEQ = "commitSeq"
_REMOVED = "removed"
_ORIGIN = "origin"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_EARLIEST = to_ms(datetime.min.replace(tzinfo=UTC))
_LATEST = to_ms(datetime.max.replace(tzinfo=UTC))

_entry_members = msgspec.json.Decoder(EntryMembers)
_text = msgspec.json.Decoder(str)
_commit_seq: msgspec.json.Decoder[int] = msgspec.json.Decoder(CommitSeq)


def decode_entry(rel: str, raw: msgspec.Raw | bytes) -> Entry:
    """Read one entry; raise IndexDamagedError, which names the path, if it is none."""
    what = f"the index entry of {rel}"
    members = decoded(_entry_members, raw, what)
    sha256 = members.sha256
    if sha256 is not None:
        sha256 = sha256.lower()
        if not _SHA256.fullmatch(sha256):
            raise damaged(what, f"sha256 {sha256[:80]!r} is not 64 hexadecimal digits")
    return Entry(
        members.size, members.last_modified, sha256, members.local_mtime, members.commit_seq
    )


def entry_members(entry: Entry) -> EntryMembers:
    """Return an entry that was read as it would be written."""
    said = entry.size, entry.last_modified, entry.local_mtime, entry.sha256, entry.commit_seq
    return EntryMembers(*said)


def encode_entry(
    rel: str, entry: Entry, onto: msgspec.Raw | None = None, *, commit_seq: int | None = None
) -> msgspec.Raw:
    """Write one entry, with those members of the entry it replaces that we do not know.

    Members of an entry that it is `like` come first. An entry that is too damaged to have members
    is simply replaced. It gets this `commit_seq`, if it is to be numbered otherwise than it is.
    """
    data = encode(
        _WrittenEntry(
            rel,
            entry.size,
            entry.last_modified,
            entry.local_mtime,
            entry.sha256,
            commit_seq or entry.commit_seq,
        )
    )
    if onto is None and entry.like is None:
        return msgspec.Raw(data)
    foreign = decoded_if_sound(RAW_MEMBERS, onto) or {}
    brought = decoded_if_sound(RAW_MEMBERS, entry.like) or {}
    known = RAW_MEMBERS.decode(data)
    return msgspec.Raw(encode(known | without(foreign | brought, _ENTRY_MEMBERS)))


def decode_monolith(data: bytes) -> Document:
    """Read the index of a version 1 remote. `extra` holds `lastPulled` and `write` too."""
    members = members_of(data, MONOLITH_KEY)
    members.setdefault("version", SHARD_VERSION)  # others never look at it, so it may be missing
    return _document(members, "monolith", MONOLITH_KEY)


def encode_monolith(
    doc: Document, last_pulled: str, write_id: str, *, is_frozen: bool = False
) -> bytes:
    """Write the index of a version 1 remote; or, `is_frozen`, what is left of it on version 2.

    `last_pulled` is, in spite of its name, the time of this change. `write_id` tells this very
    write from any other, for when the answer to it gets lost.
    """
    known = {"version": 1, "lastPulled": last_pulled, "entries": doc.entries}
    own = {WRITE: write_id} | ({_FROZEN: True} if is_frozen else {})
    return encode(known | without(doc.extra, _MONOLITH_MEMBERS) | own)


def decode_shard(data: bytes, partition: str = "*") -> Document:
    """Read the entries of one partition, whose name only serves the error."""
    what = shard_key(partition)
    return _document(members_of(data, what), "shard", what)


def encode_shard(doc: Document) -> bytes:
    """Write the entries of one partition."""
    known = {"version": 1, "entries": doc.entries}
    return encode(known | without(doc.extra, _SHARD_MEMBERS))


def scrub(entries: RawEntries, unwanted: Callable[[str], str | None]) -> dict[str, str]:
    """Remove the entries that must never cross; return why, by path.

    `unwanted` gives the reason for a path, None if it may stay.
    """
    reasons = {rel: reason for rel in entries if (reason := unwanted(rel)) is not None}
    for rel in reasons:
        del entries[rel]
    return reasons


def merged(current: RawEntries, wanted: RawEntries) -> RawEntries:
    """Return the wanted entries in the order of the current ones, then the new ones."""
    kept = {rel: wanted[rel] for rel in current if rel in wanted}
    return kept | {rel: raw for rel, raw in sorted(wanted.items()) if rel not in kept}


def iso_ms(mtime_ns: int) -> str:
    """Write an mtime the way `localMtime` has it: cut off, never rounded, to milliseconds.

    Moments that no calendar date can express become the nearest that one can.
    """
    since_epoch = min(max(mtime_ns // 1_000_000, _EARLIEST), _LATEST)
    return to_iso(from_ms(since_epoch))


def _document(members: dict[str, msgspec.Raw], kind: str, what: str) -> Document:
    refuse_newer_document(members, kind, what)
    if members.get("version") != SHARD_VERSION:
        raise damaged(what, "its version is not 1")
    if "entries" not in members:
        raise damaged(what, "it has no entries")
    entries = decoded(RAW_MEMBERS, members["entries"], f"the entries of {what}")
    return Document(entries, without(members, _SHARD_MEMBERS))
