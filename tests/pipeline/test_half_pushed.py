"""Half of a push: what was sent before a kill is no version, and what is being sent is not lost."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from swampstore.pipeline.index_writer import editing
from swampstore.pipeline.places import places_of
from swampstore.pipeline.reindex import Reindexed
from swampstore.pipeline.reindex.local_engine import RebuildingHere
from swampstore.pipeline.verify.repair import Repair
from tests.support.looking import look
from tests.support.machines import Machine

MODEL = "vm/builder/b-1"
AT_ONCE = timedelta(0)


def reindexed(target: str) -> Reindexed:
    (place,) = places_of(target)
    with editing(place) as writer:
        return RebuildingHere(place, writer, rehash=False, grace=AT_ONCE).run_here()


def half_pushed(machine: Machine, bucket: Path, name: str, *files: str) -> None:
    """Leave some files of the next version of a name in the bucket, and none in the index."""
    before = bucket.with_name("before")
    shutil.copytree(bucket, before)
    machine.put(MODEL, name, "of which not all arrives")
    assert machine("sync").status == 0
    arrived = {file: (bucket / f"data/{MODEL}/{name}/{file}").read_bytes() for file in files}
    shutil.rmtree(bucket)
    before.rename(bucket)
    for file, data in arrived.items():
        path = bucket / f"data/{MODEL}/{name}/{file}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_reindex_adopts_no_metadata_without_its_content(
    ana: Machine, bob: Machine, bucket: Path, is_new: bool
) -> None:
    ana.put(MODEL, "image", "good")
    assert ana("sync").status == 0
    name, version = ("other", 1) if is_new else ("image", 2)
    half_pushed(ana, bucket, name, f"{version}/metadata.yaml", *(["latest"] if is_new else []))

    done = reindexed(f"file://{bucket}")
    assert (done.adopted, done.waiting) == (0, 2 if is_new else 1)
    assert bob("sync").status == 0
    assert bob.get(MODEL, "image") == "good"
    with bob.open() as repo:
        assert [one.version for one in repo.versions(MODEL, name)] == ([] if is_new else [1])


@pytest.mark.parametrize("is_new", [False, True])
def test_an_index_that_was_lost_is_made_without_metadata_that_has_no_content(
    ana: Machine, bob: Machine, bucket: Path, is_new: bool
) -> None:
    ana.put(MODEL, "image", "good")
    assert ana("sync").status == 0
    name, version = ("other", 1) if is_new else ("image", 2)
    half_pushed(ana, bucket, name, f"{version}/metadata.yaml", *(["latest"] if is_new else []))
    for path in [*(bucket / "_index").glob("*"), bucket / ".datastore-index.json"]:
        path.unlink()

    done = reindexed(f"file://{bucket}")
    assert (done.made, done.waiting) == (3, 2 if is_new else 1)
    assert bob("sync").status == 0
    assert bob.get(MODEL, "image") == "good"
    with bob.open() as repo:
        assert [one.version for one in repo.versions(MODEL, name)] == ([] if is_new else [1])


def test_a_reindex_adopts_a_version_that_arrived_as_a_whole(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "image", "good")
    assert ana("sync").status == 0
    half_pushed(ana, bucket, "other", "1/metadata.yaml", "1/raw", "latest")
    assert reindexed(f"file://{bucket}").adopted == 3
    assert bob("sync").status == 0
    assert bob.get(MODEL, "other") == "of which not all arrives"


def test_a_reindex_adopts_metadata_whose_content_stays_on_its_machine(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket, exclude=["data/**/image/*/raw"])
    ana.put(MODEL, "state", "good")
    assert ana("sync").status == 0
    half_pushed(ana, bucket, "image", "1/metadata.yaml", "latest")
    assert reindexed(f"file://{bucket}").adopted == 0
    assert reindexed(str(bob.repo_dir)).adopted == 2


@pytest.mark.parametrize("index", [1, 2])
@pytest.mark.parametrize("model", [MODEL, "vm/builder/new"])
def test_a_push_that_takes_longer_than_the_grace_of_a_repair_shares_all_of_it(
    ana: Machine, bob: Machine, bucket: Path, index: int, model: str
) -> None:
    ana.put(MODEL, "image", "good")
    assert ana("sync").status == 0
    (place,) = places_of(f"file://{bucket}")
    if index == 2:
        with editing(place) as writer:
            writer.index.migrate()
    with ana.open() as repo:
        repo.tree.replace_file("files/report.txt", b"sent long ago")
        repo.artifacts.save(model, "large", "of which not all is sent")
        prepared = repo.sync.prepare_push()
        raw = bucket / f"data/{model}/large/1/raw"
        content = raw.read_bytes()
        raw.unlink()
        seen = look(place)
        with editing(place) as writer:
            mended = Repair(place, seen.damaged(), seen.having, writer, gives_up=True).run()
        assert mended.done["quarantine"]
        raw.parent.mkdir(parents=True, exist_ok=True)
        raw.write_bytes(content)
        repo.sync.commit_push(prepared)
    assert look(place).found() == set()
    assert bob("sync").status == 0
    assert bob.get(model, "large") == "of which not all is sent"
