"""Jobs on a remote do not take for lost what the settings keep on its machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.machines import Machine

MODEL = "vm/builder/b-1"


@pytest.mark.parametrize(
    "engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])]
)
def test_a_repair_leaves_versions_alone_whose_content_stays_on_its_machine(
    ana: Machine, bob: Machine, bucket: Path, engine: str
) -> None:
    for machine in (ana, bob):
        machine.use(bucket, exclude=["data/**/disk.iso/*/raw"])
    ana.put(MODEL, "disk.iso", "large")
    ana.put(MODEL, "state", "small")
    assert ana("sync").status == 0
    stored = {path for path in bucket.rglob("*") if path.is_file()}
    assert bucket / f"data/{MODEL}/disk.iso/1/metadata.yaml" in stored
    done = bob("pipeline", "verify", "--repair", "--engine", engine, "--json")
    assert done.status == 0, done.err
    assert not json.loads(done.out)["findings"]
    assert stored <= {path for path in bucket.rglob("*") if path.is_file()}
