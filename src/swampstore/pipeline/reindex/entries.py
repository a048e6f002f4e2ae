"""Which entries a place has, as DataFrames: those of the documents, and those to be assumed.

Where a document is lost or damaged, the listing tells what belongs to it, as it does for every
reader. So the loss of a document is one thing that is wrong, and not one for each of its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from swampstore.layout import is_internal
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Piece
from swampstore.pipeline.reindex.ground import Ground
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.source.objects import Objects
from swampstore.stores.protocol import Store
from swampstore.sync.names import is_safe
from swampstore.sync.partitions import MONOLITH_KEY, partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATH = ("store", "namespace", "rel")
PLACE = ("store", "namespace")
_STATE = "store string, namespace string, version int"
_PLACES = "store string, namespace string"
_SHARDS = "store string, namespace string, home string"
_REL = 4
_REL_OF_OBJECT = 2
# What an entry is worth when a path has several: one at home, one elsewhere, one made up.
_AT_HOME, _STRAY, _ASSUMED = 2, 1, 0


def why_forbidden(rel: str) -> str | None:
    """Return why no index may name a path, None if one may."""
    if is_internal(rel):
        return "it names bookkeeping"
    return None if is_safe(rel) else "it leads out of the cache"


class Entries(Index):
    """The table `index` of all documents, with `home` and why an entry is `forbidden`.

    Both are told where the documents are read; a function of ours inside Spark would send every
    row through one more process.
    """

    schema = f"{schemas.INDEX}, home string, forbidden string"

    def __init__(self) -> None:
        super().__init__(every_document=True)

    def rows(self, place: Place, piece: tuple[str, ...], store: Store) -> Iterator[tuple[Any, ...]]:
        """Read some documents."""
        for row in super().rows(place, piece, store):
            rel = row[_REL]
            yield (
                (*row, None, None) if rel is None else (*row, partition_of(rel), why_forbidden(rel))
            )


class Listing(Objects):
    """The table `objects`, with `home`: the partition that an object belongs to."""

    schema = f"{schemas.OBJECTS}, home string"

    def rows(self, place: Place, piece: Piece, store: Store) -> Iterator[tuple[Any, ...]]:
        """List one piece."""
        for row in super().rows(place, piece, store):
            yield (*row, partition_of(row[_REL_OF_OBJECT]))


def _states(index: DataFrame, grounds: Iterable[Ground]) -> DataFrame:
    return _small(index, [(*_where(one), one.version) for one in grounds], _STATE)


def of_truth(index: DataFrame, grounds: Iterable[Ground]) -> DataFrame:
    """Return the entries of those documents that count.

    On version 2 these are all shards, also such that `_meta.json` does not tell of.
    """
    from pyspark.sql import functions as f

    is_shard = f.col("partition").isNotNull()
    counts = f.when(f.col("version") == 2, is_shard).otherwise(f.col("document") == MONOLITH_KEY)
    return (
        index.where(f.col("rel").isNotNull()).join(_states(index, grounds), [*PLACE]).where(counts)
    )


def believed(truth: DataFrame, objects: DataFrame, grounds: Iterable[Ground]) -> DataFrame:
    """Return one entry for each path that the place has; forbidden ones are left out.

    `strays` are the shards that have an entry of the path and should not. Of paths that belong to
    a document which nobody can read, the entry is made up from the listing.
    """
    from pyspark.sql import functions as f

    columns = ["size", "sha256", "last_modified", "commit_seq", "raw", "problem", "partition"]
    worth = f.when(f.col("partition").isNull() | (f.col("partition") == f.col("home")), _AT_HOME)
    rows = truth.where("forbidden IS NULL").select(
        *PATH,
        "home",
        f.struct(*columns, f.expr("false").alias("is_assumed")).alias("entry"),
        worth.otherwise(_STRAY).alias("worth"),
    )
    rows = rows.unionByName(_assumed(objects, [*grounds]))
    is_stray = f.when(f.col("worth") == _STRAY, f.col("entry.partition"))
    return rows.groupBy(*PATH).agg(
        f.any_value("home").alias("home"),
        f.max_by("entry", "worth").alias("entry"),
        f.max("worth").alias("worth"),
        f.sort_array(f.collect_list(is_stray)).alias("strays"),
    )


def _assumed(objects: DataFrame, grounds: list[Ground]) -> DataFrame:
    """Return entries of the objects that belong to documents which nobody can read."""
    from pyspark.sql import functions as f

    payload = objects.where("NOT internal")
    whole = _small(objects, [_where(one) for one in grounds if one.is_assumed], _PLACES)
    chosen = payload.join(whole, [*PLACE], "left_semi")
    damaged = [(*_where(one), part) for one in grounds for part in sorted(one.damaged)]
    if damaged:
        homes = _small(objects, damaged, _SHARDS)
        chosen = chosen.unionByName(payload.join(homes, [*PLACE, "home"], "left_semi"))
    unlisted = [one for one in grounds if one.has_lost_list]
    if unlisted:
        # A partition without a shard may have had one.
        there = [(*_where(one), part) for one in unlisted for part, _ in one.shards]
        places = _small(objects, [_where(one) for one in unlisted], _PLACES)
        lost = payload.join(places, [*PLACE], "left_semi")
        lost = lost.join(_small(objects, there, _SHARDS), [*PLACE, "home"], "left_anti")
        chosen = chosen.unionByName(lost)
    nothing = {
        "sha256": "string",
        "last_modified": "string",
        "commit_seq": "bigint",
        "raw": "binary",
        "problem": "string",
        "partition": "string",
    }
    entry = f.struct(
        "size",
        *(f.lit(None).cast(kind).alias(name) for name, kind in nothing.items()),
        f.expr("true").alias("is_assumed"),
    )
    return chosen.select(*PATH, "home", entry.alias("entry"), f.lit(_ASSUMED).alias("worth"))


def _where(ground: Ground) -> tuple[str, str]:
    return ground.place.identity, ground.place.namespace


def _small(like: DataFrame, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return a table that goes to every task as a whole."""
    from pyspark.sql import functions as f

    return f.broadcast(like.sparkSession.createDataFrame(rows, schema))
