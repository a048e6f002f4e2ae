"""Run one operation again and again, killed at each line before which it changed something.

A program of its own, because forking is cheap only where little is loaded:

    python -m tests.support.killing OPERATION SCRATCH
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from swampstore import Draft, Owner, Repo, init_repo, open_repo
from swampstore.artifacts.renumber import renumber
from swampstore.sync.install import ArtifactInstaller
from tests.support.forked import in_child, sources
from tests.support.staging import Staged, metadata_of

MODEL = "aws/ec2/i-1"
# The modules that change something.
IMPURE = sources(
    *("files/disk.py", "files/tree.py", "files/change.py", "files/reception.py"),
    *("artifacts/claims.py", "artifacts/publish.py", "artifacts/save.py", "artifacts/streaming.py"),
    *("artifacts/groups.py", "artifacts/rename.py", "artifacts/name_lock.py"),
    *("artifacts/renumber.py", "files/hold.py", "sync/arrivals.py", "sync/install.py"),
)
Operation = Callable[[Repo], Any]


def seed(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", {"n": 1}, tags={"env": "prod"})
    repo.artifacts.save(MODEL, "state", {"n": 2}, tags={"env": "prod"})
    repo.artifacts.save(MODEL, "log", b"one\n", content_type="text/plain", streaming=True)
    repo.artifacts.save(MODEL, "other", b"untouched")


def stream(repo: Repo) -> None:
    with repo.artifacts.writer(MODEL, "state", Draft(owner=Owner(ref="i-1"))) as writer:
        writer.write(b"part one, ")
        writer.write(b"part two")


def commit(repo: Repo) -> None:
    """Save two names in one group, and let another one commit them."""
    draft = Draft(content_type="application/json", owner=Owner(ref="i-1"))
    group, adopting = repo.artifacts.deferring(), repo.artifacts.deferring()
    group.save(repo.ref(MODEL, "state"), b'{"n": 3}', draft)
    group.save(repo.ref(MODEL, "fresh"), b'{"n": 1}', draft)
    adopting.adopt(group.receipts)
    adopting.commit()


def save_a_third(repo: Repo) -> None:
    repo.artifacts.save(MODEL, "state", {"n": 3})


def renumber_all(repo: Repo) -> None:
    renumber(repo.mutations, repo.ref(MODEL, "state"), {1: 2, 2: 4, 3: 5})


STATE, LOG, FRESH = (f"data/{MODEL}/{name}" for name in ("state", "log", "fresh"))
# What a remote has that differs from the seed; None: it has nothing there any more.
REMOTE: dict[str, bytes | None] = {
    f"{STATE}/1/raw": None,
    f"{STATE}/1/metadata.yaml": None,
    f"{STATE}/2/raw": None,
    f"{STATE}/2/metadata.yaml": None,
    f"{STATE}/3/raw": b"three",
    f"{STATE}/3/metadata.yaml": metadata_of("state", 3, b"three"),
    f"{STATE}/latest": b"3",
    f"{LOG}/1/raw": b"one\ntwo\n",
    f"{LOG}/1/metadata.yaml": metadata_of("log", 1, b"one\ntwo\n"),
    f"{FRESH}/1/raw": b"x",
    f"{FRESH}/1/metadata.yaml": metadata_of("fresh", 1, b"x"),
    f"{FRESH}/latest": b"1",
    "outputs/aws/ec2/start/1.yaml": b"ok: true\n",
}


def pull(repo: Repo) -> None:
    """Land whatever the remote has otherwise, as the first or as the next pull would."""
    staged = Staged(repo.tree)
    ArtifactInstaller(repo.mutations, repo.catalog).install(
        [
            staged.arrival(rel, data)
            for rel, data in REMOTE.items()
            if data != staged.read(rel)  # a pull adopts what is the same already
        ]
    )


PREPARATIONS: dict[str, Operation] = {
    "renumber": save_a_third,
}
OPERATIONS: dict[str, Operation] = {
    "commit two names": commit,
    "save": lambda repo: repo.artifacts.save(MODEL, "state", {"n": 3}),
    "save a new name": lambda repo: repo.artifacts.save(MODEL, "fresh", b"x"),
    "stream": stream,
    "append": lambda repo: repo.artifacts.append(MODEL, "log", b"two\n"),
    "delete the latest version": lambda repo: repo.artifacts.delete(MODEL, "state", version=2),
    "delete an old version": lambda repo: repo.artifacts.delete(MODEL, "state", version=1),
    "delete a name": lambda repo: repo.artifacts.delete(MODEL, "state"),
    "rename": lambda repo: repo.artifacts.rename(MODEL, "state", "status"),
    "mark deleted": lambda repo: repo.artifacts.mark_deleted(MODEL, "state", method="destroy"),
    "renumber": renumber_all,
}
# These may stop half-way, because doing them again completes them.
RESUMABLE: dict[str, Operation] = {"pull": pull}


def observed(directory: Path, announced: list[str] | None = None) -> dict[str, Any]:
    """Everything a user can see, through the API of a fresh process, which heals first."""
    announce = None if announced is None else announced.append
    with open_repo(directory, durable=False, announce=announce) as repo:
        seen: dict[str, Any] = {}
        for name in ("state", "log", "other", "fresh", "status"):
            latest = repo.latest(MODEL, name, default=None)
            seen[name] = (
                [
                    (one.version, one.is_latest, one.is_deleted, _stable(one.bytes()))
                    for one in repo.versions(MODEL, name)
                ],
                None if latest is None else (latest.name, latest.version),
            )
        seen["query"] = sorted((found.name, found.version) for found in repo.query())
        written_through = rows(repo)
        repo.rebuild_catalog()
        assert rows(repo) == written_through, "the catalog did not agree with the files"
        assert repo.catalog.pending() == []
        return seen


def rows(repo: Repo) -> list[Any]:
    return repo.catalog.rows.read(
        lambda db: db.execute(
            "SELECT * FROM catalog ORDER BY type_normalized, model_id, data_name, version"
        ).fetchall()
    )


def _stable(content: bytes) -> bytes:
    """Tombstones hold the time they were written; everything else is compared as it is."""
    return b"tombstone" if b"deletedAt" in content or b"renamedAt" in content else content


def kill_points(directory: Path, operation: Operation) -> list[int]:
    """Do the operation; return the lines at which a kill leaves what no kill before would leave.

    A process that is killed leaves its files and nothing else, so it does not matter at which of
    the lines between two changes that happens. To be done after another run of the operation:
    caches that this fills spare later runs some lines, and lines are told by their numbers.
    """
    points: list[int] = []
    left: dict[str, bytes] = {}

    def look(line: int) -> None:
        nonlocal left
        before, left = left, _left_in(directory)
        if left != before:
            points.append(line)

    _run_traced(directory, operation, look)
    return points


def _left_in(directory: Path) -> dict[str, bytes]:
    """Return the content of all files by path; directories end with a slash."""
    left: dict[str, bytes] = {}
    for parent, _, names in os.walk(directory):
        left[f"{parent}/"] = b""
        left |= {f"{parent}/{name}": Path(parent, name).read_bytes() for name in names}
    return left


def killed_at(directory: Path, operation: Operation, line: int) -> None:
    """Run the operation in a child that dies at its n-th line."""

    def die(number: int) -> None:
        if number == line:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(lambda: _run_traced(directory, operation, die)), f"there is no line {line}"


def _run_traced(directory: Path, operation: Operation, at_line: Callable[[int], None]) -> None:
    """Do the operation; tell of each line of the impure modules before it is run."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in IMPURE:
            return None
        if event == "line":
            count += 1
            at_line(count)
        return trace

    with open_repo(directory, durable=False) as repo:
        sys.settrace(trace)
        try:
            operation(repo)
        finally:
            sys.settrace(None)


