"""Two machines that share a bucket, as the command line sees them; fixtures `ana` and `bob`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.index.remote_index import RemoteIndex
from swampstore.marker import update_marker
from tests.support.broken_store import Killed
from tests.support.command_line import CommandLine, Outcome, environment


class Machine:
    """A repository with a home of its own; called with a command line, it runs it."""

    def __init__(
        self,
        directory: Path,
        capture: pytest.CaptureFixture[bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.home = directory / "home"
        self.repo_dir = directory / "repo"
        init_repo(self.repo_dir).close()
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *args: str, stdin: bytes = b"") -> Outcome:
        self._monkeypatch.setenv("SWAMP_HOME", str(self.home))
        return CommandLine(self.repo_dir, self._capture, self._monkeypatch)(*args, stdin=stdin)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a process on this machine."""
        return environment(self.repo_dir) | {"SWAMP_HOME": str(self.home)}

    def use(self, bucket: Path, **settings: object) -> None:
        """Make a bucket the datastore, without any of the care that `setup` takes.

        Pulls bring content, unless the settings say something else.
        """
        section: dict[str, object] = {"type": "file", "url": f"file://{bucket}"}
        section["hydrationStrategy"] = "full"
        section |= settings
        update_marker(str(self.repo_dir), {"datastore": section})

    def use_remote(self, kind: str, config: Mapping[str, object]) -> None:
        """Make a remote the datastore."""
        section = {"type": kind, "url": None, "config": dict(config), "hydrationStrategy": "full"}
        update_marker(str(self.repo_dir), {"datastore": section})

    def open(self, datastore: str | None = None) -> Repo:
        return open_repo(self.repo_dir, datastore=datastore, environ=self.environ)

    @property
    def cache(self) -> Path:
        with self.open() as repo:
            return Path(repo.config.datastore_dir)

    def put(self, model: str, name: str, content: str) -> None:
        """Save something without a session: nothing is pulled before, nothing pushed after."""
        with self.open() as repo:
            repo.artifacts.save(model, name, content)

    def get(self, model: str, name: str, *options: str) -> str:
        outcome = self("data", "get", model, name, "--raw", *options)
        assert outcome.status == 0, outcome.err
        return outcome.out


def contents(repo: Repo, model: str, name: str) -> list[str]:
    """Return the content of every version, oldest first."""
    return [found.text() for found in reversed(repo.versions(model, name))]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def ana(
    tmp_path: Path,
    bucket: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Machine:
    machine = Machine(tmp_path / "ana", capsysbinary, monkeypatch)
    machine.use(bucket)
    return machine


@pytest.fixture
def bob(
    tmp_path: Path,
    bucket: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Machine:
    machine = Machine(tmp_path / "bob", capsysbinary, monkeypatch)
    machine.use(bucket)
    return machine


def push_and_die(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push, and be killed as soon as the index names it: the base does not know that."""
    commit = RemoteIndex.commit

    def commit_and_die(*arguments: Any, **options: Any) -> None:
        commit(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patch, machine.open() as repo, pytest.raises(Killed):
        patch.setattr(RemoteIndex, "commit", commit_and_die)
        repo.sync.push()
