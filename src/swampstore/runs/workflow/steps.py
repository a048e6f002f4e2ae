"""One step: its guard, its attempts, and what each kind of task does.

A step of a model is one session: its lock, what it writes, its output record and the line about it
in the record of the run reach others in one push.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from swampstore.clock import to_iso
from swampstore.errors import LockTimeoutError, SwampstoreError
from swampstore.layout import ModelRef
from swampstore.locks.record import LockLostError
from swampstore.runs.method_run import MethodRequest, RunListener, WorkflowStep, run_method
from swampstore.runs.outputs import Output, Outputs, WrittenArtifact
from swampstore.runs.processes import Interruption
from swampstore.runs.workflow import events
from swampstore.runs.workflow.approval import has_expired
from swampstore.runs.workflow.conditions import FAILED, SKIPPED, SUCCEEDED
from swampstore.runs.workflow.definition import (
    ApprovalTask,
    AssertTask,
    MethodTask,
    Step,
    Workflow,
    has_expression,
)
from swampstore.runs.workflow.record import (
    CANCELLED,
    RUNNING,
    WAITING,
    JobRecord,
    LiveRecord,
    StepRecord,
)
from swampstore.runs.workflow.resume import GUARDED, INTERRUPTED, Attempts, is_accountable

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.expressions import Scope
    from swampstore.runs.reports import Report

_ARTIFACTS_IN_EVENTS = 20
_OF_THE_STEP = frozenset(
    {"source", "workflow", "workflowId", "workflowRunId", "job", "step", "initiatedBy"}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step, or one attempt of it, ended."""

    status: str
    error: str | None = None
    reason: str | None = None
    output: dict[str, Any] | None = None
    artifacts: list[Any] | None = None
    output_id: str | None = None
    prompt: str | None = None
    assert_result: dict[str, Any] | None = None
    may_retry: bool = False
    # The output record that says so.
    source: Output | None = None

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody ended it."""
        return self.reason == INTERRUPTED


class Repos:
    """Open repositories for steps that run at the same time; each is used by one at a time."""

    def __init__(self, repo: Repo) -> None:
        self._like = repo
        self._free: list[Repo] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrowed(self) -> Iterator[Repo]:
        """Yield a repository that nobody else uses meanwhile."""
        with self._lock:
            repo = self._free.pop() if self._free else None
        if repo is None:
            repo = type(self._like)(self._like.config, clock=self._like.clock)
        try:
            yield repo
        except BaseException:
            repo.close()
            raise
        with self._lock:
            self._free.append(repo)

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            free, self._free = self._free, []
        for repo in free:
            repo.close()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What all steps of a run, and of the runs nested in it, share."""

    repos: Repos
    listener: events.WorkflowListener
    cancelled: Interruption
    # How many steps may run at once in all, and the places for them.
    most: int | None
    places: threading.Semaphore
    skip_checks: bool = False
    last_evaluated: bool = False
    # Why it was cancelled, if somebody said it.
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RunState:
    """One run that is going on: its record, what it was given, and whom it tells."""

    repo: Repo
    workflow: Workflow
    live: LiveRecord
    inputs: Mapping[str, Any]
    shared: Circumstances
    log: events.RunLog
    tags: Mapping[str, str] = field(default_factory=dict)
    ancestors: tuple[str, ...] = ()
    reports: Sequence[Report] = ()
    not_pushed: SwampstoreError | None = None

    def tell(self, kind: str, job: str = "", step: str = "", status: str = "", **more: Any) -> None:
        """Tell the listener, and the log, that something happened."""
        event = self.about(kind, job, step, status, **more)
        self.log.end_of(event)
        self.log.event(event)
        self.shared.listener.event(event)

    def about(
        self, kind: str, job: str = "", step: str = "", status: str = "", **more: Any
    ) -> events.Event:
        """Return an event of this run, now."""
        details = {key: value for key, value in more.items() if value is not None}
        record = self.live.record
        return events.Event(
            kind, self.now(), record.id, record.workflow_name, job, step, status, details
        )

    def now(self) -> str:
        """Return the time as files write it."""
        return to_iso(self.repo.clock())


class _StepOutput(RunListener):
    """Passes what a command writes on to the log and the listener of the run."""

    def __init__(self, state: RunState, job: str, step: str) -> None:
        self._state = state
        self._about = state.about(events.STEP_STARTED, job, step)

    def out(self, stream: str, data: bytes) -> None:
        self._state.log.out(self._about, data)
        self._state.shared.listener.out(self._about, stream, data)


