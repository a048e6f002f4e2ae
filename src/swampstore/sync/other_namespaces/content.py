"""The content of other namespaces: fetched when it is read, checked, and kept in memory only."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import BinaryIO, NamedTuple, cast

from swampstore.artifacts.media_types import is_text
from swampstore.artifacts.metadata import Metadata, decode
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import Row
from swampstore.errors import ContentMissingError, ValidationError
from swampstore.files import disk_errors
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import METADATA, RAW, DataRef
from swampstore.notices import notice
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError, StoreError
from swampstore.stores.protocol import Store

MEMORY_BUDGET = 64 << 20
_CONCURRENCY = 16
_STALE = "Its catalog may be old: run `swampstore datastore catalog pull`."


class Wanted(NamedTuple):
    """An object, and what is known about it: None if its size or hash is not."""

    key: str
    size: int | None = None
    sha256: str | None = None


class ContentMemory:
    """Contents by key, at most `budget` bytes of them; threads may share it."""

    def __init__(self, budget: int = MEMORY_BUDGET) -> None:
        self.budget = budget
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._guard = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Return what is kept under a key."""
        with self._guard:
            if key in self._contents:
                self._contents.move_to_end(key)
            return self._contents.get(key)

    def keep(self, key: str, data: bytes) -> None:
        """Keep a content, and forget those that were not read for longest."""
        if len(data) > self.budget:
            return
        with self._guard:
            self._size += len(data) - len(self._contents.pop(key, b""))
            self._contents[key] = data
            while self._size > self.budget:
                self._size -= len(self._contents.popitem(last=False)[1])


class ForeignStore:
    """The datastore as a reader of other namespaces sees it; opened when it is needed.

    After it failed once, `peek` does not ask it again: a query must not wait once per row.
    """

    def __init__(self, open_store: Callable[[], Store], memory: ContentMemory) -> None:
        self._open_store = open_store
        self._memory = memory
        self._store: Store | None = None
        self._guard = threading.Lock()
        self._failed = False

    @property
    def store(self) -> Store:
        """The store itself."""
        with self._guard:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def open(self, wanted: Wanted) -> BinaryIO:
        """Open an object; raise ObjectNotFoundError, or CorruptObjectError if it is another one."""
        kept = self._memory.get(wanted.key)
        if kept is not None:
            return io.BytesIO(kept)
        file = _nameless_file(wanted.size, self._memory.budget)
        try:
            self.store.download(wanted.key, file.fileno(), size=wanted.size, sha256=wanted.sha256)
            if os.fstat(file.fileno()).st_size <= self._memory.budget:
                file.seek(0)
                self._memory.keep(wanted.key, file.read())
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def peek(self, wanted: Wanted) -> bytes | None:
        """Return an object's content, None if it cannot be had now."""
        if self._failed:
            return self._memory.get(wanted.key)
        try:
            with self.open(wanted) as file:
                return file.read()
        except (ObjectNotFoundError, CorruptObjectError, ValidationError) as error:
            notice("%s", error.message)
        except StoreError as error:
            self._failed = True
            notice("%s; content of other namespaces is left out", error.message)
        return None

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        """Fetch several objects at once into the memory, as far as they can be had."""
        missing = [one for one in wanted if self._memory.get(one.key) is None]
        for _ in in_parallel(self.peek, missing, _CONCURRENCY, Deadline()):
            pass

    def close(self) -> None:
        """Give the store back, if it was opened."""
        with self._guard:
            if self._store is not None:
                self._store.close()
                self._store = None


def _nameless_file(size: int | None, budget: int) -> BinaryIO:
    """Return a file that nobody else can see and that is gone when it is closed.

    It is in memory, unless it may be too large for that.
    """
    if size is not None and size <= budget and hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("content"), "w+b")
    with disk_errors(tempfile.gettempdir()):
        return cast("BinaryIO", tempfile.TemporaryFile())


class ForeignContent:
    """The content of one other namespace. Its files are never on this machine."""

    def __init__(self, catalog: Catalog, store: ForeignStore) -> None:
        self._catalog = catalog
        self._namespace = catalog.namespace
        self._store = store

    def open(self, ref: DataRef, version: int, checksum: str = "") -> BinaryIO:
        """Fetch and open a version's bytes, which are compared with their hash on arrival."""
        del checksum
        row = self._catalog.version(ref, version)
        key = f"{self._namespace}/{ref.file_rel(version, RAW)}"
        wanted = Wanted(key) if row is None else wanted_of(row)
        try:
            return self._store.open(wanted)
        except (ObjectNotFoundError, CorruptObjectError) as error:
            raise ContentMissingError(
                f"{self._namespace}:{ref} version {version} cannot be read: {error.message}",
                hint=_STALE,
            ) from error

    def read(self, ref: DataRef, version: int, checksum: str = "") -> bytes | None:
        """Fetch a version's text, which is all that queries look at; None if it cannot be had."""
        del checksum
        row = self._catalog.version(ref, version)
        if row is None or not is_text(row.content_type):
            return None if row is None else b""
        return self._store.peek(wanted_of(row))

    def path(self, ref: DataRef, version: int) -> str:
        """Content of another namespace has no file here: always raises."""
        raise ContentMissingError(
            f"{self._namespace}:{ref} version {version} has no file on this machine",
            hint="Use .bytes() or .open(), which fetch it.",
        )

    def metadata(self, ref: DataRef, version: int) -> Metadata:
        """Fetch a version's `metadata.yaml`."""
        key = f"{self._namespace}/{ref.file_rel(version, METADATA)}"
        try:
            with self._store.open(Wanted(key)) as file:
                return decode(file.read(), key)
        except ObjectNotFoundError as error:
            raise ContentMissingError(
                f"{self._namespace}:{ref} version {version} is gone: {error.message}", hint=_STALE
            ) from error


def wanted_of(row: Row) -> Wanted:
    """Return the object that holds the content of a row.

    A streaming version may have grown since its row was published.
    """
    key = f"{row.namespace}/{row.ref.file_rel(row.version, RAW)}"
    if row.streaming:
        return Wanted(key)
    return Wanted(key, row.size or None, row.checksum or None)
