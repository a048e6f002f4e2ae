"""Bringing local changes to the remote: look, decide, upload, commit the index, settle.

Nothing is visible to others before the index is committed, and nothing is forgotten before that
either: a push that is stopped anywhere is repeated by the next one, which finds what was already
uploaded. A path that others changed as well is settled first (see `conflicts`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Container, Iterable, Iterator
from operator import itemgetter

from swampstore.errors import ContentDamagedError, DiskError, SwampstoreError
from swampstore.files.signature import signature
from swampstore.index.base import Known
from swampstore.index.changes import index_moved
from swampstore.index.errors import (
    IncompleteSyncError,
    IndexMovedError,
    MadeAnewError,
    SyncError,
)
from swampstore.index.partitions import Scope
from swampstore.index.path_kinds import goes_with_any_push, is_marker, unit_of
from swampstore.index.path_map import ways_out
from swampstore.index.removals import removal_of
from swampstore.index.results import Progress, Pushed, Skipped, Step
from swampstore.index.state import LEFT_OUT
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import CLAIM, RAW, is_internal
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync import merge
from swampstore.sync.conflicts import Conflicts
from swampstore.sync.context import SyncContext
from swampstore.sync.deletions import Deletions
from swampstore.sync.dirty import Snapshot
from swampstore.sync.push_plan import Plan, Planner, PreparedPush, partitions_of
from swampstore.sync.scan import (
    Changed,
    LocalScan,
    Scan,
    Touched,
    files_without_object,
    is_covered,
    removed_rels,
    stored_paths,
    with_parents,
)
from swampstore.sync.start_over import have_fetched, learn_own_commits, remember_installed
from swampstore.sync.transfer import Threads, Transport
from swampstore.sync.uploads import Occupied, Uploaded, Vanished, is_placed_by_us

# How often others may get in between before we give up; each time is a lost race.
_ROUNDS = 8
# What is sent in one go: it takes no longer than the lock of the commit, which is taken meanwhile.
_LITTLE_FILES = 16
_LITTLE_BYTES = 64 << 10
# What is on the remote already is noted after a fortieth of the uploads, no fewer and no more than
# so many, or so many bytes: whoever is stopped repeats no more than that.
_NOTES, _FEWEST, _MOST, _NOTE_BYTES = 40, 50, 1000, 64 << 20


class Push:
    """One push of one cache."""

    def __init__(
        self,
        context: SyncContext,
        scope: Scope | None,
        *,
        full: bool,
        deadline: Deadline,
        progress: Progress,
        transport: Transport,
    ) -> None:
        self._context = context
        self._scope = scope
        self._full = full
        self._deadline = deadline
        self._progress = progress
        self._began_ns = time.time_ns()
        self._local = LocalScan(context.names, context.base)
        self._transport = transport
        self._deletions = Deletions(context, deadline)
        self._conflicts = Conflicts(context, self._local, scope)

    def prepare(self, *, leaving_little: bool = False) -> PreparedPush:
        """Upload what changed; the index still says what it said.

        With `leaving_little`, what is little is left to `upload_rest`.
        """
        remember_installed(self._context)
        snapshot = self._context.tracker.snapshot()
        learn_own_commits(self._context)
        rels, settled = self._marked(snapshot)
        walked = self._full or snapshot.bulk
        scan = self._look_past_the_dead(rels, snapshot, walked=walked)
        # Not all of it need be ours: other programs may work on the same cache.
        found = [one.rel for one in scan.changed] + [known.rel for known in scan.deleted]
        self._context.installer.observe(found)
        prepared = PreparedPush(snapshot, settled, walked, self._scope)
        prepared.first_look = scan
        prepared.told += have_fetched(self._context, scan.missing)
        self._prepare(prepared, scan, leaving_little=leaving_little)
        return prepared

    def upload_rest(self, prepared: PreparedPush) -> None:
        """Upload what `prepare` has left, if it has; the lock of the commit need not be held yet.

        What turns out to be in the way is settled by `commit`.
        """
        if prepared.is_waiting:
            prepared.is_waiting = False
            prepared.is_occupied = bool(self._upload(prepared))

    def plan(self) -> Plan:
        """Decide what a push would do, without doing any of it."""
        snapshot = self._context.tracker.peek()
        rels, _ = self._marked(snapshot)
        scan = self._look(rels, snapshot, walked=self._full or snapshot.bulk)
        changed = {one.rel: one for one in scan.changed}
        deleted = {known.rel: known for known in scan.deleted}
        if not changed and not deleted:
            return Plan()
        chosen = (*changed, *deleted)
        view = self._context.index.view(partitions_of(chosen), rels=chosen)
        planner = Planner(
            self._context, view, self._began_ns, removed_rels(self._context.names, snapshot)
        )
        return planner.plan(changed, deleted)

    def commit(self, prepared: PreparedPush) -> Pushed:
        """Make the uploads visible in the index, then settle what was marked."""
        for _ in range(_ROUNDS):
            try:
                return self._commit(prepared)
            except IndexMovedError:
                # Others changed the same paths in between: decide again with what is there now.
                rels = self._still_marked(prepared.snapshot)
                scan = self._look_past_the_dead(rels, prepared.snapshot, walked=prepared.walked)
                self._prepare(prepared, scan)
        raise SyncError(
            "others keep committing changes of the same paths",
            hint="Sync again in a moment; everything is safe on this disk and stays marked.",
        )

    # Looking -------------------------------------------------------------------------------

    def _marked(self, snapshot: Snapshot) -> tuple[list[str], list[str]]:
        """Return the marked paths to look at, and the marks that this push can settle."""
        rels: list[str] = []
        settled: list[str] = []
        for mark in snapshot.paths:
            rel = self._context.names.rel_of_mark(mark)
            if rel is None:
                continue  # of another namespace, which may be chosen again
            if self._scope is None or self._scope.covers(f"{rel}/") or goes_with_any_push(rel):
                rels.append(rel)
                settled.append(mark)
            elif self._scope.meets(rel):
                rels.append(rel)
        return rels, settled

    def _still_marked(self, snapshot: Snapshot) -> list[str]:
        """Return the marked paths to look at that no other push has settled meanwhile."""
        marks = set(self._context.tracker.peek().paths)
        rels, _ = self._marked(snapshot)
        return [rel for rel in rels if self._context.names.mark(rel) in marks]

    def _look(self, rels: list[str], snapshot: Snapshot, *, walked: bool) -> Scan:
        marked = self._local.paths(rels, self._scope, removed_rels(self._context.names, snapshot))
        if not walked:
            return marked
        scan = self._local.everything(self._scope)
        scan.deleted, scan.seen = marked.deleted, marked.seen
        return scan

    def _look_past_the_dead(self, rels: list[str], snapshot: Snapshot, *, walked: bool) -> Scan:
        """Look, clear away what the dead began, and look at what is there without it."""
        scan = self._look(rels, snapshot, walked=walked)
        cleared = [self._clear(rel) for rel in scan.unfinished]
        return self._look(rels, snapshot, walked=walked) if any(cleared) else scan

    def _clear(self, rel: str) -> bool:
        """Remove the version that a file is of, if whoever began it is dead; whether it was."""
        try:
            return self._context.installer.clear(rel)
        except SwampstoreError as error:
            notice("%s", error.message)
            return False

    def _begun(self, scan: Scan, removals: Container[str]) -> set[str]:
        """Return what is being written, and has to stay marked until it is finished.

        Our own writers mark it once more when they are done. But that tells nobody of a version
        that was deleted here, and in whose place they write.
        """
        return {
            rel
            for rel in scan.unfinished
            if not self._is_claimed(rel)
            or (is_covered(rel, removals) and self._base_knows_version(rel))
        }

    def _base_knows_version(self, rel: str) -> bool:
        return any(True for _ in self._context.base.below(rel.rpartition("/")[0]))

    def _is_claimed(self, rel: str) -> bool:
        """Whether a file is of a version that a writer of ours is at work on."""
        return os.path.lexists(f"{os.path.dirname(self._context.names.local(rel))}/{CLAIM}")

    # Deciding ------------------------------------------------------------------------------

    def _prepare(self, prepared: PreparedPush, scan: Scan, *, leaving_little: bool = False) -> None:
        prepared.is_occupied = False
        changed = {one.rel: one for one in (*scan.changed, *self._overwritten(scan.touched))}
        prepared.deleted = deleted = {known.rel: known for known in scan.deleted}
        prepared.skipped = list(scan.skipped)
        removals = removed_rels(self._context.names, prepared.snapshot)
        prepared.begun = self._begun(scan, removals)
        everything = self._full and self._scope is None
        prepared.unfinished = self._deletions.unfinished(everything=everything)
        prepared.touched = [
            known._replace(held=now, recorded_ns=self._began_ns)
            for known, now in scan.touched
            if known.rel not in changed
        ]
        for rel in list(prepared.uploaded):
            prepared.abandon(rel)
        prepared.stuck = {
            rel: f"{reason}; {ways_out(rel)}" for rel, reason in scan.nameless.items()
        }
        self._conflicts.remove_copies(changed, prepared)
        is_left_out = self._context.base.fact(LEFT_OUT) is not None
        stored = stored_paths(self._context) if self._full or is_left_out else None
        shards: set[str] | None = None
        if stored is not None:
            lost = files_without_object(self._context, stored, self._scope)
            changed = {one.rel: one for one in lost} | changed
            shards = self._context.index.lost_partitions(stored)
        is_left = bool(prepared.unfinished or prepared.abandoned)
        has_work = bool(changed or deleted or is_left) or shards is not None
        if not has_work and (prepared.settled or prepared.has_seen_all):
            # What is marked and needs nothing more may be that of a push which was stopped.
            chosen = None if prepared.has_seen_all else partitions_of(scan.seen)
            shards = self._context.index.untold_partitions(chosen, self._scope)
            has_work = shards is not None
        if not has_work:
            prepared.plan, prepared.view = Plan(), None
            prepared.failures = dict(prepared.stuck)
            return
        for _ in range(_ROUNDS):
            view = self._context.index.view(
                partitions_of((*deleted, *prepared.abandoned)) | (shards or set()),
                additions=partitions_of(changed),
                rels=(*changed, *deleted, *prepared.abandoned),
            )
            index = self._context.index
            if index.is_made_anew or index.must_start_over(view):
                raise MadeAnewError
            self._tell_of_lost_documents(prepared)
            shared = prepared.plan.shared
            planner = Planner(self._context, view, self._began_ns, removals, stored, shared)
            plan = planner.plan(changed, deleted)
            prepared.plan, prepared.view = plan, view
            self._withhold(plan, prepared)
            if plan.clashes or plan.copies:
                self._conflicts.settle(plan, view, changed, prepared)
                continue
            prepared.is_waiting = leaving_little and self._is_little(plan)
            if prepared.is_waiting:
                return
            occupied = self._upload(prepared)
            if not occupied:
                return
            self._conflicts.make_room(occupied, changed, prepared)
        raise SyncError(
            "others keep writing the same paths",
            hint="Sync again in a moment; everything is safe on this disk and stays marked.",
        )

    def _tell_of_lost_documents(self, prepared: PreparedPush) -> None:
        """Say which documents of the index this push will make anew.

        Nobody else may come across that: from the commit on, nothing is missing any more.
        """
        damage = self._context.index.damage
        prepared.skipped += [
            one for one in damage if is_internal(one.rel) and one not in prepared.skipped
        ]

    def _withhold(self, plan: Plan, prepared: PreparedPush) -> None:
        """Tell of versions that are not complete; what is marked of them stays so.

        Somebody may see to them. What was not saved here is left to the next pull.
        """
        known = {one.rel for one in prepared.skipped}
        for rel, reason in plan.withheld.items():
            if rel not in known:
                prepared.skipped.append(Skipped(rel, reason))
                mark = self._context.names.mark(unit_of(f"{rel}/{RAW}"))
                if is_covered(mark, prepared.snapshot.paths):
                    self._context.tracker.mark_written(mark)

    def _overwritten(self, touched: Collection[Touched]) -> Iterator[Changed]:
        """Yield files whose objects are not what they were, because a push of ours was stopped."""
        noted = self._context.base.noted_uploads(known.rel for known, _ in touched)
        for known, now in touched:
            if known.rel in noted and noted[known.rel][0] != known.sha256:
                yield Changed(known.rel, now, known, known.sha256)

    # Uploading -------------------------------------------------------------------------------

    def _is_little(self, plan: Plan) -> bool:
        """Whether everything is sent at once, and takes no longer than any small request."""
        return (
            isinstance(self._transport, Threads)
            and 0 < len(plan.uploads) <= min(_LITTLE_FILES, self._context.limits.push_concurrency)
            and sum(plan.sizes.values()) <= _LITTLE_BYTES
        )

    def _upload(self, prepared: PreparedPush) -> list[Occupied]:
        plan = prepared.plan
        files = size = 0
        total = sum(plan.sizes.values())
        occupied: list[Occupied] = []
        prepared.failures = prepared.stuck | plan.stuck
        unnoted: dict[str, tuple[str, str]] = {}
        noted_size = 0
        todo = [one for rel, one in plan.uploads.items() if rel not in prepared.uploaded]
        every = min(max(_FEWEST, len(todo) // _NOTES), _MOST)
        try:
            for task, done, error in self._transport.upload(
                self._context, todo, plan.sizes, self._deadline
            ):
                files += 1
                size += plan.sizes[task.rel]
                self._progress(Step("push", files, len(todo), size, total))
                if error is not None:
                    prepared.failures[task.rel] = error.message
                    if isinstance(error, ContentDamagedError):
                        prepared.damaged.add(task.rel)
                elif isinstance(done, Occupied):
                    occupied.append(done)
                elif isinstance(done, Vanished):
                    prepared.vanished.add(task.rel)
                elif isinstance(done, Uploaded):
                    prepared.uploaded[task.rel] = done
                    # An object that was there before need not be ours, however equal.
                    is_ours = is_placed_by_us(task, done)
                    token = (done.known.etag or "") if is_ours else ""
                    unnoted[task.rel] = (done.known.sha256 or "", token)
                    if len(unnoted) >= every or size - noted_size >= _NOTE_BYTES:
                        self._context.base.note_uploads(unnoted)
                        unnoted, noted_size = {}, size
        finally:
            self._context.base.note_uploads(unnoted)
        return occupied

    # Committing ------------------------------------------------------------------------------

    def _commit(self, prepared: PreparedPush) -> Pushed:
        context, plan = self._context, prepared.plan
        if prepared.is_occupied:
            raise index_moved("others have objects where ours should be", set(plan.uploads))
        failed = _failed_units(prepared)
        uploaded = list(prepared.uploaded.values())
        if failed or prepared.damaged:
            uploaded = [
                one
                for one in uploaded
                if unit_of(one.rel) not in failed and not self._is_of_damaged(one.rel, prepared)
            ]
        removals = [rel for rel in plan.removals if unit_of(rel) not in failed]
        adopted = [known for rel, known in plan.adopted.items() if unit_of(rel) not in failed]
        self._check_met(uploaded)
        known = [*self._still_here(prepared.touched), *adopted, *(one.known for one in uploaded)]
        forgotten = [*removals, *plan.forgotten, *plan.staying]
        left = self._deletions.note_unnamed({rel: prepared.deleted[rel] for rel in plan.forgotten})
        left_behind = prepared.left_behind(prepared.view) if prepared.view else []
        wanted = [removal_of(plan.removals[rel]) for rel in removals]
        note = self._deletions.note([*wanted, *left_behind])
        if prepared.view and (uploaded or removals or prepared.view.is_unfinished):
            # In one order, whoever was done first: the same files make the same documents.
            upserts = {one.rel: one.entry for one in sorted(uploaded, key=itemgetter(0))}
            try:
                committed = context.index.commit(
                    prepared.view,
                    upserts,
                    removals,
                    scope=prepared.scope,
                    look_again=lambda rels: self._check(one for one in uploaded if one.rel in rels),
                )
            except IndexMovedError:
                self._deletions.drop(note)
                raise
            context.base.apply(
                known=known,
                forgotten=forgotten,
                shards=committed.shards,
                facts=committed.facts | {LEFT_OUT: None},
            )
        elif known or forgotten:
            context.base.apply(known=known, forgotten=forgotten)
        if plan.reread:
            context.index.read_again(plan.reread)
        if note is not None:
            self._deletions.carry_out(note)
        if prepared.view is not None:
            unfinished = prepared.unfinished | ({left.rel} if left is not None else set())
            prepared.skipped += self._deletions.finish(unfinished)
        self._settle(prepared)
        if prepared.failures:
            raise IncompleteSyncError("push", prepared.failures)
        return Pushed(
            files=len(uploaded),
            bytes=sum(one.sent for one in uploaded),
            deleted=len(removals),
            conflicts=(*prepared.told, *plan.conflicts.values()),
            skipped=tuple(prepared.skipped),
        )

    def _is_of_damaged(self, rel: str, prepared: PreparedPush) -> bool:
        """Whether a file is of a version whose content must not be shared, or names it."""
        versions = {one.rpartition("/")[0] for one in prepared.damaged}
        if is_marker(rel) and versions:
            marker = merge.local_marker(self._context, rel)
            return f"{unit_of(rel)}/{marker}" in versions
        return rel.rpartition("/")[0] in versions

    def _check_met(self, uploaded: Iterable[Uploaded]) -> None:
        """Raise IndexMovedError if an object that was there before is another one now, or gone.

        Whoever removes objects holds the lock that we hold.
        """
        self._check(one for one in uploaded if one.is_met)

    def _check(self, uploaded: Iterable[Uploaded]) -> None:
        tokens = {one.rel: one.known.etag for one in uploaded}
        heads = in_parallel(
            self._token, tokens, self._context.limits.push_concurrency, self._deadline
        )
        for rel, token, error in heads:
            if error is not None:
                raise error
            if token != tokens[rel]:
                raise index_moved("what was uploaded is not there any more", {rel})

    def _token(self, rel: str) -> str | None:
        try:
            return self._context.store.head(self._context.names.remote(rel)).token
        except ObjectNotFoundError:
            return None

    def _still_here(self, touched: Iterable[Known]) -> list[Known]:
        """Return the files that are as they were; some may have been evicted meanwhile."""
        names = self._context.names
        return [one for one in touched if signature(names.local(one.rel)) == one.held]

    def _settle(self, prepared: PreparedPush) -> None:
        """Settle every mark that is not above something which is still to be pushed."""
        failed = _failed_units(prepared)
        left_out = {rel for rel in prepared.plan.removals if unit_of(rel) in failed}
        waiting = {*prepared.failures, *prepared.vanished, *prepared.begun, *left_out}
        marks = {self._context.names.mark(rel) for rel in waiting}
        kept = {above for mark in marks for above in with_parents(mark)}
        done = [mark for mark in prepared.settled if mark not in kept]
        walked = prepared.has_seen_all and not waiting
        tracker = self._context.tracker
        tracker.let_others_mark(prepared.snapshot, done, walked=walked)
        self._mark_again(prepared, done)
        tracker.settle(prepared.snapshot, done, walked=walked)

    def _mark_again(self, prepared: PreparedPush, settled: Iterable[str]) -> None:
        """Mark what another program has changed since this push looked, before that is settled.

        Where something was marked already, it has left no mark of its own.
        """
        names, tracker = self._context.names, self._context.tracker
        by_rel = {rel: mark for mark in settled if (rel := names.rel_of_mark(mark))}
        try:
            changed = self._local.since(prepared.first_look, by_rel, self._scope)
            theirs = [rel for rel in changed if not self._is_claimed(rel)]
            for above in {one for rel in theirs for one in with_parents(rel) if one in by_rel}:
                is_removal = by_rel[above] in prepared.snapshot.removals
                (tracker.mark if is_removal else tracker.mark_written)(by_rel[above])
        except DiskError as error:
            notice("%s; what others changed meanwhile may wait for `sync --full`", error.message)


def _failed_units(prepared: PreparedPush) -> set[str]:
    """Return the data names (and other files) of which nothing is shared, deletions included.

    Without a file that vanished meanwhile, the rest of its data name may be incomplete.
    """
    failed = (*prepared.failures, *prepared.vanished)
    return {unit_of(rel) for rel in failed if rel not in prepared.damaged}
