"""What a simulated kill takes away, and what is left of a script that shows a violation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from swampstore.catalog.catalog import Catalog
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.removals import Remover
from tests.fleet.bucket import Bucket, FleetStore
from tests.fleet.fleet import Script, run
from tests.fleet.generate import Mix, generate
from tests.fleet.rules import RULES, THEMED, Rule, find, themed, without
from tests.fleet.seams import close_connections, install, let_go_of_locks
from tests.fleet.shrink import shrink, told
from tests.fleet.test_fleet import ENVIRON, ROOT
from tests.fleet.world import DISK, STORE, Actor, Fault, Killed, World


def alone(work: str, *arguments: object) -> None:
    """Do something in a process whose operating system the simulation may take the place of."""
    program = f"import sys; from tests.fleet import test_seams; test_seams.{work}(*sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(
        command, env=ENVIRON, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("point", [DISK, STORE])
def test_who_is_killed_can_tidy_nothing_up_and_holds_no_lock(tmp_path: Path, point: str) -> None:
    alone("be_killed", tmp_path, point)


def be_killed(place: str, point: str) -> None:
    """Be killed at a change of the disk or at a request; `finally` tries to put things right."""
    install()
    directory = Path(place)
    world = World("seed", datetime(2026, 6, 1, tzinfo=UTC))
    bucket = Bucket(world, "bucket", "s3")
    bucket.write("kept", b"kept")
    (directory / "kept").write_bytes(b"kept")
    actor = Actor(world, 0, "machine")
    tried: list[str] = []

    def crash() -> None:
        close_connections(actor)
        let_go_of_locks(actor)

    actor.on_death = crash

    def work() -> None:
        store = FleetStore(bucket)
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        db = sqlite3.connect(directory / "db", isolation_level=None)
        db.execute("CREATE TABLE IF NOT EXISTS t (a)")
        db.execute("BEGIN IMMEDIATE")  # change 0
        db.execute("INSERT INTO t VALUES (1)")
        attempts: dict[str, Callable[[], object]] = {
            "write": lambda: open(directory / "new", "wb").close(),
            "remove": (directory / "kept").unlink,
            "rename": lambda: (directory / "kept").rename(directory / "renamed"),
            "make": (directory / "made").mkdir,
            "commit": db.commit,
            "put": lambda: store.put("new", b"new"),
            "delete": lambda: store.delete("kept"),
        }
        try:
            store.get("kept")  # request 0
            (directory / "killed").mkdir()  # change 1
        finally:
            for name, attempt in attempts.items():
                with contextlib.suppress(Killed):
                    attempt()
                    continue
                tried.append(name)

    actor.start(work, [Fault(point, 0 if point == STORE else 1, "kill")])
    assert actor.outcome is not None
    assert actor.outcome.ending == "killed", actor.outcome
    assert tried == ["write", "remove", "rename", "make", "commit", "put", "delete"]
    assert {path.name for path in directory.iterdir()} - {"db-journal"} == {"kept", "lock", "db"}
    assert list(bucket.objects) == ["kept"]
    assert sqlite3.connect(directory / "db").execute("SELECT * FROM t").fetchall() == []
    with (directory / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    world.end()


def test_what_is_wrong_at_rest_is_found() -> None:
    alone("find_what_is_wrong")


def find_what_is_wrong() -> None:
    """Break the product in one way after another: somebody has to notice, and not by a defect."""
    record, commit = Catalog.record, RemoteIndex.commit

    def record_wrongly(catalog: Catalog, outcomes: Any) -> None:
        record(catalog, outcomes)
        catalog.rows.write(lambda db: db.execute("UPDATE catalog SET size = size + 1"))

    def commit_without_hashes(index: Any, view: Any, new: Any, *more: Any, **options: Any) -> Any:
        bare = {rel: replace(entry, sha256=None) for rel, entry in new.items()}
        return commit(index, view, bare, *more, **options)

    def commit_without_markers(index: Any, view: Any, new: Any, *more: Any, **options: Any) -> Any:
        some = {rel: entry for rel, entry in new.items() if not rel.endswith("/latest")}
        return commit(index, view, some, *more, **options)

    def pretend(*_: object) -> bool:
        return True

    wrong: dict[str, dict[tuple[object, str], object]] = {
        "catalog": {(Catalog, "record"): record_wrongly},
        "wrong entry": {(RemoteIndex, "commit"): commit_without_hashes},
        "verify": {(RemoteIndex, "commit"): commit_without_markers},
        "undeleted": {(Remover, "_delete"): pretend, (Remover, "_remove_noted"): pretend},
    }
    for kind, patches in wrong.items():
        rule = Rule(patches, Mix({}))
        found = find(rule, lambda seed: generate(f"wrong-{seed}"), 0, 12)
        assert str(found["without"]).startswith(kind), (kind, found)
        assert found["with"] is None, (kind, found)


def test_a_violation_names_its_seed_and_a_shorter_script_that_shows_it() -> None:
    alone("make_it_short")


def make_it_short() -> None:
    install()
    name = "a deletion stays"
    script = themed(*THEMED[name])
    with without(RULES[name]):
        violation = run(script).violation
        assert violation is not None
        short = shrink(script, violation.kind, seconds=20)
        text = told(short, run(short))
        assert len(short.steps) < len(script.steps) / 2
        assert text.startswith(f"seed {script.seed}: {violation.kind}")
        again = Script.from_json(text.partition("\n")[2])
        shown = run(again).violation
    assert shown is not None
    assert shown.kind == violation.kind
    assert run(again).violation is None