def make_template(directory: Path, operation: str) -> None:
    """Make the repository that every run of an operation starts from."""
    init_repo(directory).close()
    with open_repo(directory, durable=False) as repo:
        seed(repo)
        repo.rebuild_catalog()
        if operation in PREPARATIONS:
            PREPARATIONS[operation](repo)


def check_every_kill(template: Path, operation: Operation, tmp_path: Path) -> None:
    """Assert that every kill leaves the old state or the new one, and that both occur."""
    before = observed(template)
    finished = _copied(template, tmp_path / "finished")
    with open_repo(finished, durable=False) as repo:
        operation(repo)
    after = observed(finished)
    assert before != after
    outcomes = set()
    for line in kill_points(_copied(template, tmp_path / "traced"), operation):
        directory = _copied(template, tmp_path / str(line))
        killed_at(directory, operation, line)
        seen = observed(directory)
        assert seen in (before, after), f"killed at line {line}"
        outcomes.add(seen == after)
        shutil.rmtree(directory)
    assert outcomes == {False, True}


def check_every_kill_resumes(template: Path, operation: Operation, tmp_path: Path) -> None:
    """Assert that whatever a kill leaves behind is whole, and that doing it again completes it."""
    before = observed(template)
    finished = _copied(template, tmp_path / "finished")
    with open_repo(finished, durable=False) as repo:
        operation(repo)
    after = observed(finished)
    states: list[dict[str, Any]] = []
    for line in kill_points(_copied(template, tmp_path / "traced"), operation):
        directory = _copied(template, tmp_path / str(line))
        killed_at(directory, operation, line)
        announced: list[str] = []
        seen = observed(directory, announced)
        assert announced == [], f"killed at line {line}, healing announced what nobody changed"
        assert_whole(seen, before, after)
        states += [seen] if seen not in states else []
        with open_repo(directory, durable=False) as repo:
            operation(repo)
        assert observed(directory) == after, f"killed at line {line}"
        shutil.rmtree(directory)
    assert before in states
    assert after in states
    assert len(states) > 3, "nothing was ever left half-way"


def _copied(template: Path, directory: Path) -> Path:
    shutil.copytree(template, directory, ignore=shutil.ignore_patterns("swampstore.locks"))
    return directory


def assert_whole(seen: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Assert that every version that is seen is the one from before or the one from after."""
    for name in ("state", "log", "other", "fresh", "status"):
        contents = {
            (version, content)
            for versions, _ in (before[name], after[name])
            for version, _, _, content in versions
        }
        versions, latest = seen[name]
        assert {(version, content) for version, _, _, content in versions} <= contents
        assert latest is not None or not versions


if __name__ == "__main__":
    name, scratch = sys.argv[1], Path(sys.argv[2])
    make_template(scratch / "template", name)
    if name in OPERATIONS:
        check_every_kill(scratch / "template", OPERATIONS[name], scratch)
    else:
        check_every_kill_resumes(scratch / "template", RESUMABLE[name], scratch)
