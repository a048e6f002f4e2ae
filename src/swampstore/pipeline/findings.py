"""What a job found, as a table that can be kept."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from swampstore.files import disk_errors, replacing, temp_name
from swampstore.pipeline.schemas import FINDINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_findings(findings: DataFrame, path: str) -> None:
    """Write findings as a Parquet directory, or as JSON lines if the path ends with `.json`.

    What is at the path is replaced, by all of them or not at all. Raises DiskError.
    """
    rows = (row.asDict() for row in findings.toLocalIterator())
    _replace(path, rows, findings.write.parquet)


def write_few_findings(rows: Iterable[Mapping[str, Any]], path: str) -> None:
    """Write findings, which are few, in the same two ways without Spark."""
    found = list(rows)
    _replace(path, found, lambda temp: _write_parquet(found, temp))


def _replace(
    path: str, rows: Iterable[Mapping[str, Any]], write_parquet: Callable[[str], object]
) -> None:
    path = os.path.abspath(path)  # Spark may have been started in another directory
    with disk_errors(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if path.endswith(".json"):
            with replacing(path, durable=False) as temp:
                _write_lines(rows, temp)
            return
        temp = f"{path}{temp_name()}"
        try:
            write_parquet(temp)
            shutil.rmtree(path, ignore_errors=True)
            os.rename(temp, path)
        finally:
            shutil.rmtree(temp, ignore_errors=True)


def _write_lines(rows: Iterable[Mapping[str, Any]], path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            document = {key: value for key, value in row.items() if value is not None}
            file.write(json.dumps(document, ensure_ascii=False) + "\n")


def _write_parquet(rows: list[Mapping[str, Any]], directory: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"string": pa.string(), "boolean": pa.bool_()}
    columns = [column.split() for column in FINDINGS.split(", ")]
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns])
    os.mkdir(directory)
    parquet.write_table(pa.Table.from_pylist(rows, schema), f"{directory}/part-00000.parquet")
