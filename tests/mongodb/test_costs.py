"""What a sync asks of the database: commands, and documents that come back.

The commands are counted where the driver sends them, so nothing is left out.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from swampstore.layout import ModelRef
from swampstore.stores import store_config
from swampstore.stores.retry import RetryingStore
from tests.support.mongodb import MongoRemote
from tests.support.sync_harness import Machine

pymongo = pytest.importorskip("pymongo", reason="the extra `mongodb` is not installed")
MODEL = ModelRef.parse("aws/ec2/i-7")


class Commands(pymongo.monitoring.CommandListener):  # type: ignore[name-defined,misc]
    """Counts commands, and the documents of answers."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()
        self.documents = 0

    def started(self, event: Any) -> None:
        if event.command_name not in ("hello", "ping", "endSessions"):
            self.names[event.command_name] += 1

    def succeeded(self, event: Any) -> None:
        cursor = event.reply.get("cursor", {})
        self.documents += len(cursor.get("firstBatch", cursor.get("nextBatch", ())))

    def failed(self, event: Any) -> None:
        pass

    @property
    def total(self) -> int:
        return sum(self.names.values())

    def reset(self) -> None:
        self.names.clear()
        self.documents = 0


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    from swampstore.stores import mongodb_client

    listener = Commands()
    before = mongodb_client._open_client

    def opened(uri: str, options: dict[str, Any]) -> Any:
        return before(uri, {**options, "event_listeners": [listener]})

    monkeypatch.setattr(mongodb_client, "_open_client", opened)
    return listener


def plant(remote: MongoRemote, count: int) -> None:
    """Put many files there, as a commit of ours leaves them.

    Where other clients write as well, it is looked for that each time: for one command more.
    """
    now = datetime(2026, 11, 1, tzinfo=UTC)
    content = b"content"
    sha256 = hashlib.sha256(content).hexdigest()
    blob = {"_id": sha256, "size": len(content), "createdAt": now, "data": content}
    remote.collection("blobs").insert_one(blob)
    shape = {"hash": sha256, "size": len(content), "updatedAt": now, "deletedAt": None}
    shape["commitSeq"] = 1
    paths = [
        {"_id": f"outputs/aws/ec2{number % 50}/run/{number}.yaml", **shape}
        for number in range(count)
    ]
    for start in range(0, count, 1000):
        remote.collection("paths").insert_many(paths[start : start + 1000])


@pytest.fixture
def pair(
    mongodb_remote: MongoRemote, tmp_path: Path, commands: Commands
) -> Iterator[tuple[Machine, Machine]]:
    del commands
    machines = [
        Machine(
            tmp_path / name,
            RetryingStore(store_config(mongodb_remote.url, environ={}).open()),
            clock=lambda: datetime(2026, 11, 17, tzinfo=UTC),  # it is never time to look for others
        )
        for name in ("ana", "ben")
    ]
    yield machines[0], machines[1]
    for machine in machines:
        machine.close()


# Commands, whatever there is: at 1,000 files and at 20,000.
NOTHING, PUSH_ONE, PULL_ONE, PULL_SCOPED = 1, 13, 4, 4
LARGE = pytest.param(
    20_000,
    marks=pytest.mark.skipif(
        not os.environ.get("SWAMPSTORE_BUILD_SERVERS"), reason="long; `make test-mongodb` runs it"
    ),
)


@pytest.mark.parametrize("count", [100, 1000, LARGE])
def test_what_a_sync_costs_does_not_depend_on_how_much_there_is(
    count: int, pair: tuple[Machine, Machine], mongodb_remote: MongoRemote, commands: Commands
) -> None:
    ana, ben = pair
    plant(mongodb_remote, count)
    for machine in pair:
        machine.write("outputs/aws/ec2/run/first.yaml", b"1")
        machine.push()
        machine.pull()
    ana.pull()
    ana.pull()

    commands.reset()
    assert ana.push().changes == 0
    assert commands.total == NOTHING, commands.names
    commands.reset()
    assert ana.pull().changes == 0
    assert commands.total == NOTHING, commands.names

    ana.write("outputs/aws/ec2/run/second.yaml", b"2")
    commands.reset()
    ana.push()
    assert commands.total == PUSH_ONE, commands.names
    assert commands.documents <= 15

    commands.reset()
    assert ben.pull().changes == 1
    assert commands.total == PULL_ONE, commands.names
    assert commands.documents <= 10

    ana.write(f"{MODEL.rel}/state/1/raw", b"of a model")
    ana.write("outputs/aws/ec2/run/third.yaml", b"3")
    ana.push()
    commands.reset()
    ben.pull([MODEL])
    assert commands.total == PULL_SCOPED, commands.names
    assert commands.documents <= 10


def test_what_another_client_saves_and_nobody_fetches_makes_no_later_sync_dearer(
    pair: tuple[Machine, Machine], mongodb_remote: MongoRemote, commands: Commands
) -> None:
    ana, ben = pair
    ana.write("outputs/aws/ec2/run/one.yaml", b"1")
    ana.push()
    costs = []
    for rel in ("outputs/aws/ec2/run/two.yaml", "workflow-runs/w/workflow-run-r.log"):
        mongodb_remote.plant("", {rel: b"of another client"})
        ben.pull()
        commands.reset()
        assert ben.pull().changes == 0
        costs.append(commands.total)
    assert costs[0] == costs[1]


def test_a_cold_scoped_pull_reads_what_is_below_its_models(
    pair: tuple[Machine, Machine], mongodb_remote: MongoRemote, commands: Commands
) -> None:
    ana, ben = pair
    plant(mongodb_remote, 1000)
    ana.write("outputs/aws/ec2/run/of-the-type.yaml", b"of a model")
    ana.push()
    commands.reset()
    ben.pull([MODEL])
    assert ben.path("outputs/aws/ec2/run/of-the-type.yaml").read_bytes() == b"of a model"
    assert commands.total <= 8, commands.names
    assert commands.documents <= 10


def test_a_thousand_files_are_pushed_in_batches(
    pair: tuple[Machine, Machine], commands: Commands
) -> None:
    ana, ben = pair
    for number in range(1000):
        ana.write(f"outputs/aws/ec2/run/{number}.yaml", b"%d" % number)
    commands.reset()
    ana.push()
    # The server of the tests takes fifty updates at a time; MongoDB takes what it gets.
    assert commands.names["update"] <= 1000 * 4 // 50 + 20, commands.names
    assert commands.total <= 200, commands.names
    ben.pull()
    assert ben.path("outputs/aws/ec2/run/999.yaml").read_bytes() == b"999"
