"""What garbage collection removes of a table of artifacts, in all namespaces and stores at once.

Spark brings the versions of each name together, in order. Inside its tasks the planner of single
repositories decides about one name after the other, so both always decide the same; see
docs/decisions/0045-one-planner-runs-inside-the-tasks.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from swampstore.catalog.schema import Row
from swampstore.clock import from_micros, to_micros
from swampstore.layout import WORKFLOW_RUN_REL, workflow_run_rel
from swampstore.pipeline.running import forget
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.source.scan import batches
from swampstore.retention.plan import NamePlanner, require_shared
from swampstore.retention.rules import Doubts, Removal
from swampstore.routing import Routing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql import Row as SparkRow

    from swampstore.pipeline.places import Place

PLACE = ("store", "namespace")
NAME = (*PLACE, "type_normalized", "model_id", "data_name")

SAID = (
    *("version", "is_latest", "deferred", "lifecycle", "lifetime", "garbage_collection"),
    *("workflow_id", "workflow_run_id", "size"),
)
# The columns of the table of artifacts that the planner needs.
NEEDED = (*NAME, *SAID, "created_at")
_GIVEN = (*NAME, *SAID, "created", "is_recorded", "created_at")
# Takes the members of a row of the catalog out of these; of those that it does not look at, the
# planner gets the empty text that comes after them.
_AS_ROW = itemgetter(
    *(_GIVEN.index(name) if name in _GIVEN else len(_GIVEN) for name in Row._fields)
)
# A version that goes, or a cause of doubt with how many names it is about.
_DECISIONS = (
    ", ".join(f"{name} string" for name in NAME) + ", version bigint, created bigint, size bigint,"
    " reason string, cause string, names bigint, example string"
)

_NO_DOUBT = (None,) * 3
_NO_VERSION = (None,) * 7


class Plan(NamedTuple):
    """What goes, and what stays in doubt.

    `removals` has a row for each version that goes: the columns of `NAME`, `version`,
    `created_at`, `size` and `reason` (NULL: an old version of a name that stays). `doubts` has
    rows for each cause in each place: the columns of `PLACE`, `cause`, `names` and an `example`.
    """

    removals: DataFrame
    doubts: DataFrame


Routings = Mapping[tuple[str, str], Routing]
"""What repositories keep on their machines, by store and namespace, as far as that is known."""


def routings_of(places: Iterable[Place]) -> Routings:
    """Return what the repositories of these places keep on their machines."""
    known = ((one, one.routing) for one in places)
    return {(one.identity, one.namespace): routing for one, routing in known if routing}


@contextlib.contextmanager
def planned(
    artifacts: DataFrame, runs: DataFrame, now: datetime, routings: Routings
) -> Iterator[Plan]:
    """Decide what goes at the time `now`.

    `runs` has the columns of `PLACE` and the path `rel` of every record of a workflow run that
    there is. The artifacts are read once; Spark keeps the decisions until the end of the block.
    """
    decided = _by_name(artifacts, runs).mapInArrow(_task(now, routings), _DECISIONS).persist()
    try:
        created_at = F.timestamp_micros("created").alias("created_at")
        removals = decided.where("cause IS NULL")
        yield Plan(
            removals.select(*NAME, "version", created_at, "size", "reason"),
            decided.where("cause IS NOT NULL").select(*PLACE, "cause", "names", "example"),
        )
    finally:
        forget(decided)


def warnings(doubts: Iterable[SparkRow]) -> tuple[str, ...]:
    """Return the sentences about the doubts of one place, as at home."""
    told = Doubts("data name")
    for doubt in doubts:
        told.add(doubt.cause, doubt.example, doubt.names)
    return told.warnings()


def _by_name(artifacts: DataFrame, runs: DataFrame) -> DataFrame:
    """Return what the planner must know of each version, those of a name together, ascending."""
    record = F.format_string(WORKFLOW_RUN_REL.replace("{}", "%s"), "workflow_id", "workflow_run_id")
    records = runs.select(*PLACE, F.col("rel").alias("record")).distinct()
    records = records.withColumn("is_recorded", F.expr("true"))
    said = artifacts.select(
        *NAME,
        *SAID[:-1],
        F.coalesce("size", F.lit(0)).alias("size"),
        F.unix_micros("created_at").alias("created"),
        record.alias("record"),
    )
    recorded = said.join(records, [*PLACE, "record"], "left")
    return (
        recorded.select(*NAME, *SAID, "created", "is_recorded")
        .repartition(*NAME)
        .sortWithinPartitions(*NAME, "version")
    )


def _task(
    now: datetime, routings: Routings
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what Spark calls with the versions of the names that a task has."""
    schema = arrow_schema(_DECISIONS)

    def run(versions: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(decisions(_rows(versions), now, routings), schema)

    return run


def _rows(versions: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in versions:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def decisions(
    versions: Iterable[tuple[Any, ...]], now: datetime, routings: Routings
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `_DECISIONS` for versions in the order of their names."""
    place_of, name_of = itemgetter(slice(len(PLACE))), itemgetter(slice(len(NAME)))
    for place, names in groupby(versions, place_of):
        recorded: dict[tuple[str, str], bool] = {}
        planner = NamePlanner(now, _lookup(recorded, routings.get(place)))
        for name, group in groupby(names, name_of):
            rows = []
            for values in group:
                row = _row(values)
                rows.append(row)
                recorded[row.workflow_id, row.workflow_run_id] = values[-1] is True
            removal = planner.removal(rows)
            if removal is not None:
                yield from ((*name, *one, *_NO_DOUBT) for one in _removed(removal))
            recorded.clear()
        for cause, (count, example) in planner.doubts.cases.items():
            yield (*place, *_NO_VERSION, cause, count, example)


def _removed(removal: Removal) -> Iterator[tuple[int, int, int, str | None]]:
    for version, created_at, size in removal.versions:
        yield version, to_micros(created_at), size, removal.reason


def _row(values: tuple[Any, ...]) -> Row:
    """Return a version as a catalog would have it, as far as the planner looks."""
    created = values[-2]
    # A table has no time where the metadata has one that is none.
    text = "" if created is None else from_micros(created).isoformat()
    return Row._make(_AS_ROW((*values, text, "")))


def _lookup(
    recorded: dict[tuple[str, str], bool], routing: Routing | None
) -> Callable[[str, str], bool]:
    def run_exists(workflow_id: str, run_id: str) -> bool:
        rel = workflow_run_rel(workflow_id, run_id)  # raises where there cannot be any record
        if recorded[workflow_id, run_id]:
            return True
        if routing is not None:
            require_shared(routing, rel)
        return False

    return run_exists
