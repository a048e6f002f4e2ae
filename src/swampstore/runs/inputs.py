"""Inputs: what a run is given, read from `k=v`, checked against a JSON Schema before anything runs.

The schema says which type a value of the command line has. Whatever it does not declare is refused,
with the name that was probably meant.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from swampstore.notices import did_you_mean
from swampstore.runs.errors import InputError, InputSchemaError

_Schema = Mapping[str, Any]
_BOOLEANS = {"true": True, "false": False}
_LISTED = 12
_LONGEST = 16 << 20


# From the command line -----------------------------------------------------------------------


def parse_pairs(pairs: Iterable[str], schema: _Schema | None) -> dict[str, Any]:
    """Return the values of `k=v` pairs, each of the type that the schema gives it, else text.

    `k:=JSON` is taken as it is; `k=@FILE` is what a file holds, and `k=@@text` begins with an @.
    A key that is there more than once makes a list, and `k.inner=v` is a member of the object `k`,
    both if the schema says so.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name or name == ":":
            raise InputError(f"{pair!r} is not an input", hint="Write NAME=VALUE.")
        if any("\ud800" <= char <= "\udfff" for char in pair):
            raise InputError(
                f"the input {name!r} is not valid UTF-8", hint="Give it as UTF-8 text."
            )
        if name.endswith(":") and name not in _properties(schema):
            _put(values, name[:-1], _json(name[:-1], text), schema)
        else:
            _put(values, name, text, schema, typed)
    return values


def _put(
    values: dict[str, Any],
    name: str,
    value: Any,
    schema: _Schema | None,
    convert: Callable[[str, str, _Schema], Any] | None = None,
) -> None:
    """Put a value where its name says: itself, a member of an object, or one more of a list."""
    outer, dot, inner = name.partition(".")
    declared = _properties(schema)
    if dot and name not in declared and "object" in _types(declared.get(outer, {})):
        below = values.setdefault(outer, {})
        if isinstance(below, dict):
            _put(below, inner, value, declared[outer], convert)
            return
    one = declared.get(name, {})
    if convert is not None:
        value = convert(name, _text(name, value), one)
    if "array" in _types(one) and name in values and isinstance(values[name], list):
        values[name] += value if isinstance(value, list) else [value]
    elif name in values:
        raise InputError(f"the input {name} is there twice", hint="Give it once: it is not a list.")
    else:
        values[name] = value


def _text(name: str, text: str) -> str:
    """Return what a value says, from a file if it names one."""
    if text.startswith("@@"):
        return text[1:]
    if not text.startswith("@"):
        return text
    try:
        with open(text[1:], encoding="utf-8") as file:
            found = file.read(_LONGEST + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the input {name} cannot be read from {text[1:]}: {error}",
            hint=f"Write {name}=@{text} if the value itself begins with an @.",
        ) from error
    if len(found) > _LONGEST:
        raise InputError(
            f"the input {name} is longer than {_LONGEST >> 20} MiB in {text[1:]}",
            hint="An input is part of the record of its run; give the name of the file instead.",
        )
    return found


def typed(name: str, text: str, schema: _Schema) -> Any:
    """Return a text as the first of the types that the schema allows and that it can be."""
    types = _types(schema)
    if isinstance(allowed := schema.get("enum"), list) and not types:
        return next((one for one in allowed if one == text or json.dumps(one) == text), text)
    # Any text is a string, so that comes last.
    for kind in sorted(types, key=lambda one: one == "string"):
        if (found := _as(kind, text, schema)) is not _NO:
            return found
    if not types or "string" in types:
        return text
    raise InputError(
        f"the input {name} is {text!r} and must be {_listed(types, 'or')}",
        hint=_HINTS.get(types[0], "") or "Look at the inputs of the definition.",
    )


_NO = object()
_HINTS = {
    "boolean": "Write true or false.",
    "integer": "Write a whole number.",
    "number": "Write a number, with a point if need be.",
    "object": "Write JSON, or a member at a time: NAME.MEMBER=VALUE.",
}


