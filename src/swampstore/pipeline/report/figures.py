"""The tables of a report, summed up in every way that people ask about, and their first rows.

Most tables are one, `usage`: each version counts in every dimension, such as its namespace or its
type. So everything is summed up in one go over the versions. `SummaryReader` reads what the page
shows: totals and the first rows of each table. Only imported where there is Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from swampstore.catalog.schema import ACTIVE
from swampstore.clock import EPOCH, from_micros, to_micros
from swampstore.pipeline.report.summary import (
    COLOURED,
    RUN_DAYS,
    Addition,
    Copy,
    Duplicate,
    MethodRuns,
    ModelUsage,
    NameUsage,
    RunDay,
    Source,
    StoredVersion,
    Summary,
    Totals,
    Usage,
)
from swampstore.pipeline.running import collected, forget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

Heads = dict[str, list[Any]]
"""The first rows of `usage`, by dimension."""

PLACE = ("store", "namespace")
MODEL = (*PLACE, "type_normalized", "model_id")
NAME = (*MODEL, "data_name")
# The columns that make up the key of each dimension; `state` is the lifecycle of the whole name.
DIMENSIONS = {
    "namespace": PLACE,
    "type": ("type_normalized",),
    "model": MODEL,
    "name": (*NAME, "state"),
    "lifecycle": ("state",),
    "content_type": ("content_type",),
    "owner": ("owner_type", "owner_ref"),
    "workflow": ("workflow_name",),
    "day": (*PLACE, "day"),
}
# The same for what garbage collection would remove.
GARBAGE_DIMENSIONS = {"rule": ("rule",), "collectable": ("rule", *PLACE, "type_normalized")}
OLD_VERSIONS = "old-versions"
USE = ("names", "versions", "bytes", "latest_bytes")

HEAD = 100
_LISTED = 1000
EXAMPLES = 5
METHODS = 12
# Days are days in UTC, whatever time zone the session has.
_DAY = "date_from_unix_date(CAST(floor(unix_seconds(created_at) / 86400) AS int))"
# What is needed of the artifacts, and of the records of runs.
COLUMNS = (
    *(*NAME, "version", "model_name", "is_latest", "deferred", "lifecycle", "content_type"),
    *("lifetime", "garbage_collection", "owner_type", "owner_ref", "workflow_id"),
    *("workflow_run_id", "workflow_name", "size", "checksum", "created_at"),
)
RUN_COLUMNS = (*MethodRuns._fields[:4], "status", "duration_ms", "started_at")
_LISTED_COLUMNS = (*NAME, "model_name", "version", "content_type", "size", "created_at")


def narrowed(artifacts: DataFrame) -> DataFrame:
    """Return what a report, and retention, need of the artifacts; an unknown size is nothing.

    The versions of a name are brought together once, and not again for every table.
    """
    kept = artifacts.select(*COLUMNS).withColumn("size", sf.coalesce("size", sf.lit(0)))
    return kept.repartition(*NAME)


class Figures:
    """The tables of a report.

    `versions` are the narrowed artifacts, `removals` those that garbage collection would remove,
    with their `reason`. Keep `versions`, `usage` and `duplicates` in memory: the others are made
    of them.
    """

    def __init__(self, versions: DataFrame, removals: DataFrame) -> None:
        self._versions = versions
        self._removals = removals

    @cached_property
    def usage(self) -> DataFrame:
        """Names, versions and bytes by `dimension` and `key`, an array of texts.

        `last` says when the newest version was written, and what its model was called.
        """
        by_recency = sf.struct("is_latest", "version")
        state = sf.max_by("lifecycle", by_recency).over(Window.partitionBy(*NAME))
        stored = self._versions.withColumns({"state": state, "day": sf.expr(_DAY)})
        rule = sf.coalesce("reason", sf.lit(OLD_VERSIONS))
        removed = self._removals.withColumns(
            {"rule": rule, "is_latest": sf.expr("false"), "model_name": sf.lit("")}
        )
        return _summed_up(stored, DIMENSIONS).unionByName(_summed_up(removed, GARBAGE_DIMENSIONS))

    def table(self, dimension: str, *more: str | Column) -> DataFrame:
        """Return the part of `usage` about one dimension, with the columns of its key."""
        columns = (DIMENSIONS | GARBAGE_DIMENSIONS)[dimension]
        key = [sf.col("key")[number].alias(name) for number, name in enumerate(columns)]
        return self.usage.where(sf.col("dimension") == dimension).select(*key, *more, *USE)

    def tables(self) -> dict[str, DataFrame]:
        """Return all tables by the name they are written under."""
        last: tuple[str | Column, ...] = (
            "last.model_name",
            sf.col("last.created_at").alias("last_at"),
        )
        names = self.table("name", *last).withColumnRenamed("state", "lifecycle").drop("names")
        return {
            "usage_by_namespace": self.table("namespace"),
            "usage_by_type": self.table("type"),
            "usage_by_model": self.table("model", *last),
            "usage_by_name": names,
            "usage_by_day": self.days,
            "usage_by_content_type": self.table("content_type"),
            "usage_by_owner": self.table("owner"),
            "usage_by_workflow": self.table("workflow"),
            "usage_by_lifecycle": self.table("lifecycle").withColumnRenamed("state", "lifecycle"),
            "growth": self.growth,
            "largest": self.largest,
            "oldest": self.oldest,
            "duplicates": self.duplicates,
            "collectable": self.table("collectable").drop("latest_bytes"),
        }

    @property
    def days(self) -> DataFrame:
        """What was written to each namespace on each day, and still exists."""
        return self.table("day").withColumn("day", sf.col("day").cast("date"))

    @property
    def growth(self) -> DataFrame:
        """How much there was in each namespace after each day; what has no date comes first."""
        so_far = Window.partitionBy(*PLACE).orderBy("day").rowsBetween(Window.unboundedPreceding, 0)
        sums = (sf.sum(name).over(so_far).alias(name) for name in ("versions", "bytes"))
        return self.days.select(*PLACE, "day", *sums)

    @property
    def largest(self) -> DataFrame:
        """The versions with the most bytes."""
        order = (sf.col("size").desc(), *NAME, "version")
        return self._versions.select(*_LISTED_COLUMNS).orderBy(*order).limit(_LISTED)

    @property
    def oldest(self) -> DataFrame:
        """The latest versions that were written first, without those of deleted names."""
        found = self._versions.where("is_latest AND created_at IS NOT NULL")
        found = found.where(sf.col("lifecycle") == ACTIVE)
        return found.select(*_LISTED_COLUMNS).orderBy("created_at", *NAME, "version").limit(_LISTED)

    @cached_property
    def duplicates(self) -> DataFrame:
        """Contents that are there more than once, in how many names, and the first few places."""
        in_order = Window.partitionBy("checksum").orderBy(*NAME, "version")
        name = sf.struct(*NAME)
        is_other_name = ~name.eqNullSafe(sf.lag(name).over(in_order))
        example = sf.struct(*NAME, "model_name", "version")
        numbered = self._versions.where("checksum != '' AND size > 0").select(
            *("checksum", "size", is_other_name.alias("is_other_name")),
            sf.when(sf.row_number().over(in_order) <= EXAMPLES, example).alias("example"),
        )
        return (
            numbered.groupBy("checksum")
            .agg(
                sf.count("*").alias("copies"),
                sf.count_if("is_other_name").alias("names"),
                sf.sum("size").alias("bytes"),
                (sf.sum("size") - sf.max("size")).alias("wasted_bytes"),
                sf.sort_array(sf.collect_list("example")).alias("examples"),
            )
            .where("copies > 1")
        )


def _summed_up(versions: DataFrame, dimensions: dict[str, tuple[str, ...]]) -> DataFrame:
    """Count every version in all dimensions; where it has no workflow, it counts in none."""
    parts = sf.explode(sf.array(*(_part(name, key) for name, key in dimensions.items())))
    facts = (*NAME, "version", "model_name", "is_latest", "size", "created_at")
    counted = versions.select(*facts, parts.alias("part"))
    in_names = (
        counted.where("part.key[0] != '' OR part.dimension != 'workflow'")
        .groupBy("part", *NAME)
        .agg(
            sf.count("*").alias("versions"),
            sf.sum("size").alias("bytes"),
            sf.sum(sf.when(sf.col("is_latest"), sf.col("size")).otherwise(0)).alias("latest_bytes"),
            sf.max(sf.struct("created_at", "version", "model_name")).alias("last"),
        )
    )
    sums = (sf.sum(name).alias(name) for name in USE[1:])
    return in_names.groupBy("part.dimension", "part.key").agg(
        sf.max("last").alias("last"), sf.count("*").alias("names"), *sums
    )


def _part(dimension: str, key: tuple[str, ...]) -> Column:
    texts = sf.array(*(sf.col(name).cast("string") for name in key))
    return sf.struct(sf.lit(dimension).alias("dimension"), texts.alias("key"))


class Sums(NamedTuple):
    """All rows of a dimension together; `keys` is how many they are."""

    names: int = 0
    versions: int = 0
    bytes: int = 0
    latest_bytes: int = 0
    keys: int = 0


class SummaryReader:
    """Collects a summary; `progress` is called with a number after each of its `STEPS`."""

    STEPS = 6

    def __init__(self, figures: Figures, progress: Callable[[int], None]) -> None:
        self._figures = figures
        self._progress = progress
        self._done = 0

    def summary(self, sources: Sequence[Source], now: datetime) -> Summary:
        """Read everything that a page about `sources` shows."""
        heads = self._heads()
        namespaces = _usages(heads["namespace"])
        additions = self._additions(namespaces)
        return Summary(
            generated_at=now,
            sources=tuple(sources),
            totals=self._totals(heads, additions, now),
            additions=additions,
            namespaces=namespaces,
            types=_usages(heads["type"]),
            models=[
                ModelUsage._make((*row.key, _model(row), *_use(row))) for row in heads["model"]
            ],
            names=[_name_usage(row) for row in heads["name"]],
            content_types=_usages(heads["content_type"]),
            owners=_usages(heads["owner"]),
            workflows=_usages(heads["workflow"]),
            lifecycles=_usages(heads["lifecycle"]),
            largest=self._largest(),
            oldest=self._oldest(),
            duplicates=self._duplicates(),
            rules=_freed(heads["rule"]),
            freed=_freed(heads["collectable"]),
        )

    def _collect(self, frame: DataFrame) -> list[Row]:
        rows: list[Row] = collected(frame)
        self._done += 1
        self._progress(self._done)
        return rows

    def _heads(self) -> Heads:
        """Return the rows with the most bytes of each dimension; what is alike is in order."""
        order = Window.partitionBy("dimension").orderBy(sf.col("bytes").desc(), "key")
        usage = self._figures.usage.where("dimension != 'day'")
        ranked = usage.withColumn("rank", sf.row_number().over(order)).where(f"rank <= {HEAD}")
        heads: Heads = defaultdict(list)
        for row in sorted(self._collect(ranked), key=lambda row: row["rank"]):
            heads[row.dimension].append(row)
        return heads

    def _totals(self, heads: Heads, additions: Sequence[Addition], now: datetime) -> Totals:
        sums = defaultdict(Sums, self._sums())
        deleted = [_use(row) for row in heads["lifecycle"] if row.key[0] != ACTIVE]
        today = now.astimezone(UTC).date()
        return Totals(
            namespaces=sums["namespace"].keys,
            types=sums["type"].keys,
            models=sums["model"].keys,
            names=sums["name"].keys,
            versions=sums["type"].versions,
            bytes=sums["type"].bytes,
            latest_bytes=sums["type"].latest_bytes,
            deleted_names=sum(use[0] for use in deleted),
            deleted_bytes=sum(use[2] for use in deleted),
            duplicate_contents=sums["copy"].keys,
            duplicate_versions=sums["copy"].versions,
            duplicate_bytes=sums["copy"].bytes,
            freed_names=sums["rule"].names,
            freed_versions=sums["rule"].versions,
            freed_bytes=sums["rule"].bytes,
            undated_versions=sum(row.versions for row in additions if row.day is None),
            future_versions=sum(row.versions for row in additions if row.day and row.day > today),
        )

    def _sums(self) -> dict[str, Sums]:
        """Return all rows of each dimension together; `copy` is that of duplicates."""
        counts = self._figures.usage.groupBy("dimension").agg(*_sums(*USE), sf.count("*"))
        copies = self._figures.duplicates.groupBy(sf.lit("copy")).agg(
            *_sums("names", "copies", "wasted_bytes", "bytes"), sf.count("*")
        )
        return {name: Sums(*rest) for name, *rest in self._collect(counts.union(copies))}

    def _additions(self, namespaces: Sequence[Usage]) -> list[Addition]:
        """Return what each of the largest namespaces got on each day, and all others together."""
        largest = ["\0".join(row.key) for row in namespaces[:COLOURED]]
        is_large = sf.concat_ws("\0", *PLACE).isin(largest)
        days = self._figures.days.withColumn("source", sf.when(is_large, sf.struct(*PLACE)))
        added = days.groupBy("source", "day").agg(*_sums("versions", "bytes"))
        return [
            Addition(source and Source(*source), *rest) for source, *rest in self._collect(added)
        ]

    def _largest(self) -> list[StoredVersion]:
        return self._versions(self._figures.largest)

    def _oldest(self) -> list[StoredVersion]:
        return self._versions(self._figures.oldest)

    def _versions(self, frame: DataFrame) -> list[StoredVersion]:
        # Spark would hand out times in the time zone of this process, and without saying so.
        moments = frame.withColumn("created_at", sf.unix_micros("created_at"))
        rows = self._collect(moments.limit(HEAD).select(*StoredVersion._fields))
        return [StoredVersion._make((*row[:-1], _moment(row[-1]))) for row in rows]

    def _duplicates(self) -> list[Duplicate]:
        order = (sf.col("wasted_bytes").desc(), "checksum")
        head = self._figures.duplicates.orderBy(*order).limit(HEAD).select(*Duplicate._fields)
        return [
            Duplicate._make((*row[:-1], tuple(Copy(**one.asDict()) for one in row.examples)))
            for row in self._collect(head)
        ]


def _usages(rows: Sequence[Row]) -> list[Usage]:
    return [Usage(tuple(row.key), *_use(row)) for row in rows]


def _freed(rows: Sequence[Row]) -> list[Usage]:
    return [one._replace(latest_bytes=None) for one in _usages(rows)]


def _use(row: Row) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in USE)


def _model(row: Row) -> str:
    return row.last.model_name or ""


def _name_usage(row: Row) -> NameUsage:
    *address, state = row.key
    return NameUsage._make((*address, _model(row), state, *_use(row)[1:]))


def _sums(*columns: str) -> list[Column]:
    return [sf.sum(name).alias(name) for name in columns]


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def run_figures(
    outputs: DataFrame, now: datetime
) -> tuple[tuple[RunDay, ...], tuple[MethodRuns, ...]]:
    """Return the last days with runs, the latest first, and the methods slowest on average."""
    since = to_micros(now - timedelta(days=RUN_DAYS))
    failed = sf.sum(sf.when(sf.col("status") == "failed", 1).otherwise(0)).alias("failed")
    # Times are numbers here: Spark would count days in the time zone of its session.
    day = sf.floor(sf.unix_micros("started_at") / 86_400_000_000).alias("day")
    key = MethodRuns._fields[:4]
    recent = (
        outputs.where(sf.unix_micros("started_at") >= since)
        .select(*key, "status", "duration_ms", day)
        .persist()
    )
    try:
        days = recent.groupBy("day").agg(sf.count("*"), failed).orderBy(sf.desc("day"))
        methods = (
            recent.groupBy(*key)
            .agg(
                sf.count("*").alias("runs"),
                failed,
                sf.coalesce(sf.round(sf.avg("duration_ms")).cast("bigint"), sf.lit(0)),
                sf.coalesce(sf.max("duration_ms"), sf.lit(0)),
            )
            .toDF(*MethodRuns._fields)
            .orderBy(sf.col("mean_ms").desc(), *key)
            .limit(METHODS)
        )
        counted = [
            RunDay((EPOCH + timedelta(days=number)).date(), *counts)
            for number, *counts in collected(days)
        ]
        return tuple(counted), tuple(map(MethodRuns._make, collected(methods)))
    finally:
        forget(recent)
