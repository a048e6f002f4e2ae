"""Carrying files between a cache and its store, and putting them in their places in batches."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Protocol

from msgspec.structs import replace

from swampstore.errors import SwampstoreError
from swampstore.files import is_out_of_space
from swampstore.files.signature import Signature
from swampstore.index.base import ARRIVING, Arriving, Known
from swampstore.index.errors import SyncError
from swampstore.index.format import Entry, entry_known
from swampstore.index.path_kinds import (
    is_derived,
    is_lazy,
    is_marker,
    metadata_beside,
    parted_from_metadata,
    unit_of,
    version_file,
)
from swampstore.index.results import Progress, Skipped, Step
from swampstore.index.workers import Deadline, Done
from swampstore.layout import RAW
from swampstore.stores.errors import CorruptObjectError, StoreUnreachableError
from swampstore.sync import merge
from swampstore.sync.arrivals import Arrival, Installed
from swampstore.sync.begun_appends import fetch_committed
from swampstore.sync.context import SyncContext
from swampstore.sync.copies import Copies
from swampstore.sync.downloads import (
    BATCH,
    Brought,
    Dangling,
    Download,
    Downloader,
    Fetched,
    Staging,
    fetch_all,
)
from swampstore.sync.install import InstallError
from swampstore.sync.pull_plan import PullWork, known_of
from swampstore.sync.uploads import Placed, Upload, Uploader, Witness, put_all


class Transport(Protocol):
    """Carries files one by one, in no order. Each of them comes back once, done or failed.

    Leaving the iteration early ends it. Whatever was carried by then is harmless: the next push
    finds its own objects, and staged files go with their directory.
    """

    def upload(
        self,
        context: SyncContext,
        uploads: Sequence[Upload],
        sizes: Mapping[str, int],
        deadline: Deadline,
    ) -> Iterator[Done[Upload, Placed]]:
        """Put files into the store; `sizes` says, by path, how much each is."""

    def download(
        self,
        context: SyncContext,
        downloads: Sequence[Download],
        staging: Staging,
        deadline: Deadline,
    ) -> Iterator[Done[Download, Brought]]:
        """Fetch objects into files below the staging directory."""


class Threads:
    """Carries with as many threads as the store allows; a `witness` hears of what was sent."""

    def __init__(self, witness: Witness | None = None) -> None:
        self._witness = witness

    def upload(
        self,
        context: SyncContext,
        uploads: Sequence[Upload],
        sizes: Mapping[str, int],
        deadline: Deadline,
    ) -> Iterator[Done[Upload, Placed]]:
        """Put files into the store."""
        del sizes
        copies = Copies(context.store, context.names, context.base)
        uploader = Uploader(context.store, context.names, context.clock, copies, self._witness)
        return put_all(uploader, uploads, context.limits.push_concurrency, deadline)

    def download(
        self,
        context: SyncContext,
        downloads: Sequence[Download],
        staging: Staging,
        deadline: Deadline,
    ) -> Iterator[Done[Download, Brought]]:
        """Fetch objects into files below the staging directory."""
        downloader = Downloader(context.store, context.names, staging)
        return fetch_all(downloader, downloads, context.limits.pull_concurrency, deadline)


THREADS = Threads()


# As with BATCH: whoever is stopped loses no more than that.
_BATCH_BYTES = 64 << 20
_BATCH_SECONDS = 2.0


class Transfer:
    """The downloads of one piece of work. `phase` is what the progress is called.

    `files` and `bytes` are what has come so far, `content_bytes` how much of it was content.
    `give_up_after`: so many files in a row that find nobody at the other end are one failure of
    the whole, as long as nothing has come at all. `before` is what the base knew of each path, for
    whoever does not hold the cache: what a sync has learnt since is not overwritten, and what came
    goes again. `overtaken` are the paths of that.
    """

    def __init__(
        self,
        context: SyncContext,
        work: PullWork,
        *,
        phase: str,
        deadline: Deadline,
        progress: Progress,
        give_up_after: int | None = None,
        transport: Transport = THREADS,
        before: Mapping[str, Known] | None = None,
    ) -> None:
        self.files = self.bytes = self.content_bytes = 0
        self.overtaken: set[str] = set()
        self._before = before
        self._context = context
        self._work = work
        self._phase = phase
        self._deadline = deadline
        self._progress = progress
        self._give_up_after = give_up_after
        self._transport = transport
        self._unreached = 0
        # What comes with its metadata need not find any.
        self._alone = {*parted_from_metadata(work.downloads)}
        pairs = [(rel, metadata_beside(rel)) for rel in work.replaced_content()]
        self._partners = dict(pairs) | {metadata: rel for rel, metadata in pairs}
        self._waiting: dict[str, Fetched] = {}

    def run(self) -> None:
        """Fetch and install; what could not be had is among the work's failures."""
        with Staging(self._context.names.cache_dir) as staging:
            self._transfer(staging)

    def install(self, arrivals: list[Arrival]) -> list[Installed]:
        """Put files in their places, or remove them, and return those for which that was done."""
        try:
            installed = self._context.installer.install(arrivals)
        except InstallError as error:
            self._work.failures |= error.failures
            installed = list(error.installed)
        names = {one.name_rel for one in installed if one.name_rel}
        self._work.names |= names
        self._work.settled -= names
        self._work.settled |= {one.name_rel for one in installed if one.is_right}
        return installed

    def leave(self, rels: Iterable[str]) -> None:
        """Leave paths alone whose local file changed while we were at it."""
        for rel in rels:
            self._work.left.add(rel)
            self._put_off(rel)
            if rel not in self._work.failures:
                reason = "it was changed here meanwhile; the next sync looks"
                self._work.skipped.append(Skipped(rel, reason))

    def _transfer(self, staging: Staging) -> None:
        batch: list[Fetched] = []
        size, began = 0, time.monotonic()
        try:
            for done in self._together(self._fetched(staging)):
                batch.append(done)
                size += done.size
                is_due = time.monotonic() - began > _BATCH_SECONDS
                if is_due or len(batch) >= BATCH or size >= _BATCH_BYTES:
                    arrived, batch = batch, []
                    self._install(arrived)
                    size, began = 0, time.monotonic()
        finally:
            # Also when the time is over or somebody pressed Ctrl-C: it is here, so it is kept.
            self._install(batch)
            for rel in self._waiting:
                self._put_off(rel)

    def _together(self, fetched: Iterable[Fetched]) -> Iterator[Fetched]:
        """Yield what was fetched; of a version that is here, content and metadata together.

        One of them alone would make the other one damaged.
        """
        for one in fetched:
            partner = self._partners.get(one.rel)
            if partner is None:
                yield one
            elif partner in self._waiting:
                yield self._waiting.pop(partner)
                yield one
            else:
                self._waiting[one.rel] = one

    def _without_partner(self, rel: str) -> Iterator[Fetched]:
        """Yield what waits for a file of which the store has nothing; nothing waits for it now."""
        partner = self._partners.pop(rel, None)
        if partner is not None:
            del self._partners[partner]
            if partner in self._waiting:
                yield self._waiting.pop(partner)

    def _fetched(self, staging: Staging) -> Iterator[Fetched]:
        size = 0
        # What is below one directory is together then: data names are whole in a batch, mostly.
        tasks = sorted(self._work.downloads.values(), key=itemgetter(0))
        total = sum(one.entry.size for one in tasks)
        transfers = self._transport.download(self._context, tasks, staging, self._deadline)
        for files, (task, brought, error) in enumerate(transfers, 1):
            size += task.entry.size
            self._progress(Step(self._phase, files, len(tasks), size, total))
            done = brought if error is None else self._after(error, task, staging)
            if isinstance(done, Dangling):
                self._work.dangling.append(task.rel)
                reason = "the index names it, the store does not have it"
                self._work.skipped.append(Skipped(task.rel, reason))
                self._let_it_be_made_again(task.rel)
                if self._context.store.capabilities.keeps_paths:
                    self._put_off(task.rel)  # a cursor never comes back to what it has passed
                yield from self._without_partner(task.rel)
            elif done is not None:
                self._give_up_after = None
                yield done

    def _content_beside(self, rel: str) -> Entry | None:
        """Return what the content of a version is to be, as far as is known here."""
        raw = f"{rel.rpartition('/')[0]}/{RAW}"
        if raw in self._work.downloads:
            return self._work.downloads[raw].entry
        known = next((one for one in self._work.known if one.rel == raw), None)
        known = known or self._context.base.get(raw)
        return entry_known(known) if known else None

    def _after(self, error: SwampstoreError, task: Download, staging: Staging) -> Fetched | None:
        """Return what can be had after all; if it cannot, tell of that, and go on without it."""
        if is_out_of_space(error):
            # It is nothing about this file, and the others would not fit either.
            raise error
        if not isinstance(error, CorruptObjectError):
            self._fail(task, error)
        elif version_file(task.rel) is None:
            self._skip_spoiled(task.rel)
        elif self._is_entry_wrong(task.rel):
            reason = "its object is ours, and not what the index says; the next push corrects that"
            self._work.skipped.append(Skipped(task.rel, reason))
            self._put_off(task.rel)
        else:
            content = self._content_beside(task.rel)
            fetched = fetch_committed(self._context, task, staging, content)
            if fetched is not None:
                return fetched
            self._fail(task, error)
        return None

    def _fail(self, task: Download, error: SwampstoreError) -> None:
        self._work.failures[task.rel] = error.message
        self._put_off(task.rel)
        if isinstance(error, StoreUnreachableError):
            self._unreached += 1
            if self._unreached == self._give_up_after:
                raise error

    def _is_entry_wrong(self, rel: str) -> bool:
        """Whether the object still is what the base knows, and only the index says otherwise.

        Then it is marked as new, here as well, for the next push to tell of it.
        """
        known = self._context.base.get(rel)
        if known is None or not merge.has_content(self._context, rel, known.size, known.sha256):
            return False
        if self._work.expected.get(rel) is None:
            entry = entry_known(known)
            take_remote(self._context, rel, entry, None)
        self._context.tracker.mark_written(self._context.names.mark(rel))
        self._context.base.apply(forgotten=[rel])
        return True

    def _skip_spoiled(self, rel: str) -> None:
        """Go on without a file that is being replaced, or whose replacement was never finished."""
        self._let_it_be_made_again(rel)
        reason = "its object is not what the index says; another machine has begun to replace it"
        self._work.skipped.append(Skipped(rel, reason))
        self._put_off(rel)

    def _let_it_be_made_again(self, rel: str) -> None:
        """Let an object be put right by the next push that shares what can be told without it.

        That is what a marker would say, and what is derived. Anything else is for those to send
        again who have it.
        """
        if is_marker(rel):
            self._work.names.add(unit_of(rel))
        if is_marker(rel) or is_derived(rel):
            self._context.base.note_uploads({rel: ("", "")})

    def _put_off(self, rel: str) -> None:
        self._work.unfinished.add(self._work.slice_of.get(rel, ("", "")))

    def _known(self, fetched: Fetched, held: Signature | None, recorded: int) -> Known:
        entry = self._work.downloads[fetched.rel].entry
        if entry.sha256 is None:
            entry = replace(entry, sha256=fetched.sha256)
        return known_of(fetched.rel, entry, held, fetched.token, recorded)

    def _announce(self, fetched: Mapping[str, Fetched]) -> bool:
        """Note what is about to be installed: if we are stopped there, nobody takes it for new.

        What the base knows already, and only the content was missing of, is not taken for that.
        Return whether there is anything to note.
        """
        new = [
            Arriving(rel, entry.size, one.sha256, entry.last_modified, one.token, one.path)
            for rel, one in fetched.items()
            if rel in self._work.slice_of
            for entry in (self._work.downloads[rel].entry,)
        ]
        if new:
            self._context.base.note_arrivals(new)
        return bool(new)

    def _install(self, batch: list[Fetched]) -> None:
        if not batch:
            return
        fetched = {one.rel: one for one in batch}
        expected = self._work.expected
        arrivals = [Arrival(one.rel, one.path, expected[one.rel], one.data) for one in batch]
        recorded = time.time_ns()
        is_noted = self._announce(fetched)
        installed = {one.rel: one.signature for one in self.install(arrivals)}
        known = [self._known(fetched[rel], now, recorded) for rel, now in installed.items()]
        gone = parted(self._context, self._alone & installed.keys())
        facts = {ARRIVING: None} if is_noted else {}
        kept = keep(self._context, known, gone, before=self._before, facts=facts)
        self.overtaken |= installed.keys() - {one.rel for one in kept}
        for one in kept:
            self.files += 1
            self.bytes += one.size
            self.content_bytes += one.size if is_lazy(one.rel) else 0
        self.leave(fetched.keys() - {one.rel for one in kept})


