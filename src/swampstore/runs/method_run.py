"""The way of one method run, start to end: a session of the model, what it writes, its record.

    run_method(repo, MethodRequest("aws/ec2/i-1", "scan", command=["./scan.sh", "i-1"]))

What was written stays, also if the method fails, and one push carries all of it: artifacts, the
record, the event of the audit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swampstore.audit import record
from swampstore.clock import to_iso
from swampstore.errors import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_NOT_PUSHED,
    SwampstoreError,
)
from swampstore.layout import ModelRef
from swampstore.notices import notice
from swampstore.redaction import Redactor
from swampstore.repo.definition_files import AUTO_DEFINITIONS
from swampstore.runs import method_plan, shell
from swampstore.runs.capture import RunLog
from swampstore.runs.context import Calls, MethodContext, RunState, told
from swampstore.runs.definitions import Definitions
from swampstore.runs.errors import (
    CommandError,
    CommandTimeoutError,
    MethodFailedError,
    RunCancelledError,
)
from swampstore.runs.git import git_commit
from swampstore.runs.method_plan import (
    DELETE,
    Given,
    check_arguments,
    find_target,
    given_by,
    holds_expression,
)
from swampstore.runs.outputs import Output, Outputs, Provenance
from swampstore.runs.processes import Interruption
from swampstore.runs.tracker import METHOD, TrackedRun, Tracker
from swampstore.runs.writing import Handle, Origin, WorkflowStep, Writing

if TYPE_CHECKING:
    from swampstore.artifacts.groups import Deferral
    from swampstore.repo import Repo
    from swampstore.repo.session import Session
    from swampstore.runs.definitions import Definition
    from swampstore.runs.expressions import Scope
    from swampstore.runs.models import Method, ModelType
    from swampstore.runs.reports import Report, WrittenReport
    from swampstore.vaults import Vaults
    from swampstore.vaults.references import Resolver

__all__ = [
    "MethodRequest",
    "MethodResult",
    "RunListener",
    "WorkflowStep",
    "run",
    "run_method",
    "silent",
]

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"


class RunListener:
    """Hears what a run does. This one does nothing with it."""

    def out(self, stream: str, data: bytes) -> None:
        """Hear what comes from `stdout` or `stderr`, without secrets."""

    def event(self, kind: str, **details: Any) -> None:
        """Hear that something happened."""


silent = RunListener()


@dataclass(frozen=True, slots=True)
class MethodRequest:
    """What is to be run. `model` is `TYPE/ID`, the name of a definition or its id.

    With a `command`, that is the method. `overrides` are the `dataOutputOverrides` of a step.
    """

    model: str
    method: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] | None = None
    step: WorkflowStep | None = None
    overrides: Sequence[Mapping[str, Any]] = ()
    last_evaluated: bool = False
    skip_checks: bool = False
    rollback_on_failure: bool = False
    global_arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class MethodResult:
    """How a run ended. `not_pushed` says why what it wrote is here and not on the remote."""

    output: Output
    status: str
    exit_code: int
    artifacts: tuple[Handle, ...] = ()
    reports: tuple[Any, ...] = ()
    not_pushed: SwampstoreError | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    global_arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `run`."""
        output = self.output
        members: dict[str, Any] = {
            "modelId": output.model.id,
            "modelName": output.model_name,
            "modelType": output.model.type,
            "methodName": output.method,
            "status": self.status,
            "exitCode": self.exit_code,
            "duration": output.duration_ms,
            "outputId": output.id,
            "logFile": output.log_file,
            "error": output.error.get("message") if output.error else None,
            "dataArtifacts": [_artifact_json(output.model, one) for one in self.artifacts],
            "reports": [one.to_json() for one in self.reports] or None,
            "globalArguments": dict(self.global_arguments),
            "methodArguments": dict(self.arguments),
            "initiatedBy": output.provenance.initiated_by or None,
        }
        return {key: value for key, value in members.items() if value is not None}


