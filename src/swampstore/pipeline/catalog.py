"""The local catalog from the files, in bulk.

Tasks read names ahead, a wave of them at a time; meanwhile the rows of the wave before are stored
here, and only those that are surely still what the files say. Executors never see SQLite.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Self

from swampstore.catalog import rebuild as rebuilding
from swampstore.catalog.disk_rows import Moment, NameOnDisk, Problem, moment
from swampstore.catalog.schema import Row
from swampstore.errors import DiskError
from swampstore.files import Tree
from swampstore.index.results import no_progress
from swampstore.layout import DataRef, ModelRef
from swampstore.notices import notice
from swampstore.pipeline.engines import NEVER, Chosen, SparkOnDemand, break_even, choose
from swampstore.pipeline.planning import parallelism
from swampstore.pipeline.running import NoSharedDir, missing_shared_dir, run_waves
from swampstore.pipeline.settings import settings_of
from swampstore.routing import Routing
from swampstore.sync.downloads import Staging

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swampstore.pipeline.settings import Engine, SparkSettings
    from swampstore.repo import Repo

# A wave is as many names as have about so many versions for each core, or so many in all: several
# waves are in memory at once.
_VERSIONS_PER_CORE = 10_000
_WAVE_VERSIONS = 50_000
_SLICES_PER_CORE = 2
_FIRST_WAVE = 1_000
# Names that are pickled together: they have much in common.
_TOGETHER = 100
# A reading as it travels: plain tuples are pickled several times as fast as named ones.
_Packed = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild of the local catalog found, and who read the files."""

    names: int
    versions: int
    removed: int
    unreadable: int
    engine: Chosen
    seconds: float
    findings: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {
            "names": self.names,
            "versions": self.versions,
            "removed": self.removed,
            "unreadable": self.unreadable,
            "findings": self.findings,
            "engine": self.engine,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where data names are, as far as a task needs to know; it travels there as it is."""

    base: str
    local: str
    routing: Routing
    namespace: str
    staging: tuple[str, ...]
    began_ns: int

    def read(self, refs: Sequence[DataRef]) -> Iterator[list[_Packed] | _Left]:
        """Read some names: a task."""
        for path in self.staging:
            if where := missing_shared_dir(path):
                yield _Left(tuple(refs), where)
                return
        tree = Tree.only_read(self.base, self.local, self.routing)
        readings = rebuilding.read_slice(tree, self.namespace, refs, self.began_ns)
        while some := list(map(_packed, islice(readings, _TOGETHER))):
            yield some


@dataclass(frozen=True, slots=True)
class _Left:
    """Names that a task could not see, and where that was."""

    refs: tuple[DataRef, ...]
    where: NoSharedDir


def _packed(reading: NameOnDisk) -> _Packed:
    ref, rows, marker, problems, looks, _ = reading
    return (*ref.model, ref.name), tuple(map(tuple, rows)), marker, problems, looks


def _unpacked(packed: _Packed, since: Moment) -> NameOnDisk:
    (model_type, model_id, name), rows, marker, problems, looks = packed
    return NameOnDisk(
        DataRef(ModelRef(model_type, model_id), name),
        tuple(map(Row._make, rows)),
        marker,
        tuple(map(Problem._make, problems)),
        looks,
        since,
    )


def finding(noted: rebuilding.Noted, store: str, namespace: str) -> dict[str, Any]:
    """Return what a rebuild noted as a row of the table of findings.

    A name that is gone was put right; what was left out stays so until its files are mended.
    """
    is_gone = noted.kind == "removed-name"
    return {
        "store": store,
        "namespace": namespace,
        "kind": noted.kind,
        "rel": noted.rel,
        "detail": noted.detail,
        "severity": "info" if is_gone else "warning",
        "repaired": is_gone,
    }


def rebuild(
    repo: Repo,
    *,
    engine: Engine | None = None,
    settings: SparkSettings | None = None,
    progress: rebuilding.Progress | None = None,
    note: rebuilding.Note = rebuilding.forget,
    dry_run: bool = False,
) -> Rebuilt:
    """Make the rows of the own namespace equal to what is on disk, as `Repo.rebuild_catalog` does.

    `engine` and `settings` are the repository's if they are None. `note` is told what is
    noteworthy, of which the result has the numbers. With `dry_run`, names are only counted.
    Raises DiskError if the catalog cannot be written, StoreNotMountedError if the files seem not
    to be mounted, FilesNotSeenError if Spark was asked for and its executors do not see them.
    """
    repo.require_mounted()
    began = time.monotonic()
    settings = settings or settings_of(repo.config)
    engine = engine or settings.engine
    kinds: Counter[str] = Counter()

    def counted(noted: rebuilding.Noted) -> None:
        kinds[noted.kind] += 1
        note(noted)

    if dry_run:
        names, unreadable = rebuilding.names_on_disk(repo.tree, counted)
        used = choose(engine, files=names, settings=settings, job="catalog")
        found = rebuilding.Rebuilt(names, 0, 0, unreadable)
    else:
        repo.catalog.check_writable()
        with SparkOnDemand(settings) as spark, EarlyReader(repo, engine, settings, spark) as reader:
            found = rebuilding.rebuild(repo.catalog, repo.mutations, progress, reader.read, counted)
            used = reader.used
    seconds = round(time.monotonic() - began, 3)
    return Rebuilt(*found, used, seconds, dict(sorted(kinds.items())))


class EarlyReader:
    """Has Spark read names ahead of their batches, if there are enough of them.

    `used` says who has read them. At the end of the block Spark stops reading.
    """

    def __init__(
        self, repo: Repo, engine: Engine, settings: SparkSettings, spark: SparkOnDemand
    ) -> None:
        self.used: Chosen = "local"
        self._tree = repo.tree
        self._catalog = repo.catalog
        self._enough = break_even(engine, settings, "catalog")
        self._strict = engine == "spark"
        self._spark = spark
        self._wave_size = _FIRST_WAVE
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self, refs: Iterable[DataRef]) -> Iterator[NameOnDisk]:
        """Yield each name, with what was read of it."""
        if self._enough == NEVER:
            return map(NameOnDisk, refs)
        names = iter(refs)
        first = list(islice(names, self._enough))
        if len(first) < self._enough:
            return map(NameOnDisk, first)
        every = chain(first, names)
        spark = self._spark.session(strict=self._strict)
        if spark is None:
            return map(NameOnDisk, every)
        return self._stack.enter_context(contextlib.closing(self._read(spark, every)))

    def _read(self, spark: SparkSession, refs: Iterator[DataRef]) -> Generator[NameOnDisk]:
        with contextlib.ExitStack() as stack:
            try:
                shelf = stack.enter_context(self._shelf())
            except DiskError as error:
                if self._strict:
                    raise
                notice("reading without Spark: %s", error.message)
                yield from map(NameOnDisk, refs)
                return
            self.used = "spark"
            began: deque[Moment] = deque()
            cores = parallelism(spark)
            slices = self._waves(refs, _SLICES_PER_CORE * cores, began)
            versions = min(_VERSIONS_PER_CORE * cores, _WAVE_VERSIONS)
            waves = run_waves(spark, shelf.read, slices, label="catalog", progress=no_progress)
            stack.enter_context(contextlib.closing(waves))
            for results in waves:
                yield from self._readings(results, began.popleft(), versions)

    def _waves(
        self, refs: Iterator[DataRef], slices: int, began: deque[Moment]
    ) -> Iterator[list[list[DataRef]]]:
        """Cut names into waves, and those into slices; note when each wave begins."""
        while wave := list(islice(refs, self._wave_size)):
            began.append(self._catalog.rows.read(moment))
            each = -(-len(wave) // slices)
            yield [wave[start : start + each] for start in range(0, len(wave), each)]

    def _readings(
        self, results: Iterable[list[_Packed] | _Left], since: Moment, wanted: int
    ) -> Iterator[NameOnDisk]:
        """Yield a wave; what it tells of names makes the next ones have as many as are wanted."""
        names = versions = 0
        for result in results:
            if isinstance(result, _Left):
                yield from self._left(result)
                continue
            for packed in result:
                reading = _unpacked(packed, since)
                names += 1
                versions += len(reading.rows)
                yield reading
        self._wave_size = max(1, wanted * names // max(versions, names, 1))

    def _left(self, left: _Left) -> Iterable[NameOnDisk]:
        error = left.where.error(self._tree.base)
        if self._strict:
            raise error
        notice("%s; this process reads that part", error.message)
        return map(NameOnDisk, left.refs)

    @contextlib.contextmanager
    def _shelf(self) -> Iterator[Shelf]:
        """Yield where the names are, with something to be seen in each tier that has some."""
        tree = self._tree
        tiers = [place.removesuffix("/data") for place in tree.places("data")]
        with contextlib.ExitStack() as stack:
            paths = [stack.enter_context(Staging(tier)).path for tier in tiers]
            began_ns = min(os.stat(path).st_mtime_ns for path in paths)
            routing = tree.routing
            namespace = self._catalog.namespace
            yield Shelf(tree.base, tree.local, routing, namespace, tuple(paths), began_ns)
