"""Another client of the same cache, as far as its sidecar is concerned.

It reads the sidecar once, keeps what it read for life, locks nothing, and rewrites the whole file
from memory: whatever it does not know is gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIDECAR = ".datastore-sync-state.json"
LIMIT = 200


class OldClient:
    """One process of it."""

    def __init__(self, cache: Path) -> None:
        self._file = cache / SIDECAR
        self._loaded: dict[str, Any] | None = None
        self.paths: dict[str, None] = {}
        self.bulk = False
        self._overflowed = False
        self._lazy = False

    def mark(self, path: str = "") -> bool:
        """Mark a path, or everything; return whether it wrote that down."""
        loaded = self._load()
        if path and (self.bulk or path in self.paths):
            return False
        if not path and self.bulk and loaded["localDirty"]:
            return False
        if not path:
            self.bulk = True
        elif len(self.paths) >= LIMIT:
            self.bulk = self._overflowed = True
        else:
            self.paths[path] = None
        self._write(dirty=True)
        return True

    def push(self) -> None:
        """Push, and forget all it knows to be dirty."""
        self._load()
        self.paths, self.bulk, self._overflowed = {}, False, False
        self._write(dirty=False, remoteIndexETag="new", lastVerifiedAt="2026-06-01T10:00:00.000Z")

    def pull_lazily(self) -> None:
        """Pull without contents."""
        self._lazy = True
        self._write(dirty=self._load()["localDirty"])

    def _load(self) -> dict[str, Any]:
        if self._loaded is None:
            text = self._file.read_text() if self._file.exists() else ""
            found: dict[str, Any] = json.loads(text) if text else {"localDirty": False}
            self.paths = dict.fromkeys(found.get("dirtyPaths", []))
            self.bulk = found.get("bulkInvalidated", False)
            self._overflowed = found.get("dirtyPathsOverflowed", False)
            self._lazy = found.get("lazyPullActive", False)
            self._loaded = found
        return self._loaded

    def _write(self, *, dirty: bool, **changes: str) -> None:
        loaded = self._load()
        built = {
            "version": 2,
            "remoteIndexETag": loaded.get("remoteIndexETag", ""),
            "lastVerifiedAt": loaded.get("lastVerifiedAt", ""),
            "localDirty": dirty,
            "dirtyPaths": list(self.paths),
            "bulkInvalidated": self.bulk,
            "lazyPullActive": self._lazy,
            "dirtyPathsOverflowed": self._overflowed,
            **changes,
        }
        self._loaded = built
        temp = self._file.with_name(".00000000-0000-4000-8000-000000000000.tmp")
        temp.write_text(json.dumps(built, indent=2))
        temp.rename(self._file)
