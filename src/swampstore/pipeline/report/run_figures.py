"""What a report tells about runs of methods: how many a day, which failed, which took longest."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# How many days back runs are counted, and how many methods are told.
DAYS = 30
_HEAD = 12


class RunDay(NamedTuple):
    """The runs that began on a day, in UTC."""

    day: date
    runs: int
    failed: int


class MethodRuns(NamedTuple):
    """The runs of one method of the models of a type; durations are in milliseconds."""

    store: str
    namespace: str
    type_normalized: str
    method_name: str
    runs: int
    failed: int
    mean_ms: int
    longest_ms: int


class RunFigures(NamedTuple):
    """The last days with runs, the latest first, and the methods that took longest on average."""

    days: tuple[RunDay, ...] = ()
    methods: tuple[MethodRuns, ...] = ()


def run_figures(outputs: DataFrame, now: datetime) -> RunFigures:
    """Count the runs of the last days; the records are read once."""
    since = int((now - timedelta(days=DAYS)).timestamp() * 1_000_000)
    failed = sf.sum(sf.when(sf.col("status") == "failed", 1).otherwise(0)).alias("failed")
    # Times are numbers here: Spark would count days in the time zone of its session.
    day = sf.floor(sf.unix_micros("started_at") / 86_400_000_000).alias("day")
    recent = (
        outputs.where(sf.unix_micros("started_at") >= since)
        .select(*MethodRuns._fields[:4], "status", "duration_ms", day)
        .persist()
    )
    try:
        days = recent.groupBy("day").agg(sf.count("*").alias("runs"), failed).orderBy("day")
        methods = (
            recent.groupBy(*MethodRuns._fields[:4])
            .agg(
                sf.count("*").alias("runs"),
                failed,
                sf.coalesce(sf.round(sf.avg("duration_ms")).cast("bigint"), sf.lit(0)),
                sf.coalesce(sf.max("duration_ms"), sf.lit(0)),
            )
            .toDF(*MethodRuns._fields)
            .orderBy(sf.col("mean_ms").desc(), *MethodRuns._fields[:4])
            .limit(_HEAD)
        )
        began = datetime(1970, 1, 1, tzinfo=UTC).date()
        by_day = [
            RunDay(began + timedelta(days=number), runs, bad)
            for number, runs, bad in days.collect()
        ]
        return RunFigures(tuple(reversed(by_day)), tuple(map(MethodRuns._make, methods.collect())))
    finally:
        recent.unpersist()
