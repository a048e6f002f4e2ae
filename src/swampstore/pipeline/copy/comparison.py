"""What the target of a copy lacks: two tables put side by side, without reading any content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from swampstore.index.format import iso_ms
from swampstore.layout import DEFERRED, METADATA
from swampstore.pipeline.copy.outcomes import SEAL, SEAL_DIGITS, Wanted
from swampstore.pipeline.places import Place
from swampstore.pipeline.running import spark_errors
from swampstore.pipeline.schemas import data_name, data_version
from swampstore.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

# A file that was written so shortly before it was copied may have been written once more, without
# a change of its time.
_RACY_MS = 2_000
# How much is copied between two commits: little is lost if it is interrupted, but on version 1 a
# commit writes the whole index.
_WAVE_OBJECTS = 10_000
_WAVE_BYTES = 8 << 30
_WAVES = 20
_TROUBLE = "problem IS NOT NULL OR there_problem IS NOT NULL"


class Totals(NamedTuple):
    """How much the source has, what of it the target lacks, and how much is damaged."""

    objects: int
    bytes: int
    missing: int
    missing_bytes: int
    troubles: int


class Trouble(NamedTuple):
    """Something in the index of a side that cannot be understood; without `rel` all of it."""

    side: str
    document: str
    rel: str | None
    problem: str


@dataclass(frozen=True)
class Comparison:
    """A source beside a target; close it when it is not needed any more."""

    frame: DataFrame

    @classmethod
    def of(cls, spark: SparkSession, source: Place, target: Place | None) -> Self:
        """Compare two places; without a target, the source with nothing."""
        with spark_errors():
            ours = _indexed(spark, source) if source.indexed else _in_place(spark, source)
            theirs = _there(spark, target or source)
            if target is None:
                theirs = theirs.where("false")
            same = _same_entry() if source.indexed else _same_file(source)
            return cls(_compared(ours.join(theirs, "rel", "full_outer"), same).persist())

    def totals(self) -> Totals:
        """Count."""
        from pyspark.sql import functions as sql

        row = self.frame.agg(
            sql.count("size"),
            sql.sum("size"),
            sql.count_if("missing"),
            sql.sum(sql.when(sql.col("missing"), sql.col("size"))),
            sql.count_if(sql.expr(_TROUBLE)),
        )
        return Totals(*(int(value or 0) for value in _collected(row)[0]))

    def troubles(self) -> list[Trouble]:
        """Return what the indexes say that cannot be understood."""
        rows = _collected(self.frame.where(_TROUBLE))
        return [
            Trouble(side, row[f"{prefix}document"] or "", row["rel"], row[f"{prefix}problem"])
            for row in rows
            for side, prefix in (("source", ""), ("target", "there_"))
            if row[f"{prefix}problem"] is not None
        ]

    def waves(self, totals: Totals) -> int:
        """Return into how many parts the copy is cut; each ends with a commit."""
        objects = max(_WAVE_OBJECTS, totals.missing // _WAVES)
        size = max(_WAVE_BYTES, totals.missing_bytes // _WAVES)
        return max(1, -(-totals.missing // objects), -(-totals.missing_bytes // size))

    def wanted(self, wave: int, waves: int) -> list[Wanted]:
        """Return what one part is to bring over; all of a data name is in the same one."""
        from pyspark.sql import functions as sql

        chosen = sql.pmod(sql.col("unit_hash"), sql.lit(waves)) == wave
        return [_wanted(row) for row in _collected(self.frame.where("missing").where(chosen))]

    def close(self) -> None:
        """Let Spark forget what it has read."""
        self.frame.unpersist()


def _collected(frame: DataFrame) -> list[Row]:
    with spark_errors():
        rows: list[Row] = frame.collect()
        return rows


def _indexed(spark: SparkSession, source: Place) -> DataFrame:
    """Return what the index of the source tells."""
    from pyspark.sql import functions as sql

    columns = ("document", "problem", "rel", "size", "sha256", "last_modified", "local_mtime")
    entries = Tables(spark, [source]).index()
    told = entries.select(
        *(*columns, "raw"),
        sql.lit(None).cast("string").alias("etag"),
        sql.lit(None).cast("bigint").alias("written"),
    )
    return _once(told, "document")


def _once(entries: DataFrame, document: str) -> DataFrame:
    """Return one row per path, and all those without one, which tell of whole documents."""
    from pyspark.sql import functions as sql

    which = sql.when(sql.col("rel").isNull(), sql.col(document)).alias("which")
    return entries.select("*", which).dropDuplicates(["rel", "which"]).drop("which")


def _in_place(spark: SparkSession, source: Place) -> DataFrame:
    """Return the files of a directory that is used in place, without versions in the making."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    listed = Tables(spark, [source]).objects()
    listed = listed.withColumn("version", data_version())
    alone = sql.col("version").isNull()
    directory = sql.regexp_replace("rel", r"/[^/]+\z", "")
    siblings = Window.partitionBy(sql.when(alone, sql.col("rel")).otherwise(directory))
    name = sql.substring_index("rel", "/", -1)
    finished = listed.select(
        "*",
        sql.max(name == METADATA).over(siblings).alias("described"),
        sql.max(name == DEFERRED).over(siblings).alias("deferred"),
    ).where("NOT internal AND (version IS NULL OR (described AND NOT deferred))")
    unknown = ("document", "problem", "sha256", "last_modified", "local_mtime")
    return finished.select(
        *(sql.lit(None).cast("string").alias(column) for column in unknown),
        sql.lit(None).cast("binary").alias("raw"),
        *("rel", "size", "etag"),
        sql.unix_millis("last_modified").alias("written"),
    )


