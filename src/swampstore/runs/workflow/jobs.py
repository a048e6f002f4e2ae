"""Jobs and their steps, level by level: which of them run, which are skipped, and what each became.

A step begins when the record says so on disk, and the next one begins when the record says how the
last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from swampstore.errors import SwampstoreError
from swampstore.runs.errors import WorkflowError
from swampstore.runs.workflow import events
from swampstore.runs.workflow.approval import has_expired
from swampstore.runs.workflow.attempts import MethodAttempts
from swampstore.runs.workflow.conditions import ENDED, FAILED, SKIPPED, SUCCEEDED, all_hold
from swampstore.runs.workflow.definition import ApprovalTask, AssertTask, Job, MethodTask, Step
from swampstore.runs.workflow.plan import (
    DEFAULT_CONCURRENCY,
    expanded_name,
    items_of,
    levels,
    limit_of,
    may_go_on_after_failure,
)
from swampstore.runs.workflow.record import RUNNING, WAITING, JobRecord, StepRecord
from swampstore.runs.workflow.resume import GUARDED
from swampstore.runs.workflow.run_state import Outcome, RunState, StepState, error_text

if TYPE_CHECKING:
    from swampstore.repo import Repo

CONDITION = "condition"


class Jobs:
    """The jobs of one run, level by level."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._record = state.live.record
        self._limit = state.workflow.concurrency or DEFAULT_CONCURRENCY

    def run(self) -> None:
        """Run those that have not ended, until all have, or wait for somebody."""
        for level in levels(self._state.workflow.jobs, "job"):
            if self._state.shared.cancelled.is_set():
                return
            _in_parallel([partial(self._job, job) for job in level], self._limit)

    def _job(self, job: Job) -> None:
        record = self._record.job(job.name)
        if record.status in ENDED:
            return
        statuses = {name: [self._record.job(name).status] for name in job.depends_on}
        if not all(status in ENDED for found in statuses.values() for status in found):
            return  # it waits for one that waits for somebody
        if not all_hold(job.depends_on, statuses):
            self._skip(record)
            return
        with self._state.live:
            record.status = RUNNING
            record.started_at = record.started_at or self._state.now()
        self._state.tell(events.JOB_STARTED, job.name)
        _Steps(self._state, job, record).run()
        self._end(record)

    def _skip(self, record: JobRecord) -> None:
        with self._state.live:
            record.status, record.completed_at = SKIPPED, self._state.now()
            for step in record.steps:
                step.status, step.reason = SKIPPED, CONDITION
        self._state.tell(events.JOB_ENDED, record.name, status=SKIPPED)

    def _end(self, record: JobRecord) -> None:
        with self._state.live:
            record.status = _job_status(record, cancelled=self._state.shared.cancelled.is_set())
            if record.status in ENDED:
                record.completed_at = self._state.now()
        if record.status in ENDED:
            self._state.tell(events.JOB_ENDED, record.name, status=record.status)


def _job_status(record: JobRecord, *, cancelled: bool) -> str:
    statuses = {step.status for step in record.steps}
    if any(step.has_failed for step in record.steps):
        return FAILED if WAITING not in statuses else WAITING
    if WAITING in statuses:
        return WAITING
    if cancelled and not statuses <= ENDED:
        return FAILED
    return SUCCEEDED