class StepRun:
    """Carries one step out, or one expansion of it."""

    def __init__(self, state: RunState, job: JobRecord, step: Step, record: StepRecord) -> None:
        self._state = state
        self._job = job
        self._step = step
        self._record = record
        self._cancelled = state.shared.cancelled

    def run(self) -> None:
        """Carry it out; what goes wrong is its outcome."""
        task = self._step.task
        try:
            if isinstance(task, MethodTask):
                with self._place():
                    self._run_method(task)
            else:
                self._run_other()
        except SwampstoreError as error:
            self._end(Outcome(FAILED, _told(error)))
        except Exception as error:
            self._end(Outcome(FAILED, f"{type(error).__name__}: {error}"))
            raise

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Wait until there is room for one more step."""
        while not self._state.shared.places.acquire(timeout=0.2):
            if self._cancelled.is_set():
                break
        else:
            try:
                yield
            finally:
                self._state.shared.places.release()
            return
        yield

    # The record ----------------------------------------------------------------------------

    def _begin(self, **members: Any) -> bool:
        """Note that it runs; False if somebody has ended the run."""
        if self._cancelled.is_set():
            return False
        with self._state.live:
            record = self._record
            record.status = RUNNING
            record.started_at = record.started_at or self._state.now()
            record.error = record.reason = None
            for name, value in members.items():
                setattr(record, name, value)
        self._state.tell(events.STEP_STARTED, self._job.name, self._record.name)
        return True

    def _end(self, outcome: Outcome) -> None:
        """Note how it ended, and tell."""
        with self._state.live:
            self._note(outcome)
        name = self._record.name
        if outcome.status == WAITING:
            self._state.tell(
                events.STEP_WAITS, self._job.name, name, WAITING, prompt=outcome.prompt
            )
            return
        self._state.tell(
            events.STEP_ENDED,
            self._job.name,
            name,
            outcome.status,
            error=outcome.error,
            reason=outcome.reason if outcome.status == SKIPPED else None,
            allowedFailure=self._record.allowed_failure,
            artifacts=_artifact_names(outcome.artifacts),
        )

    def _note(self, outcome: Outcome) -> None:
        record = self._record
        record.status = outcome.status
        record.error, record.reason = outcome.error, outcome.reason
        record.output = outcome.output or record.output
        record.data_artifacts = outcome.artifacts or None
        record.assert_result = outcome.assert_result
        record.approval_prompt = outcome.prompt or record.approval_prompt
        if outcome.status == WAITING:
            return
        record.completed_at = self._state.now()
        allowed = outcome.status == FAILED and self._step.allow_failure
        record.allowed_failure = True if allowed and not outcome.was_cancelled else None

    # Expressions ---------------------------------------------------------------------------

    def _scope(self, repo: Repo) -> Scope:
        from swampstore.runs.expressions import Scope

        return Scope(repo, inputs=self._state.inputs, self_values=self._self_values())

    def _self_values(self) -> dict[str, Any]:
        record = self._record
        values: dict[str, Any] = {
            "step": record.name,
            "job": self._job.name,
            "workflow": self._state.workflow.name,
            "runId": self._state.live.record.id,
            "attempt": (record.attempt or 0) + 1,
        }
        if self._step.for_each is not None:
            values[self._step.for_each.item] = record.item
        return values

    def _evaluated(self, repo: Repo, value: Any) -> Any:
        if not _has_expressions(value):
            return value
        from swampstore.runs.expressions import evaluate

        return evaluate(value, self._scope(repo))

    def _is_true(self, repo: Repo, expression: str) -> bool:
        from swampstore.runs.expressions import is_true

        return is_true(expression, self._scope(repo))

    def _is_guarded(self, repo: Repo) -> bool:
        """Whether the guard keeps the step from running."""
        return self._step.guard is not None and self._is_true(repo, self._step.guard)

    # Methods -------------------------------------------------------------------------------

    def _run_method(self, task: MethodTask) -> None:
        with self._state.shared.repos.borrowed() as repo:
            model = self._evaluated(repo, task.model)
            ref = address_of(repo, task, model)
            began_before = self._record.model is not None
            if not self._begin(model=str(ref)):
                return
            if not began_before and self._is_guarded(repo):
                self._end(Outcome(SKIPPED, reason=GUARDED))
                return
            outcome: Outcome | None = None
            if began_before:
                # What is taken back has to leave the remote before its numbers are used again.
                outcome = self._session(repo, ref, lambda: self._adopted(repo, task, ref))
            while outcome is None or self._goes_on_after(outcome):
                outcome = self._session(repo, ref, lambda: self._attempt(repo, task, model))

    def _session(
        self, repo: Repo, ref: ModelRef, attempt: Callable[[], Outcome | None]
    ) -> Outcome | None:
        """Make one attempt under the lock of the model; what it did is pushed with the record."""
        not_pushed: SwampstoreError | None = None
        outcome: Outcome | None = None
        try:
            with ExitStack() as stack:
                work = stack.enter_context(repo.session([ref]))
                outcome = attempt()
                if outcome is not None:
                    self._account(outcome)
                try:
                    stack.close()
                except LockLostError as error:
                    outcome = self._lost(repo, outcome, error)
                except SwampstoreError as error:
                    not_pushed = error
            not_pushed = not_pushed or work.not_pushed
        except LockTimeoutError as error:
            outcome = Outcome(FAILED, _told(error), may_retry=True)
            self._account(outcome)
        if not_pushed is not None:
            self._state.not_pushed = not_pushed
            self._state.tell(
                events.NOT_PUSHED, self._job.name, self._record.name, error=not_pushed.message
            )
        return outcome

    def _lost(self, repo: Repo, outcome: Outcome | None, error: SwampstoreError) -> Outcome:
        """Let an attempt fail whose lock somebody took over before it could push."""
        outcome = outcome or Outcome(FAILED)
        lost = replace(outcome, status=FAILED, error=_told(error), may_retry=False)
        if outcome.source is not None:
            failed = {"message": error.message}
            Outputs(repo).save(replace(outcome.source, status=FAILED, error=failed))
        with self._state.live:
            self._note(lost)
        return lost

    def _attempt(self, repo: Repo, task: MethodTask, model: str) -> Outcome:
        state, run = self._state, self._state.live.record
        step = WorkflowStep(
            run.workflow_id,
            run.id,
            run.workflow_name,
            self._job.name,
            self._record.name,
            tags=state.workflow.tags,
        )
        try:
            request = MethodRequest(
                model=model,
                method=task.method,
                inputs=self._evaluated(repo, dict(task.inputs)),
                tags=state.tags,
                command=self._evaluated(repo, list(task.command)) if task.command else None,
                step=step,
                overrides=self._step.overrides,
                last_evaluated=state.shared.last_evaluated,
                skip_checks=state.shared.skip_checks,
                global_arguments=self._evaluated(repo, dict(task.global_arguments)),
                timeout=self._step.timeout,
            )
            result = run_method(
                repo,
                request,
                listener=_StepOutput(state, self._job.name, self._record.name),
                cancelled=self._cancelled,
            )
        except LockTimeoutError:
            raise
        except SwampstoreError as error:
            return Outcome(FAILED, _told(error))
        return self._outcome_of(task, result.output)

    def _outcome_of(self, task: MethodTask, output: Output) -> Outcome:
        artifacts = [_artifact_json(artifact) for artifact in output.artifacts]
        was_cancelled = output.status == CANCELLED
        message = (output.error or {}).get("message")
        return Outcome(
            status=SUCCEEDED if output.status == SUCCEEDED else FAILED,
            error=("cancelled" if was_cancelled else message),
            reason=INTERRUPTED if was_cancelled else None,
            output={
                "type": task.type,
                "model": output.model_name or str(output.model),
                "method": task.method,
                "outputId": output.id,
            },
            artifacts=artifacts,
            output_id=output.id,
            may_retry=not was_cancelled,
            source=output,
        )

    def _adopted(self, repo: Repo, task: MethodTask, ref: ModelRef) -> Outcome | None:
        """Account for what earlier attempts did; return the outcome if one of them finished.

        What those that never ended have written is taken back.
        """
        run = self._state.live.record
        attempts = Attempts(repo, ref, task.method, run, self._job.name, self._record)
        name = self._record.name
        if taken := attempts.take_back():
            self._state.tell(events.TAKEN_BACK, self._job.name, name, versions=taken)
        over = [one for one in attempts.unsettled if is_accountable(one)]
        if not over:
            return None
        for output in over[:-1]:
            self._account(self._outcome_of(task, output))
        self._state.tell(events.STEP_ADOPTED, self._job.name, name)
        return self._outcome_of(task, over[-1])

    def _account(self, outcome: Outcome) -> None:
        """Write an attempt into the record, and the end of the step if this was the last one."""
        record = self._record
        with self._state.live:
            if outcome.output_id:
                record.outputs = [*(record.outputs or ()), outcome.output_id]
            if not outcome.was_cancelled:
                record.attempt = (record.attempt or 0) + 1
            if not self._has_another(outcome):
                self._note(outcome)

    def _has_another(self, outcome: Outcome) -> bool:
        """Whether there will be another attempt."""
        return (
            outcome.status == FAILED
            and outcome.may_retry
            and (self._record.attempt or 0) < self._step.retry.attempts
            and not self._cancelled.is_set()
        )

    def _goes_on_after(self, outcome: Outcome) -> bool:
        """Wait before the next attempt; False if there is none, which is told."""
        attempt = self._record.attempt or 0
        if self._record.status == RUNNING and self._has_another(outcome):
            pause = self._step.retry.pause(attempt)
            self._state.tell(
                events.ATTEMPT_FAILED,
                self._job.name,
                self._record.name,
                attempt=attempt,
                pause=pause,
                error=outcome.error,
            )
            if not self._cancelled.wait(pause):
                return True
            outcome = Outcome(FAILED, "cancelled", INTERRUPTED, outcome.output)
        self._end(outcome)
        return False

    # Other tasks ---------------------------------------------------------------------------

    def _run_other(self) -> None:
        decided = self._record.approval_decision is not None or self._record.child is not None
        if not self._begin():
            return
        with self._state.shared.repos.borrowed() as repo:
            if not decided and self._is_guarded(repo):
                self._end(Outcome(SKIPPED, reason=GUARDED))
                return
            match self._step.task:
                case AssertTask() as task:
                    self._end(self._assertion(repo, task))
                    return
                case ApprovalTask() as task:
                    self._end(self._approval(repo, task))
                    return
        from swampstore.runs.workflow.nesting import run_nested

        self._end(run_nested(self._state, self._job, self._step, self._record, self._evaluated))

    def _assertion(self, repo: Repo, task: AssertTask) -> Outcome:
        result: dict[str, Any] = {
            "passed": False,
            "expr": task.expr,
            "message": task.message,
            "severity": task.severity,
        }
        try:
            result["passed"] = self._is_true(repo, task.expr)
        except SwampstoreError as error:
            result["error"] = error.message
        if result["passed"]:
            return Outcome(SUCCEEDED, assert_result=result)
        wrong = result.get("error")
        told = f"{task.message}: {wrong}" if wrong else task.message
        return Outcome(FAILED, told, assert_result=result)

    def _approval(self, repo: Repo, task: ApprovalTask) -> Outcome:
        prompt = str(self._evaluated(repo, task.prompt))
        decision = self._record.approval_decision
        if decision is None:
            if has_expired(self._record, task.timeout, self._state.now()):
                return Outcome(FAILED, "nobody has approved it in time", prompt=prompt)
            return Outcome(WAITING, prompt=prompt)
        if decision.get("approved") is True:
            return Outcome(SUCCEEDED, prompt=prompt)
        by, reason = decision.get("decidedBy", "somebody"), decision.get("reason")
        return Outcome(
            FAILED, f"rejected by {by}" + (f": {reason}" if reason else ""), prompt=prompt
        )


def address_of(repo: Repo, task: MethodTask, model: str) -> ModelRef:
    """Return the model that a step means; raise what is wrong with model or method."""
    from swampstore.runs.method_plan import find_target

    return find_target(repo, MethodRequest(model, task.method, command=task.command)).model


def _has_expressions(value: Any) -> bool:
    match value:
        case str():
            return has_expression(value)
        case Mapping():
            return any(map(_has_expressions, value.values()))
        case list() | tuple():
            return any(map(_has_expressions, value))
    return False


def _told(error: SwampstoreError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _artifact_json(artifact: WrittenArtifact) -> dict[str, Any]:
    """Return what the record says of a version; that it is of this step need not be repeated."""
    tags = {key: value for key, value in artifact.tags.items() if key not in _OF_THE_STEP}
    return {**artifact.to_json(), "tags": tags}


def _artifact_names(artifacts: list[Any] | None) -> list[str] | None:
    names = [f"{one['name']} {one['version']}" for one in artifacts or ()]
    return names[:_ARTIFACTS_IN_EVENTS] or None


def most_at_once(environ: Mapping[str, str] | None = None) -> int | None:
    """Return how many steps the environment lets run at once, None if it says nothing."""
    text = (os.environ if environ is None else environ).get("SWAMP_MAX_CONCURRENT_STEPS", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) else None
