"""Reading a table inside Spark: the driver plans pieces, each task reads one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from pyspark.sql.datasource import DataSourceReader, InputPartition

from swampstore.errors import SwampstoreError
from swampstore.pipeline.places import Place
from swampstore.pipeline.source.filters import EVERYTHING, Frame, Wanted, understood
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


@contextlib.contextmanager
def hints() -> Iterator[None]:
    """Put the hints of errors where Spark shows them."""
    try:
        yield
    except SwampstoreError as error:
        raise with_hint(error) from error.__cause__


def with_hint(error: SwampstoreError) -> SwampstoreError:
    """Return an error that shows its hint in a traceback."""
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)
    return error


P = TypeVar("P")
_BATCH = 2048
_BATCH_BYTES = 32 << 20


class Table(Protocol[P]):
    """What the data source must know of a table. Instances are pickled to the executors."""

    @property
    def schema(self) -> str:
        """The columns, as SQL writes them."""

    def narrowed(self, wanted: Wanted) -> Self:
        """Return the table that may leave out rows that are not wanted."""

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[P]:
        """Cut the table of one place into pieces. Runs on the driver."""

    def rows(self, place: Place, piece: P, store: Store) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a piece, in the order of the columns. Runs in a task."""


class Whole:
    """A table that is always read as a whole."""

    def narrowed(self, wanted: Wanted) -> Self:
        """Return the same table: Spark has to choose among its rows."""
        del wanted
        return self


class Share(NamedTuple, Generic[P]):
    """What one task reads."""

    place: Place
    piece: P


class Scan(DataSourceReader, Generic[P]):  # type: ignore[misc]  # pyspark is not typed here
    """Reads one table of some places."""

    def __init__(
        self, table: Table[P], places: Sequence[Place], tasks: int, schema: StructType
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._table = table
        self._places = places
        self._tasks = tasks
        self._wanted = EVERYTHING
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Plan the pieces of all places."""
        shares: list[InputPartition] = []
        for place in self._places:
            if not self._wanted.admits({"store": place.identity, "namespace": place.namespace}):
                continue
            with place.open() as store:
                pieces = self._table.plan(place, store, self._tasks)
                shares += [InputPartition(Share(place, piece)) for piece in pieces]
        # Spark takes no answer for "everything".
        return shares or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece."""
        share: Share[P] | None = partition.value
        if share is None:
            return
        with share.place.open() as store:
            rows = self._table.rows(share.place, share.piece, store)
            yield from batches(rows, self._schema)


class PushingScan(Scan[P]):
    """A scan that lets Spark's filters choose what is read.

    Spark refuses a reader with this method unless its setting for that is on. It must be asked
    for every query of a frame, so every query must have a filter; `Frame` says why.
    """

    def __init__(
        self,
        table: Table[P],
        places: Sequence[Place],
        tasks: int,
        schema: StructType,
        frame: Frame,
    ) -> None:
        super().__init__(table, places, tasks, schema)
        self._frame = frame

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read what is wanted by these filters too; Spark applies all of them itself."""
        self._wanted = self._frame.asked(understood(filters))
        self._table = self._table.narrowed(self._wanted)
        return filters


def batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches with the columns of a schema."""
    import pyarrow as pa

    for batch in _batched(rows):
        columns = zip(*batch, strict=True)
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batched(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows in lists that are neither long nor, with the content in them, heavy."""
    batch: list[tuple[Any, ...]] = []
    weight = 0
    for row in rows:
        batch.append(row)
        weight += sum(_weight(value) for value in row)
        if len(batch) == _BATCH or weight > _BATCH_BYTES:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _weight(value: object) -> int:
    """Return the bytes of content, or of a document; other values are light."""
    if isinstance(value, dict):
        return sum(map(_weight, value.values()))
    return len(value) if isinstance(value, bytes) else 0
