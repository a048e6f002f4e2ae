"""Starting the JVM of a session without Spark's launcher, which only costs time.

The launcher is three shell scripts, a Python and a JVM, which find out the command line of another
JVM. Here that command line is known. Whoever told the launcher something, by its variables or its
files, still gets the launcher, and so does everybody if anything here fails.

A class archive is what a JVM keeps for the next one: its classes, read, verified and laid out, in
one file. The second JVM of its kind writes it when it ends: where one is enough, as in a container
that is thrown away, nothing would read it, and noting all classes makes a start take twice as long.
All the later ones map it into memory. It is some 170 MB in the user's cache directory, and one that
was not used for a month is removed, and so are all but the last three.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from types import FrameType
from typing import NamedTuple

from swampstore.notices import notice
from swampstore.pipeline.settings import is_local
from swampstore.pipeline.spark.java import Java, cache_directory

# What only the launcher understands; SparkSubmit, which we start, reads all other settings.
_OF_THE_LAUNCHER = frozenset(
    f"spark.driver.{name}"
    for name in ("defaultJavaOptions", "extraClassPath", "extraJavaOptions", "extraLibraryPath")
)
_VARIABLES_OF_THE_LAUNCHER = frozenset(
    {
        *("HADOOP_CONF_DIR", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR"),
        *("SPARK_DIST_CLASSPATH", "SPARK_HOME", "SPARK_PREPEND_CLASSES", "SPARK_SUBMIT_OPTS"),
        *("SPARK_TESTING", "YARN_CONF_DIR"),
    }
)
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
)
_OPTIONS = (
    # Messages of the JVM about its archive; what Spark says is not among them.
    "-Xlog:disable",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UseSerialGC",
    # The optimising compiler sets in a hundred times later than it would. In the first seconds it
    # costs more than it gains, and jobs that keep the JVM itself busy get it soon enough.
    "-XX:Tier4InvocationThreshold=500000",
    "-XX:Tier4MinInvocationThreshold=60000",
    "-XX:Tier4CompileThreshold=1500000",
    "-XX:Tier4BackEdgeThreshold=4000000",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
)
_LOGGING = f"-Dlog4j.configurationFile={os.path.dirname(__file__)}/log4j2.properties"
_PORT_VARIABLE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
_START_TIMEOUT = 120.0


def launch(java: Java, conf: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Start a JVM with the settings of a session, and connect PySpark with it.

    Returns None if it is up to PySpark itself to start one. The JVM ends when this process does,
    however that happens: it reads a pipe of ours, and nothing but the end ever comes out of it.
    """
    if not _knows_everything(conf):
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="swampstore-") as directory:
            process = _start(java, conf, directory)
            with ended_by_signals(process):
                _connect(process, _port_file(directory))
    except (OSError, NotStarted):
        return None
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def ended_by_signals(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], None]]:
    """Let Ctrl-C and SIGTERM end a JVM that is busy starting, before they are heard as ever.

    Whoever they interrupt asks something of the JVM once more, and would wait for its answer.
    PySpark puts a handler of its own in the place of this one. What is yielded puts this one back
    for as long as the block lasts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    replaced = dict(heard)

    def hear(number: int, frame: FrameType | None) -> None:
        _kill(process)
        handler = heard[signal.Signals(number)]
        assert callable(handler)
        handler(number, frame)

    def install() -> None:
        for number, handler in heard.items():
            if callable(handler):
                found = signal.signal(number, hear)
                if found is not hear:
                    replaced[number] = found

    install()
    try:
        yield install
    finally:
        for number, handler in replaced.items():
            if callable(heard[number]):
                signal.signal(number, handler)


def _import_meanwhile() -> None:
    """Import what PySpark imports at the latest when it first talks to a JVM: all of pandas."""
    import pyspark.sql
    import pyspark.testing  # noqa: F401  # by this, conversions of arguments are looked up


class NotStarted(Exception):  # noqa: N818  # it is a reason to do something else, and no error
    """The JVM ended, or did not say in time where it listens."""


def _knows_everything(conf: Mapping[str, str]) -> bool:
    """Whether nothing was told to the launcher, so that nobody misses it."""
    return not (
        _has_gateway()
        or os.name != "posix"
        or conf["spark.master"].startswith("local-cluster")
        or _OF_THE_LAUNCHER & conf.keys()
        or _VARIABLES_OF_THE_LAUNCHER & os.environ.keys()
        or os.path.exists(f"{_spark_home()}/conf")
    )


def _has_gateway() -> bool:
    """Whether there is a JVM: it outlives the sessions in it."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._gateway is not None  # noqa: SLF001  # there is no public way


