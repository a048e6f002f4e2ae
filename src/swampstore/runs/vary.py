"""Vary dimensions: one data name for each combination of some inputs, `result-web-1-prod`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swampstore.errors import ValidationError

_LONGEST_JSON = 64


def varied_name(name: str, keys: Sequence[str], inputs: Mapping[str, Any]) -> str:
    """Return the data name of an instance that varies with some inputs.

    Raises ValidationError if an input is not there, or has no text to be part of a name.
    """
    values = []
    for key in keys:
        if inputs.get(key) is None:
            raise ValidationError(
                f"{name} varies with the input {key!r}, which is not given",
                hint=f"Inputs: {', '.join(inputs) or 'none'}.",
            )
        values.append(_part(inputs[key]))
    return name_with(name, values)


def name_with(name: str, values: Sequence[Any]) -> str:
    """Return the data name for these values; raise ValidationError if one cannot be part of it."""
    parts = [_text(value) if not isinstance(value, str) else value for value in values]
    for part in parts:
        if not part or ".." in part or any(char in part for char in "/\\\0"):
            raise ValidationError(
                f"{part!r} cannot be part of the name of {name}",
                hint="A value may not be empty, nor hold '..', a slash, a backslash or a NUL.",
            )
    return "-".join([name, *parts])


def _part(value: Any) -> str:
    """Return a value as a part of a name, without what no path may hold."""
    text = _text(value)
    for wrong in ("..", "/", "\\"):
        text = text.replace(wrong, "--")
    return text


def _text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return value
        case float() if value.is_integer():
            return str(int(value))
        case int() | float():
            return str(value)
        case Mapping():
            for key in ("key", "name", "id"):
                if isinstance(value.get(key), str | int | float):
                    return _text(value[key])
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))[:_LONGEST_JSON]
