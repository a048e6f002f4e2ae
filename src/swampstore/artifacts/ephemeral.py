"""Data with lifetime `ephemeral`: in memory, within a budget, gone with the process."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace

from swampstore.artifacts.content import MemoryContent
from swampstore.artifacts.metadata import Draft, Metadata
from swampstore.artifacts.name_lock import Ledger, Outcome
from swampstore.artifacts.publish import owner_for
from swampstore.artifacts.versions import StoredVersion
from swampstore.clock import Clock, to_iso
from swampstore.errors import BudgetError, NotFoundError, NotStreamingError
from swampstore.layout import DataRef, check_data_name

EPHEMERAL = "ephemeral"


class EphemeralStore:
    """Versions in memory, with the same rules as those on disk."""

    def __init__(self, ledger: Ledger, clock: Clock, budget: int) -> None:
        self.content = MemoryContent()
        self._ledger = ledger
        self._clock = clock
        self._budget = budget
        self._used = 0
        self._versions: dict[DataRef, list[int]] = {}
        self._guard = threading.RLock()

    def __bool__(self) -> bool:
        """Whether anything is held at all."""
        return bool(self._versions)

    def holds(self, ref: DataRef) -> bool:
        """Whether this name is ephemeral."""
        return ref in self._versions

    def save(self, ref: DataRef, content: bytes, draft: Draft) -> Metadata:
        """Keep bytes as the next version of a name."""
        check_data_name(ref.name)
        draft = draft.checked()
        with self._guard:
            numbers = self._versions.get(ref, [])
            current = self.content.metadata(ref, numbers[-1]) if numbers else None
            owner = owner_for(ref, current, draft.owner)
            draft = draft.following(current)
            self._reserve(ref, len(content))
            version = numbers[-1] + 1 if numbers else 1
            checksum = hashlib.sha256(content).hexdigest()
            now = to_iso(self._clock())
            metadata = draft.metadata(ref.name, version, owner, now, len(content), checksum)
            self._versions[ref] = [*numbers, version]
            self._keep(ref, metadata, content)
        return metadata

    def append(self, ref: DataRef, data: bytes) -> Metadata:
        """Add bytes to the latest version, which must be a streaming one."""
        with self._guard:
            if not self.holds(ref):
                raise NotFoundError(f"{ref} does not exist", hint="Save it first.")
            metadata, content = self.content.stored[ref, self._versions[ref][-1]]
            if not metadata.streaming:
                raise NotStreamingError(
                    f"{ref} version {metadata.version} is not streaming",
                    hint="Save it with streaming on first.",
                )
            self._reserve(ref, len(data))
            content += data
            metadata = replace(metadata, size=len(content), checksum=None)
            self._keep(ref, metadata, content)
        return metadata

    def delete(self, ref: DataRef) -> int:
        """Drop a name; return how many versions it had."""
        with self._guard:
            numbers = self._versions.pop(ref, [])
            for version in numbers:
                self._used -= len(self.content.stored.pop((ref, version))[1])
            self._ledger.replace(ref, (), 0)
        return len(numbers)

    def _reserve(self, ref: DataRef, size: int) -> None:
        if self._used + size > self._budget:
            raise BudgetError(
                f"{ref} needs {size} bytes; {self._budget - self._used} of the ephemeral budget"
                f" of {self._budget} are left",
                hint="Raise SWAMP_EPHEMERAL_BUDGET, or give the data another lifetime.",
            )
        self._used += size

    def _keep(self, ref: DataRef, metadata: Metadata, content: bytes) -> None:
        self.content.stored[ref, metadata.version] = (metadata, content)
        stored = StoredVersion(metadata, deferred=False)
        self._ledger.record([Outcome(ref, metadata.version, [stored])])
