"""The table of artifacts for other engines: a Delta table, or Parquet files, merged by key.

An export costs what changed. The table remembers which snapshot its rows stand for; the files of
that one and of the newest are compared, bucket by bucket. Where there is no such pair, rows are
compared with those of the table, day by day. All of it is columnar, done by this process;
only a refresh of the snapshot may need Spark.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from swampstore.clock import from_iso
from swampstore.config import LockSettings
from swampstore.datastore_address import Address, is_url
from swampstore.errors import NotFoundError
from swampstore.files import disk_errors
from swampstore.index.partitions import partition_of
from swampstore.index.results import Progress, no_progress
from swampstore.layout import RAW, DataRef, ModelRef
from swampstore.notices import notice
from swampstore.pipeline.export.change_log import ChangeLog
from swampstore.pipeline.export.delta import DeltaTarget
from swampstore.pipeline.export.parquet import ParquetTarget
from swampstore.pipeline.export.rows import (
    CHANGES,
    NAME,
    SCHEMA,
    Changed,
    Spool,
    compare,
    exported,
    exported_rows,
)
from swampstore.pipeline.metrics import NO_METRICS, Meter, Metrics, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.schemas import run_id
from swampstore.pipeline.settings import Engine, SparkSettings, settings_of
from swampstore.pipeline.snapshots.manifest import Manifest, Manifests
from swampstore.pipeline.snapshots.refresh import RETENTION, refresh
from swampstore.pipeline.snapshots.told import told
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.changes import Half, differing, left_out, read_half
from swampstore.pipeline.source.remembered import memories
from swampstore.stores.config import StoreConfig, store_config
from swampstore.stores.errors import StorePermissionError
from swampstore.stores.protocol import Store
from swampstore.stores.retry import RetryingStore

Format = Literal["delta", "parquet"]
FORMATS: tuple[Format, ...] = ("delta", "parquet")
_PIECES = 32  # only so many of them are in memory at once as are being read: one
Target = DeltaTarget | ParquetTarget


@dataclass(frozen=True, slots=True)
class Exported:
    """A table that was written: what was done to it, and the rows that it has by namespace.

    `run_id` is in the rows that were written. `metrics` tell what was asked of the places.
    """

    output: str
    format: Format
    rows: dict[str, int]
    inserted: int
    updated: int
    deleted: int
    seconds: float
    run_id: str = ""
    metrics: Metrics = NO_METRICS

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {
            "output": self.output,
            "format": self.format,
            "rows": self.rows,
            "inserted": self.inserted,
            "updated": self.updated,
            "deleted": self.deleted,
            "seconds": self.seconds,
            "metrics": self.metrics.to_json(),
        }


def export(
    places: Sequence[Place],
    output: str,
    *,
    form: Format = "parquet",
    engine: Engine | None = None,
    settings: SparkSettings | None = None,
    retention: timedelta = RETENTION,
    changes: str | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Exported:
    """Make the rows of places in a table, at a path or a URL, what the places are now.

    Rows of other places stay. Snapshots are refreshed for that, as `refresh` does with the same
    arguments, unless the places may only be read. What is about to be changed is added to the
    Parquet files in the directory `changes` first. With `dry_run` changes are only counted. Raises
    ValidationError for an output that is something else, LockTimeoutError, ExportFailedError.
    """
    began = time.monotonic()
    inserted = updated = deleted = 0
    counts: dict[str, int] = {place.namespace: 0 for place in places}
    locks = places[0].locks if places else LockSettings()
    meter = Meter()
    log = None if changes is None or dry_run else ChangeLog(changes)
    with _target(output, form, locks, dry_run=dry_run) as target:
        for place in places:
            manifest = None
            if not dry_run:
                manifest = _refreshed(place, engine, settings, retention, progress, meter)
            [counted] = metered([place], meter)
            done = _Export(counted, target, manifest, log).run(dry_run=dry_run)
            inserted += done.inserted
            updated += done.updated
            deleted += done.deleted
        counts |= target.counts()
    seconds = round(time.monotonic() - began, 3)
    done_to_it = (inserted, updated, deleted)
    return Exported(output, form, counts, *done_to_it, seconds, run_id(), meter.read())


@contextmanager
def _target(output: str, form: Format, locks: LockSettings, *, dry_run: bool) -> Iterator[Target]:
    config = _config_of(output)
    if form == "delta":
        yield DeltaTarget(config)
        return
    with RetryingStore(config.open()) as store:
        if dry_run:
            yield ParquetTarget(store)
            return
        with ParquetTarget.locked(store, locks) as target:
            yield target


def _config_of(output: str) -> StoreConfig:
    if is_url(output) or ":{" in output:
        address = Address.parse(output, "--output")
        return store_config(address.target, address.members, environ=os.environ)
    path = os.path.abspath(output)
    with disk_errors(path):
        os.makedirs(path, exist_ok=True)
    return store_config("file", {"path": path}, environ=os.environ)


def _refreshed(
    place: Place,
    engine: Engine | None,
    settings: SparkSettings | None,
    retention: timedelta,
    progress: Progress,
    meter: Meter,
) -> Manifest | None:
    """Return the newest snapshot of a place; None where there is none, or may be none."""
    [counted] = metered([place], meter)
    with counted.open() as store:
        if told(place, store) is None:
            return None
    settings = settings or settings_of()
    try:
        [done] = refresh(
            [place], engine=engine, settings=settings, retention=retention, progress=progress
        )
    except StorePermissionError as error:
        notice("no snapshot of %s is made: %s", place, error.message)
        return None
    meter.add(done.tally)
    with counted.open() as store:
        return Manifests(store, place.names()).read(done.number)


class _Counts(NamedTuple):
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class _Export:
    """One place in one table; without a snapshot the place is read as it is."""

    def __init__(
        self, place: Place, target: Target, manifest: Manifest | None, log: ChangeLog | None
    ) -> None:
        self._place = place
        self._target = target
        self._manifest = manifest
        self._log = log
        self._counts = _Counts()

    def run(self, *, dry_run: bool) -> _Counts:
        """Find out what changed and write that; nothing if nothing did."""
        moment = _moment(self._manifest.created_at) if self._manifest else None
        known = self._target.moment(self._place)
        if moment is not None and moment == known:
            return self._counts
        with (
            tempfile.TemporaryDirectory(prefix="swampstore-export-") as directory,
            self._place.open() as store,
        ):
            changes = Spool(os.path.join(directory, "changes"), CHANGES)
            before = self._kept(store, known)
            if before is None or not self._compared_with(before, store, changes):
                before = None
                self._counts = _Counts()
                changes = Spool(os.path.join(directory, "whole"), CHANGES)
                self._compared_with_table(store, os.path.join(directory, "rows"), changes)
            # Which snapshot it is about is worth a write only if nobody could tell otherwise.
            if not dry_run and (changes.count or (before is None and moment != known)):
                if self._log is not None:
                    self._log.add(changes)
                self._target.apply(self._place, changes, moment)
        return self._counts

    def _kept(self, store: Store, known: int | None) -> Manifest | None:
        """Return the snapshot that the table stands for, if it can still be read.

        A table without rows stands for none: somebody may have emptied it.
        """
        if self._manifest is None or known is None or not self._target.days(self._place):
            return None
        for one in self._manifest.history:
            if _moment(one.created_at) == known:
                return Manifests(store, self._place.names()).read(one.number)
        return None

    def _compared_with(self, before: Manifest, store: Store, changes: Spool) -> bool:
        """Compare two snapshots; False if one of them is not whole any more.

        Shards that one of them has no rows of are compared with the table.
        """
        assert self._manifest is not None
        unknown = left_out(before) | left_out(self._manifest)
        try:
            for pair in differing(before, self._manifest, unknown):
                old, new = (read_half(self._place, store, half) for half in pair)
                self._note(changes, compare(*(exported(self._place, one) for one in (old, new))))
            if unknown:
                days = self._target.days(self._place)
                there = [self._target.rows(self._place, day) for day in days]
                old = _of_shards(pa.concat_tables([SCHEMA.empty_table(), *there]), unknown)
                new = pa.concat_tables([SCHEMA.empty_table(), *self._now(store, unknown)])
                self._note(changes, compare(old, new))
        except NotFoundError as error:
            notice("%s", error.message)
            return False
        return True

    def _compared_with_table(self, store: Store, directory: str, changes: Spool) -> None:
        """Compare everything there is with what the table has, day by day."""
        now = Spool(directory, SCHEMA)
        for table in self._now(store, None):
            now.add(table)
        for day in sorted({*now.days(), *self._target.days(self._place)}, key=str):
            self._note(changes, compare(self._target.rows(self._place, day), now.read(day)))

    def _note(self, changes: Spool, changed: Changed) -> None:
        if changed.rows.num_rows:
            changes.add(changed.rows)
        new = (changed.inserted, changed.updated, changed.deleted)
        self._counts = _Counts(*map(sum, zip(self._counts, new, strict=True)))

    def _now(self, store: Store, shards: Collection[str] | None) -> Iterator[pa.Table]:
        """Yield the rows of some shards, or of all: those of the snapshot, and of none live ones.

        What is not in the snapshot is read, by now perhaps of a later commit; the next export
        compares it with the table again.
        """
        place, manifest = self._place, self._manifest
        if manifest is None:
            yield from self._live(store, None)
            return
        for bucket in manifest.buckets:
            chosen = tuple(one for one in bucket.shards if shards is None or one in shards)
            if chosen:
                yield exported(place, read_half(place, store, Half(bucket.rows, chosen)))
        live = left_out(manifest) if shards is None else left_out(manifest) & set(shards)
        if live:
            yield from self._live(store, live)

    def _live(self, store: Store, shards: Collection[str] | None) -> Iterator[pa.Table]:
        table = Artifacts()
        pieces: Iterable[Any] | None = None
        if shards is not None:
            pieces = memories(self._place, store, _PIECES, shards.__contains__)
        for piece in pieces if pieces is not None else table.plan(self._place, store, _PIECES):
            rows = table.rows(self._place, piece, store)
            for found in exported_rows(self._place, rows):
                yield found if shards is None else _of_shards(found, shards)


def _moment(created_at: str) -> int:
    """Return what a snapshot is called: their numbers begin again where they were removed."""
    return round(from_iso(created_at).timestamp() * 1000)


def _of_shards(table: pa.Table, shards: Collection[str]) -> pa.Table:
    """Return the rows of some shards."""
    names = zip(*(table[column].to_pylist() for column in NAME), strict=True)
    chosen = [
        partition_of(DataRef(ModelRef(kind, model), name).file_rel(version, RAW)) in shards
        for kind, model, name, version in names
    ]
    return table.filter(pa.array(chosen, pa.bool_()))
