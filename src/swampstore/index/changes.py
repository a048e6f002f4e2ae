"""What a commit changes, applied to whatever the index is by then, and what is remembered of it."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

import msgspec
from msgspec.structs import replace

from swampstore.index.base import Base
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Document, Entry, RawEntries, decode_entry, encode_entry
from swampstore.index.meta import Meta
from swampstore.index.partitions import Homes, Scope
from swampstore.index.state import GONE, PARTIAL, MetaSnapshot, meta_facts
from swampstore.stores.paths import StoredPath

_ATTEMPTS = 40
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5
_PAGE = 1000


class Change(msgspec.Struct, frozen=True):
    """Entries to put in and to take out; `expected` is what the decision to do so was based on."""

    upserts: Mapping[str, Entry]
    removals: frozenset[str]
    expected: Mapping[str, msgspec.Raw | None]

    @property
    def rels(self) -> frozenset[str]:
        """The paths whose entries change."""
        return self.removals | self.upserts.keys()

    def by_partition(self) -> dict[str, Change]:
        """Return the parts of the change, each for one shard."""
        parts: dict[str, list[str]] = {}
        homes = Homes()
        for rel in sorted(self.rels):
            parts.setdefault(homes.of(rel), []).append(rel)
        return {partition: self._of(rels) for partition, rels in parts.items()}

    def _of(self, rels: Collection[str]) -> Change:
        return Change(
            {rel: self.upserts[rel] for rel in rels if rel in self.upserts},
            self.removals.intersection(rels) if self.removals else frozenset(),
            {rel: self.expected[rel] for rel in rels},
        )

    def onto(self, doc: Document, commit_seq: int | None = None) -> Document:
        """Return a document with the change in it; `doc` stays as it is."""
        entries = dict(doc.entries)
        for rel in self.removals:
            entries.pop(rel, None)
        for rel, entry in self.upserts.items():
            if commit_seq is None and entry.commit_seq is not None:
                entry = replace(entry, commit_seq=None)  # noqa: PLW2901 - here nothing is numbered
            before = entries.get(rel)
            entries[rel] = encode_entry(rel, entry, onto=before, commit_seq=commit_seq)
        return Document(entries, doc.extra)

    def undone(self, doc: Document) -> Document:
        """Return a document without what the change put in; what it took out is there again."""
        entries = dict(doc.entries)
        for rel in self.upserts:
            if (before := self.expected[rel]) is None:
                entries.pop(rel, None)
            else:
                entries[rel] = before
        return Document(entries, doc.extra)

    def check(self, entries: RawEntries) -> None:
        """Raise IndexMovedError if others changed our paths in the meantime.

        A change that is done already is none: our own write, whose answer was lost.
        """
        moved = {
            rel
            for rel in self.rels
            if entries.get(rel) != self.expected[rel] and not self._is_done(rel, entries)
        }
        if moved:
            raise index_moved("others changed them as well", moved)

    def _is_done(self, rel: str, entries: RawEntries) -> bool:
        if rel not in self.upserts:
            return rel not in entries
        try:
            there = decode_entry(rel, entries[rel])
        except (KeyError, IndexDamagedError):
            return False
        return replace(there, commit_seq=None) == replace(self.upserts[rel], commit_seq=None)


NO_CHANGE = Change({}, frozenset(), {})


def adopted(doc: Document, unfinished: int, commit_seq: int) -> Document:
    """Return a document whose entries of an unfinished commit are those of another one.

    Others may have finished a commit of that number meanwhile, and readers would look for the
    entries there.
    """
    entries = dict(doc.entries)
    for rel, raw in doc.entries.items():
        if unfinished and _commit_seq(rel, raw) == unfinished:
            entry = replace(decode_entry(rel, raw), commit_seq=commit_seq)
            entries[rel] = encode_entry(rel, entry, onto=raw)
    return Document(entries, doc.extra)


def _commit_seq(rel: str, raw: msgspec.Raw) -> int | None:
    try:
        return decode_entry(rel, raw).commit_seq
    except IndexDamagedError:
        return None


def attempts(rels: Collection[str]) -> Iterator[None]:
    """Yield again and again, with pauses of random length; in the end raise IndexMovedError."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            longest = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
            time.sleep(random.uniform(0, longest))  # noqa: S311 - spreads load, hides nothing
        yield
    raise index_moved("others keep committing", rels)


