"""What can go wrong between a cache and its remote. Local data is safe in every case."""

from __future__ import annotations

from collections.abc import Mapping

from swampstore.errors import EXIT_NOT_PUSHED, SwampstoreError
from swampstore.notices import escaped

_NAMED = 3


class SyncError(SwampstoreError):
    """Root of the errors that come from syncing."""

    code = "sync_failed"


class IndexDamagedError(SyncError, ValueError):
    """An index document of the remote cannot be understood."""

    code = "index_damaged"


class IndexMovedError(SyncError):
    """Others committed changes of the very paths that are being committed."""

    code = "index_moved"

    def __init__(self, message: str, rels: frozenset[str], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.rels = rels


class MadeAnewError(SyncError):
    """The remote is not the one that the base is of: nothing may be concluded from either."""

    code = "made_anew"

    def __init__(self) -> None:
        super().__init__(
            "the remote was emptied or made anew while it was in use",
            hint="Sync again: everything here counts as new then, and nothing as deleted.",
        )


class SyncTimeoutError(SyncError, TimeoutError):
    """The time given for a sync is over; what was done is kept, the rest waits."""

    code = "sync_timeout"
    exit_status = EXIT_NOT_PUSHED


class WrongNamespaceError(SyncError, ValueError):
    """A service is bound to one namespace and was asked to work on another."""

    code = "namespace_mismatch"


class UnmigratedDataError(SyncError):
    """A namespace is set, and data from before that is still outside of it."""

    code = "unmigrated_data"
    exit_status = EXIT_NOT_PUSHED


class IncompleteSyncError(SyncError):
    """Some files could not be transferred; `failures` says which and why. The rest is done."""

    code = "sync_incomplete"

    def __init__(self, operation: str, failures: Mapping[str, str]) -> None:
        files = ", ".join(map(escaped, sorted(failures)))
        reasons = [f"{escaped(rel)}: {failures[rel]}" for rel in sorted(failures)[:_NAMED]]
        if len(failures) > _NAMED:
            reasons.append(f"... and {len(failures) - _NAMED} more")
        count = f"{len(failures)} file{'' if len(failures) == 1 else 's'}"
        super().__init__(
            "\n".join([f"{operation} of {count} failed: {files}", *reasons]),
            hint="Nothing is lost: repair the cause and sync again, the rest is done already.",
        )
        self.failures = dict(failures)


class NotPushedError(SyncError):
    """The data is safe on this disk and is not on the remote yet."""

    code = "not_pushed"
    exit_status = EXIT_NOT_PUSHED
