"""A listing with content: an ability that stores may have, where listing and reading share work.

Without it, whoever wants content asks for each object by itself, perhaps many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from swampstore.stores.protocol import ObjectInfo, Store


class Handed(NamedTuple):
    """An object of a listing. `data` is its content if it was wanted and was easily had."""

    info: ObjectInfo
    is_wanted: bool
    data: bytes | None = None


Wanted = Callable[[ObjectInfo], bool]


@runtime_checkable
class Handing(Protocol):
    """A store that hands content out while it lists objects."""

    def contents(self, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
        """See `contents`."""


def contents(store: Store, prefix: str, wanted: Wanted, limit: int) -> Iterator[Handed]:
    """Yield all objects below a prefix, ordered by key; `wanted` is asked once for each.

    Content of more than `limit` bytes never comes along. What is wanted and did not come must be
    asked for: it may be gone, or not be readable.
    """
    if isinstance(store, Handing):
        yield from store.contents(prefix, wanted, limit)
        return
    for info in store.list(prefix):
        yield Handed(info, wanted(info))
