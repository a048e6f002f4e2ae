"""What can go wrong before and while something is run: each with a code for programs."""

from __future__ import annotations

from swampstore.errors import NotFoundError, SwampstoreError


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
