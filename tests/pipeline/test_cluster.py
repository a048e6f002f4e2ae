"""A standalone cluster and a Spark Connect server, whose Pythons do not have our package."""

from __future__ import annotations

import shlex
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore.pipeline import places_of, register
from swampstore.pipeline.planning import parallelism, tasks_for
from swampstore.pipeline.spark.session import write_archive
from swampstore.pipeline.verify import verify
from tests.support.spark_testing import Cluster, Elsewhere, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def foreign_python(tmp_path: Path) -> Path:
    """An interpreter that has all that we depend on, but not ourselves."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "swampstore" not in package.name:
            (packages / package.name).symlink_to(package)
    script = tmp_path / "python"
    # Without `site`, no list of paths in there is followed, and one leads to our own sources.
    script.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(packages))}:$PYTHONPATH\n"
        f'exec {shlex.quote(sys.executable)} -S "$@"\n'
    )
    script.chmod(0o755)
    return script


def read_with_executors(spark: SparkSession, url: str) -> list[tuple[str, str]]:
    """Return where executors have our package from, and what they read from a store."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        import swampstore
        from swampstore.stores.config import open_store

        for batch in batches:
            with open_store(url) as store:
                content = [store.get("greeting").data.decode()] * len(batch)
            places = [swampstore.__file__] * len(batch)
            yield pa.RecordBatch.from_pydict({"place": places, "content": content})

    found = spark.range(4, numPartitions=4).mapInArrow(read, "place string, content string")
    return [(row.place, row.content) for row in found.collect()]


def test_the_shipped_package_is_found_with_its_stores(foreign_python: Path, tmp_path: Path) -> None:
    without = subprocess.run(
        [foreign_python, "-c", "import swampstore"], capture_output=True, check=False
    )
    assert b"No module named 'swampstore'" in without.stderr
    archive = write_archive(str(tmp_path))
    program = (
        f"import sys; sys.path.insert(1, {archive!r})\n"
        "from importlib.metadata import entry_points\n"
        "from swampstore.stores.config import store_config\n"
        "for store in entry_points(group='swampstore.stores'): store.load()\n"
        f"print(store_config('file://{tmp_path}').open())"
    )
    done = subprocess.run(
        [foreign_python, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_shipped_package_is_named_by_its_content(tmp_path: Path) -> None:
    names = set()
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        names.add(Path(write_archive(str(tmp_path / directory))).name)
    [name] = names
    members = zipfile.ZipFile(tmp_path / "a" / name).namelist()
    assert "swampstore/__init__.py" in members
    assert not [member for member in members if "__pycache__" in member]


Reads = list[tuple[str, str]]


def read_and_verify_with_executors(spark: SparkSession, url: str) -> tuple[Reads, dict[str, Any]]:
    """Return the same, and what a verification finds there."""
    found = read_with_executors(spark, url)
    return found, verify(spark, places_of(url)).to_json()


def read_and_tell_how_many_tasks_there_are(
    spark: SparkSession, url: str
) -> tuple[Reads, dict[str, Any], list[int]]:
    """Return the same, how many tasks run at once, and how many a shuffle has."""
    found, verified = read_and_verify_with_executors(spark, url)
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    return found, verified, [parallelism(spark), tasks_for(spark), int(shuffles or 0)]


def read_and_write_with_executors(spark: SparkSession, url: str) -> tuple[Reads, dict[str, Any]]:
    """Return the same after executors have saved something there."""
    register(spark)
    rows = spark.range(4, numPartitions=4).selectExpr(
        "'aws/ec2' AS type", "'i-1' AS model_id", "'state' AS name", "string(id) AS content"
    )
    rows.write.format("swampstore").mode("append").save(url)
    return read_and_verify_with_executors(spark, url)


def test_executors_of_a_cluster_get_the_package_and_open_stores(
    spark_cluster: Cluster, foreign_python: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "greeting").write_text("hello")
    conf = {"spark.pyspark.python": str(foreign_python)}
    found, verified = spark_cluster.run(read_and_write_with_executors, f"file://{store}", conf=conf)
    assert [content for _, content in found] == ["hello"] * 4
    assert all(".zip/swampstore/" in place for place, _ in found), found
    saved = (store / "data/aws/ec2/i-1/state").glob("*/raw")
    assert sorted(file.read_text() for file in saved) == ["0", "1", "2", "3"]
    assert (verified["ok"], verified["objects"]) == (True, 10)


def count_slowly(spark: SparkSession, marker: str) -> int:
    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        Path(marker).touch()
        time.sleep(2)
        yield from batches

    return int(spark.range(40, numPartitions=4).mapInArrow(wait, "id long").count())


def test_a_job_survives_a_worker_that_dies(spark_cluster: Cluster, tmp_path: Path) -> None:
    driver = spark_cluster.start(count_slowly, str(tmp_path / "marker"))
    wait_for(tmp_path / "marker")
    spark_cluster.workers[0].kill()
    assert driver.result() == 40
    assert [worker.is_alive for worker in spark_cluster.workers] == [False, True]


def test_a_spark_connect_server_gets_the_package_and_opens_stores(
    spark_connect: Elsewhere, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/greeting").write_text("hello")
    url = f"file://{tmp_path}/store"
    found, verified, tasks = spark_connect.run(read_and_tell_how_many_tasks_there_are, url)
    # As many as the cores of the server, and not as many as its default for large shuffles.
    assert tasks == [2, 8, 8]
    assert [content for _, content in found] == ["hello"] * 4
    assert (verified["ok"], verified["objects"]) == (True, 1)
    assert verified["metrics"]["complete"] is False
    assert all(".zip/swampstore/" in place for place, _ in found), found
