"""Evaluation of expressions on records with the CEL library, corrected where it strays.

The library is slow to import, so it is loaded by the first expression that needs it, and without
the command line of its own that its package imports, which takes a quarter of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from swampstore.catalog.query.fields import roots
from swampstore.catalog.query.tree import Call, Expr, Literal, MethodCall, Renderer, complaint, walk

Record = Mapping[str, Any]

EVALUATION_ERRORS = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What the library raises when an expression fails on a record."""


def library(part: str = "cel.cel") -> Any:
    """Return a module of the library: its compiled part, which evaluates, or `cel.stdlib`.

    The compiled part cannot be loaded twice: each module gets the name under which the package
    itself would look for it.
    """
    if part not in sys.modules:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec

        package = PathFinder.find_spec("cel")
        spec = package and PathFinder.find_spec(part, package.submodule_search_locations)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {part!r}", name=part)
        module = sys.modules[part] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[part]
            raise
    return sys.modules[part]


def evaluator(expr: Expr, source: str) -> Callable[[Record], Any]:
    """Return a function that evaluates `expr` on a record, raising one of EVALUATION_ERRORS.

    Raises QueryError if the library cannot compile it; `source` is what the error shows.
    """
    _ensure_constants_work(expr, source)
    try:
        program = library().compile(LibraryRenderer().render(expr))
    except ValueError as error:
        raise complaint(
            "The query cannot be evaluated", source, expr.at, hint=str(error).splitlines()[0]
        ) from error
    names = sorted(roots(expr))
    functions = {
        name: LIBRARY_FUNCTIONS[name] for name in program.functions() if name in LIBRARY_FUNCTIONS
    }

    def evaluate(record: Record) -> Any:
        return program.execute({**functions, **{name: record[name] for name in names}})

    return evaluate


def _ensure_constants_work(expr: Expr, source: str) -> None:
    """Raise QueryError for a pattern or a time that would fail on every record."""
    for part in walk(expr):
        match part:
            case MethodCall(_, "matches", (Literal() as constant,)):
                trial: Expr = MethodCall(Literal("string", ""), "matches", (constant,))
            case Call("timestamp" | "duration", (Literal() as constant,)):
                trial = part
            case _:
                continue
        try:
            library().evaluate(Renderer().render(trial))
        except EVALUATION_ERRORS as error:
            raise complaint(
                f"{constant.value!r} cannot be used here",
                source,
                constant.at,
                hint=" ".join(str(error).split()),
            ) from error


class LibraryRenderer(Renderer):
    """Writes the calls that the library gets wrong in a way it gets right."""

    def call(self, expr: Call) -> str:
        """Return the call with its argument made fit for the library."""
        text = super().call(expr)
        wrapper = _ARGUMENTS.get(expr.function)
        if wrapper is None:
            return text
        return f"{expr.function}({wrapper}{text.removeprefix(expr.function)})"


# The library reports an exception of a Python function on stderr, so none of them raises: a value
# they have no answer for is passed on, and the library refuses it as it should.


def _countable(value: object) -> object:
    """Return something of the right size: the library counts the bytes of a text."""
    return bytes(len(value)) if isinstance(value, str) else value


def _printable(value: object) -> object:
    """Return the text of a boolean: the library has no `string(true)`."""
    return str(value).lower() if isinstance(value, bool) else value


def _boolean(value: object) -> object:
    """Return what a text says: the library has no `bool("true")`."""
    if isinstance(value, str):
        return _BOOLEANS.get(value)
    return value if isinstance(value, bool) else None


_BOOLEANS = dict.fromkeys(("1", "t", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "false", "FALSE", "False"), False
)
_ARGUMENTS = {"size": "countable", "string": "printable"}
LIBRARY_FUNCTIONS = {"countable": _countable, "printable": _printable, "bool": _boolean}
