"""Many transfers at once, until they are done, the time is over, or somebody presses Ctrl-C.

Threads, because a transfer waits for the network outside the interpreter lock. They are daemons:
a request that hangs must not keep a command from ending.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from swampstore.errors import SwampstoreError
from swampstore.index.errors import SyncTimeoutError
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import Request, StoreWrapper

T = TypeVar("T")
R = TypeVar("R")

_PAGE = 1000
# Seconds in which results come together, and what part of those that wait is taken at once.
_PAUSE, _PART = 0.005, 8


class Deadline:
    """A moment after which nothing new is begun; None means never."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Return the seconds left; raise SyncTimeoutError if there are none."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise SyncTimeoutError(
                f"the sync took longer than the {self._seconds:g} s it was given",
                hint="What was done is kept; sync again to go on, or give it more --timeout.",
            )
        return left


class Done(NamedTuple, Generic[T, R]):
    """One finished piece of work: its result, or what went wrong with it."""

    task: T
    result: R | None
    error: SwampstoreError | None


def in_parallel(
    work: Callable[[T], R],
    tasks: Iterable[T],
    concurrency: int,
    deadline: Deadline,
    *,
    ahead: int = 0,
) -> Iterator[Done[T, R]]:
    """Yield each task when it is done, in no order; errors of ours are results, others are raised.

    At most `concurrency` run at once and as many wait, so `tasks` may be a long lazy sequence. A
    caller who takes his time with some results has `ahead` more of them wait, and nobody idles. So
    many can also wait while results come together for a moment: to be woken for each one costs as
    much as a small transfer.
    Leaving the iteration early, or the deadline, ends it without waiting for what still runs.
    """
    source = iter(tasks)
    todo: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[Done[T, R] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    threads = 0
    pending = 0
    try:
        for task in source:
            deadline.remaining()
            todo.put((task,))
            pending += 1
            if threads < concurrency:
                threads += 1
                _start(work, todo, done, stopped)
            if pending >= 2 * concurrency + ahead:
                if ahead and done.empty():
                    time.sleep(_PAUSE)
                yield _next(done, deadline)
                pending -= 1
                for _ in range(min(done.qsize(), ahead // _PART)):
                    yield _next(done, deadline)
                    pending -= 1
        while pending:
            yield _next(done, deadline)
            pending -= 1
    finally:
        stopped.set()
        for _ in range(threads):
            todo.put(None)


def _start(
    work: Callable[[T], R],
    todo: queue.SimpleQueue[tuple[T] | None],
    done: queue.SimpleQueue[Done[T, R] | BaseException],
    stopped: threading.Event,
) -> None:
    def run() -> None:
        while (item := todo.get()) is not None and not stopped.is_set():
            (task,) = item
            try:
                done.put(Done(task, work(task), None))
            except SwampstoreError as error:
                done.put(Done(task, None, error))
            except BaseException as error:  # noqa: BLE001 - raised where the results are read
                done.put(error)

    threading.Thread(target=run, name="transfer", daemon=True).start()


def _next(done: queue.SimpleQueue[Done[T, R] | BaseException], deadline: Deadline) -> Done[T, R]:
    while True:
        try:
            finished = done.get(timeout=deadline.remaining())
        except queue.Empty:
            continue
        if isinstance(finished, BaseException):
            raise finished
        return finished


class AttentiveStore(StoreWrapper):
    """A store around a store that hears Ctrl-C. Past its `deadline` it raises SyncTimeoutError.

    The client of a store waits outside the interpreter, where neither reaches it: a server that
    says nothing would hold a command up for as long as its timeouts allow. So a request of the
    main thread is made by another one, which is not waited for any longer than need be.
    """

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
