"""Reading: the quick reader where it is sure, the complete one where it is not."""

from __future__ import annotations

from typing import Any

from swampstore.errors import YamlError
from swampstore.yaml_dialect.quick_reader import NotSureError, read_quickly

_NAMES = {type(None): "nothing", list: "a list", str: "text", bool: "a boolean"}


def load(data: bytes | str, *, what: str) -> Any:
    """Decode one YAML document; an empty document is None.

    Only the YAML 1.2 core types exist: timestamps, `yes` and `on` stay text. `what` names the
    file in errors. Raises `YamlError` for whatever cannot be read as exactly one document.
    """
    text = data if isinstance(data, str) else _decoded(data, what)
    text = text.removeprefix("\ufeff")
    try:
        return read_quickly(text)
    except NotSureError:
        from swampstore.yaml_dialect.full_reader import read_fully

        return read_fully(text, what=what)


def load_mapping(data: bytes | str, *, what: str) -> dict[str, Any]:
    """Like `load`, for a document that must be a mapping with text keys at the top level."""
    document = load(data, what=what)
    if not isinstance(document, dict):
        raise YamlError(
            f"{what} holds {_NAMES.get(type(document), 'a number')} where a mapping belongs",
            hint="write it as `key: value` lines",
        )
    for key in document:
        if not isinstance(key, str):
            raise YamlError(
                f"{what} has the key {key!r}, which is not text",
                hint=f"put the key in quotes: '{key}'",
            )
    return document


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError(
            f"{what}, line {line}: the file is not UTF-8 text",
            hint="save the file as UTF-8, or restore it from a backup",
        ) from error
