"""Secrets that grow old: a hook has the command for a new value, and says when that is due."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from swampstore.clock import from_iso, to_iso
from swampstore.retention.lifetimes import parse_duration

_SECONDS = 60


def new_hook(command: str, ttl: str, now: datetime) -> dict[str, Any]:
    """Return the hook that has a command run once a value is older than `ttl`, such as 1h."""
    milliseconds = round(parse_duration(ttl).total_seconds() * 1000)
    return {"command": command, "ttlMs": milliseconds, "ttl": ttl, "lastRefreshedAt": to_iso(now)}


def is_due(hook: Mapping[str, Any] | None, now: datetime) -> bool:
    """Whether the value is older than its hook allows; one of unknown age is due."""
    if hook is None:
        return False
    try:
        age = now - from_iso(hook["lastRefreshedAt"])
        return age >= timedelta(milliseconds=hook["ttlMs"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return True


def new_value(hook: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Return what the command of a hook prints, None if it fails or prints nothing."""
    command = hook.get("command")
    if not isinstance(command, str):
        return None
    try:
        done = subprocess.run(  # noqa: S603 - that is what the secret is configured to do
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            timeout=_SECONDS,
            check=False,
        )
        return done.stdout.decode().rstrip() or None if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
