"""Running a query over everything a repository holds, ephemeral data included, and its answer.

`Results` are artifacts or projected values, with their way into data frames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload
from typing import Literal as OneOf

from swampstore.artifact import Artifact, ArtifactList, html_table
from swampstore.artifacts.frames import extra
from swampstore.artifacts.metadata import is_json
from swampstore.catalog.query.projection import projection
from swampstore.catalog.query.tree import Literal, render
from swampstore.catalog.schema import Row
from swampstore.catalog.select import Query
from swampstore.errors import QueryError, ValidationError
from swampstore.layout import RAW
from swampstore.telemetry import span, traced

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from swampstore.index.results import Progress
    from swampstore.layout import ModelRef
    from swampstore.repo import Repo
    from swampstore.sync.hydrate import Hydrated

T = TypeVar("T")
Tags: TypeAlias = OneOf["columns", "json", "map"]
_SHOWN = 20


class Results(Generic[T]):
    """A list of what a query found; frames take it as it is: `polars.DataFrame(results)`.

    `limited` says that a limit was given and reached, `unhydrated` how many rows were judged
    without their content because it is not on this machine.
    """

    # No `Sequence`: of one, polars makes a column of objects, and does not ask for a stream.

    def __init__(
        self,
        found: Sequence[T],
        *,
        predicate: str | None = None,
        limit: int | None = None,
        unhydrated: int = 0,
    ) -> None:
        self._found = found
        self.predicate = predicate
        self.limited = limit is not None and len(found) >= limit
        self.unhydrated = unhydrated

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[T]:
        return iter(self._found)

    def records(self, *, with_content: bool = False) -> list[Any]:
        """Return plain dictionaries of artifacts; projected values as they are."""
        return [
            item.record(with_content=with_content) if isinstance(item, Artifact) else item
            for item in self._found
        ]

    def to_arrow(self, *, tags: Tags = "json") -> pa.Table:
        """Return a pyarrow table, one row per result; needs the extra `arrow`.

        `tags` of artifacts become a JSON text, a `map`, or `columns` called `tags.KEY`. When they
        were created is a time in UTC. Projected values are as the projection made them.
        """
        arrow = extra("pyarrow", "arrow")
        rows = self._rows(tags)
        found = arrow.Table.from_pylist(rows)
        if tags == "map" and "tags" in found.column_names:
            pairs = [list((row.get("tags") or {}).items()) for row in rows]
            column = arrow.array(pairs, type=arrow.map_(arrow.string(), arrow.string()))
            found = found.set_column(found.column_names.index("tags"), "tags", column)
        return found

    def to_pandas(self, *, tags: Tags = "json") -> pd.DataFrame:
        """Return a pandas frame, as `to_arrow` does; needs the extra `pandas`."""
        frame: pd.DataFrame = extra("pandas", "pandas").DataFrame(self._rows(tags))
        return frame

    def to_polars(self, *, tags: Tags = "json") -> pl.DataFrame:
        """Return a polars frame, as `to_arrow` does; needs the extra `polars`.

        polars has no maps: they become lists of `key` and `value`.
        """
        rows = self._rows(tags)
        for row in rows if tags == "map" else ():
            pairs = row.get("tags") or {}
            row["tags"] = [{"key": key, "value": value} for key, value in pairs.items()]
        frame: pl.DataFrame = extra("polars", "polars").DataFrame(rows, infer_schema_length=None)
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the rows to whatever takes Arrow streams (DuckDB, polars, pandas); as `to_arrow`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _rows(self, tags: Tags) -> list[dict[str, Any]]:
        """Return rows of columns; values that are no mappings get the column `value`."""
        return [
            _frame_row(item, tags)
            if isinstance(item, Artifact)
            else (dict(item) if isinstance(item, dict) else {"value": item})
            for item in self._found
        ]

    def __repr__(self) -> str:
        more = f" of {self.predicate!r}" if self.predicate else ""
        limited = ", limited" if self.limited else ""
        return f"<Results{more}: {len(self)}{limited}>"

    def _repr_html_(self) -> str:
        shown = self._found[:_SHOWN]
        note = f"{len(self)} result(s)" + (f", {_SHOWN} shown" if len(self) > _SHOWN else "")
        artifacts = ArtifactList(item for item in shown if isinstance(item, Artifact))
        if len(artifacts) == len(shown):
            return artifacts.table(note)
        rows = [item if isinstance(item, dict) else {"value": item} for item in shown]
        header = list(dict.fromkeys(str(key) for row in rows for key in row))
        return html_table(header, [[row.get(key, "") for key in header] for row in rows], note)


def _frame_row(artifact: Artifact, tags: Tags) -> dict[str, Any]:
    row = artifact.record()
    try:
        row["createdAt"] = artifact.created
    except ValueError:  # another program wrote no time
        row["createdAt"] = None
    if tags == "json":
        row["tags"] = json.dumps(row["tags"], ensure_ascii=False, sort_keys=True)
    elif tags == "columns":
        row |= {f"tags.{key}": value for key, value in row.pop("tags").items()}
    return row


# How many contents are fetched together: few at first, in case they are all that is needed.
_FIRST_PAGE = 64
_LARGEST_PAGE = 2048
_MANY_ATTRIBUTES = 1000


@traced("query")
def run_query(
    repo: Repo,
    predicate: str | None,
    *,
    select: str | None = None,
    limit: int | None = None,
    order: str | None = None,
    hydrate: bool = False,
    word: str | None = None,
) -> Results[Any]:
    """Return artifacts, or projected values with `select`; see `Repo.query`.

    With a `word`, only what mentions it in a name or in a tag, in any case.
    """
    query = Query(predicate, order=order, limit=limit, word=word)
    project = projection(select) if select is not None else None
    unhydrated: set[tuple[object, ...]] = set()

    def load(row: Row) -> tuple[Any, Any]:
        artifact = repo.artifact(row)
        attributes, content = artifact.parsed()
        if attributes is None and not artifact.is_too_large_to_parse:
            unhydrated.add(row[:5])
        return attributes, content

    def results(found: list[Any]) -> Results[Any]:
        return Results(found, predicate=predicate, limit=limit, unhydrated=len(unhydrated))

    own = repo.config.namespace
    if query.namespace not in (None, own):
        rows: list[Row] = []
    elif hydrate and query.needs_content:
        rows = _judged_with_content(repo, query, load)
    else:
        rows = repo.reading(
            lambda: repo.ready(complete=True), lambda: query.run(repo.catalog.rows, load)
        )
    if repo.ephemeral:
        rows = query.merge(query.run(repo.ephemeral.catalog.rows, load), rows)
    if repo.knows_others and query.namespace != own:
        rows = query.merge(rows, repo.others.answer(query, load))
    if project is None:
        return results([repo.artifact(row) for row in rows])
    values = []
    for row in _fetched(repo, rows, hydrate=hydrate) if project.needs_content else rows:
        record = repo.artifact(row).record() | {"ns": row.namespace}
        if project.needs_content:
            record["attributes"], record["content"] = load(row)
        values.append(project(record))
    return results(values)


class Stream:
    """What a query finds, one after the other; when all have come, how many there were."""

    def __init__(self, found: Iterable[Any], limit: int | None) -> None:
        self._found = found
        self._limit = limit
        self.total = 0
        self.unhydrated = 0
        # Members of the content that was looked into, as long as they are few.
        self.attributes: set[str] = set()

    def __iter__(self) -> Iterator[Any]:
        with span("query", is_current=False) as told:
            for one in self._found:
                self.total += 1
                yield one
            told.note(rows=self.total)

    @property
    def limited(self) -> bool:
        """Whether a limit was given and reached."""
        return self._limit is not None and self.total >= self._limit


def stream_query(
    repo: Repo,
    predicate: str | None,
    *,
    select: str | None = None,
    limit: int | None = None,
    order: str | None = None,
    hydrate: bool = False,
) -> Stream:
    """Return what `run_query` returns, without holding all of it, where that is possible.

    What other namespaces hold is merged first, and what is fetched first is fetched in pages.
    """
    query = Query(predicate, order=order, limit=limit)
    project = projection(select) if select is not None else None
    own = repo.config.namespace
    is_merged = repo.ephemeral or (repo.knows_others and query.namespace != own)
    if is_merged or hydrate or query.namespace not in (None, own):
        results = run_query(
            repo, predicate, select=select, limit=limit, order=order, hydrate=hydrate
        )
        stream = Stream(results, limit)
        stream.unhydrated = results.unhydrated
        return stream
    unhydrated: set[tuple[object, ...]] = set()

    def load(row: Row) -> tuple[Any, Any]:
        artifact = repo.artifact(row)
        attributes, content = artifact.parsed()
        if attributes is None and not artifact.is_too_large_to_parse:
            unhydrated.add(row[:5])
            stream.unhydrated = len(unhydrated)
        if isinstance(attributes, dict) and len(stream.attributes) < _MANY_ATTRIBUTES:
            stream.attributes.update(attributes)
        return attributes, content

    def found() -> Iterator[Any]:
        for row in query.stream(repo.catalog.rows, load):
            artifact = repo.artifact(row)
            if project is None:
                yield artifact
                continue
            record = artifact.record() | {"ns": row.namespace}
            if project.needs_content:
                record["attributes"], record["content"] = load(row)
            yield project(record)

    repo.ready(complete=True)
    stream = Stream(found(), limit)
    return stream


def _judged_with_content(repo: Repo, query: Query, load: Any) -> list[Row]:
    """Return the matching rows after fetching what decides about them, and not much more."""
    candidates = repo.reading(
        lambda: repo.ready(complete=True), lambda: query.candidates(repo.catalog.rows)
    )
    found: list[Row] = []
    for page in _pages(candidates):
        fetch_content(repo, page)
        found += query.judge(page, load)
        if query.limit is not None and len(found) >= query.limit:
            break
    return found[: query.limit]


def _fetched(repo: Repo, rows: Sequence[Row], *, hydrate: bool) -> Iterator[Row]:
    """Yield the rows; content of other namespaces, or any with `hydrate`, is here by then."""
    for page in _pages(rows):
        if hydrate:
            fetch_content(repo, page)
        yield from repo.others.fetching(page) if repo.knows_others else page


def read_ahead(repo: Repo, artifacts: Sequence[Artifact]) -> Iterator[Artifact]:
    """Yield artifacts; the JSON of other namespaces among them is fetched ahead, much at once."""
    if not repo.knows_others:
        return iter(artifacts)
    rows = [artifact.row for artifact in artifacts]
    return (repo.artifact(row) for row in repo.others.fetching(rows, is_json))


def _pages(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start, size = 0, _FIRST_PAGE
    while start < len(rows):
        yield rows[start : start + size]
        start, size = start + size, min(size * 2, _LARGEST_PAGE)


def fetch_content(repo: Repo, rows: Sequence[Row]) -> None:
    """Fetch what is only on the remote of the content of these rows."""
    if repo.config.remote is None:
        return
    content = _own_content(repo, rows)
    if any(_is_absent(repo, rel) for rel in content):
        # All of it is named, so that what is here does not make room for what is not.
        repo.sync.hydrate_many(content, repo.config.remote.sync_timeout)


def _own_content(repo: Repo, rows: Sequence[Row]) -> dict[str, int]:
    """Return the paths of the content of these rows with the sizes, for the own namespace."""
    own = [row for row in rows if row.namespace == repo.config.namespace]
    return {row.ref.file_rel(row.version, RAW): row.size for row in own}


def _is_absent(repo: Repo, rel: str) -> bool:
    return not os.path.lexists(repo.tree.path(rel))


def hydrate_found(
    repo: Repo,
    predicate: str | None,
    model: ModelRef | None,
    *,
    all_versions: bool,
    dry_run: bool,
    deadline: float | None,
    progress: Progress | None,
) -> Hydrated:
    """Fetch the content of what a predicate finds; see `Repo.hydrate`."""
    from swampstore.index.results import no_progress
    from swampstore.sync.hydrate import Hydrated

    query = Query(_narrowed(predicate, model, all_versions=all_versions))
    if query.needs_content:
        raise QueryError(
            "the predicate reads the content that is still to be fetched",
            hint="Choose by other fields here, or use `data query --hydrate`.",
        )
    service = repo.sync
    rows = repo.reading(
        lambda: repo.ready(complete=True), lambda: query.candidates(repo.catalog.rows)
    )
    content = _own_content(repo, query.judge(rows, lambda _row: (None, None)))
    _check_fits(repo, sum(content.values()))
    if dry_run:
        absent = [size for rel, size in content.items() if _is_absent(repo, rel)]
        return Hydrated(len(absent), sum(absent))
    remote = repo.config.remote
    assert remote is not None
    return service.hydrate_many(content, remote.deadline(deadline), progress or no_progress)


def _narrowed(predicate: str | None, model: ModelRef | None, *, all_versions: bool) -> str | None:
    parts = [f"({predicate})"] if predicate is not None else []
    if model is not None:
        parts.append(model_is(model))
    if all_versions:
        parts.append("version > 0")
    return " && ".join(parts) or None


def model_is(model: ModelRef) -> str:
    """Return the predicate that holds for the artifacts of one model."""
    return f"modelType == {cel_text(model.type)} && modelId == {cel_text(model.id)}"


def cel_text(text: str) -> str:
    """Write text as a literal of the query language."""
    return render(Literal("string", text))


def newest_each(repo: Repo, predicate: str, namespace: str) -> list[Artifact]:
    """Return one artifact of a namespace per model, name and step: the one created last."""
    newest: dict[tuple[object, ...], Artifact] = {}
    for found in repo.query(f"{predicate} && ns == {cel_text(namespace)}", order="createdAt"):
        newest[found.model, found.name, found.row.step_name] = found
    return ArtifactList(newest.values())


def _check_fits(repo: Repo, size: int) -> None:
    limit = repo.config.remote.cache_limit if repo.config.remote else None
    if limit is not None and size > limit:
        raise ValidationError(
            f"that is {size} bytes of content, and the cache may hold {limit}",
            hint="Choose less of it, or raise datastore.cache.maxBytes.",
        )
