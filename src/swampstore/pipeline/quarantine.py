"""Where damaged things are kept: bookkeeping of the store, which no sync touches."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping

from swampstore.clock import Clock, system_clock
from swampstore.errors import ValidationError
from swampstore.index.path_map import Names
from swampstore.index.workers import Deadline, in_parallel
from swampstore.pipeline.source.objects import IN_MEMORY
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError, StorePermissionError
from swampstore.stores.errors import changed as changed_by_others
from swampstore.stores.protocol import ObjectInfo, Store, check_key

QUARANTINE = "_control/quarantine"
_CONCURRENCY = 8


def hash_of(store: Store, key: str, size: int) -> str:
    """Read an object of about this size as a whole and return its SHA-256."""
    if size <= IN_MEMORY:
        return hashlib.sha256(store.get(key).data).hexdigest()
    with tempfile.TemporaryFile() as file:
        store.download(key, file.fileno())
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


class Quarantine:
    """The things that one run set aside, each under the path that it had.

    `copies` are the keys of all that was kept, by hash. Each was read back, so content may be
    taken from here whatever becomes of the object that it was copied from.
    """

    def __init__(self, store: Store, names: Names, clock: Clock = system_clock) -> None:
        self._store = store
        self._names = names
        self.rel = f"{QUARANTINE}/{clock():%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
        self.copies: dict[str, str] = {}

    def keep(self, rel: str, sha256: str | None = None) -> bool:
        """Copy an object and read the copy back; False if there is no such object.

        `sha256` is what it was found to be; None: whatever it is now. Raises
        PreconditionFailedError if the copy is something else: somebody is writing there.
        """
        key, copy = self._names.remote(rel), self._place_of(rel)
        try:
            expected = sha256 or hash_of(self._store, key, self._store.head(key).size)
            self._store.copy(key, copy)
        except ObjectNotFoundError:
            return False
        if hash_of(self._store, copy, self._store.head(copy).size) != expected:
            raise changed_by_others(key, self._store.identity)
        self.copies[expected] = copy
        return True

    def _place_of(self, rel: str) -> str:
        try:
            return check_key(self._names.remote(f"{self.rel}/{rel}"))
        except ValidationError:  # too long for a key
            digest = hashlib.sha256(rel.encode()).hexdigest()
            return self._names.remote(f"{self.rel}/{digest}")


class Archive:
    """What earlier runs set aside. It is read only as far as somebody looks for something."""

    def __init__(self, store: Store, names: Names) -> None:
        self._store = store
        self._prefix = names.remote(f"{QUARANTINE}/")
        self._unread: list[ObjectInfo] | None = None
        self._known: dict[str, str] = {}

    def find(self, wanted: Mapping[str, Iterable[str]]) -> dict[str, str]:
        """Return the keys of content by hash, as far as it is here; `wanted` has its paths, too.

        A path only says where to look first: what counts is the hash of what is read.
        """
        missing = wanted.keys() - self._known.keys()
        if missing:
            rels = {rel for sha256 in missing for rel in wanted[sha256]}
            for info, sha256 in self._read(rels):
                if sha256 is not None:
                    self._known.setdefault(sha256, info.key)
                    missing.discard(sha256)
                if not missing:
                    break
        return {sha256: self._known[sha256] for sha256 in wanted.keys() & self._known.keys()}

    def _read(self, rels: set[str]) -> Iterator[tuple[ObjectInfo, str | None]]:
        """Read what nobody has read yet, what had one of these paths first."""
        if self._unread is None:
            self._unread = list(self._store.list(self._prefix))
        todo = sorted(self._unread, key=lambda info: (self._rel_of(info) not in rels, info.key))
        read: set[str] = set()
        try:
            for info, sha256, error in in_parallel(self._hash_of, todo, _CONCURRENCY, Deadline()):
                if error is not None:
                    raise error
                read.add(info.key)
                yield info, sha256
        finally:
            self._unread = [info for info in todo if info.key not in read]

    def _rel_of(self, info: ObjectInfo) -> str:
        return info.key[len(self._prefix) :].partition("/")[2]

    def _hash_of(self, info: ObjectInfo) -> str | None:
        try:
            return hash_of(self._store, info.key, info.size)
        except (ObjectNotFoundError, CorruptObjectError, StorePermissionError):
            return None  # whatever it was, nothing can be restored from it
