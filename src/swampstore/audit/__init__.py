"""Audit: what was done in a repository, when, where and by whom; never the values of anything.

Each copy of a repository writes files of its own, which do not change once they were shared:
`segments` says how. `events` is what is in them, and what `audit list` shows; `select` chooses
some of them. Sessions, runs and vaults write events, and a push takes finished segments along, so
this room lies below `repo`; it may import `sync`, `catalog`, `locks`, `files` and what is below.
"""

from __future__ import annotations

from swampstore.audit.events import Event, events, record
from swampstore.audit.segments import announce_move, carry_over, seal

__all__ = ["Event", "announce_move", "carry_over", "events", "record", "seal"]
