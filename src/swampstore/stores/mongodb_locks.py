"""Locks as all clients of a MongoDB datastore keep them: a document for each.

    {_id: key, holder, hostname, pid, acquiredAtMs, ttlMs, expiresAt, nonce}

Other clients take a lock over when `expiresAt` is past, and their own heartbeat moves nothing
else. Those who look at it from outside judge by `acquiredAtMs`. So our heartbeat moves both, and
how old a lock is, is told by `expiresAt`, which everybody's heartbeat moves. The text that a lock
of ours was written with, its further members included, is in `record`.

What other kinds of stores have as the content of an object is made from the members, and the token
of a lock names the very write: whose it is, and how far its heartbeat had moved it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from swampstore.clock import EPOCH, from_iso, from_ms, to_iso, to_ms
from swampstore.stores.errors import changed, exists, not_found
from swampstore.stores.mongodb_client import Connection, whole
from swampstore.stores.mongodb_keys import below, key_of, spot_of
from swampstore.stores.protocol import Fetched, ObjectInfo, Written

_MILLISECOND = timedelta(milliseconds=1)


class Locks:
    """The locks of one namespace, by the `_id` of their documents."""

    def __init__(self, connection: Connection, collection: str, namespace: str) -> None:
        self._connection = connection
        self._collection = collection
        self._namespace = namespace

    def _documents(self) -> Any:
        return self._connection.database[self._collection]

    def _key(self, rel: str) -> str:
        return key_of(self._namespace, rel)

    def _find(self, rel: str) -> dict[str, Any] | None:
        with self._connection.errors():
            found: dict[str, Any] | None = self._documents().find_one({"_id": rel})
        return found

    def get(self, rel: str) -> Fetched:
        """Return a lock as an object; raise ObjectNotFoundError."""
        found = self._find(rel)
        if found is None:
            raise not_found(self._key(rel), self._connection.identity)
        return Fetched(self._info(found), content_of(found))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the locks of models: the global lock is listed elsewhere, and strangers nowhere."""
        condition = {"_id": below(prefix)}
        for page in self._connection.pages(self._collection, condition):
            for found in page:
                rel = found["_id"]
                if spot_of(self._key(rel)).rel == rel and "/" in rel:
                    yield self._info(found)

    def _info(self, found: dict[str, Any]) -> ObjectInfo:
        token = token_of(found)
        size = len(content_of(found))
        return ObjectInfo(self._key(found["_id"]), size, token, token, touched(found))

    def put(self, rel: str, data: bytes) -> Written:
        """Write a lock, whatever is there."""
        wanted = self._document(rel, data)
        with self._connection.errors():
            self._documents().replace_one({"_id": rel}, wanted, upsert=True)
        return _written(wanted)

    def create(self, rel: str, data: bytes) -> Written:
        """Write a lock if there is none; raise PreconditionFailedError."""
        from pymongo.errors import DuplicateKeyError

        wanted = self._document(rel, data)
        with self._connection.errors():
            try:
                self._documents().insert_one(wanted)
            except DuplicateKeyError:
                raise exists(self._key(rel), self._connection.identity) from None
        return _written(wanted)

    def replace(self, rel: str, data: bytes, token: str) -> Written:
        """Write a lock in place of the one with this token; raise PreconditionFailedError."""
        wanted = self._document(rel, data)
        with self._connection.errors():
            done = self._documents().replace_one(condition_of(rel, token), wanted)
        if not done.matched_count:
            raise changed(self._key(rel), self._connection.identity)
        return _written(wanted)

    def delete(self, rel: str) -> None:
        """Remove a lock, whosever it is."""
        with self._connection.errors():
            self._documents().delete_one({"_id": rel})

    def delete_if_match(self, rel: str, token: str) -> None:
        """Remove the lock with this token; raise PreconditionFailedError if another is there."""
        with self._connection.errors():
            done = self._documents().delete_one(condition_of(rel, token))
        if not done.deleted_count and self._find(rel) is not None:
            raise changed(self._key(rel), self._connection.identity)

    def _document(self, rel: str, data: bytes) -> dict[str, Any]:
        return {"_id": rel, **document_of(data, self._connection.now())}


def _written(document: dict[str, Any]) -> Written:
    # A date of the database has no microseconds.
    moment = from_ms(to_ms(document["expiresAt"]))
    token = token_of({**document, "expiresAt": moment})
    return Written(token, token)


def document_of(data: bytes, now: datetime) -> dict[str, Any]:
    """Return the members of a lock that is written now, by the server's clock.

    What is no lock is kept as it is: it stands in the way like one that cannot be read.
    """
    try:
        members = json.loads(data)
        ttl = int(members["ttlMs"])
        return {
            "holder": members["holder"],
            "hostname": members["hostname"],
            "pid": members["pid"],
            "acquiredAtMs": to_ms(from_iso(members["acquiredAt"])),
            "ttlMs": ttl,
            # A lock that was given back is one that nobody has to wait for.
            "expiresAt": EPOCH if members.get("free") else now + ttl * _MILLISECOND,
            "nonce": members["nonce"],
            "record": data.decode(),
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        nonce = uuid.uuid4().hex
        return {"nonce": nonce, "acquiredAtMs": 0, "ttlMs": 0, "expiresAt": now, "raw": data}


def content_of(found: dict[str, Any]) -> bytes:
    """Return what another kind of store would have as the content of this lock."""
    if "raw" in found:
        return bytes(found["raw"])
    text = found.get("record")
    if isinstance(text, str) and _is_of(text, found):
        return text.encode()
    members = {
        "holder": found.get("holder"),
        "hostname": found.get("hostname"),
        "pid": whole(found.get("pid")),
        "acquiredAt": _iso(whole(found.get("acquiredAtMs"))),
        "ttlMs": whole(found.get("ttlMs")),
        "nonce": found.get("nonce"),
    }
    return json.dumps(members, indent=2).encode()


def _iso(number: int | None) -> str | None:
    try:
        return None if number is None else to_iso(from_ms(number))
    except OverflowError:
        return None


def _is_of(text: str, found: dict[str, Any]) -> bool:
    """Whether a text is of the same holder as the members: others leave it as it was."""
    try:
        return bool(json.loads(text)["nonce"] == found["nonce"])
    except (ValueError, KeyError, TypeError):
        return False


def touched(found: dict[str, Any]) -> datetime:
    """Return when a lock was last refreshed."""
    expires, ttl = found.get("expiresAt"), whole(found.get("ttlMs"))
    if isinstance(expires, datetime) and ttl is not None:
        return max(expires - ttl * _MILLISECOND, EPOCH)
    return EPOCH


def token_of(found: dict[str, Any]) -> str:
    """Return the token of a lock; every write of anybody, and every heartbeat, changes it."""
    expires = found.get("expiresAt")
    moved = to_ms(expires) if isinstance(expires, datetime) else ""
    acquired = whole(found.get("acquiredAtMs"))
    return f"{found.get('nonce', '')}:{'' if acquired is None else acquired}:{moved}"


def condition_of(key: str, token: str) -> dict[str, Any]:
    """Return the condition that a lock still is the one that has this token."""
    nonce, acquired, moved = ([*token.rsplit(":", 2), "", ""])[:3]
    condition: dict[str, Any] = {"_id": key, "nonce": nonce}
    condition["acquiredAtMs"] = int(acquired) if acquired.lstrip("-").isdigit() else None
    condition["expiresAt"] = from_ms(int(moved)) if moved.lstrip("-").isdigit() else None
    return condition
