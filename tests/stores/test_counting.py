"""Counting what is asked of a store."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swampstore.stores import Store
from swampstore.stores.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnreachableError,
)
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import Fetched
from swampstore.stores.retry import RetryingStore, RetryPolicy
from swampstore.stores.wrapper import CountingStore, Tally
from swampstore.testing import StoreConformance


@pytest.fixture
def counting() -> CountingStore:
    return CountingStore(MemoryStore("counted"))


class TestCountingStore(StoreConformance):
    @pytest.fixture
    def store(self, counting: CountingStore) -> Iterator[Store]:
        with counting as store:
            yield store


def test_nothing_was_asked_yet(counting: CountingStore) -> None:
    assert counting.identity == "memory://counted"
    assert counting.tally() == Tally({}, 0, 0)


def test_reads_count_the_bytes_that_came(counting: CountingStore, tmp_path: Path) -> None:
    etag = counting.inner.put("a", b"12345").etag
    counting.get("a")
    assert counting.get_if_changed("a", etag) is None
    assert counting.get_if_changed("a", "another") is not None
    with (tmp_path / "file").open("wb") as file:
        counting.download("a", file.fileno())
    counting.head("a")
    assert counting.tally() == Tally({"get": 4, "head": 1}, 0, 15)


def test_writes_count_the_bytes_that_went(counting: CountingStore) -> None:
    token = counting.put("a", b"1").token
    counting.put("b", io.BytesIO(b"22"))
    counting.put_if_absent("c", b"333")
    counting.put_if_match("a", b"4444", token)
    counting.copy("a", "d")
    counting.delete("d")
    assert counting.tally() == Tally({"put": 4, "copy": 1, "delete": 1}, 10, 0)


def test_what_fails_was_asked_all_the_same(counting: CountingStore) -> None:
    token = counting.put("a", b"1").token
    counting.reset()
    with pytest.raises(ObjectNotFoundError):
        counting.get("missing")
    with pytest.raises(PreconditionFailedError):
        counting.put_if_absent("a", b"22")
    with pytest.raises(PreconditionFailedError):
        counting.delete_if_match("a", f"not {token}")
    assert counting.tally() == Tally({"get": 1, "put": 1, "delete": 1}, 2, 0)


@pytest.mark.parametrize(("objects", "requests"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_a_listing_is_a_request_for_each_thousand_begun(
    counting: CountingStore, objects: int, requests: int
) -> None:
    for number in range(objects):
        counting.inner.put(f"data/{number}", b"")
    assert len(list(counting.list("data/"))) == objects
    assert counting.tally().requests == {"list": requests}


def test_a_listing_that_is_left_early_counts_what_was_read(counting: CountingStore) -> None:
    for number in range(1500):
        counting.inner.put(f"{number}", b"")
    listing = counting.list()
    assert counting.tally().requests == {}
    next(listing)
    assert counting.tally().requests == {"list": 1}


def test_asking_the_time_is_a_request(counting: CountingStore) -> None:
    counting.clock()
    assert counting.tally().requests == {"clock": 1}


def test_a_tally_does_not_change_afterwards(counting: CountingStore) -> None:
    counting.put("a", b"1")
    before = counting.tally()
    counting.put("a", b"1")
    assert before == Tally({"put": 1}, 1, 0)


def test_no_count_of_many_threads_is_lost(counting: CountingStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: counting.put(f"{number % 10}", b"xyz"), range(2000)))
        list(pool.map(lambda number: counting.get(f"{number % 10}"), range(2000)))
    assert counting.tally() == Tally({"put": 2000, "get": 2000}, 6000, 6000)


def test_inside_the_retries_attempts_are_counted_and_outside_operations() -> None:
    class Flaky(MemoryStore):
        failures = 2

        def get(self, key: str) -> Fetched:
            if self.failures:
                self.failures -= 1
                raise StoreUnreachableError("no answer")
            return super().get(key)

    inside = CountingStore(Flaky())
    outside = CountingStore(RetryingStore(inside, RetryPolicy(first_delay=0)))
    outside.put("a", b"1")
    outside.get("a")
    assert inside.tally().requests == {"put": 1, "get": 3}
    assert outside.tally().requests == {"put": 1, "get": 1}
