"""The list of all partitions in `_meta.json`, and what is computed of all of their names, once.

Most commits write the same names again. In a program that commits again and again, their text and
their digest would be most of what a commit to a large remote takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property

import msgspec

_encode = msgspec.json.Encoder().encode


class PartitionList(tuple[str, ...]):  # noqa: SLOT001 - it keeps what is computed
    """Names of partitions, each once."""

    @classmethod
    def of(cls, names: Iterable[str]) -> PartitionList:
        """Return these names in their order; a list of this kind stays what it is."""
        return names if isinstance(names, PartitionList) else cls(dict.fromkeys(names))

    def __contains__(self, name: object) -> bool:
        return name in self.positions

    @cached_property
    def positions(self) -> dict[str, int]:
        """Where in the list each name is."""
        return {name: position for position, name in enumerate(self)}

    @cached_property
    def in_order(self) -> PartitionList:
        """The same names in the order of version 2."""
        # Of ASCII, the order is the same.
        ordered = sorted(self, key=None if "".join(self).isascii() else _utf16)
        return self if ordered == list(self) else PartitionList(ordered)

    @cached_property
    def as_json(self) -> str:
        """The list as it is written."""
        return _encode(list(self)).decode()

    @cached_property
    def digest(self) -> str:
        """What tells this list from any other."""
        text = "\n".join(self).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:16]


def _utf16(text: str) -> bytes:
    """Sort key of the order in which JavaScript sorts strings."""
    return text.encode("utf-16-be", "surrogatepass")
