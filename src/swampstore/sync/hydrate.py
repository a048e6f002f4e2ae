"""Fetching content that stayed on the remote, much of it at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from swampstore.errors import ContentMissingError, ContentOutdatedError, SwampstoreError
from swampstore.files.signature import signature
from swampstore.index.base import Known
from swampstore.index.errors import IncompleteSyncError, SyncError
from swampstore.index.format import Entry, entry_known
from swampstore.index.partitions import partition_of
from swampstore.index.results import Progress
from swampstore.index.workers import Deadline
from swampstore.stores.errors import CorruptObjectError, StoreError
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Download
from swampstore.sync.merge import is_content_of_ours, remote_changed
from swampstore.sync.pull_plan import PullWork
from swampstore.sync.transfer import Transfer, parted, take_content

# How often others may change content while it is fetched.
_ATTEMPTS = 3
OUTDATED = "others have changed it since the last sync of this machine"


class Hydrated(msgspec.Struct, frozen=True):
    """What was fetched, or would be; `missing` are the paths of which the remote has nothing."""

    files: int = 0
    bytes: int = 0
    missing: tuple[str, ...] = ()


class Hydration:
    """Brings paths of one cache that are not here; what is here costs no request."""

    def __init__(self, context: SyncContext, *, deadline: Deadline, progress: Progress) -> None:
        self._context = context
        self._deadline = deadline
        self._progress = progress

    def run(self, rels: Iterable[str]) -> Hydrated:
        """Fetch; raise IncompleteSyncError at the end if some could not be had.

        Raises StoreUnreachableError at once if nobody answers at all.
        """
        wanted, files, size = self._absent(rels), 0, 0
        missing: set[str] = set()
        for _ in range(_ATTEMPTS):
            known, entries = _look_up(self._context, wanted)
            work = PullWork(
                downloads={rel: Download(rel, entry) for rel, entry in entries.items()},
                expected=dict.fromkeys(entries),
            )
            transfer = Transfer(
                self._context,
                work,
                phase="hydrate",
                deadline=self._deadline,
                progress=self._progress,
                give_up_after=self._context.limits.pull_concurrency,
                before=known,
            )
            transfer.run()
            if work.failures:
                outdated = _outdated(self._context, work.failures)
                reasons = work.failures | dict.fromkeys(outdated, OUTDATED)
                raise IncompleteSyncError("hydrate", reasons)
            files, size = files + transfer.files, size + transfer.bytes
            missing.update(work.dangling, (rel for rel in wanted if rel not in entries))
            wanted = sorted(transfer.overtaken)
            if not wanted:
                break
        return Hydrated(files, size, tuple(sorted(missing.union(wanted))))

    def _absent(self, rels: Iterable[str]) -> list[str]:
        """Return those of the paths that are not here, each once."""
        names = self._context.names
        return [rel for rel in dict.fromkeys(rels) if signature(names.local(rel)) is None]


def hydrate(context: SyncContext, rel: str) -> int | None:
    """Fetch the content of one path that is not here; return its size, None if there is none.

    Raises ContentOutdatedError if the remote has something else there since the last pull.
    """
    for _ in range(_ATTEMPTS):
        known, entries = _look_up(context, [rel])
        before, entry = known.get(rel), entries.get(rel)
        if entry is None:
            return None
        try:
            is_here = take_content(context, rel, entry, before)
        except CorruptObjectError as error:
            if context.base.get(rel) != before:
                continue  # a sync has learnt meanwhile what it is now
            if not _outdated(context, [rel]):
                raise
            raise ContentOutdatedError(
                f"the content {rel} is not on this machine, and {OUTDATED}",
                hint="Run `swampstore sync` first: then it is known here what it is now.",
            ) from error
        except SyncError:
            if signature(context.names.local(rel)) is None:
                raise
            return 0  # another reader was faster
        if is_here is not None:
            return entry.size if is_here else None
    raise SyncError(f"{rel} is changed again and again", hint="Read it when that is over.")


def _look_up(
    context: SyncContext, rels: Collection[str]
) -> tuple[dict[str, Known], dict[str, Entry]]:
    """Return what the base knows of these paths, and what to fetch, which the index may tell."""
    names, gone = context.names, parted(context, rels)
    allowed = [rel for rel in rels if rel not in gone and names.why_not(rel) is None]
    known = context.base.get_many(allowed)
    found = {rel: entry_known(one) for rel, one in known.items()}
    unknown = [rel for rel in allowed if rel not in found]
    if unknown:
        view = context.index.view({partition_of(rel) for rel in unknown})
        found |= {rel: entry for rel in unknown if (entry := view.entry(rel)) is not None}
    return known, {
        rel: entry for rel, entry in found.items() if is_content_of_ours(context, rel, entry)
    }


def _outdated(context: SyncContext, rels: Collection[str]) -> set[str]:
    """Return those of the paths of which the index says something else than the base."""
    known = context.base.get_many(rels)
    try:
        view = context.index.view({partition_of(rel) for rel in known})
        entries = {rel: view.entry(rel) for rel in known}
    except SwampstoreError:
        return set()  # what led here is told, and matters more
    return {rel for rel, entry in entries.items() if entry and remote_changed(known[rel], entry)}


def out_of_reach(rel: str, error: StoreError) -> StoreError | ContentMissingError:
    """Return what to say if content is wanted, and the remote that has it cannot give it."""
    if isinstance(error, CorruptObjectError):
        return error
    return ContentMissingError(
        f"the content {rel} is not on this machine, and the remote that has it cannot be used"
        f" now: {error.message}",
        hint="Read it when the remote can be reached; `swampstore data hydrate` fetches content"
        " for work without it.",
    )
