"""Peers that keep a repository of their own in a bucket, not the files as they are: restic, DVC."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import peers
import sample
from contestants import Other
from measuring import say
from peers import CONCURRENCY, Account, Peer

_PASSWORD = "benchmark"


class Restic(Other):
    """Backs the tree up, and restores its newest snapshot.

    It encrypts, and packs many files into one object.
    """

    def __init__(
        self, program: Path, directory: str, shape: sample.Shape, account: Account
    ) -> None:
        environ = {**_environ(account, directory), "RESTIC_PASSWORD": _PASSWORD}
        peer = Peer(
            "restic", self._restore, self._restore, f"s3:{account.url}/{{}}".format, environ
        )
        super().__init__(peer, directory, shape)
        self._program = program

    def start_over(self, number: int) -> None:
        """Turn to a place that holds nothing yet, and to an empty target."""
        super().start_over(number)
        self._peer.run(self._command("init"))

    def push(self, *, cold: bool) -> None:  # noqa: ARG002 - it finds out by itself
        """Make a snapshot of the tree."""
        self._peer.run([*self._command("backup"), "."], self._source)

    def _restore(self, source: str, target: str) -> list[str]:
        del source
        return [*self._command("restore"), "latest", "--target", target]

    def _command(self, verb: str) -> list[str]:
        cache = f"{self._directory}/cache"
        options = ["--quiet", "--cache-dir", cache, "-o", f"s3.connections={CONCURRENCY}"]
        return [str(self._program), "-r", self._place, *options, verb]


class Dvc(Other):
    """Tracks the tree as one directory; objects are named by what is in them.

    What git would carry to the other machine, one small file, is copied.
    """

    def __init__(
        self, program: Path, directory: str, shape: sample.Shape, account: Account
    ) -> None:
        environ = _environ(account, directory)
        peer = Peer("dvc", self._refuse, self._refuse, "s3://{}".format, environ)
        super().__init__(peer, directory, shape)
        self._program = program
        self._account = account
        self._here = os.path.dirname(self._source)
        self._there = ""

    def start_over(self, number: int) -> None:
        """Turn to a place that holds nothing yet, and to an empty target."""
        super().start_over(number)
        os.rmdir(self.target)
        self._there = f"{self._directory}/there"
        shutil.rmtree(self._there, ignore_errors=True)
        os.mkdir(self._there)
        self.target = f"{self._there}/data"
        for place in (self._here, self._there):
            shutil.rmtree(f"{place}/.dvc", ignore_errors=True)
            for words in (
                "init -q --no-scm",
                "config core.analytics false",
                f"remote add -q -d store {self._place}",
                f"remote modify -q store endpointurl {self._account.url}",
                f"remote modify -q store jobs {CONCURRENCY}",
            ):
                self._dvc(words, place)

    def push(self, *, cold: bool) -> None:  # noqa: ARG002 - it finds out by itself
        """Have the tree in the cache, and bring what is new there to the server."""
        self._dvc("add -q data", self._here)
        self._dvc("push -q", self._here)

    def pull(self, *, cold: bool) -> None:  # noqa: ARG002 - it finds out by itself
        """Bring what the file of the directory names into the target."""
        shutil.copy(f"{self._here}/data.dvc", self._there)
        self._dvc("pull -q --force", self._there)

    def _dvc(self, words: str, place: str) -> None:
        self._peer.run([str(self._program), *words.split()], place)

    @staticmethod
    def _refuse(source: str, target: str) -> list[str]:
        raise NotImplementedError(f"from {source} to {target}: it takes more than one command")


def available(
    directory: str, shape: sample.Shape, account: Account
) -> tuple[list[Other], dict[str, str]]:
    """Return those that could be had, and for the others, by name, why not."""
    found: list[Other] = []
    missing: dict[str, str] = {}
    for name, kind, program_of in (
        ("restic", Restic, peers.restic),
        ("dvc", Dvc, lambda: peers.environment("bench-dvc.txt") / "bin/dvc"),
    ):
        try:
            found.append(kind(program_of(), f"{directory}/{name}", shape, account))
        except (OSError, subprocess.CalledProcessError) as error:
            missing[name] = str(error)
            say(f"{name} cannot be had: {error}")
    return found, missing


def _environ(account: Account, directory: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": directory, **account.environ()}
