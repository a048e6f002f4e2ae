"""What an earlier setup left in the cache that it was making.

Such a cache, beside the one in use, holds what its remote has and copies of what was to be moved;
nobody works in it. A copy that is not what its source has now was deleted or changed there since,
or is lost: nothing tells which. So it is neither shared nor removed, but set aside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from swampstore.artifacts.versions import marker_at
from swampstore.files import disk_errors
from swampstore.index.path_kinds import CONFLICTS, is_derived, is_marker
from swampstore.index.path_map import Names
from swampstore.layout import LATEST, is_temp, parse_version
from swampstore.relocate.destinations import Cache, Place
from swampstore.relocate.pairs import Directory, Pairs, begins_with


def has_unshared(cache: Cache) -> bool:
    """Whether a cache has versions, or other files, that its remote does not have yet.

    The cache must have been compared with the remote before.
    """
    return any(rels for _, rels in _unshared(cache))


def _unshared(cache: Cache) -> Iterator[tuple[Directory, list[str]]]:
    for subdir in cache.names.routing.subdirs:
        for directory in Pairs(cache.names.root, cache).walk(subdir):
            if not directory.is_version:
                yield directory, _unshared_files(cache, directory)
            elif directory.is_finished and not cache.knows(directory.rel):
                yield directory, [directory.rel]


def _unshared_files(cache: Cache, directory: Directory) -> list[str]:
    rels = [f"{directory.rel}/{name}" for name in directory.files if not is_temp(name)]
    return cache.unknown(
        [rel for rel in rels if not is_marker(rel) and not cache.names.why_not(rel)]
    )


def set_aside(cache: Cache, sources: Iterable[str], directory: str) -> list[str]:
    """Move what neither the remote nor any source has to a directory; return the paths.

    The cache must have been compared with the remote before. Who is stopped does it again.
    """
    left = list(_left_over(cache, sources))
    for rel in left:
        name_rel, _, number = rel.rpartition("/")
        marker, target = cache.names.local(f"{name_rel}/{LATEST}"), f"{directory}/{rel}"
        with disk_errors(target):
            if marker_at(marker) == parse_version(number) is not None:
                os.unlink(marker)  # the next pull, or the copy, brings the right one
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(cache.names.local(rel), target)
    return left


def _left_over(cache: Cache, sources: Iterable[str]) -> Iterator[str]:
    """Yield what came neither from the remote nor from what is there now."""
    root, routing = cache.names.root, cache.names.routing
    backwards = [Pairs(root, Place(Names(source, "", routing))) for source in sources]
    for directory, rels in _unshared(cache):
        for rel in rels:
            if directory.is_version:
                is_there = any(pairs.twin(rel) is not None for pairs in backwards)
            else:
                is_there = _may_stay(rel) or any(_is_from(pairs, rel) for pairs in backwards)
            if not is_there:
                yield rel


def _may_stay(rel: str) -> bool:
    """Whether a file is of no source as it is, or the last one who writes it is right."""
    return is_derived(rel) or rel.startswith(f"{CONFLICTS}/")


def _is_from(pairs: Pairs, rel: str) -> bool:
    """Whether a file is what is there, or the beginning of it."""
    return begins_with(pairs.to.names.local(rel), pairs.path(rel))
