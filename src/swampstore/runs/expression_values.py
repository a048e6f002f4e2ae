"""The value of one expression: CEL, with `data.*` and the names of a scope.

A path such as `inputs.host`, or what is below one artifact, is followed here; everything else is
evaluated by the CEL library, which is slow to import and therefore only loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from swampstore.artifacts.metadata import is_text
from swampstore.catalog.query.evaluate import (
    EVALUATION_ERRORS,
    LIBRARY_FUNCTIONS,
    LibraryRenderer,
    library,
)
from swampstore.catalog.query.fields import TYPE_NAMES, free_names
from swampstore.catalog.query.syntax import OPTIONAL
from swampstore.catalog.query.tree import (
    Call,
    Expr,
    Ident,
    Index,
    ListOf,
    Literal,
    MapOf,
    Member,
    MethodCall,
    complaint,
    walk,
)
from swampstore.clock import to_iso
from swampstore.errors import (
    ModelNotFoundError,
    NotFoundError,
    QueryError,
    SwampstoreError,
    ValidationError,
)
from swampstore.layout import ModelRef, check_segment
from swampstore.notices import did_you_mean, sentences
from swampstore.runs.definitions import Definitions
from swampstore.runs.writing import vary_value
from swampstore.vaults.references import escape_saved

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.repo import Repo

DATA = "data"
# What the CEL library offers beyond the core, without those that are called by a dotted name.
_EXTENSIONS = ("core", "strings", "lists")
_OPTIONAL_METHODS = ("orValue", "hasValue", "value")

Root = Callable[[], Any]
CallData = Callable[[str, Sequence[Any]], Any]


class _NeedsLibraryError(Exception):
    """The expression is more than a path."""


class Evaluation:
    """Evaluates expressions over `roots`, each of which is asked for only if it is mentioned."""

    def __init__(self, roots: Mapping[str, Root], call_data: CallData) -> None:
        self._roots = roots
        self._call_data = call_data

    def ensure_known(self, expr: Expr, source: str) -> None:
        """Raise QueryError for a name that is not there."""
        known = {*self._roots, DATA, "vault"}
        for ident in free_names(expr):
            if ident.name not in known and ident.name not in TYPE_NAMES:
                raise complaint(
                    f"There is nothing called {ident.name} (there is: {', '.join(sorted(known))})",
                    source,
                    ident.at,
                    hint=sentences(
                        did_you_mean(ident.name, known, 1), "Text is written in quotes."
                    ),
                )

    def value(self, expr: Expr, source: str) -> Any:
        """Return the value, made of what JSON can hold.

        Raises QueryError for a mistake in the expression, and what reading data raises.
        """
        try:
            return _plain(self._follow(expr, source), source)
        except _NeedsLibraryError:
            return _plain(self._execute(expr, source), source, sort=True)

    # Paths -----------------------------------------------------------------------------------

    def _follow(self, expr: Expr, source: str) -> Any:  # noqa: PLR0911 - one for each shape
        if _is_optional(expr):
            found = self._optional(expr, source)
            return found[0] if found else None
        match expr:
            case Literal(kind, value) if kind != "bytes":
                return value
            case Ident(name) if name in self._roots:
                return self._roots[name]()
            case Member(operand, name):
                return _member(self._follow(operand, source), name, source, expr.at)
            case Index(operand, key):
                return _member(
                    self._follow(operand, source), self._follow(key, source), source, expr.at
                )
            case ListOf(items):
                return [self._follow(item, source) for item in items]
            case MapOf(entries):
                return {self._follow(k, source): self._follow(v, source) for k, v in entries}
            case MethodCall(Ident("data"), method, arguments):
                return self._call_data(method, [self._follow(one, source) for one in arguments])
            case MethodCall(target, method, arguments) if method in _OPTIONAL_METHODS:
                found = (
                    self._optional(target, source)
                    if _is_optional(target)
                    else _present(self._follow(target, source))
                )
                return _OPTIONALS[method](found, *(self._follow(one, source) for one in arguments))
        raise _NeedsLibraryError

    def _optional(self, expr: Expr, source: str) -> list[Any]:
        """Return what an optional access leads to, in a list; an empty one if there is nothing."""
        match expr:
            case MethodCall(target, _, (key,)) | Index(target, key):
                wanted = self._follow(key, source)
            case Member(target, name):
                wanted = name
            case _:
                raise _NeedsLibraryError
        if _is_optional(target):
            return _optional_chain(self._optional(target, source), wanted)
        return _optional_of(self._follow(target, source), wanted)

    # The library -----------------------------------------------------------------------------

    def _execute(self, expr: Expr, source: str) -> Any:
        failures: list[Exception] = []

        def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
            # The library writes what a function raises to stderr, and keeps the text of it only.
            def call(*arguments: Any) -> Any:
                try:
                    return function(*arguments)
                except Exception as error:  # noqa: BLE001 - raised again below
                    failures.append(error)
                    return None

            return call

        library()
        extensions = library("cel.stdlib").EXTENSIONS
        known: dict[str, Callable[..., Any]] = {
            name: guarded(function)
            for extension in _EXTENSIONS
            for name, function in extensions.get(extension, {}).items()
            if "." not in name
        }
        known |= LIBRARY_FUNCTIONS
        known |= {f"optional_{name}": call for name, call in _OPTIONALS.items()}
        known |= {"optional_of": _optional_of, "optional_chain": _optional_chain}
        known |= {"optional_present": _present, "optional_get": lambda found: (found or [None])[0]}
        known["data_call"] = guarded(self._call_data)
        try:
            program = library().compile(_ScopeRenderer().render(expr))
            names = {ident.name for ident in free_names(expr)} & self._roots.keys()
            used = {name: known[name] for name in program.functions() if name in known}
            value = program.execute({**used, **{name: self._roots[name]() for name in names}})
        except EVALUATION_ERRORS as error:
            if failures:
                raise _failure(failures[0], source) from failures[0]
            raise QueryError(_reason(error, expr), hint="Look at what it is given.") from error
        if failures:
            raise _failure(failures[0], source) from failures[0]
        return value


def _failure(error: Exception, source: str) -> SwampstoreError:
    if isinstance(error, SwampstoreError):
        return error
    return QueryError(f"{error}, in {source.strip()}", hint="Look at what it is given.")


def _reason(error: Exception, expr: Expr) -> str:
    """Return what the library says, without the hints that are meant for programmers."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):
        return f"there is no member {text}"
    if text.startswith("Undefined variable or function"):
        name = text.split("'")[1]
        is_function = any(isinstance(part, Call | MethodCall) for part in walk(expr))
        return f"there is no {'function' if is_function else 'name'} {name}"
    return text.partition(". ")[0].rstrip(".")


