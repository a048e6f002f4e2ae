"""Garbage is marked, and swept after a while; whoever is at work is not harmed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from swampstore import open_repo
from swampstore.errors import LockTimeoutError, ValidationError
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.index.path_kinds import unit_of
from swampstore.pipeline.gc import PlaceCollection, gc, gc_in_place
from swampstore.pipeline.gc.candidates import Candidate, files_of_name
from swampstore.pipeline.gc.local_engine import plan_here
from swampstore.pipeline.gc.marks import MARKS
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.schemas import KEPT_FINDINGS, MARKER_FILE, VERSION_FILE
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.protocol import Capabilities
from tests.support.garbage import (
    AT_ONCE,
    DAY,
    MODEL,
    RUN,
    Clock,
    data_in,
    garbage_of,
    healthy,
    kinds,
    listing,
    place_of,
    save,
    version,
)
from tests.support.machines import Machine, contents
from tests.support.remotes import ProxiedRemote


def test_old_versions_are_marked_then_left_alone_then_swept(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", "3", garbage_collection=1)
    clock = Clock(bucket)

    assert kinds(clock.collect()) == {"state/1": "marked", "state/2": "marked"}
    assert kinds(clock.collect(after=DAY / 2)) == {"state/1": "waiting", "state/2": "waiting"}
    assert version("state", 1, 2, 3) < data_in(bucket)
    assert kinds(clock.collect(after=DAY / 2)) == {"state/1": "swept", "state/2": "swept"}
    assert data_in(bucket) == {*version("state", 3), "state/latest"}
    assert kinds(clock.collect()) == {}


def test_an_expired_name_goes_as_a_whole(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", lifetime="1h")
    save(ana, "other", "1")
    clock = Clock(bucket)

    assert kinds(clock.collect(grace=AT_ONCE)) == {"state": "swept"}
    assert data_in(bucket) == {*version("other", 1), "other/latest"}


def test_a_dry_run_changes_nothing(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    before = listing(bucket)

    assert kinds(clock.collect(dry_run=True)) == {"state/1": "marked"}
    assert kinds(clock.collect(dry_run=True, grace=AT_ONCE)) == {"state/1": "due"}
    assert listing(bucket) == before


def test_a_name_with_a_new_version_is_no_longer_marked(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", lifetime="1h")
    clock = Clock(bucket)
    clock.collect()
    save(ana, "state", "2", lifetime="26h")
    save(ana, "news", "1", lifetime="1h")

    again = clock.collect(after=DAY)
    assert kinds(again) == {"news": "marked"}
    assert again.unmarked == 1
    assert kinds(clock.collect(after=DAY)) == {"news": "swept", "state": "marked"}


def test_what_was_changed_is_marked_anew(ana: Machine, bucket: Path) -> None:
    save(ana, "log", "1", streaming=True, lifetime="1h")
    clock = Clock(bucket)
    clock.collect()
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", b"more")
        repo.sync.push()

    again = clock.collect(after=DAY)
    assert kinds(again) == {"log": "marked"}
    assert again.unmarked == 1
    assert kinds(clock.collect(after=DAY)) == {"log": "swept"}


def test_old_versions_of_a_busy_name_go_in_the_end(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    clock.collect()
    save(ana, "state", "3", garbage_collection=1)

    assert kinds(clock.collect(after=DAY)) == {"state/1": "swept", "state/2": "marked"}


def test_a_policy_that_was_relaxed_meanwhile_keeps_what_was_due(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    late = PlaceCollection(clock.place, garbage_of(clock.place, clock.now), clock.now, AT_ONCE)
    save(ana, "state", "3", garbage_collection=10)

    late.run()
    assert kinds(late) == {"state/1": "kept"}
    assert version("state", 1, 2, 3) < data_in(bucket)


def test_other_machines_see_the_deletion_as_any_other(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    save(ana, "state", "1", "2", "3", garbage_collection=2)
    save(ana, "gone", "1", lifetime="1h")
    with bob.open() as repo:
        repo.sync.pull()
    Clock(bucket).collect(grace=AT_ONCE)

    for machine in (ana, bob):
        with machine.open() as repo:
            repo.sync.pull()
            assert contents(repo, MODEL, "state") == ["2", "3"]
            assert repo.latest(MODEL, "gone", default=None) is None
        assert healthy(machine)


def test_a_name_inside_a_name_stays(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", lifetime="1h")
    with ana.open() as repo:
        repo.artifacts.save("aws/ec2/i-1/state", "inner", "kept")
        repo.sync.push()

    assert kinds(Clock(bucket).collect(grace=AT_ONCE)) == {"state": "swept"}
    assert data_in(bucket) == {*version("state/inner", 1), "state/inner/latest"}


def test_marks_that_cannot_be_read_begin_anew(ana: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    clock = Clock(bucket)
    clock.collect()
    (bucket / MARKS).write_bytes(b"garbage")

    again = clock.collect(after=DAY)
    assert kinds(again) == {"state/1": "marked"}
    assert "cannot be understood" in again.warnings[0]
    assert kinds(clock.collect(after=DAY)) == {"state/1": "swept"}


def test_an_index_in_shards_is_swept_as_well(ana: Machine, bob: Machine, bucket: Path) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    save(ana, "gone", "1", lifetime="1h")
    assert ana("datastore", "migrate-index").status == 0

    assert kinds(Clock(bucket).collect(grace=AT_ONCE)) == {"gone": "swept", "state/1": "swept"}
    with bob.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["2"]
    assert healthy(bob)


def test_a_store_that_cannot_delete_on_condition_is_swept_as_well(
    ana: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, "state", "1", "2", garbage_collection=1)
    monkeypatch.setattr(DirectoryStore, "capabilities", Capabilities())

    assert kinds(Clock(bucket).collect(grace=AT_ONCE)) == {"state/1": "swept"}
    assert data_in(bucket) == {*version("state", 2), "state/latest"}


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_bucket_is_swept_as_a_directory_is(
    kind: str, request: pytest.FixtureRequest, ana: Machine, bob: Machine
) -> None:
    fixture = {"s3": "s3_remote", "gs": "gcs_remote"}[kind]
    remote: ProxiedRemote = request.getfixturevalue(fixture)
    for machine in (ana, bob):
        machine.use_remote(kind, remote.config)
    save(ana, "state", "1", "2", garbage_collection=1)
    save(ana, "gone", "1", lifetime="1h")
    with ana.open() as repo:
        (place,) = places_of(repo)

    assert kinds(Clock(place).collect(grace=AT_ONCE)) == {"gone": "swept", "state/1": "swept"}
    left = {info.key.removeprefix(f"data/{MODEL}/") for info in remote.open().list("data/")}
    assert left == {*version("state", 2), "state/latest"}
    with bob.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "state") == ["2"]
    assert healthy(bob)


def test_a_run_whose_record_has_a_damaged_entry_keeps_its_data(ana: Machine, bucket: Path) -> None:
    save(ana, "step", "1", lifetime="workflow", owner=RUN)
    record = "workflow-runs/deploy/workflow-run-r1.yaml"
    with ana.open() as repo:
        Path(repo.tree.path(record)).parent.mkdir(parents=True)
        Path(repo.tree.path(record)).write_text("status: succeeded\n")
        repo.sync.push(full=True)
    index = bucket / MONOLITH_KEY
    document = json.loads(index.read_bytes())
    document["entries"][record] = {"size": "none"}
    index.write_text(json.dumps(document))

    found, warnings = plan_here([place_of(bucket)], datetime.now(UTC))
    assert found == {}
    assert [one.partition(": ")[2] for one in warnings] == [
        "1 entries or documents of the index cannot be understood"
    ]


def test_data_of_a_run_whose_record_appeared_stays(ana: Machine, bucket: Path) -> None:
    save(ana, "step", "1", lifetime="workflow", owner=RUN)
    record = bucket / "workflow-runs/deploy/workflow-run-r1.yaml"
    record.parent.mkdir(parents=True)
    record.write_text("status: running\n")
    clock = Clock(bucket)

    assert kinds(clock.collect(grace=AT_ONCE)) == {"step": "kept"}
    record.unlink()
    assert kinds(clock.collect(grace=AT_ONCE)) == {"step": "swept"}


@pytest.mark.parametrize("file", ["raw", "metadata.yaml"])
def test_old_versions_stay_as_long_as_a_newer_one_has_lost_an_object(
    ana: Machine, bucket: Path, file: str
) -> None:
    save(ana, "state", "1", "2", "3", garbage_collection=1)
    clock = Clock(bucket)
    clock.collect()
    lost = bucket / f"data/{MODEL}/state/3/{file}"
    content = lost.read_bytes()
    lost.unlink()
    garbage, _ = plan_here([clock.place], clock.now)
    for candidates in garbage.values():
        late = PlaceCollection(clock.place, candidates, clock.now, AT_ONCE)
        late.run()
        assert set(kinds(late).values()) == {"kept"}
    assert version("state", 1, 2) <= data_in(bucket)

    lost.write_bytes(content)
    assert kinds(clock.collect(grace=AT_ONCE)) == {"state/1": "swept", "state/2": "swept"}


def test_an_older_version_that_has_lost_its_metadata_keeps_no_other_one(
    ana: Machine, bucket: Path
) -> None:
    save(ana, "state", "1", "2", "3", garbage_collection=1)
    clock = Clock(bucket)
    clock.collect()
    (bucket / f"data/{MODEL}/state/1/metadata.yaml").unlink()
    garbage, _ = plan_here([clock.place], clock.now)
    for candidates in garbage.values():
        late = PlaceCollection(clock.place, candidates, clock.now, AT_ONCE)
        late.run()
        assert kinds(late)["state/2"] == "swept"
    assert version("state", 3) <= data_in(bucket)


def test_data_of_runs_whose_records_stay_on_their_machines_is_kept(
    ana: Machine, bucket: Path
) -> None:
    ana.use(bucket, directories=["data"])
    save(ana, "step", "1", "2", lifetime="workflow", owner=RUN, garbage_collection=1)
    (place,) = places_of(str(ana.repo_dir))
    collected = gc(None, [place], grace=AT_ONCE)
    assert data_in(bucket) == {*version("step", 2), "step/latest"}
    assert "workflow-runs" in collected.warnings[0]
    now = datetime.now(UTC)
    marked = PlaceCollection(place, garbage_of(place, now), now, AT_ONCE)
    marked.run()
    assert kinds(marked) == {"step": "kept"}


# --- the command and the function; they plan without Spark here ----------------------------------


@pytest.fixture
def planned_here(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Let places be planned without Spark; return when: long after everything was saved."""
    now = datetime.now(UTC) + timedelta(hours=2)

    def plan(
        places: Iterable[Place], _now: datetime
    ) -> tuple[dict[tuple[str, str], list[Candidate]], list[str]]:
        return {(one.identity, one.namespace): garbage_of(one, now) for one in places}, ["a doubt"]

    monkeypatch.setattr("swampstore.pipeline.gc.plan_here", plan)
    return now


