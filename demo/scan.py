"""A nightly scan of three machines: the automation whose results the demo keeps."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from swampstore import Repo

NIGHTS = 8
KEPT_VERSIONS = 5
MEGABYTE = 1 << 20


class Machine(NamedTuple):
    """Something that is scanned."""

    model: str
    name: str
    env: str

    def state(self, night: int) -> dict[str, object]:
        """Return what the scan finds out in one night."""
        chance = random.Random(f"{self.name} {night}")  # noqa: S311 - made-up numbers
        load = 91 if self.name == "db-1" else chance.randrange(5, 60)
        return {"night": night, "status": "running", "cpu": load, "disks": [{"gb": 20 * night}]}

    def memory_image(self, night: int) -> bytes:
        """Return some bytes that are not text."""
        return random.Random(f"{self.name} {night}").randbytes(4096)  # noqa: S311 - made up


MACHINES = (
    Machine("aws/ec2/i-0a11", "web-1", "prod"),
    Machine("aws/ec2/i-0b22", "web-2", "test"),
    Machine("aws/rds/db-0c33", "db-1", "prod"),
)


def scan(repo: Repo, night: int) -> None:
    """Look at every machine and save what was found."""
    for machine in MACHINES:
        tags = {"modelName": machine.name, "env": machine.env}
        repo.artifacts.save(
            machine.model,
            "state",
            machine.state(night),
            tags={**tags, "specName": "state"},
            garbage_collection=KEPT_VERSIONS,
        )
        name, image = f"memory-{night}.img", machine.memory_image(night)
        repo.artifacts.save(
            machine.model,
            name,
            image,
            tags=tags,
            lifetime="3d",
        )
        line = f"night {night}: {machine.name} is running\n"
        repo.artifacts.append(machine.model, "scan.log", line)


def start_logs(repo: Repo) -> None:
    """Save an empty log for each machine, which then grows night by night."""
    for machine in MACHINES:
        tags = {"modelName": machine.name, "env": machine.env, "type": "log"}
        repo.artifacts.save(machine.model, "scan.log", "", tags=tags, streaming=True)


def stream_backup(repo: Repo) -> None:
    """Save a larger file piece by piece."""
    with repo.artifacts.writer(MACHINES[0].model, "backup") as writer:
        for number in range(8):
            writer.write(bytes([number]) * MEGABYTE)


class NightlyClock:
    """A clock that shows the time of one night after the other, the last one being today."""

    def __init__(self) -> None:
        self.night = 1

    def __call__(self) -> datetime:
        """Return the time, in the night that it is."""
        return datetime.now(UTC) - timedelta(days=NIGHTS - self.night)