class _Steps:
    """The steps of one job, level by level."""

    def __init__(self, state: RunState, job: Job, record: JobRecord) -> None:
        self._state = state
        self._job = job
        self._record = record

    def run(self) -> None:
        state = self._state
        for level in levels(self._job.steps, "step"):
            if state.shared.cancelled.is_set():
                return
            has_failed = any(step.has_failed for step in self._record.steps)
            runs: list[Callable[[], None]] = []
            for step in level:
                if self._is_to_run(step, has_failed=has_failed):
                    runs += [
                        partial(_run_step, StepState(state, self._record, step, one))
                        for one in self._expanded(step)
                        if not one.is_over
                    ]
            limit = limit_of(level, self._job, state.workflow, state.shared.most)
            _in_parallel(runs, limit)

    def _is_to_run(self, step: Step, *, has_failed: bool) -> bool:
        """Decide about a step from how those before it ended; skip it if it is to be skipped."""
        records = self._record.of_template(step.name)
        if records and all(one.is_over for one in records):
            return False
        statuses = {
            name: [one.status for one in self._record.of_template(name)] for name in step.depends_on
        }
        if not all(status in ENDED for found in statuses.values() for status in found):
            return False  # something before it waits for somebody, or was never reached
        if not all_hold(step.depends_on, statuses):
            self._skip(records)
            return False
        if not has_failed:
            return True
        reacting = {one.template or one.name for one in self._record.steps if one.is_reaction}
        if not may_go_on_after_failure(step.depends_on, statuses, reacting):
            return False
        with self._state.live:
            for one in records:
                one.is_reaction = True
        return True

    def _skip(self, records: Sequence[StepRecord]) -> None:
        with self._state.live:
            for one in records:
                one.status, one.reason = SKIPPED, CONDITION
        for one in records:
            self._state.tell(events.STEP_ENDED, self._job.name, one.name, SKIPPED, reason=CONDITION)

    def _expanded(self, step: Step) -> list[StepRecord]:
        """Return the records of a step: one, or one for each item of its forEach."""
        if step.for_each is None or step.name in (self._record.expanded or ()):
            return self._record.of_template(step.name)
        (template,) = self._record.of_template(step.name)
        try:
            found = self._expansions(step)
        except SwampstoreError as error:
            with self._state.live:
                template.status, template.error = FAILED, error.message
                template.completed_at = self._state.now()
                template.allowed_failure = step.allow_failure or None
            self._state.tell(
                events.STEP_ENDED, self._job.name, step.name, FAILED, error=error.message
            )
            return []
        for one in found:
            one.is_reaction = template.is_reaction
        with self._state.live:
            place = self._record.steps.index(template)
            self._record.steps[place : place + 1] = found
            self._record.expanded = [*(self._record.expanded or ()), step.name]
        return found

    def _expansions(self, step: Step) -> list[StepRecord]:
        from swampstore.runs.expressions import Scope, evaluate

        assert step.for_each is not None
        where = f"{self._job.name}/{step.name}"
        with self._state.shared.repos.borrowed() as repo:
            scope = Scope(repo, inputs=self._state.inputs)
            items = items_of(evaluate(step.for_each.expression, scope), where)
            names = []
            for item in items:
                values = {step.for_each.item: item.value}
                inner = Scope(repo, inputs=self._state.inputs, self_values=values)
                names.append(expanded_name(step.name, str(evaluate(step.name, inner)), item))
        taken = {one.name for one in self._record.steps if one.name != step.name}
        for name in names:
            if name in taken:
                raise WorkflowError(
                    f"{where}: two steps would be called {name!r}",
                    hint="Let the name of the step say more of the item.",
                )
            taken.add(name)
        return [
            StepRecord(name, template=step.name, item=item.value)
            for name, item in zip(names, items, strict=True)
        ]


def _in_parallel(calls: Sequence[Callable[[], None]], limit: int) -> None:
    """Make calls, at most so many at once, all of them; raise what the first of them raised."""
    if len(calls) <= 1:
        for call in calls:
            call()
        return
    with ThreadPoolExecutor(max_workers=min(limit, len(calls))) as pool:
        futures: list[Future[None]] = [pool.submit(call) for call in calls]
    for future in futures:
        future.result()


# One step --------------------------------------------------------------------------------------
#
# What goes wrong is the outcome of the step. The attempts of a method are in `attempts`, a nested
# workflow in `nesting`.


def _run_step(state: StepState) -> None:
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
