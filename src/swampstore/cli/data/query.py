"""`swampstore data query` and `swampstore data search`."""

from __future__ import annotations

import re
import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from swampstore.artifacts.metadata import OWNER_TYPES, is_json
from swampstore.catalog.query.tree import Literal, render
from swampstore.cli.command import command, pass_session
from swampstore.cli.data.columns import FOUND, MEMBERS, NAMESPACE, artifact_record
from swampstore.cli.options import (
    Whole,
    limit_option,
    moment,
    rows_options,
    since_option,
    tag_option,
)
from swampstore.cli.rendering import counted, footer_text
from swampstore.cli.row_formats import Column, Listing
from swampstore.cli.session import RowsDocument, Session
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.formats import LARGEST_NUMBER
from swampstore.layout import split_namespace
from swampstore.notices import did_you_mean, sentences
from swampstore.repo.querying import fetch_content, read_ahead, run_query, stream_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
@rows_options
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
    if predicate is not None and not predicate.strip():
        raise ValidationError(
            "the predicate is empty",
            hint="Run: swampstore data query true, which finds everything; or"
            """ swampstore data query 'name == "state"'.""",
        )
    with session.open_repo() as repo:
        if predicate is None:
            _converse(session, repo, wanted)
        else:
            _answer(session, repo, predicate, wanted)


def _answer(session: Session, repo: Repo, predicate: str, wanted: dict[str, Any]) -> None:
    if session.json and session.rows.fields is None and wanted["select"] is None:
        _answer_with_content(session, repo, predicate, wanted)
        return
    stream = stream_query(repo, predicate, **wanted)

    def footer() -> str:
        return footer_text(stream.total, limited=stream.limited)

    def after() -> dict[str, Any]:
        members = {"limited": stream.limited, "unhydrated": stream.unhydrated}
        return {"total": stream.total} | members

    def is_cut() -> bool:
        return stream.limited or not stream.total

    is_whole = wanted["select"] is None
    listing = found_listing(repo, stream, footer) if is_whole else values_listing(stream)
    listing = listing._replace(footer=footer, is_cut=is_cut)
    session.show_found(listing, RowsDocument({}, "results", after))
    if listing.is_plain and session.is_read_by_people:
        session.note(footer())
    note_unhydrated(session, repo, stream.unhydrated)
    if not stream.total:
        note_unknown_attributes(session, predicate, stream.attributes)


def _answer_with_content(
    session: Session, repo: Repo, predicate: str, wanted: dict[str, Any]
) -> None:
    """Print the document of a query: the records of artifacts, with their JSON content."""
    stream = stream_query(repo, predicate, **wanted)
    found: Iterable[Artifact] = stream
    if wanted["hydrate"] or repo.knows_others:
        every = list(stream)
        if wanted["hydrate"]:
            fetch_content(repo, [one.row for one in every if is_json(one.content_type)])
        found = read_ahead(repo, every)
    missing = 0

    def record(artifact: Artifact) -> dict[str, Any]:
        nonlocal missing
        told, is_missing = complete_record(artifact)
        missing += is_missing
        return told

    def after() -> dict[str, Any]:
        unhydrated = max(stream.unhydrated, missing)
        return {"total": stream.total, "limited": stream.limited, "unhydrated": unhydrated}

    listing = Listing(FOUND, found, record)
    session.show_found(listing, RowsDocument({"predicate": predicate}, "results", after))
    note_unhydrated(session, repo, max(stream.unhydrated, missing))


def found_listing(repo: Repo, found: Iterable[Artifact], footer: Callable[[], str]) -> Listing:
    """Return the listing of what a query or a search found."""
    columns = (NAMESPACE, *FOUND) if repo.config.namespace or repo.knows_others else FOUND
    return Listing(columns, found, artifact_record, footer, members=MEMBERS)


def values_listing(values: Iterable[Any]) -> Listing:
    """Return the listing of projected values; the first one that is not null decides on its shape.

    Maps become columns with the keys of that map, lists numbered ones, anything else is one value
    per line.
    """
    rest = iter(values)
    first = list(islice(rest, _PAGE))
    every = chain(first, rest)
    match next((value for value in first if value is not None), None):
        case dict() as shape:
            columns = [Column(str(key), _member(key)) for key in shape]
        case list():
            count = max(len(value) for value in first if isinstance(value, list))
            columns = [Column(str(place + 1), _place(place, count)) for place in range(count)]
        case _:
            columns = [Column("value", lambda value: value)]
            return Listing(columns, every, lambda value: value, is_plain=True)
    members = [column.name for column in columns]
    return Listing(columns, every, lambda value: value, members=members)


def _member(key: Any) -> Callable[[Any], Any]:
    return lambda row: row.get(key) if isinstance(row, dict) else row


def _place(place: int, count: int) -> Callable[[Any], Any]:
    """Return what has the item at a place; the last one has all that a longer list goes on with."""

    def value(row: Any) -> Any:
        items = row if isinstance(row, list) else [row]
        if place + 1 == count and len(items) > count:
            return items[place:]
        return items[place] if place < len(items) else None

    return value


