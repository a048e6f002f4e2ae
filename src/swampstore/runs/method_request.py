"""What is asked of a run, who hears of it, and what the caller gets when it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from swampstore.errors import SwampstoreError
    from swampstore.layout import ModelRef
    from swampstore.runs.outputs import Output
    from swampstore.runs.writing import Handle, WorkflowStep


class RunListener:
    """Hears what a run does. This one does nothing with it."""

    def out(self, stream: str, data: bytes) -> None:
        """Hear what comes from `stdout` or `stderr`, without secrets."""

    def event(self, kind: str, **details: Any) -> None:
        """Hear that something happened."""


silent = RunListener()


class MethodRequest(NamedTuple):
    """What is to be run. `model` is `TYPE/ID`, the name of a definition or its id.

    With a `command`, that is the method. `overrides` are the `dataOutputOverrides` of a step.
    """

    model: str
    method: str
    inputs: Mapping[str, Any] = {}
    tags: Mapping[str, str] = {}
    command: Sequence[str] | None = None
    step: WorkflowStep | None = None
    overrides: Sequence[Mapping[str, Any]] = ()
    last_evaluated: bool = False
    skip_checks: bool = False
    rollback_on_failure: bool = False
    global_arguments: Mapping[str, Any] = {}
    timeout: float | None = None


class MethodResult(NamedTuple):
    """How a run ended. `not_pushed` says why what it wrote is here and not on the remote.

    `hint` says what to do about the error, which the record does not.
    """

    output: Output
    status: str
    exit_code: int
    artifacts: tuple[Handle, ...] = ()
    reports: tuple[Any, ...] = ()
    not_pushed: SwampstoreError | None = None
    hint: str | None = None
    arguments: Mapping[str, Any] = {}
    global_arguments: Mapping[str, Any] = {}

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
