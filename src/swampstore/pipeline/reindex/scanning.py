"""Reading a table of the data source without the data source.

A job that reads the same table again and again plans it here, in its own process; Spark would
start another one for that each time.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import tasks_for

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.source.scan import Table


def arrow_schema(columns: str) -> pa.Schema:
    """Return the schema that tasks make their rows by; only the driver can read the text."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromDDL(columns), timezone="UTC")


def scanned(spark: SparkSession, table: Table[Any], places: Sequence[Place]) -> DataFrame:
    """Return a table of some places; which task reads what is settled now."""
    shares: list[tuple[Place, Any]] = []
    for place in places:
        with place.open() as store:
            shares += [(place, piece) for piece in table.plan(place, store, tasks_for(spark))]
    if not shares:
        return spark.createDataFrame([], table.schema)
    schema = arrow_schema(table.schema)
    # Spark takes two readings that look alike for one, and answers from what it keeps of the
    # first, however old that is. So each has numbers of its own.
    first, count = secrets.randbits(48), len(shares)

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from swampstore.pipeline.source.scan import batches

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                place, piece = shares[number - first]
                with place.open() as store:
                    yield from batches(table.rows(place, piece, store), schema)

    return spark.range(first, first + count, 1, count).mapInArrow(read, table.schema)
