"""Where damaged things are kept: bookkeeping of the store, which no sync touches."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection

from swampstore.clock import Clock, system_clock
from swampstore.errors import ValidationError
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.keys import check_key
from swampstore.stores.protocol import Store
from swampstore.sync.names import Names

QUARANTINE = "_control/quarantine"


class Quarantine:
    """The things that one run set aside, each under the path that it had."""

    def __init__(self, store: Store, names: Names, clock: Clock = system_clock) -> None:
        self._store = store
        self._names = names
        self.rel = f"{QUARANTINE}/{clock():%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"

    def copy(self, rel: str) -> bool:
        """Keep a copy of an object; False if there is none."""
        try:
            self._store.copy(self._names.remote(rel), self._place_of(rel))
        except ObjectNotFoundError:
            return False
        return True

    def move_away(self, rels: Collection[str]) -> None:
        """Remove objects that were copied."""
        for rel in rels:
            self._store.delete(self._names.remote(rel))

    def _place_of(self, rel: str) -> str:
        try:
            return check_key(self._names.remote(f"{self.rel}/{rel}"))
        except ValidationError:  # too long for a key
            digest = hashlib.sha256(rel.encode()).hexdigest()
            return self._names.remote(f"{self.rel}/{digest}")
