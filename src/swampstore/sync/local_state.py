"""How single files here stand to the base, as a pull asks: as they were, changed, or deleted."""

from __future__ import annotations

import os
from collections.abc import Container

import msgspec

from swampstore.files.signature import Signature, is_surely_unchanged, signature
from swampstore.index.base import Known
from swampstore.sync.context import SyncContext
from swampstore.sync.hashing import hash_file
from swampstore.sync.merge import Local
from swampstore.sync.scan import Links, is_covered, is_unfinished, was_here


class LocalState(msgspec.Struct):
    """The local file of one path against the base."""

    local: Local
    signature: Signature | None = None
    sha256: str | None = None


class LocalFiles:
    """Looks at files of one cache. What is missing below one of the `removals` was deleted."""

    def __init__(self, context: SyncContext, removals: Container[str]) -> None:
        self._context = context
        self._removals = removals
        self._links = Links(context.names.root)
        # A first pull need not look for every file that it is about to bring.
        self._has_data = True

    def begin(self) -> None:
        """Find out whether there is any data to look at."""
        self._has_data = os.path.lexists(self._context.names.local("data"))

    def look_for_removals(self) -> bool:
        """Take in what was marked as removed since; return whether anything was."""
        before, self._removals = self._removals, self._context.tracker.peek().removals
        return before != self._removals

    def may_be_here(self, rel: str) -> bool:
        """Whether a file may be here: without any data there is none, and nothing to decide."""
        return self._has_data or not rel.startswith("data/")

    def state(self, rel: str, before: Known | None) -> LocalState:
        """Look at a file, of which the base knew this; raise SwampstoreError if that cannot be."""
        path = self._context.names.local(rel)
        now = signature(path) if self.may_be_here(rel) else None
        if now is None:
            return LocalState(Local.DELETED if self.was_deleted(rel, before) else Local.ABSENT)
        if before and before.held and is_surely_unchanged(before.held, now, before.recorded_ns):
            return LocalState(Local.SAME, now)
        self._links.check(rel)
        if (before is None or before.held is None) and is_unfinished(self._context.names, rel):
            return LocalState(Local.ABSENT)  # it lands as soon as nobody is writing that version
        try:
            sha256, now = hash_file(path)
        except FileNotFoundError:
            return LocalState(Local.ABSENT)
        same = before is not None and before.sha256 == sha256
        return LocalState(Local.SAME if same else Local.CHANGED, now, sha256)

    def was_deleted(self, rel: str, before: Known | None) -> bool:
        """Whether a missing file is a deletion that was not pushed yet."""
        names = self._context.names
        if before is None or not is_covered(names.mark(rel), self._removals):
            return False
        is_gone = before.held is not None or not os.path.lexists(os.path.dirname(names.local(rel)))
        return is_gone and was_here(self._context.base, before)

    def is_version_deleted(self, metadata: str) -> bool:
        """Whether a version that the remote had was deleted here, and that is not pushed yet."""
        names = self._context.names
        is_removed = is_covered(names.mark(metadata), self._removals)
        if not is_removed or os.path.lexists(names.local(metadata)):
            return False
        return self.was_deleted(metadata, self._context.base.get(metadata))