class _ScopeRenderer(LibraryRenderer):
    """Writes what the library does not know in words that it does."""

    def _primary(self, expr: Expr) -> str:
        if _is_optional(expr):
            return f"optional_get({self._wrapped(expr)})"
        match expr:
            case MethodCall(Ident("data"), method, arguments):
                return f'data_call("{method}", [{self._listed(arguments)}])'
            case MethodCall(target, method, arguments) if method in _OPTIONAL_METHODS:
                wrapped = (
                    self._wrapped(target)
                    if _is_optional(target)
                    else f"optional_present({self.render(target)})"
                )
                rest = "".join(f", {self.render(one)}" for one in arguments)
                return f"optional_{method}({wrapped}{rest})"
        return super()._primary(expr)

    def _wrapped(self, expr: Expr) -> str:
        """Return source for a list that holds what an optional access leads to, if anything."""
        match expr:
            case MethodCall(target, _, (key,)) | Index(target, key):
                wanted = self.render(key)
            case Member(target, name):
                wanted = f'"{name}"'
            case _:
                raise TypeError(expr)
        if _is_optional(target):
            return f"optional_chain({self._wrapped(target)}, {wanted})"
        return f"optional_of({self.render(target)}, {wanted})"


def _is_optional(expr: Expr) -> bool:
    match expr:
        case MethodCall(_, method, _) if method == OPTIONAL:
            return True
        case Member(operand, _) | Index(operand, _):
            return _is_optional(operand)
    return False