def test_the_command_marks_and_then_sweeps(
    ana: Machine, bucket: Path, tmp_path: Path, planned_here: datetime
) -> None:
    del planned_here
    save(ana, "state", "1", "22", "3", garbage_collection=1)
    findings = tmp_path / "found.json"
    before = listing(bucket)

    previewed = ana("pipeline", "gc", "--dry-run")
    assert "Marked 2 versions, 3 B." in previewed.out
    assert "warning: a doubt" in previewed.err
    assert listing(bucket) == before
    marked = ana("pipeline", "gc", "--json").json
    assert marked["marked"] == {"versions": 2, "bytes": 3}
    assert marked["swept"] == {"versions": 0, "bytes": 0}
    assert marked["warnings"] == ["a doubt"]
    assert "not for long enough: 2 versions" in ana("pipeline", "gc", f"file://{bucket}").out
    swept = ana("pipeline", "gc", "--grace", "0", "--findings", str(findings))
    assert "Deleted 2 versions, 3 B." in swept.out
    found = [json.loads(line) for line in findings.read_text().splitlines()]
    assert len({one["run_id"] for one in found}) == 1
    ana("pipeline", "gc", "--findings", str(tmp_path / "found"))
    kept = parquet.read_schema(next((tmp_path / "found").iterdir()))
    assert kept.names == [column.split()[0] for column in KEPT_FINDINGS.split(", ")]
    assert [(one["rel"], one["kind"], one["repaired"]) for one in found] == [
        (f"data/{MODEL}/state/1", "swept", True),
        (f"data/{MODEL}/state/2", "swept", True),
    ]


