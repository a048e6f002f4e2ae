"""One step: a method, another workflow, an assertion or an approval.

What goes wrong is the outcome of the step. The attempts of a method are in
`attempts`, a nested workflow in `nesting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from swampstore.errors import SwampstoreError
from swampstore.runs.workflow.approval import has_expired
from swampstore.runs.workflow.attempts import MethodAttempts
from swampstore.runs.workflow.conditions import FAILED, SKIPPED, SUCCEEDED
from swampstore.runs.workflow.definition import ApprovalTask, AssertTask, MethodTask
from swampstore.runs.workflow.record import WAITING
from swampstore.runs.workflow.resume import GUARDED
from swampstore.runs.workflow.run_state import Outcome, StepState, error_text

if TYPE_CHECKING:
    from swampstore.repo import Repo


def run_step(state: StepState) -> None:
    """Carry a step out, and write down how it ended."""
    task = state.step.task
    try:
        if isinstance(task, MethodTask):
            with _place(state):
                MethodAttempts(state, task).run()
        else:
            _run_other(state)
    except SwampstoreError as error:
        state.end(Outcome(FAILED, error_text(error)))
    except Exception as error:
        state.end(Outcome(FAILED, f"{type(error).__name__}: {error}"))
        raise


@contextmanager
def _place(state: StepState) -> Iterator[None]:
    """Wait until there is room for one more step."""
    places = state.run.shared.places
    while not places.acquire(timeout=0.2):
        if state.cancelled.is_set():
            break
    else:
        try:
            yield
        finally:
            places.release()
        return
    yield


def _run_other(state: StepState) -> None:
    """Carry out a step that runs no method, unless its guard or somebody keeps it from that."""
    decided = state.record.approval_decision is not None or state.record.child is not None
    if not state.begin():
        return
    with state.run.shared.repos.borrowed() as repo:
        if not decided and state.is_guarded(repo):
            state.end(Outcome(SKIPPED, reason=GUARDED))
            return
        match state.step.task:
            case AssertTask() as task:
                state.end(_assertion(state, repo, task))
                return
            case ApprovalTask() as task:
                state.end(_approval(state, repo, task))
                return
    from swampstore.runs.workflow.nesting import run_nested

    state.end(run_nested(state))


def _assertion(state: StepState, repo: Repo, task: AssertTask) -> Outcome:
    result: dict[str, Any] = {
        "passed": False,
        "expr": task.expr,
        "message": task.message,
        "severity": task.severity,
    }
    try:
        result["passed"] = state.is_true(repo, task.expr)
    except SwampstoreError as error:
        result["error"] = error.message
    if result["passed"]:
        return Outcome(SUCCEEDED, assert_result=result)
    wrong = result.get("error")
    told = f"{task.message}: {wrong}" if wrong else task.message
    return Outcome(FAILED, told, assert_result=result)


def _approval(state: StepState, repo: Repo, task: ApprovalTask) -> Outcome:
    prompt = str(state.evaluated(repo, task.prompt))
    decision = state.record.approval_decision
    if decision is None:
        if has_expired(state.record, task.timeout, state.run.now()):
            return Outcome(FAILED, "nobody has approved it in time", prompt=prompt)
        return Outcome(WAITING, prompt=prompt)
    if decision.get("approved") is True:
        return Outcome(SUCCEEDED, prompt=prompt)
    by, reason = decision.get("decidedBy", "somebody"), decision.get("reason")
    return Outcome(FAILED, f"rejected by {by}" + (f": {reason}" if reason else ""), prompt=prompt)
