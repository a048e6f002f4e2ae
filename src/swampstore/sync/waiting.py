"""Waiting for a remote in a way that hears Ctrl-C, and that knows when the time is over.

The client of a store waits outside the interpreter, where neither reaches it: a server that says
nothing would hold a command up for as long as its timeouts allow. So a request of the main thread
is made by another one, which is not waited for any longer than need be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from swampstore.index.workers import Deadline, in_parallel
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import Request, StoreWrapper

T = TypeVar("T")

_PAGE = 1000


class AttentiveStore(StoreWrapper):
    """A store around a store. Past its `deadline` it raises SyncTimeoutError."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.deadline = Deadline()

    def around(self, request: Request, send: Callable[[], T]) -> T:  # noqa: ARG002 - all alike
        """Make a request in another thread, and wait for its answer no longer than need be."""
        if threading.current_thread() is not threading.main_thread():
            return send()
        [(_, result, error)] = in_parallel(lambda ask: ask(), [send], 1, self.deadline)
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error there is a result

    def listing(self, request: Request, found: Iterator[T]) -> Iterator[T]:
        """Wait for a listing page by page."""
        while page := self.around(request, lambda: tuple(islice(found, _PAGE))):
            yield from page
