"""Models written in Python: how a class says what it can do, and where such classes are found.

    @swampstore.model("aws/ec2")
    class Ec2:
        state = swampstore.Resource(lifetime="30d")

        def scan(self, context, region="eu-west-1"):
            context.write_resource("state", "state", {"region": region})

Every function of the class without an underscore in front is a method. Classes are found in the
directory `models` of the repository, and through the entry points `swampstore.models`.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from swampstore.artifacts.metadata import DEFAULT_LIFETIME, DEFAULT_POLICY
from swampstore.errors import ValidationError
from swampstore.layout import normalise_type
from swampstore.repo.definition_files import source_directory
from swampstore.runs.errors import MethodNotFoundError, ModelTypeError
from swampstore.runs.method_plan import CREATE, DELETE, LIST, READ, UPDATE, kind_of
from swampstore.runs.writing import FILE, JSON, RESOURCE, Spec

if TYPE_CHECKING:
    from swampstore.repo import Repo

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

GROUP = "swampstore.models"
_RESERVED = frozenset({"swamp", "si", "@swamp", "@si"})
_MODEL, _METHOD, _CHECK = "__swampstore_model__", "__swampstore_method__", "__swampstore_check__"
# Steps of a workflow are threads: none of them may see a module that another has not finished.
_IMPORTING = threading.RLock()
_JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


class Resource:
    """Declares a JSON document that methods of a class write; the attribute's name is its name.

    A mismatch with the JSON Schema is a warning. Members that it calls `sensitive`, or with
    `sensitive` all of them, go to a vault and leave a reference.
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        lifetime: str = DEFAULT_LIFETIME,
        garbage_collection: int | str = DEFAULT_POLICY,
        tags: Mapping[str, str] | None = None,
        sensitive: bool = False,
        vault: str | None = None,
    ) -> None:
        self.name = name
        self._details: dict[str, Any] = {
            "schema": schema,
            "lifetime": lifetime,
            "garbage_collection": garbage_collection,
            "tags": tags or {},
            "is_sensitive": sensitive,
            "vault": vault,
        }

    def spec(self, attribute: str) -> Spec:
        """Return what is declared."""
        return Spec(self.name or attribute, RESOURCE, JSON, **self._details)


