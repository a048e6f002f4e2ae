"""What a method in Python says while it runs: its logger, and what it prints.

Both go to the log of the run and to its listener, without secrets.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from swampstore.runs.processes import STDERR, STDOUT

if TYPE_CHECKING:
    from swampstore.runs.context import RunState


class _Handler(logging.Handler):
    def __init__(self, state: RunState) -> None:
        super().__init__()
        self._state = state
        formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s")
        formatter.datefmt = "%Y-%m-%dT%H:%M:%S"
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        line = self._state.redactor.text(f"{self.format(record)}\n").encode("utf-8", "replace")
        self._state.log.write(line)
        self._state.show(STDERR, line)


def run_logger(state: RunState) -> logging.Logger:
    """Return a logger of its own for a run."""
    # Not one of the registry, which keeps each for ever and passes records on to its parents.
    name = f"{state.model} {state.method}"
    logger = logging.Logger(name, logging.INFO)  # noqa: LOG001
    logger.addHandler(_Handler(state))
    return logger


class _Printed(io.TextIOBase):
    """Takes what is printed."""

    def __init__(self, state: RunState, stream: str) -> None:
        self._state = state
        self._name = stream
        self._stream = state.redactor.stream()
        self._guard = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        with self._guard:
            self._pass_on(self._stream.feed(text.encode("utf-8", "backslashreplace")))
        return len(text)

    def finish(self) -> None:
        with self._guard:
            self._pass_on(self._stream.finish())

    def _pass_on(self, shown: bytes) -> None:
        if shown:
            self._state.log.write(shown)
            self._state.show(self._name, shown)


@contextlib.contextmanager
def printing_to_log(state: RunState) -> Iterator[None]:
    """Send what the block prints to the log too, if it has the process for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    out, err = _Printed(state, STDOUT), _Printed(state, STDERR)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        out.finish()
        err.finish()
