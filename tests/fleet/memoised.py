"""What is worked out once and kept: a fleet has few paths and documents, and reads them often."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from swampstore import layout
from swampstore.artifacts import metadata
from swampstore.errors import MetadataError
from swampstore.index import partitions
from swampstore.index import path_kinds as shapes
from swampstore.index import path_map as names
from swampstore.stores import protocol

_MANY = 10_000
_PURE = (
    layout.parse_version,
    protocol.is_plain_key,
    names.is_safe,
    partitions.wire_partition,
    shapes.version_file,
)


def remember_what_was_read(replace: Callable[[object, object], None]) -> None:
    """Put functions that remember in the place of those that always say the same."""
    for pure in _PURE:
        replace(pure, lru_cache(maxsize=_MANY)(pure))
    replace(metadata.decode, _remembering(metadata.decode))


def _remembering(decode: Callable[[bytes, str], Any]) -> Callable[[bytes, str], Any]:
    decoded = lru_cache(maxsize=_MANY)(lambda data: decode(data, ""))

    def remembering(data: bytes, what: str) -> Any:
        try:
            return decoded(data)
        except MetadataError:
            return decode(data, what)  # its error names the file

    return remembering
