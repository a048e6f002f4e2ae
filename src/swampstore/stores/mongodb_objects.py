"""What is no committed file: notes, manifests, `_meta.json`, and files that are on their way.

One collection of ours for each namespace: `{_id: path, hash, size, at, data}`. Content that
is too large for that is kept apart, by its hash. A file that is uploaded and that the index does
not name yet (`isStaged`) has no content here: that is among the blobs already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.stores.errors import changed, exists
from swampstore.stores.mongodb_blobs import BATCH, Blobs
from swampstore.stores.mongodb_client import Connection
from swampstore.stores.mongodb_keys import below
from swampstore.stores.protocol import Written, sha256_of, size_of

if TYPE_CHECKING:
    from pymongo.client_session import ClientSession

_INLINE = 1 << 20


class Body(NamedTuple):
    """What is to be kept: its hash, its size, and its bytes if they are few."""

    sha256: str
    size: int
    data: bytes | None = None
    is_staged: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the members of the document."""
        inline = {} if self.data is None else {"data": self.data}
        staged = {"isStaged": True} if self.is_staged else {}
        return {"hash": self.sha256, "size": self.size, **inline, **staged}


class Objects:
    """The objects of one namespace, by path. `name` is what errors call a path."""

    def __init__(
        self, connection: Connection, collection: str, contents: Blobs, prefix: str
    ) -> None:
        self._connection = connection
        self._collection = collection
        self._contents = contents
        self._prefix = prefix

    def _documents(self) -> Any:
        return self._connection.database[self._collection]

    def find(self, rel: str) -> dict[str, Any] | None:
        """Return the document of an object."""
        with self._connection.errors():
            found: dict[str, Any] | None = self._documents().find_one({"_id": rel})
        return found

    def read(self, found: dict[str, Any], blobs: Blobs) -> Iterator[bytes]:
        """Yield the content of an object."""
        if "data" in found:
            yield bytes(found["data"])
        else:
            yield from (blobs if found.get("isStaged") else self._contents).read(found["hash"])

    def put(self, rel: str, body: Body) -> None:
        """Write an object, whatever is there."""
        change = _replacement(body)
        with self._connection.errors():
            self._documents().update_one({"_id": rel}, change, upsert=True)

    def create(self, rel: str, body: Body) -> None:
        """Write an object if there is none; raise PreconditionFailedError."""
        from pymongo.errors import DuplicateKeyError

        # Nothing has an empty hash: if there is a document, the server refuses a second one.
        condition = {"_id": rel, "hash": ""}
        with self._connection.errors():
            try:
                self._documents().update_one(condition, _replacement(body), upsert=True)
            except DuplicateKeyError:
                raise exists(self._prefix + rel, self._connection.identity) from None

    def update(self, rel: str, body: Body, token: str) -> None:
        """Write an object in place of the one with this hash; raise PreconditionFailedError."""
        condition = {"_id": rel, "hash": token}
        with self._connection.errors():
            done = self._documents().update_one(condition, _replacement(body))
        if not done.matched_count:
            raise changed(self._prefix + rel, self._connection.identity)

    def replace(
        self, rel: str, data: bytes, token: str | None, session: ClientSession | None
    ) -> Written:
        """Write a small object on a condition, perhaps within a transaction.

        If it is there already with this very content, it was written by us: an answer was lost.
        """
        from pymongo.errors import DuplicateKeyError

        sha256, size = sha256_of(data), size_of(data)
        body = Body(sha256, size, data)
        condition = {"_id": rel, "hash": "" if token is None else token}
        with self._connection.errors(session):
            try:
                done = self._documents().update_one(
                    condition, _replacement(body), upsert=token is None, session=session
                )
            except DuplicateKeyError:
                if session is None and self._is(rel, sha256):
                    return Written(sha256, sha256, is_met=True)
                raise exists(self._prefix + rel, self._connection.identity) from None
        if done.matched_count or done.upserted_id is not None:
            return Written(sha256, sha256)
        if self._is(rel, sha256, session):
            return Written(sha256, sha256, is_met=True)
        raise changed(self._prefix + rel, self._connection.identity)

    def _is(self, rel: str, sha256: str, session: ClientSession | None = None) -> bool:
        with self._connection.errors(session):
            condition = {"_id": rel, "hash": sha256}
            return self._documents().find_one(condition, {"hash": 1}, session=session) is not None

    def delete(self, rel: str, token: str | None = None) -> bool:
        """Remove an object, the one with this hash if one is given; return whether it was there."""
        condition = {"_id": rel} if token is None else {"_id": rel, "hash": token}
        with self._connection.errors():
            return bool(self._documents().delete_one(condition).deleted_count)

    def list(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the documents of objects, without content, sorted."""
        condition = {"_id": below(prefix)}
        for page in self._connection.pages(self._collection, condition, {"data": 0}):
            yield from page

    # Files on their way --------------------------------------------------------------------------

    def stage(self, bodies: Mapping[str, Body]) -> None:
        """Note files that were uploaded, in few requests, whatever was noted of them before."""
        from pymongo import UpdateOne

        operations = [
            UpdateOne({"_id": rel}, _replacement(body), upsert=True) for rel, body in bodies.items()
        ]
        for start in range(0, len(operations), BATCH):
            with self._connection.errors():
                self._documents().bulk_write(operations[start : start + BATCH], ordered=False)

    def unstage(self, committed: Mapping[str, str]) -> None:
        """Drop the notes of files that the index names now, with this hash."""
        from pymongo import DeleteOne

        operations = [
            DeleteOne({"_id": rel, "hash": sha256, "isStaged": True})
            for rel, sha256 in committed.items()
        ]
        for start in range(0, len(operations), BATCH):
            with self._connection.errors():
                self._documents().bulk_write(operations[start : start + BATCH], ordered=False)

    def forget_staged(self, rels: Collection[str]) -> None:
        """Drop the notes of files whose content is not there any more."""
        with self._connection.errors():
            self._documents().delete_many({"_id": {"$in": list(rels)}, "isStaged": True})

    def remove_staged_before(self, moment: datetime) -> int:
        """Drop the notes of uploads that nobody has committed since a moment; return how many."""
        with self._connection.errors():
            condition = {"isStaged": True, "at": {"$lt": moment}}
            return int(self._documents().delete_many(condition).deleted_count)


def fits(size: int) -> bool:
    """Whether content is small enough to be kept in the document of its object."""
    return size <= _INLINE


def _replacement(body: Body) -> dict[str, Any]:
    fields = body.fields()
    gone = {name: "" for name in ("data", "isStaged") if name not in fields}
    change: dict[str, Any] = {"$set": fields, "$currentDate": {"at": True}}
    return {**change, "$unset": gone} if gone else change
