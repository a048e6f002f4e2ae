"""The two ends of a copy, whether it may go there, and what the target lacks.

Two tables are put side by side; no content is read for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Self

from pyspark.sql import Window
from pyspark.sql import functions as sql

from swampstore.clock import system_clock, to_iso
from swampstore.config import load
from swampstore.errors import ValidationError
from swampstore.files.signature import RACY_NS
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import iso_ms
from swampstore.index.path_kinds import unit_of
from swampstore.layout import DATASTORE_SUBDIRS, DEFERRED, METADATA
from swampstore.marker import find_repo
from swampstore.namespaces.manifests import CATALOG_EXPORT, Registry, check_new_namespace
from swampstore.pipeline.copy.outcomes import SEAL, SEAL_DIGITS, Wanted
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.running import collected, forget, iterated, spark_errors
from swampstore.pipeline.schemas import data_name, data_version
from swampstore.pipeline.source.index import Index, documents
from swampstore.pipeline.source.objects import Objects
from swampstore.pipeline.tables import read_by_tasks
from swampstore.routing import Routing
from swampstore.stores.probe import probe
from swampstore.stores.protocol import Store, folders

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from swampstore.config import Config

# A file that was written so shortly before it was copied may have been written once more, without
# a change of its time.
_RACY_MS = RACY_NS // 1_000_000
# How much is copied between two commits: little is lost if it is interrupted, but on version 1 a
# commit writes the whole index.
_PART_OBJECTS = 10_000
_PART_BYTES = 8 << 30
_PARTS = 20
# So many objects of a part, and what became of them, are in the memory of the driver.
_LARGEST_PART = 100_000
# So many at a time come to the driver.
_PAGE = 20_000
_CONTENT = ("size", "sha256", "last_modified", "local_mtime")
_ENTRY = ("document", "problem", "rel", *_CONTENT, "raw")
_TROUBLE = "problem IS NOT NULL OR there_problem IS NOT NULL"


# `is_same` as SQL, for an entry beside that of the target; what is unknown is not the same.
SAME = (
    "size = there_size AND (sha256 = there_sha256"
    " OR (sha256 IS NULL AND last_modified = there_modified))"
)


class Content(NamedTuple):
    """What an entry tells of the content of its path."""

    size: int | None
    sha256: str | None
    last_modified: str | None


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


class Most(NamedTuple):
    """How many objects, and how many bytes, a part of a copy has; each part ends with a commit."""

    objects: int
    bytes: int


def most_of(totals: Totals) -> Most:
    """Return how large the parts of a copy are.

    There are few of them, but none is larger than what the driver keeps in memory.
    """
    objects = min(max(_PART_OBJECTS, totals.missing // _PARTS), _LARGEST_PART)
    return Most(objects, max(_PART_BYTES, totals.missing_bytes // _PARTS))


def parts_of(wanted: Iterable[Wanted], most: Most) -> Iterator[list[Wanted]]:
    """Cut what is wanted, which comes unit by unit, into parts; no unit is cut in two."""
    part: list[Wanted] = []
    weight = 0
    for _, group in groupby(wanted, lambda one: unit_of(one.rel)):
        unit = list(group)
        size = sum(one.size for one in unit)
        if part and (len(part) + len(unit) > most.objects or weight + size > most.bytes):
            yield part
            part, weight = [], 0
        part += unit
        weight += size
    if part:
        yield part


@dataclass(frozen=True)
class Comparison:
    """A source beside a target; close it when it is not needed any more."""

    frame: DataFrame

    @classmethod
    def of(cls, spark: SparkSession, source: Place, target: Place | None) -> Self:
        """Compare two places; without a target, the source with nothing."""
        with spark_errors():
            ours = _indexed(spark, source) if source.indexed else _in_place(spark, source)
            theirs = _there(spark, target)
            same = sql.expr(SAME) if source.indexed else _same_file(source)
            return cls(_compared(ours.join(theirs, "rel", "full_outer"), same).persist())

    def totals(self) -> Totals:
        """Count."""
        row = self.frame.agg(
            sql.count("size"),
            sql.sum("size"),
            sql.count_if("missing"),
            sql.sum(sql.when(sql.col("missing"), sql.col("size"))),
            sql.count_if(sql.expr(_TROUBLE)),
        )
        return Totals(*(int(value or 0) for value in _collected(row)[0]))

    def troubles(self) -> Iterator[Trouble]:
        """Yield what the indexes say that cannot be understood."""
        with spark_errors():
            for row in iterated(self.frame.where(_TROUBLE)):
                for side, prefix in (("source", ""), ("target", "there_")):
                    if problem := row[f"{prefix}problem"]:
                        yield Trouble(side, row[f"{prefix}document"] or "", row["rel"], problem)

    def wanted(self, totals: Totals) -> Iterator[Wanted]:
        """Yield what the target lacks, ordered by unit; a page of it is in memory.

        The names of a model come one after the other, so a part of a copy changes few shards.
        """
        pages = max(1, -(-totals.missing // _PAGE))
        ordered = self.frame.where("missing").repartitionByRange(pages, "unit")
        with spark_errors():
            for row in iterated(ordered.sortWithinPartitions("unit", "rel")):
                yield _wanted(row)

    def close(self) -> None:
        """Let Spark forget what it has read."""
        forget(self.frame)


def _collected(frame: DataFrame) -> list[Row]:
    with spark_errors():
        return collected(frame)


def _indexed(spark: SparkSession, source: Place) -> DataFrame:
    """Return what the index of the source tells."""
    entries = read_by_tasks(spark, Index(), [source], _ENTRY)
    told = entries.select(
        *_ENTRY,
        sql.lit(None).cast("string").alias("etag"),
        sql.lit(None).cast("bigint").alias("written"),
    )
    return _once(told, "document")


def _once(entries: DataFrame, document: str) -> DataFrame:
    """Return one row per path, and all those without one, which tell of whole documents.

    Rows of a path are brought together once, here; the join with the other side needs no more.
    """
    which = sql.when(sql.col("rel").isNull(), sql.col(document)).alias("which")
    together = entries.select("*", which).repartition("rel")
    return together.dropDuplicates(["rel", "which"]).drop("which")


def _in_place(spark: SparkSession, source: Place) -> DataFrame:
    """Return the files of a directory that is used in place, without versions in the making."""
    columns = ("rel", "size", "etag", "last_modified", "internal")
    listed = read_by_tasks(spark, Objects(), [source], columns)
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


def _there(spark: SparkSession, target: Place | None) -> DataFrame:
    entries = read_by_tasks(spark, Index(), [target] if target else [], _ENTRY)
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


def is_same(one: Content, there: Content | None) -> bool:
    """Whether two entries tell of the same content; `SAME` is this rule as SQL."""
    if there is None or one.size != there.size:
        return False
    if one.sha256 is None:
        return one.last_modified == there.last_modified
    return one.sha256 == there.sha256


def _same_file(source: Place) -> Column:
    """Whether a file is surely the one that was copied from this very place before."""
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
    is_ours = sql.col("size").isNotNull()
    missing = is_ours & ~sql.coalesce(same, sql.expr("false"))
    kept = ("rel", "sha256", "last_modified", "local_mtime", "raw", "etag", "written", "there")
    unit = sql.coalesce(data_name(), "rel")
    told = missing | ~is_ours
    return joined.where(is_ours | sql.expr(_TROUBLE)).select(
        *(sql.when(told, sql.col(column)).alias(column) for column in kept),
        *("size", "document", "problem", "there_document", "there_problem"),
        missing.alias("missing"),
        sql.when(missing, unit).alias("unit"),
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


_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ends:
    """One namespace (or none) of a source, and the one of the target that it is copied to.

    `owner` is the repository that the data belongs to, empty if that cannot be told.
    """

    source: Place
    target: Place
    owner: str = ""


def ends_of(
    sources: Sequence[Place], target: str, into: str | None, owner: str | None
) -> list[Ends]:
    """Return what goes where; `into` is a namespace of the target, empty for none.

    Raises ValidationError if that makes no sense: a copy onto itself, several into one.
    """
    [base] = places_of(target, [""])
    if not base.indexed:
        raise ValidationError(
            f"{target} is used in place, so nothing can be copied to it",
            hint="Name a bucket, or a directory as file:///path.",
        )
    if into is not None and len(sources) > 1:
        several = ", ".join(repr(source.namespace) for source in sources)
        raise ValidationError(
            f"the namespaces {several} cannot all be copied into {into!r}",
            hint="Copy one at a time, with --namespace, or leave out --into.",
        )
    return [_ends(source, base, into, owner) for source in sources]


def _ends(source: Place, base: Place, into: str | None, owner: str | None) -> Ends:
    namespace = source.namespace if into is None else into
    target = replace(base, namespace=check_new_namespace(namespace) if namespace else "")
    if (source.identity, source.namespace) == (target.identity, target.namespace):
        raise ValidationError(
            f"{source} cannot be copied onto itself", hint="Name another store or another --into."
        )
    return Ends(source, target, owner or _owner_of(source))


def _owner_of(source: Place) -> str:
    """Return the id of the repository that the data of a place belongs to, if anything tells."""
    if source.namespace:
        with source.open() as store:
            manifest = Registry(store).get(source.namespace)
        if manifest is not None and manifest.repo_id:
            return manifest.repo_id
    if not os.path.isdir(source.target):
        return ""
    repo_id = _config_of(source).repo_id
    return "" if repo_id == _UNKNOWN else repo_id


def _config_of(source: Place) -> Config:
    return load(find_repo(source.target, os.environ), os.environ)


# Before something is written -------------------------------------------------------------------


def check_source(source: Place) -> None:
    """Raise IndexDamagedError if there is data, and no index that tells what belongs to it."""
    if not source.indexed:
        return
    with source.open() as store:
        if documents(source, store):
            return
        found = set(folders(store, source.names().remote("")))
    if found.intersection(DATASTORE_SUBDIRS):
        raise IndexDamagedError(
            f"{source} holds data, and no index that tells of it",
            hint="Make one first: `swampstore pipeline reindex` with that store.",
        )


def check_namespace(ends: Ends, store: Store) -> bool:
    """Whether the target's namespace is there already, or none is needed.

    Raises NamespaceTakenError if it is another repository's.
    """
    slug = ends.target.namespace
    if not slug:
        return True
    if not ends.owner:
        raise ValidationError(
            f"nothing tells which repository {ends.source} belongs to, and thus whose the"
            f" namespace {slug!r} will be",
            hint="Give the `repoId` of its .swamp.yaml: --owner REPO_ID.",
        )
    registry = Registry(store)
    registry.check_free(slug, ends.owner)
    return registry.get(slug) is not None


def claim_namespace(ends: Ends, store: Store) -> None:
    """Make the target's namespace that of the repository which the data belongs to."""
    if ends.target.namespace:
        Registry(store).register(ends.target.namespace, ends.owner, to_iso(system_clock()))


