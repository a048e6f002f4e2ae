"""What is garbage in some places, name by name, with what the index says about it.

A candidate is marked first (`marks`), looked at again under the lock once it has been marked for
long enough, and removed if it still has to go (`sweep`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from swampstore.clock import from_micros
from swampstore.index.format import Entry
from swampstore.index.path_kinds import version_file
from swampstore.layout import LATEST, WORKFLOW_RUNS, DataRef, ModelRef
from swampstore.pipeline.gc.planner import NEEDED, PLACE, planned, routings_of, warnings
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.running import collected, forget, iterated, watched
from swampstore.pipeline.schemas import data_name, data_version
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.spool import Spool
from swampstore.pipeline.tables import read_by_tasks
from swampstore.retention.rules import Removal, VersionFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from swampstore.index.results import Progress
    from swampstore.pipeline.places import Place

_VERSIONS = "array_sort(collect_list(struct(version, unix_micros(created_at) AS at, size)))"
_ENTRIES = "collect_list(struct(rel, sha256, commit_seq, last_modified))"
_FINGERPRINTS = "store string, namespace string, name_rel string, unit bigint, fingerprint string"
# So many entries, and what of them is garbage, are a page.
_PAGE = 50_000
_SAID = ("rel", "sha256", "commit_seq", "last_modified", "problem")


class Candidate(NamedTuple):
    """Something of one data name that is to go, if nothing keeps it in the end.

    `fingerprints` tell what the index says about it: by version, or under 0 about the whole name
    if all of it goes.
    """

    removal: Removal
    fingerprints: Mapping[int, str]

    @property
    def ref(self) -> DataRef:
        """The address of the data name."""
        return DataRef(ModelRef(self.removal.model_type, self.removal.model_id), self.removal.name)


Candidates = dict[tuple[str, str], Spool[Candidate]]
"""Candidates by store and namespace."""


def fingerprint(entries: Mapping[str, Entry]) -> str:
    """Return what is another text as soon as one of these entries is another one.

    A commit gives each entry that it touches a new number, or at least a new time.
    """
    lines = sorted(
        f"{rel}\t{entry.sha256 or ''}\t{entry.commit_seq or entry.last_modified}"
        for rel, entry in entries.items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def files_of_name(rels: Iterable[str], name_rel: str) -> Iterator[tuple[str, int]]:
    """Yield the paths that belong to a data name, with their version; 0 stands for the marker.

    What is further below belongs to others: a name can be the beginning of a model's type.
    """
    for rel in rels:
        found = version_file(rel)
        if found is not None:
            if found.name_rel == name_rel:
                yield rel, found.version
        elif rel == f"{name_rel}/{LATEST}":
            yield rel, 0


def plan_places(
    spark: SparkSession, places: Sequence[Place], now: datetime, progress: Progress
) -> tuple[Candidates, list[str]]:
    """Return what is garbage at the time `now`, by store and namespace, and what is in doubt.

    The index is read once, and the metadata of every version.
    """
    index = read_by_tasks(spark, Index(), places, (*PLACE, *_SAID)).persist()
    records = index.where(f"rel LIKE '{WORKFLOW_RUNS}/%'")
    try:
        versions = read_by_tasks(spark, Artifacts(columns=NEEDED), places, NEEDED)
        with (
            watched(spark, "plan", tasks_for(spark), progress),
            planned(versions, records, now, routings_of(places)) as plan,
        ):
            doubts = collected(plan.doubts)
            damage = F.count("problem").alias("damaged")
            entries = F.count("*").alias("entries")
            told_of = collected(index.groupBy(*PLACE).agg(entries, damage))
            pages = sum(row.entries for row in told_of) // _PAGE + 1
            found = candidates_of(plan.removals, index, pages)
    finally:
        forget(index)
    told = []
    for place in places:
        here = (place.identity, place.namespace)
        told += [
            f"{place}: {warning}"
            for warning in warnings(row for row in doubts if (row.store, row.namespace) == here)
        ]
        told += [
            f"{place}: {row.damaged} entries or documents of the index cannot be understood"
            for row in told_of
            if row.damaged and (row.store, row.namespace) == here
        ]
    return found, told


def candidates_of(removals: DataFrame, index: DataFrame, pages: int = 1) -> Candidates:
    """Return what goes by a plan, with what the index says about it; see `_candidates`.

    They come page by page, and are in a file if they are many.
    """
    found: Candidates = {}
    name = ("store", "namespace", "name_rel")
    ordered = _candidates(removals, index).repartitionByRange(pages, *name)
    for row in iterated(ordered.sortWithinPartitions(*name)):
        found.setdefault((row.store, row.namespace), Spool()).append(_candidate_of(row))
    return found


def _candidates(removals: DataFrame, index: DataFrame) -> DataFrame:
    """Return one row for each name of which something goes.

    `removals` are those of a plan, `index` is the table of index entries.
    """
    name = ["store", "namespace", "name_rel"]
    names = (
        removals.withColumn(
            "name_rel", F.concat_ws("/", F.lit("data"), "type_normalized", "model_id", "data_name")
        )
        .groupBy(*name, "type_normalized", "model_id", "data_name", "reason")
        .agg(F.expr(_VERSIONS).alias("versions"))
    )
    marked = (
        names.select(*name, "reason", "versions.version")
        .join(_entries(index), name)
        .withColumn("unit", F.expr("if(reason IS NULL, of_version, 0)"))
        .where("reason IS NOT NULL OR array_contains(version, of_version)")
        .groupBy(*name, "unit")
        .agg(F.expr(_ENTRIES).alias("entries"))
        .mapInArrow(_fingerprinted, _FINGERPRINTS)
        .groupBy(*name)
        .agg(F.expr("map_from_entries(collect_list(struct(unit, fingerprint)))").alias("units"))
    )
    return names.join(marked, name)


def _entries(index: DataFrame) -> DataFrame:
    """Return the entries of data names, with the name and the version (0: the marker)."""
    return index.select(
        *("store", "namespace", "rel", "sha256", "commit_seq", "last_modified"),
        data_name().alias("name_rel"),
        F.coalesce(data_version(), F.lit(0)).alias("of_version"),
    ).where("name_rel IS NOT NULL")


def _fingerprinted(units: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace the entries of each unit by their fingerprint. Runs in tasks."""
    for batch in units:
        *address, entries = batch.columns
        texts = [
            fingerprint(
                {
                    one["rel"]: Entry(
                        0, one["last_modified"], one["sha256"], commit_seq=one["commit_seq"]
                    )
                    for one in of_unit
                }
            )
            for of_unit in entries.to_pylist()
        ]
        names = [*batch.schema.names[:-1], "fingerprint"]
        yield pa.RecordBatch.from_arrays([*address, pa.array(texts, pa.string())], names)


def _candidate_of(row: Row) -> Candidate:
    """Return a row of `_candidates` as an object."""
    versions = tuple(
        VersionFacts(one.version, from_micros(one.at), one.size) for one in row.versions
    )
    removal = Removal(row.type_normalized, row.model_id, row.data_name, versions, row.reason)
    return Candidate(removal, row.units)
