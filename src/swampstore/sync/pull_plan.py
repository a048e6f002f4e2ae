"""Deciding what a pull does about each path, against slices of the index. Changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from swampstore.artifacts.latest import wins
from swampstore.errors import SwampstoreError
from swampstore.files.signature import Signature
from swampstore.index.base import Known
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Entry, decode_entry, entry_known
from swampstore.index.partitions import Scope
from swampstore.index.path_kinds import (
    is_lazy,
    is_marker,
    is_metadata,
    metadata_beside,
    parted_from_metadata,
    version_file,
)
from swampstore.index.path_map import BOOKKEEPING
from swampstore.index.results import Conflict, Preview, Skipped
from swampstore.index.state import Slice
from swampstore.index.workers import Deadline
from swampstore.layout import METADATA, RAW
from swampstore.sync import merge
from swampstore.sync.complete import local_metadata, speaks_of
from swampstore.sync.context import SyncContext
from swampstore.sync.deletions import not_deleted, overwritten
from swampstore.sync.downloads import Download
from swampstore.sync.local_state import LocalFiles, LocalState
from swampstore.sync.lost_base import was_here_before
from swampstore.sync.merge import Decision, Local, decide, remote_changed
from swampstore.sync.push_plan import Plan
from swampstore.sync.scan import is_covered


class PullWork(msgspec.Struct):
    """What has to be done, and what has been found out, over any number of slices."""

    downloads: dict[str, Download] = msgspec.field(default_factory=dict)
    removals: dict[str, Known] = msgspec.field(default_factory=dict)
    expected: dict[str, Signature | None] = msgspec.field(default_factory=dict)
    known: list[Known] = msgspec.field(default_factory=list)
    # Content that stays on the remote, and has changed there: what was known of it before.
    changed_there: dict[str, Known] = msgspec.field(default_factory=dict)
    forgotten: list[str] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)
    skipped: list[Skipped] = msgspec.field(default_factory=list)
    # Slices that are done when none of their paths is left over: (partition, scope) -> etag.
    slices: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)
    undone: list[str] = msgspec.field(default_factory=list)
    slice_of: dict[str, tuple[str, str]] = msgspec.field(default_factory=dict)
    unfinished: set[tuple[str, str]] = msgspec.field(default_factory=set)
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    # Data names of which something arrived or went, and what kept some of it from that.
    names: set[str] = msgspec.field(default_factory=set)
    # Of these, those that came as a whole, with a `latest` that is right.
    settled: set[str] = msgspec.field(default_factory=set)
    left: set[str] = msgspec.field(default_factory=set)
    # What the index names and the store does not have.
    dangling: list[str] = msgspec.field(default_factory=list)
    # What left the index, and of that what nobody deleted: the next push names it again. What was
    # deleted here as well is for the push.
    vanished: dict[str, Known] = msgspec.field(default_factory=dict)
    rescued: set[str] = msgspec.field(default_factory=set)
    deleted: dict[str, Known] = msgspec.field(default_factory=dict)
    # Versions of ours, by data name, whose numbers others have used again without having seen them.
    clashes: Mapping[str, set[int]] = msgspec.field(default_factory=dict)

    def replaced_content(self) -> list[str]:
        """Return the content of versions that are here, and in whose place others come."""
        return [
            rel
            for rel in self.downloads
            if self.expected[rel] is not None and version_file(rel) and not is_metadata(rel)
            if self.expected.get(metadata_beside(rel)) and metadata_beside(rel) in self.downloads
        ]


class PullPlanner:
    """Looks at what changed remotely, in one scope, and decides about each path."""

    def __init__(
        self,
        context: SyncContext,
        scope: Scope | None,
        *,
        metadata_only: bool,
        full: bool,
        deadline: Deadline,
    ) -> None:
        self._context = context
        self.scope = scope
        self._metadata_only = metadata_only
        self._full = full
        self._deadline = deadline
        self._began_ns = time.time_ns()
        marked = context.tracker.peek()
        self._marked = frozenset(marked.paths)
        self._files = LocalFiles(context, marked.removals)
        # What the index names in the partition that is being compared.
        self._named: Mapping[str, msgspec.Raw] = {}
        # A first pull need not look for what is known.
        self._has_base = True
        # What is another one here than on the remote, until a push has settled that.
        self._undecided: set[str] = set()
        # Content that was changed here, and deleted elsewhere.
        self._kept_content: set[str] = set()

    def plan(self) -> PullWork:
        """Find out what has to be done, without doing it."""
        work = PullWork()
        self._files.begin()
        self._has_base = not self._context.base.is_empty()
        self._undecided, self._kept_content = set(), set()
        for one in self._context.index.changes(self.scope, everything=self._full):
            self._deadline.remaining()
            self._compare(one, work)
        self._leave_what_was_deleted_meanwhile(work)
        work.skipped.extend(self._context.index.damage)
        self._spare_what_nobody_deleted(work)
        self._spare_what_others_overwrote(work)
        self._keep_what_was_saved_again(work)
        self._keep_what_only_looks_alike(work)
        if not self._metadata_only:
            self._want_content(work)
        self._keep_versions_apart(work)
        return work

    def _leave_what_was_deleted_meanwhile(self, work: PullWork) -> None:
        """Fetch nothing that another process has deleted since the marks were looked at."""
        if not self._files.look_for_removals():
            return
        for rel, known in self._context.base.get_many(work.downloads).items():
            if work.expected.get(rel) is None and self._files.was_deleted(rel, known):
                del work.downloads[rel]

    def _compare(self, piece: Slice, work: PullWork) -> None:
        token = (piece.partition, self.scope.key if self.scope else "")
        if piece.etag is not None:
            work.slices[token] = piece.etag
        else:
            work.undone.append(piece.partition)
        known: Mapping[str, Known] = {}
        if self._has_base and piece.removed is None:
            known = self._context.base.in_partition(piece.partition)
        elif self._has_base and piece.removed is not None:
            known = self._context.base.get_many((*piece.entries, *piece.removed))
        self._named = piece.entries
        for rel, raw in piece.entries.items():
            self._compare_entry(rel, raw, known.get(rel), token, work)
        if piece.removed is not None:
            for rel in sorted(piece.removed & known.keys()):
                self._act(rel, known[rel], None, token, work)
            return
        if not piece.complete:
            work.unfinished.add(token)
            return
        for rel, before in known.items():
            if rel not in piece.entries and (self.scope is None or self.scope.covers(rel)):
                self._act(rel, before, None, token, work)

    def _spare_what_nobody_deleted(self, work: PullWork) -> None:
        if not work.vanished:
            return
        work.rescued = not_deleted(self._context, work.vanished, self._deadline)
        work.rescued |= self._parted_here(work)
        for rel in work.rescued:
            known = work.vanished[rel]
            work.skipped.append(Skipped(rel, "the index has lost it; the next push names it again"))
            work.unfinished.add(work.slice_of[rel])
            if work.removals.pop(rel, None) is None:
                # Its content is only there: it has to be here to be told of.
                work.forgotten.remove(rel)
                entry = entry_known(known)
                work.downloads[rel] = Download(rel, entry)
                work.expected[rel] = None

    def _parted_here(self, work: PullWork) -> set[str]:
        """Return content that left the index, while its metadata is there and here as before.

        Whoever deletes a version deletes all of it, so it is lost, and ours may be the last copy.
        """
        return {
            rel
            for rel in parted_from_metadata(work.vanished)
            if rel in work.removals and self._metadata_state(rel, work) is Local.SAME
        }

    def _metadata_state(self, rel: str, work: PullWork) -> Local | None:
        """Return how the metadata beside a file stands to the base.

        None if that cannot be told, or if another version takes its place.
        """
        metadata = metadata_beside(rel)
        if metadata in work.failures or metadata in work.downloads:
            return None
        return self._files.state(metadata, self._context.base.get(metadata)).local

    def _keep_what_was_saved_again(self, work: PullWork) -> None:
        """Remove no content beside metadata that is new: it is that of a version made here since.

        It happens to be equal to what others have deleted. It is new now, and for the next push. So
        it is with metadata beside content that is new: two may have appended as many bytes.
        """
        saved_again = [
            rel
            for rel in parted_from_metadata(work.removals)
            if self._metadata_state(rel, work) is Local.CHANGED
        ]
        saved_again += filter(work.removals.__contains__, map(metadata_beside, self._kept_content))
        for rel in saved_again:
            del work.removals[rel]
            work.forgotten.append(rel)

    def _keep_what_only_looks_alike(self, work: PullWork) -> None:
        """Take no content for the remote's beside metadata of ours: it may happen to be equal.

        Else it would change with theirs, and go with ours. The next push tells them apart.
        """
        if not self._undecided:
            return
        alike = {
            rel
            for rel in (*work.downloads, *(one.rel for one in work.known))
            if metadata_beside(rel) in self._undecided
        }
        for rel in alike:
            work.downloads.pop(rel, None)
            work.unfinished.add(work.slice_of[rel])
        work.known = [one for one in work.known if one.rel not in alike]

    def _spare_what_others_overwrote(self, work: PullWork) -> None:
        """Replace no whole version of ours by another one if the index was lost in between.

        Who takes a lost document for an empty one begins with number 1 again. Without such a loss,
        a number is used again after its version was deleted; then that stays deleted. An entry
        without a hash was made from the object: no document tells that somebody committed it.
        """
        replaced = [
            rel for rel in work.downloads if work.expected[rel] is not None and is_metadata(rel)
        ]
        if not self._is_index_lost(work, replaced):
            replaced = [rel for rel in replaced if work.downloads[rel].entry.sha256 is None]
        if not replaced:
            return
        lost = overwritten(self._context, replaced, self._deadline)
        work.clashes = merge.taken_versions(lost)
        for name_rel, versions in work.clashes.items():
            for version in versions:
                self._put_off(f"{name_rel}/{version}", work)

    def _is_index_lost(self, work: PullWork, replaced: Collection[str]) -> bool:
        """Whether others have left something out that was not deleted when they did.

        What was deleted here since tells it as well, if anybody has to know; but not what a push
        of ours had sent when it was stopped, of which no index ever told.
        """
        if work.rescued or self._context.index.leaves_out:
            return True
        once_named = {rel: known for rel, known in work.deleted.items() if known.modified}
        is_asked = bool(replaced and once_named)
        return is_asked and bool(not_deleted(self._context, once_named, self._deadline))

    def _put_off(self, version_rel: str, work: PullWork) -> None:
        reason = "another version has its number since the index was lost; ours gets the next one"
        work.conflicts.append(Conflict(version_rel, reason))
        for rel in [rel for rel in work.downloads if rel.startswith(f"{version_rel}/")]:
            del work.downloads[rel]
            work.unfinished.add(work.slice_of[rel])

    def _compare_entry(
        self,
        rel: str,
        raw: msgspec.Raw,
        before: Known | None,
        token: tuple[str, str],
        work: PullWork,
    ) -> None:
        reason = self._context.names.why_not(rel)
        if reason is not None:
            if reason != BOOKKEEPING:
                work.skipped.append(Skipped(rel, reason))
            return
        try:
            entry = decode_entry(rel, raw)
        except IndexDamagedError as error:
            work.skipped.append(Skipped(rel, error.message))
            work.unfinished.add(token)
            return
        if before is None and not self._files.may_be_here(rel):
            work.slice_of[rel] = token
            self._fetch(rel, entry, None, work)
        elif self._full or remote_changed(before, entry):
            self._act(rel, before, entry, token, work)

    def _act(
        self,
        rel: str,
        before: Known | None,
        entry: Entry | None,
        token: tuple[str, str],
        work: PullWork,
    ) -> None:
        try:
            state = self._files.state(rel, before)
        except SwampstoreError as error:
            work.failures[rel] = error.message
            work.unfinished.add(token)
            return
        if entry is None and self._is_other_content(rel, state):
            self._kept_content.add(rel)
        if state.local is Local.DELETED and before is not None:
            entry = merge.recognised(self._context, before, entry)
        decision = decide(state.local, state.sha256, before, entry)
        if decision is Decision.CONFLICT and entry is not None:
            decision = self._reconsider(rel, state, before, entry, work)
        work.slice_of[rel] = token
        match decision:
            case Decision.PULL if entry is not None:
                self._fetch(rel, entry, state.signature, work)
                if before is not None and rel not in work.downloads:
                    work.changed_there[rel] = before
            case Decision.ADOPT if entry is not None:
                same = replace(entry, sha256=state.sha256 or entry.sha256)
                work.known.append(known_of(rel, same, state.signature, None, self._began_ns))
            case Decision.DELETE_LOCAL if before is not None:
                work.removals[rel] = work.vanished[rel] = before
                work.expected[rel] = state.signature
            case Decision.FORGET if before is not None:
                _forget(before, work, is_deleted=state.local is Local.DELETED)
            case Decision.CONFLICT:
                self._undecided.add(rel)
                work.unfinished.add(token)
                work.conflicts.append(
                    Conflict(rel, "it changed here and elsewhere; the next push keeps both")
                )
            case Decision.NOTHING if before is not None and state.signature is not None:
                if state.signature != before.held:
                    work.known.append(
                        before._replace(held=state.signature, recorded_ns=self._began_ns)
                    )

    def _is_other_content(self, rel: str, state: LocalState) -> bool:
        """Whether a file is content that was changed here, and its metadata means what it is now.

        Content that is damaged has changed, too, and is nothing that anybody made.
        """
        is_content = is_lazy(rel) and version_file(rel) is not None
        if state.local is not Local.CHANGED or state.signature is None or not is_content:
            return False
        told = local_metadata(self._context.names, rel.rpartition("/")[0])
        return told is not None and told.allows(state.signature.size, state.sha256)

    def _fetch(self, rel: str, entry: Entry, here: Signature | None, work: PullWork) -> None:
        if self._metadata_only and here is None and is_lazy(rel):
            work.known.append(known_of(rel, entry, None, None, self._began_ns))
            return
        work.downloads[rel] = Download(rel, entry)
        work.expected[rel] = here

    def _reconsider(
        self, rel: str, state: LocalState, before: Known | None, entry: Entry, work: PullWork
    ) -> Decision:
        """Look closer at what both sides changed: it may be settled without a push."""
        if is_marker(rel):
            ours = merge.local_marker(self._context, rel)
            if wins(merge.remote_marker(self._context, rel), ours):
                return Decision.PULL
        elif self._is_equal(rel, state, entry):
            return Decision.ADOPT
        elif version_file(rel) and merge.went_on_with_ours(self._context, rel.rpartition("/")[0]):
            return Decision.PULL
        if before is None and self._is_hollow(rel):
            reason = "its content was nowhere any more; the remote has another version there"
            work.conflicts.append(Conflict(rel, reason))
            return Decision.PULL
        return Decision.CONFLICT

    def _is_hollow(self, rel: str) -> bool:
        """Whether metadata is all there is of a version here, and the remote has another there.

        The cache has lost its base, and others have put another version in its place since: it
        was evicted, or it would still have its content. If the base was not lost, what is marked
        was saved here and not pushed yet; somebody who removed its content may put that back.
        Unless others had it, too, when the base started over.
        """
        version_rel, _, name = rel.rpartition("/")
        raw = f"{version_rel}/{RAW}"
        if name != METADATA or version_file(rel) is None or raw not in self._named:
            return False
        _, token = self._context.base.noted_uploads([rel]).get(rel, ("", None))
        was_shared = token == "" or was_here_before(self._context, rel)
        is_ours = is_covered(self._context.names.mark(rel), self._marked) and not was_shared
        if is_ours or os.path.lexists(self._context.names.local(raw)):
            return False
        try:
            entry = decode_entry(raw, self._named[raw])
        except IndexDamagedError:
            return False
        if not speaks_of(self._context.names, version_rel, entry):
            return True
        # The index may not tell the hash, what can be appended to may have grown, and others may
        # have saved the very same content again. Theirs is what their metadata speaks of.
        return merge.is_metadata_there(self._context, rel)

    def _is_equal(self, rel: str, state: LocalState, entry: Entry) -> bool:
        """Whether the object has the content of our file, where the index does not tell."""
        if entry.sha256 or state.signature is None or entry.size != state.signature.size:
            return False
        return state.sha256 == merge.remote_sha256(self._context, rel)

    def _keep_versions_apart(self, work: PullWork) -> None:
        """Let no content of the remote in beside metadata that speaks of another one.

        Nor that of a version which was deleted here before that could be had: the push removes it.
        """
        for rel, (_, entry) in list(work.downloads.items()):
            if not rel.endswith(f"/{RAW}") or metadata_beside(rel) in work.downloads:
                continue
            is_ours = merge.is_content_of_ours(self._context, rel, entry)
            if not is_ours or self._files.is_version_deleted(metadata_beside(rel)):
                del work.downloads[rel]
                if rel in work.slice_of:
                    work.unfinished.add(work.slice_of[rel])
                if work.expected[rel] is not None:
                    reason = "the remote has other content than its metadata speaks of; ours stays"
                    work.skipped.append(Skipped(rel, reason))

    def _want_content(self, work: PullWork) -> None:
        """After a pull of metadata only, content that never came is still to be fetched."""
        if not self._context.base.lacks_content():
            return
        for known in self._context.base.below("data"):
            if known.held is not None or known.rel in work.slice_of:
                continue
            if self.scope is not None and not self.scope.covers(known.rel):
                continue
            if self._files.state(known.rel, known).local is Local.ABSENT:
                entry = entry_known(known)
                work.downloads[known.rel] = Download(known.rel, entry)
                work.expected[known.rel] = None


def _forget(known: Known, work: PullWork, *, is_deleted: bool) -> None:
    if is_deleted:
        work.deleted[known.rel] = known  # its object may be there all the same
        return
    work.forgotten.append(known.rel)
    # It never came here, or was removed by hand or lost: its object may be the last copy.
    work.vanished[known.rel] = known._replace(held=None)


def known_of(
    rel: str, entry: Entry, held: Signature | None, token: str | None, recorded_ns: int
) -> Known:
    """Return what the base remembers of a path that is as the index says."""
    return Known(
        rel, entry.size, entry.sha256, entry.last_modified, token, held, recorded_ns=recorded_ns
    )


def preview_of(plan: Plan, work: PullWork) -> Preview:
    """Return what a sync would do that pushes and pulls this."""
    clashing = {
        f"{name}/{version}" for name, versions in plan.clashes.items() for version in versions
    }
    conflicts = {one.rel for one in work.conflicts} | clashing
    conflicts |= plan.copies.keys() | plan.conflicts.keys()
    return Preview(
        push=tuple(sorted(plan.uploads.keys() - conflicts)),
        delete_remote=tuple(sorted(plan.removals)),
        pull=tuple(sorted(work.downloads)),
        delete_local=tuple(sorted(work.removals)),
        conflicts=tuple(sorted(conflicts)),
        push_bytes=sum(plan.sizes.values()),
        pull_bytes=sum(one.entry.size for one in work.downloads.values()),
    )
