"""One other namespace: lookups in its catalog, and its content, fetched when it is read."""

from __future__ import annotations

import io
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import BinaryIO, NamedTuple, cast

from swampstore.artifact import Artifact
from swampstore.artifacts.metadata import Metadata, decode, is_text
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import Row
from swampstore.errors import (
    ContentMissingError,
    ModelNotFoundError,
    NotFoundError,
    ValidationError,
)
from swampstore.files import disk_errors
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import METADATA, RAW, DataRef, ModelRef, check_segment
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


_LISTED = 12
_PULL = "Run `swampstore datastore catalog pull` to see what is new."


class ForeignNamespace:
    """What is known of one other namespace. Nothing here asks the remote; reading content does."""

    def __init__(self, catalog: Catalog, content: ForeignContent) -> None:
        self.name = catalog.namespace
        self._content = content
        self._catalog = catalog

    def has(self, model: str | ModelRef, name: str | None = None) -> bool:
        """Whether there is such a model, or if a name is given, such data of one."""
        models = self._models(model)
        if name is None:
            return bool(models)
        return any(self._catalog.versions(DataRef(one, name), 1) for one in models)

    def model(self, model: str | ModelRef) -> ModelRef:
        """Return the address that `TYPE/ID`, or the name of one known model, stands for."""
        found = self._models(model)
        if len(found) == 1:
            return found[0]
        if found:
            addresses = ", ".join(f"{self.name}:{one}" for one in found[:_LISTED])
            raise ValidationError(
                f"{self.name}:{model} is the name of {len(found)} models: {addresses}",
                hint="Give the address of the one you mean.",
            )
        if isinstance(model, str) and "/" in model:
            return ModelRef.parse(model)
        raise self._no_model(model)

    def _models(self, model: str | ModelRef) -> list[ModelRef]:
        if isinstance(model, ModelRef):
            return [model]
        if "/" in model and self._catalog.has_model(ref := ModelRef.parse(model)):
            return [ref]
        return self._catalog.models_named(model)

    def latest(self, model: str | ModelRef, name: str) -> Artifact | None:
        """Return the latest version of a data name."""
        return self._artifact(self._catalog.latest(self._ref(model, name)))

    def version(self, model: str | ModelRef, name: str, version: int) -> Artifact | None:
        """Return one version of a data name."""
        return self._artifact(self._catalog.version(self._ref(model, name), version))

    def list_versions(self, model: str | ModelRef, name: str) -> list[int]:
        """Return the versions of a data name, ascending."""
        return self._catalog.version_numbers(self._ref(model, name))

    def versions(
        self, model: str | ModelRef, name: str, limit: int | None = None
    ) -> list[Artifact]:
        """Return the versions of a data name, newest first."""
        rows = self._catalog.versions(self._ref(model, name), limit)
        return [Artifact(row, self._content) for row in rows]

    def list_data(self, model: str | ModelRef) -> list[Artifact]:
        """Return the latest of every data name of a model, sorted by name."""
        ref = self.model(model)
        rows = {row.data_name: row for row in reversed(self._catalog.latest_of(ref))}
        if not rows and not self._catalog.has_model(ref):
            raise self._no_model(model)
        return [Artifact(rows[name], self._content) for name in sorted(rows)]

    def not_found(
        self, model: str | ModelRef, name: str, version: int | None = None
    ) -> NotFoundError:
        """Return the error that says what there is instead."""
        ref = self._ref(model, name)
        if not self._catalog.has_model(ref.model):
            return self._no_model(model)
        numbers = self._catalog.version_numbers(ref)
        if numbers and version is not None:
            shown = ", ".join(map(str, numbers[-_LISTED:]))
            return NotFoundError(
                f"{self.name}:{ref} has no version {version}", hint=f"Versions: {shown}. {_PULL}"
            )
        if numbers:
            return NotFoundError(
                f"{self.name}:{ref} was deleted",
                hint=f"Its versions are kept: `swampstore data versions {self.name}:{ref}`.",
            )
        names = ", ".join(self._catalog.names(ref.model)[:_LISTED])
        return NotFoundError(
            f"{self.name}:{ref.model} has no data named {name!r}", hint=f"Names: {names}. {_PULL}"
        )

    def _no_model(self, model: str | ModelRef) -> ModelNotFoundError:
        named = self._catalog.known_model_names(_LISTED)
        known = named or [str(one) for one in self._catalog.models(_LISTED)]
        has = f"It has {', '.join(known)}. " if known else ""
        return ModelNotFoundError(
            f"the namespace {self.name} has no model {str(model)!r}", hint=f"{has}{_PULL}"
        )

    def _ref(self, model: str | ModelRef, name: str) -> DataRef:
        return DataRef(self.model(model), check_segment("data name", name))

    def _artifact(self, row: Row | None) -> Artifact | None:
        return None if row is None else Artifact(row, self._content)
