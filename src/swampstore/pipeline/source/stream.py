"""Following commits: `spark.readStream.format("swampstore").load(url_or_repository)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from swampstore.errors import ValidationError
from swampstore.formats import whole_number
from swampstore.index.documents import Documents
from swampstore.pipeline.errors import NotFollowableError, StreamPositionError
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.commits import (
    Brought,
    Snapshots,
    Span,
    Told,
    advanced,
    brought,
    difference,
    look,
    read,
)
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.source.scan import batches, hints, with_hint

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from swampstore.pipeline.source.commits import Snapshot
    from swampstore.stores.protocol import Store


class Position(NamedTuple):
    """The last commit of a place that counts, and the origin that it is counted from.

    Without an origin numbers are all there is to go by.
    """

    commit: int = 0
    origin: str | None = None


START = Position()


class Watched:
    """A place that is followed, and what it told since the last batch that is done."""

    def __init__(self, place: Place) -> None:
        self.documents = documents_of(place, place.open())
        self._place = place
        self._told: list[Told] = []

    def look(self, reached: Position = START) -> Told:
        """Return what is told now; raise StreamPositionError if that is not beyond a position."""
        told = look(self.documents, self._told[-1] if self._told else None)
        is_other = None not in (told.origin, reached.origin) and told.origin != reached.origin
        if is_other or told.commit_seq < reached.commit:
            raise StreamPositionError(
                f"the last commit of {self._place} is {told.commit_seq}, which does not follow"
                f" commit {reached.commit} that this stream has come to: the remote was emptied,"
                " or replaced by another one",
                hint="Start the stream with a new checkpoint.",
            )
        if not self._told or told is not self._told[-1]:
            self._told.append(told)
        return told

    def telling(self, until: Position) -> Told:
        """Return something told after a commit was done."""
        if self._told and self._told[-1].commit_seq >= until.commit:
            return self._told[-1]
        return self.look(until)

    def before(self, commit: int) -> Told | None:
        """Return the last that was told before anything after a commit was done."""
        known = [told for told in self._told if told.commit_seq <= commit]
        return known[-1] if known else None

    def forget_before(self, commit: int) -> None:
        """Forget all that is older than what `before` returns."""
        known = self.before(commit)
        if known is not None:
            self._told = self._told[self._told.index(known) :]


def documents_of(place: Place, store: Store) -> Documents:
    """Return the index documents of a place."""
    return Documents(store, place.names(), place.config.limits.pull_concurrency)


EARLIEST = "earliest"
LATEST = "latest"
# Entries that the driver hands to one task.
_HANDFUL = 5_000
# By store and namespace.
Offset = dict[str, dict[str, Position]]


class Following(NamedTuple):
    """The options of a stream.

    It starts after the commit `start`. `state_dir` is where it remembers what it has delivered, for
    entries that do not tell their commit; `limit` is how many commits one batch may have.
    """

    start: str | int = EARLIEST
    state_dir: str | None = None
    limit: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Following:
        """Read the options that Spark hands over; raise ValidationError naming the wrong one."""
        start: str | int = options.get("startingcommit", EARLIEST).lower()
        limit = options.get("maxcommitsperbatch")
        with hints():
            if start not in (EARLIEST, LATEST):
                choices = f"{EARLIEST}, {LATEST} or "
                start = _number("startingCommit", str(start), least=0, choices=choices)
            most = None if limit is None else _number("maxCommitsPerBatch", limit, least=1)
        return cls(start, options.get("statedir"), most)


def _number(option: str, text: str, *, least: int, choices: str = "") -> int:
    number = whole_number(text)
    if number is not None and number >= least:
        return number
    raise ValidationError(
        f"the option {option} is {text!r}, expected {choices}a whole number from {least}",
        hint="Correct the option, or leave it out.",
    )


class ChangedShards(NamedTuple):
    """What a task reads itself: shards, with the ETags that were told, and the commits meant."""

    shards: Mapping[str, str]
    span: Span


class Handful(NamedTuple):
    """What the driver has found out already."""

    entries: Sequence[Brought]


class Share(NamedTuple):
    """What one task delivers."""

    place: Place
    piece: ChangedShards | Handful


def followable(table: Any, name: str) -> Artifacts | Index:
    """Return a table; raise ValidationError for one that no commits bring rows of."""
    if not isinstance(table, Artifacts | Index):
        raise with_hint(
            ValidationError(
                f"the table {name!r} cannot be followed",
                hint="Follow `artifacts`, `index` or `changes`.",
            )
        )
    return table


class CommitStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is not typed here
    """Delivers every entry that is committed, once, and again whenever it is committed again."""

    def __init__(
        self,
        table: Artifacts | Index,
        places: Sequence[Place],
        following: Following,
        tasks: int,
        schema: StructType,
    ) -> None:
        for place in places:
            if not place.indexed:
                raise with_hint(_in_place(place))
        self._table = table
        self._places = places
        self._following = following
        self._tasks = tasks
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._target: Offset | None = None
        self._watched: dict[str, Watched] = {}

    # Where the stream is, on the driver ------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where a stream without a checkpoint begins."""
        with hints():
            start = self._following.start
            if start == EARLIEST:
                return self._offset(lambda _: Position())
            begin = self._offset(self._first)
            if self._following.state_dir is not None:
                self._remember_start(Snapshots(self._following.state_dir), begin)
            return begin

    def _first(self, place: Place) -> Position:
        start, last = self._following.start, self._last(place)
        if start == LATEST:
            return last
        if int(start) > last.commit:
            raise ValidationError(
                f"the option startingCommit is {start}, but the last commit of {place} is"
                f" {last.commit}",
                hint=f"Give the number of a commit that is done, {EARLIEST} or {LATEST}.",
            )
        return last._replace(commit=int(start))

    def _last(self, place: Place, reached: Position = START) -> Position:
        told = self._watch(place).look(reached)
        # Who compares everything needs no origin, which other clients do not keep.
        is_compared = self._following.state_dir is not None
        return Position(told.commit_seq, None if is_compared else told.origin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the options; of Spark's own kinds, files come closest to commits."""
        limit = self._following.limit
        return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return how far the next batch goes."""
        with hints():
            return self._offset(lambda place: self._end(place, start, limit))

    def _end(self, place: Place, start: Offset, limit: ReadLimit) -> Position:
        after = _at(start, place)
        last = self._last(place, after)
        end = last.commit
        if self._target is not None:
            end = max(after.commit, min(end, _at(self._target, place).commit))
        if isinstance(limit, ReadMaxFiles):
            end = min(end, after.commit + limit.max_files)
        return last._replace(commit=end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Go no further than what is there now."""
        with hints():
            self._target = self._offset(self._last)

    def commit(self, end: Offset) -> None:
        """Forget what is only needed for batches that are done."""
        with hints():
            for place in self._places:
                self._watch(place).forget_before(_at(end, place).commit)
            if self._following.state_dir is not None:
                Snapshots(self._following.state_dir).prune(end)

    def stop(self) -> None:
        """Give the stores back."""
        for watched in self._watched.values():
            watched.documents.store.close()
        self._watched = {}

    def _offset(self, position: Callable[[Place], Position]) -> Offset:
        offset: Offset = {}
        for place in self._places:
            offset.setdefault(place.identity, {})[place.namespace] = position(place)
        return offset

    def _watch(self, place: Place) -> Watched:
        if str(place) not in self._watched:
            self._watched[str(place)] = Watched(place)
        return self._watched[str(place)]

    # What a batch is, on the driver ----------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan a batch: who reads which of the shards that changed."""
        with hints():
            ahead = [one for one in self._places if _at(start, one).commit < _at(end, one).commit]
            if self._following.state_dir is None:
                shares = [share for one in ahead for share in self._changed(one, start, end)]
            elif ahead:
                shares = self._compared(Snapshots(self._following.state_dir), start, end)
            else:
                shares = []
                if any(_at(start, one).commit > _at(end, one).commit for one in self._places):
                    # The first batch again, and meanwhile the latest commit is another one.
                    self._remember_start(Snapshots(self._following.state_dir), end)
            return [InputPartition(share) for share in shares]

    def _changed(self, place: Place, start: Offset, end: Offset) -> Iterator[Share]:
        after, until = _at(start, place), _at(end, place)
        watched = self._watch(place)
        told = watched.telling(until)
        shards = told.since(watched.before(after.commit))
        span = Span(after.commit, until.commit, told.commit_seq)
        for names in bins(shards, lambda _: 1, self._tasks):
            yield Share(place, ChangedShards({one: shards[one] for one in names}, span))

    def _compared(self, snapshots: Snapshots, start: Offset, end: Offset) -> list[Share]:
        """Compare what there is with what was delivered; the same again for the same offsets."""
        before = snapshots.find(start)
        if before is None:
            if _is_begun(start):
                raise StreamPositionError(
                    f"{self._following.state_dir} does not tell what was delivered up to"
                    f" {_described(start)}",
                    hint="Give the stateDir that the stream began with, or start with a new"
                    " checkpoint.",
                )
            before = {}
        after = snapshots.find(end)
        if after is None:
            after = self._snapshot(snapshots, before, end)
            snapshots.save(end, after)
        shares: list[Share] = []
        for place in self._places:
            known, current = before.get(str(place), {}), after.get(str(place), {})
            found = difference(snapshots, known, current)
            shares += [
                Share(place, Handful(found[first : first + _HANDFUL]))
                for first in range(0, len(found), _HANDFUL)
            ]
        return shares

    def _snapshot(self, snapshots: Snapshots, before: Snapshot, end: Offset) -> Snapshot:
        after: Snapshot = {}
        for place in self._places:
            watched, until = self._watch(place), _at(end, place)
            known = before.get(str(place), {})
            told = watched.telling(until)
            after[str(place)] = advanced(watched.documents, snapshots, known, told, until.commit)
        return after

    def _remember_start(self, snapshots: Snapshots, begin: Offset) -> None:
        """Take everything as delivered that was there before the stream began."""
        if _is_begun(begin) and snapshots.find(begin) is None:
            snapshots.save(begin, self._snapshot(snapshots, {}, begin))

    # The rows, in a task ---------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one share of a batch."""
        share: Share = partition.value
        with hints(), share.place.open() as store:
            rows = self._table.brought_rows(share.place, entries_of(share, store), store)
            yield from batches(rows, self._schema)


def entries_of(share: Share, store: Store) -> Iterator[Brought]:
    """Yield what a task delivers."""
    place, piece = share
    if isinstance(piece, Handful):
        yield from piece.entries
        return
    for partition, found in read(documents_of(place, store), piece.shards):
        yield from brought(partition, found, piece.shards[partition], piece.span)


def _at(offset: Offset, place: Place) -> Position:
    """Return the position in a place; in one that was not there yet, the start."""
    # Offsets come back from Spark as the lists that JSON makes of them.
    return Position(*offset.get(place.identity, {}).get(place.namespace, START))


def _is_begun(offset: Offset) -> bool:
    return any(commit for numbers in offset.values() for commit, _ in numbers.values())


def _described(offset: Offset) -> str:
    return ", ".join(
        f"commit {commit} of {store}{f'#{namespace}' if namespace else ''}"
        for store, numbers in offset.items()
        for namespace, (commit, _) in numbers.items()
    )


def _in_place(place: Place) -> NotFollowableError:
    return NotFollowableError(
        f"{place} is used in place: nobody commits there, so there is nothing to follow",
        hint="Follow the bucket of a shared datastore, or read the table without streaming.",
    )
