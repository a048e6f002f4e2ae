"""Looking at places once: their documents, entries, objects and content, and all the rules.

The documents of an index are judged here, each as a whole; paths and data names in `rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import functions as f

from swampstore.index import rules
from swampstore.index.partitions import ROOT, partition_of, shard_key
from swampstore.index.path_kinds import unit_of
from swampstore.index.results import Progress
from swampstore.pipeline.evidence.gathering import (
    Claims,
    Places,
    Task,
    gathered,
    shares_of,
    sums_in,
)
from swampstore.pipeline.evidence.index_state import IndexState, look, survey
from swampstore.pipeline.evidence.reading import Reading, tasks_of
from swampstore.pipeline.evidence.rows import Path, Total, TrustRules, paths_in, why_forbidden
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.running import collected, forget, iterated, watched
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.source.objects import portion_of
from swampstore.pipeline.source.scan import batches
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.rules import File, Problem, examined
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_STALE = "place int, partition string, count bigint"


def of_documents(
    state: IndexState, grace: timedelta, stale: Mapping[str, int]
) -> Iterator[Problem]:
    """Yield what is wrong; `stale` counts the entries by which shards differ from the monolith."""
    if state.documents is None:
        return
    since = state.now - grace
    for fault in rules.faults(state.documents):
        # What is stale is told of as such.
        if fault.written is None or fault.partition not in stale:
            found = Problem(fault.kind, fault.rel, fault.detail)
            yield found if rules.is_settled(fault.written, since) else _young(found)
    times = {partition: info.last_modified for partition, info in state.shards}
    for partition, count in sorted(stale.items()):
        found = Problem(kinds.STALE_SHARD, shard_key(partition), f"{count} entries differ")
        # The shard is written after the monolith, so both are looked at.
        written = _latest(state, times[partition])
        yield found if rules.is_settled(written, since) else _young(found)


def _latest(state: IndexState, moment: datetime) -> datetime:
    return max(moment, state.monolith.last_modified) if state.monolith else moment


def _young(found: Problem) -> Problem:
    return Problem(kinds.IN_FLIGHT, found.rel, found.detail)


def stale_shards(entries: DataFrame, states: Mapping[int, IndexState]) -> dict[int, dict[str, int]]:
    """Return by how many entries shards differ from the monolith that they repeat, if they do."""
    shards = readable_copies(states)
    if not any(shards.values()):
        return {}
    rows = entries.repartition(tasks_for(entries.sparkSession), "unit")
    return stale_counts(collected(rows.mapInArrow(comparer(shards), _STALE)))


def readable_copies(states: Mapping[int, IndexState]) -> dict[int, frozenset[str]]:
    """Return the shards of each place that repeat a monolith and can be understood."""
    return {
        number: frozenset(readable_shards(one)) for number, one in states.items() if one.has_copies
    }


def stale_counts(rows: Iterable[tuple[int, str, int]]) -> dict[int, dict[str, int]]:
    """Return what tasks have counted, by place and partition."""
    found: dict[int, dict[str, int]] = {}
    for number, partition, count in rows:
        counts = found.setdefault(number, {})
        counts[partition] = counts.get(partition, 0) + count
    return found


def comparer(shards: Mapping[int, frozenset[str]]) -> Task:
    """Return what a task does with all entries of some paths."""
    schema = arrow_schema(_STALE)

    def compare(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = Counter(
            (number, partition)
            for number, _, paths in paths_in(incoming, look=0)
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


def readable_shards(state: IndexState) -> list[str]:
    """Return the partitions of the shards that are there and can be understood."""
    unreadable = {one.partition for one in state.summaries if one.problem}
    return [partition for partition, _ in state.shards if partition not in unreadable]


_SHARES = 1 << 20


class Selection(NamedTuple):
    """One slice (from 1) of so many, and content of a share of it.

    `grace` is the age up to which things may belong to a push that is going on.
    """

    slice: tuple[int, int] = (1, 1)
    sample: float = 1.0
    grace: timedelta = timedelta(hours=1)

    @property
    def is_all(self) -> bool:
        """Whether everything is examined."""
        return self.slice[1] == 1 and self.sample >= 1

    def has(self, rel: str) -> bool:
        """Whether a path is examined; all data of a model is, or none."""
        number, count = self.slice
        if count == 1:
            return True
        # A data name is in its model, and anything else in its directory.
        inside = unit_of(rel).rpartition("/")[0]
        return portion_of(inside, count) == number - 1

    def part_of(self, total: Total) -> Total:
        """Return about how much of a whole store is read."""
        share = self.sample / self.slice[1]
        return Total(round(total.objects * share), round(total.bytes * share))

    def reads(self, rel: str) -> bool:
        """Whether content is read; that of all files of a version is, or of none."""
        if self.sample >= 1:
            return True
        return portion_of(rel.rpartition("/")[0], _SHARES) < self.sample * _SHARES


FOUND = "store string, namespace string, kind string, rel string, key string, detail string"
# With the first finding of a unit that may want mending come all its files.
_KIND = 2
_WITH_FILES = f"{FOUND}, unit string, files binary"
# If objects are being removed, some of these are.
_LOOKED_AT_AGAIN = 200
_NOT_MENDED = frozenset(
    {
        *(kinds.IN_FLIGHT, kinds.STRANGER, kinds.BEHIND_LATEST, kinds.UNREMOVED),
        *kinds.OF_DOCUMENTS,
    }
)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, and in what; Spark keeps it until `forget`."""

    states: Mapping[int, IndexState]
    total: Total
    counts: Mapping[str, int]
    found: DataFrame
    _judged: DataFrame

    def of(self, place: Place) -> DataFrame:
        """Return what was found in one place."""
        return self.found.where(is_of(place))

    def damaged(self) -> list[int]:
        """Return the places in which anything was found that is wrong."""
        harmless = [kind for kind, one in kinds.KINDS.items() if one.severity == "info"]
        rows = self.found.where(~self.found["kind"].isin(harmless))
        named = {tuple(row) for row in collected(rows.select("store", "namespace").distinct())}
        return [
            number
            for number, one in self.states.items()
            if (one.place.identity, one.place.namespace) in named
        ]

    def units(self, place: Place) -> Iterator[tuple[str, list[File]]]:
        """Yield the data names of a place, and the single other files, that may want mending."""
        rows = self._judged.where(is_of(place)).where("files IS NOT NULL").sort("unit")
        for row in iterated(rows.select("unit", "files")):
            yield row["unit"], msgspec.msgpack.decode(bytes(row["files"]), type=list[File])

    def forget(self) -> None:
        """Let Spark forget the tables."""
        forget(self._judged)


