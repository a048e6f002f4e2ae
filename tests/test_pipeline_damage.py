"""Damage at random, found by the tables and rules of a verification without Spark between them."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from swampstore.pipeline.evidence.gathering import Budget, Claims, Listing
from swampstore.pipeline.evidence.ground import survey
from swampstore.pipeline.evidence.rows import Path as Evidence
from swampstore.pipeline.evidence.rows import Row, decoded_sum, paths_in
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.verify import kinds
from swampstore.pipeline.verify.documents import of_documents, readable_shards, stale_in
from swampstore.pipeline.verify.rules import examined
from tests.damage import BY_VERSION, Bucket, inject
from tests.test_pipeline_verify import AT_ONCE, MODELS, NAMES, Home, fill

LOOK = 1
EVERYTHING = Budget(1_000_000, 1 << 40)


def found_at(place: Place) -> set[tuple[str, str]]:
    """Return what is wrong with a place; what one Spark job after the other does is done here."""
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
    ground = survey({0: place}, {0: sums})[0]
    units = _units([*said, *there])
    found = [
        (one.kind, one.rel)
        for unit, paths in units.items()
        for one in examined(unit, paths.values(), ground.outlook(AT_ONCE))[1]
    ]
    stale: Counter[str] = Counter()
    if ground.version == 1 and not ground.is_monolith_lost:
        readable = readable_shards(ground)
        stale.update(
            partition
            for paths in units.values()
            for path in paths.values()
            for partition in stale_in(path)
            if partition in readable
        )
    found += [(one.kind, one.rel) for one in of_documents(ground, AT_ONCE, stale)]
    return {(kind, rel) for kind, rel in found if kinds.KINDS[kind].severity != "info"}


def _units(rows: list[Row]) -> dict[str, dict[str, Evidence]]:
    sent = [row for row in rows if row[1] is not None]
    arrays = [pa.array(column) for column in zip(*sent, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, ["place", "unit", "body"])
    return {unit: paths for (_, unit), paths in paths_in([batch], LOOK).items()}


@pytest.fixture(scope="module", params=[1, 2], ids=["version 1", "version 2"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled")
    fill(Home(directory / "ana", directory / "bucket"), version=request.param)
    return directory / "bucket"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_damaged_is_found_and_nothing_else(
    filled: Path, tmp_path: Path, seed: int
) -> None:
    shutil.copytree(filled, tmp_path / "bucket")
    bucket = Bucket(tmp_path / "bucket")
    (place,) = places_of(f"file://{bucket.root}")
    assert found_at(place) == set()
    injected = inject(bucket, MODELS, NAMES, seed)
    assert sum(map(len, BY_VERSION[bucket.version])) >= 20
    assert found_at(place) == injected.found
