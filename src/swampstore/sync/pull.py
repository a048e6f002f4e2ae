"""Bringing remote changes into the cache: compare slices of the index, fetch, land, remember.

Local work is never touched: a file that differs from the base stays as it is, and the next push
settles the two. Files are moved into place batch by batch, and each batch is remembered, so a
pull that is stopped goes on where it was. That a slice is done is only remembered when all of it
is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from swampstore.stores.errors import CorruptObjectError
from swampstore.sync import conflicts
from swampstore.sync.downloads import Dangling, Download, Downloader, Fetched, Staging
from swampstore.sync.errors import IncompleteSyncError, SyncError
from swampstore.sync.index_format import Entry
from swampstore.sync.landing import Arrival, Landed, LandingError
from swampstore.sync.parts import Parts
from swampstore.sync.pull_plan import PullPlanner, PullWork, known_of
from swampstore.sync.report import Progress, Pulled, Skipped, Step
from swampstore.sync.shapes import is_marker, unit_of, version_file
from swampstore.sync.signature import Signature
from swampstore.sync.workers import Deadline, in_parallel

# What has arrived is put in its place when it is so much; whoever is stopped loses no more.
_BATCH = 512
_BATCH_BYTES = 64 << 20
_BATCH_SECONDS = 2.0


class Pull:
    """One pull into one cache."""

    def __init__(
        self, parts: Parts, planner: PullPlanner, *, deadline: Deadline, tell: Progress
    ) -> None:
        self._parts = parts
        self._planner = planner
        self._deadline = deadline
        self._tell = tell
        self._files = self._bytes = self._deleted = 0

    def run(self) -> Pulled:
        """Pull; raise IncompleteSyncError at the end if some files could not be had."""
        work = self._planner.plan()
        self._parts.base.drop_shards(work.undone)
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

    def _transfer(self, work: PullWork, downloader: Downloader) -> None:
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

    def _fetched(self, work: PullWork, downloader: Downloader, total: int) -> Iterator[Fetched]:
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

    def _skip_spoiled(self, rel: str, work: PullWork) -> None:
        """Go on without a file that is being replaced, or whose replacement was never finished.

        What a marker would say can be told without it, and the push that shares that puts the
        object right; anything else is tried again next time.
        """
        if is_marker(rel):
            work.names.add(unit_of(rel))
            self._parts.base.note_uploads({rel: ("", "")})
        reason = "its object is not what the index says; another machine has begun to replace it"
        work.skipped.append(Skipped(rel, reason))
        work.unfinished.add(work.slice_of.get(rel, ("", "")))

    def _land(self, batch: list[Fetched], work: PullWork) -> None:
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
            known.append(known_of(rel, entry, now, fetched[rel].token, recorded))
            self._files += 1
            self._bytes += entry.size
        self._parts.base.apply(known=known)
        self._leave(fetched.keys() - landed.keys(), work)

    def _remove(self, work: PullWork) -> None:
        rels = sorted(work.removals)
        for start in range(0, len(rels), _BATCH):
            batch = rels[start : start + _BATCH]
            arrivals = [Arrival(rel, None, work.expected[rel]) for rel in batch]
            gone = {one.rel for one in self._landed(arrivals, work)}
            self._parts.base.apply(forgotten=gone)
            self._deleted += len(gone)
            self._leave(set(batch) - gone, work)

    def _landed(self, arrivals: list[Arrival], work: PullWork) -> list[Landed]:
        try:
            landed = self._parts.landing.land(arrivals)
        except LandingError as error:
            work.failures |= error.failures
            landed = list(error.landed)
        work.names |= {unit for one in landed if (unit := unit_of(one.rel)) != one.rel}
        return landed

    def _repair_markers(self, work: PullWork) -> None:
        """Let `latest` name the highest version where what arrived does not fit together.

        That happens when two machines each deleted a version, or one of them was stopped while
        it pushed. It is a change of ours then, and the next push shares it.
        """
        unsure = {unit_of(rel) for rel in (*work.failures, *work.left)}
        for name_rel in sorted(work.names - unsure):
            if not conflicts.is_marker_right(self._parts, name_rel):
                self._parts.landing.repoint(name_rel)

    @staticmethod
    def _leave(rels: Iterable[str], work: PullWork) -> None:
        """Leave paths alone whose local file changed while we were at it."""
        for rel in rels:
            work.left.add(rel)
            work.unfinished.add(work.slice_of.get(rel, ("", "")))
            if rel not in work.failures:
                reason = "it was changed here meanwhile; the next sync looks"
                work.skipped.append(Skipped(rel, reason))

    def _remember(self, work: PullWork) -> None:
        """Remember which slices are done, and if that is all, that the cache is up to date."""
        shards = {
            token: etag for token, etag in work.slices.items() if token not in work.unfinished
        }
        is_complete = not work.unfinished and not work.failures
        facts = self._parts.index.agreed() if is_complete else {}
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
    parts.base.apply(known=[known_of(rel, entry, landed[0].signature, fetched.token, recorded)])
    return True
