"""Jobs on a remote do not take for lost what the settings keep on its machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.places import places_of
from swampstore.pipeline.verify.repair import Repair
from tests.support.looking import look
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


def test_a_repair_of_something_else_leaves_versions_alone_whose_content_stays_on_its_machine(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket, exclude=["data/**/disk.iso/*/raw"])
    ana.put(MODEL, "disk.iso", "large")
    ana.put(MODEL, "disk.iso", "larger")
    assert ana("sync").status == 0
    stored = {path for path in (bucket / "data").rglob("*") if path.is_file()}
    marker = bucket / f"data/{MODEL}/disk.iso/latest"
    marker.unlink()
    (place,) = places_of(str(bob.repo_dir), environ=bob.environ)
    seen = look(place)
    with editing(place) as writer:
        done = Repair(place, seen.damaged(), seen.having, writer, gives_up=True).run()
    assert done.done["quarantine"] == 0
    assert not done.lost
    assert stored <= {path for path in (bucket / "data").rglob("*") if path.is_file()}
    assert marker.read_bytes() == b"2"
    assert look(place).found() == set()


def test_a_repair_takes_content_out_of_the_index_that_is_gone_and_not_to_be_shared_any_more(
    ana: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "disk.iso", "large")
    assert ana("sync").status == 0
    ana.use(bucket, exclude=["data/**/disk.iso/*/raw"])
    (bucket / f"data/{MODEL}/disk.iso/1/raw").unlink()
    (place,) = places_of(str(ana.repo_dir), environ=ana.environ)
    seen = look(place)
    with editing(place) as writer:
        done = Repair(place, seen.damaged(), seen.having, writer, gives_up=True).run()
    assert not done.lost
    assert (bucket / f"data/{MODEL}/disk.iso/1/metadata.yaml").exists()
    assert look(place).found() == set()
