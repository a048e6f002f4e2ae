"""Removing content that no path names any more, and that no push relies on.

Content stays when its last path is deleted or gets other content. It goes when it is older than a
grace: whoever puts the same content again, and every commit, makes it new. So it cannot be taken
away from under a push of ours, however long that takes; other clients make nothing new, but push
under the lock of everything, which whoever sweeps holds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from swampstore.stores.mongodb_keys import OBJECTS, PATHS
from swampstore.stores.mongodb_place import Place
from swampstore.stores.mongodb_store import MongoStore
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import StoreWrapper

GRACE = timedelta(hours=1)
# An upload that nobody has committed for so long belongs to a push that was given up.
ABANDONED = timedelta(days=1)
_CHECK_EVERY = 100


class Swept(NamedTuple):
    """How much content nobody needs, and how much of it was removed."""

    unused: int = 0
    bytes: int = 0
    removed: int = 0


def database_of(store: Store) -> MongoStore | None:
    """Return the database below all wrappers, None if the store is none."""
    while isinstance(store, StoreWrapper):
        store = store.inner
    return store if isinstance(store, MongoStore) else None


def sweep(
    store: MongoStore, namespace: str, *, remove: bool, check: Callable[[], None] = lambda: None
) -> Swept:
    """Find content that nobody names, and remove it; `check` raises if that may not be done.

    Hold the lock of everything in the namespace to remove any.
    """
    place = store.place(namespace)
    now = store.clock()
    if remove:
        check()
        place.objects.remove_staged_before(now - ABANDONED)
    swept = Swept()
    for blobs, named in ((place.blobs, _files(store, place)), (place.contents, _own(store, place))):
        for name, size in blobs.unused(named, now - GRACE):
            if swept.unused % _CHECK_EVERY == 0:
                check()
            is_gone = remove and blobs.remove_older(name, now - GRACE)
            swept = Swept(swept.unused + 1, swept.bytes + size, swept.removed + is_gone)
    return swept


def _files(store: MongoStore, place: Place) -> set[str]:
    """Return the content of files that the index names, or that are on their way."""
    live = store.members(place.names[PATHS], {"deletedAt": None}, "hash")
    return live | store.members(place.names[OBJECTS], {"isStaged": True}, "hash")


def _own(store: MongoStore, place: Place) -> set[str]:
    return store.members(place.names[OBJECTS], {}, "hash")
