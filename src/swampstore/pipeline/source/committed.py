"""Which files a place holds: what its index says, or its listing where there is no index.

An index tells a file from an upload that nobody has committed yet, and knows hashes; a directory
that is used in place has none, and neither has a bucket that something else was copied into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import RawEntries, decode_entry, decode_monolith, decode_shard
from swampstore.index.partitions import MONOLITH_KEY, partition_of, shard_key
from swampstore.index.path_kinds import unit_of
from swampstore.index.versions import version_of
from swampstore.notices import notice
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Piece, bins, each, listed, pieces
from swampstore.pipeline.source.index import listed_shards, read_meta
from swampstore.pipeline.source.objects import portion_of
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

T = TypeVar("T")
R = TypeVar("R")
# So much of a monolith is worth a task of its own: some hundred versions.
_PORTION_BYTES = 256 * 1024
# What is held in memory at once, unless a single file is longer.
_LOAD_BYTES = 64 << 20
_LOAD = 1000


class Shards(NamedTuple):
    """The files of some partitions."""

    partitions: tuple[str, ...]


class Portion(NamedTuple):
    """One of several portions of the files that a monolith names."""

    number: int
    of: int


Slice = Shards | Portion | Piece


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
    if place.indexed:
        meta, is_damaged = read_meta(place, store)
        if meta is not None and not version_of(meta.version).counts(None):
            chosen = [one for one in meta.partitions if may_hold(one)]
            return [Shards(tuple(one)) for one in bins(chosen, lambda _: 1, tasks)]
        # Where `_meta.json` is lost, shards may have gone on after the monolith was frozen.
        is_lost = is_damaged or (meta is None and bool(listed_shards(place, store)))
        size = None if is_lost else _monolith_size(place, store)
        if size is not None:
            count = max(1, min(tasks, size // _PORTION_BYTES))
            return [Portion(number, count) for number in range(count)]
    return list(pieces(place, store, tasks, below))


def _monolith_size(place: Place, store: Store) -> int | None:
    try:
        return store.head(place.names().remote(MONOLITH_KEY)).size
    except ObjectNotFoundError:
        return None


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
    elif isinstance(piece, Portion):
        yield _named(place, _portion(place, store, piece), is_wanted)
    else:
        for _, entries in each(place, lambda one: _shard(place, store, one), piece.partitions):
            yield _named(place, entries, is_wanted)


def _named(place: Place, entries: RawEntries, is_wanted: Callable[[str], bool]) -> list[File]:
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


def _portion(place: Place, store: Store, portion: Portion) -> RawEntries:
    number, count = portion
    entries = decode_monolith(_document(place, store, MONOLITH_KEY)).entries
    if count == 1:
        return entries
    return {rel: raw for rel, raw in entries.items() if portion_of(unit_of(rel), count) == number}


def _shard(place: Place, store: Store, partition: str) -> RawEntries:
    try:
        found = decode_shard(_document(place, store, shard_key(partition)), partition).entries
    except IndexDamagedError:
        meta, _ = read_meta(place, store)
        if meta is not None and partition not in meta.partitions:
            return {}  # its last entry was removed while we were reading
        raise
    return {rel: raw for rel, raw in found.items() if partition_of(rel) == partition}


def _document(place: Place, store: Store, rel: str) -> bytes:
    key = place.names().remote(rel)
    try:
        return store.get(key).data
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
