"""What a stream has delivered: the index as it was at each of its offsets, in a directory.

A shard that does not change is kept once, whatever number of offsets have it. A snapshot is there
as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from swampstore.files import disk_errors, read_file, replace_file
from swampstore.index.state import same
from swampstore.pipeline.errors import StreamPositionError
from swampstore.pipeline.source.commits import Brought, Span, Told, decoded, read, unfinished

if TYPE_CHECKING:
    import msgspec

    from swampstore.index.documents import Documents, Found
    from swampstore.index.format import Entry, RawEntries

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
        import msgspec

        data = self._read(f"{_digest(offset)}{_SNAPSHOT}")
        return None if data is None else msgspec.json.decode(data, type=Snapshot)

    def save(self, offset: Offset, snapshot: Snapshot) -> None:
        """Keep the snapshot of an offset."""
        import msgspec

        self._write(f"{_digest(offset)}{_SNAPSHOT}", msgspec.json.encode(snapshot))

    def keep(self, etag: str | None, entries: RawEntries) -> Kept:
        """Keep the entries of a shard, to be named by a snapshot."""
        import msgspec

        data = msgspec.json.encode(dict(sorted(entries.items())))
        name = f"{hashlib.sha256(data).hexdigest()}{_SHARD}"
        if not os.path.exists(f"{self._directory}/{name}"):
            self._write(name, data)
        return Kept(etag, name)

    def entries(self, kept: Kept | None) -> RawEntries:
        """Return the entries of a shard in a snapshot, none if it was in none.

        Raises StreamPositionError if they are lost: they would be delivered again.
        """
        import msgspec

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
        import msgspec

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
        is_told = found.etag == told.shards[partition]
        known = snapshots.entries(before.get(partition))
        entries = _visible(found, known, span, is_told=is_told)
        assert found.doc is not None
        is_whole = is_told and entries == found.doc.entries
        current[partition] = snapshots.keep(found.etag if is_whole else None, entries)
    return current


def _visible(found: Found, known: RawEntries, span: Span, *, is_told: bool) -> RawEntries:
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
    import msgspec

    return hashlib.sha256(msgspec.json.encode(offset, order="sorted")).hexdigest()[:32]
