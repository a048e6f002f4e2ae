"""The exported table as Parquet files: one for each namespace and day, replaced as a whole.

    namespace={namespace}/created_on={day}/rows.parquet
    _swampstore.json        which snapshots the rows stand for, and how many there are
    _swampstore.lock        who writes

A row is in one file, so each is there once at any time, as it was or as it is, also after a kill.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from swampstore.config import LockSettings
from swampstore.errors import ValidationError
from swampstore.formats import NEWEST, refuse_newer
from swampstore.locks.lock import StoreLock
from swampstore.pipeline.export.rows import (
    DAY,
    PARTITIONED_BY,
    SCHEMA,
    Spool,
    merged,
)
from swampstore.pipeline.places import Place
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store

STATE = "_swampstore.json"
LOCK = "_swampstore.lock"
FORMAT = NEWEST["export"]
# What Hive writes for NULL, and everybody reads so.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_FILE = "rows.parquet"
_IN_FILES = pa.schema([field for field in SCHEMA if field.name not in PARTITIONED_BY])


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A file of the table: which rows are in it, and how many."""

    namespace: str | None
    day: date | None
    count: int


class State(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of a table.

    `places` are the snapshots that the rows of places stand for. Rows of those in `writing` may
    stand for a mixture, because somebody is at it or was killed: nothing but the rows tells.
    """

    version: int
    places: dict[str, int] = {}
    parts: list[Part] = []
    writing: list[str] = []


class ParquetTarget:
    """Parquet files in a store, which can be of any kind. Others must not write to it meanwhile."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state = self._read_state()
        self._lock: StoreLock | None = None

    @classmethod
    @contextmanager
    def locked(cls, store: Store, settings: LockSettings) -> Iterator[ParquetTarget]:
        """Yield a table that nobody else writes to; raise LockTimeoutError."""
        lock = StoreLock(store, LOCK, ttl=settings.ttl, purpose="export")
        try:
            lock.acquire(time.monotonic() + settings.timeout)
            target = cls(store)
            target._lock = lock
            yield target
        finally:
            lock.release()

    def _read_state(self) -> State:
        try:
            data = self._store.get(STATE).data
        except ObjectNotFoundError:
            others = (info.key for info in self._store.list() if info.key != LOCK)
            if (other := next(others, None)) is not None:
                raise ValidationError(
                    f"{self._store.identity} holds {other}, and is no exported table",
                    hint="Name a directory that is empty, or that was exported to before.",
                ) from None
            return State(FORMAT)
        try:
            refuse_newer("export", msgspec.json.decode(data, type=_Versioned).version, STATE)
            return msgspec.json.decode(data, type=State)
        except msgspec.MsgspecError as error:
            raise ValidationError(
                f"{STATE} of {self._store.identity} cannot be understood: {error}",
                hint="Remove the table, and export it again.",
            ) from error

    def moment(self, place: Place) -> int | None:
        """Return which snapshot the rows of a place stand for, None if that is not known."""
        name = str(place)
        return None if name in self._state.writing else self._state.places.get(name)

    def days(self, place: Place) -> Sequence[date | None]:
        """Return the days that rows of a place may be of."""
        wanted = place.namespace or None
        if str(place) in self._state.writing:  # not all files need be known
            start = f"{_directory(wanted)}/{DAY}="
            keys = (info.key for info in self._store.list(f"{_directory(wanted)}/"))
            found = [key.removeprefix(start).partition("/")[0] for key in keys]
            return [None if day == _NULL else date.fromisoformat(day) for day in sorted(found)]
        return [part.day for part in self._state.parts if part.namespace == wanted]

    def rows(self, place: Place, day: date | None) -> pa.Table:
        """Return the rows of a place and a day."""
        table = self._file(place.namespace or None, day)
        return table.filter(pc.equal(table["store"], place.identity))

    def counts(self) -> dict[str, int]:
        """Return how many rows there are, by namespace."""
        found: dict[str, int] = {}
        for part in self._state.parts:
            found[part.namespace or ""] = found.get(part.namespace or "", 0) + part.count
        return found

    def apply(self, place: Place, changes: Spool, moment: int | None) -> None:
        """Merge changes by key, file by file."""
        name, namespace = str(place), place.namespace or None
        others = [one for one in self._state.writing if one != name]
        parts = {(part.namespace, part.day): part for part in self._state.parts}
        if name in self._state.writing:
            for day in self.days(place):
                count = self._file(namespace, day).num_rows
                parts[namespace, day] = Part(namespace, day, count)
        if changes.count:
            self._write_state(msgspec.structs.replace(self._state, writing=[*others, name]))
        for day in changes.days():
            table = merged(self._file(namespace, day), changes.read(day))
            self._write_file(namespace, day, table)
            parts.pop((namespace, day), None)
            if table.num_rows:
                parts[namespace, day] = Part(namespace, day, table.num_rows)
        places = {**self._state.places}
        if moment is None:
            places.pop(name, None)
        else:
            places[name] = moment
        ordered = sorted(parts.values(), key=lambda part: (part.namespace or "", str(part.day)))
        self._write_state(State(FORMAT, places, ordered, others))

    def _file(self, namespace: str | None, day: date | None) -> pa.Table:
        try:
            data = self._store.get(_key(namespace, day)).data
        except ObjectNotFoundError:
            return SCHEMA.empty_table()
        table = parquet.read_table(pa.BufferReader(data), schema=_IN_FILES)
        count = table.num_rows
        table = table.append_column(SCHEMA.field(DAY), pa.array([day] * count, pa.date32()))
        name = pa.array([namespace] * count, pa.string())
        return table.append_column(SCHEMA.field("namespace"), name).select(SCHEMA.names)

    def _write_file(self, namespace: str | None, day: date | None, table: pa.Table) -> None:
        self._check()
        if not table.num_rows:
            self._store.delete(_key(namespace, day))
            return
        sink = pa.BufferOutputStream()
        parquet.write_table(table.select(_IN_FILES.names), sink, compression="zstd")
        self._store.put(_key(namespace, day), bytes(sink.getvalue()))

    def _write_state(self, state: State) -> None:
        self._check()
        self._store.put(STATE, msgspec.json.encode(state))
        self._state = state

    def _check(self) -> None:
        assert self._lock is not None
        self._lock.check()


class _Versioned(msgspec.Struct):
    version: int


def _directory(namespace: str | None) -> str:
    return f"namespace={_NULL if namespace is None else namespace}"


def _key(namespace: str | None, day: date | None) -> str:
    return f"{_directory(namespace)}/{DAY}={_NULL if day is None else day}/{_FILE}"
