"""Asking Spark what is garbage in some places."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from swampstore.pipeline.collecting.going import Going, going, going_of
from swampstore.pipeline.collecting.planner import PLACE, planned, warnings
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.running import watched
from swampstore.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.places import Place
    from swampstore.sync.report import Progress

Garbage = dict[tuple[str, str], list[Going]]
_SAID = ("rel", "sha256", "commit_seq", "last_modified", "problem")


def plan_places(
    spark: SparkSession, places: Sequence[Place], now: datetime, tell: Progress
) -> tuple[Garbage, list[str]]:
    """Return what is garbage at the time `now`, by store and namespace, and what is in doubt.

    The index is read once, and the metadata of every version.
    """
    tables = Tables(spark, places)
    index = tables.index().select(*PLACE, *_SAID).persist()
    records = index.where("rel LIKE 'workflow-runs/%'")
    garbage: Garbage = {}
    try:
        with (
            watched(spark, "plan", tasks_for(spark), tell),
            planned(tables.artifacts(), records, now) as plan,
        ):
            doubts = plan.doubts.collect()
            damaged = index.where("problem IS NOT NULL").groupBy(*PLACE).count().collect()
            for row in going(plan.removals, index).collect():
                garbage.setdefault((row.store, row.namespace), []).append(going_of(row))
    finally:
        index.unpersist()
    told = []
    for place in places:
        here = (place.identity, place.namespace)
        told += [
            f"{place}: {warning}"
            for warning in warnings(row for row in doubts if (row.store, row.namespace) == here)
        ]
        told += [
            f"{place}: {row['count']} entries or documents of the index cannot be understood"
            for row in damaged
            if (row.store, row.namespace) == here
        ]
    return garbage, told
