"""Who reads what: a place is cut into pieces that tasks can read side by side."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from swampstore.index.partitions import META_KEY, MONOLITH_KEY
from swampstore.index.path_kinds import is_surely_ours, other_datastores, shows_namespace
from swampstore.index.removals import read_notes
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import (
    DATASTORE_SUBDIRS,
    is_always_local,
    is_internal,
    is_temp,
    parse_version,
)
from swampstore.pipeline.places import Place
from swampstore.stores.protocol import Handed, Level, ObjectInfo, Store, contents, level

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
_TASKS_PER_CORE = 4
_FOLDERS_PER_PIECE = 8
_JOINT = "--"  # of the segments of a path in the name of its shard
_PARALLELISM = "spark.swampstore.parallelism"
_ENOUGH = 100_000  # numbers, for each core to get some


class Piece(NamedTuple):
    """A part of a listing: everything below `deep` prefixes, what is directly below `shallow`."""

    place: Place
    deep: tuple[str, ...] = ()
    shallow: tuple[str, ...] = ()


def tasks_for(spark: SparkSession) -> int:
    """Return into how many tasks work should be cut, so that no core waits for a long one."""
    return _TASKS_PER_CORE * parallelism(spark)


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so in its own way
        return _parallelism_of_server(spark)


def _parallelism_of_server(spark: SparkSession) -> int:
    """Return into how many tasks a server cuts what nobody has cut; asked once for a session."""
    from pyspark.sql import functions as sql

    known = spark.conf.get(_PARALLELISM, "")
    if known:
        return int(known)
    tasks = spark.range(_ENOUGH).select(sql.spark_partition_id().alias("task"))
    highest = tasks.agg(sql.max("task")).collect()[0][0]
    found = int(highest or 0) + 1
    spark.conf.set(_PARALLELISM, str(found))
    return found


def bins(items: Iterable[T], weight: Callable[[T], int], count: int) -> list[list[T]]:
    """Pack items into at most `count` bins of about the same weight, the heaviest first."""
    packed: list[list[T]] = [[] for _ in range(max(1, count))]
    loads = [(0, number) for number in range(len(packed))]
    for item in sorted(items, key=weight, reverse=True):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + max(1, weight(item)), number))
        packed[number].append(item)
    return [one for one in packed if one]


class Weights:
    """How much there is below each directory, as the sizes of shards tell it."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        named = sorted((f"{partition}{_JOINT}", size) for partition, size in sizes.items())
        self._names = [name for name, _ in named]
        self._sums = [0, *accumulate(size for _, size in named)]

    def __bool__(self) -> bool:
        return self._sums[-1] > 0

    def below(self, prefix: str) -> int:
        """Return the weight of a directory, whose path ends with a slash or is empty."""
        start = prefix.replace("/", _JOINT)
        first = bisect_left(self._names, start)
        return self._sums[bisect_left(self._names, f"{start}\U0010ffff", first)] - self._sums[first]


class _Folder(NamedTuple):
    prefix: str
    weight: float


def pieces(
    place: Place,
    store: Store,
    count: int,
    below: Sequence[str] = ("",),
    weights: Weights | None = None,
) -> list[Piece]:
    """Cut the listing of a place into about `count` pieces; no data name is cut in two.

    `below` are the directories to be listed. Pieces weigh about the same if `weights` are known.
    Costs one request per folder that is looked into; many are looked into at once.
    """
    deep, shallow = _cut(place, store, _FOLDERS_PER_PIECE * count, below, weights or Weights({}))
    packed = bins(deep, lambda one: round(one.weight), count)
    cut = [Piece(place, deep=tuple(one.prefix for one in some)) for some in packed]
    if shallow:
        cut.append(Piece(place, shallow=tuple(shallow)))
    return cut


class Range(NamedTuple):
    """The paths from one up to another, which is not among them (None: to the end)."""

    start: str
    end: str | None


