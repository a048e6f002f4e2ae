"""Rebuild the catalog of one repository in a process of its own; print what it cost as JSON.

Usage: rebuild_once.py REPOSITORY
"""

from __future__ import annotations

import json
import resource
import sys
import time

from swampstore import open_repo


def _peak_rss() -> int:
    """Return the most memory this program has ever had, in bytes."""
    try:
        with open("/proc/self/status") as file:
            # The other way counts what the parent had before this program was started.
            (peak,) = (line for line in file if line.startswith("VmHWM:"))
            return int(peak.split()[1]) * 1024
    except (FileNotFoundError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    with open_repo(sys.argv[1]) as repo:
        assert not repo.catalog.is_populated
        before = _peak_rss()
        start, busy = time.perf_counter(), time.process_time()
        rebuilt = repo.rebuild_catalog()
        cost = {
            "versions": rebuilt.versions,
            "seconds": time.perf_counter() - start,
            "busy": time.process_time() - busy,
            "growth": _peak_rss() - before,
        }
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
