"""Tables and arrays as content: Parquet for data frames, npy for arrays of numpy.

They are recognised by the names of their types, so that nothing is imported for it.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, BinaryIO

from swampstore.errors import MissingExtraError, SwampstoreError, ValidationError

PARQUET = "application/vnd.apache.parquet"
NPY = "application/x-npy"
_FRAMES = {
    ("pandas", "DataFrame"),
    ("polars", "DataFrame"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
}


def extra(module: str, name: str) -> Any:
    """Import what an extra brings; raise MissingExtraError, saying what to install, without it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"{module} is not installed", hint=f"Run: pip install 'swampstore[{name}]'"
        ) from None


def encoded(value: object) -> tuple[bytes, str] | None:
    """Return a data frame or an array as bytes with their content type, None for all else."""
    kind = _kind_of(value)
    if not kind[0]:
        return None
    try:
        if kind == ("numpy", "ndarray"):
            return _npy(value), NPY
        return _parquet(kind[0], value), PARQUET
    except SwampstoreError:
        raise
    except Exception as error:  # each library has its own
        raise ValidationError(
            f"the {'.'.join(kind)} cannot be saved: {error}",
            hint="Give each column one type that Parquet has, or save bytes.",
        ) from error


def _kind_of(value: object) -> tuple[str, str]:
    """Return the library that a type, or one that it is derived from, is of, and its name."""
    for one in type(value).__mro__:
        kind = one.__module__.partition(".")[0], one.__name__
        if kind in _FRAMES or kind == ("numpy", "ndarray"):
            return kind
    return "", ""


def _parquet(library: str, frame: Any) -> bytes:
    target = io.BytesIO()
    if library == "polars":
        frame.write_parquet(target)
        return target.getvalue()
    arrow = extra("pyarrow", "arrow")
    if library == "pandas":
        frame = arrow.Table.from_pandas(frame)
    elif not isinstance(frame, arrow.Table):
        frame = arrow.Table.from_batches([frame])
    import_module("pyarrow.parquet").write_table(frame, target)
    return target.getvalue()


def _npy(array: Any) -> bytes:
    target = io.BytesIO()
    # Objects would be pickled, and reading a pickle runs whatever is in it.
    import_module("numpy").save(target, array, allow_pickle=False)
    return target.getvalue()


def read_arrow(file: BinaryIO) -> Any:
    """Read Parquet as a pyarrow table."""
    arrow = extra("pyarrow", "arrow")
    return import_module("pyarrow.parquet").read_table(arrow.BufferReader(file.read()))


def read_pandas(file: BinaryIO) -> Any:
    """Read Parquet as a pandas frame, with the index that it was saved with."""
    extra("pandas", "pandas")
    return read_arrow(file).to_pandas()


def read_polars(file: BinaryIO) -> Any:
    """Read Parquet as a polars frame."""
    return extra("polars", "polars").read_parquet(io.BytesIO(file.read()))


def read_numpy(file: BinaryIO) -> Any:
    """Read npy as an array; objects, which are pickles, are refused."""
    return extra("numpy", "pandas").load(io.BytesIO(file.read()), allow_pickle=False)
