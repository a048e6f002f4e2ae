"""A lock as it lies in a store: under which key, and what it says.

It says who holds it, since when, and for how long it is good unrefreshed. The keys of models and of
everything are known to older clients as well.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from swampstore.clock import EPOCH, from_iso, to_iso
from swampstore.errors import EXIT_NOT_PUSHED, SwampstoreError, ValidationError
from swampstore.formats import LARGEST_NUMBER, LONGEST_TTL_MS
from swampstore.layout import ModelRef

COMMIT = "commit"
_TICK = timedelta(milliseconds=1)


class LockRecord(NamedTuple):
    """One holding of a lock, told apart from every other by its nonce.

    `acquired_at` is the time of the last refresh, by the holder's clock. The last four are
    ours, other clients neither write nor mind them: `since` is when the lock was taken, `process`
    identifies the process beyond its pid (see `process`), `purpose` is "commit" where the global
    lock is held just to write the index, which is no reason for others to stop working, and
    `is_free` says that the lock was given back.
    """

    holder: str
    hostname: str
    pid: int
    acquired_at: datetime
    ttl_ms: int
    nonce: str
    since: datetime | None = None
    process: str = ""
    purpose: str = ""
    is_free: bool = False

    @property
    def held_since(self) -> datetime:
        """When the lock was taken, or last refreshed, if only that is known."""
        return self.since or self.acquired_at

    @property
    def ttl(self) -> float:
        """How many seconds without a refresh make this record stale."""
        return self.ttl_ms / 1000

    def renewed(self, now: datetime) -> LockRecord:
        """Return the record as a refresh writes it.

        Its time is always later than before, whatever the clock does: on some stores equal
        content is the same version, and a refresh must be seen.
        """
        return self._replace(acquired_at=max(now, self.acquired_at + _TICK))

    def freed(self) -> LockRecord:
        """Return what takes the place of this record where it cannot be deleted on condition.

        For clients that do not know of free locks it is stale, whatever their clock says.
        """
        return self._replace(acquired_at=EPOCH, ttl_ms=1, is_free=True)

    def encode(self) -> bytes:
        """Return the content of the lock."""
        members: dict[str, Any] = {
            "holder": self.holder,
            "hostname": self.hostname,
            "pid": self.pid,
            "acquiredAt": to_iso(self.acquired_at),
            "ttlMs": self.ttl_ms,
            "nonce": self.nonce,
        }
        since = to_iso(self.since) if self.since else ""
        ours = {"since": since, "process": self.process, "purpose": self.purpose}
        members |= {name: value for name, value in ours.items() if value}
        if self.is_free:
            members["free"] = True
        return json.dumps(members, indent=2).encode()

    def __str__(self) -> str:
        return f"{self.holder} (host {self.hostname}, pid {self.pid})"


def decode(data: bytes) -> LockRecord | None:
    """Return what a lock holds, None if that is not (or not yet) a record."""
    try:
        members = json.loads(data)
        return LockRecord(
            holder=_text(members["holder"]),
            hostname=_text(members["hostname"]),
            pid=_number(members["pid"]),
            acquired_at=_moment(members["acquiredAt"]),
            ttl_ms=_ttl(members["ttlMs"]),
            nonce=_text(members["nonce"]),
            since=_moment(members["since"]) if "since" in members else None,
            process=_text(members.get("process", "")),
            purpose=_text(members.get("purpose", "")),
            is_free=members.get("free") is True,
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _number(value: object) -> int:
    if type(value) is not int or abs(value) > LARGEST_NUMBER:
        raise TypeError(value)
    return value


def _moment(value: object) -> datetime:
    return from_iso(_text(value)).astimezone(UTC)


def _ttl(value: object) -> int:
    ttl = _number(value)
    if not 0 < ttl <= LONGEST_TTL_MS:
        raise ValueError(ttl)
    return ttl


LOCK = ".lock"
_CONTROL = "_control/locks"


def below(namespace: str) -> str:
    """Return what comes before the keys of a namespace."""
    return f"{namespace}/" if namespace else ""


def global_key(namespace: str) -> str:
    """Return the lock of everything in a namespace, which older clients know as well."""
    return f".locks/{namespace}.lock" if namespace else ".datastore.lock"


def model_key(namespace: str, model: ModelRef) -> str:
    """Return the lock of one model, which older clients know as well."""
    return f"{below(namespace)}{model.rel}/{LOCK}"


def model_of_key(key: str, namespace: str) -> ModelRef | None:
    """Return the model that a key is the lock of, None if it is no such key."""
    prefix, suffix = f"{below(namespace)}data/", f"/{LOCK}"
    if not (key.startswith(prefix) and key.endswith(suffix)):
        return None
    try:
        model = ModelRef.parse(key[len(prefix) : -len(suffix)])
    except ValidationError:
        return None
    return model if model_key(namespace, model) == key else None


def gate_key(namespace: str) -> str:
    """Return the lock of whoever wants everything, held while others finish their work."""
    return f"{below(namespace)}{_CONTROL}/gate.lock"


def registry_prefix(namespace: str) -> str:
    """Return where sessions say which models they have locked."""
    return f"{below(namespace)}{_CONTROL}/sessions/"


class LockLostError(SwampstoreError):
    """A lock that we held is somebody else's now, so what it protected may not be committed."""

    code = "lock_lost"
    exit_status = EXIT_NOT_PUSHED
