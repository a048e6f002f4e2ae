"""A push on a real cluster, one of whose workers dies in the middle of it."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from swampstore import open_repo
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_marker
from swampstore.pipeline.syncing import push
from tests.support.fault_proxy import Request, Slow
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote
from tests.support.spark_testing import Cluster
from tests.support.sync_harness import assert_sound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODELS = 20
NAMES = 5
FILES = MODELS * NAMES * 3  # content, metadata and marker
PATIENCE = 300.0


def push_everything(
    _spark: SparkSession, repo_dir: str, environ: dict[str, str]
) -> dict[str, object]:
    """Push on the cluster; this runs in a process of its own."""
    with open_repo(repo_dir, environ=environ) as repo:
        return push(repo, engine="spark").to_json()


def hashes(cache: Path) -> dict[str, str]:
    files = (path for path in (cache / "data").rglob("*") if path.is_file())
    return {
        str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def fill(machine: Machine) -> None:
    with machine.open() as repo:
        for number in range(MODELS):
            for name in range(NAMES):
                text = f"{number} {name} " * 20
                repo.artifacts.save(f"aws/ec2/i-{number}", f"name-{name}", text)


def uploads(remote: ProxiedRemote) -> list[str]:
    return [one.key for one in list(remote.proxy.requests) if is_upload(one) and one.status]


def is_upload(request: Request) -> bool:
    return request.kind == "PUT" and request.key.startswith("data/")


def wait_until_both_are_at_it(remote: ProxiedRemote) -> None:
    """Wait until two models have been begun and are far from done: each task has one at a time."""
    deadline = time.monotonic() + PATIENCE
    while True:
        versions = [key for key in uploads(remote) if not is_marker(key)]
        by_model = Counter(map(partition_of, versions))
        if sum(2 < count < 2 * NAMES - 2 for count in by_model.values()) == 2:
            return
        assert time.monotonic() < deadline, by_model
        time.sleep(0.02)


def test_a_push_is_complete_although_a_worker_dies_in_the_middle_of_it(
    spark_cluster: Cluster, s3_remote: ProxiedRemote, ana: Machine, bob: Machine
) -> None:
    one_at_once = {**s3_remote.config, "pushConcurrency": 2}  # for each of two tasks
    ana.use_remote("s3", one_at_once)
    fill(ana)
    s3_remote.proxy.fail(is_upload, Slow(0.05), times=None)
    driver = spark_cluster.start(push_everything, str(ana.repo_dir), ana.environ)
    wait_until_both_are_at_it(s3_remote)
    spark_cluster.workers[0].kill()
    assert len(uploads(s3_remote)) < FILES
    done = driver.result()

    assert done["engine"] == "spark"
    assert done["files"] == FILES
    # What the dead one had sent was found by whoever did its task again.
    assert len(uploads(s3_remote)) > FILES
    assert_sound(s3_remote.open())
    bob.use_remote("s3", s3_remote.config)
    assert bob("sync", "--pull").status == 0
    assert hashes(bob.cache) == hashes(ana.cache)
    assert len(hashes(bob.cache)) == FILES
    assert ana("sync", "--json").json["filesPushed"] == 0
