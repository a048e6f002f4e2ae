"""Bulk work on imaginary stores: what tasks share, and what the driver holds."""

from __future__ import annotations

import errno
import gc
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from swampstore.errors import DiskError
from swampstore.index.format import Document, decode_shard, encode_monolith
from swampstore.index.partitions import MONOLITH_KEY, shard_key
from swampstore.pipeline import spool
from swampstore.pipeline.copy import copy
from swampstore.pipeline.copy.comparison import Most, Totals, most_of, parts_of
from swampstore.pipeline.copy.outcomes import Refusals, Refused, Wanted
from swampstore.pipeline.errors import MonolithTooLargeError
from swampstore.pipeline.evidence.gathering import Claims, Listing, gathered, shares_of, sums_in
from swampstore.pipeline.evidence.index_state import survey
from swampstore.pipeline.evidence.local_engine import gathered_here
from swampstore.pipeline.evidence.rows import Row, decoded_sum, rows_in
from swampstore.pipeline.gc.local_engine import plan_here
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.planning import listed
from swampstore.pipeline.reindex.local_engine import reindex_little
from swampstore.pipeline.report.local_engine import summary_here
from swampstore.pipeline.running import iterated, unpacked
from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.snapshots.refresh import refresh
from swampstore.pipeline.source import index as index_table
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.verify.local_engine import verify_here
from swampstore.stores.errors import ObjectNotFoundError
from tests.support.imaginary import ImaginaryConfig, register

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Imagine = Callable[..., Place]