def index_moved(reason: str, rels: Collection[str]) -> IndexMovedError:
    """Return the error that asks a caller to decide again about some paths."""
    named = ", ".join(sorted(rels)[:3]) + (" and more" if len(rels) > 3 else "")
    return IndexMovedError(
        f"the index does not take the changes of {named or 'this commit'}: {reason}",
        frozenset(rels),
        hint="Sync again: what others did is looked at first. Nothing is lost.",
    )


def trust(rels: Collection[str]) -> None:
    """Take for granted that the objects of these paths are there."""


def new_write_id() -> str:
    """Return what tells one write of a document from any other."""
    return uuid.uuid4().hex


def next_origin(meta: Meta | None, *told: str | None) -> str | None:
    """Return the origin for the `_meta.json` that comes after this one.

    Other clients leave it out. Then it is what else tells it, and nobody makes one up: by another
    origin, caches would forget what they know, and share again what others have deleted.
    """
    known = next((one for one in (meta and meta.origin, *told) if one), None)
    return known or (new_write_id() if meta is None else None)


def is_all_known(documents: Documents, base: Base, found: Iterable[StoredPath]) -> bool:
    """Whether the base knows all of these paths as they are; reads no further once it does not.

    What never crosses would be news for ever.
    """
    paths = iter(found)
    while page := list(islice(paths, _PAGE)):
        known = base.get_many(one.rel for one in page)
        for one in page:
            before = known[one.rel].sha256 if one.rel in known else None
            is_known = before == (None if one.is_deleted else one.sha256)
            if one.problem or not (is_known or documents.never_crosses(one.rel)):
                return False
    return True


# What a base remembers of a commit --------------------------------------------------------------
#
# After a commit the base agrees with the remote if it agreed with what the commit was merged onto.
# If it did not, because others committed meanwhile, the old agreement stays recorded: it is no
# longer that of the remote, so the next pull looks for what it misses.

Facts = dict[str, str | None]
Shards = dict[tuple[str, str], str]


def record_shards(
    unfollowed: Iterable[str], current: Mapping[str, str | None], scope: Scope | None
) -> Shards:
    """Record the shards that the base has as they are, and that it has some of the others."""
    recorded = {(partition, scope_key(scope)): etag or GONE for partition, etag in current.items()}
    if scope is None:
        recorded |= {(partition, ""): PARTIAL for partition in unfollowed}
    return recorded


def has_followed(base: Base, known: Mapping[str, str], partition: str, before: str | None) -> bool:
    """Whether the base had a partition as it was before a commit; None: there was no shard.

    `known` is as which shards it has partitions. Single paths may be known without such a record:
    then somebody has deleted them, and a pull has still to find that out.
    """
    recorded = known.get(partition)
    if recorded is None and before is None:
        return not base.has_partition(partition)
    return is_named(recorded, before or GONE)


def scopes_of(scope: Scope | None) -> list[Scope | None]:
    """Return what a base remembers a commit for: everything, and the scope."""
    return [None] if scope is None else [None, scope]


def scope_key(scope: Scope | None) -> str:
    """Return what shards of a scope are recorded under."""
    return scope.key if scope else ""


def seen_facts(base: Base, snapshot: MetaSnapshot) -> Facts:
    """Return the facts that remember the `_meta.json` that a commit wrote."""
    assert snapshot.meta is not None
    assert snapshot.text is not None
    assert snapshot.etag is not None
    return meta_facts(base, snapshot.meta, snapshot.text, snapshot.etag, snapshot.token)
