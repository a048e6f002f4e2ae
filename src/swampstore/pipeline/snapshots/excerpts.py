"""A long Parquet file of a store, of which only what a question needs is fetched.

What was not fetched is zeros, which no reader takes for a page of a column.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from swampstore.stores.protocol import Store, excerpt

# What describes a file is at its end, and that is mostly shorter.
_END = 64 << 10
_TRAILER = 8
# To fetch so much that nobody needs takes less time than one more request.
_NEAR = 256 << 10


class _Span(NamedTuple):
    start: int
    end: int


def fetched(
    store: Store,
    key: str,
    size: int,
    columns: Collection[str] | None,
    condition: pc.Expression | None,
) -> pa.BufferReader:
    """Return a file of `size` bytes that can be asked for columns (None: all) on a condition.

    Costs a request for its end, and one for each of the other parts that are needed. Raises
    ObjectNotFoundError, ArrowException.
    """
    from pyarrow import dataset  # with all of pandas, which every worker of Spark would import

    file = mmap.mmap(-1, size)

    def fetch(spans: Iterable[_Span]) -> None:
        for start, end in spans:
            file[start:end] = excerpt(store, key, start, end - start)

    def opened() -> pa.BufferReader:
        return pa.BufferReader(pa.py_buffer(file))

    end = _Span(max(0, size - _END), size)
    fetch([end])
    described = int.from_bytes(file[size - _TRAILER : size - _TRAILER + 4], "little") + _TRAILER
    if size - described < end.start:
        fetch([_Span(max(0, size - described), end.start)])
    fragment = dataset.ParquetFileFormat().make_fragment(opened())
    if condition is not None:
        fragment = fragment.subset(condition)
    needed = _spans(fragment.metadata, [one.id for one in fragment.row_groups], columns)
    fetch(_joined(span for span in needed if span.start < end.start))
    return opened()


def _spans(
    metadata: parquet.FileMetaData, groups: Iterable[int], columns: Collection[str] | None
) -> Iterator[_Span]:
    """Yield where the columns of some row groups are."""
    for group in groups:
        described = metadata.row_group(group)
        for number in range(described.num_columns):
            column = described.column(number)
            if columns is None or column.path_in_schema.partition(".")[0] in columns:
                start = column.data_page_offset
                if column.has_dictionary_page:
                    start = min(start, column.dictionary_page_offset)
                yield _Span(start, start + column.total_compressed_size)


def _joined(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Yield the same, those that are near each other in one."""
    last: _Span | None = None
    for span in sorted(spans):
        if last is not None and span.start - last.end > _NEAR:
            yield last
            last = None
        last = span if last is None else _Span(last.start, max(last.end, span.end))
    if last is not None:
        yield last
