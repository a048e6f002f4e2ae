"""Threads of this process, or Spark: which of them does the work.

Spark has to be started and has to be told, so it is worth it only from a certain size on; on one
machine, where both have the same cores, that is later than on a cluster, or never.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from swampstore.index.results import Progress, Step, no_progress
from swampstore.notices import notice
from swampstore.pipeline.errors import (
    FilesNotSeenError,
    JavaMissingError,
    JavaTooOldError,
    SparkJobError,
    SparkMissingError,
    SparkStartError,
)
from swampstore.pipeline.settings import Engine, SparkSettings, is_local, settings_of
from swampstore.pipeline.spark.session import session_for
from swampstore.pipeline.transfers import SparkTasks
from swampstore.stores.config import store_config
from swampstore.sync.transfer import THREADS, Transport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.index.workers import Deadline, Done
    from swampstore.repo import Repo
    from swampstore.sync.context import SyncContext
    from swampstore.sync.downloads import Brought, Download, Staging
    from swampstore.sync.uploads import Placed, Upload

Job = Literal["push", "pull", "catalog", "snapshot", "verify", "reindex", "gc", "copy", "report"]
Chosen = Literal["local", "spark"]
NEVER = sys.maxsize


class BreakEven(NamedTuple):
    """From how many files on (names of a catalog, shards of a snapshot) Spark is faster."""

    one_machine: int
    cluster: int


# On one machine Spark and threads have the same cores, and Spark has to be started first. The
# numbers for a cluster are derived, not measured: of 0.2 ms of processor time that threads need for
# a version of a catalog, the driver is left with 0.08 (0.04 if its row is there already), so that
# 20 s to start are won back with some 150,000 versions. Those of pushes and pulls are estimates.
BREAK_EVEN: Mapping[Job, BreakEven] = {
    "push": BreakEven(NEVER, 50_000),
    "pull": BreakEven(NEVER, 50_000),
    "catalog": BreakEven(NEVER, 100_000),
    "snapshot": BreakEven(2_000, 1_000),
    # In processor time, a process verifies an object of a directory in some 55 µs and Spark on two
    # processors in 74, halved. An estimated 9 s to start and warm up are won back with half a
    # million objects, and later by a reindex. But this process holds 0.8 kB of each object, and
    # objects of a bucket cost more, which was not measured. So it does not go as far as it could.
    # On a cluster nothing was measured: a process verifies some 100,000 objects in those 9 s, but
    # of a bucket fewer.
    "verify": BreakEven(100_000, 20_000),
    "reindex": BreakEven(100_000, 20_000),
    # Measured likewise, of a store that answers at once: a process plans a collection or a report
    # with 82 µs an object and 1.8 kB of memory, Spark with 78 µs, halved by two processors. Some
    # 21 s of processor time to start and warm up (a report: 13) are won back with 300,000 objects
    # (170,000). Of a bucket that takes 30 ms for an answer it would be 80,000, computed.
    "gc": BreakEven(100_000, 20_000),
    "report": BreakEven(100_000, 20_000),
    # A process copies a small object between directories in 590 µs, Spark in 830, halved: 60,000
    # objects. Between buckets twice as many answers can be waited for: 18,000, computed.
    "copy": BreakEven(20_000, 10_000),
}


def break_even(engine: Engine, settings: SparkSettings, job: Job) -> int:
    """Return from how many files on a job goes to Spark."""
    match engine:
        case "local":
            return NEVER
        case "spark":
            return 1
        case "auto":
            found = BREAK_EVEN[job]
            return found.cluster if is_cluster(settings) else found.one_machine


def choose(engine: Engine, *, files: int, settings: SparkSettings, job: Job) -> Chosen:
    """Return who does a job with so many files; nothing at all never needs Spark."""
    return "spark" if files >= break_even(engine, settings, job) else "local"


def is_cluster(settings: SparkSettings) -> bool:
    """Whether tasks run elsewhere than in processes of this machine."""
    master = settings.master or settings.conf.get("spark.master") or "local"
    return settings.remote is not None or not is_local(master)


class SparkOnDemand:
    """The Spark session of some work: started when it is first needed, stopped at the end.

    One that is there already is used as it is, and left alone.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._spark: SparkSession | None = None
        self._stack = ExitStack()

    def session(self, *, strict: bool) -> SparkSession | None:
        """Return the session. If it cannot be had, raise if that is `strict`, else say so."""
        if self._spark is None:
            try:
                self._spark = self._stack.enter_context(session_for(self._settings))
            except (JavaMissingError, JavaTooOldError, SparkMissingError, SparkStartError) as error:
                if strict:
                    raise
                notice("working without Spark: %s", error.message)
        return self._spark

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class EngineTransport:
    """A transport that chooses, knowing how much there is to be carried, who carries it.

    `used` says who it was, so far. Give the push or the pull its `progress` as well:
    tasks are told of before their files are. `errors` are those of Spark that end a push or a pull.
    """

    errors = (FilesNotSeenError, SparkJobError)

    def __init__(
        self,
        repo: Repo,
        engine: Engine,
        settings: SparkSettings,
        spark: SparkOnDemand,
        progress: Progress,
    ) -> None:
        self.used: Chosen = "local"
        self._repo = repo
        self._engine: Engine = engine
        self._settings = settings
        self._spark = spark
        self._progress = progress
        self._told = ("", 0, 0)

    def progress(self, step: Step) -> None:
        """Pass a step on, unless a later one of the same phase was passed on before."""
        told = (step.phase, step.total_files, step.files)
        if told[:2] != self._told[:2] or told > self._told:
            self._told = told
            self._progress(step)

    def upload(
        self,
        context: SyncContext,
        uploads: Sequence[Upload],
        sizes: Mapping[str, int],
        deadline: Deadline,
    ) -> Iterator[Done[Upload, Placed]]:
        """Put files into the store."""
        transport = self._transport("push", len(uploads))
        return transport.upload(context, uploads, sizes, deadline)

    def download(
        self,
        context: SyncContext,
        downloads: Sequence[Download],
        staging: Staging,
        deadline: Deadline,
    ) -> Iterator[Done[Download, Brought]]:
        """Fetch objects into files below the staging directory."""
        transport = self._transport("pull", len(downloads))
        return transport.download(context, downloads, staging, deadline)

    def _transport(self, job: Job, files: int) -> Transport:
        if choose(self._engine, files=files, settings=self._settings, job=job) == "local":
            return THREADS
        strict = self._engine == "spark"
        spark = self._spark.session(strict=strict)
        if spark is None:
            return THREADS
        remote = self._repo.config.remote
        assert remote is not None
        self.used = "spark"
        return SparkTasks(
            spark,
            store_config(remote.target, remote.config),
            strict=strict,
            progress=self.progress,
            count=self._repo.connection.counting.add,
        )


@contextmanager
def engine_transport(
    repo: Repo,
    engine: Engine | None,
    *,
    settings: SparkSettings | None = None,
    progress: Progress = no_progress,
) -> Iterator[EngineTransport]:
    """Yield the transport for pushes and pulls of a repository.

    `engine` and `settings` are what the repository says if they are None. If Spark is started for
    this, it is stopped at the end.
    """
    settings = settings or settings_of(repo.config)
    with SparkOnDemand(settings) as spark:
        yield EngineTransport(repo, engine or settings.engine, settings, spark, progress)
