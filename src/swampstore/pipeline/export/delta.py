"""The exported table as a Delta table, by the package `deltalake`: no JVM.

Each export of a place is one commit, which also says which snapshot the rows stand for. So it is
there as a whole or not at all, and of two at once one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from swampstore.artifacts.frames import extra
from swampstore.errors import ValidationError
from swampstore.pipeline.errors import ExportFailedError
from swampstore.pipeline.export.rows import (
    CHANGE,
    CHANGES,
    DAY,
    KEY,
    PARTITIONED_BY,
    RUN,
    SCHEMA,
    TAKEN_OUT,
    Spool,
    put_in,
)
from swampstore.pipeline.places import Place
from swampstore.stores.directory import DirectoryConfig
from swampstore.stores.s3 import S3Config

if TYPE_CHECKING:
    from swampstore.stores.config import StoreConfig

_SOURCE, _TARGET = "source", "target"


class DeltaTarget:
    """A Delta table in a directory or in a bucket of S3."""

    def __init__(self, config: StoreConfig) -> None:
        self._lake = extra("deltalake", "delta")
        self._where, self._options = _location(config)
        with self._understandable():
            is_there = self._lake.DeltaTable.is_deltatable(self._where, self._options)
        self._table: Any = self._opened() if is_there else None

    def _opened(self) -> Any:
        with self._understandable():
            table = self._lake.DeltaTable(self._where, storage_options=self._options)
        found = {field.name for field in table.schema().fields}
        if found | {RUN} != set(SCHEMA.names):
            raise ValidationError(
                f"{self._where} is a Delta table of something else",
                hint="Name a directory that is empty, or that was exported to before.",
            )
        return table

    def moment(self, place: Place) -> int | None:
        """Return which snapshot the rows of a place stand for, None if that is not known."""
        if self._table is None:
            return None
        found: int | None = self._table.transaction_version(_writer(place))
        return found

    def days(self, place: Place) -> Sequence[date | None]:
        """Return the days that rows of a place may be of."""
        if self._table is None:
            return []
        return sorted(
            {day for namespace, day, _ in self._parts() if namespace == (place.namespace or None)},
            key=str,
        )

    def rows(self, place: Place, day: date | None) -> pa.Table:
        """Return the rows of a place and a day."""
        if self._table is None:
            return SCHEMA.empty_table()
        chosen = (
            (ds.field("store").cast(pa.string()) == place.identity)
            & _is("namespace", place.namespace or None)
            & _is(DAY, day)
        )
        with self._understandable():
            found = self._table.to_pyarrow_dataset().to_table(filter=chosen)
        if RUN not in found.column_names:
            found = found.append_column(SCHEMA.field(RUN), pa.nulls(found.num_rows, pa.string()))
        return found.select(SCHEMA.names).cast(SCHEMA)

    def counts(self) -> dict[str, int]:
        """Return how many rows there are, by namespace."""
        found: dict[str, int] = {}
        for namespace, _, count in self._parts() if self._table else ():
            found[namespace or ""] = found.get(namespace or "", 0) + count
        return found

    def apply(self, place: Place, changes: Spool, moment: int | None) -> None:
        """Merge changes by key, in one commit; raise ExportFailedError if somebody else did."""
        transactions = []
        if moment is not None:
            transactions.append(self._lake.Transaction(_writer(place), moment))
        properties = self._lake.CommitProperties(app_transactions=transactions)
        is_new = not any(self.rows(place, day).num_rows for day in self.days(place))
        with self._understandable():
            if self._table is not None and RUN not in {
                field.name for field in self._table.schema().fields
            }:
                # Written before runs had a column.
                column = self._lake.schema.Field(RUN, "string")
                self._table.alter.add_columns([column])
            if is_new or not changes.count:
                self._append(changes, properties)
            else:
                self._merge(changes, properties)
        self._table = self._opened()

    def _append(self, changes: Spool, properties: Any) -> None:
        tables = (put_in(changes.read(day)) for day in changes.days())
        batches = (batch for table in tables for batch in table.to_batches())
        self._lake.write_deltalake(
            self._table if self._table is not None else self._where,
            pa.RecordBatchReader.from_batches(SCHEMA, batches),
            partition_by=list(PARTITIONED_BY),
            mode="append" if self._table is not None else "error",
            storage_options=self._options,
            commit_properties=properties,
        )

    def _merge(self, changes: Spool, properties: Any) -> None:
        batches = (batch for day in changes.days() for batch in changes.read(day).to_batches())
        columns = {name: f"{_SOURCE}.{name}" for name in SCHEMA.names}
        is_gone = " OR ".join(f"{_SOURCE}.{CHANGE} = '{one}'" for one in TAKEN_OUT)
        merge = self._table.merge(
            pa.RecordBatchReader.from_batches(CHANGES, batches),
            predicate=" AND ".join(map(_same, (*KEY, DAY))),
            source_alias=_SOURCE,
            target_alias=_TARGET,
            streamed_exec=False,  # then what the changes are about prunes the files
            commit_properties=properties,
        )
        merge = merge.when_matched_delete(predicate=is_gone).when_matched_update(updates=columns)
        merge.when_not_matched_insert(updates=columns, predicate=f"NOT ({is_gone})").execute()

    def _parts(self) -> Iterator[tuple[str | None, date | None, int]]:
        """Yield namespace, day and number of rows of each file."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        names = [*(f"partition.{name}" for name in PARTITIONED_BY), "num_records"]
        yield from zip(*(actions[name].to_pylist() for name in names), strict=True)

    @contextmanager
    def _understandable(self) -> Iterator[None]:
        """Raise what `deltalake` raises as an error of ours."""
        try:
            yield
        except (self._lake.exceptions.DeltaError, OSError) as error:
            raise ExportFailedError(
                f"{self._where} was not written: {' '.join(str(error).split())}",
                hint="Nothing of it was changed. If somebody else exports there, let them finish,"
                " then run it again.",
            ) from error


def _writer(place: Place) -> str:
    return f"swampstore {place}"


def _is(column: str, value: object) -> Any:
    return ds.field(column).is_null() if value is None else ds.field(column) == value


def _same(column: str) -> str:
    source, target = f"{_SOURCE}.{column}", f"{_TARGET}.{column}"
    if column not in PARTITIONED_BY:
        return f"{target} = {source}"
    return f"({target} = {source} OR ({target} IS NULL AND {source} IS NULL))"


def _location(config: StoreConfig) -> tuple[str, Mapping[str, str]]:
    """Return where a store is and how it is opened, as `deltalake` wants to know it."""
    if isinstance(config, DirectoryConfig):
        return config.path, {}
    if not isinstance(config, S3Config):
        raise ValidationError(
            "Delta tables are written to directories and to buckets of S3",
            hint="Use --format parquet, which goes wherever data can be, or another place.",
        )
    options = {
        "aws_region": config.region,
        "aws_virtual_hosted_style_request": str(not config.path_style).lower(),
        "aws_conditional_put": "etag",
        "allow_http": str(config.endpoint.startswith("http://")).lower(),
    }
    if config.endpoint:
        options["aws_endpoint_url"] = config.endpoint
    if config.credentials:
        options["aws_access_key_id"] = config.credentials.access_key_id
        options["aws_secret_access_key"] = config.credentials.secret_access_key
        if config.credentials.session_token:
            options["aws_session_token"] = config.credentials.session_token
    return "/".join(filter(None, (f"s3://{config.bucket}", config.prefix))), options
