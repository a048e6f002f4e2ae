"""Reading one data name from disk: its versions, their metadata, the marker of the latest.

Nothing here writes. The rules are those every client follows: a version exists once its
`metadata.yaml` does, and `latest` (a text file, or a symbolic link of old) names the current one;
see `swampstore.artifacts.latest`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from swampstore.artifacts.latest import latest_of, parse_marker
from swampstore.artifacts.metadata import Metadata, decode
from swampstore.errors import MetadataError
from swampstore.files import Tree, read_file
from swampstore.layout import DEFERRED, METADATA, DataRef, parse_version
from swampstore.notices import notice


class StoredVersion(NamedTuple):
    """A version that exists on disk."""

    metadata: Metadata
    deferred: bool


def version_numbers(tree: Tree, ref: DataRef) -> list[int]:
    """Return every version directory, claimed ones included, ascending."""
    found = (parse_version(name) for name in tree.subdirs(ref.rel))
    return sorted(version for version in found if version is not None)


def read_metadata(tree: Tree, ref: DataRef, version: int) -> Metadata | None:
    """Return a version's metadata, None if it was never finalised; raise MetadataError."""
    path = tree.path(ref.file_rel(version, METADATA))
    try:
        data = tree.read(ref.file_rel(version, METADATA))
    except OSError as error:
        raise MetadataError(
            f"{path} cannot be read: {error.strerror}", hint="Check its permissions."
        ) from error
    return None if data is None else parse_metadata(data, ref, version, path)


def parse_metadata(data: bytes, ref: DataRef, version: int, path: str) -> Metadata:
    """Read the metadata of this very version; raise MetadataError, which names the path."""
    metadata = decode(data, path)
    if metadata.version != version or metadata.name != ref.name:
        raise MetadataError(
            f"{path} describes {metadata.name!r} version {metadata.version}",
            hint="It was copied from elsewhere; restore the right file or delete that version.",
        )
    return metadata


def is_deferred(tree: Tree, ref: DataRef, version: int) -> bool:
    """Whether a version was written to be committed later, and was not yet."""
    return os.path.lexists(tree.path(ref.file_rel(version, DEFERRED)))


def read_marker(tree: Tree, ref: DataRef) -> int | None:
    """Return the version that the `latest` marker names, None if it is absent or nonsense."""
    return marker_at(tree.path(ref.latest_rel))


def marker_at(path: str) -> int | None:
    """Return the version that a marker names: a text file, or a symbolic link of old clients."""
    try:
        data = read_file(path)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP):
            raise
        data = _link_target(path)
    if data is None:
        # A link whose target is gone still says which version it meant.
        data = _link_target(path)
    return parse_marker(data or b"")


def _link_target(path: str) -> bytes | None:
    try:
        return os.fsencode(os.readlink(path))
    except OSError:
        return None


def _report(_version: int, error: MetadataError) -> None:
    notice("%s", error.message)


def stored_versions(
    tree: Tree, ref: DataRef, complain: Callable[[int, MetadataError], object] = _report
) -> Iterator[StoredVersion]:
    """Yield the finalised versions, newest first; undecodable ones are reported and left out."""
    for version in reversed(version_numbers(tree, ref)):
        try:
            metadata = read_metadata(tree, ref, version)
        except MetadataError as error:
            complain(version, error)
            continue
        if metadata is not None:
            yield StoredVersion(metadata, is_deferred(tree, ref, version))


def top_committed(tree: Tree, ref: DataRef, without: Container[int] = ()) -> int:
    """Return the highest version that is finalised and committed, 0 if there is none."""
    return latest_of(
        version_numbers(tree, ref),
        lambda version: version not in without and _is_committed(tree, ref, version),
    )


def committed_versions(tree: Tree, ref: DataRef) -> list[int]:
    """Return the versions that are finalised and committed, ascending."""
    return [one for one in version_numbers(tree, ref) if _is_committed(tree, ref, one)]


def _is_committed(tree: Tree, ref: DataRef, version: int) -> bool:
    is_finalised = os.path.lexists(tree.path(ref.file_rel(version, METADATA)))
    return is_finalised and not is_deferred(tree, ref, version)


def effective_marker(tree: Tree, ref: DataRef) -> int:
    """Return what counts as latest: the marker, or the highest committed version without one."""
    marker = read_marker(tree, ref)
    return top_committed(tree, ref) if marker is None else marker
