"""Finding objects that the index names and the store has lost, but this cache has not."""

from __future__ import annotations

from collections.abc import Container, Iterator

from swampstore.index.errors import SyncError
from swampstore.index.partitions import Scope
from swampstore.sync.hashing import hash_file
from swampstore.sync.local_scan import Changed
from swampstore.sync.parts import Parts


def stored_paths(parts: Parts) -> frozenset[str]:
    """Return the paths that have an object; costs a listing of everything."""
    root = parts.names.remote("")
    return frozenset(info.key.removeprefix(root) for info in parts.store.list(root))


def files_without_object(
    parts: Parts, stored: Container[str], scope: Scope | None
) -> Iterator[Changed]:
    """Yield files that are what the base says, and whose objects are gone. Others are damaged."""
    for known in parts.base.below(""):
        if known.held is None or known.rel in stored:
            continue
        if scope is not None and not scope.covers(known.rel):
            continue
        try:
            sha256, now = hash_file(parts.names.local(known.rel))
        except (FileNotFoundError, SyncError):
            continue
        if sha256 == known.sha256:
            yield Changed(known.rel, now, known, sha256)
