"""Expressions, `${{ inputs.host }}`: in definitions and workflows, before anything runs.

Secrets are the exception: a reference to one stays as it is, in everything that is evaluated and
kept, and only `resolve` puts the value in its place, for the run alone. See
docs/reference/expressions.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from swampstore.errors import QueryError, SwampstoreError, ValidationError
from swampstore.notices import did_you_mean, notice
from swampstore.redaction import Redactor, is_secret
from swampstore.runs.errors import ExpressionError
from swampstore.vaults.references import EXPRESSION, Reference, is_literal, parse_reference

if TYPE_CHECKING:
    from swampstore.catalog.query.tree import Expr
    from swampstore.repo import Repo
    from swampstore.runs.definitions import Definition
    from swampstore.runs.expression_values import DataFunctions, Evaluation
    from swampstore.vaults.references import Resolver

_OPENING = "${{"
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", re.ASCII)
_RESERVED = frozenset({"true", "false", "null", "in"})
# A reference whose arguments have no quotes, and are no names of a scope.
_BARE = r"\s*([A-Za-z0-9_][A-Za-z0-9_.\-]*|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\s*"
_BARE_CALL = re.compile(rf"\bvault\.get\({_BARE},{_BARE}\)")
_ROOTS = ("inputs", "env", "self", "definition")
_SCOPED = re.compile(rf"(?:{'|'.join(_ROOTS)})\.")


class Scope:
    """What expressions may see. Answers of `data.*` are remembered: make one for each step.

    `self_values` are what `self.*` says, by default the same as `definition.*`. What mentions one
    of the names in `defer` (`data` or `self`, say) is left as it is, to be evaluated later.
    `where` is the file that errors name, if it is not the definition's.
    """

    def __init__(
        self,
        repo: Repo | None,
        *,
        inputs: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        self_values: Mapping[str, Any] | None = None,
        definition: Definition | None = None,
        redactor: Redactor | None = None,
        defer: Collection[str] = (),
        where: str | None = None,
    ) -> None:
        self._repo = repo
        self._inputs = inputs or {}
        self._environ = os.environ if environ is None else environ
        self._self = self_values
        self._definition = definition
        self._redactor = redactor
        self.defer = frozenset(defer)
        self.where = where or (definition.where if definition else "")
        self._data: DataFunctions | None = None
        self._evaluation: Evaluation | None = None

    def root(self, name: str) -> Any:
        """Return what a name stands for."""
        match name:
            case "inputs":
                return self._inputs
            case "self" if self._self is not None:
                return self._self
            case "env":
                return _Environment(self._environ, self._redactor)
        return described(self._definition) if self._definition else {}

    @property
    def evaluation(self) -> Evaluation:
        """What evaluates expressions that are more than a path."""
        if self._evaluation is None:
            from swampstore.runs.expression_values import Evaluation

            roots = {name: lambda name=name: self._root_value(name) for name in _ROOTS}
            self._evaluation = Evaluation(roots, self._call_data)
        return self._evaluation

    def note_secrets(self, expr: Expr) -> None:
        """Say so if an expression takes what looks like a secret from the environment."""
        from swampstore.catalog.query.tree import Ident, Member, walk

        for part in walk(expr):
            match part:
                case Member(Ident("env"), name) if name in self._environ:
                    self.root("env")[name]

    def _root_value(self, name: str) -> Any:
        found = self.root(name)
        return found.for_library() if isinstance(found, _Environment) else found

    def _call_data(self, name: str, arguments: Any) -> Any:
        if self._repo is None:
            raise ValidationError(
                "there is no data here", hint="Use data.* where something is run."
            )
        if self._data is None:
            from swampstore.runs.expression_values import DataFunctions

            self._data = DataFunctions(self._repo)
        return self._data.call(name, arguments)


def described(definition: Definition) -> dict[str, Any]:
    """Return what expressions may know of a definition."""
    return {
        "id": definition.id,
        "name": definition.name,
        "type": definition.type,
        "version": definition.version,
        "tags": dict(definition.tags),
        "globalArguments": dict(definition.global_arguments),
    }


class _Environment(Mapping[str, str]):
    """The environment of the process; says so when what looks like a secret is taken from it."""

    def __init__(self, environ: Mapping[str, str], redactor: Redactor | None) -> None:
        self._environ = environ
        self._redactor = redactor

    def __getitem__(self, name: str) -> str:
        from swampstore.vaults.references import escape

        value = self._environ[name]
        if is_secret(name):
            notice("env.%s is kept as it is in what is saved: put it into a vault instead", name)
            if self._redactor is not None:
                self._redactor.add(value)
        return escape(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._environ)

    def __len__(self) -> int:
        return len(self._environ)

    def for_library(self) -> dict[str, str]:
        from swampstore.vaults.references import escape

        return {name: escape(value) for name, value in self._environ.items()}


# Documents -----------------------------------------------------------------------------------


def evaluate(value: Any, scope: Scope, member: str = "") -> Any:
    """Return a document with the expressions in its texts evaluated; keys stay as they are.

    A text that is one expression becomes its value, of whatever type; an expression within a text
    becomes text. References to secrets stay. `member` is where the document is in its file. Raises
    ExpressionError that names the file, the member and the expression.
    """
    match value:
        case str():
            return _text(value, scope, member) if _OPENING in value else value
        case Mapping():
            prefix = f"{member}." if member else ""
            return {key: evaluate(one, scope, f"{prefix}{key}") for key, one in value.items()}
        case list() | tuple():
            return [evaluate(one, scope, f"{member}[{at}]") for at, one in enumerate(value)]
    return value


def evaluate_tags(tags: Mapping[str, str], scope: Scope) -> dict[str, str]:
    """Return tags with their expressions evaluated; whatever comes out becomes text."""
    values = evaluate(tags, scope, "tags")
    for key, value in values.items():
        if value is None:
            raise _error(scope, f"tags.{key}", tags[key], "it is null", "Tags are text.")
    return {key: _as_text(value) for key, value in values.items()}


def resolve(value: Any, resolver: Resolver) -> Any:
    """Return a document with references to secrets replaced by their values, for a run alone.

    Call it once: a value is not looked into again.
    """
    return resolver.document(value)


def is_true(expression: str, scope: Scope, member: str = "") -> bool:
    """Whether a condition holds, written with or without the braces.

    Null does not; other values count if there is something: a number but 0, a list with items.
    Raises ExpressionError for text, which is neither, and for whatever is wrong with it.
    """
    source = _without_braces(expression)
    value = _evaluated(source, scope, member)
    if isinstance(value, str):
        if value in ("true", "false"):
            return value == "true"
        raise _error(scope, member, source, f"it is the text {value!r}, not true or false", "")
    return bool(value)


def check_condition(expression: str, member: str = "") -> None:
    """Raise ExpressionError for a condition that cannot be parsed; nothing is evaluated."""
    _check_source(_without_braces(expression), member)


def check_document(value: Any, member: str = "") -> None:
    """Raise ExpressionError if an expression in a document cannot be parsed; none is evaluated."""
    match value:
        case str():
            for found in EXPRESSION.finditer(value):
                _check_source(found[1], member)
            _check_ends(EXPRESSION.sub("", value), Scope(None), member)
        case Mapping():
            for key, one in value.items():
                check_document(one, f"{member}.{key}")
        case list() | tuple():
            for at, one in enumerate(value):
                check_document(one, f"{member}[{at}]")


def _check_source(source: str, member: str) -> None:
    source = source.strip()
    if is_literal(source) or parse_reference(f"{_OPENING}{source}}}}}"):
        return
    try:
        _parsed(source)
    except QueryError as error:
        raise _error(Scope(None), member, source, _reason(error), error.hint) from error


def _without_braces(condition: str) -> str:
    text = condition.strip()
    found = EXPRESSION.match(text)
    return found[1] if found and found.end() == len(text) else text


def mentions(value: Any, name: str) -> bool:
    """Whether an expression in a document mentions a name, `data` say; wrong ones do not."""
    match value:
        case str():
            return any(name in _names_in(found[1]) for found in EXPRESSION.finditer(value))
        case Mapping():
            return any(mentions(one, name) for one in value.values())
        case list() | tuple():
            return any(mentions(one, name) for one in value)
    return False


def _names_in(source: str) -> set[str]:
    from swampstore.catalog.query.fields import free_names

    if _PATH.fullmatch(source.strip()):
        return {source.strip().partition(".")[0]}
    try:
        return {ident.name for ident in free_names(_parsed(source))}
    except SwampstoreError:
        return set()


# Texts ---------------------------------------------------------------------------------------


def _text(text: str, scope: Scope, member: str) -> Any:
    stripped = text.strip()
    whole = EXPRESSION.match(stripped)
    if whole and whole.end() == len(stripped):
        return _kept_or_value(whole, scope, member)
    parts: list[str] = []
    at = 0
    for found in EXPRESSION.finditer(text):
        value = _kept_or_value(found, scope, member)
        parts.append(text[at : found.start()])
        try:
            parts.append(_as_text(value))
        except ValidationError as error:
            raise _error(scope, member, found[1], error.message, error.hint) from error
        at = found.end()
    rest = text[at:]
    _check_ends(rest, scope, member)
    return "".join([*parts, rest])


def _check_ends(rest: str, scope: Scope, member: str) -> None:
    """Raise ExpressionError for what begins in a text behind its last whole expression."""
    if _OPENING in rest:
        raise _error(
            scope, member, rest[rest.index(_OPENING) + 3 :], "it has no end", "Close it with }}."
        )


def _kept_or_value(found: re.Match[str], scope: Scope, member: str) -> Any:
    """Return the value of an expression, or its text if that is to stay."""
    source = found[1]
    if is_literal(source):
        return found[0]
    if scope.defer and scope.defer & _names_in(source):
        return found[0]
    return _evaluated(source, scope, member)


def _evaluated(source: str, scope: Scope, member: str) -> Any:
    source = source.strip()
    if (reference := parse_reference(f"{_OPENING}{source}}}}}")) and not _is_computed(source):
        return str(reference)
    try:
        if _PATH.fullmatch(source):
            root, *names = source.split(".")
            if root in _ROOTS and not _RESERVED & {*names}:
                return _follow(scope, root, names)
        expr = _parsed(source)
        scope.evaluation.ensure_known(expr, source)
        scope.note_secrets(expr)
        if _asks_vault(expr):
            return _with_secret(expr, source, scope)
        return scope.evaluation.value(expr, source)
    except (QueryError, ValidationError) as error:
        raise _error(scope, member, source, _reason(error), error.hint) from error


def _reason(error: SwampstoreError) -> str:
    """Return what is wrong on one line, as records keep it; the expression is told before it."""
    return error.message.partition(":\n")[0].replace("The query", "The expression")


def _follow(scope: Scope, root: str, names: list[str]) -> Any:
    """Return what a path leads to, without a parser."""
    value, path = scope.root(root), root
    for name in names:
        if not isinstance(value, Mapping):
            what = json.dumps(value, default=str)
            raise ValidationError(f"{path} is {what[:60]}, which has no members", hint="")
        if name not in value:
            raise ValidationError(f"{path} has no member {name!r}", hint=_near(root, name, value))
        value, path = value[name], f"{path}.{name}"
    return value


def _near(root: str, name: str, known: Mapping[str, Any]) -> str:
    if question := did_you_mean(name, known, 1):
        return question
    if root == "env":
        return f"Set the variable {name}."
    return f"There is: {', '.join(known)}." if known else "There is nothing in it."


def _parsed(source: str) -> Expr:
    from swampstore.catalog.query.syntax import parse

    if not source.strip():
        raise QueryError("it is empty", hint="Write an expression between the braces.")
    return parse(_BARE_CALL.sub(_with_quotes, source), optional=True)


def _as_text(value: Any) -> str:
    """Return a value as a part of a text; raise ValidationError for null."""
    match value:
        case None:
            raise ValidationError(
                "it is null, which cannot be part of a text",
                hint='Write .orValue("...") for what to say instead.',
            )
        case str():
            return value
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _error(
    scope: Scope, member: str, source: str, reason: str, hint: str | None
) -> ExpressionError:
    where = ": ".join(part for part in (scope.where, member) if part)
    shown = " ".join(source.split())
    prefix = f"{where}: " if where else ""
    return ExpressionError(f"{prefix}${{{{ {shown} }}}}: {reason}", hint=hint or None)


# Secrets -------------------------------------------------------------------------------------


def _is_computed(source: str) -> bool:
    """Whether an argument of a reference is a name of the scope, not the name of a secret."""
    found = _BARE_CALL.search(source)
    return found is not None and any(_SCOPED.match(found[at]) for at in (1, 2))


def _with_quotes(found: re.Match[str]) -> str:
    arguments = (
        part if part[0] in "'\"" or _SCOPED.match(part) else f"'{part}'" for part in found.groups()
    )
    return f"vault.get({', '.join(arguments)})"


def _asks_vault(expr: Expr) -> bool:
    from swampstore.catalog.query.fields import free_names

    return any(ident.name == "vault" for ident in free_names(expr))


def _with_secret(expr: Expr, source: str, scope: Scope) -> Any:
    """Return text with references for an expression that joins secrets with other text.

    The value of a secret is not known before the run, so nothing can be computed with it.
    """
    from swampstore.catalog.query.tree import Binary, Conditional, Ident, MethodCall, complaint

    def value(part: Expr) -> Any:
        return scope.evaluation.value(part, source)

    match expr:
        case _ if not _asks_vault(expr):
            return _as_text(value(expr))
        case MethodCall(Ident("vault"), "get", (vault, key)) if not (
            _asks_vault(vault) or _asks_vault(key)
        ):
            return str(Reference(_as_text(value(vault)), _as_text(value(key))))
        case Binary("+", left, right):
            return _with_secret(left, source, scope) + _with_secret(right, source, scope)
        case Conditional(test, then, otherwise) if not _asks_vault(test):
            return _with_secret(then if value(test) is True else otherwise, source, scope)
    raise complaint(
        "The value of a secret is not known before the run",
        source,
        expr.at,
        hint="Use vault.get(VAULT, KEY) by itself, join it with text by +, or choose with ? :.",
    )
