"""A reindex of a sound index: what agrees stays where it is, and nothing that differs is missed."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore.index.documents import Documents
from swampstore.index.errors import IndexMovedError
from swampstore.index.partitions import META_KEY, shard_key
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.gathering import Budget, Claims, shares_of
from swampstore.pipeline.evidence.index_state import IndexState, survey
from swampstore.pipeline.evidence.local_engine import gathered_here
from swampstore.pipeline.evidence.rows import Compared, Total
from swampstore.pipeline.planning import Piece
from swampstore.pipeline.reindex import Rebuilding, reindex
from swampstore.pipeline.reindex.comparing import Agreement, Comparison
from swampstore.pipeline.reindex.writing import Adding, Unwritten
from swampstore.stores.wrapper import CountingStore
from tests.pipeline.test_reindex import MARKERS, SHARD, Ground, reindex_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.reindex import Reindexed

AT_ONCE = timedelta(0)
MODEL = "data/t/u/m00"


def disturb(ground: Ground) -> None:
    """Let one path each differ in every way that leaves an index sound, and a model be gone."""
    bucket = ground.bucket
    bucket.put(f"{MODEL}/alone/1/raw", b"short")
    bucket.put(f"{MODEL}/alone/2/raw", bucket.get(f"{MODEL}/alone/2/raw")[::-1])
    bucket.remove(f"{MODEL}/one-twin/1/raw")
    bucket.edit(f"{MODEL}/alone/3/raw", lambda them: them[f"{MODEL}/alone/3/raw"].pop("sha256"))
    bucket.put(f"{MODEL}/new/1/raw", b"nobody named it")
    bucket.put("files/new.txt", b"nor this, and its shard is not there yet")
    shutil.rmtree(bucket.root / "data/t/u/m01")


def fates(done: Reindexed) -> dict[str, Any]:
    told = done.to_json()
    return {name: told[name] for name in told if name not in ("metrics", "seconds", "dryRun")}


@pytest.mark.parametrize("budget", [Budget(1000, 1 << 20), Budget(1, 1)])
def test_a_sound_index_is_compared_in_place_with_the_result_of_a_full_plan(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: Budget
) -> None:
    ground = Ground(tmp_path, 2)
    disturb(ground)
    monkeypatch.setattr("swampstore.pipeline.reindex.share_of", lambda *_: budget)
    monkeypatch.setattr(Rebuilding, "_planned", None)
    expected = reindex_here(ground.places, rehash=True, grace=AT_ONCE, dry_run=True)
    assert (expected.contradicted, expected.hashed, expected.adopted) == (3 + 21, 1, 2)

    would = reindex(spark, ground.places, rehash=True, grace=AT_ONCE, dry_run=True)
    assert fates(would) == fates(expected)
    before = ground.bucket.document(SHARD)
    done = reindex(spark, ground.places, rehash=True, grace=AT_ONCE)
    assert fates(done) == fates(expected)
    told = {(row["kind"], row["rel"]) for row in done.findings.collect()}
    assert told == {(row["kind"], row["rel"]) for row in expected.findings}

    after = ground.bucket.document(SHARD)["entries"]
    changed = {rel for rel, entry in after.items() if entry != before["entries"].get(rel)}
    assert changed == {f"{MODEL}/alone/3/raw", f"{MODEL}/new/1/raw"}
    assert before["entries"].keys() <= after.keys()
    assert "files" in ground.bucket.document(META_KEY)["partitions"]
    again = reindex_here(ground.places, rehash=True, grace=AT_ONCE)
    assert (again.documents, again.entries) == (0, done.entries)


def _state(ground: Ground) -> IndexState:
    places = {0: ground.places[0]}
    return survey(places, gathered_here(Claims(summed=True), places).sums)[0]


def _compared(ground: Ground, state: IndexState) -> list[Any]:
    etags = {partition: info.etag for partition, info in state.shards}
    return gathered_here(Comparison(1, shards=etags), {0: ground.places[0]}).sums[0]


def test_an_index_is_not_sound_if_an_entry_is_where_nobody_looks_for_it(tmp_path: Path) -> None:
    ground = Ground(tmp_path, 2)
    assert _state(ground).is_sound
    assert not _state(Ground(tmp_path / "first", 1)).is_sound
    shard, markers = ground.bucket.document(SHARD), ground.bucket.document(MARKERS)
    rel, entry = next(iter(shard["entries"].items()))

    ground.bucket.put_document(MARKERS, {**markers, "entries": markers["entries"] | {rel: entry}})
    assert not _state(ground).is_sound
    ground.bucket.put_document(MARKERS, markers)
    assert _state(ground).is_sound
    for wrong in ({"data/../x": entry}, {rel: {"size": "x"}}):
        ground.bucket.put_document(SHARD, {**shard, "entries": shard["entries"] | wrong})
        assert not _state(ground).is_sound
    ground.bucket.put_document(SHARD, {**shard, "commitSeq": ground.commit_seq + 1})
    assert not _state(ground).is_sound
    ground.bucket.remove(SHARD)
    assert not _state(ground).is_sound


def test_every_entry_is_accounted_for_once_or_chosen_afterwards(tmp_path: Path) -> None:
    ground = Ground(tmp_path, 2)
    disturb(ground)
    state = _state(ground)
    agreement = Agreement(tuple(_compared(ground, state)))
    assert agreement.misses_some(state)
    rels = [
        rel for key, _ in state.shards for rel in ground.bucket.document(shard_key(key))["entries"]
    ]
    chosen = [*filter(agreement.unaccounted, rels)]
    assert {rel.split("/")[3] for rel in chosen} == {"m01"}
    accounted = sum(count for one in agreement.folders for count in one.homes.values())
    assert accounted + len(chosen) == len(rels)


def test_a_shard_that_changed_since_it_was_counted_is_told_and_not_compared(tmp_path: Path) -> None:
    ground = Ground(tmp_path, 2)
    state = _state(ground)
    ground.bucket.put(SHARD, ground.bucket.get(SHARD))
    sums = _compared(ground, state)
    assert all(isinstance(one, Compared) for one in sums)
    assert SHARD in (Agreement(tuple(sums)).moved or "")


def test_a_shard_that_changed_before_the_commit_is_noticed_though_it_gets_nothing(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, 2)
    state = _state(ground)
    [place] = ground.places
    with place.open() as store:
        documents: Documents = Unwritten(store, place.names(), 1)
        assert Adding(state, documents, None).run() == 0
        ground.bucket.put(SHARD, ground.bucket.get(SHARD))
        with pytest.raises(IndexMovedError):
            Adding(state, documents, None).run()


def test_no_folder_of_a_place_is_compared_twice(tmp_path: Path) -> None:
    ground = Ground(tmp_path, 2)
    table = Comparison(1)
    for tasks in (1, 4, 50):
        pieces = [piece for _, piece in shares_of(table, {0: ground.places[0]}, tasks)]
        folders = [one for piece in pieces for one in (*piece.deep, *piece.shallow)]
        assert len({*folders}) == len(folders)


def test_a_shard_is_read_once_by_a_task_however_many_of_its_folders_are_compared(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, 2)
    disturb(ground)
    names = sorted(path.name for path in (ground.bucket.root / MODEL).iterdir())
    assert len(names) > 2
    apart = _compared_in(ground, *(f"{MODEL}/{name}/" for name in names))
    together = _compared_in(ground, f"{MODEL}/")
    # The shard of the model, and the one that has its markers.
    assert (apart[0], together[0]) == (2, 2)
    assert apart[1:] == together[1:]


def _compared_in(ground: Ground, *folders: str) -> tuple[int, set[str], int, Total, Counter[str]]:
    """Compare folders; return how often something was read, what differs, and the sums."""
    [place] = ground.places
    etags = {partition: info.etag for partition, info in _state(ground).shards}
    table = Comparison(1, shards=etags)
    with CountingStore(place.open()) as store:
        found = [*table.rows(0, place, Piece(place, deep=folders), store)]
        reads = store.tally().requests["get"]
    sums = [rows.decoded_sum(body) for _, unit, body in found if unit is None]
    assert [one.folder for one in sums] == sorted(folders)
    agreement, homes = Agreement(tuple(sums)), Counter[str]()
    for one in sums:
        homes.update(one.homes)
    units = {unit for _, unit, _ in found if unit is not None}
    return reads, units, agreement.agreeing, agreement.differing, homes
