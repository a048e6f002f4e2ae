"""Which models are locked: what sessions say about that, and what a search finds.

Buckets cannot be searched for locks without listing all data, so sessions say which models they
have locked. Those of other clients do not. Whoever has to know of them all searches: a bucket at
the price of a listing, a directory that is used in place by a walk.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from swampstore.clock import to_iso
from swampstore.errors import ValidationError
from swampstore.layout import LATEST, ModelRef
from swampstore.locks.inspection import LockState, judge
from swampstore.locks.keys import below, model_key, model_of_key, registry_prefix
from swampstore.locks.record import LockRecord
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Fetched, ObjectInfo, Store

# An entry is written under its locks: without them its session is over. The margin costs nothing.
_ABANDONED_AFTER = timedelta(minutes=10)
_FILE = "file://"
_AT_ONCE, _FEW = 16, 8
A = TypeVar("A")
B = TypeVar("B")


def new_entry(namespace: str) -> str:
    """Return the key of an entry that is to be written, and deleted at the end of the session."""
    return f"{registry_prefix(namespace)}{uuid.uuid4()}.json"


def register(store: Store, entry: str, models: Iterable[ModelRef], by: LockRecord) -> None:
    """Say that these models are locked, in an entry of this key."""
    members = {
        "models": [str(model) for model in models],
        "holder": by.holder,
        "hostname": by.hostname,
        "pid": by.pid,
        "at": to_iso(by.acquired_at),
    }
    # Under a name of its own, so without a condition.
    store.put(entry, json.dumps(members, indent=2).encode())


def each(request: Callable[[A], B], about: Sequence[A]) -> list[B]:
    """Make one request about each of these, many of them at once; return the answers."""
    if len(about) < _FEW:
        return [request(one) for one in about]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(request, about))


class Registry:
    """The locks of models in one namespace of a store.

    What is found are stale locks as well, and free records, ordered by the address of the model.
    `walk` says that the store is a directory that is used in place.
    """

    def __init__(self, store: Store, namespace: str, *, ttl: float, walk: bool) -> None:
        self._store = store
        self._namespace = namespace
        self._ttl = ttl
        self._walk = walk

    def registered(self, also: Iterable[ModelRef] = ()) -> list[tuple[ModelRef, LockState]]:
        """Return the locks that sessions tell of, and those of some more models, if locked.

        In a directory that is used in place nobody tells anything, and this is a search.
        """
        if self._walk:
            return self.everywhere()
        store, listed = self._store, self._store.list(registry_prefix(self._namespace))
        entries = {info: _models(store, info.key) for info in listed}
        found = self._fetched({model for models in entries.values() for model in models})
        _sweep(store, [info for info, models in entries.items() if found.keys().isdisjoint(models)])
        return self._judged(found | self._fetched(set(also) - found.keys()))

    def everywhere(self) -> list[tuple[ModelRef, LockState]]:
        """Return all locks, of whatever client, on models that no index knows, too.

        In a bucket that costs a listing of all data: a request for each thousand objects.
        """
        search = _walk if self._walk else _listed
        return self._judged(self._fetched(set(search(self._store, self._namespace))))

    def of(self, models: Iterable[ModelRef]) -> list[tuple[ModelRef, LockState]]:
        """Return the locks of these models, of whatever client; a request for each model."""
        return self._judged(self._fetched(set(models)))

    def _fetched(self, models: set[ModelRef]) -> dict[ModelRef, Fetched]:
        ordered = sorted(models, key=str)
        keys = [model_key(self._namespace, model) for model in ordered]
        found = zip(ordered, each(partial(_get, self._store), keys), strict=True)
        return {model: lock for model, lock in found if lock is not None}

    def _judged(self, found: dict[ModelRef, Fetched]) -> list[tuple[ModelRef, LockState]]:
        if not found:
            return []
        now = self._store.clock()
        return [(model, judge(found[model], now, self._ttl)) for model in sorted(found, key=str)]


def _sweep(store: Store, entries: list[ObjectInfo]) -> None:
    """Remove the entries of sessions that ended without doing so, once they are old."""
    if not entries:
        return
    now = store.clock()
    for info in entries:
        if now - info.last_modified > _ABANDONED_AFTER:
            store.delete(info.key)


def _get(store: Store, key: str) -> Fetched | None:
    try:
        return store.get(key)
    except ObjectNotFoundError:
        return None


def _models(store: Store, key: str) -> list[ModelRef]:
    """Return what an entry says; one that cannot be read says nothing, and is removed in time."""
    found = _get(store, key)
    try:
        return [ModelRef.parse(text) for text in json.loads(found.data)["models"]] if found else []
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError):
        return []


def _listed(store: Store, namespace: str) -> Iterator[ModelRef]:
    for info in store.list(f"{below(namespace)}data/"):
        model = model_of_key(info.key, namespace)
        if model is not None:
            yield model


def _walk(store: Store, namespace: str) -> Iterator[ModelRef]:
    base = store.identity.removeprefix(_FILE)
    for path in _lock_files(os.path.join(base, f"{below(namespace)}data")):
        model = model_of_key(os.path.relpath(path, base), namespace)
        if model is not None:
            yield model


def _lock_files(directory: str) -> Iterator[str]:
    """Yield the locks below a directory, without looking into the versions of data names."""
    try:
        with os.scandir(directory) as entries:
            inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return
    if inside.get(LATEST) is False:
        return
    for name, is_directory in inside.items():
        path = os.path.join(directory, name)
        if is_directory:
            yield from _lock_files(path)
        elif name == ".lock":
            yield path
