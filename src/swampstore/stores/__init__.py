"""Remote object stores behind one small protocol: S3, GCS, Azure, a directory, memory."""

from __future__ import annotations

from swampstore.stores.protocol import Capabilities, Fetched, ObjectInfo, Store, Written
from swampstore.stores.registry import StoreConfig, open_store, store_config

__all__ = [
    "Capabilities",
    "Fetched",
    "ObjectInfo",
    "Store",
    "StoreConfig",
    "Written",
    "open_store",
    "store_config",
]
