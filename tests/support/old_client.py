"""Other clients: what they do to a cache that we share with them, and to a remote.

Of the cache only the sidecar matters. An `OldClient` reads it once, keeps what it read for life,
locks nothing, and rewrites the whole file from memory: whatever it does not know is gone. An
`OldPeer` is on another machine. It writes the index whole, unconditionally, with nothing but json.
An `OldLock` is one of their locks in a bucket.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key, wire_partition
from swampstore.stores import Store
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError

SIDECAR = ".datastore-sync-state.json"
LIMIT = 200


_OWN_FILES = (
    *(".datastore-index.json", ".push-queue.json", ".datastore.lock"),
    SIDECAR,
)


def takes_for_data(rel: str) -> bool:
    """Whether it would send and fetch a file with this path below a cache or a namespace."""
    last = rel.rpartition("/")[2]
    is_own = rel in _OWN_FILES or rel.partition("/")[0] in ("_index", "_control")
    is_marked = last in (".lock", ".namespace.json", "_catalog.db")
    return not (is_own or is_marked or last.startswith("_catalog.db-"))


class OldClient:
    """One process of it."""

    def __init__(self, cache: Path) -> None:
        self._file = cache / SIDECAR
        self._loaded: dict[str, Any] | None = None
        self.paths: dict[str, None] = {}
        self.bulk = False
        self._overflowed = False
        self._lazy = False

    def mark(self, path: str = "") -> bool:
        """Mark a path, or everything; return whether it wrote that down."""
        loaded = self._load()
        if path and (self.bulk or path in self.paths):
            return False
        if not path and self.bulk and loaded["localDirty"]:
            return False
        if not path:
            self.bulk = True
        elif len(self.paths) >= LIMIT:
            self.bulk = self._overflowed = True
        else:
            self.paths[path] = None
        self._write(dirty=True)
        return True

    def push(self) -> None:
        """Push, and forget all it knows to be dirty."""
        self._load()
        self.paths, self.bulk, self._overflowed = {}, False, False
        self._write(dirty=False, remoteIndexETag="new", lastVerifiedAt="2026-06-01T10:00:00.000Z")

    def pull_lazily(self) -> None:
        """Pull without contents."""
        self._lazy = True
        self._write(dirty=self._load()["localDirty"])

    def _load(self) -> dict[str, Any]:
        if self._loaded is None:
            text = self._file.read_text() if self._file.exists() else ""
            found: dict[str, Any] = json.loads(text) if text else {"localDirty": False}
            self.paths = dict.fromkeys(found.get("dirtyPaths", []))
            self.bulk = found.get("bulkInvalidated", False)
            self._overflowed = found.get("dirtyPathsOverflowed", False)
            self._lazy = found.get("lazyPullActive", False)
            self._loaded = found
        return self._loaded

    def _write(self, *, dirty: bool, **changes: str) -> None:
        loaded = self._load()
        built = {
            "version": 2,
            "remoteIndexETag": loaded.get("remoteIndexETag", ""),
            "lastVerifiedAt": loaded.get("lastVerifiedAt", ""),
            "localDirty": dirty,
            "dirtyPaths": list(self.paths),
            "bulkInvalidated": self.bulk,
            "lazyPullActive": self._lazy,
            "dirtyPathsOverflowed": self._overflowed,
            **changes,
        }
        self._loaded = built
        temp = self._file.with_name(".00000000-0000-4000-8000-000000000000.tmp")
        temp.write_text(json.dumps(built, indent=2))
        temp.rename(self._file)


class OldPeer:
    """One of another machine, as far as the remote is concerned: what its pushes leave there.

    Files are given by their path, None for one that it deletes.
    """

    _moments = itertools.count()

    def __init__(self, store: Store, namespace: str = "") -> None:
        self.store = store
        self._prefix = f"{namespace}/" if namespace else ""

    def push_monolith_only(
        self, files: Mapping[str, bytes | None], *, hashes: bool = True
    ) -> dict[str, Any]:
        """Push as those do that know nothing but the monolith; return its entries."""
        self._transfer(files)
        monolith = self.read(MONOLITH_KEY) or {"version": 1, "lastPulled": "", "entries": {}}
        _change(monolith["entries"], files, self._now(), hashes=hashes)
        monolith["lastPulled"] = self._now()
        self.write(MONOLITH_KEY, monolith)
        entries: dict[str, Any] = monolith["entries"]
        return entries

    def push_v1(self, files: Mapping[str, bytes | None], *, hashes: bool = True) -> None:
        """Push as later ones do: the monolith, then the touched shards, then `_meta.json`.

        A shard whose last entry went stays as it was, and is no longer named.
        """
        groups = _grouped(self.push_monolith_only(files, hashes=hashes))
        for name in _partitions(files) & groups.keys():
            self.write(shard_key(name), {"version": 1, "entries": groups[name]})
        self.write(META_KEY, {"version": 1, "partitions": list(groups)})

    def push_v2(self, files: Mapping[str, bytes | None]) -> None:
        """Push to a sharded remote: the touched shards, then `_meta.json`; no monolith."""
        self._transfer(files)
        meta = self.read(META_KEY)
        partitions = set(meta["partitions"])
        for name in sorted(_partitions(files)):
            own = {rel: data for rel, data in files.items() if wire_partition(rel) == name}
            shard = self.read(shard_key(name)) or {"version": 1, "entries": {}}
            _change(shard["entries"], own, self._now(), hashes=True)
            if shard["entries"]:
                self.write(shard_key(name), shard)
                partitions.add(name)
            else:
                self.store.delete(self._prefix + shard_key(name))
                partitions.discard(name)
        seq = meta["commitSeq"] + 1
        self.write(META_KEY, {"version": 2, "partitions": sorted(partitions), "commitSeq": seq})

    def migrate(self) -> None:
        """Make the remote sharded; the monolith stays as it is, for ever."""
        groups = _grouped(self.read(MONOLITH_KEY)["entries"])
        for name, entries in groups.items():
            self.write(shard_key(name), {"version": 1, "entries": entries})
        self.write(META_KEY, {"version": 2, "partitions": sorted(groups), "commitSeq": 1})

    def read(self, key: str) -> Any:
        """Return a document of the index, None if there is none."""
        try:
            return json.loads(self.store.get(self._prefix + key).data)
        except ObjectNotFoundError:
            return None

    def write(self, key: str, document: Mapping[str, Any]) -> None:
        """Write a document of the index."""
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        self.store.put(self._prefix + key, text.encode())

    def _transfer(self, files: Mapping[str, bytes | None]) -> None:
        for rel, data in files.items():
            if data is None:
                self.store.delete(self._prefix + rel)
            else:
                self.store.put(self._prefix + rel, data)

    def _now(self) -> str:
        minute, second = divmod(next(self._moments), 60)
        return f"2026-06-01T10:{minute % 60:02}:{second:02}.000Z"


def _change(
    entries: dict[str, Any], files: Mapping[str, bytes | None], now: str, *, hashes: bool
) -> None:
    for rel, data in files.items():
        if data is None:
            entries.pop(rel, None)
            continue
        entries[rel] = {"key": rel, "size": len(data), "lastModified": now, "localMtime": now}
        if hashes:
            entries[rel]["sha256"] = hashlib.sha256(data).hexdigest()


def _partitions(rels: Iterable[str]) -> set[str]:
    return {name for rel in rels if (name := wire_partition(rel)) is not None}


def _grouped(entries: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for rel, entry in entries.items():
        name = wire_partition(rel)
        if name is not None:
            groups.setdefault(name, {})[rel] = entry
    return groups


class OldLock:
    """A lock as other clients take it in a bucket.

    What is older than the `ttlMs` that it says is deleted, without a condition. `deleted` tells
    how often that happened, `is_lost` whether our own record was gone at its release.
    """

    def __init__(self, store: Store, key: str, *, retry: float = 1.0) -> None:
        self._store = store
        self._key = key
        self._retry = retry
        self._nonce = str(uuid.uuid4())
        self.deleted = 0
        self.is_lost = False

    def acquire(self, wait: float = 60.0) -> None:
        """Take it; raise TimeoutError if somebody else has it for too long."""
        until = time.monotonic() + wait
        while not self._create():
            if time.monotonic() >= until:
                raise TimeoutError(self._key)
            if self.looks_stale():
                self.delete()
                time.sleep(random.uniform(0.2, 0.5))
            else:
                time.sleep(self._retry)

    def _create(self) -> bool:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        members = {"holder": "bob@elsewhere", "hostname": "elsewhere", "pid": 4242}
        members |= {"acquiredAt": now, "ttlMs": 30000, "nonce": self._nonce}
        try:
            self._store.put_if_absent(self._key, json.dumps(members, indent=2).encode())
        except PreconditionFailedError:
            return False
        return True

    def looks_stale(self) -> bool:
        """Read the record, then ask for its age."""
        record = self._read()
        if record is None:
            return False
        try:
            changed = self._store.head(self._key).last_modified
        except ObjectNotFoundError:
            return False
        age = datetime.now(UTC) - changed
        return bool(age.total_seconds() * 1000 > record["ttlMs"])

    def delete(self) -> None:
        """Remove what looked stale, whatever it is by now."""
        self.deleted += 1
        self._store.delete(self._key)

    def release(self) -> None:
        """Give it back, if it is still ours."""
        record = self._read()
        if record is None or record["nonce"] != self._nonce:
            self.is_lost = True
        else:
            self._store.delete(self._key)

    def _read(self) -> Any:
        try:
            return json.loads(self._store.get(self._key).data)
        except ObjectNotFoundError:
            return None
