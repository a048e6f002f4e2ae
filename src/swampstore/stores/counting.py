"""A store that keeps count of what is asked of it: requests and bytes are what remotes cost.

Around a store with retries it counts operations; inside the retries it counts attempts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import BinaryIO, NamedTuple

from swampstore.stores.folders import Level, level
from swampstore.stores.payloads import size_of
from swampstore.stores.protocol import Fetched, ObjectInfo, Store, Written
from swampstore.stores.wrapping import WrappingStore

# How many objects the services put on one page of a listing.
_PAGE = 1000


class Tally(NamedTuple):
    """Requests by kind, and bytes of content in both directions.

    The kinds are get, head, list, put, delete, copy and clock; those that never happened are
    missing. A request counts when it is made, however it ends, and so do the bytes it sends;
    received bytes count when they are all there. A listing counts a request for every 1,000
    objects it has begun to yield, at least one.
    """

    requests: dict[str, int]
    bytes_sent: int
    bytes_received: int


class CountingStore(WrappingStore):
    """A store around a store, with a tally."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._sent = 0
        self._received = 0

    def tally(self) -> Tally:
        """Return what was counted so far."""
        with self._lock:
            return Tally(dict(self._requests), self._sent, self._received)

    def add(self, tally: Tally) -> None:
        """Count what somebody else asked of the same store."""
        with self._lock:
            self._requests.update(tally.requests)
            self._sent += tally.bytes_sent
            self._received += tally.bytes_received

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._requests.clear()
            self._sent = self._received = 0

    def _count(self, kind: str, *, sent: int = 0) -> None:
        with self._lock:
            self._requests[kind] += 1
            self._sent += sent

    def _count_received(self, size: int) -> None:
        with self._lock:
            self._received += size

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        self._count("get")
        found = self.inner.get(key)
        self._count_received(len(found.data))
        return found

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        self._count("get")
        found = self.inner.get_if_changed(key, etag)
        if found is not None:
            self._count_received(len(found.data))
        return found

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        self._count("get")
        info = self.inner.download(key, fd, size=size, sha256=sha256)
        self._count_received(info.size)
        return info

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        self._count("head")
        return self.inner.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        self._count("list")
        for number, info in enumerate(self.inner.list(prefix)):
            if number and number % _PAGE == 0:
                self._count("list")
            yield info

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.folders."""
        self._count("list")
        return level(self.inner, prefix)

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        self._count("put", sent=size_of(body))
        return self.inner.put(key, body)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        self._count("put", sent=size_of(body))
        return self.inner.put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        self._count("put", sent=size_of(body))
        return self.inner.put_if_match(key, body, token)

    def delete(self, key: str) -> None:
        """See Store.delete."""
        self._count("delete")
        self.inner.delete(key)

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match."""
        self._count("delete")
        self.inner.delete_if_match(key, token)

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        self._count("copy")
        self.inner.copy(source, target)

    def clock(self) -> datetime:
        """See Store.clock."""
        self._count("clock")
        return self.inner.clock()
