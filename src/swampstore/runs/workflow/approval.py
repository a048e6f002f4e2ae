"""Manual approvals: who waits for one, deciding, and waiting for too long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from swampstore.clock import from_iso, to_iso
from swampstore.errors import SwampstoreError
from swampstore.layout import ModelRef
from swampstore.runs.errors import NotResumableError
from swampstore.runs.workflow.definition import WORKFLOW_TYPE
from swampstore.runs.workflow.reading import listed
from swampstore.runs.workflow.record import WAITING, JobRecord, RunRecord, RunRecords, StepRecord
from swampstore.runs.workflow.resume import find_run

if TYPE_CHECKING:
    from swampstore.repo import Repo


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

    Raises RunNotFoundError, and NotResumableError if nothing waits for that.
    """
    from swampstore.locks.process import actor_name

    record = find_run(repo, run_id)
    not_pushed: SwampstoreError | None = None
    # One of two who decide at the same time comes second, and hears that nothing waits any more.
    with repo.session([ModelRef(WORKFLOW_TYPE, record.workflow_id)]) as work:
        record = find_run(repo, record.id)
        at = to_iso(repo.clock())
        job, found = decide(record, step, approved=approved, by=actor_name(), at=at, reason=reason)
        RunRecords(repo).save(record)
    not_pushed = work.not_pushed
    return Decided(record, job.name, found.name, not_pushed)
