"""Listing places and reading their content, portion by portion.

What a portion read is kept: by Spark, or, if there are several portions and a directory for them,
as Parquet until the run is over. A later look, or a run that goes on after one that was stopped,
reads those objects that were not read yet, or that have another ETag now.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pyspark.sql import functions as f

from swampstore.files import disk_errors
from swampstore.index.results import Progress
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.gathering import (
    Budget,
    Chosen,
    Listing,
    Places,
    Share,
    Task,
    as_listed,
    gathered,
    seen_as,
    shares_of,
    sums_in,
)
from swampstore.pipeline.evidence.rows import Seen, Total, paths_in, rows_in
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Listed, each, tasks_for
from swampstore.pipeline.running import attentively, collected, forget, watched
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.source.scan import batches
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# A portion ends with so many objects or so many bytes; what it read is then safe.
_OBJECTS = 50_000
_BYTES = 8 << 30
# So many paths a task may hold in memory.
_PATHS = 50_000
# With less, starting a task takes longer than what it does.
_WORTH_A_TASK = Budget(200, 64 << 20)
_DONE = "_SUCCESS"
_COPIES = "place int, rel string, sha256 string, etag string"
_SOME_COPIES = 20


class Copy(NamedTuple):
    """An object with content that is needed elsewhere, as it was when it was read."""

    key: str
    etag: str


class Evidence(NamedTuple):
    """What was there when we looked: evidence of this look, and of all before it."""

    number: int
    rows: DataFrame
    totals: Mapping[int, Total]

    @property
    def total(self) -> Total:
        """How much there is in all places."""
        return sum(self.totals.values(), Total())


class Reading:
    """The objects of some places, and their content as far as it was read; use it in `with`.

    `directory` must be one that all executors see; None: nothing is kept for a later run. It is
    removed when the block ends well. See `Listing` for what is `described`.
    """

    def __init__(
        self,
        spark: SparkSession,
        places: Places,
        directory: str | None,
        progress: Progress,
        *,
        described: bool = True,
    ) -> None:
        self._spark = spark
        self._places = places
        self._directory = directory
        self._progress = progress
        self._described = described
        self._held: list[DataFrame] = []

    def __enter__(self) -> Self:
        if self._directory is not None:
            with disk_errors(self._directory):
                os.makedirs(self._directory, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for frame in self._held:
            forget(frame)
        if kind is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def look(self, places: Places, expected: Total, chosen: Chosen, reads: Chosen) -> Evidence:
        """List the chosen objects of places, and read content that was not read before.

        `expected` is how much there should be, as far as anybody can tell.
        """
        is_first = not (self._held or self._portions())
        portions = self._portions_of(expected) if is_first else 1
        table = Listing(secrets.randbits(53), chosen, reads, described=self._described)
        shares = shares_of(table, places, portions * tasks_for(self._spark))
        if is_first:
            table = replace(table, budget=share_of(expected, len(shares)))
        totals: dict[int, Total] = {}
        for number in range(portions):
            found = self._gather(table, shares[number::portions], is_all=portions == 1)
            for place, some in found.items():
                totals[place] = sum(some, totals.get(place, Total()))
        total = sum(totals.values(), Total())
        if total.unread:
            self._read_rest(table, self._known(places), total, is_first=is_first)
        return Evidence(table.look, self._known(places), totals)

    def having(self, hashes: Iterable[str], store: str) -> Iterator[tuple[str, Copy]]:
        """Yield objects of a store that had content of these hashes when they were read.

        Of each content there are a few, however many objects have it.
        """
        numbers = {number for number, place in self._places.items() if place.identity == store}
        find = _finder(frozenset(hashes))
        for row in collected(self._known(numbers).mapInArrow(find, _COPIES)):
            key = self._places[row["place"]].names().remote(row["rel"])
            yield row["sha256"], Copy(key, row["etag"])

    def _gather(
        self, table: Listing, shares: Sequence[Share], *, is_all: bool
    ) -> dict[int, list[Any]]:
        """List a portion; what is read of it is kept."""
        frame = gathered(self._spark, table, self._places, shares)
        with watched(self._spark, "list and read", len(shares), self._progress):
            return sums_in(self._kept(frame, is_all=is_all))

    def _read_rest(self, table: Listing, known: DataFrame, total: Total, *, is_first: bool) -> None:
        """Read what is known to be there and nobody has read, spread over all tasks."""
        if is_first:
            # Nothing else is known of these, so each can go to another task.
            known = known.mapInArrow(_loner(table), rows.ROWS)
        portions = self._portions_of(Total(total.unread, total.bytes))
        tasks = tasks_of(self._spark, Total(total.objects // portions, total.bytes // portions))
        for number in range(portions):
            share = f.pmod(f.xxhash64("unit"), f.lit(portions)) == number
            some = known if portions == 1 else known.where(share)
            read = some.repartition(tasks, "unit").mapInArrow(
                _reader(self._places, table), rows.ROWS
            )
            with watched(self._spark, "read the rest", 2 * tasks, self._progress):
                kept = self._kept(read, is_all=portions == 1)
                attentively(kept.sparkSession, kept.count)

    def _kept(self, frame: DataFrame, *, is_all: bool) -> DataFrame:
        """Return a portion that will not be read again."""
        if is_all:
            self._held.append(frame.persist())
            return frame
        path = f"{self._directory}/portion-{len(self._portions()):06}"
        frame.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(rows.ROWS).parquet(path)

    def _known(self, places: Iterable[int]) -> DataFrame:
        """Return all evidence so far, also of objects that are not there any more."""
        frames = list(self._held)
        if paths := self._portions():
            frames.append(self._spark.read.schema(rows.ROWS).parquet(*paths))
        every = reduce(lambda one, other: one.unionByName(other), frames)
        return every.where(every["unit"].isNotNull() & every["place"].isin(list(places)))

    def _portions_of(self, total: Total) -> int:
        """Return how many portions are kept, one by one; without a directory all is one."""
        if self._directory is None:
            return 1
        return max(1, math.ceil(max(total.objects / _OBJECTS, total.bytes / _BYTES)))

    def _portions(self) -> list[str]:
        """Return where the finished portions are."""
        if self._directory is None:
            return []
        paths = (f"{self._directory}/{name}" for name in sorted(os.listdir(self._directory)))
        return [path for path in paths if os.path.exists(f"{path}/{_DONE}")]


def share_of(expected: Total, tasks: int) -> Budget:
    """Return twice what each task would read if all read the same."""
    objects = 2 * expected.objects // max(1, tasks)
    size = 2 * expected.bytes // max(1, tasks)
    return Budget(max(objects, _WORTH_A_TASK.objects), max(size, _WORTH_A_TASK.bytes))


def tasks_of(spark: SparkSession, total: Total) -> int:
    """Return how many tasks share so much: no more than pay, and each holds its paths in memory."""
    worthwhile = max(total.objects / _WORTH_A_TASK.objects, total.bytes / _WORTH_A_TASK.bytes)
    least = math.ceil(total.objects / _PATHS)
    return max(1, least, min(tasks_for(spark), math.ceil(worthwhile)))


def _finder(hashes: frozenset[str]) -> Task:
    """Return what a task does with what was read, to find some of it again."""
    schema = arrow_schema(_COPIES)

    def find(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(copies(incoming), schema)

    def copies(incoming: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, str, str, str]]:
        counts: Counter[str] = Counter()
        for place, _, items in rows_in(incoming):
            for rel, seen in items:
                assert isinstance(seen, Seen)
                sha256 = seen.content.sha256 if seen.content else None
                if sha256 in hashes and counts[sha256] < _SOME_COPIES:
                    counts[sha256] += 1
                    yield place, rel, sha256, seen.etag

    return find


def _loner(table: Listing) -> Task:
    """Return what a task does with objects, to part those that nobody has read."""
    schema = arrow_schema(rows.ROWS)

    def part(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches(unread(incoming), schema)

    def unread(incoming: Iterable[pa.RecordBatch]) -> Iterator[rows.Row]:
        for place, _, items in rows_in(incoming):
            for rel, seen in items:
                assert isinstance(seen, Seen)
                if not seen.internal and seen.content is None and table.reads(rel):
                    yield rows.lone_row(place, (rel, seen))

    return part


def _reader(places: Places, table: Listing) -> Task:
    """Return what a task does with objects, to read those that nobody has read."""
    schema = arrow_schema(rows.ROWS)

    def read(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        unread: dict[int, list[Listed]] = {}
        for number, _, paths in paths_in(incoming, table.look):
            for path in paths.values():
                seen = path.seen
                if seen and not seen.internal and path.content is None and table.reads(path.rel):
                    unread.setdefault(number, []).append(as_listed(places[number], path.rel, seen))
        for number, objects in unread.items():
            with places[number].open() as store:
                yield from batches(read_rows(number, places[number], store, objects), schema)

    def read_rows(
        number: int, place: Place, store: Store, objects: list[Listed]
    ) -> Iterator[rows.Row]:
        contents = each(place, lambda one: table.content(store, one), objects)
        items = (
            (one.rel, seen_as(one, table.look, content))
            for one, content in contents
            if content is not None  # else it vanished meanwhile
        )
        return rows.rows_of(number, items)

    return read
