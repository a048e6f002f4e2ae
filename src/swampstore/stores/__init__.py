"""Remote object stores behind one small protocol: S3, GCS, Azure, MongoDB, a directory, memory.

Start with `protocol`: what a store is. There is a file for each kind of store; the clouds share
`obstore_store`, and `mongodb_store` is made of the other files of that name. `config` finds the
kind by URL or type name, `wrapper` is how something is added to every request (`retry` is), `probe`
tries what a store claims. All of it knows `files` and what is below, and nothing of artifacts,
locks or sync.

A new kind of store is one new file, with a configuration and a store in it, and one entry point;
`swampstore.testing.StoreConformance` shows whether it keeps its promises.
"""

from __future__ import annotations

from swampstore.stores.config import StoreConfig, open_store, store_config
from swampstore.stores.protocol import Capabilities, Fetched, ObjectInfo, Store, Written

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
