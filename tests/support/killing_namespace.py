"""Migrate a namespace again and again, killed at its n-th line, and finish it each time.

A program of its own, because forking is cheap only where little is loaded:

    python -m tests.support.killing_namespace "in place"|remote in|out STRIDE SCRATCH
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from swampstore.marker import read_marker
from swampstore.relocate.namespace import migrate, set_namespace, unset_namespace
from swampstore.sync.unmigrated import check_migrated
from tests.support.forked import die_at_new_line, in_child, sources
from tests.support.members import Place, bucket_in_a_directory, shared_directory

TRACED = sources(
    *("relocate/namespace_moving.py", "relocate/namespace.py"),
    *("relocate/namespace.py", "namespaces/manifests.py"),
)
STATE, OTHER = ["one", "two"], ["other"]


class World:
    """A repository on its way into a namespace, or out of it."""

    def __init__(self, directory: Path, kind: str, direction: str) -> None:
        self.directory = directory
        self._kind = kind
        self._is_in = direction == "in"

    def _place(self) -> Place:
        make = shared_directory if self._kind == "in place" else bucket_in_a_directory
        return make(self.directory)

    def make(self) -> None:
        self.directory.mkdir()
        ana = self._place().member("ana", **({} if self._is_in else {"namespace": "infra"}))
        ana.save(*STATE)
        ana.save(*OTHER, name="other")
        root = ana.base if self._is_in else ana.base / "infra"
        (root / "outputs").mkdir()
        (root / "outputs/run.yaml").write_text("ok: true\n")
        # A link, so that files have to move one by one around it.
        (root / "outputs/link").symlink_to("run.yaml")
        ana.push()

    def run(self) -> None:
        ana = self._place().member("ana")
        with ana.open() as repo:
            if not self._is_in:
                unset_namespace(repo, move=True)
                return
            if repo.config.namespace:
                migrate(repo)
                return
            set_namespace(repo, "infra")
        with ana.open() as repo:
            migrate(repo)

    def check_nothing_lost(self) -> None:
        """Assert that every file is somewhere, once or, while it moves, twice."""
        ana = self._place().member("ana")
        texts = [path.read_text() for path in ana.base.rglob("raw")]
        assert set(texts) == {*STATE, *OTHER}
        assert list(ana.base.rglob("run.yaml"))

    def is_finished(self) -> bool:
        section = read_marker(str(self.directory / "ana/repo"))["datastore"]
        return not self._is_in and "namespace" not in section

    def check_finished(self) -> None:
        ana = self._place().member("ana")
        assert ana.read() == STATE
        assert ana.read("other") == OTHER
        with ana.open() as repo:
            assert repo.config.namespace == ("infra" if self._is_in else "")
            check_migrated(repo.config.base, repo.config.namespace)
            assert len(list(repo.query('modelId == "i-1"'))) == 2
        ana.push()
        where = "infra/" if self._is_in else ""
        assert self._place().files()[f"{where}data/aws/ec2/i-1/state/2/raw"] == b"two"


def killed_at(world: World, line: int) -> Callable[[], None]:
    """Return a migration that dies when it comes to the n-th line that it was not at before."""

    def run() -> None:
        die_at_new_line(line, TRACED)
        world.run()

    return run


def main(kind: str, direction: str, stride: int, scratch: Path) -> None:
    template, world = scratch / "template", World(scratch / "world", kind, direction)
    in_child(world.make)
    world.directory.rename(template)
    line = stride
    while True:
        shutil.copytree(template, world.directory, symlinks=True)
        was_killed = in_child(killed_at(world, line))
        try:
            if was_killed:
                in_child(world.check_nothing_lost)
                if not world.is_finished():
                    in_child(world.run)
            in_child(world.check_finished)
        except AssertionError as error:
            raise AssertionError(f"after a kill at line {line}") from error
        shutil.rmtree(world.directory)
        if not was_killed:
            break
        line += stride
    assert line > 99, "hardly anything was traced"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
