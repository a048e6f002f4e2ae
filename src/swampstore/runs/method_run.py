"""The way of one method run, start to end: a session of the model, what it writes, its record.

    run_method(repo, MethodRequest("aws/ec2/i-1", "scan", command=["./scan.sh", "i-1"]))

What was written stays, also if the method fails, and one push carries all of it: artifacts, the
record, the event of the audit.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.save import to_json_bytes
from swampstore.clock import to_iso
from swampstore.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NOT_PUSHED, SwampstoreError
from swampstore.layout import ModelRef, check_segment
from swampstore.redaction import Redactor
from swampstore.runs.capture import Capture, RunLog
from swampstore.runs.outputs import Output, Outputs, Provenance
from swampstore.runs.shell import STDERR, STDOUT, CommandError, CommandTimeoutError, run_command
from swampstore.runs.writing import FILE, Handle, Origin, Spec, WorkflowStep, Writing

if TYPE_CHECKING:
    from swampstore.repo import Repo

__all__ = [
    "MethodRequest",
    "MethodResult",
    "RunListener",
    "WorkflowStep",
    "run_method",
    "silent",
]

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
RESULT = Spec("result")
LOG = Spec("log", FILE, "text/plain", streaming=True)


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

    Raises what keeps it from beginning: ModelNotFoundError, ValidationError for its inputs,
    LockTimeoutError.
    """
    return _MethodRun(repo, request, listener, cancelled).run()


class _MethodRun:
    def __init__(
        self,
        repo: Repo,
        request: MethodRequest,
        listener: RunListener,
        cancelled: threading.Event | None,
    ) -> None:
        self.repo = repo
        self.request = request
        self.listener = listener
        self.cancelled = [cancelled] if cancelled else []
        self.model = ModelRef.parse(request.model)
        self.model_name = self.model.id
        self.method = check_segment("method", request.method)
        self.id = str(uuid.uuid4())
        self.redactor = Redactor()
        self.log = RunLog(repo, self.id)
        origin = Origin(
            self.model,
            self.model_name,
            step=request.step,
            runtime_tags=request.tags,
            overrides=request.overrides,
            inputs=request.inputs,
        )
        self.writing = Writing(repo, origin, self.redactor)
        self.exit_code = 0

    def run(self) -> MethodResult:
        with ExitStack() as stack:
            work = stack.enter_context(self.repo.session([self.model]))
            output = self._run()
            not_pushed: SwampstoreError | None = None
            try:
                stack.close()
            except SwampstoreError as error:
                not_pushed = error
        not_pushed = not_pushed or work.not_pushed
        exit_code = self.exit_code
        if not_pushed and not exit_code:
            exit_code = EXIT_NOT_PUSHED
        return MethodResult(
            output, output.status, exit_code, tuple(self.writing.handles), not_pushed=not_pushed
        )

    def _run(self) -> Output:
        started_at, start = to_iso(self.repo.clock()), time.monotonic()
        self.listener.event("started", run_id=self.id, model=self.model, method=self.method)
        status = SUCCEEDED
        failure: Exception | None = None
        try:
            self._command(list(self.request.command or ()))
        except CancelledRunError as error:
            status, failure, self.exit_code = CANCELLED, error, EXIT_INTERRUPTED
        except CommandError as error:
            status, failure, self.exit_code = FAILED, error, error.exit_code
        except Exception as error:  # noqa: BLE001 - whatever a method raises, its record tells
            status, failure, self.exit_code = FAILED, error, EXIT_ERROR
        output = Output(
            id=self.id,
            model=self.model,
            model_name=self.model_name,
            method=self.method,
            status=status,
            started_at=started_at,
            completed_at=to_iso(self.repo.clock()),
            duration_ms=round((time.monotonic() - start) * 1000),
            provenance=self._provenance(),
            artifacts=self.writing.written,
            error={"message": self.redactor.text(str(failure))} if failure else None,
            pid=os.getpid(),
            extra={
                "command": list(self.request.command or ()),
                "inputs": dict(self.request.inputs),
            },
        )
        self.log.drop()
        return Outputs(self.repo).save(output)

    def _provenance(self) -> Provenance:
        step = self.request.step
        if step is None:
            return Provenance()
        return Provenance(
            triggered_by="workflow",
            workflow_id=step.workflow_id,
            workflow_run_id=step.workflow_run_id,
            step_name=step.step_name,
            initiated_by=step.initiated_by,
        )

    def _command(self, argv: list[str]) -> None:
        with Capture(self.log, self.redactor, self.listener.out) as capture:
            ended = run_command(
                argv,
                capture.take,
                env=os.environ,
                cwd=os.getcwd(),
                cancelled=self.cancelled,
                timeout=self.request.timeout,
            )
            capture.finish()
            document = capture.document()
            if document is None:
                document = {
                    "exitCode": ended.exit_code,
                    "executedAt": to_iso(self.repo.clock()),
                    "command": " ".join(argv),
                    "durationMs": ended.duration_ms,
                    "stdout": capture.text(STDOUT)[0],
                    "stderr": capture.text(STDERR)[0],
                }
            self.writing.save(RESULT, "result", to_json_bytes(document), attributes=document)
            self.log.to_artifact(self.writing, LOG)
        if ended.was_cancelled:
            raise CancelledRunError("the run was cancelled")
        if ended.timed_out:
            raise CommandTimeoutError("the command took too long", ended.exit_code)
        if ended.exit_code:
            raise CommandError(f"exit status {ended.exit_code}", ended.exit_code)


class CancelledRunError(SwampstoreError):
    """Somebody asked the run to end."""

    code = "run_cancelled"
    exit_status = EXIT_INTERRUPTED
