"""Spark for the tests: fixtures `spark`, a session here, `spark_cluster` and `spark_connect`.

A process has one session at most, so whatever needs another has it in a process of its own:

    driver = spark_cluster.start(count_rows, path)   # calls count_rows(spark, path) over there
    wait_for(marker)
    spark_cluster.workers[0].kill()
    assert driver.result() == 3
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.spark.java import find_java
from swampstore.pipeline.spark.jvm import class_archive
from swampstore.pipeline.spark.session import session, stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
_START_TIMEOUT = 180.0
_RESULT_TIMEOUT = 400.0
# Tests ask each question once, of little data. Compiling it, and planning it anew after each of its
# stages, would take longer than the answer.
ASK_ONCE = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
# The same for the JVM: its second compiler would never earn what it costs.
_SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_LOCAL_CONF = {
    **ASK_ONCE,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}
_CLUSTER_CONF = {
    **ASK_ONCE,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(_SHORT_LIVED),
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "4",
}
_CONNECT_CONF = {
    **ASK_ONCE,
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.ui.enabled": "false",
}
_CONNECT_PORT = re.compile(r"Spark Connect server started at: \S*:(\d+)")
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master (\S+)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do not blame tests for what PySpark leaves to the garbage collector: sockets to its JVM."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed.*<socket:ResourceWarning"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores, started once per test process."""
    found = session(SparkSettings(master="local[2]", conf=_LOCAL_CONF))
    try:
        yield found
    finally:
        stop(found)


@pytest.fixture(scope="session")
def _running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("spark-cluster")
    command = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"]
    with contextlib.ExitStack() as running:
        master = Daemon([*command, "--port", "0", "--webui-port", "0"], directory / "master")
        running.callback(master.kill)
        cluster = Cluster(master, directory)
        for worker in cluster.workers:
            running.callback(worker.kill)
        for worker in cluster.workers:
            worker.wait_until_registered()
        yield cluster


@pytest.fixture(scope="session")
def spark_connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """A Spark Connect server of two cores."""
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = ["org.apache.spark.deploy.SparkSubmit", "--class", server, "--master", "local[2]"]
    for name, value in _CONNECT_CONF.items():
        command += ["--conf", f"{name}={value}"]
    daemon = Daemon([*command, "spark-internal"], tmp_path_factory.mktemp("spark-connect"))
    try:
        port = daemon.wait_for_line(_CONNECT_PORT)
        yield Elsewhere({"SPARK_REMOTE": f"sc://127.0.0.1:{port}"}, {})
    finally:
        daemon.kill()


@pytest.fixture
def spark_cluster(_running_cluster: Cluster) -> Cluster:
    """A master and two workers of one core, all of them alive when a test begins."""
    for worker in _running_cluster.workers:
        if not worker.is_alive:
            worker.restart()
    return _running_cluster


