"""How the files of a place are shared out among tasks, and what each finds in its slice.

An index names them, in documents or in a database; elsewhere the listing does (see `index`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import RawEntries, decode_entry, decode_monolith
from swampstore.index.partitions import MONOLITH_KEY, partition_in, partition_of, shard_key
from swampstore.index.state import document
from swampstore.index.versions import version_of
from swampstore.layout import METADATA, RAW
from swampstore.notices import notice
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Piece, Range, bins, each, listed, pieces, ranges
from swampstore.pipeline.source.index import (
    Commits,
    Cut,
    check_monolith,
    entries_between,
    is_there,
    listed_shards,
    monolith_size,
    packed,
    portion,
    read_meta,
)
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Fetched, Store

T = TypeVar("T")
# So much of a monolith is worth a task of its own: some hundred versions.
_PORTION_BYTES = 256 * 1024
# What is held in memory at once, unless a single file is longer.
_LOAD_BYTES = 64 << 20
_LOAD = 1000
# Fewer shards are read without asking how long each is.
_FEW_SHARDS = 8
_DATA = "data/"


class Shards(NamedTuple):
    """The files of some partitions, and those of parts of others."""

    partitions: tuple[str, ...]
    cut: tuple[Cut, ...] = ()


class Portion(NamedTuple):
    """One of several portions of the files that a monolith names."""

    number: int
    of: int


Slice = Shards | Portion | Piece | Range


class File(NamedTuple):
    """A file of the datastore; the hash only if an index tells it."""

    rel: str
    size: int
    sha256: str | None = None


def slices(
    place: Place,
    store: Store,
    tasks: int,
    *,
    below: Sequence[str],
    may_hold: Callable[[str], bool],
) -> list[Slice]:
    """Cut what lies `below` some directories into slices; no data name is cut in two.

    `may_hold` says which partitions of an index can name such files.
    """
    if place.indexed and store.capabilities.keeps_paths:
        if is_there(place, store, MONOLITH_KEY):
            return list(ranges(place, store, tasks))
    elif place.indexed:
        meta, is_damaged = read_meta(place, store)
        if meta is not None and not version_of(meta.version).counts(None):
            chosen = [one for one in meta.partitions if may_hold(one)]
            if len(chosen) < _FEW_SHARDS:
                return [Shards(tuple(one)) for one in bins(chosen, lambda _: 1, tasks)]
            return [_shards(one) for one in packed(place, store, [*map(shard_key, chosen)], tasks)]
        # Where `_meta.json` is lost, shards may have gone on after the monolith was frozen.
        is_lost = is_damaged or (meta is None and bool(listed_shards(place, store)))
        size = None if is_lost else monolith_size(place, store)
        if size is not None:
            check_monolith(place, store, size)
            count = max(1, min(tasks, size // _PORTION_BYTES))
            return [Portion(number, count) for number in range(count)]
    return list(pieces(place, store, tasks, below))


def _shards(documents: Iterable[str | Cut]) -> Shards:
    cut = tuple(one for one in documents if isinstance(one, Cut))
    whole = (partition_in(one) for one in documents if isinstance(one, str))
    return Shards(tuple(one for one in whole if one is not None), cut)


def files_of(
    place: Place, piece: Slice, store: Store, is_wanted: Callable[[str], bool]
) -> Iterator[list[File]]:
    """Yield the wanted files of a slice, those of one data name always together.

    Raises IndexDamagedError if an index document is missing or damaged: rows would be missing.
    """
    if isinstance(piece, Piece):
        names = place.names()
        yield [
            File(one.rel, one.info.size)
            for one in listed(piece, store)
            if not one.internal and is_wanted(one.rel) and names.why_not(one.rel) is None
        ]
    elif isinstance(piece, Range):
        yield named(place, entries_between(place, store, piece), is_wanted)
    elif isinstance(piece, Portion):
        entries = decode_monolith(_document(place, store, MONOLITH_KEY).data).entries
        yield named(place, portion(entries, *piece), is_wanted)
    else:
        commits = Commits(place, store)

        def read(partition: str) -> RawEntries:
            return _shard(place, store, partition, commits)

        for _, entries in each(place, read, piece.partitions):
            yield named(place, entries, is_wanted)
        for document, number, of in piece.cut:
            entries = read(partition_in(document) or "")
            yield named(place, portion(entries, number, of), is_wanted)


def named(place: Place, entries: RawEntries, is_wanted: Callable[[str], bool]) -> list[File]:
    """Return the wanted files among entries; what is damaged is only reported."""
    names = place.names()
    found: list[File] = []
    for rel, raw in entries.items():
        if not is_wanted(rel) or names.why_not(rel) is not None:
            continue
        try:
            entry = decode_entry(rel, raw)
        except IndexDamagedError as error:
            notice("%s", error.message)
            continue
        found.append(File(rel, entry.size, entry.sha256))
    return found


def shard_files(place: Place, store: Store, partitions: Iterable[str]) -> Iterator[File]:
    """Yield the files of versions that shards name; raises as `files_of` does."""
    for group in files_of(place, Shards(tuple(partitions)), store, is_of_version):
        yield from group


def is_of_version(rel: str) -> bool:
    """Whether a path is the metadata or the content of a version, as far as its ends tell."""
    return rel.startswith(_DATA) and rel.endswith((f"/{METADATA}", f"/{RAW}"))


def _shard(place: Place, store: Store, partition: str, commits: Commits) -> RawEntries:
    try:
        fetched = _document(place, store, shard_key(partition))
        found = document(commits.shard(partition, fetched)).entries
    except IndexDamagedError:
        meta, _ = read_meta(place, store)
        if meta is not None and partition not in meta.partitions:
            return {}  # its last entry was removed while we were reading
        raise
    return {rel: raw for rel, raw in found.items() if partition_of(rel) == partition}


def _document(place: Place, store: Store, rel: str) -> Fetched:
    key = place.names().remote(rel)
    try:
        return store.get(key)
    except ObjectNotFoundError:
        raise IndexDamagedError(
            f"{key} of {place.identity} is missing",
            hint="Run `swampstore pipeline reindex` to make the index anew.",
        ) from None


def loads(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in lists that memory can hold the content of."""
    load: list[T] = []
    weight = 0
    for item in items:
        if load and (weight + size(item) > _LOAD_BYTES or len(load) == _LOAD):
            yield load
            load, weight = [], 0
        load.append(item)
        weight += size(item)
    if load:
        yield load
