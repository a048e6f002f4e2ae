"""What the index of a place says now: fingerprints of its documents, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import RawEntries, decode_monolith
from swampstore.index.partitions import MONOLITH_KEY, partition_of, shard_key
from swampstore.index.path_kinds import is_marker
from swampstore.index.state import document
from swampstore.index.versions import FIRST, version_of
from swampstore.layout import METADATA, RAW
from swampstore.pipeline.places import Place
from swampstore.pipeline.snapshots.manifest import Manifest
from swampstore.pipeline.source.index import Commits, listed_shards, read_meta
from swampstore.pipeline.source.slices import File, named
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

PARTITION = "data--"
_DATA = "data/"
_OF_VERSION = (f"/{METADATA}", f"/{RAW}")


@dataclass(frozen=True)
class Told:
    """What the index says: the ETag of each shard with versions or markers, or of the one document.

    `size` is how long the documents are together, `sizes` how long those of shards are, as far as
    that is known.
    """

    version: int
    commit_seq: int | None = None
    origin: str | None = None
    shards: Mapping[str, str] = field(default_factory=dict)
    monolith: str | None = None
    size: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_one(self) -> bool:
        """Whether all is in one document."""
        return self.monolith is not None


def told(place: Place, store: Store, *, with_size: bool = False) -> Told | None:
    """Look at the index: one or two requests, and a listing if another client committed last.

    None: there is no index that tells by itself what has changed.
    """
    if not place.indexed:
        return None
    meta, is_damaged = read_meta(place, store)
    if is_damaged or (meta is None and listed_shards(place, store)):
        return None
    version = version_of(meta.version) if meta else FIRST
    if version.counts(None):
        try:
            info = store.head(place.names().remote(MONOLITH_KEY))
        except ObjectNotFoundError:
            return None
        origin = meta.origin if meta else None
        return Told(version.number, None, origin, monolith=info.etag, size=info.size)
    if meta is None or not version.counts(PARTITION):
        return None
    wanted = [one for one in meta.partitions if one.startswith(PARTITION)]
    told = dict(meta.shards.items())
    etags = {one: told[one] for one in wanted if one in told}
    sizes: dict[str, int] = {}
    if with_size or len(etags) < len(wanted):
        listed = Documents(store, place.names(), 1).listed_shards()
        lacking = {one: listed[one].etag for one in wanted if one in listed and one not in etags}
        etags = etags | lacking
        sizes = {one: info.size for one, info in listed.items()}
    # A shard that is told of and not there is read, and found to be lost.
    every = {one: etags.get(one, "") for one in wanted}
    size = sum(sizes.values()) if sizes else None
    return Told(version.number, meta.commit_seq, meta.origin, every, size=size, sizes=sizes)


def is_of(manifest: Manifest, now: Told) -> bool:
    """Whether a snapshot is one of this index, and not of what was in its place before.

    Other clients drop the origin; then the fingerprints have to do.
    """
    is_another = manifest.origin and now.origin and manifest.origin != now.origin
    return manifest.index_version == now.version and not is_another


@dataclass(frozen=True)
class Said:
    """What documents of the index say of some paths.

    `etag` is that of the document, empty if that document will say something else.
    """

    etag: str
    files: Mapping[str, File]

    def versions(self) -> Iterator[File]:
        """Yield the files of versions."""
        return (file for file in self.files.values() if file.rel.endswith(_OF_VERSION))

    def markers(self) -> dict[str, str]:
        """Return the hashes of markers, empty where the index does not tell one."""
        return {rel: file.sha256 or "" for rel, file in self.files.items() if is_marker(rel)}


def _is_wanted(rel: str) -> bool:
    return is_marker(rel) or (rel.startswith(_DATA) and rel.endswith(_OF_VERSION))


def shard_said(place: Place, store: Store, partition: str, commits: Commits) -> Said | None:
    """Read a shard as every reader of the table does; None if it is gone or damaged."""
    try:
        fetched = store.get(place.names().remote(shard_key(partition)))
        found = commits.shard(partition, fetched)
    except (ObjectNotFoundError, IndexDamagedError):
        return None
    entries = document(found).entries
    own = {rel: raw for rel, raw in entries.items() if partition_of(rel) == partition}
    # The very same document says something else as soon as its commit has come to its end.
    return Said("" if found.restored else fetched.info.etag, _files(place, own))


def monolith_said(place: Place, store: Store) -> Said:
    """Read the one document; raises ObjectNotFoundError, IndexDamagedError."""
    info, data = store.get(place.names().remote(MONOLITH_KEY))
    return Said(info.etag, _files(place, decode_monolith(data).entries))


def _files(place: Place, entries: RawEntries) -> dict[str, File]:
    return {file.rel: file for file in named(place, entries, _is_wanted)}