@pytest.fixture
def imagine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imagine:
    """Return what makes the place of a store of so many models, names and versions."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("sys.path", [*sys.path])
    register(tmp_path / "registered")

    def place(shape: str, **members: int) -> Place:
        query = "".join(f"&{name}={value}" for name, value in members.items())
        [found] = places_of(f"imaginary://{shape}?dir={tmp_path}/written{query}")
        return found

    return place


def test_an_imaginary_store_is_what_its_index_says(imagine: Imagine) -> None:
    for index in (1, 2):
        found = verify_here([imagine("3x4x5", format=index, heavy=2, long=30)])
        assert (found.ok, found.objects) == (True, 3 * 4 * 11 + 2 * 11 + 2 * 30)


def test_an_imaginary_store_has_the_damage_that_was_asked_for(imagine: Imagine) -> None:
    found = verify_here([imagine("2x4x5", wrong=7)])
    expected = 2 * sum((name * 31 + one) % 7 == 0 for name in range(4) for one in range(1, 6))
    assert found.kinds == {"wrong-size": expected}


def test_an_imaginary_store_can_be_listed_and_read_piece_by_piece(imagine: Imagine) -> None:
    config = pickle.loads(pickle.dumps(imagine("2x3x12").config))
    assert isinstance(config, ImaginaryConfig)
    with config.open() as store:
        every = {info.key: info for info in store.list()}
        below = "data/imaginary/t0000/m000001/n000002/"
        assert len([key for key in every if key.startswith(below)]) == 25
        assert [info.key for info in store.list(f"{below}1")] == sorted(
            key for key in every if key.startswith(f"{below}1")
        )
        for key, info in every.items():
            if key.startswith("data/"):
                assert store.get(key).info.size == info.size
        with pytest.raises(ObjectNotFoundError):
            store.get(f"{below}13/raw")


def test_what_a_migration_left_of_the_monolith_is_not_evidence(imagine: Imagine) -> None:
    place = imagine("2x3x4")
    with place.open() as store:
        shard = decode_shard(store.get(shard_key("data--imaginary--t0000--m000001")).data)
        frozen = encode_monolith(Document(shard.entries), "2026-01-01", "w", is_frozen=True)
        store.put(MONOLITH_KEY, frozen)
    found = gathered_here(Claims(), {0: place})
    partitions = {body.partition for _, _, items in rows_in(found.evidence) for _, body in items}  # type: ignore[union-attr]  # these are claims
    assert partitions == {f"data--imaginary--t0000{end}" for end in ("", "--m000000", "--m000001")}
    [of_monolith] = [one for one in found.sums[0] if one.document == MONOLITH_KEY]
    assert of_monolith.entries == len(shard.entries)
    assert verify_here([place]).ok


_BULK: dict[str, Callable[[Place], object]] = {
    "verify": lambda place: verify_here([place]),
    "reindex": lambda place: reindex_little([place], "local", SparkSettings(), dry_run=True),
    "gc": lambda place: plan_here([place], datetime.now(UTC)),
    "report": lambda place: summary_here([place], datetime.now(UTC)),
    "copy": lambda place: copy(None, [place], "memory://elsewhere", dry_run=True),
    "refresh": lambda place: refresh([place], engine="local", dry_run=True),
}


@pytest.mark.parametrize("job", _BULK)
def test_bulk_work_on_a_very_long_monolith_is_refused_with_the_command_that_helps(
    imagine: Imagine, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    one, many = imagine("2x3x4", format=1), imagine("2x3x4", format=2)
    monkeypatch.setattr(index_table, "LARGEST_MONOLITH", 5_000)
    with pytest.raises(MonolithTooLargeError, match="one document") as refused:
        _BULK[job](one)
    assert "swampstore datastore migrate-index" in (refused.value.hint or "")
    with many.open() as store:
        # What a migration left of it is no hindrance, however long it is.
        frozen = encode_monolith(Document({}), "2026-01-01", "w" * 5_000, is_frozen=True)
        store.put(MONOLITH_KEY, frozen)
    _BULK[job](many)


@pytest.mark.spark
def test_workers_do_not_look_through_all_modules_after_every_task(
    spark: SparkSession, imagine: Imagine
) -> None:
    places = {0: imagine("4x2x2")}
    shares = shares_of(Claims(), places, 2)
    sums_in(gathered(spark, Claims(), places, shares))

    def frozen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"count": [gc.get_freeze_count()]})

    counts: list[Any] = spark.range(0, 1, 1, 1).mapInArrow(frozen, "count long").collect()
    assert counts[0][0] > 10_000


# What tasks share ---------------------------------------------------------------------------------


def _spread(counts: list[int]) -> float:
    """Return how much more the busiest task does than it would if all did the same."""
    return max(counts) * len(counts) / sum(counts)


@pytest.mark.parametrize("shape", ["300x4x5", "1000x1x1"])
def test_tasks_list_about_the_same_number_of_objects(imagine: Imagine, shape: str) -> None:
    # The first model has 90 of 100 objects.
    place = imagine(shape, heavy=9 * imagine(shape).config.shape.objects // 11)  # type: ignore[attr-defined]
    with place.open() as store:
        cut = list(Listing(1).plan(place, store, 8))
        counts = [sum(not one.internal for one in listed(piece, store)) for piece in cut]
    objects = place.config.shape.objects  # type: ignore[attr-defined]  # that of an imaginary one
    assert sum(counts) == objects
    assert max(counts) <= 1.3 * objects / 8


def test_several_tasks_take_parts_of_a_large_document(
    imagine: Imagine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_table, "_WORTH_A_PART", 1000)
    place = imagine("20x4x5", heavy=700)
    everything = gathered_here(Claims(), {0: place})
    with place.open() as store:
        plan = list(Claims().plan(place, store, 8))
        rows = [list(Claims().rows(0, place, piece, store)) for piece in plan]
    counts = [sum(len(items) for items in _items(some)) for some in rows]
    assert sum(counts) == place.config.shape.objects  # type: ignore[attr-defined]
    assert _spread(counts) <= 1.3
    sums = {0: [decoded_sum(body) for some in rows for _, unit, body in some if unit is None]}
    [told] = survey({0: place}, sums).values()
    [expected] = survey({0: place}, everything.sums).values()
    assert told.summaries == expected.summaries


@pytest.mark.parametrize("table", [Index(), Artifacts()])
def test_several_tasks_read_the_rows_of_a_model_that_has_most_objects(
    imagine: Imagine, monkeypatch: pytest.MonkeyPatch, table: Any
) -> None:
    monkeypatch.setattr(index_table, "_WORTH_A_PART", 1000)
    place = imagine("20x4x5", heavy=700)
    with place.open() as store:
        plan = list(table.plan(place, store, 8))
        rows = [list(table.rows(place, piece, store)) for piece in plan]
        [whole] = ([*table.rows(place, one, store)] for one in table.plan(place, store, 1))
    assert sorted(map(repr, chain(*rows))) == sorted(map(repr, whole))
    assert _spread([len(some) for some in rows]) <= 1.3


def test_a_large_document_that_is_damaged_is_told_once(
    imagine: Imagine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_table, "_WORTH_A_PART", 1000)
    place = imagine("20x4x5", heavy=700)
    heavy = shard_key("data--imaginary--t0000--m000000")
    with place.open() as store:
        plan = list(Index().plan(place, store, 8))
        store.put(heavy, b"garbage")
        rows = [row for piece in plan for row in Index().rows(place, piece, store)]
    assert [row[2] for row in rows if row[-1] is not None] == [heavy]


def _items(rows: list[Row]) -> Iterator[list[Any]]:
    bodies = (body for _, unit, body in rows if unit is not None)
    return (msgspec.msgpack.decode(unpacked(body)) for body in bodies)


# What the driver holds ----------------------------------------------------------------------------


def test_a_spool_tells_of_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_PAGE", 3)

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(DiskError):
        spool.Spool(range(8))


def test_a_spool_holds_a_page_in_memory_and_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "_PAGE", 3)
    kept = spool.Spool(range(8))
    assert (len(kept), list(kept), [*zip(kept, kept, strict=True)][4]) == (8, [*range(8)], (4, 4))
    kept.append(8)
    assert kept == [*range(9)]
    assert kept != [*range(1, 10)]
    assert 7 in kept
    assert (len(kept._pages), len(kept._last)) == (3, 0)


@pytest.mark.spark
def test_the_driver_lets_go_of_pages_that_were_handed_over(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm.java.lang

    def used() -> int:
        java.System.gc()
        runtime = java.Runtime.getRuntime()
        return int(runtime.totalMemory() - runtime.freeMemory())

    pages = spark.range(0, 8, 1, 8).selectExpr("repeat('x', 2000000) AS text")
    handed_over = [sum(len(row["text"]) for row in iterated(pages))]  # it also warms up
    before = used()
    handed_over += [sum(len(row["text"]) for row in iterated(pages)) for _ in range(3)]
    assert handed_over == [16_000_000] * 4
    assert used() - before < 24_000_000


def test_a_copy_comes_in_parts_that_no_data_name_is_cut_by() -> None:
    wanted = [
        Wanted(f"data/a/b/m/n{name}/{version}/raw", 10, None, "", None, None, None, None)
        for name in range(4)
        for version in range(1, 4)
    ]

    def parts(most: Most) -> list[int]:
        found = list(parts_of(iter(wanted), most))
        assert [one for part in found for one in part] == wanted
        return [len(part) for part in found]

    assert parts(Most(7, 1000)) == [6, 6]
    assert parts(Most(1000, 30)) == [3, 3, 3, 3]
    assert parts(Most(1, 1000)) == [3, 3, 3, 3]
    assert most_of(Totals(10**7, 0, 10**7, 0, 0)).objects == 100_000


def test_what_was_refused_is_known_by_path_and_counts_once() -> None:
    one, other = (
        Wanted(f"data/a/b/m/n/{name}", 1, None, "", None, b"{}", None, None) for name in "ab"
    )
    refused = Refusals()
    refused.note([Refused(other, "conflict", "x"), Refused(one, "conflict", "x")])
    refused.note([Refused(one, "forbidden", "y")])
    assert list(refused) == [Refused(one, "forbidden", "y"), Refused(other, "conflict", "x")]
    assert refused.of(one) == Refused(one, "forbidden", "y")
    assert refused.kinds == {"conflict", "forbidden"}
    assert refused.of(one._replace(rel="data/c")) is None