def _as(kind: str, text: str, schema: _Schema) -> Any:  # noqa: PLR0911 - one for each type
    match kind:
        case "string":
            return text
        case "boolean":
            return _BOOLEANS.get(text.strip(), _NO)
        case "null":
            return None if text.strip() in ("", "null") else _NO
        case "array" if not text.lstrip().startswith("["):
            items = schema.get("items")
            return [typed("item", text, items if isinstance(items, Mapping) else {})]
    try:
        value = json.loads(text)
    except ValueError:
        return _NO
    if isinstance(value, bool):
        return _NO
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, _PYTHON.get(kind, ())) else _NO


_PYTHON: Mapping[str, Any] = {
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(
            f"the input {name} is not JSON: {error}", hint=f"Write {name}=VALUE for plain text."
        ) from error


def _types(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return [one for one in named if isinstance(one, str)]
    choices = schema.get("anyOf") or schema.get("oneOf") or []
    if not isinstance(choices, list):
        return []
    return [*dict.fromkeys(kind for choice in choices for kind in _types(choice))]


def _properties(schema: _Schema | None) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, dict) else {}


# Against the schema --------------------------------------------------------------------------


def check_inputs(schema: _Schema | None, values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the inputs with defaults filled in; raise InputError that names the wrong field.

    `what` is whose inputs they are, a file for example. Without a schema everything is allowed. A
    name that the schema does not declare is refused unless it says `additionalProperties: true`.
    Raises InputSchemaError if the schema itself is wrong.
    """
    filled: dict[str, Any] = copy.deepcopy(dict(values))
    if schema is None:
        return filled
    check = _compiled(schema, what)
    _refuse_unknown(schema, filled, what)
    _validate(check, filled, what)
    return filled


def _refuse_unknown(schema: _Schema, values: Mapping[str, Any], what: str) -> None:
    if schema.get("additionalProperties") not in (None, False) or schema.get("patternProperties"):
        return
    if any(key in schema for key in ("allOf", "anyOf", "oneOf", "$ref", "if")):
        return  # they may declare more; the schema itself says what it refuses
    declared = _properties(schema)
    for name in values:
        if name not in declared:
            raise InputError(f"{what}: there is no input {name!r}", hint=_near(name, [*declared]))


def _near(name: str, declared: list[str]) -> str:
    if question := did_you_mean(name, declared, 1):
        return question
    return f"Its inputs are: {', '.join(declared[:_LISTED])}." if declared else "It takes none."


def _compiled(schema: _Schema, what: str) -> Callable[[Any], Any]:
    import fastjsonschema

    try:
        # A schema comes from a file of the repository; nothing is fetched because it says so.
        found: Callable[[Any], Any] = fastjsonschema.compile(
            {"type": "object", **schema}, handlers=_NoHandlers()
        )
    except Exception as error:  # the library raises whatever it stumbles over
        reason = str(error) or type(error).__name__
        raise InputSchemaError(
            f"{what}: the schema of the inputs cannot be used: {reason}",
            hint="It must be a JSON Schema that refers to nothing outside of itself.",
        ) from error
    return found


class _NoHandlers(dict[str, Any]):
    """Stands for a handler of every scheme, each of which refuses."""

    def __contains__(self, scheme: object) -> bool:
        return True

    def __getitem__(self, scheme: str) -> Any:
        def refuse(uri: str) -> Any:
            raise ValueError(f"it refers to {uri}")

        return refuse


def _validate(check: Callable[[Any], Any], values: dict[str, Any], what: str) -> None:
    import fastjsonschema

    try:
        check(values)
    except fastjsonschema.JsonSchemaValueException as error:
        if error.rule == "required":
            missing = [name for name in error.rule_definition if name not in error.value]
            field = ".".join([*error.path[1:], missing[0]])
            raise InputError(
                f"{what}: the input {field} is missing",
                hint=f"Give it: --input {field}=VALUE.",
            ) from None
        field = ".".join(map(str, error.path[1:]))
        subject = f"the input {field}" if field else "the inputs"
        reason = error.message.removeprefix(str(error.name)).strip()
        raise InputError(
            f"{what}: {subject} {reason}", hint="Look at the inputs of the definition."
        ) from None


def _listed(words: list[str], last: str) -> str:
    named = [_ARTICLES.get(word, word) for word in words]
    return f" {last} ".join(named)


_ARTICLES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "string": "text",
}
