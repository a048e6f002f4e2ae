"""Time as the formats write it: ISO-8601, UTC, milliseconds, `Z`."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], datetime]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND, _MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)


def system_clock() -> datetime:
    """Return the current time, with its zone."""
    return datetime.now(UTC)


def to_iso(moment: datetime) -> str:
    """Write a moment the way every file of the datastore does."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str) -> datetime:
    """Read a moment; raise ValueError if it is none. A missing zone means UTC."""
    return with_zone(datetime.fromisoformat(text))


def with_zone(moment: datetime) -> datetime:
    """Return a moment with its zone, which is UTC if nobody said it."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def from_ms(number: int) -> datetime:
    """Return the moment that so many milliseconds after 1970 is."""
    return EPOCH + number * _MILLISECOND


def to_ms(moment: datetime) -> int:
    """Return how many milliseconds after 1970 a moment is."""
    return (moment - EPOCH) // _MILLISECOND


def from_micros(number: int) -> datetime:
    """Return the moment that so many microseconds after 1970 is, as Spark counts."""
    return EPOCH + number * _MICROSECOND


def to_micros(moment: datetime) -> int:
    """Return how many microseconds after 1970 a moment is, as Spark counts."""
    return (moment - EPOCH) // _MICROSECOND


def asleep_too() -> float:
    """Return a clock that only goes forward and does not stop while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
