"""The columns of every table, as Spark writes them in SQL, and how a table of findings is kept.

JSON is carried as Spark's VARIANT: a value that keeps its shape and is asked by path.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.clock import system_clock, to_iso
from swampstore.files import disk_errors, replacing, temp_name
from swampstore.pipeline.running import iterated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

# So many findings are in memory while they are written.
_PAGE = 10_000
_PLACE = "store string, namespace string"
_OBJECT = (
    "rel string, key string, size bigint, etag string, last_modified timestamp, internal boolean"
)
_ARTIFACT = (
    "type_normalized string, model_id string, data_name string, version bigint, id string,"
    " is_latest boolean, deferred boolean, lifecycle string, renamed_to string, model_name string,"
    " spec_name string, data_type string, content_type string, lifetime string,"
    " garbage_collection string, owner_type string, streaming boolean, size bigint,"
    " checksum string, created_at timestamp, tags map<string,string>, owner_ref string,"
    " workflow_id string, workflow_run_id string, workflow_name string, job_name string,"
    " step_name string, source string"
)

OBJECTS = f"{_PLACE}, {_OBJECT}"
CONTENTS = (
    f"{OBJECTS}, sha256 string, bytes bigint, marker bigint, checksum string,"
    " claimed_size bigint, described_name string, described_version bigint, error string"
)
INDEX = (
    f"{_PLACE}, document string, partition string, rel string, size bigint, last_modified string,"
    " sha256 string, local_mtime string, commit_seq bigint, raw binary, problem string"
)
FILES = f"{_PLACE}, root string, rel string, size bigint, mtime timestamp, sha256 string"
ARTIFACTS = f"{_PLACE}, {_ARTIFACT}"
CHANGES = f"{ARTIFACTS}, _change_type string"
LOCATED = "raw_size bigint, raw_sha256 string"
CONTENT = "content binary"
ATTRIBUTES = "attributes variant"
OUTPUTS = (
    f"{_PLACE}, rel string, id string, type_normalized string, method_name string,"
    " definition_id string, status string, started_at timestamp, completed_at timestamp,"
    " duration_ms bigint, retry_count bigint, triggered_by string, workflow_id string,"
    " workflow_run_id string, step_name string, error string, log_file string, size bigint,"
    " document variant, problem string"
)
WORKFLOW_RUNS = (
    f"{_PLACE}, rel string, id string, workflow_id string, workflow_name string, status string,"
    " started_at timestamp, completed_at timestamp, failed_step string, failure_reason string,"
    " initiated_by string, trigger_source string, tags map<string,string>, log_file string,"
    " size bigint, document variant, problem string"
)
AUDIT = (
    f"{_PLACE}, rel string, line bigint, kind string, at timestamp, command string, cwd string,"
    " session_id string, exit_code bigint, error string, action string, vault_name string,"
    " vault_type string, secret_key string, actor string, models array<string>,"
    " document variant, problem string"
)
FINDINGS = (
    f"{_PLACE}, kind string, rel string, key string, detail string, severity string,"
    " repaired boolean"
)
KEPT_FINDINGS = f"{FINDINGS}, run_id string"


def arrow_schema(columns: str) -> pa.Schema:
    """Return columns without structures as Arrow has them; needs neither Spark nor Java."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "variant": pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
    }
    named = (column.split() for column in columns.split(", "))
    return pa.schema([(name, kinds[kind]) for name, kind in named])


def arrow_schema_of_artifacts() -> pa.Schema:
    """Return the columns that tell of a version, and not of its place, as Arrow has them."""
    return arrow_schema(_ARTIFACT)


# A file of a version (the name, the number), and the marker of a name.
VERSION_FILE = r"\A(data(?:/[^/]+){3,})/([1-9][0-9]{0,17})/[^/]+\z"
MARKER_FILE = r"\A(data(?:/[^/]+){3,})/latest\z"


def data_name() -> Column:
    """Return the directory of the data name that the path `rel` belongs to, NULL if to none."""
    from pyspark.sql import functions as sql

    found = (sql.regexp_extract("rel", one, 1) for one in (VERSION_FILE, MARKER_FILE))
    return sql.coalesce(*(sql.nullif(one, sql.lit("")) for one in found))


