"""What tests of sync share: machines with a cache each, and a look at what the remote holds.

Open a remote (see `tests.support.remotes`) once for each machine::

    with Machine(tmp_path / "a", remote.open()) as a, Machine(tmp_path / "b", remote.open()) as b:
        a.write("data/aws/ec2/i-1/state/1/raw", b"x")
        a.push()
        b.pull()
        assert b.files() == a.files()
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from swampstore.clock import Clock, system_clock
from swampstore.files import Tree
from swampstore.index.base import Base
from swampstore.index.path_map import Names
from swampstore.index.results import Pulled, Pushed
from swampstore.layout import ModelRef, is_internal
from swampstore.routing import Routing
from swampstore.stores import Store
from swampstore.stores.config import Limits
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.wrapper import CountingStore, Tally
from swampstore.sync.dirty import DirtyTracker
from swampstore.sync.install import PlainInstaller
from swampstore.sync.opening import sync_parts

MONOLITH = ".datastore-index.json"
META = "_index/_meta.json"


class Machine:
    """A cache directory and the service that syncs it; no repository, no catalog.

    Its parts (`store`, `tracker`, `base`, `names`, `service`) may be used directly. The store
    counts operations, however often each is tried.
    """

    def __init__(
        self,
        cache: Path,
        store: Store,
        namespace: str = "",
        *,
        routing: Routing | None = None,
        limits: Limits | None = None,
        clock: Clock = system_clock,
        lock_timeout: float = 10.0,
    ) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        routing = routing or Routing()
        self.cache = cache
        self.store = CountingStore(store)
        self.names = Names(str(cache), namespace, routing)
        self.tracker = DirtyTracker(str(cache), durable=False)
        self.base = Base(str(cache), f"{store.identity}#{namespace}")
        tree = Tree(
            self.names.root,
            self.names.root,
            routing,
            announce=self.tracker.mark,
            prefix=namespace,
            durable=False,
        )
        parts = sync_parts(
            self.store,
            self.tracker,
            self.base,
            self.names,
            PlainInstaller(tree),
            limits=limits or Limits(),
            clock=clock,
            lock_timeout=lock_timeout,
        )
        self.service = parts.service()

    def path(self, rel: str) -> Path:
        """Return where a file of this machine is."""
        return Path(self.names.local(rel))

    def write(self, rel: str, data: bytes) -> None:
        """Mark a path and write its file, in one step, as writers do."""
        self.service.mark_dirty(self.names.mark(rel))
        self.write_unmarked(rel, data)

    def write_unmarked(self, rel: str, data: bytes) -> None:
        """Write a file behind the service's back."""
        path = self.path(rel)
        path.parent.mkdir(parents=True, exist_ok=True)
        temp = path.with_name(".00000000-0000-0000-0000-000000000000.tmp")
        temp.write_bytes(data)
        temp.rename(path)

    def delete(self, rel: str) -> None:
        """Mark a path and remove its file, and the directories that are empty then."""
        self.service.mark_dirty(self.names.mark(rel))
        path = self.path(rel)
        path.unlink()
        for parent in path.parents:
            if parent == Path(self.names.root) or any(parent.iterdir()):
                break
            parent.rmdir()

    def read(self, rel: str) -> bytes:
        """Return a file's content; raise FileNotFoundError if it is not here."""
        return self.path(rel).read_bytes()

    def files(self) -> dict[str, bytes]:
        """Return every file of this machine that sync is about, by its path."""
        return {rel: self.read(rel) for rel in sorted(self._rels())}

    def _rels(self) -> Iterator[str]:
        for directory, _, names in os.walk(self.names.root):
            for name in names:
                rel = os.path.relpath(f"{directory}/{name}", self.names.root)
                if self.names.why_not(rel) is None:
                    yield rel

    def push(self, models: Iterable[ModelRef] | None = None, *, full: bool = False) -> Pushed:
        """Push."""
        return self.service.push(models, full=full)

    def pull(
        self,
        models: Iterable[ModelRef] | None = None,
        *,
        metadata_only: bool = False,
        full: bool = False,
    ) -> Pulled:
        """Pull."""
        return self.service.pull(models, metadata_only=metadata_only, full=full)

    def sync(self) -> tuple[Pulled, Pushed]:
        """Pull, then push."""
        return self.pull(), self.push()

    def cost(self) -> Tally:
        """Return what was asked of the remote since the last time, and count from zero again."""
        tally = self.store.tally()
        self.store.reset()
        return tally

    def close(self) -> None:
        """Give everything back; the cache stays, another Machine can take it over."""
        self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class IndexOnRemote:
    """The index documents as they are, decoded with nothing but json; None: not there.

    `shards` are all that exist, whether or not `meta` names them.
    """

    monolith: dict[str, Any] | None
    meta: dict[str, Any] | None
    shards: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Which kind of index readers must believe."""
        return 2 if self.meta and self.meta["version"] == 2 else 1

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The entries that readers must believe: the named shards' or the monolith's."""
        if self.meta is None or self.version == 1:
            return dict(self.monolith["entries"]) if self.monolith else {}
        merged: dict[str, dict[str, Any]] = {}
        for partition in self.meta["partitions"]:
            merged.update(self.shards[partition]["entries"])
        return merged


def remote_files(store: Store, namespace: str = "") -> dict[str, bytes]:
    """Return the content of every object that is no bookkeeping, by its path."""
    prefix = f"{namespace}/" if namespace else ""
    rels = [info.key.removeprefix(prefix) for info in store.list(prefix)]
    return {rel: store.get(prefix + rel).data for rel in sorted(rels) if not is_internal(rel)}


def remote_index(store: Store, namespace: str = "") -> IndexOnRemote:
    """Return the index documents of a remote."""
    prefix = f"{namespace}/" if namespace else ""
    keys = [info.key for info in store.list(f"{prefix}_index/")]
    shards = {
        key.removeprefix(f"{prefix}_index/").removesuffix(".json"): json.loads(store.get(key).data)
        for key in keys
        if key.endswith(".json") and key != prefix + META
    }
    return IndexOnRemote(
        _document(store, prefix + MONOLITH), _document(store, prefix + META), shards
    )


def _document(store: Store, key: str) -> dict[str, Any] | None:
    try:
        found = store.get(key)
    except ObjectNotFoundError:
        return None
    document: dict[str, Any] = json.loads(found.data)
    return document


def assert_sound(store: Store, namespace: str = "") -> None:
    """Check that every entry of the index has its object, with the size and hash it tells."""
    files = remote_files(store, namespace)
    for rel, entry in remote_index(store, namespace).entries.items():
        assert rel in files, f"{rel} is in the index, its object is not there"
        assert entry["key"] == rel
        assert entry["size"] == len(files[rel]), rel
        if "sha256" in entry:
            assert entry["sha256"] == hashlib.sha256(files[rel]).hexdigest(), rel
