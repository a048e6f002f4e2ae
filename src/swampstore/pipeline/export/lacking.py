"""Which versions an exported table has to do without."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

from swampstore.layout import METADATA
from swampstore.pipeline.schemas import data_name, data_version
from swampstore.pipeline.source.index import documents
from swampstore.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.places import Place


def lacking_versions(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Return the versions that have metadata and no row, as findings."""
    name = sql.concat_ws("/", sql.lit("data"), "type_normalized", "model_id", "data_name")
    artifacts = Tables(spark, places).artifacts()
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
