"""Comparing objects with their entries where they are listed, so that little has to be moved.

Where all shards can be relied on, an entry that its object agrees with stays as it is, and needs no
plan. So whoever lists a folder reads the shards of its paths, and hands on what differs. Entries
whose folder nobody listed, or nobody listed with their shard, are found by counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from swampstore.index.changes import index_moved
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexMovedError
from swampstore.index.format import RawEntries, decode_entry
from swampstore.index.partitions import Homes, partition_of, shard_key
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.gathering import Listing, Tally, claim_of
from swampstore.pipeline.evidence.index_state import IndexState
from swampstore.pipeline.evidence.rows import Claim, Compared, Item, Row, Seen, Total
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Piece, listed_with_content
from swampstore.pipeline.source.objects import IN_MEMORY
from swampstore.stores.protocol import Store

# So much that differs is put together before it becomes rows.
_TOGETHER = 5_000

_Difference = tuple[tuple[str, Seen]] | tuple[tuple[str, Seen], tuple[str, Claim]]
"""An object, and what its entry says if there is one."""


@dataclass(frozen=True)
class Comparison(Listing):
    """A listing that hands on only what differs from the shards, together with its entry.

    `shards` are the ETags of all shards; where one has another by now, that is told.
    """

    shards: Mapping[str, str] = field(default_factory=dict)

    def rows(self, number: int, place: Place, piece: Piece, store: Store) -> Iterator[Row]:
        """List one piece, folder by folder: shards are only held as long as their folder lasts."""
        tally = Tally(self, is_index=place.indexed)
        folders = [(Piece(place, shallow=(one,)), one, False) for one in piece.shallow]
        folders += [(Piece(place, deep=(one,)), one, True) for one in piece.deep]
        for inner, prefix, is_deep in folders:
            folder = _Folder(self, place, store, prefix, is_deep=is_deep)
            try:
                yield from folder.rows(number, inner, tally)
            except IndexMovedError as error:
                yield rows.sum_row(number, folder.compared(error.message))


class _Folder:
    """One folder, and the shards of the paths in it, without the entries that were found."""

    def __init__(
        self, table: Comparison, place: Place, store: Store, prefix: str, *, is_deep: bool
    ) -> None:
        self._table = table
        self._place = place
        self._store = store
        self._prefix = prefix
        self._is_deep = is_deep
        self._documents = Documents(store, place.names(), 1)
        self._left: dict[str, RawEntries] = {}
        self._accounted: Counter[str] = Counter()
        self._agreeing = self._differing = self._unread_bytes = 0

    def rows(self, number: int, piece: Piece, tally: Tally) -> Iterator[Row]:
        """List it; what nobody has read yet stands for its path alone, so that anybody can."""
        found = listed_with_content(piece, self._store, tally.wants, IN_MEMORY)
        together: list[Item] = []
        for seen, *claims in self._differences(self._table.seen(self._place, self._store, found)):
            if seen[1].content is None:
                self._unread_bytes += seen[1].size
                yield rows.lone_row(number, seen, *claims)
                continue
            together += [seen, *claims]
            if len(together) >= _TOGETHER:
                yield from rows.rows_of(number, together)
                together = []
        yield from rows.rows_of(number, chain(together, self._missing()))
        yield rows.sum_row(number, self.compared())

    def compared(self, moved: str | None = None) -> Compared:
        """Return what sums it up."""
        return Compared(
            self._prefix,
            self._is_deep,
            {home: self._accounted[home] for home in self._left},
            self._agreeing,
            Total(self._differing, self._unread_bytes),
            moved,
        )

    def _differences(self, items: Iterable[tuple[str, Seen]]) -> Iterator[_Difference]:
        homes = Homes()
        for rel, seen in items:
            home = homes.of(rel)
            left = self._left.get(home)
            if left is None:
                left = self._left[home] = self._entries(home)
            raw = left.pop(rel, None)
            if raw is None:
                if not seen.internal:
                    self._differing += 1
                    yield ((rel, seen),)
                continue
            self._accounted[home] += 1
            if self._agrees(rel, raw, seen):
                self._agreeing += 1
            else:
                self._differing += 1
                yield (rel, seen), (rel, claim_of(home, rel, raw, with_raw=True))

    def _agrees(self, rel: str, raw: bytes, seen: Seen) -> bool:
        if seen.internal:
            return False
        entry = decode_entry(rel, raw)
        if entry.sha256 is None or entry.size != seen.size:
            return False
        if seen.content is None:
            return not self._table.reads(rel)
        return seen.content.sha256 == entry.sha256

    def _entries(self, home: str) -> RawEntries:
        expected = self._table.shards.get(home)
        if expected is None:
            return {}
        found = self._documents.shard_as_it_is(home)
        if found.etag != expected or found.doc is None:
            raise index_moved(f"somebody wrote {shard_key(home)} meanwhile", ())
        return found.doc.entries

    def _missing(self) -> Iterator[Item]:
        """Yield the entries of this folder that have no object."""
        for home, left in self._left.items():
            for rel, raw in left.items():
                if self._covers(rel):
                    self._accounted[home] += 1
                    self._differing += 1
                    yield rel, claim_of(home, rel, raw, with_raw=True)

    def _covers(self, rel: str) -> bool:
        return rel.startswith(self._prefix) and (
            self._is_deep or "/" not in rel[len(self._prefix) :]
        )


@dataclass(frozen=True)
class Agreement:
    """What all folders of a place said together."""

    folders: tuple[Compared, ...]

    @property
    def agreeing(self) -> int:
        """How many entries stay as they are."""
        return sum(one.agreeing for one in self.folders)

    @property
    def differing(self) -> Total:
        """How many paths have to be planned, and the bytes of those that nobody has read."""
        return sum((one.differing for one in self.folders), Total())

    @property
    def moved(self) -> str | None:
        """Why the comparison cannot be relied on, None if it can."""
        return next((one.moved for one in self.folders if one.moved), None)

    def misses_some(self, state: IndexState) -> bool:
        """Whether there are entries that no folder accounts for."""
        accounted: Counter[str] = Counter()
        for one in self.folders:
            accounted.update(one.homes)
        return any(
            one.partition is not None and accounted[one.partition] < one.entries
            for one in state.summaries
        )

    @property
    def unaccounted(self) -> Unaccounted:
        """What chooses those entries."""
        deep = {one.folder: frozenset(one.homes) for one in self.folders if one.is_deep}
        shallow = {one.folder: frozenset(one.homes) for one in self.folders if not one.is_deep}
        return Unaccounted(deep, shallow)


@dataclass(frozen=True)
class Unaccounted:
    """Chooses paths that nobody listed, or whose shard nobody read who listed their folder."""

    deep: Mapping[str, frozenset[str]]
    shallow: Mapping[str, frozenset[str]]

    def __call__(self, rel: str) -> bool:
        """Whether a path is one of them."""
        folder = rel[: rel.rfind("/") + 1]
        home = partition_of(rel)
        if home in self.shallow.get(folder, ()):
            return False
        while folder:
            if folder in self.deep:
                return home not in self.deep[folder]
            folder = folder[: folder.rfind("/", 0, -1) + 1]
        return home not in self.deep.get("", ())
