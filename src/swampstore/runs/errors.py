"""What can go wrong before and while something is run: each with a code for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swampstore.errors import EXIT_INTERRUPTED, NotFoundError, SwampstoreError, ValidationError

if TYPE_CHECKING:
    from swampstore.runs.method_request import MethodResult


class DefinitionError(SwampstoreError, ValueError):
    """A definition file does not say what a definition must say."""

    code = "definition_invalid"


class NoEvaluatedDefinitionError(NotFoundError):
    """No run of this model has left an evaluated definition."""

    code = "no_evaluated_definition"


class InputError(SwampstoreError, ValueError):
    """An input is missing, unknown, or not what it must be; nothing was run."""

    code = "input_invalid"


class InputSchemaError(SwampstoreError, ValueError):
    """The JSON Schema of the inputs cannot be used."""

    code = "input_schema_invalid"


class ExpressionError(SwampstoreError, ValueError):
    """An expression is wrong, or cannot be evaluated with what is there; nothing was run."""

    code = "expression_failed"


class ModelTypeError(SwampstoreError, ValueError):
    """What a class says about itself, or the module that it is in, cannot be used."""

    code = "model_type_invalid"


class ModelTypeNotFoundError(NotFoundError):
    """No code is known for a type."""

    code = "model_type_not_found"


class MethodNotFoundError(NotFoundError):
    """The type has no such method."""

    code = "method_not_found"


class RunError(SwampstoreError):
    """The root of what goes wrong in a run."""

    code = "run_failed"


class CommandError(RunError):
    """A command could not be started, or ended with another exit status than 0."""

    code = "command_failed"

    def __init__(self, message: str, exit_code: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class CommandTimeoutError(CommandError, TimeoutError):
    """A command took longer than it was given."""

    code = "command_timed_out"


class RunCancelledError(RunError):
    """Somebody asked the run to end."""

    code = "run_cancelled"
    exit_status = EXIT_INTERRUPTED


class UndeclaredSpecError(RunError, ValueError):
    """A method writes something that its class does not declare."""

    code = "spec_not_declared"


class CheckFailedError(RunError):
    """A pre-flight check found something wrong, so the method did not begin."""

    code = "check_failed"


class ResourceDeletedError(RunError):
    """Everything that the model describes was deleted by a method."""

    code = "resource_deleted"


class NestedRunError(RunError):
    """A method ran a method of another model, and that failed or may not be."""

    code = "nested_run_failed"


class MethodFailedError(RunError):
    """A method did not succeed; `result` says how it ended."""

    code = "method_failed"

    def __init__(self, message: str, result: MethodResult, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.result = result
        self.exit_status = result.exit_code


class ReportNotFoundError(NotFoundError):
    """No report answers to a name that a definition or a workflow requires."""

    code = "report_not_found"


class WorkflowError(ValidationError):
    """A workflow file says something that cannot be carried out."""

    code = "workflow_invalid"


class WorkflowNotFoundError(NotFoundError):
    """No workflow answers to that name, id or path."""

    code = "workflow_not_found"


class RunNotFoundError(NotFoundError):
    """No workflow run answers to that id."""

    code = "workflow_run_not_found"


class NotResumableError(ValidationError):
    """The run is over, or somebody is carrying it out, or nothing in it waits for a decision."""

    code = "workflow_not_resumable"
