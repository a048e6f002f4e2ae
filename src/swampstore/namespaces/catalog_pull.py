"""Bringing the catalogs of other namespaces here: what each of them published, as it is now.

The rows of a namespace become equal to its export: what was deleted there goes here. An export
that did not change since costs one request. In a directory that is used in place nobody pushes,
so nobody publishes: without an export, the files of the namespace are read instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, cast

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.versions import data_names
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.database import MemoryDatabase
from swampstore.catalog.export import EXPORT, ExportedRows
from swampstore.catalog.foreign import ForeignCatalogs, PublishedRows, Pulled
from swampstore.catalog.schema import Row
from swampstore.clock import Clock, to_iso
from swampstore.errors import DiskError, ValidationError
from swampstore.files import Tree, disk_errors
from swampstore.layout import DATASTORE_SUBDIRS, MANIFEST, check_namespace
from swampstore.notices import notice
from swampstore.stores.errors import ObjectNotFoundError, StoreError, StoreUnreachableError
from swampstore.stores.protocol import ObjectInfo, Store, folders


@dataclass(frozen=True, slots=True)
class PulledCatalog:
    """The catalog of one namespace that is here now. `bad_rows` could not be understood."""

    namespace: str
    rows: int
    exported_at: str
    bad_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return its members as `catalog pull` shows them."""
        return {
            "namespace": self.namespace,
            "rows": self.rows,
            "exportedAt": self.exported_at,
            "badRows": self.bad_rows,
        }


@dataclass(frozen=True, slots=True)
class SkippedCatalog:
    """A namespace whose catalog could not be had, and why."""

    namespace: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return its members as `catalog pull` shows them."""
        return {"namespace": self.namespace, "reason": self.reason}


@dataclass(slots=True)
class PulledCatalogs:
    """What a pull of catalogs did."""

    pulled: list[PulledCatalog] = field(default_factory=list)
    skipped: list[SkippedCatalog] = field(default_factory=list)

    @property
    def total_rows(self) -> int:
        """How many rows the pulled catalogs have together."""
        return sum(one.rows for one in self.pulled)

    def to_json(self) -> dict[str, Any]:
        """Return the result document of `catalog pull`."""
        return {
            "pulled": [one.to_json() for one in self.pulled],
            "skipped": [one.to_json() for one in self.skipped],
            "totalRows": self.total_rows,
        }


class CatalogPull:
    """One pull of catalogs from a datastore; `base` is its directory if it is used in place."""

    def __init__(
        self,
        catalogs: ForeignCatalogs,
        store: Store,
        own: str,
        *,
        clock: Clock,
        base: str | None = None,
    ) -> None:
        self._catalogs = catalogs
        self._store = store
        self._own = own
        self._clock = clock
        self._base = base
        self._before = catalogs.namespaces()

    def run(self, namespaces: Iterable[str] | None = None) -> PulledCatalogs:
        """Pull the catalogs of these namespaces, None: of all others.

        What is wrong with one is told and does not keep the others away. Raises ValidationError
        for what cannot be another namespace, StoreUnreachableError if nobody answers.
        """
        chosen = self._every() if namespaces is None else self._checked(namespaces)
        result = PulledCatalogs()
        for namespace in chosen:
            try:
                found = self._pull(namespace)
            except StoreUnreachableError:
                raise
            except (StoreError, ValidationError, DiskError) as error:
                found = SkippedCatalog(namespace, error.message)
            if isinstance(found, PulledCatalog):
                result.pulled.append(found)
            elif found is not None:
                result.skipped.append(found)
            elif namespaces is not None:
                result.skipped.append(SkippedCatalog(namespace, "there is no such namespace"))
        return result

    def _every(self) -> list[str]:
        """Return what may be a namespace, and those that were pulled before."""
        found = set(self._before)
        for name in folders(self._store):
            if name not in DATASTORE_SUBDIRS and name != self._own and _is_namespace(name):
                found.add(name)
        return sorted(found)

    def _checked(self, namespaces: Iterable[str]) -> list[str]:
        chosen = sorted({check_namespace(name) for name in namespaces})
        if self._own in chosen:
            raise ValidationError(
                f"{self._own} is the namespace of this repository",
                hint="Name others; the own catalog is always up to date.",
            )
        return chosen

    def _pull(self, namespace: str) -> PulledCatalog | SkippedCatalog | None:
        published = self._head(f"{namespace}/{EXPORT}")
        if published is not None:
            return self._take(namespace, published)
        # The store follows no link, so neither of the two directories is one.
        if self._base is not None and folders(self._store, f"{namespace}/data/"):
            walk = partial(_Walk, self._base, namespace)
            return _told(namespace, self._catalogs.replace(namespace, walk, self._now()))
        if self._head(f"{namespace}/{MANIFEST}") is not None:
            return SkippedCatalog(namespace, "it has not published its catalog")
        if namespace in self._before:
            self._catalogs.remove(namespace)
            return SkippedCatalog(namespace, "it is gone, and its rows with it")
        return None

    def _head(self, key: str) -> ObjectInfo | None:
        try:
            return self._store.head(key)
        except ObjectNotFoundError:
            return None

    def _take(self, namespace: str, published: ObjectInfo) -> PulledCatalog:
        before = self._before.get(namespace)
        if before is not None and before.etag == published.etag:
            return _told(namespace, before)
        with disk_errors(tempfile.gettempdir()), tempfile.TemporaryFile() as file:
            info = self._store.download(published.key, file.fileno())

            def read() -> ExportedRows:
                file.seek(0)
                return ExportedRows(cast("BinaryIO", file), namespace)

            moment = to_iso(info.last_modified)
            return _told(namespace, self._catalogs.replace(namespace, read, moment, info.etag))

    def _now(self) -> str:
        return to_iso(self._clock())


def _told(namespace: str, pulled: Pulled) -> PulledCatalog:
    return PulledCatalog(namespace, pulled.rows, pulled.exported_at, pulled.bad)


def _is_namespace(name: str) -> bool:
    try:
        return bool(check_namespace(name))
    except ValidationError:
        return False


class _Walk(PublishedRows):
    """The rows of a namespace, read from its files. `bad` counts branches that cannot be read."""

    def __init__(self, base: str, namespace: str) -> None:
        directory = f"{base}/{namespace}"
        self._namespace = namespace
        self._tree = Tree.only_read(directory)

    def __iter__(self) -> Iterator[Row]:
        catalog = Catalog(MemoryDatabase(), self._namespace)
        try:
            for ref in data_names(self._tree, self._complain):
                # Which of its versions are latest is settled as it is for our own.
                marker = on_disk.effective_marker(self._tree, ref)
                catalog.replace(ref, on_disk.stored_versions(self._tree, ref), marker)
                rows = catalog.versions(ref)
                yield from (row for row in rows if not row.is_deleted and not row.deferred)
                catalog.replace(ref, (), 0)
        finally:
            catalog.close()

    def _complain(self, place: str, error: OSError) -> None:
        self.bad += 1
        notice("%s cannot be read: %s", place, error.strerror)
