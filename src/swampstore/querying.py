"""Running a query over everything a repository holds, ephemeral data included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swampstore.catalog.query import projection
from swampstore.catalog.schema import Row
from swampstore.catalog.select import Query
from swampstore.results import Results

if TYPE_CHECKING:
    from swampstore.repo import Repo


def run_query(
    repo: Repo,
    predicate: str | None,
    *,
    select: str | None = None,
    limit: int | None = None,
    order: str | None = None,
) -> Results[Any]:
    """Return artifacts, or projected values with `select`; see `Repo.query`."""
    query = Query(predicate, order=order, limit=limit)
    project = projection(select) if select is not None else None
    unhydrated = 0

    def load(row: Row) -> tuple[Any, Any]:
        nonlocal unhydrated
        attributes, content = repo.artifact(row).parsed()
        unhydrated += attributes is None
        return attributes, content

    rows = repo.reading(
        lambda: repo.ready(complete=True), lambda: query.run(repo.catalog.rows, load)
    )
    if repo.ephemeral:
        rows = query.merge(query.run(repo.ephemeral.catalog.rows, load), rows)
    found = [repo.artifact(row) for row in rows]
    if project is None:
        return Results(found, predicate=predicate, limit=limit, unhydrated=unhydrated)
    values = []
    for artifact in found:
        record = artifact.record() | {"ns": artifact.row.namespace}
        if project.needs_content:
            record["attributes"], record["content"] = load(artifact.row)
        values.append(project(record))
    return Results(values, predicate=predicate, limit=limit, unhydrated=unhydrated)
