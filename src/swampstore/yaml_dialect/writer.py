"""Writing: two-space block style, keys in the order given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from swampstore.errors import ValidationError
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
            hint=f"use a key of at most {_LONGEST_KEY} characters",
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
            hint="store deep structures as the content of an artifact",
        )
    if isinstance(value, Mapping):
        return mapping_lines(value, pad)
    if isinstance(value, (list, tuple)):
        return _sequence_lines(value, pad)
    raise not_writable(value)


def _empty(value: Any) -> str:
    return "{}" if isinstance(value, Mapping) else "[]"
