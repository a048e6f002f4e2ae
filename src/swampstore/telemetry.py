"""Spans and metrics of OpenTelemetry, for programs that have it; nothing at all for all others.

They are there if the program has imported `opentelemetry` itself (as `opentelemetry-instrument`
does), or if `SWAMPSTORE_TELEMETRY` is `on`. Then each session, lock, pull, push, save and query is
a span `swampstore.NAME`, with its duration in the histogram `swampstore.duration`; what a pull and
a push carried is counted by `swampstore.files` and `swampstore.bytes`. Where it all goes is the
program's affair. What is told are numbers and the codes of errors, never names or messages.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache, wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from swampstore.errors import code_of
from swampstore.notices import notice

P = ParamSpec("P")
T = TypeVar("T")
_ASKED = "SWAMPSTORE_TELEMETRY"
_ON = {"1", "on", "true", "yes"}
_COUNTED = ("files", "bytes")


def span(name: str, *, is_current: bool = True, **numbers: int) -> Span:
    """Return what tells about a block of work, for `with`.

    Spans within it are its children, unless it is not `is_current`: so is a block that yields, in
    which others do their own work.
    """
    return _Told(name, numbers, is_current=is_current) if _is_wanted() else _NOTHING


def traced(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Have each call told about; what it returns tells `files` and `bytes`, if it has them."""

    def decorate(work: Callable[P, T]) -> Callable[P, T]:
        @wraps(work)
        def told(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name) as current:
                done = work(*args, **kwargs)
                found = {one: getattr(done, one, None) for one in _COUNTED}
                current.note(**{key: one for key, one in found.items() if isinstance(one, int)})
                return done

        return told

    return decorate


class Span:
    """A block of work of which nothing is told."""

    def note(self, **numbers: int) -> None:
        """Tell more about it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Be done."""


_NOTHING = Span()


class _Told(Span):
    def __init__(self, name: str, numbers: dict[str, int], *, is_current: bool) -> None:
        self._name = name
        self._numbers = numbers
        self._is_current = is_current
        self._started = 0.0
        self._span: Any = None
        self._use: Any = None

    def note(self, **numbers: int) -> None:
        for key, value in numbers.items():
            self._span.set_attribute(f"swampstore.{key}", value)
            if key in _COUNTED and value:
                _instruments()[key].add(value, {"operation": self._name})

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._span = _instruments()["tracer"].start_span(f"swampstore.{self._name}")
        if self._is_current:
            self._use = _instruments()["use"](
                self._span, record_exception=False, set_status_on_exception=False
            )
            self._use.__enter__()
        self.note(**self._numbers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        labels = {"operation": self._name}
        if error is not None:
            labels["error.type"] = code_of(error)
            self._span.set_attribute("error.type", labels["error.type"])
            self._span.set_status(_instruments()["failed"])
        _instruments()["duration"].record(time.perf_counter() - self._started, labels)
        if self._use:
            self._use.__exit__(kind, error, trace)
        self._span.end()


def _is_wanted() -> bool:
    return "opentelemetry.trace" in sys.modules or _is_asked_for()


@cache
def _is_asked_for() -> bool:
    if os.environ.get(_ASKED, "").lower() not in _ON:
        return False
    try:
        import opentelemetry.trace  # noqa: F401 - whether it is there
    except ImportError:
        notice(
            "%s is set, and opentelemetry-api is not installed: pip install 'swampstore[otel]'",
            _ASKED,
        )
        return False
    return True


@cache
def _instruments() -> dict[str, Any]:
    from opentelemetry import metrics, trace

    meter = metrics.get_meter("swampstore")
    return {
        "tracer": trace.get_tracer("swampstore"),
        "use": trace.use_span,
        "failed": trace.StatusCode.ERROR,
        "duration": meter.create_histogram(
            "swampstore.duration", "s", "How long an operation took."
        ),
        "files": meter.create_counter("swampstore.files", "{file}", "Files that were transferred."),
        "bytes": meter.create_counter("swampstore.bytes", "By", "Bytes that were transferred."),
    }
