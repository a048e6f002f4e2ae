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

COUNTER = ("demo/counter", "count")
BUSY_WRITER = """
import swampstore
with swampstore.open_repo(environ={}) as repo:
    while True:
        saved = repo.artifacts.save("demo/counter", "count", {"n": 1}, garbage_collection=100000)
        print(saved.version, flush=True)
"""


STREAM = """
import time
import swampstore
with swampstore.open_repo(environ={}) as repo:
    with repo.artifacts.writer("aws/ec2/i-0a11", "backup") as writer:
        writer.write(bytes(2_000_000))
        print("so far", flush=True)
        time.sleep(600)
"""


class Kill(NamedTuple):
    """What one killed writer had been told was saved, and the latest version found afterwards."""

    acknowledged: int
    latest: int


def kill_a_stream(repo_dir: Path, env: dict[str, str]) -> int:
    """Let a process stream something, kill it in the middle, and return its exit status."""
    with subprocess.Popen(  # noqa: S603 - the demo runs its own words
        [sys.executable, "-c", STREAM], cwd=repo_dir, env=env, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    return process.returncode


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
