"""Running a query over everything a repository holds, ephemeral data included."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.metadata import is_json
from swampstore.catalog.query import projection
from swampstore.catalog.schema import Row
from swampstore.catalog.select import Query
from swampstore.errors import QueryError, ValidationError
from swampstore.layout import RAW
from swampstore.repo.results import Results

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.index.results import Progress
    from swampstore.layout import ModelRef
    from swampstore.repo import Repo
    from swampstore.sync.hydrate import Hydrated

# How many contents are fetched together: few at first, in case they are all that is needed.
_FIRST_PAGE = 64
_LARGEST_PAGE = 2048


def run_query(
    repo: Repo,
    predicate: str | None,
    *,
    select: str | None = None,
    limit: int | None = None,
    order: str | None = None,
    hydrate: bool = False,
) -> Results[Any]:
    """Return artifacts, or projected values with `select`; see `Repo.query`."""
    query = Query(predicate, order=order, limit=limit)
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
    from swampstore.catalog.query.tree import Literal, render

    parts = [f"({predicate})"] if predicate is not None else []
    if model is not None:
        kind, own = (render(Literal("string", text)) for text in model)
        parts.append(f"modelType == {kind} && modelId == {own}")
    if all_versions:
        parts.append("version > 0")
    return " && ".join(parts) or None


def _check_fits(repo: Repo, size: int) -> None:
    limit = repo.config.remote.cache_limit if repo.config.remote else None
    if limit is not None and size > limit:
        raise ValidationError(
            f"that is {size} bytes of content, and the cache may hold {limit}",
            hint="Choose less of it, or raise datastore.cache.maxBytes.",
        )
