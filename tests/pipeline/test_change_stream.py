"""Following changes, snapshot by snapshot: every one is delivered once, whatever the index is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore.errors import NotFoundError, ValidationError
from swampstore.index.partitions import partition_of
from swampstore.pipeline.errors import StreamPositionError
from swampstore.pipeline.source.changes import Changes
from swampstore.retention.model_deletion import delete_model
from tests.pipeline.test_export import forget_hashes
from tests.pipeline.test_snapshots import MODELS, NAMES, VERSIONS, Bucket
from tests.support.histories import History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.source.change_stream import ChangeStream, Offset

ALL = MODELS * NAMES * VERSIONS
Key = tuple[str, str, str, int]


class Follower:
    """A stream as Spark drives it, without Spark; the table that its changes make is `table`."""

    def __init__(self, bucket: Bucket, since: str | None = None) -> None:
        self.bucket = bucket
        self._since = since
        self.table: dict[Key, tuple[Any, ...]] = {}
        self.offset = self._kept(self._stream().initialOffset())

    def _stream(self) -> ChangeStream:
        """Begin anew, as after a restart."""
        from pyspark.sql.types import StructType

        from swampstore.pipeline.source.change_stream import ChangeStream

        return ChangeStream(self._since, [self.bucket.place], 4, StructType([]))

    def _kept(self, offset: Offset) -> Offset:
        found: Offset = json.loads(json.dumps(offset))
        return found

    def batch(self) -> Counter[str]:
        """Deliver what there is, twice over; count it by kind, and do it to the table."""
        stream = self._stream()
        end = self._kept(stream.latestOffset(self.offset, stream.getDefaultReadLimit()))
        rows = self._rows(stream, end)
        # Nothing that happens meanwhile makes another batch of it.
        self.bucket.save("aws/ec2/meanwhile", "n0")
        self.bucket.refresh()
        assert self._rows(self._stream(), end) == rows
        self.offset = end
        for row in rows:
            key, change = (*row[2:5], row[5]), row[-1]
            assert (key in self.table) == (change != "insert"), (key, change)
            if change == "delete":
                del self.table[key]
            else:
                self.table[key] = row[:-1]
        return Counter(row[-1] for row in rows)

    def behind(self) -> set[str]:
        [[position]] = [list(one.values()) for one in self.offset.values()]
        return set(position[2])

    def _rows(self, stream: ChangeStream, end: Offset) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for partition in stream.partitions(self.offset, end):
            place, piece = partition.value
            with place.open() as store:
                found += Changes().rows(place, piece, store)
        return sorted(found)


def shard_of(row: tuple[Any, ...]) -> str:
    return partition_of(f"data/{row[2]}/{row[3]}/{row[4]}/{row[5]}/raw")


@pytest.mark.parametrize("version", [1, 2])
def test_whatever_happens_the_changes_make_the_table(tmp_path: Path, version: int) -> None:
    bucket = Bucket(tmp_path, version)
    follower = Follower(bucket)
    assert follower.batch() == Counter()  # there is no snapshot yet
    with bucket.ana.open() as repo:
        history = History(repo, seed=version)
        for steps in (30, 12, 1, 20):
            history.go_on(steps)
            repo.sync.push()
            bucket.refresh()
            was, _ = bucket.read(as_of="2999-01-01")
            follower.batch()
            # What no snapshot can vouch for is told later.
            behind = follower.behind()
            known = [row for row in follower.table.values() if shard_of(row) not in behind]
            assert sorted(known) == [row for row in was if shard_of(row) not in behind]
            assert len(known) > len(follower.table) / 2


def test_changes_are_followed_across_a_migration_of_the_index(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path, 1)
    bucket.fill()
    bucket.refresh()
    follower = Follower(bucket)
    assert follower.batch() == {"insert": ALL}
    with bucket.ana.open() as repo:
        repo.sync.migrate_index()
        delete_model(repo, "aws/ec2/i-2")
        repo.artifacts.save("aws/ec2/i-1", "n0", "new")
        repo.sync.push()
    bucket.refresh()

    # What was saved meanwhile, and below that what was the latest version before.
    assert follower.batch() == {"insert": 2, "update": 1, "delete": NAMES * VERSIONS}


def test_a_stream_may_begin_at_a_snapshot(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    first = bucket.refresh()
    bucket.save("aws/ec2/i-1", "n0")
    bucket.refresh()

    asked = Follower(bucket, str(first.commit_seq))
    asked.table = {("aws/ec2", "i-1", "n0", 3): ()}
    assert asked.batch() == {"insert": 1, "update": 1}
    assert Follower(bucket, "latest").batch() == {}
    with pytest.raises(NotFoundError, match="no snapshot"):
        Follower(bucket, "2000-01-01")
    with pytest.raises(ValidationError, match="neither"):
        Follower(bucket, "yesterday")


def test_what_a_snapshot_cannot_tell_is_told_by_a_later_one(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    bucket.refresh()
    follower = Follower(bucket)
    assert follower.batch() == {"insert": ALL}
    bucket.save("aws/ec2/i-1", "n0")
    forget_hashes(bucket, "i-1")
    assert bucket.refresh().left == 1
    assert set(follower.batch()) <= {"insert", "update"}
    assert ("aws/ec2", "i-1", "n0", 4) not in follower.table

    with bucket.ana.open() as repo:
        repo.sync.pull()
        repo.artifacts.save("aws/ec2/i-1", "n0", "newest")
        repo.sync.push()
    remember_hashes(bucket, "i-1")
    assert bucket.refresh().left == 0
    follower.batch()

    now, _ = bucket.read(as_of="2999-01-01")
    latest = {key: row for key, row in follower.table.items() if key[1] != "meanwhile"}
    assert sorted(latest.values()) == [row for row in now if row[3] != "meanwhile"]


def remember_hashes(bucket: Bucket, model: str) -> None:
    """Write a shard as a repair does, with all hashes."""
    shard = bucket.directory / f"_index/data--aws--ec2--{model}.json"
    document = json.loads(shard.read_bytes())
    for rel, entry in document["entries"].items():
        entry["sha256"] = hashlib.sha256((bucket.directory / rel).read_bytes()).hexdigest()
    shard.write_text(json.dumps(document))


def test_a_stream_that_slept_for_too_long_says_so(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.fill()
    bucket.refresh()
    follower = Follower(bucket)
    follower.batch()
    for _ in range(3):
        bucket.save("aws/ec2/i-1", "n0")
        bucket.refresh(retention=timedelta(0))
    with pytest.raises(StreamPositionError, match="not kept any more") as caught:
        follower.batch()
    assert "new checkpoint" in (caught.value.hint or "")


def test_spark_delivers_every_change_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    from swampstore.pipeline import register

    register(spark)
    bucket = Bucket(tmp_path, 1)
    bucket.fill()
    bucket.refresh()
    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"

    def run() -> None:
        rows = spark.readStream.format("swampstore").option("table", "changes").load(bucket.url)
        query = rows.writeStream.format("json").option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start(str(lake)).awaitTermination()

    run()
    bucket.save("aws/ec2/i-1", "n0")
    with bucket.ana.open() as repo:
        repo.sync.migrate_index()
    bucket.refresh()
    run()
    # The query was killed when it had written, and before it could note that.
    for note in (checkpoint / "commits").glob("*1*"):
        note.unlink()
    bucket.save("aws/ec2/i-1", "n0")
    bucket.refresh()
    run()
    run()

    found = spark.read.json(str(lake)).groupBy("_change_type", "version").count().collect()
    changes = {(row["_change_type"], row["version"]): row["count"] for row in found}
    of_three = {("insert", one): MODELS * NAMES for one in (1, 2, 3)}
    since = {("insert", 4): 1, ("update", 3): 1, ("insert", 5): 1, ("update", 4): 1}
    assert changes == {**of_three, **since}
    batch = spark.read.format("swampstore").option("table", "changes")
    with pytest.raises(Exception, match="needs to know since when"):
        batch.load(bucket.url).count()
