"""What lookups return: one version of one artifact, its content read when asked for."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from swampstore.artifacts import frames
from swampstore.artifacts.content import LARGEST_PARSED, ContentSource, parse_content
from swampstore.catalog.schema import Row, record_of
from swampstore.clock import from_iso
from swampstore.errors import ContentDamagedError, DiskError, SwampstoreError, ValidationError
from swampstore.layout import DataRef, ModelRef
from swampstore.notices import notice

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    import numpy as np
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from swampstore.artifacts.metadata import Metadata


class Artifact:
    """One version of one data name.

    What the catalog knows is at hand; `bytes()`, `text()`, `json()`, `open()` and `metadata`
    read from disk each time they are called.
    """

    __slots__ = ("_source", "row")

    def __init__(self, row: Row, source: ContentSource) -> None:
        self.row = row
        self._source = source

    @property
    def ref(self) -> DataRef:
        """The address of the data name."""
        return self.row.ref

    @property
    def model(self) -> ModelRef:
        """The address of the model that owns the data."""
        return self.row.ref.model

    @property
    def name(self) -> str:
        """The data name."""
        return self.row.data_name

    @property
    def version(self) -> int:
        """The version."""
        return self.row.version

    @property
    def id(self) -> str:
        """The id that this version was given when it was written."""
        return self.row.id

    @property
    def is_latest(self) -> bool:
        """Whether this was the latest version when it was looked up."""
        return bool(self.row.is_latest)

    @property
    def model_name(self) -> str:
        """The model's name, empty if it has none."""
        return self.row.model_name

    @property
    def content_type(self) -> str:
        """The MIME type."""
        return self.row.content_type

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.row.size

    @property
    def checksum(self) -> str | None:
        """The SHA-256 of the bytes in hex; None after something was appended."""
        return self.row.checksum or None

    @property
    def tags(self) -> dict[str, str]:
        """The tags."""
        tags: dict[str, str] = json.loads(self.row.tags)
        return tags

    @property
    def created(self) -> datetime:
        """When this version was written."""
        return from_iso(self.row.created_at)

    @property
    def is_deleted(self) -> bool:
        """Whether this version is a tombstone."""
        return self.row.is_deleted

    @property
    def path(self) -> Path:
        """The file that holds the bytes, fetched first if need be. Treat it as read-only.

        A cache with a limit may remove it again some time later; `open()` is safe from that.
        """
        from pathlib import Path

        return Path(self._source.path(self.ref, self.version))

    @property
    def metadata(self) -> Metadata:
        """Everything that `metadata.yaml` says, members unknown to us included."""
        return self._source.metadata(self.ref, self.version)

    def open(self) -> BinaryIO:
        """Open the bytes for reading; the caller closes the file.

        They are compared with their hash on the way: at the end, reading raises
        ContentDamagedError if they are not what was saved.
        """
        return self._source.open(self.ref, self.version, self.row.checksum)

    def bytes(self) -> bytes:
        """Return the bytes."""
        with self.open() as file:
            return file.read()

    def text(self) -> str:
        """Return the content as text; raise ValidationError if it is not UTF-8."""
        try:
            return self.bytes().decode()
        except UnicodeDecodeError as error:
            raise ValidationError(
                f"{self.ref} version {self.version} is not UTF-8 text ({self.content_type})",
                hint="Use .bytes().",
            ) from error

    def json(self) -> Any:
        """Return the parsed JSON document; raise ValidationError if it is none."""
        try:
            return json.loads(self.bytes())
        except ValueError as error:
            raise ValidationError(
                f"{self.ref} version {self.version} is not JSON ({self.content_type}): {error}",
                hint="Use .text() or .bytes().",
            ) from error

    def to_pandas(self) -> pd.DataFrame:
        """Return the Parquet content as a pandas frame; needs the extras `pandas` and `arrow`."""
        return self._as("Parquet", frames.read_pandas)

    def to_polars(self) -> pl.DataFrame:
        """Return the Parquet content as a polars frame; needs the extra `polars`."""
        return self._as("Parquet", frames.read_polars)

    def to_arrow(self) -> pa.Table:
        """Return the Parquet content as a pyarrow table; needs the extra `arrow`."""
        return self._as("Parquet", frames.read_arrow)

    def to_numpy(self) -> np.ndarray:
        """Return the array that was saved; needs numpy."""
        array: np.ndarray = self._as("an array of numpy", frames.read_numpy)
        return array

    def _as(self, what: str, read: Callable[[BinaryIO], Any]) -> Any:
        """Return the content, all of it compared with its hash, as `read` understands it."""
        content = io.BytesIO(self.bytes())
        try:
            return read(content)
        except SwampstoreError:
            raise
        except Exception as error:  # each library has its own
            raise ValidationError(
                f"{self.ref} version {self.version} is not {what} ({self.content_type}): {error}",
                hint="Use .open() or .bytes().",
            ) from error

    @property
    def is_too_large_to_parse(self) -> bool:
        """Whether queries do not look into it; `.open()` reads it in pieces."""
        return self.size > LARGEST_PARSED

    def parsed(self) -> tuple[Any, Any]:
        """Return (attributes, content) as queries see them.

        None, None if it is not here, or too large to be looked into.
        """
        if self.is_too_large_to_parse:
            notice(
                "%s version %d is not looked into: it has %d bytes, and queries read up to %d",
                *(self.ref, self.version, self.size, LARGEST_PARSED),
            )
            return None, None
        try:
            data = self._source.read(self.ref, self.version, self.row.checksum)
        except (DiskError, ValidationError, ContentDamagedError) as error:
            notice("%s", error.message)
            return None, None
        return (None, None) if data is None else parse_content(self.content_type, data)

    def record(self, *, with_content: bool = False) -> dict[str, Any]:
        """Return the fields by the names that predicates use."""
        record = record_of(self.row)
        del record["ns"]
        if with_content:
            record["attributes"], record["content"] = self.parsed()
        return record

    def __repr__(self) -> str:
        latest = " latest" if self.is_latest else ""
        return (
            f"<Artifact {self.model} {self.name!r} v{self.version}{latest}"
            f" {self.content_type} {self.size} bytes>"
        )

    def _repr_html_(self) -> str:
        return html_table(
            ["field", "value"],
            [[key, value] for key, value in self.record().items() if value not in ("", {})],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row)


class ArtifactList(list[Artifact]):
    """A list of artifacts that a notebook shows as a table."""

    def table(self, note: str) -> str:
        """Return the table with a line below it."""
        header = ["model", "name", "version", "content type", "size", "created"]
        rows = (
            [
                *(one.model_name or one.model, one.name, one.version, one.content_type),
                *(one.size, one.row.created_at),
            ]
            for one in self
        )
        return html_table(header, rows, note)

    def _repr_html_(self) -> str:
        count = len(self)
        note = f"{count} artifact(s)" + (f", {_SHOWN} shown" if count > _SHOWN else "")
        return ArtifactList(self[:_SHOWN]).table(note)


_SHOWN = 100


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Return a small table for notebooks; every cell is escaped."""
    from html import escape  # which no command needs

    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    foot = f"<p>{escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"
