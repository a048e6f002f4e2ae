"""Going on with a run that stopped: whether nobody carries it out, and where to begin again.

When a step runs again, `attempts` cleans up what its killed attempts have left. `find_run` and
`past_runs` mark the runs whose process died.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from swampstore.clock import to_iso
from swampstore.errors import DiskError, SwampstoreError
from swampstore.files.hold import Hold, taking_over
from swampstore.locks import process
from swampstore.notices import did_you_mean
from swampstore.runs.errors import NotResumableError
from swampstore.runs.workflow.conditions import FAILED, SKIPPED, SUCCEEDED
from swampstore.runs.workflow.definition import Workflow
from swampstore.runs.workflow.plan import dependent_jobs, dependents
from swampstore.runs.workflow.reading import listed
from swampstore.runs.workflow.record import (
    CANCEL_REASON,
    CANCELLED,
    INTERRUPT_REASON,
    PENDING,
    RUNNING,
    SUSPENDED,
    WAITING,
    JobRecord,
    RunRecord,
    RunRecords,
    StepRecord,
)

if TYPE_CHECKING:
    from swampstore.repo import Repo

GUARDED = "guarded"
INTERRUPTED = "interrupted"
_HOLDS = "swampstore.runs"
# Whoever is killed while it starts a command leaves its lock to a child, which gives it up as soon
# as the command begins. On a busy machine that may take a second.
_STARTING = 5.0


# Who carries a run out ---------------------------------------------------------------------


def _hold_path(repo: Repo, run_id: str) -> str:
    return f"{repo.config.local_dir}/{_HOLDS}/{run_id}"


@contextlib.contextmanager
def carrying_out(repo: Repo, record: RunRecord) -> Iterator[None]:
    """Show others on this machine that a run is going on, for as long as the block lasts.

    Raises NotResumableError if another process is carrying it out, or has done so since the record
    was read: what it says is no longer where the run is.
    """
    path = _hold_path(repo, record.id)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with taking_over(path, _patience(record)) as is_dead:
        if is_dead is False:
            raise _going_on(record.id)
        with Hold() as hold:
            hold.prepare(os.path.dirname(path))
            hold.place(path)
            try:
                if not RunRecords(repo).is_as_seen(record):
                    raise _changed(record.id)
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def is_going_on(repo: Repo, record: RunRecord) -> bool:
    """Whether a process of this machine carries a run out now."""
    with taking_over(_hold_path(repo, record.id), _patience(record)) as is_dead:
        return is_dead is False


def _patience(record: RunRecord) -> float:
    """Return how long to wait for the lock of a run: its process may be gone, and a child not."""
    if record.pid is None or not is_of_this_machine(record):
        return 0.0
    ours = process.new_record(1)
    return _STARTING if process.is_dead(ours._replace(pid=record.pid, process="")) else 0.0


def _going_on(run_id: str) -> NotResumableError:
    return NotResumableError(
        f"the run {run_id} is going on in another process",
        hint="See `swampstore runs list`; `swampstore runs cancel` ends it.",
    )


def _changed(run_id: str) -> NotResumableError:
    return NotResumableError(
        f"somebody else has changed the run {run_id} meanwhile",
        hint="See `swampstore workflow show` for where it is, and try again.",
    )


def is_of_this_machine(record: RunRecord) -> bool:
    """Whether a run was carried out on a machine of this name."""
    return record.host is None or record.host == os.uname().nodename


def reap(repo: Repo, record: RunRecord) -> RunRecord:
    """Return the record of a run as it is now, marked as failed if its process died here.

    Where nothing can be written, only what is returned says so.
    """
    if record.status != RUNNING or not is_of_this_machine(record) or is_going_on(repo, record):
        return record
    records = RunRecords(repo)
    if not records.is_as_seen(record):
        # It ended after the record was read, or somebody goes on with it.
        return records.read(record.rel) or record
    interrupt(record, to_iso(repo.clock()), f"process {record.pid} is gone")
    with contextlib.suppress(DiskError):
        records.save(record)
    return record


def interrupt(record: RunRecord, at: str, reason: str, *, cancelled: bool = False) -> None:
    """Let a record say that its run was interrupted, or cancelled, and in which steps."""
    for job, step in record.steps():
        if step.status == RUNNING:
            step.status, step.completed_at, step.error = FAILED, at, f"interrupted: {reason}"
            step.reason = INTERRUPTED
        if job.status == RUNNING:
            job.status, job.completed_at = FAILED, at
    record.status, record.completed_at = CANCELLED if cancelled else FAILED, at
    tag = CANCEL_REASON if cancelled else INTERRUPT_REASON
    record.tags = {**(record.tags or {}), tag: reason}


# Beginning again ---------------------------------------------------------------------------


def prepare(record: RunRecord, workflow: Workflow, *, from_step: str | None = None) -> None:
    """Set everything that did not finish back to its beginning, in the record.

    With `from_step` (a step, or JOB/STEP) that step goes back as well, with all that wait for it.
    Raises NotResumableError if there is nothing to go on with.
    """
    if from_step is None and record.status == SUCCEEDED:
        raise NotResumableError(
            f"the run {record.id} has succeeded",
            hint="Name the step to begin again from with --from, or start another run.",
        )
    if from_step is not None:
        _reset_from(record, workflow, from_step)
    for job, step in record.steps():
        if _is_unfinished(step):
            was_stopped = step.status == RUNNING or step.reason == INTERRUPTED
            attempt = step.attempt if was_stopped else None
            decision, started = step.approval_decision, step.started_at
            waited = step.status == WAITING
            step.start_over()
            step.attempt = attempt
            if waited:
                step.status, step.approval_decision, step.started_at = WAITING, decision, started
        if job.status != PENDING and not _is_finished(job):
            job.status, job.completed_at = PENDING, None
    _add_new_steps(record, workflow)
    record.tags = {
        key: value
        for key, value in (record.tags or {}).items()
        if key not in (INTERRUPT_REASON, CANCEL_REASON)
    }
    record.status, record.completed_at = RUNNING, None


def _is_unfinished(step: StepRecord) -> bool:
    """Whether a resumed run has to look at a step again."""
    if step.status == SUCCEEDED or (step.status == SKIPPED and step.reason == GUARDED):
        return False
    return not (step.status == FAILED and step.allowed_failure)


def _is_finished(job: JobRecord) -> bool:
    return job.status == SUCCEEDED and not any(map(_is_unfinished, job.steps))


def _reset_from(record: RunRecord, workflow: Workflow, wanted: str) -> None:
    found = [
        (job, step)
        for job, step in record.steps()
        if wanted
        in (step.name, step.template, f"{job.name}/{step.name}", f"{job.name}/{step.template}")
    ]
    jobs = {job.name for job, _ in found}
    if not found or len(jobs) > 1:
        names = [f"{job.name}/{step.name}" for job, step in record.steps()]
        raise NotResumableError(
            f"{wanted!r} is a step of several jobs" if found else f"there is no step {wanted!r}",
            hint=did_you_mean(wanted, names, 1) or f"Give it as JOB/STEP: {listed(names)}.",
        )
    (job_name,) = jobs
    job = record.job(job_name)
    chosen = {step.name for _, step in found}
    later: set[str] = set()
    for template in {step.template or step.name for _, step in found}:
        later |= dependents(workflow.job(job_name), template) - {template}
    _restart(job, [one for one in job.steps if one.name in chosen or _origin(one) in later])
    for name in dependent_jobs(workflow, job_name):
        _restart(record.job(name), record.job(name).steps)


def _origin(step: StepRecord) -> str:
    return step.template or step.name


def _restart(job: JobRecord, steps: Sequence[StepRecord]) -> None:
    job.status = PENDING
    for step in steps:
        step.start_over()
        step.child = None


def _add_new_steps(record: RunRecord, workflow: Workflow) -> None:
    """Let the record have every job and step of a workflow that was changed since."""
    for job in workflow.jobs:
        try:
            known = record.job(job.name)
        except KeyError:
            record.jobs.append(JobRecord(job.name, [StepRecord(step.name) for step in job.steps]))
            continue
        for step in job.steps:
            if not known.of_template(step.name) and step.name not in (known.expanded or ()):
                known.steps.append(StepRecord(step.name))
                known.status = PENDING


def check_resumable(repo: Repo, record: RunRecord, *, force: bool = False) -> None:
    """Raise NotResumableError if a process, here or elsewhere, may be carrying a run out.

    One of another machine may be resumed once that was not heard of for long enough.
    """
    if record.status in (SUSPENDED, CANCELLED, FAILED, SUCCEEDED):
        return
    if is_of_this_machine(record):
        if is_going_on(repo, record):
            raise _going_on(record.id)
        return
    if not force and not _is_lost(repo, record):
        raise NotResumableError(
            f"the run {record.id} was going on on {record.host} when it was last heard of",
            hint="Look there, or with `swampstore runs list`. If that machine is gone for good,"
            " `swampstore workflow resume --force` goes on here.",
        )


def _is_lost(repo: Repo, record: RunRecord) -> bool:
    """Whether the machine that carries a run out has given no sign of life for too long."""
    from swampstore.runs.control_area import LOST
    from swampstore.runs.tracker import Tracker

    try:
        found = Tracker(repo).list(everywhere=True)
    except SwampstoreError:
        return False  # the remote does not say
    return any(run.id == record.id and run.status == LOST for run in found)


def models_of(record: RunRecord) -> Sequence[str]:
    """Return the addresses of the models whose steps have begun."""
    return sorted({step.model for _, step in record.steps() if step.model})


def find_run(repo: Repo, run_id: str) -> RunRecord:
    """Return the run whose id is or begins with this; raise RunNotFoundError without one."""
    return reap(repo, RunRecords(repo).find(run_id))


def past_runs(repo: Repo, workflow_id: str | None = None) -> Iterator[RunRecord]:
    """Yield the runs, those that began last first."""
    for record in RunRecords(repo).all(workflow_id):
        yield reap(repo, record)