class File:
    """Declares a file of any bytes that methods of a class write."""

    def __init__(
        self,
        content_type: str = "application/octet-stream",
        *,
        name: str | None = None,
        lifetime: str = DEFAULT_LIFETIME,
        garbage_collection: int | str = DEFAULT_POLICY,
        streaming: bool = False,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._content_type = content_type
        self._details: dict[str, Any] = {
            "lifetime": lifetime,
            "garbage_collection": garbage_collection,
            "streaming": streaming,
            "tags": tags or {},
        }

    def spec(self, attribute: str) -> Spec:
        """Return what is declared."""
        return Spec(self.name or attribute, FILE, self._content_type, **self._details)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a class. `arguments` is the JSON Schema of what it takes."""

    name: str
    attribute: str
    kind: str
    arguments: Mapping[str, Any]
    rollback_on_failure: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold before a method changes anything.

    It is for these `methods`, for all if there are none. One that is `optional` runs only if a
    definition requires it.
    """

    name: str
    attribute: str
    methods: Sequence[str] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelType:
    """What a class says about the models of a type."""

    type: str
    cls: Any
    version: str = ""
    arguments: Mapping[str, Any] | None = None
    methods: Mapping[str, Method] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    specs: Mapping[str, Spec] = field(default_factory=dict)

    def method(self, name: str) -> Method:
        """Return a method; raise MethodNotFoundError, saying which there are."""
        if found := self.methods.get(name):
            return found
        raise MethodNotFoundError(
            f"{self.type} has no method {name!r}",
            hint=f"It has: {', '.join(sorted(self.methods)) or 'none'}.",
        )


def model(
    model_type: str, *, version: str = "", arguments: Mapping[str, Any] | None = None
) -> Callable[[C], C]:
    """Make a class the code for all models of a type.

    `version` goes to the provenance of every run. `arguments` is the JSON Schema of the global
    arguments of definitions.
    """
    normalised = normalise_type(model_type)
    if normalised.partition("/")[0] in _RESERVED:
        raise ModelTypeError(
            f"the type {normalised!r} is reserved for what is built in",
            hint="Begin it with a name of your own.",
        )

    def decorate(cls: C) -> C:
        setattr(cls, _MODEL, _described(cls, normalised, version, arguments))
        return cls

    return decorate


@overload
def method(function: F) -> F: ...
@overload
def method(
    *,
    name: str | None = None,
    kind: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    rollback_on_failure: bool = False,
) -> Callable[[F], F]: ...
def method(
    function: Any = None,
    *,
    name: str | None = None,
    kind: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    rollback_on_failure: bool = False,
) -> Any:
    """Say more about a method of a model class than its name and its parameters do.

    `kind` is create, read, update, delete or list. `arguments` is a JSON Schema. With
    `rollback_on_failure`, what it wrote is taken back if it fails.
    """
    if kind not in (None, CREATE, READ, UPDATE, DELETE, LIST):
        raise ModelTypeError(
            f"a method cannot be of the kind {kind!r}",
            hint="Kinds are create, read, update, delete and list.",
        )

    def decorate(decorated: F) -> F:
        details = {
            "name": name,
            "kind": kind,
            "arguments": arguments,
            "rollback_on_failure": rollback_on_failure,
        }
        setattr(decorated, _METHOD, details)
        return decorated

    return decorate if function is None else decorate(function)


@overload
def check(function: F) -> F: ...
@overload
def check(
    *, name: str | None = None, methods: Sequence[str] = (), optional: bool = False
) -> Callable[[F], F]: ...
def check(
    function: Any = None,
    *,
    name: str | None = None,
    methods: Sequence[str] = (),
    optional: bool = False,
) -> Any:
    """Make a function of a model class a check that runs before methods that change something.

    It fails by raising, by returning False, or by returning a text that says what is wrong.
    """

    def decorate(decorated: F) -> F:
        setattr(decorated, _CHECK, {"name": name, "methods": methods, "optional": optional})
        return decorated

    return decorate if function is None else decorate(function)


def _described(
    cls: type, model_type: str, version: str, arguments: Mapping[str, Any] | None
) -> ModelType:
    methods: dict[str, Method] = {}
    checks: dict[str, Check] = {}
    specs: dict[str, Spec] = {}
    for attribute, value in inspect.getmembers(cls):
        if isinstance(value, Resource | File):
            spec = value.spec(attribute)
            specs[spec.name] = spec
        elif not inspect.isfunction(value) or attribute.startswith("_"):
            continue
        elif (said := getattr(value, _CHECK, None)) is not None:
            found = Check(said["name"] or attribute, attribute, said["methods"], said["optional"])
            checks[found.name] = found
        else:
            one = _method(value, attribute)
            methods[one.name] = one
    if not methods:
        raise ModelTypeError(
            f"the class {cls.__name__} of the type {model_type} has no method",
            hint="Give it a function that takes a context.",
        )
    return ModelType(model_type, cls, version, arguments, methods, checks, specs)


def _method(function: Callable[..., Any], attribute: str) -> Method:
    said = getattr(function, _METHOD, {})
    name = said.get("name") or attribute
    return Method(
        name=name,
        attribute=attribute,
        kind=kind_of(name, said.get("kind")),
        arguments=said.get("arguments") or _schema_of(function),
        rollback_on_failure=said.get("rollback_on_failure", False),
    )


def _schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON Schema of what a function takes after itself and the context."""
    parameters = [*inspect.signature(function).parameters.values()]
    if len(parameters) < 2:
        raise ModelTypeError(
            f"the method {function.__qualname__} takes no context",
            hint="Write it as `def scan(self, context): ...`.",
        )
    properties: dict[str, Any] = {}
    required: list[str] = []
    is_open = False
    for parameter in parameters[2:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            is_open = True
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        properties[parameter.name] = _property_of(parameter)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": is_open}


def _property_of(parameter: inspect.Parameter) -> dict[str, Any]:
    names = {kind.__name__: text for kind, text in _JSON_TYPES.items()}
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    found = names.get(str(text).partition("[")[0])
    return {"type": found} if found else {}


# Finding ------------------------------------------------------------------------------------------


def model_type_of(cls: Any) -> ModelType | None:
    """Return what a class says about itself, None if it is no model."""
    found = vars(cls).get(_MODEL) if isinstance(cls, type) else None
    return found if isinstance(found, ModelType) else None


def find_model_type(repo: Repo, model_type: str) -> ModelType | None:
    """Return the code for a type, from the repository, else from an installed package.

    Raises ModelTypeError if a module that may hold it cannot be imported.
    """
    if found := _in_repository(repo, model_type):
        return found
    return _installed(model_type)


def _in_repository(repo: Repo, model_type: str) -> ModelType | None:
    failures: list[ModelTypeError] = []
    for module in repository_modules(repo, failures, likely=model_type):
        for value in vars(module).values():
            found = model_type_of(value)
            if found and found.type == model_type and value.__module__ == module.__name__:
                return found
    if failures:
        raise failures[0]
    return None


def repository_modules(
    repo: Repo, failures: list[ModelTypeError], *, likely: str = ""
) -> Iterator[ModuleType]:
    """Yield the Python modules in `models`, imported one by one, the one called `likely` first.

    Those that cannot be imported are left out, and why is added to `failures`.
    """
    top = source_directory(repo, "modelsDir", "models")
    for path in _likely_first([*_python_files(top)], f"{top}/{likely}"):
        try:
            with _IMPORTING:
                module = _imported(top, _inner(top, path))
            yield module
        except ModelTypeError as error:
            failures.append(error)


def _python_files(top: str) -> Iterator[str]:
    for directory, subdirs, names in os.walk(top):
        subdirs[:] = sorted(one for one in subdirs if one[0] not in "._")
        yield from (f"{directory}/{name}" for name in sorted(names) if name.endswith(".py"))


def _inner(top: str, path: str) -> str:
    inner = path.removeprefix(f"{top}/").removesuffix(".py")
    return "" if inner == "__init__" else inner.removesuffix("/__init__")


def _likely_first(paths: list[str], likely: str) -> list[str]:
    """Put the file that is called like the type first; it is usually the one."""
    return sorted(paths, key=lambda path: not path.startswith((f"{likely}.py", f"{likely}/")))


def _imported(top: str, inner: str) -> ModuleType:
    """Import a module of the repository, as part of a package with a name of its own.

    `inner` is its path below `models` without `.py`, empty for the package itself. Modules import
    each other by relative names.
    """
    import hashlib
    import importlib.util

    package = f"_swampstore_models_{hashlib.sha256(top.encode()).hexdigest()[:12]}"
    name = ".".join(filter(None, [package, *inner.split("/")]))
    if name in sys.modules:
        return sys.modules[name]
    if inner:
        _imported(top, inner.rpartition("/")[0])
    directory = f"{top}/{inner}" if inner else top
    is_package = os.path.isdir(directory)
    path = f"{directory}/__init__.py" if is_package else f"{directory}.py"
    if is_package and not os.path.exists(path):
        sys.modules[name] = bare = ModuleType(name)
        bare.__path__ = [directory]
        return bare
    found = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[directory] if is_package else None
    )
    assert found is not None
    assert found.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        raise ModelTypeError(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            hint="Repair it, or move it out of `models`.",
        ) from error
    return module


def _installed(model_type: str) -> ModelType | None:
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            if normalise_type(entry.name) != model_type:
                continue
        except ValidationError:
            continue
        try:
            found = model_type_of(entry.load())
        except Exception as error:
            raise ModelTypeError(
                f"the entry point {entry.name} = {entry.value} cannot be loaded: {error}",
                hint="Reinstall the package that it belongs to.",
            ) from error
        if found is not None:
            return found
        raise ModelTypeError(
            f"the entry point {entry.name} = {entry.value} is no model class",
            hint="Decorate the class with `@swampstore.model(...)`.",
        )
    return None
