"""A repository on a file system that is mounted read-only, for as long as one command takes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_MAY_NOT_MOUNT = 99


def read_only(repo_dir: Path, *arguments: str) -> Any:
    """Return what a command prints with `--json` where nothing can be written.

    Fails if the command does, or changes a file. Skips the test where nobody may mount.
    """
    there = shlex.quote(str(repo_dir))
    words = [sys.executable, "-m", "swampstore.cli", *arguments, "--json", "--repo", str(repo_dir)]
    script = (
        f"mount --bind {there} {there} && mount -o remount,ro,bind {there}"
        f" || exit {_MAY_NOT_MOUNT}; exec {shlex.join(words)}"
    )
    before = _files(repo_dir)
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode == _MAY_NOT_MOUNT or done.stderr.startswith("unshare:"):
        pytest.skip("this user may not mount anything")
    assert done.returncode == 0, done.stderr
    assert _files(repo_dir) == before
    return json.loads(done.stdout)


def _files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
