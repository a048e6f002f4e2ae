"""Rows of the exported table as columns, what differs between two states of them, and a spool.

The table is partitioned by the namespace and by the day on which versions were created. Neither
may be an empty text there, so that no namespace, and no date, is NULL.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import ipc

from swampstore.files import disk_errors
from swampstore.pipeline.places import Place
from swampstore.pipeline.schemas import run_id
from swampstore.pipeline.snapshots import rows_file
from swampstore.pipeline.source.scan import batches

DAY = "created_on"
PARTITIONED_BY = ("namespace", DAY)
RUN = "run_id"
CHANGE = "_change_type"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
# What was updated is taken out of the partition that it was in.
MOVE = "move"
TAKEN_OUT = (DELETE, MOVE)
# Store and namespace come first; they are the same for all rows of a place.
NAME = ("type_normalized", "model_id", "data_name", "version")
KEY = ("store", "namespace", *NAME)
_PLACE = pa.schema([("store", pa.string()), ("namespace", pa.string())])
_OF_EXPORT = pa.schema([(DAY, pa.date32()), (RUN, pa.string())])
SCHEMA = pa.unify_schemas([_PLACE, rows_file.COLUMNS, _OF_EXPORT])
CHANGES = SCHEMA.append(pa.field(CHANGE, pa.string()))
_READ = pa.unify_schemas([_PLACE, rows_file.COLUMNS])
_FIRST_OF_NAME = len(_PLACE)
_AFTER_NAME = _FIRST_OF_NAME + len(NAME)


def exported(place: Place, table: pa.Table) -> pa.Table:
    """Return rows of a place, which have at least the columns of a version, as they are kept."""
    count = table.num_rows
    namespace = pa.repeat(place.namespace, count) if place.namespace else pa.nulls(count)
    columns = [pa.repeat(place.identity, count), namespace.cast(pa.string())]
    columns += [table[name] for name in rows_file.COLUMNS.names]
    columns += [table["created_at"].cast(pa.date32()), pa.repeat(run_id(), count)]
    return pa.table(columns, schema=SCHEMA)


def exported_rows(place: Place, rows: Iterable[tuple[Any, ...]]) -> Iterator[pa.Table]:
    """Yield rows of the table of artifacts as they are kept, some at a time."""
    for batch in batches(rows, _READ):
        yield exported(place, pa.Table.from_batches([batch]))


class Changed(NamedTuple):
    """What has to be done to a table: rows to be put in, or in place of others, and taken out."""

    rows: pa.Table
    inserted: int
    updated: int
    deleted: int


def compare(before: pa.Table, after: pa.Table) -> Changed:
    """Return what makes of some rows of a place others."""
    old, new = _in_order(before), _in_order(after)
    there, wanted = _each(old), _each(new)
    inserted: list[int] = []
    updated: list[int] = []
    deleted: list[int] = []
    moved: list[int] = []
    one, other = next(there, None), next(wanted, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.name < other.name):
            assert one is not None
            deleted.append(one.number)
            one = next(there, None)
        elif one is None or other.name < one.name:
            inserted.append(other.number)
            other = next(wanted, None)
        else:
            if one.values != other.values:
                updated.append(other.number)
                if one.values[-1] != other.values[-1]:  # it is in another partition from now on
                    moved.append(one.number)
            one, other = next(there, None), next(wanted, None)
    parts = [
        _marked(new, inserted, INSERT),
        _marked(new, updated, UPDATE),
        _marked(old, deleted, DELETE),
        _marked(old, moved, MOVE),
    ]
    return Changed(pa.concat_tables(parts), len(inserted), len(updated), len(deleted))


class _Row(NamedTuple):
    """A row without the run that wrote it: that makes no difference."""

    number: int
    name: tuple[Any, ...]
    values: tuple[Any, ...]


def _each(table: pa.Table) -> Iterator[_Row]:
    number = 0
    for batch in table.to_batches(max_chunksize=10_000):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield _Row(number, values[_FIRST_OF_NAME:_AFTER_NAME], values[:-1])
            number += 1


def _in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(column, "ascending") for column in NAME]).combine_chunks()


def _marked(table: pa.Table, numbers: Sequence[int], change: str) -> pa.Table:
    """Return some rows, all of which are changed in the same way by this run."""
    chosen = table.take(pa.array(numbers, pa.int64()))
    runs = pa.repeat(run_id(), len(numbers))
    chosen = chosen.set_column(chosen.num_columns - 1, SCHEMA.field(RUN), runs)
    return chosen.append_column(CHANGES.field(CHANGE), pa.repeat(change, len(numbers)))


def merged(table: pa.Table, changes: pa.Table) -> pa.Table:
    """Return rows with changes done to them, sorted."""
    keys = set(zip(*(changes[column].to_pylist() for column in KEY), strict=True))
    there = zip(*(table[column].to_pylist() for column in KEY), strict=True)
    kept = table.filter(pa.array([key not in keys for key in there], pa.bool_()))
    together = pa.concat_tables([kept, put_in(changes)])
    return together.sort_by([(column, "ascending") for column in KEY])


def put_in(changes: pa.Table) -> pa.Table:
    """Return the rows that a table has after changes: new ones, and others in place of old ones."""
    stays = [one not in TAKEN_OUT for one in changes[CHANGE].to_pylist()]
    return changes.filter(pa.array(stays, pa.bool_())).drop_columns([CHANGE])


@dataclass
class Spool:
    """Rows on disk, by the day of their partition: memory holds one day at a time."""

    directory: str
    schema: pa.Schema
    count: int = 0

    def __post_init__(self) -> None:
        with disk_errors(self.directory):
            os.mkdir(self.directory)

    def add(self, table: pa.Table) -> None:
        """Keep some rows."""
        days = table[DAY].to_pylist()
        numbers: dict[date | None, list[int]] = {}
        for number, day in enumerate(days):
            numbers.setdefault(day, []).append(number)
        for day, chosen in numbers.items():
            with (
                disk_errors(self.directory),
                open(self._path(day), "ab") as file,
                ipc.new_stream(file, self.schema) as stream,
            ):
                stream.write_table(table.take(chosen))
        self.count += table.num_rows

    def days(self) -> Sequence[date | None]:
        """Return the days that there are rows of."""
        with disk_errors(self.directory):
            names = sorted(os.listdir(self.directory))
        return [None if name == str(None) else date.fromisoformat(name) for name in names]

    def read(self, day: date | None) -> pa.Table:
        """Return the rows of a day."""
        found = [self.schema.empty_table()]
        if day in self.days():
            with disk_errors(self.directory), open(self._path(day), "rb") as file:
                end = os.fstat(file.fileno()).st_size
                while file.tell() < end:
                    found.append(ipc.open_stream(file).read_all())
        return pa.concat_tables(found)

    def _path(self, day: date | None) -> str:
        return os.path.join(self.directory, str(day))
