"""`swampstore data gc`, `data prune` and `runs gc`: preview, ask, delete, tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import dry_deletion_option, yes_option
from swampstore.cli.rendering import counted, printable, size_text
from swampstore.cli.row_formats import table
from swampstore.cli.session import Session
from swampstore.retention import DataGc, DataPrune, GcReport, PruneReport, RunGc, RunGcReport
from swampstore.retention.lifetimes import parse_duration

if TYPE_CHECKING:
    from swampstore.repo import Repo

_SHOWN = 50


R = TypeVar("R", GcReport, PruneReport, RunGcReport)


@command(
    examples="""
    swampstore data gc --dry-run
    swampstore data gc
    swampstore data gc -y --json
    """
)
@dry_deletion_option
@yes_option
@pass_session
def gc(session: Session, dry_run: bool, yes: bool) -> None:
    """Delete expired data and versions beyond their policy."""
    with session.open_repo() as repo:
        session.catch_up(repo)
        collection = DataGc(repo)
        versions = counted(collection.plan.version_count, "version")
        question = f"Delete {versions}?" if collection.plan.removals else ""
        _clean_up(
            session,
            repo,
            collection.preview,
            collection.run,
            _gc_text,
            question,
            dry_run=dry_run,
            yes=yes,
        )


@command(
    examples="""
    swampstore data prune --dry-run
    swampstore data prune
    swampstore data prune -y --json
    """
)
@dry_deletion_option
@yes_option
@pass_session
def prune(session: Session, dry_run: bool, yes: bool) -> None:
    """Delete the data of models that no definition stands for any more.

    That nothing defines a model is inferred from the files in models, workflows and
    auto-definitions, and what is deleted cannot be brought back: look at --dry-run first.
    """
    with session.open_repo() as repo:
        session.catch_up(repo)
        pruning = DataPrune(repo)
        names = counted(pruning.plan.name_count, "data name")
        models = counted(len(pruning.plan.models), "model")
        question = f"Delete {names} of {models} for good?" if pruning.plan.models else ""
        _clean_up(
            session,
            repo,
            pruning.preview,
            pruning.run,
            _prune_text,
            question,
            dry_run=dry_run,
            yes=yes,
        )


@command(
    examples="""
    swampstore runs gc --dry-run
    swampstore runs gc --older-than 2w
    swampstore runs gc --older-than 6mo -y --json
    """
)
@click.option(
    "--older-than",
    default="30d",
    show_default=True,
    metavar="DURATION",
    help="Keep what is younger: 12h, 30d, 2w, 6mo, 1y.",
)
@dry_deletion_option
@yes_option
@pass_session
def run_gc(session: Session, older_than: str, dry_run: bool, yes: bool) -> None:
    """Delete the records and logs of workflow runs and outputs that ended long ago."""
    age = parse_duration(older_than)
    with session.open_repo() as repo:
        session.catch_up(repo)
        collection = RunGc(repo, age)
        records = counted(len(collection.plan.removals), "record")
        question = f"Delete {records}?" if collection.plan.removals else ""
        _clean_up(
            session,
            repo,
            collection.preview,
            collection.run,
            _run_gc_text,
            question,
            dry_run=dry_run,
            yes=yes,
        )
        if not dry_run and repo.config.remote is not None:
            from swampstore.runs.tracker import Tracker

            Tracker(repo).sweep()


def _clean_up(
    session: Session,
    repo: Repo,
    preview: Callable[[], R],
    run: Callable[[], R],
    text: Callable[[R], str],
    question: str,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Carry a cleanup out as the options say; an empty question needs no answer."""
    if dry_run:
        report = preview()
    else:
        if question and not (yes or session.json):
            session.note(text(preview()))
        if question and not session.confirm(question, yes=yes):
            session.show_cancelled()
            return
        # Nothing but what was shown is deleted, and only if it is still due after the pull.
        with session.working(repo):
            report = run()
    session.show(report.to_json(), lambda: text(report))
    if not session.json:
        for warning in report.warnings:
            session.note(f"warning: {printable(warning)}")


def _gc_text(report: GcReport) -> str:
    plan = report.plan
    rows = [
        [
            f"{removal.model_type}/{removal.model_id}",
            removal.name,
            removal.reason or "old versions",
            removal.version_count,
            size_text(removal.size),
        ]
        for removal in plan.removals
    ]
    summary = (
        f"{_verb(report)} {counted(plan.version_count, 'version')}, {size_text(plan.size)};"
        f" {counted(len(plan.expired), 'data name')} expired."
    )
    if report.abandoned:
        summary += f" Unfinished versions of interrupted writes: {report.abandoned}."
    columns = ["model", "name", "why", "versions", "size"]
    return _with_table(columns, rows, summary)


def _prune_text(report: PruneReport) -> str:
    plan = report.plan
    rows = [
        [
            f"{model.model_type}/{model.model_id}",
            model.model_name or "",
            len(model.names),
            model.version_count,
            size_text(model.size),
        ]
        for model in plan.models
    ]
    summary = (
        f"{_verb(report)} {counted(plan.name_count, 'data name')} of"
        f" {counted(len(plan.models), 'model')}, {counted(plan.version_count, 'version')},"
        f" {size_text(plan.size)}."
    )
    return _with_table(["model", "modelName", "names", "versions", "size"], rows, summary)


def _run_gc_text(report: RunGcReport) -> str:
    plan = report.plan
    rows = [
        [run.kind, run.path, run.status, run.dated_at.date(), size_text(run.size + run.log_size)]
        for run in plan.removals
    ]
    total = plan.size("workflow-run") + plan.size("output")
    summary = (
        f"{_verb(report)} {counted(plan.count('workflow-run'), 'workflow run')} and"
        f" {counted(plan.count('output'), 'output')}, {size_text(total)}."
    )
    return _with_table(["kind", "record", "status", "date", "size"], rows, summary)


def _verb(report: GcReport | PruneReport | RunGcReport) -> str:
    return "Would delete" if report.dry_run else "Deleted"


def _with_table(columns: Sequence[str], rows: Sequence[Sequence[object]], summary: str) -> str:
    """Return the table of what goes, if anything does, and the summary."""
    if not rows:
        return summary
    more = f"\n... and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    drawn = table(columns, rows[:_SHOWN], right=("names", "versions", "size"))
    return f"{drawn}{more}\n{summary}"
