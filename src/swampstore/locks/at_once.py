"""A few requests at the same time: what waits for a store need not wait in line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """One piece of work that another thread does meanwhile."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name="swampstore-beside", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # the process is about to end, and starts no threads any more
            self._thread = None
            self._run()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error

    def wait(self) -> None:
        """Wait for its end, whatever became of it."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> T:
        """Wait for what it returns, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


def at_once(works: Sequence[Callable[[], T]]) -> list[T]:
    """Do all of these at the same time; return what they return, in their order.

    All have come to an end when the first error is raised.
    """
    if not works:
        return []
    others = [Beside(work) for work in works[1:]]
    try:
        first = works[0]()
    finally:
        for other in others:
            other.wait()
    return [first, *(other.result() for other in others)]
