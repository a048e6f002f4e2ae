"""The index documents of a remote: the monolith, the shards and their directory `_meta.json`.

Other clients, newer ones too, write the same documents. So entries stay the bytes they came as
until somebody needs one of them, and members that we do not know are written back byte for byte.
Everything is compact JSON in UTF-8. What cannot be understood raises IndexDamagedError, in
whatever way it is broken; but a document with a higher version than we know is not broken, and
raises NewerFormatError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from swampstore.clock import from_ms, to_iso, to_ms
from swampstore.errors import ValidationError
from swampstore.formats import LARGEST_NUMBER, refuse_newer
from swampstore.index.base import Known
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import packed, unpacked, unpacked_etags
from swampstore.index.partition_list import PartitionList
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.stores.protocol import check_key

RawEntries = dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Entry:
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
    like: bytes | None = field(default=None, compare=False, repr=False)


def entry_known(known: Known) -> Entry:
    """Return what the index said of a path when the base took note of it."""
    return Entry(known.size, known.modified, known.sha256)


@dataclass(slots=True)
class Document:
    """A monolith or a shard: entries by path, and the members beside `version` and `entries`."""

    entries: RawEntries
    extra: dict[str, msgspec.Raw] = field(default_factory=dict)

    @property
    def commit_seq(self) -> int | None:
        """The commit that wrote this shard, as far as our own client did; told or not."""
        return _decode_if_sound(_commit_seq, self.extra.get(COMMIT_SEQ))

    @property
    def removed(self) -> RawEntries:
        """The entries that the commit which wrote this shard took out of it."""
        return _decode_if_sound(_raw_members, self.extra.get(_REMOVED)) or {}

    @property
    def is_frozen(self) -> bool:
        """Whether this monolith is what a migration to version 2 left of it."""
        return self.extra.get(_FROZEN) == _TRUE

    @property
    def origin(self) -> str | None:
        """The origin of the remote, as far as a monolith tells it; see `Meta`."""
        return _decode_if_sound(_text, self.extra.get(_ORIGIN))

    def of_origin(self, origin: str | None) -> Document:
        """Return the monolith with that origin."""
        extra = _without(self.extra, frozenset({_ORIGIN}))
        if origin is not None:
            extra[_ORIGIN] = msgspec.Raw(_encode(origin))
        return Document(self.entries, extra)

    def written_as(self, write_id: str) -> Document:
        """Return the shard as one write of a copy, which has no commit number to tell it by."""
        return Document(self.entries, self.extra | {_WRITE: msgspec.Raw(_encode(write_id))})

    def written_by(self, commit_seq: int, removed: RawEntries | None = None) -> Document:
        """Return the shard as this commit writes it, after it took some entries out."""
        extra = _without(self.extra, frozenset({_REMOVED, _WRITE}))
        extra[COMMIT_SEQ] = msgspec.Raw(b"%d" % commit_seq)
        if removed:
            extra[_REMOVED] = msgspec.Raw(_encode(removed))
        return Document(self.entries, extra)

    def holding(self, entries: RawEntries) -> Document:
        """Return the shard with other entries; what an earlier commit took out is gone for good."""
        return Document(entries, _without(self.extra, frozenset({_REMOVED})))

    def with_removed(self) -> Document:
        """Return the shard with the entries that a commit took out which did not come to its end.

        What it put in stays: the objects are there.
        """
        return self.holding(self.removed | self.entries)


@dataclass(frozen=True, slots=True)
class Meta:
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
    shards: Mapping[str, str] = field(default_factory=dict)
    monolith: str | None = None
    extra: Mapping[str, msgspec.Raw] = field(default_factory=dict)
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


_Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]
_CommitSeq = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_NUMBER)]


class EntryMembers(msgspec.Struct, rename="camel", gc=False):
    """An entry as it is written; `decode_entry` says what else it must be like."""

    size: _Size
    last_modified: str
    local_mtime: str | None = None
    sha256: str | None = None
    commit_seq: _CommitSeq | None = None


class _WrittenEntry(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """An entry as we write it, if there is nothing in it that we do not know."""

    key: str
    size: int
    last_modified: str
    local_mtime: str | None = None
    sha256: str | None = None
    commit_seq: int | None = None


class _MetaMembers(msgspec.Struct, rename="camel"):
    version: Annotated[int, msgspec.Meta(ge=1)]
    partitions: list[str]
    commit_seq: _CommitSeq | None = None


class _OwnMembers(msgspec.Struct):
    """What we add to `_meta.json` for ourselves."""

    shards: dict[str, str] = {}
    fingerprints: str | None = None
    etags: str | list[str | None] | None = None
    of: str | None = None
    monolith: str | None = None
    origin: str | None = None
    paths: bool = False


_ENTRY_MEMBERS = frozenset({"key", "size", "lastModified", "localMtime", "sha256", "commitSeq"})
_FROZEN = "frozen"
_WRITE = "write"
_MONOLITH_MEMBERS = frozenset({"version", "lastPulled", "entries", _WRITE, _FROZEN})
_SHARD_MEMBERS = frozenset({"version", "entries"})
SHARD_VERSION = msgspec.Raw(b"1")
_TRUE = msgspec.Raw(b"true")
COMMIT_SEQ = "commitSeq"
_REMOVED = "removed"
_ORIGIN = "origin"
_OWN = "swampstore"
_PATHS = 3
_EMPTY = "[]"
_META_MEMBERS = frozenset({"version", "partitions", "commitSeq", _OWN})

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Letters first: neither `_meta`, nor `.`, nor anything that is not what it looks like.
_PLAIN = r"[a-z][A-Za-z0-9@_.-]{0,199}+"
_PLAIN_LINES = re.compile(rf"{_PLAIN}(?:\n{_PLAIN})*")
_EARLIEST = to_ms(datetime.min.replace(tzinfo=UTC))
_LATEST = to_ms(datetime.max.replace(tzinfo=UTC))

_T = TypeVar("_T")
_raw_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry_members = msgspec.json.Decoder(EntryMembers)
_meta_members = msgspec.json.Decoder(_MetaMembers)
_own_members = msgspec.json.Decoder(_OwnMembers)
_text = msgspec.json.Decoder(str)
_commit_seq: msgspec.json.Decoder[int] = msgspec.json.Decoder(_CommitSeq)
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


def decode_entry(rel: str, raw: msgspec.Raw | bytes) -> Entry:
    """Read one entry; raise IndexDamagedError, which names the path, if it is none."""
    what = f"the index entry of {rel}"
    members = _decode(_entry_members, raw, what)
    sha256 = members.sha256
    if sha256 is not None:
        sha256 = sha256.lower()
        if not _SHA256.fullmatch(sha256):
            raise _damaged(what, f"sha256 {sha256[:80]!r} is not 64 hexadecimal digits")
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
    data = _encode(
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
    foreign = _decode_if_sound(_raw_members, onto) or {}
    brought = _decode_if_sound(_raw_members, entry.like) or {}
    known = _raw_members.decode(data)
    return msgspec.Raw(_encode(known | _without(foreign | brought, _ENTRY_MEMBERS)))


def decode_monolith(data: bytes) -> Document:
    """Read the index of a version 1 remote. `extra` holds `lastPulled` and `write` too."""
    members = _members(data, MONOLITH_KEY)
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
    own = {_WRITE: write_id} | ({_FROZEN: True} if is_frozen else {})
    return _encode(known | _without(doc.extra, _MONOLITH_MEMBERS) | own)


def decode_shard(data: bytes, partition: str = "*") -> Document:
    """Read the entries of one partition, whose name only serves the error."""
    what = shard_key(partition)
    return _document(_members(data, what), "shard", what)


def encode_shard(doc: Document) -> bytes:
    """Write the entries of one partition."""
    known = {"version": 1, "entries": doc.entries}
    return _encode(known | _without(doc.extra, _SHARD_MEMBERS))


def decode_meta(data: bytes) -> Meta:
    """Read the directory of the partitions."""
    members = _members(data, META_KEY)
    own = _own(members)
    known = _decode(_meta_members, data, META_KEY)
    _check_numbered(known)
    for partition in _perhaps_no_partitions(known.partitions):
        # Reading or removing such a shard would reach for another object.
        if not _is_partition(partition):
            raise _damaged(META_KEY, f"{partition[:80]!r} is no partition")
    return _meta(known, PartitionList.of(known.partitions), own, members)


def recall_meta(text: MetaText, digest: str | None = None) -> Meta:
    """Read what was read, or written, before; its list of partitions need not be looked at again.

    Only if it is of our own making, and tells of all shards: the digest of the list shows that,
    which is computed unless it is known.
    """
    if not text.listed:
        return decode_meta(text.data)
    data = text.around(_EMPTY).encode()
    members = _members(data, META_KEY)
    own = _own(members)
    partitions = PartitionList.recalled(text.listed, own.of, digest) if own.of else None
    if partitions is None:
        return decode_meta(text.data)
    known = _decode(_meta_members, data, META_KEY)
    _check_numbered(known)
    return _meta(known, partitions, own, members)


def _own(members: Mapping[str, msgspec.Raw]) -> _OwnMembers:
    """Return what we added for ourselves; raise NewerFormatError."""
    # Without our own members things only take longer, so damage of them does not matter.
    own = _decode_if_sound(_own_members, members.get(_OWN)) or _OwnMembers()
    _refuse_newer(members, "meta of paths" if own.paths else "meta", META_KEY)
    return own


def _check_numbered(known: _MetaMembers) -> None:
    if known.version == 2 and known.commit_seq is None:
        raise _damaged(META_KEY, "version 2 without a commitSeq")


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
        _without(members, _META_MEMBERS),
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
    own[_WRITE] = write_id
    text = _encode(known | _without(meta.extra, _META_MEMBERS) | {_OWN: own}).decode()
    before, _, after = text.partition(_EMPTY)
    return MetaText(before + after, partitions.as_json, len(before))


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


def _refuse_newer(members: Mapping[str, msgspec.Raw], kind: str, what: str) -> None:
    """Raise NewerFormatError, before anything else is found to be wrong with a document."""
    refuse_newer(kind, _decode_if_sound(_anything, members.get("version")), what)


def _document(members: dict[str, msgspec.Raw], kind: str, what: str) -> Document:
    _refuse_newer(members, kind, what)
    if members.get("version") != SHARD_VERSION:
        raise _damaged(what, "its version is not 1")
    if "entries" not in members:
        raise _damaged(what, "it has no entries")
    entries = _decode(_raw_members, members["entries"], f"the entries of {what}")
    return Document(entries, _without(members, _SHARD_MEMBERS))


def _members(data: bytes, what: str) -> dict[str, msgspec.Raw]:
    """Take a whole document apart. What is skipped is checked too, so it is safe to pass on."""
    # Strings inside raw members are the one thing that the decoder lets pass.
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise _damaged(what, str(error)) from None
    return _decode(_raw_members, data, what)


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes, what: str) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(what, str(error)) from None


def _decode_if_sound(decoder: msgspec.json.Decoder[_T], data: bytes | None) -> _T | None:
    try:
        return None if data is None else _decode(decoder, data, "")
    except IndexDamagedError:
        return None


def _damaged(what: str, reason: str) -> IndexDamagedError:
    return IndexDamagedError(
        f"{what} cannot be understood: {reason}",
        hint="The data itself is untouched. Restore the index document, or remove it to have the "
        "index made anew from what is stored.",
    )


def _without(members: Mapping[str, _T], names: frozenset[str]) -> dict[str, _T]:
    return {name: value for name, value in members.items() if name not in names}
