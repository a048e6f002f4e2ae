"""The table of what the index of a place says, and which files the place holds.

An index distinguishes a file from an upload that nobody has committed yet, and knows hashes. A
directory that is used in place has none, and neither has a bucket that something else was copied
into; there the listing says which files there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from swampstore.index.documents import Documents, StoredDocument
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import (
    Document,
    RawEntries,
    decode_entry,
    decode_monolith,
    decode_shard,
)
from swampstore.index.meta import Meta, decode_meta
from swampstore.index.partitions import (
    META_KEY,
    MONOLITH_KEY,
    partition_in,
    shard_key,
)
from swampstore.index.path_kinds import unit_of
from swampstore.index.shard_glance import Glance, glance
from swampstore.index.state import MetaSnapshot, document, with_uncommitted
from swampstore.index.version3_commit import raw_of
from swampstore.index.versions import FIRST, version_of
from swampstore.pipeline import schemas
from swampstore.pipeline.errors import MonolithTooLargeError
from swampstore.pipeline.index_writer import version_without_meta
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Range, bins, ranges
from swampstore.pipeline.source.objects import portion_of
from swampstore.pipeline.source.scan import Whole
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Fetched, Store

if TYPE_CHECKING:
    import msgspec

    from swampstore.pipeline.source.commits import Brought
    from swampstore.stores.paths import KeepsPaths


class Cut(NamedTuple):
    """One of several parts of a document, cut by data name."""

    document: str
    number: int
    of: int


Part = str | Cut | Range
"""What of an index is read at once: a document, a part of one, or a range of a database's paths."""
# Less of a document is not worth a task: some ten thousand entries.
_WORTH_A_PART = 4 << 20
# Whoever works on an index of version 1 holds its one document: every task that runs, and the
# driver that writes it anew. Measured: 600 MB for 500,000 entries, which take 159 MB. So this is a
# gigabyte for each of them.
LARGEST_MONOLITH = 256 << 20
_NOTHING = (None,) * 8