def take_remote(context: SyncContext, rel: str, entry: Entry, expected: Signature | None) -> bool:
    """Put the remote's content of one path in place of ours; False if the remote has none.

    Raises SyncError if our file is not the expected one any more.
    """
    known = _taken(context, rel, entry, expected)
    if known is not None:
        context.base.apply(known=[known])
    return known is not None


def take_content(context: SyncContext, rel: str, entry: Entry, before: Known | None) -> bool | None:
    """Fetch content that is not here, for whoever does not hold the cache.

    False if the remote has none. None if a sync has learnt something else of it meanwhile than
    what was known `before`: then it is not here. Raises SyncError if there is a file by now.
    """
    known = _taken(context, rel, entry, None)
    if known is None:
        return False
    gone = parted(context, [rel])
    return bool(keep(context, [known], gone, before={rel: before} if before else {})) or None


def _taken(
    context: SyncContext, rel: str, entry: Entry, expected: Signature | None
) -> Known | None:
    with Staging(context.names.cache_dir) as staging:
        download = Download(rel, entry)
        fetched: Brought | None
        try:
            fetched = Downloader(context.store, context.names, staging).fetch(download)
        except CorruptObjectError:
            fetched = fetch_committed(context, download, staging, entry)
            if fetched is None:
                raise
        if isinstance(fetched, Dangling):
            return None
        recorded = time.time_ns()
        installed = context.installer.install([Arrival(rel, fetched.path, expected)])
    if not installed:
        raise SyncError(f"{rel} is being changed right now", hint="Sync again when that is done.")
    entry = replace(entry, sha256=fetched.sha256)
    return known_of(rel, entry, installed[0].signature, fetched.token, recorded)


