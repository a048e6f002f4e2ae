"""One process of the stress test: session after session, each acknowledged in a journal.

    python -m tests.support.stress_worker JOURNAL SEED SESSIONS

The journal has one line of JSON per event. `locked` is written right after the session has begun,
with everything it sees; `done` after it has ended well, that is, after the commit.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from swampstore import Repo, SwampstoreError, open_repo
from swampstore.errors import LockTimeoutError
from swampstore.locks.record import LockLostError

MODELS = [f"stress/model/m-{number}" for number in range(8)]
NAMES = ["state", "log"]


class Journal:
    """A file that events are appended to, each of them whole."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **members: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **members})
        os.write(self._fd, f"{line}\n".encode())


def main() -> None:
    path, seed, sessions = sys.argv[1:]
    journal, chance = Journal(Path(path)), random.Random(f"{seed}-{os.getpid()}")
    with open_repo() as repo:
        for _ in range(int(sessions)):
            one_session(repo, journal, chance)
    journal.write("finished")


def one_session(repo: Repo, journal: Journal, chance: random.Random) -> None:
    models = chance.sample(MODELS, chance.choice([1, 1, 1, 2]))
    number = uuid.uuid4().hex
    try:
        with repo.session(models):
            journal.write("locked", session=number, models=models, seen=seen(repo, models))
            saved = [save(repo, model, chance, number) for model in models]
            time.sleep(chance.uniform(0, 0.05))
        journal.write("done", session=number, saved=saved)
    except (LockLostError, LockTimeoutError) as error:
        journal.write(error.code, session=number)
    except SwampstoreError as error:
        journal.write("failed", session=number, code=error.code, message=error.message)


def seen(repo: Repo, models: list[str]) -> list[str]:
    """Return the work that is visible, by its tag: no content has to be here for that."""
    return [
        version.tags["work"]
        for model in models
        for name in NAMES
        for version in repo.versions(model, name)
    ]


def save(repo: Repo, model: str, chance: random.Random, session: str) -> dict[str, str]:
    name, work = chance.choice(NAMES), f"{session}:{model}"
    repo.artifacts.save(
        model, name, content_of(work), tags={"work": work}, garbage_collection=100_000
    )
    return {"model": model, "name": name, "work": work}


def content_of(work: str) -> bytes:
    return f"{work}\n".encode() * (1 + sum(work.encode()) % 50)


if __name__ == "__main__":
    main()
