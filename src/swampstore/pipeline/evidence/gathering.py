"""Gathering evidence in tasks: each reads some index documents, or lists a part of a place."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.index.documents import Documents
from swampstore.index.errors import IndexDamagedError
from swampstore.index.format import Document, decode_entry
from swampstore.index.partitions import MONOLITH_KEY, Homes, partition_in
from swampstore.index.shard_glance import Glance
from swampstore.index.versions import version_of
from swampstore.layout import DEFERRED
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.rows import Claim, Row, Seen, Summary, Total
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import (
    Listed,
    Piece,
    Weights,
    each,
    listed_with_content,
    pieces,
)
from swampstore.pipeline.running import collected
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.source.index import (
    Commits,
    Index,
    Part,
    document_of,
    documents,
    glance_at,
    packed,
    read_document,
    read_meta,
)
from swampstore.pipeline.source.objects import (
    IN_MEMORY,
    Content,
    content_of,
    read_content,
)
from swampstore.pipeline.source.scan import batches
from swampstore.stores.errors import CorruptObjectError, StorePermissionError
from swampstore.stores.protocol import Handed, ObjectInfo, Store

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# So many objects are listed before those that have to be asked for are read.
_TOGETHER = 5_000

Places = Mapping[int, Place]
"""Places by the number that evidence knows them by."""
Chosen = Callable[[str], bool]
"""Whether a path is looked at."""
Task = Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]
"""What `mapInArrow` does with the rows of one task."""


def everything(rel: str) -> bool:
    """Choose every path."""
    del rel
    return True


@dataclass(frozen=True)
class Claims:
    """The entries of all documents: of the monolith and of every shard that is named or there.

    What a migration left of the monolith is only counted, unless they come `with_frozen`: nobody
    believes it, however long it is, but it may tell what a damaged shard said. If they are only
    `summed`, no entry is handed on, those count that are in the wrong shard, or may be in none, and
    what a migration left is not even counted.
    """

    chosen: Chosen = everything
    with_raw: bool = False
    with_frozen: bool = False
    summed: bool = False

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[tuple[Part, ...]]:
        """Pack the documents into tasks; several read a large one, and each takes a part of it."""
        if not place.indexed:
            return []
        if store.capabilities.keeps_paths:
            return Index(every_document=True).plan(place, store, tasks)
        chosen = documents(place, store, every=True)
        if MONOLITH_KEY not in chosen or self.with_frozen or not _is_left_over(place, store):
            return packed(place, store, chosen, tasks)
        # What is only counted is not cut: each of its parts would be a reading of all of it.
        if self.summed:
            chosen.remove(MONOLITH_KEY)
            return packed(place, store, chosen, tasks, whole=frozenset(chosen))
        return packed(place, store, chosen, tasks, whole={MONOLITH_KEY})

    def rows(
        self, number: int, place: Place, piece: tuple[Part, ...], store: Store
    ) -> Iterator[Row]:
        """Read some documents."""
        commits = Commits(place, store)
        for part in piece:
            document, read = document_of(part), read_document if self.with_raw else glance_at
            partition, found = partition_in(document), read(place, store, part, commits)
            if isinstance(found, str):
                yield rows.sum_row(number, Summary(document, partition, problem=found))
                continue
            if isinstance(found, Document) and found.is_frozen and not self.with_frozen:
                yield rows.sum_row(number, Summary(document, partition, len(found.entries)))
                continue
            if self.summed:
                yield rows.sum_row(number, _summed(document, partition, found))
                continue
            claims = _claims(partition, found, with_raw=self.with_raw)
            chosen = (item for item in claims.items() if self.chosen(item[0]))
            yield from rows.rows_of(number, chosen)
            summary = Summary(
                document,
                partition,
                len(claims),
                sum(one.size or 0 for one in claims.values()),
                max((one.commit_seq or 0 for one in claims.values()), default=0),
                _written(found),
                nonsense=sum(one.problem is not None for one in claims.values()),
            )
            yield rows.sum_row(number, summary)


def claim_of(partition: str | None, rel: str, raw: msgspec.Raw | bytes, *, with_raw: bool) -> Claim:
    """Return what an entry of a document says of a path."""
    kept = bytes(raw) if with_raw else None
    try:
        entry = decode_entry(rel, raw)
    except IndexDamagedError as error:
        return Claim(partition, problem=error.message, raw=kept)
    said = entry.size, entry.sha256, entry.last_modified, entry.commit_seq
    return Claim(partition, *said, raw=kept)


def _claims(partition: str | None, found: Document | Glance, *, with_raw: bool) -> dict[str, Claim]:
    if isinstance(found, Glance):
        return {
            rel: Claim(partition, one.size, one.sha256, one.last_modified, one.commit_seq)
            for rel, one in found.entries.items()
        }
    entries = found.entries.items()
    return {rel: claim_of(partition, rel, raw, with_raw=with_raw) for rel, raw in entries}


def _written(found: Document | Glance) -> int:
    return (found.written if isinstance(found, Glance) else found.commit_seq) or 0


def _summed(document: str, partition: str | None, found: Document | Glance) -> Summary:
    """Sum a document up without a thing for each of its entries."""
    size, highest, nonsense, misplaced = 0, 0, 0, 0
    if isinstance(found, Glance):
        size, highest = found.bytes, found.highest
    else:
        for rel, raw in found.entries.items():
            try:
                entry = decode_entry(rel, raw)
            except IndexDamagedError:
                nonsense += 1
                continue
            size += entry.size
            highest = max(highest, entry.commit_seq or 0)
    is_sound = isinstance(found, Glance) and found.is_in_place(partition or "")
    if not is_sound:
        homes = Homes()
        misplaced = sum(
            homes.of(rel) != partition or rows.why_forbidden(rel) is not None
            for rel in found.entries
        )
    return Summary(
        *(document, partition, len(found.entries), size, highest, _written(found)),
        nonsense=nonsense,
        misplaced=misplaced,
    )


def _is_left_over(place: Place, store: Store) -> bool:
    """Whether shards are the truth by what `_meta.json` says, and the monolith is not."""
    meta, _ = read_meta(place, store)
    return meta is not None and not version_of(meta.version).counts(None)


def _sizes(place: Place, store: Store) -> dict[str, int]:
    """Return how long the shard of each partition is."""
    if not place.indexed:
        return {}
    found = Documents(store, place.names(), 1).listed_shards()
    return {partition: info.size for partition, info in found.items()}


class Budget(NamedTuple):
    """How much a task that lists objects may read of them; the rest is left for others."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Listing:
    """The objects of a place, bookkeeping included, with content as far as the budget goes.

    Who lists a directory reads its files at the least cost. But one data name can hold most of
    what there is, and one task should not read all of that. Where content is not `described`, only
    its hash is known.
    """

    look: int
    chosen: Chosen = everything
    reads: Chosen = everything
    budget: Budget = field(default_factory=Budget)
    described: bool = True

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Piece]:
        """Cut the listing into pieces that hold about as much, as far as the index tells."""
        return pieces(place, store, tasks, weights=Weights(_sizes(place, store)))

    def rows(self, number: int, place: Place, piece: Piece, store: Store) -> Iterator[Row]:
        """List one piece."""
        tally = Tally(self, is_index=place.indexed)
        found = listed_with_content(piece, store, tally.wants, IN_MEMORY)
        chosen = ((one, handed) for one, handed in found if tally.has(one))
        yield from rows.rows_of(number, self.seen(place, store, chosen))
        yield rows.sum_row(number, tally.total)

    def seen(
        self, place: Place, store: Store, chosen: Iterable[tuple[Listed, Handed]]
    ) -> Iterator[tuple[str, Seen]]:
        """Yield objects; only those that have to be asked for are read by many at once."""
        asked: list[Listed] = []
        for one, handed in chosen:
            if handed.data is not None:
                content = content_of(one.rel, handed.data, described=self.described)
                yield one.rel, seen_as(one, self.look, content)
            elif not handed.is_wanted:
                yield one.rel, seen_as(one, self.look, None)
            else:
                asked.append(one)
                if len(asked) == _TOGETHER:
                    yield from self._read(place, store, asked)
                    asked = []
        yield from self._read(place, store, asked)

    def _read(
        self, place: Place, store: Store, asked: Iterable[Listed]
    ) -> Iterator[tuple[str, Seen]]:
        for one, content in each(place, lambda one: self.content(store, one), asked):
            yield one.rel, seen_as(one, self.look, content)

    def content(self, store: Store, one: Listed) -> Content | None:
        """Read an object; see `readable_content`."""
        return readable_content(store, one, described=self.described)


