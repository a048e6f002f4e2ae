"""`swampstore runs`: what runs now and ended lately, here and elsewhere, and ending it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from swampstore.cli.command import command, pass_session
from swampstore.cli.options import limit_option, rows_options
from swampstore.cli.rendering import age_text, counted, duration_text, fields, printable
from swampstore.cli.row_formats import Column, Listing
from swampstore.cli.session import Session
from swampstore.runs.reaping import record_of
from swampstore.runs.summaries import select_runs
from swampstore.runs.tracker import Tracker
from swampstore.stores.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swampstore.runs.tracker import Run

here_option = click.option("--here", is_flag=True, help="Ask only this machine, not the remote.")
run_argument = click.argument("run_id", metavar="RUN", help="An id, or how it begins.")


@command(
    examples="""
    swampstore runs list
    swampstore runs list --running
    swampstore runs list 'status == "failed" && method == "scan"'
    swampstore runs list --here --limit 10 --json
    """
)
@click.argument("predicate", required=False, help="What must hold, in CEL.")
@click.option("--running", is_flag=True, help="Only what goes on now.")
@here_option
@limit_option
@rows_options
@pass_session
def list_(
    session: Session, predicate: str | None, running: bool, here: bool, limit: int | None
) -> None:
    """List what runs now and what ended lately, the youngest first."""
    with session.open_repo() as repo:
        tracker = Tracker(repo)
        select_runs([], predicate)  # a mistake in it is told before anything is asked
        tracker.reap()
        found = select_runs(_runs(session, tracker, here=here), predicate)
        tracker.close()
    if running:
        found = [run for run in found if not run.is_over and run.status != "lost"]
    total = len(found)
    shown = found if limit is None else found[:limit]
    nothing = "" if total else "Nothing runs, and nothing ended lately."
    listing = Listing(
        _COLUMNS, shown, lambda run: run.to_json(), lambda: counted(total, "run"), nothing
    )
    session.show_rows(listing, lambda: {"runs": [run.to_json() for run in shown], "total": total})


def _runs(session: Session, tracker: Tracker, *, here: bool) -> Sequence[Run]:
    if here:
        return tracker.list()
    try:
        return tracker.list(everywhere=True)
    except StoreError as error:
        session.note(f"only what this machine knows: {error.message}")
        return tracker.list()


def _what(run: Run) -> str:
    return f"{run.model} {run.method}" if run.model else run.workflow or run.method


_COLUMNS = (
    Column("id", lambda run: run.id, lambda text: text[:8], heading="run"),
    Column("status", lambda run: run.status),
    Column("what", _what),
    Column("startedAt", lambda run: run.started_at, age_text, right=True, heading="age"),
    Column(
        "durationMs", lambda run: run.duration_ms, duration_text, right=True, rank=1, heading="took"
    ),
    Column("machine", lambda run: run.machine if not run.is_here else "here", rank=2),
)


@command(
    examples="""
    swampstore runs show 5d0f2b0a
    swampstore runs show 5d0f2b0a --json
    """
)
@run_argument
@here_option
@pass_session
def show(session: Session, run_id: str, here: bool) -> None:
    """Show a run that goes on or ended lately, and where its record is."""
    with session.open_repo() as repo:
        tracker = Tracker(repo)
        tracker.reap()
        run = tracker.find(run_id, everywhere=not here)
        record = record_of(repo, run)
        tracker.close()
    document: dict[str, Any] = run.to_json() | ({"record": record} if record else {})
    session.show(document, lambda: fields(document))


@command(
    examples="""
    swampstore runs cancel 5d0f2b0a
    swampstore runs cancel 5d0f2b0a --reason 'wrong region'
    """
)
@run_argument
@click.option("--reason", metavar="TEXT", default="", help="What its record says about why.")
@pass_session
def cancel(session: Session, run_id: str, reason: str) -> None:
    """Ask a run to end, on whichever machine it is."""
    with session.open_repo() as repo:
        tracker = Tracker(repo)
        tracker.reap()
        run = tracker.cancel(run_id, reason)
        tracker.close()
    place = "here" if run.is_here else f"on {run.machine}"
    session.show(
        {"id": run.id, "machine": run.machine, "isHere": run.is_here},
        lambda: f"Asked {printable(_what(run))} ({run.id[:8]}), {printable(place)}, to end.",
    )
