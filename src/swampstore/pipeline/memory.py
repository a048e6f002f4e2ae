"""How much memory a JVM of ours may use."""

from __future__ import annotations

import contextlib
import os

_MIB = 1 << 20
_LEAST, _MOST = 1024, 8192


def heap_size(cgroup: str = "/sys/fs/cgroup/memory.max") -> str:
    """Return a quarter of the memory there is, as Spark writes it; no more than 8 GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open(cgroup, encoding="ascii") as file:
        total = min(total, int(file.read()))
    return f"{min(max(total // 4 // _MIB, _LEAST), _MOST)}m"
