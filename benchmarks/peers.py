"""Other programs that bring a directory and a bucket together, each as fast as it can be set.

They are installed from `requirements/bench.txt` into an environment of their own, once; programs
of another kind, from `requirements/bench-tools.txt` and `bench-dvc.txt`, into others.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from measuring import say

_REQUIREMENTS = Path(__file__).parent.parent / "requirements"
CONCURRENCY = 50
_TRANSFERS = str(CONCURRENCY)
# Without these, rclone asks for every object again: to check what it sent, and for the time that
# the file had. The time of the upload says as well which side is newer.
_RCLONE = (
    *("--fast-list", "--transfers", _TRANSFERS, "--checkers", _TRANSFERS),
    *("--s3-no-check-bucket", "--s3-no-head", "--update", "--use-server-modtime"),
    *("--inplace", "--ignore-checksum", "--local-no-set-modtime"),
)
_AWS = f"""\
[default]
region = us-east-1
request_checksum_calculation = when_required
response_checksum_validation = when_required
s3 =
  addressing_style = path
  max_concurrent_requests = {CONCURRENCY}
  max_queue_size = 10000
"""


class Account(NamedTuple):
    """An S3 service and the key to it."""

    url: str
    access_key: str
    secret_key: str

    def environ(self) -> dict[str, str]:
        """Return the variables that every program finds the key by."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class Peer(NamedTuple):
    """A program; `copy` is for when nothing is there yet, `sync` for when most of it is.

    Both take a source and a target, of which one is a directory and the other a place that
    `place` returns for a bucket and a prefix.
    """

    name: str
    copy: Callable[[str, str], list[str]]
    sync: Callable[[str, str], list[str]]
    place: Callable[[str], str]
    environ: Mapping[str, str]

    def run(self, command: list[str], directory: str | None = None) -> None:
        """Run one of its commands, in a directory."""
        run_quietly(command, self.environ, directory)


def installed(account: Account, directory: str) -> list[Peer]:
    """Return the programs, ready for a service; `directory` is for their settings."""
    programs = environment("bench.txt")
    environ = {"PATH": os.environ["PATH"], "HOME": directory, **account.environ()}
    return [
        _rclone(programs / "bin/rclone", account, environ),
        _s5cmd(next(programs.glob("lib/*/site-packages/s5cmd/bin/s5cmd")), account, environ),
        _aws(programs / "bin/aws", account, environ, directory),
    ]


def environment(file: str) -> Path:
    """Return the environment that the programs of a file are in; made at the first run."""
    requirements = _REQUIREMENTS / file
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = _cache() / f"peers-{wanted}"
    if not (place / "complete").exists():
        say(f"installing the peers into {place}")
        venv.create(place, clear=True, with_pip=True)
        pip = [f"{place}/bin/python", "-m", "pip", "--disable-pip-version-check"]
        run_quietly([*pip, "install", "--no-deps", "-r", str(requirements)], os.environ)
        (place / "complete").touch()
    return place


def restic() -> Path:
    """Return the program that is installed, else that of Debian's package; made at the first run.

    Raises OSError or CalledProcessError where neither is to be had.
    """
    if found := shutil.which("restic"):
        return Path(found)
    place = _cache() / "restic"
    program = place / "usr/bin/restic"
    if not program.exists():
        say(f"unpacking restic into {place}")
        place.mkdir(parents=True, exist_ok=True)
        run_quietly(["apt-get", "download", "restic"], os.environ, str(place))
        package = max(place.glob("restic_*.deb"))
        run_quietly(["dpkg", "-x", package.name, "."], os.environ, str(place))
    return program


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swampstore-bench"


def run_quietly(
    command: list[str], environ: Mapping[str, str], directory: str | None = None
) -> None:
    """Run a command; raise CalledProcessError, after showing what it said, if it fails."""
    done = subprocess.run(command, env=environ, cwd=directory, capture_output=True, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        done.check_returncode()


def _rclone(program: Path, account: Account, environ: Mapping[str, str]) -> Peer:
    def sync(source: str, target: str) -> list[str]:
        return [str(program), "sync", *_RCLONE, source, target]

    settings = {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_CONFIG_STORE_TYPE": "s3",
        "RCLONE_CONFIG_STORE_PROVIDER": "SeaweedFS",
        "RCLONE_CONFIG_STORE_ENV_AUTH": "true",
        "RCLONE_CONFIG_STORE_ENDPOINT": account.url,
        "RCLONE_CONFIG_STORE_REGION": "us-east-1",
    }
    return Peer("rclone sync", sync, sync, "store:{}".format, {**environ, **settings})


def _s5cmd(program: Path, account: Account, environ: Mapping[str, str]) -> Peer:
    start = [str(program), "--endpoint-url", account.url, "--numworkers", _TRANSFERS]
    start += ["--log", "error"]

    def command(kind: str, source: str, target: str) -> list[str]:
        everything = f"{source}/*" if source.startswith("s3://") else f"{source}/"
        # No file is large enough for more than one part.
        return [*start, kind, "--concurrency", "1", everything, f"{target}/"]

    return Peer(
        "s5cmd",
        # Its `cp` takes a fraction of the time of its `sync` when nothing is there.
        lambda source, target: command("cp", source, target),
        lambda source, target: command("sync", source, target),
        "s3://{}".format,
        environ,
    )


def _aws(program: Path, account: Account, environ: Mapping[str, str], directory: str) -> Peer:
    settings = f"{directory}/aws-config"
    Path(settings).write_text(_AWS)

    def sync(source: str, target: str) -> list[str]:
        start = [str(program), "--endpoint-url", account.url, "s3", "sync", "--only-show-errors"]
        # Without the last one it leaves a marker alone that changed from 1 to 2 on the server.
        return [*start, "--exact-timestamps", source, target]

    return Peer(
        "aws s3 sync", sync, sync, "s3://{}".format, {**environ, "AWS_CONFIG_FILE": settings}
    )
