"""What is wrong with the documents of an index, each looked at as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from swampstore.index import rules
from swampstore.index.partitions import ROOT, partition_of, shard_key
from swampstore.pipeline.evidence.gathering import Task, arrow_schema
from swampstore.pipeline.evidence.index_state import IndexState
from swampstore.pipeline.evidence.rows import Path, paths_in, why_forbidden
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.rules import Found

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_STALE = "place int, partition string, count bigint"


def of_documents(ground: IndexState, grace: timedelta, stale: Mapping[str, int]) -> Iterator[Found]:
    """Yield what is wrong; `stale` counts the entries by which shards differ from the monolith."""
    if ground.documents is None:
        return
    since = ground.now - grace
    for fault in rules.faults(ground.documents):
        # What is stale is told of as such.
        if fault.written is None or fault.partition not in stale:
            found = Found(fault.kind, fault.rel, fault.detail)
            yield found if rules.is_settled(fault.written, since) else _young(found)
    times = {partition: info.last_modified for partition, info in ground.shards}
    for partition, count in sorted(stale.items()):
        found = Found(kinds.STALE_SHARD, shard_key(partition), f"{count} entries differ")
        # The shard is written after the monolith, so both are looked at.
        written = _latest(ground, times[partition])
        yield found if rules.is_settled(written, since) else _young(found)


def _latest(ground: IndexState, moment: datetime) -> datetime:
    return max(moment, ground.monolith.last_modified) if ground.monolith else moment


def _young(found: Found) -> Found:
    return Found(kinds.IN_FLIGHT, found.rel, found.detail)


def stale_shards(
    entries: DataFrame, grounds: Mapping[int, IndexState]
) -> dict[int, dict[str, int]]:
    """Return by how many entries shards differ from the monolith that they repeat, if they do."""
    shards = {
        number: frozenset(readable_shards(one)) for number, one in grounds.items() if one.has_copies
    }
    if not any(shards.values()):
        return {}
    rows = entries.repartition(tasks_for(entries.sparkSession), "unit")
    found: dict[int, dict[str, int]] = {}
    for row in rows.mapInArrow(_comparer(shards), _STALE).collect():
        counts = found.setdefault(row["place"], {})
        counts[row["partition"]] = counts.get(row["partition"], 0) + row["count"]
    return found


def _comparer(shards: Mapping[int, frozenset[str]]) -> Task:
    """Return what a task does with all entries of some paths."""
    schema = arrow_schema(_STALE)

    def compare(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from swampstore.pipeline.source.scan import batches

        counts = Counter(
            (number, partition)
            for (number, _), paths in paths_in(incoming, look=0).items()
            for path in paths.values()
            for partition in stale_in(path)
            if partition in shards.get(number, ())
        )
        yield from batches(((*which, count) for which, count in counts.items()), schema)

    return compare


def stale_in(path: Path) -> Iterator[str]:
    """Yield the partitions whose shard does not say of a path what the monolith says.

    Entries that nobody can understand are told of one by one.
    """
    if why_forbidden(path.rel) is not None or any(one.problem for one in path.claims):
        return
    home = partition_of(path.rel)
    monolith = next((one.content for one in path.claims if one.partition is None), None)
    shards = {one.partition: one.content for one in path.claims if one.partition is not None}
    for partition in {*shards, *([home] if monolith else [])}:
        ours = shards.get(partition)
        # Other clients have no shard for some paths that we put there.
        is_left_out = ours is None and partition == ROOT and "/" in path.rel
        if ours != (monolith if partition == home else None) and not is_left_out:
            yield partition


def readable_shards(ground: IndexState) -> list[str]:
    """Return the partitions of the shards that are there and can be understood."""
    unreadable = {one.partition for one in ground.summaries if one.problem}
    return [partition for partition, _ in ground.shards if partition not in unreadable]
