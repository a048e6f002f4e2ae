"""Datastores as DataFrames. Nothing is read before Spark is asked for a result."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from swampstore.layout import METADATA
from swampstore.notices import notice
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.schemas import LOCATED, arrow_schema, data_name, data_version
from swampstore.pipeline.source import FORMAT, PUSH_DOWN, register
from swampstore.pipeline.source.artifacts import LONGEST_CONTENT
from swampstore.pipeline.source.index import documents
from swampstore.pipeline.source.lazily import LEADING_TO_CONTENT, with_content
from swampstore.pipeline.source.objects import ALL, Chosen
from swampstore.pipeline.source.scan import Share, Table

if TYPE_CHECKING:
    import os

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.repo import Repo


class Tables:
    """The tables of any number of places, each the union over all of them."""

    def __init__(self, spark: SparkSession, places: Sequence[Place]) -> None:
        self.spark = spark
        self.places = tuple(places)
        register(spark)

    def objects(self) -> DataFrame:
        """Return the listing of the stores."""
        return self._table("objects")

    def contents(self, chosen: Chosen = ALL) -> DataFrame:
        """Return the (chosen) objects with what their content turned out to be."""
        shard = f"{chosen.portion + 1}/{chosen.portions}"
        return self._table("contents", shard=shard, sample=str(chosen.sample))

    def index(self, *, every_document: bool = False) -> DataFrame:
        """Return the entries of the index; `every_document`: of monolith and all shards."""
        return self._table("index", documents="all" if every_document else "truth")

    def files(self, *, hashed: bool = False) -> DataFrame:
        """Return the files of directories, with their hashes if asked for."""
        return self._table("files", hashed=str(hashed).lower())

    def artifacts(
        self,
        *,
        columns: Sequence[str] | None = None,
        content: bool = False,
        attributes: bool = False,
        longest: int = LONGEST_CONTENT,
        as_of: int | str | None = None,
    ) -> DataFrame:
        """Return one row per version, with content or attributes if asked for.

        Spark does not tell which columns a query needs: if `columns` are named, nothing else is
        fetched from a snapshot. Content and attributes are fetched where a query selects them, of
        rows that pass its filters. Content of more than `longest` bytes is NULL. With `as_of`, the
        number of a commit or a time, the rows are those of the last snapshot until then.
        """
        options = {} if as_of is None else {"asOf": str(as_of)}
        if not (content or attributes):
            frame = self._artifacts(columns, **options)
            return frame if columns is None else frame.select(*columns)
        addressed = None if columns is None else (*columns, *LEADING_TO_CONTENT)
        located = self._artifacts(addressed, located="true", **options)
        shown = columns or located.columns[: -len(LOCATED.split(", "))]
        return with_content(
            located,
            self.places,
            shown,
            content=content,
            attributes=attributes,
            longest=longest,
        )

    def _artifacts(self, columns: Sequence[str] | None, **options: str) -> DataFrame:
        if columns is not None:
            # The filter below is about the store.
            options["columns"] = ",".join(dict.fromkeys((*columns, "store")))
        if self.spark.conf.get(PUSH_DOWN, "false") != "true":
            notice("filters save no requests: this session does not let %s be true", PUSH_DOWN)
            return self._table("artifacts", pushdown="false", **options)
        # The filter lets every row pass. A frame whose filters choose what is read must never be
        # without one; see `scan.Frame`.
        return self._table("artifacts", pushdown="true", **options).filter("store IS NOT NULL")

    def changes(self, since: int | str, until: int | str | None = None) -> DataFrame:
        """Return the versions that came, changed or went between two snapshots.

        Both are the number of a commit or a time; without `until` the newest snapshot counts.
        """
        options = {"from": str(since)} | ({} if until is None else {"to": str(until)})
        return self._table("changes", **options)

    def outputs(self) -> DataFrame:
        """Return the records of method outputs."""
        return self._table("outputs")

    def workflow_runs(self) -> DataFrame:
        """Return the records of workflow runs."""
        return self._table("workflow_runs")

    def audit(self) -> DataFrame:
        """Return the audit events."""
        return self._table("audit")

    def _table(self, name: str, **options: str) -> DataFrame:
        targets: dict[str, list[str]] = {}
        for place in self.places:
            targets.setdefault(place.target, []).append(place.namespace)
        tasks = str(tasks_for(self.spark))
        frames = [
            self.spark.read.format(FORMAT)
            .options(table=name, namespace=",".join(namespaces), tasks=tasks, **options)
            .load(target)
            for target, namespaces in targets.items()
        ]
        return reduce(lambda one, other: one.unionByName(other), frames)


def load(
    spark: SparkSession,
    target: str | os.PathLike[str] | Repo,
    namespaces: Sequence[str] | None = None,
) -> Tables:
    """Return the tables of a URL or of a repository; see `places_of`."""
    return Tables(spark, places_of(target, namespaces))


def read_by_tasks(
    spark: SparkSession, table: Table[Any], places: Sequence[Place], columns: Sequence[str]
) -> DataFrame:
    """Return columns of a table for a job to work on; nothing is read yet.

    Tasks of Spark's source could tell nobody what they ask of stores. These tell it the meters of
    the places, and hand over no other columns.
    """
    types = dict(column.split() for column in table.schema.split(", "))
    wanted = ", ".join(f"{name} {types[name]}" for name in columns)
    schema, names = arrow_schema(table.schema), list(columns)
    tasks = math.ceil(2 * tasks_for(spark) / (len(places) + 1))
    shares: list[Share[Any]] = []
    for place in places:
        with place.open() as store:
            shares += [Share(place, piece) for piece in table.plan(place, store, tasks)]
    if not shares:
        return spark.createDataFrame([], wanted)
    # See `gathered` in `evidence/gathering.py`: readings must not look alike, nor be compiled anew.
    marked, count = (secrets.token_hex(8), shares), len(shares)

    def read(ids: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            for one in batch.column(0).to_pylist():
                place, piece = marked[1][one]
                with place.open() as store:
                    for found in table.batches(place, piece, store, schema):
                        yield found.select(names)

    return spark.range(0, count, 1, count).mapInArrow(read, wanted)


def lacking_versions(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Return the versions that have metadata and no row among the artifacts, as findings."""
    from pyspark.sql import functions as sql

    name = sql.concat_ws("/", sql.lit("data"), "type_normalized", "model_id", "data_name")
    artifacts = Tables(spark, places).artifacts()
    known = artifacts.select("store", "namespace", name.alias("name"), "version")
    described = _paths_in(spark, places).where(sql.col("rel").endswith(f"/{METADATA}"))
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


def _paths_in(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Return what the places hold, told by their index where they have one."""
    frames = []
    for place in places:
        tables = Tables(spark, [place])
        with place.open() as store:
            has_index = place.indexed and bool(documents(place, store))
        told = tables.index() if has_index else tables.objects().where("NOT internal")
        frames.append(told.select("store", "namespace", "rel"))
    return reduce(lambda one, other: one.unionByName(other), frames)
