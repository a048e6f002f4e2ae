"""The list of all partitions in `_meta.json`, and what is computed of all of their names, once.

Most commits write the same names again, and ask for a few of them. To take a long list apart, to
look at each name and to write it again would be most of what a commit to a large remote takes. So
one that is known to be sound stays the text that it is, for as long as few names are asked for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, ...]).decode

_BETWEEN = '","'
# In a text, such a name cannot be anything but a whole name.
_PLAIN = re.compile(r"[A-Za-z0-9@_.-]+")
# Whoever looks for more names than that has the list taken apart.
_FEW = 16


class PartitionList(Sequence[str]):
    """Names of partitions, each once."""

    def __init__(self, names: tuple[str, ...] | None = None, text: str = "") -> None:
        self._names = names
        self._text = text
        self._found: dict[str, int] = {}

    @classmethod
    def of(cls, names: Iterable[str]) -> PartitionList:
        """Return these names in their order; a list of this kind stays what it is."""
        return names if isinstance(names, PartitionList) else cls(tuple(dict.fromkeys(names)))

    @classmethod
    def recalled(cls, text: str, digest: str, known: str | None = None) -> PartitionList | None:
        """Return a list that was understood before, None if the text is not the one of this digest.

        Such a text is one that we wrote for version 2: each name once, and in order. `known` is the
        digest that it had then.
        """
        if not text.startswith('["') or not text.endswith('"]'):
            return None
        if known != digest and _digest(text[2:-2].replace(_BETWEEN, "\n")) != digest:
            return None
        found = cls(text=text)
        found.digest = digest
        found.in_order = found
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All names, each as a text of its own."""
        if self._names is None:
            self._names = _decode(self._text)
        return self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self._names) if self._names is not None else self._before(-2) + 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.names[index]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.position(name) is not None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionList):
            return self.names == other.names
        return self.names == other

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return repr(self.names)

    def position(self, name: str) -> int | None:
        """Return where in the list a name is, None if it is not there."""
        if self._names is not None or len(self._found) >= _FEW or not _PLAIN.fullmatch(name):
            return self._positions.get(name)
        if name not in self._found:
            at = self._text.find(f'"{name}"')
            self._found[name] = self._before(at + 1) if at >= 0 else -1
        position = self._found[name]
        return position if position >= 0 else None

    def _before(self, end: int) -> int:
        """Return how many names of the text come to their end before a place."""
        return self._text.count(_BETWEEN, 2, end)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def in_order(self) -> PartitionList:
        """The same names in the order of version 2."""
        # Of ASCII, the order is the same.
        ordered = tuple(sorted(self, key=None if "".join(self).isascii() else _utf16))
        return self if ordered == self.names else PartitionList(ordered)

    @cached_property
    def as_json(self) -> str:
        """The list as it is written."""
        return self._text or _encode(self.names).decode()

    @cached_property
    def digest(self) -> str:
        """What tells this list from any other."""
        return _digest("\n".join(self))


def _digest(lines: str) -> str:
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _utf16(text: str) -> bytes:
    """Sort key of the order in which JavaScript sorts strings."""
    return text.encode("utf-16-be", "surrogatepass")
