"""What a run would do with some inputs: levels, steps and expansions. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swampstore.errors import SwampstoreError
from swampstore.runs.inputs import check_inputs
from swampstore.runs.workflow.attempts import address_of
from swampstore.runs.workflow.definition import (
    ApprovalTask,
    AssertTask,
    Job,
    MethodTask,
    Step,
    Workflow,
    WorkflowTask,
)
from swampstore.runs.workflow.files import Workflows
from swampstore.runs.workflow.nesting import check_nesting
from swampstore.runs.workflow.plan import expanded_name, items_of, levels, limit_of
from swampstore.runs.workflow.run_state import most_at_once

if TYPE_CHECKING:
    from swampstore.repo import Repo


def preview(repo: Repo, workflow: Workflow, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a run with these inputs, and what is known to stand in its way.

    Raises InputError if the inputs are not what the workflow asks for.
    """
    given = check_inputs(workflow.inputs, inputs, f"workflow {workflow.name}")
    plan = _Preview(repo, workflow, given)
    jobs = [
        plan.job(job, number)
        for number, level in enumerate(levels(workflow.jobs, "job"), 1)
        for job in level
    ]
    return {
        "workflowId": workflow.id,
        "workflowName": workflow.name,
        "dryRun": True,
        "inputs": given,
        "jobs": jobs,
        "problems": problems(repo, workflow),
    }


class _Preview:
    def __init__(self, repo: Repo, workflow: Workflow, inputs: Mapping[str, Any]) -> None:
        self._repo = repo
        self._workflow = workflow
        self._inputs = inputs

    def job(self, job: Job, number: int) -> dict[str, Any]:
        steps: list[dict[str, Any]] = []
        for at, level in enumerate(levels(job.steps, "step"), 1):
            limit = limit_of(level, job, self._workflow, most_at_once())
            steps += [{**self._step(step), "level": at, "atOnce": limit} for step in level]
        return {
            "jobName": job.name,
            "level": number,
            "dependsOn": {name: str(condition) for name, condition in job.depends_on.items()},
            "steps": steps,
        }

    def _step(self, step: Step) -> dict[str, Any]:
        task = step.task
        members: dict[str, Any] = {
            "stepName": step.name,
            "type": task.type,
            "model": task.model if isinstance(task, MethodTask) else None,
            "method": task.method if isinstance(task, MethodTask) else None,
            "workflow": task.workflow if isinstance(task, WorkflowTask) else None,
            "dependsOn": {name: str(condition) for name, condition in step.depends_on.items()},
            "guard": step.guard,
            "allowFailure": step.allow_failure or None,
            "attempts": step.retry.attempts if step.retry.attempts > 1 else None,
            "forEach": step.for_each.expression if step.for_each else None,
            "expansions": self._expansions(step),
        }
        return {name: value for name, value in members.items() if value is not None}

    def _expansions(self, step: Step) -> list[str] | None:
        """Return the names of the expansions, None if only the run itself can find them out."""
        if step.for_each is None:
            return None
        from swampstore.runs.expressions import Scope, evaluate

        try:
            found = evaluate(step.for_each.expression, Scope(self._repo, inputs=self._inputs))
            names = []
            for item in items_of(found, step.name):
                values = {step.for_each.item: item.value}
                scope = Scope(self._repo, inputs=self._inputs, self_values=values)
                names.append(expanded_name(step.name, str(evaluate(step.name, scope)), item))
        except SwampstoreError:
            return None  # it needs data that steps before it will have written
        return names


def problems(repo: Repo, workflow: Workflow, ancestors: tuple[str, ...] = ()) -> list[str]:
    """Return what a run would fail at, as far as the files show that."""
    found: list[str] = []
    workflows = Workflows(repo)
    for job in workflow.jobs:
        for step in job.steps:
            place = f"{job.name}/{step.name}"
            found += [f"{place}: {problem}" for problem in _wrong_expressions(step)]
            try:
                _check_step(repo, workflows, workflow, step, ancestors)
            except SwampstoreError as error:
                found.append(f"{place}: {error.message}")
    return found


def _wrong_expressions(step: Step) -> list[str]:
    """Return what is wrong with expressions of a step that cannot be parsed, member by member."""
    from swampstore.runs.expressions import check_condition, check_document

    documents: dict[str, Any] = {"name": step.name}
    conditions = {"guard": step.guard}
    if step.for_each is not None:
        documents["forEach.in"] = step.for_each.expression
    match step.task:
        case MethodTask() as task:
            documents["task.modelIdOrName"] = task.model
            documents["task.inputs"] = task.inputs
            documents["task.globalArgs"] = task.global_arguments
            documents["task.command"] = task.command
        case WorkflowTask() as task:
            documents["task.workflowIdOrName"] = task.workflow
            documents["task.inputs"] = task.inputs
        case ApprovalTask() as task:
            documents["task.prompt"] = task.prompt
        case AssertTask() as task:
            conditions["task.expr"] = task.expr
    found: list[str] = []
    for check, members in ((check_document, documents), (check_condition, conditions)):
        for member, value in members.items():
            try:
                if value is not None:
                    check(value, member)
            except SwampstoreError as error:
                found.append(f"{error.message}. {error.hint}" if error.hint else error.message)
    return found


def _check_step(
    repo: Repo, workflows: Workflows, workflow: Workflow, step: Step, ancestors: tuple[str, ...]
) -> None:
    match step.task:
        case MethodTask(model=model) as task if "${{" not in model:
            address_of(repo, task, model)
        case WorkflowTask(workflow=name) if "${{" not in name:
            nested = workflows.require(name)
            way = (*ancestors, workflow.id)
            check_nesting(way, nested.id, nested.name)
            for problem in problems(repo, nested, way):
                raise SwampstoreError(f"{nested.name}: {problem}")
