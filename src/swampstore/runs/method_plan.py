"""What a request stands for: the definition, the code, and the arguments before they are evaluated.

Everything that can be wrong before anything runs is found here, without any lock; only what needs
the model's data is looked at when its lock is held: `check_deleted`, `check_vaults` and, if the
method does more than read or list, the checks of its class (`run_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts.metadata import checked_tags
from swampstore.clock import to_iso
from swampstore.errors import ModelNotFoundError, ValidationError
from swampstore.layout import MAX_SEGMENT_BYTES, ModelRef, check_segment, why_no_key
from swampstore.runs import shell
from swampstore.runs.context import MethodContext, sensitive_of, told
from swampstore.runs.definitions import Definition, Definitions, adhoc
from swampstore.runs.errors import (
    CheckFailedError,
    MethodNotFoundError,
    ModelTypeNotFoundError,
    ResourceDeletedError,
)
from swampstore.runs.outputs import stem
from swampstore.runs.writing import RESOURCE, Spec

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo
    from swampstore.runs.method_request import MethodRequest
    from swampstore.runs.models import Check, Method, ModelType
    from swampstore.vaults import Vaults

OPENING = "${{"
CREATE, READ, UPDATE, DELETE, LIST = "create", "read", "update", "delete", "list"
_KINDS = {
    "create": CREATE,
    **dict.fromkeys(("get", "read", "describe", "show"), READ),
    **dict.fromkeys(("update", "patch"), UPDATE),
    **dict.fromkeys(("delete", "destroy", "remove"), DELETE),
    **dict.fromkeys(("list", "search", "find"), LIST),
}


def kind_of(method: str, declared: str | None = None) -> str:
    """Return what a method does to a model, empty if neither it nor its name says so."""
    return declared or _KINDS.get(method, "")


def is_mutating(kind: str) -> bool:
    """Whether a method of this kind may change something."""
    return kind not in (READ, LIST)


class Target(NamedTuple):
    """The method of a model that is to be run, and what may be said to it.

    `argument_schema` is None for a command, which takes any input.
    """

    definition: Definition
    method: str
    kind: str
    version: str
    specs: Mapping[str, Spec]
    argument_schema: Mapping[str, Any] | None = None
    global_schema: Mapping[str, Any] | None = None
    code: ModelType | None = None
    declared: Method | None = None

    @property
    def model(self) -> ModelRef:
        """The address of the model."""
        return self.definition.ref

    @property
    def input_schema(self) -> dict[str, Any] | None:
        """The JSON Schema by which inputs of the command line get their types."""
        schemas = (self.global_schema, self.argument_schema, self.definition.inputs)
        properties: dict[str, Any] = {}
        for schema in schemas:
            properties |= _properties(schema)
        return {"type": "object", "properties": properties} if properties else None


def find_target(repo: Repo, request: MethodRequest) -> Target:
    """Return what is to be run.

    Raises ModelNotFoundError, ModelTypeNotFoundError or MethodNotFoundError, each saying what
    there is.
    """
    definition = _definition(repo, request)
    method = _checked_method(repo, definition.ref, request.method)
    checked_tags(request.tags)
    if request.command is not None:
        if not request.command:
            raise ValidationError("the command is empty", hint="Write it behind `--`.")
        return Target(definition, method, kind_of(method), "", shell.SPECS)
    if definition.type == shell.SHELL_TYPE:
        if method != shell.SHELL_METHOD:
            raise MethodNotFoundError(
                f"{shell.SHELL_TYPE} has no method {method!r}",
                hint=f"It has: {shell.SHELL_METHOD}.",
            )
        return Target(
            definition, method, "", shell.SHELL_VERSION, shell.SPECS, shell.SHELL_ARGUMENTS
        )
    from swampstore.runs.models import find_model_type  # which a command does without

    code = find_model_type(repo, definition.type)
    if code is None:
        raise ModelTypeNotFoundError(
            f"there is no code for the type {definition.type}",
            hint="Give a command behind `--`, or write a class for the type in `models`.",
        )
    declared = code.method(method)
    return Target(
        definition=definition,
        method=method,
        kind=declared.kind,
        version=code.version,
        specs=code.specs,
        argument_schema=declared.arguments,
        global_schema=code.arguments,
        code=code,
        declared=declared,
    )


def _checked_method(repo: Repo, model: ModelRef, method: str) -> str:
    """Return the name of a method; raise ValidationError if no store would take its record."""
    check_segment("method", method)
    rel = f"{stem(model, method, to_iso(repo.clock()))}.yaml"
    if reason := why_no_key(f"{repo.config.key_prefix}{rel}"):
        raise ValidationError(
            f"the record of the method {method!r} could not be shared: {reason}",
            hint="Use letters, digits, '-', '_' and single dots.",
        )
    if len(rel.rpartition("/")[2].encode()) > MAX_SEGMENT_BYTES:
        raise ValidationError(
            f"the id of the model {model.id[:40]!r}... is too long for the record of a run",
            hint="The id and a time stamp have to fit into the name of a file.",
        )
    return method


def _definition(repo: Repo, request: MethodRequest) -> Definition:
    definitions = Definitions(repo)
    if request.last_evaluated:
        return definitions.load_evaluated(request.model)
    if found := definitions.find(request.model):
        return found
    if "/" in request.model:
        return adhoc(repo.model(request.model))
    try:
        return adhoc(repo.model(request.model), request.model)
    except ModelNotFoundError:
        return definitions.require(request.model)


class Given(NamedTuple):
    """What a method is given, references and other expressions still in it."""

    inputs: dict[str, Any]
    arguments: dict[str, Any]
    global_arguments: dict[str, Any]

    @property
    def has_expressions(self) -> bool:
        """Whether something has to be evaluated."""
        return any(map(holds_expression, (self.arguments, self.global_arguments)))


def given_by(target: Target, request: MethodRequest) -> Given:
    """Return what a method is given by its definition and by the request.

    An input that the definition does not declare is an argument of the method, or a global one.
    Raises InputError naming the field that is wrong, ValidationError for an input that nobody
    takes.
    """
    from swampstore.runs.inputs import check_inputs

    definition = target.definition
    # What was evaluated needs no inputs any more.
    schema = None if request.last_evaluated else definition.inputs
    declared, inputs = _properties(schema), dict(request.inputs)
    arguments = dict(definition.methods.get(target.method) or {})
    global_arguments = {**definition.global_arguments, **request.global_arguments}
    if target.argument_schema is None:
        return Given(
            check_inputs(schema, inputs, definition.where) if declared else inputs,
            arguments,
            global_arguments,
        )
    own, everywhere = _properties(target.argument_schema), _properties(target.global_schema)
    takes_any = target.argument_schema.get("additionalProperties") not in (None, False)
    for name, value in request.inputs.items():
        if name in declared:
            if name in own:
                arguments.setdefault(name, value)
            continue
        if name in own:
            arguments[name] = value
        elif name in everywhere:
            global_arguments[name] = value
        elif takes_any:
            arguments[name] = value
        else:
            known = ", ".join(sorted({*declared, *own, *everywhere})) or "none"
            raise ValidationError(
                f"{target.model} {target.method} takes no input {name!r}", hint=f"Inputs: {known}."
            )
    checked = {name: value for name, value in inputs.items() if name in declared}
    if schema:
        inputs |= check_inputs(schema, checked, definition.where)
    return Given(inputs, arguments, global_arguments)


def check_arguments(target: Target, given: Given) -> Given:
    """Return the arguments with defaults filled in; raise InputError naming what is wrong."""
    from swampstore.runs.inputs import check_inputs

    what = f"{target.model} {target.method}"
    arguments, everywhere = given.arguments, given.global_arguments
    if target.argument_schema is not None:
        arguments = check_inputs(target.argument_schema, arguments, what)
    if target.global_schema is not None:
        everywhere = check_inputs(target.global_schema, everywhere, f"{what}, globally")
    return Given(given.inputs, arguments, everywhere)


def holds_expression(value: Any) -> bool:
    """Whether there may be an expression somewhere in a document; parses nothing."""
    match value:
        case str():
            return OPENING in value
        case Mapping():
            return any(map(holds_expression, value.values()))
        case list() | tuple():
            return any(map(holds_expression, value))
    return False


def _properties(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found = (schema or {}).get("properties")
    return found if isinstance(found, Mapping) else {}


def run_checks(context: MethodContext, target: Target, instance: Any) -> None:
    """Run the checks of a model class; raise CheckFailedError saying which one failed, and why."""
    if not is_mutating(target.kind):
        return
    for check in _wanted(target):
        try:
            answer = getattr(instance, check.attribute)(context)
        except Exception as error:
            raise _failed(target, check, told(error)) from error
        if answer is False or isinstance(answer, str):
            raise _failed(target, check, answer or "")


def _failed(target: Target, check: Check, why: str) -> CheckFailedError:
    return CheckFailedError(
        f"the check {check.name} of {target.model} failed{': ' if why else ''}{why}",
        hint="Repair that, or pass --skip-checks.",
    )


def _wanted(target: Target) -> Iterator[Check]:
    """Yield the checks for a method: those its class declares, as the definition says."""
    assert target.code is not None
    declared, said = target.code.checks, target.definition.checks
    required, skipped = ({*(said.get(key) or ())} for key in ("require", "skip"))
    if unknown := sorted(required - {*declared}):
        raise CheckFailedError(
            f"{target.definition.name} requires the check {unknown[0]}, which {target.model.type}"
            " does not have",
            hint=f"It has: {', '.join(sorted(declared)) or 'none'}.",
        )
    for name, check in sorted(declared.items()):
        is_meant = not check.methods or target.method in check.methods
        is_on = name in required or (not check.optional and name not in skipped)
        if is_meant and is_on:
            yield check


def check_vaults(target: Target, vaults: Callable[[], Vaults]) -> None:
    """Raise VaultNotFoundError if something that a method may write has no vault to go to."""
    for spec in target.specs.values():
        if spec.is_sensitive or (spec.schema and "sensitive" in str(spec.schema)):
            from swampstore.vaults import sensitive

            found = sensitive_of(spec, target.definition.resources)
            sensitive.check_vaults(vaults(), found)


def check_deleted(repo: Repo, target: Target) -> None:
    """Raise ResourceDeletedError if a method wants what was deleted, all of it."""
    if target.kind not in (READ, UPDATE):
        return
    found = [*_resources(repo, target)]
    if found and all(one.is_deleted for one in found):
        raise ResourceDeletedError(
            f"everything of {target.model} was deleted, the last at {found[-1].row.created_at}",
            hint="Create it again first.",
        )


def live_resources(repo: Repo, target: Target) -> list[str]:
    """Return the names of the resources of a model that were not deleted."""
    return [one.name for one in _resources(repo, target) if not one.is_deleted]


def _resources(repo: Repo, target: Target) -> Iterator[Artifact]:
    """Yield the newest version, deletion markers included, of every declared resource."""
    specs = {spec.name for spec in target.specs.values() if spec.kind == RESOURCE}
    repo.ready()
    names = {*repo.catalog.names(target.model), *repo.tree.subdirs(target.model.rel)}
    for name in sorted(names):
        for newest in repo.versions(target.model, name, limit=1):
            tags = newest.tags
            if tags.get("type") == RESOURCE and tags.get("specName") in specs:
                yield newest
