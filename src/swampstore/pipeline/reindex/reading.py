"""Reading all content, portion by portion, so that a run which is stopped goes on where it was.

Each portion is a Spark job whose result is kept as Parquet in a directory until the run is over.
A run that is started again reads those objects that have no result yet, or another ETag than the
one that was read.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

from swampstore.files import disk_errors
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Listed, each, tasks_for
from swampstore.pipeline.reindex.entries import PATH
from swampstore.pipeline.reindex.scanning import arrow_schema
from swampstore.pipeline.running import watched
from swampstore.pipeline.source.objects import Content, object_row, read_content
from swampstore.pipeline.source.scan import batches
from swampstore.stores.errors import CorruptObjectError, StorePermissionError
from swampstore.stores.protocol import ObjectInfo, Store
from swampstore.sync.report import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# A portion ends with so many objects or so many bytes; what it read is then safe.
_OBJECTS = 50_000
_BYTES = 8 << 30
_DONE = "_SUCCESS"
_OBJECT = (*PATH, "etag")


class Reading:
    """The content of some places, as far as it was read; use it in a `with` block.

    `directory` must be one that all executors see; None: nothing is kept for a later run. It is
    removed when the block ends well.
    """

    def __init__(self, places: Sequence[Place], directory: str | None, tell: Progress) -> None:
        self._places = {(place.identity, place.namespace): place for place in places}
        self._directory = directory
        self._tell = tell
        self._held: list[DataFrame] = []

    def __enter__(self) -> Self:
        if self._directory is not None:
            with disk_errors(self._directory):
                os.makedirs(self._directory, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for frame in self._held:
            frame.unpersist()
        if kind is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def of(self, objects: DataFrame) -> DataFrame:
        """Return the content of objects; what was read before is not read again."""
        from pyspark.sql import functions as f

        todo = objects.where("NOT internal").join(self._known(objects), [*_OBJECT], "left_anti")
        count, size = todo.agg(f.count("*"), f.coalesce(f.sum("size"), f.lit(0))).first()
        portions = math.ceil(max(count / _OBJECTS, size / _BYTES))
        for number in range(portions):
            share = f.pmod(f.xxhash64("rel"), f.lit(portions)) == number
            label = "read content" if portions == 1 else f"read content, {number + 1}/{portions}"
            self._read(todo.where(share), label)
        return self._known(objects)

    def _known(self, objects: DataFrame) -> DataFrame:
        """Return the content that was read, also of objects that are not there any more."""
        spark = objects.sparkSession
        known = spark.createDataFrame([], schemas.CONTENTS)
        for frame in self._held:
            known = known.unionByName(frame)
        if paths := self._portions():
            known = known.unionByName(spark.read.schema(schemas.CONTENTS).parquet(*paths))
        return known.dropDuplicates([*_OBJECT])

    def _portions(self) -> list[str]:
        """Return where the finished portions are."""
        if self._directory is None:
            return []
        paths = (f"{self._directory}/{name}" for name in sorted(os.listdir(self._directory)))
        return [path for path in paths if os.path.exists(f"{path}/{_DONE}")]

    def _read(self, objects: DataFrame, label: str) -> None:
        tasks = tasks_for(objects.sparkSession)
        read = objects.repartition(tasks).mapInArrow(_reader(self._places), schemas.CONTENTS)
        with watched(objects.sparkSession, label, tasks, self._tell):
            if self._directory is None:
                self._held.append(read.persist())
                read.count()
            else:
                path = f"{self._directory}/portion-{len(self._portions()):06}"
                read.write.mode("overwrite").parquet(path)


Reader = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def _reader(places: Mapping[tuple[str, str], Place]) -> Reader:
    """Return what a task does with the objects that it is given."""
    schema = arrow_schema(schemas.CONTENTS)

    def read(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in incoming:
            rows = sorted(batch.to_pylist(), key=_where)
            for where, group in groupby(rows, key=_where):
                with places[where].open() as store:
                    content = _contents(places[where], store, map(_listed, group))
                    yield from batches(content, schema)

    return read


def _where(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["store"], row["namespace"]


def _listed(row: Mapping[str, Any]) -> Listed:
    info = ObjectInfo(row["key"], row["size"], row["etag"], None, row["last_modified"])
    return Listed(row["rel"], info, row["internal"])


def _contents(place: Place, store: Store, objects: Iterable[Listed]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of objects with their content; those that vanish meanwhile have none."""
    for one, found in each(place, lambda one: readable_content(store, one), objects):
        if found is not None:
            yield object_row(place, one) + found


def readable_content(store: Store, one: Listed) -> Content | None:
    """Read an object; one that the store has and does not give out is an error of its own."""
    try:
        return read_content(store, one)
    except (CorruptObjectError, StorePermissionError) as error:
        return Content(error=error.message)
