"""Run `datastore setup` again and again, killed at its n-th line, and finish it each time.

A program of its own, because forking is cheap only where little is loaded:

    python -m tests.support.killing_setup STRIDE SCRATCH {alone|files|repository|remote}

The last word says where the data comes from: the repository itself, if it is `alone` to a bucket
that nobody else has anything in, or another remote. With `files` it is alone as well, and killed
before the n-th time that a file or a directory, here or in the bucket, is opened or changed.
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
from swampstore.layout import EXCHANGE
from swampstore.relocate import setup as setting_up
from swampstore.relocate.setup import set_up_datastore
from swampstore.stores import Store
from swampstore.stores.probe import ProbeReport
from tests.support.forked import in_child, sources
from tests.support.machines import contents

MODEL = "aws/ec2/i-1"
TRACED = sources(
    *("relocate/moving.py", "relocate/pairs.py", "relocate/removing.py"),
    *("relocate/destinations.py", "relocate/setup.py", "relocate/syncing.py"),
    *("relocate/earlier.py", "artifacts/renumber.py", "sync/conflicts.py"),
    *("sync/staged_cache.py", "relocate/settings.py"),
    *("relocate/own_directory.py", "sync/handover.py"),
)
FILE_EVENTS = frozenset(
    {"open", "os.rename", "os.link", "os.mkdir", "os.rmdir", "os.remove", "sqlite3.connect"}
)
REPEATED = 3  # so often a line is worth being killed at
OF_ANA = ["one", "two"]
OF_BOTH = ["of bob", *OF_ANA]


def _believe(store: Store, *, racers: int = 0) -> ProbeReport:
    """Spare the proofs, which cost more than all the rest."""
    return ProbeReport(store.identity, ())


class World:
    """A bucket in which somebody has data, and a machine with other data of the same name.

    With the source `remote` that machine has its data in another bucket, except for the last
    version. If it is `alone`, nobody has data in the bucket.
    """

    def __init__(self, directory: Path, source: str) -> None:
        self.directory = directory
        self._is_remote = source == "remote"
        self._is_alone = source in ("alone", "files")
        # A push that is stopped before it notes its uploads may give versions other numbers.
        self._sorted = sorted if source == "files" else list
        self._expected = [*(OF_ANA if self._is_alone else OF_BOTH), "meanwhile"]

    def make(self) -> None:
        for bucket in ("bucket", "first-bucket"):
            (self.directory / bucket).mkdir(parents=True)
        for name, text in (("bob", "of bob"), ("ana", OF_ANA[0])):
            with init_repo(self.directory / name) as repo:
                repo.artifacts.save(MODEL, "state", text)
        if not self._is_alone:
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

    def work_on(self) -> None:
        """Do what anybody may do after a kill: nothing that is missing then was deleted."""
        with self.open("ana") as repo:
            if repo.config.remote and self._is_alone:
                repo.sync.push(full=True)
                repo.sync.pull(full=True)
            repo.artifacts.save(MODEL, "state", "meanwhile")

    def check_finished(self) -> None:
        init_repo(self.directory / "carl").close()
        with self.open("ana") as repo:
            repo.sync.push()
        self.set_up("carl")
        for name in ("ana", "carl"):
            with self.open(name) as repo:
                self._check_contents(repo)
                repo.rebuild_catalog()
                self._check_contents(repo)
        assert not list((self.directory / "ana/.swamp").rglob("raw"))
        assert not (self.directory / "ana/.swamp" / EXCHANGE).exists()
        assert not list((self.directory / "ana-home/repos").glob("*.setup"))
        left = [path.read_text() for path in (self.directory / "first-bucket").rglob("raw")]
        assert left == (OF_ANA[:1] if self._is_remote else [])

    def _check_contents(self, repo: Repo) -> None:
        found = contents(repo, MODEL, "state")
        assert self._sorted(found) == self._sorted(self._expected), (repo, found)
        assert repo.latest(MODEL, "state").text() == found[-1]


def killed_at_file(world: World, number: int) -> Callable[[], None]:
    """Return a setup that dies before something is done to files for the n-th time."""

    def run() -> None:
        count = 0

        def hear(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            if event in FILE_EVENTS and str(args[0]).startswith(str(world.directory)):
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hear)
        world.set_up("ana")

    return run


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


def main(stride: int, scratch: Path, source: str) -> None:
    template, world = scratch / "template", World(scratch / "world", source)
    in_child(world.make)
    world.directory.rename(template)
    line = stride
    while True:
        shutil.copytree(template, world.directory)
        kill = killed_at_file if source == "files" else killed_at
        if not in_child(kill(world, line)):
            break
        try:
            in_child(world.check_readable)
            in_child(world.work_on)
            in_child(lambda: world.set_up("ana"))
            in_child(world.check_finished)
        except AssertionError as error:
            raise AssertionError(f"after a kill at line {line}") from error
        shutil.rmtree(world.directory)
        line += stride
    assert line > 99, "hardly anything was traced"


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
