"""What the index names of a version, where a push of what was appended to it was stopped.

Such a push has written over content and metadata, and nobody was told. What was appended follows
what was there, and metadata changes in two members. So both can still be had as they were; the
hash in the index proves it. Whoever appended goes on with it at the next push.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from swampstore.artifacts.metadata import decode, encode
from swampstore.errors import MetadataError, SwampstoreError
from swampstore.files import disk_errors
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_metadata, version_file
from swampstore.layout import RAW
from swampstore.stores.errors import CorruptObjectError
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Download, Fetched, Staging
from swampstore.sync.hashing import holds


def fetch_committed(
    context: SyncContext, download: Download, staging: Staging, content: Entry | None
) -> Fetched | None:
    """Fetch what the index names, where the object is another one; None if it cannot be had.

    `content` is what is known of the content of that version. What the index does not name any
    more is not wanted: others have told of what they appended. Nor is less than what was here, of
    which an index of long ago speaks.
    """
    rel, entry = download
    if entry.sha256 is None or version_file(rel) is None or content is None:
        return None
    if _is_less(context, download, content):
        return None
    path = staging.new_path(entry.sha256)
    try:
        if is_metadata(rel):
            is_there = _write_metadata(context, download, content, path)
        else:
            is_there = _fetch_beginning(context, download, path)
        if not is_there or not _is_named(context, download):
            return None
    except SwampstoreError:
        return None  # what led here is told, and matters more
    return Fetched(rel, path, entry.sha256, entry.size, None)


def _is_less(context: SyncContext, download: Download, content: Entry) -> bool:
    """Whether more of a version was here already, or whether nobody can tell."""
    rel, entry = download
    known = context.base.get(rel)
    before = context.base.get(f"{rel.rpartition('/')[0]}/{RAW}")
    if before is None:
        return known is not None and known.sha256 != entry.sha256
    return before.size > content.size


def _fetch_beginning(context: SyncContext, download: Download, path: str) -> bool:
    """Fetch an object as far as the index names it; whether that is what it names."""
    rel, entry = download
    with disk_errors(path), open(path, "xb") as file:
        key = context.names.remote(rel)
        try:
            context.store.download(key, file.fileno(), size=entry.size, sha256=entry.sha256)
        except CorruptObjectError:
            return holds(path, entry.sha256) is True
    return True


def _write_metadata(context: SyncContext, download: Download, content: Entry, path: str) -> bool:
    """Write metadata as it was before something was appended; whether the index names that."""
    rel, entry = download
    try:
        after = decode(context.store.get(context.names.remote(rel)).data, rel)
    except MetadataError:
        return False
    if not after.streaming:
        return False
    # Before the first append it names the hash of the content.
    for checksum in (content.sha256, None):
        before = encode(replace(after, size=content.size, checksum=checksum))
        if hashlib.sha256(before).hexdigest() == entry.sha256:
            with disk_errors(path), open(path, "xb") as file:
                file.write(before)
            return True
    return False


def _is_named(context: SyncContext, download: Download) -> bool:
    """Whether the index names just what is to be fetched."""
    rel, wanted = download
    named = context.index.view({partition_of(rel)}).entry(rel)
    return named is not None and named.sha256 == wanted.sha256
