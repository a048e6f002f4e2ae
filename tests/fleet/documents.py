"""The documents of an index, read as plainly as anybody could."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.fleet.world import Violation


def index_of(objects: Mapping[str, bytes], prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return the entries that readers believe; raise Violation if a document is not whole."""
    meta = _document(objects, f"{prefix}_index/_meta.json")
    if meta is None or meta.get("version") != 2:
        monolith = _document(objects, f"{prefix}.datastore-index.json")
        return dict(monolith["entries"]) if monolith else {}
    entries: dict[str, dict[str, Any]] = {}
    for partition in meta["partitions"]:
        shard = _document(objects, f"{prefix}_index/{partition}.json")
        if shard is None:
            raise Violation("index", f"the shard {partition} is not there")
        for rel, entry in shard["entries"].items():
            if rel in entries:
                raise Violation("index", f"{rel} is named twice")
            entries[rel] = entry
    return entries


def _document(objects: Mapping[str, bytes], key: str) -> dict[str, Any] | None:
    data = objects.get(key)
    if data is None:
        return None
    try:
        document: dict[str, Any] = json.loads(data)
    except ValueError:
        raise Violation("index", f"{key} cannot be read") from None
    return document
