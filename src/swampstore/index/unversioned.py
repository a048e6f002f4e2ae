"""Which version an index has whose `_meta.json` is lost: what its other documents show of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from swampstore.index.documents import StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document, Entry, RawEntries, decode_entry
from swampstore.index.state import document
from swampstore.stores.protocol import ObjectInfo

# Stores tell times to a second or better.
_PRECISION = timedelta(seconds=1)


def was_there(info: ObjectInfo, written: datetime) -> bool:
    """Whether an object was there when a document was written, as far as times tell that."""
    return info.last_modified <= written + _PRECISION


def numbers_in(shard: Document) -> Iterator[int]:
    """Yield the commit numbers in a shard: that of the commit that wrote it, those of entries."""
    yield shard.commit_seq or 0
    for rel, raw in shard.entries.items():
        entry = entry_or_none(rel, raw)
        yield (entry.commit_seq if entry else None) or 0


def count_commits(shards: Iterable[StoredDocument]) -> bool:
    """Whether any shard has the number of a commit: then the remote has version 2."""
    return any(number for shard in shards for number in numbers_in(document(shard)))


def not_before(written: datetime, shards: Mapping[str, ObjectInfo]) -> list[str]:
    """Return the shards that may have been written after a monolith was."""
    return [one for one, info in shards.items() if info.last_modified >= written - _PRECISION]


def went_on(
    frozen: datetime,
    monolith: Document,
    shards: Mapping[str, ObjectInfo],
    younger: Iterable[tuple[str, StoredDocument]],
    is_stored: Callable[[str], bool],
) -> bool:
    """Whether shards without commit numbers went on after the monolith was frozen.

    Only other clients, which put none there, make such. On version 1 the monolith is written
    before the shards, so that one that is younger holds nothing else than it does; on version 2
    shards change alone. Where both are of the same moment nobody can tell which was first: then
    only what it names besides, and what has an object that nobody is removing, shows that. That the
    monolith is younger proves nothing: clients that know nothing else write it anyway.
    """
    if monolith.is_frozen:
        return True
    for partition, shard in younger:
        written, doc = shards[partition].last_modified, document(shard)
        if written > frozen + _PRECISION and _goes_beyond(doc, monolith.entries):
            return True
        if any(map(is_stored, doc.entries.keys() - monolith.entries.keys())):
            return True
    return False


def _goes_beyond(shard: Document, monolith: RawEntries) -> bool:
    """Whether a shard has an entry that the monolith has not."""
    for rel, raw in shard.entries.items():
        entry = entry_or_none(rel, raw)
        if entry is None:
            continue
        other = entry_or_none(rel, monolith[rel]) if rel in monolith else None
        if other is None or _content(entry) != _content(other):
            return True
    return False


def entry_or_none(rel: str, raw: bytes) -> Entry | None:
    """Return an entry, None if it cannot be understood."""
    try:
        return decode_entry(rel, raw)
    except IndexDamagedError:
        return None


def _content(entry: Entry) -> tuple[int, str | None, str]:
    return entry.size, entry.sha256, entry.last_modified
