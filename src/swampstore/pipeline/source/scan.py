"""Reading a table inside Spark: the driver plans pieces, each task reads one.

Filters say which rows a query wants, as far as Spark passes them on. Nothing is ever left to them
alone: Spark gets every filter back and applies it itself, so a row too many costs time, and only a
row too few would be wrong.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import operator
import os
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
)

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from swampstore.errors import SwampstoreError
from swampstore.pipeline.places import Place
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

Operand = str | int | datetime | tuple[str | int | datetime, ...] | None
# Who asks a frame for that many different things ends up reading nearly all of it.
_MOST_ALTERNATIVES = 16
_MOMENT = "moment"
_PREFIX = "swampstore-frame-"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_LONG = 7 * 24 * 3600.0
# What Spark tells the processes that run its tasks.
_IS_WORKER = "SPARK_REUSE_WORKER" in os.environ
_modules_spared = 0
# So many objects more than before, and a worker looks for garbage.
_RARELY = 100_000

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, operands: value in operands,
    "starts with": lambda value, start: bool(value.startswith(start)),
    "ends with": lambda value, end: bool(value.endswith(end)),
    "contains": lambda value, part: part in value,
    "is there": lambda _value, _none: True,
}
_BY_FILTER = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "starts with",
    "StringEndsWith": "ends with",
    "StringContains": "contains",
}


class Condition(NamedTuple):
    """What one column of a row must be like."""

    column: str
    test: str
    operand: Operand = None

    def holds(self, value: object) -> bool:
        """Whether a value passes; NULL passes nothing, as in SQL."""
        if value is None:
            return False
        try:
            return _TESTS[self.test](value, self.operand)
        except TypeError:  # what cannot be compared here is for Spark to judge
            return True


Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows that fulfil all conditions of at least one of the alternatives."""

    alternatives: tuple[Conditions, ...] = ((),)

    @property
    def is_everything(self) -> bool:
        """Whether every row is wanted."""
        return () in self.alternatives

    def admits(self, known: Mapping[str, object]) -> bool:
        """Whether a row of which only some columns are known may be wanted."""
        return any(
            all(one.holds(known[one.column]) for one in conditions if one.column in known)
            for conditions in self.alternatives
        )


EVERYTHING = Wanted()


def understood(filters: Iterable[Filter]) -> Conditions:
    """Return the conditions that are among Spark's filters; others are left out."""
    found = (_condition(one) for one in filters)
    return tuple(one for one in found if one is not None)


def choices(conditions: Conditions, column: str) -> frozenset[str] | None:
    """Return the only texts that a column may be, None if it may be any."""
    found: frozenset[str] | None = None
    for one in conditions:
        if one.column != column or one.test not in ("=", "in"):
            continue
        operands = one.operand if isinstance(one.operand, tuple) else (one.operand,)
        texts = frozenset(text for text in operands if isinstance(text, str))
        found = texts if found is None else found & texts
    return found


def _condition(one: Filter) -> Condition | None:
    kind = type(one).__name__
    if kind == "Not":
        # Of the others, some let NULL pass once they are negated, which no condition does.
        inner = _condition(one.child) if type(one.child).__name__ == "EqualTo" else None
        return inner and inner._replace(test="!=")
    if len(one.attribute) != 1:
        return None
    if kind == "IsNotNull":
        return Condition(one.attribute[0], "is there")
    if kind not in _BY_FILTER:
        return None
    operand = _operand(one.value)
    return None if operand is None else Condition(one.attribute[0], _BY_FILTER[kind], operand)


def _operand(value: object) -> Operand:
    if isinstance(value, list | tuple):
        inner = [one for one in value if one is not None]
        return tuple(inner) if all(_is_simple(one) for one in inner) else None
    return value if isinstance(value, str | int | datetime) else None


def _is_simple(value: object) -> bool:
    return isinstance(value, str | int | datetime)


class _Asked(NamedTuple):
    """What one plan asked of a frame, and its number."""

    number: int
    conditions: str


class _Ledger(NamedTuple):
    """What plans of a frame asked that may still begin to read, and the number of the last one."""

    last: int = 0
    waiting: tuple[_Asked, ...] = ()


