"""What an index made anew says about each path, as a DataFrame.

An entry that can be read is believed and stays as it is, byte for byte. Whether its object is what
it says is a matter of `verify`: an index that described damaged content would make it the truth,
and every machine would fetch it. What no entry tells of is hashed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from swampstore.pipeline.reindex.entries import PATH, believed, of_truth
from swampstore.pipeline.reindex.ground import Ground

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from swampstore.pipeline.reindex.reading import Reading

# What becomes of a path.
KEPT = "kept"
HASHED = "hashed"
MADE = "made"
ADOPTED = "adopted"
CONTRADICTED = "contradicted"
DROPPED = "dropped"
WAITING = "waiting"
_NAMED = (KEPT, HASHED, MADE, ADOPTED, CONTRADICTED)
_HASH_NEEDED = (HASHED, MADE, ADOPTED)


def planned(
    index: DataFrame,
    objects: DataFrame,
    ground: Ground,
    reading: Reading,
    *,
    rehash: bool,
    grace: timedelta | None,
) -> DataFrame:
    """Return one row for each path of a place, with its `fate` and what its entry is made of.

    `raw` is the entry as it is, or what a new one goes onto. An object that vanishes meanwhile,
    or that may belong to a push that is going on, gets no entry; without `grace` no object does
    that is not named.
    """
    from pyspark.sql import functions as f

    entries = believed(of_truth(index, [ground]), objects, [ground])
    listed = objects.where("NOT internal").select(
        *PATH, f.col("home").alias("belongs"), f.col("size").alias("there"), "etag", "last_modified"
    )
    joined = entries.join(listed, [*PATH], "full_outer")
    joined = joined.withColumn("home", f.coalesce("home", "belongs"))
    rows = joined.withColumn("fate", _fate(ground, grace))
    needed = (*_HASH_NEEDED, KEPT) if rehash else _HASH_NEEDED
    needy = rows.where(f.col("fate").isin(*needed)).select(*PATH)
    contents = reading.of(objects.join(needy, [*PATH], "left_semi"))
    known = contents.select(*PATH, "etag", f.col("sha256").alias("hash"))
    rows = rows.join(known, [*PATH, "etag"], "left")
    return _settled(_with_proven(rows, index, ground))


def _fate(ground: Ground, grace: timedelta | None) -> Column:
    """Return what becomes of each path, before anything is hashed."""
    from pyspark.sql import functions as f

    entry, there = f.col("entry"), f.col("there")
    is_old = f.expr("false")
    if grace is not None:
        is_old = f.col("last_modified") <= f.lit(ground.now - grace)
    # What only a shard says that nobody is told of was never visible.
    is_hidden = f.coalesce(f.col("entry.partition").isin(ground.unlisted), f.expr("false"))
    return (
        f.when(entry.isNull(), f.when(is_old, ADOPTED).otherwise(WAITING))
        .when(f.col("entry.is_assumed"), MADE)
        .when(f.col("entry.problem").isNotNull(), f.when(there.isNull(), DROPPED).otherwise(MADE))
        .when(there.isNull() & is_hidden, DROPPED)
        .when(there.isNull() | (there != f.col("entry.size")), CONTRADICTED)
        .when(f.col("entry.sha256").isNull(), HASHED)
        .otherwise(KEPT)
    )


def _with_proven(rows: DataFrame, index: DataFrame, ground: Ground) -> DataFrame:
    """Add what any document, whether it counts or not, says rightly about a path."""
    from pyspark.sql import functions as f

    if not (ground.is_assumed or ground.damaged or ground.has_lost_list):
        return rows.withColumn("proven", f.lit(None).cast("binary"))
    said = index.where("rel IS NOT NULL AND problem IS NULL AND sha256 IS NOT NULL")
    proofs = said.groupBy(*PATH, f.col("sha256").alias("hash"), f.col("size").alias("there"))
    return rows.join(
        proofs.agg(f.max_by("raw", "last_modified").alias("proven")),
        [*PATH, "hash", "there"],
        "left",
    )


def _settled(rows: DataFrame) -> DataFrame:
    """Return the rows with their fates as hashing left them."""
    from pyspark.sql import functions as f

    fate, hashed = f.col("fate"), f.col("hash")
    is_proven = (fate == MADE) & f.col("proven").isNotNull()
    final = (
        f.when((fate == HASHED) & hashed.isNull(), CONTRADICTED)
        .when(fate.isin(MADE, ADOPTED) & hashed.isNull(), DROPPED)
        .when(is_proven, KEPT)
        .when((fate == KEPT) & (hashed != f.col("entry.sha256")), CONTRADICTED)
        .otherwise(fate)
    )
    return rows.select(
        "rel",
        "home",
        final.alias("fate"),
        f.when(is_proven, f.col("proven")).otherwise(f.col("entry.raw")).alias("raw"),
        f.col("there").alias("size"),
        hashed.alias("sha256"),
        "last_modified",
    )


def named(rows: DataFrame) -> DataFrame:
    """Return the paths that the index names."""
    from pyspark.sql import functions as f

    return rows.where(f.col("fate").isin(*_NAMED))


def is_new(fate: str) -> bool:
    """Whether the entry of a path has to be written."""
    return fate in _HASH_NEEDED
