"""What an earlier setup left in the cache that it was making, and is not to be moved any more.

Such a cache, beside the one in use, holds what its remote has and copies of what was to be moved;
nobody works in it. A copy whose version has left the source since was deleted there, or is lost:
nothing tells which. So it is neither shared nor removed, but set aside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from swampstore.artifacts.versions import marker_at
from swampstore.files import disk_errors
from swampstore.index.path_map import Names
from swampstore.layout import LATEST
from swampstore.relocate.destinations import Cache, Place
from swampstore.relocate.pairs import Pairs


def set_aside(cache: Cache, sources: Iterable[str], directory: str) -> list[str]:
    """Move versions that neither the remote nor any source has to a directory; return their paths.

    The cache must have been compared with the remote before. Who is stopped does it again.
    """
    left = list(_left_over(cache, sources))
    for rel in left:
        name_rel, _, number = rel.rpartition("/")
        marker, target = cache.names.local(f"{name_rel}/{LATEST}"), f"{directory}/{rel}"
        with disk_errors(target):
            if marker_at(marker) == int(number):
                os.unlink(marker)  # the next pull, or the copy, brings the right one
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(cache.names.local(rel), target)
    return left


def _left_over(cache: Cache, sources: Iterable[str]) -> Iterator[str]:
    """Yield versions of the cache that came neither from the remote nor from what is there now."""
    root, routing = cache.names.root, cache.names.routing
    backwards = [Pairs(root, Place(Names(source, "", routing))) for source in sources]
    for directory in Pairs(root, cache).walk("data"):
        if not directory.is_version or not directory.is_finished or cache.knows(directory.rel):
            continue
        if all(pairs.twin(directory.rel) is None for pairs in backwards):
            yield directory.rel
