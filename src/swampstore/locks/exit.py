"""Locks that are still held when the process ends are given back."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Releasing(Protocol):
    """What gives back all it holds."""

    def release(self) -> None:
        """Give everything back; nothing is raised for what cannot be."""


_HOLDERS: weakref.WeakSet[Releasing] = weakref.WeakSet()


def release_at_exit(holder: Releasing) -> None:
    """Remember a holder until it is gone."""
    # The last to register is the first to run: before anything that a release needs is shut down.
    atexit.unregister(release_all)
    atexit.register(release_all)
    _HOLDERS.add(holder)


def release_all() -> None:
    """Give back what anybody in this process holds."""
    for holder in list(_HOLDERS):
        holder.release()
