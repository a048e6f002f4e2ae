"""What a datastore holds, in numbers: tables of usage, and a page that people like to read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from swampstore.errors import NotFoundError, ValidationError
from swampstore.files import disk_errors, replace_file
from swampstore.index.results import Progress, Step
from swampstore.layout import WORKFLOW_RUNS
from swampstore.pipeline.evidence.local_engine import objects_in
from swampstore.pipeline.gc.planner import Routings, planned, routings_of
from swampstore.pipeline.metrics import NO_METRICS, Meter, Metrics, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins, tasks_for
from swampstore.pipeline.report.figures import (
    COLUMNS,
    RUN_COLUMNS,
    Figures,
    SummaryReader,
    narrowed,
    run_figures,
)
from swampstore.pipeline.report.local_engine import Gathered, summary_here, summed_up
from swampstore.pipeline.report.page import page
from swampstore.pipeline.report.summary import Source, Summary
from swampstore.pipeline.running import attentively, forget, run_tasks, spark_errors, watched
from swampstore.pipeline.schemas import arrow_schema, write_table
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.source.objects import Objects
from swampstore.pipeline.source.records import Outputs
from swampstore.pipeline.source.scan import Table
from swampstore.pipeline.tables import read_by_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# So many objects are summed up by the driver, once tasks have read what is told of them: Spark
# takes ten seconds to sum up anything at all, and these take 100 MB.
_FEW = 100_000
# With fewer, another worker takes longer to start than to read them, also from a store far away.
_WORTH_A_TASK = 500
_PATH = ("store", "namespace", "rel")
_RECORDS = f"{WORKFLOW_RUNS}/"


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report says, and where it is; without `output` nothing was written.

    `metrics` tell what was asked of the stores.
    """

    output: str | None
    tables_dir: str | None
    summary: Summary
    seconds: float
    metrics: Metrics = NO_METRICS

    def to_json(self) -> dict[str, Any]:
        """Return the totals, the top tens and where the rest is."""
        return {
            "dryRun": self.output is None,
            "report": self.output,
            "tables": self.tables_dir,
            "metrics": self.metrics.to_json(),
            "seconds": round(self.seconds, 3),
            **self.summary.to_json(),
        }


def report(
    spark: SparkSession | None,
    places: Sequence[Place],
    *,
    now: datetime,
    output: str | None,
    tables_dir: str | None = None,
    progress: Progress,
) -> Reported:
    """Write a page about everything in these places, as of `now`, to the file `output`.

    Without a file there is only the summary. The artifacts are read once. `tables_dir` becomes a
    directory with each table as Parquet. Without Spark this process reads and sums up, which is
    faster where little is stored; then there are no tables.
    A file is there when all of it is. Raises NotFoundError if there is no directory for it,
    ValidationError if it is one, DiskError, SparkJobError, and what the stores do.
    """
    started, meter = time.monotonic(), Meter(spark)
    path = None if output is None else _file_to_write(output)
    tables_dir = tables_dir and os.path.abspath(tables_dir)
    places = metered(places, meter)
    if spark is None:
        if tables_dir is not None:
            raise ValidationError(
                "the tables of a report are written by Spark", hint="Leave out --engine local."
            )
        summary = summary_here(places, now)
    else:
        summary = _summary(spark, places, now, tables_dir, progress)
    if path is not None:
        with disk_errors(path):
            replace_file(path, page(summary).encode(), durable=False)
    return Reported(path, tables_dir, summary, time.monotonic() - started, meter.read())


