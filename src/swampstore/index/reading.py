"""What changed on the remote since the base agreed with it, partition by partition."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping

from swampstore.clock import Clock, to_iso
from swampstore.index.base import Base
from swampstore.index.documents import Documents, Found
from swampstore.index.format import Meta, RawEntries
from swampstore.index.local_copy import LocalCopy
from swampstore.index.partitions import Scope, partition_of
from swampstore.index.repair import Recovery
from swampstore.index.state import (
    FOREIGN_WRITER,
    GONE,
    MONOLITH_CHECKED,
    MONOLITH_ETAG,
    PARTIAL,
    Agreements,
    Fingerprint,
    MetaSnapshot,
    Slice,
    document,
    from_monolith,
    grouped,
    same,
    with_uncommitted,
)
from swampstore.index.watch import Watch

# How often shards may change under our hands before we take the monolith, which cannot.
_ROUNDS = 3


class Reader:
    """One reading of the changes, in one scope."""

    def __init__(
        self,
        documents: Documents,
        copy: LocalCopy,
        recovery: Recovery,
        watch: Watch,
        base: Base,
        scope: Scope | None,
        *,
        everything: bool,
    ) -> None:
        self._documents = documents
        self._copy = copy
        self._recovery = recovery
        self._watch = watch
        self._base = base
        self._scope = scope
        self._everything = everything
        self._epoch = Agreements(base).epoch
        self._known = base.shard_etags()
        self._scoped = base.shard_etags(scope.key) if scope else {}
        # What there is to agree with, once it was read to the end.
        self._seen: Fingerprint | None = None

    def agreed(self, clock: Clock) -> dict[str, str | None]:
        """Return the facts that say that the base agrees with what was read."""
        if self._seen is None:
            return {}
        facts = Agreements.fact(self._scope, self._seen, self._epoch)
        if self._seen.version == 1:
            facts |= {MONOLITH_ETAG: self._seen.monolith, MONOLITH_CHECKED: to_iso(clock())}
        return facts

    def read(self, sighting: MetaSnapshot) -> Iterator[Slice]:
        """Yield the slices that the base does not agree with.

        From an index that was made anew no deletion follows.
        """
        for piece in self._read(sighting):
            is_known = not self._watch.is_another
            yield piece if is_known else piece._replace(etag=None, complete=False)
        if self._watch.is_another:
            self._seen = None

    def _read(self, sighting: MetaSnapshot) -> Iterator[Slice]:
        if sighting.discovered is not None:
            yield from self._discovered(sighting)
        elif not sighting.exists:
            return
        elif sighting.version == 2:
            yield from self._sharded(sighting)
        else:
            yield from self._monolithic(sighting)

    def _discovered(self, sighting: MetaSnapshot) -> Iterator[Slice]:
        entries_there = document(sighting.discovered or Found()).entries
        for partition, entries in grouped(entries_there).items():
            covered = self._covered(entries)
            if covered:
                yield Slice(partition, covered, None, complete=False)

    # Version 2 ---------------------------------------------------------------------------------

    def _sharded(self, sighting: MetaSnapshot) -> Iterator[Slice]:
        assert sighting.meta is not None
        current = self._etags(sighting.meta)
        outdated = self._outdated(current)
        self._mark_partial(outdated)
        is_whole = sighting.is_sound
        for partition, found in self._documents.shards(outdated):
            piece = self._shard_slice(partition, found, sighting)
            is_whole = is_whole and piece.complete
            yield piece
        # Without `_meta.json` nobody can tell a partition that is gone from one that is lost.
        if not sighting.is_healed:
            yield from self._gone(current)
        self._seen = sighting.fingerprint(None) if is_whole else None

    def _shard_slice(self, partition: str, found: Found, sighting: MetaSnapshot) -> Slice:
        if found.doc is None:
            if self._was_dropped(partition, sighting):
                return Slice(partition, {}, GONE, complete=True)
            rebuilt = document(self._recovery.rebuilt(partition, found, sighting.meta))
            return Slice(partition, self._covered(rebuilt.entries), None, complete=False)
        found = self._recovery.completed(partition, found, sighting)
        assert found.doc is not None
        is_complete = True
        if found.doc.removed and not sighting.tells_of(partition, found):
            found = with_uncommitted(partition, found, self._watch.look_again())
            is_complete = not found.restored
        placed = {}
        for rel, raw in document(found).entries.items():
            if partition_of(rel) == partition:
                placed[rel] = raw
            else:
                self._documents.report(
                    rel, f"its entry is in the wrong shard ({partition}); migrate-index moves it"
                )
        etag = found.etag if is_complete else None
        return Slice(partition, self._covered(placed), etag, complete=is_complete)

    def _was_dropped(self, partition: str, sighting: MetaSnapshot) -> bool:
        """Whether a shard is missing because its last entry was removed while we were reading."""
        meta = self._watch.look_again().meta if sighting.is_sound else None
        return meta is not None and meta.version == 2 and partition not in meta.partitions

    # Version 1 ---------------------------------------------------------------------------------

    def _monolithic(self, sighting: MetaSnapshot) -> Iterator[Slice]:
        for _ in range(_ROUNDS):
            info = self._watch.monolith_info()
            if info is None:
                yield from self._discovered(self._recovery.discover(sighting))
                return
            if self._is_agreed(sighting, info.etag):
                self._seen = sighting.fingerprint(info.etag) if sighting.is_sound else None
                return
            if not sighting.agrees_with(info.etag):
                self._base.apply(facts={FOREIGN_WRITER: "1"})
                break
            is_current = yield from self._trusted(sighting, info.etag)
            if is_current:
                return
            before, sighting = sighting, self._watch.look_again()
            if sighting.version != 1:
                yield from self._read(sighting)
                return
            if sighting.etag == before.etag:
                break
        yield from self._whole(sighting)

    def _is_agreed(self, sighting: MetaSnapshot, monolith: str) -> bool:
        """Whether the base holds what this monolith says, though `_meta.json` changed."""
        if self._everything:
            return False
        if not any(same(one.monolith, monolith) for one in self._watch.agreed(self._scope)):
            return False
        if sighting.meta is not None and sighting.agrees_with(monolith) and self._scope is None:
            self._base.apply(shards=_recorded(sighting.meta.shards))
        return True

    def _trusted(self, sighting: MetaSnapshot, monolith: str) -> Generator[Slice, None, bool]:
        """Read the changed shards of the monolith that they agree with.

        The result of the generator is False if a shard turned out to be another one.
        """
        assert sighting.meta is not None
        current = self._etags(sighting.meta)
        if sighting.text is not None:
            self._copy.agrees(monolith, sighting.text)
        if self._scope is None and (self._everything or self._is_cold()):
            yield from self._whole(sighting, current)
            return True
        outdated = self._outdated(current, from_monolith(monolith))
        self._mark_partial(outdated)
        for partition, found in self._documents.shards(outdated):
            if found.doc is None or found.etag != current[partition]:
                return False
            yield Slice(partition, self._covered(found.doc.entries), found.etag, complete=True)
        yield from self._gone(current)
        self._seen = sighting.fingerprint(monolith)
        return True

    def _whole(
        self, sighting: MetaSnapshot, current: Mapping[str, str] | None = None
    ) -> Iterator[Slice]:
        """Read everything from the monolith; `current` are the ETags of shards that agree."""
        found = self._copy.monolith()
        if found.doc is None or found.etag is None:
            yield from self._discovered(self._recovery.discover(sighting))
            return
        if current is None or not sighting.agrees_with(found.etag):
            current = {}
        elif sighting.text is not None:
            self._copy.agrees(found.etag, sighting.text)
        unsharded = from_monolith(found.etag)
        groups = grouped(found.doc.entries)
        etags = {partition: current.get(partition, unsharded) for partition in groups}
        outdated = self._outdated(etags)
        self._mark_partial(outdated)
        for partition in outdated:
            covered = self._covered(groups.pop(partition))
            yield Slice(partition, covered, etags[partition], complete=True)
        yield from self._gone(etags)
        self._seen = sighting.fingerprint(found.etag) if sighting.is_sound else None

    # Both --------------------------------------------------------------------------------------

    def _etags(self, meta: Meta) -> dict[str, str]:
        """Return the current ETag of each shard; a listing tells what `_meta.json` does not."""
        etags = {one: meta.shards[one] for one in meta.partitions if one in meta.shards}
        if len(etags) < len(meta.partitions):
            listed = self._documents.listed_shards()
            etags |= {
                one: listed[one].etag if one in listed else ""
                for one in meta.partitions
                if one not in etags
            }
        return etags

    def _outdated(self, current: Mapping[str, str], also_current: str = "") -> list[str]:
        """Return the partitions that the base does not have as they are now."""
        chosen = sorted(current) if self._scope is None else self._scope.partitions(current)
        if self._everything:
            return chosen
        return [one for one in chosen if not self._has(one, current[one], also_current)]

    def _has(self, partition: str, *etags: str) -> bool:
        recorded = {self._known.get(partition), self._scoped.get(partition)}
        return any(etag in recorded for etag in etags if etag)

    def _is_cold(self) -> bool:
        """Whether the base has no partition as a whole."""
        return all(etag in (PARTIAL, GONE) for etag in self._known.values())

    def _gone(self, current: Collection[str]) -> Iterator[Slice]:
        """Yield the partitions of the base that the remote has no longer."""
        recorded = {
            partition
            for etags in (self._known, self._scoped)
            for partition, etag in etags.items()
            if etag != GONE
        }
        # Single paths may be known without a record of their partition.
        recorded.update(self._base.partitions())
        chosen = sorted(recorded) if self._scope is None else self._scope.partitions(recorded)
        for partition in chosen:
            if partition not in current:
                yield Slice(partition, {}, GONE, complete=True)

    def _mark_partial(self, partitions: Collection[str]) -> None:
        """Before entries of a partition enter the base, record that it has some of them."""
        unrecorded = [one for one in partitions if self._known.get(one, GONE) == GONE]
        if unrecorded:
            self._base.apply(shards=_recorded(dict.fromkeys(unrecorded, PARTIAL)))

    def _covered(self, entries: RawEntries) -> RawEntries:
        if self._scope is None:
            return entries
        return {rel: raw for rel, raw in entries.items() if self._scope.covers(rel)}


def _recorded(etags: Mapping[str, str]) -> dict[tuple[str, str], str]:
    return {(partition, ""): etag for partition, etag in etags.items()}
