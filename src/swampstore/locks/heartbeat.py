"""One thread that keeps locks fresh while their holder works."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Beating(Protocol):
    """What can be kept fresh."""

    def beat(self) -> None:
        """Refresh now. Raises nothing: whether it worked is asked by those who care."""


class Heartbeat:
    """Calls `beat` of all that were added, every `interval` seconds, until they are removed.

    The thread lives as long as there is something to keep fresh, and never keeps a process alive.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._changed = threading.Condition()
        self._members: list[Beating] = []
        self._thread: threading.Thread | None = None

    def add(self, member: Beating) -> None:
        """Keep this fresh from now on."""
        with self._changed:
            self._members.append(member)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="swampstore-locks", daemon=True
                )
                self._thread.start()

    def remove(self, member: Beating) -> None:
        """Do not begin another beat of this one; one that has begun may still end."""
        with self._changed:
            if member in self._members:
                self._members.remove(member)
            self._changed.notify_all()

    def _run(self) -> None:
        while members := self._wait():
            for member in members:
                member.beat()

    def _wait(self) -> list[Beating]:
        """Return what is to be kept fresh after one interval, nothing once all is removed."""
        due = time.monotonic() + self._interval
        with self._changed:
            while self._members and (left := due - time.monotonic()) > 0:
                self._changed.wait(left)
            if not self._members:
                self._thread = None
            return list(self._members)
