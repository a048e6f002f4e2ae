"""What a method gets: arguments and tags with their expressions evaluated, and the secrets in them.

Expressions read the data of models, so `evaluate` is called under the lock of the model. The
definition as it is then is kept, for people and for `--last-evaluated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swampstore.layout import AUTO_DEFINITIONS
from swampstore.runs.definitions import Definitions
from swampstore.runs.method_plan import Given, check_arguments, given_by, holds_expression

if TYPE_CHECKING:
    from swampstore.redaction import Redactor
    from swampstore.repo import Repo
    from swampstore.runs.definitions import Definition
    from swampstore.runs.expressions import Scope
    from swampstore.runs.method_plan import Target
    from swampstore.runs.method_request import MethodRequest
    from swampstore.vaults import Vaults
    from swampstore.vaults.references import Resolver


class Evaluation:
    """What one run is given: checked when it is made, complete when `evaluate` was called."""

    def __init__(
        self, repo: Repo, request: MethodRequest, target: Target, redactor: Redactor
    ) -> None:
        self._repo = repo
        self._request = request
        self._target = target
        self._redactor = redactor
        self.given: Given = given_by(target, request)
        if not self.given.has_expressions:
            self.given = check_arguments(target, self.given)
        self.tags, self.resources = target.definition.tags, target.definition.resources

    @cached_property
    def vaults(self) -> Vaults:
        """The vaults, which note for whom they are read."""
        from swampstore.vaults import Vaults

        target = self._target
        return Vaults(self._repo, caller=f"run {target.model} {target.method}")

    @cached_property
    def resolver(self) -> Resolver:
        """Replaces references by secrets, and adds each secret to the redactor."""
        from swampstore.vaults.references import Resolver

        return Resolver(self.vaults, self._redactor)

    @cached_property
    def _scope(self) -> Scope:
        from swampstore.runs.expressions import Scope

        return Scope(
            self._repo,
            inputs=self.given.inputs,
            definition=self._target.definition,
            redactor=self._redactor,
        )

    def evaluate(self) -> None:
        """Evaluate the expressions, and keep the definition as it is then."""
        self._note_sensitive()
        target = self._target
        if self.given.has_expressions:
            from swampstore.runs.expressions import evaluate

            evaluated = self.given._replace(
                arguments=evaluate(
                    self.given.arguments, self._scope, f"methods.{target.method}.arguments"
                ),
                global_arguments=evaluate(
                    self.given.global_arguments, self._scope, "globalArguments"
                ),
            )
            self.given = check_arguments(target, evaluated)
        definition = target.definition
        if holds_expression((definition.tags, definition.resources)):
            self._evaluate_tags(definition)
        self._keep(definition)

    def _note_sensitive(self) -> None:
        """Let the redactor know what the schemas call sensitive, before anybody sees it."""
        target = self._target
        for schema, values in (
            (target.definition.inputs, self.given.inputs),
            (target.argument_schema, self.given.arguments),
            (target.global_schema, self.given.global_arguments),
        ):
            if schema and "sensitive" in str(schema):
                from swampstore.vaults.sensitive import note_sensitive

                note_sensitive(schema, values, self._redactor)

    def _evaluate_tags(self, definition: Definition) -> None:
        from swampstore.runs.expressions import evaluate, evaluate_tags

        self.tags = evaluate_tags(definition.tags, self._scope)
        self.resources = evaluate(definition.resources, self._scope, "resources")

    def _keep(self, definition: Definition) -> None:
        definitions = Definitions(self._repo)
        if definition.path is None:
            definitions.save_auto(definition)
        elif not self._request.last_evaluated and AUTO_DEFINITIONS not in definition.path:
            evaluated = replace(
                definition,
                tags=self.tags,
                global_arguments=self.given.global_arguments,
                methods={**definition.methods, self._target.method: self.given.arguments},
                resources=self.resources,
            )
            definitions.save_evaluated(evaluated)

    def command(self) -> list[str]:
        """Return the command of the request, its expressions evaluated."""
        argv = [*(self._request.command or ())]
        if not holds_expression(argv):
            return argv
        from swampstore.runs.expressions import evaluate

        return [str(one) for one in evaluate(argv, self._scope)]

    def with_secrets(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return arguments with the secrets that they refer to in their places."""
        return self.resolver.document(arguments) if holds_expression(arguments) else arguments