def test_a_grace_that_is_no_duration_is_refused(ana: Machine) -> None:
    refused = ana("pipeline", "gc", "--grace", "soon")
    assert refused.status == 2
    assert "'soon' is not a duration" in refused.err


def test_the_clock_of_the_store_decides(
    ana: Machine, bucket: Path, planned_here: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    del planned_here
    save(ana, "state", "1", "2", garbage_collection=1)
    places = places_of(f"file://{bucket}")
    real = DirectoryStore.clock

    assert gc(None, places).sums()["marked"][0] == 1
    monkeypatch.setattr(DirectoryStore, "clock", lambda self: real(self) + 2 * DAY)
    assert gc(None, places).sums()["swept"][0] == 1


def test_a_place_that_fails_does_not_keep_the_others(
    ana: Machine,
    bob: Machine,
    bucket: Path,
    planned_here: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del planned_here
    for machine, namespace in ((ana, "apps"), (bob, "infra")):
        assert machine("datastore", "namespace", "set", namespace).status == 0
        save(machine, "state", "1", "2", garbage_collection=1)
    run = PlaceCollection.run

    def run_or_fail(self: PlaceCollection, *args: Any) -> None:
        if self.place.namespace == "apps":
            raise LockTimeoutError("somebody holds the lock")
        run(self, *args)

    monkeypatch.setattr(PlaceCollection, "run", run_or_fail)
    outcome = ana("pipeline", "gc", "--namespace", "*", "--grace", "0")
    assert outcome.status == 1
    assert "apps: not collected to the end: somebody holds the lock" in outcome.err
    assert "Deleted 1 version, 1 B." in outcome.out
    assert ana("pipeline", "gc", "--grace", "0").status == 75


SEGMENTS = st.sampled_from(["a", "1", "12", "01", "latest", "raw", "data", "metadata.yaml"])


@given(st.lists(SEGMENTS, min_size=1, max_size=8))
def test_spark_and_the_driver_know_the_same_files_of_a_name(rest: list[str]) -> None:
    rel = "/".join(["data", *rest])
    found = re.search(VERSION_FILE.replace(r"\z", r"\Z"), rel)
    marker = re.search(MARKER_FILE.replace(r"\z", r"\Z"), rel)
    name_rel = found[1] if found else marker[1] if marker else rel
    assert name_rel == unit_of(rel)
    expected = [(rel, int(found[2]) if found else 0)] if found or marker else []
    assert list(files_of_name([rel], name_rel)) == expected


def test_a_directory_that_others_use_in_place_is_refused(ana: Machine, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    refused = ana("pipeline", "gc", f"filesystem:{tmp_path}/theirs")
    assert refused.status == 1
    assert "it is collected by the repository that uses it" in refused.err


def test_a_directory_used_in_place_is_collected_by_its_repository(repo_dir: Path) -> None:
    with open_repo(repo_dir) as repo:
        for content in ("1", "2"):
            repo.artifacts.save(MODEL, "state", content, garbage_collection=1)
        assert gc_in_place(repo, dry_run=True).sums()["due"][0] == 1
        assert contents(repo, MODEL, "state") == ["1", "2"]
        collected = gc_in_place(repo)
        assert collected.sums()["swept"] == (1, 1)
        assert contents(repo, MODEL, "state") == ["2"]
        with pytest.raises(ValidationError, match="used in place"):
            gc(None, places_of(repo))
