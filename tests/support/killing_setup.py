"""Run `datastore setup` again and again, killed at its n-th line, and finish it each time.

A program of its own, because forking is cheap only where little is loaded:

    python -m tests.support.killing_setup STRIDE SCRATCH {repository|remote}

The last word says where the data comes from.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from swampstore import Repo, init_repo, open_repo
from swampstore.datastore_address import Address
from swampstore.relocate import setup as setting_up
from swampstore.relocate.setup import set_up_datastore
from swampstore.stores import Store
from swampstore.stores.probe import ProbeReport
from tests.support.forked import in_child, sources
from tests.support.machines import contents

MODEL = "aws/ec2/i-1"
TRACED = sources(
    *("relocate/moving.py", "relocate/pairs.py", "relocate/removing.py"),
    *("relocate/destinations.py", "relocate/setup.py"),
    *("sync/staged_cache.py", "relocate/settings.py"),
)
REPEATED = 3  # so often a line is worth being killed at
OF_ANA = ["one", "two"]
OF_BOTH = ["of bob", *OF_ANA]


def _believe(store: Store, *, racers: int = 0) -> ProbeReport:
    """Spare the proofs, which cost more than all the rest."""
    return ProbeReport(store.identity, ())


class World:
    """A bucket in which somebody has data, and a machine with other data of the same name.

    With `is_remote` that machine has its data in another bucket, except for the last version.
    """

    def __init__(self, directory: Path, *, is_remote: bool) -> None:
        self.directory = directory
        self._is_remote = is_remote

    def make(self) -> None:
        for bucket in ("bucket", "first-bucket"):
            (self.directory / bucket).mkdir(parents=True)
        for name, text in (("bob", "of bob"), ("ana", OF_ANA[0])):
            with init_repo(self.directory / name) as repo:
                repo.artifacts.save(MODEL, "state", text)
        self.set_up("bob")
        if self._is_remote:
            self.set_up("ana", "first-bucket")
        with self.open("ana") as repo:
            repo.artifacts.save(MODEL, "state", OF_ANA[1])

    def open(self, name: str) -> Repo:
        environ = {"SWAMP_HOME": f"{self.directory}/{name}-home", "SWAMPSTORE_FSYNC": "off"}
        return open_repo(self.directory / name, environ=environ)

    def set_up(self, name: str, bucket: str = "bucket") -> None:
        environ = {"SWAMP_HOME": f"{self.directory}/{name}-home"}
        address = Address(f"file://{self.directory}/{bucket}")
        with patch.object(setting_up, "probe", _believe), self.open(name) as repo:
            set_up_datastore(repo, address, environ=environ)

    def check_readable(self) -> None:
        with self.open("ana") as repo:
            assert set(contents(repo, MODEL, "state")) >= set(OF_ANA)

    def check_finished(self) -> None:
        init_repo(self.directory / "carl").close()
        self.set_up("carl")
        for name in ("ana", "carl"):
            with self.open(name) as repo:
                assert contents(repo, MODEL, "state") == OF_BOTH, name
                assert repo.latest(MODEL, "state").text() == "two"
                repo.rebuild_catalog()
                assert contents(repo, MODEL, "state") == OF_BOTH, name
        assert not list((self.directory / "ana/.swamp").rglob("raw"))
        assert not list((self.directory / "ana-home/repos").glob("*.setup"))
        left = [path.read_text() for path in (self.directory / "first-bucket").rglob("raw")]
        assert left == (OF_ANA[:1] if self._is_remote else [])


def killed_at(world: World, line: int) -> Callable[[], None]:
    """Return a setup that dies at the n-th line; of one that is repeated, only some count."""

    def run() -> None:
        visits: Counter[tuple[str, int]] = Counter()
        count = 0

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            file = frame.f_code.co_filename
            if file not in TRACED:
                return None
            nonlocal count
            visits[file, frame.f_lineno] += 1
            count += visits[file, frame.f_lineno] <= REPEATED
            if count == line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        world.set_up("ana")

    return run


def main(stride: int, scratch: Path, *, is_remote: bool) -> None:
    template, world = scratch / "template", World(scratch / "world", is_remote=is_remote)
    in_child(world.make)
    world.directory.rename(template)
    line = stride
    while True:
        shutil.copytree(template, world.directory)
        if not in_child(killed_at(world, line)):
            break
        try:
            in_child(world.check_readable)
            in_child(lambda: world.set_up("ana"))
            in_child(world.check_finished)
        except AssertionError as error:
            raise AssertionError(f"after a kill at line {line}") from error
        shutil.rmtree(world.directory)
        line += stride
    assert line > 99, "hardly anything was traced"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), is_remote=sys.argv[3] == "remote")