class Elsewhere:
    """Some Spark that only processes of their own have sessions on."""

    def __init__(self, variables: dict[str, str], conf: dict[str, str]) -> None:
        self._variables = variables
        self._conf = conf

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a process whose sessions, and whose commands, go there."""
        conf = json.dumps(self._conf)
        return {**os.environ, **self._variables, "SWAMPSTORE_SPARK_CONF": conf}

    def start(
        self, function: Callable[..., Any], *args: Any, conf: dict[str, str] | None = None
    ) -> Driver:
        """Begin `function(spark, *args)` in another process.

        The function is found by its module's name over there; what it takes and returns is pickled.
        """
        environ = self.environ
        environ["SWAMPSTORE_SPARK_CONF"] = json.dumps(self._conf | (conf or {}))
        return Driver(function, args, environ)

    def run(
        self, function: Callable[..., Any], *args: Any, conf: dict[str, str] | None = None
    ) -> Any:
        """Return what `function(spark, *args)` returns in another process."""
        return self.start(function, *args, conf=conf).result()


class Cluster(Elsewhere):
    """A standalone cluster of real processes on the loopback interface."""

    def __init__(self, master: Daemon, directory: Path) -> None:
        self.master_url = master.wait_for_line(_MASTER_URL)
        variables = {"SPARK_LOCAL_IP": "127.0.0.1", "SWAMPSTORE_SPARK_MASTER": self.master_url}
        super().__init__(variables, _CLUSTER_CONF)
        self.workers = [Worker(self.master_url, directory / f"worker{n}") for n in range(2)]


class Daemon:
    """One of Spark's own processes, with all those that it starts; its log is a file."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._log = directory / "log"
        with self._log.open("wb") as log:
            # In a session of its own, by which its executors and their Pythons are found again.
            self._process = subprocess.Popen(
                [*_java_command(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=_daemon_environment(directory),
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_line(self, pattern: re.Pattern[str]) -> str:
        deadline = time.monotonic() + _START_TIMEOUT
        while not (found := pattern.search(self.log)):
            assert self.is_alive, f"it ended at once: {self.log[-3000:]}"
            assert time.monotonic() < deadline, f"it does not start: {self.log[-3000:]}"
            time.sleep(0.1)
        return found[1]

    def kill(self) -> None:
        """Kill it and all that it started, as if the machine had lost its power."""
        for pid in _pids_of_session(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class Worker:
    """A worker of one core, with the executors that it runs."""

    def __init__(self, master_url: str, directory: Path) -> None:
        resources = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--host", "127.0.0.1"]
        self._command = ["org.apache.spark.deploy.worker.Worker", *resources, master_url]
        self._directory = directory
        self._daemon = Daemon(self._command, directory)

    @property
    def is_alive(self) -> bool:
        return self._daemon.is_alive

    def wait_until_registered(self) -> None:
        self._daemon.wait_for_line(_REGISTERED)

    def kill(self) -> None:
        """Kill the worker, its executors and their Pythons, without a warning."""
        self._daemon.kill()

    def restart(self) -> None:
        """Start it again after it was killed; return when the cluster has it back."""
        self._daemon = Daemon(self._command, self._directory)
        self.wait_until_registered()


class Driver:
    """A process that runs one function with a session on the cluster."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], environ: dict[str, str]
    ) -> None:
        task = pickle.dumps((function.__module__, function.__qualname__, args))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark_testing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=environ,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(task)
        self._process.stdin.close()
        self._process.stdin = None

    def result(self, timeout: float = _RESULT_TIMEOUT) -> Any:
        """Wait for the function and return what it returned; fail the test if it raised."""
        try:
            out, err = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert self._process.returncode == 0, err.decode(errors="replace")[-6000:]
        return pickle.loads(out)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def wait_for(path: Path, timeout: float = _START_TIMEOUT) -> None:
    """Wait until a file is there, which says that the other process got so far."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.02)


def _java_command() -> list[str]:
    import pyspark

    jars = f"{Path(pyspark.__file__).parent}/jars"
    java = find_java()
    opened = ("lang", "lang.invoke", "io", "net", "nio", "util", "util.concurrent")
    opens = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in opened]
    opens.append("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
    archive = class_archive(java, jars)
    known = [archive.reading_option] if os.path.exists(archive.path) else []
    return [java.program, *known, "-Xmx512m", *_SHORT_LIVED, *opens, "-cp", f"{jars}/*"]


def _daemon_environment(directory: Path) -> dict[str, str]:
    import pyspark

    return {
        **os.environ,
        "JAVA_HOME": find_java().home,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_SCALA_VERSION": "2.13",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory),
        "SPARK_WORKER_DIR": str(directory),
    }


def _pids_of_session(leader: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    yield int(entry.name)


def _drive() -> None:
    """Run the function that was pickled into standard input, and pickle its result."""
    module, name, args = pickle.load(sys.stdin.buffer)
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    # Whatever prints must not get between the bytes of the result.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    spark = session()
    try:
        result = function(spark, *args)
    finally:
        stop(spark)
    out.write(pickle.dumps(result))
    out.close()


if __name__ == "__main__":
    _drive()
