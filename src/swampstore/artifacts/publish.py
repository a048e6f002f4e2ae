"""The file steps that changes of a data name share: claim a version, make it visible."""

from __future__ import annotations

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.metadata import Metadata, Owner, encode
from swampstore.errors import MetadataError, OwnershipError, VersionClaimError
from swampstore.files import Change, Tree
from swampstore.layout import DEFERRED, METADATA, DataRef

CLAIM_ATTEMPTS = 100
_NEARBY = 8


def newest_known(tree: Tree, ref: DataRef, marker: int) -> Metadata | None:
    """Return the metadata of the latest version, or of the newest one that can be decoded."""
    if marker:
        try:
            return on_disk.read_metadata(tree, ref, marker)
        except MetadataError:
            pass
    stored = next(on_disk.stored_versions(tree, ref), None)
    return stored.metadata if stored else None


def check_owner(ref: DataRef, current: Metadata | None, owner: Owner) -> None:
    """Raise OwnershipError unless `owner` owns the name already, or nobody does."""
    if current is None or current.owner.same_as(owner):
        return
    raise OwnershipError(
        f"{ref} belongs to {current.owner.type} {current.owner.ref!r}, not to"
        f" {owner.type} {owner.ref!r}",
        hint="Save under another name, or as the same owner.",
    )


def claim_version(tree: Tree, change: Change, ref: DataRef, marker: int) -> int:
    """Create the directory of the next free version; creating it is the claim."""
    change.make_dir(ref.rel)
    candidate = marker + 1
    for attempt in range(CLAIM_ATTEMPTS):
        if attempt == _NEARBY:
            # Many claims stand above the marker; look instead of trying one by one.
            candidate = max(candidate, *on_disk.version_numbers(tree, ref)) + 1
        if change.claim_dir(ref.version_rel(candidate)):
            return candidate
        candidate += 1
    raise VersionClaimError(
        f"no free version of {ref} after {CLAIM_ATTEMPTS} attempts",
        hint="Other writers are claiming versions faster; try again.",
    )


def publish(
    change: Change, ref: DataRef, metadata: Metadata, marker: int, *, deferred: bool = False
) -> int:
    """Make a version whose `raw` is written visible; return the marker afterwards.

    The rename of `metadata.yaml` is what makes the version exist, `latest` moves after that and
    never backwards, and each step is durable before the next.
    """
    version = metadata.version
    if deferred:
        change.write_new(ref.file_rel(version, DEFERRED), b"")
    change.write(ref.file_rel(version, METADATA), encode(metadata))
    change.sync_dir(ref.version_rel(version))
    change.sync_dir(ref.rel)
    if deferred or version <= marker:
        return marker
    return point_latest(change, ref, version)


def point_latest(change: Change, ref: DataRef, version: int) -> int:
    """Make `latest` name a version, durably; return that version."""
    change.write(ref.latest_rel, b"%d" % version)
    change.sync_dir(ref.rel)
    return version
