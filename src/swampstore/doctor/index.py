"""The documents of the remote index: do they fit together, and to every object below `data/`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.errors import SwampstoreError
from swampstore.index import rules
from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document
from swampstore.index.meta import Meta, decode_meta
from swampstore.index.partitions import META_KEY, partition_of
from swampstore.index.path_map import Names
from swampstore.index.rules import IndexDocuments
from swampstore.index.version import IndexVersion
from swampstore.index.versions import known_version, version_of
from swampstore.layout import is_internal
from swampstore.notices import notice
from swampstore.stores import ObjectInfo
from swampstore.stores.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from swampstore.repo import Repo
    from swampstore.stores import ObjectInfo


# Tells the version that documents show where `_meta.json` is lost, None if none does.
Unversioned = Callable[[], int | None]
# Documents that were written so recently may belong to a commit that is going on.
_IN_FLIGHT = timedelta(minutes=1)


class IndexCheck:
    """Looks at the index documents of one remote; `now` is the time by the remote's clock.

    `known` are the ETags of the shards that this machine has read. Raises NewerFormatError.
    """

    def __init__(
        self,
        documents: Documents,
        unversioned: Unversioned,
        now: datetime,
        known: Mapping[str, str],
    ) -> None:
        self._documents = documents
        self._unversioned = unversioned
        self._known = known
        self._since = now - _IN_FLIGHT
        self._broken = Problems(checks.INDEX)
        self._behind = Problems(checks.INDEX_BEHIND)

    def run(self) -> Finding:
        """Return what was found; what breaks nothing is a warning."""
        fetched = self._documents.meta()
        monolith = self._documents.monolith_info()
        shards = self._documents.listed_shards()
        if fetched is None and monolith is None and not shards:
            return Finding(checks.INDEX.name, passed=True, message="nothing was pushed yet")
        try:
            meta = decode_meta(fetched.data) if fetched else None
            seen = self._seen(meta, monolith, shards)
        except IndexDamagedError as error:
            self._broken.add(error.message)
        else:
            self._judge(seen)
        return (self._broken if self._broken.count else self._behind).finding()

    def _seen(
        self, meta: Meta | None, monolith: ObjectInfo | None, shards: Mapping[str, ObjectInfo]
    ) -> IndexDocuments:
        """Read what has to be read; raise IndexDamagedError if the monolith is no use."""
        unread = [one for one, info in shards.items() if self._known.get(one) != info.etag]
        self._documents.replaceable(dict.fromkeys(unread))  # raises if one is of a newer release
        version = _version(meta, self._unversioned)
        problem = None
        is_told = meta is not None and monolith is not None and meta.monolith == monolith.etag
        if version.counts(None) and not is_told:
            try:
                self._monolith()
            except IndexDamagedError as error:
                problem = error.message
        return IndexDocuments(
            version, meta, monolith=monolith, monolith_problem=problem, shards=shards
        )

    def _monolith(self) -> Document | None:
        """Return the monolith; raise NewerFormatError or IndexDamagedError."""
        found = self._documents.monolith()
        if found is None:
            return None
        info, data = found
        return self._documents.parse_monolith(data, info.etag, info.token).doc

    def _judge(self, seen: IndexDocuments) -> None:
        for fault in rules.faults(seen):
            problems = self._broken if fault.is_loss else self._behind
            problems.add(fault.detail or f"{fault.rel} is missing")
        for fault in rules.strangers(seen):
            if rules.is_settled(fault.written, self._since):
                self._behind.add(f"{fault.rel} is not the one that {META_KEY} tells of")


def _version(meta: Meta | None, unversioned: Unversioned) -> IndexVersion:
    return version_of(meta.version) if meta else known_version(unversioned())


def heal(repo: Repo) -> bool:
    """Make missing documents of a sharded index anew; return whether that could be done."""
    try:
        if known_version(repo.sync.status().index_version).successor is not None:
            return False
        repo.sync.migrate_index()
    except SwampstoreError as error:
        notice("the index stays as it is: %s", error.message)
        return False
    return True


# What is younger may belong to a push that is going on.
IN_FLIGHT = timedelta(hours=1)
_DATA = "data/"
_BATCH = 500
T = TypeVar("T")


class ObjectCheck:
    """Compares a remote's objects with its index; `now` is the time by the remote's clock."""

    def __init__(
        self, documents: Documents, unversioned: Unversioned, names: Names, now: datetime
    ) -> None:
        self._documents = documents
        self._unversioned = unversioned
        self._names = names
        self._since = now - IN_FLIGHT

    def run(self) -> list[Finding]:
        """Return what was found about entries, and about objects."""
        missing, orphans = Problems(checks.OBJECTS), Problems(checks.ORPHANS)
        ledger = _Ledger()
        try:
            ledger.enter(self._entries(None))
            for info in ledger.unknown(self._objects()):
                is_young = not rules.is_settled(info.last_modified, self._since)
                kind = rules.fault_of_object(is_named=False, is_there=True, is_young=is_young)
                if kind == rules.ORPHAN:
                    orphans.add(info.key)
            for rel in self._confirmed(ledger.unseen()):
                missing.add(rel)
        finally:
            ledger.close()
        return [missing.finding(), orphans.finding()]

    def _entries(self, partitions: set[str] | None) -> Iterator[str]:
        """Yield the paths that the index names (in these partitions) below `data/`."""
        fetched = self._documents.meta()
        meta = decode_meta(fetched.data) if fetched else None
        version = _version(meta, self._unversioned)
        told = meta.partitions if meta else self._documents.listed_shards()
        chosen = [one for one in told if partitions is None or one in partitions]
        for entries in version.entries(self._documents, chosen):
            yield from _data(entries)

    def _objects(self) -> Iterator[tuple[str, ObjectInfo]]:
        root = self._names.remote("")
        for info in self._documents.store.list(self._names.remote(_DATA)):
            rel = info.key.removeprefix(root)
            if not is_internal(rel):
                yield rel, info

    def _confirmed(self, unseen: Iterator[str]) -> Iterator[str]:
        """Yield those entries that are still there, and still without an object.

        Somebody may have removed both while we were looking.
        """
        for batch in _batches(unseen):
            named = set(self._entries({partition_of(rel) for rel in batch}))
            yield from (rel for rel in batch if rel in named and self._is_missing(rel))

    def _is_missing(self, rel: str) -> bool:
        kind = rules.fault_of_object(is_named=True, is_there=self._has_object(rel))
        return kind == rules.MISSING_OBJECT

    def _has_object(self, rel: str) -> bool:
        # An early client put the data of a namespace under its bare path.
        for key in dict.fromkeys((self._names.remote(rel), rel)):
            try:
                self._documents.store.head(key)
            except ObjectNotFoundError:
                continue
            return True
        return False


def _batches(items: Iterator[T]) -> Iterator[tuple[T, ...]]:
    while batch := tuple(islice(items, _BATCH)):
        yield batch


def _data(rels: Iterable[str]) -> Iterator[str]:
    return (rel for rel in rels if rel.startswith(_DATA))


class _Ledger:
    """The paths of the index, and which of them have an object: a table on disk."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(
            "CREATE TABLE entry (rel TEXT PRIMARY KEY, seen INTEGER NOT NULL) WITHOUT ROWID"
        )

    def enter(self, rels: Iterator[str]) -> None:
        for batch in _batches(rels):
            self._db.execute("BEGIN")
            rows = [(rel,) for rel in batch]
            self._db.executemany("INSERT OR IGNORE INTO entry VALUES (?, 0)", rows)
            self._db.execute("COMMIT")

    def unknown(self, objects: Iterator[tuple[str, ObjectInfo]]) -> Iterator[ObjectInfo]:
        """Yield the objects that no entry names; those that one names are ticked off."""
        for batch in _batches(objects):
            places = ", ".join("?" * len(batch))
            rels = tuple(rel for rel, _ in batch)
            known = self._db.execute(f"SELECT rel FROM entry WHERE rel IN ({places})", rels)
            named = {rel for (rel,) in known.fetchall()}
            self._db.execute(f"UPDATE entry SET seen = 1 WHERE rel IN ({places})", rels)
            yield from (info for rel, info in batch if rel not in named)

    def unseen(self) -> Iterator[str]:
        """Yield the entries without an object."""
        for (rel,) in self._db.execute("SELECT rel FROM entry WHERE NOT seen ORDER BY rel"):
            yield rel

    def close(self) -> None:
        self._db.close()
