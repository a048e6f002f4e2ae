"""Which entries the commits of a version 2 remote brought, told by the numbers they carry.

`_meta.json` says which commit was the last, and which ETag each shard had then. A shard is written
before that: what it holds beyond what was told belongs to a commit that is not done, and perhaps
never will be. Whoever commits to that shard next gives such entries its own number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from swampstore.index.documents import Documents, Found
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document, Entry, decode_entry, decode_meta
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.index.state import same
from swampstore.index.versions import FIRST, version_of
from swampstore.notices import notice
from swampstore.pipeline.errors import NotFollowableError, StreamPositionError
from swampstore.stores.errors import ObjectNotFoundError

if TYPE_CHECKING:
    import msgspec

_MIGRATE = "Run `swampstore datastore migrate-index` in a repository that uses it."


class Told(NamedTuple):
    """What `_meta.json` said at one moment: the last commit, and the ETags of the shards.

    Those of the shards in `listed` it did not say; a listing did, perhaps of a later commit.
    Numbers of commits are those of an `origin`: a remote that is filled anew begins with one.
    """

    commit_seq: int
    shards: Mapping[str, str]
    etag: str | None = None
    listed: frozenset[str] = frozenset()
    origin: str | None = None

    def since(self, before: Told | None) -> dict[str, str]:
        """Return the shards that may not be what they were."""
        known = before.shards if before else {}
        listed = before.listed if before else frozenset()
        return {
            one: etag
            for one, etag in self.shards.items()
            if one in listed or not same(known.get(one), etag)
        }


class Span(NamedTuple):
    """The commits after one and until another; `told` is the last that was known by then."""

    after: int
    until: int
    told: int


class Brought(NamedTuple):
    """An entry that a commit put into the index."""

    partition: str
    rel: str
    raw: bytes


def look(documents: Documents, before: Told | None = None) -> Told:
    """Find out what was committed; one small request if that is what it was before.

    Raises NotFollowableError for a remote of version 1, IndexDamagedError.
    """
    if before is not None and before.etag is not None:
        try:
            fetched = documents.meta_unless(before.etag)
        except ObjectNotFoundError:
            return Told(0, {})
        if fetched is None:
            return before
    else:
        fetched = documents.meta()
    if fetched is None:
        _check_empty(documents)
        return Told(0, {})
    meta = decode_meta(fetched.data)
    if not version_of(meta.version).counts_commits:
        raise _uncounted(documents, meta.version)
    etags = {one: meta.shards[one] for one in meta.partitions if one in meta.shards}
    listed = _listed(documents, [one for one in meta.partitions if one not in etags])
    info, seq = fetched.info, meta.commit_seq or 0
    return Told(seq, etags | listed, info.etag, frozenset(listed), meta.origin)


def _check_empty(documents: Documents) -> None:
    """Make sure that there is no index because there is nothing yet."""
    if documents.monolith_info() is not None:
        raise _uncounted(documents, FIRST.number)
    if documents.listed_shards():
        raise IndexDamagedError(
            f"{META_KEY} of {documents.store.identity} is missing, so nobody knows what was"
            " committed",
            hint=_MIGRATE,
        )


def _uncounted(documents: Documents, version: int) -> NotFollowableError:
    return NotFollowableError(
        f"the index of {documents.store.identity} is of version {version}, which does not count its"
        " commits: there is nothing to follow",
        hint=f"{_MIGRATE} All clients that use it must know version 2 then.",
    )


def _listed(documents: Documents, partitions: Collection[str]) -> dict[str, str]:
    """Return the ETags of shards whose ETags `_meta.json` of other clients does not tell."""
    found = documents.listed_shards() if partitions else {}
    return {one: found[one].etag if one in found else "" for one in partitions}


def read(documents: Documents, shards: Collection[str]) -> Iterator[tuple[str, Found]]:
    """Yield shards that were told of, several at a time; not those that were dropped since.

    Raises IndexDamagedError for one that is damaged or lost.
    """
    for partition, found in documents.shards(shards):
        if found.doc is not None:
            yield partition, found
        elif found.etag is not None or partition in look(documents).shards:
            raise IndexDamagedError(
                f"{shard_key(partition)} of {documents.store.identity} is lost or damaged, so what"
                " was committed there cannot be told",
                hint=_MIGRATE,
            )


def brought(partition: str, found: Found, told: str, span: Span) -> Iterator[Brought]:
    """Yield the entries of a shard that the commits of a span brought; `told` is its ETag then.

    Raises StreamPositionError if an entry has no number.
    """
    assert found.doc is not None
    waiting = unfinished(found.doc, span, is_told=found.etag == told)
    for rel, raw in found.doc.entries.items():
        entry = decoded(rel, raw)
        if entry is None:
            notice("the index entry of %s cannot be understood and is left out", rel)
        elif entry.commit_seq is None:
            raise _unnumbered(rel)
        elif span.after < entry.commit_seq <= span.until and entry.commit_seq != waiting:
            yield Brought(partition, rel, bytes(raw))


def unfinished(doc: Document, span: Span, *, is_told: bool) -> int | None:
    """Return the number, within the span's, of a commit to this shard that was never told of.

    A shard that is not the one told of was written by a later commit, or by one that stopped
    before it could tell. Others then used its number, for a commit that is not meant here.
    """
    number = doc.commit_seq
    return number if not is_told and number is not None and number <= span.told else None


def decoded(rel: str, raw: msgspec.Raw | bytes) -> Entry | None:
    """Return an entry, None if it cannot be understood."""
    try:
        return decode_entry(rel, raw)
    except IndexDamagedError:
        return None


def _unnumbered(rel: str) -> StreamPositionError:
    return StreamPositionError(
        f"the index entry of {rel} does not say by which commit it came: another client wrote it,"
        " or it is older than the sharded index",
        hint="Start the stream with a new checkpoint and the option stateDir, a directory on the"
        " driver in which it remembers what it has delivered.",
    )
