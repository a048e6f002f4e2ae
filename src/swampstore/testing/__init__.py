"""Test suites for people who write parts of their own, to be inherited in their tests."""

from __future__ import annotations

from swampstore.testing.store import StoreConformance
from swampstore.testing.sync import SyncConformance, SyncMachine

__all__ = ["StoreConformance", "SyncConformance", "SyncMachine"]
