"""Time as the formats write it: ISO-8601, UTC, milliseconds, `Z`."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def system_clock() -> datetime:
    """Return the current time, with its zone."""
    return datetime.now(UTC)


def to_iso(moment: datetime) -> str:
    """Write a moment the way every file of the datastore does."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def from_iso(text: str) -> datetime:
    """Read a moment; raise ValueError if it is none. A missing zone means UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def asleep_too() -> float:
    """Return a clock that only goes forward and does not stop while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
