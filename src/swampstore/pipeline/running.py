"""Running a function on many items as Spark tasks, with progress and a way to stop.

Works on a classic session and through Spark Connect. A task that is tried again, or run twice at
once, counts once; the function must not mind.

A task that works on files of the driver makes sure that it sees the very files that are meant, and
not others of the same name: the driver has a staging directory beside them, whose name nobody could
guess. Whoever sees that directory sees the files.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from swampstore.errors import NewerFormatError, SwampstoreError
from swampstore.formats import UPDATE
from swampstore.index.results import Progress, Step
from swampstore.pipeline.errors import FilesNotSeenError, SparkJobError
from swampstore.pipeline.spark.session import silence

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")
_RESULT = "result binary"
_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"  # what the pages of Spark show of a job
_LOOK_EVERY = 0.5
_WAVES_AHEAD = 2
# How Spark tells of what Python raised: one of ours wherever it is, any other after these words.
_RAISED = re.compile(r"(\bswampstore(?:\.\w+)+: .+)|from the Python worker:\s+(\S.*)")


def run_tasks(
    spark: SparkSession,
    work: Callable[[T], Iterable[R]],
    items: Sequence[T],
    *,
    label: str,
    progress: Progress,
) -> Iterator[R]:
    """Yield what `work` yields for each item, one task per item, when all of them are done.

    Errors of ours that a task raises are raised here as they are; anything else is a
    SparkJobError. Ctrl-C stops the tasks.
    """
    if items:
        yield from _results_of(_collected(spark, work, items, label, progress))


def run_waves(
    spark: SparkSession,
    work: Callable[[T], Iterable[R]],
    waves: Iterable[Sequence[T]],
    *,
    label: str,
    progress: Progress,
) -> Generator[Iterator[R]]:
    """Yield what `run_tasks` yields for one wave of items after the other.

    Two waves are on their way while the caller is busy with the results of one, or the next is cut,
    so the results of three are in memory. A wave must not be empty. Closing this stops what runs.
    """
    with stoppable(spark) as stop:
        try:
            answers: deque[Callable[[], list[Any]]] = deque()
            for items in waves:
                action = partial(_collected, spark, work, items, label, progress)
                answers.append(_begun(spark, action))
                if len(answers) > _WAVES_AHEAD:
                    yield _results_of(answers.popleft()())
            while answers:
                yield _results_of(answers.popleft()())
        except BaseException:
            stop()
            raise


def _collected(
    spark: SparkSession,
    work: Callable[[T], Iterable[R]],
    items: Sequence[T],
    label: str,
    progress: Progress,
) -> list[Any]:
    """Return the pickled results of a task per item, as rows of one column."""
    from pyspark import cloudpickle

    task = _task(work, [cloudpickle.dumps(item) for item in items])
    count = len(items)
    frame = spark.range(0, count, 1, count).mapInArrow(task, _RESULT)
    with watched(spark, label, count, progress):
        return attentively(spark, frame.collect)


def _results_of(rows: list[Any]) -> Iterator[Any]:
    """Yield results one by one; the pickle of each is let go before the next one is made."""
    from pyspark import cloudpickle

    rows.reverse()
    while rows:
        result = cloudpickle.loads(unpacked(rows.pop()[0]))
        if isinstance(result, SwampstoreError):
            raise result
        yield result


def _task(
    work: Callable[[T], Iterable[R]], payloads: list[bytes]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what Spark calls with the numbers of the items that a task has."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import cloudpickle

        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = _results(work, cloudpickle.loads(payloads[number]))
                pickles = (packed(cloudpickle.dumps(result)) for result in results)
                yield pa.RecordBatch.from_arrays([pa.array(pickles, pa.binary())], ["result"])

    return run


def packed(data: bytes) -> bytes:
    """Compress what travels; the JVM takes longer over bytes than this does."""
    import pyarrow as pa

    small: bytes = pa.compress(data, codec="lz4_raw", asbytes=True)
    return len(data).to_bytes(8) + small


def unpacked(data: bytes) -> bytes:
    """Return what was packed."""
    import pyarrow as pa

    size = int.from_bytes(data[:8])
    found: bytes = pa.decompress(memoryview(data)[8:], size, codec="lz4_raw", asbytes=True)
    return found


def _results(work: Callable[[T], Iterable[R]], item: T) -> Iterator[R | SwampstoreError]:
    try:
        yield from work(item)
    except SwampstoreError as error:
        yield error


@contextlib.contextmanager
def watched(spark: SparkSession, label: str, tasks: int, progress: Progress) -> Iterator[None]:
    """Tell how far the Spark jobs of a block are, and stop them if the block is interrupted."""
    group = f"swampstore-{uuid.uuid4()}"
    with stoppable(spark) as stop:
        try:
            with _counted(spark, group, label, tasks, progress), spark_errors():
                yield
            progress(Step(label, tasks, tasks, 0, 0, "tasks"))
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, or somebody wants us to end
                _quickly(partial(_stopped, spark, stop))
            raise


def _stopped(spark: SparkSession, stop: Callable[[], object]) -> None:
    silence(spark)
    stop()


def _quickly(stop: Callable[[], object]) -> None:
    """Ask something of the JVM without waiting for long until it has heard it."""

    def quietly() -> None:
        with contextlib.suppress(Exception):  # it may be gone
            stop()

    thread = threading.Thread(target=quietly, name="stop", daemon=True)
    thread.start()
    thread.join(_LOOK_EVERY)


def attentively(spark: SparkSession, action: Callable[[], R]) -> R:
    """Return what an action of Spark returns, waiting for it in a way that hears Ctrl-C.

    Another thread does it: a signal would cut the line to the JVM in the middle of an answer.
    """
    if threading.current_thread() is not threading.main_thread():
        return action()
    return _begun(spark, action)()


def collected(frame: DataFrame) -> list[Any]:
    """Return the rows of a frame; whoever interrupts that does not wait for them."""
    return attentively(frame.sparkSession, frame.collect)


def iterated(frame: DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame in the same way; no more than a partition is in memory."""
    yield from attentively(frame.sparkSession, partial(_partition_by_partition, frame))


