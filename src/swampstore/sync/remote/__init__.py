"""The index on the remote: noticing its changes, reading them, committing ours, healing it.

A remote of version 1 has one document with every entry (the monolith `.datastore-index.json`),
and copies of its parts (the shards `_index/{partition}.json`) that spare readers the whole. On
version 2 the shards are the truth, and the monolith is never looked at again. `_index/_meta.json`
alone says which of the two a remote is.
"""

from __future__ import annotations

from swampstore.sync.remote.index import RemoteIndex
from swampstore.sync.remote.model import Committed, Migrated, Slice, State
from swampstore.sync.remote.view import View

__all__ = ["Committed", "Migrated", "RemoteIndex", "Slice", "State", "View"]
