"""What a setup did, and what it has to say about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swampstore.index.results import Conflict

# How many things are named before the rest is counted.
NAMED = 20


@dataclass(slots=True)
class SetupReport:
    """What a setup did. `location` is where the data is on this machine."""

    type: str
    location: str
    namespace: str
    files_copied: int = 0
    bytes_copied: int = 0
    files_pushed: int = 0
    files_pulled: int = 0
    files_removed: int = 0
    directories: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, what: str, rels: Sequence[str]) -> None:
        """Say the same of some paths."""
        self.warnings += [f"{rel}: {what}" for rel in rels[:NAMED]]
        if len(rels) > NAMED:
            self.warnings.append(f"... and {len(rels) - NAMED} more: {what}")

    def warn_about(self, conflicts: Sequence[Conflict]) -> None:
        """Say how conflicts were settled."""
        self.warnings += [f"{one.rel}: {one.outcome}" for one in conflicts[:NAMED]]
        if len(conflicts) > NAMED:
            self.warnings.append(f"... and {len(conflicts) - NAMED} more conflicts")

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `datastore setup`."""
        return {
            "type": self.type,
            "location": self.location,
            "namespace": self.namespace,
            "filesCopied": self.files_copied,
            "bytesCopied": self.bytes_copied,
            "filesPushed": self.files_pushed,
            "filesPulled": self.files_pulled,
            "filesRemoved": self.files_removed,
            "directoriesMigrated": self.directories,
            "warnings": self.warnings,
        }
