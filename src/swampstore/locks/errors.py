"""What can go wrong with a lock that was held."""

from __future__ import annotations

from swampstore.errors import EXIT_NOT_PUSHED, SwampstoreError


class LockLostError(SwampstoreError):
    """A lock that we held is somebody else's now, so what it protected may not be committed."""

    code = "lock_lost"
    exit_status = EXIT_NOT_PUSHED
