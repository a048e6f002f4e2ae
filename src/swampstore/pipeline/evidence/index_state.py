"""What there is of an index: its version, its documents, and which of them can be relied on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from itertools import groupby

from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.meta import Meta, decode_meta
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.index.removals import Notes, read_notes
from swampstore.index.rules import IndexDocuments, ShardContent
from swampstore.index.version import IndexVersion
from swampstore.index.versions import FIRST, version_of
from swampstore.pipeline.evidence.gathering import Places
from swampstore.pipeline.evidence.rows import Summary, Total, TrustRules
from swampstore.pipeline.index_writer import version_without_meta
from swampstore.pipeline.places import Place
from swampstore.stores.protocol import ObjectInfo, Store

_CONCURRENCY = 10


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index documents of one place, as they are before anybody does something about them.

    `version` is None if there is no index: in a directory that is used in place, and where nothing
    was pushed yet. Without `meta` there is none that can be used; it `is_damaged` if there is one
    all the same. `token` is the condition for replacing it. `shards` are those that are there,
    `now` is the time by the clock of the store. `notes` tell what deletions have still to remove.
    """

    place: Place
    now: datetime
    version: IndexVersion | None = None
    meta: Meta | None = None
    is_damaged: bool = False
    etag: str | None = None
    token: str | None = None
    monolith: ObjectInfo | None = None
    shards: tuple[tuple[str, ObjectInfo], ...] = ()
    summaries: tuple[Summary, ...] = ()
    notes: Notes = field(default_factory=Notes)

    @property
    def documents(self) -> IndexDocuments | None:
        """What the rules for documents need to know, None without an index."""
        if self.version is None:
            return None
        of_monolith = [one for one in self.summaries if one.document == MONOLITH_KEY]
        return IndexDocuments(
            self.version,
            self.meta,
            self.is_damaged,
            self.monolith,
            next((one.problem for one in of_monolith if one.problem), None),
            dict(self.shards),
            {
                one.partition: ShardContent(one.entries, one.highest, one.problem)
                for one in self.summaries
                if one.partition is not None
            },
        )

    @property
    def listed(self) -> frozenset[str]:
        """The partitions that readers look for."""
        found = self.documents
        return found.listed if found else frozenset(dict(self.shards))

    @property
    def unlisted(self) -> list[str]:
        """The partitions of shards that are there, and that no reader looks for."""
        listed = self.listed
        return [partition for partition, _ in self.shards if partition not in listed]

    @property
    def is_monolith_lost(self) -> bool:
        """Whether the monolith is the truth, and is missing or damaged."""
        found = self.documents
        return found is not None and found.is_monolith_lost

    @property
    def damaged(self) -> frozenset[str]:
        """The partitions whose shard is the truth, and whose entries nobody can tell."""
        found = self.documents
        return found.damaged if found else frozenset()

    @property
    def has_lost_list(self) -> bool:
        """Whether shards are the truth, and nobody can tell which there should be."""
        return self.meta is None and self.version is not None and not self.version.counts(None)

    @property
    def has_gaps(self) -> bool:
        """Whether there may be paths of which no document that counts says anything sensible."""
        return self.has_lost_documents or any(one.nonsense for one in self.summaries)

    @property
    def has_lost_documents(self) -> bool:
        """Whether a document that counts is missing, or nobody can tell what it said."""
        return self.is_assumed or self.has_lost_list or bool(self.damaged)

    @property
    def has_shards_alone(self) -> bool:
        """Whether `_meta.json` says that shards are the truth."""
        is_told = self.version is not None and self.meta is not None
        return is_told and not (self.version or FIRST).counts(None)

    @property
    def is_sound(self) -> bool:
        """Whether shards are the truth, and each entry of each is where all look for it.

        That is known if summaries count what is misplaced.
        """
        if not self.has_shards_alone or self.meta is None or self.has_gaps:
            return False
        is_committed = self.highest <= (self.meta.commit_seq or 0)
        counted = (one for one in self.summaries if one.partition is not None)
        return is_committed and not self.unlisted and not any(one.misplaced for one in counted)

    @property
    def is_bare(self) -> bool:
        """Whether there are objects, and not a single document that tells of them."""
        return self.version is not None and not (self.etag or self.monolith or self.shards)

    @property
    def is_assumed(self) -> bool:
        """Whether nothing but the listing tells what belongs to the place."""
        return self.version is None or self.is_monolith_lost

    @property
    def has_copies(self) -> bool:
        """Whether shards only repeat what the monolith says, which can be compared."""
        is_truth = self.version is not None and self.version.counts(None)
        return is_truth and not self.is_monolith_lost

    def trust_rules(self, grace: timedelta) -> TrustRules:
        """Return how evidence is to be understood; what is younger may be of a push."""
        there = frozenset(partition for partition, _ in self.shards) if self.has_lost_list else None
        since = self.now - grace
        return TrustRules(
            *(self.version, self.is_assumed, self.damaged, there, since),
            *(self.notes, self.place.routing),
        )

    @property
    def expected(self) -> Total:
        """How much there should be by the documents that count."""
        version = self.version or FIRST
        counting = [one for one in self.summaries if version.counts(one.partition)]
        return Total(sum(one.entries for one in counting), sum(one.bytes for one in counting))

    @property
    def highest(self) -> int:
        """The highest commit number that is known or that is in any shard."""
        known = (self.meta.commit_seq or 0) if self.meta else 0
        shards = [one for one in self.summaries if one.partition]
        return max([known, *(max(one.highest, one.written) for one in shards)])


def look(place: Place, store: Store) -> IndexState:
    """Look at the documents of a place; entries are not read, except to tell its version.

    Raises NewerFormatError, IndexDamagedError if a note of a deletion cannot be understood.
    """
    if not place.indexed:
        return IndexState(place, store.clock())
    documents = Documents(store, place.names(), _CONCURRENCY)
    fetched = documents.meta()
    meta = _decoded(fetched.data) if fetched else None
    shards = tuple(sorted(documents.listed_shards().items()))
    monolith = documents.monolith_info()
    version = version_of(meta.version) if meta else version_without_meta(place, store)
    return IndexState(
        place,
        store.clock(),
        version or (FIRST if fetched else None),
        meta,
        is_damaged=fetched is not None and meta is None,
        etag=fetched.info.etag if fetched else None,
        token=fetched.info.token if fetched else None,
        monolith=monolith,
        shards=shards,
        notes=read_notes(store, place.names(), strict=True),
    )


def _decoded(data: bytes) -> Meta | None:
    try:
        return decode_meta(data)
    except IndexDamagedError:
        return None


def _document_of(summary: Summary) -> str:
    return summary.document


def survey(places: Places, sums: Mapping[int, Sequence[Summary]]) -> dict[int, IndexState]:
    """Look at the documents of places, whose entries were read just now."""
    states = {}
    for number, place in places.items():
        found = [
            reduce(Summary.__add__, parts)
            for _, parts in groupby(
                sorted(sums.get(number, ()), key=_document_of), key=_document_of
            )
        ]
        with place.open() as store:
            states[number] = replace(look(place, store), summaries=tuple(found))
    return states
