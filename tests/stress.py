"""Many processes on one datastore, some killed, some paused for longer than their locks last.

    python -m tests.stress [--small] [--mongodb]

What has to hold afterwards: everything acknowledged is there, once, with the right content, on a
machine that was not part of it; versions are numbered in the order of the sessions that made them;
and each session saw, when it had its locks, all that sessions before it acknowledged. Had a process
committed after its lock was taken over, the one that took it over would not have seen that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from swampstore import Artifact, Repo, init_repo, open_repo
from swampstore.marker import update_marker
from tests.support.mongodb import SERVERS
from tests.support.servers import S3_KEY, S3Server, seaweedfs
from tests.support.stress_worker import MODELS, NAMES, content_of

BUCKET = "stress"
LOCK_TTL = 1.0


class Size(NamedTuple):
    """How much happens: processes on two caches, sessions of each, and what befalls them."""

    processes: int
    sessions: int
    kills: int
    pauses: int


FULL = Size(processes=16, sessions=50, kills=30, pauses=20)
SMALL = Size(processes=6, sessions=5, kills=3, pauses=2)


@dataclass
class Story:
    """What the journals tell."""

    locked: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Machine:
    """A repository and a cache, used by several processes."""

    def __init__(self, directory: Path, repo_id: str, datastore: Mapping[str, Any]) -> None:
        self.repo_dir = directory / "repo"
        init_repo(self.repo_dir).close()
        update_marker(str(self.repo_dir), {"repoId": repo_id, "datastore": dict(datastore)})
        self.environ = {
            **os.environ,
            "SWAMP_HOME": str(directory / "home"),
            "SWAMP_REPO_DIR": str(self.repo_dir),
            "SWAMP_LOCK_TIMEOUT_MS": "120000",
            "SWAMPSTORE_LOCK_TTL_MS": str(int(LOCK_TTL * 1000)),
            "SWAMPSTORE_FSYNC": "0",
        }

    def open(self) -> Repo:
        return open_repo(self.repo_dir, environ=self.environ)


def run(directory: Path, datastore: Mapping[str, Any], size: Size, *, sharded: bool) -> Story:
    """Let it all happen, and raise AssertionError if anything is not as it must be."""
    repo_id = str(uuid.uuid4())
    machines = [Machine(directory / name, repo_id, datastore) for name in ("one", "two")]
    if sharded:
        with machines[0].open() as repo:
            repo.sync.migrate_index()
    journals = directory / "journals"
    journals.mkdir()
    _let_loose(machines, journals, size)
    story = _read(journals)
    third = Machine(directory / "three", repo_id, datastore)
    with third.open() as repo:
        if repo.config.remote:
            repo.sync.pull()
            _check_index(repo, sharded=sharded)
        _check_everything_is_there(repo, story)
    _check_sessions_saw_all_before_them(story)
    return story


class _Worker:
    def __init__(self, machine: Machine, journal: Path, seed: str, sessions: int) -> None:
        self._machine = machine
        self._journal = journal
        self._seed = seed
        self._sessions = sessions
        self._waking = threading.Timer(0, int)
        self._start()

    def _start(self) -> None:
        left = max(1, self._sessions - self.count("locked"))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.stress_worker"),
                *(str(self._journal), self._seed, str(left)),
            ],
            env=self._machine.environ,
            stderr=subprocess.DEVNULL,
        )

    def count(self, event: str) -> int:
        """Return how often something has happened to it."""
        return self._journal.read_text().count(f'"{event}"') if self._journal.exists() else 0

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None and not self._waking.is_alive()

    def kill(self) -> None:
        """Kill it, and let another one do what is left to do."""
        self.process.kill()
        self.process.wait()
        self._start()

    def pause(self, seconds: float) -> None:
        """Stop it for some time, in which the others go on."""
        self.process.send_signal(signal.SIGSTOP)
        self._waking = threading.Timer(seconds, self.process.send_signal, [signal.SIGCONT])
        self._waking.start()

    def end(self) -> None:
        self._waking.cancel()
        self.process.kill()
        self.process.wait()


def _let_loose(machines: list[Machine], journals: Path, size: Size) -> None:
    chance = random.Random(7)
    workers = [
        _Worker(machines[number % 2], journals / f"{number}.jsonl", str(number), size.sessions)
        for number in range(size.processes)
    ]
    try:
        fates = ["kill"] * size.kills + ["pause"] * size.pauses
        chance.shuffle(fates)
        _wait_until_busy(workers)
        for fate in fates:
            time.sleep(chance.uniform(0.1, 0.8))
            running = [worker for worker in workers if worker.is_running]
            if not running:
                break
            worker = chance.choice(running)
            if fate == "kill":
                worker.kill()
            else:
                worker.pause(LOCK_TTL * 2 + 1.5)
        for worker in workers:
            assert worker.process.wait(timeout=600) == 0
    finally:
        for worker in workers:
            worker.end()


def _wait_until_busy(workers: list[_Worker]) -> None:
    """Wait until half of them are at work and there is an index, made by the first who is done."""
    while (
        not any(worker.count("done") for worker in workers)
        or sum(worker.count("locked") > 0 for worker in workers) < len(workers) / 2
    ):
        assert any(worker.is_running for worker in workers), "no session ended well"
        time.sleep(0.05)


def _read(journals: Path) -> Story:
    story = Story()
    for journal in journals.iterdir():
        for line in journal.read_text().splitlines():
            event = json.loads(line)
            kind = event["event"]
            story.others[kind] += 1
            if kind == "locked":
                story.locked.append(event)
            elif kind == "done":
                story.done[event["session"]] = event["saved"]
            elif kind == "failed":
                story.failures.append(f"{event['code']}: {event['message']}")
    story.locked.sort(key=lambda event: float(event["at"]))
    return story


# What has to hold -----------------------------------------------------------------------------


def _check_everything_is_there(repo: Repo, story: Story) -> None:
    assert story.done, "no session ended well"
    found: dict[str, Artifact] = {}
    for model in MODELS:
        for name in NAMES:
            versions = repo.versions(model, name)
            for version in versions:
                assert version.tags["work"] not in found, "one piece of work under two numbers"
                found[version.tags["work"]] = version
            if versions:
                newest = max(versions, key=lambda version: version.version)
                assert repo.latest(model, name).version == newest.version
    for saved in story.done.values():
        for one in saved:
            assert one["work"] in found, f"acknowledged and lost: {one}"
            assert found[one["work"]].bytes() == content_of(one["work"])
    numbers = _numbers_in_order(found, story)
    assert numbers == {key: sorted(order) for key, order in numbers.items()}


def _check_index(repo: Repo, *, sharded: bool) -> None:
    """Each object is named in one shard, by its right hash, and in the monolith if that counts."""
    store = repo.connection.store
    named: dict[str, Any] = {}
    if store.capabilities.keeps_paths:
        named = json.loads(store.get(".datastore-index.json").data)["entries"]
        assert named
    for info in store.list("_index/"):
        if not info.key.endswith("/_meta.json"):
            entries = json.loads(store.get(info.key).data)["entries"]
            assert not named.keys() & entries.keys(), "a path in two shards"
            named |= entries
    if not sharded:
        assert json.loads(store.get(".datastore-index.json").data)["entries"].keys() == named.keys()
    for rel, entry in named.items():
        if rel.endswith(("/raw", "/metadata.yaml")):
            assert hashlib.sha256(store.get(rel).data).hexdigest() == entry["sha256"], rel


def _numbers_in_order(found: Mapping[str, Artifact], story: Story) -> dict[str, list[int]]:
    """Return the numbers of the acknowledged versions of each name in the order of sessions."""
    numbers: dict[str, list[int]] = {}
    for event in story.locked:
        for one in story.done.get(event["session"], []):
            key = f"{one['model']}/{one['name']}"
            numbers.setdefault(key, []).append(found[one["work"]].version)
    return numbers


def _check_sessions_saw_all_before_them(story: Story) -> None:
    """Look at the sessions that ended well: only they had their locks from start to end."""
    acknowledged: dict[str, set[str]] = {model: set() for model in MODELS}
    for event in story.locked:
        if event["session"] not in story.done:
            continue
        seen = set(event["seen"])
        for model in event["models"]:
            missing = acknowledged[model] - seen
            assert not missing, f"{event['session']} did not see {missing}"
        for one in story.done[event["session"]]:
            acknowledged[one["model"]].add(one["work"])


# By hand --------------------------------------------------------------------------------------


def s3_datastore(server: S3Server, bucket: str) -> dict[str, Any]:
    """Return the settings of a datastore in an empty part of a bucket."""
    config = {"bucket": bucket, "prefix": uuid.uuid4().hex, "endpoint": server.url, **S3_KEY}
    return {"type": "@swamp/s3-datastore", "config": config}


def main() -> int:
    """Run every kind in full, or small."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="The size that the tests run.")
    parser.add_argument("--mongodb", action="store_true", help="On databases only.")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "server").mkdir()
        _run_on_databases(root, size)
        if options.mongodb:
            return 0
        with seaweedfs(root / "server") as server:
            server.make_bucket(BUCKET)
            for sharded in (False, True):
                datastore = s3_datastore(server, BUCKET)
                _run(root, f"S3, v{1 + sharded}", datastore, size, sharded=sharded)
        for sharded in (False, True):
            bucket = root / f"bucket-{sharded}"
            bucket.mkdir()
            datastore = {"type": "file", "url": f"file://{bucket}"}
            _run(root, f"directory bucket, v{1 + sharded}", datastore, size, sharded=sharded)
        shared = {"type": "filesystem", "path": str(root / "mount")}
        _run(root, "shared directory", shared, size, sharded=False)
    return 0


def _run_on_databases(root: Path, size: Size) -> None:
    """Run on each server that speaks MongoDB's protocol and was built here."""
    for title, why_not, serve in SERVERS:
        if reason := why_not():
            sys.stdout.write(f"{title}: not run, {reason}\n")
            continue
        (root / f"server-{title}").mkdir()
        with serve(root / f"server-{title}") as address:
            datastore = {"type": "mongodb", "url": f"mongodb://{address}/stress"}
            _run(root, title, datastore, size, sharded=False)


def _run(
    root: Path, title: str, datastore: Mapping[str, Any], size: Size, *, sharded: bool
) -> None:
    directory = root / title.replace(" ", "-")
    directory.mkdir()
    began = time.monotonic()
    story = run(directory, datastore, size, sharded=sharded)
    events = ", ".join(f"{number} {kind}" for kind, number in sorted(story.others.items()))
    lines = [f"{title}: {events}; {time.monotonic() - began:.0f} s"]
    for failure, number in Counter(story.failures).most_common(5):
        lines.append(f"   {number} times {failure}")
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