def complete_record(artifact: Artifact) -> tuple[dict[str, Any], bool]:
    """Return a record with its JSON content, and whether that is not on this machine."""
    record = artifact.record(with_content=is_json(artifact.content_type))
    is_absent = record.pop("attributes", "") is None
    if record.get("content") is None:
        record["content"] = ""
    return record, is_absent and not artifact.is_too_large_to_parse


_ATTRIBUTE = re.compile(r"""\battributes(?:\.(\w+)|\[["'](.+?)["']\])""")


def note_unknown_attributes(session: Session, predicate: str, known: set[str]) -> None:
    """Say that nothing was found because no artifact has what was asked for."""
    asked = {one[1] or one[2] for one in _ATTRIBUTE.finditer(predicate)}
    for name in sorted(asked - known) if known else ():
        session.note(
            sentences(
                f"No artifact that was looked into has an attribute {name!r}.",
                did_you_mean(name, known),
                f"Attributes: {', '.join(sorted(known)[:12])}.",
            )
        )


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


_PAGE = 200
_EQUALITIES = {
    "data_type": "dataType",
    "lifetime": "lifetime",
    "owner_type": "ownerType",
    "content_type": "contentType",
    "run": "workflowRunId",
}


@command(
    examples="""
    swampstore data search state
    swampstore data search --model web-server --since 7d
    swampstore data search --type resource --tag env=prod --limit 10 --json
    """
)
@click.argument(
    "q", required=False, help="Part of a data name, model name, spec name or tag, in any case."
)
@click.option("--type", "data_type", metavar="TYPE", help="The tag `type`.")
@click.option("--lifetime", metavar="LIFETIME", help="The lifetime, as it was given.")
@click.option("--owner-type", metavar="TYPE", help="model-method, workflow-step or manual.")
@click.option("--workflow", metavar="NAME|ID", help="Written by this workflow.")
@click.option("--run", metavar="ID", help="Written by this workflow run.")
@click.option("--model", metavar="MODEL", help="TYPE/ID, or the name of models.")
@click.option("--content-type", metavar="TYPE", help="The MIME type.")
@since_option
@tag_option
@click.option("--streaming", is_flag=True, help="Only versions that can be appended to.")
@click.option(
    "--limit",
    type=Whole(0, LARGEST_NUMBER),
    default=50,
    show_default=True,
    metavar="N",
    help="Show at most this many.",
)
@rows_options
@pass_session
def search(session: Session, /, q: str | None, limit: int, **filters: Any) -> None:
    """Find artifacts by a word and by filters."""
    with session.open_repo() as repo:
        predicate = _predicate(repo, filters)
        results = run_query(repo, predicate, order="createdAt desc", limit=limit, word=q)
        found = list(results)
    document = {
        "query": q or "",
        "predicate": predicate or "",
        "results": [artifact.record() for artifact in found],
        "total": len(found),
        "limited": results.limited,
        "unhydrated": results.unhydrated,
    }
    footer = footer_text(len(found), limited=results.limited)
    is_cut = results.limited or not found
    listing = found_listing(repo, found, lambda: footer)
    session.show_rows(listing._replace(is_cut=lambda: is_cut), lambda: document)


def _predicate(repo: Repo, filters: dict[str, Any]) -> str | None:
    """Return the filters as a predicate that SQL alone can answer."""
    _check_owner_type(filters["owner_type"])
    parts = [
        f"{field} == {_literal(filters[option])}"
        for option, field in _EQUALITIES.items()
        if filters[option] is not None
    ]
    parts += [f"tags[{_literal(key)}] == {_literal(value)}" for key, value in filters["tags"]]
    if filters["streaming"]:
        parts.append("streaming == true")
    if filters["workflow"] is not None:
        workflow = _literal(filters["workflow"])
        parts.append(f"(workflowName == {workflow} || workflowId == {workflow})")
    if filters["model"] is not None:
        parts.append(_of_model(repo, filters["model"]))
    if filters["since"] is not None:
        parts.append(f"createdAt >= {_literal(moment(repo, '--since', filters['since']))}")
    return " && ".join(parts) or None


def _check_owner_type(owner_type: str | None) -> None:
    if owner_type is not None and owner_type not in OWNER_TYPES:
        raise ValidationError(
            f"the owner type {owner_type!r} is unknown",
            hint=f"Use one of {', '.join(OWNER_TYPES)}.",
        )


def _literal(text: str) -> str:
    return render(Literal("string", text))


def _of_model(repo: Repo, model: str) -> str:
    prefix, name = split_namespace(model)
    if not prefix and "/" not in name:
        return f"modelName == {_literal(name)}"
    namespace, ref = repo.locate(model)
    address = f"modelType == {_literal(ref.type)} && modelId == {_literal(ref.id)}"
    return f"ns == {_literal(namespace)} && {address}" if prefix else address
