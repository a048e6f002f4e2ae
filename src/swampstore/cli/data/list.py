"""`swampstore data list` and `swampstore data versions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.data import columns, model_members
from swampstore.cli.options import limit_option, model_argument, name_argument, rows_options
from swampstore.cli.rendering import counted
from swampstore.cli.row_formats import Listing
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.artifact import Artifact

_LISTED = (
    *(columns.MODEL, columns.NAME, columns.VERSION, columns.SIZE, columns.CREATED),
    columns.CONTENT_TYPE,
)
_VERSION_COLUMNS = (
    *(columns.VERSION._replace(heading="version"), columns.CREATED, columns.SIZE),
    *(columns.CHECKSUM, columns.NOTE, columns.MODEL._replace(rank=6)),
)
_ITEM = ("id", "name", "version", "contentType", "type", "streaming", "size", "createdAt")
_FIRST_GROUPS = ("log", "file", "resource", "data")


@command(
    examples="""
    swampstore data list aws/ec2/i-123
    swampstore data list web-server --type resource --json
    """
)
@model_argument
@click.option("--type", "data_type", metavar="TYPE", help="Only data with this tag `type`.")
@rows_options
@pass_session
def list_data(session: Session, model: str, data_type: str | None) -> None:
    """List the data names of a model."""
    with session.open_repo() as repo:
        namespace, ref = repo.locate(model)
        found = [
            artifact
            for artifact in repo.list_data(model)
            if data_type is None or artifact.row.data_type == data_type
        ]
    document = model_members(ref, found)
    if namespace:
        document["namespace"] = namespace
    groups = _groups(found)
    document["groups"] = [
        {"type": kind, "items": [_item(artifact) for artifact in group]}
        for kind, group in groups.items()
    ]
    document["total"] = len(found)
    listing = Listing(
        (columns.DATA_TYPE._replace(name="type"), *_LISTED),
        [artifact for group in groups.values() for artifact in group],
        _item,
        lambda: counted(len(found), "data name"),
        "No data.",
        tuple(_ITEM),
    )
    session.show_rows(listing, lambda: document)


def _groups(artifacts: list[Artifact]) -> dict[str, list[Artifact]]:
    groups: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        groups.setdefault(artifact.row.data_type, []).append(artifact)
    first = {kind: groups[kind] for kind in _FIRST_GROUPS if kind in groups}
    return first | {kind: groups[kind] for kind in sorted(groups)}


def _item(artifact: Artifact) -> dict[str, Any]:
    row = artifact.row
    return {
        "id": row.id,
        "name": row.data_name,
        "version": row.version,
        "contentType": row.content_type,
        "type": row.data_type,
        "streaming": bool(row.streaming),
        "size": row.size,
        "createdAt": row.created_at,
    }


@command(
    examples="""
    swampstore data versions aws/ec2/i-123 state
    swampstore data versions web-server state --limit 5 --json
    """
)
@model_argument
@name_argument
@limit_option
@rows_options
@pass_session
def versions(session: Session, model: str, name: str, limit: int | None) -> None:
    """List the versions of a data name, newest first."""
    with session.open_repo() as repo:
        total = len(repo.require_name(model, name))
        shown = repo.versions(model, name, limit=limit)
        members = model_members(repo.locate(model, name)[1], shown)
    document = {
        "dataName": name,
        **members,
        "versions": [_version(artifact) for artifact in shown],
        "total": total,
    }
    more = f"{len(shown)} of " if len(shown) < total else ""
    listing = Listing(
        _VERSION_COLUMNS,
        shown,
        _version,
        lambda: f"{more}{counted(total, 'version')}",
        is_cut=lambda: bool(more),
    )
    session.show_rows(listing, lambda: document)


def _version(artifact: Artifact) -> dict[str, Any]:
    return {
        "version": artifact.version,
        "createdAt": artifact.row.created_at,
        "size": artifact.size,
        "checksum": artifact.checksum,
        "isLatest": artifact.is_latest,
    }
