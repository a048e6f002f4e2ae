"""The parts that every sync operation works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swampstore.clock import Clock
from swampstore.index.base import Base
from swampstore.index.path_map import Names
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.workers import AttentiveStore
from swampstore.sync.dirty import DirtyTracker

if TYPE_CHECKING:
    from swampstore.stores.config import Limits
    from swampstore.sync.install import PlainInstaller


class SyncContext(msgspec.Struct, frozen=True):
    """One cache, its remote, and what is known about both."""

    store: AttentiveStore
    names: Names
    base: Base
    tracker: DirtyTracker
    installer: PlainInstaller
    index: RemoteIndex
    limits: Limits
    clock: Clock
