"""Jobs and their steps, level by level: which of them run, which are skipped, and what each became.

A step begins when the record says so on disk, and the next one begins when the record says how the
last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from swampstore.errors import SwampstoreError
from swampstore.runs.errors import WorkflowError
from swampstore.runs.workflow import events
from swampstore.runs.workflow.conditions import ENDED, FAILED, SKIPPED, SUCCEEDED, all_hold
from swampstore.runs.workflow.definition import Job, Step
from swampstore.runs.workflow.plan import (
    DEFAULT_CONCURRENCY,
    expanded_name,
    items_of,
    levels,
    limit_of,
    may_go_on_after_failure,
)
from swampstore.runs.workflow.record import RUNNING, WAITING, JobRecord, StepRecord
from swampstore.runs.workflow.run_state import RunState, StepState
from swampstore.runs.workflow.steps import run_step

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
                        partial(run_step, StepState(state, self._record, step, one))
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