def _partition_by_partition(frame: DataFrame) -> Iterator[Any]:
    # The JVM never lets go of a job that belongs to a query which has ended, nor of its rows. All
    # jobs by which a frame hands over its partitions are such; those of its RDD are of no query.
    try:
        _ = frame.sparkSession.sparkContext
    except Exception:  # noqa: BLE001 - Spark Connect has none, and says so in its own way
        return cast("Iterator[Any]", frame.toLocalIterator())
    return cast("Iterator[Any]", frame.rdd.toLocalIterator())


def forget(frame: DataFrame) -> None:
    """Let Spark forget what it keeps of a frame, without waiting for long.

    While it is still reading what it is to keep, it would not answer before it has read all of it.
    """
    _quickly(frame.unpersist)


def _begun(spark: SparkSession, action: Callable[[], R]) -> Callable[[], R]:
    """Let another thread do something with Spark; return what waits for its answer."""
    from pyspark import InheritableThread

    answers: queue.SimpleQueue[tuple[R] | BaseException] = queue.SimpleQueue()

    def act() -> None:
        try:
            answers.put((action(),))
        except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
            answers.put(error)

    def answer() -> R:
        found = answers.get()
        if isinstance(found, BaseException):
            raise found
        return found[0]

    InheritableThread(act, session=spark, name="action", daemon=True).start()
    return answer


@contextlib.contextmanager
def stoppable(spark: SparkSession) -> Iterator[Callable[[], object]]:
    """Yield what stops the Spark jobs of a block, called from whatever thread."""
    tag = f"swampstore-{uuid.uuid4()}"
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - Spark Connect has none, and says so in its own way
        spark.addTag(tag)
        try:
            yield partial(spark.interruptTag, tag)
        finally:
            spark.removeTag(tag)
        return
    # The tags of a session are not those of the jobs that it starts for Python.
    context.addJobTag(tag)
    try:
        yield partial(context.cancelJobsWithTag, tag)
    finally:
        context.removeJobTag(tag)


@contextlib.contextmanager
def _counted(
    spark: SparkSession, group: str, label: str, tasks: int, progress: Progress
) -> Iterator[None]:
    """Count the finished tasks of a block now and then; Spark Connect cannot tell them."""
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - it says so in its own way
        yield
        return
    over = threading.Event()
    arguments = (context.statusTracker(), group, label, tasks, progress, over)
    watcher = threading.Thread(target=_watch, args=arguments, name="watcher", daemon=True)
    context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, f"swampstore: {label}")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty(_GROUP, None)
        context.setLocalProperty(_DESCRIPTION, None)


def _watch(
    tracker: StatusTracker,
    group: str,
    label: str,
    tasks: int,
    progress: Progress,
    over: threading.Event,
) -> None:
    while not over.wait(_LOOK_EVERY):
        done = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
            done += sum(stage.numCompletedTasks for stage in stages if stage)
        progress(Step(label, min(done, tasks), tasks, 0, 0, "tasks"))


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Raise what goes wrong inside Spark as an error of ours, with the line that matters."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        cause = _cause(error)
        kind, _, told = cause.partition(": ")
        if kind.endswith(NewerFormatError.__name__):
            raise NewerFormatError(told, hint=UPDATE) from error
        raise SparkJobError(
            f"a Spark job failed: {cause}",
            hint="What was done is kept; run it again to go on. The log of Spark tells more.",
        ) from error


def _cause(error: Any) -> str:
    """Return what Python raised, told with a traceback or without; else how a message begins."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith("Traceback"):
            inner = [one for one in lines[number:] if not one.startswith(("File ", "at ", "^"))]
            found = [one for one in inner if ": " in one]
            return found[-1] if found else inner[-1]
    raised = _RAISED.search(str(error))
    if raised:
        return raised[1] or raised[2]
    return lines[0] if lines else type(error).__name__


class NoSharedDir(NamedTuple):
    """What a task answers where the files cannot be seen."""

    host: str

    def error(self, directory: str) -> FilesNotSeenError:
        """Return what to tell whoever insists on Spark."""
        return FilesNotSeenError(
            f"the executors on {self.host} do not see {directory}",
            hint="Share that directory with them under the same path, or use --engine local.",
        )


def missing_shared_dir(staging_path: str) -> NoSharedDir | None:
    """Return the answer of a task on this machine, None if it sees the staging directory."""
    return None if os.path.isdir(staging_path) else NoSharedDir(socket.gethostname())
