"""Killed anywhere, a backup or a restore is simply done again; nobody ever sees half of one."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from swampstore import Repo, open_repo
from swampstore.relocate.backup import open_place, restore_backup, verify_backups
from tests.support.backing_up import MODEL, backed_up, fill, held, restored
from tests.support.forked import die_at_new_line, in_child, sources
from tests.support.machines import Machine

TRACED = sources(
    *(f"relocate/backup/{name}.py" for name in ("create", "place", "format", "units")),
    *(f"relocate/backup/{name}.py" for name in ("local_source", "remote_source", "restore")),
    *("stores/directory.py", "files/disk.py", "index/workers.py"),
)
KILLS = 5


def _killed_at_random(work: Callable[[], object], seed: int, lines: int) -> bool:
    """Do something, of about so many lines, in a child that is killed; tell whether it was.

    The seeds share the lines among them, so that each stage has its kill.
    """
    part = lines // KILLS

    def child() -> None:
        die_at_new_line(part * seed + random.Random(seed).randint(1, part), TRACED)
        threading.settrace(sys.gettrace())  # what threads do counts too
        work()

    return in_child(child)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_backup_is_finished_by_the_next(seed: int, repo_dir: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with open_repo(repo_dir, durable=False) as repo:
        fill(repo)
        first = backed_up(repo, place).manifest.key
        for number in range(4):
            repo.artifacts.save(MODEL, f"name-{number}", f"content {number}")

    def work() -> None:
        with open_repo(repo_dir, durable=False) as repo:
            backed_up(repo, place)

    _killed_at_random(work, seed, 520)
    opened = open_place(str(place))
    # There is one backup, or there are two: each of them is whole.
    assert opened.keys()[0] == first
    assert verify_backups(opened, deep=True).ok
    work()
    assert verify_backups(opened, deep=True).ok
    assert restored(place, tmp_path / "new") == held(repo_dir / ".swamp")
    with open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", {"n": 3})  # nothing is locked by the dead


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_backup_of_a_remote_is_finished_by_the_next(
    seed: int, ana: Machine, bucket: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with ana.open() as repo, repo.session():
        fill(repo)

    def work() -> None:
        with ana.open() as repo:
            backed_up(repo, place)

    _killed_at_random(work, seed, 520)
    opened = open_place(str(place))
    assert verify_backups(opened, deep=True).ok
    work()
    assert verify_backups(opened, deep=True).ok
    assert restored(place, tmp_path / "new") == held(bucket)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_restore_goes_on_when_it_is_done_again(
    seed: int, repo_dir: Path, tmp_path: Path
) -> None:
    place, new = tmp_path / "place", tmp_path / "new"
    place.mkdir()
    with open_repo(repo_dir, durable=False) as repo:
        fill(repo)
        key = backed_up(repo, place).manifest.key
    opened = open_place(str(place))

    def work() -> None:
        restore_backup(opened, key, str(new), durable=False)

    was_killed = _killed_at_random(work, seed, 300)
    if was_killed and not (new / ".swamp.yaml").exists():
        # A file that a power failure left empty has the right size only if it is empty.
        for path in list(new.rglob("raw"))[:1]:
            path.write_bytes(b"\0" * path.stat().st_size)
    if was_killed:
        assert restored(place, new) == held(repo_dir / ".swamp")


@pytest.mark.parametrize("left", [(), (f".{'0' * 36}.tmp",)])
def test_a_restore_that_was_killed_as_it_began_goes_on(
    left: tuple[str, ...], repo: Repo, tmp_path: Path
) -> None:
    (tmp_path / "place").mkdir()
    fill(repo)
    backed_up(repo, tmp_path / "place")
    (tmp_path / "new/.swamp").mkdir(parents=True)
    for name in left:
        (tmp_path / "new/.swamp" / name).write_bytes(b"{")
    assert restored(tmp_path / "place", tmp_path / "new") == held(repo.config.base)
