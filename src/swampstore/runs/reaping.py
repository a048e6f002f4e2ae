"""What is left of a run whose process died: a record that says so.

A method that was killed has written no output record, because that is written once, at the end; a
workflow has one that says it is running. A command on the same machine that finds the dead run
writes the one, or corrects the other.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from swampstore.clock import from_iso, to_iso
from swampstore.errors import SwampstoreError
from swampstore.layout import WORKFLOW_RUN_REL, WORKFLOW_RUNS
from swampstore.notices import notice
from swampstore.runs.outputs import Output, Outputs

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.tracker import Run

_MARGIN = timedelta(minutes=1)


def mark_dead(repo: Repo, run: Run) -> None:
    """Have the record of a dead run say how it ended; doing it again changes nothing."""
    from swampstore.runs.tracker import WORKFLOW

    try:
        if run.kind == WORKFLOW:
            _mark_workflow(repo, run)
        elif run.model is not None:
            _mark_output(repo, run)
    except (SwampstoreError, OSError) as error:
        notice("the record of the run %s could not be marked: %s", run.id, error)


def _mark_output(repo: Repo, run: Run) -> None:
    from swampstore.runs.tracker import DIED

    assert run.model is not None
    outputs = Outputs(repo)
    since = to_iso(from_iso(run.started_at) - _MARGIN)
    known = next(
        (
            one
            for one in outputs.all(model=run.model, method=run.method, since=since)
            if one.id == run.id
        ),
        None,
    )
    if known is not None and known.is_over:
        return
    ended_at = max(run.heartbeat_at, run.started_at)
    took = from_iso(ended_at) - from_iso(run.started_at)
    output = known or Output(
        id=run.id,
        model=run.model,
        method=run.method,
        status="running",
        started_at=run.started_at,
        pid=run.pid,
        extra={"host": run.machine},
    )
    outputs.save(
        output._replace(
            status="cancelled" if run.cancel_reason else "failed",
            completed_at=ended_at,
            duration_ms=round(took.total_seconds() * 1000),
            error={"message": run.cancel_reason or DIED},
        )
    )


def _mark_workflow(repo: Repo, run: Run) -> None:
    """Say of the whole run, and of the steps that were running, how they ended."""
    from swampstore.runs.tracker import DIED
    from swampstore.runs.workflow.record import RUNNING, RunRecords
    from swampstore.runs.workflow.resume import interrupt, is_going_on

    rel = workflow_record(repo, run.id)
    records = RunRecords(repo)
    record = records.read(rel) if rel else None
    if record is None or record.status != RUNNING or is_going_on(repo, record):
        return
    if not records.is_as_seen(record):
        return  # it ended after all, or somebody goes on with it
    interrupt(
        record, run.heartbeat_at, run.cancel_reason or DIED, cancelled=bool(run.cancel_reason)
    )
    records.save(record)


def record_of(repo: Repo, run: Run) -> str | None:
    """Return where the record of a run is, None if it has none here (yet)."""
    from swampstore.runs.tracker import WORKFLOW

    if run.kind == WORKFLOW:
        return workflow_record(repo, run.id)
    if run.model is None:
        return None
    since = to_iso(from_iso(run.started_at) - _MARGIN)
    outputs = Outputs(repo).all(model=run.model, method=run.method, since=since)
    return next((one.rel for one in outputs if one.id == run.id), None)


def workflow_record(repo: Repo, run_id: str) -> str | None:
    """Return where the record of a workflow run is, None if there is none."""
    for workflow in repo.tree.subdirs(WORKFLOW_RUNS):
        rel = WORKFLOW_RUN_REL.format(workflow, run_id)
        if os.path.exists(repo.tree.path(rel)):
            return rel
    return None