def _there(spark: SparkSession, target: Place) -> DataFrame:
    from pyspark.sql import functions as sql

    entries = Tables(spark, [target]).index()
    told = entries.select(
        "rel",
        sql.col("document").alias("there_document"),
        sql.col("problem").alias("there_problem"),
        sql.col("size").alias("there_size"),
        sql.col("sha256").alias("there_sha256"),
        sql.col("last_modified").alias("there_modified"),
        sql.col("local_mtime").alias("there_mtime"),
        sql.col("raw").alias("there"),
    )
    return _once(told, "there_document")


def _same_entry() -> Column:
    """Whether two entries tell of the same content."""
    from pyspark.sql import functions as sql

    return sql.expr(
        "size = there_size AND (sha256 = there_sha256"
        " OR (sha256 IS NULL AND last_modified = there_modified))"
    )


def _same_file(source: Place) -> Column:
    """Whether a file is surely the one that was copied from this very place before."""
    from pyspark.sql import functions as sql

    seal = sql.get_json_object(sql.col("there").cast("string"), f"$.{SEAL}")
    digest = sql.sha2(sql.concat(sql.lit(f"{source}\n"), sql.col("there_sha256")), 256)
    copied = sql.unix_millis(sql.try_to_timestamp("there_modified"))
    return (
        sql.expr("size = there_size")
        & (seal == sql.left(digest, sql.lit(SEAL_DIGITS)))
        & (sql.unix_millis(sql.try_to_timestamp("there_mtime")) == sql.col("written"))
        & (copied >= sql.col("written") + _RACY_MS)
    )


def _compared(joined: DataFrame, same: Column) -> DataFrame:
    """Say what is missing; of what is not, keep no more than is counted."""
    from pyspark.sql import functions as sql

    is_ours = sql.col("size").isNotNull()
    missing = is_ours & ~sql.coalesce(same, sql.expr("false"))
    kept = ("rel", "sha256", "last_modified", "local_mtime", "raw", "etag", "written", "there")
    unit = sql.coalesce(data_name(), "rel")
    told = missing | ~is_ours
    return joined.where(is_ours | sql.expr(_TROUBLE)).select(
        *(sql.when(told, sql.col(column)).alias(column) for column in kept),
        *("size", "document", "problem", "there_document", "there_problem"),
        missing.alias("missing"),
        sql.when(missing, sql.xxhash64(unit)).alias("unit_hash"),
    )


def _wanted(row: Row) -> Wanted:
    modified, mtime = row["last_modified"], row["local_mtime"]
    if row["written"] is not None:
        modified = mtime = iso_ms(row["written"] * 1_000_000)
    raw, there = row["raw"], row["there"]
    return Wanted(
        *(row["rel"], row["size"], row["sha256"], modified, mtime),
        raw=None if raw is None else bytes(raw),
        etag=row["etag"],
        there=None if there is None else bytes(there),
    )
