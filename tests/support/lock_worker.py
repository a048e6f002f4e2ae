"""A process of its own that adds to a counter, without any condition, under the lock of a model.

    python -m tests.support.lock_worker STORE DIRECTORY NAME

STORE is JSON: a kind and its configuration. In DIRECTORY, a line is added to `NAME.done` for each
addition and to `NAME.lost` for each lock that was lost before it. A process whose name begins with
"pause" creates `NAME.holds` the second time it has the lock, and goes on once there is `NAME.go`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from swampstore.layout import ModelRef
from swampstore.locks.manager import LockManager
from swampstore.locks.record import LockLostError
from swampstore.stores import open_store

MODEL = ModelRef("aws/ec2", "i-1")
COUNTER = "counter"
ROUNDS = 3
TTL = 2.0


def main() -> None:
    kind, config = json.loads(sys.argv[1])
    mine = Path(sys.argv[2]) / sys.argv[3]
    store = open_store(kind, config, environ={})
    locks = LockManager(store, "", ttl=TTL, timeout=120.0)
    for turn in range(ROUNDS):
        with locks.models([MODEL]):
            value = int(store.get(COUNTER).data)
            time.sleep(random.uniform(0, 0.03))
            if mine.name.startswith("pause") and turn == 1:
                mine.with_suffix(".holds").touch()
                while not mine.with_suffix(".go").exists():
                    time.sleep(0.01)
            try:
                locks.verify()
            except LockLostError:
                note(mine.with_suffix(".lost"))
                continue
            store.put(COUNTER, str(value + 1).encode())
            note(mine.with_suffix(".done"))


def note(path: Path) -> None:
    with path.open("a") as file:
        file.write("x\n")


if __name__ == "__main__":
    main()
