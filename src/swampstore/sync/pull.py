"""Bringing remote changes into the cache: compare slices of the index, fetch, land, remember.

Local work is never touched: a file that differs from the base stays as it is, and the next push
settles the two. Files are moved into place batch by batch, and each batch is remembered, so a
pull that is stopped goes on where it was. That a slice is done is only remembered when all of it
is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swampstore.errors import SwampstoreError
from swampstore.stores.errors import CorruptObjectError
from swampstore.sync import conflicts
from swampstore.sync.base import Known
from swampstore.sync.downloads import Dangling, Download, Downloader, Fetched, Staging
from swampstore.sync.errors import IncompleteSyncError, IndexDamagedError, SyncError
from swampstore.sync.index_format import Entry, decode_entry
from swampstore.sync.landing import Arrival, Landed, LandingError
from swampstore.sync.links import Links
from swampstore.sync.local_scan import is_covered
from swampstore.sync.merge import Decision, Local, decide, remote_changed
from swampstore.sync.partitions import Scope
from swampstore.sync.parts import Parts
from swampstore.sync.remote import Slice
from swampstore.sync.report import Conflict, Progress, Pulled, Skipped, Step
from swampstore.sync.shapes import is_lazy, is_marker, unit_of, version_file
from swampstore.sync.signature import Signature, hash_file, is_surely_unchanged, signature
from swampstore.sync.workers import Deadline, in_parallel

if TYPE_CHECKING:
    import msgspec

# What has arrived is put in its place when it is so much; whoever is stopped loses no more.
_BATCH = 512
_BATCH_BYTES = 64 << 20
_BATCH_SECONDS = 2.0


@dataclass(slots=True)
class _State:
    """The local file of one path against the base."""

    local: Local
    signature: Signature | None = None
    sha256: str | None = None


@dataclass(slots=True)
class _Work:
    """What has to be done, and what has been found out, over any number of slices."""

    downloads: dict[str, Download] = field(default_factory=dict)
    removals: dict[str, Known] = field(default_factory=dict)
    expected: dict[str, Signature | None] = field(default_factory=dict)
    known: list[Known] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    # Slices that are done when none of their paths is left over: (partition, scope) -> etag.
    slices: dict[tuple[str, str], str] = field(default_factory=dict)
    slice_of: dict[str, tuple[str, str]] = field(default_factory=dict)
    unfinished: set[tuple[str, str]] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    # Data names of which something arrived or went, and what kept some of it from that.
    names: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)


class Pull:
    """One pull into one cache."""

    def __init__(
        self,
        parts: Parts,
        scope: Scope | None,
        *,
        metadata_only: bool,
        full: bool,
        deadline: Deadline,
        tell: Progress,
    ) -> None:
        self._parts = parts
        self._scope = scope
        self._metadata_only = metadata_only
        self._full = full
        self._deadline = deadline
        self._tell = tell
        self.is_complete = False
        self._began_ns = time.time_ns()
        self._marked = frozenset(parts.tracker.peek().paths)
        self._links = Links(parts.names.root)
        self._files = self._bytes = self._deleted = 0

    def run(self) -> Pulled:
        """Pull; raise IncompleteSyncError at the end if some files could not be had."""
        work = self.look()
        if not self._metadata_only:
            self._want_content(work)
        self._parts.base.apply(known=work.known, forgotten=work.forgotten)
        with Staging(self._parts.names) as staging:
            self._transfer(work, Downloader(self._parts.store, self._parts.names, staging))
        self._remove(work)
        self._repair_markers(work)
        self._parts.landing.bulk_done()
        self._remember(work)
        if work.failures:
            raise IncompleteSyncError("pull", work.failures)
        return Pulled(
            self._files,
            self._bytes,
            self._deleted,
            tuple(work.conflicts),
            tuple(work.skipped),
        )

    def look(self) -> _Work:
        """Find out what has to be done, without doing it."""
        work = _Work()
        for one in self._parts.index.changes(self._scope, everything=self._full):
            self._deadline.remaining()
            self._compare(one, work)
        work.skipped.extend(self._parts.index.damage)
        return work

    # Comparing -------------------------------------------------------------------------------

    def _compare(self, piece: Slice, work: _Work) -> None:
        token = (piece.partition, self._scope.key if self._scope else "")
        if piece.etag is not None:
            work.slices[token] = piece.etag
        else:
            self._parts.base.drop_shards([piece.partition])
        known = self._parts.base.in_partition(piece.partition)
        for rel, raw in piece.entries.items():
            self._compare_entry(rel, raw, known.get(rel), token, work)
        if not piece.complete:
            work.unfinished.add(token)
            return
        for rel, before in known.items():
            if rel not in piece.entries and (self._scope is None or self._scope.covers(rel)):
                self._act(rel, before, None, token, work)

    def _compare_entry(
        self, rel: str, raw: msgspec.Raw, before: Known | None, token: tuple[str, str], work: _Work
    ) -> None:
        reason = self._parts.names.why_not(rel)
        if reason is not None:
            work.skipped.append(Skipped(rel, reason))
            return
        try:
            entry = decode_entry(rel, raw)
        except IndexDamagedError as error:
            work.skipped.append(Skipped(rel, error.message))
            work.unfinished.add(token)
            return
        if self._full or remote_changed(before, entry):
            self._act(rel, before, entry, token, work)

    def _act(
        self,
        rel: str,
        before: Known | None,
        entry: Entry | None,
        token: tuple[str, str],
        work: _Work,
    ) -> None:
        try:
            state = self._state(rel, before)
        except SwampstoreError as error:
            work.failures[rel] = error.message
            work.unfinished.add(token)
            return
        decision = decide(state.local, state.sha256, before, entry)
        if decision is Decision.CONFLICT and entry is not None:
            decision = self._reconsider(rel, state, entry)
        work.slice_of[rel] = token
        match decision:
            case Decision.PULL if entry is not None:
                self._fetch(rel, entry, state, work)
            case Decision.ADOPT if entry is not None:
                same = replace(entry, sha256=state.sha256 or entry.sha256)
                work.known.append(_known_of(rel, same, state.signature, None, self._began_ns))
            case Decision.DELETE_LOCAL if before is not None:
                work.removals[rel] = before
                work.expected[rel] = state.signature
            case Decision.FORGET:
                work.forgotten.append(rel)
            case Decision.CONFLICT:
                work.unfinished.add(token)
                work.conflicts.append(
                    Conflict(rel, "it changed here and elsewhere; the next push keeps both")
                )
            case Decision.NOTHING if before is not None and state.signature is not None:
                if state.signature != before.held:
                    work.known.append(
                        replace(before, held=state.signature, recorded_ns=self._began_ns)
                    )

    def _fetch(self, rel: str, entry: Entry, state: _State, work: _Work) -> None:
        if self._metadata_only and is_lazy(rel) and state.signature is None:
            work.known.append(_known_of(rel, entry, None, None, self._began_ns))
            return
        work.downloads[rel] = Download(rel, entry)
        work.expected[rel] = state.signature

    def _state(self, rel: str, before: Known | None) -> _State:
        path = self._parts.names.local(rel)
        now = signature(path)
        if now is None:
            return _State(Local.DELETED if self._was_deleted(rel, before) else Local.ABSENT)
        if before and before.held and is_surely_unchanged(before.held, now, before.recorded_ns):
            return _State(Local.SAME, now)
        self._links.check(rel)
        try:
            sha256, now = hash_file(path)
        except FileNotFoundError:
            return _State(Local.ABSENT)
        same = before is not None and before.sha256 == sha256
        return _State(Local.SAME if same else Local.CHANGED, now, sha256)

    def _was_deleted(self, rel: str, before: Known | None) -> bool:
        """Whether a missing file is a deletion that was not pushed yet."""
        if before is None or not is_covered(self._parts.names.mark(rel), self._marked):
            return False
        return before.held is not None or not os.path.lexists(
            os.path.dirname(self._parts.names.local(rel))
        )

    def _reconsider(self, rel: str, state: _State, entry: Entry) -> Decision:
        """Look closer at what both sides changed: it may be settled without a push."""
        if is_marker(rel):
            ours = conflicts.local_marker(self._parts, rel)
            if conflicts.remote_marker(self._parts, rel) > ours:
                return Decision.PULL
        elif self._is_equal(rel, state, entry):
            return Decision.ADOPT
        return Decision.CONFLICT

    def _is_equal(self, rel: str, state: _State, entry: Entry) -> bool:
        """Whether the object has the content of our file, where the index does not tell."""
        if entry.sha256 or state.signature is None or entry.size != state.signature.size:
            return False
        return state.sha256 == conflicts.remote_sha256(self._parts, rel)

    def _want_content(self, work: _Work) -> None:
        """After a pull of metadata only, content that never came is still to be fetched."""
        if not self._parts.base.not_held():
            return
        for known in self._parts.base.below("data"):
            if known.held is not None or known.rel in work.slice_of:
                continue
            if self._scope is not None and not self._scope.covers(known.rel):
                continue
            if self._state(known.rel, known).local is Local.ABSENT:
                entry = Entry(known.size, known.modified, known.sha256)
                work.downloads[known.rel] = Download(known.rel, entry)
                work.expected[known.rel] = None

    # Transferring ----------------------------------------------------------------------------

    def _transfer(self, work: _Work, downloader: Downloader) -> None:
        total = sum(one.entry.size for one in work.downloads.values())
        batch: list[Fetched] = []
        size, began = 0, time.monotonic()
        try:
            for done in self._fetched(work, downloader, total):
                batch.append(done)
                size += done.size
                is_due = time.monotonic() - began > _BATCH_SECONDS
                if is_due or len(batch) >= _BATCH or size >= _BATCH_BYTES:
                    landing, batch = batch, []
                    self._land(landing, work)
                    size, began = 0, time.monotonic()
        finally:
            # Also when the time is over or somebody pressed Ctrl-C: it is here, so it is kept.
            self._land(batch, work)

    def _fetched(self, work: _Work, downloader: Downloader, total: int) -> Iterator[Fetched]:
        size = 0
        tasks = sorted(work.downloads.values(), key=lambda one: unit_of(one.rel))
        transfers = in_parallel(
            downloader.fetch, tasks, self._parts.limits.pull_concurrency, self._deadline
        )
        for files, (task, done, error) in enumerate(transfers, 1):
            size += task.entry.size
            self._tell(Step("pull", files, len(tasks), size, total))
            if isinstance(error, CorruptObjectError) and version_file(task.rel) is None:
                self._skip_spoiled(task.rel, work)
            elif error is not None:
                work.failures[task.rel] = error.message
                work.unfinished.add(work.slice_of.get(task.rel, ("", "")))
            elif isinstance(done, Dangling):
                reason = "the index names it, the store does not have it"
                work.skipped.append(Skipped(task.rel, reason))
            elif done is not None:
                yield done

    @staticmethod
    def _skip_spoiled(rel: str, work: _Work) -> None:
        """Go on without a file that is being replaced, or whose replacement was never finished.

        What a marker would say can be told without it; anything else is tried again next time.
        """
        if is_marker(rel):
            work.names.add(unit_of(rel))
        reason = "its object is not what the index says; another machine has begun to replace it"
        work.skipped.append(Skipped(rel, reason))
        work.unfinished.add(work.slice_of.get(rel, ("", "")))

    def _land(self, batch: list[Fetched], work: _Work) -> None:
        if not batch:
            return
        fetched = {one.rel: one for one in batch}
        arrivals = [Arrival(one.rel, one.path, work.expected[one.rel]) for one in batch]
        recorded = time.time_ns()
        landed = {one.rel: one.signature for one in self._landed(arrivals, work)}
        known = []
        for rel, now in landed.items():
            entry = work.downloads[rel].entry
            entry = replace(entry, sha256=fetched[rel].sha256)
            known.append(_known_of(rel, entry, now, fetched[rel].token, recorded))
            self._files += 1
            self._bytes += entry.size
        self._parts.base.apply(known=known)
        self._leave(fetched.keys() - landed.keys(), work)

    def _remove(self, work: _Work) -> None:
        rels = sorted(work.removals)
        for start in range(0, len(rels), _BATCH):
            batch = rels[start : start + _BATCH]
            arrivals = [Arrival(rel, None, work.expected[rel]) for rel in batch]
            gone = {one.rel for one in self._landed(arrivals, work)}
            self._parts.base.apply(forgotten=gone)
            self._deleted += len(gone)
            self._leave(set(batch) - gone, work)

    def _landed(self, arrivals: list[Arrival], work: _Work) -> list[Landed]:
        try:
            landed = self._parts.landing.land(arrivals)
        except LandingError as error:
            work.failures |= error.failures
            landed = list(error.landed)
        work.names |= {unit for one in landed if (unit := unit_of(one.rel)) != one.rel}
        return landed

    def _repair_markers(self, work: _Work) -> None:
        """Let `latest` name the highest version where what arrived does not fit together.

        That happens when two machines each deleted a version, or one of them was stopped while
        it pushed. It is a change of ours then, and the next push shares it.
        """
        unsure = {unit_of(rel) for rel in (*work.failures, *work.left)}
        for name_rel in sorted(work.names - unsure):
            if not conflicts.is_marker_right(self._parts, name_rel):
                self._parts.landing.repoint(name_rel)

    @staticmethod
    def _leave(rels: Iterable[str], work: _Work) -> None:
        """Leave paths alone whose local file changed while we were at it."""
        for rel in rels:
            work.left.add(rel)
            work.unfinished.add(work.slice_of.get(rel, ("", "")))
            if rel not in work.failures:
                reason = "it was changed here meanwhile; the next sync looks"
                work.skipped.append(Skipped(rel, reason))

    def _remember(self, work: _Work) -> None:
        """Remember which slices are done, and if that is all, that the cache is up to date."""
        shards = {
            token: etag for token, etag in work.slices.items() if token not in work.unfinished
        }
        self.is_complete = not work.unfinished and not work.failures
        facts = self._parts.index.agreed() if self.is_complete else {}
        self._parts.base.apply(shards=shards, facts=facts)


def take_remote(parts: Parts, rel: str, entry: Entry, expected: Signature | None) -> bool:
    """Put the remote's content of one path in place of ours; False if the remote has none.

    Raises SyncError if our file is not the expected one any more.
    """
    with Staging(parts.names) as staging:
        fetched = Downloader(parts.store, parts.names, staging).fetch(Download(rel, entry))
        if isinstance(fetched, Dangling):
            return False
        recorded = time.time_ns()
        landed = parts.landing.land([Arrival(rel, fetched.path, expected)])
    if not landed:
        raise SyncError(f"{rel} is being changed right now", hint="Sync again when that is done.")
    entry = replace(entry, sha256=fetched.sha256)
    parts.base.apply(known=[_known_of(rel, entry, landed[0].signature, fetched.token, recorded)])
    return True


def _known_of(
    rel: str,
    entry: Entry,
    held: Signature | None,
    token: str | None,
    recorded_ns: int,
) -> Known:
    return Known(
        rel,
        entry.size,
        entry.sha256,
        entry.last_modified,
        token,
        held,
        recorded_ns,
    )
