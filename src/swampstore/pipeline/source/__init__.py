"""The Spark data source `swampstore`: `spark.read.format("swampstore").load(url_or_repository)`.

Options (Spark hands them over in lower case): `table`, `namespace` (several with commas between
them, `*` for all), `tasks`, `pushdown`, and those of the tables. With `pushdown` filters choose
what is read, which is right only for a frame whose every query has a filter (see `scan.Frame`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from swampstore.errors import ValidationError
from swampstore.formats import whole_number
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.schemas import ARTIFACTS
from swampstore.pipeline.source.scan import Frame, PushingScan, Scan, Table, hints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from swampstore.pipeline.source.change_stream import ChangeStream
    from swampstore.pipeline.source.stream import CommitStream
    from swampstore.pipeline.source.writer import ArtifactWriter

FORMAT = "swampstore"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
_TASKS = 32


class SwampstoreSource(DataSource):  # type: ignore[misc]  # pyspark is not typed here
    """Tables of a datastore."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._frame = Frame(secrets.token_hex(16))  # Spark makes one source per loaded frame
        if is_on(options, "pushdown"):
            self._frame.begin()

    @classmethod
    def name(cls) -> str:
        """Return what goes into `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of the table."""
        with hints():
            return table_of(self.options).schema

    def reader(self, schema: StructType) -> Scan[Any]:
        """Return what reads the table."""
        with hints():
            if self._is_of_changes and "from" not in self.options:
                raise ValidationError(
                    "the table of changes needs to know since when",
                    hint='Write .option("from", "841"), a commit, or a time such as'
                    " 2026-05-14T08:00Z.",
                )
            table, places = table_of(self.options), places_of_options(self.options)
            tasks = number_of(self.options, "tasks", _TASKS)
        if is_on(self.options, "pushdown"):
            return PushingScan(table, places, tasks, schema, self._frame)
        return Scan(table, places, tasks, schema)

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> CommitStream | ChangeStream:
        """Return what follows the table, commit by commit or snapshot by snapshot."""
        from swampstore.pipeline.source.change_stream import ChangeStream
        from swampstore.pipeline.source.stream import CommitStream, Following, followable

        tasks = number_of(self.options, "tasks", _TASKS)
        if self._is_of_changes:
            places = places_of_options(self.options)
            return ChangeStream(self.options.get("from"), places, tasks, schema)
        table = followable(table_of(self.options), self.options.get("table", "artifacts"))
        following = Following.of(self.options)
        return CommitStream(table, places_of_options(self.options), following, tasks, schema)

    @property
    def _is_of_changes(self) -> bool:
        return bool(self.options.get("table") == "changes")

    def writer(self, schema: StructType, overwrite: bool) -> ArtifactWriter:
        """Return what saves rows as versions."""
        from swampstore.pipeline.source.writer import ArtifactWriter

        return ArtifactWriter.of(self.options, schema, overwrite=overwrite)


def register(spark: SparkSession) -> None:
    """Make `format("swampstore")` known to a session, and let it push filters down if it can."""
    from pyspark.errors import PySparkException

    with contextlib.suppress(PySparkException):
        spark.conf.set(PUSH_DOWN, "true")
    spark.dataSource.register(SwampstoreSource)


def places_of_options(options: Mapping[str, str]) -> list[Place]:
    """Return the places that the options of a reader or writer mean."""
    target = options.get("path")
    if not target:
        raise ValidationError(
            "the data source needs to know where the data is",
            hint='Write .load("s3://bucket/prefix") or .load("/path/of/a/repository").',
        )
    chosen = options.get("namespace")
    return places_of(target, None if chosen is None else chosen.split(","))


def table_of(options: Mapping[str, str]) -> Table[Any]:
    """Return the table that the options of a reader mean; raise ValidationError."""
    name = options.get("table", "artifacts")
    if name not in _TABLES:
        raise ValidationError(
            f"there is no table {name!r}", hint=f"There are: {', '.join(sorted(_TABLES))}."
        )
    return _TABLES[name](options)


def _objects(options: Mapping[str, str]) -> Table[Any]:
    del options
    from swampstore.pipeline.source.objects import Objects

    return Objects()


def _contents(options: Mapping[str, str]) -> Table[Any]:
    from swampstore.pipeline.source.objects import Chosen, Contents

    number, count = _slice_of(options.get("shard", "1/1"))
    return Contents(Chosen(number - 1, count, _share_of(options.get("sample", "1"))))


def _slice_of(text: str) -> tuple[int, int]:
    """Return K and N of `K/N`, the Kth of N slices; raise ValidationError."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if 1 <= number <= count:
        return number, count
    raise _wrong_option("shard", text, "K/N with K from 1 to N")


def _share_of(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise _wrong_option("sample", text, "a number above 0 and up to 1")


def _index(options: Mapping[str, str]) -> Table[Any]:
    from swampstore.pipeline.source.index import Index

    return Index(every_document=options.get("documents") == "all")


def _files(options: Mapping[str, str]) -> Table[Any]:
    from swampstore.pipeline.source.objects import Files

    return Files(hashed=is_on(options, "hashed"))


def _artifacts(options: Mapping[str, str]) -> Table[Any]:
    from swampstore.pipeline.source.artifacts import LONGEST_CONTENT, Artifacts

    return Artifacts(
        columns=_columns_of(options.get("columns")),
        content=is_on(options, "content"),
        attributes=is_on(options, "attributes"),
        longest=number_of(options, "maxContentBytes", LONGEST_CONTENT),
        located=is_on(options, "located"),
        as_of=options.get("asof"),
        snapshot=options.get("snapshot", "true").lower() != "false",
        is_bare="pushdown" not in options,
    )


def _columns_of(text: str | None) -> tuple[str, ...] | None:
    """Return the columns that were asked for, None: all; raise ValidationError."""
    if text is None:
        return None
    known = [one.split()[0] for one in ARTIFACTS.split(", ")]
    chosen = tuple(one.strip() for one in text.split(","))
    for one in chosen:
        if one not in known:
            raise _wrong_option("columns", text, f"names from {', '.join(known)}")
    return chosen


def _changes(options: Mapping[str, str]) -> Table[Any]:
    from swampstore.pipeline.source.changes import Changes

    return Changes(options.get("from"), options.get("to"))


def _outputs(options: Mapping[str, str]) -> Table[Any]:
    del options
    from swampstore.pipeline.source.records import Outputs

    return Outputs()


def _workflow_runs(options: Mapping[str, str]) -> Table[Any]:
    del options
    from swampstore.pipeline.source.records import WorkflowRuns

    return WorkflowRuns()


def _audit(options: Mapping[str, str]) -> Table[Any]:
    del options
    from swampstore.pipeline.source.records import Audit

    return Audit()


def number_of(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a whole number; raise ValidationError if it is none."""
    text = options.get(name.lower(), str(default))
    number = whole_number(text)
    if number is None:
        raise _wrong_option(name, text, "a whole number")
    return number


def _wrong_option(name: str, text: str, expected: str) -> ValidationError:
    return ValidationError(
        f"the option {name} is {text!r}, expected {expected}",
        hint="Correct the option, or leave it out.",
    )


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Whether an option is there and true."""
    return options.get(name, "").lower() == "true"


_TABLES: Mapping[str, Callable[[Mapping[str, str]], Table[Any]]] = {
    "artifacts": _artifacts,
    "audit": _audit,
    "changes": _changes,
    "contents": _contents,
    "files": _files,
    "index": _index,
    "objects": _objects,
    "outputs": _outputs,
    "workflow_runs": _workflow_runs,
}
