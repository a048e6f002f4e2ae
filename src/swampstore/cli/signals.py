"""Ending in good order when asked to: whatever is held is given back first, but not for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from swampstore.errors import EXIT_INTERRUPTED

EXIT_TERMINATED = 143
# How long giving back may take, if the other side does not answer.
_GRACE = 5.0


class Terminated(BaseException):
    """Somebody sent SIGTERM. Not an Exception, so that no handler takes it for a failure."""


@contextlib.contextmanager
def heard_signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into exceptions in this block, and insist on an end soon."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, _interrupt),
        signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    _insist(EXIT_INTERRUPTED)
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    _insist(EXIT_TERMINATED)
    raise Terminated


def _insist(status: int) -> None:
    timer = threading.Timer(_GRACE, os._exit, [status])
    timer.daemon = True
    timer.start()
