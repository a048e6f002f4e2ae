"""`swampstore datastore catalog pull` and `export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.rendering import counted, printable, table
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.sync.foreign.pulling import PulledCatalogs


@command(
    examples="""
    swampstore datastore catalog pull
    swampstore datastore catalog pull --namespaces infra,network --json
    """
)
@click.option(
    "--namespaces", metavar="A,B", help="Only these namespaces.  [default: all but the own]"
)
@pass_session
def pull(session: Session, namespaces: str | None) -> None:
    """Learn what other namespaces of the datastore hold.

    Queries find their artifacts from then on, and NAMESPACE:MODEL names one of their models.
    """
    chosen = None if namespaces is None else [one.strip() for one in namespaces.split(",")]
    with session.open_repo() as repo:
        result = repo.pull_catalogs(chosen)
    session.show(result.to_json(), lambda: _pulled_text(result))


def _pulled_text(result: PulledCatalogs) -> str:
    lines = [
        f"{printable(one.namespace)} is skipped: {printable(one.reason)}." for one in result.skipped
    ]
    for one in result.pulled:
        if one.bad_rows:
            bad = counted(one.bad_rows, "row")
            lines.append(f"{bad} of {one.namespace} could not be understood.")
    if result.pulled:
        rows = [(one.namespace, one.rows, one.exported_at) for one in result.pulled]
        lines.insert(0, table(("namespace", "rows", "exportedAt"), rows, right=("rows",)))
    return "\n".join(lines) or "There are no other namespaces."


@command(
    examples="""
    swampstore datastore catalog export
    swampstore datastore catalog export --json
    """
)
@pass_session
def export(session: Session) -> None:
    """Publish the catalog for other namespaces now.

    The next push brings it to the remote. Pushes do the same by themselves, but of a large
    catalog only every ten minutes.
    """
    from swampstore.catalog.export import EXPORT

    with session.open_repo() as repo:
        repo.export_catalog(force=True)
        path = f"{repo.config.datastore_dir}/{EXPORT}"
        document = {"namespace": repo.config.namespace, "path": path}
    session.show(
        document, lambda: f"Wrote the catalog of {document['namespace']} to {printable(path)}."
    )