def check_new_target(target: Place, store: Store) -> None:
    """Have a store without an index prove that it honours conditions on writes."""
    if not documents(target, store):
        probe(store).check()


# What may go -----------------------------------------------------------------------------------


class Border:
    """Which paths may go from one end to the other."""

    def __init__(self, ends: Ends) -> None:
        self._names = (ends.source.names(), ends.target.names())
        self._is_local = _routing_of(ends.source).is_local
        self._is_renamed = ends.source.namespace != ends.target.namespace
        self._namespaces = _namespaces_of(ends.source) | _namespaces_of(ends.target)

    def why_not(self, rel: str) -> str | None:
        """Return why a path must not go over, None if it may."""
        for names in self._names:
            if reason := names.why_not(rel):
                return reason
        top = rel.partition("/")[0]
        if top in self._namespaces:
            return f"it belongs to the namespace {top!r}"
        if top in DATASTORE_SUBDIRS and self._is_local(rel):
            return "the configuration keeps it on its machine"
        if rel == CATALOG_EXPORT and self._is_renamed:
            return "it tells of another namespace; the next push there writes a new one"
        return None


def _routing_of(source: Place) -> Routing:
    """Return what of a directory that is used in place is not shared; a store has only shared.

    Of one that was not named by a repository nobody knows the settings.
    """
    is_known = not source.indexed and os.path.isdir(source.target)
    return _config_of(source).routing if is_known else Routing()


def _namespaces_of(place: Place) -> set[str]:
    with place.open() as store:
        return {manifest.namespace for manifest in Registry(store).list()}