def _present(value: Any) -> list[Any]:
    return [] if value is None else [value]


def _optional_of(value: Any, key: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [value[key]] if key in value else []
    if isinstance(value, list) and isinstance(key, int):
        return [value[key]] if 0 <= key < len(value) else []
    return []


def _optional_chain(found: list[Any], key: Any) -> list[Any]:
    return _optional_of(found[0], key) if found else []


def _or_value(found: list[Any], default: Any = None) -> Any:
    return found[0] if found else default


_OPTIONALS: Mapping[str, Callable[..., Any]] = {
    "orValue": _or_value,
    "hasValue": bool,
    "value": _or_value,
}


# Values --------------------------------------------------------------------------------------


def _member(value: Any, key: Any, source: str, at: int) -> Any:
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        near = did_you_mean(str(key), map(str, value), 1)
        raise complaint(
            f"There is no member {key!r}",
            source,
            at,
            hint=near or 'If it need not be there, write .?name.orValue("...").',
        )
    if isinstance(value, list) and isinstance(key, int) and not isinstance(key, bool):
        if 0 <= key < len(value):
            return value[key]
        raise complaint(
            f"There is no item {key}", source, at, hint=f"The list has {len(value)} items."
        )
    kind = "null" if value is None else type(value).__name__
    raise complaint(
        f"{kind} has no members", source, at, hint='Write .?name.orValue("...") if it may be so.'
    )


def _plain(value: Any, source: str, *, sort: bool = False) -> Any:
    """Return a value as JSON knows it; with `sort` the keys in order, the library keeps none."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise ValidationError(
                    f"a map in {source.strip()} has keys that are not text",
                    hint="Put them in quotes.",
                )
            keys = sorted(value) if sort else value
            return {key: _plain(value[key], source, sort=sort) for key in keys}
        case list() | tuple():
            return [_plain(item, source, sort=sort) for item in value]
        case datetime():
            return to_iso(value)
        case timedelta():
            return f"{value.total_seconds():g}s"
    if hasattr(value, "or_value"):  # an optional of the library
        return _plain(value.or_value(None), source, sort=sort)
    raise ValidationError(
        f"{source.strip()} is {type(value).__name__}, which is nothing to go on with",
        hint="Make text or a number of it.",
    )


# Functions of data ----------------------------------------------------------------------------
#
# Content that is only on the remote is fetched: what an expression says must not depend on what
# this machine happens to have. Texts in data that look like expressions are none; only the
# reference that saving a secret has left stays one.


Record = dict[str, Any]


class DataFunctions:
    """The functions, for one repository; each answer is remembered, so make one for each run."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._definitions = Definitions(repo)
        self._answers: dict[str, Any] = {}

    def call(self, name: str, arguments: Sequence[Any]) -> Any:
        """Return what `data.NAME(ARGUMENTS)` is; raise ValidationError if it is used wrongly."""
        if name not in _FUNCTIONS:
            raise ValidationError(
                f"there is no data.{name}",
                hint=f"There are: {', '.join(f'data.{one}' for one in _FUNCTIONS)}.",
            )
        counts, usage = _FUNCTIONS[name]
        if len(arguments) not in counts:
            raise ValidationError(
                f"data.{name} does not take {len(arguments)} arguments", hint=f"Write {usage}."
            )
        key = repr((name, arguments))
        if key not in self._answers:
            try:
                self._answers[key] = getattr(self, f"_{name}")(*arguments)
            except TypeError as error:
                raise ValidationError(
                    f"data.{name} is given something of a wrong type: {error}",
                    hint=f"Write {usage}.",
                ) from error
        return self._answers[key]

    def _latest(self, model: str, name: str, vary: Sequence[Any] = ()) -> Record | None:
        try:
            found = self._repo.latest(self._model(model), _name(name, vary), default=None)
        except ModelNotFoundError:
            return None
        return self._record(found) if found else None

    def _version(self, model: str, name: str, *rest: Any) -> Record | None:
        *vary, version = rest
        try:
            found = self._repo.version(
                self._model(model), _name(name, *vary), _whole_number(version)
            )
        except NotFoundError:
            return None
        return self._record(found)

    def _listVersions(  # noqa: N802 - as it is called in expressions
        self, model: str, name: str, vary: Sequence[Any] = ()
    ) -> list[int]:
        try:
            return self._repo.list_versions(self._model(model), _name(name, vary))
        except ModelNotFoundError:
            return []

    def _findByTag(self, key: str, value: str) -> list[Record]:  # noqa: N802 - same
        return self._records(self._repo.find_by_tag(_string(key), _string(value)))

    def _findBySpec(self, model: str, spec: str) -> list[Record]:  # noqa: N802 - same
        try:
            return self._records(self._repo.find_by_spec(self._model(model), _string(spec)))
        except ModelNotFoundError:
            return []

    def _query(self, predicate: str, select: str | None = None) -> list[Any]:
        has_remote = self._repo.config.remote is not None
        found = self._repo.query(_string(predicate), select=select, hydrate=has_remote)
        return safe([*found]) if select is not None else self._records([*found])

    def _model(self, model: str) -> str | ModelRef:
        """Return the address of a defined model; others are known by their data, if at all."""
        if ":" in _string(model):
            return model
        defined = self._definitions.find(model)
        return defined.ref if defined else model

    def _records(self, artifacts: Sequence[Artifact]) -> list[Record]:
        from swampstore.repo.querying import fetch_content, read_ahead

        fetch_content(self._repo, [one.row for one in artifacts if _is_readable(one)])
        return [self._record(one) for one in read_ahead(self._repo, artifacts)]

    def _record(self, artifact: Artifact) -> Record:
        record = artifact.record()
        attributes, content = artifact.parsed() if _is_readable(artifact) else ({}, "")
        if attributes is None and _is_readable(artifact) and self._repo.config.remote is not None:
            artifact.open().close()
            attributes, content = artifact.parsed()
        record["attributes"] = safe(attributes or {})
        record["content"] = safe("" if content is None else content)
        return record


_FUNCTIONS = {
    "latest": ((2, 3), "data.latest(MODEL, NAME) or data.latest(MODEL, NAME, [VARY])"),
    "version": ((3, 4), "data.version(MODEL, NAME, VERSION)"),
    "listVersions": ((2, 3), "data.listVersions(MODEL, NAME)"),
    "findByTag": ((2,), "data.findByTag(KEY, VALUE)"),
    "findBySpec": ((2,), "data.findBySpec(MODEL, SPEC)"),
    "query": ((1, 2), "data.query(PREDICATE) or data.query(PREDICATE, SELECT)"),
}
FUNCTION_NAMES = tuple(_FUNCTIONS)


def _is_readable(artifact: Artifact) -> bool:
    return is_text(artifact.content_type) and not artifact.is_too_large_to_parse


def safe(value: Any) -> Any:
    """Return what came out of data, with nothing in it that a run would take for an expression."""
    match value:
        case str():
            return escape_saved(value)
        case Mapping():
            return {key: safe(item) for key, item in value.items()}
        case list() | tuple():
            return [safe(item) for item in value]
    return value


def _name(name: str, vary: Sequence[Any] = ()) -> str:
    if isinstance(vary, str) or not isinstance(vary, Sequence):
        raise TypeError("vary must be a list")
    parts = [one if isinstance(one, str) else vary_value(one) for one in vary]
    if not all(parts):
        raise ValidationError(f"{name} varies by an empty value", hint="Name all of its values.")
    return check_segment("data name", "-".join([_string(name), *parts]))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be text")
    return value


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"the version is {value!r}")
    return value
