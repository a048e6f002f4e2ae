"""The file steps that changes of a data name share: claim a version, make it visible."""

from __future__ import annotations

import os
from typing import NamedTuple

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import marker_content, wins
from swampstore.artifacts.metadata import Metadata, Owner, encode
from swampstore.errors import MetadataError, OwnershipError, VersionClaimError
from swampstore.files import Change, Hold, Tree
from swampstore.layout import DEFERRED, METADATA, RAW, DataRef

CLAIM_ATTEMPTS = 100
_NEARBY = 8


class Current(NamedTuple):
    """A name as it is: what its marker says, and the newest metadata that can be decoded."""

    marker: int
    newest: Metadata | None


def current(tree: Tree, ref: DataRef) -> Current:
    """Look at a name that is about to change. Costs two small reads, whatever its history."""
    marker = on_disk.read_marker(tree, ref)
    if marker is None:
        if not tree.subdirs(ref.rel):
            return Current(0, None)
        marker = on_disk.top_committed(tree, ref)
    try:
        newest = on_disk.read_metadata(tree, ref, marker) if marker else None
    except MetadataError:
        newest = None
    return Current(marker, newest or _newest(tree, ref))


def _newest(tree: Tree, ref: DataRef) -> Metadata | None:
    stored = next(on_disk.stored_versions(tree, ref), None)
    return stored.metadata if stored else None


def owner_for(ref: DataRef, newest: Metadata | None, wanted: Owner | None) -> Owner:
    """Return who owns the next version; raise OwnershipError if the name is someone else's."""
    if wanted is None:
        held = newest.owner if newest else Owner(ref=ref.model.id)
        return Owner(type=held.type, ref=held.ref)
    if newest is None or newest.owner.same_as(wanted):
        return wanted
    raise OwnershipError(
        f"{ref} belongs to {newest.owner.type} {newest.owner.ref!r}, not to"
        f" {wanted.type} {wanted.ref!r}",
        hint="Save under another name, or as the same owner.",
    )


def claim_version(tree: Tree, change: Change, ref: DataRef, marker: int, hold: Hold) -> int:
    """Create the directory of the next free version, held by whoever has `hold`: the claim.

    What the dead claimed is free.
    """
    change.make_dir(ref.rel)
    candidate = marker + 1
    for attempt in range(CLAIM_ATTEMPTS):
        if attempt == _NEARBY:
            # Many claims stand above the marker; look instead of trying one by one.
            candidate = max(candidate, *on_disk.version_numbers(tree, ref)) + 1
        if claims.claim(change, ref, candidate, hold):
            return candidate
        if claims.clear(tree, change, ref, candidate):
            change.make_dir(ref.rel)
        else:
            candidate += 1
    raise VersionClaimError(
        f"no free version of {ref} after {CLAIM_ATTEMPTS} attempts",
        hint="Other writers are claiming versions faster; try again.",
    )


def publish(
    tree: Tree,
    change: Change,
    ref: DataRef,
    metadata: Metadata,
    marker: int,
    *,
    deferred: bool = False,
) -> int:
    """Make a version whose `raw` is written visible; return the marker afterwards.

    The rename of `metadata.yaml` is what makes the version exist, `latest` moves after that and
    never backwards, and each step is durable before the next.
    """
    version = metadata.version
    if deferred:
        change.write_new(ref.file_rel(version, DEFERRED), b"")
    change.write(ref.file_rel(version, METADATA), encode(metadata))
    if not deferred:
        claims.settle(change, ref, version)
    change.sync_dir(ref.version_rel(version))
    change.sync_dir(ref.rel)
    if deferred or not wins(version, marker):
        return marker
    return advance_latest(tree, change, ref, version)


def advance_latest(tree: Tree, change: Change, ref: DataRef, version: int) -> int:
    """Make `latest` name a version, or what another program, without our locks, saved after it.

    That one may have set the marker right before we did. Whatever it has not finished, it still
    has to set it for. Costs one look at a file, usually.
    """
    point_latest(change, ref, version)
    while on_disk.is_committed(tree, ref, version + 1) and os.path.lexists(
        tree.path(ref.file_rel(version + 1, RAW))
    ):
        version = point_latest(change, ref, version + 1)
    return version


def point_latest(change: Change, ref: DataRef, version: int) -> int:
    """Make `latest` name a version, durably; return that version."""
    change.write(ref.latest_rel, marker_content(version))
    change.sync_dir(ref.rel)
    return version
