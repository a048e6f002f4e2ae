"""One machine: its disk, its clock, its process, and the repository that the process has open."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from swampstore import Repo, init_repo, open_repo
from swampstore.files import disk_errors
from swampstore.layout import MARKER
from swampstore.marker import read_marker, update_marker
from swampstore.sync.unmigrated import unmigrated_subdirs
from tests.fleet.oracle import Found, look
from tests.fleet.places import Place
from tests.fleet.seams import clock, close_connections, let_go_of_locks
from tests.fleet.world import REPO_ID, Actor, Fault, World


class Machine:
    """A cache and a repository on a disk that outlives every kill."""

    def __init__(
        self,
        world: World,
        number: int,
        directory: Path,
        settings: Mapping[str, Any],
        skew: float,
        *,
        twin: Machine | None = None,
        is_process: bool = False,
    ) -> None:
        self.number = number
        self.name = f"m{number}"
        # A twin is another checkout of the same repository under one home, or another process.
        self.directory: Path = twin.directory if twin and is_process else directory
        self.actor = Actor(world, number, self.name)
        if twin is not None:
            self.actor.host = twin.actor.host
        self.actor.skew = skew
        self.actor.on_death = self._crash
        self.world = world
        # Whether nobody had ever committed when its last step began.
        self.was_first = False
        self.needs_full = False
        self._repo: Repo | None = None
        self.home: Path = twin.home if twin else directory / "home"
        self.environ = {
            "SWAMP_HOME": str(self.home),
            "SWAMPSTORE_FSYNC": "0",
            "USER": self.name,
        }
        if self.directory == directory:
            os.makedirs(directory / "repo" / ".swamp" / "data")
            (directory / "repo" / MARKER).write_bytes(_marker(json.dumps(dict(settings))))
        self.place = Place.of(settings)

    @property
    def repo(self) -> Repo:
        """The repository, opened if need be; only for what runs on this machine."""
        if self._repo is None:
            self.actor.pid += 1
            self.actor.abandoned.clear()
            self.actor.environ.clear()
            self._repo = open_repo(self.directory / "repo", environ=self.environ, clock=clock)
        return self._repo

    @property
    def cache(self) -> Path:
        """Where the cache is."""
        return Path(self.repo.config.base)

    def do(self, job: Callable[[], Any], faults: list[Fault] | None = None) -> None:
        """Begin a job on this machine; it goes on until it waits or is done."""
        self.actor.start(job, faults or [])

    def now(self, job: Callable[[], Any]) -> Any:
        """Do a job to its end, without anything in between, and return what came of it."""
        assert self.actor.is_idle
        self.do(job)
        self.world.finish(self.actor)
        return self.actor.outcome

    def look(self, *, contents: bool = True) -> list[Found]:
        return look(self.repo, contents=contents)

    def define(self, models: Iterable[str]) -> None:
        """Let these models be defined, and no others."""
        directory = self.directory / "repo" / "models"
        shutil.rmtree(directory, ignore_errors=True)
        with disk_errors(str(directory)):  # whoever writes definitions may find the disk full
            directory.mkdir()
            for model in models:
                id_ = model.rpartition("/")[2]
                (directory / f"{id_}.yaml").write_text(f"id: {id_}\n")

    @property
    def owes_migration(self) -> bool:
        """Whether a namespace was set, and the data is not there yet."""
        return bool(self.place.namespace) and self.has_data

    @property
    def has_data(self) -> bool:
        """Whether there is data in the cache, outside of all namespaces."""
        return bool(unmigrated_subdirs(str(self.home / "repos" / REPO_ID)))

    def look_where(self) -> Place:
        """Find out where the settings say that the data is."""
        self.place = Place.of(read_marker(str(self.directory / "repo"))["datastore"])
        return self.place

    def reopen(self) -> None:
        """End the process and start another one, in good order."""
        if self._repo is not None:
            self._repo.close()
        self._repo = None

    def forget(self) -> None:
        """Reopen, unless the machine is off."""
        if not self.actor.is_dead:
            self.reopen()

    def _crash(self) -> None:
        """Be off for a moment: what was not written is gone, the disk is as it was."""
        self._repo = None
        close_connections(self.actor)
        let_go_of_locks(self.actor)
        self.actor.is_dead = False
        self.actor.pid += 1


@lru_cache(maxsize=64)
def _marker(settings: str) -> bytes:
    """Return the marker of a new repository with these settings."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "repo"
        init_repo(path).close()
        update_marker(str(path), {"repoId": REPO_ID, "datastore": json.loads(settings)})
        return (path / MARKER).read_bytes()
