"""The table of what the index of a place says, document by document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swampstore.index.documents import Found
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import (
    Document,
    Meta,
    decode_entry,
    decode_meta,
    decode_monolith,
    decode_shard,
)
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.index.state import MetaSnapshot, document, with_uncommitted
from swampstore.index.versions import FIRST, version_of
from swampstore.pipeline import schemas
from swampstore.pipeline.index_writer import version_without_meta
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins
from swampstore.pipeline.source.scan import Whole
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import msgspec

    from swampstore.pipeline.source.commits import Brought

_SHARDS = META_KEY.rpartition("/")[0] + "/"
_JSON = ".json"
_NOTHING = (None,) * 8


@dataclass(frozen=True)
class Index(Whole):
    """One row per entry of the documents that are the truth.

    These are the monolith, or the shards that `_meta.json` names, as the version has it. With
    `every_document` entries come from the monolith and from every shard that is named or there.
    A document that is missing or damaged is a row without a path that tells the problem.
    """

    every_document: bool = False
    schema = schemas.INDEX

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[tuple[str, ...]]:
        """Choose the documents and pack them into tasks."""
        if not place.indexed:
            return []
        chosen = documents(place, store, every=self.every_document)
        return [tuple(one) for one in bins(chosen, lambda _: 1, tasks)]

    def rows(self, place: Place, piece: tuple[str, ...], store: Store) -> Iterator[tuple[Any, ...]]:
        """Read some documents."""
        for rel in piece:
            for row in document_rows(place, store, rel):
                yield (place.identity, place.namespace, *row)

    def brought_rows(
        self, place: Place, entries: Iterable[Brought], store: Store
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of entries that were committed."""
        del store
        for partition, rel, raw in entries:
            row = entry_row(shard_key(partition), partition, rel, raw)
            yield (place.identity, place.namespace, *row)


def documents(place: Place, store: Store, *, every: bool = False) -> list[str]:
    """Return the paths of the index documents to be read; a damaged `_meta.json` is one of them."""
    meta, is_damaged = read_meta(place, store)
    has_monolith = is_there(place, store, MONOLITH_KEY)
    shards: set[str] = set(meta.partitions) if meta else set()
    if every or meta is None:
        shards |= listed_shards(place, store)
    if every:
        chosen = [*sorted(map(shard_key, shards)), *([MONOLITH_KEY] if has_monolith else [])]
    elif meta is not None:
        chosen = version_of(meta.version).documents(shards)
    elif has_monolith:
        # After shards took over, the monolith may still be there.
        version = version_without_meta(place, store) if shards else None
        chosen = (version or FIRST).documents(shards)
    else:
        chosen = sorted(map(shard_key, shards))
    return [META_KEY, *chosen] if is_damaged else chosen


def read_meta(place: Place, store: Store) -> tuple[Meta | None, bool]:
    """Return `_meta.json`, None if there is none to be used, and whether it is damaged."""
    try:
        return decode_meta(store.get(place.names().remote(META_KEY)).data), False
    except ObjectNotFoundError:
        return None, False
    except IndexDamagedError:
        return None, True


def is_there(place: Place, store: Store, rel: str) -> bool:
    """Whether a place has an object."""
    try:
        store.head(place.names().remote(rel))
    except ObjectNotFoundError:
        return False
    return True


def listed_shards(place: Place, store: Store) -> set[str]:
    """Return the partitions that have a shard, whether it is in use or not."""
    prefix = place.names().remote(_SHARDS)
    found = (info.key.removeprefix(prefix) for info in store.list(prefix))
    return {
        name.removesuffix(_JSON)
        for name in found
        if name.endswith(_JSON) and "/" not in name and shard_key(name[: -len(_JSON)]) != META_KEY
    }


def document_rows(place: Place, store: Store, rel: str) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of one document's entries, or the one row that says what is wrong."""
    partition = partition_in(rel)
    found = read_document(place, store, rel)
    if isinstance(found, str):
        yield (rel, partition, *_NOTHING[:-1], found)
        return
    for path, raw in found.entries.items():
        yield entry_row(rel, partition, path, raw)


def partition_in(rel: str) -> str | None:
    """Return the partition that a document is the shard of, None for other documents."""
    if not rel.startswith(_SHARDS) or rel == META_KEY:
        return None
    return rel.removeprefix(_SHARDS).removesuffix(_JSON)


def read_document(place: Place, store: Store, rel: str) -> Document | str:
    """Return a document of the index, or what is wrong with it.

    A shard has what a commit took out of it that did not come to its end, as for every reader.
    """
    try:
        info, data = store.get(place.names().remote(rel))
        found = _decoded(data, rel)
        partition = partition_in(rel)
        if partition is None or not found.removed:
            return found
        meta, _ = read_meta(place, store)
        snapshot = MetaSnapshot(meta.version if meta else FIRST.number, meta)
        return document(with_uncommitted(partition, Found(found, info.etag), snapshot))
    except ObjectNotFoundError:
        return "it is missing"
    except IndexDamagedError as error:
        return error.message


def entry_row(
    document: str, partition: str | None, path: str, raw: msgspec.Raw | bytes
) -> tuple[Any, ...]:
    """Return the columns of one entry, or those that say what is wrong with it."""
    try:
        entry = decode_entry(path, raw)
    except IndexDamagedError as error:
        return (document, partition, path, *_NOTHING[:-3], bytes(raw), error.message)
    return (
        *(document, partition, path, entry.size, entry.last_modified, entry.sha256),
        *(entry.local_mtime, entry.commit_seq, bytes(raw), None),
    )


def _decoded(data: bytes, rel: str) -> Document:
    if rel == MONOLITH_KEY:
        return decode_monolith(data)
    if rel == META_KEY:
        decode_meta(data)
        return Document({})
    return decode_shard(data, rel)
