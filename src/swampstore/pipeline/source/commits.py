"""Which entries the commits of a version 2 remote brought, by the numbers that they carry.

`_meta.json` says which commit was the last, and which ETag each shard had then. A shard is written
before that: what it holds beyond that belongs to a commit that is not done, and perhaps never will
be. Whoever commits to that shard next gives such entries its own number.

A stream keeps what it has delivered as snapshots: the index as it was at each of its offsets. A
shard that does not change is kept once, whatever number of offsets have it. A snapshot is there as
a whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from swampstore.files import disk_errors, read_file, replace_file
from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.fingerprints import is_named
from swampstore.index.format import Document, Entry, decode_entry
from swampstore.index.meta import decode_meta
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.index.state import same
from swampstore.index.versions import FIRST, version_of
from swampstore.notices import notice
from swampstore.pipeline.errors import NotFollowableError, StreamPositionError
from swampstore.stores.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from swampstore.index.documents import Documents, StoredDocument
    from swampstore.index.format import Entry, RawEntries

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
    told = dict(meta.shards.items())
    etags = {one: told[one] for one in meta.partitions if one in told}
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


def read(documents: Documents, shards: Collection[str]) -> Iterator[tuple[str, StoredDocument]]:
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


def brought(partition: str, found: StoredDocument, told: str, span: Span) -> Iterator[Brought]:
    """Yield the entries of a shard that the commits of a span brought; `told` is its ETag then.

    Raises StreamPositionError if an entry has no number.
    """
    assert found.doc is not None
    waiting = unfinished(found.doc, span, is_told=is_named(told, found.etag))
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


_SNAPSHOT = ".snapshot.json"
_SHARD = ".shard.json"

# As the stream has it; here it is only a name for a snapshot.
Offset = Mapping[str, Mapping[str, tuple[int, str | None]]]


class Kept(NamedTuple):
    """A shard in a snapshot: the file that holds its entries.

    Without `etag` the shard held more, which has not been delivered yet.
    """

    etag: str | None
    file: str


# The shards of each place, by partition.
Snapshot = dict[str, dict[str, Kept]]


class Snapshots:
    """The snapshots of one stream; no other may use the same directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        with disk_errors(directory):
            os.makedirs(directory, exist_ok=True)

    def find(self, offset: Offset) -> Snapshot | None:
        """Return the snapshot of an offset, None if there is none."""
        data = self._read(f"{_digest(offset)}{_SNAPSHOT}")
        return None if data is None else msgspec.json.decode(data, type=Snapshot)

    def save(self, offset: Offset, snapshot: Snapshot) -> None:
        """Keep the snapshot of an offset."""
        self._write(f"{_digest(offset)}{_SNAPSHOT}", msgspec.json.encode(snapshot))

    def keep(self, etag: str | None, entries: RawEntries) -> Kept:
        """Keep the entries of a shard, to be named by a snapshot."""
        data = msgspec.json.encode(dict(sorted(entries.items())))
        name = f"{hashlib.sha256(data).hexdigest()}{_SHARD}"
        if not os.path.exists(f"{self._directory}/{name}"):
            self._write(name, data)
        return Kept(etag, name)

    def entries(self, kept: Kept | None) -> RawEntries:
        """Return the entries of a shard in a snapshot, none if it was in none.

        Raises StreamPositionError if they are lost: they would be delivered again.
        """
        if kept is None:
            return {}
        data = self._read(kept.file)
        if data is None:
            raise StreamPositionError(
                f"{self._directory}/{kept.file} is gone, so nobody knows what was delivered",
                hint="Start the stream with a new checkpoint and an empty stateDir.",
            )
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])

    def prune(self, offset: Offset) -> None:
        """Forget what came before the snapshot of this offset, if there is one."""
        name = f"{_digest(offset)}{_SNAPSHOT}"
        with disk_errors(self._directory):
            files = {one.name: one.stat().st_mtime_ns for one in os.scandir(self._directory)}
            if name not in files:
                return
            older = [
                one
                for one, time in files.items()
                if one.endswith(_SNAPSHOT) and time < files[name] and one != name
            ]
            for one in older:
                os.unlink(f"{self._directory}/{one}")
            for one in files.keys() - set(older) - self._used(files.keys() - set(older)):
                os.unlink(f"{self._directory}/{one}")

    def _used(self, names: set[str]) -> set[str]:
        used = {name for name in names if not name.endswith(_SHARD)}
        for name in list(used):
            data = self._read(name) if name.endswith(_SNAPSHOT) else None
            places = msgspec.json.decode(data, type=Snapshot) if data else {}
            used |= {kept.file for shards in places.values() for kept in shards.values()}
        return used

    def _read(self, name: str) -> bytes | None:
        path = f"{self._directory}/{name}"
        with disk_errors(path):
            return read_file(path)

    def _write(self, name: str, data: bytes) -> None:
        replace_file(f"{self._directory}/{name}", data, durable=True)


def advanced(
    documents: Documents,
    snapshots: Snapshots,
    before: Mapping[str, Kept],
    told: Told,
    until: int,
) -> dict[str, Kept]:
    """Return the shards as they are after a commit; only those that changed are read."""
    span = Span(0, until, told.commit_seq)
    current = {
        one: before[one]
        for one, etag in told.shards.items()
        if one in before and same(before[one].etag, etag)
    }
    for partition, found in read(documents, told.shards.keys() - current.keys()):
        is_told = is_named(told.shards[partition], found.etag)
        known = snapshots.entries(before.get(partition))
        entries = _visible(found, known, span, is_told=is_told)
        assert found.doc is not None
        is_whole = is_told and entries == found.doc.entries
        current[partition] = snapshots.keep(found.etag if is_whole else None, entries)
    return current


def _visible(found: StoredDocument, known: RawEntries, span: Span, *, is_told: bool) -> RawEntries:
    """Return the entries of a shard, those that are not told of yet as they were before."""
    assert found.doc is not None
    waiting = unfinished(found.doc, span, is_told=is_told)
    entries: RawEntries = {}
    for rel, raw in found.doc.entries.items():
        entry = decoded(rel, raw)
        number = entry.commit_seq if entry else None
        is_due = number <= span.until and number != waiting if number else is_told
        if is_due:
            entries[rel] = raw
        elif rel in known:
            entries[rel] = known[rel]
    return entries


def difference(
    snapshots: Snapshots, before: Mapping[str, Kept], after: Mapping[str, Kept]
) -> list[Brought]:
    """Return the entries that were put in between two snapshots."""
    found: list[Brought] = []
    for partition, kept in sorted(after.items()):
        earlier = before.get(partition)
        if earlier and earlier.file == kept.file:
            continue
        known = snapshots.entries(earlier)
        found += [
            Brought(partition, rel, bytes(raw))
            for rel, raw in snapshots.entries(kept).items()
            if rel not in known or _is_new(rel, raw, known[rel])
        ]
    return found


def _is_new(rel: str, raw: msgspec.Raw, known: msgspec.Raw) -> bool:
    """Whether an entry was committed again. Other clients drop the number of those they leave."""
    if raw == known:
        return False
    entry, earlier = decoded(rel, raw), decoded(rel, known)
    if entry is None or earlier is None:
        return True
    if entry.commit_seq is not None and entry.commit_seq != earlier.commit_seq:
        return True
    return _content(entry) != _content(earlier)


def _content(entry: Entry) -> tuple[object, ...]:
    return entry.size, entry.sha256, entry.last_modified, entry.local_mtime


def _digest(offset: Offset) -> str:
    return hashlib.sha256(msgspec.json.encode(offset, order="sorted")).hexdigest()[:32]