class Frame:
    """What was asked of one loaded frame, and not read yet.

    Spark (4.3) plans a reading for the filters that it pushed last, keeps that one reading per
    loaded frame, and gives it to every plan of the frame that begins to read from then on: both
    sides of a join of a frame with itself read what only one of them asked for. A plan that has
    begun keeps its reading. So a reading has to do for all plans that have not begun, also
    those of other processes: Spark plans in new ones.

    That is noted in a file. Tasks note which reading they have; if only one plan can have it, that
    one has begun. Where they cannot reach the file, nothing is ever forgotten. A frame without a
    file reads everything.
    """

    def __init__(self, frame_id: str) -> None:
        self._path = os.path.join(tempfile.gettempdir(), f"{_PREFIX}{frame_id}.json")

    def begin(self) -> None:
        """Note that nothing was asked yet, and forget frames that nobody used for long."""
        with suppress(OSError):
            _sweep(os.path.dirname(self._path))
            with open(os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(json.dumps(_Ledger()))

    def asked(self, conditions: Conditions) -> tuple[Wanted, int]:
        """Return what a reading must hold now that this is asked for, too, and its number."""
        encoded = _encoded(conditions)

        def note(ledger: _Ledger) -> _Ledger:
            number = ledger.last + 1
            return _Ledger(number, (*ledger.waiting, _Asked(number, encoded)))

        try:
            ledger = self._changed(note)
        except (OSError, ValueError, TypeError):  # what cannot be remembered must not narrow
            return EVERYTHING, 0
        alternatives = list(dict.fromkeys(one.conditions for one in ledger.waiting))
        if len(alternatives) > _MOST_ALTERNATIVES:
            return EVERYTHING, ledger.last
        return Wanted(tuple(_decoded(one) for one in alternatives)), ledger.last

    def ran(self, number: int) -> None:
        """Note that a reading is used: by the only plan that can have it, if there is but one."""

        def note(ledger: _Ledger) -> _Ledger:
            able = [one for one in ledger.waiting if one.number <= number]
            if len(able) != 1:
                return ledger
            return ledger._replace(waiting=tuple(one for one in ledger.waiting if one not in able))

        with suppress(OSError, ValueError, TypeError):
            self._changed(note)

    def _changed(self, change: Callable[[_Ledger], _Ledger]) -> _Ledger:
        with open(os.open(self._path, _FLAGS), "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last, waiting = json.load(file)
            ledger = _Ledger(last, tuple(_Asked(*one) for one in waiting))
            changed = change(ledger)
            if changed != ledger:
                file.seek(0)
                file.truncate()
                file.write(json.dumps(changed))
        return changed


def _sweep(directory: str) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _LONG:
                        os.unlink(entry.path)


def _encoded(conditions: Conditions) -> str:
    return json.dumps(sorted(set(conditions), key=repr), default=_moment)


def _moment(value: object) -> dict[str, str]:
    assert isinstance(value, datetime), value
    return {_MOMENT: value.isoformat()}


def _decoded(line: str) -> Conditions:
    return tuple(
        Condition(column, test, _restored(operand)) for column, test, operand in json.loads(line)
    )


def _restored(operand: Any) -> Any:
    if isinstance(operand, Sequence) and not isinstance(operand, str):
        return tuple(_restored(one) for one in operand)
    return datetime.fromisoformat(operand[_MOMENT]) if isinstance(operand, dict) else operand


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

    def batches(
        self, place: Place, piece: P, store: Store, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield what `rows` yields, as batches with the columns of a schema."""


class Whole(ABC, Generic[P]):
    """A table that is always read as a whole, row by row."""

    @abstractmethod
    def rows(self, place: Place, piece: P, store: Store) -> Iterator[tuple[Any, ...]]:
        """See Table.rows."""

    def batches(
        self, place: Place, piece: P, store: Store, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """See Table.batches."""
        return batches(self.rows(place, piece, store), schema)

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
            with hints(), place.open() as store:
                pieces = self._table.plan(place, store, self._tasks)
                shares += [InputPartition(Share(place, piece)) for piece in pieces]
        # Spark takes no answer for "everything".
        return shares or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece."""
        share: Share[P] | None = partition.value
        if share is None:
            return
        table, schema = self._table, self._schema
        with share.place.open() as store:
            yield from table.batches(share.place, share.piece, store, schema)


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
        self._reading = 0

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read what is wanted by these filters too; Spark applies all of them itself."""
        self._wanted, self._reading = self._frame.asked(understood(filters))
        self._table = self._table.narrowed(self._wanted)
        return filters

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece; whoever planned this reading needs no other one."""
        self._frame.ran(self._reading)
        yield from super().read(partition)


def batches(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow batches with the columns of a schema."""
    _spare_modules()
    for batch in _batched(rows):
        columns = zip(*batch, strict=True)
        arrays = [
            pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _spare_modules() -> None:
    """Let a worker of Spark not look through all modules when it collects garbage.

    It does so after every task, which takes longer than many a task. Whatever is there before the
    first row is of modules, and stays. During a task it looks rarely: evidence is many small
    objects that stay until the end, and going through them again and again took a tenth of a
    task's time.
    """
    global _modules_spared  # noqa: PLW0603 - it is the process that this is about
    if _IS_WORKER and len(sys.modules) != _modules_spared:
        _modules_spared = len(sys.modules)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_RARELY)


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
