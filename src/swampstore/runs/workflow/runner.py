"""Carrying a workflow out: a run that begins, or one that goes on where it stopped.

    run_workflow(repo, Workflows(repo).require("nightly-scan"), inputs={"nodes": ["a", "b"]})

The record says on disk what has begun and what has ended. So a run that is killed shows where it
was, and `resume_workflow` goes on there. `jobs` decides what runs next.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from swampstore import audit
from swampstore.clock import to_iso
from swampstore.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOT_PUSHED, SwampstoreError
from swampstore.runs.inputs import check_inputs
from swampstore.runs.processes import Interruption
from swampstore.runs.tracker import WORKFLOW, TrackedRun, Tracker
from swampstore.runs.workflow import events
from swampstore.runs.workflow.conditions import FAILED, SKIPPED, SUCCEEDED
from swampstore.runs.workflow.definition import Workflow
from swampstore.runs.workflow.files import Workflows, save_evaluated
from swampstore.runs.workflow.jobs import Jobs
from swampstore.runs.workflow.record import (
    CANCEL_REASON,
    CANCELLED,
    RUNNING,
    SUSPENDED,
    WAITING,
    JobRecord,
    LiveRecord,
    RunRecord,
    RunRecords,
    StepRecord,
    log_file,
)
from swampstore.runs.workflow.resume import (
    carrying_out,
    check_resumable,
    interrupt,
    models_of,
    prepare,
)
from swampstore.runs.workflow.run_state import Circumstances, Repos, RunState, most_at_once

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.reports import Report

EXIT_SUSPENDED = 76
_PLACES = 1000
# How soon a run hears that somebody asked for its end.
_LOOK = 0.1
# A signal that another thread got wakes nobody: Python tells the main thread when that looks up.
_HEED = 0.5


@dataclass(frozen=True, slots=True)
class WorkflowResult:
    """How a run ended. `not_pushed` says why something of it is here and not on the remote."""

    record: RunRecord
    not_pushed: SwampstoreError | None = None

    @property
    def exit_code(self) -> int:
        """The exit status of a command that carried it out."""
        match self.record.status:
            case "succeeded":
                return EXIT_NOT_PUSHED if self.not_pushed else 0
            case "suspended":
                return EXIT_SUSPENDED
            case "cancelled":
                return EXIT_INTERRUPTED
        return EXIT_ERROR

    def to_json(self) -> dict[str, Any]:
        """Return the result document: the record, and whether it was pushed."""
        document = self.record.to_json()
        return document | ({"notPushed": self.not_pushed.message} if self.not_pushed else {})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is carried out, whatever the workflow is."""

    listener: events.WorkflowListener = field(default_factory=events.WorkflowListener)
    cancelled: Interruption | None = None
    skip_checks: bool = False
    last_evaluated: bool = False
    environ: Mapping[str, str] | None = None


def run_workflow(
    repo: Repo,
    workflow: Workflow,
    *,
    inputs: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    options: RunOptions | None = None,
) -> WorkflowResult:
    """Run a workflow until it ends, or waits for somebody; steps that fail are no error here.

    Raises InputError before anything runs if the inputs are not what the workflow asks for.
    """
    record = new_record(repo, workflow, dict(inputs or {}), dict(tags or {}))
    given = check_inputs(workflow.inputs, inputs or {}, f"workflow {workflow.name}")
    return _run(repo, workflow, record, given, options or RunOptions())


def resume_workflow(
    repo: Repo,
    run_id: str,
    *,
    from_step: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    force: bool = False,
    options: RunOptions | None = None,
) -> WorkflowResult:
    """Go on with a run from the first step that did not finish; none that finished runs again.

    `from_step` runs that one again too, and all that wait for it. `inputs` replace what the run
    was given, and are not written down. Raises NotResumableError if the run is over or going on.
    """
    _see_what_others_did(repo)
    records = RunRecords(repo)
    record = records.find(run_id)
    check_resumable(repo, record, force=force)
    workflow = Workflows(repo).require(record.workflow_id)
    given = check_inputs(
        workflow.inputs,
        {**(record.inputs or {}), **(inputs or {})},
        f"workflow {workflow.name}",
    )
    if record.status == RUNNING:
        interrupt(record, to_iso(repo.clock()), f"process {record.pid} is gone")
    prepare(record, workflow, from_step=from_step)
    record.resume_inputs = sorted({*(record.resume_inputs or ()), *(inputs or {})}) or None
    return _run(repo, workflow, record, given, options or RunOptions())


def _see_what_others_did(repo: Repo) -> None:
    if repo.config.remote is not None:
        from swampstore.sync.run import catch_up

        catch_up(repo)


def push_leftovers(state: RunState) -> None:
    """Push what finished steps have saved, if they were killed before they could.

    Nobody else would: the step is not run again.
    """
    repo = state.repo
    if repo.config.remote is None or repo.config.is_offline:
        return
    models = [repo.model(model) for model in models_of(state.live.record)]
    if not models or not repo.sync.is_marked(models):
        return
    try:
        with repo.session(models) as work:
            pass
        state.not_pushed = state.not_pushed or work.not_pushed
    except SwampstoreError as error:
        state.not_pushed = state.not_pushed or error
        state.tell(events.NOT_PUSHED, error=error.message)


