"""Looking at places once: their documents, entries, objects and content, and all the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

from swampstore.layout import DEFERRED, LATEST
from swampstore.pipeline.places import Place
from swampstore.pipeline.reindex.entries import PLACE, Entries, Listing, believed, of_truth
from swampstore.pipeline.reindex.ground import Ground, look, surveyed
from swampstore.pipeline.reindex.reading import Reading
from swampstore.pipeline.reindex.scanning import scanned
from swampstore.pipeline.verify import kinds, rules
from swampstore.pipeline.verify.documents import of_documents, stale_shards
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FOUND = "store string, namespace string, kind string, rel string, key string, detail string"
# If objects are being removed, some of these are.
_LOOKED_AT_AGAIN = 200
# What belongs to one model, wherever in it, and of all else the directory.
_MODEL = rf"^(data(?:/[^/]+){{2,}})/[^/]+/(?:[1-9][0-9]{{0,17}}/[^/]+|{LATEST})$"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part is examined: one slice (from 1) of so many, and content of a share of it.

    `grace` is the age up to which things may belong to a push that is going on.
    """

    slice: tuple[int, int] = (1, 1)
    sample: float = 1.0
    grace: timedelta = timedelta(hours=1)

    def has(self) -> Column:
        """Return the condition that a path is examined; data of a model is, or is not."""
        from pyspark.sql import functions as f

        number, count = self.slice
        if count == 1:
            return f.expr("true")
        inside = f.regexp_extract("rel", _MODEL, 1)
        directory = f.regexp_extract("rel", r"^(.*/)?[^/]*$", 1)
        group = f.when(inside != "", inside).otherwise(directory)
        return f.pmod(f.xxhash64(group), f.lit(count)) == number - 1

    def reads(self) -> Column:
        """Return the condition that content is read; that of a version is, or is not."""
        from pyspark.sql import functions as f

        directory = f.regexp_extract("rel", r"^(.*/)?[^/]*$", 1)
        share = f.pmod(f.xxhash64(directory, f.lit("sample")), f.lit(1 << 20))
        return share < self.sample * (1 << 20)


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found, and what it was found in. `facts` is kept by Spark until `forget`."""

    grounds: tuple[Ground, ...]
    facts: DataFrame
    found: DataFrame
    objects: DataFrame

    def of(self, place: Place) -> DataFrame:
        """Return what was found in one place."""
        return self.found.where(is_of(place))

    def forget(self) -> None:
        """Let Spark forget the tables."""
        for frame in (self.found, self.facts, self.objects):
            frame.unpersist()


def examine(
    spark: SparkSession, places: Sequence[Place], reading: Reading, selection: Selection
) -> Examined:
    """Apply every rule to some places."""
    from pyspark.sql import functions as f

    index = scanned(spark, Entries(), places).persist()
    grounds = _grounds(places, index)
    objects = _without_deferred(scanned(spark, Listing(), places), grounds).persist()
    moments = {
        (one.place.identity, one.place.namespace): one.now - selection.grace for one in grounds
    }
    listed = rules.young_since(objects, moments)
    truth = of_truth(index, grounds)
    contents = reading.of(objects.where(selection.has() & selection.reads()))
    entries = believed(truth, objects, grounds)
    facts = rules.facts(entries, listed, contents).where(selection.has()).persist()
    parts = [
        rules.of_objects(facts),
        rules.of_places(facts),
        rules.of_forbidden(truth.where(selection.has())),
        rules.of_versions(facts),
        rules.of_markers(facts),
        _of_documents(spark, index, objects, grounds, selection),
    ]
    found = reduce(lambda one, other: one.unionByName(other), parts)
    found = found.withColumn("detail", f.coalesce("detail", f.lit(""))).persist()
    found.count()
    index.unpersist()
    return Examined(grounds, facts, found, objects)


def _grounds(places: Sequence[Place], index: DataFrame) -> tuple[Ground, ...]:
    grounds = []
    for place in places:
        with place.open() as store:
            grounds.append(look(place, store))
    return surveyed(grounds, index)


def _without_deferred(objects: DataFrame, grounds: Sequence[Ground]) -> DataFrame:
    """Leave out versions of a directory in place that are written and not committed yet."""
    from pyspark.sql import functions as f

    if all(one.place.indexed for one in grounds):
        return objects
    inside = f.regexp_extract("rel", r"^(.*)/[^/]*$", 1)
    deferred = objects.where(f.col("rel").endswith(f"/{DEFERRED}"))
    deferred = deferred.select(*PLACE, inside.alias("directory")).distinct()
    rows = objects.withColumn("directory", inside)
    return rows.join(f.broadcast(deferred), [*PLACE, "directory"], "left_anti").drop("directory")


def _of_documents(
    spark: SparkSession,
    index: DataFrame,
    objects: DataFrame,
    grounds: Sequence[Ground],
    selection: Selection,
) -> DataFrame:
    stale = stale_shards(index, grounds)
    rows = []
    for one in grounds:
        where = (one.place.identity, one.place.namespace)
        names = one.place.names()
        found = of_documents(one, selection.grace, stale.get(where, {}))
        if one.is_bare and _is_first_push(objects, one, selection.grace):
            continue
        rows += [(*where, kind, rel, names.remote(rel), detail) for kind, rel, detail in found]
    return spark.createDataFrame(rows, FOUND)


def _is_first_push(objects: DataFrame, ground: Ground, grace: timedelta) -> bool:
    """Whether all that there is may belong to a push that is going to make the first index."""
    from pyspark.sql import functions as f

    is_old = f.col("last_modified") <= f.lit(ground.now - grace)
    return bool(objects.where(is_of(ground.place) & is_old & ~f.col("internal")).isEmpty())


def is_of(place: Place) -> Column:
    """Return the condition that a row is of a place."""
    from pyspark.sql import functions as f

    return (f.col("store") == place.identity) & (f.col("namespace") == place.namespace)


def is_settled(seen: Examined) -> bool:
    """Whether nobody has committed since the places were looked at, and nothing was removed.

    Objects that leave a store do so after their entries: one that was removed meanwhile looked
    like an orphan.
    """
    from pyspark.sql import functions as f

    for ground in seen.grounds:
        with ground.place.open() as store:
            now = look(ground.place, store)
            if (now.etag, now.monolith and now.monolith.etag) != (
                ground.etag,
                ground.monolith and ground.monolith.etag,
            ):
                return False
            orphans = seen.of(ground.place).where(f.col("kind") == kinds.ORPHAN)
            if not all(is_there(store, row["key"]) for row in orphans.take(_LOOKED_AT_AGAIN)):
                return False
    return True


def is_there(store: Store, key: str) -> bool:
    """Whether a store holds an object."""
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True