class Tally:
    """Says which objects of a piece are listed and which are read, and counts them.

    Versions of a directory in place that are not committed yet are left out: of each directory,
    which comes in order, the file that marks it as such is the first.
    """

    def __init__(self, listing: Listing, *, is_index: bool) -> None:
        self._listing = listing
        self._is_index = is_index
        self._deferred = "/"
        self._objects = self._bytes = self._unread = 0
        self._oldest: datetime | None = None

    @property
    def total(self) -> Total:
        """What was counted so far."""
        return Total(self._objects, self._bytes, self._unread, self._oldest)

    def has(self, one: Listed) -> bool:
        """Whether an object is listed at all."""
        is_out = not self._is_index and one.rel.startswith(self._deferred)
        return not is_out and self._listing.chosen(one.rel)

    def wants(self, one: Listed) -> bool:
        """Count an object; return whether it is read now."""
        if not self._is_index and one.rel.endswith(f"/{DEFERRED}"):
            self._deferred = one.rel.removesuffix(DEFERRED)
        if one.internal or (not self._is_index and one.rel.startswith(self._deferred)):
            return False
        info, listing = one.info, self._listing
        if self._oldest is None or info.last_modified < self._oldest:
            self._oldest = info.last_modified
        if not listing.chosen(one.rel):
            return False
        is_affordable = (
            self._objects < listing.budget.objects and self._bytes < listing.budget.bytes
        )
        self._objects += 1
        self._bytes += info.size
        if not listing.reads(one.rel):
            return False
        self._unread += not is_affordable
        return is_affordable


