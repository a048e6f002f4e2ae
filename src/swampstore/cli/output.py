"""`swampstore output`: what methods were run, how they ended, and their logs."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import complete_model, limit_option, moment, rows_options, since_option
from swampstore.cli.rendering import age_text, counted, duration_text, fields, printable
from swampstore.cli.row_formats import Column, Listing, item, same, table
from swampstore.cli.session import Session, write_output
from swampstore.errors import NotFoundError
from swampstore.runs.outputs import Outputs, live_log
from swampstore.runs.summaries import OutputIndex
from swampstore.runs.tracker import Tracker

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.outputs import Output

_PIECE = 1 << 16
_PAUSE = 0.2

output_argument = click.argument("output_id", metavar="OUTPUT", help="An id, or how it begins.")


@command(
    examples="""
    swampstore output list
    swampstore output list --model aws/ec2/i-123 --status failed --since 7d
    swampstore output list 'status == "failed" && durationMs > 1000' --limit 20
    swampstore output list 'triggeredBy == "workflow" && error.contains("timeout")' --json
    """
)
@click.argument("predicate", required=False, help="What must hold, in CEL.")
@click.option(
    "--model", metavar="MODEL", shell_complete=complete_model, help="Only those of this model."
)
@click.option("--method", metavar="METHOD", help="Only those of this method.")
@click.option("--status", metavar="STATUS", help="Only succeeded, failed, cancelled or running.")
@since_option
@limit_option
@rows_options
@pass_session
def list_(
    session: Session,
    /,
    predicate: str | None,
    model: str | None,
    method: str | None,
    status: str | None,
    since: str | None,
    limit: int | None,
) -> None:
    """List the runs of methods that ended, those that began last first."""
    with session.open_repo() as repo:
        ref = repo.model(model) if model is not None else None
        index = OutputIndex(repo)
        found, total = index.find(
            predicate,
            limit=limit,
            model_type=ref.type if ref else None,
            model_id=ref.id if ref else None,
            method=method,
            status=status,
            since=moment(repo, "--since", since) if since is not None else None,
        )
        index.close()
    listing = Listing(
        _COLUMNS, [one.to_json() for one in found], same, lambda: counted(total, "output")
    )
    session.show_rows(listing, lambda: {"outputs": listing.items, "total": total})


_COLUMNS = (
    Column("id", item("id"), lambda text: text[:8], heading="output"),
    Column("status", item("status")),
    Column("model", lambda one: f"{one['modelType']}/{one['modelId']}"),
    Column("method", item("method"), rank=1),
    Column("startedAt", item("startedAt"), age_text, right=True, heading="age"),
    Column("durationMs", item("durationMs"), duration_text, right=True, rank=3, heading="took"),
    Column("error", item("error"), rank=2),
)


@command(
    examples="""
    swampstore output show 0b9b5b8e
    swampstore output show 0b9b5b8e --json
    """
)
@output_argument
@pass_session
def show(session: Session, output_id: str) -> None:
    """Show the record of one run of a method: how it ended, and what it wrote."""
    with session.open_repo() as repo:
        output = _find(repo, output_id)
    document: dict[str, Any] = {**output.to_json(), "modelType": output.model.type}
    session.show(document, lambda: _show_text(output))


def _show_text(output: Output) -> str:
    told = {
        "id": output.id,
        "model": output.model,
        "method": output.method,
        "status": output.status,
        "started": output.started_at,
        "duration": duration_text(output.duration_ms),
        "command": shlex.join(map(str, output.command)) if output.command else None,
        "triggered by": output.provenance.triggered_by,
        "error": output.error.get("message") if output.error else None,
        "record": output.rel,
    }
    lines = [fields({name: value for name, value in told.items() if value})]
    if output.artifacts:
        rows = [[printable(one.name), one.version] for one in output.artifacts]
        lines.append(table(["artifact", "version"], rows, right=("version",)))
    return "\n".join(lines)


def _find(repo: Repo, output_id: str) -> Output:
    """Return the output that an id means, found by the index, which knows where each is."""
    wanted = output_id.lower().replace("-", "")
    index = OutputIndex(repo)
    found = [one for one in index.find()[0] if _begins(str(one.values["id"]), wanted)]
    index.close()
    if len(found) == 1 and len(wanted) >= 3:
        output = Outputs(repo).read(found[0].rel)
        if output is not None:
            return output
    return Outputs(repo).find(output_id)


def _begins(output_id: str, wanted: str) -> bool:
    return output_id.lower().replace("-", "").startswith(wanted)


@command(
    examples="""
    swampstore output logs 0b9b5b8e
    swampstore output logs 0b9b5b8e --follow
    """
)
@output_argument
@click.option("--follow", is_flag=True, help="Go on until the run ends.")
@pass_session
def logs(session: Session, output_id: str, follow: bool) -> None:
    """Print what a run of a method has written to its log, also while it goes on."""
    with session.open_repo() as repo:
        tracker = Tracker(repo)
        try:
            run = tracker.find(output_id)
        except NotFoundError:
            run = None
        if run is not None and not run.is_over:
            _follow(live_log(repo, run.id), tracker, run.id, follow=follow)
            tracker.close()
            return
        tracker.close()
        output = _find(repo, output_id)
        path = Outputs(repo).log_path(output)
        if path is None:
            raise NotFoundError(
                f"the log of {output.id} is not on this machine",
                hint="A log stays where the run was, unless it was kept as an artifact.",
            )
        if session.json:
            with open(path, encoding="utf-8", errors="replace") as file:
                session.show({"id": output.id, "log": file.read()}, str)
            return
        with open(path, "rb") as log:
            while piece := log.read(_PIECE):
                write_output(piece)


def _follow(path: str, tracker: Tracker, run_id: str, *, follow: bool) -> None:
    """Print a log that is being written; with `follow` until its run is over."""
    try:
        log = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    with log:
        while True:
            # Asked first: what was written before the end is read after it.
            is_over = not follow or tracker.find(run_id).is_over
            while piece := log.read(_PIECE):
                write_output(piece)
            if is_over:
                return
            time.sleep(_PAUSE)
