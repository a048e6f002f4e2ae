"""References to secrets, `${{ vault.get('ops','db-password') }}`: how they read, and their values.

Definitions and everything that is saved keep the reference; only a run resolves it. Whatever a
`Resolver` resolved is known to its redactor before anybody else has seen it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.redaction import Redactor

if TYPE_CHECKING:
    from swampstore.vaults import Vaults
    from swampstore.vaults.vault import Vault

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_ARGUMENT = r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([A-Za-z0-9_][A-Za-z0-9_.\-]*))\s*"""
_CALL = re.compile(rf"vault\.get\({_ARGUMENT},{_ARGUMENT}\)", re.DOTALL)
_SAVED = re.compile(r"\$\{\{\s*vault\.get\(\s*'.*'\s*,\s*'.*'\s*\)\s*\}\}", re.DOTALL)
_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_BEFORE = re.compile(r"[\w.]\Z")
_VARIABLE = "__SWAMP_VAULT_{}"
_OPENING = "${{"
# An expression that stands for nothing but the beginning of one.
LITERAL = f"${{{{ '{_OPENING}' }}}}"
# An expression ends with two of them, wherever they are.
_BRACES = r"\}\}"


class Reference(NamedTuple):
    """One secret of one vault. As text it is what a definition says instead of the value."""

    vault: str
    key: str

    def __str__(self) -> str:
        return f"${{{{ vault.get({_quoted(self.vault)},{_quoted(self.key)}) }}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped.replace('}}', _BRACES)}'"


def parse_reference(text: str) -> Reference | None:
    """Return what a text refers to if it is one reference and nothing else, else None."""
    found = EXPRESSION.fullmatch(text.strip())
    return _whole(found[1]) if found else None


def references_in(text: str) -> list[Reference]:
    """Return every secret that the expressions of a text refer to, in their order, once each.

    They need not be the whole of an expression: `${{ "Bearer " + vault.get('ops','api') }}`.
    """
    expressions = (found[1] for found in EXPRESSION.finditer(text))
    return [*dict.fromkeys(one for expression in expressions for one in _calls(expression))]


def _whole(expression: str) -> Reference | None:
    found = _CALL.fullmatch(expression.strip())
    return _reference(found) if found else None


def _calls(expression: str) -> Iterator[Reference]:
    at = 0
    while at < len(expression):
        if found := _CALL.match(expression, at):
            if not _BEFORE.search(expression[:at]):
                yield _reference(found)
            at = found.end()
        elif literal := _LITERAL.match(expression, at):
            at = literal.end()
        else:
            at += 1


def _reference(found: re.Match[str]) -> Reference:
    vault, key = (
        next(part for part in found.groups()[first : first + 3] if part is not None)
        for first in (0, 3)
    )
    return Reference(re.sub(r"\\(.)", r"\1", vault), re.sub(r"\\(.)", r"\1", key))


def is_literal(expression: str) -> bool:
    """Whether what is between the braces only stands for the beginning of an expression."""
    return expression.strip() == f"'{_OPENING}'"


def escape(text: str) -> str:
    """Return a text in which nothing will be taken for a reference; resolving it gives it back.

    What others have written into data must not decide which secrets a run is given.
    """
    return text.replace(_OPENING, LITERAL)


def escape_saved(text: str) -> str:
    """Return a text as `escape` does, unless it is the one reference that saving a secret left."""
    return text if _OPENING not in text or _SAVED.fullmatch(text) else escape(text)


class Resolver:
    """Resolves references for one run, each secret once, and remembers them for the redactor."""

    def __init__(self, vaults: Vaults, redactor: Redactor | None = None) -> None:
        self._vaults = vaults
        self._opened: dict[str, Vault] = {}
        self._values: dict[Reference, str] = {}
        self.redactor = Redactor() if redactor is None else redactor

    @property
    def resolved(self) -> list[Reference]:
        """Every reference that was resolved so far."""
        return [*self._values]

    def get(self, vault: str, key: str) -> str:
        """Return the value of a secret, the same one for as long as the run takes."""
        reference = Reference(vault, key)
        if reference not in self._values:
            if vault not in self._opened:
                self._opened[vault] = self._vaults.open(vault)
            value = self._opened[vault].get(key)
            self.redactor.add(value)
            self._values[reference] = value
        return self._values[reference]

    def text(self, text: str) -> str:
        """Return a text with the value of each reference that is an expression by itself."""

        def value(found: re.Match[str]) -> str:
            if is_literal(found[1]):
                return _OPENING
            reference = _whole(found[1])
            return self.get(*reference) if reference else found[0]

        return EXPRESSION.sub(value, text)

    def document(self, value: Any) -> Any:
        """Return what JSON can hold with the references in its texts resolved; keys stay."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {key: self.document(item) for key, item in value.items()}
            case list() | tuple():
                return [self.document(item) for item in value]
        return value

    def resource(self, value: Any) -> Any:
        """Return a resource that was read, resolved where a text is one reference and no more.

        It has single quotes, as a save writes it; anything else was meant as it is.
        """
        match value:
            case str():
                reference = parse_reference(value) if _SAVED.fullmatch(value) else None
                return self.get(*reference) if reference else value
            case Mapping():
                return {key: self.resource(item) for key, item in value.items()}
            case list() | tuple():
                return [self.resource(item) for item in value]
        return value

    def shell(self, command: str) -> tuple[str, dict[str, str]]:
        """Return a shell command that finds its secrets in variables, and these variables.

        So no value is seen by who lists processes, and none is taken for a part of the command.
        """
        parts: list[str] = []
        variables: dict[Reference, str] = {}
        at, quote = 0, ""
        for found in EXPRESSION.finditer(command):
            reference = _whole(found[1])
            before = command[at : found.start()]
            if is_literal(found[1]):
                quote = _open_quote(before, quote)
                parts += (before, _OPENING)
                at = found.end()
                continue
            if reference is None:
                continue
            quote = _open_quote(before, quote)
            name = variables.setdefault(reference, _VARIABLE.format(len(variables)))
            parts += (before, _in_quotes(f"${{{name}}}", quote))
            at = found.end()
        parts.append(command[at:])
        return "".join(parts), {name: self.get(*one) for one, name in variables.items()}


def _open_quote(text: str, quote: str) -> str:
    """Return which quote is open behind a part of a shell command, if one was open before it."""
    skip = False
    for char in text:
        if skip:
            skip = False
        elif char == "\\" and quote != "'":
            skip = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
    return quote


def _in_quotes(variable: str, quote: str) -> str:
    match quote:
        case '"':
            return variable
        case "'":
            return f"'\"{variable}\"'"
    return f'"{variable}"'
