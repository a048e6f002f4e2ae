"""The wrapper around a store, and what its hooks see."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from swampstore.index.workers import AttentiveStore
from swampstore.stores import ObjectInfo, Store
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import contents, excerpt, level
from swampstore.stores.retry import RetryingStore
from swampstore.stores.wrapper import CountingStore, Request, StoreWrapper
from swampstore.testing import StoreConformance
from tests.support.broken_store import BrokenStore

T = TypeVar("T")


class TestStoreWrapper(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with StoreWrapper(DirectoryStore(str(tmp_path), durable=False)) as store:
            yield store


class Noting(StoreWrapper):
    """A store that notes what its hooks are told."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.requests: list[Request] = []
        self.failures: list[str] = []

    def around(self, request: Request, send: Callable[[], T]) -> T:
        self.requests.append(request)
        try:
            return send()
        except ObjectNotFoundError:
            self.failures.append(request.key)
            raise

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:
        self.requests.append(request)
        return found


def test_hooks_are_told_every_request_and_its_facts() -> None:
    store = Noting(MemoryStore())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    requests: list[tuple[Request, Callable[[], object]]] = [
        (Request("put", "a", 3), lambda: store.put("a", b"123")),
        (Request("put_if_absent", "b", 2), lambda: store.put_if_absent("b", b"12")),
        (Request("put_if_match", "b", 1), lambda: store.put_if_match("b", b"1", "2")),
        (Request("get", "a"), lambda: store.get("a")),
        (Request("get_if_changed", "a"), lambda: store.get_if_changed("a", "")),
        (Request("download", "a"), lambda: store.download("a", nowhere)),
        (Request("excerpt", "a"), lambda: store.excerpt("a", 1, 1)),
        (Request("head", "a"), lambda: store.head("a")),
        (Request("list", "x"), lambda: list(store.list("x"))),
        (Request("level", "x/"), lambda: store.level("x/")),
        (Request("contents", "x"), lambda: list(store.contents("x", lambda _: True, 9))),
        (Request("copy", "c"), lambda: store.copy("a", "c")),
        (Request("copy_if_absent", "d"), lambda: store.copy_if_absent("c", "d", "4")),
        (Request("delete_if_match", "b"), lambda: store.delete_if_match("b", "3")),
        (Request("delete", "a"), lambda: store.delete("a")),
        (Request("clock"), store.clock),
    ]
    for expected, ask in requests:
        ask()
        assert store.requests.pop() == expected
        assert store.requests == []
    os.close(nowhere)
    methods = {name for name in vars(Store) if not name.startswith("_")}
    told = {request.operation for request, _ in requests}
    extra = {"level", "contents", "excerpt"}
    assert told == (methods - {"identity", "capabilities", "close"}) | extra
    writing = {request.operation for request, _ in requests if request.writes}
    assert writing == {name for name in told if name.startswith(("put", "copy", "delete"))}


def test_hooks_are_told_what_a_request_raises() -> None:
    store = Noting(MemoryStore())
    with pytest.raises(ObjectNotFoundError):
        store.head("missing")
    assert store.failures == ["missing"]


@pytest.mark.parametrize(
    "wrap",
    [RetryingStore, CountingStore, AttentiveStore, BrokenStore],
    ids=lambda wrap: str(wrap.__name__),
)
def test_a_wrapper_can_do_what_the_store_inside_can_do(
    tmp_path: Path, wrap: Callable[[Store], Store]
) -> None:
    inner = DirectoryStore(str(tmp_path), durable=False)
    store = wrap(inner)
    store.put("a/b/c", b"content")
    store.put("a/d", b"")

    def is_wanted(info: ObjectInfo) -> bool:
        return info.size > 0

    assert list(contents(store, "a/", is_wanted, 100)) == list(inner.contents("a/", is_wanted, 100))
    assert [one.data for one in contents(store, "a/", is_wanted, 100)] == [b"content", None]
    assert level(store, "a/") == inner.level("a/")
    assert excerpt(store, "a/b/c", 2, 3) == inner.excerpt("a/b/c", 2, 3) == b"nte"


def test_content_that_comes_with_a_listing_counts_like_content_that_was_asked_for(
    tmp_path: Path,
) -> None:
    store = CountingStore(DirectoryStore(str(tmp_path), durable=False))
    store.put("a", b"12345")
    store.put("b", b"123")
    store.reset()
    excerpt(store, "a", 1, 2)
    assert store.tally().requests == {"get": 1}
    assert store.tally().bytes_received == 2
    store.reset()
    list(contents(store, "", lambda info: info.key == "a", 100))
    assert store.tally().requests == {"list": 1, "get": 1}
    assert store.tally().bytes_received == 5
