"""Making do without parts of the index: what was lost is found again by listing the store.

Nothing here writes. What was put together is shown to readers, and the next commit writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from swampstore.clock import to_iso
from swampstore.stores.protocol import ObjectInfo
from swampstore.sync.base import Base, Known
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import (
    Document,
    Entry,
    Meta,
    RawEntries,
    decode_entry,
    encode_entry,
)
from swampstore.sync.names import Names
from swampstore.sync.partitions import META_KEY, MONOLITH_KEY, ROOT, partition_of, shard_key
from swampstore.sync.remote.documents import Documents, Found
from swampstore.sync.remote.facts import COMMIT_SEQ, INDEX_VERSION
from swampstore.sync.remote.local_copy import LocalCopy
from swampstore.sync.remote.sighting import Sighting

_NAMESPACE_MARK = ".namespace.json"
# Stores tell times to a second or better.
_PRECISION = timedelta(seconds=1)


class Recovery:
    """Finds out what a damaged remote is, and what it holds."""

    def __init__(self, documents: Documents, names: Names, base: Base, copy: LocalCopy) -> None:
        self._documents = documents
        self._names = names
        self._base = base
        self._copy = copy

    # A lost or damaged _meta.json --------------------------------------------------------------

    def without_meta(self, etag: str | None, token: str | None) -> Sighting:
        """Find out what a remote is whose `_meta.json` is missing, or damaged with this token."""
        if self._base.fact(INDEX_VERSION) == "2":
            return self._sharded(self._documents.listed_shards(), etag, token)
        monolith = self._documents.monolith_info()
        shards = self._documents.listed_shards()
        if shards and (monolith is None or self._was_sharded(monolith, shards)):
            return self._sharded(shards, etag, token)
        if monolith is None:
            return self.discover(Sighting(1, etag=etag, token=token))
        return Sighting(1, etag=etag, token=token)

    def discover(self, sighting: Sighting) -> Sighting:
        """Return what a remote of version 1 without a monolith holds: its files, or nothing."""
        entries = self._entries(self._payload(""))
        return Sighting(
            1,
            sighting.meta,
            sighting.text,
            sighting.etag,
            sighting.token,
            exists=bool(entries),
            discovered=entries or None,
        )

    def _sharded(
        self, shards: Mapping[str, ObjectInfo], etag: str | None, token: str | None
    ) -> Sighting:
        """Return a version 2 remote as its shards show it; it never becomes version 1 again."""
        partitions: Iterable[str] = shards
        if not shards:
            partitions = {partition_of(rel) for rel in self._payload("")}
        if not partitions and etag is None:
            return Sighting(1, exists=False)
        known_seq = self._base.fact(COMMIT_SEQ)
        meta = Meta(
            version=2,
            partitions=tuple(sorted(partitions)),
            commit_seq=int(known_seq) if known_seq else None,
            shards={partition: info.etag for partition, info in shards.items()},
        )
        return Sighting(2, meta, etag=etag, token=token, is_healed=True)

    def _was_sharded(self, monolith: ObjectInfo, shards: Mapping[str, ObjectInfo]) -> bool:
        """Whether shards went on after the monolith was frozen.

        On version 1 the monolith is written before the shards, so that a shard as young as it
        holds nothing else than it does, while on version 2 shards change alone.
        """
        about_then = monolith.last_modified - _PRECISION
        younger = [
            partition for partition, info in shards.items() if info.last_modified >= about_then
        ]
        if not younger:
            return False
        doc = self._copy.monolith().doc
        entries = doc.entries if doc else {}
        return any(
            _goes_beyond(found.doc, entries)
            for _, found in self._documents.shards(younger)
            if found.doc is not None
        )

    def last_commit_seq(self, meta: Meta) -> int:
        """Return the highest commit number that is known or that any entry carries."""
        highest = meta.commit_seq or 0
        for _, found in self._documents.shards(meta.partitions):
            for rel, raw in found.doc.entries.items() if found.doc else ():
                entry = _entry(rel, raw)
                highest = max(highest, (entry.commit_seq if entry else None) or 0)
        return highest

    # A lost or damaged shard -------------------------------------------------------------------

    def rebuilt(self, partition: str, found: Found) -> Found:
        """Return the entries of a lost or damaged shard as far as the files show them."""
        fault = "is missing" if found.etag is None else "cannot be understood"
        self._documents.report(
            shard_key(partition), f"it {fault}; its entries were made anew from the files there are"
        )
        files = {
            rel: info
            for rel, info in self._payload(_listing_prefix(partition)).items()
            if partition_of(rel) == partition
        }
        return Found(Document(self._entries(files)), found.etag, found.token, is_dirty=True)

    # Files -------------------------------------------------------------------------------------

    def _payload(self, prefix: str) -> dict[str, ObjectInfo]:
        """Return the files of this namespace whose path begins with `prefix`.

        A directory at the top that is marked as a namespace, or has an index, belongs to others.
        Uploads of ours that no index names yet are about to be committed, and then with their
        hashes.
        """
        root = self._names.remote("")
        listed = self._documents.store.list(f"{root}{prefix}")
        found = {info.key.removeprefix(root): info for info in listed}
        foreign = {
            directory
            for rel in found
            for directory, _, rest in [rel.partition("/")]
            if rest in (_NAMESPACE_MARK, MONOLITH_KEY, META_KEY)
        }
        ours = self._base.noted_uploads(found)
        return {
            rel: info
            for rel, info in found.items()
            if rel not in ours
            and rel.partition("/")[0] not in foreign
            and self._names.why_not(rel) is None
        }

    def _entries(self, files: Mapping[str, ObjectInfo]) -> RawEntries:
        known = self._base.get_many(files)
        return {
            rel: encode_entry(rel, _entry_of(info, known.get(rel)))
            for rel, info in sorted(files.items())
        }


def _entry_of(info: ObjectInfo, known: Known | None) -> Entry:
    """Describe a file; with its hash if it is still the very object that the base knows."""
    if known and known.size == info.size and known.etag in (info.etag, info.token or info.etag):
        return Entry(info.size, known.modified, known.sha256)
    return Entry(info.size, to_iso(info.last_modified))


def _listing_prefix(partition: str) -> str:
    """Return what all paths of a partition begin with; `--` may also be part of a name."""
    if partition == ROOT:
        return ""
    first, *rest = partition.split("--")
    return f"{first}/{rest[0] if rest else ''}"


def _goes_beyond(shard: Document, monolith: RawEntries) -> bool:
    """Whether a shard has an entry that the monolith has not, or that only version 2 has."""
    for rel, raw in shard.entries.items():
        entry = _entry(rel, raw)
        if entry is None:
            continue
        other = _entry(rel, monolith[rel]) if rel in monolith else None
        if entry.commit_seq is not None or other is None or _content(entry) != _content(other):
            return True
    return False


def _entry(rel: str, raw: bytes) -> Entry | None:
    try:
        return decode_entry(rel, raw)
    except IndexDamagedError:
        return None


def _content(entry: Entry) -> tuple[int, str | None, str]:
    return entry.size, entry.sha256, entry.last_modified
