"""A step that runs another workflow: a run of its own, with its own record."""

from __future__ import annotations

import uuid

from swampstore.runs.errors import WorkflowError
from swampstore.runs.workflow.conditions import FAILED, SUCCEEDED
from swampstore.runs.workflow.definition import WorkflowTask
from swampstore.runs.workflow.files import Workflows
from swampstore.runs.workflow.plan import MOST_NESTED
from swampstore.runs.workflow.record import (
    CANCELLED,
    SUSPENDED,
    WAITING,
    RunRecords,
)
from swampstore.runs.workflow.resume import INTERRUPTED
from swampstore.runs.workflow.run_state import Outcome, StepState


def run_nested(step: StepState) -> Outcome:
    """Start the run of a nested workflow, or go on with the one that was started before.

    Which run it is stands in the record before that run begins, so that it is found again.
    """
    from swampstore.runs.workflow.resume import prepare
    from swampstore.runs.workflow.runner import (
        carry_out,
        nested_state,
        new_record,
        push_leftovers,
    )

    state, record, task = step.run, step.record, step.step.task
    assert isinstance(task, WorkflowTask)
    with state.shared.repos.borrowed() as repo:
        workflow = Workflows(repo).require(str(step.evaluated(repo, task.workflow)))
        check_nesting((*state.ancestors, state.workflow.id), workflow.id, workflow.name)
        inputs = step.evaluated(repo, dict(task.inputs))
        records = RunRecords(repo)
        child = records.of(workflow.id, record.child) if record.child else None
        if child is not None and child.status == SUCCEEDED:
            push_leftovers(nested_state(state, repo, workflow, child, inputs))
            return _outcome(child.status, workflow.name, child.id, None)
        if child is None:
            run_id = record.child or str(uuid.uuid4())
            with state.live:
                record.child = run_id
            parent = {"runId": state.live.record.id, "job": step.job.name, "step": record.name}
            child = new_record(repo, workflow, inputs, state.tags, run_id=run_id, parent=parent)
        else:
            prepare(child, workflow)
        nested = nested_state(state, repo, workflow, child, inputs)
        carry_out(nested)
        state.not_pushed = state.not_pushed or nested.not_pushed
    reason = child.failed_step.error if child.failed_step else None
    return _outcome(child.status, workflow.name, child.id, reason)


def _outcome(status: str, name: str, run_id: str, reason: str | None) -> Outcome:
    output = {"type": "workflow", "workflow": name, "workflowRunId": run_id, "status": status}
    match status:
        case "succeeded":
            return Outcome(SUCCEEDED, output=output)
        case _ if status == SUSPENDED:
            return Outcome(
                WAITING, output=output, prompt=f"the run {run_id} of {name} waits for approval"
            )
        case _ if status == CANCELLED:
            return Outcome(FAILED, "cancelled", INTERRUPTED, output=output)
    told = f"the run {run_id} of {name} failed" + (f": {reason}" if reason else "")
    return Outcome(FAILED, told, output=output)


def check_nesting(ancestors: tuple[str, ...], workflow_id: str, name: str) -> None:
    """Raise WorkflowError for a workflow that is part of itself, or nested too deep."""
    if workflow_id in ancestors:
        raise WorkflowError(
            f"the workflow {name!r} is part of itself", hint="Take the step that starts it out."
        )
    if len(ancestors) > MOST_NESTED:
        raise WorkflowError(
            f"the workflow {name!r} is nested more than {MOST_NESTED} deep",
            hint="Put some of the steps into fewer workflows.",
        )
