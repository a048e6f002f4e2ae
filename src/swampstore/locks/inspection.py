"""Looking at locks without taking them, and removing them.

Which models are locked is what sessions say, and what a search finds. Buckets cannot be searched
for locks without listing all data, so sessions say which models they have locked. Those of other
clients do not. Whoever has to know of them all searches: a bucket at the price of a listing, a
directory by a walk, which need not look into versions.

A lock that is given back is deleted, or stays as a record that says "free". A deletion may come
late, or twice. Only if the store keeps to its condition can it never hit the lock of a successor,
and some servers ignore conditions. So a server is tried once, before the first lock is taken, and
what was seen is remembered on this machine.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from swampstore.clock import to_iso
from swampstore.errors import LockTimeoutError, ValidationError
from swampstore.files import disk_errors
from swampstore.layout import LATEST, ModelRef, is_version
from swampstore.locks.process import is_dead
from swampstore.locks.record import (
    LOCK,
    LockRecord,
    below,
    decode,
    global_key,
    model_key,
    model_of_key,
    registry_prefix,
)
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Capabilities, Fetched, ObjectInfo, Store
from swampstore.stores.trials import Trial
from swampstore.stores.wrapper import StoreWrapper

# Stores date objects and answers in whole seconds.
_GRANULARITY = 1.0
# An entry is written under its locks: without them its session is over. The margin costs nothing.
_ABANDONED_AFTER = timedelta(minutes=10)
_FILE = "file://"
_AT_ONCE, _FEW = 16, 8
_FACT = "conditional_delete"
A = TypeVar("A")
B = TypeVar("B")


class LockState(NamedTuple):
    """A lock that is there. `record` is None if it cannot be read; `age` is in seconds.

    The age counts from the last refresh and by the store's own clock, because the clocks of
    holder and observer may differ by more than a lock lives.
    """

    key: str
    record: LockRecord | None
    token: str
    age: float
    is_stale: bool

    @property
    def is_free(self) -> bool:
        """Whether the lock was given back, and its record is all that is left of it."""
        return self.record is not None and self.record.is_free

    @property
    def nonce(self) -> str | None:
        """What identifies this holding, None if it cannot be read."""
        return self.record.nonce if self.record else None

    @property
    def holder(self) -> str:
        """Who holds it, in words."""
        return str(self.record) if self.record else "somebody whose record cannot be read"


def look(store: Store, key: str, *, ttl: float) -> LockState | None:
    """Return what is at the place of a lock, which may be free; None if nothing is.

    `ttl` is that of the caller: a record that cannot be read counts as held, and as stale once
    it is older than twice that.
    """
    try:
        found = store.get(key)
    except ObjectNotFoundError:
        return None
    assert found.info.token is not None
    record = decode(found.data)
    if record is not None and record.is_free:
        return LockState(key, record, found.info.token, 0.0, is_stale=False)
    return judge(found, store.clock(), ttl)


def judge(found: Fetched, now: datetime, ttl: float) -> LockState:
    """Return the state of a lock that was read."""
    assert found.info.token is not None
    record = decode(found.data)
    age = max(0.0, (now - found.info.last_modified).total_seconds())
    limit = record.ttl if record else 2 * ttl
    is_stale = age > limit + _GRANULARITY or (record is not None and is_dead(record))
    if record is not None and record.is_free:
        is_stale = False
    return LockState(found.info.key, record, found.info.token, age, is_stale)


def remove(store: Store, key: str, token: str, record: LockRecord, *, deletes: bool) -> None:
    """Remove the lock that has this token; raise PreconditionFailedError if it is another one.

    Unless the store `deletes` on condition (see `deleting`), a free record replaces it. Any other
    deletion could come late, or twice, and hit the lock of a successor.
    """
    if deletes:
        store.delete_if_match(key, token)
    else:
        store.put_if_match(key, record.freed().encode(), token)


def timed_out(key: str, state: LockState | None, waited: float) -> LockTimeoutError:
    """Return the error for a lock that somebody else (if known: `state`) held for too long."""
    hint = (
        "Try again later. `swampstore datastore lock status` shows who holds what; if that"
        " process is gone, `swampstore datastore lock release --force` removes its lock."
    )
    if key == global_key(""):
        hint += " With namespaces, repositories that share a datastore do not wait for each other."
    since = f" since {to_iso(state.record.held_since)}" if state and state.record else ""
    holder = state.holder if state else "one client after the other"
    return LockTimeoutError(
        f"the lock {key} is held by {holder}{since}; waited {waited:.0f} s", hint=hint
    )


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
        search = _walk if self._walk or _is_directory(self._store) else _listed
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


def _is_directory(store: Store) -> bool:
    return store.identity.startswith(_FILE)


def _walk(store: Store, namespace: str) -> Iterator[ModelRef]:
    base = store.identity.removeprefix(_FILE)
    with disk_errors(base):
        for path in _lock_files(os.path.join(base, f"{below(namespace)}data")):
            model = model_of_key(os.path.relpath(path, base), namespace)
            if model is not None:
                yield model


def _lock_files(directory: str) -> Iterator[str]:
    """Yield the locks below a directory, without looking into the versions of data names."""
    waiting = [directory]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(above) as entries:
                inside = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            continue
        if inside.get(LOCK) is False:
            yield f"{above}/{LOCK}"
        is_name = inside.get(LATEST) is False
        waiting += (
            f"{above}/{name}"
            for name, is_directory in inside.items()
            if is_directory and not (is_name and is_version(name))
        )


class Deletions(Trial):
    """What is known about conditional deletions of one store: whether locks may be deleted."""

    def __init__(
        self,
        store: Store,
        recall: Callable[[str], str | None] = lambda _: None,
        remember: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> None:
        super().__init__(
            store, _FACT, lambda claimed: claimed.conditional_delete, _prove, recall, remember
        )


def _prove(store: Store) -> bool:
    from swampstore.stores.probe import proves_conditional_delete

    return proves_conditional_delete(store)


class ProvenStore(StoreWrapper):
    """A store around a store, which claims no conditional deletions if a trial has refuted them.

    Whoever takes a lock has tried that (see Deletions). Without a lock nothing is deleted.
    """

    def __init__(self, inner: Store, deletions: Deletions) -> None:
        super().__init__(inner)
        self._deletions = deletions

    @property
    def capabilities(self) -> Capabilities:
        """See Store.capabilities."""
        claimed = self.inner.capabilities
        if claimed.conditional_delete and self._deletions.are_refuted:
            return claimed._replace(conditional_delete=False)
        return claimed
