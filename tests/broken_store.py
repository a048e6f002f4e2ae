"""A store that fails on request: for a while, at one request, or as if the machine had died."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import BinaryIO, TypeVar

from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Fetched, ObjectInfo, Store, Written
from swampstore.stores.wrapping import WrappingStore

R = TypeVar("R")


class Killed(BaseException):
    """The process is no more. Nothing that handles errors may catch it."""


class BrokenStore(WrappingStore):
    """A store around a store. It is whole until told otherwise."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._is_offline = False
        self._is_dead = False
        self._left: int | None = None
        self._answers = False
        self._kills = False

    @contextlib.contextmanager
    def offline(self) -> Iterator[None]:
        """Let no request through while the block runs."""
        self._is_offline = True
        try:
            yield
        finally:
            self._is_offline = False

    def fail_after(self, requests: int, *, is_done: bool, kills: bool) -> None:
        """Let some requests through and spoil the next one.

        `is_done`: it takes effect, only its answer is lost. `kills`: with it ends the process,
        and so every later request fails too.
        """
        self._left, self._answers, self._kills = requests, is_done, kills

    def mend(self) -> None:
        """Be whole again."""
        self._left = None

    def _through(self, request: Callable[[], R]) -> R:
        is_last = self._admit()
        if is_last and not self._answers:
            self._fail()
        result = request()
        if is_last:
            self._fail()
        return result

    def _admit(self) -> bool:
        """Refuse a request, or say whether it is the one that fails."""
        with self._lock:
            if self._is_dead:
                raise Killed
            if self._is_offline:
                raise StoreUnreachableError("the network is down", hint="Wait.")
            if self._left is None:
                return False
            self._left -= 1
            return self._left == -1

    def _fail(self) -> None:
        if self._kills:
            self._is_dead = True
            raise Killed
        raise StoreUnreachableError("the connection was lost", hint="Try again.")

    def get(self, key: str) -> Fetched:
        return self._through(lambda: self.inner.get(key))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        return self._through(lambda: self.inner.get_if_changed(key, etag))

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        return self._through(lambda: self.inner.download(key, fd, size=size, sha256=sha256))

    def head(self, key: str) -> ObjectInfo:
        return self._through(lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from self._through(lambda: self.inner.list(prefix))

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        return self._through(lambda: self.inner.put(key, body))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        return self._through(lambda: self.inner.put_if_absent(key, body))

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        return self._through(lambda: self.inner.put_if_match(key, body, token))

    def delete(self, key: str) -> None:
        self._through(lambda: self.inner.delete(key))

    def delete_if_match(self, key: str, token: str) -> None:
        self._through(lambda: self.inner.delete_if_match(key, token))

    def copy(self, source: str, target: str) -> None:
        self._through(lambda: self.inner.copy(source, target))

    def clock(self) -> datetime:
        return self._through(self.inner.clock)
