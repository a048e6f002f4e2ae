"""Real processes that need the same lock: killed, stopped and woken, and no addition is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swampstore.locks.record import model_key
from swampstore.stores import Store, open_store
from tests.support.lock_worker import COUNTER, MODEL, ROUNDS
from tests.support.locking import eventually, keys_of, record_of
from tests.support.remotes import BUCKET
from tests.support.servers import S3_KEY, S3Server

KEY = model_key("", MODEL)


class Crew:
    """Workers on one store, by name; those that still run at the end are killed."""

    def __init__(self, kind: str, config: dict[str, str], directory: Path) -> None:
        self.store: Store = open_store(kind, config, environ={})
        self.directory = directory
        self._place = json.dumps([kind, config])
        self._members: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            command = [sys.executable, "-m", "tests.support.lock_worker", self._place]
            self._members[name] = subprocess.Popen([*command, str(self.directory), name])

    def signal(self, name: str, number: signal.Signals) -> None:
        self._members[name].send_signal(number)

    def wait(self) -> dict[str, int]:
        """Return how each of them ended."""
        return {name: member.wait(180) for name, member in self._members.items()}

    def holds(self, name: str) -> bool:
        return (self.directory / f"{name}.holds").exists()

    def go_on(self, name: str) -> None:
        (self.directory / f"{name}.go").touch()

    def count(self, pattern: str) -> int:
        found = self.directory.glob(pattern)
        return sum(len(path.read_text().splitlines()) for path in found)

    def kill(self) -> None:
        for member in self._members.values():
            member.kill()
            member.wait()


@pytest.fixture(params=["directory", "s3"])
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        config = {"bucket": BUCKET, "prefix": tmp_path.name, "endpoint": server.url, **S3_KEY}
        crew = Crew("s3", config, tmp_path)
    else:
        (tmp_path / "bucket").mkdir()
        crew = Crew("file", {"path": str(tmp_path / "bucket")}, tmp_path)
    try:
        yield crew
    finally:
        crew.kill()


def test_no_addition_of_a_verified_holder_is_lost(crew: Crew) -> None:
    crew.store.put(COUNTER, b"0")
    crew.start("pause-killed", *(f"plain-{number}" for number in range(5)))
    _interrupt(crew, "pause-killed", signal.SIGKILL, "pause-stopped")
    _interrupt(crew, "pause-stopped", signal.SIGSTOP, "plain-5")
    crew.go_on("pause-stopped")
    crew.signal("pause-stopped", signal.SIGCONT)
    ends = crew.wait()
    assert ends.pop("pause-killed") == -signal.SIGKILL
    assert set(ends.values()) == {0}
    assert crew.count("pause-stopped.lost") == 1
    assert crew.count("pause-stopped.done") == ROUNDS - 1
    assert int(crew.store.get(COUNTER).data) == crew.count("*.done")
    assert crew.count("plain-*") == 6 * ROUNDS
    # The entry of the killed one is swept later; everything else is gone.
    assert len(keys_of(crew.store)) == 2


def _interrupt(crew: Crew, name: str, number: signal.Signals, late: str) -> None:
    """Kill or stop a process that holds the lock, and wait until it is not its lock any more.

    Everybody else may be done already, so one more comes late.
    """
    eventually(lambda: crew.holds(name), 120)
    holder = record_of(crew.store, KEY)
    assert holder is not None
    crew.signal(name, number)
    crew.start(late)

    def is_taken_over() -> bool:
        record = record_of(crew.store, KEY)
        return record is None or record.nonce != holder.nonce

    eventually(is_taken_over, 120)
