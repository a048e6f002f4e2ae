"""What stores that wrap another store have in common: they stand for the same place."""

from __future__ import annotations

from typing import Self

from swampstore.stores.folders import Level, level
from swampstore.stores.protocol import Capabilities, Store


class WrappingStore:
    """The part of a store that has nothing to do with objects, passed on to the one inside."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def identity(self) -> str:
        """See Store.identity."""
        return self.inner.identity

    @property
    def capabilities(self) -> Capabilities:
        """See Store.capabilities."""
        return self.inner.capabilities

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.folders."""
        return level(self.inner, prefix)

    def close(self) -> None:
        """See Store.close."""
        self.inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
