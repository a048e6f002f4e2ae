"""A tenant of a MongoDB database as a store: objects by key, as everywhere else.

A file of the datastore is its document in `paths` and its content in `blobs`. One that is uploaded
waits among the objects until the index names it (see `mongodb_paths`): uploading never changes what
others see. The token of an object is its SHA-256; that of a lock tells the very write.
"""

from __future__ import annotations

import heapq
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import BinaryIO, Self

from swampstore.errors import ConfigError
from swampstore.files import disk_errors
from swampstore.stores.errors import (
    ObjectNotFoundError,
    UnsupportedOperationError,
    changed,
    exists,
    not_found,
)
from swampstore.stores.mongodb_client import Connection, Deployment
from swampstore.stores.mongodb_keys import (
    GLOBAL_LOCK,
    KINDS,
    LOCKS,
    OBJECTS,
    PATHS,
    Kind,
    Spot,
    is_namespace,
    key_of,
    split,
    spot_of,
)
from swampstore.stores.mongodb_objects import Body, fits
from swampstore.stores.mongodb_paths import MONOLITH
from swampstore.stores.mongodb_place import Place, Swept, info_of
from swampstore.stores.paths import (
    PathCursor,
    PathsCommit,
    SmallFile,
    StoredPath,
)
from swampstore.stores.protocol import (
    Capabilities,
    Fetched,
    Level,
    Limit,
    ObjectInfo,
    Store,
    Written,
    check_key,
    parent_of,
    payload,
    receive,
    sha256_of,
    size_of,
)
from swampstore.stores.wrapper import StoreWrapper


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
            self._places[namespace] = Place(self._connection, namespace, names)
        return self._places[namespace]

    def namespaces(self) -> list[str]:
        """Return the namespaces that have collections, without that of the store itself."""
        pattern = re.compile(rf"t_{re.escape(self._tenant)}_r_([a-z0-9-]+)_(?:{PATHS}|{OBJECTS})")
        with self._connection.errors():
            found = self._connection.database.list_collection_names()
        named = {match[1] for name in found if (match := pattern.fullmatch(name))}
        return sorted(one for one in named if one != self._home and is_namespace(one))

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
        info, chunks = place.object(key, spot)
        return Fetched(info, b"".join(chunks))

    def get_if_changed(self, key: str, etag: str) -> Fetched | None:
        """See Store.get_if_changed."""
        spot, place = self._spot(key)
        if spot.kind is Kind.OBJECT and spot.rel != MONOLITH:
            found = place.found(key, spot)
            if found["hash"] == etag:
                return None
            return Fetched(info_of(key, found), b"".join(place.objects.read(found, place.blobs)))
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
        info, chunks = place.object(key, spot)
        receive(chunks, fd, what=what, size=size, sha256=sha256)
        return info

    def head(self, key: str) -> ObjectInfo:
        """See Store.head."""
        spot, place = self._spot(key)
        if spot.rel == MONOLITH:
            return place.paths.monolith_info(key)
        if spot.kind is Kind.LOCK:
            return self.get(key).info
        found = place.found(key, spot)
        if spot.kind is Kind.FILE and not place.blobs.sizes([found["hash"]]):
            raise not_found(key, self.identity)
        return info_of(key, found)

    # Listing -------------------------------------------------------------------------------------

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See Store.list; sorted."""
        parent_of(prefix)
        namespace, rest = split(prefix)
        if namespace:
            yield from self.place(namespace).list(rest)
            return
        listings = [self.place("").list(prefix)]
        if "/" not in prefix:
            chosen = [one for one in self.namespaces() if one.startswith(prefix)]
            listings += [self.place(one).list("") for one in chosen]
            listings.append(self._global_locks(prefix, ["", *chosen]))
        yield from heapq.merge(*listings, key=lambda info: info.key)

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
        for kind, condition in ((PATHS, live), (OBJECTS, {}), (LOCKS, {})):
            for rel in place.names_below(kind, condition, rest, folders):
                key = key_of(namespace, rel)
                if rel != GLOBAL_LOCK and key not in {info.key for info in objects}:
                    try:
                        objects.append(self.head(key))
                    except ObjectNotFoundError:
                        continue
        return Level(sorted(folders), sorted(objects))

    # Writing -------------------------------------------------------------------------------------

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        """See Store.put."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            return place.locks.put(spot.rel, bytes(payload(body)))
        kept = self._keep(key, spot, place, body, is_checked=True)
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
        place.create(spot, kept)
        return Written(kept.sha256, kept.sha256)

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        """See Store.put_if_match."""
        spot, place = self._spot(key)
        if spot.kind is Kind.LOCK:
            return place.locks.replace(spot.rel, bytes(payload(body)), token)
        kept = self._keep(key, spot, place, body, replaces=token)
        if spot.kind is not Kind.FILE:
            place.objects.update(spot.rel, kept, token)
            return Written(kept.sha256, kept.sha256)
        try:
            there = place.found(key, spot)
        except ObjectNotFoundError:
            there = {}
        if there.get("hash") != token:
            raise changed(key, self.identity)
        if there.get("isStaged"):
            place.objects.update(spot.rel, kept, token)
        elif kept.sha256 != token:
            place.create(spot, kept)
        return Written(kept.sha256, kept.sha256)

    def _keep(
        self,
        key: str,
        spot: Spot,
        place: Place,
        body: bytes | BinaryIO,
        *,
        replaces: str = "",
        is_checked: bool = False,
    ) -> Body:
        """Store the content of an object, and return what its document says.

        Whoever puts the same content again has a reason: what is there may be damaged.
        """
        if spot.rel == MONOLITH:
            raise UnsupportedOperationError(
                f"{key} is made from the paths in {self.identity} and cannot be written",
                hint="The index of a MongoDB datastore is its collection of paths.",
            )
        sha256, size = sha256_of(body), size_of(body)
        if spot.kind is Kind.FILE:
            place.blobs.put(sha256, body, is_checked=is_checked or sha256 == replaces)
            return Body(sha256, size, is_staged=True)
        if fits(size):
            return Body(sha256, size, bytes(payload(body)))
        place.contents.put(sha256, body, is_checked=is_checked or sha256 == replaces)
        return Body(sha256, size)

    def put_files(self, prefix: str, files: Mapping[str, SmallFile]) -> Collection[str]:
        """See KeepsPaths.put_files."""
        place = self._of(prefix)
        chosen = {rel: one for rel, one in files.items() if spot_of(rel).kind is Kind.FILE}
        there = place.tokens(list(chosen))
        free = {rel: one for rel, one in chosen.items() if there.get(rel) == one.token}
        if free:
            place.blobs.put_small({one.sha256: one.data for one in free.values()})
            place.objects.stage(
                {rel: Body(one.sha256, len(one.data), is_staged=True) for rel, one in free.items()}
            )
        return free.keys()

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

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        """Refuse it: content that is there already is never sent again in the first place."""
        raise UnsupportedOperationError(
            f"{target} in {self.identity} cannot be a copy of {source} ({token})",
            hint="Content has one place there, whatever names it.",
        )

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

    def paths_between(self, prefix: str, start: str, end: str | None) -> Iterator[StoredPath]:
        """See KeepsPaths.paths_between."""
        return self._of(prefix).paths.between(start, end)

    def commit_paths(self, prefix: str, commit: PathsCommit) -> Written:
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

    def sweep(
        self, namespace: str, *, remove: bool, check: Callable[[], None] = lambda: None
    ) -> Swept:
        """Find content that no path of a namespace names, and remove it; see Place.sweep."""
        return self.place(namespace).sweep(self.clock(), remove=remove, check=check)

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


def database_of(store: Store) -> MongoStore | None:
    """Return the database below all wrappers, None if the store is none."""
    while isinstance(store, StoreWrapper):
        store = store.inner
    return store if isinstance(store, MongoStore) else None