def data_version() -> Column:
    """Return the number of the version that the path `rel` is a file of, NULL if of none."""
    from pyspark.sql import functions as sql

    number = sql.regexp_extract("rel", VERSION_FILE, 2)
    return sql.nullif(number, sql.lit("")).cast("bigint")


def variant_of(text: str | bytes) -> dict[str, bytes] | None:
    """Return what Arrow carries of a JSON document, None if it is none or too large for Spark."""
    from pyspark.sql.types import VariantVal

    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        found = VariantVal.parseJson(decoded)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return {"value": found.value, "metadata": found.metadata}


def variant_of_value(value: Any) -> dict[str, bytes] | None:
    """Return the same of a document that was read already."""
    try:
        return variant_of(json.dumps(value))
    except (ValueError, RecursionError):
        return None


class Kept(NamedTuple):
    """Where findings are kept; with `append` those of earlier runs stay."""

    path: str
    append: bool = False


def write_table(table: DataFrame, path: str) -> None:
    """Write a table as a Parquet directory, or as JSON lines if the path ends with `.json`.

    What is at the path is replaced, by all of it or not at all. Raises DiskError.
    """
    _write_table(table, Kept(path))


def write_findings(findings: DataFrame, kept: Kept) -> None:
    """Write findings in the same way, each with the id of this run, so that runs can be told apart.

    Raises DiskError.
    """
    from pyspark.sql import functions as sql

    columns = [column.split()[0] for column in FINDINGS.split(", ")]
    _write_table(findings.select(*columns, sql.lit(run_id()).alias("run_id")), kept)


def write_few_findings(rows: Iterable[Mapping[str, Any]], kept: Kept) -> None:
    """Write findings in the same two ways without Spark; a page of them is in memory."""
    found = ({**row, "run_id": run_id()} for row in rows)
    _keep(kept, found, lambda temp: _write_parquet(found, temp))


def _write_table(table: DataFrame, kept: Kept) -> None:
    rows = (row.asDict() for row in iterated(table))
    _keep(kept, rows, table.write.parquet)


@cache
def run_id() -> str:
    """Return what tells the findings of this process from those of others; ids sort by time."""
    return f"{to_iso(system_clock())}-{uuid.uuid4().hex[:8]}"


def _keep(
    kept: Kept, rows: Iterable[Mapping[str, Any]], write_parquet: Callable[[str], object]
) -> None:
    path = os.path.abspath(kept.path)  # Spark may have been started in another directory
    with disk_errors(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if path.endswith(".json"):
            with replacing(path, durable=False) as temp:
                if kept.append and os.path.exists(path):
                    shutil.copyfile(path, temp)
                _write_lines(rows, temp)
            return
        temp = f"{path}{temp_name()}"
        try:
            write_parquet(temp)
            if kept.append and os.path.isdir(path):
                _add_files(temp, path)
            else:
                shutil.rmtree(path, ignore_errors=True)
                os.rename(temp, path)
        finally:
            shutil.rmtree(temp, ignore_errors=True)


def _add_files(source: str, directory: str) -> None:
    """Move the files of a Parquet directory into another one, under names of this run."""
    run = run_id().replace(":", "")  # which Spark does not like in paths
    for name in sorted(os.listdir(source)):
        if name.endswith(".parquet"):
            os.rename(f"{source}/{name}", f"{directory}/{run}-{name}")


def _write_lines(rows: Iterable[Mapping[str, Any]], path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            document = {key: value for key, value in row.items() if value is not None}
            file.write(json.dumps(document, ensure_ascii=False) + "\n")


def _write_parquet(rows: Iterator[Mapping[str, Any]], directory: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = arrow_schema(KEPT_FINDINGS)
    os.mkdir(directory)
    with parquet.ParquetWriter(f"{directory}/part-00000.parquet", schema) as writer:
        while page := list(islice(rows, _PAGE)):
            writer.write_table(pa.Table.from_pylist(page, schema))
