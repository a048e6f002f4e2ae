"""`swampstore pipeline copy`: from one store to another, verified."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import dry_run_option, engine_option
from swampstore.cli.pipeline import Bulk, findings_option, master_option
from swampstore.cli.progress import progress_shown
from swampstore.cli.rendering import counted, size_text
from swampstore.cli.row_formats import table
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR
from swampstore.pipeline.schemas import Kept, write_few_findings

if TYPE_CHECKING:
    from swampstore.pipeline.copy import Copied
    from swampstore.pipeline.settings import Engine

_SHOWN = 20


def _collected(function: Callable[..., None]) -> Callable[..., None]:
    """Hand what is said about the source and the run to a function as `bulk`."""

    @wraps(function)
    def collected(
        *args: Any,
        source: str,
        namespaces: tuple[str, ...],
        dry_run: bool,
        findings: Kept | None,
        master: str | None,
        **rest: Any,
    ) -> None:
        function(*args, bulk=Bulk(source, namespaces, dry_run, findings, master), **rest)

    return collected


@command(
    examples="""
    swampstore pipeline copy s3://bucket/prefix gs://archive/prefix
    swampstore pipeline copy . s3://bucket --into infra
    swampstore pipeline copy s3://bucket file:///mnt/backup --namespace infra --dry-run
    """
)
@click.argument("source", help="A URL such as s3://bucket/prefix, or a directory in a repository.")
@click.argument("target", help="The URL of the store that it goes to.")
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Only this namespace of the source, * for all; may be given several times."
    "  [default: the repository's own, of a URL all]",
)
@click.option(
    "--into",
    metavar="NAMESPACE",
    help="The namespace of the target, '' for none.  [default: that of the source]",
)
@click.option(
    "--owner",
    metavar="REPO_ID",
    help="Whose a new namespace will be.  [default: as the source tells]",
)
@dry_run_option
@findings_option
@master_option
@engine_option
@_collected
@pass_session
def copy(
    session: Session,
    *,
    bulk: Bulk,
    target: str,
    into: str | None,
    owner: str | None,
    engine: Engine | None,
) -> None:
    """Copy a datastore to another store; the exit status is 1 if something stayed behind.

    What is there already is not read again, so it can be repeated: after an interruption, or
    every night. Nothing of the target is deleted, and nothing overwritten that did not come from
    this source.
    """
    from swampstore.pipeline.copy import copy as copy_places
    from swampstore.pipeline.evidence.local_engine import is_little

    dry_run = bulk.dry_run
    places, settings = bulk.places(session), bulk.settings(session)
    chosen = bulk.engine_of(engine, settings)
    is_indexed = all(place.indexed for place in places)
    with ExitStack() as stack:
        spark = None
        if not (is_indexed and is_little(places, chosen, settings, "copy")):
            spark = stack.enter_context(bulk.spark(session))
        progress = stack.enter_context(progress_shown())
        copied = copy_places(
            spark, places, target, into=into, owner=owner, dry_run=dry_run, progress=progress
        )
    if bulk.findings:
        write_few_findings((one.to_row() for one in copied.findings), bulk.findings)
    session.show(copied.to_json(), lambda: _text(copied))
    if not copied.is_complete:
        click.get_current_context().exit(EXIT_ERROR)


def _text(copied: Copied) -> str:
    objects = f"{counted(copied.objects, 'object')}, {size_text(copied.bytes)}"
    did = "Would copy" if copied.dry_run else "Copied"
    lines = [f"{did} {objects}; {copied.present} were there already."]
    told = (finding for finding in copied.findings if finding.severity != "info")
    rows = [[one.kind, one.rel or "", one.detail] for one in islice(told, _SHOWN)]
    if rows:
        lines.append(table(["finding", "path", "detail"], rows))
    if more := sum(1 for _ in told):
        lines.append(f"... and {more} more; --findings keeps all of them.")
    return "\n".join(lines)
