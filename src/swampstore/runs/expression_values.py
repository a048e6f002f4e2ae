"""The value of one expression: CEL, with `data.*` and the names of a scope.

A path such as `inputs.host`, or what is below one artifact, is followed here; everything else is
evaluated by the CEL library, which is slow to import and therefore only loaded when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from swampstore.catalog.query.evaluate import (
    EVALUATION_ERRORS,
    LIBRARY_FUNCTIONS,
    LibraryRenderer,
    library,
)
from swampstore.catalog.query.fields import TYPE_NAMES, free_names, suggestion
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
from swampstore.errors import QueryError, SwampstoreError, ValidationError

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
                    hint=suggestion(ident.name, known) + "Text is written in quotes.",
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
        near = suggestion(str(key), [str(one) for one in value])
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
