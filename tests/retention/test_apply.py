"""Retention over real repositories: what goes, what stays, and that a preview tells the truth."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import swampstore
from swampstore.artifacts.metadata import Draft, Owner
from swampstore.doctor import examine
from swampstore.errors import DiskError, PruneRefusedError
from swampstore.files import Change
from swampstore.layout import DataRef, ModelRef, workflow_run_rel
from swampstore.marker import update_marker
from swampstore.repo import Repo
from swampstore.retention import DataGc, DataPrune, RunGc, auto_gc_model, gc, prune, run_gc
from swampstore.retention.apply import BATCH_NAMES
from swampstore.yaml_dialect import load_mapping
from tests.support.machines import Machine

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
MODEL = "aws/ec2/i-1"
WORKFLOW_ID, RUN_ID = "9b2c0000-0000-4000-8000-000000000001", "77aa0000-0000-4000-8000-000000000002"


class FakeClock:
    def __init__(self, now: datetime = NOW) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def back(self, **ago: float) -> None:
        """Go to a time before NOW."""
        self.now = NOW - timedelta(**ago)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    monkeypatch.setattr("os.fsync", lambda _file: None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def reopen(directory: Path, clock: FakeClock, **details: Any) -> Repo:
    return swampstore.open_repo(directory, durable=False, environ={}, clock=clock, **details)


@pytest.fixture
def repo(tmp_path: Path, clock: FakeClock) -> Iterator[Repo]:
    swampstore.init_repo(tmp_path, clock=clock).close()
    with reopen(tmp_path, clock) as opened:
        yield opened


def configure(directory: Path, text: str) -> None:
    with (directory / ".swamp.yaml").open("a") as file:
        file.write(text)


def save_versions(
    repo: Repo, clock: FakeClock, name: str, ages: list[float], **details: Any
) -> None:
    """Save one version for each age in days, then return to NOW."""
    for age in ages:
        clock.back(days=age)
        repo.artifacts.save(MODEL, name, f"content of age {age}", **details)
    clock.now = NOW


def name_dir(repo: Repo, name: str, model: str = MODEL) -> Path:
    return Path(repo.tree.path(f"data/{model}/{name}"))


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def without(document: dict[str, object], *members: str) -> dict[str, object]:
    return {key: value for key, value in document.items() if key not in members}


# data gc -----------------------------------------------------------------------------------


def test_expired_data_goes_from_disk_and_catalog(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "old", [9, 8], lifetime="7d")
    save_versions(repo, clock, "young", [9, 6], lifetime="7d")
    report = gc(repo)
    assert [removal.name for removal in report.plan.expired] == ["old"]
    assert report.plan.version_count == 2
    assert not name_dir(repo, "old").exists()
    assert repo.list_versions(MODEL, "old") == []
    assert repo.list_versions(MODEL, "young") == [1, 2]
    assert repo.catalog.pending() == []


def test_superfluous_versions_go_and_latest_stays(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "state", [5, 4, 3, 2, 1], garbage_collection=2)
    report = gc(repo)
    assert report.plan.version_count == 3
    assert report.plan.size == sum(len(f"content of age {age}") for age in (5, 4, 3))
    assert sorted(path.name for path in name_dir(repo, "state").iterdir()) == ["4", "5", "latest"]
    assert repo.list_versions(MODEL, "state") == [4, 5]
    assert repo.latest(MODEL, "state").text() == "content of age 1"


def test_old_versions_stay_as_long_as_a_newer_one_has_lost_its_content(
    repo: Repo, clock: FakeClock
) -> None:
    save_versions(repo, clock, "state", [3, 2, 1], garbage_collection=1)
    save_versions(repo, clock, "other", [2, 1], garbage_collection=1)
    raw = name_dir(repo, "state") / "3/raw"
    content = raw.read_bytes()
    raw.unlink()
    for report in (gc(repo, dry_run=True), gc(repo)):
        assert [removal.name for removal in report.plan.removals] == ["other"]
        (warning,) = report.warnings
        assert "a newer version lacks its content" in warning
    assert repo.list_versions(MODEL, "state") == [1, 2, 3]
    raw.write_bytes(content)
    gc(repo)
    assert repo.list_versions(MODEL, "state") == [3]


def test_content_that_others_keep_on_their_machines_is_not_lost(
    tmp_path: Path, clock: FakeClock
) -> None:
    swampstore.init_repo(tmp_path, clock=clock).close()
    update_marker(
        str(tmp_path),
        {
            "datastore": {
                "type": "filesystem",
                "path": str(tmp_path / "share"),
                "exclude": ["data/**/raw"],
            }
        },
    )
    with reopen(tmp_path, clock) as repo:
        save_versions(repo, clock, "state", [2, 1], garbage_collection=1)
        Path(repo.tree.path(f"data/{MODEL}/state/2/raw")).unlink()
        assert gc(repo).warnings == ()
        assert repo.list_versions(MODEL, "state") == [2]


def test_versions_older_than_their_policy_go(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "state", [9, 8, 2, 1], garbage_collection="7d")
    gc(repo)
    assert repo.list_versions(MODEL, "state") == [3, 4]


def test_a_preview_tells_what_the_real_run_does(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "old", [9, 8], lifetime="7d")
    save_versions(repo, clock, "state", [5, 4, 3], garbage_collection=1)
    save_versions(repo, clock, "kept", [5, 4, 3])
    abandon_claim(repo, "kept", 4)
    before = files_below(Path(repo.config.repo_dir, ".swamp/data"))
    preview = gc(repo, dry_run=True).to_json()
    assert files_below(Path(repo.config.repo_dir, ".swamp/data")) == before
    real = gc(repo).to_json()
    changing = ("dryRun", "walPagesTotal", "walPagesCheckpointed")
    assert json.dumps(without(preview, *changing)) == json.dumps(without(real, *changing))
    assert (preview["dryRun"], real["dryRun"]) == (True, False)
    assert real["dataEntriesExpired"] == 1
    assert real["versionsDeleted"] == 4
    assert gc(repo).plan.removals == ()


def test_the_gc_document_has_exactly_its_members(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "old", [9, 8], lifetime="7d")
    document = gc(repo).to_json()
    assert list(document) == [
        "dataEntriesExpired",
        "versionsDeleted",
        "bytesReclaimed",
        "dryRun",
        "expiredEntries",
        "walPagesTotal",
        "walPagesCheckpointed",
        "abandonedVersions",
    ]
    assert document["expiredEntries"] == [
        {
            "type": "aws/ec2",
            "modelId": "i-1",
            "dataName": "old",
            "reason": "duration-expired",
            "versionCount": 2,
        }
    ]


def test_collecting_checkpoints_the_catalog(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "state", [3, 2], garbage_collection=1)
    pages, moved = gc(repo).checkpoint
    assert pages == moved > 0
    wal = Path(repo.config.local_dir, "swampstore.db-wal")
    assert not wal.exists() or wal.stat().st_size == 0


def workflow_owner() -> Owner:
    return Owner("workflow-step", "w", workflow_id=WORKFLOW_ID, workflow_run_id=RUN_ID)


def write_run(root: str | Path, text: str = "status: succeeded\n", run_id: str = RUN_ID) -> Path:
    path = Path(root, f"workflow-runs/{WORKFLOW_ID}/workflow-run-{run_id}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("lifetime", ["workflow", "job"])
def test_data_of_a_workflow_run_goes_with_its_record(
    repo: Repo, clock: FakeClock, lifetime: str
) -> None:
    save_versions(repo, clock, "scan", [1], lifetime=lifetime, owner=workflow_owner())
    record = write_run(repo.tree.base)
    assert gc(repo).plan.removals == ()
    record.unlink()
    (removal,) = gc(repo).plan.removals
    assert removal.reason == f"{lifetime}-deleted"
    assert not name_dir(repo, "scan").exists()


def test_run_records_are_looked_for_in_their_own_tier(tmp_path: Path, clock: FakeClock) -> None:
    swampstore.init_repo(tmp_path / "repo", clock=clock).close()
    configure(tmp_path / "repo", "datastore:\n  path: ../store\n  directories: [data]\n")
    with reopen(tmp_path / "repo", clock) as repo:
        save_versions(repo, clock, "scan", [1], lifetime="workflow", owner=workflow_owner())
        write_run(tmp_path / "repo/.swamp")
        assert gc(repo).plan.removals == ()


@pytest.fixture
def made_by_ana(ana: Machine) -> Path:
    """The record of a run of ana's, whose data bob has as well; he has no records of runs."""
    with ana.open() as repo:
        draft = Draft(lifetime="workflow", owner=workflow_owner())
        repo.store.save(repo.ref(MODEL, "scan"), b"x", draft)
        rel = workflow_run_rel(WORKFLOW_ID, RUN_ID)
        repo.tree.replace_file(rel, b"status: succeeded\n")
        record = Path(repo.tree.path(rel))
    assert ana("sync").status == 0
    return record


