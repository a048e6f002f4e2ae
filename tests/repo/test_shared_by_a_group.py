"""A repository that a group of people shares: nobody's reading keeps the others from writing."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swampstore import init_repo, open_repo
from swampstore.errors import DiskError
from swampstore.files import make_shared
from swampstore.repo.models import list_models
from tests.support.forked import in_child

MODEL = "aws/ec2/i-1"
ANA, BOB, EVE = 65531, 65532, 65533
GROUP = 65530
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


def save(directory: Path) -> None:
    with open_repo(directory, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 1})


def ask(directory: Path) -> None:
    with open_repo(directory, durable=False) as repo:
        assert repo.latest(MODEL, "state").json() == {"n": 1}
        assert len(repo.query("name == 'state'")) == 1


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that everybody can come to, with the modules loaded that nobody else can."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        Path(name).chmod(0o755)
        init_repo(f"{name}/warm").close()
        save(Path(name, "warm"))
        ask(Path(name, "warm"))
        yield Path(name)


def as_user(user: int, work: Callable[[], object], umask: int = 0o002) -> None:
    def become() -> None:
        os.umask(umask)
        os.setgroups([GROUP] if user != EVE else [])
        os.setgid(user)
        os.setuid(user)
        work()

    assert not in_child(become)


def made_by_ana(directory: Path, mode: int) -> Path:
    shared = directory / "repo"
    shared.mkdir()
    os.chown(shared, ANA, GROUP)
    shared.chmod(mode)
    as_user(ANA, lambda: init_repo(shared).close())
    return shared


def test_a_group_reads_and_writes_in_turn(directory: Path) -> None:
    shared = made_by_ana(directory, 0o2775)
    for user in (ANA, BOB, ANA, BOB):
        as_user(user, lambda: save(shared))
        as_user(user, lambda: _asks_for_the_latest(shared))
    assert (shared / ".swamp/swampstore.db").stat().st_mode & 0o777 == 0o664


def _asks_for_the_latest(directory: Path) -> None:
    with open_repo(directory, durable=False) as repo:
        assert repo.latest(MODEL, "state").json() == {"n": 1}


def test_a_question_of_somebody_who_may_only_read_leaves_nothing_behind(directory: Path) -> None:
    shared = made_by_ana(directory, 0o2775)
    as_user(ANA, lambda: save(shared))
    before = sorted(os.listdir(shared / ".swamp"))
    as_user(EVE, lambda: ask(shared))
    assert sorted(os.listdir(shared / ".swamp")) == before
    as_user(ANA, lambda: save(shared))


def test_who_may_not_look_into_a_repository_is_told_so_and_not_that_it_is_empty(
    directory: Path,
) -> None:
    shared = made_by_ana(directory, 0o755)
    as_user(ANA, lambda: save(shared))
    (shared / ".swamp").chmod(0o700)
    as_user(EVE, lambda: _is_refused(shared))


def _is_refused(directory: Path) -> None:
    with open_repo(directory, durable=False) as repo:
        for question in (repo.query, lambda: list_models(repo)):
            with pytest.raises(DiskError, match=f"{directory}/.swamp/data: permission denied"):
                question()


def test_a_catalog_that_only_its_owner_writes_is_read_by_the_group(directory: Path) -> None:
    """As it was made before catalogs followed their directory."""
    shared = made_by_ana(directory, 0o2775)
    as_user(ANA, lambda: save(shared))
    (shared / ".swamp/swampstore.db").chmod(0o644)
    before = sorted(os.listdir(shared / ".swamp"))
    as_user(BOB, lambda: ask(shared))
    assert sorted(os.listdir(shared / ".swamp")) == before
    as_user(ANA, lambda: save(shared))
    assert (shared / ".swamp/swampstore.db").stat().st_mode & 0o777 == 0o664


def test_what_a_question_left_behind_does_not_lock_the_owner_out(directory: Path) -> None:
    shared = made_by_ana(directory, 0o2775)
    as_user(ANA, lambda: save(shared))
    for suffix in ("-wal", "-shm"):
        left = shared / f".swamp/swampstore.db{suffix}"
        left.touch()
        os.chown(left, BOB, GROUP)
        left.chmod(0o644)
    as_user(ANA, lambda: save(shared))
    as_user(ANA, lambda: _has_two(shared))


def _has_two(directory: Path) -> None:
    with open_repo(directory, durable=False) as repo:
        assert repo.list_versions(MODEL, "state") == [1, 2]


def test_a_file_that_sqlite_has_locked_is_not_opened_to_be_shared(tmp_path: Path) -> None:
    path = str(tmp_path / "some.db")
    make_shared(path)
    # A process of its own: a forked one would remember the lock of its parent.
    program = (
        "import sqlite3, sys;sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN EXCLUSIVE')"
    )
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        make_shared(path)  # to open and close it would free the lock
        command = [sys.executable, "-c", program, path]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "database is locked" in other.stderr
