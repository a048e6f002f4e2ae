"""What is known of a remote index: what was seen, what the base remembers, what callers get."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from swampstore.index.base import Base
from swampstore.index.documents import StoredDocument
from swampstore.index.fingerprints import Fingerprints, is_named
from swampstore.index.format import Document, Entry, RawEntries, decode_entry
from swampstore.index.meta import Meta, MetaText, recall_meta
from swampstore.index.partitions import Scope, maybe_in, partition_of
from swampstore.stores.protocol import ObjectInfo


class State(NamedTuple):
    """What kind of index the remote has.

    `exists` is False for a remote that holds nothing at all. `discovered` says that there are
    files and no index: entries come from a listing of them, and no deletion follows from it.
    `is_guess` says that an index was lost, and nobody knows whether what is left is all of it.
    `origin` is that of `_meta.json`, or where that is lost of the monolith.
    """

    version: int
    meta: Meta | None
    commit_seq: int | None
    exists: bool
    discovered: bool = False
    is_guess: bool = False
    origin: str | None = None

    def is_another(self, version: str | None, commit_seq: str | None, origin: str | None) -> bool:
        """Whether this is not the index that it was: another origin, or numbers that went back.

        One that is lost, too: whoever writes it again gives it another origin.
        """
        if self.is_guess and origin:
            return True
        if self.origin and origin and self.origin != origin:
            return True
        if version is not None and self.version < int(version):
            return True
        if self.commit_seq is None or commit_seq is None:
            return False
        return self.commit_seq < int(commit_seq)


class Slice(NamedTuple):
    """The entries of one partition, as far as the scope that was asked for covers them.

    `complete` says that there are no others: what the base has of this partition (in the scope)
    beyond `entries` was deleted remotely. Without it nothing may be concluded from an absence.
    A complete slice has an `etag`, to be recorded for the partition (and the scope's key) once
    all of it is applied; the next `changes` then leaves the partition out while it stays as it is.
    A slice with `removed` has only what changed: these paths were deleted, and nothing follows for
    those that it does not name.
    """

    partition: str
    entries: Mapping[str, msgspec.Raw]
    etag: str | None
    complete: bool
    removed: frozenset[str] | None = None


class Committed(NamedTuple):
    """A commit that is done, and what the base must remember with it; see `Base.apply`."""

    commit_seq: int | None
    facts: dict[str, str | None]
    shards: dict[tuple[str, str], str]


class Migrated(NamedTuple):
    """What `migrate` did; `already` means that the remote was of version 2 before."""

    version: int
    partitions: int
    entries: int
    commit_seq: int
    already: bool


class Proof(NamedTuple):
    """What other clients on this cache may take as proof that it is equal to the remote.

    `fingerprint` is how the store calls the monolith, `commit_seq` the number of the last commit;
    None if there is no such proof. Its time must not be before `not_before`.
    """

    fingerprint: str | None = None
    commit_seq: int | None = None
    not_before: str = ""


_META = "meta"
_LISTED = "meta_partitions"
_LIST_DIGEST = "meta_partitions_digest"
META_ETAG = "meta_etag"
META_TOKEN = "meta_token"  # noqa: S105 - the condition of a write, no secret
INDEX_VERSION = "index_version"
COMMIT_SEQ = "commit_seq"
ORIGIN = "origin"
ORIGIN_BEFORE = "origin_before"  # of the base, until it started over
AGREED = "agreed"
_EPOCH = "agreed_epoch"
_FIRST = "0"
MONOLITH_ETAG = "monolith_etag"
MONOLITH_CHECKED = "monolith_checked"
FOREIGN_WRITER = "foreign_writer"
# The remote was made anew: it is not the one that the base is of. Until the base starts over.
MADE_ANEW = "made_anew"
LEFT_OUT = "left_out"  # somebody left entries out of the index that nobody deleted

# What is recorded instead of a shard's ETag when there is none that the base agrees with. Every
# partition that the base has rows of is recorded under the scope "", so that one that vanishes
# from the remote is missed; no store makes such ETags.
GONE = "gone: the partition has no entries"
PARTIAL = "partial: only some entries are known"

_MULTIPART = re.compile(r"[0-9a-fA-F]{32}-[0-9]+")


def others_write(base: Base) -> bool:
    """Whether a client was ever seen that writes paths, or a monolith, and no `_meta.json`."""
    return base.fact(FOREIGN_WRITER) is not None


def from_monolith(etag: str) -> str:
    """Return what is recorded for a partition whose entries came from this monolith."""
    return f"monolith: {etag}"


def same(etag: str | None, other: str | None) -> bool:
    """Whether two ETags prove that nothing changed. Those of multipart uploads prove nothing."""
    return etag is not None and is_named(etag, other) and not _MULTIPART.fullmatch(etag)


class Fingerprint(NamedTuple):
    """A state of the remote index: ETags of `_meta.json` and, on version 1, of the monolith."""

    version: int
    meta: str | None
    monolith: str | None


class Agreements:
    """The states of the remote that a base agrees with, as a whole or in a scope."""

    def __init__(self, base: Base) -> None:
        self._base = base

    @property
    def epoch(self) -> str:
        """What changes whenever all agreements are revoked."""
        return self._base.fact(_EPOCH) or _FIRST

    def of(self, scope: Scope | None) -> Fingerprint | None:
        """Return what the base agrees with in this scope."""
        agreed, now = self._base.facts(_name(scope), _EPOCH)
        epoch, _, text = (agreed or "").partition(" ")
        if epoch != (now or _FIRST):
            return None
        try:
            return msgspec.json.decode(text, type=Fingerprint)
        except msgspec.MsgspecError:
            return None

    @staticmethod
    def fact(scope: Scope | None, state: Fingerprint, epoch: str) -> dict[str, str | None]:
        """Return the fact that the base, in this scope, agrees with a state of the remote."""
        return {_name(scope): f"{epoch} {msgspec.json.encode(state).decode()}"}

    def revoke(self) -> None:
        """Make the base agree with nothing, in any scope."""
        self._base.apply(facts={_EPOCH: str(int(self.epoch) + 1)})


def meta_facts(
    base: Base, meta: Meta, text: MetaText, etag: str, token: str | None, stale: Iterable[str] = ()
) -> dict[str, str | None]:
    """Return the facts that remember a `_meta.json` as the last one seen, or written.

    The origin is that of what the base holds, for as long as it holds anything. That this one has
    another is remembered with it: whoever is told that nothing changed since does not compare them.
    `stale` are facts that mean nothing any more, by the version of the index.
    """
    facts: dict[str, str | None] = {
        _META: text.rest,
        **_list_facts(base, text, meta),
        META_ETAG: etag,
        META_TOKEN: token,
        INDEX_VERSION: str(meta.version),
        COMMIT_SEQ: str(meta.commit_seq) if meta.commit_seq else None,
    }
    return facts | origin_facts(base, meta.origin) | dict.fromkeys(stale)


def _list_facts(base: Base, text: MetaText, meta: Meta) -> dict[str, str | None]:
    """Return the facts that remember a list of partitions, and which fingerprints are of it.

    It is nearly always the same: then it is neither written again nor put together.
    """
    if not text.listed:
        return {_LISTED: None, _LIST_DIGEST: None}
    told = base.fact(_LISTED) or ""
    head = f"{text.at} "
    is_same = len(told) == len(head) + len(text.listed) and told.startswith(head)
    if not is_same or not told.endswith(text.listed):
        told = f"{head}{text.listed}"
    shards = meta.shards
    digest = shards.partitions.digest if isinstance(shards, Fingerprints) else None
    return {_LISTED: told, _LIST_DIGEST: digest}


class LastSeen(NamedTuple):
    """The last `_meta.json` that was seen. The ETag is None if there is none any more."""

    text: MetaText
    etag: str | None
    token: str | None
    digest: str | None

    def meta(self) -> Meta:
        """Return what it says; raise IndexDamagedError."""
        return recall_meta(self.text, self.digest)


def last_seen(base: Base) -> LastSeen:
    """Return the last `_meta.json` that was seen."""
    names = _META, _LISTED, _LIST_DIGEST, META_ETAG, META_TOKEN
    rest, told, digest, etag, token = base.facts(*names)
    at, _, listed = (told or "0").partition(" ")
    # The release before knows of no list, and has written the whole text since.
    is_whole = (rest or "").startswith("[", int(at))
    text = MetaText(rest or "") if is_whole else MetaText(rest or "", listed, int(at))
    return LastSeen(text, etag, token, digest)


def origin_facts(base: Base, origin: str | None) -> dict[str, str | None]:
    """Return the fact that remembers an origin, or that the base holds something of another one.

    One that holds nothing is of no origin but that of what it gets now, known or not.
    """
    before = base.fact(ORIGIN)
    if base.is_empty() or (origin is not None and before is None):
        return {ORIGIN: origin}
    return {} if origin is None or origin == before else {MADE_ANEW: "1"}


def _name(scope: Scope | None) -> str:
    return f"{AGREED}:{scope.key}" if scope else AGREED


class MetaSnapshot(msgspec.Struct, frozen=True):
    """One look at a remote.

    `etag` and `token` are those of the `_meta.json` object (None: there is none), also of one that
    is damaged. `meta` is what it says; on version 2 it may instead be put together from the shards
    that are there (`is_healed`), for the next commit to write. That `is_exact` if it surely is what
    was lost; otherwise nobody may conclude anything from what is missing in it, and `versions` are
    the files of those that are stored, by partition: what no shard names was not deleted.
    `discovered` is a monolith made from a listing of the files, where none can be believed.
    `origin` is what the monolith says of it, where there is no `meta`. `leaves_out` says that the
    documents do not name what the base knows and is stored, though nobody deleted it. `is_recalled`
    says that it was seen a moment ago, and nobody has asked again.
    """

    version: int
    meta: Meta | None = None
    text: MetaText | None = None
    etag: str | None = None
    token: str | None = None
    is_healed: bool = False
    exists: bool = True
    discovered: StoredDocument | None = None
    is_exact: bool = False
    versions: Mapping[str, Mapping[str, ObjectInfo]] = msgspec.field(default_factory=dict)
    origin: str | None = None
    leaves_out: bool = False
    is_recalled: bool = False

    @property
    def state(self) -> State:
        """What callers are told."""
        seq = self.meta.commit_seq if self.meta else None
        is_made_of_files = self.discovered is not None and self.discovered.is_guess
        return State(
            self.version,
            self.meta,
            seq,
            self.exists,
            discovered=self.discovered is not None,
            is_guess=is_made_of_files or (self.is_healed and not self.is_exact),
            origin=self.meta.origin if self.meta else self.origin,
        )

    @property
    def is_sound(self) -> bool:
        """Whether a base can agree with what was seen, that is, whether it can be seen again."""
        is_damaged = self.etag is not None and self.text is None
        return self.exists and not is_damaged and not self.is_healed and self.discovered is None

    @property
    def is_told_by_monolith(self) -> bool:
        """Whether there is a monolith that can be believed, and no `_meta.json`."""
        return self.exists and self.is_sound and self.etag is None

    def tells_of(self, partition: str, found: StoredDocument) -> bool:
        """Whether, on version 2, the commit that wrote a shard came to its end."""
        if self.meta is None or self.is_healed:
            return True  # nobody knows
        if partition not in self.meta.partitions:
            return True  # and took the last entry out
        written = (found.doc.commit_seq if found.doc else None) or 0
        if partition in self.meta.shards:
            # However alike they look, a commit that came to its end has no higher number.
            is_late = written > (self.meta.commit_seq or 0)
            return not is_late and is_named(self.meta.shards[partition], found.etag)
        # Another client committed last. If its number is that of the shard, ours did not count.
        return written < (self.meta.commit_seq or 0)

    def agrees_with(self, monolith_etag: str | None) -> bool:
        """Whether, on version 1, the shards are those of this monolith."""
        return self.meta is not None and same(self.meta.monolith, monolith_etag)

    def fingerprint(self, monolith_etag: str | None) -> Fingerprint:
        """Return what identifies this state of the remote; on version 2 without a monolith."""
        return Fingerprint(self.version, self.etag, monolith_etag)


class View:
    """Entries of the partitions asked for; `RemoteIndex.commit` checks that they still hold.

    On version 1 that is the whole index, whatever was asked for: `shards` is empty then and
    `monolith` the document; `copies` are the shards that a commit is going to replace. On version 2
    it is those shards.
    """

    def __init__(
        self,
        snapshot: MetaSnapshot,
        *,
        monolith: StoredDocument | None = None,
        shards: Mapping[str, StoredDocument] | None = None,
        copies: Mapping[str, StoredDocument] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.monolith = monolith
        self.copies = dict(copies or {})
        self.shards = dict(shards or {})

    @property
    def version(self) -> int:
        """The version of the remote."""
        return self.snapshot.version

    @property
    def is_unfinished(self) -> bool:
        """Whether a commit that was interrupted left what `_meta.json` does not tell of.

        Others do not see those entries yet, or not without the whole monolith. Or a document is
        lost. A commit makes all of it visible, even one that has nothing to put in or take out.
        """
        if self.is_made_anew:
            return True
        if self.monolith is not None:
            return self.monolith.etag is not None and not self.snapshot.agrees_with(
                self.monolith.etag
            )
        return any(self.is_untold(partition) for partition in self.shards)

    @property
    def is_made_anew(self) -> bool:
        """Whether some of the entries were put together from what is left of a damaged index."""
        found = [self.monolith] if self.monolith else self.shards.values()
        return self.snapshot.is_healed or any(one.is_recovered for one in found)

    @property
    def is_as_told(self) -> bool:
        """Whether every document is the very one that `_meta.json` tells of."""
        meta = self.snapshot.meta
        if meta is None or self.monolith is not None:
            return self.snapshot.agrees_with(self.monolith.etag if self.monolith else None)
        return not self.is_made_anew and all(
            is_named(meta.shards.get(partition), found.etag)
            if partition in meta.partitions
            else found.etag is None
            for partition, found in self.shards.items()
        )

    @property
    def begins_anew(self) -> bool:
        """Whether a commit gives the remote another origin: a document is lost, and was guessed.

        A monolith that leaves things out, and no document tells an origin, is one that another
        client has begun after a loss. Whoever names again what it left out takes the trace of that
        away; the origin tells it to those who still have what that client has overwritten.
        """
        if self.monolith is not None:
            meta, doc = self.snapshot.meta, self.monolith.doc
            # Without `_meta.json` that comes last: by it, the monolith that is there would count.
            is_untold = meta is not None and not (meta.origin or (doc and doc.origin))
            return self.monolith.is_guess and (self.monolith.etag is None or is_untold)
        return not self.snapshot.is_healed and any(one.is_guess for one in self.shards.values())

    def is_untold(self, partition: str) -> bool:
        """Whether `_meta.json` does not tell of what a shard holds."""
        meta, found = self.snapshot.meta, self.shards[partition]
        if meta is None or found.doc is None:
            return False
        if partition not in meta.partitions:
            return bool(found.doc.entries)
        if partition in meta.shards:
            return not is_named(meta.shards[partition], found.etag)
        return bool(found.doc.commit_seq) and not self.snapshot.tells_of(partition, found)

    def entry(self, rel: str) -> Entry | None:
        """Return the entry of a path, None if there is none.

        Raises IndexDamagedError if it cannot be understood, KeyError if the view does not
        cover the path.
        """
        raw = self.raw(rel)
        return None if raw is None else decode_entry(rel, raw)

    def raw(self, rel: str) -> msgspec.Raw | None:
        """Return the entry of a path as it came."""
        found = self.monolith or self.shards[partition_of(rel)]
        return document(found).entries.get(rel)

    def entries_below(self, prefix: str) -> Iterator[str]:
        """Yield the paths equal to `prefix` or below it, in order, as far as the view covers."""
        for start, end in ((prefix, f"{prefix}\0"), (f"{prefix}/", f"{prefix}0")):
            first = bisect_left(self._rels, start)
            yield from self._rels[first : bisect_left(self._rels, end, first)]

    @cached_property
    def _rels(self) -> list[str]:
        found = [self.monolith] if self.monolith else self.shards.values()
        return sorted(chain.from_iterable(document(one).entries for one in found))


def with_uncommitted(
    partition: str, found: StoredDocument, snapshot: MetaSnapshot
) -> StoredDocument:
    """Return a shard with what a commit took out of it that did not come to its end."""
    if found.doc is None or not found.doc.removed or snapshot.tells_of(partition, found):
        return found
    restored = frozenset(found.doc.removed.keys() - found.doc.entries.keys())
    return replace(found, doc=found.doc.with_removed(), is_dirty=True, restored=restored)


def document(found: StoredDocument) -> Document:
    """Return a document, an empty one if there is none."""
    return found.doc or Document({})


def slices_of(entries: RawEntries, partitions: Collection[str]) -> dict[str, RawEntries]:
    """Return the entries of these partitions, of each of them, by partition."""
    slices: dict[str, RawEntries] = {partition: {} for partition in partitions}
    for rel in maybe_in(partitions, entries):
        if (partition := partition_of(rel)) in slices:
            slices[partition][rel] = entries[rel]
    return slices


def grouped(entries: RawEntries) -> dict[str, RawEntries]:
    """Return the entries by partition."""
    groups: dict[str, RawEntries] = {}
    for rel, raw in entries.items():
        groups.setdefault(partition_of(rel), {})[rel] = raw
    return groups
