"""Fixtures: a repository in a temporary directory, and a clock that tests set themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from swampstore import Repo, init_repo, open_repo

_MEMORY = "/dev/shm"
_ROOM = 4 << 30


def _keep_temporary_files_in_memory() -> None:
    """Tests write a great many small files, on which a disk takes longer than all that is tested.

    Programs that tests start do the same. Who sets `TMPDIR` decides otherwise.
    """
    if "TMPDIR" in os.environ or not os.path.isdir(_MEMORY):
        return
    there = os.statvfs(_MEMORY)
    if there.f_bavail * there.f_frsize > _ROOM and not there.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY


_keep_temporary_files_in_memory()
pytest_plugins = [
    "tests.support.remotes",
    "tests.support.mongodb",
    "tests.support.members",
    "tests.support.machines",
    "tests.support.spark_testing",
    "tests.support.marking",
]


# The same examples every time, so that a red run can be repeated; others are asked for.
# A busy machine is slow, and that says nothing about what is tested.
_UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("reproducible", _UNHURRIED, derandomize=True)
settings.register_profile("random", _UNHURRIED, derandomize=False)
_CHOSEN = "random" if os.environ.get("SWAMPSTORE_RANDOM_TESTS") else "reproducible"
# What does not say how many examples it needs makes do with fewer in `make quick`.
settings.register_profile("quick", settings.get_profile(_CHOSEN), max_examples=25)
settings.load_profile(_CHOSEN)


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 14, 20, 19, 51, 42000, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **amount: float) -> None:
        self.now += timedelta(**amount)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def no_swamp_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in ("SWAMP_DATASTORE", "SWAMP_REPO_DIR", "SWAMP_NAMESPACE", "SWAMP_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SWAMPSTORE_ENGINE", "SWAMPSTORE_SPARK_MASTER", "SWAMPSTORE_SPARK_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


@pytest.fixture
def repo_dir(tmp_path: Path) -> Path:
    init_repo(tmp_path / "repo").close()
    return tmp_path / "repo"


@pytest.fixture
def repo(repo_dir: Path, clock: FakeClock) -> Iterator[Repo]:
    """A fresh repository that does not wait for the disk."""
    with open_repo(repo_dir, durable=False, clock=clock) as repo:
        yield repo
