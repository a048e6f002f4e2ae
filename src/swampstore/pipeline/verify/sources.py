"""Where content is to be had: other objects, quarantine, and the cache of the repository.

Content is known by its hash. What is said to be there is only believed when it was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import BinaryIO

from swampstore import config as configuration
from swampstore.files import disk_errors
from swampstore.index.path_map import Names
from swampstore.layout import METADATA, RAW
from swampstore.pipeline.evidence.reading import Copy
from swampstore.pipeline.quarantine import Archive, Quarantine
from swampstore.pipeline.source.objects import Content, content_of
from swampstore.pipeline.verify.examination import etag_of
from swampstore.pipeline.verify.mending import Wanted
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError, StorePermissionError
from swampstore.stores.protocol import Store

Having = Callable[[Collection[str]], Iterable[tuple[str, Copy]]]
"""Return objects that had content of some hashes when they were read."""
_METADATA = f"/{METADATA}"


class Sources:
    """What a repair can restore from.

    `names` knows the cache, if there is one. What the repair has set aside itself comes first:
    the object that it was copied from may be another one by now.
    """

    def __init__(self, store: Store, names: Names, having: Having, quarantine: Quarantine) -> None:
        self._store = store
        self._names = names
        self._having = having
        self._quarantine = quarantine
        self._archive = Archive(store, names)
        self._objects: dict[str, Copy] = {}
        self._cached: dict[Wanted, str] = {}
        self._archived: dict[str, str] = {}
        self._described: dict[Wanted, Content | None] = {}

    def look_for(self, wanted: Iterable[Wanted]) -> None:
        """Find out where some content is; metadata that is found may ask for more."""
        needed = {*wanted}
        self._look_for(needed)
        described = ((one.rel, self.find(one)) for one in needed if one.rel.endswith(_METADATA))
        self._look_for(
            {
                Wanted(rel.removesuffix(METADATA) + RAW, found.checksum)
                for rel, found in described
                if found is not None and found.checksum
            }
            - needed
        )

    def _look_for(self, wanted: set[Wanted]) -> None:
        hashes = {one.sha256 for one in wanted} - self._quarantine.copies.keys()
        if hashes:
            for sha256, copy in self._having(hashes):
                if (
                    self._objects.get(sha256) != copy
                    and etag_of(self._store, copy.key) == copy.etag
                ):
                    self._objects[sha256] = copy
        self._cached |= {one: path for one in wanted if (path := self._cache_path(one))}
        missing: dict[str, list[str]] = {}
        for one in wanted:
            if not self._is_found(one):
                missing.setdefault(one.sha256, []).append(one.rel)
        self._archived |= self._archive.find(missing)

    def _is_found(self, wanted: Wanted) -> bool:
        sha256 = wanted.sha256
        held = (self._quarantine.copies, self._objects, self._archived)
        return wanted in self._cached or any(sha256 in one for one in held)

    def find(self, wanted: Wanted) -> Content | None:
        """Return what content holds that was looked for, None if it is nowhere."""
        if not self._is_found(wanted):
            return None
        if not wanted.rel.endswith(_METADATA):
            return Content(wanted.sha256)
        if wanted not in self._described:
            with tempfile.TemporaryFile() as file:
                is_there = self.fetch(wanted, file)
                found = content_of(wanted.rel, file.read()) if is_there else None
            self._described[wanted] = found
        return self._described[wanted]

    def fetch(self, wanted: Wanted, file: BinaryIO, touched: Collection[str] = ()) -> bool:
        """Copy content into an empty file, which is then at its start; False if it is nowhere.

        Objects that are `touched` (keys) are not read.
        """
        for origin in self._origins(wanted, touched):
            file.seek(0)
            file.truncate()
            with contextlib.suppress(
                ObjectNotFoundError, CorruptObjectError, StorePermissionError, FileNotFoundError
            ):
                origin(file)
                if digest_of(file) == wanted.sha256:
                    file.seek(0)
                    return True
        return False

    def _origins(
        self, wanted: Wanted, touched: Collection[str]
    ) -> Iterator[Callable[[BinaryIO], None]]:
        """Yield what brings content, best first."""
        sha256 = wanted.sha256
        copy = self._objects.get(sha256)
        keys = [
            self._quarantine.copies.get(sha256),
            copy.key if copy and copy.key not in touched else None,
            self._archived.get(sha256),
        ]
        for key in filter(None, keys):
            yield lambda file, key=key: _download(self._store, key, file)  # type: ignore[misc]
        path = self._cached.get(wanted)
        if path is not None:
            yield lambda file: _read(path, file)

    def _cache_path(self, wanted: Wanted) -> str | None:
        path = self._names.local(wanted.rel)
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == wanted.sha256:
                return path
        return None


def digest_of(file: BinaryIO) -> str:
    """Return the SHA-256 of all that a file holds."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _download(store: Store, key: str, file: BinaryIO) -> None:
    store.download(key, file.fileno())


def _read(path: str, file: BinaryIO) -> None:
    with open(path, "rb") as cached, disk_errors(tempfile.gettempdir()):
        shutil.copyfileobj(cached, file)
        file.flush()


def cache_of(target: str) -> str | None:
    """Return the cache of the repository that a place was found through, None without one."""
    if not os.path.isdir(target):
        return None
    config = configuration.load(target, os.environ)
    return config.base if config.remote else None
