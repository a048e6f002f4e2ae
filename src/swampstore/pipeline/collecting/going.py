"""The plan, name by name, together with what the index says about everything that is to go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from swampstore.layout import LATEST, DataRef, ModelRef
from swampstore.pipeline.data_names import data_name, data_version
from swampstore.retention.rules import Removal, VersionFacts
from swampstore.sync.shapes import version_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from swampstore.sync.index_format import Entry

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VERSIONS = "array_sort(collect_list(struct(version, unix_micros(created_at) AS at, size)))"
_FINGERPRINT = "sha2(array_join(array_sort(collect_list(line)), '\n'), 256)"


class Going(NamedTuple):
    """Something of one data name that is to go.

    `fingerprints` tell what the index says about it: by version, or under 0 about the whole name
    if all of it goes.
    """

    removal: Removal
    fingerprints: Mapping[int, str]

    @property
    def ref(self) -> DataRef:
        """The address of the data name."""
        return DataRef(ModelRef(self.removal.model_type, self.removal.model_id), self.removal.name)


def fingerprint(entries: Mapping[str, Entry]) -> str:
    """Return what is another text as soon as one of these entries is another one.

    A commit gives each entry that it touches a new number, or at least a new time.
    """
    lines = sorted(
        f"{rel}\t{entry.sha256 or ''}\t{entry.commit_seq or entry.last_modified}"
        for rel, entry in entries.items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def files_of_name(rels: Iterable[str], name_rel: str) -> Iterator[tuple[str, int]]:
    """Yield the paths that belong to a data name, with their version; 0 stands for the marker.

    What is further below belongs to others: a name can be the beginning of a model's type.
    """
    for rel in rels:
        found = version_file(rel)
        if found is not None:
            if found.name_rel == name_rel:
                yield rel, found.version
        elif rel == f"{name_rel}/{LATEST}":
            yield rel, 0


def going(removals: DataFrame, index: DataFrame) -> DataFrame:
    """Return one row for each name of which something goes, ordered by place and address.

    `removals` are those of a plan, `index` is the table of index entries.
    """
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    name = ["store", "namespace", "name_rel"]
    names = (
        removals.withColumn(
            "name_rel", F.concat_ws("/", F.lit("data"), "type_normalized", "model_id", "data_name")
        )
        .groupBy(*name, "type_normalized", "model_id", "data_name", "reason")
        .agg(F.expr(_VERSIONS).alias("versions"))
    )
    marked = (
        names.select(*name, "reason", "versions.version")
        .join(_entries(index), name)
        .withColumn("unit", F.expr("if(reason IS NULL, of_version, 0)"))
        .where("reason IS NOT NULL OR array_contains(version, of_version)")
        .groupBy(*name, "unit")
        .agg(F.expr(_FINGERPRINT).alias("fingerprint"))
        .groupBy(*name)
        .agg(F.expr("map_from_entries(collect_list(struct(unit, fingerprint)))").alias("units"))
    )
    return names.join(marked, name).orderBy(*name)


def _entries(index: DataFrame) -> DataFrame:
    """Return the entries of data names: the name, the version (0: the marker) and a line."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

    line = F.concat_ws(
        "\t",
        "rel",
        F.coalesce("sha256", F.lit("")),
        F.coalesce(F.col("commit_seq").cast("string"), "last_modified", F.lit("")),
    )
    return index.select(
        "store",
        "namespace",
        data_name().alias("name_rel"),
        F.coalesce(data_version(), F.lit(0)).alias("of_version"),
        line.alias("line"),
    ).where("name_rel IS NOT NULL")


def going_of(row: Row) -> Going:
    """Return a row of `going` as an object."""
    versions = tuple(
        VersionFacts(one.version, _EPOCH + timedelta(microseconds=one.at), one.size)
        for one in row.versions
    )
    removal = Removal(row.type_normalized, row.model_id, row.data_name, versions, row.reason)
    return Going(removal, row.units)