def seen_as(one: Listed, look: int, content: Content | None) -> Seen:
    """Return the evidence of an object that was listed."""
    info = one.info
    return Seen(look, info.size, info.etag, info.last_modified, one.internal, content)


def as_listed(place: Place, rel: str, seen: Seen) -> Listed:
    """Return an object as its listing had it."""
    info = ObjectInfo(place.names().remote(rel), seen.size, seen.etag, None, seen.last_modified)
    return Listed(rel, info, seen.internal)


def readable_content(store: Store, one: Listed, *, described: bool = True) -> Content | None:
    """Read an object, None if it is gone; one that the store does not give out has an error."""
    try:
        return read_content(store, one, described=described)
    except (CorruptObjectError, StorePermissionError) as error:
        return Content(error=error.message)


Share = tuple[int, Any]
"""The number of a place, and what of it one task reads."""


def shares_of(table: Claims | Listing, places: Places, tasks: int) -> list[Share]:
    """Cut the evidence of places into what each of about so many tasks reads."""
    shares: list[Share] = []
    of_each = math.ceil(2 * tasks / (len(places) + 1))
    for number, place in places.items():
        with place.open() as store:
            shares += [(number, piece) for piece in table.plan(place, store, of_each)]
    return shares


def gathered(
    spark: SparkSession, table: Claims | Listing, places: Places, shares: Sequence[Share]
) -> DataFrame:
    """Return the evidence that is shared out, with its sums. Nothing is read yet."""
    if not shares:
        return spark.createDataFrame([], rows.ROWS)
    schema = arrow_schema(rows.ROWS)
    # Spark takes two readings that look alike for one, and answers from what it keeps of the
    # first, however old that is. So each function has something of its own. It must not be the
    # numbers of a range: they are compiled into the code of its stage, each time anew.
    marked = secrets.token_hex(8), shares

    def read(ids: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ids:
            for one in batch.column(0).to_pylist():
                number, piece = marked[1][one]
                with places[number].open() as store:
                    yield from batches(table.rows(number, places[number], piece, store), schema)

    count = len(shares)
    return spark.range(0, count, 1, count).mapInArrow(read, rows.ROWS)


def sums_in(frame: DataFrame) -> dict[int, list[Any]]:
    """Return the sums in some evidence, by place."""
    sums: dict[int, list[Any]] = {}
    for row in collected(frame.where("unit IS NULL").select("place", "body")):
        sums.setdefault(row["place"], []).append(rows.decoded_sum(row["body"]))
    return sums
