"""Changing artifacts: save, append, delete, tombstones. Each is old or new, never half.

`ArtifactStore` works on addresses and metadata; reading content and finding things is the
repository's and the catalog's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.content import hash_beginning
from swampstore.artifacts.metadata import DELETED, Draft, Metadata, encode, is_json
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.publish import (
    claim_version,
    current,
    owner_for,
    point_latest,
    publish,
)
from swampstore.artifacts.recovery import remove_versions, repoint
from swampstore.artifacts.streaming import VersionWriter
from swampstore.artifacts.versions import StoredVersion
from swampstore.clock import Clock, to_iso
from swampstore.errors import (
    ContentDamagedError,
    ContentMissingError,
    NotFoundError,
    NotStreamingError,
    SwampstoreError,
    ValidationError,
)
from swampstore.files import Change, Hold, disk_errors
from swampstore.layout import METADATA, RAW, DataRef, check_shareable, is_version, ref_of
from swampstore.notices import notice
from swampstore.retention.lifetimes import beyond_count


class Deleted(NamedTuple):
    """What a deletion took away."""

    versions: int
    size: int


class ArtifactStore:
    """The versions of every data name of one repository, on disk.

    `prune_on_write` enforces numeric version policies right after each save. `key_prefix` is what
    comes before every path where the versions are shared.
    """

    def __init__(
        self,
        mutations: Mutations,
        clock: Clock,
        *,
        prune_on_write: bool = False,
        key_prefix: str = "",
    ) -> None:
        self._key_prefix = key_prefix
        self.mutations = mutations
        self.tree = mutations.tree
        self.clock = clock
        self._prune_on_write = prune_on_write

    def check_new(self, ref: DataRef) -> None:
        """Raise ValidationError if nothing may be saved under a name."""
        check_shareable(ref, self._key_prefix)
        # In a directory that is a version already nobody would find it.
        if is_version(ref.name) and "/" in ref.model.type:
            whole = ref_of(ref.model.rel)
            if os.path.lexists(self.tree.path(whole.file_rel(int(ref.name), METADATA))):
                raise ValidationError(
                    f"the directory of {ref} is that of {whole} version {ref.name}",
                    hint="Choose another data name.",
                )

    def save(
        self,
        ref: DataRef,
        content: bytes,
        draft: Draft,
        *,
        group: Hold | None = None,
        prunes: bool = True,
    ) -> Metadata:
        """Save bytes as the next version of a name and return its metadata.

        As part of a `group` it waits for the commit, for as long as somebody has that hold. Who may
        take the version back says that it `prunes` nothing, and calls `prune_after` when it stays.
        Raises ValidationError for a name or draft that cannot be, OwnershipError if the name is
        someone else's, DiskError if the disk refuses; the earlier versions stay as they were.
        """
        self.check_new(ref)
        draft = draft.checked()
        checksum = hashlib.sha256(content).hexdigest()
        deferred = group is not None
        with (
            _holding(group) as hold,
            self.mutations.changing(ref, "save", durable=not deferred) as change,
        ):
            marker, newest = current(self.tree, ref)
            owner = owner_for(ref, newest, draft.owner)
            draft = draft.following(newest)
            version = claim_version(self.tree, change, ref, marker, hold)
            now = to_iso(self.clock())
            metadata = draft.metadata(ref.name, version, owner, now, len(content), checksum)
            try:
                change.write_new(ref.file_rel(version, RAW), content)
                marker = publish(self.tree, change, ref, metadata, marker, deferred=deferred)
            except BaseException:
                change.discard_claim(ref.version_rel(version))
                raise
            stored = StoredVersion(metadata, deferred)
            self.mutations.record(ref, stored=[stored], marker=marker)
        if prunes and not deferred:
            self.prune_after(ref, metadata)
        return metadata

    def open_writer(
        self, ref: DataRef, draft: Draft, *, group: Hold | None = None, prunes: bool = True
    ) -> VersionWriter:
        """Claim the next version and return a writer for its content, of any size.

        Nothing is visible until the writer is finalised; leaving its `with` block does that, an
        exception there gives the claim up. `group` and `prunes` are as for `save`.
        """
        self.check_new(ref)
        writer = VersionWriter.claim(self.mutations, self.clock, ref, draft.checked(), group)
        if prunes and group is None:
            writer.on_published = self.prune_after
        return writer

    def append(self, ref: DataRef, data: Iterable[bytes]) -> Metadata:
        """Add bytes, in any number of pieces, to the latest version, which must be a streaming one.

        All of it is there afterwards, or nothing. The name is locked until all pieces have come.
        Raises ContentDamagedError if its content is not what was saved: that could not be told any
        more afterwards.
        """
        meant: list[int] = []

        def choose() -> None:
            meant.append(on_disk.effective_marker(self.tree, ref))

        versions = {ref.rel: meant}
        with self.mutations.changing(ref, "append", versions=versions, check=choose) as change:
            metadata = self._require_latest(ref)
            if not metadata.streaming:
                raise NotStreamingError(
                    f"{ref} version {metadata.version} is not streaming",
                    hint="Save it with streaming on first, or save a new version.",
                )
            raw = ref.file_rel(metadata.version, RAW)
            size = self.tree.size(raw)
            if size is None:
                raise _missing_content(ref, metadata.version)
            if metadata.checksum and self._beginning(raw, metadata.size) != metadata.checksum:
                raise ContentDamagedError(
                    f"the content of {ref} version {metadata.version} is damaged: it is not what"
                    " was saved, so nothing is added to it",
                    hint="Run `swampstore doctor --deep`, which tells where a good copy is.",
                )
            for piece in data:
                size = change.append(raw, piece)
            metadata = replace(metadata, size=size, checksum=None)
            change.write(ref.file_rel(metadata.version, METADATA), encode(metadata))
            change.sync_dir(ref.version_rel(metadata.version))
            stored = StoredVersion(metadata, deferred=False)
            marker = on_disk.effective_marker(self.tree, ref)
            self.mutations.record(ref, stored=[stored], marker=marker)
        return metadata

    def _beginning(self, rel: str, size: int | None) -> str:
        """Return the hash of the first bytes of a file: others may have added to it already."""
        path = self.tree.check_inside(rel)
        with disk_errors(path), open(path, "rb", buffering=0) as file:
            return hash_beginning(file.fileno(), size)

    def delete(self, ref: DataRef) -> Deleted:
        """Remove a name with all its versions; removing what is not there is no error."""
        with self.mutations.changing(ref, "delete") as change:
            sizes: dict[int, int] = {}
            if on_disk.has_others_within(self.tree, ref):
                numbers = on_disk.own_numbers(self.tree, ref)
                sizes = {one: self.tree.size(ref.file_rel(one, RAW)) or 0 for one in numbers}
                self.mutations.decide(ref, "delete", numbers=numbers)
                remove_versions(self.tree, change, ref, numbers)
            else:
                change.remove_tree(ref.rel, lambda gone: on_disk.add_sizes(gone, sizes))
            self.mutations.record_rest(ref)
        return Deleted(len(sizes), sum(sizes.values()))

    def delete_versions(self, ref: DataRef, versions: Sequence[int]) -> Deleted:
        """Remove some versions; `latest` moves to the highest that remains, if it must."""
        with self.mutations.changing(ref, "delete versions") as change:
            chosen = set(versions)
            present = on_disk.version_numbers(self.tree, ref)
            chosen.intersection_update(present)
            size = sum(self.tree.size(ref.file_rel(version, RAW)) or 0 for version in chosen)
            marker = self._repoint_without(change, ref, chosen)
            for version in sorted(chosen):
                change.remove_tree(ref.version_rel(version))
            if chosen.issuperset(present):
                # Others may have versions that were removed from this disk by hand.
                repoint(self.tree, change, ref, down=False, may_delete=False)
                self.mutations.record_rest(ref)
            else:
                self.mutations.record(ref, removed=sorted(chosen), marker=marker)
        return Deleted(len(chosen), size)

    def _repoint_without(self, change: Change, ref: DataRef, chosen: set[int]) -> int:
        marker = on_disk.effective_marker(self.tree, ref)
        if marker not in chosen:
            return marker
        top = on_disk.top_committed(self.tree, ref, without=chosen)
        if top:
            return point_latest(change, ref, top)
        change.remove(ref.latest_rel)
        return 0

    def mark_deleted(self, ref: DataRef, method: str) -> Metadata:
        """Save a tombstone: the last known object, and when and by what it was deleted."""
        latest = self._require_latest(ref)
        last: Any = {}
        if is_json(latest.content_type):
            with contextlib.suppress(ValueError):
                last = json.loads(self.read_content(ref, latest.version))
        content = {
            **(last if isinstance(last, dict) else {}),
            "deletedAt": to_iso(self.clock()),
            "deletedByMethod": method,
        }
        return self.save(ref, to_json_bytes(content), tombstone_draft(latest))

    def read_content(self, ref: DataRef, version: int) -> bytes:
        """Return a version's bytes; raise ContentMissingError if they are not here."""
        path = self.tree.check_inside(ref.file_rel(version, RAW))
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise _missing_content(ref, version) from None

    def _require_latest(self, ref: DataRef) -> Metadata:
        marker = on_disk.effective_marker(self.tree, ref)
        metadata = on_disk.read_metadata(self.tree, ref, marker) if marker else None
        if metadata is None or metadata.is_deleted:
            raise NotFoundError(f"{ref} does not exist", hint="See `swampstore data list`.")
        return metadata

    def prune_after(self, ref: DataRef, metadata: Metadata) -> None:
        """Once a version is published, remove those beyond its policy, if that is wanted."""
        keep = metadata.garbage_collection
        if not self._prune_on_write or not isinstance(keep, int):
            return
        # Claims and deferred versions are still being written; they are nobody's excess.
        excess = beyond_count(on_disk.committed_versions(self.tree, ref), keep)
        try:
            if excess:
                self.delete_versions(ref, excess)
        except SwampstoreError as error:
            # The save itself is done; the next one, or `data gc`, prunes again.
            notice("old versions of %s stay for now: %s", ref, error.message)


def _holding(group: Hold | None) -> AbstractContextManager[Hold]:
    """Return the hold of a group, or one for as long as the block lasts."""
    return Hold() if group is None else contextlib.nullcontext(group)


def _missing_content(ref: DataRef, version: int) -> ContentMissingError:
    return ContentMissingError(
        f"the content of {ref} version {version} is not on this disk",
        hint="Restore its `raw` file, or delete that version.",
    )


def to_json_bytes(value: Any) -> bytes:
    """Write a JSON document the way artifacts hold it."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False).encode()


def tombstone_draft(latest: Metadata, renamed_to: str = "") -> Draft:
    """Return the draft of a version that says the data is gone, or has another name now."""
    return Draft(
        content_type="application/json",
        lifetime=latest.lifetime,
        garbage_collection=latest.garbage_collection,
        tags=latest.tags,
        owner=latest.owner,
        lifecycle=DELETED,
        renamed_to=renamed_to,
    )
