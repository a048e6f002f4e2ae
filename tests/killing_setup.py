"""Run `datastore setup` again and again, killed at its n-th line, and finish it each time.

A program of its own, because forking is cheap only where little is loaded:

    python -m tests.killing_setup STRIDE SCRATCH
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from swampstore import Repo, init_repo, open_repo
from swampstore.datastore_address import Address
from swampstore.datastore_setup import set_up_datastore
from swampstore.stores import Store
from swampstore.stores.probe import ProbeReport
from swampstore.sync import setup as setting_up
from tests.machines import contents

MODEL = "aws/ec2/i-1"
TRACED = frozenset({"relocation.py", "destinations.py", "setup.py", "datastore_setup.py"})
OF_ANA = ["one", "two"]
OF_BOTH = ["of bob", *OF_ANA]


def _believe(store: Store, *, racers: int = 0) -> ProbeReport:
    """Spare the proofs, which cost more than all the rest."""
    return ProbeReport(store.identity, ())


class World:
    """A bucket in which somebody has data, and a machine with other data of the same name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._address = Address(f"file://{directory}/bucket")

    def make(self) -> None:
        (self.directory / "bucket").mkdir(parents=True)
        for name, texts in (("bob", ["of bob"]), ("ana", OF_ANA)):
            with init_repo(self.directory / name) as repo:
                for text in texts:
                    repo.artifacts.save(MODEL, "state", text)
        self.set_up("bob")

    def open(self, name: str) -> Repo:
        environ = {"SWAMP_HOME": f"{self.directory}/{name}-home", "SWAMPSTORE_FSYNC": "off"}
        return open_repo(self.directory / name, environ=environ)

    def set_up(self, name: str) -> None:
        environ = {"SWAMP_HOME": f"{self.directory}/{name}-home"}
        with patch.object(setting_up, "probe", _believe), self.open(name) as repo:
            set_up_datastore(repo, self._address, environ=environ)

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


def in_child(work: Callable[[], None]) -> bool:
    """Do something in a child; return whether it was killed, and fail if it failed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - the parent only sees the status
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def killed_at(world: World, line: int) -> Callable[[], None]:
    """Return a setup that dies when it comes to the n-th line that it was not at before."""

    def run() -> None:
        seen: set[tuple[str, int]] = set()

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            file = os.path.basename(frame.f_code.co_filename)
            if file not in TRACED:
                return None
            seen.add((file, frame.f_lineno))
            if len(seen) == line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        world.set_up("ana")

    return run


def main(stride: int, scratch: Path) -> None:
    template, world = scratch / "template", World(scratch / "world")
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
    main(int(sys.argv[1]), Path(sys.argv[2]))
