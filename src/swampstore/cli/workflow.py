"""`swampstore workflow`: run workflows, go on with runs, and look at both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import limit_option, rows_options, tag_option
from swampstore.cli.rendering import age_text, counted, fields
from swampstore.cli.row_formats import Column, Listing, item, same
from swampstore.cli.session import Session
from swampstore.errors import SwampstoreError

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.workflow.definition import Workflow
    from swampstore.runs.workflow.events import WorkflowListener
    from swampstore.runs.workflow.record import RunRecord
    from swampstore.runs.workflow.runner import WorkflowResult

workflow_argument = click.argument("workflow", help="The name or id of a workflow, or its file.")
run_argument = click.argument("run_id", metavar="RUN", help="The id of a run, or how it begins.")
input_option = click.option(
    "--input", "inputs", multiple=True, metavar="K=V", help="An input; may be repeated."
)
output_option = click.option(
    "--show-output", is_flag=True, help="Show what the commands of steps write, line by line."
)


@command(
    examples="""
    swampstore workflow run nightly-scan
    swampstore workflow run workflows/nightly.yaml --input host=web1 --tag who=ana
    swampstore workflow run nightly-scan --dry-run
    swampstore workflow run nightly-scan --json 2> events.jsonl
    """
)
@workflow_argument
@input_option
@tag_option
@output_option
@click.option("--skip-checks", is_flag=True, help="Do not make the checks before methods.")
@click.option(
    "--last-evaluated", is_flag=True, help="Use the definitions as they were evaluated last."
)
@click.option("--dry-run", is_flag=True, help="Only show what would run, and in which order.")
@pass_session
def run(
    session: Session,
    workflow: str,
    inputs: Sequence[str],
    tags: Sequence[tuple[str, str]],
    show_output: bool,
    skip_checks: bool,
    last_evaluated: bool,
    dry_run: bool,
) -> None:
    """Run a workflow: its jobs and steps, in their order, as many at once as it allows.

    The record of the run is written as it goes, so that a run which was stopped can be resumed.
    The exit status is 1 if it failed, and 76 if it waits for approval.
    """
    from swampstore.cli.run import heard
    from swampstore.runs.inputs import parse_pairs
    from swampstore.runs.workflow.files import Workflows
    from swampstore.runs.workflow.runner import RunOptions, run_workflow

    with session.open_repo() as repo:
        found = Workflows(repo).require(workflow)
        given = parse_pairs(inputs, found.inputs)
        if dry_run:
            _show_plan(session, repo, found, given)
            return
        with _listening(session, found, show_output) as listener, heard() as wish:
            options = RunOptions(listener, wish, skip_checks, last_evaluated)
            result = run_workflow(repo, found, inputs=given, tags=dict(tags), options=options)
        _show_result(session, result)


def _show_plan(session: Session, repo: Repo, workflow: Workflow, inputs: dict[str, Any]) -> None:
    from swampstore.cli.workflow_text import plan_text
    from swampstore.runs.workflow.preview import preview

    document = preview(repo, workflow, inputs)
    session.show(document, lambda: plan_text(document))


@contextlib.contextmanager
def _listening(session: Session, workflow: Workflow, output: bool) -> Iterator[WorkflowListener]:
    from swampstore.cli.workflow_text import listening

    with listening(workflow, as_json=session.json, show_output=output) as listener:
        yield listener


def _show_result(session: Session, result: WorkflowResult) -> None:
    from swampstore.cli.workflow_text import run_text

    session.show(result.to_json(), lambda: run_text(result.record))
    if result.record.status == "suspended" and not session.json:
        session.note(
            f"waits for approval: `swampstore workflow approve {result.record.id[:8]} --resume`"
        )
    if result.exit_code == 0:
        return
    if result.not_pushed is not None:
        session.note(f"not pushed: {result.not_pushed.message}")
    raise click.exceptions.Exit(result.exit_code)


@command(
    examples="""
    swampstore workflow resume 77aa0d3e
    swampstore workflow resume 77aa0d3e --from measure
    """
)
@run_argument
@click.option(
    "--from", "from_step", metavar="STEP", help="Run this step again, and all that wait for it."
)
@input_option
@output_option
@click.option(
    "--force", is_flag=True, help="Also if another machine may be carrying it out; make sure first."
)
@pass_session
def resume(
    session: Session,
    run_id: str,
    from_step: str | None,
    inputs: Sequence[str],
    show_output: bool,
    force: bool,
) -> None:
    """Go on with a run from the first step that did not finish; none that finished runs again."""
    with session.open_repo() as repo:
        _resume(session, repo, run_id, from_step, inputs, show_output=show_output, force=force)


def _resume(
    session: Session,
    repo: Repo,
    run_id: str,
    from_step: str | None = None,
    inputs: Sequence[str] = (),
    *,
    show_output: bool = False,
    force: bool = False,
) -> None:
    from swampstore.cli.run import heard
    from swampstore.runs.inputs import parse_pairs
    from swampstore.runs.workflow.files import Workflows
    from swampstore.runs.workflow.resume import find_run
    from swampstore.runs.workflow.runner import RunOptions, resume_workflow

    workflow = Workflows(repo).require(find_run(repo, run_id).workflow_id)
    given = parse_pairs(inputs, workflow.inputs)
    with _listening(session, workflow, show_output) as listener, heard() as wish:
        result = resume_workflow(
            repo,
            run_id,
            from_step=from_step,
            inputs=given,
            force=force,
            options=RunOptions(listener, wish),
        )
    _show_result(session, result)


reason_option = click.option("--reason", metavar="TEXT", help="Why; the record keeps it.")
step_argument = click.argument("step", required=False, help="The step, if several wait.")
resume_option = click.option("--resume", "goes_on", is_flag=True, help="Go on with the run here.")


@command(
    examples="""
    swampstore workflow approve 77aa0d3e
    swampstore workflow approve 77aa0d3e deploy/ask --reason "seen on staging" --resume
    """
)
@run_argument
@step_argument
@reason_option
@resume_option
@pass_session
def approve(
    session: Session, run_id: str, step: str | None, reason: str | None, goes_on: bool
) -> None:
    """Let a step that waits for approval go on; `workflow resume` then does."""
    _decide(session, run_id, step, reason, approved=True, goes_on=goes_on)


@command(
    examples="""
    swampstore workflow reject 77aa0d3e --reason "not on a Friday"
    """
)
@run_argument
@step_argument
@reason_option
@resume_option
@pass_session
def reject(
    session: Session, run_id: str, step: str | None, reason: str | None, goes_on: bool
) -> None:
    """Let a step that waits for approval fail; what is there for that case runs on resume."""
    _decide(session, run_id, step, reason, approved=False, goes_on=goes_on)


def _decide(
    session: Session,
    run_id: str,
    step: str | None,
    reason: str | None,
    *,
    approved: bool,
    goes_on: bool,
) -> None:
    from swampstore.runs.workflow.approval import decide_step

    with session.open_repo() as repo:
        done = decide_step(repo, run_id, step, approved=approved, reason=reason)
        session.unpushed = done.not_pushed
        if goes_on:
            _resume(session, repo, done.record.id)
            return
        word = "Approved" if approved else "Rejected"
        session.show(
            {
                "runId": done.record.id,
                "job": done.job,
                "step": done.step,
                "approved": approved,
                "status": done.record.status,
            },
            lambda: (
                f"{word} {done.job}/{done.step} of run {done.record.id};"
                f" `swampstore workflow resume {done.record.id[:8]}` goes on."
            ),
        )


@command(
    examples="""
    swampstore workflow validate
    swampstore workflow validate nightly-scan workflows/other.yaml --json
    """
)
@click.argument("workflows", nargs=-1, help="Names, ids or files; all of them if none is given.")
@pass_session
def validate(session: Session, workflows: Sequence[str]) -> None:
    """Check workflow files: what they say, the order, the models and workflows that they name."""
    from swampstore.runs.workflow.files import Workflows
    from swampstore.runs.workflow.preview import problems

    results: list[dict[str, Any]] = []
    with session.open_repo() as repo:
        known = Workflows(repo)
        found: list[tuple[str, Workflow | SwampstoreError]] = []
        if workflows:
            found = [(name, _tried(known, name)) for name in workflows]
        else:
            whole, broken = known.all()
            found = [(one.name, one) for one in whole]
            found += [(one.path, one.error) for one in broken]
        readable = [one for _, one in found if not isinstance(one, SwampstoreError)]
        for name, one in found:
            if isinstance(one, SwampstoreError):
                told = [f"{one.message}. {one.hint}" if one.hint else one.message]
            else:
                told = [*problems(repo, one), *_shared(one, readable)]
            results.append({"workflow": name, "valid": not told, "problems": told})
    bad = [one for one in results if not one["valid"]]
    lines = [f"{one['workflow']}: {problem}" for one in bad for problem in one["problems"]]
    summary = f"{counted(len(results), 'workflow')}, {len(bad)} with problems"
    session.show({"workflows": results}, lambda: "\n".join([*lines, summary]))
    if bad:
        raise click.exceptions.Exit(1)


def _shared(one: Workflow, workflows: Sequence[Workflow]) -> list[str]:
    """Return what tells that others have the name of a workflow, or its id."""
    alike = {
        "name": [other for other in workflows if other.name == one.name],
        "id": [other for other in workflows if other.id == one.id],
    }
    files = {what: sorted({str(other.path) for other in found}) for what, found in alike.items()}
    return [
        f"{len(paths)} workflows have this {what}: {', '.join(paths)}"
        for what, paths in files.items()
        if len(paths) > 1
    ]


def _tried(known: Any, name: str) -> Workflow | SwampstoreError:
    try:
        found: Workflow = known.require(name)
    except SwampstoreError as error:
        return error
    return found


@command(
    examples="""
    swampstore workflow list
    swampstore workflow list --json
    """
)
@rows_options
@pass_session
def list_(session: Session) -> None:
    """List the workflows of the repository."""
    from swampstore.runs.workflow.files import Workflows

    with session.open_repo() as repo:
        found, broken = Workflows(repo).all()
    for one in broken:
        session.note(f"left out: {one.error.message}")
    documents = [
        {
            "name": one.name,
            "id": one.id,
            "path": one.path,
            "description": one.description,
            "jobs": len(one.jobs),
            "steps": sum(len(job.steps) for job in one.jobs),
            "tags": dict(one.tags),
        }
        for one in found
    ]
    columns = (
        Column("name", item("name")),
        Column("jobs", item("jobs"), right=True, rank=3),
        Column("steps", item("steps"), right=True, rank=2),
        Column("path", item("path"), heading="file"),
        Column("description", item("description"), rank=1),
    )
    members = ("name", "id", "path", "description", "jobs", "steps", "tags")
    listing = Listing(
        columns,
        documents,
        same,
        footer=lambda: counted(len(documents), "workflow"),
        empty="There are no workflows.",
        members=members,
    )
    document = {"workflows": documents, "broken": [one.path for one in broken]}
    session.show_rows(listing, lambda: document)


@command(
    examples="""
    swampstore workflow history
    swampstore workflow history nightly-scan --status failed --limit 5
    """
)
@click.argument("workflow", required=False, help="The name or id of a workflow.")
@click.option("--status", metavar="WORD", help="Only runs with this status.")
@limit_option
@rows_options
@pass_session
def history(session: Session, workflow: str | None, status: str | None, limit: int | None) -> None:
    """List the runs of workflows, those that began last first."""
    from swampstore.cli.workflow_text import time_between
    from swampstore.runs.workflow.resume import past_runs

    with session.open_repo() as repo:
        found = [
            one
            for one in past_runs(repo)
            if workflow in (None, one.workflow_name, one.workflow_id)
            and status in (None, one.status)
        ][:limit]
    columns = (
        Column("id", lambda one: one.id, lambda text: text[:8], heading="run"),
        Column("workflowName", lambda one: one.workflow_name, heading="workflow"),
        Column("status", lambda one: one.status),
        Column("startedAt", lambda one: one.started_at, age_text, right=True, heading="age"),
        Column(
            "took", lambda one: time_between(one.started_at, one.completed_at), right=True, rank=3
        ),
        Column(
            "steps",
            lambda one: f"{one.progress['completed']}/{one.progress['total']}",
            right=True,
            rank=2,
        ),
        Column(
            "failedStep",
            lambda one: one.failed_step.name if one.failed_step else None,
            rank=1,
            heading="failed step",
        ),
    )
    listing = Listing(
        columns,
        found,
        _summary,
        footer=lambda: counted(len(found), "run"),
        empty="There are no runs.",
    )
    session.show_rows(listing, lambda: {"runs": [_summary(one) for one in found]})


def _summary(record: RunRecord) -> dict[str, Any]:
    """Return what the list says of a run: all but its jobs."""
    return {name: value for name, value in record.to_json().items() if name != "jobs"}


@command(
    examples="""
    swampstore workflow show 77aa0d3e
    swampstore workflow show 77aa0d3e --json
    """
)
@run_argument
@pass_session
def show(session: Session, run_id: str) -> None:
    """Show a run: its jobs and steps, and where it is or how it ended."""
    from swampstore.cli.workflow_text import run_text
    from swampstore.runs.workflow.resume import find_run

    with session.open_repo() as repo:
        record = find_run(repo, run_id)
    about = fields(
        {
            "started": record.started_at,
            "ended": record.completed_at,
            "machine": record.host,
            "inputs": ", ".join(f"{key}={value}" for key, value in (record.inputs or {}).items()),
            "tags": ", ".join(f"{key}={value}" for key, value in (record.tags or {}).items()),
            "log": record.log_file,
        }
    )
    session.show(record.to_json(), lambda: f"{run_text(record)}\n{about}")
