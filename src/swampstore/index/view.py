"""The part of the index that a push is about, as it was when the push looked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from swampstore.index.documents import Found
from swampstore.index.format import Document, Entry, RawEntries, decode_entry
from swampstore.index.meta_snapshot import Sighting
from swampstore.index.partitions import maybe_in, partition_of

if TYPE_CHECKING:
    import msgspec


class View:
    """Entries of the partitions asked for; `RemoteIndex.commit` checks that they still hold.

    On version 1 that is the whole index, whatever was asked for: `shards` is empty then and
    `monolith` the document. On version 2 it is those shards.
    """

    def __init__(
        self,
        sighting: Sighting,
        *,
        monolith: Found | None = None,
        shards: Mapping[str, Found] | None = None,
    ) -> None:
        self.sighting = sighting
        self.monolith = monolith
        self.shards = dict(shards or {})

    @property
    def version(self) -> int:
        """The version of the remote."""
        return self.sighting.version

    @property
    def is_unfinished(self) -> bool:
        """Whether a commit that was interrupted left what `_meta.json` does not tell of.

        Others do not see those entries yet, or not without the whole monolith. Or a document is
        lost. A commit makes all of it visible, even one that has nothing to put in or take out.
        """
        if self.is_made_anew:
            return True
        if self.monolith is not None:
            return self.monolith.etag is not None and not self.sighting.agrees_with(
                self.monolith.etag
            )
        return any(self.is_untold(partition) for partition in self.shards)

    @property
    def is_made_anew(self) -> bool:
        """Whether some of the entries were put together from what is left of a damaged index."""
        found = [self.monolith] if self.monolith else self.shards.values()
        return self.sighting.is_healed or any(one.is_recovered for one in found)

    def is_untold(self, partition: str) -> bool:
        """Whether `_meta.json` does not tell of what a shard holds."""
        meta, found = self.sighting.meta, self.shards[partition]
        if meta is None or found.doc is None:
            return False
        if partition not in meta.partitions:
            return bool(found.doc.entries)
        return found.etag != meta.shards.get(partition, found.etag)

    def entry(self, rel: str) -> Entry | None:
        """Return the entry of a path, None if there is none.

        Raises IndexDamagedError if it cannot be understood, KeyError if the view does not
        cover the path.
        """
        raw = self.raw(rel)
        return None if raw is None else decode_entry(rel, raw)

    def raw(self, rel: str) -> msgspec.Raw | None:
        """Return the entry of a path as it came."""
        found = self.monolith or self.shards[partition_of(rel)]
        return document(found).entries.get(rel)

    def entries_below(self, prefix: str) -> Iterator[str]:
        """Yield the paths equal to `prefix` or below it, in order, as far as the view covers."""
        for start, end in ((prefix, f"{prefix}\0"), (f"{prefix}/", f"{prefix}0")):
            first = bisect_left(self._rels, start)
            yield from self._rels[first : bisect_left(self._rels, end, first)]

    @cached_property
    def _rels(self) -> list[str]:
        found = [self.monolith] if self.monolith else self.shards.values()
        return sorted(rel for one in found for rel in document(one).entries)


def with_uncommitted(partition: str, found: Found, sighting: Sighting) -> Found:
    """Return a shard with what a commit took out of it that did not come to its end."""
    if found.doc is None or not found.doc.removed or sighting.tells_of(partition, found):
        return found
    restored = frozenset(found.doc.removed.keys() - found.doc.entries.keys())
    return replace(found, doc=found.doc.with_removed(), is_dirty=True, restored=restored)


def document(found: Found) -> Document:
    """Return a document, an empty one if there is none."""
    return found.doc or Document({})


def slices_of(entries: RawEntries, partitions: Collection[str]) -> dict[str, RawEntries]:
    """Return the entries of these partitions, of each of them, by partition."""
    slices: dict[str, RawEntries] = {partition: {} for partition in partitions}
    for rel in maybe_in(partitions, entries):
        if (partition := partition_of(rel)) in slices:
            slices[partition][rel] = entries[rel]
    return slices


def grouped(entries: RawEntries) -> dict[str, RawEntries]:
    """Return the entries by partition."""
    groups: dict[str, RawEntries] = {}
    for rel, raw in entries.items():
        groups.setdefault(partition_of(rel), {})[rel] = raw
    return groups
