"""A tenant of a MongoDB database as a store: objects by key, as everywhere else.

A file of the datastore is its document in `paths` and its content in `blobs`. One that is uploaded
waits among the objects until the index names it (see `mongodb_paths`): uploading never changes what
others see. The token of an object is its SHA-256; that of a lock tells the very write.
"""

from __future__ import annotations

import heapq
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple, Self

from swampstore.clock import EPOCH
from swampstore.errors import ConfigError
from swampstore.files import disk_errors
from swampstore.stores.errors import (
    ObjectNotFoundError,
    UnsupportedOperationError,
    changed,
    exists,
    not_found,
)
from swampstore.stores.mongodb_blobs import Blobs, hashed
from swampstore.stores.mongodb_client import Connection, Deployment
from swampstore.stores.mongodb_keys import (
    BLOBS,
    CONTENTS,
    GLOBAL_LOCK,
    KINDS,
    LOCKS,
    OBJECTS,
    PATHS,
    Kind,
    Spot,
    after,
    below,
    is_namespace,
    key_of,
    split,
    spot_of,
)
from swampstore.stores.mongodb_locks import Locks
from swampstore.stores.mongodb_objects import Body, Objects, fits
from swampstore.stores.mongodb_paths import MONOLITH, Paths
from swampstore.stores.paths import (
    PathCursor,
    PathsCommit,
    PathsCommitted,
    SmallFile,
    StoredPath,
)
from swampstore.stores.protocol import (
    Capabilities,
    Fetched,
    Level,
    Limit,
    ObjectInfo,
    Written,
    check_key,
    parent_of,
    payload,
    receive,
)

_PAGE = 1000


class Place(NamedTuple):
    """The collections of one namespace."""

    names: dict[str, str]
    paths: Paths
    objects: Objects
    blobs: Blobs
    contents: Blobs
    locks: Locks


