"""The attempts of a step that runs a method: retries, and what attempts that were killed have left.

Each attempt is one session of the model: its lock, what it writes, its output record and the line
about it in the record of the run reach others in one push.

A step may have been killed at any moment. The output record of its attempt is written last, so it
decides: with one, the attempt is over, and is accounted for as if nothing had happened. Without
one, the attempt never ended, and the versions that it wrote are taken back, so that the next one
gets the numbers which it would have had. Both is done under the lock of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swampstore.errors import LockTimeoutError, SwampstoreError
from swampstore.layout import ModelRef
from swampstore.locks.record import LockLostError
from swampstore.repo.querying import cel_text, model_is
from swampstore.runs.method_plan import find_target
from swampstore.runs.method_request import MethodRequest, RunListener
from swampstore.runs.method_run import correct, run_method
from swampstore.runs.outputs import Output, Outputs, WrittenArtifact
from swampstore.runs.workflow import events
from swampstore.runs.workflow.conditions import FAILED, SKIPPED, SUCCEEDED
from swampstore.runs.workflow.definition import MethodTask
from swampstore.runs.workflow.record import CANCELLED, RUNNING, RunRecord, StepRecord
from swampstore.runs.workflow.resume import GUARDED, INTERRUPTED
from swampstore.runs.workflow.run_state import Outcome, RunState, StepState, error_text
from swampstore.runs.writing import WorkflowStep

if TYPE_CHECKING:
    from swampstore.repo import Repo

_OF_THE_STEP = frozenset(
    {"source", "workflow", "workflowId", "workflowRunId", "job", "step", "initiatedBy"}
)


class _StepOutput(RunListener):
    """Passes what a command writes on to the log and the listener of the run."""

    def __init__(self, state: RunState, job: str, step: str) -> None:
        self._state = state
        self._about = state.about(events.STEP_STARTED, job, step)

    def out(self, stream: str, data: bytes) -> None:
        self._state.log.out(self._about, data)
        self._state.shared.listener.out(self._about, stream, data)


class MethodAttempts:
    """Carries out a step that runs a method."""

    def __init__(self, state: StepState, task: MethodTask) -> None:
        self._state = state
        self._task = task
        self._run, self._job = state.run, state.job
        self._step, self._record = state.step, state.record
        self._cancelled = state.cancelled

    def run(self) -> None:
        """Make attempts until one succeeds, or none is left."""
        task = self._task
        with self._run.shared.repos.borrowed() as repo:
            model = self._state.evaluated(repo, task.model)
            ref = address_of(repo, task, model)
            began_before = self._record.model is not None
            if not self._state.begin(model=str(ref)):
                return
            outcome: Outcome | None = None
            if began_before:
                # What is taken back has to leave the remote before its numbers are used again.
                outcome = self._session(repo, ref, lambda: self._adopted(repo, ref))
            # That it began says nothing of its guard, which may not have been asked, or not have
            # answered. An attempt that came to its end does.
            if outcome is None and not self._record.outputs and self._state.is_guarded(repo):
                self._state.end(Outcome(SKIPPED, reason=GUARDED))
                return
            while outcome is None or self._goes_on_after(outcome):
                outcome = self._session(repo, ref, lambda: self._attempt(repo, model))

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
            outcome = Outcome(FAILED, error_text(error), may_retry=True)
            self._account(outcome)
        if not_pushed is not None:
            self._run.not_pushed = not_pushed
            self._state.tell(events.NOT_PUSHED, error=not_pushed.message)
        return outcome

    def _lost(self, repo: Repo, outcome: Outcome | None, error: SwampstoreError) -> Outcome:
        """Let an attempt fail whose lock somebody took over before it could push."""
        outcome = outcome or Outcome(FAILED)
        lost = replace(outcome, status=FAILED, error=error_text(error), may_retry=False)
        if outcome.source is not None:
            failed = {"message": error.message}
            correct(repo, Outputs(repo).save(outcome.source._replace(status=FAILED, error=failed)))
        with self._run.live:
            self._state.note(lost)
        return lost

    def _attempt(self, repo: Repo, model: str) -> Outcome:
        task, state, run = self._task, self._run, self._run.live.record
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
                inputs=self._state.evaluated(repo, dict(task.inputs)),
                tags=state.tags,
                command=self._state.evaluated(repo, list(task.command)) if task.command else None,
                step=step,
                overrides=self._step.overrides,
                last_evaluated=state.shared.last_evaluated,
                skip_checks=state.shared.skip_checks,
                global_arguments=self._state.evaluated(repo, dict(task.global_arguments)),
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
            return Outcome(FAILED, error_text(error))
        return self._outcome_of(result.output)

    def _outcome_of(self, output: Output) -> Outcome:
        artifacts = [_artifact_json(artifact) for artifact in output.artifacts]
        was_cancelled = output.status == CANCELLED
        message = (output.error or {}).get("message")
        return Outcome(
            status=SUCCEEDED if output.status == SUCCEEDED else FAILED,
            error=("cancelled" if was_cancelled else message),
            reason=INTERRUPTED if was_cancelled else None,
            output={
                "type": self._task.type,
                "model": output.model_name or str(output.model),
                "method": self._task.method,
                "outputId": output.id,
            },
            artifacts=artifacts,
            output_id=output.id,
            may_retry=not was_cancelled,
            source=output,
        )

    def _adopted(self, repo: Repo, ref: ModelRef) -> Outcome | None:
        """Account for what earlier attempts did; return the outcome if one of them finished.

        What those that never ended have written is taken back.
        """
        run = self._run.live.record
        attempts = EarlierAttempts(repo, ref, self._task.method, run, self._job.name, self._record)
        if taken := attempts.take_back():
            self._state.tell(events.TAKEN_BACK, versions=taken)
        over = [one for one in attempts.unsettled if is_accountable(one)]
        if not over:
            return None
        for output in over[:-1]:
            self._account(self._outcome_of(output))
        self._state.tell(events.STEP_ADOPTED)
        return self._outcome_of(over[-1])

    def _account(self, outcome: Outcome) -> None:
        """Write an attempt into the record, and the end of the step if this was the last one."""
        record = self._record
        with self._run.live:
            if outcome.output_id:
                record.outputs = [*(record.outputs or ()), outcome.output_id]
            if not outcome.was_cancelled:
                record.attempt = (record.attempt or 0) + 1
            if not self._has_another(outcome):
                self._state.note(outcome)

    def _has_another(self, outcome: Outcome) -> bool:
        """Whether there will be another attempt."""
        return (
            outcome.status == FAILED
            and outcome.may_retry
            and (self._record.attempt or 0) < self._step.retry.attempts
            and not self._cancelled.is_set()
        )

    def _goes_on_after(self, outcome: Outcome) -> bool:
        """Wait before the next attempt; without one, end the step and return False."""
        attempt = self._record.attempt or 0
        if self._record.status == RUNNING and self._has_another(outcome):
            pause = self._step.retry.pause(attempt)
            self._state.tell(
                events.ATTEMPT_FAILED,
                attempt=attempt,
                pause=pause,
                error=outcome.error,
            )
            if not self._cancelled.wait(pause):
                return True
            outcome = Outcome(FAILED, "cancelled", INTERRUPTED, outcome.output)
        self._state.end(outcome)
        return False


def address_of(repo: Repo, task: MethodTask, model: str) -> ModelRef:
    """Return the model that a step means; raise what is wrong with model or method."""
    return find_target(repo, MethodRequest(model, task.method, command=task.command)).model


def _artifact_json(artifact: WrittenArtifact) -> dict[str, Any]:
    """Return what the record says of a version; that it is of this step need not be repeated."""
    tags = {key: value for key, value in artifact.tags.items() if key not in _OF_THE_STEP}
    return {**artifact.to_json(), "tags": tags}


class EarlierAttempts:
    """What earlier attempts of one step have left, as far as the record does not know of it."""

    def __init__(
        self, repo: Repo, model: ModelRef, method: str, run: RunRecord, job: str, step: StepRecord
    ) -> None:
        self._repo = repo
        self._model = model
        self._run, self._job, self._step = run, job, step
        settled = set(step.outputs or ())
        # None of them can have begun before the run did, on the clock of its machine. Other
        # machines may have resumed it, with other clocks. The step may have run another method.
        found = Outputs(repo).all(model=model)
        self.outputs = [output for output in found if self._is_ours(output)]
        self.unsettled = sorted(
            (one for one in self.outputs if one.id not in settled and one.method == method),
            key=lambda output: output.started_at,
        )
        self._lost = settled.difference(output.id for output in self.outputs)

    def _is_ours(self, output: Output) -> bool:
        origin = output.provenance
        if (origin.workflow_run_id, origin.step_name) != (self._run.id, self._step.name):
            return False
        return _job_of(output) in (None, self._job)

    def take_back(self) -> int:
        """Delete the versions of attempts that never ended, or were cancelled; return how many.

        None where an output of the step is gone: nothing tells any more what that attempt wrote.
        Call it under the lock of the model.
        """
        if self._lost:
            return 0
        kept = {
            data_id
            for output in self.outputs
            if is_accountable(output)
            for data_id in _written_by(output)
        }
        candidates: dict[str, list[int]] = {}
        for found in self._written():
            if found.id not in kept:
                candidates.setdefault(found.name, []).append(found.version)
        for name, versions in candidates.items():
            self._repo.store.delete_versions(self._repo.ref(self._model, name), sorted(versions))
        return sum(map(len, candidates.values()))

    def _written(self) -> list[_Written]:
        rows = self._repo.query(
            f"{model_is(self._model)}"
            f" && workflowRunId == {cel_text(self._run.id)} && jobName == {cel_text(self._job)}"
            f" && stepName == {cel_text(self._step.name)} && version > 0"
            f" && ns == {cel_text(self._repo.config.namespace)}"
        )
        return [_Written(row.id, row.name, row.version) for row in rows]


def is_accountable(output: Output) -> bool:
    """Whether an attempt came to its end: it was not cancelled, nor found dead by somebody."""
    from swampstore.runs.tracker import DIED

    if output.status == FAILED:
        return (output.error or {}).get("message") != DIED
    return output.status == SUCCEEDED


def _written_by(output: Output) -> Iterator[str]:
    """Yield the ids of what an attempt wrote, its reports included."""
    yield from (artifact.data_id for artifact in output.artifacts)
    for report in output.extra.get("reports") or ():
        yield from (str(one["dataId"]) for one in report.get("dataArtifacts") or ())


class _Written:
    def __init__(self, data_id: str, name: str, version: int) -> None:
        self.id, self.name, self.version = data_id, name, version


def _job_of(output: Output) -> str | None:
    """Return the job that an output is of; None if another client has written it."""
    named = output.provenance.extra.get("jobName")
    return named if isinstance(named, str) else None
