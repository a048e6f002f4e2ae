"""Where sessions say which models they have locked, so that nobody has to search for the locks.

Buckets cannot be searched for locks without listing all data. In a directory that is used in place
they are found by a walk instead, because other clients use it as well, and their sessions say
nothing.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from datetime import timedelta

from swampstore.clock import to_iso
from swampstore.errors import ValidationError
from swampstore.layout import LATEST, ModelRef
from swampstore.locks.inspection import TTL, LockState, judge
from swampstore.locks.keys import below, model_key, model_of_key, registry_prefix
from swampstore.locks.record import LockRecord
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Fetched, ObjectInfo, Store

# An entry is written under its locks: without them its session is over. The margin costs nothing.
_ABANDONED_AFTER = timedelta(minutes=10)
_FILE = "file://"


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
    store.put(entry, json.dumps(members, indent=2).encode())


def model_locks(
    store: Store, namespace: str, *, ttl: float = TTL, walk: bool = False
) -> list[tuple[ModelRef, LockState]]:
    """Return the models that are locked, stale locks included, ordered by address.

    They are found in the registry, or by a walk through the directory that the store must be then.
    """
    if walk:
        return _judged(store, _locks(store, namespace, _walk(store, namespace)), ttl)
    entries = {info: _models(store, info.key) for info in store.list(registry_prefix(namespace))}
    found = _locks(store, namespace, {model for models in entries.values() for model in models})
    _sweep(store, [info for info, models in entries.items() if found.keys().isdisjoint(models)])
    return _judged(store, found, ttl)


def _locks(store: Store, namespace: str, models: Iterable[ModelRef]) -> dict[ModelRef, Fetched]:
    found = ((model, _get(store, model_key(namespace, model))) for model in models)
    return {model: lock for model, lock in found if lock is not None}


def _judged(
    store: Store, found: dict[ModelRef, Fetched], ttl: float
) -> list[tuple[ModelRef, LockState]]:
    if not found:
        return []
    now = store.clock()
    states = [(model, judge(found[model], now, ttl)) for model in sorted(found, key=str)]
    return [(model, state) for model, state in states if not state.is_free]


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
