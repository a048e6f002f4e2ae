"""A store that fails on request: for a while, at one request, or as if the machine had died."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import Request, StoreWrapper

T = TypeVar("T")


class Killed(BaseException):
    """The process is no more. Nothing that handles errors may catch it."""


class BrokenStore(StoreWrapper):
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

    def around(self, request: Request, send: Callable[[], T]) -> T:
        is_last = self._admit()
        if is_last and not self._answers:
            self._fail()
        result = send()
        if is_last:
            self._fail()
        return result

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:
        yield from self.around(request, lambda: found)

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
