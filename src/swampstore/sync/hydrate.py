"""Fetching content that stayed on the remote, much of it at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swampstore.errors import ContentMissingError, ContentOutdatedError, SwampstoreError
from swampstore.files.signature import signature
from swampstore.index.errors import IncompleteSyncError, SyncError
from swampstore.index.format import Entry, entry_known
from swampstore.index.partitions import partition_of
from swampstore.index.results import Progress
from swampstore.index.workers import Deadline
from swampstore.stores.errors import CorruptObjectError, StoreError
from swampstore.sync.complete import speaks_of
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Download
from swampstore.sync.merge import remote_changed
from swampstore.sync.pull_plan import PullWork
from swampstore.sync.transfer import Transfer, take_remote

OUTDATED = "others have changed it since the last sync of this machine"


@dataclass(frozen=True, slots=True)
class Hydrated:
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
        wanted = self._absent(rels)
        names = self._context.names
        entries = _entries(self._context, [rel for rel in wanted if names.why_not(rel) is None])
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
        )
        transfer.run()
        if work.failures:
            outdated = _outdated(self._context, work.failures)
            reasons = work.failures | dict.fromkeys(outdated, OUTDATED)
            raise IncompleteSyncError("hydrate", reasons)
        missing = {*work.dangling, *(rel for rel in wanted if rel not in entries)}
        return Hydrated(transfer.files, transfer.bytes, tuple(sorted(missing)))

    def _absent(self, rels: Iterable[str]) -> list[str]:
        """Return those of the paths that are not here, each once."""
        names = self._context.names
        return [rel for rel in dict.fromkeys(rels) if signature(names.local(rel)) is None]


def hydrate(context: SyncContext, rel: str) -> int | None:
    """Fetch the content of one path that is not here; return its size, None if there is none.

    Raises ContentOutdatedError if the remote has something else there since the last pull.
    """
    entry = None if context.names.why_not(rel) else _entries(context, [rel]).get(rel)
    try:
        is_here = entry is not None and take_remote(context, rel, entry, None)
    except CorruptObjectError as error:
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
    return entry.size if entry is not None and is_here else None


def _entries(context: SyncContext, rels: Collection[str]) -> dict[str, Entry]:
    """Return what is known of these paths, from the base, else from the index."""
    known = context.base.get_many(rels)
    found = {rel: entry_known(one) for rel, one in known.items()}
    unknown = [rel for rel in rels if rel not in found]
    if unknown:
        view = context.index.view({partition_of(rel) for rel in unknown})
        found |= {rel: entry for rel in unknown if (entry := view.entry(rel)) is not None}
    names = context.names
    return {
        rel: entry
        for rel, entry in found.items()
        if speaks_of(names, rel.rpartition("/")[0], entry)
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
