"""Catalogs of any namespaces as one Parquet table, and which versions it has to do without."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from swampstore.index.results import Progress, no_progress
from swampstore.layout import METADATA
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.running import spark_errors, watched
from swampstore.pipeline.schemas import data_name, data_version, write_table
from swampstore.pipeline.source.index import documents
from swampstore.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.places import Place


@dataclass(frozen=True, slots=True)
class Exported:
    """Catalogs that were written as Parquet: rows by namespace.

    `findings` is a table of the versions that were left out, None if nobody asked for it.
    """

    output: str
    rows: dict[str, int]
    seconds: float
    findings: DataFrame | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {"output": self.output, "rows": self.rows, "seconds": self.seconds}


def export(
    spark: SparkSession,
    places: Sequence[Place],
    output: str,
    *,
    findings: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Exported:
    """Write the catalogs of some places as one Parquet directory, in place of what is there.

    It has the columns of the table `artifacts`. With `findings` it is found out what they lack,
    with `dry_run` rows are only counted. Raises DiskError, SparkJobError.
    """
    began = time.monotonic()
    with spark_errors():
        artifacts = Tables(spark, places).artifacts()
        with watched(spark, "catalog", tasks_for(spark), progress):
            if not dry_run:
                write_table(artifacts, output)
                artifacts = spark.read.parquet(os.path.abspath(output))
            counted = artifacts.groupBy("namespace").count().collect()
        left_out = _left_out(spark, places, artifacts) if findings else None
    rows = {place.namespace: 0 for place in places} | {row[0]: row[1] for row in counted}
    return Exported(output, rows, round(time.monotonic() - began, 3), left_out)


def _left_out(spark: SparkSession, places: Sequence[Place], artifacts: DataFrame) -> DataFrame:
    """Return the versions that have metadata and no row, as findings."""
    name = sql.concat_ws("/", sql.lit("data"), "type_normalized", "model_id", "data_name")
    known = artifacts.select("store", "namespace", name.alias("name"), "version")
    described = _paths(spark, places).where(sql.col("rel").endswith(f"/{METADATA}"))
    versions = described.select("*", data_name().alias("name"), data_version().alias("version"))
    lacking = versions.where("version IS NOT NULL").join(known, known.columns, "left_anti")
    key = sql.concat_ws("/", sql.nullif("namespace", sql.lit("")), "rel")
    return lacking.select(
        *("store", "namespace"),
        sql.lit("undecodable-metadata").alias("kind"),
        *("rel", key.alias("key")),
        sql.lit("nothing can be told about this version").alias("detail"),
        sql.lit("warning").alias("severity"),
        sql.lit(False).alias("repaired"),  # noqa: FBT003 - a column
    )


def _paths(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Return what the places hold, told by their index where they have one."""
    frames = []
    for place in places:
        tables = Tables(spark, [place])
        with place.open() as store:
            has_index = place.indexed and bool(documents(place, store))
        told = tables.index() if has_index else tables.objects().where("NOT internal")
        frames.append(told.select("store", "namespace", "rel"))
    return reduce(lambda one, other: one.unionByName(other), frames)