def _artifact_json(model: ModelRef, handle: Handle) -> dict[str, Any]:
    members = {
        "id": handle.data_id,
        "name": handle.name,
        "version": handle.version,
        "path": f"{model.rel}/{handle.name}/{handle.version}/raw",
        "attributes": handle.attributes,
    }
    return {key: value for key, value in members.items() if value is not None}


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
        self._id = str(uuid.uuid4())
        self._target = find_target(repo, request)
        self._model, self._method = self._target.model, self._target.method
        self._given = given_by(self._target, request)
        if not self._given.has_expressions:
            self._given = check_arguments(self._target, self._given)
        self._redactor = Redactor()
        self._log = RunLog(repo, self._id)
        self._parent = calls
        self._count = calls.count if calls else [0]
        self._group: Deferral | None = None
        definition = self._target.definition
        self._tags, self._resources = definition.tags, definition.resources
        self._wanted_reports = self._find_reports() if definition.reports else []
        self._reports: tuple[WrittenReport, ...] = ()
        self._exit_code = 0
        self._started_at, self._start = "", 0.0
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
            if not self._started_at:
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
        return self._save(replace(failed, status=FAILED, error=self._told(error)))

    def _run(self) -> Output:
        self._started_at, self._start = to_iso(self._repo.clock()), time.monotonic()
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
            self._perform(self._context())
            if self._group:
                self._group.commit()
                self._group = None
        except BaseException as error:  # noqa: BLE001 - whatever a method raises, its record tells
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
        output = replace(self._output(status, error), log_file=log_file)
        if self._wanted_reports and status != CANCELLED and not was_rolled_back:
            output = self._reported(output)
        output = self._save(output)
        record(
            self._repo,
            "run",
            command=f"run {self._model} {self._method}",
            model=self._model,
            method=self._method,
            status=output.status,
            exitCode=self._exit_code,
            outputId=self._id,
        )
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

        context = reports.ReportContext(
            repo=self._repo,
            scope=reports.METHOD,
            model=self._model,
            name=output.model_name,
            status=output.status,
            owner=self._writing.origin.owner(),
            method=self._method,
            inputs=self._redactor.document(self._given.inputs),
            arguments=self._redactor.document(self._given.arguments),
            artifacts=output.artifacts,
            output=output,
        )
        self._reports = reports.run_reports(self._wanted_reports, context, self._redactor)
        told = [one.to_json() for one in self._reports]
        output = replace(output, extra={**output.extra, "reports": told})
        if (reason := reports.failure(self._reports)) is None:
            return output
        self._exit_code = self._exit_code or EXIT_ERROR
        return replace(output, status=FAILED, error=output.error or {"message": reason})

    def _roll_back(self, group: Deferral) -> None:
        try:
            group.rollback()
        except SwampstoreError as error:
            # Nobody sees them, and whoever meets them removes them.
            notice("what the run wrote could not be removed yet: %s", error.message)
        self._writing.forget()

    def _keep_log(self) -> str | None:
        try:
            return self._log.to_file(self._model, self._method, self._started_at)
        except SwampstoreError as error:
            self._session_check()
            notice("the log of the run could not be kept: %s", error.message)
            return None

    def _session_check(self) -> None:
        """Raise LockLostError if that is why something failed."""
        with self._repo.session([self._model]) as session:
            session.check()

    def _save(self, output: Output) -> Output:
        if self._redactor.is_empty:
            return Outputs(self._repo).save(output)
        return Outputs(self._repo).save(redacted(output, self._redactor))

    def _output(self, status: str, error: BaseException | None) -> Output:
        request, definition = self._request, self._target.definition
        extra: dict[str, Any] = {
            "command": [*map(shell.readable, request.command)] if request.command else None,
            "inputs": dict(request.inputs) or None,
            "exitCode": self._exit_code if request.command is not None else None,
            "host": os.uname().nodename,
            "gitCommit": git_commit(self._repo.config.repo_dir),
        }
        return Output(
            id=self._id,
            model=self._model,
            model_name=definition.name,
            method=self._method,
            status=status,
            started_at=self._started_at,
            completed_at=to_iso(self._repo.clock()),
            duration_ms=round((time.monotonic() - self._start) * 1000),
            provenance=self._provenance(),
            artifacts=self._writing.written,
            error=self._told(error) if error else None,
            pid=os.getpid(),
            extra={key: value for key, value in extra.items() if value is not None},
        )

    def _provenance(self) -> Provenance:
        definition, step = self._target.definition, self._request.step
        provenance = Provenance(
            definition_hash=definition.hash,
            model_version=self._target.version or definition.type_version or "",
            triggered_by="model" if self._parent else "manual",
            parent_output_id=self._parent.output_id if self._parent else "",
        )
        if step is None:
            return provenance
        return replace(
            provenance,
            triggered_by="workflow",
            workflow_id=step.workflow_id,
            workflow_run_id=step.workflow_run_id,
            step_name=step.step_name,
            initiated_by=step.initiated_by,
            extra={"jobName": step.job_name},
        )

    def _told(self, error: BaseException) -> dict[str, str]:
        """Return what the record says of an error; where it happened, if it is none of ours."""
        text = told(error)
        if self._tracked and self._tracked.reason and isinstance(error, RunCancelledError):
            text = f"{text}: {self._tracked.reason}"
        message = {"message": self._redactor.text(shell.readable(text))}
        if isinstance(error, SwampstoreError | KeyboardInterrupt | SystemExit):
            return message
        import traceback

        stack = shell.readable("".join(traceback.format_exception(error)))
        return {**message, "stack": self._redactor.text(stack)}

    def _result(self, output: Output, not_pushed: SwampstoreError | None) -> MethodResult:
        exit_code = self._exit_code
        if not_pushed is not None and not exit_code:
            exit_code = EXIT_NOT_PUSHED
        return MethodResult(
            output=output,
            status=output.status,
            exit_code=exit_code,
            artifacts=tuple(self._writing.handles),
            reports=self._reports,
            not_pushed=not_pushed,
            arguments=self._redactor.document(self._given.arguments),
            global_arguments=self._redactor.document(self._given.global_arguments),
        )

    # What the method gets ----------------------------------------------------------------------

    @cached_property
    def _writing(self) -> Writing:
        target, request = self._target, self._request
        origin = Origin(
            model=self._model,
            model_name=target.definition.name,
            tags=self._tags,
            resources=self._resources,
            step=request.step,
            runtime_tags=request.tags,
            overrides=request.overrides,
            inputs=self._given.inputs,
        )
        lock = self._parent.lock if self._parent else None
        return Writing(self._repo, origin, self._redactor, lock)

    @cached_property
    def _vaults(self) -> Vaults:
        from swampstore.vaults import Vaults

        return Vaults(self._repo, caller=f"run {self._model} {self._method}")

    @cached_property
    def _resolver(self) -> Resolver:
        from swampstore.vaults.references import Resolver

        return Resolver(self._vaults, self._redactor)

    def _context(self) -> MethodContext:
        self._note_sensitive_inputs()
        given = self._evaluated()
        declared = self._target.declared
        if self._request.rollback_on_failure or (declared and declared.rollback_on_failure):
            self._group = self._writing.group = self._repo.artifacts.deferring()
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
            vaults=lambda: self._vaults,
            resolver=lambda: self._resolver,
            run_nested=self._run_nested,
            timeout=self._request.timeout,
        )
        global_arguments = given.global_arguments
        if self._target.code and holds_expression(global_arguments):
            global_arguments = self._resolver.document(global_arguments)
        return MethodContext(state, self._target.definition, given.inputs, global_arguments)

    def _note_sensitive_inputs(self) -> None:
        """Let the redactor know what the schemas call sensitive, before anybody sees it."""
        target = self._target
        for schema, values in (
            (target.definition.inputs, self._given.inputs),
            (target.argument_schema, self._given.arguments),
            (target.global_schema, self._given.global_arguments),
        ):
            if schema and "sensitive" in str(schema):
                from swampstore.vaults.sensitive import note_sensitive

                note_sensitive(schema, values, self._redactor)

    def _evaluated(self) -> Given:
        """Evaluate the expressions of a definition, and keep what it is then."""
        target, given = self._target, self._given
        definitions = Definitions(self._repo)
        if given.has_expressions:
            from swampstore.runs.expressions import evaluate

            given = replace(
                given,
                arguments=evaluate(
                    given.arguments, self._scope, f"methods.{self._method}.arguments"
                ),
                global_arguments=evaluate(given.global_arguments, self._scope, "globalArguments"),
            )
            self._given = given = check_arguments(target, given)
        definition = target.definition
        if holds_expression((definition.tags, definition.resources)):
            self._evaluate_tags(definition)
        if definition.path is None:
            definitions.save_auto(definition)
        elif not self._request.last_evaluated and AUTO_DEFINITIONS not in definition.path:
            methods = {**definition.methods, self._method: given.arguments}
            evaluated = replace(
                definition,
                tags=self._tags,
                global_arguments=given.global_arguments,
                methods=methods,
                resources=self._resources,
            )
            definitions.save_evaluated(evaluated)
        return given

    def _evaluate_tags(self, definition: Definition) -> None:
        from swampstore.runs.expressions import evaluate, evaluate_tags

        self._tags = evaluate_tags(definition.tags, self._scope)
        self._resources = evaluate(definition.resources, self._scope, "resources")

    @cached_property
    def _scope(self) -> Scope:
        from swampstore.runs.expressions import Scope

        return Scope(
            self._repo,
            inputs=self._given.inputs,
            definition=self._target.definition,
            redactor=self._redactor,
        )

    # What the method does ------------------------------------------------------------------------

    def _perform(self, context: MethodContext) -> None:
        method_plan.check_deleted(self._repo, self._target)
        method_plan.check_vaults(self._target, lambda: self._vaults)
        if self._request.command is not None:
            argv = [*self._request.command]
            if holds_expression(argv):
                from swampstore.runs.expressions import evaluate

                argv = [str(one) for one in evaluate(argv, self._scope)]
            shell.run_argv(context, argv)
        elif self._target.code is None:
            shell.run_shell(context, self._given.arguments)
        else:
            self._call(context, self._target.code, self._target.declared)

    def _call(self, context: MethodContext, code: ModelType, declared: Method | None) -> None:
        """Call the method of a class."""
        from swampstore.runs.method_log import printing_to_log

        assert declared is not None
        arguments = self._given.arguments
        if holds_expression(arguments):
            arguments = self._resolver.document(arguments)
        instance = code.cls()
        with _deadline(self._cancelled, self._request.timeout), printing_to_log(context.state):
            if not self._request.skip_checks:
                method_plan.run_checks(context, self._target, instance)
            with _reachable(self._cancelled):
                getattr(instance, declared.attribute)(context, **arguments)

    def _mark_deleted(self) -> None:
        """Leave a deletion marker for every resource that the model has."""
        for name in method_plan.live_resources(self._repo, self._target):
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


def _exit_code_of(error: BaseException) -> int:
    match error:
        case CommandError():
            return error.exit_code or EXIT_ERROR
        case SystemExit(code=int(code)):
            return code or EXIT_ERROR
    return EXIT_ERROR


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


def redacted(output: Output, redactor: Redactor) -> Output:
    """Return a record without secrets."""
    return replace(
        output,
        error=redactor.document(output.error) if output.error else None,
        extra=redactor.document(output.extra),
    )
