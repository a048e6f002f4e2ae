"""What is wrong with the documents of an index, each looked at as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from swampstore.pipeline.reindex.entries import PLACE
from swampstore.pipeline.reindex.ground import Ground, Summary
from swampstore.pipeline.verify import kinds
from swampstore.sync.partitions import META_KEY, MONOLITH_KEY, ROOT, shard_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHARD = "store string, namespace string, partition string"
_SAME = ("size", "sha256", "last_modified", "problem")


class Found(NamedTuple):
    """A finding about one place, without the place."""

    kind: str
    rel: str
    detail: str = ""


def of_documents(ground: Ground, grace: timedelta, stale: Mapping[str, int]) -> Iterator[Found]:
    """Yield what is wrong; `stale` counts the entries by which shards differ from the monolith."""
    if ground.version == 0:
        return
    yield from _of_meta(ground)
    if ground.version == 1:
        yield from _of_monolith(ground)
    times = {partition: info.last_modified for partition, info in ground.shards}
    since = ground.now - grace
    for partition in sorted(ground.listed - times.keys()):
        yield Found(kinds.MISSING_SHARD, shard_key(partition))
    for one in ground.summaries:
        if one.partition is not None and one.partition in times:
            found = _of_shard(ground, one, one.partition)
            if found is not None and one.partition not in stale:
                yield _unless_young(found, times[one.partition], since)
    for partition, count in sorted(stale.items()):
        found = Found(kinds.STALE_SHARD, shard_key(partition), f"{count} entries differ")
        # The shard is written after the monolith, so both are looked at.
        yield _unless_young(found, _latest(ground, times[partition]), since)


def _of_meta(ground: Ground) -> Iterator[Found]:
    if ground.is_damaged:
        yield Found(kinds.UNDECODABLE_META, META_KEY)
    elif ground.meta is None and ground.shards:
        # A version 1 remote without shards never had one.
        yield Found(kinds.MISSING_META, META_KEY)


def _of_monolith(ground: Ground) -> Iterator[Found]:
    if ground.monolith is None:
        yield Found(kinds.MISSING_MONOLITH, MONOLITH_KEY)
    for one in ground.summaries:
        if one.document == MONOLITH_KEY and one.problem:
            yield Found(kinds.UNDECODABLE_MONOLITH, MONOLITH_KEY, one.problem)


def _of_shard(ground: Ground, one: Summary, partition: str) -> Found | None:
    if one.problem:
        return Found(kinds.UNDECODABLE_SHARD, one.document, one.problem)
    if ground.meta is None:
        return None
    if partition not in ground.listed:
        if ground.version == 1 and ground.is_monolith_lost:
            return None
        return Found(kinds.UNLISTED_SHARD, one.document, f"it has {one.entries} entries")
    seq = ground.meta.commit_seq or 0
    if ground.version == 2 and one.highest > seq:
        detail = f"it has entries of commit {one.highest}, the last one is {seq}"
        return Found(kinds.WRONG_SEQUENCE, one.document, detail)
    return None


def _latest(ground: Ground, moment: datetime) -> datetime:
    return max(moment, ground.monolith.last_modified) if ground.monolith else moment


def _unless_young(found: Found, written: datetime, since: datetime) -> Found:
    if written <= since:
        return found
    return Found(kinds.IN_FLIGHT, found.rel, found.detail)


def stale_shards(
    index: DataFrame, grounds: Sequence[Ground]
) -> dict[tuple[str, str], dict[str, int]]:
    """Return by how many entries shards of version 1 differ from the monolith, if they do."""
    from pyspark.sql import functions as f

    shards = [
        (one.place.identity, one.place.namespace, partition)
        for one in grounds
        if one.version == 1 and not one.is_monolith_lost
        for partition in _readable(one)
    ]
    if not shards:
        return {}
    there = f.broadcast(index.sparkSession.createDataFrame(shards, _SHARD))
    entries = index.where("rel IS NOT NULL AND forbidden IS NULL")
    content = f.struct(*_SAME)
    ours = entries.where("partition IS NOT NULL").select(
        *PLACE, "partition", "rel", content.alias("shard")
    )
    monolith = entries.where(f.col("document") == MONOLITH_KEY).select(
        *PLACE, f.col("home").alias("partition"), "rel", content.alias("monolith")
    )
    # Other clients have no shard for some paths that we put there.
    is_left_out = (
        f.col("shard").isNull() & (f.col("partition") == ROOT) & f.col("rel").contains("/")
    )
    rows = (
        ours.join(monolith, [*PLACE, "partition", "rel"], "full_outer")
        .join(there, [*PLACE, "partition"], "left_semi")
        .where(~f.col("shard").eqNullSafe(f.col("monolith")) & ~is_left_out)
        # Entries that nobody can read are told of one by one.
        .where("shard.problem IS NULL AND monolith.problem IS NULL")
        .groupBy(*PLACE, "partition")
        .count()
        .collect()
    )
    found: dict[tuple[str, str], dict[str, int]] = {}
    for store, namespace, partition, count in rows:
        found.setdefault((store, namespace), {})[partition] = count
    return found


def _readable(ground: Ground) -> list[str]:
    unreadable = {one.partition for one in ground.summaries if one.problem}
    return [partition for partition, _ in ground.shards if partition not in unreadable]
