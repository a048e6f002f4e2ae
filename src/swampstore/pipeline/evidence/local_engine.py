"""Evidence gathered and judged in this process, where there is too little of it for Spark.

Who reads what is the same, and so is what tasks do with it; there is only one of each.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.pipeline.engines import break_even
from swampstore.pipeline.evidence import rows
from swampstore.pipeline.evidence.gathering import (
    Budget,
    Chosen,
    Claims,
    Listing,
    Places,
    Task,
    shares_of,
)
from swampstore.pipeline.evidence.index_state import look
from swampstore.pipeline.evidence.rows import Total
from swampstore.pipeline.places import Place
from swampstore.pipeline.schemas import arrow_schema
from swampstore.pipeline.source.scan import batches

if TYPE_CHECKING:
    import pyarrow as pa

    from swampstore.pipeline.engines import Job
    from swampstore.pipeline.settings import Engine, SparkSettings

# An entry of the index takes about so many bytes.
_ENTRY_BYTES = 300
# More content than that is hashed by all cores.
_MOST_BYTES = 2 << 30
_EVERYTHING = Budget(sys.maxsize, sys.maxsize)


class Gathered(NamedTuple):
    """Evidence, as a task is given it, and what sums it up, by place."""

    evidence: list[pa.RecordBatch]
    sums: dict[int, list[Any]]

    @property
    def totals(self) -> dict[int, Total]:
        """How much was listed in each place."""
        return {number: sum(some, Total()) for number, some in self.sums.items()}


def gathered_here(table: Claims | Listing, places: Places) -> Gathered:
    """Read some documents, or list places and read them."""
    sums: dict[int, list[Any]] = {}

    def units() -> Iterator[rows.Row]:
        for number, piece in shares_of(table, places, 1):
            with places[number].open() as store:
                for row in table.rows(number, places[number], piece, store):
                    if row[1] is None:
                        sums.setdefault(number, []).append(rows.decoded_sum(row[2]))
                    else:
                        yield row

    return Gathered(list(batches(units(), arrow_schema(rows.ROWS))), sums)


def listing_here(chosen: Chosen, reads: Chosen, *, described: bool = True) -> Listing:
    """Return a listing that reads all that it may while it lists."""
    return Listing(secrets.randbits(53), chosen, reads, _EVERYTHING, described)


def done_here(task: Task, *evidence: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return the rows that a task makes of all the evidence."""
    incoming = (batch for some in evidence for batch in some)
    return [
        row
        for batch in task(incoming)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def is_little(places: Sequence[Place], engine: Engine, settings: SparkSettings, job: Job) -> bool:
    """Whether a job is done here: by the size of the index, or the number of files without one.

    Costs a few requests for each place, and is not asked where the engine is given.
    """
    most = break_even(engine, settings, job)
    return engine == "local" if engine != "auto" else objects_in(places, most) < most


def objects_in(places: Sequence[Place], most: int) -> int:
    """Return about how many objects there are; who has found `most` looks no further."""
    objects = 0
    for place in places:
        with place.open() as store:
            state = look(place, store)
            documents = [info.size for _, info in state.shards]
            documents += [state.monolith.size] if state.monolith else []
            if documents:
                objects += sum(documents) // _ENTRY_BYTES
            else:
                objects += sum(1 for _ in islice(store.list(place.names().remote("")), most))
        if objects >= most:
            break
    return objects


class TooMuchError(Exception):
    """There is more content than this process should read alone."""


def check_affordable(expected: Iterable[Total]) -> None:
    """Raise TooMuchError if there is much content, as far as the index tells."""
    if sum(one.bytes for one in expected) > _MOST_BYTES:
        raise TooMuchError
