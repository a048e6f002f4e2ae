"""What is wrong with the documents of an index, told without any I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from swampstore.index import rules
from swampstore.index.meta import Meta
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.index.rules import IndexDocuments, ShardContent, faults, strangers
from swampstore.index.versions import version_of
from swampstore.stores.protocol import ObjectInfo

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE, TWO = "data--t--u--m1", "data--t--u--m2"


def info(rel: str, etag: str = "e") -> ObjectInfo:
    return ObjectInfo(rel, 10, etag, etag, NOW)


def seen(version: int, **members: object) -> IndexDocuments:
    meta = Meta(
        version,
        (ONE, TWO),
        commit_seq=5 if version == 2 else None,
        shards={ONE: "e", TWO: "e"},
        monolith="m" if version == 1 else None,
    )
    known: dict[str, object] = {
        "meta": meta,
        "monolith": info(MONOLITH_KEY, "m"),
        "shards": {one: info(shard_key(one)) for one in (ONE, TWO)},
    }
    return IndexDocuments(version_of(version), **(known | members))  # type: ignore[arg-type]


def kinds(found: IndexDocuments) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.rel, one.is_loss) for one in (*faults(found), *strangers(found))]


@pytest.mark.parametrize("version", [1, 2])
def test_documents_that_fit_together_have_no_fault(version: int) -> None:
    assert kinds(seen(version)) == []


@pytest.mark.parametrize(("version", "is_loss"), [(1, False), (2, True)])
def test_a_missing_shard_is_a_loss_where_shards_are_the_truth(version: int, is_loss: bool) -> None:
    found = seen(version, shards={ONE: info(shard_key(ONE))})
    assert kinds(found) == [(rules.MISSING_SHARD, shard_key(TWO), is_loss)]
    assert found.damaged == ({TWO} if is_loss else set())


def test_a_missing_or_damaged_monolith_only_counts_on_version_1() -> None:
    missing, damaged = {"monolith": None}, {"monolith_problem": "garbage"}
    assert kinds(seen(1, **missing)) == [(rules.MISSING_MONOLITH, MONOLITH_KEY, True)]
    assert kinds(seen(1, **damaged)) == [(rules.UNDECODABLE_MONOLITH, MONOLITH_KEY, True)]
    assert kinds(seen(2, **missing)) == kinds(seen(2, **damaged)) == []


@pytest.mark.parametrize(("version", "is_loss"), [(1, False), (2, True)])
def test_a_missing_meta_is_a_fault_only_where_there_are_shards(version: int, is_loss: bool) -> None:
    assert kinds(seen(version, meta=None)) == [(rules.MISSING_META, META_KEY, is_loss)]
    assert kinds(seen(version, meta=None, shards={})) == []


def test_shards_of_commits_that_nobody_told_of_are_found_on_version_2() -> None:
    read = {ONE: ShardContent(3, highest=6), TWO: ShardContent(3, highest=5)}
    assert kinds(seen(2, read=read)) == [(rules.WRONG_SEQUENCE, shard_key(ONE), True)]
    assert kinds(seen(1, read=read)) == []


def test_a_shard_that_nobody_lists_is_a_fault_if_it_has_entries() -> None:
    meta = Meta(2, (ONE,), commit_seq=5, shards={ONE: "e"})
    with_entries = seen(2, meta=meta, read={TWO: ShardContent(1)})
    assert (rules.UNLISTED_SHARD, shard_key(TWO), True) in kinds(with_entries)
    assert [one.kind for one in faults(seen(2, meta=meta, read={TWO: ShardContent(0)}))] == []


def test_documents_that_others_wrote_since_are_strangers_and_no_loss() -> None:
    shards = {ONE: info(shard_key(ONE), "new"), TWO: info(shard_key(TWO))}
    found = seen(1, shards=shards, monolith=info(MONOLITH_KEY, "new"))
    assert kinds(found) == [
        (rules.OTHER_SHARD, shard_key(ONE), False),
        (rules.OTHER_MONOLITH, MONOLITH_KEY, False),
    ]


def test_what_was_written_just_now_is_not_settled() -> None:
    assert rules.is_settled(NOW, NOW)
    assert rules.is_settled(None, NOW)
    assert not rules.is_settled(NOW + timedelta(seconds=1), NOW)


def test_an_object_without_an_entry_is_an_orphan_unless_it_is_young() -> None:
    assert rules.fault_of_object(is_named=True, is_there=True) is None
    assert rules.fault_of_object(is_named=True, is_there=False) == rules.MISSING_OBJECT
    assert rules.fault_of_object(is_named=False, is_there=True) == rules.ORPHAN
    young = rules.fault_of_object(is_named=False, is_there=True, is_young=True)
    assert young == rules.IN_FLIGHT
