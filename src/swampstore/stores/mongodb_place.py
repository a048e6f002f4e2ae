"""One namespace in a MongoDB database: what its collections say of an object together.

A file is on its way (a note among the objects), or committed (a record among the paths). The note
counts, until the path is changed: whoever commits removes his note, and if he is killed before
that, the note means nothing any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from swampstore.clock import EPOCH
from swampstore.stores.errors import ObjectNotFoundError, PreconditionFailedError, not_found
from swampstore.stores.mongodb_blobs import Blobs
from swampstore.stores.mongodb_client import Connection, whole
from swampstore.stores.mongodb_keys import (
    BLOBS,
    CONTENTS,
    LOCKS,
    OBJECTS,
    PATHS,
    Kind,
    Spot,
    after,
    below,
    key_of,
)
from swampstore.stores.mongodb_locks import Locks
from swampstore.stores.mongodb_objects import Body, Objects
from swampstore.stores.mongodb_paths import Paths
from swampstore.stores.protocol import ObjectInfo

_PAGE = 1000
GRACE = timedelta(hours=1)
# An upload that nobody has committed for so long belongs to a push that was given up.
ABANDONED = timedelta(days=1)
_CHECK_EVERY = 100
_COMMITTED = {"hash": 1, "updatedAt": 1, "deletedAt": 1}


class Swept(NamedTuple):
    """How much content nobody needs, and how much of it was removed."""

    unused: int = 0
    bytes: int = 0
    removed: int = 0


class Place:
    """The collections of one namespace; `names` are theirs, by their kind."""

    def __init__(self, connection: Connection, namespace: str, names: dict[str, str]) -> None:
        self._connection = connection
        self._namespace = namespace
        self.names = names
        self.blobs = Blobs(connection, names[BLOBS])
        self.contents = Blobs(connection, names[CONTENTS])
        prefix = f"{namespace}/" if namespace else ""
        self.objects = Objects(connection, names[OBJECTS], self.contents, prefix)
        self.paths = Paths(connection, names, self.objects, self.blobs)
        self.locks = Locks(connection, names[LOCKS], namespace)

    # Single objects ------------------------------------------------------------------------------

    def found(self, key: str, spot: Spot) -> dict[str, Any]:
        """Return the document of an object: on its way, or else the one that the index names."""
        found = self.objects.find(spot.rel)
        if spot.kind is Kind.FILE and (found is None or self._is_over(spot.rel, found)):
            found = self.paths.find(spot.rel)
        if found is None:
            raise not_found(key, self._connection.identity)
        return found

    def _is_over(self, rel: str, note: dict[str, Any]) -> bool:
        """Whether a file that is noted as on its way has arrived, or others were faster."""
        return bool(note.get("isStaged")) and is_later(self.paths.record(rel) or {}, note)

    def object(self, key: str, spot: Spot) -> tuple[ObjectInfo, Iterator[bytes]]:
        """Return what there is of an object, and its content in pieces."""
        found = self.found(key, spot)
        if "updatedAt" in found:
            return info_of(key, found), _content(key, self.blobs.read(found["hash"]))
        return info_of(key, found), _content(key, self.objects.read(found, self.blobs))

    def create(self, spot: Spot, kept: Body) -> None:
        """Note an object where there is none; raise PreconditionFailedError."""
        try:
            self.objects.create(spot.rel, kept)
        except PreconditionFailedError:
            note = self.objects.find(spot.rel)
            if note is None or spot.kind is not Kind.FILE or not self._is_over(spot.rel, note):
                raise
            self.objects.update(spot.rel, kept, note["hash"])

    # Many ----------------------------------------------------------------------------------------

    def tokens(self, rels: Sequence[str]) -> dict[str, str]:
        """Return the tokens of files, on their way or committed."""
        condition = {"_id": {"$in": list(rels)}}
        paths = self._by_name(PATHS, condition, _COMMITTED)
        notes = self._by_name(OBJECTS, condition, {"hash": 1, "at": 1})
        live = {rel: one for rel, one in paths.items() if one.get("deletedAt") is None}
        live |= {rel: one for rel, one in notes.items() if not is_later(paths.get(rel, {}), one)}
        return {rel: str(one.get("hash")) for rel, one in live.items()}

    def _by_name(
        self, kind: str, condition: dict[str, Any], members: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        pages = self._connection.pages(self.names[kind], condition, members)
        return {one["_id"]: one for page in pages for one in page}

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield what is below a prefix, sorted: objects, files and locks of models."""
        notes: dict[str, dict[str, Any]] = {}
        objects = []
        for found in self.objects.list(prefix):
            if found.get("isStaged"):
                notes[found["_id"]] = found
            else:
                objects.append(self._info(found))
        yield from heapq.merge(
            objects,
            self._files(prefix, notes),
            self.locks.list(prefix),
            key=lambda info: info.key,
        )

    def _files(self, prefix: str, notes: dict[str, dict[str, Any]]) -> Iterator[ObjectInfo]:
        """Yield files that are on their way, and those that are committed with content."""
        condition = {"_id": below(prefix)}
        waiting = sorted(notes, reverse=True)
        for page in self._connection.pages(self.names[PATHS], condition):
            hashes = [one["hash"] for one in page if isinstance(one.get("hash"), str)]
            there = self.blobs.sizes(hashes)
            for one in page:
                while waiting and waiting[-1] < str(one["_id"]):
                    yield self._info(notes[waiting.pop()])
                if waiting and waiting[-1] == one["_id"]:
                    note = notes[waiting.pop()]
                    if not is_later(one, note):
                        yield self._info(note)
                        continue
                is_named = one.get("deletedAt") is None and isinstance(one.get("hash"), str)
                if is_named and one["hash"] in there:
                    yield self._info(one)
        while waiting:
            yield self._info(notes[waiting.pop()])

    def _info(self, found: dict[str, Any]) -> ObjectInfo:
        return info_of(key_of(self._namespace, found["_id"]), found)

    def names_below(
        self, kind: str, condition: dict[str, Any], prefix: str, folders: set[str]
    ) -> Iterator[str]:
        """Yield the paths directly below a prefix; add the folders there to those given."""
        start, end = prefix, after(prefix) if prefix else None
        while True:
            bounds = {"$gte": start} | ({"$lt": end} if end else {})
            chosen = {"_id": bounds, **condition}
            page = next(self._connection.pages(self.names[kind], chosen, {"_id": 1}, _PAGE), [])
            found = [str(one["_id"]) for one in page]
            for rel in found:
                first, slash, _ = rel.removeprefix(prefix).partition("/")
                if slash:
                    folders.add(first)
                else:
                    yield rel
            if len(found) < _PAGE:
                return
            first, slash, _ = found[-1].removeprefix(prefix).partition("/")
            start = f"{prefix}{first}0" if slash else f"{found[-1]}\0"

    # Content that nobody needs -------------------------------------------------------------------

    def sweep(
        self, now: datetime, *, remove: bool, check: Callable[[], None] = lambda: None
    ) -> Swept:
        """Find content that no path names, and remove it; `check` raises if that may not be done.

        Content stays when its last path is deleted or gets other content. It goes when it is older
        than a grace: whoever puts the same content again, and every commit, makes it new. So it
        cannot be taken away from under a push of ours, however long that takes. Other clients make
        nothing new, but push under the lock of everything: hold that to remove any.
        """
        if remove:
            check()
            self.objects.remove_staged_before(now - ABANDONED)
        on_their_way = self._hashes(OBJECTS, {"isStaged": True})
        named = self._hashes(PATHS, {"deletedAt": None}) | on_their_way
        swept = Swept()
        for blobs, needed in ((self.blobs, named), (self.contents, self._hashes(OBJECTS, {}))):
            for name, size in blobs.unused(needed, now - GRACE):
                if swept.unused % _CHECK_EVERY == 0:
                    check()
                is_gone = remove and blobs.remove_older(name, now - GRACE)
                swept = Swept(swept.unused + 1, swept.bytes + size, swept.removed + is_gone)
        return swept

    def _hashes(self, kind: str, condition: dict[str, Any]) -> set[str]:
        pages = self._connection.pages(self.names[kind], condition, {"hash": 1})
        return {one["hash"] for page in pages for one in page if isinstance(one.get("hash"), str)}


def is_later(path: dict[str, Any], note: dict[str, Any]) -> bool:
    """Whether the record of a path was written after the note of an upload."""
    changed, noted = path.get("updatedAt"), note.get("at")
    return isinstance(changed, datetime) and isinstance(noted, datetime) and changed > noted


def _content(key: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from chunks
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(f"{key}: {error.message}", hint=error.hint) from None


def info_of(key: str, found: dict[str, Any]) -> ObjectInfo:
    """Describe an object by its document."""
    moment = found.get("at") or found.get("updatedAt")
    modified = moment if isinstance(moment, datetime) else EPOCH
    return ObjectInfo(key, whole(found.get("size")) or 0, found["hash"], found["hash"], modified)
