"""What is directly below a prefix: an ability that stores may have, at the price of one request.

Without it the answer comes from a listing of everything below the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from swampstore.stores.protocol import ObjectInfo, Store


class Level(NamedTuple):
    """What is directly below a prefix: the segments that keys go on with, and whole objects.

    Both are sorted. A folder may be named although nothing is left below it.
    """

    folders: Sequence[str]
    objects: Sequence[ObjectInfo]


@runtime_checkable
class Leveled(Protocol):
    """A store that can tell what is directly below a prefix without listing everything."""

    def level(self, prefix: str = "") -> Level:
        """See `level`."""


def level(store: Store, prefix: str = "") -> Level:
    """Return what is directly below `prefix`, which is empty or ends with a slash."""
    if isinstance(store, Leveled):
        return store.level(prefix)
    found: set[str] = set()
    objects: list[ObjectInfo] = []
    for info in store.list(prefix):
        first, slash, _ = info.key.removeprefix(prefix).partition("/")
        if slash:
            found.add(first)
        else:
            objects.append(info)
    return Level(sorted(found), sorted(objects))


def folders(store: Store, prefix: str = "") -> Sequence[str]:
    """Return the segments that keys go on with, and a slash, behind `prefix`; sorted."""
    return level(store, prefix).folders
