"""Reading data names from disk: which there are, their versions, metadata and markers.

Nothing here writes. The rules are those every client follows: a version exists once its
`metadata.yaml` does, and `latest` (a text file, or a symbolic link of old) names the current one;
see `swampstore.artifacts.latest`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple

from swampstore.artifacts.latest import latest_of, parse_marker
from swampstore.artifacts.metadata import Metadata, decode
from swampstore.errors import MetadataError
from swampstore.files import Tree, read_file
from swampstore.layout import DEFERRED, METADATA, RAW, DataRef, is_temp, parse_version, ref_of
from swampstore.notices import notice

Complain = Callable[[str, OSError], None]
_MAX_DEPTH = 64


class StoredVersion(NamedTuple):
    """A version that exists on disk."""

    metadata: Metadata
    deferred: bool


def version_numbers(tree: Tree, ref: DataRef) -> list[int]:
    """Return every version directory, claimed ones included, ascending."""
    found = (parse_version(name) for name in tree.subdirs(ref.rel))
    return sorted(version for version in found if version is not None)


def own_numbers(tree: Tree, ref: DataRef) -> list[int]:
    """Return what `version_numbers` does, without what is a data name of another model.

    There are such where a model is called as this name is: `aws/ec2 prod`, `aws/ec2/prod 2024`.
    """
    return [
        number
        for number in version_numbers(tree, ref)
        if os.path.lexists(tree.path(ref.file_rel(number, METADATA)))
        or not tree.subdirs(ref.version_rel(number))
    ]


def has_others_within(tree: Tree, ref: DataRef) -> bool:
    """Whether there is more in the directory of a name than versions, as data of another model."""
    return any(
        parse_version(child) is None or tree.subdirs(f"{ref.rel}/{child}")
        for child in tree.subdirs(ref.rel)
    )


def add_sizes(directory: str, sizes: dict[int, int]) -> None:
    """Add up how much content the versions in the directory of a data name have, one tier of it."""
    for entry in os.scandir(directory):
        version = parse_version(entry.name) if entry.is_dir(follow_symlinks=False) else None
        if version is not None:
            sizes.setdefault(version, 0)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                sizes[version] += os.stat(f"{entry.path}/{RAW}").st_size


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
        lambda version: version not in without and is_committed(tree, ref, version),
    )


def committed_versions(tree: Tree, ref: DataRef) -> list[int]:
    """Return the versions that are finalised and committed, ascending."""
    return [one for one in version_numbers(tree, ref) if is_committed(tree, ref, one)]


def is_committed(tree: Tree, ref: DataRef, version: int) -> bool:
    """Whether a version is finalised, and waits for no group to be committed."""
    is_finalised = os.path.lexists(tree.path(ref.file_rel(version, METADATA)))
    return is_finalised and not is_deferred(tree, ref, version)


def effective_marker(tree: Tree, ref: DataRef) -> int:
    """Return what counts as latest: the marker, or the highest committed version without one."""
    marker = read_marker(tree, ref)
    return top_committed(tree, ref) if marker is None else marker


# All data names ----------------------------------------------------------------------------------


def data_names(tree: Tree, complain: Complain) -> Iterator[DataRef]:
    """Yield every data name in path order; memory does not grow with how many there are.

    A directory is a data name if a numeric child of it holds `metadata.yaml`: numeric data names
    are not mistaken for versions, and an unreadable branch is reported, never taken for empty.
    """
    yield from _below(tree, (), complain)


def names_at(tree: Tree, path: str) -> Iterator[DataRef]:
    """Yield the data names that a path is in, and those below it; what is unreadable is left."""
    parts = tuple(path.split("/")[1:])
    for end in range(3, len(parts)):
        rel = "/".join(("data", *parts[:end]))
        if any(_versions(tree, rel, _children(tree, rel, _ignore))):
            yield ref_of(rel)
    yield from _below(tree, parts, _ignore)


def _ignore(_place: str, _error: OSError) -> None:
    """Leave it to whoever walks everything."""


def _below(tree: Tree, parts: tuple[str, ...], complain: Complain) -> Iterator[DataRef]:
    rel = "/".join(("data", *parts))
    children = _children(tree, rel, complain)
    versions = set()
    if len(parts) >= 3:
        versions = set(_versions(tree, rel, children))
    if versions:
        yield ref_of(rel)
    if len(parts) < _MAX_DEPTH:
        for child in children:
            if child not in versions:
                yield from _below(tree, (*parts, child), complain)


def _children(tree: Tree, rel: str, complain: Complain) -> list[str]:
    names: set[str] = set()
    for place in tree.places(rel):
        try:
            with os.scandir(place) as entries:
                names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue
        except OSError as error:
            complain(place, error)
    return sorted(name for name in names if not is_temp(name))


def _versions(tree: Tree, rel: str, children: list[str]) -> Iterator[str]:
    """Yield the finalised versions: `207333/` may as well be a numeric data name."""
    places = tree.places(rel)
    for name in children:
        if parse_version(name) is not None:
            inside = f"{name}/{METADATA}"
            # There are a great many; only where tiers mix is it a question of the single file.
            path = f"{places[0]}/{inside}" if len(places) == 1 else tree.path(f"{rel}/{inside}")
            if os.path.lexists(path):
                yield name
