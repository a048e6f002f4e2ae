"""The store in memory keeps the promise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swampstore.stores import Store, open_store
from swampstore.stores.memory import MemoryStore
from swampstore.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with MemoryStore() as store:
            yield store


def test_stores_of_one_name_share_their_objects() -> None:
    open_store("memory://shared-by-name").put("a", b"x")
    assert open_store("memory://shared-by-name").get("a").data == b"x"
    assert list(open_store("memory://another-name").list()) == []
