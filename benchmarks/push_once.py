"""Save one artifact and push it in a process of its own; print what that cost as JSON.

Usage: push_once.py REPOSITORY MODEL
"""

from __future__ import annotations

import json
import sys
import time

from measuring import peak_rss
from swampstore import open_repo


def main() -> None:
    with open_repo(sys.argv[1]) as repo:
        repo.artifacts.save(sys.argv[2], "one-more", b'{"status": "running"}\n')
        before, start = peak_rss(), time.perf_counter()
        pushed = repo.sync.push()
        assert pushed.files == 3, pushed
        cost = {
            "seconds": time.perf_counter() - start,
            "before": before,
            "peak": peak_rss(),
            "tally": repo.connection.counting.tally(),
        }
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
