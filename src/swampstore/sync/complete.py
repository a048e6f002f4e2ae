"""Whether a version is complete: what its metadata speaks of is on this disk, or on the remote.

Nothing else decides that. Metadata without content must never be shown to others: they would take
it for a version, perhaps for the latest one, and find nothing to read.
"""

from __future__ import annotations

import hashlib

from swampstore.artifacts.metadata import Metadata, decode
from swampstore.errors import ContentDamagedError, MetadataError
from swampstore.files import disk_errors, read_file
from swampstore.files.signature import signature
from swampstore.index.format import Entry
from swampstore.index.path_kinds import version_file
from swampstore.index.path_map import Names
from swampstore.layout import METADATA, RAW, ref_of
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import read_small

_SMALL = 64 << 10


def is_content_here(names: Names, version_rel: str) -> bool:
    """Whether a version has its content in the cache, or where the settings keep it.

    A symbolic link is no content: nobody else could read what it leads to.
    """
    raw = f"{version_rel}/{RAW}"
    return names.why_not(raw) is not None or signature(names.local(raw)) is not None


def local_metadata(names: Names, version_rel: str) -> Metadata | None:
    """Return the metadata of a version in the cache, None if there is none that can be read."""
    return _decoded(*_read(names, version_rel))


def _read(names: Names, version_rel: str) -> tuple[bytes | None, str]:
    path = names.local(f"{version_rel}/{METADATA}")
    with disk_errors(path):
        return read_file(path), path


def _decoded(data: bytes | None, path: str) -> Metadata | None:
    try:
        return decode(data, path) if data else None
    except MetadataError:
        return None


def speaks_of(names: Names, version_rel: str, entry: Entry) -> bool:
    """Whether the metadata in the cache, if there is any, can mean this content of the remote."""
    metadata = local_metadata(names, version_rel)
    return metadata is None or metadata.allows(entry.size, entry.sha256)


def is_complete(
    context: SyncContext, version_rel: str, entry: Entry | None, *, proven: bool = False
) -> bool:
    """Whether the content of a version is here, or is what the remote's `entry` of it says.

    `proven` has the store show that the object is there; ask for that before relying on it.
    """
    if is_content_here(context.names, version_rel):
        return True
    if entry is None or not speaks_of(context.names, version_rel, entry):
        return False
    return not proven or _has_object(context, f"{version_rel}/{RAW}", entry)


def check_saved(names: Names, rel: str, sha256: str, size: int, told: bytes | None = None) -> None:
    """Raise ContentDamagedError if this content of a version is not what its metadata speaks of.

    `told` is what that was a moment ago, if somebody knows: then it is read only in doubt.
    """
    version_rel, _, name = rel.rpartition("/")
    if name != RAW or not version_file(rel) or _names_hash(told, sha256):
        return
    data, path = _read(names, version_rel)
    if _names_hash(data, sha256):
        return
    metadata = _decoded(data, path)
    if metadata is None or not metadata.checksum or metadata.checksum == sha256:
        return
    if metadata.may_be_appended_to(size):
        return
    name_rel, _, version = version_rel.rpartition("/")
    raise ContentDamagedError(
        f"the content of {ref_of(name_rel)} version {version} is damaged: it is not what was saved,"
        " so nobody else gets to see it",
        hint="Run `swampstore doctor --deep`, which tells where a good copy is.",
    )


def is_saved_at_a_glance(names: Names, version_rel: str) -> bool:
    """Whether the content of a version is small, and surely what its metadata speaks of."""
    path = names.local(version_rel)
    content = read_small(f"{path}/{RAW}", _SMALL)
    if content is None:
        return False
    return _names_hash(
        read_small(f"{path}/{METADATA}", _SMALL), hashlib.sha256(content).hexdigest()
    )


def _names_hash(metadata: bytes | None, sha256: str) -> bool:
    """Whether metadata surely names this hash, told at a glance: a push asks this of each version.

    Only the last line is believed: one in the middle may be part of a text in quotes, or have a
    next line that goes on with it.
    """
    return metadata is not None and metadata.endswith(b"\nchecksum: %s\n" % sha256.encode())


def why_withheld(version_rel: str) -> str:
    """Return what to tell about a version that is not complete, with the ways out."""
    name_rel, _, version = version_rel.rpartition("/")
    ref = ref_of(name_rel)
    return (
        "its content is neither on this disk nor on the remote, so nobody else gets to see it;"
        f" restore its `{RAW}`, or give it up with"
        f" `swampstore data delete {ref.model} {ref.name} --version {version}`"
    )


def _has_object(context: SyncContext, rel: str, entry: Entry) -> bool:
    try:
        return context.store.head(context.names.remote(rel)).size == entry.size
    except ObjectNotFoundError:
        return False
