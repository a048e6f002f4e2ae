"""A copy on a real cluster, one of whose workers dies in the middle."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swampstore.pipeline.places import places_of
from tests.support.copying import Bucket, fill, payload
from tests.support.remotes import ProxiedRemote
from tests.support.spark_testing import Cluster
from tests.support.sync_harness import assert_sound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy_on_cluster(spark: SparkSession, source: str, target: str) -> dict[str, Any]:
    """Copy everything. Runs in the process of the driver."""
    from swampstore.pipeline.copy import copy

    return copy(spark, places_of(source), target).to_json()


def test_a_copy_is_complete_and_correct_though_a_worker_dies_in_the_middle(
    spark_cluster: Cluster, s3_remote: ProxiedRemote, tmp_path: Path
) -> None:
    source = Bucket(tmp_path / "source")
    fill(source, names=40)
    target = f"s3:{json.dumps(dict(s3_remote.config))}"
    driver = spark_cluster.start(copy_on_cluster, source.url, target)
    deadline = time.monotonic() + 240
    while written(s3_remote) < 30:
        assert time.monotonic() < deadline, "nothing arrives"
        time.sleep(0.01)
    spark_cluster.workers[0].kill()
    assert written(s3_remote) < len(source.entries)
    copied = driver.result()
    assert copied["complete"]
    assert copied["objects"] == len(source.entries)
    there = s3_remote.open()
    assert payload(there) == payload(source.store)
    assert_sound(there)


def written(remote: ProxiedRemote) -> int:
    """Return how many objects that are data have been put."""
    puts = (one for one in list(remote.proxy.requests) if one.kind == "PUT")
    return sum(one.key.startswith("data/") for one in puts)
