"""Catalogs in bulk: the local one from the files, and those of any namespaces as Parquet.

Tasks read names ahead; the rows are stored here, a batch at a time, and only those that are surely
still what the files say. Executors never see SQLite.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.walk import data_names
from swampstore.catalog import rebuild as rebuilding
from swampstore.catalog.readings import Reading
from swampstore.errors import DiskError
from swampstore.files import Tree
from swampstore.layout import DataRef, Routing
from swampstore.notices import notice
from swampstore.pipeline.engines import NEVER, Chosen, SparkOnDemand, break_even, choose
from swampstore.pipeline.planning import tasks_for
from swampstore.pipeline.running import run_tasks, spark_errors
from swampstore.pipeline.seeing import Unseen, unseen
from swampstore.pipeline.settings import settings_of
from swampstore.sync.downloads import Staging
from swampstore.sync.report import no_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.places import Place
    from swampstore.pipeline.settings import Engine, SparkSettings
    from swampstore.repo import Repo

# A wave is as many names as have about so many versions: they are all in memory at once.
_WAVE_VERSIONS = 50_000
_FIRST_WAVE = 5_000
_LARGEST_WAVE = 50_000
# Names that are pickled together: they have much in common.
_TOGETHER = 100


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild of the local catalog found, and who read the files."""

    names: int
    versions: int
    removed: int
    unreadable: int
    engine: Chosen
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {
            "names": self.names,
            "versions": self.versions,
            "removed": self.removed,
            "unreadable": self.unreadable,
            "engine": self.engine,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Exported:
    """Catalogs that were written as Parquet: rows by namespace."""

    output: str
    rows: dict[str, int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {"output": self.output, "rows": self.rows, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where data names are, as far as a task needs to know; it travels there as it is."""

    base: str
    local: str
    routing: Routing
    namespace: str
    staging: tuple[str, ...]
    began_ns: int

    def read(self, refs: Sequence[DataRef]) -> Iterator[list[Reading] | _Left]:
        """Read some names: a task."""
        for path in self.staging:
            if where := unseen(path):
                yield _Left(tuple(refs), where)
                return
        tree = Tree(self.base, self.local, self.routing, announce=_never)
        readings = rebuilding.read_slice(tree, self.namespace, refs, self.began_ns)
        while some := list(islice(readings, _TOGETHER)):
            yield some


@dataclass(frozen=True, slots=True)
class _Left:
    """Names that a task could not see, and where that was."""

    refs: tuple[DataRef, ...]
    where: Unseen


def _never(rel: str) -> None:
    raise AssertionError(f"{rel} is only to be read")


def rebuild(
    repo: Repo,
    *,
    engine: Engine | None = None,
    settings: SparkSettings | None = None,
    progress: rebuilding.Progress | None = None,
    dry_run: bool = False,
) -> Rebuilt:
    """Make the rows of the own namespace equal to what is on disk, as `Repo.rebuild_catalog` does.

    `engine` and `settings` are the repository's if they are None. With `dry_run`, names are only
    counted. Raises FilesNotSeenError if Spark was asked for and its executors do not see the files.
    """
    began = time.monotonic()
    settings = settings or settings_of(repo.config)
    if dry_run:
        unreadable: list[str] = []
        names = sum(1 for _ in data_names(repo.tree, lambda place, _: unreadable.append(place)))
        chosen = choose(engine or settings.engine, files=names, settings=settings, job="catalog")
        seconds = round(time.monotonic() - began, 3)
        return Rebuilt(names, 0, 0, len(unreadable), chosen, seconds)
    with SparkOnDemand(settings) as spark:
        reader = EarlyReader(repo, engine or settings.engine, settings, spark)
        found = rebuilding.rebuild(repo.catalog, repo.mutations, progress, reader.read)
    return Rebuilt(*found, reader.used, round(time.monotonic() - began, 3))


class EarlyReader:
    """Has Spark read names ahead of their batches, if there are enough of them.

    `used` says who has read them.
    """

    def __init__(
        self, repo: Repo, engine: Engine, settings: SparkSettings, spark: SparkOnDemand
    ) -> None:
        self.used: Chosen = "local"
        self._tree = repo.tree
        self._namespace = repo.config.namespace
        self._enough = break_even(engine, settings, "catalog")
        self._strict = engine == "spark"
        self._spark = spark

    def read(self, refs: Iterable[DataRef]) -> Iterator[Reading]:
        """Yield each name, with what was read of it."""
        if self._enough == NEVER:
            return map(Reading, refs)
        names = iter(refs)
        first = list(islice(names, self._enough))
        if len(first) < self._enough:
            return map(Reading, first)
        every = chain(first, names)
        spark = self._spark.session(strict=self._strict)
        return map(Reading, every) if spark is None else self._read(spark, every)

    def _read(self, spark: SparkSession, refs: Iterator[DataRef]) -> Iterator[Reading]:
        self.used = "spark"
        size = _FIRST_WAVE
        while wave := list(islice(refs, size)):
            readings = self._read_wave(spark, wave)
            yield from readings
            versions = sum(len(one.rows) for one in readings)
            size = min(_LARGEST_WAVE, _WAVE_VERSIONS * len(wave) // max(versions, len(wave)) + 1)

    def _read_wave(self, spark: SparkSession, wave: list[DataRef]) -> list[Reading]:
        count = tasks_for(spark)
        slices = [wave[start::count] for start in range(min(count, len(wave)))]
        try:
            with self._shelf() as shelf:
                results = run_tasks(spark, shelf.read, slices, label="catalog", tell=no_progress)
                return [reading for one in results for reading in self._readings(one)]
        except DiskError as error:
            if self._strict:
                raise
            notice("reading without Spark: %s", error.message)
            return [Reading(ref) for ref in wave]

    def _readings(self, result: list[Reading] | _Left) -> Iterable[Reading]:
        if isinstance(result, list):
            return result
        error = result.where.error(self._tree.base)
        if self._strict:
            raise error
        notice("%s; this process reads that part", error.message)
        return map(Reading, result.refs)

    @contextlib.contextmanager
    def _shelf(self) -> Iterator[Shelf]:
        """Yield where the names are, with something to be seen in each tier that has some."""
        tree = self._tree
        tiers = [place.removesuffix("/data") for place in tree.places("data")]
        with contextlib.ExitStack() as stack:
            paths = [stack.enter_context(Staging(tier)).path for tier in tiers]
            began_ns = min(os.stat(path).st_mtime_ns for path in paths)
            routing = tree.routing
            yield Shelf(tree.base, tree.local, routing, self._namespace, tuple(paths), began_ns)


def export(
    spark: SparkSession, places: Sequence[Place], output: str, *, dry_run: bool = False
) -> Exported:
    """Write the catalogs of some places as one Parquet directory, in place of what is there.

    It has the columns of the table `artifacts`. With `dry_run`, rows are only counted. Raises
    DiskError, SparkJobError.
    """
    from swampstore.pipeline.findings import write_findings
    from swampstore.pipeline.tables import Tables

    began = time.monotonic()
    with spark_errors():
        artifacts = Tables(spark, places).artifacts()
        if not dry_run:
            write_findings(artifacts, output)
            artifacts = spark.read.parquet(os.path.abspath(output))
        counted = artifacts.groupBy("namespace").count().collect()
    rows = {place.namespace: 0 for place in places} | {row[0]: row[1] for row in counted}
    return Exported(output, rows, round(time.monotonic() - began, 3))
