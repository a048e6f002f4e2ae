"""Rebuild the catalog of one repository in a process of its own; print what it cost as JSON.

Usage: rebuild_once.py REPOSITORY
"""

from __future__ import annotations

import json
import sys
import time

from measuring import peak_rss
from swampstore import open_repo


def main() -> None:
    with open_repo(sys.argv[1]) as repo:
        assert not repo.catalog.is_populated
        before = peak_rss()
        start, busy = time.perf_counter(), time.process_time()
        rebuilt = repo.rebuild_catalog()
        cost = {
            "versions": rebuilt.versions,
            "seconds": time.perf_counter() - start,
            "busy": time.process_time() - busy,
            "growth": peak_rss() - before,
        }
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
