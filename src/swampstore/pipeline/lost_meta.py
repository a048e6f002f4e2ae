"""What a remote is whose `_meta.json` is missing or damaged, told as every sync tells it."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from swampstore.clock import system_clock
from swampstore.sync.base import Base
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.remote import RemoteIndex

if TYPE_CHECKING:
    from swampstore.pipeline.places import Place
    from swampstore.stores.protocol import Store


def version_without_meta(place: Place, store: Store) -> int:
    """Return what a cache that knows nothing takes the remote for; 0: for empty.

    Raises NewerFormatError.
    """
    with tempfile.TemporaryDirectory() as cache:
        base = Base(cache, str(place))
        try:
            index = RemoteIndex(store, place.names(cache), base, clock=system_clock)
            state = index.refresh()
        except IndexDamagedError:
            return 1  # a monolith that cannot be read is one that was in use
        finally:
            base.close()
    return state.version if state.exists else 0
