"""What changed on the remote since the base agreed with it, partition by partition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from swampstore.clock import Clock
from swampstore.index.documents import StoredDocument
from swampstore.index.format import Meta, RawEntries
from swampstore.index.partitions import Scope
from swampstore.index.state import (
    GONE,
    PARTIAL,
    Agreements,
    Fingerprint,
    MetaSnapshot,
    Slice,
    document,
    grouped,
)
from swampstore.index.version import IndexContext
from swampstore.index.versions import version_of


class Reader:
    """One reading of the changes, in one scope; its version reads the documents.

    `seen` is what there is to agree with, once it was read to the end.
    """

    def __init__(self, context: IndexContext, scope: Scope | None, *, everything: bool) -> None:
        self.context = context
        self.scope = scope
        self.everything = everything
        self.seen: Fingerprint | None = None
        base = context.base
        self._epoch = Agreements(base).epoch
        self._known = base.shard_etags()
        self.scoped = base.shard_etags(scope.key) if scope else {}

    def agreed(self, clock: Clock) -> dict[str, str | None]:
        """Return the facts that say that the base agrees with what was read."""
        if self.seen is None:
            return {}
        facts = Agreements.fact(self.scope, self.seen, self._epoch)
        return facts | version_of(self.seen.version).agreed_facts(self.seen, clock)

    def read(self, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield the slices that the base does not agree with.

        From an index that was made anew no deletion follows.
        """
        for piece in self.slices(snapshot):
            is_known = not self.context.watch.is_another
            yield piece if is_known else piece._replace(etag=None, complete=False)
        if self.context.watch.is_another:
            self.seen = None

    def slices(self, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield the same, also where the remote became another one while it was read."""
        if snapshot.discovered is not None:
            yield from self.discovered(snapshot)
        elif not snapshot.exists:
            return
        else:
            yield from version_of(snapshot.version).read(self, snapshot)

    def discovered(self, snapshot: MetaSnapshot) -> Iterator[Slice]:
        """Yield what files without an index show; nothing is complete."""
        entries_there = document(snapshot.discovered or StoredDocument()).entries
        for partition, entries in grouped(entries_there).items():
            covered = self.covered(entries)
            if covered:
                yield Slice(partition, covered, None, complete=False)

    # What versions read with --------------------------------------------------------------------

    def etags(self, meta: Meta) -> dict[str, str]:
        """Return the current ETag of each shard; a listing tells what `_meta.json` does not."""
        etags = {one: meta.shards[one] for one in meta.partitions if one in meta.shards}
        if len(etags) < len(meta.partitions):
            listed = self.context.documents.listed_shards()
            etags |= {
                one: listed[one].etag if one in listed else ""
                for one in meta.partitions
                if one not in etags
            }
        return etags

    def outdated(self, current: Mapping[str, str], also_current: str = "") -> list[str]:
        """Return the partitions that the base does not have as they are now."""
        chosen = sorted(current) if self.scope is None else self.scope.partitions(current)
        if self.everything:
            return chosen
        return [one for one in chosen if not self._has(one, current[one], also_current)]

    def _has(self, partition: str, *etags: str) -> bool:
        recorded = {self._known.get(partition), self.scoped.get(partition)}
        return any(etag in recorded for etag in etags if etag)

    def is_cold(self) -> bool:
        """Whether the base has no partition as a whole."""
        return all(etag in (PARTIAL, GONE) for etag in self._known.values())

    def gone(self, current: Collection[str]) -> Iterator[Slice]:
        """Yield the partitions of the base that the remote has no longer."""
        recorded = {
            partition
            for etags in (self._known, self.scoped)
            for partition, etag in etags.items()
            if etag != GONE
        }
        # Single paths may be known without a record of their partition.
        recorded.update(self.context.base.partitions())
        chosen = sorted(recorded) if self.scope is None else self.scope.partitions(recorded)
        for partition in chosen:
            if partition not in current:
                yield Slice(partition, {}, GONE, complete=True)

    def mark_partial(self, partitions: Collection[str]) -> None:
        """Before entries of a partition enter the base, record that it has some of them."""
        unrecorded = [one for one in partitions if self._known.get(one, GONE) == GONE]
        if unrecorded:
            self.record(dict.fromkeys(unrecorded, PARTIAL))

    def record(self, etags: Mapping[str, str]) -> None:
        """Record as which shards the base has partitions."""
        self.context.base.apply(shards={(one, ""): etag for one, etag in etags.items()})

    def covered(self, entries: RawEntries) -> RawEntries:
        """Return the entries of the scope."""
        if self.scope is None:
            return entries
        return {rel: raw for rel, raw in entries.items() if self.scope.covers(rel)}
