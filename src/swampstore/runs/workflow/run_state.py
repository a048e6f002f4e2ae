"""A run that is going on: what its steps share, its state, and the state of each step.

Here a step's outcome becomes what the record says of it, and what listeners hear.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swampstore.clock import to_iso
from swampstore.errors import SwampstoreError
from swampstore.formats import whole_number
from swampstore.runs.outputs import Output
from swampstore.runs.processes import Interruption
from swampstore.runs.workflow import events
from swampstore.runs.workflow.conditions import FAILED, SKIPPED
from swampstore.runs.workflow.definition import Step, Workflow, has_expression
from swampstore.runs.workflow.record import RUNNING, WAITING, JobRecord, LiveRecord, StepRecord
from swampstore.runs.workflow.resume import INTERRUPTED

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.runs.expressions import Scope
    from swampstore.runs.reports import Report

_ARTIFACTS_IN_EVENTS = 20


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
    """One run that is going on: its record, what it was given, its log and its listener."""

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


class StepState:
    """One step that is going on, or one expansion of it: its record, and what it may evaluate."""

    def __init__(self, run: RunState, job: JobRecord, step: Step, record: StepRecord) -> None:
        self.run = run
        self.job = job
        self.step = step
        self.record = record
        self.cancelled = run.shared.cancelled

    def tell(self, kind: str, status: str = "", **more: Any) -> None:
        """Tell that something happened in this step."""
        self.run.tell(kind, self.job.name, self.record.name, status, **more)

    def begin(self, **members: Any) -> bool:
        """Note that it runs; False if somebody has ended the run."""
        if self.cancelled.is_set():
            return False
        with self.run.live:
            record = self.record
            record.status = RUNNING
            record.started_at = record.started_at or self.run.now()
            record.error = record.reason = None
            for name, value in members.items():
                setattr(record, name, value)
        self.tell(events.STEP_STARTED)
        return True

    def end(self, outcome: Outcome) -> None:
        """Write down how it ended, and tell listeners."""
        with self.run.live:
            self.note(outcome)
        if outcome.status == WAITING:
            self.tell(events.STEP_WAITS, WAITING, prompt=outcome.prompt)
            return
        self.tell(
            events.STEP_ENDED,
            outcome.status,
            error=outcome.error,
            reason=outcome.reason if outcome.status == SKIPPED else None,
            allowedFailure=self.record.allowed_failure,
            artifacts=_artifact_names(outcome.artifacts),
        )

    def note(self, outcome: Outcome) -> None:
        """Write an outcome into the record, which the caller has opened for changes."""
        record = self.record
        record.status = outcome.status
        record.error, record.reason = outcome.error, outcome.reason
        record.output = outcome.output or record.output
        record.data_artifacts = outcome.artifacts or None
        record.assert_result = outcome.assert_result
        record.approval_prompt = outcome.prompt or record.approval_prompt
        if outcome.status == WAITING:
            return
        record.completed_at = self.run.now()
        allowed = outcome.status == FAILED and self.step.allow_failure
        record.allowed_failure = True if allowed and not outcome.was_cancelled else None

    def _scope(self, repo: Repo) -> Scope:
        from swampstore.runs.expressions import Scope

        return Scope(repo, inputs=self.run.inputs, self_values=self._self_values())

    def _self_values(self) -> dict[str, Any]:
        record = self.record
        values: dict[str, Any] = {
            "step": record.name,
            "job": self.job.name,
            "workflow": self.run.workflow.name,
            "runId": self.run.live.record.id,
            "attempt": (record.attempt or 0) + 1,
        }
        if self.step.for_each is not None:
            values[self.step.for_each.item] = record.item
        return values

    def evaluated(self, repo: Repo, value: Any) -> Any:
        """Return a document with its expressions evaluated."""
        if not _has_expressions(value):
            return value
        from swampstore.runs.expressions import evaluate

        return evaluate(value, self._scope(repo))

    def is_true(self, repo: Repo, expression: str) -> bool:
        """Whether an expression is true now."""
        from swampstore.runs.expressions import is_true

        return is_true(expression, self._scope(repo))

    def is_guarded(self, repo: Repo) -> bool:
        """Whether the guard keeps the step from running."""
        return self.step.guard is not None and self.is_true(repo, self.step.guard)


def error_text(error: SwampstoreError) -> str:
    """Return what the record says of an error: what is wrong, and what to do about it."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _has_expressions(value: Any) -> bool:
    match value:
        case str():
            return has_expression(value)
        case Mapping():
            return any(map(_has_expressions, value.values()))
        case list() | tuple():
            return any(map(_has_expressions, value))
    return False


def _artifact_names(artifacts: list[Any] | None) -> list[str] | None:
    names = [f"{one['name']} {one['version']}" for one in artifacts or ()]
    return names[:_ARTIFACTS_IN_EVENTS] or None


def most_at_once(environ: Mapping[str, str] | None = None) -> int | None:
    """Return how many steps the environment lets run at once, None if it says nothing."""
    text = (os.environ if environ is None else environ).get("SWAMP_MAX_CONCURRENT_STEPS", "")
    return whole_number(text) or None