def new_record(
    repo: Repo,
    workflow: Workflow,
    inputs: Mapping[str, Any],
    tags: Mapping[str, str],
    *,
    run_id: str | None = None,
    parent: dict[str, Any] | None = None,
) -> RunRecord:
    """Return the record of a run that begins now; inputs that are secret are left out."""
    shown = {
        name: value for name, value in inputs.items() if not _is_sensitive(workflow.inputs, name)
    }
    record = RunRecord(
        id=run_id or str(uuid.uuid4()),
        workflow_id=workflow.id,
        workflow_name=workflow.name,
        started_at=to_iso(repo.clock()),
        jobs=[
            JobRecord(job.name, [StepRecord(step.name) for step in job.steps])
            for job in workflow.jobs
        ],
        tags={**workflow.tags, **tags},
        inputs=shown or None,
        workflow_hash=workflow.hash,
        parent=parent,
    )
    record.log_file = log_file(record)
    return record


def _is_sensitive(schema: Mapping[str, Any] | None, name: str) -> bool:
    properties = (schema or {}).get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return isinstance(found, Mapping) and found.get("sensitive") is True


def _run(
    repo: Repo,
    workflow: Workflow,
    record: RunRecord,
    inputs: Mapping[str, Any],
    options: RunOptions,
) -> WorkflowResult:
    most = most_at_once(options.environ)
    shared = Circumstances(
        repos=Repos(repo),
        listener=options.listener,
        cancelled=options.cancelled or Interruption(),
        most=most,
        places=threading.Semaphore(most or _PLACES),
        skip_checks=options.skip_checks,
        last_evaluated=options.last_evaluated,
    )
    state = _state(repo, workflow, record, inputs, shared)
    try:
        _watched(partial(carry_out, state), shared.cancelled)
    finally:
        shared.repos.close()
    return WorkflowResult(record, state.not_pushed)


def _state(
    repo: Repo,
    workflow: Workflow,
    record: RunRecord,
    inputs: Mapping[str, Any],
    shared: Circumstances,
) -> RunState:
    log = events.RunLog(os.path.join(repo.config.repo_dir, log_file(record)), repo.clock)
    tags = {key: value for key, value in (record.tags or {}).items() if key not in workflow.tags}
    live = LiveRecord(RunRecords(repo), record)
    reports: list[Report] = []
    if workflow.reports:
        from swampstore.runs.reports import WORKFLOW as OF_WORKFLOW
        from swampstore.runs.reports import reports_for

        reports = reports_for(repo, workflow.reports, OF_WORKFLOW)
    return RunState(repo, workflow, live, inputs, shared, log, tags=tags, reports=reports)


def nested_state(
    parent: RunState, repo: Repo, workflow: Workflow, record: RunRecord, inputs: Mapping[str, Any]
) -> RunState:
    """Return the state of a run that is a step of another one."""
    given = check_inputs(workflow.inputs, inputs, f"workflow {workflow.name}")
    state = _state(repo, workflow, record, given, parent.shared)
    return replace(state, ancestors=(*parent.ancestors, parent.workflow.id))


def _watched(work: Callable[[], None], cancelled: Interruption) -> None:
    """Do the work in another thread, so that a signal finds us waiting and nothing half done.

    What a signal raises here ends the steps that run; it is raised again when they have ended and
    the record says so.
    """
    raised: BaseException | None = None
    with ThreadPoolExecutor(1, "workflow") as pool:
        future = pool.submit(work)
        while not future.done():
            strikes = cancelled.strikes
            try:
                wait([future], _HEED)
            except BaseException as error:  # noqa: BLE001 - whatever a signal raises
                raised = raised or error
                if cancelled.strikes == strikes:  # the handler of signals has not said it
                    cancelled.strike(signal.SIGINT)
    if raised is not None and future.exception() is None:
        raise raised
    future.result()


@contextmanager
def _tracked(state: RunState) -> Iterator[None]:
    """Show the run among those that go on, and end it if somebody asks for that there."""
    record = state.live.record
    with Tracker(state.repo).running(
        WORKFLOW, run_id=record.id, workflow=record.workflow_name
    ) as tracked:
        over = threading.Event()
        listening = threading.Thread(
            target=_listen, args=(tracked, state.shared, over), daemon=True
        )
        listening.start()
        try:
            yield
        finally:
            over.set()
            tracked.finish(record.status)
            listening.join()


def _listen(tracked: TrackedRun, shared: Circumstances, over: threading.Event) -> None:
    while not over.wait(_LOOK):
        if tracked.cancelled.is_set():
            shared.reasons.append(tracked.reason or "cancelled")
            shared.cancelled.strike()
            return


def carry_out(state: RunState) -> None:
    """Carry a run out from where its record is, to its end or until it waits for somebody."""
    with carrying_out(state.repo, state.live.record), _tracked(state):
        with state.live as record:
            record.status, record.pid, record.host = RUNNING, os.getpid(), os.uname().nodename
        # As it is carried out, for people and for other clients.
        save_evaluated(state.repo, state.workflow, state.inputs)
        state.tell(events.RUN_STARTED)
        push_leftovers(state)
        try:
            Jobs(state).run()
        finally:
            _finish(state)


# The end of a run ------------------------------------------------------------------------------


def _finish(state: RunState) -> None:
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