def ranges(place: Place, store: Store, count: int) -> list[Range]:
    """Cut the paths that a database keeps into about `count` ranges; no data name is cut in two.

    Costs one request per folder that is looked into.
    """
    deep, _ = _cut(place, store, _FOLDERS_PER_PIECE * count, ("",), Weights({}))
    every = max(1, -(-len(deep) // max(1, count)))
    starts = ["", *sorted(one.prefix for one in deep)[every::every]]
    return [*map(Range, starts, [*starts[1:], None])]


def _cut(
    place: Place, store: Store, count: int, below: Sequence[str], weights: Weights
) -> tuple[list[_Folder], list[str]]:
    """Look into folders, level by level, until none is too heavy, or there are enough of them."""
    names = place.names()
    waiting = [_Folder(prefix, weights.below(prefix)) for prefix in below]
    most = sum(one.weight for one in waiting) / count
    deep: list[_Folder] = []
    shallow: list[str] = []
    while waiting:
        # What nobody knows the weight of is looked into as long as there are too few.
        room = len(waiting) if weights else count - len(deep) - len(waiting)
        large = [one for one in waiting if not one.prefix or (room > 0 and one.weight >= most)]
        looked_into, later = large[:room] if room > 0 else large, large[max(room, 1) :]
        deep += [one for one in waiting if one.prefix and (room <= 0 or one.weight < most)]
        waiting = later
        for folder, found in each(
            place, lambda one: level(store, names.remote(one.prefix)), looked_into
        ):
            if _is_another_datastore(place, store, folder.prefix, found):
                continue
            if any(parse_version(name) for name in found.folders):
                deep.append(folder)  # perhaps a data name: its versions and marker belong together
                continue
            if found.objects:
                shallow.append(folder.prefix)
            inner = list(found.folders if folder.prefix else _tops(place, store, found))
            waiting += _weighed(folder, inner, weights)
    return deep, shallow


def _weighed(folder: _Folder, inner: Sequence[str], weights: Weights) -> Iterator[_Folder]:
    """Yield what is in a folder; what nobody knows the weight of gets an even share of it."""
    for name in inner:
        prefix = f"{folder.prefix}{name}/"
        yield _Folder(prefix, weights.below(prefix) or folder.weight / len(inner))


def _tops(place: Place, store: Store, found: Level) -> Iterator[str]:
    """Yield the top-level directories of a place, without those of other namespaces."""
    for name in found.folders:
        if name in DATASTORE_SUBDIRS:
            if place.indexed or not is_always_local(name):
                yield name
        elif place.indexed and not (place.namespace == "" and _is_foreign(store, name)):
            yield name


def _is_foreign(store: Store, name: str) -> bool:
    inner = level(store, f"{name}/")
    found = (*(info.key for info in inner.objects), *(f"{name}/{one}/" for one in inner.folders))
    return any(map(shows_namespace, found))


def _may_hold_others(place: Place, prefix: str) -> bool:
    """Whether another datastore may be below a directory: not where our own data is."""
    is_root = place.indexed and not place.namespace
    top = prefix.partition("/")[0]
    return is_root and top not in DATASTORE_SUBDIRS and not is_internal(f"{prefix}x")


def _is_another_datastore(place: Place, store: Store, prefix: str, found: Level) -> bool:
    """Whether a directory that was looked into is another datastore, in the same bucket."""
    if not prefix or not _may_hold_others(place, prefix):
        return False
    names = place.names()
    monolith, meta = names.remote(f"{prefix}{MONOLITH_KEY}"), f"{prefix}{META_KEY}"
    if any(info.key == monolith for info in found.objects):
        return True
    if META_KEY.partition("/")[0] not in found.folders:
        return False
    return any(info.key == names.remote(meta) for info in store.list(names.remote(meta)))


def _others_below(place: Place, store: Store, prefix: str) -> tuple[str, ...]:
    """Return the directories of other datastores; where there may be some, that is a listing."""
    if not _may_hold_others(place, prefix):
        return ()
    names = place.names()
    root = names.remote("")
    listed = store.list(names.remote(prefix))
    return tuple(other_datastores(info.key.removeprefix(root) for info in listed))


class Listed(NamedTuple):
    """An object of a place: its path, and what the store says about it."""

    rel: str
    info: ObjectInfo
    internal: bool


def listed(piece: Piece, store: Store) -> Iterator[Listed]:
    """Yield the objects of a piece. Those that must never be shared count as bookkeeping."""
    names = piece.place.names()
    root = names.remote("")
    for prefix in piece.shallow:
        for info in level(store, names.remote(prefix)).objects:
            yield _listed(piece.place, info, root)
    for prefix in piece.deep:
        others = _others_below(piece.place, store, prefix)
        for info in store.list(names.remote(prefix)):
            one = _listed(piece.place, info, root)
            if not one.rel.startswith(others):
                yield one


def holds_files(place: Place, store: Store) -> bool:
    """Whether a place has any object that an index would name; looks until it has found one."""
    notes = read_notes(store, place.names(), strict=True)
    return any(
        is_surely_ours(one.rel) and not one.internal and not notes.name(one.rel, one.info, None)
        for piece in pieces(place, store, 1)
        for one in listed(piece, store)
    )


def listed_with_content(
    piece: Piece, store: Store, wanted: Callable[[Listed], bool], limit: int
) -> Iterator[tuple[Listed, Handed]]:
    """Yield the objects of a piece; `wanted` is asked once for each whether it is to be read now.

    See `swampstore.stores.protocol`.
    """
    names = piece.place.names()
    root = names.remote("")
    for prefix in piece.shallow:
        for info in level(store, names.remote(prefix)).objects:
            one = _listed(piece.place, info, root)
            yield one, Handed(info, wanted(one))

    asked: Listed | None = None
    others: tuple[str, ...] = ()

    def is_wanted(info: ObjectInfo) -> bool:
        nonlocal asked
        asked = _listed(piece.place, info, root)
        return not asked.rel.startswith(others) and wanted(asked)

    for prefix in piece.deep:
        others = _others_below(piece.place, store, prefix)
        for found in contents(store, names.remote(prefix), is_wanted, limit):
            is_same = asked is not None and asked.info is found.info
            one = asked if is_same and asked else _listed(piece.place, found.info, root)
            if not one.rel.startswith(others):
                yield one, found


def _listed(place: Place, info: ObjectInfo, root: str) -> Listed:
    rel = info.key.removeprefix(root)
    internal = is_internal(rel) or is_always_local(rel)
    if not place.indexed:
        # Beside the data of a directory in place there are the files of this machine.
        internal = internal or "/" not in rel
    return Listed(rel, info, internal or is_temp(rel))


def each(place: Place, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Yield each task with its result, in no order; many run at once where answers take time."""
    if place.root is not None:
        # A local disk answers at once; threads would only contend for the interpreter.
        for task in tasks:
            yield task, work(task)
        return

    def boxed(task: T) -> tuple[R]:
        return (work(task),)

    concurrency = place.config.limits.pull_concurrency
    for task, box, error in in_parallel(boxed, tasks, concurrency, Deadline()):
        if error is not None:
            raise error
        assert box is not None
        yield task, box[0]