def names_of(machine: Machine) -> list[str]:
    with machine.open() as repo:
        return [found.name for found in repo.query("version > 0")]


def test_a_run_on_another_machine_leaves_data_of_a_workflow_whose_record_never_came_there(
    ana: Machine, bob: Machine, made_by_ana: Path
) -> None:
    update_marker(str(bob.repo_dir), {"autoGc": True})
    assert bob("run", MODEL, "check", "--", "true").status == 0
    for machine in (bob, ana):
        assert machine("sync").status == 0
        assert "scan" in names_of(machine)
    made_by_ana.unlink()
    with ana.open() as repo:
        repo.dirty.mark(repo.connection.names.mark(workflow_run_rel(WORKFLOW_ID, RUN_ID)))
    assert (ana("sync").status, bob("sync").status) == (0, 0)
    assert bob("run", MODEL, "check", "--", "true").status == 0
    assert "scan" not in names_of(bob)


def test_data_of_a_workflow_stays_where_nobody_tells_whether_its_record_is_there(
    ana: Machine, bob: Machine, made_by_ana: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made_by_ana.exists()
    assert bob("sync", "--model", MODEL).status == 0
    with monkeypatch.context() as patched:
        patched.setenv("SWAMPSTORE_OFFLINE", "1")
        done = bob("data", "gc", "-y", "--json").json
    assert (done["versionsDeleted"], len(done["warnings"])) == (0, 1)
    bucket.rename(bucket.with_name("away"))
    assert json.loads(bob("data", "gc", "-y", "--json").out)["versionsDeleted"] == 0
    bucket.with_name("away").rename(bucket)
    update_marker(str(bob.repo_dir), {"datastore": {"directories": ["data"]}})
    assert bob("data", "gc", "-y", "--json").json["versionsDeleted"] == 0
    assert names_of(bob) == ["scan"]


def test_nothing_is_pruned_as_long_as_definitions_of_others_may_be_missing(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.put(MODEL, "state", "x")
    with ana.open() as repo:
        repo.tree.replace_file("auto-definitions/aws/ec2/one.yaml", b"id: i-1\nname: one\n")
    assert ana("sync").status == 0
    (bob.repo_dir / "models").mkdir(exist_ok=True)
    (bob.repo_dir / "models/other.yaml").write_text("id: other\nname: other\n")
    assert bob("sync", "--pull", "--model", MODEL).status == 0
    with monkeypatch.context() as patched:
        patched.setenv("SWAMPSTORE_OFFLINE", "1")
        assert bob("data", "prune", "-y", "--json").error["code"] == "prune_refused"
    with bob.open() as repo, pytest.raises(PruneRefusedError, match="one"):
        prune(repo)
    assert bob("data", "prune", "-y", "--json").json["versionsDeleted"] == 0
    assert names_of(bob) == ["state"]


def test_no_model_is_pruned_whose_definition_may_be_kept_on_another_machine(
    ana: Machine, bob: Machine
) -> None:
    for machine in (ana, bob):
        update_marker(str(machine.repo_dir), {"datastore": {"directories": ["data", "outputs"]}})
    assert ana("run", "demo/host/web", "df", "--", "true").status == 0
    (bob.repo_dir / "models").mkdir(exist_ok=True)
    (bob.repo_dir / "models/other.yaml").write_text("id: other\nname: other\n")
    assert bob("sync").status == 0
    there = names_of(bob)
    pruned = bob("data", "prune", "-y", "--json").json
    assert (pruned["versionsDeleted"], len(pruned["warnings"])) == (0, 1)
    assert "auto-definitions" in pruned["warnings"][0]
    assert names_of(bob) == there != []


def test_a_run_id_that_is_no_file_name_keeps_the_data(repo: Repo, clock: FakeClock) -> None:
    owner = Owner("workflow-step", "w", workflow_id="../x", workflow_run_id="y")
    save_versions(repo, clock, "scan", [1], lifetime="workflow", owner=owner)
    report = gc(repo)
    assert report.plan.removals == ()
    assert "could not be looked up" in report.warnings[0]


def test_deletion_markers_outlive_every_lifetime(repo: Repo, clock: FakeClock) -> None:
    clock.back(days=30)
    repo.artifacts.save(MODEL, "state", {"a": 1}, lifetime="1d")
    repo.artifacts.mark_deleted(MODEL, "state", method="destroy")
    clock.now = NOW
    assert gc(repo).plan.removals == ()
    assert repo.version(MODEL, "state", 2).is_deleted


def test_a_name_that_differs_from_the_catalog_stays_and_the_catalog_is_corrected(
    repo: Repo, clock: FakeClock
) -> None:
    save_versions(repo, clock, "old", [9], lifetime="7d")
    save_versions(repo, clock, "other", [9], lifetime="7d")
    metadata = name_dir(repo, "old") / "1/metadata.yaml"
    repo.ready(complete=True)
    metadata.write_text(metadata.read_text().replace("lifetime: 7d", "lifetime: 700d"))
    report = gc(repo)
    assert [removal.name for removal in report.plan.removals] == ["other"]
    assert report.warnings == ("aws/ec2/i-1 old stays: it is not what the catalog said it was",)
    assert report.to_json()["warnings"] == list(report.warnings)
    assert repo.version(MODEL, "old", 1).record()["lifetime"] == "700d"
    assert repo.catalog.pending() == []


def test_data_written_after_the_plan_is_not_collected(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "old", [9], lifetime="7d")
    save_versions(repo, clock, "state", [9, 8], garbage_collection=1)
    collection = DataGc(repo)
    repo.artifacts.save(MODEL, "old", "fresh", lifetime="7d")
    repo.artifacts.save(MODEL, "state", "fresh", garbage_collection=5)
    report = collection.run()
    assert report.plan.removals == ()
    assert len(report.warnings) == 2
    assert repo.list_versions(MODEL, "old") == [1, 2]
    assert repo.list_versions(MODEL, "state") == [1, 2, 3]


def test_a_plan_is_carried_out_as_of_the_time_it_was_made(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "state", [9, 8, 6.9, 1], garbage_collection="7d")
    collection = DataGc(repo)
    clock.now = NOW + timedelta(days=1)
    assert collection.run().plan == collection.plan
    assert repo.list_versions(MODEL, "state") == [3, 4]


def test_an_expired_name_stays_while_somebody_writes_a_version_of_it(
    repo: Repo, clock: FakeClock
) -> None:
    save_versions(repo, clock, "old", [9], lifetime="7d")
    with repo.artifacts.writer(MODEL, "old") as writer:
        writer.write(b"fresh")
        assert gc(repo).plan.removals == ()
    assert repo.latest(MODEL, "old").bytes() == b"fresh"


def test_versions_that_wait_for_their_commit_neither_count_nor_go(
    repo: Repo, clock: FakeClock
) -> None:
    save_versions(repo, clock, "state", [5, 4, 3], garbage_collection=2)
    ref = DataRef(ModelRef("aws/ec2", "i-1"), "state")
    with repo.artifacts.deferring() as deferral:
        deferral.save(ref, b"later", swampstore.Draft(owner=Owner(ref="i-1")))
        assert gc(repo).plan.version_count == 1
    assert repo.list_versions(MODEL, "state") == [2, 3, 4]
    assert repo.latest(MODEL, "state").bytes() == b"later"


def test_one_name_that_cannot_be_removed_does_not_keep_the_others(
    repo: Repo, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number:02}" for number in range(BATCH_NAMES + 5)]
    for name in names:
        save_versions(repo, clock, name, [9], lifetime="7d")
    remove = Change.discard_claim

    def refuse_one(change: Change, rel: str) -> None:
        if "/n03/" in rel:
            raise PermissionError(13, "Permission denied", rel)
        remove(change, rel)

    monkeypatch.setattr(Change, "discard_claim", refuse_one)
    report = gc(repo)
    assert len(report.plan.removals) == len(names) - 1
    assert len(report.warnings) == 1
    assert "i-1 n03 stays" in report.warnings[0]
    assert repo.latest(MODEL, "n03").text() == "content of age 9"
    monkeypatch.undo()
    assert [removal.name for removal in gc(repo).plan.removals] == ["n03"]


def test_a_name_that_leads_out_of_the_datastore_does_not_keep_the_others(
    repo: Repo, clock: FakeClock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    save_versions(repo, clock, "linked", [9], lifetime="7d")
    save_versions(repo, clock, "old", [9], lifetime="7d")
    outside = tmp_path_factory.mktemp("outside") / "linked"
    name_dir(repo, "linked").rename(outside)
    name_dir(repo, "linked").symlink_to(outside)
    report = gc(repo)
    assert [removal.name for removal in report.plan.removals] == ["old"]
    assert "leads outside the datastore" in report.warnings[0]
    assert repo.catalog.pending() == []
    assert (outside / "1/raw").exists()


def test_a_name_that_somebody_else_is_changing_does_not_keep_the_others(
    repo: Repo, clock: FakeClock
) -> None:
    for name in ("busy", "free", "idle"):
        save_versions(repo, clock, name, [9], lifetime="7d")
    repo.ready(complete=True)
    busy = DataRef(ModelRef("aws/ec2", "i-1"), "busy")
    impatient = swampstore.open_repo(
        repo.config.repo_dir, environ={"SWAMP_LOCK_TIMEOUT_MS": "20"}, clock=clock
    )
    with impatient, repo.mutations.holding(busy):
        report = gc(impatient)
    assert [removal.name for removal in report.plan.removals] == ["free", "idle"]
    assert "i-1 busy stays" in report.warnings[0]
    assert repo.list_versions(MODEL, "busy") == [1]


def test_an_interrupted_collection_leaves_nothing_half_done(
    repo: Repo, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        save_versions(repo, clock, name, [9, 8, 7], garbage_collection=1)
    remove_tree = Change.remove_tree

    def interrupt(change: Change, rel: str) -> None:
        if rel.endswith("/b/2"):
            raise KeyboardInterrupt
        remove_tree(change, rel)

    monkeypatch.setattr(Change, "remove_tree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gc(repo)
    monkeypatch.undo()
    with reopen(Path(repo.config.repo_dir), clock) as again:
        versions = [again.list_versions(MODEL, name) for name in ("a", "b", "c")]
        assert versions == [[3], [2, 3], [1, 2, 3]]
        assert examine(again).ok
        assert gc(again).plan.version_count == 3


def test_names_that_span_pages_of_the_catalog_are_read_whole(
    repo: Repo, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        save_versions(repo, clock, name, [3, 2, 1])
    monkeypatch.setattr("swampstore.catalog.catalog._PAGE", 2)
    found = [[(row.data_name, row.version) for row in rows] for rows in repo.catalog.by_name()]
    assert found == [[(name, version) for version in (1, 2, 3)] for name in ("a", "b", "c")]


def test_every_removal_is_announced(tmp_path: Path, clock: FakeClock) -> None:
    swampstore.init_repo(tmp_path, clock=clock).close()
    heard: list[str] = []
    with reopen(tmp_path, clock, announce=heard.append) as repo:
        save_versions(repo, clock, "old", [9], lifetime="7d")
        save_versions(repo, clock, "state", [9, 8], garbage_collection=1)
        heard.clear()
        gc(repo, dry_run=True)
        assert heard == []
        gc(repo)
    assert heard == ["data/aws/ec2/i-1/old", "data/aws/ec2/i-1/state"]


def test_a_missing_datastore_is_an_error_and_not_an_empty_one(
    tmp_path: Path, clock: FakeClock
) -> None:
    swampstore.init_repo(tmp_path / "repo", clock=clock).close()
    configure(tmp_path / "repo", "datastore:\n  path: ../store\n")
    with reopen(tmp_path / "repo", clock) as repo:
        save_versions(repo, clock, "old", [9], lifetime="7d")
        (tmp_path / "store").rename(tmp_path / "unmounted")
        for collect in (gc, prune, run_gc):
            with pytest.raises(DiskError, match="is not there"):
                collect(repo)
        (tmp_path / "unmounted").rename(tmp_path / "store")
        assert repo.list_versions(MODEL, "old") == [1]


def test_a_namespace_that_nobody_saved_to_yet_has_nothing_to_collect(
    tmp_path: Path, clock: FakeClock
) -> None:
    swampstore.init_repo(tmp_path, clock=clock).close()
    configure(tmp_path, "datastore:\n  namespace: infra\n")
    with reopen(tmp_path, clock) as repo:
        assert gc(repo).plan.removals == ()


def test_a_catalog_that_was_deleted_is_rebuilt_before_planning(
    repo: Repo, clock: FakeClock
) -> None:
    save_versions(repo, clock, "old", [9], lifetime="7d")
    Path(repo.config.local_dir, "swampstore.db").unlink()
    assert len(gc(repo).plan.removals) == 1


def test_a_time_that_is_none_keeps_the_data(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "old", [9], lifetime="7d")
    metadata = name_dir(repo, "old") / "1/metadata.yaml"
    metadata.write_text(metadata.read_text().replace("2026-05-23", "2026-13-45"))
    repo.rebuild_catalog()
    report = gc(repo)
    assert report.plan.removals == ()
    assert "time of creation" in report.warnings[0]


def abandon_claim(repo: Repo, name: str, version: int, *, days: float = 2) -> Path:
    claim = name_dir(repo, name) / str(version)
    claim.mkdir()
    (claim / "raw").write_bytes(b"half")
    moment = (NOW - timedelta(days=days)).timestamp()
    for path in (claim / "raw", claim):
        os.utime(path, (moment, moment))
    return claim


def test_abandoned_claims_are_swept_up_and_counted(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "state", [3])
    old, young = abandon_claim(repo, "state", 2), abandon_claim(repo, "state", 3, days=0.5)
    assert gc(repo, dry_run=True).abandoned == 1
    assert old.exists()
    assert gc(repo).abandoned == 1
    assert (old.exists(), young.exists()) == (False, True)


# autoGc ------------------------------------------------------------------------------------


@pytest.fixture
def auto_repo(tmp_path: Path, clock: FakeClock) -> Iterator[Repo]:
    swampstore.init_repo(tmp_path, clock=clock).close()
    configure(tmp_path, "autoGc: true\n")
    with reopen(tmp_path, clock) as opened:
        yield opened


def test_with_auto_gc_a_save_enforces_a_numeric_policy(auto_repo: Repo, clock: FakeClock) -> None:
    save_versions(auto_repo, clock, "state", [5, 4, 3, 2], garbage_collection=2)
    assert auto_repo.list_versions(MODEL, "state") == [3, 4]
    assert sorted(path.name for path in name_dir(auto_repo, "state").iterdir()) == [
        "3",
        "4",
        "latest",
    ]


def test_without_auto_gc_a_save_keeps_every_version(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "state", [5, 4, 3, 2], garbage_collection=2)
    assert repo.list_versions(MODEL, "state") == [1, 2, 3, 4]


def test_after_a_run_the_data_of_that_model_alone_is_collected(
    auto_repo: Repo, clock: FakeClock
) -> None:
    save_versions(auto_repo, clock, "old", [9], lifetime="7d")
    save_versions(auto_repo, clock, "state", [9, 8, 1], garbage_collection="7d")
    clock.back(days=9)
    auto_repo.artifacts.save("aws/ec2/i-2", "old", "x", lifetime="7d")
    clock.now = NOW
    plan = auto_gc_model(auto_repo, MODEL)
    assert [(removal.name, removal.version_count) for removal in plan.removals] == [
        ("old", 1),
        ("state", 2),
    ]
    assert auto_repo.list_versions(MODEL, "old") == []
    assert auto_repo.list_versions(MODEL, "state") == [3]
    assert auto_repo.list_versions("aws/ec2/i-2", "old") == [1]


def test_after_a_run_nothing_is_collected_unless_asked_for(repo: Repo, clock: FakeClock) -> None:
    save_versions(repo, clock, "old", [9], lifetime="7d")
    assert auto_gc_model(repo, MODEL).removals == ()
    assert repo.list_versions(MODEL, "old") == [1]


def test_after_a_run_no_catalog_is_filled_for_one_model(auto_repo: Repo, clock: FakeClock) -> None:
    save_versions(auto_repo, clock, "old", [9], lifetime="7d")
    auto_repo.catalog.invalidate()
    assert len(auto_gc_model(auto_repo, ModelRef("aws/ec2", "i-1")).removals) == 1
    assert not auto_repo.catalog.is_populated
    assert not name_dir(auto_repo, "old").exists()


def test_collecting_after_a_run_never_raises(
    auto_repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert auto_gc_model(auto_repo, "nobody").removals == ()
    assert "no model is named 'nobody'" in caplog.text


# data prune --------------------------------------------------------------------------------


def define(directory: Path, model_id: str, kind: str = "aws/ec2", name: str = "m") -> Path:
    path = directory / kind / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"type: {kind}\nid: {model_id}\nname: {name}\n")
    return path


def save(repo: Repo, model: str, name: str = "state", content: str = "x") -> None:
    repo.artifacts.save(model, name, content, tags={"modelName": f"name of {model}"})


def test_data_without_a_definition_goes(repo: Repo, tmp_path: Path) -> None:
    define(tmp_path / "models", "i-1")
    save(repo, MODEL)
    save(repo, "aws/ec2/i-2", content="four")
    save(repo, "aws/ec2/i-2", content="five!")
    save(repo, "aws/ec2/i-2", "log")
    preview, real = prune(repo, dry_run=True).to_json(), prune(repo).to_json()
    assert without(real, "walPagesTotal", "walPagesCheckpointed") == {
        "modelsReclaimed": 1,
        "dataEntriesReclaimed": 2,
        "versionsDeleted": 3,
        "bytesReclaimed": 10,
        "dryRun": False,
        "reclaimedModels": [
            {
                "type": "aws/ec2",
                "modelId": "i-2",
                "modelName": "name of aws/ec2/i-2",
                "dataNames": ["log", "state"],
                "versionCount": 3,
                "bytesReclaimed": 10,
            }
        ],
    }
    assert preview["reclaimedModels"] == real["reclaimedModels"]
    assert not name_dir(repo, "state", "aws/ec2/i-2").exists()
    assert repo.list_versions(MODEL, "state") == [1]


def models(report: Any) -> list[str]:
    return [f"{model.model_type}/{model.model_id}" for model in report.plan.models]


def test_automatic_definitions_and_other_types_keep_data_alive(repo: Repo, tmp_path: Path) -> None:
    define(tmp_path / ".swamp/auto-definitions", "i-1")
    define(tmp_path / "models", "i-2", kind="renamed/type")
    for number in (1, 2, 3):
        save(repo, f"aws/ec2/i-{number}")
    save(repo, "swamp/worker/w-1")
    assert models(prune(repo)) == ["aws/ec2/i-3"]


def test_workflow_data_lives_as_long_as_the_workflow(repo: Repo, tmp_path: Path) -> None:
    define(tmp_path / "models", "i-1")
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows/workflow-nightly.yaml").write_text("id: wf-1\nname: nightly\n")
    for model in ("workflow/wf-1", "workflow/wf-2", "aws/ec2/wf-1"):
        save(repo, model)
    assert models(prune(repo)) == ["aws/ec2/wf-1", "workflow/wf-2"]


def test_definitions_are_looked_for_where_the_settings_say(repo: Repo, tmp_path: Path) -> None:
    configure(tmp_path, "modelsDir: deep/definitions\n")
    define(tmp_path / "deep/definitions", "i-1")
    save(repo, MODEL)
    save(repo, "aws/ec2/i-2")
    assert models(prune(repo)) == ["aws/ec2/i-2"]


def test_definitions_behind_a_link_count(
    repo: Repo, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    define(elsewhere, "i-1")
    (elsewhere / "loop").symlink_to(elsewhere)
    (elsewhere / "spiral").symlink_to(elsewhere)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/linked").symlink_to(elsewhere)
    save(repo, MODEL)
    save(repo, "aws/ec2/i-2")
    assert models(prune(repo)) == ["aws/ec2/i-2"]


def test_a_repository_without_definitions_loses_nothing(repo: Repo) -> None:
    save(repo, MODEL)
    for dry_run in (True, False):
        with pytest.raises(PruneRefusedError, match="defines no model at all"):
            prune(repo, dry_run=dry_run)
    assert repo.list_versions(MODEL, "state") == [1]


def damage_undecodable(models: Path) -> None:
    (models / "broken.yaml").write_text("id: [")


def damage_no_id(models: Path) -> None:
    (models / "broken.yaml").write_text("name: nameless\n")


def damage_number(models: Path) -> None:
    (models / "broken.yaml").write_text("id: 0123\n")


def damage_dangling_link(models: Path) -> None:
    (models / "broken.yaml").symlink_to("nowhere")


@pytest.mark.parametrize(
    "damage", [damage_undecodable, damage_no_id, damage_number, damage_dangling_link]
)
def test_a_definition_that_cannot_be_read_refuses_the_whole_prune(
    repo: Repo, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    define(tmp_path / "models", "i-1")
    save(repo, "aws/ec2/i-2")
    damage(tmp_path / "models")
    with pytest.raises(PruneRefusedError, match=r"models/broken\.yaml"):
        prune(repo)
    assert repo.list_versions("aws/ec2/i-2", "state") == [1]


def test_a_models_directory_that_is_none_refuses_the_whole_prune(
    repo: Repo, tmp_path: Path
) -> None:
    define(tmp_path / ".swamp/auto-definitions", "i-1")
    save(repo, "aws/ec2/i-2")
    (tmp_path / "models").write_text("not a directory")
    with pytest.raises(PruneRefusedError, match="models"):
        prune(repo)
    (tmp_path / "models").unlink()
    configure(tmp_path, "modelsDir: missing\n")
    with pytest.raises(PruneRefusedError, match="modelsDir"):
        prune(repo)


def test_data_that_changed_since_the_plan_is_not_pruned(repo: Repo, tmp_path: Path) -> None:
    define(tmp_path / "models", "i-1")
    for number in (2, 3, 4):
        save(repo, f"aws/ec2/i-{number}")
    pruning = DataPrune(repo)
    save(repo, "aws/ec2/i-2", content="fresh")
    define(tmp_path / "models", "i-3", name="new")
    report = pruning.run()
    assert models(report) == ["aws/ec2/i-4"]
    assert len(report.warnings) == 2
    assert repo.list_versions("aws/ec2/i-2", "state") == [1, 2]
    assert repo.list_versions("aws/ec2/i-3", "state") == [1]


def test_deleted_data_is_no_orphan(repo: Repo, tmp_path: Path) -> None:
    define(tmp_path / "models", "i-1")
    save(repo, "aws/ec2/i-2")
    repo.artifacts.mark_deleted("aws/ec2/i-2", "state", method="destroy")
    assert prune(repo).plan.models == ()


# run gc ------------------------------------------------------------------------------------


def record(
    status: str = "succeeded",
    *,
    started: float = 40,
    completed: float | None = None,
    log: str | None = None,
    more: str = "",
) -> str:
    lines = [f"status: {status}", f"startedAt: '{(NOW - timedelta(days=started)).isoformat()}'"]
    if completed is not None:
        lines.append(f"completedAt: '{(NOW - timedelta(days=completed)).isoformat()}'")
    if log is not None:
        lines.append(f"logFile: {log}")
    return "\n".join([more.rstrip("\n"), *lines]).lstrip("\n") + "\n"


def add_output(root: Path, name: str, text: str, *, age: float = 40) -> Path:
    path = root / "outputs/command/shell/execute" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    make_old(path, age)
    return path


def add_run(root: Path, name: str, text: str, *, age: float = 40) -> Path:
    path = write_run(root, text, run_id=name)
    make_old(path, age)
    return path


def make_old(path: Path, days: float) -> None:
    moment = (NOW - timedelta(days=days)).timestamp()
    os.utime(path, (moment, moment))


@pytest.fixture
def local(repo: Repo) -> Path:
    return Path(repo.config.local_dir)


def test_old_records_go_with_their_logs(repo: Repo, local: Path) -> None:
    log = local / "outputs/command/shell/execute/earlier-name.log"
    log.parent.mkdir(parents=True)
    log.write_text("12345")
    output = add_output(local, "a", record(log=f".swamp/{log.relative_to(local)}"))
    run = add_run(local, "r1", record("failed", completed=31))
    sizes = output.stat().st_size, run.stat().st_size
    preview = run_gc(repo, dry_run=True).to_json()
    assert output.exists()
    assert run_gc(repo).to_json() == preview | {"dryRun": False}
    assert preview == {
        "workflowRunsDeleted": 1,
        "workflowRunBytesReclaimed": sizes[1],
        "outputsDeleted": 1,
        "outputBytesReclaimed": sizes[0] + 5,
        "totalBytesReclaimed": sum(sizes) + 5,
        "dryRun": True,
    }
    assert not any(path.exists() for path in (output, run, log))


def test_runs_that_are_not_over_or_not_old_stay(repo: Repo, local: Path) -> None:
    kept = [
        add_run(local, "suspended", record("suspended")),
        add_run(local, "running", record("running")),
        add_run(local, "ended-lately", record(completed=29)),
        add_run(local, "touched-lately", record(), age=1),
        add_output(local, "started-lately", record(started=29, completed=28)),
    ]
    other = local / f"workflow-runs/{WORKFLOW_ID}/notes.yaml"
    other.write_text(record())
    make_old(other, 40)
    assert run_gc(repo).plan.removals == ()
    assert all(path.exists() for path in (*kept, other))


def test_the_age_of_run_records_can_be_chosen(repo: Repo, local: Path) -> None:
    week_old = add_run(local, "r1", record(completed=8, started=8), age=8)
    assert run_gc(repo, older_than=timedelta(days=7)).plan.count("workflow-run") == 1
    assert not week_old.exists()


def test_records_that_make_no_sense_stay_with_a_warning(repo: Repo, local: Path) -> None:
    kept = [
        add_run(local, "no-yaml", "status: ["),
        add_run(local, "no-time", "status: succeeded\nstartedAt: yesterday\n"),
        add_run(local, "no-status", "startedAt: '2026-01-01T00:00:00Z'\n"),
        add_run(local, "a-list", "- status\n"),
    ]
    report = run_gc(repo)
    assert report.plan.removals == ()
    assert len(report.warnings) == 4
    assert report.to_json()["warnings"] == list(report.warnings)
    assert all(path.exists() for path in kept)


def test_of_a_huge_record_only_its_own_members_are_read(
    repo: Repo, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "  - stepName: x\n    status: running\n    logFile: /etc/passwd\n    output: |\n"
    more = "jobs:\n" + step + "      " + "status: running " * 30_000 + "\n" + step
    path = add_run(local, "huge", record(completed=35, more=more))
    read: list[int] = []

    def counted(data: bytes, **details: str) -> dict[str, object]:
        read.append(len(data))
        return load_mapping(data, **details)

    monkeypatch.setattr("swampstore.yaml_dialect.load_mapping", counted)
    (removal,) = run_gc(repo).plan.removals
    assert (removal.status, removal.log_file) == ("succeeded", None)
    assert max(read) < 1000
    assert not path.exists()


def test_a_folded_log_name_of_a_huge_record_is_understood(repo: Repo, local: Path) -> None:
    log = local / f"workflow-runs/{WORKFLOW_ID}/a.log"
    more = "blob: " + "x" * 300_000 + "\n"
    folded = f">-\n  .swamp/{log.relative_to(local)}\ntags: {{}}"
    add_run(local, "huge", record(completed=35, more=more, log=folded))
    log.write_text("log")
    assert run_gc(repo).plan.removals[0].log_size == 3
    assert not log.exists()


@pytest.mark.parametrize(
    "named",
    [
        "../outside.log",
        "important.log",
        ".swamp/data/aws/ec2/i-1/state/1/raw",
        ".swamp/outputs/../swampstore.db",
        ".swamp/outputs/link.log",
        ".swamp/outputs/directory.log",
        ".swamp/outputs/other.yaml",
        ".swamp/data/stray.log",
    ],
)
def test_a_log_that_is_no_log_of_ours_is_never_deleted(
    tmp_path: Path, clock: FakeClock, named: str
) -> None:
    swampstore.init_repo(tmp_path / "repo", clock=clock).close()
    with reopen(tmp_path / "repo", clock) as repo:
        save_versions(repo, clock, "state", [1])
        local = tmp_path / "repo/.swamp"
        (tmp_path / "outside.log").write_text("outside")
        (tmp_path / "repo/important.log").write_text("important")
        (local / "outputs/directory.log").mkdir(parents=True)
        (local / "outputs/other.yaml").write_text(record("running"))
        (local / "data/stray.log").write_text("stray")
        (local / "outputs/link.log").symlink_to(tmp_path / "outside.log")
        path = add_output(local, "a", record(log=named))
        report = run_gc(repo)
        assert not path.exists()
        assert (tmp_path / "repo" / named).exists()
        assert (tmp_path / "outside.log").exists()
        assert "none of ours" in report.warnings[0]
        assert report.plan.removals[0].log_size == 0


def test_logs_in_the_local_tier_go_with_records_in_the_datastore(
    tmp_path: Path, clock: FakeClock
) -> None:
    swampstore.init_repo(tmp_path / "repo", clock=clock).close()
    configure(tmp_path / "repo", "datastore:\n  path: ../store\n  namespace: infra\n")
    log = tmp_path / "repo/.swamp/outputs/a.log"
    log.parent.mkdir()
    log.write_text("local")
    text = record(log=".swamp/outputs/a.log")
    path = add_output(tmp_path / "store/infra", "a", text)
    heard: list[str] = []
    with reopen(tmp_path / "repo", clock, announce=heard.append) as repo:
        run_gc(repo)
    assert not path.exists()
    assert not log.exists()
    assert heard == ["infra/outputs/command/shell/execute/a.yaml"]


def test_a_run_resumed_since_the_plan_stays(repo: Repo, local: Path) -> None:
    resumed = add_run(local, "resumed", record("failed", completed=35))
    gone = add_run(local, "gone", record("failed", completed=35))
    over = add_run(local, "over", record("failed", completed=35))
    collection = RunGc(repo)
    resumed.write_text(record("running"))
    gone.unlink()
    report = collection.run()
    assert report.plan.count("workflow-run") == 1
    assert (resumed.exists(), over.exists()) == (True, False)
    assert len(report.warnings) == 2
