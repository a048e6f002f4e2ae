"""The way of one method run, start to end: a session of the model, what it writes, its record.

    run_method(repo, MethodRequest("aws/ec2/i-1", "scan", command=["./scan.sh", "i-1"]))

What was written stays, also if the method fails, and one push carries all of it: artifacts, the
record, the event of the audit. `method_plan` finds out what is to be run, `method_evaluation` what
it gets, and `method_record` makes its record.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swampstore.audit import record
from swampstore.errors import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_NOT_PUSHED,
    SwampstoreError,
)
from swampstore.notices import notice
from swampstore.redaction import Redactor
from swampstore.runs import method_plan, shell
from swampstore.runs.capture import RunLog
from swampstore.runs.context import Calls, MethodContext, RunState
from swampstore.runs.errors import (
    CommandError,
    CommandTimeoutError,
    MethodFailedError,
    RunCancelledError,
)
from swampstore.runs.method_evaluation import Evaluation
from swampstore.runs.method_plan import DELETE, find_target, live_resources
from swampstore.runs.method_record import MethodRecord
from swampstore.runs.method_request import MethodRequest, MethodResult, RunListener, silent
from swampstore.runs.outputs import Output
from swampstore.runs.processes import Interruption
from swampstore.runs.tracker import METHOD, TrackedRun, Tracker
from swampstore.runs.writing import Origin, Writing

if TYPE_CHECKING:
    from swampstore.artifacts.groups import Deferral
    from swampstore.repo import Repo
    from swampstore.repo.session import Session
    from swampstore.runs.method_plan import Target
    from swampstore.runs.reports import Report, WrittenReport

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"


def run_method(
    repo: Repo,
    request: MethodRequest,
    *,
    listener: RunListener = silent,
    cancelled: threading.Event | None = None,
) -> MethodResult:
    """Run a method, and return how it ended: a method that fails is no error here.

    Raises what keeps it from beginning: ModelNotFoundError, InputError, LockTimeoutError. An
    exception that is no Exception, such as KeyboardInterrupt, is raised after the run was recorded.
    """
    return _MethodRun(repo, request, listener, [cancelled] if cancelled else []).run()


def run(
    repo: Repo,
    model: str,
    method: str,
    *,
    inputs: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    check: bool = True,
    listener: RunListener = silent,
    **details: Any,
) -> MethodResult:
    """Run a method of a model, given as `TYPE/ID` or by its name, and return how it ended.

    `details` are further members of `MethodRequest`: command, timeout, rollback_on_failure. Raises
    MethodFailedError if it does not succeed, unless `check` is off, and what `run_method` raises.
    """
    request = MethodRequest(model, method, inputs or {}, tags or {}, **details)
    result = run_method(repo, request, listener=listener)
    if check and result.status != SUCCEEDED:
        error = result.output.error or {}
        raise MethodFailedError(
            f"{result.output.model} {method} {result.status}: {error.get('message', '')}",
            result,
            hint=f"See `swampstore output show {result.output.id}`.",
        )
    return result


def correct(repo: Repo, output: Output) -> None:
    """Tell of a run as its record does, which was changed after the run had told of its end."""
    Tracker(repo).correct(output.id, output.status)
    _tell(repo, output, EXIT_ERROR)


def _tell(repo: Repo, output: Output, exit_code: int) -> None:
    record(
        repo,
        "run",
        command=f"run {output.model} {output.method}",
        model=output.model,
        method=output.method,
        status=output.status,
        exitCode=exit_code,
        outputId=output.id,
    )


class _MethodRun:
    """One run. Its parts are made in the order in which they are needed."""

    def __init__(
        self,
        repo: Repo,
        request: MethodRequest,
        listener: RunListener,
        cancelled: Sequence[threading.Event],
        calls: Calls | None = None,
    ) -> None:
        self._repo = repo
        self._request = request
        self._listener = listener
        self._cancelled = [*cancelled]
        self._target = find_target(repo, request)
        self._model, self._method = self._target.model, self._target.method
        self._redactor = Redactor()
        self._evaluation = Evaluation(repo, request, self._target, self._redactor)
        self._record = MethodRecord(repo, request, self._target, self._redactor, calls)
        self._id = self._record.id
        self._log = RunLog(repo, self._id)
        self._parent = calls
        self._count = calls.count if calls else [0]
        self._group: Deferral | None = None
        self._wanted_reports = self._find_reports() if self._target.definition.reports else []
        self._reports: tuple[WrittenReport, ...] = ()
        self._exit_code = 0
        self._hint: str | None = None
        self._interrupted_by: BaseException | None = None
        self._tracked: TrackedRun | None = None

    # Start to end ----------------------------------------------------------------------------

    def run(self) -> MethodResult:
        """Run it under the lock of its model, and push what it wrote."""
        from swampstore.locks.record import LockLostError

        work: Session | None = None
        output: Output | None = None
        not_pushed: SwampstoreError | None = None
        try:
            with self._repo.session([self._model]) as work:
                output = self._run()
        except LockLostError as error:
            if not self._record.started_at:
                raise
            output = self._say_lost(output, error)
        except SwampstoreError as error:
            if output is None:
                raise
            not_pushed = error
        if self._interrupted_by is not None:
            raise self._interrupted_by
        assert output is not None
        assert work is not None
        return self._result(output, not_pushed or work.not_pushed)

    def _say_lost(self, output: Output | None, error: SwampstoreError) -> Output:
        """Say in the record that somebody took the lock over; that is nobody else's file."""
        self._exit_code = EXIT_ERROR
        failed = output or self._output(FAILED, error)
        saved = self._record.save(failed._replace(status=FAILED, error=self._told(error)))
        correct(self._repo, saved)
        return saved

    def _run(self) -> Output:
        self._record.begin()
        tracked = Tracker(self._repo).running(
            METHOD, run_id=self._id, model=self._model, method=self._method
        )
        with tracked as track:
            self._tracked = track
            self._cancelled.append(track.cancelled)
            self._listener.event("started", run_id=self._id, model=self._model, method=self._method)
            status, error = self._executed()
            output = self._finished(status, error)
            track.finish(output.status)
        self._listener.event("finished", run_id=self._id, status=output.status)
        return output

    def _executed(self) -> tuple[str, BaseException | None]:
        """Do what the method does; return how that ended."""
        try:
            _perform(
                self._context(), self._target, self._request, self._evaluation, self._cancelled
            )
            if self._group:
                self._group.commit()
                self._group = None
        except BaseException as error:  # noqa: BLE001 - the record says what a method raised
            status = self._status_of(error)
            self._exit_code = EXIT_INTERRUPTED if status == CANCELLED else _exit_code_of(error)
            return status, error
        return SUCCEEDED, None

    def _status_of(self, error: BaseException) -> str:
        is_asked = any(one.is_set() for one in self._cancelled)
        if isinstance(error, Exception | SystemExit):
            return CANCELLED if is_asked or isinstance(error, RunCancelledError) else FAILED
        if not (is_asked and isinstance(error, KeyboardInterrupt)):
            self._interrupted_by = error
        return CANCELLED

    def _finished(self, status: str, error: BaseException | None) -> Output:
        """Clean up, report, and leave the record; all of it goes with the one push."""
        if self._group:
            self._roll_back(self._group)
        if status == SUCCEEDED and self._target.kind == DELETE:
            self._mark_deleted()
        was_rolled_back = self._group is not None
        log_file = self._keep_log()
        output = self._output(status, error)._replace(log_file=log_file)
        if self._wanted_reports and status != CANCELLED and not was_rolled_back:
            output = self._reported(output)
        output = self._record.save(output)
        _tell(self._repo, output, self._exit_code)
        if status != CANCELLED and not was_rolled_back:
            self._writing.prune()
        if status == SUCCEEDED and self._repo.config.auto_gc:
            from swampstore.retention import auto_gc_model

            auto_gc_model(self._repo, self._model)
        return output

    def _find_reports(self) -> list[Report]:
        from swampstore.runs import reports

        return reports.reports_for(self._repo, self._target.definition.reports, reports.METHOD)

    def _reported(self, output: Output) -> Output:
        """Run the reports; one that raises makes the run a failed one."""
        from swampstore.runs import reports

        given = self._evaluation.given
        context = reports.ReportContext(
            repo=self._repo,
            scope=reports.METHOD,
            model=self._model,
            name=output.model_name,
            status=output.status,
            owner=self._writing.origin.owner(),
            method=self._method,
            inputs=self._redactor.document(given.inputs),
            arguments=self._redactor.document(given.arguments),
            artifacts=output.artifacts,
            output=output,
        )
        self._reports = reports.run_reports(self._wanted_reports, context, self._redactor)
        told = [one.to_json() for one in self._reports]
        output = output._replace(extra={**output.extra, "reports": told})
        if (reason := reports.failure(self._reports)) is None:
            return output
        self._exit_code = self._exit_code or EXIT_ERROR
        return output._replace(status=FAILED, error=output.error or {"message": reason})

    def _roll_back(self, group: Deferral) -> None:
        try:
            group.rollback()
        except SwampstoreError as error:
            # No reader sees these versions, and the next command that meets them removes them.
            notice("what the run wrote could not be removed yet: %s", error.message)
        self._writing.forget()

    def _keep_log(self) -> str | None:
        try:
            return self._log.to_file(self._model, self._method, self._record.started_at)
        except SwampstoreError as error:
            self._session_check()
            notice("the log of the run could not be kept: %s", error.message)
            return None

    def _session_check(self) -> None:
        """Raise LockLostError if that is why something failed."""
        with self._repo.session([self._model]) as session:
            session.check()

    def _output(self, status: str, error: BaseException | None) -> Output:
        told = self._told(error) if error else None
        return self._record.output(status, self._exit_code, self._writing.written, told)

    def _told(self, error: BaseException) -> dict[str, str]:
        """Return what the record says of an error; why the run was cancelled, if somebody said."""
        reason = None
        if self._tracked and isinstance(error, RunCancelledError):
            reason = self._tracked.reason
        if isinstance(error, SwampstoreError) and error.hint:
            self._hint = self._redactor.text(error.hint)
        return self._record.error(error, reason)

    def _result(self, output: Output, not_pushed: SwampstoreError | None) -> MethodResult:
        exit_code, given = self._exit_code, self._evaluation.given
        if not_pushed is not None and not exit_code:
            exit_code = EXIT_NOT_PUSHED
        return MethodResult(
            output=output,
            status=output.status,
            exit_code=exit_code,
            artifacts=tuple(self._writing.handles),
            reports=self._reports,
            not_pushed=not_pushed,
            hint=self._hint,
            arguments=self._redactor.document(given.arguments),
            global_arguments=self._redactor.document(given.global_arguments),
        )

    # What the method gets ----------------------------------------------------------------------

    @cached_property
    def _writing(self) -> Writing:
        target, request = self._target, self._request
        origin = Origin(
            model=self._model,
            model_name=target.definition.name,
            tags=self._evaluation.tags,
            resources=self._evaluation.resources,
            step=request.step,
            runtime_tags=request.tags,
            overrides=request.overrides,
            inputs=self._evaluation.given.inputs,
        )
        lock = self._parent.lock if self._parent else None
        return Writing(self._repo, origin, self._redactor, lock)

    def _context(self) -> MethodContext:
        evaluation = self._evaluation
        evaluation.evaluate()
        declared = self._target.declared
        if self._request.rollback_on_failure or (declared and declared.rollback_on_failure):
            self._group = self._writing.group = self._repo.artifacts.deferring(prunes=False)
        state = RunState(
            repo=self._repo,
            run_id=self._id,
            model=self._model,
            method=self._method,
            writing=self._writing,
            log=self._log,
            redactor=self._redactor,
            show=self._listener.out,
            cancelled=self._cancelled,
            specs=self._target.specs,
            vaults=lambda: evaluation.vaults,
            resolver=lambda: evaluation.resolver,
            run_nested=self._run_nested,
            timeout=self._request.timeout,
        )
        given = evaluation.given
        global_arguments: Mapping[str, Any] = given.global_arguments
        if self._target.code:
            global_arguments = evaluation.with_secrets(global_arguments)
        return MethodContext(state, self._target.definition, given.inputs, global_arguments)

    def _mark_deleted(self) -> None:
        """Leave a deletion marker for every resource that the model has."""
        for name in live_resources(self._repo, self._target):
            with self._writing.lock:
                self._repo.artifacts.mark_deleted(self._model, name, method=self._method)

    def _run_nested(
        self, model: str, method: str, inputs: Mapping[str, Any], **details: Any
    ) -> MethodResult:
        """Run a method inside of this one: in this session, if it is of the same model."""
        request = MethodRequest(model, method, inputs, **details)
        calls = Calls(
            chain=((self._parent.chain if self._parent else ()) + ((self._model, self._method),)),
            output_id=self._id,
            count=self._count,
        )
        target = find_target(self._repo, request)
        calls.check(target.model, target.method)
        if target.model == self._model:
            calls.lock = self._writing.lock
            run = _MethodRun(self._repo, request, self._listener, self._cancelled, calls)
            with self._writing.lock:
                return run.run()
        with type(self._repo)(self._repo.config, clock=self._repo.clock) as repo:
            return _MethodRun(repo, request, self._listener, self._cancelled, calls).run()


