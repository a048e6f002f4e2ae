"""What bulk jobs ask of stores is counted, in tasks as in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from swampstore.pipeline.copy import copy
from swampstore.pipeline.gc import gc
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.reindex import reindex
from swampstore.pipeline.reindex.local_engine import reindex_little
from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.verify import verify
from swampstore.pipeline.verify.local_engine import verify_here
from tests.pipeline.test_verify import Home, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(tmp_path: Path) -> Place:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), version=2)
    [found] = places_of(f"file://{tmp_path}/bucket")
    return found


def test_requests_of_tasks_are_counted_as_those_of_this_process(
    spark: SparkSession, place: Place
) -> None:
    on_spark, here = verify(spark, [place]), verify_here([place])
    for found in (on_spark, here):
        # Each object once, and the documents of the index.
        assert found.objects <= found.metrics.requests["get"] <= found.objects + 40
        assert found.metrics.bytes_received > found.bytes
        assert found.to_json()["metrics"]["requests"] == found.metrics.requests
        assert found.to_json()["metrics"]["complete"] is True
    again = reindex(spark, [place], rehash=True, dry_run=True)
    rehashed = reindex_little([place], "local", SparkSettings(), rehash=True, dry_run=True)
    assert rehashed is not None
    for counted in (again.metrics, rehashed.metrics):
        assert counted.requests["get"] >= on_spark.objects
        assert counted.bytes_sent == 0


def test_plans_on_spark_count_what_their_tables_were_read_with(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "copy").mkdir()
    for plan in (
        lambda spark: gc(spark, [place], dry_run=True),
        lambda spark: copy(spark, [place], f"file://{tmp_path}/copy", dry_run=True),
    ):
        on_spark, here = plan(spark).metrics, plan(None).metrics
        assert on_spark.requests["get"] == here.requests["get"]
        assert on_spark.bytes_received == here.bytes_received > 0


def test_a_copy_counts_what_it_asks_of_both_ends(place: Place, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    done = copy(None, [place], f"file://{tmp_path}/copy")
    assert done.metrics.bytes_sent > done.bytes > 0
    assert done.metrics.requests["put"] >= done.objects
    assert done.metrics.bytes_received >= done.bytes
