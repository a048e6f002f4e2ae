"""Following changes: `spark.readStream.format("swampstore").option("table", "changes")`.

A batch is what differs between two snapshots. Snapshots never change, so a batch that is repeated
after a restart is the same, and which version the index has makes no difference. Shards that a
snapshot has no rows of fall behind: an offset says which snapshot knew them last, and they are
compared with that one as soon as they are known again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

from swampstore.pipeline.errors import StreamPositionError
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins
from swampstore.pipeline.snapshots.history import snapshot_at
from swampstore.pipeline.snapshots.manifest import FORMAT, Bucket, Manifest, Manifests, bucket_of
from swampstore.pipeline.source.changes import Changes, Half, Pair, differing, left_out
from swampstore.pipeline.source.scan import Share, batches, hints

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from swampstore.stores.protocol import Store

EARLIEST, LATEST = "earliest", "latest"


class Position(NamedTuple):
    """A snapshot of a place, by number and time; 0 is what was there before the first one.

    `behind` are the shards that it has no rows of, with the last snapshot that had some.
    """

    number: int = 0
    created_at: str = ""
    behind: Mapping[str, int] = {}


START = Position()
# By store and namespace.
Offset = dict[str, dict[str, Position]]


class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is not typed here
    """Delivers every change between one snapshot and the next, once."""

    def __init__(
        self, since: str | None, places: Sequence[Place], tasks: int, schema: StructType
    ) -> None:
        self._since = since or EARLIEST
        self._places = places
        self._tasks = tasks
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._target: Offset | None = None

    # Where the stream is, on the driver ---------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint begins."""
        with hints():
            if self._since.lower() == EARLIEST:
                return self._offset(lambda *_: START)
            if self._since.lower() == LATEST:
                return self._offset(self._newest)
            return self._offset(self._asked)

    def _asked(self, place: Place, store: Store) -> Position:
        return _position(snapshot_at(place, store, self._since), START)

    def _newest(self, place: Place, store: Store, after: Position = START) -> Position:
        found = Manifests(store, place.names()).newest().manifest
        is_known = found is not None and any(
            (one.number, one.created_at) == (after.number, after.created_at)
            for one in found.history
        )
        if after.number and not is_known:
            raise StreamPositionError(
                f"snapshot {after.number} of {place}, which this stream has come to, is not kept"
                " any more",
                hint="Start the stream with a new checkpoint, and let it run more often than"
                " --keep of `swampstore pipeline catalog --refresh` says.",
            )
        return _position(found, after) if found else START

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return that a batch goes as far as there are snapshots."""
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return how far the next batch goes."""
        del limit
        with hints():
            return self._offset(lambda place, store: self._end(place, store, _at(start, place)))

    def _end(self, place: Place, store: Store, after: Position) -> Position:
        end = self._newest(place, store, after)
        if self._target is None:
            return end if end.number > after.number else after
        # No further than what was there when the query began.
        until = _at(self._target, place).number
        if until <= after.number:
            return after
        if end.number <= until:
            return end
        return _position(_manifest(place, store, until), after)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Go no further than what is there now."""
        with hints():
            self._target = self._offset(self._newest)

    def commit(self, end: Offset) -> None:
        """Do nothing: snapshots are kept for a time, whoever reads them."""

    def _offset(self, position: Callable[[Place, Store], Position]) -> Offset:
        offset: Offset = {}
        for place in self._places:
            with place.open() as store:
                offset.setdefault(place.identity, {})[place.namespace] = position(place, store)
        return offset

    # What a batch is ----------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a batch: which files of two snapshots are to be compared."""
        shares: list[InputPartition] = []
        with hints():
            for place in self._places:
                after, until = _at(start, place), _at(end, place)
                if after.number == until.number:
                    continue
                with place.open() as store:
                    pairs = _pairs(place, store, after, until)
                some = bins(pairs, lambda _: 1, self._tasks)
                shares += [InputPartition(Share(place, tuple(one))) for one in some]
        return shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes that one share of a batch has. Runs in a task."""
        share: Share[Any] = partition.value
        with hints(), share.place.open() as store:
            rows = Changes().rows(share.place, share.piece, store)
            yield from batches(rows, self._schema)


def _pairs(place: Place, store: Store, after: Position, until: Position) -> list[Pair]:
    new = _manifest(place, store, until.number)
    old = _manifest(place, store, after.number) if after.number else _nothing(new)
    unknown = left_out(new) | after.behind.keys()
    pairs = differing(old, new, unknown)
    known: dict[int, Manifest] = {}
    for shard, number in after.behind.items():
        if shard in left_out(new):
            continue
        if number not in known:
            known[number] = _manifest(place, store, number) if number else _nothing(new)
        pairs.append(Pair(_half_of(known[number], shard), _half_of(new, shard)))
    return pairs


def _half_of(manifest: Manifest, shard: str) -> Half:
    """Return the rows of one shard in a snapshot."""
    number = bucket_of(shard, manifest.spread)
    found = [one for one in manifest.buckets if one.number == number and shard in one.shards]
    bucket = found[0] if found else Bucket(number)
    return Half(bucket.rows, (shard,) if found else ())


def _manifest(place: Place, store: Store, number: int) -> Manifest:
    found = Manifests(store, place.names()).read(number)
    if found is None:
        raise StreamPositionError(
            f"snapshot {number} of {place} is gone, so nobody knows what changed since",
            hint="Start the stream with a new checkpoint.",
        )
    return found


def _nothing(like: Manifest) -> Manifest:
    return Manifest(FORMAT, 0, "", like.index_version, like.spread, [])


def _position(manifest: Manifest, after: Position) -> Position:
    """Return a snapshot as an offset; what it has no rows of was known last where it was before."""
    behind = {one: after.behind.get(one, after.number) for one in sorted(left_out(manifest))}
    return Position(manifest.number, manifest.created_at, behind)


def _at(offset: Offset, place: Place) -> Position:
    """Return the position in a place; in one that was not there yet, the start."""
    # Offsets come back from Spark as the lists that JSON makes of them.
    return Position(*offset.get(place.identity, {}).get(place.namespace, START))
