"""A bucket with other things in it: jobs on the datastore at its root leave them alone."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.planning import listed, pieces
from swampstore.pipeline.reindex.local_engine import RebuildingHere
from swampstore.pipeline.verify.repair import Repair
from tests.support.garbage import listing
from tests.support.looking import look
from tests.support.machines import Machine

MODEL = "vm/builder/b-1"
AT_ONCE = timedelta(0)


@pytest.fixture(params=["team", "teams/b", "teams/west/b"])
def inner(request: pytest.FixtureRequest, ana: Machine, bob: Machine, bucket: Path) -> Path:
    """Where the datastore of Bob is, in the bucket of Ana."""
    ana.put(MODEL, "state", "of ana")
    assert ana("sync").status == 0
    directory = bucket / str(request.param)
    directory.mkdir(parents=True)
    bob.use(directory)
    bob.put(MODEL, "other", "of bob")
    assert bob("sync").status == 0
    return directory


@pytest.fixture
def place(inner: Path, bucket: Path) -> Place:
    (found,) = places_of(f"file://{bucket}")
    return found


def test_a_repair_takes_nothing_of_another_datastore_for_left_over(
    inner: Path, place: Place
) -> None:
    there = listing(inner)
    seen = look(place)
    assert seen.found() == set()
    with editing(place) as writer:
        done = Repair(place, seen.damaged(), seen.having, writer, gives_up=True).run()
    assert not done.done["quarantine"]
    assert listing(inner) == there


def test_a_reindex_adopts_nothing_of_another_datastore(place: Place) -> None:
    with editing(place) as writer:
        done = RebuildingHere(place, writer, rehash=False, grace=AT_ONCE).run_here()
        assert (done.adopted, done.waiting) == (0, 0)
        assert not any("other" in rel for rel in writer.entries())


@pytest.mark.parametrize("count", [1, 2, 50])
def test_however_a_bucket_is_cut_another_datastore_is_not_listed(
    place: Place, inner: Path, bucket: Path, count: int
) -> None:
    below = f"{inner.relative_to(bucket).as_posix()}/"
    with place.open() as store:
        found = [one.rel for piece in pieces(place, store, count) for one in listed(piece, store)]
    assert f"data/{MODEL}/state/1/raw" in found
    assert not any(rel.startswith(below) for rel in found)


def test_a_lost_index_is_not_made_of_what_another_datastore_holds(
    ana: Machine, inner: Path, bucket: Path
) -> None:
    for path in [*(bucket / "_index").glob("*"), bucket / ".datastore-index.json"]:
        path.unlink()
    assert ana("sync", "--full").status == 0
    assert not {rel for rel in listing(ana.cache) if rel.endswith("other/1/metadata.yaml")}


@pytest.mark.parametrize("rel", ["terraform.tfstate", "photos/2026/05/x.jpg", "photos/1/raw"])
def test_what_is_of_no_datastore_is_told_of_and_left_where_it_is(
    ana: Machine, bob: Machine, bucket: Path, rel: str
) -> None:
    ana.put(MODEL, "state", "of ana")
    assert ana("sync").status == 0
    (bucket / rel).parent.mkdir(parents=True, exist_ok=True)
    (bucket / rel).write_bytes(b"of somebody else")
    (bucket / "files").mkdir()
    (bucket / "files/report.txt").write_bytes(b"that a push has left")
    (place,) = places_of(f"file://{bucket}")
    seen = look(place)
    assert seen.found() == {("orphan", "files/report.txt")}
    with editing(place) as writer:
        Repair(place, seen.damaged(), seen.having, writer, gives_up=True).run()
        RebuildingHere(place, writer, rehash=False, grace=AT_ONCE).run_here()
        assert rel not in writer.entries()
    assert (bucket / rel).read_bytes() == b"of somebody else"
    assert not (bucket / "files/report.txt").exists()
    told = bob("pipeline", "verify", "--grace", "0", "--json")
    assert told.status == 0, told.err
    assert json.loads(told.out)["findings"] == {"stranger": 1}
    assert bob("sync").status == 0
    assert rel not in listing(bob.cache)


@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_of_no_datastore_does_not_become_data_where_there_is_no_index(
    ana: Machine, bob: Machine, bucket: Path, is_new: bool
) -> None:
    if not is_new:
        ana.put(MODEL, "state", "of ana")
        assert ana("sync").status == 0
    (bucket / "terraform.tfstate").write_bytes(b"of somebody else")
    (bucket / "photos").mkdir()
    (bucket / "photos/x.jpg").write_bytes(b"of somebody else as well")
    if not is_new:
        for path in [*(bucket / "_index").glob("*"), bucket / ".datastore-index.json"]:
            path.unlink()
    bob.put(MODEL, "other", "of bob")
    assert bob("sync").status == 0
    (place,) = places_of(f"file://{bucket}")
    with editing(place) as writer:
        named = {rel.partition("/")[0] for rel in writer.entries()}
    assert named <= {"data", "audit"}
    assert bob.get(MODEL, "other") == "of bob"
    if not is_new:
        assert bob.get(MODEL, "state") == "of ana"
    assert not {"terraform.tfstate", "photos/x.jpg"} & {*listing(bob.cache)}


def test_a_file_at_the_top_that_was_shared_is_still_there_after_the_index_was_lost(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "of ana")
    (ana.cache / "notes").mkdir()
    (ana.cache / "notes/today.txt").write_bytes(b"of ana, too")
    assert ana("sync", "--full").status == 0
    assert (bucket / "notes/today.txt").exists()
    for path in [*(bucket / "_index").glob("*"), bucket / ".datastore-index.json"]:
        path.unlink()
    assert bob("sync").status == 0
    assert ana("sync").status == 0
    assert bob("sync").status == 0
    assert (bob.cache / "notes/today.txt").read_bytes() == b"of ana, too"
