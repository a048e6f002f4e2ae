"""Reading: a fast reader for the plain block style of most files, a complete one beside it."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from swampstore.errors import YamlError
from swampstore.yaml_dialect.scalars import KEYWORDS, MAX_DEPTH, type_plain_scalar

# No class here holds an ASCII control character; other unprintables are looked for apart.
# No group is repeated possessively: Python before 3.11.5, which Debian 12 has, goes on reading at
# the wrong place after such a group has failed.
_WORD = r"[^\x00-\x20\x7f:\#]*+"
_WORDS = rf"{_WORD}(?:(?::|[ ]++)(?=[^\x00-\x20\#:]){_WORD})*"
_SINGLE = r"[^\x00-\x1f\x7f']"
_DOUBLE = r"[^\x00-\x1f\x7f\"\\]"
_COMMENT = r"\#[^\x00-\x1f\x7f]*+"
_ROW = re.compile(
    rf"""^([ ]*+(?:-[ ]++)?)                       # lead: indentation, and dash if any
    (?=[^ \n\#])
    (?:(?:([A-Za-z_$][A-Za-z0-9_./$-]{{0,99}}+)     # key
         |('{_SINGLE}{{0,99}}+'|"{_DOUBLE}{{0,99}}+")  # key in quotes
       ):(?:[ ]++|(?=\n)))?
    (?:((?:[a-eg-mo-su-zA-EG-MO-SU-Z_/$]            # a value that is text: no keyword starts so,
          |[0-9][0-9]*+[a-df-np-wyzA-DF-NP-WYZ_/$-] # and no number
        ){_WORDS})
      |([^\x00-\x20\x7f\-?:,\[\]{{}}\#&*!|>'"%@`]{_WORDS}   # any other value
       |'{_SINGLE}*+(?:''{_SINGLE}*+)*'
       |"{_DOUBLE}*+"
       |-[0-9.]++
       |\{{\}}|\[\])
      |)
    (?:\n|[ ]*+(?:(?<=[ ]){_COMMENT})?\n)""",
    re.VERBOSE | re.MULTILINE,
)
_EMPTY_ROW = re.compile(rf"^[ ]*+(?:{_COMMENT})?\n", re.VERBOSE | re.MULTILINE)

_Row = tuple[str, str, str, str, str]
_Collection = TypeVar("_Collection", dict[str, Any], list[Any])
_Stack = list[tuple[str, dict[str, Any] | list[Any]]]
_IN_SEQUENCE = "-"  # a level that equals no indentation


class NotSureError(ValueError):
    """The text is beyond the quick reader, which says nothing about its being valid."""


def read_quickly(text: str) -> Any:
    """Return the document in `text`, or raise `NotSureError`."""
    if text[-1:] != "\n":
        text += "\n"
    if not text.isascii() and not text.replace("\n", "").isprintable():
        raise NotSureError
    rows = _ROW.findall(text)
    if len(rows) != text.count("\n"):
        text = _EMPTY_ROW.sub("", text)
        rows = _ROW.findall(text)
        if len(rows) != text.count("\n"):
            raise NotSureError
    return _nested(rows) or None


def _nested(rows: list[_Row]) -> dict[str, Any]:
    """Put the rows together by their indentation.

    `opener` is the key of the row before if that row had no value: what is deeper is its value.
    """
    document: dict[str, Any] = {}
    stack: _Stack = [("", document)]
    level, target = "", document
    opener: str | None = None
    for lead, plain_key, quoted_key, text, other in rows:
        key = plain_key or quoted_key[1:-1]
        if lead != level:
            if "-" not in lead:
                level, target = lead, _collection_at(stack, lead, dict, opener)
            else:
                items = _collection_at(stack, lead[: lead.index("-")], list, opener)
                if not plain_key and not quoted_key:
                    items.append(text or _scalar(other))
                    level, opener = _IN_SEQUENCE, None
                    continue
                level, target = " " * len(lead), {}
                items.append(target)
                _push(stack, level, target)
        if key in target or key in KEYWORDS:  # there twice, missing or not text
            raise NotSureError
        if text:
            target[key], opener = text, None
        elif other:
            target[key], opener = _scalar(other), None
        else:
            target[key], opener = None, key
    return document


def _collection_at(
    stack: _Stack, indent: str, kind: type[_Collection], opener: str | None
) -> _Collection:
    """Find or open the collection that a row with this indentation belongs to."""
    parent_indent, parent = stack[-1]
    deeper = indent > parent_indent or (kind is list and indent == parent_indent)
    if opener is not None and deeper and isinstance(parent, dict):
        opened = kind()
        parent[opener] = opened
        _push(stack, indent, opened)
        return opened
    while stack and stack[-1][0] >= indent:
        found_indent, found = stack[-1]
        if found_indent == indent and isinstance(found, kind):
            return found
        stack.pop()
    raise NotSureError


def _push(stack: _Stack, indent: str, collection: dict[str, Any] | list[Any]) -> None:
    if len(stack) == MAX_DEPTH:
        raise NotSureError
    stack.append((indent, collection))


def _scalar(text: str) -> Any:
    first = text[:1]
    if first == "'":
        return text[1:-1].replace("''", "'")
    if first == '"':
        return text[1:-1]
    if first == "{":
        return {}
    if first == "[":
        return []
    try:
        return type_plain_scalar(text)
    except ValueError as error:
        raise NotSureError from error


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
            hint="Write it as `key: value` lines.",
        )
    for key in document:
        if not isinstance(key, str):
            raise YamlError(
                f"{what} has the key {key!r}, which is not text",
                hint=f"Put the key in quotes: '{key}'.",
            )
    return document


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError(
            f"{what}, line {line}: the file is not UTF-8 text",
            hint="Save the file as UTF-8, or restore it from a backup.",
        ) from error
