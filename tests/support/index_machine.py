"""What tests of the remote index share: bases that follow it, and other clients that write it.

An `IndexMachine` does what push and pull do, without any files: its base is what it has. A
`ForeignClient` writes the documents the way other clients do: whole, unconditionally, with
nothing but json, and without the members that we add.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from swampstore.clock import Clock, system_clock
from swampstore.index.base import Base, Known
from swampstore.index.format import Entry, decode_entry
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, Scope, shard_key, wire_partition
from swampstore.index.path_map import Names
from swampstore.index.remote_index import open_index
from swampstore.index.state import Committed
from swampstore.layout import ModelRef
from swampstore.routing import Routing
from swampstore.stores import Store
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.wrapper import CountingStore, Tally

UPLOADED = "2026-06-01T10:00:00.000Z"


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def entry(content: str) -> Entry:
    return Entry(len(content), UPLOADED, digest(content))


def scope(*models: str) -> Scope:
    return Scope(ModelRef.parse(model) for model in models)


def raw_rel(model: str, version: int = 1) -> str:
    """The content of a version of a model of type `t/u`: its shard is `data--t--u--{model}`."""
    return f"data/t/u/{model}/name/{version}/raw"


def shard_of(model: str) -> str:
    return f"data--t--u--{model}"


class IndexMachine:
    """A base and the index it follows. The store counts operations."""

    def __init__(
        self,
        cache: Path,
        store: Store,
        namespace: str = "",
        *,
        clock: Clock = system_clock,
        routing: Routing | None = None,
    ) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        self.cache = cache
        self.store = CountingStore(store)
        self.names = Names(str(cache), namespace, routing or Routing())
        self.base = Base(str(cache), f"{store.identity}#{namespace}")
        self.index = open_index(self.store, self.names, self.base, clock=clock)

    def commit(
        self,
        upserts: Mapping[str, str] | None = None,
        removals: Collection[str] = (),
        *,
        scope: Scope | None = None,
    ) -> Committed:
        """Put entries in (path: content) and take entries out, as a push does."""
        entries = {rel: entry(content) for rel, content in (upserts or {}).items()}
        view = self.index.view({partition(rel) for rel in (*entries, *removals)})
        committed = self.index.commit(view, entries, removals, scope=scope)
        self.remember(entries, removals, committed)
        return committed

    def remember(
        self, entries: Mapping[str, Entry], removals: Iterable[str], committed: Committed
    ) -> None:
        self.base.apply(
            known=[known(rel, one) for rel, one in entries.items()],
            forgotten=removals,
            shards=committed.shards,
            facts=committed.facts,
        )

    def pull(self, scope: Scope | None = None, *, everything: bool = False) -> list[str]:
        """Apply the changes to the base, as a pull does; return the partitions that came."""
        partitions = []
        for piece in self.index.changes(scope, everything=everything):
            partitions.append(piece.partition)
            before = self.base.in_partition(piece.partition)
            gone = [
                rel
                for rel in before
                if piece.complete
                and rel not in piece.entries
                and (scope is None or scope.covers(rel))
            ]
            shard = {(piece.partition, scope.key if scope else ""): piece.etag or ""}
            self.base.apply(
                known=[known(rel, decode_entry(rel, raw)) for rel, raw in piece.entries.items()],
                forgotten=gone,
                shards=shard if piece.etag else {},
            )
        self.base.apply(facts=self.index.agreed())
        return partitions

    def has(self) -> dict[str, str | None]:
        """Return what the base has: hashes by path."""
        return {one.rel: one.sha256 for one in self.base.below("")}

    def cost(self) -> Tally:
        """Return what was asked of the remote since the last time, and count from zero again."""
        tally = self.store.tally()
        self.store.reset()
        return tally

    def requests(self) -> dict[str, int]:
        return self.cost().requests


def partition(rel: str) -> str:
    return wire_partition(rel) or "_root"


def known(rel: str, one: Entry) -> Known:
    return Known(rel, one.size, one.sha256, one.last_modified, None, None)


def holding(**models: str) -> dict[str, str]:
    """Return the hashes that a base has which holds version 1 of these models."""
    return {raw_rel(model): digest(content) for model, content in sorted(models.items())}


class ForeignClient:
    """Another client, at the same remote."""

    def __init__(self, store: Store, namespace: str = "") -> None:
        self.store = store
        self._prefix = f"{namespace}/" if namespace else ""

    def read(self, key: str) -> Any:
        try:
            return json.loads(self.store.get(self._prefix + key).data)
        except ObjectNotFoundError:
            return None

    def write(self, key: str, document: Any) -> None:
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        self.store.put(self._prefix + key, text.encode())

    def spoil(self, key: str, data: bytes = b"\x00 no json") -> None:
        self.store.put(self._prefix + key, data)

    def remove(self, key: str) -> None:
        self.store.delete(self._prefix + key)

    def upload(self, rel: str, content: str) -> None:
        self.store.put(self._prefix + rel, content.encode())
        time.sleep(0.01)  # more than the clock of any file system needs to go on: documents follow

    def meta(self) -> Any:
        return self.read(META_KEY)

    def monolith(self) -> Any:
        return self.read(MONOLITH_KEY)

    def entries(self) -> dict[str, Any]:
        """Return the entries that every client must believe."""
        meta = self.meta()
        if meta is None or meta["version"] == 1:
            return dict(self.monolith()["entries"])
        merged: dict[str, Any] = {}
        for name in meta["partitions"]:
            merged |= self.read(shard_key(name))["entries"]
        return merged

    def hashes(self) -> dict[str, str]:
        return {rel: one.get("sha256") for rel, one in sorted(self.entries().items())}

    def commit_monolith_only(self, **models: str | None) -> None:
        """Commit as the oldest clients do, that know nothing but the monolith."""
        document = self.monolith() or {"version": 1, "lastPulled": UPLOADED, "entries": {}}
        _change(document["entries"], models)
        document["lastPulled"] = f"{document['lastPulled']}+"
        self.write(MONOLITH_KEY, document)

    def commit_v1(self, **models: str | None) -> None:
        """Commit to version 1: the monolith, the touched shards, `_meta.json`."""
        self.commit_monolith_only(**models)
        groups = _grouped(self.monolith()["entries"])
        for model in models:
            if shard_of(model) in groups:
                self.write_shard(shard_of(model), groups[shard_of(model)])
        self.write(META_KEY, {"version": 1, "partitions": list(groups)})

    def commit_v2(self, **models: str | None) -> None:
        """Commit to version 2: the touched shards, `_meta.json`."""
        meta = self.meta()
        partitions = set(meta["partitions"])
        for model, content in models.items():
            shard = self.read(shard_key(shard_of(model))) or {"version": 1, "entries": {}}
            _change(shard["entries"], {model: content})
            if shard["entries"]:
                self.write(shard_key(shard_of(model)), shard)
                partitions.add(shard_of(model))
            else:
                self.remove(shard_key(shard_of(model)))
                partitions.discard(shard_of(model))
        seq = meta["commitSeq"] + 1
        self.write(META_KEY, {"version": 2, "partitions": sorted(partitions), "commitSeq": seq})

    def migrate(self) -> None:
        """Make the remote version 2 without touching the monolith."""
        groups = _grouped(self.monolith()["entries"])
        for name, entries in groups.items():
            self.write_shard(name, entries)
        self.write(META_KEY, {"version": 2, "partitions": sorted(groups), "commitSeq": 1})

    def write_shard(self, name: str, entries: Mapping[str, Any]) -> None:
        self.write(shard_key(name), {"version": 1, "entries": entries})


def foreign_entry(rel: str, content: str) -> dict[str, Any]:
    return {
        "key": rel,
        "size": len(content),
        "lastModified": UPLOADED,
        "sha256": digest(content),
    }


def _change(entries: dict[str, Any], models: Mapping[str, str | None]) -> None:
    for model, content in models.items():
        rel = raw_rel(model)
        if content is None:
            entries.pop(rel, None)
        else:
            entries[rel] = foreign_entry(rel, content)


def _grouped(entries: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for rel, one in entries.items():
        name = wire_partition(rel)
        if name is not None:
            groups.setdefault(name, {})[rel] = one
    return groups
