"""The complete reader: every YAML 1.2 document, parsed by ruamel.yaml and typed by our rules.

ruamel only parses here. Values are built from its events, without recursion, because its own
constructors know timestamps, merge keys and YAML 1.1 numbers, and follow any alias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    ScalarEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from swampstore.errors import YamlError
from swampstore.yaml_dialect.scalars import MAX_DEPTH, type_plain_scalar

MAX_ALIASED = 1_000_000
"""How many characters and nodes the aliases of one document may stand for."""

_STANDARD = "tag:yaml.org,2002:"
_TEXT_TAGS = ("!", _STANDARD + "str")
_TYPED_TAGS: dict[str, type] = {
    _STANDARD + "null": type(None),
    _STANDARD + "bool": bool,
    _STANDARD + "int": int,
    _STANDARD + "float": float,
}
_COLLECTION_TAGS = {
    MappingStartEvent: (None, "!", _STANDARD + "map"),
    SequenceStartEvent: (None, "!", _STANDARD + "seq"),
}
_NO_KEY = object()

# YAML 1.2 reads these three as ordinary characters; ruamel still ends lines at them.
_FORMER_LINE_BREAKS = "\x85\u2028\u2029"
_STAND_INS = "\U0001fffe\U0001ffff\U0002fffe"
_HIDE_BREAKS = str.maketrans(_FORMER_LINE_BREAKS, _STAND_INS)
_SHOW_BREAKS = str.maketrans(_STAND_INS, _FORMER_LINE_BREAKS)


def read_fully(text: str, *, what: str) -> Any:
    """Return the only document in `text`, None if there is none; raise `YamlError` otherwise."""
    hidden = text.translate(_HIDE_BREAKS)
    builder = _Builder(what, {} if hidden == text else _SHOW_BREAKS)
    try:
        for event in YAML(typ="safe", pure=True).parse(hidden):
            builder.accept(event)
    except YamlError:
        raise
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise _refusal(what, line, error.problem or error.context) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"the character U+{error.character:04X} is not allowed"
        raise _refusal(what, line, problem) from error
    except (YAMLError, ValueError, OverflowError) as error:
        raise _refusal(what, None, str(error)) from error
    return builder.document


def compose(text: str) -> Any:
    """Return ruamel's tree of nodes for a text that `read_fully` accepts, with their places."""
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    return yaml.compose(text.translate(_HIDE_BREAKS))


def _refusal(what: str, line: int | None, problem: str) -> YamlError:
    place = what if line is None else f"{what}, line {line}"
    return YamlError(
        f"{place}: {problem}",
        hint="Correct the file by hand, or restore it from a backup or another copy.",
    )


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been seen."""

    content: dict[Any, Any] | list[Any]
    anchor: str | None
    weight: int = 1
    key: Any = _NO_KEY


class _Builder:
    """Turns parse events into values."""

    def __init__(self, what: str, replaced: Mapping[int, int]) -> None:
        self.document: Any = None
        self._what = what
        self._replaced = replaced
        self._documents = 0
        self._open: list[_Open] = []
        self._anchored: dict[str, tuple[Any, int]] = {}
        self._aliased = 0

    def accept(self, event: Event) -> None:
        if isinstance(event, ScalarEvent):
            event.value = event.value.translate(self._replaced)
            self._add(event, self._scalar(event), 1 + len(event.value), event.anchor)
        elif isinstance(event, MappingStartEvent | SequenceStartEvent):
            self._begin(event)
        elif isinstance(event, CollectionEndEvent):
            ended = self._open.pop()
            self._add(event, ended.content, ended.weight, ended.anchor)
        elif isinstance(event, AliasEvent):
            self._add(event, *self._alias(event), None)
        elif isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._error(event, "a second document starts here; only one is allowed")

    def _begin(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        if event.tag not in _COLLECTION_TAGS[type(event)]:
            raise self._unknown_tag(event)
        if len(self._open) >= MAX_DEPTH:
            raise self._error(event, f"nested more than {MAX_DEPTH} levels deep")
        content: dict[Any, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        self._open.append(_Open(content, event.anchor))

    def _add(self, event: Event, value: Any, weight: int, anchor: str | None) -> None:
        if anchor is not None:
            self._anchored[anchor] = (value, weight)
        if not self._open:
            self.document = value
            return
        parent = self._open[-1]
        parent.weight += weight
        if isinstance(parent.content, list):
            parent.content.append(value)
        elif parent.key is _NO_KEY:
            parent.key = self._key(event, value, parent.content)
        else:
            parent.content[parent.key] = value
            parent.key = _NO_KEY

    def _key(self, event: Event, value: Any, mapping: dict[Any, Any]) -> Any:
        if isinstance(value, dict | list):
            raise self._error(event, "a mapping or a list cannot be a key")
        if value in mapping:
            raise self._error(event, f"the key {value!r} is there twice")
        return value

    def _alias(self, event: AliasEvent) -> tuple[Any, int]:
        if event.anchor not in self._anchored:
            raise self._error(event, f"the alias *{event.anchor} has no complete anchor before it")
        value, weight = self._anchored[event.anchor]
        self._aliased += weight
        if self._aliased > MAX_ALIASED:
            raise self._error(event, "the aliases repeat too much")
        return value, weight

    def _scalar(self, event: ScalarEvent) -> Any:
        if event.tag in _TEXT_TAGS or (event.tag is None and event.style is not None):
            return self._text(event)
        try:
            value = type_plain_scalar(event.value)
        except ValueError as error:
            raise self._error(event, "a number has too many digits") from error
        if event.tag is None:
            return value
        expected = _TYPED_TAGS.get(event.tag)
        if expected is float and type(value) is int:
            return float(value)
        if type(value) is not expected:
            raise self._unknown_tag(event)
        return value

    def _text(self, event: ScalarEvent) -> str:
        """Join the surrogate pairs that JSON writers use in escapes."""
        text: str = event.value
        if text.isascii():
            return text
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise self._error(event, "an escape stands for half a character") from error

    def _unknown_tag(self, event: ScalarEvent | CollectionStartEvent) -> YamlError:
        return self._error(event, f"the tag {event.tag} is unknown, or does not fit its value")

    def _error(self, event: Event, problem: str) -> YamlError:
        return _refusal(self._what, event.start_mark.line + 1, problem)
