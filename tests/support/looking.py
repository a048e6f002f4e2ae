"""Looking at a place as a verification does, without Spark between its tables and its rules."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa

from swampstore.pipeline.evidence.gathering import Budget, Claims, Listing
from swampstore.pipeline.evidence.index_state import IndexState, survey
from swampstore.pipeline.evidence.reading import Copy
from swampstore.pipeline.evidence.rows import Path as Evidence
from swampstore.pipeline.evidence.rows import Row, decoded_sum, paths_in
from swampstore.pipeline.places import Place
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.examination import of_documents, readable_shards, stale_in
from swampstore.pipeline.verify.rules import File, Problem, examined

AT_ONCE = timedelta(0)
LOOK = 1
EVERYTHING = Budget(1_000_000, 1 << 40)


class Looked(NamedTuple):
    """The evidence about a place, as one Spark job after the other would gather it."""

    units: dict[str, dict[str, Evidence]]
    state: IndexState

    def examined(self) -> Iterator[tuple[str, list[File], list[Problem]]]:
        for unit, paths in self.units.items():
            yield unit, *examined(unit, paths.values(), self.state.trust_rules(AT_ONCE))

    def damaged(self) -> list[tuple[str, list[File]]]:
        return [(unit, files) for unit, files, found in self.examined() if found]

    def having(self, hashes: Collection[str]) -> Iterator[tuple[str, Copy]]:
        for paths in self.units.values():
            for path in paths.values():
                sha256 = path.content.sha256 if path.content else None
                if path.seen and sha256 and sha256 in hashes:
                    yield sha256, Copy(path.rel, path.seen.etag)

    def found(self) -> set[tuple[str, str]]:
        found = [(one.kind, one.rel) for _, _, some in self.examined() for one in some]
        stale: Counter[str] = Counter()
        if self.state.has_copies:
            readable = readable_shards(self.state)
            stale.update(
                partition
                for paths in self.units.values()
                for path in paths.values()
                for partition in stale_in(path)
                if partition in readable
            )
        found += [(one.kind, one.rel) for one in of_documents(self.state, AT_ONCE, stale)]
        return {(kind, rel) for kind, rel in found if kinds.KINDS[kind].severity != "info"}


def look(place: Place) -> Looked:
    # A file system stamps files with the time of its last tick, or with a finer one that is later.
    time.sleep(0.02)
    with place.open() as store:
        claims, listing = Claims(), Listing(LOOK, budget=EVERYTHING)
        said = [
            row for one in claims.plan(place, store, 3) for row in claims.rows(0, place, one, store)
        ]
        there = [
            row
            for one in listing.plan(place, store, 3)
            for row in listing.rows(0, place, one, store)
        ]
    sums = [decoded_sum(body) for _, unit, body in said if unit is None]
    return Looked(_units([*said, *there]), survey({0: place}, {0: sums})[0])


def found_at(place: Place) -> set[tuple[str, str]]:
    """Return what is wrong with a place."""
    return look(place).found()


def _units(rows: list[Row]) -> dict[str, dict[str, Evidence]]:
    sent = [row for row in rows if row[1] is not None]
    arrays = [pa.array(column) for column in zip(*sent, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, ["place", "unit", "body"])
    return {unit: paths for _, unit, paths in paths_in([batch], LOOK)}
