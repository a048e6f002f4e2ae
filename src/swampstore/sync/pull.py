"""Bringing remote changes into the cache: compare slices of the index, fetch, install, remember.

Local work is never touched: a file that differs from the base stays as it is, and the next push
settles the two. A pull that is stopped goes on where it was. That a slice is done is only
remembered when all of it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from swampstore.errors import DiskError, MetadataError, ValidationError
from swampstore.files.signature import signature
from swampstore.index.base import LEAVING
from swampstore.index.errors import IncompleteSyncError
from swampstore.index.path_kinds import is_lazy, is_metadata, unit_of
from swampstore.index.results import Progress, Pulled, Skipped
from swampstore.index.state import LEFT_OUT
from swampstore.index.workers import Deadline
from swampstore.layout import LATEST
from swampstore.sync import merge
from swampstore.sync.arrivals import Arrival
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import BATCH
from swampstore.sync.hashing import holds
from swampstore.sync.lost_base import LOST, has_come, hollow_versions, numbered_anew, told_again
from swampstore.sync.pull_plan import PullPlanner, PullWork, known_of
from swampstore.sync.push_plan import partitions_of
from swampstore.sync.start_over import (
    forget_vain_removals,
    learn_own_commits,
    remember_installed,
)
from swampstore.sync.transfer import Transfer, Transport


class Pull:
    """One pull into one cache. `content_bytes` is how much of what came was content."""

    def __init__(
        self,
        context: SyncContext,
        planner: PullPlanner,
        *,
        deadline: Deadline,
        progress: Progress,
        transport: Transport,
    ) -> None:
        self.content_bytes = 0
        self._context = context
        self._planner = planner
        self._deadline = deadline
        self._progress = progress
        self._transport = transport

    def run(self) -> Pulled:
        """Pull; raise IncompleteSyncError at the end if some files could not be had."""
        remember_installed(self._context)
        forget_vain_removals(self._context)
        work = self._plan()
        self._context.base.drop_shards(work.undone)
        self._context.base.apply(known=work.known, forgotten=work.forgotten)
        # Others may have brought it here, or removed it: the base was told, the catalog was not.
        here = [one.rel for one in work.known if one.held is not None]
        self._context.installer.observe([*here, *work.forgotten])
        transfer = Transfer(
            self._context,
            work,
            phase="pull",
            deadline=self._deadline,
            progress=self._progress,
            transport=self._transport,
        )
        self._drop_what_readers_brought(work, transfer)
        replaced = self._replaced(work)
        transfer.run()
        self._drop_content(work, transfer, replaced)
        self._learn_of_lost_content(work)
        self._rescue(work)
        deleted = self._remove(work, transfer)
        self._clear_leftovers(work, transfer)
        self._repair_markers(work)
        self._context.installer.bulk_done()
        self._remember(work)
        self.content_bytes = transfer.content_bytes
        if work.failures:
            raise IncompleteSyncError("pull", work.failures)
        return Pulled(
            transfer.files,
            transfer.bytes,
            deleted,
            tuple(work.conflicts),
            tuple(work.skipped),
            len(work.left),
        )

    def _replaced(self, work: PullWork) -> dict[str, str | None]:
        """Return the ids, by content, of whole versions in whose place others may come."""
        return {
            rel: merge.local_id(self._context, rel.rpartition("/")[0])
            for rel in work.replaced_content()
        }

    def _drop_content(
        self, work: PullWork, transfer: Transfer, replaced: Mapping[str, str | None]
    ) -> None:
        """Remove content whose version is gone, where that of the version in its place is lost.

        It would stay beside metadata that speaks of something else, and be taken for damage.
        """
        for rel in work.dangling:
            before = replaced.get(rel)
            now = merge.local_id(self._context, rel.rpartition("/")[0])
            if before is not None and now is not None and now != before:
                gone = transfer.install([Arrival(rel, None, work.expected[rel])])
                self._context.base.apply(forgotten=[one.rel for one in gone])

    def _learn_of_lost_content(self, work: PullWork) -> None:
        """Know content as the index names it whose object is lost, and that was not here before.

        Else who deletes its version would seem to have deleted what was in its place before.
        """
        before = self._context.base.get_many(work.dangling)
        lost = [rel for rel, known in before.items() if known.held is None]
        entries = {rel: work.downloads[rel].entry for rel in lost if is_lazy(rel)}
        known = [known_of(rel, entry, None, None, 0) for rel, entry in entries.items()]
        self._context.base.apply(known=known)

    def _drop_what_readers_brought(self, work: PullWork, transfer: Transfer) -> None:
        """Remove content that came after this pull had looked, and has changed on the remote.

        Whoever reads does not hold the cache. From now on, it finds what the base knows.
        """
        for rel, before in work.changed_there.items():
            path = self._context.names.local(rel)
            now = signature(path)
            if now is not None and holds(path, before.sha256):
                transfer.install([Arrival(rel, None, now)])

    def _plan(self) -> PullWork:
        """Plan, after versions of ours have moved out of the way of those that took their numbers.

        One that cannot move now stays as it is, and so does the remote's; the next pull tries.
        """
        work = self._planner.plan()
        if learn_own_commits(self._context):
            work = self._planner.plan()
        if not work.clashes:
            return work
        told = [self._make_way(*clash) for clash in work.clashes.items()]
        work = self._planner.plan()
        work.skipped.extend(told)
        return work

    def _make_way(self, name_rel: str, clashing: set[int]) -> Skipped:
        view = self._context.index.view(partitions_of([f"{name_rel}/{LATEST}"]))
        taken = merge.taken_versions(view.entries_below(name_rel)).get(name_rel, set())
        try:
            return Skipped(*merge.renumber(self._context, name_rel, clashing, taken))
        except (ValidationError, MetadataError, DiskError) as error:
            return Skipped(name_rel, error.message)

    def _remove(self, work: PullWork, transfer: Transfer) -> int:
        rels = sorted(work.removals)
        deleted = 0
        for start in range(0, len(rels), BATCH):
            batch = rels[start : start + BATCH]
            arrivals = [Arrival(rel, None, work.expected[rel]) for rel in batch]
            self._context.base.note_leaving(batch)
            gone = {one.rel for one in transfer.install(arrivals)}
            self._context.base.apply(forgotten=gone, facts={LEAVING: None})
            deleted += len(gone)
            transfer.leave(set(batch) - gone)
        return deleted

    def _rescue(self, work: PullWork) -> None:
        """Let the next push take what nobody deleted for uploads that it has to tell of.

        So they keep their numbers, whatever others have saved since. As these were left out, there
        may be others that this cache has never seen: that push looks for them.
        """
        rescued = work.rescued - work.failures.keys()
        for rel in sorted(rescued):
            self._context.tracker.mark_written(self._context.names.mark(rel))
        facts: dict[str, str | None] = {LEFT_OUT: "1"} if rescued else {}
        self._context.base.apply(forgotten=rescued, facts=facts)
        known = [work.vanished[rel] for rel in sorted(rescued)]
        self._context.base.note_uploads({one.rel: (one.sha256, "") for one in known if one.sha256})

    def _clear_leftovers(self, work: PullWork, transfer: Transfer) -> None:
        """Remove what nothing but what the base knew before told from versions of our own."""
        is_lost = self._context.base.fact(LOST) is not None
        for name_rel in sorted(self._told_again() | (work.names if is_lost else set())):
            for arrivals in numbered_anew(self._context, name_rel):
                gone = transfer.install(arrivals)
                self._context.base.apply(forgotten=[one.rel for one in gone])
        if not is_lost or self._context.index.is_made_anew:
            return
        for arrival in hollow_versions(self._context, self._planner.scope):
            for one in transfer.install([arrival]):
                reason = "its content is nowhere any more: neither on this disk nor on the remote"
                work.skipped.append(Skipped(one.rel.rpartition("/")[0], reason))

    def _told_again(self) -> set[str]:
        """Return the data names of this scope that others once had, and the next push tells of."""
        scope = self._planner.scope
        noted = filter(is_metadata, self._context.base.all_noted_uploads())
        covered = [rel for rel in noted if scope is None or scope.covers(rel)]
        return {one for one in told_again(self._context, covered) if has_come(self._context, one)}

    def _repair_markers(self, work: PullWork) -> None:
        """Let `latest` name the highest version where what arrived does not fit together.

        That happens when two machines each deleted a version, or one of them was stopped while
        it pushed. It is a change of ours then, and the next push shares it.
        """
        unsure = {unit_of(rel) for rel in (*work.failures, *work.left)}
        for name_rel in sorted(work.names - unsure - work.settled):
            merge.repair_marker(self._context, name_rel)

    def _remember(self, work: PullWork) -> None:
        """Remember which slices are done, and if that is all, that the cache is up to date."""
        shards = {
            token: etag for token, etag in work.slices.items() if token not in work.unfinished
        }
        is_complete = not work.unfinished and not work.failures
        facts = self._context.index.agreed() if is_complete else {}
        if facts and self._planner.scope is None:
            facts[LOST] = None
        self._context.base.apply(shards=shards, facts=facts)
