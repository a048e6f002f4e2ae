"""The table of changes: what became of versions between two snapshots.

Only files that differ are read. It makes no difference which version the index has, or whether it
was migrated in between, as long as both snapshots are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore.errors import NotFoundError
from swampstore.notices import notice
from swampstore.pipeline import schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import bins
from swampstore.pipeline.snapshots import rows_file
from swampstore.pipeline.snapshots.buckets import read_rows
from swampstore.pipeline.snapshots.history import newest_snapshot, snapshot_at
from swampstore.pipeline.snapshots.manifest import Bucket, Manifest, Manifests, bucket_of
from swampstore.pipeline.source.scan import Whole
from swampstore.pipeline.source.versions import typed
from swampstore.stores.protocol import Store

if TYPE_CHECKING:
    import pyarrow as pa

INSERT, UPDATE, DELETE = "insert", "update", "delete"
_Rows = dict[tuple[str, str, str, int], tuple[Any, ...]]


class Half(NamedTuple):
    """A bucket of one of two snapshots: its file, and the shards that count."""

    rows: str | None
    shards: tuple[str, ...]


class Pair(NamedTuple):
    """The same shards in two snapshots."""

    before: Half
    after: Half


@dataclass(frozen=True)
class Changes(Whole[tuple[Pair, ...]]):
    """One row for each version that came, changed or went, as it is after that, or was before.

    What is planned must say since when; a stream plans by itself.
    """

    since: str | None = None
    until: str | None = None
    schema = schemas.CHANGES

    def plan(self, place: Place, store: Store, tasks: int) -> Iterable[tuple[Pair, ...]]:
        """Choose the files that are not the same in both."""
        assert self.since is not None
        before = snapshot_at(place, store, self.since)
        until = self.until
        after = snapshot_at(place, store, until) if until else newest_snapshot(place, store)
        unknown = left_out(before) | left_out(after)
        if unknown:
            notice("%d shards are in no snapshot: their changes are not told", len(unknown))
        pairs = differing(before, after, unknown)
        return [tuple(one) for one in bins(pairs, lambda _: 1, tasks)]

    def rows(
        self, place: Place, piece: tuple[Pair, ...], store: Store
    ) -> Iterator[tuple[Any, ...]]:
        """Compare some files."""
        for before, after in piece:
            old, new = (_read(place, store, half) for half in (before, after))
            for key in sorted(old.keys() | new.keys()):
                change = _change(old.get(key), new.get(key))
                if change is not None:
                    yield (place.identity, *(new.get(key) or old[key]), change)


def _change(old: tuple[Any, ...] | None, new: tuple[Any, ...] | None) -> str | None:
    if old == new:
        return None
    if old is None:
        return INSERT
    return DELETE if new is None else UPDATE


def differing(before: Manifest, after: Manifest, unknown: Collection[str]) -> list[Pair]:
    """Return the files of two snapshots that are not the same; `unknown` shards are left out."""
    spread = max(before.spread, after.spread)
    pairs = (
        Pair(_half(before, number, spread, unknown), _half(after, number, spread, unknown))
        for number in range(spread)
    )
    return [pair for pair in pairs if pair.before != pair.after]


def left_out(manifest: Manifest) -> frozenset[str]:
    """Return the shards that a snapshot has no rows of."""
    return frozenset(partition for bucket in manifest.buckets for partition in bucket.live)


def _half(manifest: Manifest, number: int, spread: int, unknown: Collection[str]) -> Half:
    buckets = {one.number: one for one in manifest.buckets}
    bucket = buckets.get(number % manifest.spread) or Bucket(number)
    shards = (one for one in bucket.shards if bucket_of(one, spread) == number)
    return Half(bucket.rows, tuple(sorted(one for one in shards if one not in unknown)))


def read_half(place: Place, store: Store, half: Half) -> pa.Table:
    """Return the rows of a bucket; raise NotFoundError if they are not kept any more."""
    if not half.rows or not half.shards:
        return rows_file.SCHEMA.empty_table()
    table = read_rows(store, Manifests(store, place.names()), half.rows)
    if table is None:
        raise NotFoundError(
            f"{half.rows} of a snapshot of {place} is gone",
            hint="Ask about a shorter time; --keep of a refresh says how long files stay.",
        )
    return rows_file.of_shards(table, half.shards)


def _read(place: Place, store: Store, half: Half) -> _Rows:
    found: _Rows = {}
    for one in rows_file.remembered(read_half(place, store, half), place.namespace):
        row = one.row
        key = (row.type_normalized, row.model_id, row.data_name, row.version)
        found[key] = typed(row)
    return found