def examine(
    spark: SparkSession, places: Places, reading: Reading, selection: Selection, progress: Progress
) -> Examination:
    """Apply every rule to some places."""
    table = Claims(selection.has)
    shares = shares_of(table, places, tasks_for(spark))
    claims = gathered(spark, table, places, shares).persist()
    with watched(spark, "read the index", len(shares), progress):
        states = survey(places, sums_in(claims))
    expected = sum((one.expected for one in states.values()), Total())
    look = reading.look(places, selection.part_of(expected), selection.has, selection.reads)
    trusts = {number: one.trust_rules(selection.grace) for number, one in states.items()}
    tasks = tasks_of(spark, look.total)
    entries = claims.where("unit IS NOT NULL")
    evidence = entries.unionByName(look.rows).repartition(tasks, "unit")
    task = judge(places, trusts, look.number)
    judged = evidence.mapInArrow(task, _WITH_FILES).persist()
    with watched(spark, "compare", tasks, progress):
        counts = Counter(dict(map(tuple, collected(judged.groupBy("kind").count()))))
    found = judged.drop("unit", "files")
    stale = stale_shards(entries, states)
    told = list(documents_found(states, look.totals, stale, selection))
    if told:
        found = found.unionByName(spark.createDataFrame(told, FOUND))
        counts.update(row[_KIND] for row in told)
    forget(claims)
    return Examination(states, look.total, counts, found, judged)


def judge(places: Places, trusts: Mapping[int, TrustRules], look: int) -> Task:
    """Return what a task does with all the evidence about some units."""
    schema = arrow_schema(_WITH_FILES)

    def work(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(findings(incoming), schema)

    def findings(incoming: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        for number, unit, paths in paths_in(incoming, look):
            files, found = examined(unit, paths.values(), trusts[number])
            yield from _rows(places[number], unit, files, found)

    return work


def _rows(
    place: Place, unit: str, files: list[File], found: list[Problem]
) -> Iterator[tuple[Any, ...]]:
    wants_mending = any(one.kind not in _NOT_MENDED for one in found)
    encoded = msgspec.msgpack.encode(files) if wants_mending else None
    for one in found:
        yield (*finding_of(place, one), unit, encoded)
        encoded = None


def finding_of(place: Place, found: Problem) -> tuple[Any, ...]:
    """Return the row of a finding."""
    key = place.names().remote(found.rel) if found.is_there else None
    return (place.identity, place.namespace, found.kind, found.rel, key, found.detail)


def documents_found(
    states: Mapping[int, IndexState],
    totals: Mapping[int, Total],
    stale: Mapping[int, Mapping[str, int]],
    selection: Selection,
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of findings about documents."""
    for number, one in states.items():
        oldest = totals.get(number, Total()).oldest
        is_first_push = oldest is None or oldest > one.now - selection.grace
        if one.is_bare and is_first_push:
            continue  # all that there is may belong to a push that is going to make an index
        for found in of_documents(one, selection.grace, stale.get(number, {})):
            yield finding_of(one.place, found)


def is_of(place: Place) -> Column:
    """Return the condition that a row is of a place."""
    return (f.col("store") == place.identity) & (f.col("namespace") == place.namespace)


def is_settled(seen: Examination) -> bool:
    """Whether nobody has committed since the places were looked at, and nothing was removed."""

    def orphans() -> Iterator[tuple[Place, str]]:
        unnamed = f.col("kind").isin(kinds.ORPHAN, kinds.UNREMOVED)
        for state in seen.states.values():
            for row in seen.of(state.place).where(unnamed).take(_LOOKED_AT_AGAIN):
                yield state.place, row["key"]

    return has_settled(seen.states, orphans())


def has_settled(states: Mapping[int, IndexState], orphans: Iterable[tuple[Place, str]]) -> bool:
    """Whether the indexes are what they were, and some objects that none names are still there.

    Objects that leave a store do so after their entries: one that was removed meanwhile looked
    like an orphan.
    """
    for state in states.values():
        with state.place.open() as store:
            now = look(state.place, store)
            if (now.etag, now.monolith and now.monolith.etag) != (
                state.etag,
                state.monolith and state.monolith.etag,
            ):
                return False
    looked: Counter[Place] = Counter()
    for place, key in orphans:
        looked[place] += 1
        if looked[place] > _LOOKED_AT_AGAIN:
            continue
        with place.open() as store:
            if etag_of(store, key) is None:
                return False
    return True


def etag_of(store: Store, key: str) -> str | None:
    """Return the ETag that an object has now, None if it is not there."""
    try:
        return store.head(key).etag
    except ObjectNotFoundError:
        return None
