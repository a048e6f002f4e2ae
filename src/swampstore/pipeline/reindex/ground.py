"""What there is of an index: its version, its documents, and which of them can be relied on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from swampstore.clock import system_clock
from swampstore.pipeline.places import Place
from swampstore.stores.protocol import ObjectInfo, Store
from swampstore.sync.base import Base
from swampstore.sync.errors import IndexDamagedError
from swampstore.sync.index_format import Meta, decode_meta
from swampstore.sync.partitions import MONOLITH_KEY
from swampstore.sync.remote import RemoteIndex
from swampstore.sync.remote.documents import Documents

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CONCURRENCY = 10


class Summary(NamedTuple):
    """A document as its rows in the table `index` show it.

    `problem` says why it has none; `highest` is the highest commit number of an entry.
    """

    document: str
    partition: str | None
    entries: int
    problem: str | None
    highest: int


@dataclass(frozen=True, slots=True)
class Ground:
    """The index documents of one place, as they are before anybody does something about them.

    `version` is 0 if there is no index: in a directory that is used in place, and where nothing
    was pushed yet. Without `meta` there is none that can be used; it `is_damaged` if there is one
    all the same. `token` is the condition for replacing it. `shards` are those that are there,
    `now` is the time by the clock of the store.
    """

    place: Place
    now: datetime
    version: int = 0
    meta: Meta | None = None
    is_damaged: bool = False
    etag: str | None = None
    token: str | None = None
    monolith: ObjectInfo | None = None
    shards: tuple[tuple[str, ObjectInfo], ...] = ()
    summaries: tuple[Summary, ...] = ()

    @property
    def listed(self) -> frozenset[str]:
        """The partitions that readers look for."""
        if self.meta is not None:
            return frozenset(self.meta.partitions)
        return frozenset(partition for partition, _ in self.shards)

    @property
    def unlisted(self) -> list[str]:
        """The partitions of shards that are there, and that no reader looks for."""
        return [partition for partition, _ in self.shards if partition not in self.listed]

    @property
    def is_monolith_lost(self) -> bool:
        """Whether the truth of a version 1 remote is missing or damaged."""
        if self.version != 1:
            return False
        return self.monolith is None or any(
            one.document == MONOLITH_KEY and one.problem for one in self.summaries
        )

    @property
    def damaged(self) -> frozenset[str]:
        """The partitions of a version 2 remote whose entries nobody can tell."""
        if self.version != 2:
            return frozenset()
        there = {partition for partition, _ in self.shards}
        unreadable = {one.partition for one in self.summaries if one.partition and one.problem}
        return (self.listed - there) | unreadable

    @property
    def has_lost_list(self) -> bool:
        """Whether nobody can tell which shards a version 2 remote should have."""
        return self.version == 2 and self.meta is None

    @property
    def is_bare(self) -> bool:
        """Whether there are objects, and not a single document that tells of them."""
        return self.version == 1 and not (self.etag or self.monolith or self.shards)

    @property
    def is_assumed(self) -> bool:
        """Whether nothing but the listing tells what belongs to the place."""
        return self.version == 0 or self.is_monolith_lost

    @property
    def highest(self) -> int:
        """The highest commit number that is known or that any entry carries."""
        known = (self.meta.commit_seq or 0) if self.meta else 0
        return max([known, *(one.highest for one in self.summaries if one.partition)])


def look(place: Place, store: Store) -> Ground:
    """Look at the documents of a place; entries are not read, except to tell its version.

    Raises IndexDamagedError if a newer program wrote the index.
    """
    if not place.indexed:
        return Ground(place, store.clock())
    documents = Documents(store, place.names(), _CONCURRENCY)
    fetched = documents.meta()
    meta = _decoded(fetched.data) if fetched else None
    shards = tuple(sorted(documents.listed_shards().items()))
    monolith = documents.monolith_info()
    version = meta.version if meta else _version_without_meta(place, store)
    return Ground(
        place,
        store.clock(),
        max(version, 1) if fetched else version,
        meta,
        is_damaged=fetched is not None and meta is None,
        etag=fetched.info.etag if fetched else None,
        token=fetched.info.token if fetched else None,
        monolith=monolith,
        shards=shards,
    )


def _decoded(data: bytes) -> Meta | None:
    try:
        return decode_meta(data)
    except IndexDamagedError:
        return None


def _version_without_meta(place: Place, store: Store) -> int:
    """Return what a sync of a cache that knows nothing takes the remote for; 0: for empty."""
    with tempfile.TemporaryDirectory() as cache:
        base = Base(cache, str(place))
        try:
            index = RemoteIndex(store, place.names(cache), base, clock=system_clock)
            state = index.refresh()
        except IndexDamagedError as error:
            if "newer" in (error.hint or ""):
                raise
            return 1  # a monolith that cannot be read is one that was in use
        finally:
            base.close()
    return state.version if state.exists else 0


def surveyed(grounds: Iterable[Ground], index: DataFrame) -> tuple[Ground, ...]:
    """Return the grounds with what the rows of their documents show.

    Without a `_meta.json`, entries that have a commit number show that the remote is of version
    2. Times, which otherwise tell that, are no longer those of the last commit after a fence.
    """
    found = _summaries(index)
    return tuple(
        _with_summaries(one, found.get((one.place.identity, one.place.namespace), ()))
        for one in grounds
    )


def _with_summaries(ground: Ground, found: tuple[Summary, ...]) -> Ground:
    is_numbered = any(one.partition and one.highest for one in found)
    version = 2 if ground.meta is None and is_numbered else ground.version
    return replace(ground, version=version, summaries=found)


def _summaries(index: DataFrame) -> dict[tuple[str, str], tuple[Summary, ...]]:
    """Return what the documents are like, by store and namespace."""
    from pyspark.sql import functions as f

    rows = (
        index.groupBy("store", "namespace", "document", "partition")
        .agg(
            f.count("rel").alias("entries"),
            f.max(f.when(f.col("rel").isNull(), f.col("problem"))).alias("problem"),
            f.coalesce(f.max("commit_seq"), f.lit(0)).alias("highest"),
        )
        .collect()
    )
    found: dict[tuple[str, str], list[Summary]] = {}
    for store, namespace, *rest in rows:
        found.setdefault((store, namespace), []).append(Summary(*rest))
    return {where: tuple(sorted(ones)) for where, ones in found.items()}
