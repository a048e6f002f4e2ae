"""Damage at random, found by the tables and rules of a verification without Spark between them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swampstore.pipeline.places import places_of
from tests.pipeline.test_verify import MODELS, NAMES, Home, fill
from tests.support.damage import BY_VERSION, Bucket, inject
from tests.support.looking import found_at


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