# Doing what a method does ----------------------------------------------------------------------


def _perform(
    context: MethodContext,
    target: Target,
    request: MethodRequest,
    evaluation: Evaluation,
    cancelled: list[threading.Event],
) -> None:
    """Check what only the holder of the lock can check, then do what the method does.

    Raises whatever the method raises, and CommandError for a command that fails.
    """
    method_plan.check_deleted(context.state.repo, target)
    method_plan.check_vaults(target, lambda: evaluation.vaults)
    if request.command is not None:
        shell.run_argv(context, evaluation.command())
    elif target.code is None:
        shell.run_shell(context, evaluation.given.arguments)
    else:
        _call(context, target, request, evaluation, cancelled)


def _call(
    context: MethodContext,
    target: Target,
    request: MethodRequest,
    evaluation: Evaluation,
    cancelled: list[threading.Event],
) -> None:
    """Call the method of a class."""
    from swampstore.runs.method_log import printing_to_log

    assert target.code is not None
    assert target.declared is not None
    arguments = evaluation.with_secrets(evaluation.given.arguments)
    instance = target.code.cls()
    with _deadline(cancelled, request.timeout), printing_to_log(context.state):
        if not request.skip_checks:
            method_plan.run_checks(context, target, instance)
        with _reachable(cancelled):
            getattr(instance, target.declared.attribute)(context, **arguments)


