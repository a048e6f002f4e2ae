"""Looking at locks without taking them, and removing them."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from swampstore.clock import to_iso
from swampstore.errors import LockTimeoutError
from swampstore.locks.keys import global_key
from swampstore.locks.process import is_dead
from swampstore.locks.record import LockRecord, decode
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Fetched, Store

# Stores date objects and answers in whole seconds.
_GRANULARITY = 1.0


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
