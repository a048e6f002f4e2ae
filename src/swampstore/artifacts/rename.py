"""Renaming a data name: the latest content is copied, the old name forwards to the new one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from dataclasses import replace
from typing import Any, NamedTuple

from swampstore.artifacts.content import damaged
from swampstore.artifacts.metadata import Draft, Metadata
from swampstore.artifacts.name_lock import Outcome
from swampstore.artifacts.publish import claim_version, current, publish
from swampstore.artifacts.save import ArtifactStore, to_json_bytes, tombstone_draft
from swampstore.artifacts.versions import StoredVersion
from swampstore.clock import to_iso
from swampstore.errors import (
    AlreadyExistsError,
    ContentMissingError,
    NotFoundError,
    ValidationError,
)
from swampstore.files import Change, Hold
from swampstore.layout import RAW, DataRef

# How many names that were renamed in turn a lookup follows.
MAX_HOPS = 5
_CHUNK = 1 << 20


class Renamed(NamedTuple):
    """What a rename did: the version that was copied, and the one it became."""

    old: DataRef
    new: DataRef
    copied_version: int
    new_version: int


def rename(store: ArtifactStore, old: DataRef, new_name: str) -> Renamed:
    """Copy the latest version of `old` under a new name and leave a tombstone that forwards.

    The history stays where it is. Raises NotFoundError without live data under the old name,
    AlreadyExistsError with live data under the new one. Nothing in between is ever visible:
    without the tombstone, recovery takes the copy back.
    """
    new = DataRef(old.model, new_name)
    store.check_new(new)
    if new == old:
        raise ValidationError(
            f"{old.name!r} is the name already", hint="Give a name that differs from the old one."
        )
    copy_id = str(uuid.uuid4())
    details: dict[str, Any] = {"with": [old.rel, new.rel], "old": old.rel, "new_name": new.name}
    with (
        Hold() as hold,
        store.mutations.changing_many([old, new], "rename", copy_id=copy_id, **details) as (
            old_change,
            new_change,
        ),
    ):
        latest, old_marker = _live(store, old)
        if latest is None:
            raise NotFoundError(f"{old} does not exist", hint="See `swampstore data list`.")
        current, new_marker = _live(store, new)
        if current is not None:
            raise AlreadyExistsError(
                f"{new} exists already", hint="Delete it first, or choose another name."
            )
        copied = _copy(store, new_change, latest, old, new, new_marker, copy_id, hold)
        tombstone = _bury(store, old_change, old, latest, old_marker, new, hold)
        store.mutations.record_all([_as_latest(old, tombstone), _as_latest(new, copied)])
    return Renamed(old, new, latest.version, copied.version)


def _live(store: ArtifactStore, ref: DataRef) -> tuple[Metadata | None, int]:
    marker, newest = current(store.tree, ref)
    is_live = marker and newest is not None and not newest.is_deleted
    return (newest if is_live else None), marker


def _copy(
    store: ArtifactStore,
    change: Change,
    latest: Metadata,
    old: DataRef,
    new: DataRef,
    marker: int,
    copy_id: str,
    hold: Hold,
) -> Metadata:
    version = claim_version(store.tree, change, new, marker, hold)
    try:
        size, checksum = _copy_content(
            store, change, old.file_rel(latest.version, RAW), new, version
        )
        _check_saved(store, old, latest, size, checksum)
        metadata = replace(
            latest,
            id=copy_id,
            name=new.name,
            version=version,
            created_at=to_iso(store.clock()),
            size=size,
            checksum=checksum,
        )
        publish(store.tree, change, new, metadata, marker)
    except BaseException:
        change.discard_claim(new.version_rel(version))
        raise
    return metadata


def _check_saved(
    store: ArtifactStore, old: DataRef, latest: Metadata, size: int, checksum: str
) -> None:
    """Let no copy vouch for content that was damaged before."""
    if latest.checksum and not latest.allows(size, checksum):
        raise damaged(store.tree, old, latest.version, is_there=False)


def _copy_content(
    store: ArtifactStore, change: Change, source: str, new: DataRef, version: int
) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    path = store.tree.check_inside(source)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except FileNotFoundError:
            raise ContentMissingError(
                f"{path} is not on this disk", hint="Restore it before renaming."
            ) from None
        fd = change.create(new.file_rel(version, RAW))
        target = stack.enter_context(open(fd, "wb"))
        while chunk := file.read(_CHUNK):
            target.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        target.flush()
        if store.tree.durable:
            os.fsync(fd)
    return size, digest.hexdigest()


def _bury(
    store: ArtifactStore,
    change: Change,
    old: DataRef,
    latest: Metadata,
    marker: int,
    new: DataRef,
    hold: Hold,
) -> Metadata:
    now = to_iso(store.clock())
    content = to_json_bytes({"renamedTo": new.name, "renamedAt": now})
    draft: Draft = tombstone_draft(latest, renamed_to=new.name).checked()
    version = claim_version(store.tree, change, old, marker, hold)
    checksum = hashlib.sha256(content).hexdigest()
    tombstone = draft.metadata(old.name, version, latest.owner, now, len(content), checksum)
    try:
        change.write_new(old.file_rel(version, RAW), content)
        publish(store.tree, change, old, tombstone, marker)
    except BaseException:
        change.discard_claim(old.version_rel(version))
        raise
    return tombstone


def _as_latest(ref: DataRef, metadata: Metadata) -> Outcome:
    return Outcome(ref, metadata.version, [StoredVersion(metadata, deferred=False)])
