"""What is wrong with entries, objects and versions: rules over DataFrames, without any I/O.

`facts` has one row for each path that is named or there. Every rule looks only at what the rules
before it let pass, so that one thing that is wrong is found once.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from swampstore.layout import LATEST, METADATA, RAW
from swampstore.pipeline.reindex.entries import PATH, PLACE
from swampstore.pipeline.verify import kinds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A file of a version, and a marker; a type, an id and a name come before them at the least.
_VERSION_FILE = (
    rf"^(data(?:/[^/]+){{3,}})/([1-9][0-9]{{0,17}})/({RAW}|{METADATA.replace('.', '[.]')})$"
)
_MARKER = rf"^(data(?:/[^/]+){{3,}})/{LATEST}$"
_NAME = [*PLACE, "name"]
_VERSION = [*_NAME, "version"]
_CONTENT = (
    *("sha256", "bytes", "marker", "checksum", "claimed_size"),
    *("described_name", "described_version", "error"),
)


def facts(entries: DataFrame, objects: DataFrame, contents: DataFrame) -> DataFrame:
    """Join what the index says, what the listing says and what was read.

    `contents` may lack objects, and may be of objects that were replaced since. Each row has
    the `kind` of what is wrong with entry and object, if anything is.
    """
    from pyspark.sql import functions as f

    listed = objects.select(
        *PATH, "key", f.col("size").alias("there"), "etag", "last_modified", "internal", "is_young"
    )
    read = contents.select(*PATH, "etag", f.struct(*_CONTENT).alias("content"))
    joined = entries.join(listed, [*PATH], "full_outer").join(read, [*PATH, "etag"], "left")
    is_version = f.col("rel").rlike(_VERSION_FILE)
    parts = {
        number: f.when(is_version, f.regexp_extract("rel", _VERSION_FILE, number))
        for number in (1, 2, 3)
    }
    marked = f.when(f.col("rel").rlike(_MARKER), f.regexp_extract("rel", _MARKER, 1))
    return (
        joined.withColumn("name", f.coalesce(parts[1], marked))
        .withColumn("version", parts[2].cast("bigint"))
        .withColumn("file", f.coalesce(parts[3], f.when(marked.isNotNull(), f.lit(LATEST))))
        .withColumn("kind", _kind_of_object())
    )


def _kind_of_object() -> Column:
    """Return what is wrong with an entry and its object, null if nothing is."""
    from pyspark.sql import functions as f

    entry, there = f.col("entry"), f.col("there")
    content, young = f.col("content"), f.col("is_young")
    hashed, expected = f.col("content.sha256"), f.col("entry.sha256")
    size = f.col("entry.size")
    return (
        f.when(entry.isNull() & f.col("internal"), f.lit(None))
        .when(entry.isNull(), f.when(young, kinds.IN_FLIGHT).otherwise(kinds.ORPHAN))
        .when(f.col("entry.problem").isNotNull(), kinds.UNDECODABLE_ENTRY)
        .when(there.isNull(), kinds.MISSING_OBJECT)
        .when((there != size) & young, kinds.IN_FLIGHT)
        .when(there < size, kinds.TRUNCATED)
        .when(there > size, kinds.WRONG_SIZE)
        .when(content.isNotNull() & hashed.isNull(), kinds.UNREADABLE)
        .when((hashed != expected) & young, kinds.IN_FLIGHT)
        .when(hashed != expected, kinds.CORRUPT)
    )


def of_objects(facts: DataFrame) -> DataFrame:
    """Return what is wrong with entries and their objects."""
    from pyspark.sql import functions as f

    detail = (
        f.when(f.col("kind") == kinds.UNDECODABLE_ENTRY, f.col("entry.problem"))
        .when(f.col("kind") == kinds.UNREADABLE, f.col("content.error"))
        .when(
            f.col("there") != f.col("entry.size"),
            f.format_string("it has %d bytes, not %d", "there", f.col("entry.size")),
        )
        .when(
            f.col("content.sha256") != f.col("entry.sha256"),
            f.format_string(
                "its SHA-256 is %s, not %s", f.col("content.sha256"), f.col("entry.sha256")
            ),
        )
    )
    return _findings(facts.where("kind IS NOT NULL"), f.col("kind"), detail)


def of_places(facts: DataFrame) -> DataFrame:
    """Return entries that are in the wrong shard, or in several."""
    from pyspark.sql import functions as f

    is_at_home = f.col("entry.partition") != f.element_at("strays", 1)
    kind = f.when(is_at_home, kinds.DUPLICATE_ENTRY).otherwise(kinds.MISPLACED_ENTRY)
    detail = f.format_string("there is an entry in %s", f.array_join("strays", ", "))
    return _findings(facts.where(f.size("strays") > 0), kind, detail)


def of_forbidden(truth: DataFrame) -> DataFrame:
    """Return entries that no index may have."""
    from pyspark.sql import functions as f

    rows = truth.where("forbidden IS NOT NULL").withColumn("key", f.lit(None).cast("string"))
    return _findings(rows, f.lit(kinds.FORBIDDEN_ENTRY), f.col("forbidden"))


def of_versions(facts: DataFrame) -> DataFrame:
    """Return what is wrong with versions whose files are all what the index says."""
    from pyspark.sql import functions as f

    named = facts.where("entry IS NOT NULL AND version IS NOT NULL")
    metadata = _side(named.where(f.col("file") == METADATA), "metadata")
    raw = _side(named.where(f.col("file") == RAW), "raw")
    both = metadata.join(raw, _VERSION, "full_outer")
    kind = _kind_of_version()
    # What is to be said about content is said about content.
    about = f.when(
        kind.isin(kinds.CHECKSUM_MISMATCH, kinds.SIZE_MISMATCH, kinds.MISSING_METADATA)
        | f.col("metadata").isNull(),
        f.col("raw"),
    ).otherwise(f.col("metadata"))
    found = both.withColumn("kind", kind).where("kind IS NOT NULL")
    rows = found.withColumn("about", about).select(
        *PLACE, "about.rel", "about.key", "kind", _detail_of_version().alias("detail")
    )
    return _findings(rows, f.col("kind"), f.col("detail"))


def _side(rows: DataFrame, name: str) -> DataFrame:
    from pyspark.sql import functions as f

    columns = ["rel", "key", "kind", "there", "is_young", "content"]
    return rows.select(*_VERSION, f.struct(*columns).alias(name))


def _kind_of_version() -> Column:
    from pyspark.sql import functions as f

    metadata, raw = f.col("metadata"), f.col("raw")
    is_damaged = f.col("metadata.kind").isNotNull() | f.col("raw.kind").isNotNull()
    young = _surely("metadata.is_young") | _surely("raw.is_young")
    said = f.col("metadata.content")
    found = (
        f.when(metadata.isNull(), kinds.MISSING_METADATA)
        .when(said["error"].isNotNull(), kinds.UNDECODABLE_METADATA)
        .when(_describes_another(), kinds.FOREIGN_METADATA)
        .when(raw.isNull(), kinds.MISSING_CONTENT)
        .when(said["claimed_size"] != f.col("raw.there"), kinds.SIZE_MISMATCH)
        .when(said["checksum"] != f.col("raw.content.sha256"), kinds.CHECKSUM_MISMATCH)
    )
    return f.when(~is_damaged & found.isNotNull(), f.when(young, kinds.IN_FLIGHT).otherwise(found))


def _describes_another() -> Column:
    from pyspark.sql import functions as f

    said = f.col("metadata.content")
    name = f.substring_index("name", "/", -1)
    return (said["described_name"] != name) | (said["described_version"] != f.col("version"))


def _detail_of_version() -> Column:
    from pyspark.sql import functions as f

    said = f.col("metadata.content")
    return (
        f.when(f.col("kind") == kinds.UNDECODABLE_METADATA, said["error"])
        .when(
            f.col("kind") == kinds.FOREIGN_METADATA,
            f.format_string(
                "it describes %s version %d", said["described_name"], said["described_version"]
            ),
        )
        .when(
            f.col("kind") == kinds.SIZE_MISMATCH,
            f.format_string("its metadata says %d bytes", said["claimed_size"]),
        )
        .when(
            f.col("kind") == kinds.CHECKSUM_MISMATCH,
            f.format_string("its metadata says %s", said["checksum"]),
        )
    )


def of_markers(facts: DataFrame) -> DataFrame:
    """Return what is wrong with `latest` markers that are what the index says."""
    from pyspark.sql import functions as f

    named = facts.where("entry IS NOT NULL")
    versions = (
        named.where("version IS NOT NULL")
        .groupBy(*_NAME)
        .agg(
            f.collect_set("version").alias("versions"),
            f.max(f.when(f.col("file") == METADATA, f.col("version"))).alias("newest"),
            f.max_by("is_young", "version").alias("is_growing"),
        )
    )
    # A marker that nobody names yet is told of already, as an object.
    markers = facts.where(f.col("file") == LATEST).select(
        *_NAME, f.struct("rel", "key", "kind", "is_young", "content").alias("latest")
    )
    both = versions.join(markers, _NAME, "full_outer").withColumn("kind", _kind_of_marker())
    rel = f.concat("name", f.lit(f"/{LATEST}"))
    rows = both.where("kind IS NOT NULL").select(
        *PLACE,
        rel.alias("rel"),
        f.col("latest.key").alias("key"),
        "kind",
        _detail_of_marker().alias("detail"),
    )
    return _findings(rows, f.col("kind"), f.col("detail"))


def _kind_of_marker() -> Column:
    from pyspark.sql import functions as f

    latest, marker = f.col("latest"), f.col("latest.content.marker")
    newest = f.col("newest")
    young = _surely("latest.is_young") | _surely("is_growing")
    is_there = _surely(f.array_contains("versions", marker))
    damage = f.when(latest.isNull(), f.when(newest.isNotNull(), kinds.MISSING_LATEST)).when(
        f.col("versions").isNull() | (f.col("latest.content").isNotNull() & ~is_there),
        kinds.DANGLING_LATEST,
    )
    found = f.when(damage.isNotNull(), f.when(young, kinds.IN_FLIGHT).otherwise(damage)).when(
        marker < newest, kinds.BEHIND_LATEST
    )
    return f.when(f.col("latest.kind").isNull(), found)


def _detail_of_marker() -> Column:
    from pyspark.sql import functions as f

    marker, newest = f.col("latest.content.marker"), f.col("newest")
    return (
        f.when(f.col("latest").isNull(), f.format_string("%d is the newest version", newest))
        .when(f.col("versions").isNull(), "there is no version at all")
        .when(marker.isNull(), "it names no version")
        .otherwise(f.format_string("it names version %d", marker))
    )


def _surely(condition: Column | str) -> Column:
    """Return a condition that is false where it cannot be told."""
    from pyspark.sql import functions as f

    return f.coalesce(condition, f.expr("false"))


def _findings(rows: DataFrame, kind: Column, detail: Column) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.select(
        *PLACE, kind.alias("kind"), "rel", "key", f.coalesce(detail, f.lit("")).alias("detail")
    )


def young_since(objects: DataFrame, moments: dict[tuple[str, str], datetime]) -> DataFrame:
    """Mark the objects of each place that were written after a moment."""
    from pyspark.sql import functions as f

    rows = [(*where, moment) for where, moment in moments.items()]
    since = objects.sparkSession.createDataFrame(
        rows, "store string, namespace string, since timestamp"
    )
    return (
        objects.join(f.broadcast(since), [*PLACE])
        .withColumn("is_young", f.col("last_modified") > f.col("since"))
        .drop("since")
    )
