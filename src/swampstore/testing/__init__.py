"""Test suites for people who write parts of their own, to be inherited in their tests.

`store` shows whether a store keeps its promises, `sync` whether a sync service does; start with
the docstrings of `StoreConformance` and `SyncConformance`. It may import `locks`, `stores` and
what is below them, so that whoever writes a store gets no more.
"""

from __future__ import annotations

from swampstore.testing.store import StoreConformance
from swampstore.testing.sync import SyncConformance, SyncMachine

__all__ = ["StoreConformance", "SyncConformance", "SyncMachine"]
