"""Servers that speak MongoDB's protocol, for the tests: FerretDB, built once with Go.

Nothing else needs Go, so nothing is built unless `SWAMPSTORE_BUILD_SERVERS` asks for it, as `make
test-mongodb` does. The program is kept in a cache directory; where there is none, tests that need
it are skipped with a reason. `SWAMPSTORE_MONGODB_SERVER=java` runs them on mongo-java-server
instead, a second opinion, which Maven and a JDK build.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from swampstore.stores import Store, store_config
from tests.support.remotes import Remote
from tests.support.servers import free_ports

_SOURCE = Path(__file__).parent / "ferretdb"
_JAVA_SOURCE = Path(__file__).parent / "mongo_java"
IS_JAVA = os.environ.get("SWAMPSTORE_MONGODB_SERVER") == "java"
_GO = "/usr/local/go/bin"
_START_TIMEOUT = 40.0
Served = contextlib.AbstractContextManager[str]


def server_program(source: Path = _SOURCE) -> Path:
    """Return where a server is kept, whether it is there or not."""
    home = os.environ.get("SWAMPSTORE_TEST_CACHE") or "~/.cache/swampstore-tests"
    sources = sorted(source.iterdir())
    named = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:16]
    return Path(home).expanduser() / f"{source.name}-{named}"


def why_no_mongodb(source: Path = _SOURCE) -> str:
    """Return why no server can be run here, empty if one can."""
    try:
        import pymongo  # noqa: F401 - whether it is there
    except ImportError:
        return "pymongo is not installed"
    if server_program(source).exists():
        return ""
    if not os.environ.get("SWAMPSTORE_BUILD_SERVERS"):
        return f"{source.name} was not built yet; `make test-mongodb` does that, and needs Go"
    return _built(source)


def _built(source: Path) -> str:
    """Build a server, unless that was done meanwhile; return why it could not be."""
    program = server_program(source)
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / f"{source.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.exists():
            return ""
        made = program.with_name(f"{program.name}.{os.getpid()}")
        for command in (_with_go if source is _SOURCE else _with_java)(made):
            if shutil.which(command[0]) is None:
                return f"{source.name} is built with {command[0]}, which is not installed"
            done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{source.name} could not be built: {(done.stderr + done.stdout)[-500:]}"
        made.rename(program)
    return ""


def _with_go(made: Path) -> list[list[str]]:
    go = shutil.which("go", path=f"{os.environ['PATH']}:{_GO}") or "go"
    return [[go, "build", "-o", str(made), "."]]


def _with_java(made: Path) -> list[list[str]]:
    copied = f"-DoutputDirectory={made}"
    return [
        ["mvn", "-q", "-B", "dependency:copy-dependencies", copied],
        ["javac", "-cp", f"{made}/*", "-d", str(made), "Serve.java"],
    ]


@contextlib.contextmanager
def mongodb(directory: Path, *, keeps_conditions: bool = True) -> Iterator[str]:
    """Run a server; yield its host and port. The data is gone afterwards."""
    # The path of a socket is short; that of a test's directory need not be.
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [str(server_program()), address, str(directory)]
    if not keeps_conditions:
        command.append("--bare")
    (directory / "socket").unlink(missing_ok=True)  # of one that was killed
    with _running(command, port, directory):
        yield address


@contextlib.contextmanager
def mongo_java(directory: Path) -> Iterator[str]:
    """Run mongo-java-server; yield its host and port. Its data is in memory."""
    [port] = free_ports(1)
    home = server_program(_JAVA_SOURCE)
    command = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-cp", f"{home}/*:{home}", "Serve", str(port)]
    with _running(command, port, directory):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def _running(command: list[str], port: int, directory: Path) -> Iterator[None]:
    with (directory / "log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        _wait_for(port, process, directory / "log")
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        assert process.poll() is None, f"the server ended at once: {log.read_text()[-2000:]}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2):
            return
        assert time.monotonic() < deadline, f"no answer: {log.read_text()[-2000:]}"
        time.sleep(0.05)


SERVERS: tuple[tuple[str, Callable[[], str], Callable[[Path], Served]], ...] = (
    ("FerretDB behind a door", why_no_mongodb, mongodb),
    ("mongo-java-server", lambda: why_no_mongodb(_JAVA_SOURCE), mongo_java),
)
"""What each is called, why it cannot be run here, and how it is."""


@pytest.fixture(scope="session")
def mongodb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a server; each worker process of the tests has its own."""
    if reason := why_no_mongodb(_JAVA_SOURCE if IS_JAVA else _SOURCE):
        if os.environ.get("SWAMPSTORE_BUILD_SERVERS"):
            pytest.fail(reason)
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("mongodb")
    with mongo_java(directory) if IS_JAVA else mongodb(directory) as address:
        yield address


class MongoRemote(Remote):
    """A tenant that nobody else uses; `url` is its address as a datastore."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.tenant = uuid.uuid4().hex[:12]
        self.url = f"mongodb://{address}/tests?tenantId={self.tenant}"

        def connect() -> Store:
            return store_config(self.url, environ={}).open()

        super().__init__(connect)
        self._client: Any = None

    def collection(self, kind: str, namespace: str = "default") -> Any:
        """Return one of the collections of a namespace, past all of our own code."""
        from pymongo import MongoClient

        if self._client is None:
            self._client = MongoClient(f"mongodb://{self.address}/", tz_aware=True)
        return self._client["tests"][f"t_{self.tenant}_r_{namespace}_{kind}"]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def plant(self, namespace: str, files: Mapping[str, bytes]) -> None:
        """Put files there as another client does, by its own clock."""
        now = datetime.now(UTC)
        for rel, content in files.items():
            sha256 = hashlib.sha256(content).hexdigest()
            blob = {"_id": sha256, "size": len(content), "createdAt": now, "data": content}
            self.collection("blobs", namespace or "default").replace_one(
                {"_id": sha256}, blob, upsert=True
            )
            path = {"hash": sha256, "size": len(content), "updatedAt": now, "deletedAt": None}
            self.collection("paths", namespace or "default").update_one(
                {"_id": rel}, {"$set": path}, upsert=True
            )


@pytest.fixture
def mongodb_remote(mongodb_server: str) -> Iterator[MongoRemote]:
    remote = MongoRemote(mongodb_server)
    yield remote
    remote.close()
