"""How long locks live and are waited for: the defaults, and what the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class LockSettings(NamedTuple):
    """How many seconds to wait for the locks of others, and how long a lock lives unrefreshed."""

    timeout: float = 60.0
    ttl: float = 30.0


def lock_settings(environ: Mapping[str, str]) -> LockSettings:
    """Return what the environment says about locks, of a repository or of a store by its URL."""
    default = LockSettings()
    return LockSettings(
        timeout=_seconds(environ, "SWAMP_LOCK_TIMEOUT_MS", default.timeout),
        ttl=_seconds(environ, "SWAMPSTORE_LOCK_TTL_MS", default.ttl),
    )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    """Return the seconds that a variable holds as milliseconds."""
    return positive_number(environ.get(name, "")) / 1000 or default


def positive_number(text: str) -> int:
    """Return the number that a variable holds, 0 if it holds none.

    Other clients ignore a value that is no positive number, so it must not be an error here.
    """
    return int(text) if text.isascii() and text.isdigit() else 0
