"""Files of a snapshot: rows of versions with what proves them, and hashes of markers.

A row has the columns of the table of artifacts but for the store and the namespace, so that it
means the same wherever the bucket is called otherwise. Beside those is its evidence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from swampstore.catalog.schema import Row, tags_json
from swampstore.layout import RAW, DataRef, ModelRef
from swampstore.pipeline.schemas import arrow_schema_of_artifacts
from swampstore.pipeline.snapshots.excerpts import fetched
from swampstore.pipeline.source.slices import File
from swampstore.pipeline.source.versions import typed
from swampstore.stores.protocol import Store

_ADDRESS = ("type_normalized", "model_id", "data_name")
COLUMNS = arrow_schema_of_artifacts()
_EVIDENCE = pa.schema(
    [
        ("partition", pa.string()),
        ("metadata_sha256", pa.string()),
        ("marker_sha256", pa.string()),
        ("raw_size", pa.int64()),
        ("raw_sha256", pa.string()),
    ]
)
SCHEMA = pa.unify_schemas([COLUMNS, _EVIDENCE])
# What names are in a file, with their shards and their markers.
NAMING = (*_ADDRESS, "partition", "marker_sha256")
# Columns that can be compared with a value. Those of the place are in no file.
FILTERED = frozenset(field.name for field in COLUMNS if not pa.types.is_map(field.type))
_ROW_GROUP = 50_000

# Alternatives, each of which is conditions that must all hold, as Arrow writes them.
Filters = list[list[tuple[str, str, Any]]] | None


class Remembered(NamedTuple):
    """A version as a snapshot has it: its row, and what the index said of its files.

    `marker` is the hash of the marker of its name, None if there was none.
    """

    row: Row
    partition: str
    metadata: str
    marker: str | None
    raw: File | None


def file_name() -> str:
    """Return the name of a new file."""
    return f"{uuid.uuid4().hex}.parquet"


def markers_name() -> str:
    """Return the name of a new file of markers."""
    return f"{uuid.uuid4().hex}.markers.json"


def table_of(rows: Iterable[Remembered]) -> pa.Table:
    """Return rows as columns."""
    columns = list(zip(*map(_values, rows), strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def encode(*tables: pa.Table) -> bytes:
    """Return rows as a Parquet file, sorted by name and version."""
    table = pa.concat_tables(tables)
    order = pc.sort_indices(table, sort_keys=[(one, "ascending") for one in (*_ADDRESS, "version")])
    sink = pa.BufferOutputStream()
    parquet.write_table(table.take(order), sink, row_group_size=_ROW_GROUP, compression="zstd")
    return bytes(sink.getvalue())


def _values(one: Remembered) -> tuple[Any, ...]:
    raw = one.raw
    evidence = (one.partition, one.metadata, one.marker)
    return (*typed(one.row)[1:], *evidence, raw and raw.size, raw and raw.sha256)


def decode(
    data: bytes, filters: Filters = None, columns: Collection[str] | None = None
) -> pa.Table:
    """Return (some columns of) the rows of a file, at least those that pass the filters.

    Raises ArrowException.
    """
    return _read(lambda *_: pa.BufferReader(data), filters, columns)


def fetch(
    store: Store, key: str, size: int, filters: Filters, columns: Collection[str] | None
) -> pa.Table:
    """Return the same of a file with so many bytes; nothing is fetched that this does not take.

    Raises ObjectNotFoundError, ArrowException.
    """
    return _read(partial(fetched, store, key, size), filters, columns)


def _read(
    opened: Callable[[Collection[str] | None, pc.Expression | None], pa.BufferReader],
    filters: Filters,
    columns: Collection[str] | None,
) -> pa.Table:
    chosen = None if columns is None else [one for one in SCHEMA.names if one in columns]
    if filters is not None:
        compared = {name for one in filters for name, _, _ in one}
        needed = None if columns is None else {*columns, *compared}
        try:
            condition = parquet.filters_to_expression(filters)
            file = opened(needed, condition)
            return parquet.read_table(file, columns=chosen, schema=SCHEMA, filters=condition)
        except (pa.ArrowException, TypeError, ValueError):
            pass  # what it cannot compare is for Spark to judge
    return parquet.read_table(opened(columns, None), columns=chosen, schema=SCHEMA)


def of_shards(table: pa.Table, partitions: Collection[str]) -> pa.Table:
    """Return the rows of some shards."""
    wanted = pa.array(sorted(partitions), pa.string())
    return table.filter(pc.is_in(table["partition"], value_set=wanted))


def names_in(table: pa.Table) -> Iterator[tuple[DataRef, str | None]]:
    """Yield each name that rows are of, once, with the hash of its marker."""
    each = table.group_by([*_ADDRESS, "marker_sha256"]).aggregate([])
    for model_type, model_id, name, sha256 in zip(
        *(each[column].to_pylist() for column in (*_ADDRESS, "marker_sha256")), strict=True
    ):
        yield DataRef(ModelRef(model_type, model_id), name), sha256


def split(table: pa.Table, refs: Collection[DataRef]) -> tuple[pa.Table, pa.Table]:
    """Return the rows of some names, and all others."""
    if not refs:
        return table.slice(0, 0), table
    separator = pa.scalar("/", pa.string())
    rels = pc.binary_join_element_wise(*(table[column] for column in _ADDRESS), separator)
    wanted = pa.array([f"{ref.model}/{ref.name}" for ref in refs], pa.string())
    mask = pc.is_in(rels, value_set=wanted)
    return table.filter(mask), table.filter(pc.invert(mask))


def remembered(table: pa.Table, namespace: str) -> Iterator[Remembered]:
    """Yield rows as they were, in a namespace."""
    for batch in table.to_batches():
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            *columns, partition, metadata, marker, raw_size, raw_sha256 = values
            row = _row(namespace, columns)
            rel = row.ref.file_rel(row.version, RAW)
            raw = None if raw_size is None else File(rel, raw_size, raw_sha256)
            yield Remembered(row, partition, metadata, marker, raw)


def _row(namespace: str, columns: list[Any]) -> Row:
    row = Row(namespace, *columns)
    created_at: Any = row.created_at
    return row._replace(
        is_latest=int(row.is_latest),
        deferred=int(row.deferred),
        streaming=int(row.streaming),
        created_at=created_at.isoformat() if created_at is not None else "",
        tags=tags_json(dict(row.tags)),  # type: ignore[arg-type]  # pairs, as Arrow has them
    )


Markers = Mapping[str, Mapping[str, str]]


def encode_markers(markers: Markers) -> bytes:
    """Return the hashes of markers by shard and path."""
    return msgspec.json.encode(markers)


def decode_markers(data: bytes) -> dict[str, dict[str, str]]:
    """Read the same; raises MsgspecError."""
    return msgspec.json.decode(data, type=dict[str, dict[str, str]])
