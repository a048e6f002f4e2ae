"""The jobs of the pipeline, from a database and to one, with tasks that read ranges of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from swampstore.index.partitions import META_KEY
from swampstore.index.results import no_progress
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.planning import Range
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.source.slices import files_of, slices
from tests.support.copying import Bucket, save
from tests.support.mongodb import MongoRemote
from tests.support.sync_harness import Machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = [f"name-{number}" for number in range(4)]
NOTE = "notes.txt"


@pytest.fixture
def ana(tmp_path: Path, mongodb_remote: MongoRemote) -> Iterator[Machine]:
    with Machine(tmp_path / "ana", mongodb_remote.open()) as machine:
        for name in NAMES:
            for version in (1, 2):
                save(machine, name, version, f"{name} {version}".encode())
        for number in range(20):
            machine.write(f"outputs/aws/ec2/run/{number}.yaml", b"%d" % number)
        machine.write(NOTE, b"out of the sight of others")
        machine.push()
        yield machine


@pytest.fixture
def place(ana: Machine, mongodb_remote: MongoRemote) -> Place:
    del ana
    [found] = places_of(mongodb_remote.url, [""])
    return found


def test_tasks_read_ranges_of_the_collection_that_have_every_path_once(
    place: Place, ana: Machine
) -> None:
    with place.open() as store:
        pieces = list(Index().plan(place, store, 4))
        assert all(isinstance(part, Range) for piece in pieces for part in piece)
        assert len(pieces) > 1
        read = [row[4] for piece in pieces for row in Index().rows(place, piece, store)]
        assert sorted(read) == sorted(ana.files())
        cut = slices(place, store, 4, below=["data/"], may_hold=lambda _: True)
        assert len(cut) > 1
        groups = [
            {file.rel for group in files_of(place, one, store, bool) for file in group}
            for one in cut
        ]
        assert sorted(rel for group in groups for rel in group) == sorted(ana.files())
        for name in NAMES:  # no data name is cut in two
            assert sum(any(f"/{name}/" in rel for rel in group) for group in groups) == 1


def test_verify_and_reindex_find_what_is_wrong_and_make_it_right(
    spark: SparkSession,
    place: Place,
    ana: Machine,
    mongodb_remote: MongoRemote,
    tmp_path: Path,
) -> None:
    from swampstore.pipeline.reindex import reindex
    from swampstore.pipeline.verify import verify

    sound = verify(spark, [place])
    assert (sound.open, sound.first) == (0, ())
    assert sound.objects > len(ana.files()) - 1
    blobs = mongodb_remote.collection("blobs")
    damaged = hashlib.sha256(b"name-0 1").hexdigest()
    blobs.update_one({"_id": damaged}, {"$set": {"data": b"NAME-0 1"}})
    blobs.delete_one({"_id": hashlib.sha256(b"name-1 2").hexdigest()})
    found = verify(spark, [place])
    told = {one.rel.removeprefix("data/aws/ec2/i-1/") for one in found.first}
    assert {"name-0/1/raw", "name-1/2/raw"} <= told
    with mongodb_remote.open() as store:
        for content in (b"name-0 1", b"name-1 2"):
            name, version = content.decode().split()
            store.put(f"data/aws/ec2/i-1/{name}/{version}/raw", content)
    assert verify(spark, [place]).open == 0
    mongodb_remote.collection("objects").delete_one({"_id": META_KEY})
    reindex(spark, [place])
    assert verify(spark, [place]).open == 0
    with Machine(tmp_path / "ben", mongodb_remote.open()) as ben:
        ben.pull()
        assert ben.files() == ana.files()


def test_copies_lead_out_of_a_database_and_into_one(
    spark: SparkSession,
    place: Place,
    ana: Machine,
    mongodb_server: str,
    tmp_path: Path,
) -> None:
    from swampstore.pipeline.copy import copy
    from swampstore.pipeline.verify import verify

    bucket = Bucket(tmp_path / "bucket")
    copy(spark, [place], bucket.url)
    other = MongoRemote(mongodb_server)
    copy(spark, places_of(bucket.url, [""]), other.url)
    assert verify(spark, places_of(other.url, [""])).open == 0
    third = MongoRemote(mongodb_server)
    copy(None, places_of(other.url, [""]), third.url)
    for remote in (other, third):
        with Machine(tmp_path / remote.tenant, remote.open()) as ben:
            ben.pull()
            assert ben.files() == ana.files()
        remote.close()


def test_report_catalog_and_gc_work_on_a_database(
    spark: SparkSession, place: Place, ana: Machine, mongodb_remote: MongoRemote, tmp_path: Path
) -> None:
    from swampstore.pipeline.gc import gc
    from swampstore.pipeline.report import report
    from swampstore.pipeline.snapshots.refresh import refresh

    now = datetime.now(UTC)
    made = report(spark, [place], now=now, output=None, progress=no_progress)
    assert made.summary.totals.versions == 2 * len(NAMES)
    [refreshed] = refresh([place], engine="local")
    assert refreshed.rows == 2 * len(NAMES)
    for engine in (None, spark):
        assert gc(engine, [place], dry_run=True).failed == 0
    ana.sync()
    kept = ana.files()
    gc(spark, [place])
    with Machine(tmp_path / "ben", mongodb_remote.open()) as ben:
        ben.pull()
        assert ben.files().items() <= kept.items()
        assert ben.read(NOTE) == kept[NOTE]
