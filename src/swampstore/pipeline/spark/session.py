"""The Spark session that bulk work runs in: the one there is, else one of our own.

Settings of ours suit many small tasks whose time is Python's or a store's; the user's own win.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import swampstore
from swampstore.config import Config
from swampstore.pipeline.errors import SparkMissingError, SparkStartError
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.settings import (
    SparkSettings,
    check_master,
    check_reachable,
    is_local,
    local_cores,
    settings_of,
)
from swampstore.pipeline.spark import jvm
from swampstore.pipeline.spark.java import find_java
from swampstore.pipeline.spark.jvm import heap_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = "swampstore"
_METADATA = ("METADATA", "entry_points.txt")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> None:
    """Let every executor of a session import the very package that runs here.

    It comes before one that is installed there. Sessions that `session` starts on a cluster have
    it already; call this for others.
    """
    directory = tempfile.mkdtemp(prefix="swampstore-")
    weakref.finalize(spark, shutil.rmtree, directory, ignore_errors=True)
    spark.addArtifacts(write_archive(directory), pyfile=True)


def write_archive(directory: str) -> str:
    """Write the package as a zip file that Python imports from, and return its path.

    The name tells the content, so that a session can be sent another one later on.
    """
    members = dict(_members())
    content = hashlib.sha256()
    for name, data in sorted(members.items()):
        content.update(f"{name}\0{len(data)}\0".encode() + data)
    path = f"{directory}/{_PACKAGE}-{content.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return path


def _members() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package, and the metadata by which its stores are found."""
    root = os.path.dirname(swampstore.__file__)
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                yield f"{_PACKAGE}/{os.path.relpath(path, root)}", file.read()
    found = distribution(_PACKAGE)
    for name in _METADATA:
        text = found.read_text(name) or ""
        yield f"{_PACKAGE}-{found.version}.dist-info/{name}", text.encode()


# Without this our tables fail, and it may be set while a session runs.
_NEEDED = {"spark.sql.python.filterPushdown.enabled": "true"}
_OF_EVERY_SESSION = {
    **_NEEDED,
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Errors say what is wrong and what to do; where in our code that was found helps nobody.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # What is kept is put together, and let go, in batches; so much of each task is in memory beside
    # all that Spark plans with. The default is 10,000 rows.
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    # To order rows the driver takes a sample of them. For pages of thousands of rows a few are
    # enough; the default is 100 for each page.
    "spark.sql.execution.rangeExchange.sampleSizePerPartition": "10",
    "spark.sql.session.timeZone": "UTC",
}
_OF_A_DRIVER = {
    "spark.app.name": "swampstore",
    "spark.python.worker.reuse": "true",
    # Whoever writes what Spark keeps to the disk, or reads it back, holds on to so many batches of
    # up to 4 MB each, beside all memory that Spark plans with. The default, 100, fills a heap.
    "spark.serializer.objectStreamReset": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Of Spark SQL, which nothing of what a SparkContext is made of knows.
_SLOW_CLASSES = (
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.sql.catalyst.analysis.FunctionRegistry$",
)
_LOOPBACK = "127.0.0.1"
_PATIENCE = 0.5
_SHUFFLES, _DEFAULT_SHUFFLES = "spark.sql.shuffle.partitions", "200"
_PROCESS = "spark.swampstore.process"
_CLASSIC, _CONNECT = "spark", "spark-connect"


def session(settings: SparkSettings | Config | None = None) -> SparkSession:
    """Return the session there is, else start one as the settings say.

    They may be those of a repository, `repo.config`; the environment's are the default. A session
    that is there already is used as it is, as in notebooks. Raises SparkMissingError,
    JavaMissingError, JavaTooOldError, or SparkStartError if a cluster cannot be reached.
    """
    if (active := _session_there()) is not None:
        for name, value in _NEEDED.items():
            _set_if_allowed(active, name, value)
        return active
    if not isinstance(settings, SparkSettings):
        settings = settings_of(settings)
    return _connected(settings) if settings.remote else _started(settings)


@contextlib.contextmanager
def session_for(settings: SparkSettings | Config | None = None) -> Iterator[SparkSession]:
    """Yield a session for some work, and stop it afterwards unless it was there before.

    Whoever interrupts the work does not wait for Spark to end, and is told nothing of what that
    breaks.
    """
    was_there = _session_there() is not None
    spark = session(settings)
    try:
        yield spark
    except BaseException as error:
        interruption = _interruption(error)
        if interruption is None:
            if not was_there:
                stop(spark)
            raise
        if not was_there:
            _stop_meanwhile(spark)
        if interruption is error:
            raise
        raise interruption from None
    if not was_there:
        stop(spark)


def _interruption(error: BaseException | None) -> BaseException | None:
    """Return what asked this process to end, if an error is only what came of that."""
    while error is not None and isinstance(error, Exception):
        error = error.__context__
    return error


def _stop_meanwhile(spark: SparkSession) -> None:
    """Stop a session without waiting for long; its JVM ends with this process at the latest."""

    def quietly() -> None:
        silence(spark)
        with contextlib.suppress(Exception):
            stop(spark)

    thread = threading.Thread(target=quietly, name="stop", daemon=True)
    thread.start()
    thread.join(_PATIENCE)


def silence(spark: SparkSession) -> None:
    """Let a session that was started here, and is about to end, say nothing any more.

    Whatever goes wrong in tasks that lose their session is not worth telling. Some threads print it
    past every log.
    """
    with contextlib.suppress(Exception):
        if started_here(spark):
            spark.sparkContext.setLogLevel("OFF")
            java: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way
            nowhere = java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream())
            java.java.lang.System.setErr(nowhere)


