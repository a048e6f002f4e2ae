"""`swampstore model`: which models there are, and deleting one with all that belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import dry_deletion_option, model_argument, rows_options, yes_option
from swampstore.cli.rendering import age_text, counted, fields, named_lines, printable, size_text
from swampstore.cli.row_formats import Column, Listing, item, same, table
from swampstore.cli.session import Session
from swampstore.errors import EXIT_ERROR

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.retention import ModelDeletionReport


@command(
    examples="""
    swampstore model list
    swampstore model list --json
    """
)
@rows_options
@pass_session
def list_(session: Session) -> None:
    """List the models that have data or outputs."""
    from swampstore.repo.models import list_models

    with session.open_repo() as repo:
        found = list_models(repo)
    listing = Listing(
        (*MODEL_COLUMNS, Column("outputs", item("outputs"), right=True, rank=3)),
        [one.to_json() for one in found],
        same,
        lambda: counted(len(found), "model"),
        "No model has data or outputs yet.",
        MODEL_MEMBERS,
    )
    session.show_rows(listing, lambda: {"models": listing.items, "total": len(found)})


def _address(one: dict[str, Any]) -> str:
    return f"{one['modelType']}/{one['modelId']}"


# Of the items of `model list` and `ls`.
MODEL_COLUMNS = (
    Column("model", _address),
    Column("modelName", lambda one: one["modelName"] or None, rank=1, heading="name"),
    Column("dataNames", item("dataNames"), right=True, rank=2, heading="names"),
    Column("versions", item("versions"), right=True, rank=4),
    Column("bytes", item("bytes"), size_text, right=True, rank=3, heading="size"),
    Column("lastChange", item("lastChange"), age_text, right=True, heading="age"),
)
MODEL_MEMBERS = (
    *("modelType", "modelId", "modelName", "dataNames", "versions", "bytes", "lastChange"),
    "outputs",
)


@command(
    examples="""
    swampstore model show aws/ec2/i-123
    swampstore model show web-server --json
    """
)
@model_argument
@pass_session
def show(session: Session, model: str) -> None:
    """Show how much the datastore holds of a model."""
    from swampstore.repo.models import ModelFiles, name_totals, summary_of
    from swampstore.retention.data_prune import definition_files

    with session.open_repo() as repo:
        found = summary_of(repo, model)
        names = name_totals(repo, found.model)
        derived = ModelFiles(repo.tree, found.model).definitions()
        defined = definition_files(repo, found.model.id)
    totals = found.totals
    document = {
        **found.to_json(),
        "data": [
            {
                "name": one.name,
                "versions": one.versions,
                "bytes": one.size,
                "lastChange": one.last_change,
            }
            for one in names
        ],
        "derivedDefinitions": derived,
        "definitions": list(defined),
    }

    def text() -> str:
        lines = fields(
            {
                "model": found.model,
                "name": totals.name,
                "data": f"{counted(totals.data_names, 'data name')},"
                f" {counted(totals.versions, 'version')}, {size_text(totals.size)}",
                "last change": totals.last_change,
                "outputs": found.outputs,
                "derived definitions": ", ".join(derived),
                "defined in": ", ".join(defined),
            }
        )
        rows = [[one.name, one.versions, size_text(one.size), one.last_change] for one in names]
        if not rows:
            return lines
        columns = ["name", "versions", "size", "lastChange"]
        return f"{lines}\n{table(columns, rows, right=('versions', 'size'))}"

    session.show(document, text)


@command(
    examples="""
    swampstore model delete aws/ec2/i-123 --dry-run
    swampstore model delete web-server
    swampstore model delete web-server -y --json
    """
)
@model_argument
@dry_deletion_option
@yes_option
@pass_session
def delete(session: Session, model: str, dry_run: bool, yes: bool) -> None:
    """Delete everything that the datastore holds of a model; what defines it in git stays.

    That is its data, its outputs with their logs, and its evaluated and automatic definitions.
    Everything is locked meanwhile. It cannot be brought back: look at --dry-run first.
    """
    with session.open_repo() as repo:
        report = _delete(session, repo, model, dry_run=dry_run, yes=yes)
    if report is None:
        session.show_cancelled()
        return
    session.show(report.to_json(), lambda: _text(report))
    if report.failed:
        click.get_current_context().exit(EXIT_ERROR)


def _delete(
    session: Session, repo: Repo, model: str, *, dry_run: bool, yes: bool
) -> ModelDeletionReport | None:
    from swampstore.retention import ModelDeletion

    if not dry_run and (yes or session.json):
        with session.working(repo):
            return ModelDeletion(repo, model).run()
    session.catch_up(repo)
    deletion = ModelDeletion(repo, model)
    if dry_run:
        return deletion.preview()
    session.note(_text(deletion.preview()))
    if not session.confirm(f"Delete all this of {printable(deletion.plan.model)}?", yes=yes):
        return None
    # Nothing but what was shown goes, and only if it is still so after the pull.
    with session.working(repo):
        return deletion.run()


def _text(report: ModelDeletionReport) -> str:
    plan = report.plan
    rows = [[one.data_name, one.version_count, size_text(one.size)] for one in plan.names]
    lines = [table(["name", "versions", "size"], rows, right=("versions", "size"))] if rows else []
    lines += named_lines("file", [*plan.outputs, *plan.logs, *plan.definitions])
    lines += named_lines("stays", report.failed)
    lines += named_lines("stays, it is in git", report.definitions_kept)
    verb = "Would delete" if report.dry_run else "Deleted"
    lines.append(
        f"{verb} {counted(len(plan.names), 'data name')}, {counted(plan.versions, 'version')},"
        f" {size_text(plan.size)}; {counted(plan.output_count, 'output')} and"
        f" {counted(len(plan.definitions), 'derived definition')} of {printable(plan.model)}."
    )
    return "\n".join(lines)
