"""Making a snapshot what the index is now: the driver's part.

It compares fingerprints, has tasks make the buckets anew whose shards changed, and commits by
creating the next manifest. If somebody was faster, it begins again with theirs, where little is
left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from swampstore.clock import from_iso, to_iso
from swampstore.errors import ValidationError
from swampstore.index.documents import Documents
from swampstore.index.partitions import partition_of
from swampstore.index.results import Progress, no_progress
from swampstore.index.state import same
from swampstore.layout import LATEST, RAW
from swampstore.pipeline.engines import Chosen, SparkOnDemand, choose
from swampstore.pipeline.errors import SnapshotBusyError
from swampstore.pipeline.metrics import Metrics
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins, tasks_for
from swampstore.pipeline.running import run_tasks
from swampstore.pipeline.settings import Engine, SparkSettings, settings_of
from swampstore.pipeline.snapshots.buckets import (
    Draft,
    Drafted,
    Remade,
    Work,
    remake,
    remake_from_one,
)
from swampstore.pipeline.snapshots.drafts import made, packed, remade_of
from swampstore.pipeline.snapshots.manifest import (
    FORMAT,
    Bucket,
    Kept,
    Manifest,
    Manifests,
    Moment,
    Retired,
    bucket_of,
)
from swampstore.pipeline.snapshots.told import Told, is_of, told
from swampstore.pipeline.source.index import check_monolith
from swampstore.stores.protocol import ObjectInfo, Store
from swampstore.stores.wrapper import CountingStore, Tally

T = TypeVar("T")
R = TypeVar("R")
RETENTION = timedelta(days=7)
_ATTEMPTS = 5
# So much of the index is one bucket: some ten thousand versions.
_BUCKET_BYTES = 8 << 20
_MOST_BUCKETS = 1024
# A bucket of more rows than that is split, and those of the snapshot with it.
_BUCKET_ROWS = 200_000
_SPLIT = 4

# Runs a function on items, in tasks or here, and yields what it yields.
Runner = Callable[[Callable[[T], Iterable[R]], Sequence[T]], Iterator[R]]


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A snapshot that was made, or found to be what the index is.

    `read` counts the documents of the index that were read, `left` the shards that a snapshot
    cannot stand for: their objects are not what the index says, or it does not say what they are.
    """

    store: str
    namespace: str
    number: int
    commit_seq: int | None
    rows: int
    shards: int
    changed: int
    read: int
    left: int
    written: int
    removed: int
    tally: Tally
    engine: Chosen
    seconds: float
    dry_run: bool = False

    @property
    def requests(self) -> dict[str, int]:
        """What was asked of the store, by kind."""
        return dict(sorted(self.tally.requests.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the result document."""
        return {
            "store": self.store,
            "namespace": self.namespace,
            "snapshot": self.number,
            "commitSeq": self.commit_seq,
            "rows": self.rows,
            "shards": self.shards,
            "shardsChanged": self.changed,
            "documentsRead": self.read,
            "shardsLeftOut": self.left,
            "filesWritten": self.written,
            "objectsRemoved": self.removed,
            "requests": self.requests,
            "metrics": Metrics(self.requests, *self.tally[1:]).to_json(),
            "engine": self.engine,
            "dryRun": self.dry_run,
            "seconds": self.seconds,
        }


def refresh(
    places: Sequence[Place],
    *,
    engine: Engine | None = None,
    settings: SparkSettings | None = None,
    retention: timedelta = RETENTION,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> list[Refreshed]:
    """Make the snapshots of places what their indexes are now, each in one commit.

    Files and snapshots that were replaced stay for the `retention` time. `engine` and `settings`
    are the environment's if they are None. Raises ValidationError for a place without an index,
    SnapshotBusyError, SparkJobError.
    """
    settings = settings or settings_of()
    engine = engine or settings.engine
    with SparkOnDemand(settings) as on_demand:

        def run(shards: int) -> tuple[Runner[Any, Remade | Drafted], int, Chosen]:
            chosen = choose(engine, files=shards, settings=settings, job="snapshot")
            is_strict = engine == "spark"
            spark = on_demand.session(strict=is_strict) if chosen == "spark" else None
            if spark is None:
                return _here, 1, "local"
            runner = partial(run_tasks, spark, label="snapshot", progress=progress)
            return runner, tasks_for(spark), "spark"

        return [
            Refresh(place, run, retention=retention, dry_run=dry_run).refreshed()
            for place in places
        ]


def _here(work: Callable[[T], Iterable[R]], items: Sequence[T]) -> Iterator[R]:
    for item in items:
        yield from work(item)


class Refresh:
    """A refresh of the snapshot of one place.

    `run` does the work of tasks, of which there are to be about `tasks`; it is asked for when it is
    known how many shards changed.
    """

    def __init__(
        self,
        place: Place,
        run: Callable[[int], tuple[Runner[Any, Remade | Drafted], int, Chosen]],
        *,
        retention: timedelta = RETENTION,
        dry_run: bool = False,
    ) -> None:
        self._place = place
        self._run = run
        self._retention = retention
        self._dry_run = dry_run

    def refreshed(self) -> Refreshed:
        """Do it. Raises ValidationError where there is no index, SnapshotBusyError."""
        began = time.monotonic()
        with self._place.open() as opened:
            store = CountingStore(opened)
            manifests = Manifests(store, self._place.names())
            for _ in range(_ATTEMPTS):
                done = self._attempt(store, manifests, began)
                if done is not None:
                    return done
        raise SnapshotBusyError(
            f"somebody else kept making snapshots of {self._place}",
            hint="Let only one machine refresh them at a time.",
        )

    def _attempt(
        self, store: CountingStore, manifests: Manifests, began: float
    ) -> Refreshed | None:
        kept = manifests.newest()
        now = told(self._place, store, with_size=kept.manifest is None)
        if now is None:
            raise ValidationError(
                f"{self._place} has no index that a snapshot could be compared with",
                hint="Name a bucket, or a directory as file:///path, that was pushed to. If its"
                " index is damaged, run `swampstore pipeline reindex`.",
            )
        if now.is_one:
            check_monolith(self._place, store, now.size or 0)
        old = kept.manifest if kept.manifest and is_of(kept.manifest, now) else None
        files = manifests.files()
        plan = _Plan(now, old, files)
        if self._dry_run or not plan.is_needed:
            return self._result(store, began, plan, old, kept.next_number - 1, engine="local")
        runner, tasks, engine = self._run(len(plan.changed))
        buckets, remade = self._remade(plan, runner, tasks, store)
        manifest, expired = self._manifest(kept, now, plan, buckets, remade, store.clock())
        if not manifests.add(manifest):
            return None
        removed = manifests.sweep(manifest, kept.listed, files, expired)
        known = old.files if old else set()
        return self._result(
            store,
            began,
            plan,
            manifest,
            manifest.number,
            engine=engine,
            read=sum(one.read for one in remade) + len({one.etag for one in remade} - {None}),
            written=len(manifest.files - known),
            removed=removed,
        )

    # Making -------------------------------------------------------------------------------------

    def _remade(
        self, plan: _Plan, runner: Runner[Any, Remade | Drafted], tasks: int, store: CountingStore
    ) -> tuple[dict[int, Bucket], list[Remade]]:
        """Make what has to be made anew; then once more where only a marker changed."""
        if plan.now.is_one:
            task = partial(remake_from_one, self._place, plan.spread)
            every = [(number, plan.old_bucket(number)) for number in range(plan.spread)]
            works = [tuple(one) for one in bins(every, lambda _: 1, tasks)]
            remade = remade_of(_counted(runner(task, works), store))
            return {one.bucket.number: one.bucket for one in remade}, remade
        buckets = plan.untouched

        def run(items: Sequence[tuple[Work | Draft, ...]]) -> list[Remade | Drafted]:
            return _counted(runner(partial(remake, self._place, plan.moving), items), store)

        remade, drafts = made(
            plan.works(), lambda: plan.now.sizes or self._sizes(store), tasks, run
        )
        for draft in drafts:
            store.delete(Manifests(store, self._place.names()).key_of(draft))
        buckets |= {one.bucket.number: one.bucket for one in remade}
        moved = {_shard_of(rel) for one in remade for rel in one.moved}
        second = plan.again(buckets, moved - set(plan.changed))
        if second:
            again = remade_of(run(packed(second, tasks)))
            buckets |= {one.bucket.number: one.bucket for one in again}
            remade += again
        return _agreeing(buckets, remade), remade

    def _sizes(self, store: Store) -> dict[str, int]:
        listed = Documents(store, self._place.names(), 1).listed_shards()
        return {partition: info.size for partition, info in listed.items()}

    def _manifest(
        self,
        kept: Kept,
        now: Told,
        plan: _Plan,
        buckets: dict[int, Bucket],
        remade: Sequence[Remade],
        at: datetime,
    ) -> tuple[Manifest, set[str]]:
        """Return the next snapshot, and the files that nobody can read any more."""
        before = kept.manifest
        etags = {one.etag for one in remade}
        kept_buckets = [
            bucket
            for bucket in _with_live(buckets, now, plan.spread)
            if bucket.files or bucket.shards or bucket.live
        ]
        in_use = {file for bucket in kept_buckets for file in bucket.files}
        text = to_iso(at)
        retired = list(before.retired) if before else []
        retired += [Retired(one, text) for one in sorted(before.files - in_use)] if before else []
        lasting = [one for one in retired if at - from_iso(one.at) < self._retention]
        history = _readable(before.history if before else [], at, self._retention)
        number = kept.next_number
        manifest = Manifest(
            FORMAT,
            number,
            text,
            now.version,
            plan.spread,
            kept_buckets,
            now.commit_seq,
            now.origin or (plan.old.origin if plan.old else None),
            etags.pop() if now.is_one and len(etags) == 1 else None,
            lasting,
            [*history, Moment(number, text, now.commit_seq)],
        )
        return manifest, {one.file for one in retired} - {one.file for one in lasting}

    def _result(
        self,
        store: CountingStore,
        began: float,
        plan: _Plan,
        manifest: Manifest | None,
        number: int,
        *,
        engine: Chosen,
        read: int = 0,
        written: int = 0,
        removed: int = 0,
    ) -> Refreshed:
        shards = manifest.shards if manifest else {}
        live = sum(len(one.live) for one in manifest.buckets) if manifest else 0
        return Refreshed(
            self._place.identity,
            self._place.namespace,
            number,
            manifest.commit_seq if manifest else None,
            manifest.count if manifest else 0,
            len(shards),
            len(plan.changed),
            read,
            live,
            written,
            removed,
            store.tally(),
            engine,
            round(time.monotonic() - began, 3),
            self._dry_run,
        )


class _Plan:
    """Which buckets have to be made anew."""

    def __init__(self, now: Told, old: Manifest | None, files: dict[str, ObjectInfo]) -> None:
        self.now = now
        self.old = old
        self._old = {one.number: one for one in old.buckets} if old else {}
        self._spread_before = old.spread if old else 1
        self.spread = _spread(now, old)
        self._monolith = old.monolith if old else None
        # What was lost, by whatever means, is made anew as a whole.
        lost = {one.number for one in self._old.values() if one.files - files.keys()}
        self._is_split = self.spread != self._spread_before
        self._kept: dict[int, dict[str, str]] = {}
        self._changed: dict[int, list[str]] = {}
        for partition, etag in now.shards.items():
            bucket = self.old_bucket(bucket_of(partition, self.spread))
            is_kept = (
                bucket is not None
                and bucket.number not in lost
                and same(bucket.shards.get(partition), etag)
                and same(bucket.marker_shards.get(partition), etag)
            )
            number = bucket_of(partition, self.spread)
            if is_kept:
                self._kept.setdefault(number, {})[partition] = etag
            else:
                self._changed.setdefault(number, []).append(partition)
        self.changed = [one for inside in self._changed.values() for one in inside]
        self._gone: dict[int, list[str]] = {}
        for bucket in self._old.values():
            known = bucket.shards.keys() | bucket.marker_shards.keys()
            for partition in known - now.shards.keys():
                self._gone.setdefault(bucket_of(partition, self.spread), []).append(partition)
        self._is_first = not self._old
        self._is_lost = bool(lost)

    @property
    def is_needed(self) -> bool:
        """Whether the snapshot is not what the index is."""
        if self.now.is_one:
            return self._is_lost or not same(self._monolith, self.now.monolith)
        return bool(self._is_first or self._changed or self._gone or self._is_split)

    @property
    def moving(self) -> frozenset[str] | None:
        """All shards that are not what they were, None: every one."""
        if self._is_first:
            return None
        return frozenset(self.changed) | {one for inside in self._gone.values() for one in inside}

    @property
    def untouched(self) -> dict[int, Bucket]:
        """The buckets that stay as they are."""
        if self._is_split:
            return {}
        touched = self._changed.keys() | self._gone.keys()
        return {number: one for number, one in self._old.items() if number not in touched}

    def old_bucket(self, number: int) -> Bucket | None:
        """Return what a bucket was, or the one that it is split from."""
        return self._old.get(number % self._spread_before)

    def works(self) -> list[Work]:
        """Return the buckets to be made anew."""
        numbers = self._changed.keys() | self._gone.keys()
        if self._is_split:
            numbers |= self._kept.keys()
        return [
            Work(
                number,
                self.old_bucket(number),
                self._kept.get(number, {}),
                self._changed.get(number, []),
                self._gone.get(number, []),
            )
            for number in sorted(numbers)
        ]

    def again(self, buckets: dict[int, Bucket], moved: set[str]) -> list[Work]:
        """Return what has to be made once more: rows of shards that only have other markers."""
        by_bucket: dict[int, list[str]] = {}
        for partition in moved & self.now.shards.keys():
            by_bucket.setdefault(bucket_of(partition, self.spread), []).append(partition)
        works = []
        for number, partitions in sorted(by_bucket.items()):
            bucket = buckets.get(number)
            inside = bucket.marker_shards.items() if bucket else ()
            kept = {one: etag for one, etag in inside if one not in partitions}
            works.append(Work(number, bucket, kept, partitions))
        return works


def _spread(now: Told, old: Manifest | None) -> int:
    """Return how many buckets there are to be."""
    if old is None:
        wanted = -(-(now.size or 0) // _BUCKET_BYTES)
        return min(1 << max(0, (wanted - 1).bit_length()), _MOST_BUCKETS)
    most = max((one.count for one in old.buckets), default=0)
    is_full = most > _BUCKET_ROWS and old.count > _BUCKET_ROWS * old.spread // _SPLIT
    return old.spread * _SPLIT if is_full else old.spread


def _counted(results: Iterable[Remade | Drafted], store: CountingStore) -> list[Remade | Drafted]:
    found = list(results)
    for one in found:
        if one.tally is not None:
            store.add(one.tally)
    return found


def _shard_of(marker_rel: str) -> str:
    """Return the shard that the versions of a marker's name are in."""
    return partition_of(f"{marker_rel.removesuffix(LATEST)}1/{RAW}")


def _agreeing(buckets: dict[int, Bucket], remade: Iterable[Remade]) -> dict[int, Bucket]:
    """Take back what was made from markers of another moment than those that are remembered."""
    etags = {p: etag for one in buckets.values() for p, etag in one.marker_shards.items()}
    for one in remade:
        torn = [p for p, etag in one.used.items() if not same(etags.get(p), etag)]
        bucket = buckets[one.bucket.number]
        if torn:
            shards = {
                p: etag
                for p, etag in bucket.shards.items()
                if not any(_are_related(p, marker) for marker in torn)
            }
            buckets[bucket.number] = msgspec.structs.replace(bucket, shards=shards)
    return buckets


def _with_live(buckets: dict[int, Bucket], now: Told, spread: int) -> Iterator[Bucket]:
    """Yield buckets in order, with the shards that have to be read because none stands for them."""
    live: dict[int, list[str]] = {}
    for partition in now.shards:
        number = bucket_of(partition, spread)
        if number not in buckets or partition not in buckets[number].shards:
            live.setdefault(number, []).append(partition)
    for number in sorted(buckets.keys() | live.keys()):
        bucket = buckets.get(number) or Bucket(number)
        if now.is_one:
            yield bucket
        else:
            yield msgspec.structs.replace(bucket, live=sorted(live.get(number, ())))


def _are_related(partition: str, other: str) -> bool:
    """Whether one of two shards may have the markers of the other's versions."""
    return f"{partition}--".startswith(f"{other}--") or f"{other}--".startswith(f"{partition}--")


def _readable(history: Sequence[Moment], now: datetime, retention: timedelta) -> list[Moment]:
    """Return the snapshots that were the newest one within the retention time."""
    ends = [*(from_iso(one.created_at) for one in history[1:]), now]
    return [one for one, end in zip(history, ends, strict=False) if now - end < retention]
