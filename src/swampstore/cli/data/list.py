"""`swampstore data list` and `swampstore data versions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.data import model_members
from swampstore.cli.options import limit_option, model_argument, name_argument
from swampstore.cli.rendering import counted, size_text, table
from swampstore.cli.session import Session

if TYPE_CHECKING:
    from swampstore.artifact import Artifact

_FIRST_GROUPS = ("log", "file", "resource", "data")


@command(
    examples="""
    swampstore data list aws/ec2/i-123
    swampstore data list web-server --type resource --json
    """
)
@model_argument
@click.option("--type", "data_type", metavar="TYPE", help="Only data with this tag `type`.")
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
    session.show(document, lambda: _list_text(groups, len(found)))


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


def _list_text(groups: dict[str, list[Artifact]], total: int) -> str:
    rows = [
        (
            row.data_type,
            row.data_name,
            row.version,
            size_text(row.size),
            row.content_type,
            row.created_at,
        )
        for group in groups.values()
        for row in (artifact.row for artifact in group)
    ]
    if not rows:
        return "No data."
    columns = ("type", "name", "version", "size", "contentType", "createdAt")
    return f"{table(columns, rows, right=('version', 'size'))}\n{counted(total, 'data name')}"


@command(
    examples="""
    swampstore data versions aws/ec2/i-123 state
    swampstore data versions web-server state --limit 5 --json
    """
)
@model_argument
@name_argument
@limit_option
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
    session.show(document, lambda: _versions_text(shown, total))


def _version(artifact: Artifact) -> dict[str, Any]:
    return {
        "version": artifact.version,
        "createdAt": artifact.row.created_at,
        "size": artifact.size,
        "checksum": artifact.checksum,
        "isLatest": artifact.is_latest,
    }


def _versions_text(shown: list[Artifact], total: int) -> str:
    rows = [
        (
            artifact.version,
            artifact.row.created_at,
            size_text(artifact.size),
            (artifact.checksum or "")[:12],
            _note(artifact),
        )
        for artifact in shown
    ]
    columns = ("version", "createdAt", "size", "checksum", "note")
    drawn = table(columns, rows, right=("version", "size"))
    more = f"{len(shown)} of " if len(shown) < total else ""
    return f"{drawn}\n{more}{counted(total, 'version')}"


def _note(artifact: Artifact) -> str:
    row = artifact.row
    gone = f"renamed to {row.renamed_to}" if row.renamed_to else "deleted"
    notes = {"latest": artifact.is_latest, gone: artifact.is_deleted, "streaming": row.streaming}
    return ", ".join(note for note, holds in notes.items() if holds)
