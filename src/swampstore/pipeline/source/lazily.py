"""Content and attributes as columns that are fetched only where a query needs them.

Spark does not tell a source in Python which columns it needs. So the source gives what leads to
the content, and a function that Spark calls fetches it: one whose result nobody selects is never
called, and filters that do not need it come first. Spark sees to both for every query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.artifacts.metadata import is_json
from swampstore.layout import RAW, DataRef, ModelRef
from swampstore.notices import notice
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import each
from swampstore.pipeline.source.slices import loads
from swampstore.stores.errors import CorruptObjectError, ObjectNotFoundError
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

# What a call of the function takes, in this order.
_ADDRESS = ("store", "namespace", "type_normalized", "model_id", "data_name", "version")
LEADING_TO_CONTENT = (*_ADDRESS, "content_type")
_NEEDED = (*LEADING_TO_CONTENT, "raw_size", "raw_sha256")
_IS_JSON = "lower(trim(substring_index(content_type, ';', 1))) = 'application/json'"


def content_of(store: Store, key: str, sha256: str | None) -> bytes | None:
    """Return content, None if it is gone; raise CorruptObjectError if it has another hash."""
    try:
        data = store.get(key).data
    except ObjectNotFoundError:
        notice("%s is not in %s: its content is NULL", key, store.identity)
        return None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptObjectError(
            f"{key} of {store.identity} is not what the index says: its SHA-256 is another",
            hint="Somebody may be pushing it: try again. If it stays so, run"
            " `swampstore pipeline verify`.",
        )
    return data


def with_content(
    located: DataFrame,
    places: Sequence[Place],
    columns: Sequence[str],
    *,
    content: bool,
    attributes: bool,
    longest: int,
) -> DataFrame:
    """Return some columns of a frame that says where content is, and content or attributes."""
    from pyspark.sql import functions as sql

    by_place = {(place.identity, place.namespace): place for place in places}
    fetch = _function(Fetch(by_place, longest, only_json=not content))
    data = fetch(*(sql.col(name) for name in _NEEDED))
    extra: list[Column] = []
    if content:
        extra.append(data.alias("content"))
    if attributes:
        text = sql.try_validate_utf8(data.cast("string"))
        document = sql.when(sql.expr(_IS_JSON), sql.try_parse_json(text))
        extra.append(document.alias("attributes"))
    return located.select(*columns, *extra)


def _function(work: Fetch) -> Callable[..., Column]:
    import pyarrow as pa
    from pyspark.sql.functions import arrow_udf

    def fetch(batches: Any) -> Any:
        return work(batches)

    # Spark tells by them what kind of function it is.
    fetch.__annotations__ = {
        "batches": Iterator[tuple[pa.Array, ...]],
        "return": Iterator[pa.Array],
    }
    found: Callable[..., Column] = arrow_udf(fetch, "binary")
    return found


class _Wanted(NamedTuple):
    number: int
    place: Place
    key: str
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Fetch:
    """Fetches the content of rows, many at once, no more than memory holds: runs in a task.

    With `only_json`, what is no JSON document is NULL, and so is what is longer than `longest`.
    """

    places: Mapping[tuple[str, str], Place]
    longest: int
    only_json: bool

    def __call__(self, batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """Yield the content of each row, in order; a batch may be answered in several pieces."""
        import pyarrow as pa

        with ExitStack() as stack:
            stores: dict[tuple[str, str], Store] = {}

            def store_of(place: Place) -> Store:
                where = (place.identity, place.namespace)
                if where not in stores:
                    stores[where] = stack.enter_context(place.open())
                return stores[where]

            for batch in batches:
                rows = list(zip(*(column.to_pylist() for column in batch), strict=True))
                told = 0
                found_rows = (self._wanted(number, row) for number, row in enumerate(rows))
                wanted = (one for one in found_rows if one is not None)
                for load in loads(wanted, lambda one: one.size):
                    found = _fetched(load, store_of)
                    end = load[-1].number + 1
                    yield pa.array([found.get(number) for number in range(told, end)], pa.binary())
                    told = end
                yield pa.nulls(len(rows) - told, pa.binary())

    def _wanted(self, number: int, row: tuple[Any, ...]) -> _Wanted | None:
        *address, content_type, size, sha256 = row
        store, namespace, model_type, model_id, name, version = address
        if size is None or size > self.longest or (self.only_json and not is_json(content_type)):
            return None
        place = self.places[store, namespace]
        rel = DataRef(ModelRef(model_type, model_id), name).file_rel(version, RAW)
        return _Wanted(number, place, place.names().remote(rel), size, sha256)


def _fetched(
    load: Sequence[_Wanted], store_of: Callable[[Place], Store]
) -> dict[int, bytes | None]:
    """Return the content of some rows by their numbers."""
    found: dict[int, bytes | None] = {}
    by_place: dict[tuple[str, str], list[_Wanted]] = {}
    for one in load:
        by_place.setdefault((one.place.identity, one.place.namespace), []).append(one)
    for own in by_place.values():
        place = own[0].place
        store = store_of(place)

        def fetch(one: _Wanted, store: Store = store) -> bytes | None:
            return content_of(store, one.key, one.sha256)

        found |= {one.number: data for one, data in each(place, fetch, own)}
    return found
