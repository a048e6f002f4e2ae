"""Verification and reindexing on a real cluster, one of whose workers dies in the middle."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swampstore.index.partitions import META_KEY
from swampstore.pipeline.places import places_of
from swampstore.pipeline.reindex import reindex
from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.verify import verify
from swampstore.pipeline.verify.local_engine import verify_little
from tests.support.copying import save
from tests.support.fault_proxy import Request, Slow
from tests.support.remotes import ProxiedRemote
from tests.support.spark_testing import Cluster, Driver
from tests.support.sync_harness import Machine, assert_sound, remote_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = 60
PATIENCE = 300.0


def verify_on_cluster(spark: SparkSession, target: str) -> dict[str, Any]:
    """Verify everything. Runs in the process of the driver, as the next one does."""
    return verify(spark, places_of(target)).to_json()


def reindex_on_cluster(spark: SparkSession, target: str) -> dict[str, Any]:
    """Make the index anew from the objects."""
    return reindex(spark, places_of(target), grace=timedelta(0)).to_json()


def fill(remote: ProxiedRemote, directory: Path) -> str:
    """Push some names, and return where they are as a target."""
    with Machine(directory / "cache", remote.open()) as machine:
        for number in range(NAMES):
            save(machine, f"name-{number}", 1, b"content of %d" % number)
        machine.push()
    # Few at once, and slowly: so that somebody can die in the middle.
    return f"s3:{json.dumps({**remote.config, 'pullConcurrency': 2})}"


def is_reading(request: Request) -> bool:
    return request.kind == "GET" and request.key.startswith("data/")


def kill_one_in_the_middle(cluster: Cluster, remote: ProxiedRemote, driver: Driver) -> Any:
    """Kill a worker that has read some of the objects; return the result all the same."""
    deadline = time.monotonic() + PATIENCE
    while sum(map(is_reading, list(remote.proxy.requests))) < NAMES // 3:
        assert time.monotonic() < deadline, "nothing is read"
        time.sleep(0.02)
    cluster.workers[0].kill()
    remote.proxy.heal()
    return driver.result()


def test_a_verification_finds_the_same_though_a_worker_dies_in_the_middle(
    spark_cluster: Cluster, s3_remote: ProxiedRemote, tmp_path: Path
) -> None:
    target = fill(s3_remote, tmp_path)
    with s3_remote.open() as store:
        store.put("data/aws/ec2/i-1/name-7/1/raw", b"something else")
        store.delete("data/aws/ec2/i-1/name-9/1/raw")
    expected = verify_little(places_of(target), "local", SparkSettings())
    assert expected is not None
    s3_remote.proxy.requests.clear()
    s3_remote.proxy.fail(is_reading, Slow(0.1), times=None)

    driver = spark_cluster.start(verify_on_cluster, target)
    found = kill_one_in_the_middle(spark_cluster, s3_remote, driver)

    assert not found["ok"]
    assert found["objects"] == 3 * NAMES - 1
    told = {"seconds": 0, "metrics": {}}
    assert {**found, **told} == {**expected.to_json(), **told}
    # What the dead one had counted is lost with it, and whoever took its tasks over counted it.
    assert found["metrics"]["requests"]["get"] >= found["objects"]
    # What the dead one had read was read by another one.
    assert sum(map(is_reading, list(s3_remote.proxy.requests))) > 3 * NAMES - 1


def test_an_index_is_made_anew_though_a_worker_dies_in_the_middle(
    spark_cluster: Cluster, s3_remote: ProxiedRemote, tmp_path: Path
) -> None:
    target = fill(s3_remote, tmp_path)
    with s3_remote.open() as store:
        before = remote_index(store).entries
        objects = {info.key: store.get(info.key).data for info in store.list("data/")}
        for info in [*store.list("_index/")]:
            if info.key != META_KEY:
                store.delete(info.key)
        store.delete(".datastore-index.json")
    s3_remote.proxy.requests.clear()
    s3_remote.proxy.fail(is_reading, Slow(0.1), times=None)

    driver = spark_cluster.start(reindex_on_cluster, target)
    kill_one_in_the_middle(spark_cluster, s3_remote, driver)

    with s3_remote.open() as store:
        after = remote_index(store).entries
        assert {info.key: store.get(info.key).data for info in store.list("data/")} == objects
    told = ("size", "sha256")
    assert {rel: [entry[one] for one in told] for rel, entry in after.items()} == {
        rel: [entry[one] for one in told] for rel, entry in before.items()
    }
    assert_sound(s3_remote.open())