@contextlib.contextmanager
def _reachable(cancelled: Sequence[threading.Event]) -> Iterator[None]:
    """Let an interruption raise KeyboardInterrupt in code that nothing else would reach."""
    interruptions = [one for one in cancelled if isinstance(one, Interruption)]
    for one in interruptions:
        one.raises = True
        if one.is_set():
            raise RunCancelledError("the run was cancelled before it began")
    try:
        yield
    finally:
        for one in interruptions:
            one.raises = False


@contextlib.contextmanager
def _deadline(cancelled: list[threading.Event], timeout: float | None) -> Iterator[None]:
    """Ask a method to end when its time is over; whether it does is up to it."""
    if timeout is None:
        yield
        return
    over = threading.Event()
    timer = threading.Timer(timeout, over.set)
    timer.daemon = True
    cancelled.append(over)
    timer.start()
    try:
        yield
    except Exception as error:
        if over.is_set():
            raise CommandTimeoutError(
                f"the method took longer than {timeout:g} seconds", EXIT_ERROR
            ) from error
        raise
    finally:
        timer.cancel()
        cancelled.remove(over)


def _exit_code_of(error: BaseException) -> int:
    """Return the exit status that an exception of a method stands for; never 0."""
    match error:
        case CommandError():
            return error.exit_code or EXIT_ERROR
        case SystemExit(code=int(code)):
            return code or EXIT_ERROR
    return EXIT_ERROR
