"""Whoever interrupts bulk work gets one line, and soon; the next run is as good as the first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swampstore import init_repo
from tests.support.fault_proxy import Hang
from tests.support.members import bucket_on_a_server
from tests.support.remotes import ProxiedRemote


@pytest.mark.parametrize(
    ("job", "where", "number", "ending"),
    [
        ("verify", "/2/raw", signal.SIGINT, (130, "error: interrupted")),
        ("gc", "/2/metadata.yaml", signal.SIGTERM, (130, "error: terminated")),
    ],
)
def test_an_interrupted_job_says_one_line_and_leaves_no_jvm(
    tmp_path: Path,
    s3_remote: ProxiedRemote,
    job: str,
    where: str,
    number: signal.Signals,
    ending: tuple[int, str],
) -> None:
    ana = bucket_on_a_server(tmp_path, s3_remote).member("ana")
    ana.save("one", "two")
    ana.push()
    stuck = s3_remote.proxy.fail(
        lambda request: request.kind == "GET" and request.key.endswith(where), Hang(), None
    )
    conf = '{"spark.driver.memory": "700m"}'
    # The first JVM of a cache is a child of ours; the second has a shell around it, and tells why.
    first = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ["pipeline", job, "--engine", "spark", "--master", "local[2]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", *command],
        cwd=ana.repo_dir,
        env=os.environ | ana.environ | first | {"SWAMPSTORE_SPARK_CONF": conf},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until(lambda: bool(stuck.fired) or process.poll() is not None)
        [jvm] = _children(process.pid, "java")

        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()

    shown = ("read the index: ", "plan: ")
    said = [line for line in err.splitlines() if not line.startswith(shown)]
    assert (process.returncode, out, said) == (ending[0], "", ["Starting Spark.", ending[1]])
    _wait_until(lambda: not os.path.exists(f"/proc/{jvm}"))

    s3_remote.proxy.heal()
    again = subprocess.run(
        [sys.executable, "-m", "swampstore.cli", "pipeline", "verify"],
        cwd=ana.repo_dir,
        env=os.environ | ana.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "All is well" in again.stdout, again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_connected", [False, True])
def test_whoever_does_not_want_to_wait_for_spark_to_start_ends_its_jvm_at_once(
    tmp_path: Path, number: signal.Signals, is_connected: bool
) -> None:
    init_repo(tmp_path / "repo").close()
    process = subprocess.Popen(
        [sys.executable, "-m", "swampstore.cli", "pipeline", "report", "--engine", "spark"],
        cwd=tmp_path / "repo",
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_until(lambda: bool(_children(process.pid, "java")) or process.poll() is not None)
        [jvm] = _children(process.pid, "java")
        _wait_until(lambda: not is_connected or _has_sockets(process.pid))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert (process.returncode, out) == (130, "")
    assert err.splitlines() == ["Starting Spark.", f"error: {word}"]
    _wait_until(lambda: not os.path.exists(f"/proc/{jvm}"))


def _has_sockets(pid: int) -> bool:
    """Whether a process has begun to talk to its JVM."""
    links = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        return any(os.readlink(one).startswith("socket:") for one in links.iterdir())
    return False


def _wait_until(is_so: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(parent: int, name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            told, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if name in told and int(rest.split()[1]) == parent:
            found.append(int(entry.name))
    return found
