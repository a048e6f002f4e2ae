"""How to wait for somebody else without asking too often or for too long."""

from __future__ import annotations

import random
import time

from swampstore.notices import notice

_FIRST = 0.1
_LONGEST = 2.0
_JITTER = 0.25
_AFTER_A_LOST_RACE = (0.2, 0.5)
# Most locks are held for a moment; only of longer waits is there anything to tell.
_WORTH_TELLING = 1.0


class Patience:
    """The pauses of one wait: growing, never the same for two who wait, none past the deadline."""

    def __init__(self, deadline: float) -> None:
        self._began = time.monotonic()
        self._deadline = deadline
        self._next = _FIRST
        self._is_told = False

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    @property
    def waited(self) -> float:
        """How many seconds have passed."""
        return time.monotonic() - self._began

    def tell(self, message: str, *details: object) -> None:
        """Tell, once and after a while, what is being waited for."""
        if not self._is_told and self.waited >= _WORTH_TELLING:
            self._is_told = True
            notice(message, *details)

    def pause(self) -> None:
        """Wait a little longer than the last time."""
        self._sleep(self._next * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 - no secret
        self._next = min(self._next * 1.5, _LONGEST)

    def step_back(self) -> None:
        """Wait after a lost race, so that the winner's next write is not raced as well."""
        self._sleep(random.uniform(*_AFTER_A_LOST_RACE))  # noqa: S311 - no secret

    def _sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self._deadline - time.monotonic())))


def asleep_too() -> float:
    """Return a clock that only goes forward and does not stop while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
