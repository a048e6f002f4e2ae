"""Content by its SHA-256, as all clients of a MongoDB datastore keep it.

What fits into a document is one: `{_id: sha256, size, createdAt, data}`. What does not is cut into
pieces, `{_id: "sha256:0", ...}` and so on, and the head, `{_id: sha256, size, createdAt,
chunkCount}`, is written when they are all there.

`createdAt` is the server's time, and whoever finds that content is there already makes it new: a
sweep removes only what is old, on that very condition, so it never takes away what a push relies
on. Nothing is ever written twice, because the name says what the content is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO

from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.mongodb_client import Connection
from swampstore.stores.protocol import CHUNK, payload

INLINE = 15 << 20
PIECE = 8 << 20
# Operations of one batch, and the bytes that go with them.
BATCH, BATCH_BYTES = 500, 14 << 20
_ASKED = 5000


class Blobs:
    """The content of one namespace."""

    def __init__(self, connection: Connection, collection: str) -> None:
        self._connection = connection
        self._collection = collection

    def _documents(self) -> Any:
        return self._connection.database[self._collection]

    def put(self, sha256: str, body: bytes | BinaryIO) -> bool:
        """Keep content; return False if it was there already, and is as good as new now."""
        if self.refresh([sha256]) == 1:
            return False
        data = payload(body)
        try:
            if len(data) <= INLINE:
                self._insert(sha256, {"size": len(data), "data": bytes(data)})
                return True
            pieces = range(0, len(data), PIECE)
            for number, start in enumerate(pieces):
                piece = bytes(data[start : start + PIECE])
                self._insert(f"{sha256}:{number}", {"size": len(piece), "data": piece})
            self._insert(sha256, {"size": len(data), "chunkCount": len(pieces)})
        finally:
            if isinstance(data, memoryview):
                data.release()
        return True

    def put_small(self, contents: dict[str, bytes]) -> None:
        """Keep several contents, each of which fits into a document, in few requests."""
        from pymongo import UpdateOne

        there = self.refresh(contents)
        if there == len(contents):
            return
        missing = self._missing(contents) if there else list(contents)
        load: list[UpdateOne] = []
        size = 0
        for sha256 in missing:
            data = contents[sha256]
            if load and (len(load) == BATCH or size + len(data) > BATCH_BYTES):
                self._write(load)
                load, size = [], 0
            fields = {"size": len(data), "data": data}
            change = {"$setOnInsert": fields, "$currentDate": {"createdAt": True}}
            load.append(UpdateOne({"_id": sha256}, change, upsert=True))
            size += len(data)
        if load:
            self._write(load)

    def _write(self, load: list[Any]) -> None:
        with self._connection.errors():
            self._documents().bulk_write(load, ordered=False)

    def _missing(self, wanted: Iterable[str]) -> list[str]:
        there = self.sizes(wanted)
        return [sha256 for sha256 in wanted if sha256 not in there]

    def _insert(self, name: str, fields: dict[str, Any]) -> None:
        """Write a document whose name says what it holds; it may be there already."""
        change = {"$setOnInsert": fields, "$currentDate": {"createdAt": True}}
        with self._connection.errors():
            self._documents().update_one({"_id": name}, change, upsert=True)

    def refresh(self, wanted: Collection[str]) -> int:
        """Make content as good as new; return how much of it is there."""
        names = list(dict.fromkeys(wanted))
        found = 0
        for start in range(0, len(names), _ASKED):
            chosen = names[start : start + _ASKED]
            condition = {"_id": chosen[0] if len(chosen) == 1 else {"$in": chosen}}
            change = {"$currentDate": {"createdAt": True}}
            with self._connection.errors():
                if len(chosen) == 1:
                    answer = self._documents().update_one(condition, change)
                else:
                    answer = self._documents().update_many(condition, change)
            found += answer.matched_count
        return found

    def sizes(self, wanted: Iterable[str]) -> dict[str, int]:
        """Return the size of the content that is there, by its hash."""
        names = list(dict.fromkeys(wanted))
        found: dict[str, int] = {}
        for start in range(0, len(names), _ASKED):
            condition = {"_id": {"$in": names[start : start + _ASKED]}}
            for page in self._connection.pages(self._collection, condition, {"size": 1}, _ASKED):
                found |= {one["_id"]: int(one["size"]) for one in page}
        return found

    def read(self, sha256: str) -> Iterator[bytes]:
        """Yield content in pieces; raise ObjectNotFoundError if some of it is not there."""
        with self._connection.errors():
            head = self._documents().find_one({"_id": sha256})
        if head is None:
            raise self._lost(sha256)
        if "chunkCount" not in head:
            data = bytes(head.get("data") or b"")
            yield from (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))
            return
        for number in range(int(head["chunkCount"])):
            with self._connection.errors():
                piece = self._documents().find_one({"_id": f"{sha256}:{number}"})
            if piece is None:
                raise self._lost(sha256)
            yield bytes(piece["data"])

    def _lost(self, sha256: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"the content {sha256} is not in {self._connection.identity}",
            hint="The index names it and the database has lost it. A machine that has the file"
            " brings it back with `swampstore sync --full`.",
        )

    # Sweeping ------------------------------------------------------------------------------------

    def unused(self, named: Container[str], moment: datetime) -> Iterator[tuple[str, int]]:
        """Yield documents (and their sizes) that nobody names, and that are older than a moment.

        Pieces go with their head; those without one were left by somebody who was stopped.
        """
        wanted = {"size": 1, "chunkCount": 1}
        for page in self._connection.pages(self._collection, _older(moment), wanted):
            heads = {one["_id"].partition(":")[0] for one in page if ":" in one["_id"]}
            there = self.sizes(heads)
            for one in page:
                head, colon, _ = one["_id"].partition(":")
                is_used = head in named or (colon and head in there)
                if not is_used:
                    yield one["_id"], int(one.get("size") or 0)

    def remove_older(self, name: str, moment: datetime) -> bool:
        """Remove content, unless somebody has put it, or found it, since a moment."""
        with self._connection.errors():
            head = self._documents().find_one(_older(moment, name), {"chunkCount": 1})
            if head is None:
                return False
            if not self._documents().delete_one(_older(moment, name)).deleted_count:
                return False
            # Somebody may be putting the same content again, and has found some of its pieces.
            for number in range(int(head.get("chunkCount", 0))):
                self._documents().delete_one(_older(moment, f"{name}:{number}"))
        return True


def _older(moment: datetime, name: str | None = None) -> dict[str, Any]:
    """Return the condition that content was last put, or found, before a moment."""
    old = {"$or": [{"createdAt": {"$lt": moment}}, {"createdAt": {"$exists": False}}]}
    return old if name is None else {"_id": name, **old}


def hashed(body: bytes | BinaryIO) -> tuple[str, int]:
    """Return the SHA-256 and the size of a body."""
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest(), len(body)
    digest, size = hashlib.sha256(), 0
    body.seek(0)
    while chunk := body.read(CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size
