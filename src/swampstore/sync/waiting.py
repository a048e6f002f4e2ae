"""Waiting for a remote in a way that hears Ctrl-C, and that knows when the time is over.

The client of a store waits outside the interpreter, where neither reaches it: a server that says
nothing would hold a command up for as long as its timeouts allow. So a request of the main thread
is made by another one, which is not waited for any longer than need be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import BinaryIO, TypeVar

from swampstore.stores.protocol import Fetched, ObjectInfo, Store, Written
from swampstore.stores.wrapping import WrappingStore
from swampstore.sync.workers import Deadline, in_parallel

R = TypeVar("R")

_PAGE = 1000


class AttentiveStore(WrappingStore):
    """A store around a store. Past its `deadline` it raises SyncTimeoutError."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.deadline = Deadline()

    def _wait_for(self, request: Callable[[], R]) -> R:
        if threading.current_thread() is not threading.main_thread():
            return request()
        [(_, result, error)] = in_parallel(lambda ask: ask(), [request], 1, self.deadline)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error there is a result

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        return self._wait_for(lambda: self.inner.get(key))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        return self._wait_for(lambda: self.inner.get_if_changed(key, etag))

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download."""
        return self._wait_for(lambda: self.inner.download(key, fd, size=size, sha256=sha256))

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        return self._wait_for(lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list."""
        found = self.inner.list(prefix)
        while page := self._wait_for(lambda: tuple(islice(found, _PAGE))):
            yield from page

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        return self._wait_for(lambda: self.inner.put(key, body))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        return self._wait_for(lambda: self.inner.put_if_absent(key, body))

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        return self._wait_for(lambda: self.inner.put_if_match(key, body, token))

    def delete(self, key: str) -> None:
        """See Store.delete."""
        self._wait_for(lambda: self.inner.delete(key))

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match."""
        self._wait_for(lambda: self.inner.delete_if_match(key, token))

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        self._wait_for(lambda: self.inner.copy(source, target))

    def clock(self) -> datetime:
        """See Store.clock."""
        return self._wait_for(self.inner.clock)
