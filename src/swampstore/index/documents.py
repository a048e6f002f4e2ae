"""Getting and putting the documents of the index. Only here are their keys made.

Whatever is read is scrubbed: entries of bookkeeping files, which old clients let in, and entries
that lead out of the cache are taken out, and what is written back no longer has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar, cast

import msgspec
from msgspec.structs import replace

from swampstore.clock import asleep_too
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document, RawEntries, decode_monolith, decode_shard, scrub
from swampstore.index.partitions import (
    META_KEY,
    MONOLITH_KEY,
    ORIGINS_KEY,
    SHARDS,
    partition_in,
    shard_key,
)
from swampstore.index.path_map import Names
from swampstore.index.results import Skipped
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import are_plain, is_internal, is_plain
from swampstore.stores.errors import ObjectNotFoundError
from swampstore.stores.paths import KeepsPaths
from swampstore.stores.protocol import Fetched, ObjectInfo, Store, Written

T = TypeVar("T")
R = TypeVar("R")

_BOOKKEEPING = "bookkeeping"


class StoredDocument(msgspec.Struct, frozen=True):
    """A shard or the monolith as it is on the store.

    Without `doc` there is none, or (if there is an `etag`) none that can be understood. `is_dirty`
    says that `doc` is not what the store holds, so that it has to be written. `is_assumed` says
    that nobody looked: `_meta.json` does not tell of a shard, so there should be none.
    `is_recovered` says that `doc` was lost and put together again; `is_guess` that it was made from
    the files there are, so that what is missing in it need not have been deleted. `restored` are
    the paths that a commit took out which did not come to its end. `written` is when a shard was
    put there, by the clock of the store.
    """

    doc: Document | None = None
    etag: str | None = None
    token: str | None = None
    is_dirty: bool = False
    is_assumed: bool = False
    is_recovered: bool = False
    is_guess: bool = False
    restored: frozenset[str] = frozenset()
    written: datetime | None = None


def _allowed(_since: float = math.inf) -> None:
    """Let everybody commit."""


class Documents:
    """The index documents of one namespace. `damage` collects what had to be left out.

    `guard` is called between the reading of the document that a commit builds on and the write
    that makes the commit count; it raises if the committer may not commit any more. It is told
    when that document was last read: what was proven after that holds.
    """

    def __init__(self, store: Store, names: Names, concurrency: int) -> None:
        self.store = store
        self.damage: list[Skipped] = []
        self.guard: Callable[[float], None] = _allowed
        self._last_read = math.inf
        self._names = names
        self._concurrency = concurrency
        self._meta_key = names.remote(META_KEY)
        self._monolith_key = names.remote(MONOLITH_KEY)
        self._origins_key = names.remote(ORIGINS_KEY)

    # Reading -----------------------------------------------------------------------------------

    def meta(self) -> Fetched | None:
        """Return `_meta.json`, None if there is none."""
        return self._was_read(self._get(self._meta_key))

    def meta_unless(self, etag: str) -> Fetched | None:
        """Return `_meta.json`, None if it still has this ETag; raise ObjectNotFoundError."""
        return self._was_read(self.store.get_if_changed(self._meta_key, etag))

    def _was_read(self, answer: Fetched | None) -> Fetched | None:
        """Note that a document which commits build on was just read."""
        self._last_read = asleep_too()
        return answer

    def check_allowed(self) -> None:
        """Raise if whoever wants to commit may not, where no condition stands in the way."""
        self.guard(math.inf)

    def _check_allowed_on_condition(self) -> None:
        """Raise if whoever wants to replace what was read last may not.

        If somebody takes over a lock that was proven since then, what was read is replaced before
        that somebody begins, and the condition of the write does not hold any more.
        """
        able = self.store.capabilities
        is_bound = able.conditional_create and able.conditional_update
        self.guard(self._last_read if is_bound else math.inf)

    def monolith_info(self) -> ObjectInfo | None:
        """Describe the monolith without reading it."""
        try:
            return self.store.head(self._monolith_key)
        except ObjectNotFoundError:
            return None

    def monolith(self) -> Fetched | None:
        """Return the monolith, None if there is none."""
        return self._was_read(self._get(self._monolith_key))

    def monolith_unless(self, etag: str) -> Fetched | None:
        """Return the monolith, None if it still has this ETag; raise ObjectNotFoundError."""
        return self._was_read(self.store.get_if_changed(self._monolith_key, etag))

    def origins(self) -> Fetched | None:
        """Return the list of origins, None if there is none."""
        return self._get(self._origins_key)

    def parse_monolith(
        self, data: bytes, etag: str, token: str | None, *, is_scrubbed: bool = False
    ) -> StoredDocument:
        """Read a monolith; raise IndexDamagedError if it is none, because nothing replaces it."""
        doc = decode_monolith(data)
        return StoredDocument(doc, etag, token, not is_scrubbed and self._scrub(doc))

    def shard(self, partition: str) -> StoredDocument:
        """Return a shard; one that is missing or damaged has no `doc`. Raises NewerFormatError."""
        found = self.shard_as_it_is(partition)
        return replace(found, is_dirty=self._scrub(found.doc)) if found.doc else found

    def read_shard(self, partition: str, data: bytes, etag: str, token: str) -> StoredDocument:
        """Return what these bytes say, scrubbed; raise IndexDamagedError if they are no shard."""
        doc = decode_shard(data, partition)
        return StoredDocument(doc, etag, token, self._scrub(doc))

    def shard_as_it_is(self, partition: str) -> StoredDocument:
        """Return a shard with every entry that it has, also such that may not be there."""
        fetched = self._get(self._names.remote(shard_key(partition)))
        if fetched is None:
            return StoredDocument()
        info, data = fetched
        try:
            doc = decode_shard(data, partition)
            return StoredDocument(doc, info.etag, info.token, written=info.last_modified)
        except IndexDamagedError:
            return StoredDocument(None, info.etag, info.token)

    def replaceable(self, etags: Mapping[str, str | None]) -> dict[str, StoredDocument]:
        """Return what shards are there, by partition, for whoever is going to replace them.

        Raises NewerFormatError if one is not to be replaced: a newer release wrote it. Costs a
        request for each; one that still has its given ETag is known, and not read again.
        """
        return {one: found for (one, _), found in self.all(self._found, etags.items()).items()}

    def _found(self, known: tuple[str, str | None]) -> StoredDocument:
        partition, etag = known
        if etag:
            try:
                info = self.store.head(self._names.remote(shard_key(partition)))
            except ObjectNotFoundError:
                return StoredDocument()
            if info.etag == etag:
                return StoredDocument(None, info.etag, info.token)
        return self.shard(partition)

    def shards(self, partitions: Collection[str]) -> Iterator[tuple[str, StoredDocument]]:
        """Yield these shards, several at a time, in no order. Errors of the store are raised."""
        return self.each(self.shard, partitions)

    def listed_shards(self) -> dict[str, ObjectInfo]:
        """Return all shards that are on the store, by partition, whether in use or not."""
        return self.shards_among(self.store.list(self._names.remote(SHARDS)))

    def shards_among(self, listed: Iterable[ObjectInfo]) -> dict[str, ObjectInfo]:
        """Return those of the listed objects that are shards, by partition."""
        root = self._names.remote("")
        named = ((partition_in(info.key.removeprefix(root)), info) for info in listed)
        return {partition: info for partition, info in named if partition is not None}

    def _get(self, key: str) -> Fetched | None:
        try:
            return self.store.get(key)
        except ObjectNotFoundError:
            return None

    # Writing -----------------------------------------------------------------------------------

    def put_meta(self, data: bytes, token: str | None, *, commits: bool) -> Written:
        """Replace the `_meta.json` that has this token (None: create it).

        `commits` says that this write is the one that makes a change count.
        """
        if commits:
            self._check_allowed_on_condition()
        return self._put(self._meta_key, data, token)

    def put_monolith(self, data: bytes, token: str | None) -> Written:
        """Replace the monolith that has this token (None: create it)."""
        self._check_allowed_on_condition()
        return self._put(self._monolith_key, data, token)

    def put_shard(self, partition: str, data: bytes, token: str | None) -> Written:
        """Replace the shard that has this token (None: create it)."""
        return self._put(self._names.remote(shard_key(partition)), data, token)

    def put_origins(self, data: bytes, token: str | None) -> Written:
        """Replace the list of origins that has this token (None: create it)."""
        return self._put(self._origins_key, data, token)

    def delete_shard(self, partition: str, token: str | None) -> None:
        """Remove the shard that has this token (None: there is nothing to remove).

        Raises PreconditionFailedError if it is another one, where the store takes conditions.
        """
        if token is None:
            return
        key = self._names.remote(shard_key(partition))
        if self.store.capabilities.conditional_delete:
            self.store.delete_if_match(key, token)
        else:
            self.store.delete(key)

    def _put(self, key: str, data: bytes, token: str | None) -> Written:
        able = self.store.capabilities
        if token is None and able.conditional_create:
            return self.store.put_if_absent(key, data)
        if token is not None and able.conditional_update:
            return self.store.put_if_match(key, data, token)
        return self.store.put(key, data)

    # Where the store keeps the index itself -----------------------------------------------------

    @property
    def keeps_paths(self) -> bool:
        """Whether there are paths instead of documents."""
        return self.store.capabilities.keeps_paths

    @property
    def paths(self) -> KeepsPaths:
        """The store, which is one that keeps paths."""
        return cast("KeepsPaths", self.store)

    @property
    def root(self) -> str:
        """What keys of the namespace begin with."""
        return self._names.remote("")

    def never_crosses(self, rel: str) -> bool:
        """Whether nothing is ever brought from a path, so that no base knows what is there."""
        return self._names.why_not(rel) is not None

    def scrubbed(self, entries: RawEntries) -> RawEntries:
        """Return entries without those that must never cross, which are told of."""
        doc = Document(entries)
        self._scrub(doc)
        return doc.entries

    # Both --------------------------------------------------------------------------------------

    def each(self, work: Callable[[T], R], tasks: Collection[T]) -> Iterator[tuple[T, R]]:
        """Yield tasks with their results, several at a time, in no order; raise their errors."""
        if len(tasks) == 1:
            for task in tasks:
                yield task, work(task)
            return
        for task, result, error in in_parallel(work, tasks, self._concurrency, Deadline()):
            if error is not None:
                raise error
            yield task, result  # type: ignore[misc]  # without an error there is a result

    def tried(
        self, work: Callable[[T], R], tasks: Collection[T]
    ) -> tuple[dict[T, R], dict[T, SwampstoreError]]:
        """Do all tasks, several at a time; return the results, and the errors of those without."""
        results: dict[T, R] = {}
        errors: dict[T, SwampstoreError] = {}
        for task, result, error in in_parallel(work, tasks, self._concurrency, Deadline()):
            if error is None:
                results[task] = result  # type: ignore[assignment]  # without an error there is one
            else:
                errors[task] = error
        return results, errors

    def all(self, work: Callable[[T], R], tasks: Collection[T]) -> dict[T, R]:
        """Do all tasks, several at a time. None is still at work when an error is raised."""
        results, errors = self.tried(work, tasks)
        for error in errors.values():
            raise error
        return results

    def report(self, rel: str, reason: str) -> None:
        """Remember something that was left out, to be told."""
        self.damage.append(Skipped(rel, reason))

    def _scrub(self, doc: Document) -> bool:
        if are_plain(doc.entries):
            return False
        reasons = scrub(doc.entries, self._why_drop)
        for rel, reason in reasons.items():
            if reason is not _BOOKKEEPING:
                self.report(rel, reason)
        return bool(reasons)

    def _why_drop(self, rel: str) -> str | None:
        if is_plain(rel):
            return None
        if is_internal(rel):
            return _BOOKKEEPING
        try:
            self._names.local(rel)
        except ValidationError as error:
            return error.message
        return None
