"""Carrying files between a cache and its store with Spark tasks.

A task does with the files of some shards what threads of this process would do, and what becomes of
that is settled here, by the same push or pull. So a task that fails, is run again or is run twice
at once does no harm: a second upload finds the object of the first, and a second download is
another staged file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from swampstore.clock import Clock
from swampstore.index.partitions import partition_of
from swampstore.index.path_map import Names
from swampstore.index.results import Progress, Step
from swampstore.index.workers import Deadline, Done
from swampstore.notices import notice
from swampstore.pipeline.errors import SparkJobError
from swampstore.pipeline.planning import bins, parallelism, tasks_for
from swampstore.pipeline.running import NoSharedDir, missing_shared_dir, run_tasks, stoppable
from swampstore.stores.config import StoreConfig
from swampstore.stores.protocol import Store
from swampstore.stores.retry import RetryingStore
from swampstore.stores.wrapper import CountingStore, Tally
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Brought, Download, Downloader, Staging, fetch_all
from swampstore.sync.transfer import THREADS
from swampstore.sync.uploads import Placed, Upload, Uploaded, Uploader, put_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T", Upload, Download)
# What is settled together: whoever is stopped repeats no more than that.
_WAVE_FILES = 20_000
_WAVE_BYTES = 4 << 30
# What a file costs besides its bytes, in bytes that could have been moved meanwhile.
_FILE_WEIGHT = 256 << 10


class Left(NamedTuple):
    """Files that a task could not see, and where that was."""

    files: Sequence[Any]
    where: NoSharedDir


@dataclass(frozen=True, slots=True)
class Site:
    """What a task needs to know besides its files; it travels there as it is."""

    config: StoreConfig
    names: Names
    clock: Clock
    concurrency: int
    staging: str

    def upload(self, uploads: Sequence[Upload]) -> Iterator[Done[Upload, Placed] | Left | Tally]:
        """Put the files of some shards into the store: a task. At last, tell what it cost."""
        if where := missing_shared_dir(self.staging):
            yield Left(uploads, where)
            return
        with self._opened() as (store, counting):
            uploader = Uploader(store, self.names, self.clock)
            yield from put_all(uploader, uploads, self.concurrency, Deadline())
            yield counting.tally()

    def download(
        self, downloads: Sequence[Download]
    ) -> Iterator[Done[Download, Brought] | Left | Tally]:
        """Fetch the objects of some shards into files: a task. At last, tell what it cost."""
        if where := missing_shared_dir(self.staging):
            yield Left(downloads, where)
            return
        with self._opened() as (store, counting):
            downloader = Downloader(store, self.names, Staging(self.staging))
            yield from fetch_all(downloader, downloads, self.concurrency, Deadline())
            yield counting.tally()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Store, CountingStore]]:
        counting = CountingStore(self.config.open())
        with RetryingStore(counting) as store:
            yield store, counting


class SparkTasks:
    """A transport that has Spark do the work.

    `count` is told what the tasks asked of the store. Files that executors do not see are an error
    if that is `strict`; else threads of this process carry them.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: StoreConfig,
        *,
        strict: bool,
        progress: Progress,
        count: Callable[[Tally], None],
    ) -> None:
        self._spark = spark
        self._config = config
        self._strict = strict
        self._progress = progress
        self._count = count
        self._blind: set[NoSharedDir] = set()

    def upload(
        self,
        context: SyncContext,
        uploads: Sequence[Upload],
        sizes: Mapping[str, int],
        deadline: Deadline,
    ) -> Iterator[Done[Upload, Placed]]:
        """Put files into the store."""
        cargo = Cargo("push", uploads, lambda one: sizes[one.rel])
        left: list[Upload] = []
        began_ns = time.time_ns()
        with Staging(context.names.cache_dir) as staging:
            site = self._site(context, context.limits.push_concurrency, staging)
            for done in self._carried(site.upload, cargo, deadline, left, site):
                yield _recorded_by(done, began_ns)
        yield from THREADS.upload(context, left, sizes, deadline)

    def download(
        self,
        context: SyncContext,
        downloads: Sequence[Download],
        staging: Staging,
        deadline: Deadline,
    ) -> Iterator[Done[Download, Brought]]:
        """Fetch objects into files below the staging directory."""
        cargo = Cargo("pull", downloads, lambda one: one.entry.size)
        left: list[Download] = []
        site = self._site(context, context.limits.pull_concurrency, staging)
        yield from self._carried(site.download, cargo, deadline, left, site)
        yield from THREADS.download(context, left, staging, deadline)

    def _site(self, context: SyncContext, concurrency: int, staging: Staging) -> Site:
        each = max(1, concurrency // parallelism(self._spark))
        return Site(self._config, context.names, context.clock, each, staging.path)

    def _carried(
        self,
        work: Callable[[Sequence[T]], Iterable[Any]],
        cargo: Cargo[T],
        deadline: Deadline,
        left: list[T],
        site: Site,
    ) -> Iterator[Any]:
        """Yield what tasks have done with the files, and collect those that they did not see."""
        for wave in cargo.waves(tasks_for(self._spark)):
            progress = cargo.in_files(wave, self._progress)
            with ending(self._spark, deadline):
                results = list(run_tasks(self._spark, work, wave, label="carry", progress=progress))
            for result in results:
                if isinstance(result, Tally):
                    self._count(result)
                elif isinstance(result, Left):
                    self._leave(result, site)
                    left.extend(result.files)
                else:
                    yield result

    def _leave(self, left: Left, site: Site) -> None:
        error = left.where.error(site.names.cache_dir)
        if self._strict:
            raise error
        if left.where not in self._blind:
            self._blind.add(left.where)
            notice("%s; threads of this process do that part", error.message)


def _recorded_by(done: Done[Upload, Placed], began_ns: int) -> Done[Upload, Placed]:
    """Let what a file looked like count as recorded before the tasks began, by our own clock.

    Another machine's clock may be ahead, and files would be believed that are too young for that.
    """
    if not isinstance(done.result, Uploaded):
        return done
    known = done.result.known._replace(recorded_ns=min(began_ns, done.result.known.recorded_ns))
    return done._replace(result=done.result._replace(known=known))


@contextlib.contextmanager
def ending(spark: SparkSession, deadline: Deadline) -> Iterator[None]:
    """Stop the Spark jobs of a block when the time is over, and raise SyncTimeoutError then."""
    left = deadline.remaining()
    if left is None:
        yield
        return
    with stoppable(spark) as stop:
        timer = threading.Timer(left, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        except SparkJobError:
            deadline.remaining()
            raise
        finally:
            timer.cancel()


class Cargo(Generic[T]):
    """The files of one transfer, cut into waves, and a wave into tasks, shard by shard.

    `size` says how many bytes each of them has.
    """

    def __init__(self, phase: str, files: Sequence[T], size: Callable[[T], int]) -> None:
        self._phase = phase
        self._files: list[T] = sorted(files, key=lambda one: partition_of(one.rel))
        self._size: Callable[[T], int] = size
        self._bytes = sum(map(size, files))
        self._gone_files = self._gone_bytes = 0

    def waves(self, tasks: int) -> Iterator[list[list[T]]]:
        """Yield waves, each cut into about so many tasks of about the same weight."""
        for wave in self._waves():
            pieces = self._pieces(wave, max(1, self._weight(wave) // tasks))
            packed = bins(pieces, self._weight, tasks)
            yield [[file for piece in task for file in piece] for task in packed]

    def in_files(self, wave: Sequence[Sequence[T]], progress: Progress) -> Progress:
        """Turn progress in tasks of a wave into progress in files."""
        before_files, before_bytes = self._gone_files, self._gone_bytes
        files = sum(map(len, wave))
        size = sum(self._size(file) for task in wave for file in task)
        self._gone_files += files
        self._gone_bytes += size

        def reported(step: Step) -> None:
            share = step.files / max(1, step.total_files)
            done = before_files + int(share * files)
            done_bytes = before_bytes + int(share * size)
            progress(Step(self._phase, done, len(self._files), done_bytes, self._bytes))

        return reported

    def _weight(self, files: Sequence[T]) -> int:
        return sum(self._size(file) + _FILE_WEIGHT for file in files)

    def _waves(self) -> Iterator[list[T]]:
        wave: list[T] = []
        size = 0
        for file in self._files:
            wave.append(file)
            size += self._size(file)
            if len(wave) >= _WAVE_FILES or size >= _WAVE_BYTES:
                yield wave
                wave, size = [], 0
        if wave:
            yield wave

    def _pieces(self, wave: Sequence[T], most: int) -> Iterator[list[T]]:
        """Yield the shards of a wave; one that is more than a task's share is several pieces."""
        for _, shard in groupby(wave, key=lambda one: partition_of(one.rel)):
            piece: list[T] = []
            weight = 0
            for file in shard:
                piece.append(file)
                weight += self._size(file) + _FILE_WEIGHT
                if weight >= most:
                    yield piece
                    piece, weight = [], 0
            if piece:
                yield piece
