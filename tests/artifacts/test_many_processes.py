"""Many processes on one repository at once: nothing lost, nothing counted twice."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, open_repo
from swampstore.errors import LockTimeoutError, SwampstoreError
from tests.catalog.test_catalog import assert_equals_disk

MODEL = "aws/ec2/i-1"


def run_all(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in that many processes; every one of them must succeed."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(number)
                status = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    assert not failed


def test_racing_saves_of_one_name_all_get_their_own_version(repo_dir: Path) -> None:
    def work(number: int) -> None:
        with open_repo(repo_dir, durable=False) as repo:
            for turn in range(15):
                repo.artifacts.save(MODEL, "state", f"{number}-{turn}")

    run_all(8, work)
    with open_repo(repo_dir) as repo:
        found = repo.versions(MODEL, "state")
        assert [one.version for one in found] == list(range(120, 0, -1))
        assert len({one.text() for one in found}) == 120
        assert repo.latest(MODEL, "state").version == 120
        assert_equals_disk(repo)


def test_racing_mixed_changes_leave_files_and_catalog_in_agreement(repo_dir: Path) -> None:
    def work(number: int) -> None:
        rng = random.Random(number)
        with open_repo(repo_dir, durable=False) as repo:
            for _ in range(40):
                _random_change(repo, rng)

    run_all(6, work)
    with open_repo(repo_dir) as repo:
        repo.ready(complete=True)
        assert repo.catalog.pending() == []
        assert_equals_disk(repo)


def _random_change(repo: Repo, rng: random.Random) -> None:
    name = rng.choice("abc")
    changes: list[Callable[[], Any]] = [
        lambda: repo.artifacts.save(MODEL, name, b"x", streaming=True),
        lambda: repo.artifacts.append(MODEL, name, b"y"),
        lambda: repo.artifacts.delete(MODEL, name),
        lambda: repo.artifacts.delete(MODEL, name, version=rng.choice([1, 2, 3])),
        lambda: repo.artifacts.rename(MODEL, name, rng.choice("abc")),
        lambda: repo.query('name == "a"'),
        repo.rebuild_catalog,
    ]
    try:
        rng.choices(changes, [6, 2, 1, 2, 1, 1, 1])[0]()
    except SwampstoreError as error:
        expected = ("not_found", "model_not_found", "already_exists", "validation_failed")
        if error.code not in (*expected, "content_missing"):
            raise


def test_killed_writers_among_living_ones_lose_only_their_own_work(repo_dir: Path) -> None:
    deadline = time.monotonic() + 3
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            with open_repo(repo_dir, durable=False) as repo:
                turn = 0
                while True:
                    turn += 1
                    saved = repo.artifacts.save(MODEL, f"n{turn % 3}", f"{number}-{turn}")
                    with open(f"{repo_dir}/acknowledged-{number}", "a") as log:
                        log.write(f"{saved.name} {saved.version} {number}-{turn}\n")
        children.append(child)
    rng = random.Random(7)
    while children and time.monotonic() < deadline:
        time.sleep(rng.uniform(0.1, 0.4))
        if len(children) > 1:
            victim = children.pop(rng.randrange(len(children)))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with open_repo(repo_dir) as repo:
        repo.ready(complete=True)
        acknowledged = [
            line.split()
            for log in repo_dir.glob("acknowledged-*")
            for line in log.read_text().splitlines()
            if line.count(" ") == 2
        ]
        assert len(acknowledged) > 20
        for name, version, text in acknowledged:
            assert repo.version(MODEL, name, int(version)).text() == text
        assert_equals_disk(repo)


def test_opening_a_fresh_repository_at_once_from_many_processes_works(repo_dir: Path) -> None:
    def work(number: int) -> None:
        with open_repo(repo_dir, durable=False) as repo:
            repo.artifacts.save(f"t/m{number}", "a", b"x")
            repo.query()

    run_all(12, work)
    with open_repo(repo_dir) as repo:
        assert len(repo.query()) == 12


def test_threads_share_one_repository(repo: Repo) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                repo.artifacts.save(MODEL, f"n{number % 2}", b"x")
                repo.latest(MODEL, f"n{number % 2}").bytes()
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert repo.latest(MODEL, "n0").version == 30
    assert_equals_disk(repo)


def test_a_stuck_holder_is_reported_and_not_waited_for_for_ever(repo_dir: Path) -> None:
    environ = {"SWAMP_LOCK_TIMEOUT_MS": "200"}
    with open_repo(repo_dir, durable=False, environ=environ) as repo:
        repo.artifacts.save(MODEL, "a", b"1")
        with repo.mutations.holding(repo.ref(MODEL, "a")), pytest.raises(LockTimeoutError) as told:
            repo.artifacts.save(MODEL, "a", b"2")
        assert told.value.exit_status == 75
        assert repo.artifacts.save(MODEL, "a", b"2").version == 2
