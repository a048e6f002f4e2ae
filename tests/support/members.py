"""Repositories that share one place: a directory used in place, a bucket, an S3 server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.marker import update_marker
from swampstore.stores.directory import DirectoryStore
from tests.support.remotes import ProxiedRemote

MODEL = "aws/ec2/i-1"


def is_lock(key: str) -> bool:
    return ".locks/" in key or key.endswith((".lock", ".datastore.lock"))


class Place:
    """Somewhere to share. `section` is the setting that leads there, `files` what is there."""

    def __init__(
        self,
        directory: Path,
        section: Mapping[str, Any],
        files: Callable[[], dict[str, bytes]],
    ) -> None:
        self.directory = directory
        self.section = section
        self.files = files

    @property
    def is_remote(self) -> bool:
        return str(self.section["type"]) != "filesystem"

    def keys(self, *, below: str = "") -> set[str]:
        """The files there, without those that only locks need."""
        return {
            key
            for key in self.files()
            if key.startswith(below) and "_control/" not in key and not is_lock(key)
        }

    def member(self, name: str, **settings: object) -> Member:
        return Member(self, name, settings)


class Member:
    """A repository of somebody who shares the place, on a machine of their own."""

    def __init__(self, place: Place, name: str, settings: Mapping[str, object]) -> None:
        self.place = place
        self.repo_dir = place.directory / name / "repo"
        self.environ = {
            "SWAMP_HOME": str(place.directory / name / "home"),
            "SWAMPSTORE_FSYNC": "off",
            "SWAMP_LOCK_TIMEOUT_MS": "5000",
        }
        if not self.repo_dir.exists():
            init_repo(self.repo_dir).close()
            update_marker(str(self.repo_dir), {"datastore": {**place.section, **settings}})

    def open(self) -> Repo:
        return open_repo(self.repo_dir, environ=self.environ)

    @property
    def repo_id(self) -> str:
        with self.open() as repo:
            return repo.config.repo_id

    @property
    def base(self) -> Path:
        with self.open() as repo:
            return Path(repo.config.base)

    def save(self, *texts: str, name: str = "state") -> None:
        with self.open() as repo:
            for text in texts:
                repo.artifacts.save(MODEL, name, text)

    def push(self) -> None:
        if self.place.is_remote:
            with self.open() as repo:
                repo.sync.push()

    def pull(self, *, metadata_only: bool = False) -> None:
        if self.place.is_remote:
            with self.open() as repo:
                repo.sync.pull(metadata_only=metadata_only)

    def read(self, name: str = "state") -> list[str]:
        """The content of every version, oldest first, as a fresh process sees it."""
        with self.open() as repo:
            return [found.text() for found in reversed(repo.versions(MODEL, name))]


@pytest.fixture(params=["in place", "directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty place of each kind in turn."""
    match request.param:
        case "in place":
            return shared_directory(tmp_path)
        case "directory":
            return bucket_in_a_directory(tmp_path)
    remote: ProxiedRemote = request.getfixturevalue("s3_remote")
    return bucket_on_a_server(tmp_path, remote)


def shared_directory(tmp_path: Path) -> Place:
    share = tmp_path / "share"
    share.mkdir(exist_ok=True)
    return Place(tmp_path, {"type": "filesystem", "path": str(share)}, lambda: files_in(share))


def bucket_in_a_directory(tmp_path: Path) -> Place:
    bucket = tmp_path / "bucket"
    bucket.mkdir(exist_ok=True)
    section = {"type": "file", "url": f"file://{bucket}"}
    return Place(tmp_path, section, lambda: files_in(bucket))


def bucket_on_a_server(tmp_path: Path, remote: ProxiedRemote) -> Place:
    def files() -> dict[str, bytes]:
        with remote.open() as store:
            return {info.key: store.get(info.key).data for info in store.list()}

    return Place(tmp_path, {"type": "s3", "config": dict(remote.config)}, files)


def files_in(directory: Path) -> dict[str, bytes]:
    """What a store would list of a directory."""
    with DirectoryStore(str(directory)) as store:
        return {info.key: store.get(info.key).data for info in store.list()}
