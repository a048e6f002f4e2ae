"""Making an index anew in this process, where little is stored: by the same plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from swampstore.index.documents import Documents
from swampstore.index.format import RawEntries
from swampstore.pipeline.evidence.gathering import Claims, everything
from swampstore.pipeline.evidence.index_state import IndexState, survey
from swampstore.pipeline.evidence.local_engine import (
    TooMuchError,
    check_affordable,
    done_here,
    gathered_here,
    is_little,
    listing_here,
)
from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.metrics import Meter, metered
from swampstore.pipeline.places import Place
from swampstore.pipeline.reindex import (
    GRACE,
    Rebuilding,
    Reindexed,
    finding_rows,
)
from swampstore.pipeline.reindex.planned import KEPT, NAMED
from swampstore.pipeline.reindex.writing import Writing, wanted_in, write_shard
from swampstore.pipeline.schemas import FINDINGS

if TYPE_CHECKING:
    from swampstore.pipeline.settings import Engine, SparkSettings

_Planned = tuple[str, str, int, bytes]


def reindex_little(
    places: Sequence[Place],
    engine: Engine,
    settings: SparkSettings,
    *,
    rehash: bool = False,
    grace: timedelta = GRACE,
    dry_run: bool = False,
) -> Reindexed | None:
    """Do what `reindex` does in this process, if little is stored; None: Spark has to do it."""
    if not is_little(places, engine, settings, "reindex"):
        return None
    if rehash and engine == "auto":
        numbered = dict(enumerate(places))
        states = survey(numbered, gathered_here(Claims(), numbered).sums)
        try:
            check_affordable(one.expected for one in states.values())
        except TooMuchError:
            return None
    started, meter = monotonic(), Meter()
    done = Reindexed(dry_run=dry_run)
    for place in metered(places, meter):
        with ExitStack() as stack:
            writer = None if dry_run else stack.enter_context(editing(place))
            done += RebuildingHere(place, writer, rehash=rehash, grace=grace).run_here()
    return replace(done, seconds=monotonic() - started, metrics=meter.read())


class RebuildingHere(Rebuilding):
    """One run over one place, without Spark."""

    def __init__(
        self, place: Place, writer: Any, *, rehash: bool, grace: timedelta, adopts: bool = True
    ) -> None:
        super().__init__(None, place, writer, rehash=rehash, grace=grace, adopts=adopts)

    def run_here(self) -> Reindexed:
        """Plan, and write what is not as planned."""
        self._finish_deletes()
        places = {0: self._place}
        claims = gathered_here(Claims(with_raw=True), places)
        state = survey(places, claims.sums)[0]
        if state.has_gaps:
            claims = gathered_here(Claims(with_raw=True, with_frozen=True), places)
            state = survey(places, claims.sums)[0]
        table = listing_here(everything, self._reads(state), described=False)
        listed = gathered_here(table, places)
        plan = self._plan(state, table.look)
        rows: list[_Planned] = done_here(plan.task(), claims.evidence, listed.evidence)
        fates: Counter[str] = Counter()
        for _, fate, count, _ in rows:
            fates[fate] += count
        dry_run = self._writer is None
        findings = [
            dict(zip(_NAMES, row, strict=True))
            for _, fate, _, body in rows
            if fate != KEPT
            for row in finding_rows(self._place, fate, body, dry_run=dry_run)
        ]
        sums: Mapping[str, Any] = fates
        done = Reindexed(places=1, dry_run=dry_run, findings=findings, **sums)
        named = [row for row in rows if row[1] in NAMED]
        return replace(done, documents=self._written_here(state, named))

    def _written_here(self, state: IndexState, rows: Sequence[_Planned]) -> int:
        if not state.version:
            return 0
        with self._documents() as documents:
            return _WritingHere(state, documents, rows).run()


_NAMES = [column.split()[0] for column in FINDINGS.split(", ")]


class _WritingHere(Writing):
    """Writes the documents of one place, shard by shard."""

    def __init__(self, state: IndexState, documents: Documents, rows: Sequence[_Planned]) -> None:
        super().__init__(state, documents, None)
        self._planned = rows

    def _entries(self) -> RawEntries:
        return wanted_in(body for *_, body in self._planned)

    def _write_shards(self, commit_seq: int | None) -> tuple[dict[str, str], int]:
        expected = {partition: info.etag for partition, info in self._state.shards}
        etags: dict[str, str] = {}
        count = 0
        for partition, wanted in self._shards():
            store, before = self._documents.store, expected.get(partition)
            answer = write_shard(
                self._place, store, partition, wanted, before, commit_seq, dry_run=self._is_dry
            )
            etags[partition] = answer[0]
            count += answer[2]
        return etags, count

    def _shards(self) -> Iterator[tuple[str, RawEntries]]:
        for partition, group in groupby(sorted(self._planned, key=itemgetter(0)), itemgetter(0)):
            yield partition, wanted_in(body for *_, body in group)