def _summary(
    spark: SparkSession,
    places: Sequence[Place],
    now: datetime,
    tables_dir: str | None,
    progress: Progress,
) -> Summary:
    sources = [Source(place.identity, place.namespace) for place in places]
    objects = objects_in(places, _FEW) if tables_dir is None else _FEW
    if objects < _FEW:
        tasks = min(tasks_for(spark), 1 + objects // _WORTH_A_TASK)
        return summed_up(places, _gathered(spark, places, tasks, progress), now)
    tables = _Read.of(spark, places)
    with spark_errors(), _figures(spark, tables, now, progress) as figures:
        reader = SummaryReader(
            figures,
            lambda done: progress(Step("summing up", done, SummaryReader.STEPS, 0, 0, "tasks")),
        )
        days, methods = run_figures(tables.outputs, now)
        summary = replace(reader.summary(sources, now), run_days=days, methods=methods)
        written = figures.tables() if tables_dir else {}
        for number, (name, table) in enumerate(written.items(), 1):
            write_table(table, f"{tables_dir}/{name}")
            progress(Step("writing tables", number, len(written), 0, 0, "tables"))
    return summary


def _file_to_write(output: str) -> str:
    """Return the absolute path; find out before the work whether there is a place for it."""
    path = os.path.abspath(output)
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        raise NotFoundError(
            f"there is no directory {directory}", hint="Make it, or write to another one."
        )
    if os.path.isdir(path):
        raise ValidationError(f"{path} is a directory", hint="Name a file in it.")
    return path


class _Read(NamedTuple):
    """What a report is made of, as tasks read it: no more columns of it than are needed."""

    artifacts: DataFrame
    records: DataFrame
    outputs: DataFrame
    routings: Routings

    @classmethod
    def of(cls, spark: SparkSession, places: Sequence[Place]) -> Self:
        """Return the tables of some places; nothing is read yet."""
        return cls(
            read_by_tasks(spark, Artifacts(columns=COLUMNS), places, COLUMNS),
            _run_records(spark, places),
            read_by_tasks(spark, Outputs(), places, RUN_COLUMNS),
            routings_of(places),
        )


class _Part(NamedTuple):
    """What a task reads of one of the tables, which is the one of this number in `Gathered`."""

    number: int
    table: Table[Any]
    columns: Sequence[str]
    place: Place
    piece: Any

    def rows(self) -> list[dict[str, Any]]:
        """Read it."""
        schema, names = arrow_schema(self.table.schema), list(self.columns)
        with self.place.open() as store:
            found = self.table.batches(self.place, self.piece, store, schema)
            return [row for batch in found for row in batch.select(names).to_pylist()]


def _gathered(
    spark: SparkSession, places: Sequence[Place], tasks: int, progress: Progress
) -> Gathered:
    """Have tasks read all of it, in one job: a job takes Spark longer than reading little."""
    parts: list[_Part] = []
    for place in places:
        listing = Index() if place.indexed else Objects()
        with place.open() as store:
            for number, (table, columns) in enumerate(
                (
                    (Artifacts(columns=COLUMNS), COLUMNS),
                    (listing, _PATH),
                    (Outputs(), RUN_COLUMNS),
                )
            ):
                plan = table.plan(place, store, tasks)
                parts += [_Part(number, table, columns, place, piece) for piece in plan]
    loads = bins(parts, lambda _: 1, tasks)
    read: tuple[list[Any], list[Any], list[Any]] = [], [], []
    for number, rows in run_tasks(spark, _read, loads, label="reading", progress=progress):
        read[number].extend(rows)
    return Gathered(*read)


def _read(parts: Iterable[_Part]) -> Iterator[tuple[int, list[Any]]]:
    """Read some parts; of paths only those of records, without opening any."""
    for part in parts:
        rows: list[Any] = part.rows()
        if part.columns == _PATH:
            paths = (row for row in rows if (row["rel"] or "").startswith(_RECORDS))
            rows = [tuple(row.values()) for row in paths]
        yield part.number, rows


@contextmanager
def _figures(
    spark: SparkSession, tables: _Read, now: datetime, progress: Progress
) -> Iterator[Figures]:
    """Yield the tables, with what they are made of kept in memory until the end of the block."""
    with ExitStack() as stack:

        def keep(frame: DataFrame) -> DataFrame:
            frame.persist()
            stack.callback(forget, frame)
            return frame

        versions = keep(narrowed(tables.artifacts))
        with watched(spark, "reading", tasks_for(spark), progress):
            attentively(spark, versions.count)
        plan = stack.enter_context(planned(versions, tables.records, now, tables.routings))
        figures = Figures(versions, plan.removals)
        keep(figures.usage)
        keep(figures.duplicates)
        yield figures


def _run_records(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Return the paths of all records of workflow runs, without opening any."""
    indexed = [place for place in places if place.indexed]
    in_place = [place for place in places if not place.indexed]
    frames = [read_by_tasks(spark, Index(), indexed, _PATH)] if indexed else []
    frames += [read_by_tasks(spark, Objects(), in_place, _PATH)] if in_place else []
    listed = reduce(lambda one, other: one.unionByName(other), frames)
    return listed.where(f"rel LIKE '{_RECORDS}%'")
