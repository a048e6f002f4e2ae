"""Comparing objects with their entries where they are listed, so that little has to be moved.

Where all shards can be relied on, an entry that its object agrees with stays as it is, and needs no
plan. So whoever lists a folder reads the shards of its paths, and hands on what differs. Entries
whose folder nobody listed, or nobody listed with their shard, are found by counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import chain

from swampstore.index.changes import index_moved
from swampstore.index.errors import IndexDamagedError, IndexMovedError
from swampstore.index.format import (
    EntryMembers,
    RawEntries,
    decode_entry,
    decode_shard,
    entry_members,
)
from swampstore.index.partitions import Homes, partition_of, shard_key
from swampstore.index.shard_glance import glance
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.gathering import Listing, Tally, claim_of
from swampstore.pipeline.evidence.index_state import IndexState
from swampstore.pipeline.evidence.rows import Claim, Compared, Item, Row, Seen, Total
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Listed, Piece, listed_with_content
from swampstore.pipeline.source.objects import IN_MEMORY
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Handed, Store

# So much that differs is put together before it becomes rows.
_TOGETHER = 5_000

_Difference = tuple[tuple[str, Seen]] | tuple[tuple[str, Seen], tuple[str, Claim]]
"""An object, and what its entry says if there is one."""
_Entries = dict[str, EntryMembers]


class _Folders:
    """Tells which of some folders a path is in: right in a shallow one, anywhere in another."""

    def __init__(self, deep: Container[str], shallow: Container[str]) -> None:
        self._deep = deep
        self._shallow = shallow
        self._known: dict[str, str | None] = {}

    def of(self, rel: str) -> str | None:
        """Return the folder, None if it is none of these."""
        above = rel[: rel.rfind("/") + 1]
        try:
            return self._known[above]
        except KeyError:
            return self._known.setdefault(above, self._covering(above))

    def _covering(self, above: str) -> str | None:
        if above in self._shallow:
            return above
        while above and above not in self._deep:
            above = above[: above.rfind("/", 0, -1) + 1]
        return above if above in self._deep else None


@dataclass(frozen=True)
class Comparison(Listing):
    """A listing that hands on only what differs from the shards, together with its entry.

    `shards` are the ETags of all shards; where one has another by now, that is told.
    """

    shards: Mapping[str, str] = field(default_factory=dict)

    def rows(self, number: int, place: Place, piece: Piece, store: Store) -> Iterator[Row]:
        """List one piece, folder by folder; neighbours have shards in common."""
        tally = Tally(self, is_index=place.indexed)
        shelf = _Shelf(self.shards, place, store, piece)
        folders = [(Piece(place, shallow=(one,)), one, False) for one in sorted(piece.shallow)]
        folders += [(Piece(place, deep=(one,)), one, True) for one in sorted(piece.deep)]
        for inner, prefix, is_deep in folders:
            folder = _Folder(self, shelf, prefix, is_deep=is_deep)
            try:
                yield from folder.rows(number, inner, store, tally)
            except IndexMovedError as error:
                yield rows.sum_row(number, folder.compared(error.message))


@dataclass(frozen=True, slots=True)
class _Shard:
    """What a shard says of each folder of a piece that is still to be compared."""

    data: bytes = b""
    folders: dict[str, _Entries] = field(default_factory=dict)

    @property
    def raw(self) -> RawEntries:
        """All entries as they are."""
        return decode_shard(self.data).entries


class _Shelf:
    """The shards of the paths in a piece.

    Each is read when the first of its paths is met, and let go of once all its folders are compared
    that are in this piece. So what is held are entries of this piece, and not all of those either.
    """

    def __init__(self, etags: Mapping[str, str], place: Place, store: Store, piece: Piece) -> None:
        self._etags = etags
        self._names = place.names()
        self._store = store
        self._deep = frozenset(piece.deep)
        self._folders = _Folders(self._deep, frozenset(piece.shallow))
        self._compared: set[str] = set()
        self._shards: dict[str, _Shard] = {}
        self._raw: tuple[str, RawEntries] | None = None

    def entries(self, home: str, folder: str) -> _Entries:
        """Return what a shard says of a folder; whoever has compared an entry removes it."""
        shard = self._shards.get(home)
        if shard is None:
            shard = self._shards[home] = self._read(home, folder)
        return shard.folders.setdefault(folder, {})

    def raw(self, home: str, rel: str) -> bytes:
        """Return an entry as it is."""
        if self._raw is None or self._raw[0] != home:
            self._raw = home, self._shards[home].raw
        return self._raw[1][rel]

    def of(self, folder: str) -> dict[str, _Entries]:
        """Return what is left of what shards say of a folder, by shard."""
        return {
            home: shard.folders[folder]
            for home, shard in self._shards.items()
            if folder in shard.folders
        }

    def forget(self, folder: str) -> None:
        """Let go of a folder that is compared."""
        self._compared.add(folder)
        self._raw = None
        for home in self.of(folder):
            folders = self._shards[home].folders
            del folders[folder]
            if not folders:
                del self._shards[home]

    def _read(self, home: str, folder: str) -> _Shard:
        expected = self._etags.get(home)
        if expected is None:
            return _Shard()
        try:
            info, data = self._store.get(self._names.remote(shard_key(home)))
            if info.etag != expected:
                raise _moved(home)
            return _Shard(data, self._parted(_entries_in(data), folder))
        except (ObjectNotFoundError, IndexDamagedError):
            raise _moved(home) from None

    def _parted(self, entries: _Entries, folder: str) -> dict[str, _Entries]:
        """Part entries by folder; mostly all of them are in the one that they are read for."""
        is_in_one = folder in self._deep and entries and min(entries).startswith(folder)
        if is_in_one and max(entries).startswith(folder):
            return {folder: entries}
        parts: dict[str, _Entries] = {}
        for rel, entry in entries.items():
            found = self._folders.of(rel)
            if found is not None and found not in self._compared:
                parts.setdefault(found, {})[rel] = entry
        return parts


def _entries_in(data: bytes) -> _Entries:
    found = glance(data)
    if found is not None:
        return found.entries
    entries = decode_shard(data).entries.items()
    return {rel: entry_members(decode_entry(rel, raw)) for rel, raw in entries}


def _moved(home: str) -> IndexMovedError:
    return index_moved(f"somebody wrote {shard_key(home)} meanwhile", ())


class _Folder:
    """One folder, compared with what the shards say of it."""

    def __init__(self, table: Comparison, shelf: _Shelf, prefix: str, *, is_deep: bool) -> None:
        self._table = table
        self._shelf = shelf
        self._prefix = prefix
        self._is_deep = is_deep
        self._homes: dict[str, int] = {}
        self._agreeing = self._differing = self._unread_bytes = 0

    def rows(self, number: int, piece: Piece, store: Store, tally: Tally) -> Iterator[Row]:
        """List it; what nobody has read yet stands for its path alone, so that anybody can."""
        found = listed_with_content(piece, store, tally.wants, IN_MEMORY)
        seen_objects = self._table.seen(piece.place, store, self._not_at_a_glance(found))
        together: list[Item] = []
        for seen, *claims in self._differences(seen_objects):
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
        self._shelf.forget(self._prefix)

    def compared(self, moved: str | None = None) -> Compared:
        """Return what sums it up."""
        differing = Total(self._differing, self._unread_bytes)
        return Compared(
            *(self._prefix, self._is_deep, self._homes, self._agreeing, differing, moved)
        )

    def _not_at_a_glance(
        self, found: Iterable[tuple[Listed, Handed]]
    ) -> Iterator[tuple[Listed, Handed]]:
        """Yield all objects but those that came with their content, which is what it should be."""
        homes, last, left = Homes(), "", _Entries()
        for one, handed in found:
            data = handed.data
            if data is not None and not one.internal:
                home = homes.of(one.rel)
                if home is not last:
                    last, left = home, self._entries(home)
                entry = left.get(one.rel)
                if (
                    entry is not None
                    and entry.size == handed.info.size
                    and entry.sha256 == sha256(data).hexdigest()
                ):
                    del left[one.rel]
                    self._agreeing += 1
                    continue
            yield one, handed

    def _differences(self, items: Iterable[tuple[str, Seen]]) -> Iterator[_Difference]:
        homes = Homes()
        for rel, seen in items:
            home = homes.of(rel)
            entry = self._entries(home).pop(rel, None)
            if entry is None:
                if not seen.internal:
                    self._differing += 1
                    yield ((rel, seen),)
            elif self._agrees(rel, entry, seen):
                self._agreeing += 1
            else:
                self._differing += 1
                yield (rel, seen), (rel, self._claim(home, rel))

    def _agrees(self, rel: str, entry: EntryMembers, seen: Seen) -> bool:
        if seen.internal or entry.sha256 is None or entry.size != seen.size:
            return False
        if seen.content is None:
            return not self._table.reads(rel)
        return seen.content.sha256 == entry.sha256

    def _claim(self, home: str, rel: str) -> Claim:
        return claim_of(home, rel, self._shelf.raw(home, rel), with_raw=True)

    def _entries(self, home: str) -> _Entries:
        """Return what is left of what a shard says of this folder."""
        found = self._shelf.entries(home, self._prefix)
        self._homes.setdefault(home, len(found))
        return found

    def _missing(self) -> Iterator[Item]:
        """Yield the entries of this folder that have no object."""
        for home, left in self._shelf.of(self._prefix).items():
            self._homes.setdefault(home, len(left))
            for rel in left:
                self._differing += 1
                yield rel, self._claim(home, rel)


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
        homes = {one.folder: frozenset(one.homes) for one in self.folders}
        shallow = frozenset(one.folder for one in self.folders if not one.is_deep)
        return Unaccounted(homes, shallow)


@dataclass(frozen=True)
class Unaccounted:
    """Chooses paths that nobody listed, or whose shard nobody read who listed their folder.

    `homes` are the shards by folder.
    """

    homes: Mapping[str, frozenset[str]]
    shallow: frozenset[str]

    @cached_property
    def _folders(self) -> _Folders:
        return _Folders(self.homes.keys() - self.shallow, self.shallow)

    def __call__(self, rel: str) -> bool:
        """Whether a path is one of them."""
        folder = self._folders.of(rel)
        return folder is None or partition_of(rel) not in self.homes[folder]
