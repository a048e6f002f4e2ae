"""Making do without parts of the index: what was lost is found again by listing the store.

Nothing here writes. What was put together is shown to readers, and the next commit writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

from swampstore.clock import to_iso
from swampstore.layout import MANIFEST, METADATA, RAW
from swampstore.stores.protocol import ObjectInfo
from swampstore.sync.base import Base, Known
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import (
    Document,
    Entry,
    Meta,
    RawEntries,
    decode_entry,
    decode_meta,
    encode_entry,
)
from swampstore.sync.names import Names
from swampstore.sync.partitions import META_KEY, MONOLITH_KEY, ROOT, partition_of, shard_key
from swampstore.sync.remote.documents import Documents, Found
from swampstore.sync.remote.facts import COMMIT_SEQ, INDEX_VERSION, META
from swampstore.sync.remote.local_copy import LocalCopy
from swampstore.sync.remote.sighting import Sighting
from swampstore.sync.remote.view import document
from swampstore.sync.removals import Notes, read_notes
from swampstore.sync.shapes import version_file

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
        shards = self._documents.listed_shards()
        if self._base.fact(INDEX_VERSION) == "2":
            return self._sharded(shards, etag, token)
        monolith = self._documents.monolith_info()
        if self._is_sharded(shards, monolith):
            return self._sharded(shards, etag, token)
        sighting = Sighting(1, etag=etag, token=token)
        return sighting if monolith else self.discover(sighting)

    def discover(self, sighting: Sighting) -> Sighting:
        """Return what a remote of version 1 without a monolith holds: its files, or nothing.

        The files there are, each as its shard tells of it if that can be believed.
        """
        listed = self._listed("")
        files = self._payload(listed)
        shards = self._documents.shards_among(listed.values())
        found = dict(self._documents.shards(shards))
        told = self._told(files, shards, found)
        entries = self._entries(files, told)
        is_exact = _are_all_there(sighting.meta, found)
        if is_exact:
            # What the index named stays named, also where the object is lost too.
            for partition in sighting.meta.partitions if sighting.meta else ():
                entries = {**document(found[partition]).entries, **entries}
        return replace(
            sighting, exists=bool(entries), discovered=entries or None, is_exact=is_exact
        )

    def _sharded(
        self, shards: Mapping[str, ObjectInfo], etag: str | None, token: str | None
    ) -> Sighting:
        """Return a version 2 remote as its shards show it; it never becomes version 1 again."""
        last = self._last_meta()
        if last is not None and dict(last.shards) == {one: shards[one].etag for one in shards}:
            return Sighting(2, last, etag=etag, token=token, is_healed=True, is_exact=True)
        # With it, shards may have been lost.
        files = self._payload(self._listed(""))
        partitions = {*shards, *(partition_of(rel) for rel in files)}
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

    def _last_meta(self) -> Meta | None:
        """Return the last `_meta.json` that this cache has seen, if it tells of all shards."""
        try:
            meta = decode_meta((self._base.fact(META) or "").encode())
        except IndexDamagedError:
            return None
        return meta if meta.version == 2 and {*meta.partitions} == meta.shards.keys() else None

    def _is_sharded(self, shards: Mapping[str, ObjectInfo], monolith: ObjectInfo | None) -> bool:
        """Whether the shards are the truth.

        They are if commit numbers are in them, which only commits to version 2 put there. Where
        only other clients committed, which put none there, they are if they went on after the
        monolith was frozen: on version 1 that is written before the shards, so that a shard as
        young as it holds nothing else than it does, while on version 2 shards change alone. That
        the monolith is younger proves nothing: clients that know nothing else write it anyway.
        """
        younger: list[Document] = []
        for partition, found in self._documents.shards(shards):
            if found.doc is None:
                continue
            if any(_numbers(found.doc)):
                return True
            if monolith and shards[partition].last_modified >= monolith.last_modified - _PRECISION:
                younger.append(found.doc)
        if not younger:
            return False
        doc = self._copy.monolith().doc
        return any(_goes_beyond(shard, doc.entries if doc else {}) for shard in younger)

    def last_commit_seq(self, meta: Meta) -> int:
        """Return the highest commit number that is known or that is in any shard."""
        found = (document(shard) for _, shard in self._documents.shards(meta.partitions))
        return max([meta.commit_seq or 0, *(max(_numbers(doc)) for doc in found)])

    # A lost or damaged shard -------------------------------------------------------------------

    def rebuilt(self, partition: str, found: Found, meta: Meta | None) -> Found:
        """Return the entries of a lost or damaged shard: as the base has them, if it followed.

        Otherwise as far as the files show them, which `is_guess`.
        """
        fault = "is missing" if found.etag is None else "cannot be understood"
        told = meta.shards.get(partition) if meta else None
        if told is not None and self._base.shard_etags().get(partition) == told:
            self._documents.report(
                shard_key(partition), f"it {fault}; its entries are those that this cache knows"
            )
            entries = {
                rel: encode_entry(rel, Entry(known.size, known.modified, known.sha256))
                for rel, known in sorted(self._base.in_partition(partition).items())
            }
            return Found(
                Document(entries), found.etag, found.token, is_dirty=True, is_recovered=True
            )
        self._documents.report(
            shard_key(partition), f"it {fault}; its entries were made anew from the files there are"
        )
        listed = self._listed(_listing_prefix(partition))
        files = {
            rel: info
            for rel, info in self._payload(listed).items()
            if partition_of(rel) == partition
        }
        return Found(
            Document(self._entries(files, {})),
            found.etag,
            found.token,
            is_dirty=True,
            is_recovered=True,
            is_guess=True,
        )

    # Files -------------------------------------------------------------------------------------

    def _listed(self, prefix: str) -> dict[str, ObjectInfo]:
        """Return the objects of this namespace whose path begins with `prefix`."""
        root = self._names.remote("")
        listed = self._documents.store.list(f"{root}{prefix}")
        return {info.key.removeprefix(root): info for info in listed}

    def _payload(self, listed: Mapping[str, ObjectInfo]) -> dict[str, ObjectInfo]:
        """Return the files of this namespace among objects.

        A directory at the top that is marked as a namespace, or has an index, belongs to others.
        Uploads of ours that no index names yet are about to be committed, and then with their
        hashes. What is left of a deletion does not come back.
        """
        notes = read_notes(self._documents.store, self._names) if listed else Notes()
        known = self._base.get_many(rel for rel in listed if notes.mention(rel))
        foreign = {
            directory
            for rel in listed
            for directory, _, rest in [rel.partition("/")]
            if rest in (MANIFEST, MONOLITH_KEY, META_KEY)
        }
        ours = self._base.noted_uploads(listed)
        half = self._half_uploaded(listed)
        return {
            rel: info
            for rel, info in listed.items()
            if rel not in ours
            and rel not in half
            and not notes.name(rel, info, _sha256(info, known.get(rel)))
            and rel.partition("/")[0] not in foreign
            and self._names.why_not(rel) is None
        }

    def _half_uploaded(self, listed: Mapping[str, ObjectInfo]) -> set[str]:
        """Return metadata that no index is known to have named, and whose content is not there."""
        found = {
            rel
            for rel in listed
            if rel.endswith(f"/{METADATA}")
            and version_file(rel)
            and (raw := _raw_of(rel)) not in listed
            and self._names.why_not(raw) is None
        }
        return found - self._base.get_many(found).keys()

    def _told(
        self,
        files: Mapping[str, ObjectInfo],
        shards: Mapping[str, ObjectInfo],
        documents: Mapping[str, Found],
    ) -> RawEntries:
        """Return what shards of version 1 tell of files that were not written after them."""
        told: RawEntries = {}
        for partition, found in documents.items():
            written = shards[partition].last_modified
            for rel, raw in document(found).entries.items():
                info, entry = files.get(rel), _entry(rel, raw)
                if info is None or entry is None or partition_of(rel) != partition:
                    continue
                if entry.size == info.size and info.last_modified <= written:
                    told[rel] = encode_entry(rel, replace(entry, commit_seq=None), onto=raw)
        return told

    def _entries(self, files: Mapping[str, ObjectInfo], told: RawEntries) -> RawEntries:
        known = self._base.get_many(files)
        entries = {
            rel: told.get(rel) or encode_entry(rel, _entry_of(info, known.get(rel)))
            for rel, info in sorted(files.items())
        }
        return entries | self._lost_contents(files)

    def _lost_contents(self, files: Mapping[str, ObjectInfo]) -> RawEntries:
        """Return content that was lost of versions that stay: who has it uploads it again."""
        raws = {_raw_of(rel) for rel in files if rel.endswith(f"/{METADATA}") and version_file(rel)}
        lost = self._base.get_many(raws - files.keys())
        return {
            rel: encode_entry(rel, Entry(one.size, one.modified, one.sha256))
            for rel, one in sorted(lost.items())
        }


def _are_all_there(meta: Meta | None, found: Mapping[str, Found]) -> bool:
    """Whether all shards are those that agreed with the monolith that was there."""
    if meta is None or meta.monolith is None:
        return False
    return all(
        partition in found
        and found[partition].doc is not None
        and found[partition].etag == meta.shards.get(partition)
        for partition in meta.partitions
    )


def _raw_of(metadata: str) -> str:
    return f"{metadata.rpartition('/')[0]}/{RAW}"


def _sha256(info: ObjectInfo, known: Known | None) -> str | None:
    """Return the hash of a listed object, if it is the one that the base knows."""
    return _entry_of(info, known).sha256


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


def _numbers(shard: Document) -> Iterator[int]:
    """Yield the commit numbers in a shard: that of the commit that wrote it, those of entries."""
    yield shard.commit_seq or 0
    for rel, raw in shard.entries.items():
        entry = _entry(rel, raw)
        yield (entry.commit_seq if entry else None) or 0


def _goes_beyond(shard: Document, monolith: RawEntries) -> bool:
    """Whether a shard has an entry that the monolith has not."""
    for rel, raw in shard.entries.items():
        entry = _entry(rel, raw)
        if entry is None:
            continue
        other = _entry(rel, monolith[rel]) if rel in monolith else None
        if other is None or _content(entry) != _content(other):
            return True
    return False


def _entry(rel: str, raw: bytes) -> Entry | None:
    try:
        return decode_entry(rel, raw)
    except IndexDamagedError:
        return None


def _content(entry: Entry) -> tuple[int, str | None, str]:
    return entry.size, entry.sha256, entry.last_modified
