"""What is read of a long file of a snapshot: the columns and rows that are needed, and no more."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from swampstore.errors import ValidationError
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.snapshots import buckets, excerpts, rows_file
from swampstore.pipeline.snapshots.manifest import FILES, Manifests
from swampstore.pipeline.snapshots.refresh import refresh
from swampstore.pipeline.source import table_of
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.scan import Condition, Wanted
from swampstore.pipeline.tables import Tables
from swampstore.stores.memory import MemoryStore
from swampstore.stores.wrapper import CountingStore
from tests.support.histories import History
from tests.support.imaginary import register
from tests.support.members import bucket_in_a_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = Artifacts().schema.split(", ")
NAMES = [one.split()[0] for one in EVERY]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place of 12,000 versions of 60 models."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("sys.path", [*sys.path])
    register(tmp_path / "registered")
    [found] = places_of(f"imaginary://60x20x10?dir={tmp_path}/written")
    return found


@pytest.fixture
def everything_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_FETCHED_WHOLE", 0)
    monkeypatch.setattr(excerpts, "_END", 100)
    monkeypatch.setattr(excerpts, "_NEAR", 10)


def read(
    place: Place, columns: Sequence[str] | None, *conditions: Condition, **options: Any
) -> tuple[list[tuple[Any, ...]], CountingStore]:
    """Return the rows that tasks hand to Spark, and what it took."""
    chosen = None if columns is None else tuple(columns)
    table = Artifacts(columns=chosen, wanted=Wanted((conditions,)), **options)
    schema = arrow_schema(table.schema)
    with place.open() as opened:
        store = CountingStore(opened)
        pieces = list(table.plan(place, store, 2))
        found = [one for piece in pieces for one in table.batches(place, piece, store, schema)]
        rows = [tuple(row.values()) for row in pa.Table.from_batches(found, schema).to_pylist()]
        return sorted(rows, key=repr), store


def test_columns_and_filters_choose_which_bytes_are_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_FETCHED_WHOLE", 100_000)
    monkeypatch.setattr(excerpts, "_END", 16_000)
    monkeypatch.setattr(excerpts, "_NEAR", 4_000)
    monkeypatch.setattr(rows_file, "_ROW_GROUP", 4_000)
    refresh([place], engine="local")
    with place.open() as store:
        manifests = Manifests(store, place.names())
        manifest = manifests.newest().manifest
        assert manifest is not None
        sizes = sum(one.size for one in manifest.buckets)
        files = manifests.files().items()
        assert sizes == sum(one.size for name, one in files if name.endswith(".parquet"))

    def received(columns: Sequence[str] | None, *conditions: Condition) -> int:
        rows, store = read(place, columns, *conditions)
        assert rows
        assert sum(store.tally().requests.values()) < 20
        return store.tally().bytes_received

    # Hashes that only prove something are left out of every reading that has nothing to prove.
    everything, few = received(None), received(["type_normalized", "size"])
    one = received(None, Condition("model_id", "=", "m000042"))
    assert everything < 0.5 * sizes
    assert few < 0.1 * everything
    assert one < 0.5 * everything


def test_what_is_read_in_excerpts_is_what_the_store_has(
    tmp_path: Path, everything_is_long: None
) -> None:
    member = bucket_in_a_directory(tmp_path).member("ana")
    random = Random(3)
    with member.open() as repo:
        history = History(repo, 3)
        repo.sync.push(full=True)
        repo.sync.migrate_index()
        [place] = places_of(member.repo_dir, None, member.environ)
        for steps in (30, 1, 20, 0):
            history.go_on(steps)
            repo.sync.push()
            for _ in range(2):  # when others committed since the snapshot, and when nobody did
                rows, _ = read(place, None, snapshot=False)
                [model, *_] = {row[NAMES.index("model_id")] for row in rows}
                for conditions in ((), (Condition("model_id", "=", model),)):
                    chosen = [one for one in NAMES if random.random() < 0.3] or ["version"]
                    expected, _ = read(place, chosen, *conditions, snapshot=False)
                    found, _ = read(place, [*chosen, "model_id"], *conditions)
                    at = sorted({*chosen, "model_id"}, key=NAMES.index)
                    kept = [
                        tuple(value for name, value in zip(at, row, strict=True) if name in chosen)
                        for row in found
                        if not conditions or row[at.index("model_id")] == model
                    ]
                    assert sorted(kept, key=repr) == expected
                refresh([place], engine="local")


@pytest.mark.parametrize("damage", [b"PAR1", b"x" * 5000, b""])
def test_a_damaged_file_of_which_a_part_is_read_is_done_without(
    tmp_path: Path, everything_is_long: None, damage: bytes
) -> None:
    member = bucket_in_a_directory(tmp_path).member("ana")
    with member.open() as repo:
        repo.artifacts.save("aws/ec2/i-1", "state", b"1")
        repo.sync.push(full=True)
        repo.sync.migrate_index()
    [place] = places_of(member.repo_dir, None, member.environ)
    refresh([place], engine="local")
    expected, _ = read(place, ["data_name", "is_latest"])
    assert expected == [("state", True)]
    for path in (tmp_path / "bucket" / FILES).glob("*.parquet"):
        path.write_bytes(damage)

    assert read(place, ["data_name", "is_latest"])[0] == expected


def test_the_end_of_a_file_may_be_longer_than_what_is_fetched_first(
    everything_is_long: None,
) -> None:
    data = rows_file.encode(rows_file.SCHEMA.empty_table())
    store = MemoryStore()
    store.put("file", data)
    found = rows_file.fetch(store, "file", len(data), None, ["version"])
    assert found.equals(rows_file.decode(data, None, ["version"]))


def test_a_marker_that_moved_is_seen_whatever_columns_are_read(
    tmp_path: Path, everything_is_long: None
) -> None:
    member = bucket_in_a_directory(tmp_path).member("ana")
    with member.open() as repo:
        for model in ("i-1", "i-2"):
            repo.artifacts.save(f"aws/ec2/{model}", "state", b"1")
        repo.sync.push(full=True)
        repo.sync.migrate_index()
        [place] = places_of(member.repo_dir, None, member.environ)
        refresh([place], engine="local")
        repo.artifacts.save("aws/ec2/i-1", "state", b"2")
        repo.sync.push()
    rows, _ = read(place, ["model_id", "version", "is_latest"])
    assert rows == [("i-1", 1, False), ("i-1", 2, True), ("i-2", 1, True)]


def test_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValidationError, match="the option columns is 'size,nonsense'"):
        table_of({"columns": "size,nonsense"})


def test_frames_have_the_columns_that_were_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    member = bucket_in_a_directory(tmp_path).member("ana")
    with member.open() as repo:
        repo.artifacts.save("aws/ec2/i-1", "state", b"12345")
        repo.sync.push(full=True)
        repo.sync.migrate_index()
    places = places_of(member.repo_dir, None, member.environ)
    refresh(places, engine="local")
    tables = Tables(spark, places)

    frame = tables.artifacts(columns=["size", "data_name"])
    assert frame.columns == ["size", "data_name"]
    assert [tuple(row) for row in frame.filter("size > 1").collect()] == [(5, "state")]
    with_content = tables.artifacts(columns=["version"], content=True)
    assert [tuple(row) for row in with_content.collect()] == [(1, b"12345")]
