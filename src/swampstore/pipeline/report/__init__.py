"""What a datastore holds, in numbers: tables of usage, and a page that people like to read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from swampstore.errors import NotFoundError, ValidationError
from swampstore.files import disk_errors, replace_file
from swampstore.index.results import Progress, Step
from swampstore.layout import WORKFLOW_RUNS
from swampstore.pipeline.gc.planner import planned
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.report.figures import Figures, SummaryReader, narrowed, run_figures
from swampstore.pipeline.report.local_engine import summary_here
from swampstore.pipeline.report.page import page
from swampstore.pipeline.report.summary import Source, Summary
from swampstore.pipeline.running import spark_errors, watched
from swampstore.pipeline.schemas import write_table
from swampstore.pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Reported:
    """What a report says, and where it is; without `output` nothing was written."""

    output: str | None
    tables_dir: str | None
    summary: Summary
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the totals, the top tens and where the rest is."""
        return {
            "dryRun": self.output is None,
            "report": self.output,
            "tables": self.tables_dir,
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
    directory with each table as Parquet. Without Spark this process sums up, which is faster where
    little is stored; then there are no tables.
    A file is there when all of it is. Raises NotFoundError if there is no directory for it,
    ValidationError if it is one, DiskError, SparkJobError, and what the stores do.
    """
    started = time.monotonic()
    path = None if output is None else _file_to_write(output)
    tables_dir = tables_dir and os.path.abspath(tables_dir)
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
    return Reported(path, tables_dir, summary, time.monotonic() - started)


def _summary(
    spark: SparkSession,
    places: Sequence[Place],
    now: datetime,
    tables_dir: str | None,
    progress: Progress,
) -> Summary:
    sources = [Source(place.identity, place.namespace) for place in places]
    with spark_errors(), _figures(spark, places, now, progress) as figures:
        reader = SummaryReader(
            figures,
            lambda done: progress(Step("summing up", done, SummaryReader.STEPS, 0, 0, "tasks")),
        )
        days, methods = run_figures(Tables(spark, places).outputs(), now)
        summary = replace(reader.summary(sources, now), run_days=days, methods=methods)
        tables = figures.tables() if tables_dir else {}
        for number, (name, table) in enumerate(tables.items(), 1):
            write_table(table, f"{tables_dir}/{name}")
            progress(Step("writing tables", number, len(tables), 0, 0, "tables"))
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


@contextmanager
def _figures(
    spark: SparkSession, places: Sequence[Place], now: datetime, progress: Progress
) -> Iterator[Figures]:
    """Yield the tables, with what they are made of kept in memory until the end of the block."""
    with ExitStack() as stack:

        def keep(frame: DataFrame) -> DataFrame:
            frame.persist()
            stack.callback(frame.unpersist)
            return frame

        versions = keep(narrowed(Tables(spark, places).artifacts()))
        with watched(spark, "reading", tasks_for(spark), progress):
            versions.count()
        plan = stack.enter_context(planned(versions, _run_records(spark, places), now))
        figures = Figures(versions, plan.removals)
        keep(figures.usage)
        keep(figures.duplicates)
        yield figures


def _run_records(spark: SparkSession, places: Sequence[Place]) -> DataFrame:
    """Return the paths of all records of workflow runs, without opening any."""
    indexed = [place for place in places if place.indexed]
    in_place = [place for place in places if not place.indexed]
    frames = [Tables(spark, indexed).index()] if indexed else []
    frames += [Tables(spark, in_place).objects()] if in_place else []
    listed = reduce(
        lambda one, other: one.unionByName(other),
        (frame.select("store", "namespace", "rel") for frame in frames),
    )
    return listed.where(f"rel LIKE '{WORKFLOW_RUNS}/%'")
