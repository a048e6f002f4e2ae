"""What is directly below a prefix: an ability that stores may have, at the price of one request.

Without it the answer comes from a listing of everything below the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from swampstore.stores.protocol import Store


@runtime_checkable
class Foldered(Protocol):
    """A store that can tell the first segments of its keys without listing them all."""

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See `folders`."""


def folders(store: Store, prefix: str = "") -> Sequence[str]:
    """Return the segments that keys go on with, and a slash, behind `prefix`; sorted.

    The prefix is empty or ends with a slash. A segment may be named although nothing is left
    below it.
    """
    if isinstance(store, Foldered):
        return store.folders(prefix)
    rests = (info.key.removeprefix(prefix) for info in store.list(prefix))
    return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})