def keep(
    context: SyncContext,
    arrived: Collection[Known],
    gone: set[str],
    *,
    before: Mapping[str, Known] | None = None,
    facts: Mapping[str, str | None] = MappingProxyType({}),
) -> list[Known]:
    """Let the base know what has come, without what is `gone`; return what stays.

    Nor does content stay of which a sync has learnt something else than what was known `before`:
    others have changed that version, or deleted it. Whoever holds the cache need not say that.
    """
    kept = [one for one in arrived if one.rel not in gone]
    if before is None:
        context.base.apply(known=kept, facts=facts)
    else:
        gone = gone | context.base.hold({one: before.get(one.rel) for one in kept})
    if gone:
        back = [Arrival(one.rel, None, one.held) for one in arrived if one.rel in gone]
        context.installer.install(back)
    return [one for one in kept if one.rel not in gone]


def parted(context: SyncContext, rels: Iterable[str]) -> set[str]:
    """Return the content of versions whose metadata was here, and is not any more.

    They were deleted meanwhile, and their content would be left behind.
    """
    beside = {metadata_beside(rel): rel for rel in rels if is_lazy(rel) and version_file(rel)}
    missing = [one for one in beside if not os.path.lexists(context.names.local(one))]
    return {beside[one] for one in context.base.get_many(missing)}
