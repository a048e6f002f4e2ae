"""Gathering evidence in tasks: each reads some index documents, or lists a part of a place."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from swampstore.layout import DEFERRED
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.rows import Claim, Row, Seen, Summary, Total
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Listed, Piece, each, listed, pieces
from swampstore.pipeline.source.index import Index, document_rows
from swampstore.pipeline.source.objects import Content, read_content
from swampstore.stores.errors import CorruptObjectError, StorePermissionError
from swampstore.stores.protocol import ObjectInfo, Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Places = Mapping[int, Place]
"""Places by the number that evidence knows them by."""
Chosen = Callable[[str], bool]
"""Whether a path is looked at."""


def everything(rel: str) -> bool:
    """Choose every path."""
    del rel
    return True


def nothing(rel: str) -> bool:
    """Choose no path."""
    del rel
    return False


class Table(Protocol):
    """A kind of evidence. Instances are pickled to the executors."""

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Any]:
        """Cut the evidence of one place into pieces. Runs on the driver."""

    def rows(self, number: int, place: Place, piece: Any, store: Store) -> Iterator[Row]:
        """Yield the evidence of a piece, and in the end its sum. Runs in a task."""


@dataclass(frozen=True)
class Claims:
    """The entries of all documents: of the monolith and of every shard that is named or there."""

    chosen: Chosen = everything
    with_raw: bool = False

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[tuple[str, ...]]:
        """Pack the documents into tasks."""
        return Index(every_document=True).plan(place, store, tasks)

    def rows(
        self, number: int, place: Place, piece: tuple[str, ...], store: Store
    ) -> Iterator[Row]:
        """Read some documents."""
        for document in piece:
            count = size_of_all = highest = 0
            partition, problem = None, None
            for _, partition, rel, *entry, raw, wrong in document_rows(place, store, document):
                if rel is None:
                    problem = wrong
                    continue
                size, last_modified, sha256, _, seq = entry
                count += 1
                size_of_all += size or 0
                highest = max(highest, seq or 0)
                if self.chosen(rel):
                    kept = raw if self.with_raw else None
                    claim = Claim(partition, size, sha256, last_modified, seq, wrong, kept)
                    yield rows.row(number, rel, claim)
            summary = Summary(document, partition, count, size_of_all, problem, highest)
            yield rows.sum_row(number, summary)


class Budget(NamedTuple):
    """How much a task that lists objects may read of them; the rest is left for others."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Listing:
    """The objects of a place, bookkeeping included, with content as far as the budget goes.

    Who lists a directory reads its files at the least cost. But one data name can hold most of
    what there is, and one task should not read all of that.
    """

    look: int
    chosen: Chosen = everything
    reads: Chosen = everything
    budget: Budget = field(default_factory=Budget)

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[Piece]:
        """Cut the listing into pieces."""
        return pieces(place, store, tasks)

    def rows(self, number: int, place: Place, piece: Piece, store: Store) -> Iterator[Row]:
        """List one piece."""
        counting = _Counting(self)
        found = listed(piece, store)
        objects = counting.counted(found if place.indexed else _without_deferred(found))

        def content(one: tuple[Listed, bool]) -> Content | None:
            return readable_content(store, one[0]) if one[1] else None

        for (one, _), read in each(place, content, objects):
            yield rows.row(number, one.rel, seen_as(one, self.look, read))
        yield rows.sum_row(number, counting.total)


class _Counting:
    """Says which objects of a piece are read, and counts all of them."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.total = Total()

    def counted(self, objects: Iterable[Listed]) -> Iterator[tuple[Listed, bool]]:
        """Yield the chosen objects, and whether their content is to be read now."""
        listing = self._listing
        count = size = unread = 0
        oldest = None
        for one in objects:
            info = one.info
            if not one.internal:
                oldest = min(oldest or info.last_modified, info.last_modified)
            if not listing.chosen(one.rel):
                continue
            is_read = False
            if not one.internal:
                is_affordable = count < listing.budget.objects and size < listing.budget.bytes
                count, size = count + 1, size + info.size
                if listing.reads(one.rel):
                    is_read = is_affordable
                    unread += not is_affordable
            self.total = Total(count, size, unread, oldest)
            yield one, is_read
        self.total = Total(count, size, unread, oldest)


def seen_as(one: Listed, look: int, content: Content | None) -> Seen:
    """Return the evidence of an object that was listed."""
    info = one.info
    return Seen(look, info.size, info.etag, info.last_modified, one.internal, content)


def as_listed(place: Place, rel: str, seen: Seen) -> Listed:
    """Return an object as its listing had it."""
    info = ObjectInfo(place.names().remote(rel), seen.size, seen.etag, None, seen.last_modified)
    return Listed(rel, info, seen.internal)


def readable_content(store: Store, one: Listed) -> Content | None:
    """Read an object, None if it is gone; one that the store does not give out has an error."""
    try:
        return read_content(store, one)
    except (CorruptObjectError, StorePermissionError) as error:
        return Content(error=error.message)


def _without_deferred(objects: Iterable[Listed]) -> Iterator[Listed]:
    """Leave out versions of a directory in place that are written and not committed yet."""
    every = list(objects)
    deferred = {one.rel.removesuffix(DEFERRED) for one in every if one.rel.endswith(f"/{DEFERRED}")}
    return (one for one in every if one.rel[: one.rel.rfind("/") + 1] not in deferred)


def arrow_schema(columns: str) -> pa.Schema:
    """Return the schema that tasks make their rows by; only the driver can read the text."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromDDL(columns), timezone="UTC")


Share = tuple[int, Any]
"""The number of a place, and what of it one task reads."""


def shares_of(table: Table, places: Places, tasks: int) -> list[Share]:
    """Cut the evidence of places into what each of about so many tasks reads."""
    shares: list[Share] = []
    for number, place in places.items():
        with place.open() as store:
            shares += [(number, piece) for piece in table.plan(place, store, tasks)]
    return shares


def gathered(
    spark: SparkSession, table: Table, places: Places, shares: Sequence[Share]
) -> DataFrame:
    """Return the evidence that is shared out, with its sums. Nothing is read yet."""
    if not shares:
        return spark.createDataFrame([], rows.ROWS)
    schema = arrow_schema(rows.ROWS)
    # Spark takes two readings that look alike for one, and answers from what it keeps of the
    # first, however old that is. So each has numbers of its own.
    first, count = secrets.randbits(48), len(shares)

    def read(ids: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from swampstore.pipeline.source.scan import batches

        for batch in ids:
            for one in batch.column(0).to_pylist():
                number, piece = shares[one - first]
                with places[number].open() as store:
                    yield from batches(table.rows(number, places[number], piece, store), schema)

    return spark.range(first, first + count, 1, count).mapInArrow(read, rows.ROWS)


def sums_in(frame: DataFrame) -> dict[int, list[Any]]:
    """Return the sums in some evidence, by place."""
    sums: dict[int, list[Any]] = {}
    for row in frame.where("rel IS NULL").select("place", "body").collect():
        sums.setdefault(row["place"], []).append(rows.decoded(row["body"]))
    return sums
