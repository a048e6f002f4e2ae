"""The end of a workflow run: its status, its reports, the last line of its record, and the push."""

from __future__ import annotations

from contextlib import ExitStack

from swampstore import audit
from swampstore.errors import SwampstoreError
from swampstore.runs.workflow import events
from swampstore.runs.workflow.conditions import FAILED, SKIPPED, SUCCEEDED
from swampstore.runs.workflow.record import (
    CANCEL_REASON,
    CANCELLED,
    RUNNING,
    SUSPENDED,
    WAITING,
    RunRecord,
)
from swampstore.runs.workflow.run_state import RunState


def finish(state: RunState) -> None:
    """Write down how the run ended, and push that, with the reports of the run."""
    with state.live as record:
        for job in record.jobs:
            if job.status == RUNNING:
                job.status, job.completed_at = FAILED, state.now()
    status = _status_of(record, cancelled=state.shared.cancelled.is_set())
    failed: str | None = None
    try:
        with ExitStack() as stack:
            work = None
            if state.repo.config.remote is not None or state.reports:
                work = stack.enter_context(state.repo.session([state.workflow.ref]))
            if state.reports and status in (SUCCEEDED, FAILED):
                failed = _report(state, status)
                status = FAILED if failed else status
            _end(state, status)
            _audit(state)
        if work is not None:
            state.not_pushed = state.not_pushed or work.not_pushed
    except SwampstoreError as error:
        state.not_pushed = state.not_pushed or error
        state.tell(events.NOT_PUSHED, error=error.message)
        _end(state, status)
    state.tell(events.RUN_ENDED, status=status, error=failed or _failure(record))


def _report(state: RunState, status: str) -> str | None:
    from swampstore.runs.reports import write_workflow_reports

    record = state.live.record
    before, record.status = record.status, status
    try:
        return write_workflow_reports(state.repo, state.workflow, record, state.reports)
    finally:
        record.status = before


def _end(state: RunState, status: str) -> None:
    with state.live as record:
        record.status = status
        if status != SUSPENDED:
            record.completed_at = state.now()
        if status == CANCELLED:
            reason = next(iter(state.shared.reasons), "interrupted")
            record.tags = {**(record.tags or {}), CANCEL_REASON: reason}


def _status_of(record: RunRecord, *, cancelled: bool) -> str:
    statuses = {job.status for job in record.jobs}
    if statuses <= {SUCCEEDED, SKIPPED}:
        return SUCCEEDED
    if cancelled:
        return CANCELLED
    return SUSPENDED if WAITING in statuses else FAILED


def _failure(record: RunRecord) -> str | None:
    failed = record.failed_step
    return f"{failed.name}: {failed.error}" if failed and record.status == FAILED else None


def _audit(state: RunState) -> None:
    record = state.live.record
    audit.record(
        state.repo,
        "workflow",
        command=f"workflow run {record.workflow_name}",
        workflow=record.workflow_name,
        runId=record.id,
        status=record.status,
    )