@dataclass(frozen=True)
class Index(Whole[tuple[str, ...]]):
    """One row per entry of the documents that are the truth.

    These are the monolith, or the shards that `_meta.json` names, as the version has it. With
    `every_document` entries come from the monolith and from every shard that is named or there.
    A document that is missing or damaged is a row without a path that tells the problem.
    """

    every_document: bool = False
    schema = schemas.INDEX

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[tuple[Part, ...]]:
        """Choose the documents and pack them into tasks; of a database, ranges of its paths."""
        if not place.indexed:
            return []
        found = documents(place, store, every=self.every_document)
        if store.capabilities.keeps_paths and MONOLITH_KEY in found:
            found.remove(MONOLITH_KEY)
            chosen: list[Part] = [*found, *ranges(place, store, tasks)]
            return [tuple(one) for one in bins(chosen, lambda _: 1, tasks)]
        return packed(place, store, found, tasks)

    def rows(
        self, place: Place, piece: tuple[Part, ...], store: Store
    ) -> Iterator[tuple[Any, ...]]:
        """Read some documents."""
        commits = Commits(place, store)
        for part in piece:
            for row in document_rows(place, store, part, commits):
                yield (place.identity, place.namespace, *row)

    def brought_rows(
        self, place: Place, entries: Iterable[Brought], store: Store
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of entries that were committed."""
        del store
        for partition, rel, raw in entries:
            row = entry_row(shard_key(partition), partition, rel, raw)
            yield (place.identity, place.namespace, *row)


def packed(
    place: Place,
    store: Store,
    chosen: Sequence[str],
    tasks: int,
    whole: Collection[str] = (),
) -> list[tuple[str | Cut, ...]]:
    """Pack documents into tasks that have about as much to do; several share a large one.

    Only those that have to stay `whole` are never shared. Costs a listing of the documents.
    """
    if tasks == 1 or len(chosen) == 0:
        return [tuple(chosen)] if chosen else []
    listed = Documents(store, place.names(), 1).listed_shards()
    sizes = {shard_key(partition): info.size for partition, info in listed.items()}
    if MONOLITH_KEY in chosen:
        sizes[MONOLITH_KEY] = monolith_size(place, store) or 0
    most = max(_WORTH_A_PART, sum(sizes.get(one, 0) for one in chosen) // tasks)
    parts: dict[str | Cut, int] = {}
    for one in chosen:
        size = sizes.get(one, 0)
        count = 1 if one in whole else max(1, -(-size // most))
        cut = [Cut(one, number, count) for number in range(count)] if count > 1 else [one]
        parts |= dict.fromkeys(cut, size // count)
    return [tuple(one) for one in bins(parts, parts.__getitem__, tasks)]


def documents(place: Place, store: Store, *, every: bool = False) -> list[str]:
    """Return the paths of the index documents to be read; a damaged `_meta.json` is one of them.

    Raises MonolithTooLargeError.
    """
    meta, is_damaged = read_meta(place, store)
    size = monolith_size(place, store)
    has_monolith = size is not None
    if size is not None and size > LARGEST_MONOLITH:
        version = version_of(meta.version) if meta else version_without_meta(place, store)
        if (version or FIRST).counts(None):
            check_monolith(place, store, size)
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


def check_monolith(place: Place, store: Store, size: int) -> None:
    """Raise MonolithTooLargeError if the one document of an index is too long for bulk work."""
    if size > LARGEST_MONOLITH and not store.capabilities.keeps_paths:
        raise MonolithTooLargeError(
            f"the index of {place} is one document of {size >> 20} MB, and every task would have"
            " to hold all of it in memory",
            hint="Run `swampstore datastore migrate-index` in a repository that uses it; then each"
            " task reads the part that it needs.",
        )


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
    return {*Documents(store, place.names(), 1).listed_shards()}


def document_of(part: Part) -> str:
    """Return the document that entries are of: a database has all of them in one."""
    if isinstance(part, Range):
        return MONOLITH_KEY
    return part.document if isinstance(part, Cut) else part


def document_rows(
    place: Place, store: Store, part: Part, commits: Commits | None = None
) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of one document's entries, or the one row that says what is wrong."""
    rel = document_of(part)
    partition = partition_in(rel)
    found = read_document(place, store, part, commits)
    if isinstance(found, str):
        yield (rel, partition, *_NOTHING[:-1], found)
        return
    for path, raw in found.entries.items():
        yield entry_row(rel, partition, path, raw)


def read_document(
    place: Place, store: Store, rel: Part, commits: Commits | None = None
) -> Document | str:
    """Return a document of the index, or what is wrong with it.

    Whoever reads several gives the `commits` that it has for all of them.
    """
    if isinstance(rel, Range):
        return Document(entries_between(place, store, rel))
    if isinstance(rel, Cut):
        return _part(read_document(place, store, rel.document, commits), rel)
    fetched = _fetched(place, store, rel)
    if isinstance(fetched, str):
        return fetched
    return _understood(commits or Commits(place, store), rel, fetched)


def glance_at(
    place: Place, store: Store, rel: Part, commits: Commits | None = None
) -> Glance | Document | str:
    """Return what `read_document` does, or the same sooner, of a shard that is sound."""
    if not isinstance(rel, str) or partition_in(rel) is None:
        return read_document(place, store, rel, commits)
    fetched = _fetched(place, store, rel)
    if isinstance(fetched, str):
        return fetched
    found = glance(fetched.data)
    if found is None or found.tells_removed:
        return _understood(commits or Commits(place, store), rel, fetched)
    return found


class Commits:
    """Shards as every reader has to see them: with what a commit took out that has not ended.

    `_meta.json` tells which have. It is read when the first shard asks for it, and again only for a
    shard that it does not tell of: that commit may have come to its end since.
    """

    def __init__(self, place: Place, store: Store) -> None:
        self._place = place
        self._store = store
        self._told: MetaSnapshot | None = None

    def shard(self, partition: str, fetched: Fetched) -> StoredDocument:
        """Return a shard, with what was `restored`; raises IndexDamagedError."""
        found = StoredDocument(decode_shard(fetched.data, partition), fetched.info.etag)
        if not document(found).removed:
            return found
        told = self._told or self._look()
        if not told.tells_of(partition, found):
            told = self._look()
        return with_uncommitted(partition, found, told)

    def _look(self) -> MetaSnapshot:
        meta, _ = read_meta(self._place, self._store)
        self._told = MetaSnapshot(meta.version if meta else FIRST.number, meta)
        return self._told


def _fetched(place: Place, store: Store, rel: str) -> Fetched | str:
    try:
        return store.get(place.names().remote(rel))
    except ObjectNotFoundError:
        return "it is missing"


def _understood(commits: Commits, rel: str, fetched: Fetched) -> Document | str:
    try:
        partition = partition_in(rel)
        if partition is not None:
            return document(commits.shard(partition, fetched))
        return _decoded(fetched.data, rel)
    except IndexDamagedError as error:
        return error.message


def _part(whole: Document | str, cut: Cut) -> Document | str:
    if isinstance(whole, str):
        return Document({}) if cut.number else whole  # it is told once
    return replace(whole, entries=portion(whole.entries, cut.number, cut.of))


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
    decode_meta(data)
    return Document({})


def monolith_size(place: Place, store: Store) -> int | None:
    """Return how long the one document of an index is, None if there is none."""
    try:
        return store.head(place.names().remote(MONOLITH_KEY)).size
    except ObjectNotFoundError:
        return None


def entries_between(place: Place, store: Store, chosen: Range) -> RawEntries:
    """Return the entries in a range of the paths of a database."""
    keeper = cast("KeepsPaths", store)
    found = keeper.paths_between(place.names().remote(""), *chosen)
    return {one.rel: raw_of(one) for one in found if not one.is_deleted}


def portion(entries: RawEntries, number: int, of: int) -> RawEntries:
    """Return one of so many portions of entries; no data name is cut in two."""
    if of == 1:
        return entries
    return {rel: raw for rel, raw in entries.items() if portion_of(unit_of(rel), of) == number}
