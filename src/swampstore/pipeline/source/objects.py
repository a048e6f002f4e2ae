"""The tables of what is stored: objects of a store, with all content read if asked, and files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swampstore.artifacts.latest import parse_marker
from swampstore.artifacts.metadata import decode
from swampstore.artifacts.metadata_glance import glance
from swampstore.clock import from_micros
from swampstore.errors import SwampstoreError
from swampstore.index.partitions import partition_of
from swampstore.index.path_kinds import is_marker, is_metadata
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Listed, Piece, each, listed, pieces
from swampstore.pipeline.source.scan import Whole
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.protocol import Store, hash_object

# Larger objects go through a file, so that memory does not depend on what is stored.
IN_MEMORY = 4 << 20


_LARGEST = (1 << 63) - 1


class Objects(Whole[Piece]):
    """One row per object of the place, bookkeeping included."""

    schema = schemas.OBJECTS

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Piece]:
        """Cut the listing into pieces."""
        return pieces(place, store, tasks)

    def rows(self, place: Place, piece: Piece, store: Store) -> Iterator[tuple[Any, ...]]:
        """List one piece."""
        for one in listed(piece, store):
            yield object_row(place, one)


def object_row(place: Place, one: Listed) -> tuple[Any, ...]:
    """Return the columns that tell of an object without its content."""
    info = one.info
    return (
        *(place.identity, place.namespace, one.rel, info.key),
        *(info.size, info.etag, info.last_modified, one.internal),
    )


@dataclass(frozen=True)
class Chosen:
    """Which objects are read: shard `portion` of `portions`, and of each of those a `sample`.

    Objects of one shard are always chosen together. The others have no row.
    """

    portion: int = 0
    portions: int = 1
    sample: float = 1.0

    def has(self, rel: str) -> bool:
        """Whether an object is read."""
        if self.portions > 1 and portion_of(partition_of(rel), self.portions) != self.portion:
            return False
        return self.sample >= 1 or portion_of(rel, 1 << 20) < self.sample * (1 << 20)


def portion_of(text: str, portions: int) -> int:
    """Return which of so many portions a text belongs to; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % portions


ALL = Chosen()


@dataclass(frozen=True)
class Contents(Whole[Piece]):
    """One row per chosen object that is no bookkeeping, with what its content turned out to be."""

    chosen: Chosen = field(default_factory=Chosen)
    schema = schemas.CONTENTS

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Piece]:
        """Cut the listing into pieces."""
        return pieces(place, store, tasks)

    def rows(self, place: Place, piece: Piece, store: Store) -> Iterator[tuple[Any, ...]]:
        """List one piece and read what is chosen; objects that vanish meanwhile have no row."""
        wanted = (one for one in listed(piece, store) if self._is_wanted(one))
        for one, content in each(place, lambda one: read_content(store, one), wanted):
            if content is not None:
                yield object_row(place, one) + content

    def _is_wanted(self, one: Listed) -> bool:
        return not one.internal and self.chosen.has(one.rel)


class Content(NamedTuple):
    """What an object holds; `error` says why it could not be read or understood."""

    sha256: str | None = None
    bytes: int | None = None
    marker: int | None = None
    checksum: str | None = None
    claimed_size: int | None = None
    described_name: str | None = None
    described_version: int | None = None
    error: str | None = None


def read_content(store: Store, one: Listed, *, described: bool = True) -> Content | None:
    """Read an object as a whole and say what it holds; None if it is gone by now.

    Whoever does not want metadata and markers `described` is only told the hash. Raises
    StoreUnreachableError and its like: an object that nobody could look at is not damaged.
    """
    try:
        if one.info.size > IN_MEMORY:
            sha256, info = hash_object(store, one.info.key)
            return Content(sha256, info.size)
        data = store.get(one.info.key).data
    except ObjectNotFoundError:
        return None
    return content_of(one.rel, data, described=described)


def content_of(rel: str, data: bytes, *, described: bool = True) -> Content:
    """Say what the content of a path holds, as `read_content` does."""
    sha256 = hashlib.sha256(data).hexdigest()
    if not described:
        return Content(sha256, len(data))
    if is_metadata(rel):
        return _described(sha256, data, rel)
    if is_marker(rel):
        return Content(sha256, len(data), marker=parse_marker(data))
    return Content(sha256, len(data))


def _described(sha256: str, data: bytes, rel: str) -> Content:
    try:
        found = glance(data) or decode(data, rel)
    except SwampstoreError as error:
        return Content(sha256, len(data), error=error.message)
    if max(abs(found.version), abs(found.size or 0)) > _LARGEST:
        return Content(sha256, len(data), error=f"{rel} has a number that is out of all bounds")
    # Content that streams may be growing right now, and its metadata follows.
    return Content(
        sha256,
        len(data),
        checksum=None if found.streaming else found.checksum,
        claimed_size=None if found.streaming else found.size,
        described_name=found.name,
        described_version=found.version,
    )


@dataclass(frozen=True)
class Files(Whole[Piece]):
    """One row per file that takes part in a sync; the hash only if it is asked for."""

    hashed: bool = False
    schema = schemas.FILES

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Piece]:
        """Cut the directory into pieces; a bucket somewhere else has no files."""
        return pieces(place, store, tasks) if place.root else []

    def rows(self, place: Place, piece: Piece, store: Store) -> Iterator[tuple[Any, ...]]:
        """Walk one piece; files that vanish meanwhile have no row."""
        assert place.root is not None
        root = f"{place.root}/{place.namespace}" if place.namespace else place.root
        for one in listed(piece, store):
            if one.internal:
                continue
            path = f"{root}/{one.rel}"
            try:
                status = os.lstat(path)
                sha256 = _hash(path) if self.hashed else None
            except FileNotFoundError:
                continue
            mtime = from_micros(status.st_mtime_ns // 1000)
            yield (
                *(place.identity, place.namespace, place.root, one.rel),
                *(status.st_size, mtime, sha256),
            )


def _hash(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
