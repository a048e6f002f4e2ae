"""From the tables of a report to what its page shows: totals and the first rows of each table.

Only imported where there is Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark.sql import Window
from pyspark.sql import functions as sf

from swampstore.catalog.schema import ACTIVE
from swampstore.pipeline.report.figures import PLACE, USE, Figures
from swampstore.pipeline.report.labels import COLOURED
from swampstore.pipeline.report.summary import (
    Addition,
    ContentTypeUsage,
    Copy,
    Duplicate,
    Freed,
    LifecycleUsage,
    ModelUsage,
    NamespaceUsage,
    NameUsage,
    OwnerUsage,
    RuleUsage,
    Source,
    StoredVersion,
    Summary,
    Totals,
    TypeUsage,
    WorkflowUsage,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

T = TypeVar("T")
_HEAD = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Heads = dict[str, list["Row"]]


class _Sums(NamedTuple):
    """All rows of a dimension together; `keys` is how many they are."""

    names: int = 0
    versions: int = 0
    bytes: int = 0
    latest_bytes: int = 0
    keys: int = 0


class SummaryReader:
    """Collects a summary; `tell` is called with a number after each of its `STEPS`."""

    STEPS = 6

    def __init__(self, figures: Figures, tell: Callable[[int], None]) -> None:
        self._figures = figures
        self._tell = tell
        self._done = 0

    def summary(self, sources: Sequence[Source], now: datetime) -> Summary:
        """Read everything that a page about `sources` shows."""
        heads = self._heads()
        namespaces = _usages(NamespaceUsage, heads["namespace"])
        additions = self._additions(namespaces)
        return Summary(
            generated_at=now,
            sources=tuple(sources),
            totals=self._totals(heads, additions, now),
            additions=additions,
            namespaces=namespaces,
            types=_usages(TypeUsage, heads["type"]),
            models=[
                ModelUsage._make((*row.key, _model(row), *_use(row))) for row in heads["model"]
            ],
            names=[_name_usage(row) for row in heads["name"]],
            content_types=_usages(ContentTypeUsage, heads["content_type"]),
            owners=_usages(OwnerUsage, heads["owner"]),
            workflows=_usages(WorkflowUsage, heads["workflow"]),
            lifecycles=_usages(LifecycleUsage, heads["lifecycle"]),
            largest=self._versions(self._figures.largest),
            oldest=self._versions(self._figures.oldest),
            duplicates=self._duplicates(),
            rules=[RuleUsage(*row.key, *_use(row)[:-1]) for row in heads["rule"]],
            freed=[Freed(*row.key, *_use(row)[:-1]) for row in heads["collectable"]],
        )

    def _collect(self, frame: DataFrame) -> list[Row]:
        rows: list[Row] = frame.collect()
        self._done += 1
        self._tell(self._done)
        return rows

    def _heads(self) -> Heads:
        """Return the rows with the most bytes of each dimension; what is alike is in order."""
        order = Window.partitionBy("dimension").orderBy(sf.col("bytes").desc(), "key")
        usage = self._figures.usage.where("dimension != 'day'")
        ranked = usage.withColumn("rank", sf.row_number().over(order)).where(f"rank <= {_HEAD}")
        heads: Heads = defaultdict(list)
        for row in sorted(self._collect(ranked), key=lambda row: row["rank"]):
            heads[row.dimension].append(row)
        return heads

    def _totals(self, heads: Heads, additions: Sequence[Addition], now: datetime) -> Totals:
        counts = self._figures.usage.groupBy("dimension").agg(*_sums(*USE), sf.count("*"))
        copies = self._figures.duplicates.groupBy(sf.lit("copy")).agg(
            *_sums("names", "copies", "wasted_bytes", "bytes"), sf.count("*")
        )
        found = {name: _Sums(*rest) for name, *rest in self._collect(counts.union(copies))}
        sums = defaultdict(_Sums, found)
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

    def _additions(self, namespaces: Sequence[NamespaceUsage]) -> list[Addition]:
        """Return what each of the largest namespaces got on each day, and all others together."""
        largest = [f"{row.store}\0{row.namespace}" for row in namespaces[:COLOURED]]
        is_large = sf.concat_ws("\0", *PLACE).isin(largest)
        days = self._figures.days.withColumn("source", sf.when(is_large, sf.struct(*PLACE)))
        added = days.groupBy("source", "day").agg(*_sums("versions", "bytes"))
        return [
            Addition(source and Source(*source), *rest) for source, *rest in self._collect(added)
        ]

    def _versions(self, frame: DataFrame) -> list[StoredVersion]:
        # Spark would hand out times in the time zone of this process, and without saying so.
        moments = frame.withColumn("created_at", sf.unix_micros("created_at"))
        rows = self._collect(moments.limit(_HEAD).select(*StoredVersion._fields))
        return [StoredVersion._make((*row[:-1], _moment(row[-1]))) for row in rows]

    def _duplicates(self) -> list[Duplicate]:
        order = (sf.col("wasted_bytes").desc(), "checksum")
        head = self._figures.duplicates.orderBy(*order).limit(_HEAD).select(*Duplicate._fields)
        return [
            Duplicate._make((*row[:-1], tuple(Copy(**one.asDict()) for one in row.examples)))
            for row in self._collect(head)
        ]


def _usages(kind: Callable[..., T], rows: Sequence[Row]) -> list[T]:
    return [kind(*row.key, *_use(row)) for row in rows]


def _use(row: Row) -> tuple[int, ...]:
    return tuple(row[name] for name in USE)


def _model(row: Row) -> str:
    return row.last.model_name or ""


def _name_usage(row: Row) -> NameUsage:
    *address, state = row.key
    return NameUsage._make((*address, _model(row), state, *_use(row)[1:]))


def _sums(*columns: str) -> list[Column]:
    return [sf.sum(name).alias(name) for name in columns]


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)