class MongoStore:
    """One tenant. `home` is the namespace, as other clients call it, of keys without one."""

    capabilities = Capabilities(
        conditional_delete=True, server_copy=False, repeats_tokens=True, keeps_paths=True
    )

    def __init__(self, connection: Connection, tenant: str, home: str) -> None:
        self.identity = connection.identity
        self._connection = connection
        self._tenant = tenant
        self._home = home
        self._places: dict[str, Place] = {}

    def deployment(self) -> Deployment:
        """Say what the server is part of, and so what it can promise."""
        return self._connection.deployment()

    def admitted_limits(self) -> Sequence[Limit]:
        """Say what a server alone does not promise."""
        if self.deployment().has_transactions:
            return ()
        problem = (
            "the server is no member of a replica set: a commit is several writes, each on its"
            " condition, and others may see some of them before the rest; what is acknowledged is"
            " on one disk. Run it as a replica set, of one member if need be"
        )
        return (Limit("transactions", problem),)

    # Where things are ----------------------------------------------------------------------------

    def place(self, namespace: str) -> Place:
        """Return the collections of a namespace, those of the store itself for an empty one."""
        if namespace not in self._places:
            if namespace == self._home:
                raise ConfigError(
                    f"the namespace {namespace} has the name of this store's own collections",
                    hint="Choose another namespace, or another one in the store's configuration.",
                )
            names = {kind: f"t_{self._tenant}_r_{namespace or self._home}_{kind}" for kind in KINDS}
            prefix = f"{namespace}/" if namespace else ""
            blobs = Blobs(self._connection, names[BLOBS])
            contents = Blobs(self._connection, names[CONTENTS])
            objects = Objects(self._connection, names[OBJECTS], contents, prefix)
            paths = Paths(self._connection, names, objects, blobs)
            locks = Locks(self._connection, names[LOCKS], namespace)
            self._places[namespace] = Place(
                paths=paths,
                objects=objects,
                blobs=blobs,
                contents=contents,
                locks=locks,
                names=names,
            )
        return self._places[namespace]

    def namespaces(self) -> list[str]:
        """Return the namespaces that have collections, without that of the store itself."""
        pattern = re.compile(rf"t_{re.escape(self._tenant)}_r_([a-z0-9-]+)_(?:{PATHS}|{OBJECTS})")
        with self._connection.errors():
            found = self._connection.database.list_collection_names()
        named = {match[1] for name in found if (match := pattern.fullmatch(name))}
        return sorted(one for one in named if one != self._home and is_namespace(one))

    def members(self, collection: str, condition: dict[str, Any], name: str) -> set[str]:
        """Return all that one member of some documents is."""
        pages = self._connection.pages(collection, condition, {name: 1})
        return {one[name] for page in pages for one in page if isinstance(one.get(name), str)}

    def _spot(self, key: str) -> tuple[Spot, Place]:
        spot = spot_of(check_key(key))
        return spot, self.place(spot.namespace)

    # Reading -------------------------------------------------------------------------------------

    def get(self, key: str) -> Fetched:
        """See Store.get."""
        spot, place = self._spot(key)
        if spot.rel == MONOLITH:
            return place.paths.monolith(key)
        if spot.kind is Kind.LOCK:
            return place.locks.get(spot.rel)
        info, chunks = self._object(key, spot, place)
        return Fetched(info, b"".join(chunks))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        spot, place = self._spot(key)
        if spot.kind is Kind.OBJECT and spot.rel != MONOLITH:
            found = self._found(key, spot, place)
            if found["hash"] == etag:
                return None
            return Fetched(_info(key, found), b"".join(place.objects.read(found, place.blobs)))
        if self.head(key).etag == etag:
            return None
        return self.get(key)

    def download(
        self, key: str, fd: int, *, size: int | None = None, sha256: str | None = None
    ) -> ObjectInfo:
        """See Store.download. Content that is known by its hash costs one request."""
        spot, place = self._spot(key)
        what = f"{key} in {self.identity}"
        if spot.kind is Kind.FILE and sha256 is not None and size is not None:
            try:
                receive(place.blobs.read(sha256), fd, what=what, size=size, sha256=sha256)
            except ObjectNotFoundError:
                pass  # perhaps the file is not what the caller thinks
            else:
                # When it was put there, nobody has asked: not after now.
                return ObjectInfo(key, size, sha256, sha256, self._connection.now())
        if spot.kind is Kind.LOCK or spot.rel == MONOLITH:
            info, data = self.get(key)
            receive([data], fd, what=what, size=size, sha256=sha256)
            return info
        info, chunks = self._object(key, spot, place)
        receive(chunks, fd, what=what, size=size, sha256=sha256)
        return info

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        spot, place = self._spot(key)
        if spot.rel == MONOLITH:
            return place.paths.monolith_info(key)
        if spot.kind is Kind.LOCK:
            return self.get(key).info
        found = self._found(key, spot, place)
        if spot.kind is Kind.FILE and not place.blobs.sizes([found["hash"]]):
            raise not_found(key, self.identity)
        return _info(key, found)

    def _object(self, key: str, spot: Spot, place: Place) -> tuple[ObjectInfo, Iterator[bytes]]:
        found = self._found(key, spot, place)
        if "updatedAt" in found:
            return _info(key, found), self._content(key, place.blobs.read(found["hash"]))
        return _info(key, found), self._content(key, place.objects.read(found, place.blobs))

    def _content(self, key: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from chunks
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(f"{key}: {error.message}", hint=error.hint) from None

    def _found(self, key: str, spot: Spot, place: Place) -> dict[str, Any]:
        """Return the document of an object: on its way, or else the one that the index names."""
        found = place.objects.find(spot.rel)
        if found is None and spot.kind is Kind.FILE:
            found = place.paths.find(spot.rel)
        if found is None:
            raise not_found(key, self.identity)
        return found

    # Listing -------------------------------------------------------------------------------------

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list; sorted."""
        parent_of(prefix)
        namespace, rest = split(prefix)
        if namespace:
            yield from self._listed(namespace, rest)
            return
        listings = [self._listed("", prefix)]
        if "/" not in prefix:
            chosen = [one for one in self.namespaces() if one.startswith(prefix)]
            listings += [self._listed(one, "") for one in chosen]
            listings.append(self._global_locks(prefix, ["", *chosen]))
        yield from heapq.merge(*listings, key=lambda info: info.key)

    def _listed(self, namespace: str, prefix: str) -> Iterator[ObjectInfo]:
        place = self.place(namespace)
        staged: set[str] = set()

        def objects() -> Iterator[ObjectInfo]:
            for found in place.objects.list(prefix):
                if found.get("isStaged"):
                    staged.add(found["_id"])
                yield _info(key_of(namespace, found["_id"]), found)

        # Few objects, and what is staged hides what is committed: so those come first.
        first = list(objects())
        files = (
            info
            for info in self._files(namespace, place, prefix)
            if split(info.key)[1] not in staged
        )
        yield from heapq.merge(first, files, place.locks.list(prefix), key=lambda info: info.key)

    def _files(self, namespace: str, place: Place, prefix: str) -> Iterator[ObjectInfo]:
        """Yield committed files whose content is there."""
        condition = {"deletedAt": None, **({"_id": below(prefix)} if prefix else {})}
        for page in self._connection.pages(place.names[PATHS], condition):
            hashes = [one["hash"] for one in page if isinstance(one.get("hash"), str)]
            there = place.blobs.sizes(hashes)
            for one in page:
                if one.get("hash") in there:
                    yield _info(key_of(namespace, one["_id"]), one)

    def _global_locks(self, prefix: str, namespaces: Iterable[str]) -> Iterator[ObjectInfo]:
        found = []
        for namespace in namespaces:
            if key_of(namespace, GLOBAL_LOCK).startswith(prefix):
                with suppress(ObjectNotFoundError):
                    found.append(self.place(namespace).locks.get(GLOBAL_LOCK).info)
        return iter(sorted(found, key=lambda info: info.key))

    def level(self, prefix: str = "") -> Level:
        """See swampstore.stores.protocol: from one folder to the next, past all that is in it."""
        parent_of(prefix)
        namespace, rest = split(prefix)
        place = self.place(namespace)
        folders: set[str] = set() if namespace or prefix else set(self.namespaces())
        objects: list[ObjectInfo] = []
        live = {"deletedAt": None}
        for collection, condition in (
            (place.names[PATHS], live),
            (place.names[OBJECTS], {}),
            (place.names[LOCKS], {}),
        ):
            for rel in self._names_below(collection, condition, rest, folders):
                key = key_of(namespace, rel)
                if rel != GLOBAL_LOCK and key not in {info.key for info in objects}:
                    try:
                        objects.append(self.head(key))
                    except ObjectNotFoundError:
                        continue
        return Level(sorted(folders), sorted(objects))

    def _names_below(
        self, collection: str, condition: dict[str, Any], prefix: str, folders: set[str]
    ) -> Iterator[str]:
        """Yield the paths directly below a prefix; add the folders there to those given."""
        start, end = prefix, after(prefix) if prefix else None
        while True:
            bounds = {"$gte": start} | ({"$lt": end} if end else {})
            chosen = {"_id": bounds, **condition}
            page = next(self._connection.pages(collection, chosen, {"_id": 1}, _PAGE), [])
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

    # Writing -------------------------------------------------------------------------------------

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            return place.locks.put(spot.rel, bytes(payload(body)))
        kept = self._keep(key, spot, place, body)
        place.objects.put(spot.rel, kept)
        return Written(kept.sha256, kept.sha256)

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put_if_absent."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            return place.locks.create(spot.rel, bytes(payload(body)))
        if spot.kind is Kind.FILE and place.paths.is_there(spot.rel):
            raise exists(key, self.identity)
        kept = self._keep(key, spot, place, body)
        place.objects.create(spot.rel, kept)
        return Written(kept.sha256, kept.sha256)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            return place.locks.replace(spot.rel, bytes(payload(body)), token)
        kept = self._keep(key, spot, place, body)
        if spot.kind is Kind.FILE and place.objects.find(spot.rel) is None:
            there = place.paths.find(spot.rel)
            if there is None or there["hash"] != token:
                raise changed(key, self.identity)
            place.objects.create(spot.rel, kept)
        else:
            place.objects.update(spot.rel, kept, token, None)
        return Written(kept.sha256, kept.sha256)

    def _keep(self, key: str, spot: Spot, place: Place, body: bytes | BinaryIO) -> Body:
        """Store the content of an object, and return what its document says."""
        if spot.rel == MONOLITH:
            raise UnsupportedOperationError(
                f"{key} is made from the paths in {self.identity} and cannot be written",
                hint="The index of a MongoDB datastore is its collection of paths.",
            )
        sha256, size = hashed(body)
        if spot.kind is Kind.FILE:
            place.blobs.put(sha256, body)
            return Body(sha256, size, is_staged=True)
        if fits(size):
            return Body(sha256, size, bytes(payload(body)))
        place.contents.put(sha256, body)
        return Body(sha256, size)

    def put_files(self, prefix: str, files: Mapping[str, SmallFile]) -> Collection[str]:
        """See KeepsPaths.put_files."""
        place = self._of(prefix)
        chosen = {rel: one for rel, one in files.items() if spot_of(rel).kind is Kind.FILE}
        there = self._tokens(place, list(chosen))
        free = {rel: one for rel, one in chosen.items() if there.get(rel) == one.token}
        if free:
            place.blobs.put_small({one.sha256: one.data for one in free.values()})
            place.objects.stage(
                {rel: Body(one.sha256, len(one.data), is_staged=True) for rel, one in free.items()}
            )
        return free.keys()

    def _tokens(self, place: Place, rels: Sequence[str]) -> dict[str, str]:
        """Return the tokens of files, on their way or committed."""
        condition = {"_id": {"$in": list(rels)}}
        tokens: dict[str, str] = {}
        for name, chosen in (
            (place.names[PATHS], {**condition, "deletedAt": None}),
            (place.names[OBJECTS], condition),
        ):
            for page in self._connection.pages(name, chosen, {"hash": 1}):
                tokens |= {one["_id"]: str(one.get("hash")) for one in page}
        return tokens

    def delete(self, key: str) -> None:
        """See Store.delete."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            place.locks.delete(spot.rel)
            return
        place.objects.delete(spot.rel)
        if spot.kind is Kind.FILE:
            # Without a number: all who go by time hear of it.
            change = {"$currentDate": {"updatedAt": True, "deletedAt": True}}
            with self._connection.errors():
                place.paths.documents(PATHS).update_one(
                    {"_id": spot.rel, "deletedAt": None}, {**change, "$unset": {"commitSeq": ""}}
                )

    def delete_if_match(self, key: str, token: str) -> None:
        """See Store.delete_if_match. What the index names is only taken away by a commit."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            place.locks.delete_if_match(spot.rel, token)
            return
        if place.objects.delete(spot.rel, token):
            return
        is_other = place.objects.find(spot.rel) is not None
        if is_other or (spot.kind is Kind.FILE and place.paths.find(spot.rel) is not None):
            raise changed(key, self.identity)

    def copy(self, source: str, target: str) -> None:
        """See Store.copy."""
        check_key(target)
        with disk_errors("a temporary file"), tempfile.TemporaryFile() as file:
            self.download(source, file.fileno())
            self.put(target, file)

    # The index -----------------------------------------------------------------------------------

    def changed_paths(
        self, prefix: str, since: PathCursor | None, below: Sequence[str] = ()
    ) -> Iterator[StoredPath]:
        """See KeepsPaths.changed_paths."""
        return self._of(prefix).paths.changed(since, below)

    def known_paths(
        self, prefix: str, rels: Collection[str], below: Collection[str]
    ) -> Iterator[StoredPath]:
        """See KeepsPaths.known_paths."""
        return self._of(prefix).paths.known(rels, below)

    def commit_paths(self, prefix: str, commit: PathsCommit) -> PathsCommitted:
        """See KeepsPaths.commit_paths."""
        place = self._of(prefix)
        if commit.token is None:
            place.paths.ensure_indexes()
        return place.paths.commit(commit)

    def newest_path(self, prefix: str) -> datetime | None:
        """See KeepsPaths.newest_path."""
        return self._of(prefix).paths.newest()

    def last_path_commit(self, prefix: str) -> int:
        """See KeepsPaths.last_path_commit."""
        return self._of(prefix).paths.last_commit()

    def _of(self, prefix: str) -> Place:
        return self.place(prefix.removesuffix("/"))

    # The rest ------------------------------------------------------------------------------------

    def clock(self) -> datetime:
        """See Store.clock."""
        return self._connection.clock()

    def close(self) -> None:
        """See Store.close."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _info(key: str, found: dict[str, Any]) -> ObjectInfo:
    moment = found.get("at") or found.get("updatedAt")
    modified = moment if isinstance(moment, datetime) else EPOCH
    return ObjectInfo(key, int(found["size"]), found["hash"], found["hash"], modified)