def _spark_home() -> str:
    """Return where PySpark is, without importing it."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return os.path.dirname(found.origin)


def class_archive(java: Java, jars: str) -> ClassArchive:
    """Return where the classes of these jars are kept, once a session has ended."""
    return ClassArchive.of(java, jars, _OPTIONS, cache_directory())


def _port_file(directory: str) -> str:
    return f"{directory}/port"


def _start(java: Java, conf: Mapping[str, str], directory: str) -> subprocess.Popen[bytes]:
    """Start a JVM that listens for us, and wait until it has written where."""
    jars = f"{_spark_home()}/jars"
    archive = class_archive(java, jars)
    command = [java.program, f"-Xmx{conf['spark.driver.memory']}", *_OPTIONS, _LOGGING]
    command += ["-cp", f"{jars}/*"]
    with contextlib.suppress(OSError):  # a cache that cannot be written only makes starts slow
        command = archive.wrap(command)
    command += ["org.apache.spark.deploy.SparkSubmit"]
    command += ["--properties-file", _write_properties(conf, directory), "pyspark-shell"]
    variables = {_PORT_VARIABLE: _port_file(directory)}
    if not is_local(conf["spark.master"]):
        # With it, Pythons of this machine would import PySpark from a zip file, which is slow.
        variables["SPARK_HOME"] = _spark_home()
    process = subprocess.Popen(  # noqa: S603  # the user's java
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # ours may be a document that somebody reads
        env=os.environ | variables,
        process_group=0,  # an interrupt is for us, and we tell Spark what to cancel
    )
    try:
        _import_meanwhile()
        _wait_for(_port_file(directory), process)
    except BaseException:
        if process.poll() is None:
            _kill(process)
        else:
            archive.discard()  # perhaps it is the reason
        process.communicate()
        raise
    return process


def _write_properties(conf: Mapping[str, str], directory: str) -> str:
    """Write the settings where only we can read them: command lines are seen by everybody."""
    path = f"{directory}/spark.properties"
    with open(path, "x", encoding="ascii") as file:
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in conf.items())
    return path


def _escaped(text: str) -> str:
    """Return a text in the one spelling that a file of properties cannot misunderstand."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _wait_for(port_file: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not os.path.exists(port_file):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotStarted
        time.sleep(0.01)


def _connect(process: subprocess.Popen[bytes], port_file: str) -> None:
    """Make the JVM the one that PySpark uses from now on."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    with open(port_file, "rb") as file:
        port, length = struct.unpack("!ii", file.read(8))
        secret = file.read(length).decode()
    place = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(place)
    try:
        gateway = launch_gateway()
    finally:
        for name in place:
            del os.environ[name]
    gateway.proc = process  # as PySpark keeps the one that it starts
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001  # there is no public way


_FIRST_WITH_AOT = 25  # the first Java that writes the better kind of archive in one step
_KEEP_SECONDS = 30 * 86_400
_MOST_ARCHIVES = 3
_CLAIM_SECONDS = 3600
# What comes after the JVM's end comes after ours, too. Only a complete archive gets the name. With
# Java 25 another JVM writes it, and first tells its whole class path, which nobody wants to know.
_RUN_THEN_MOVE = """new=$1 kept=$2 claim=$3; shift 3
{ "$@" 2>&1 1>&3 | grep --line-buffered -v '^Picked up JAVA_TOOL_OPTIONS' >&2; } 3>&1
mv -f "$new" "$kept" 2>/dev/null; rm -f "$claim"
"""


class ClassArchive(NamedTuple):
    """An archive that may not be there yet, of one Java and one directory of jars."""

    path: str
    java: Java

    @classmethod
    def of(cls, java: Java, jars: str, options: Iterable[str], cache: str) -> ClassArchive:
        """Return the archive for these jars; what would make it useless gives it another name."""
        about = [java.program, str(java.version), jars, str(os.stat(jars).st_mtime_ns), *options]
        name = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
        return cls(f"{cache}/classes/{name}.archive", java)

    @property
    def reading_option(self) -> str:
        """What tells a JVM with the same class path to read it."""
        return f"-XX:{'AOTCache' if self._is_aot else 'SharedArchiveFile'}={self.path}"

    @property
    def _is_aot(self) -> bool:
        return self.java.version >= _FIRST_WITH_AOT

    def wrap(self, command: list[str]) -> list[str]:
        """Return the command of a JVM, changed so that it reads the archive, or writes it.

        It is unchanged if this is the first one, or if another JVM is about to write it: that is
        half a minute of work.
        """
        program, *rest = command
        if os.path.exists(self.path):
            os.utime(self.path)
            return [program, self.reading_option, *rest]
        self._make_room()
        new, claim = f"{self.path}.new", f"{self.path}.claim"
        if _made(f"{self.path}.wanted") or not _made(claim):
            return command
        notice(
            "Spark starts faster from now on: its classes, some 170 MB, are kept in %s, at most %d"
            " times; it may be deleted at any time",
            os.path.dirname(self.path),
            _MOST_ARCHIVES,
        )
        option = "AOTCacheOutput" if self._is_aot else "ArchiveClassesAtExit"
        training = [program, f"-XX:{option}={new}", *rest]
        return ["sh", "-c", _RUN_THEN_MOVE, "sh", new, self.path, claim, *training]

    def discard(self) -> None:
        """Remove it, because a JVM did not start with it."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _make_room(self) -> None:
        """Remove what nobody used for long or is one too many, and claims of killed JVMs."""
        directory = os.path.dirname(self.path)
        os.makedirs(directory, exist_ok=True)
        with contextlib.suppress(OSError):
            kept = [entry for entry in os.scandir(directory) if entry.name.endswith(".archive")]
            kept.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
            for entry in kept[_MOST_ARCHIVES - 1 :]:  # one is about to be written
                os.unlink(entry.path)
        for entry in os.scandir(directory):
            keep = _CLAIM_SECONDS if entry.name.endswith(".claim") else _KEEP_SECONDS
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > keep:
                    os.unlink(entry.path)


def _made(path: str) -> bool:
    """Make an empty file; return whether there was none."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


_MIB = 1 << 20
_LEAST, _MOST = 1024, 8192


def heap_size(cgroup: str = "/sys/fs/cgroup/memory.max") -> str:
    """Return a quarter of the memory there is, as Spark writes it; no more than 8 GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open(cgroup, encoding="ascii") as file:
        total = min(total, int(file.read()))
    return f"{min(max(total // 4 // _MIB, _LEAST), _MOST)}m"
