"""Writers that are killed in the middle of their work, and what they leave behind."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from swampstore import Repo, open_repo

_PATIENCE = 20.0
COUNTER = ("demo/counter", "count")
BUSY_WRITER = """
import swampstore
with swampstore.open_repo(environ={}) as repo:
    while True:
        saved = repo.artifacts.save("demo/counter", "count", {"n": 1}, garbage_collection=100000)
        print(saved.version, flush=True)
"""


class Kill(NamedTuple):
    """What one killed writer had been told was saved, and the latest version found afterwards."""

    acknowledged: int
    latest: int


def kill_a_stream(command: list[str], piece: bytes, raw: Path, env: dict[str, str]) -> int:
    """Feed a command, kill it while it waits for more, and return its exit status.

    `raw` is the file in which the piece arrives.
    """
    with subprocess.Popen(  # noqa: S603 - the demo runs its own words
        command, env=env, stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(piece)
        process.stdin.flush()
        _wait_for(raw, len(piece))
        os.kill(process.pid, signal.SIGKILL)
    return process.returncode


def _wait_for(raw: Path, size: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not raw.exists() or raw.stat().st_size < size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{raw} does not grow")
        time.sleep(0.01)


def kill_a_busy_writer(repo_dir: Path, env: dict[str, str]) -> Kill:
    """Start a process that saves one version after the other, and kill it at some moment."""
    with subprocess.Popen(  # noqa: S603 - the demo runs its own words
        [sys.executable, "-c", BUSY_WRITER], cwd=repo_dir, env=env, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(random.uniform(0, 0.03))  # noqa: S311 - any moment will do
        os.kill(process.pid, signal.SIGKILL)
        told = [first, *process.stdout.read().splitlines()]
    acknowledged = max(int(line) for line in told if line.strip())
    with open_repo(repo_dir, environ={}) as repo:
        return Kill(acknowledged, repo.latest(*COUNTER).version)


def torn_versions(repo: Repo) -> list[int]:
    """Return the versions of the counter whose content is not what their metadata says."""
    return [
        artifact.version
        for artifact in repo.versions(*COUNTER)
        if hashlib.sha256(artifact.bytes()).hexdigest() != artifact.checksum
    ]
