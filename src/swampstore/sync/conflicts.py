"""Settling the conflicts of a push, so that both sides keep their data.

Versions whose number others took get the next free one. Of any other file theirs stays, and ours
is kept as a copy beside it (docs/decisions/0017-only-known-content-is-replaced.md). Where ours is
the record of a workflow run that went on here, ours stays, and theirs is the copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from swampstore.errors import SwampstoreError
from swampstore.files import read_file, replace_file
from swampstore.files.signature import signature
from swampstore.index.format import Entry
from swampstore.index.partitions import Scope
from swampstore.index.path_kinds import (
    conflict_copy,
    is_marker,
    is_metadata,
    metadata_beside,
    unit_of,
    version_file,
)
from swampstore.index.results import Conflict
from swampstore.index.state import View
from swampstore.layout import RAW, workflow_run_of
from swampstore.stores.errors import StoreError
from swampstore.sync import merge
from swampstore.sync.arrivals import Arrival
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Staging
from swampstore.sync.hashing import hash_beginning_of, hash_file
from swampstore.sync.lost_base import has_come, numbered_anew, still_to_come, told_again
from swampstore.sync.push_plan import Plan, PreparedPush
from swampstore.sync.run_progress import goes_on_from
from swampstore.sync.scan import Changed, Links, LocalScan, hashed, removed_rels
from swampstore.sync.transfer import take_remote
from swampstore.sync.uploads import Occupied, is_placed_by_us


class Conflicts:
    """What stands in the way of one push, and how it is settled."""

    def __init__(self, context: SyncContext, local: LocalScan, scope: Scope | None) -> None:
        self._context = context
        self._local = local
        self._scope = scope

    def settle(
        self, plan: Plan, view: View, changed: dict[str, Changed], prepared: PreparedPush
    ) -> None:
        """Settle what the plan found: versions get new numbers, other files a copy of ours.

        What changes here by that is noted in `changed` and `prepared`; then plan again.
        """
        for name_rel, clashing in plan.clashes.items():
            self._keep_numbers(name_rel, clashing, plan)
            taken = merge.taken_versions(view.entries_below(name_rel)).get(name_rel, set())
            with self._giving_up(name_rel, changed, prepared):
                self._renumber(name_rel, clashing, taken, changed, prepared)
        for rel, (change, entry) in plan.copies.items():
            with self._giving_up(rel, changed, prepared):
                copy = self._keep_both(rel, change, entry, changed, prepared)
                self._go_on(rel, copy, changed, prepared)

    def remove_copies(self, changed: dict[str, Changed], prepared: PreparedPush) -> None:
        """Remove versions that others have by now under another number, instead of telling of them.

        A pull has done so, if it came to its end, and nothing of ours had their numbers. What
        changes here by that is noted in `changed`.
        """
        new = [rel for rel, one in changed.items() if one.known is None and is_metadata(rel)]
        names = told_again(self._context, new)
        to_come = still_to_come(self._context, names)
        for name_rel in sorted(names):
            if name_rel not in to_come and not has_come(self._context, name_rel):
                continue
            with self._giving_up(name_rel, changed, prepared):
                gone = [
                    one.rel
                    for arrivals in numbered_anew(
                        self._context, name_rel, to_come.get(name_rel, {})
                    )
                    for one in self._context.installer.install(arrivals)
                ]
                if gone:
                    # A note would tell that an object there may be replaced by what comes next.
                    self._context.base.apply(forgotten=gone)
                    merge.repair_marker(self._context, name_rel)
                    self._look_again(name_rel, changed, prepared)

    def _keep_numbers(self, name_rel: str, clashing: set[int], plan: Plan) -> None:
        """Let the base learn which versions are the remote's as well: those are not renumbered.

        Without its base a cache takes all it has for its own, and would share it once more.
        """
        common = [
            known
            for rel, known in plan.adopted.items()
            if (found := version_file(rel)) is not None
            and found.name_rel == name_rel
            and found.version not in clashing
        ]
        self._context.base.apply(known=common)

    @contextlib.contextmanager
    def _giving_up(
        self, unit: str, changed: dict[str, Changed], prepared: PreparedPush
    ) -> Iterator[None]:
        """Leave out what cannot be settled, so that it does not stand in the way of the rest."""
        try:
            yield
        except StoreError:
            raise
        except SwampstoreError as error:
            for rel in [rel for rel in changed if unit_of(rel) == unit]:
                del changed[rel]
                prepared.stuck[rel] = error.message

    def _renumber(
        self,
        name_rel: str,
        clashing: set[int],
        taken: Iterable[int],
        changed: dict[str, Changed],
        prepared: PreparedPush,
    ) -> None:
        removals = removed_rels(self._context.names, prepared.snapshot)
        common = {*prepared.plan.adopted, *prepared.plan.shared}
        prepared.told.append(
            merge.renumber(self._context, name_rel, clashing, taken, removals, common)
        )
        self._look_again(name_rel, changed, prepared)

    def _look_again(
        self, name_rel: str, changed: dict[str, Changed], prepared: PreparedPush
    ) -> None:
        """Note what is there of a data name now, in the place of what was there before."""
        before = {rel: one for rel, one in changed.items() if rel.startswith(f"{name_rel}/")}
        for rel, change in before.items():
            if self._is_only_sent_again(change):
                continue
            del changed[rel]
            # What was sent under the old number is not what the file of that name holds now.
            prepared.abandon(rel)
        removals = removed_rels(self._context.names, prepared.snapshot)
        again = self._local.paths([name_rel], self._scope, removals)
        changed.update((one.rel, one) for one in again.changed)
        prepared.deleted.update((known.rel, known) for known in again.deleted)

    def _is_only_sent_again(self, change: Changed) -> bool:
        """Whether a file is what the base says, and still there: only its object is not."""
        known, path = change.known, self._context.names.local(change.rel)
        is_known = known is not None and known.sha256 == change.sha256 is not None
        return is_known and signature(path) == change.signature

    def _keep_both(
        self,
        rel: str,
        change: Changed,
        entry: Entry,
        changed: dict[str, Changed],
        prepared: PreparedPush,
    ) -> str:
        change = hashed(self._context, change)
        assert change.sha256 is not None
        copy = keep_copy(self._context, rel, change.sha256)
        take_remote(self._context, rel, entry, change.signature)
        prepared.told.append(
            Conflict(rel, f"both machines changed it; theirs is there now, ours is {copy}")
        )
        del changed[rel]
        again = self._local.paths([copy])
        changed.update((one.rel, one) for one in again.changed)
        return copy

    def _go_on(
        self, rel: str, copy: str, changed: dict[str, Changed], prepared: PreparedPush
    ) -> str | None:
        """Put ours in the place of theirs again where theirs is but an earlier state of a run.

        Return the hash of theirs, None if it stays. Who goes on with the run right now writes the
        record as well: then that stays.
        """
        if workflow_run_of(rel) is None:
            return None
        path, kept = self._context.names.local(rel), self._context.names.local(copy)
        seen, now = signature(path), signature(kept)
        theirs, ours = read_file(path), read_file(kept)
        if theirs is None or ours is None or not goes_on_from(theirs, ours):
            return None
        sha256 = hash_file(path)[0]
        beside = keep_copy(self._context, rel, sha256)
        self._context.tracker.mark(self._context.names.mark(rel))
        with Staging(self._context.names.cache_dir) as staging:
            staged = staging.new_path()
            replace_file(staged, ours, durable=False)
            if not self._context.installer.install([Arrival(rel, staged, seen)]):
                return None
        self._context.installer.install([Arrival(copy, None, now)])
        changed.pop(copy, None)
        prepared.told[-1] = Conflict(rel, f"the run went on here; where it was there is {beside}")
        again = self._local.paths([rel, copy, beside])
        changed.update((one.rel, one) for one in again.changed)
        prepared.deleted.update((known.rel, known) for known in again.deleted)
        return sha256

    def make_room(
        self, occupied: list[Occupied], changed: dict[str, Changed], prepared: PreparedPush
    ) -> None:
        """Settle paths whose object turned out to be somebody else's, though no index names it."""
        ours = [one for one in occupied if self._is_earlier_state(one, prepared)]
        if ours:
            # The next attempt may replace them.
            self._context.base.note_uploads({one.rel: (one.sha256, "") for one in ours})
        grown = {one.rel.rpartition("/")[0] for one in ours}
        occupied = [one for one in occupied if one.rel.rpartition("/")[0] not in grown]
        clashes = merge.taken_versions(one.rel for one in occupied)
        for name_rel, clashing in clashes.items():
            taken = stored_versions(self._context, name_rel)
            with self._giving_up(name_rel, changed, prepared):
                self._renumber(name_rel, clashing, {*taken, *clashing}, changed, prepared)
        for one in occupied:
            if version_file(one.rel) is None and not is_marker(one.rel):
                entry = Entry(size=one.size, last_modified="", sha256=one.sha256 or None)
                with self._giving_up(one.rel, changed, prepared):
                    self._keep_unnamed(changed[one.rel], entry, changed, prepared)

    def _is_earlier_state(self, one: Occupied, prepared: PreparedPush) -> bool:
        """Whether an object is of the version that is here, before something more was appended.

        A push of ours was killed before it could note that it had sent this. Content tells it: ours
        begins with it. Metadata could as well be that of somebody else who appends right now. So
        it has to wait until our content is there: from then on that of anybody else is refused.
        """
        version_rel, _, name = one.rel.rpartition("/")
        raw = f"{version_rel}/{RAW}"
        known = prepared.plan.uploads.get(raw)
        if version_file(one.rel) is None or known is None or known.replaces is None:
            return False
        if name == RAW:
            is_earlier = self._begins_ours(one)
        else:
            is_earlier = is_metadata(one.rel) and is_placed_by_us(known, prepared.uploaded.get(raw))
        return is_earlier and merge.have_one_id(self._context, metadata_beside(raw)) is True

    def _begins_ours(self, one: Occupied) -> bool:
        path = self._context.names.local(one.rel)
        now = signature(path)
        if now is None or not one.sha256 or one.size >= now.size:
            return False
        try:
            return hash_beginning_of(path, one.size) == one.sha256
        except FileNotFoundError:
            return False

    def _keep_unnamed(
        self, change: Changed, entry: Entry, changed: dict[str, Changed], prepared: PreparedPush
    ) -> None:
        """Keep both contents where no index names theirs: so we tell of it, as of our own."""
        rel, known = change.rel, change.known
        copy = self._keep_both(rel, change, entry, changed, prepared)
        self._context.base.apply(known=[known] if known else [], forgotten=[] if known else [rel])
        again = self._local.paths([rel])
        changed.update((one.rel, one) for one in again.changed)
        earlier = self._go_on(rel, copy, changed, prepared)
        if earlier is not None:
            # The next attempt may replace it.
            self._context.base.note_uploads({rel: (earlier, "")})


def keep_copy(context: SyncContext, rel: str, sha256: str) -> str:
    """Keep our content of a path under another one, marked to be pushed; return that one."""
    copy = conflict_copy(rel, sha256)
    source, target = context.names.local(rel), context.names.local(copy)
    Links(context.names.root).check(copy)
    context.tracker.mark(context.names.mark(copy))
    context.installer.keep_copy(source, target)
    return copy


def stored_versions(context: SyncContext, name_rel: str) -> set[int]:
    """Return the versions of a data name that have objects, whether or not an index names them."""
    root = context.names.remote("")
    listed = context.store.list(context.names.remote(f"{name_rel}/"))
    return merge.taken_versions(info.key.removeprefix(root) for info in listed).get(name_rel, set())
