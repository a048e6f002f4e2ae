"""The command line as tests use it: in this process, in one of its own, or on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.cli import main

if TYPE_CHECKING:
    import pytest


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def err(self) -> str:
        return self.stderr.decode()

    @property
    def json(self) -> Any:
        """The document on standard output of a command that went well."""
        assert self.status == 0, self.err
        return json.loads(self.stdout)

    @property
    def error(self) -> Any:
        """The document on standard error of a command that failed."""
        assert self.status != 0, self.out
        assert not self.stdout
        return json.loads(self.stderr)


class CommandLine:
    """Runs commands in this process, on the repository in `directory`."""

    def __init__(
        self,
        directory: Path,
        capture: pytest.CaptureFixture[bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._capture = capture
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("SWAMP_REPO_DIR", str(directory))
        monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")

    def __call__(self, *args: str, stdin: bytes = b"") -> Outcome:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        status = main(args)
        return Outcome(status, *self._capture.readouterr())


def run_process(
    *args: str | bytes, repo: Path, stdin: bytes = b"", env: dict[str, str] | None = None
) -> Outcome:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "swampstore.cli", *args],
        input=stdin,
        capture_output=True,
        env=environment(repo) | (env or {}),
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def environment(repo: Path) -> dict[str, str]:
    """Return the environment of a process that works on a repository."""
    return os.environ | {"SWAMP_REPO_DIR": str(repo), "SWAMPSTORE_FSYNC": "off"}


def run_on_terminal(*args: str, repo: Path, typed: bytes = b"", no_color: bool = False) -> Outcome:
    """Run a command with everything connected to a terminal, on which `typed` is typed."""
    ours, theirs = pty.openpty()
    env = environment(repo) | {"TERM": "xterm"} | ({"NO_COLOR": "1"} if no_color else {})
    with subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        close_fds=True,
    ) as process:
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:
            pass  # that is how Linux says that the other side is closed
        finally:
            os.close(ours)
    return Outcome(process.returncode, shown.replace(b"\r\n", b"\n"), b"")
