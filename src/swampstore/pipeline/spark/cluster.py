"""What the URL of a master or of a Spark Connect server says, and whether anybody is there."""

from __future__ import annotations

import os
import re
import socket

from swampstore.pipeline.errors import SparkStartError

_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")
_KNOWN = re.compile(r"local\b.*|yarn|(?:spark|k8s)://.+")
_NETWORKED = re.compile(r"(?:spark|sc)://([^/;]+)")
_CONNECT_PORT = 15002
_PATIENCE = 10.0


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own processes."""
    return _LOCAL.fullmatch(master) is not None


def local_cores(master: str) -> int:
    """Return how many tasks run here at once, 0 if they run somewhere else.

    >>> local_cores("local[4]")
    4
    """
    match = _LOCAL.fullmatch(master)
    if not match:
        return 0
    if match[1] == "*":
        return os.cpu_count() or 1
    return int(match[1] or 1)


def check_master(master: str) -> None:
    """Raise SparkStartError for what Spark cannot make sense of, or for one that is not there."""
    if not _KNOWN.fullmatch(master):
        raise SparkStartError(
            f"{master!r} is no master of Spark",
            hint="Write for example local[4], spark://host:7077, yarn, or sc://host for a server.",
        )
    check_reachable(master)


def check_reachable(url: str) -> None:
    """Raise SparkStartError if nobody listens where a URL points; Spark would try for minutes."""
    match = _NETWORKED.match(url)
    if not match:
        return
    reasons = []
    for address in match[1].split(","):
        host, _, port = address.partition(":")
        try:
            number = int(port or _CONNECT_PORT)
            socket.create_connection((host, number), timeout=_PATIENCE).close()
        except (OSError, ValueError, OverflowError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    raise SparkStartError(
        f"{url} cannot be reached ({'; '.join(reasons)})",
        hint="Start the cluster, or correct spark.master or spark.remote.",
    )
