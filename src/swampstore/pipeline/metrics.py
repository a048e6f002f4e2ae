"""What a bulk job asks of its stores, counted by the driver and by all tasks.

A place that has a meter tells it what was asked of its store, wherever that is opened. In tasks
the meter is an accumulator of Spark: what a task has counted comes with its result. A task that is
tried again counts again, for it has asked again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.stores.wrapper import CountingStore, Tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.places import Place
    from swampstore.stores.protocol import Store

_SENT = "bytes sent"
_RECEIVED = "bytes received"


class Metrics(NamedTuple):
    """Requests by kind, and bytes of content in both directions; see `Tally`.

    If they are not `complete`, those of Spark's tasks are not among them.
    """

    requests: Mapping[str, int] = MappingProxyType({})
    bytes_sent: int = 0
    bytes_received: int = 0
    complete: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the member `metrics` of a result document."""
        return {
            "requests": dict(self.requests),
            "bytesSent": self.bytes_sent,
            "bytesReceived": self.bytes_received,
            "complete": self.complete,
        }


NO_METRICS = Metrics()


class Meter:
    """Adds up what is asked of stores. It can travel to tasks.

    Through Spark Connect there are no accumulators, and the tasks of Spark's source have none
    either: what these ask is not counted. Jobs read tables by tasks of their own, and their
    metrics say whether those could count.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._tasks = _accumulator(spark)
        self._is_complete = spark is None or self._tasks is not None
        self._here: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _MeterOfTask, (self._tasks,)

    def add(self, tally: Tally) -> None:
        """Count what was asked in this process."""
        with self._lock:
            self._here.update(_counts(tally))

    def read(self) -> Metrics:
        """Return what was counted so far."""
        with self._lock:
            counts = Counter(self._here)
        if self._tasks is not None:
            counts.update(self._tasks.value)
        sent, received = counts.pop(_SENT, 0), counts.pop(_RECEIVED, 0)
        return Metrics(dict(sorted(counts.items())), sent, received, self._is_complete)


class _MeterOfTask(Meter):
    """A meter as a task has it."""

    def __init__(self, tasks: Any) -> None:
        super().__init__()
        self._tasks = tasks

    def add(self, tally: Tally) -> None:
        if self._tasks is not None:
            self._tasks.add(_counts(tally))


def _counts(tally: Tally) -> Counter[str]:
    sizes = {_SENT: tally.bytes_sent, _RECEIVED: tally.bytes_received}
    return Counter({**tally.requests, **sizes})


def _accumulator(spark: SparkSession | None) -> Any:
    """Return an accumulator of counts, None where there can be none."""
    if spark is None:
        return None
    from pyspark import AccumulatorParam

    class Counts(AccumulatorParam[Counter[str]]):  # type: ignore[misc]  # pyspark is not typed
        """Counts by name."""

        def zero(self, value: Counter[str]) -> Counter[str]:
            del value
            return Counter()

        def addInPlace(  # noqa: N802 - Spark's name
            self, value1: Counter[str], value2: Counter[str]
        ) -> Counter[str]:
            value1.update(value2)
            return value1

    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 - Spark Connect has none, and says so in its own way
        return None
    return context.accumulator(Counter(), Counts())


class MeteredStore(CountingStore):
    """A store that tells a meter what was asked of it, once it is closed."""

    def __init__(self, inner: Store, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    def close(self) -> None:
        """Tell what was counted, and close the store."""
        self._meter.add(self.tally())
        self.reset()
        super().close()


def metered(places: Iterable[Place], meter: Meter) -> list[Place]:
    """Return the same places, which tell a meter what is asked of their stores."""
    return [replace(place, meter=meter) for place in places]
