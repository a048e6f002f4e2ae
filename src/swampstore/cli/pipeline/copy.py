"""`swampstore pipeline copy`: from one store to another, verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.listing import table
from swampstore.cli.pipeline import Bulk, dry_run_option, findings_option, master_option
from swampstore.cli.rendering import counted, progress_shown, size_text
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR
from swampstore.pipeline.schemas import write_findings

if TYPE_CHECKING:
    from swampstore.pipeline.copy import Copied

_SHOWN = 20


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
@pass_session
def copy(
    session: Session,
    *,
    source: str,
    target: str,
    namespaces: tuple[str, ...],
    into: str | None,
    owner: str | None,
    dry_run: bool,
    findings: str | None,
    master: str | None,
) -> None:
    """Copy a datastore to another store; the exit status is 1 if something stayed behind.

    What is there already is not read again, so it can be repeated: after an interruption, or
    every night. Nothing of the target is deleted, and nothing overwritten that did not come from
    this source.
    """
    from swampstore.pipeline.copy import copy as copy_places
    from swampstore.pipeline.copy import findings_table

    bulk = Bulk(source, namespaces, dry_run, findings, master)
    places = bulk.places(session)
    with bulk.spark(session) as spark, progress_shown() as progress:
        copied = copy_places(
            spark, places, target, into=into, owner=owner, dry_run=dry_run, progress=progress
        )
        if findings:
            write_findings(findings_table(spark, copied), findings)
    session.show(copied.to_json(), lambda: _text(copied))
    if not copied.is_complete:
        click.get_current_context().exit(EXIT_ERROR)


def _text(copied: Copied) -> str:
    objects = f"{counted(copied.objects, 'object')}, {size_text(copied.bytes)}"
    did = "Would copy" if copied.dry_run else "Copied"
    lines = [f"{did} {objects}; {copied.present} were there already."]
    told = [finding for finding in copied.findings if finding.severity != "info"]
    if told:
        rows = [[one.kind, one.rel or "", one.detail] for one in told[:_SHOWN]]
        lines.append(table(["finding", "path", "detail"], rows))
    if len(told) > _SHOWN:
        lines.append(f"... and {len(told) - _SHOWN} more; --findings keeps all of them.")
    return "\n".join(lines)
