"""Deciding what a push does about each change, against one view of the index. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping

import msgspec

from swampstore.artifacts.latest import is_right, latest_of
from swampstore.files.signature import signature
from swampstore.index.base import Known
from swampstore.index.errors import IndexDamagedError, SyncError
from swampstore.index.format import Entry
from swampstore.index.partitions import Scope, partition_of
from swampstore.index.path_kinds import (
    is_derived,
    is_marker,
    is_metadata,
    metadata_beside,
    parted_from_metadata,
    unit_of,
    version_file,
)
from swampstore.index.removals import Removal, read_notes, removal_of
from swampstore.index.results import Conflict, Skipped
from swampstore.index.state import View
from swampstore.layout import METADATA, RAW
from swampstore.sync import merge
from swampstore.sync.complete import (
    is_complete,
    is_content_here,
    local_metadata,
    why_withheld,
)
from swampstore.sync.context import SyncContext
from swampstore.sync.dirty import Snapshot
from swampstore.sync.hashing import hash_beginning_of
from swampstore.sync.merge import Decision, Local, decide, remote_changed
from swampstore.sync.scan import Changed, Scan, hashed, removed_meanwhile
from swampstore.sync.uploads import Upload, Uploaded


class Plan(msgspec.Struct):
    """What a push will do.

    `clashes` (versions by data name) and `copies` have to be settled before anything is
    uploaded; `reread` are partitions in which the remote has something that we do not have.
    `stuck` says why nothing could be decided about a path, `withheld` are versions that are not
    complete, and must not be shown to others. `shared` are changed files of versions that the
    remote has, though neither the base nor the index tells that. `staying` were deleted here, of
    versions that others have changed: they have to be fetched again.
    """

    uploads: dict[str, Upload] = msgspec.field(default_factory=dict)
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
    removals: dict[str, Known] = msgspec.field(default_factory=dict)
    adopted: dict[str, Known] = msgspec.field(default_factory=dict)
    forgotten: set[str] = msgspec.field(default_factory=set)
    staying: set[str] = msgspec.field(default_factory=set)
    clashes: dict[str, set[int]] = msgspec.field(default_factory=dict)
    copies: dict[str, tuple[Changed, Entry]] = msgspec.field(default_factory=dict)
    conflicts: dict[str, Conflict] = msgspec.field(default_factory=dict)
    reread: set[str] = msgspec.field(default_factory=set)
    stuck: dict[str, str] = msgspec.field(default_factory=dict)
    withheld: dict[str, str] = msgspec.field(default_factory=dict)
    shared: set[str] = msgspec.field(default_factory=set)


class PreparedPush(msgspec.Struct):
    """Everything of a push that needs no lock: the uploads are done, the index is untouched.

    `walked` says that it looks at every file of its scope, marked or not.
    """

    snapshot: Snapshot
    settled: list[str]
    walked: bool
    scope: Scope | None
    view: View | None = None
    plan: Plan = msgspec.field(default_factory=Plan)
    # Whether the uploads of the plan are left to the moment in which the lock is taken.
    is_waiting: bool = False
    # Whether one of those met an object that is not ours.
    is_occupied: bool = False
    uploaded: dict[str, Uploaded] = msgspec.field(default_factory=dict)
    touched: list[Known] = msgspec.field(default_factory=list)
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    stuck: dict[str, str] = msgspec.field(default_factory=dict)
    deleted: dict[str, Known] = msgspec.field(default_factory=dict)
    # Whether that was a deletion is for the next push to find out.
    vanished: set[str] = msgspec.field(default_factory=set)
    # Content of versions that another program is still writing.
    begun: set[str] = msgspec.field(default_factory=set)
    # Content that is not what its metadata speaks of.
    damaged: set[str] = msgspec.field(default_factory=set)
    skipped: list[Skipped] = msgspec.field(default_factory=list)
    told: list[Conflict] = msgspec.field(default_factory=list)
    first_look: Scan = msgspec.field(default_factory=Scan)
    # Notes of what was to be removed, by pushes that were stopped.
    unfinished: set[str] = msgspec.field(default_factory=set)
    # Objects of this push that no index will name: their versions got other numbers.
    abandoned: dict[str, Known] = msgspec.field(default_factory=dict)

    @property
    def has_seen_all(self) -> bool:
        """Whether it looks at every file there is."""
        return self.walked and self.scope is None

    def abandon(self, rel: str) -> None:
        """Forget an upload, and remember that it is to be removed if it was made by this push."""
        sent = self.uploaded.pop(rel, None)
        if sent is not None and not sent.is_met:
            self.abandoned[rel] = sent.known

    def left_behind(self, view: View) -> list[Removal]:
        """Return the objects to be removed, as far as neither we nor the index need them."""
        return [
            removal_of(known)
            for rel, known in self.abandoned.items()
            if rel not in self.uploaded and view.raw(rel) is None
        ]


class Planner:
    """Makes the plan of one push. `began_ns` is a time before anything was looked at.

    `removals` are the paths at or below which something was removed here, `stored` those that have
    an object (None: nobody looked). What the index names and the store has lost is uploaded again.
    `shared` is what an earlier plan of the same push found to be such: since then, our own objects
    may be all that tells of it.
    """

    def __init__(
        self,
        context: SyncContext,
        view: View,
        began_ns: int,
        removals: Container[str] = frozenset(),
        stored: Container[str] | None = None,
        shared: Iterable[str] = (),
    ) -> None:
        self._stored = stored
        self._context = context
        self._view = view
        self._began_ns = began_ns
        self._removals = removals
        self._plan = Plan(shared={*shared})
        self._grown: dict[str, bool] = {}

    def plan(self, changed: Mapping[str, Changed], deleted: Mapping[str, Known]) -> Plan:
        """Decide about every change and every deletion."""
        noted = self._context.base.noted_uploads(changed)
        for rel, known in deleted.items():
            self._delete(rel, known)
        self._keep_whole_what_stays()
        self._take_content_along()
        for rel, change in changed.items():
            try:
                self._change(change, noted.get(rel))
            except SyncError as error:
                self._plan.stuck[rel] = error.message
        self._number_past_others(changed, noted)
        self._withhold_incomplete()
        return self._plan

    def _entry(self, rel: str) -> Entry | None:
        try:
            return self._view.entry(rel)
        except IndexDamagedError:
            # Whatever it meant to say, the object itself is still protected from being replaced.
            return None

    def _delete(self, rel: str, known: Known) -> None:
        entry = merge.recognised(self._context, known, self._entry(rel))
        match decide(Local.DELETED, None, known, entry):
            case Decision.DELETE_REMOTE:
                self._plan.removals[rel] = known
            case Decision.FORGET:
                self._plan.forgotten.add(rel)
            case Decision.PULL:
                self._plan.reread.add(partition_of(rel))
                self._plan.conflicts[rel] = Conflict(
                    rel, "it was deleted here and changed elsewhere; the change stays"
                )

    def _keep_whole_what_stays(self) -> None:
        """Delete no file of a version of which another one was changed elsewhere.

        Nor content whose metadata stays: it is that of a version which somebody else saved, before
        or after the one that was deleted here.
        """
        removals = self._plan.removals
        staying = {rel.rpartition("/")[0] for rel in self._plan.conflicts if version_file(rel)}
        for rel in [rel for rel in removals if rel.rpartition("/")[0] in staying]:
            del removals[rel]
            self._plan.staying.add(rel)
            self._plan.reread.add(partition_of(rel))
        for rel in parted_from_metadata(removals):
            if self._entry(metadata_beside(rel)) is not None:
                self._plan.adopted[rel] = removals.pop(rel)._replace(held=None)

    def _take_content_along(self) -> None:
        """Delete with a version also content that this cache could not get, and knows nothing of.

        Else the index would name content for ever that belongs to no version.
        """
        base, names = self._context.base, self._context.names
        for rel in [rel for rel in self._plan.removals if is_metadata(rel)]:
            version_rel = rel.rpartition("/")[0]
            raw = f"{version_rel}/{RAW}"
            entry = self._entry(raw) if base.get(raw) is None else None
            if entry is not None and not os.path.lexists(names.local(version_rel)):
                self._plan.removals[raw] = described(raw, entry)

    def _change(self, change: Changed, noted: tuple[str, str] | None) -> None:
        rel, known, entry = change.rel, change.known, self._entry(change.rel)
        if entry is not None and remote_changed(known, entry):
            change = hashed(self._context, change)
        match decide(Local.CHANGED, change.sha256, known, entry):
            case Decision.PUSH if entry is not None and not self._is_same_version(rel):
                self._clash(rel)
            case Decision.PUSH if entry is not None and is_marker(rel):
                self._marker(change, Upload(rel, known, noted))
            case Decision.PUSH:
                self._upload(change, Upload(rel, known, noted))
            case Decision.ADOPT if entry is not None and noted and noted[0] != change.sha256:
                # The index says it, the object does not: somebody was stopped while replacing it.
                self._upload(change, Upload(rel, described(rel, entry), noted))
            case Decision.ADOPT | Decision.NOTHING if self._is_lost(rel):
                self._upload(change, Upload(rel, None, noted))
            case Decision.ADOPT if entry is not None:
                self._adopt(change, entry)
            case Decision.PULL if entry is not None and self._is_lost(rel):
                # Others did not change it, if all that the entry lacks is a hash: it was made anew.
                may_be_ours = entry.sha256 is None and entry.size == change.signature.size
                if may_be_ours and self._is_lost_content(rel):
                    self._upload(change, Upload(rel, None, noted))
            case Decision.CONFLICT if entry is not None and self._is_of_ours(rel, entry, noted):
                # Our push was stopped after it had committed, and something was appended since.
                self._plan.shared.add(rel)
                self._upload(change, Upload(rel, described(rel, entry), noted))
            case Decision.CONFLICT if entry is not None:
                self._conflict(change, entry, noted)

    def _upload(self, change: Changed, upload: Upload) -> None:
        self._plan.uploads[change.rel] = upload
        self._plan.sizes[change.rel] = change.signature.size

    def _adopt(self, change: Changed, entry: Entry) -> None:
        known = described(change.rel, entry)
        self._plan.adopted[change.rel] = Known(
            *(known.rel, known.size, change.sha256, known.modified, None),
            held=change.signature,
            recorded_ns=self._began_ns,
        )

    def _clash(self, rel: str) -> None:
        found = version_file(rel)
        assert found is not None
        self._plan.clashes.setdefault(found.name_rel, set()).add(found.version)

    def _conflict(self, change: Changed, entry: Entry, noted: tuple[str, str] | None) -> None:
        rel = change.rel
        if entry.sha256 is None and self._is_equal(change, entry):
            if noted is None or not noted[1] or not self._has_hash(change, noted[0]):
                self._adopt(hashed(self._context, change), entry)
                return
            # Others took what we have sent for data, and did not know its hash: we can tell it.
            self._plan.shared.add(rel)
            (self._marker if is_marker(rel) else self._upload)(change, Upload(rel, None, noted))
        elif entry.sha256 is None and self._is_lost_content(rel):
            self._upload(change, Upload(rel, None))
        elif version_file(rel) and (self._is_entry_wrong(change) or self._is_of_grown(rel)):
            self._plan.shared.add(rel)
            self._upload(change, Upload(rel, described(rel, entry)))
        elif version_file(rel) and merge.went_on_with_ours(self._context, rel.rpartition("/")[0]):
            self._plan.reread.add(partition_of(rel))
        elif version_file(rel):
            self._clash(rel)
        elif is_marker(rel):
            self._marker(change, Upload(rel, described(rel, entry)))
        elif is_derived(rel):
            self._upload(change, Upload(rel, described(rel, entry)))
            self._plan.conflicts[rel] = Conflict(rel, "both computed it; ours is there now")
        elif not merge.has_object(self._context, rel):
            self._upload(change, Upload(rel, None))  # theirs is lost, ours is all there is
        else:
            self._plan.copies[rel] = (change, entry)

    def _marker(self, change: Changed, upload: Upload) -> None:
        """Let ours stand, unless the remote has higher versions, which are still to be pulled.

        So `latest` goes back only together with the versions that it went back from.
        """
        ours = merge.local_marker(self._context, change.rel)
        theirs = latest_of(self._versions_to_stay(unit_of(change.rel), METADATA))
        if is_right(ours, theirs, may_be_ahead=True):
            self._upload(change, upload)
        else:
            self._plan.reread |= partitions_of([change.rel])

    def _is_equal(self, change: Changed, entry: Entry) -> bool:
        """Whether the object has the content of our file, where the index does not tell."""
        if entry.size != change.signature.size:
            return False
        sha256 = hashed(self._context, change).sha256
        return sha256 == merge.remote_sha256(self._context, change.rel)

    def _is_entry_wrong(self, change: Changed) -> bool:
        """Whether ours is what the remote has, and only the index tells of something else.

        So it is after somebody took an index from long ago for the current one.
        """
        change = hashed(self._context, change)
        return merge.has_content(self._context, change.rel, change.signature.size, change.sha256)

    def _is_of_grown(self, rel: str) -> bool:
        """Whether a file is of such a version as `_has_grown` tells; looks once at each version."""
        version_rel = rel.rpartition("/")[0]
        if version_rel not in self._grown:
            self._grown[version_rel] = self._has_grown(version_rel)
        return self._grown[version_rel]

    def _has_grown(self, version_rel: str) -> bool:
        """Whether the version here is the remote's, and something was appended to it since.

        So it is where a base does not tell: in a bucket to which others took that version along
        before. Nothing of the remote's content is lost then, and nothing of ours.
        """
        names, raw = self._context.names, f"{version_rel}/{RAW}"
        entry, now = self._entry(raw), signature(names.local(raw))
        told = local_metadata(names, version_rel)
        if entry is None or now is None or told is None or not entry.size < now.size == told.size:
            return False
        try:
            beginning = hash_beginning_of(names.local(raw), entry.size)
        except FileNotFoundError:
            raise removed_meanwhile(names.local(raw)) from None
        if entry.sha256 is not None and beginning != entry.sha256:
            return False
        if merge.have_one_id(self._context, f"{version_rel}/{METADATA}") is not True:
            return False
        # An index that was made anew from the objects has no hashes: then the object tells.
        return entry.sha256 is not None or beginning == merge.remote_sha256(self._context, raw)

    def _is_of_ours(self, rel: str, entry: Entry, noted: tuple[str, str] | None) -> bool:
        """Whether the index names an upload of ours, of the very version that is here."""
        sha256, token = noted or ("", "")
        if not token or sha256 != entry.sha256 or version_file(rel) is None:
            return False
        return merge.describe_one_artifact(self._context, metadata_beside(rel))

    def _is_same_version(self, rel: str) -> bool:
        """Whether changed metadata describes the artifact that the remote has at this number.

        It does after an append. It does not if somebody emptied the cache, and the numbers
        started anew; then the remote's version must not be replaced.
        """
        return not is_metadata(rel) or merge.describe_one_artifact(self._context, rel)

    def _number_past_others(
        self, changed: Mapping[str, Changed], noted: Mapping[str, tuple[str, str]]
    ) -> None:
        """Let new versions that are numbered below one of the remote clash as well.

        They are the newest ones; as they are, they would never become the latest. One that is
        noted as known to others is not new: whoever tells of it again uses its number. Nor is one
        whose metadata the remote has: only its content is sent, because that was lost.
        """
        shared = merge.known_to_others(self._context, filter(is_metadata, noted))
        fresh = merge.taken_versions(
            rel
            for rel in self._plan.uploads
            if is_metadata(rel) and rel not in shared and self._is_new(changed[rel])
        )
        for name_rel, versions in fresh.items():
            highest = max(self._versions_to_stay(name_rel), default=0)
            low = {
                version
                for version in versions
                if version < highest and not self._is_stored(name_rel, version, changed, noted)
            }
            if low:
                self._plan.clashes.setdefault(name_rel, set()).update(low)

    def _is_stored(
        self,
        name_rel: str,
        version: int,
        changed: Mapping[str, Changed],
        noted: Container[str],
    ) -> bool:
        """Whether the remote has the very metadata of a version that no document names any more.

        Its content was lost, and then the document. What a stopped push of ours has sent does not
        count, nor what somebody is about to remove.
        """
        change = changed[f"{name_rel}/{version}/{METADATA}"]
        rel, size = change.rel, change.signature.size
        if rel in noted or not merge.has_content(self._context, rel, size, self._hash(change)):
            return False
        return not read_notes(self._context.store, self._context.names).mention(rel)

    def _has_hash(self, change: Changed, sha256: str | None) -> bool:
        return sha256 is not None and self._hash(change) == sha256

    def _hash(self, change: Changed) -> str | None:
        """Return the hash of a file, None if it does not hold still: whatever it is, it is new."""
        try:
            return hashed(self._context, change).sha256
        except SyncError:
            return None

    def _is_new(self, change: Changed) -> bool:
        """Whether a file is of a version that the remote never had."""
        if change.known is None:
            entry = self._entry(change.rel)
            # What the index names with our content is a version of the remote, whatever became of
            # its object. So is what the remote has, whatever the index tells of it.
            is_named = entry is not None and self._has_hash(change, entry.sha256)
            is_there = is_named or change.rel in self._plan.shared
            return not is_there and not self._is_lost(change.rel)
        version_rel = change.rel.rpartition("/")[0]
        return self._entry(change.rel) is None and merge.was_deleted(
            self._context, version_rel, self._removals
        )

    def _is_lost(self, rel: str) -> bool:
        """Whether the index names a file whose object is gone."""
        return self._stored is not None and rel not in self._stored and self._entry(rel) is not None

    def _is_lost_content(self, rel: str) -> bool:
        """Whether content of a version that the remote has as well is not there any more."""
        version_rel, _, name = rel.rpartition("/")
        if name != RAW or version_file(rel) is None or merge.has_object(self._context, rel):
            return False
        metadata = f"{version_rel}/{METADATA}"
        is_named = self._entry(metadata) is not None
        return is_named and merge.describe_one_artifact(self._context, metadata)

    def _withhold_incomplete(self) -> None:
        """Leave out versions whose content is nowhere, and markers that name one of them."""
        plan = self._plan
        for rel in [rel for rel in plan.uploads if is_metadata(rel)]:
            version_rel = rel.rpartition("/")[0]
            if not self._is_complete(version_rel, proven=True):
                self._withhold(version_rel)
        for name_rel, versions in list(plan.clashes.items()):
            for version in sorted(versions):
                # Under another number, content on the remote would be that of somebody else.
                if not is_content_here(self._context.names, f"{name_rel}/{version}"):
                    self._withhold(f"{name_rel}/{version}")
        for rel in [rel for rel in plan.uploads if is_marker(rel)]:
            version_rel = f"{unit_of(rel)}/{merge.local_marker(self._context, rel)}"
            if not self._is_complete(version_rel) and self._is_metadata_here(version_rel):
                self._withhold(version_rel)
                del plan.uploads[rel], plan.sizes[rel]

    def _is_complete(self, version_rel: str, *, proven: bool = False) -> bool:
        raw = f"{version_rel}/{RAW}"
        if raw in self._plan.uploads:
            return True  # if it should vanish before it is sent, nothing of its name is shared
        entry = None if raw in self._plan.removals else self._entry(raw)
        return is_complete(self._context, version_rel, entry, proven=proven)

    def _is_metadata_here(self, version_rel: str) -> bool:
        return os.path.lexists(self._context.names.local(f"{version_rel}/{METADATA}"))

    def _withhold(self, version_rel: str) -> None:
        plan = self._plan
        plan.withheld[version_rel] = why_withheld(version_rel)
        for rel in [rel for rel in plan.uploads if rel.startswith(f"{version_rel}/")]:
            del plan.uploads[rel], plan.sizes[rel]
        name_rel, _, version = version_rel.rpartition("/")
        clashing = plan.clashes.get(name_rel, set())
        clashing.discard(int(version))
        if not clashing:
            plan.clashes.pop(name_rel, None)

    def _versions_to_stay(self, name_rel: str, with_file: str = "") -> Iterable[int]:
        """Return the versions that the remote will still have, or those that have a file."""
        rels = (
            rel
            for rel in self._view.entries_below(name_rel)
            if rel.endswith(with_file) and rel not in self._plan.removals
        )
        return merge.taken_versions(rels).get(name_rel, set())


def partitions_of(rels: Iterable[str]) -> set[str]:
    """Return the partitions that a push of these paths is about; with a marker, its versions'."""
    chosen = set(rels)
    versions = {f"{unit_of(rel)}/1/{METADATA}" for rel in chosen if is_marker(rel)}
    return {partition_of(rel) for rel in chosen | versions}


def described(rel: str, entry: Entry) -> Known:
    """Return what the index says about a path in the words of the base."""
    return Known(rel, entry.size, entry.sha256, entry.last_modified, None, None)
