"""Manual approvals: who waits for one, deciding, giving up, and waiting for too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swampstore.clock import from_iso, to_iso
from swampstore.errors import SwampstoreError
from swampstore.layout import ModelRef
from swampstore.runs.errors import NotResumableError
from swampstore.runs.workflow.definition import WORKFLOW_TYPE
from swampstore.runs.workflow.reading import listed
from swampstore.runs.workflow.record import (
    SUSPENDED,
    WAITING,
    JobRecord,
    RunRecord,
    RunRecords,
    StepRecord,
)
from swampstore.runs.workflow.resume import carrying_out, check_resumable, find_run, interrupt

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.repo.session import Session


def waiting_steps(record: RunRecord) -> list[tuple[JobRecord, StepRecord]]:
    """Return the steps that wait for somebody to decide."""
    return [
        (job, step)
        for job, step in record.steps()
        if step.status == WAITING and step.approval_decision is None and step.child is None
    ]


def decide(
    record: RunRecord, step: str | None, *, approved: bool, by: str, at: str, reason: str | None
) -> tuple[JobRecord, StepRecord]:
    """Write a decision into a record and return the step; without a name, the only one waiting.

    Raises ValidationError if none or several wait, or the named one does not.
    """
    waiting = waiting_steps(record)
    chosen = [
        (job, one) for job, one in waiting if step in (None, one.name, f"{job.name}/{one.name}")
    ]
    if len(chosen) != 1:
        names = [f"{job.name}/{one.name}" for job, one in waiting]
        raise NotResumableError(
            f"the run {record.id} has no step {step!r} that waits for approval"
            if step and not chosen
            else f"{len(chosen)} steps of the run {record.id} wait for approval",
            hint=f"Waiting: {listed(names)}." if names else "See `swampstore workflow show`.",
        )
    ((job, found),) = chosen
    found.approval_decision = {
        "approved": approved,
        "reason": reason,
        "decidedBy": by,
        "decidedAt": at,
    }
    if reason is None:
        del found.approval_decision["reason"]
    return job, found


def has_expired(step: StepRecord, timeout: float | None, now: str) -> bool:
    """Whether a step has waited for approval for longer than it may."""
    if timeout is None or step.started_at is None:
        return False
    return (from_iso(now) - from_iso(step.started_at)).total_seconds() > timeout


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that was written down. `not_pushed` says why others do not know of it yet."""

    record: RunRecord
    job: str
    step: str
    not_pushed: SwampstoreError | None = None


def decide_step(
    repo: Repo, run_id: str, step: str | None, *, approved: bool, reason: str | None = None
) -> Decided:
    """Approve or reject a step of a run that waits for it, for every machine.

    Raises RunNotFoundError, and NotResumableError if nothing waits for that, or the run goes on:
    whoever carries it out would not hear of it.
    """
    from swampstore.locks.process import actor_name

    with _between(repo, run_id) as (record, work):
        at = to_iso(repo.clock())
        job, found = decide(record, step, approved=approved, by=actor_name(), at=at, reason=reason)
    return Decided(record, job.name, found.name, work.not_pushed)


def give_up(repo: Repo, run_id: str, reason: str) -> RunRecord:
    """End a run that waits for somebody as cancelled, for every machine; return its record.

    A run that is over stays as it is. Raises RunNotFoundError, and NotResumableError if the run
    goes on.
    """
    with _between(repo, run_id) as (record, _):
        if record.status == SUSPENDED:
            interrupt(record, to_iso(repo.clock()), reason, cancelled=True)
    return record


@contextmanager
def _between(repo: Repo, run_id: str) -> Iterator[tuple[RunRecord, Session]]:
    """Change the record of a run while nobody carries it out, and push it.

    One of two who do that at the same time comes second, and sees what the first one did.
    """
    record = find_run(repo, run_id)
    with repo.session([ModelRef(WORKFLOW_TYPE, record.workflow_id)]) as work:
        record = find_run(repo, record.id)
        check_resumable(repo, record)
        with carrying_out(repo, record):
            before = record.to_json()
            yield record, work
            if record.to_json() != before:
                RunRecords(repo).save(record)
