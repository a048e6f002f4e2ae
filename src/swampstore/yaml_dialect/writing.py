"""Writing: whole files in two-space block style, or single keys with every other byte as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any

from swampstore.errors import ValidationError, YamlError
from swampstore.yaml_dialect.reading import load, load_mapping
from swampstore.yaml_dialect.scalars import MAX_DEPTH, not_writable, scalar_text

_STEP = "  "
_LONGEST_KEY = 1000  # YAML refuses keys of more than 1024 characters on one line


def dump(value: Mapping[str, Any]) -> str:
    """Write a mapping as a YAML document; keys whose value is None are left out.

    Text is quoted unless every YAML reader, 1.1 or 1.2, takes it for text without quotes.
    Raises `ValidationError` for what YAML cannot carry.
    """
    return "\n".join(mapping_lines(value, "") or ["{}"]) + "\n"


def mapping_lines(mapping: Mapping[Any, Any], pad: str) -> list[str]:
    """Return the lines of a block mapping indented by `pad`, none if it has nothing to show."""
    lines: list[str] = []
    for key, value in mapping.items():
        if value is None:
            continue
        name = _key_text(key)
        if isinstance(value, (str, int, float)):
            lines.append(f"{pad}{name}: {scalar_text(value)}")
        elif block := _block_lines(value, pad + _STEP):
            lines.append(f"{pad}{name}:")
            lines += block
        else:
            lines.append(f"{pad}{name}: {_empty(value)}")
    return lines


@lru_cache(maxsize=1024, typed=True)
def _key_text(key: Any) -> str:
    """Spell a key; the same few keys come again and again."""
    text = scalar_text(key)
    if len(text) > _LONGEST_KEY:
        raise ValidationError(
            f"the key {text[:40]}... has {len(text)} characters",
            hint=f"Use a key of at most {_LONGEST_KEY} characters.",
        )
    return text


def _sequence_lines(items: Iterable[Any], pad: str) -> list[str]:
    lines: list[str] = []
    for item in items:
        if item is None or isinstance(item, (str, int, float)):
            lines.append(f"{pad}- {scalar_text(item)}")
        elif block := _block_lines(item, pad + _STEP):
            block[0] = f"{pad}- {block[0].removeprefix(pad + _STEP)}"
            lines += block
        else:
            lines.append(f"{pad}- {_empty(item)}")
    return lines


def _block_lines(value: Any, pad: str) -> list[str]:
    """Return the lines of a nested collection, none if it has nothing to show."""
    if len(pad) >= MAX_DEPTH * len(_STEP):
        raise ValidationError(
            f"the value is nested more than {MAX_DEPTH} levels deep",
            hint="Store deep structures as the content of an artifact.",
        )
    if isinstance(value, Mapping):
        return mapping_lines(value, pad)
    if isinstance(value, (list, tuple)):
        return _sequence_lines(value, pad)
    raise not_writable(value)


def _empty(value: Any) -> str:
    return "{}" if isinstance(value, Mapping) else "[]"


_Node = Any  # ruamel leaves what its nodes hold untyped
_Splice = tuple[int, int, str]  # start, end, what stands there instead


def edit(text: str, changes: Mapping[str, Any], *, what: str = ".swamp.yaml") -> str:
    """Set keys of a top-level mapping and leave the rest of the text alone.

    Nested mappings are merged key by key; None removes a key. Only comments inside a removed or
    replaced value go with it. An empty text gives a fresh document. Raises `YamlError` if the
    text is not a mapping, or is written in a way that cannot be changed safely.
    """
    if text and not text.endswith("\n"):
        text += "\n"
    if load(text, what=what) is None:
        before: dict[str, Any] = {}
        edited = text + dump(changes) if _merged(before, changes) else text
    else:
        before = load_mapping(text, what=what)
        edited = _spliced(text, _Editor(text, what).root_changes(before, changes))
    if not _holds(edited, _merged(before, changes)):
        raise _too_intricate(what)
    return edited


def _holds(text: str, expected: dict[str, Any]) -> bool:
    try:
        found = load(text, what="the changed text")
    except YamlError:
        return False
    return dump(found or {}) == dump(expected)


def _merged(before: Any, change: Any) -> Any:
    """Return the value that `change` makes of `before`: mappings merge, None removes a key."""
    if not isinstance(change, Mapping):
        return change
    result = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _too_intricate(what: str) -> YamlError:
    return YamlError(
        f"{what} is written in a way that cannot be changed without damage",
        hint="Change the file by hand, or write it without anchors and other rare YAML.",
    )


def _spliced(text: str, splices: Iterable[_Splice]) -> str:
    pieces: list[str] = []
    position = 0
    for start, end, replacement in sorted(splices, key=itemgetter(0)):
        pieces += (text[position:start], replacement)
        position = end
    return "".join(pieces) + text[position:]


class _Editor:
    """Finds the spans of one text that a change touches."""

    def __init__(self, text: str, what: str) -> None:
        self._text = text
        self._what = what

    def root_changes(self, before: dict[str, Any], changes: Mapping[str, Any]) -> Iterator[_Splice]:
        from swampstore.yaml_dialect.full_reader import compose

        root = compose(self._text)
        after = _merged(before, changes)
        end = self._content_end(root, 0)
        if root.flow_style:
            yield (root.start_mark.index, end, dump(after)[:-1])
            return
        yield from self._mapping_changes(root, before, changes)
        if not after:
            yield (self._line_end(end), self._line_end(end), dump({}))

    def _mapping_changes(
        self, node: _Node, before: dict[str, Any], changes: Mapping[str, Any]
    ) -> Iterator[_Splice]:
        nodes = dict(zip(before, node.value, strict=True))
        for key, (key_node, value_node) in nodes.items():
            if key in changes:
                yield from self._entry_changes(key_node, value_node, before[key], changes[key])
        additions = {key: value for key, value in changes.items() if key not in nodes}
        if _merged({}, additions):
            place = self._line_end(self._content_end(node, 0))
            lines = mapping_lines(additions, " " * node.start_mark.column)
            yield (place, place, "\n".join(lines) + "\n")

    def _entry_changes(
        self, key: _Node, value: _Node, before: Any, change: Any
    ) -> Iterator[_Splice]:
        end = self._content_end(value, key.end_mark.index)
        if change is None:
            line_start = self._text.rfind("\n", 0, key.start_mark.index) + 1
            yield (line_start, self._line_end(end), "")
            return
        after = _merged(before, change)
        if dump({"": after}) == dump({"": before}):
            return
        merging = isinstance(before, dict) and isinstance(change, Mapping)
        if merging and after and not value.flow_style:
            yield from self._mapping_changes(value, before, change)
            return
        colon = self._text.index(":", key.end_mark.index)
        lines = mapping_lines({"k": after}, " " * key.start_mark.column)
        yield (colon + 1, end, "\n".join(lines).lstrip(" ").removeprefix("k:"))

    def _content_end(self, node: _Node, after: int) -> int:
        """Where the last character of a value is followed by space or comment.

        An alias is composed to the node it stands for, which is then found before `after`.
        """
        if node.start_mark.index < after:
            raise _too_intricate(self._what)
        if isinstance(node.value, list) and node.value and not node.flow_style:
            last = node.value[-1]
            return self._content_end(last[-1] if isinstance(last, tuple) else last, after)
        return len(self._text[: node.end_mark.index].rstrip(" \t\r\n"))

    def _line_end(self, position: int) -> int:
        """Where the next line starts."""
        return self._text.index("\n", position) + 1
