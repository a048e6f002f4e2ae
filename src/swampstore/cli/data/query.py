"""`swampstore data query`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from swampstore.artifacts.media_types import is_json
from swampstore.cli.command import command, pass_session
from swampstore.cli.options import limit_option
from swampstore.cli.rendering import counted, footer_text, records_text, values_text
from swampstore.cli.session import Session
from swampstore.errors import SwampstoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from swampstore.artifact import Artifact
    from swampstore.repo import Repo


@command(
    examples="""
    swampstore data query 'modelName == "web-server" && size > 1000'
    swampstore data query 'tags.env == "prod"' --order 'createdAt desc' --limit 10
    swampstore data query 'specName == "state"' --select '{"name": name, "ip": attributes.ip}'
    swampstore data query 'name == "state" && version < 5' --json
    """
)
@click.argument("predicate", required=False, help="What must hold; on a terminal it is asked for.")
@click.option("--select", metavar="EXPR", help="Show this of each artifact.")
@limit_option
@click.option("--order", metavar="FIELDS", help="Sort by fields, such as 'createdAt desc, name'.")
@click.option("--hydrate", is_flag=True, help="Fetch the content that is needed for the answer.")
@pass_session
def query(
    session: Session,
    predicate: str | None,
    select: str | None,
    limit: int | None,
    order: str | None,
    hydrate: bool,
) -> None:
    """Find artifacts by a predicate in CEL."""
    wanted = {"select": select, "limit": limit, "order": order, "hydrate": hydrate}
    if predicate is None and (session.json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise click.UsageError("The predicate is missing.")
    with session.open_repo() as repo:
        if predicate is None:
            _converse(session, repo, wanted)
        else:
            _answer(session, repo, predicate, wanted)


def _answer(session: Session, repo: Repo, predicate: str, wanted: dict[str, Any]) -> None:
    results = repo.query(predicate, **wanted)
    unhydrated = results.unhydrated
    document: dict[str, Any] = {}
    if session.json and wanted["select"] is None:
        from swampstore.querying import fetch_content, read_ahead

        if wanted["hydrate"]:
            fetch_content(repo, [found.row for found in results if is_json(found.content_type)])
        records, missing = complete_records(read_ahead(repo, results))
        unhydrated = max(unhydrated, missing)
        document["predicate"] = predicate
        document["results"] = records
    else:
        document["results"] = list(results)
    document |= {"total": len(results), "limited": results.limited, "unhydrated": unhydrated}
    footer = footer_text(len(results), limited=results.limited)
    if wanted["select"] is None:
        is_namespaced = bool(repo.config.namespace) or repo.knows_others
        session.show(document, lambda: records_text(list(results), footer, is_namespaced))
    else:
        session.show(document, lambda: values_text(list(results)))
        if not session.json:
            session.note(footer)
    note_unhydrated(session, repo, unhydrated)


def complete_records(artifacts: Iterable[Artifact]) -> tuple[list[dict[str, Any]], int]:
    """Return records with their JSON content, and how many contents are not on this machine."""
    records, missing = [], 0
    for artifact in artifacts:
        record = artifact.record(with_content=is_json(artifact.content_type))
        is_absent = record.pop("attributes", "") is None
        missing += is_absent and not artifact.is_too_large_to_parse
        if record.get("content") is None:
            record["content"] = ""
        records.append(record)
    return records, missing


def note_unhydrated(session: Session, repo: Repo, count: int) -> None:
    """Say that answers may be incomplete because content is elsewhere."""
    if count:
        way_out = (
            "; `data query --hydrate` or `data hydrate` fetches it" if repo.config.remote else ""
        )
        session.note(
            f"The content of {counted(count, 'artifact')} is not on this machine{way_out}."
        )


def _converse(session: Session, repo: Repo, wanted: dict[str, Any]) -> None:
    """Answer one predicate per line until there are no more."""
    session.note("One predicate per line; Ctrl-D ends.")
    while True:
        click.echo("predicate> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            session.note("")
            return
        if not line.strip():
            continue
        try:
            _answer(session, repo, line.strip(), wanted)
        except SwampstoreError as error:
            session.note(f"error: {error.message}")
            if error.hint:
                session.note(f"hint: {error.hint}")
