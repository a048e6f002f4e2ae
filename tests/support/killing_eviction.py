"""Run an eviction again and again, killed at its n-th line, and look at what is left.

A program of its own, because forking is cheap only where little is loaded:

    python -m tests.support.killing_eviction STRIDE SCRATCH
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from swampstore.stores.directory import DirectoryStore
from tests.support.forked import die_at_new_line, in_child, sources
from tests.support.sync_harness import Machine, assert_sound, remote_files

HOME = "data/aws/ec2/i-1/state"
VERSIONS = (1, 2, 3, 4)
TARGET = 200
TRACED = sources(
    *(
        "sync/evict.py",
        "sync/access_times.py",
        "index/base.py",
        "index/base_file.py",
        "sync/downloads.py",
    ),
    "files/sqlite_file.py",
)


def content(version: int) -> bytes:
    return b"%d" % version * 100


class World:
    """A cache with four versions that are all in a bucket."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def open(self) -> Machine:
        return Machine(self.directory / "cache", self.store())

    def store(self) -> DirectoryStore:
        return DirectoryStore(str(self.directory / "bucket"), durable=False)

    def make(self) -> None:
        (self.directory / "bucket").mkdir(parents=True)
        with self.open() as machine:
            for version in VERSIONS:
                machine.write(f"{HOME}/{version}/raw", content(version))
                machine.write(f"{HOME}/{version}/metadata.yaml", b"version: %d\n" % version)
            machine.write(f"{HOME}/latest", b"%d" % VERSIONS[-1])
            machine.push()

    def evict_killed_at(self, line: int) -> None:
        """Evict in a process that dies when it comes to the n-th line it was not at before."""
        machine = self.open()
        die_at_new_line(line, TRACED)
        machine.service.evict(TARGET)

    def check_nothing_can_be_taken_for_deleted(self) -> None:
        with self.open() as machine:
            for known in machine.base.below("data"):
                assert known.held is None or machine.path(known.rel).exists(), known.rel

    def check_a_deletion_deletes_only_what_was_deleted(self) -> None:
        """Remove one version, the way that marks the whole name, and push."""
        with self.open() as machine:
            machine.service.mark_dirty(HOME)
            shutil.rmtree(machine.path(f"{HOME}/1"))
            machine.push()
        kept = {f"{HOME}/{version}/raw": content(version) for version in VERSIONS[1:]}
        files = remote_files(self.store())
        assert {rel: data for rel, data in files.items() if rel.endswith("/raw")} == kept
        assert_sound(self.store())

    def check_the_next_one_finishes(self) -> None:
        with self.open() as machine:
            assert machine.service.evict(TARGET).held <= TARGET
            here = list(Path(machine.names.root).rglob("raw"))
            assert len(here) <= 2, here
            for version in VERSIONS:
                assert machine.service.hydrate(f"{HOME}/{version}/raw")
                assert machine.read(f"{HOME}/{version}/raw") == content(version)


def main(stride: int, scratch: Path) -> None:
    line, died = 1, True
    while died:
        world = World(scratch / str(line))
        in_child(world.make)
        died = in_child(partial(world.evict_killed_at, line))
        try:
            in_child(world.check_nothing_can_be_taken_for_deleted)
            if line % 2:
                in_child(world.check_the_next_one_finishes)
            in_child(world.check_a_deletion_deletes_only_what_was_deleted)
        except AssertionError as error:
            raise AssertionError(f"after a kill at line {line}") from error
        shutil.rmtree(world.directory)
        line += stride
    assert line > 99, "hardly anything was traced"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
