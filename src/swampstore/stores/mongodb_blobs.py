"""Content by its SHA-256, as all clients of a MongoDB datastore keep it.

What fits into a document is one: `{_id: sha256, size, createdAt, data}`. What does not is cut into
pieces, `{_id: "sha256:0", ...}` and so on, and the head, `{_id: sha256, size, createdAt,
chunkCount}`, is written when they are all there.

`createdAt` is the server's time, and whoever finds that content is there already makes it new: a
sweep removes only what is old, on that very condition, so it never takes away what a push relies
on. Nothing is written twice, because the name says what the content is, unless it turns out not to
be that. Content some of whose pieces are missing is not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO

from swampstore.stores.errors import ObjectNotFoundError, StoreUnreachableError
from swampstore.stores.mongodb_client import Connection
from swampstore.stores.mongodb_keys import below
from swampstore.stores.protocol import CHUNK, payload

INLINE = 15 << 20
PIECE = 8 << 20
# Operations of one batch, and the bytes that go with them.
BATCH, BATCH_BYTES = 500, 14 << 20
_ASKED = 5000
_ATTEMPTS = 3


class Blobs:
    """The content of one namespace."""

    def __init__(self, connection: Connection, collection: str) -> None:
        self._connection = connection
        self._collection = collection

    def _documents(self) -> Any:
        return self._connection.database[self._collection]

    def put(self, sha256: str, body: bytes | BinaryIO, *, is_checked: bool = False) -> bool:
        """Keep content; return False if it was there already, and is as good as new now.

        What is there is believed to be what its name says, unless it is to be checked.
        """
        data = payload(body)
        try:
            if self._is_kept(sha256, len(data), is_checked=is_checked):
                return False
            if len(data) <= INLINE:
                self._insert(sha256, {"size": len(data), "data": bytes(data)})
            else:
                count = self._put_pieces(sha256, data)
                self._insert(sha256, {"size": len(data), "chunkCount": count})
        finally:
            if isinstance(data, memoryview):
                data.release()
        return True

    def _is_kept(self, sha256: str, size: int, *, is_checked: bool) -> bool:
        if not self.refresh([sha256]) or (size > INLINE and not self.sizes([sha256])):
            return False
        if is_checked and not self._is_sound(sha256):
            self._remove(sha256)
            return False
        return True

    def _is_sound(self, sha256: str) -> bool:
        digest = hashlib.sha256()
        try:
            for chunk in self.read(sha256):
                digest.update(chunk)
        except ObjectNotFoundError:
            return False
        return digest.hexdigest() == sha256

    def _put_pieces(self, sha256: str, data: bytes | memoryview) -> int:
        """Put what is missing of the pieces of content; return how many it has.

        That may take longer than a sweep waits for a head, so in the end all are made as good as
        new, and what was taken away meanwhile is put once more.
        """
        spans = enumerate(range(0, len(data), PIECE))
        starts = {f"{sha256}:{number}": start for number, start in spans}
        for _ in range(_ATTEMPTS):
            there = self._present(starts)
            for name, start in starts.items():
                if name not in there:
                    piece = bytes(data[start : start + PIECE])
                    self._insert(name, {"size": len(piece), "data": piece})
            if self.refresh(starts) == len(starts):
                return len(starts)
        raise StoreUnreachableError(
            f"pieces of {sha256} keep vanishing from {self._connection.identity}",
            hint="Find out who removes content there, and push again. Nothing is lost here.",
        )

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

    def refresh(self, wanted: Iterable[str]) -> int:
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
        """Return the size of the content that is there, all of it, by its hash."""
        found = self._present(wanted)
        pieces = {
            name: {f"{name}:{number}" for number in range(int(one["chunkCount"]))}
            for name, one in found.items()
            if "chunkCount" in one
        }
        there = self._present(set().union(*pieces.values())) if pieces else {}
        return {
            name: int(one["size"])
            for name, one in found.items()
            if pieces.get(name, set()) <= there.keys()
        }

    def _present(self, wanted: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the documents that are there, without content, by their names."""
        names = list(dict.fromkeys(wanted))
        members = {"size": 1, "chunkCount": 1}
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(names), _ASKED):
            condition = {"_id": {"$in": names[start : start + _ASKED]}}
            for page in self._connection.pages(self._collection, condition, members, _ASKED):
                found |= {one["_id"]: one for one in page}
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
        old = {"_id": below(""), **_older(moment)}
        for page in self._connection.pages(self._collection, old, wanted):
            heads = {one["_id"].partition(":")[0] for one in page if ":" in one["_id"]}
            there = self._present(heads)
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

    def _remove(self, sha256: str) -> None:
        """Remove what has this name and is not what it says."""
        with self._connection.errors():
            head = self._documents().find_one_and_delete({"_id": sha256}) or {}
            for number in range(int(head.get("chunkCount", 0))):
                self._documents().delete_one({"_id": f"{sha256}:{number}"})


def _older(moment: datetime, name: str | None = None) -> dict[str, Any]:
    """Return the condition that content was last put, or found, before a moment."""
    old = {"$or": [{"createdAt": {"$lt": moment}}, {"createdAt": {"$exists": False}}]}
    return old if name is None else {"_id": name, **old}