def started_here(spark: SparkSession) -> bool:
    """Whether a session is of our own making, and not one that was there before."""
    return bool(spark.conf.get(_PROCESS, "") == str(os.getpid()))


def stop(spark: SparkSession) -> None:
    """Stop a session if it was started here; leave it alone if it is somebody else's."""
    if started_here(spark):
        spark.stop()


def active_session() -> SparkSession | None:
    """Return the session there is, whoever started it."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _session_there() -> SparkSession | None:
    """Return the session there is; not even PySpark is imported if nobody did that yet."""
    return active_session() if sys.modules.get("pyspark.sql") else None


def _set_if_allowed(spark: SparkSession, name: str, value: str) -> None:
    from pyspark.errors import PySparkException

    # Some platforms have a list of what may be set; what this is for then fails with its name.
    with contextlib.suppress(PySparkException):
        if spark.conf.get(name, None) != value:
            spark.conf.set(name, value)


def _connected(settings: SparkSettings) -> SparkSession:
    """Return a session of a Spark Connect server; no Java is needed here."""
    assert settings.remote is not None
    check_reachable(settings.remote)
    conf = {**_OF_EVERY_SESSION, **settings.conf, _PROCESS: str(os.getpid())}
    with _installed(_CONNECT), _understandable(settings.remote):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote(settings.remote)
        spark = builder.config(map=conf).getOrCreate()
        # A server keeps its own settings for a session that says nothing; ours suit small tasks.
        for name, value in conf.items():
            _set_if_allowed(spark, name, value)
        if spark.conf.get(_SHUFFLES) == _DEFAULT_SHUFFLES:
            _set_if_allowed(spark, _SHUFFLES, str(tasks_for(spark)))
        ship(spark)
    return spark


def _started(settings: SparkSettings) -> SparkSession:
    """Return a session whose driver is this process and a JVM of its own."""
    with _installed(_CLASSIC):
        if find_spec("pyspark") is None:  # importing it can wait until the JVM is on its way
            raise ModuleNotFoundError(name="pyspark")
    master = settings.master or settings.conf.get("spark.master") or "local[*]"
    check_master(master)
    conf = _classic_conf(master, settings.conf)
    java = find_java()
    _quiet_client()
    with _environment(java.home, master, conf), _kept_interrupt(), _understandable(master):
        process = jvm.launch(java, conf)
        if process is not None:
            spark = _begun(process, conf)
        else:
            spark = _new_session(conf | {"spark.log.level": conf.get("spark.log.level", "ERROR")})
        if not is_local(master):
            ship(spark)
    return spark


def _quiet_client() -> None:
    """Let the client of the JVM not print the stack of what interrupts it, or what comes of it."""
    logger = logging.getLogger("py4j")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    # It tells some things in nobody's name.
    logging.getLogger().addFilter(lambda record: "while sending command" not in str(record.msg))


def _begun(process: subprocess.Popen[bytes], conf: dict[str, str]) -> SparkSession:
    """Return the session of a JVM that was just started; whoever interrupts that ends the JVM."""
    try:
        with jvm.ended_by_signals(process) as hear_again:
            with _classes_prepared():
                _start_context(conf)
            hear_again()
            return _new_session(conf)
    except Exception as error:
        interruption = _interruption(error)
        if interruption is None:
            raise
        raise interruption from None


def _start_context(conf: dict[str, str]) -> None:
    from pyspark import SparkConf, SparkContext

    SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))


def _new_session(conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.config(map=conf).getOrCreate()


@contextlib.contextmanager
def _classes_prepared() -> Iterator[None]:
    """Have another core initialise classes that take long and that every session needs.

    What runs meanwhile must not need any of them: two threads could wait for each other.
    """
    from pyspark import SparkContext

    jvm = SparkContext._jvm  # noqa: SLF001  # there is no public way

    def prepare() -> None:
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError, OSError):  # another Spark may call them otherwise
            for name in _SLOW_CLASSES:
                jvm.java.lang.Class.forName(name)

    thread = threading.Thread(target=prepare, name="classes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _classic_conf(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    defaults = {**_OF_EVERY_SESSION, **_OF_A_DRIVER, "spark.driver.memory": heap_size()}
    if cores := local_cores(master):
        defaults["spark.driver.host"] = defaults["spark.driver.bindAddress"] = _LOOPBACK
        # A shuffle of little data gets fewer by itself, one of much data never more.
        defaults["spark.sql.shuffle.partitions"] = str(4 * cores)
    return {**defaults, **conf, "spark.master": master, _PROCESS: str(os.getpid())}


@contextlib.contextmanager
def _installed(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise SparkMissingError(
            f"{error.name or 'a package'} is needed for bulk work on Spark and is not installed",
            hint=f"Run `pip install 'swampstore[{extra}]'`.",
        ) from error


@contextlib.contextmanager
def _understandable(place: str) -> Iterator[None]:
    """Turn what PySpark and the JVM say, often with two stacks, into an error of one line."""
    try:
        yield
    except Exception as error:
        if not _is_of_spark(error):
            raise
        lines = [line.strip(" :") for line in str(error).splitlines()]
        reason = next(filter(None, lines[1:]), lines[0] if lines else "")
        raise SparkStartError(
            f"no Spark session on {place}: {reason}",
            hint="Check spark.master, spark.remote and spark.conf; what Spark said is above.",
        ) from error


def _is_of_spark(error: Exception) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError) and not isinstance(error, ImportError)


@contextlib.contextmanager
def _environment(java_home: str, master: str, conf: Mapping[str, str]) -> Iterator[None]:
    """Set the variables that a driver and its JVM read when they start, then unset them again."""
    local = is_local(master)
    # Elsewhere the interpreter has its own path; Spark's default is `python3` on the PATH there.
    python = os.environ.get("PYSPARK_PYTHON") or (sys.executable if local else "python3")
    wanted: dict[str, str | None] = {
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": conf.get("spark.pyspark.python", python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_REMOTE": None,
    }
    if local:
        wanted["SPARK_LOCAL_IP"] = _LOOPBACK
    before = {name: os.environ.get(name) for name in wanted}
    _set_variables(wanted)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _kept_interrupt() -> Iterator[None]:
    """Keep who hears Ctrl-C, if that is anybody in particular: PySpark puts itself there."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and handler not in (signal.default_int_handler, signal.SIG_DFL, None):
            signal.signal(signal.SIGINT, handler)
