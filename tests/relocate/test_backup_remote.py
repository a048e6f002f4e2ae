"""Backups of a remote: one commit of its index, fetched from the store, whatever the cache has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import open_repo
from swampstore.relocate.backup import create_backup, open_place
from tests.support.backing_up import MODEL, OTHER, backed_up, fill, held, restored
from tests.support.machines import Machine


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture(params=["v1", "sharded"])
def index(request: pytest.FixtureRequest, ana: Machine) -> str:
    """Fill the remote from one machine, with either kind of index."""
    with ana.open() as repo, repo.session():
        fill(repo)
    if request.param == "sharded":
        assert ana("datastore", "migrate-index").status == 0
        ana.put(MODEL, "extra", "after")
        assert ana("sync").status == 0
    return str(request.param)


def test_a_backup_of_a_lazy_machine_has_all_content(
    index: str, ana: Machine, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    bob.use(bucket, hydrationStrategy="lazy")
    assert bob("sync").status == 0
    before = held(bob.cache)
    with bob.open() as repo:
        report = backed_up(repo, place)
    assert not report.manifest.left_out
    assert held(bob.cache) == before  # nothing went through the cache
    assert restored(place, tmp_path / "new") == held(bucket)


def test_a_machine_that_never_pulled_can_back_up(
    index: str, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    with bob.open() as repo:
        backed_up(repo, place)
    assert restored(place, tmp_path / "new") == held(bucket)


def test_one_change_costs_a_handful_of_requests(
    index: str, ana: Machine, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    for number in range(20):
        ana.put(f"aws/ec2/m-{number}", "state", f"text {number}")
    assert ana("sync").status == 0
    with bob.open() as repo:
        backed_up(repo, place)
    ana.put(MODEL, "state", "changed")
    assert ana("sync").status == 0
    with bob.open() as repo:
        opened = open_place(str(place))
        repo.connection.counting.reset()
        assert create_backup(repo, opened).objects == 3
        asked = repo.connection.counting.tally().requests
    assert dict(opened.counting.tally().requests) == {"list": 2, "get": 1, "put": 4}
    # `_meta.json`, the index (or its two changed shards), content and metadata; the marker of the
    # latest version follows from its hash. A listing says that other shards are what they were.
    listings = {"v1": {}, "sharded": {"list": 1}}[index]
    assert dict(asked) == listings | {"get": 1 + {"v1": 1, "sharded": 2}[index] + 2}
    assert restored(place, tmp_path / "new") == held(bucket)


def test_a_damaged_version_is_left_out_and_the_rest_is_not(
    index: str, ana: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    (bucket / f"data/{MODEL}/state/2/raw").write_bytes(b'{"n": 9}')
    (bucket / f"data/{MODEL}/log/1/raw").unlink()
    for _ in range(2):  # what was left out is looked for again, though no shard changed
        done = ana("backup", "create", str(place), "--json")
        assert done.status == 1
        left_out = [one["path"] for one in json.loads(done.stdout)["leftOut"]]
        assert left_out == [f"data/{MODEL}/log/1", f"data/{MODEL}/state/2"]
    found = restored(place, tmp_path / "new")
    assert found[f"data/{MODEL}/state/latest"] == b"1"
    assert f"data/{MODEL}/log/latest" not in found
    with open_repo(tmp_path / "new") as repo:
        assert repo.latest(MODEL, "state").json() == {"n": 1}


def test_the_state_of_one_commit_is_found_though_its_marker_is_gone(
    index: str, ana: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    """Somebody has uploaded the next version, and not committed it yet."""
    wanted = held(bucket)
    (bucket / f"data/{MODEL}/state/latest").write_bytes(b"3")
    with ana.open() as repo:
        report = backed_up(repo, place)
    assert not report.manifest.left_out
    assert restored(place, tmp_path / "new") == wanted


def test_changes_that_were_never_pushed_are_told(
    index: str, ana: Machine, place: Path, tmp_path: Path
) -> None:
    ana.put(MODEL, "unpushed", "here only")
    done = ana("backup", "create", str(place))
    assert done.status == 0
    assert "not pushed" in done.err
    assert f"data/{MODEL}/unpushed/1/raw" not in restored(place, tmp_path / "new")


def test_files_that_the_settings_keep_on_the_machine_are_told(
    ana: Machine, bob: Machine, bucket: Path, place: Path
) -> None:
    bob.use(bucket, directories=["data", "audit"], exclude=["data/aws/ec2/i-2/**"])
    with bob.open() as repo, repo.session():
        fill(repo)
    done = bob("backup", "create", str(place), "--json")
    kept = len(held(bob.repo_dir / ".swamp"))
    assert f"the settings keep {kept} files on this machine" in done.err
    assert done.json["keptHere"] == kept > 10
    log = ana.repo_dir / ".swamp/workflow-runs/w/workflow-run-r.log"
    log.parent.mkdir(parents=True)
    log.write_text("what each machine keeps for itself, whatever is set")
    assert "settings keep" not in ana("backup", "create", str(place)).err


def test_content_that_the_settings_keep_on_its_machine_is_no_damage(
    ana: Machine, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    for machine in (ana, bob):
        machine.use(bucket, exclude=["data/aws/ec2/i-2/**/raw"])
    with ana.open() as repo, repo.session():
        fill(repo)
    done = bob("backup", "create", str(place), "--json")
    assert (done.status, done.json["leftOut"]) == (0, [])
    assert {one["reason"] for one in done.json["skipped"]} == {
        "the settings keep its content on its machine"
    }
    wanted = {rel: data for rel, data in held(bucket).items() if "/i-2/" not in rel}
    assert restored(place, tmp_path / "new") == wanted


def test_only_the_own_namespace_is_backed_up(
    ana: Machine, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    for machine, namespace in ((ana, "infra"), (bob, "web")):
        assert machine("datastore", "namespace", "set", namespace).status == 0
        with machine.open() as repo, repo.session():
            repo.artifacts.save(MODEL, "state", f"of {namespace}")
    for machine in (ana, bob):
        with machine.open() as repo:
            backed_up(repo, place)
    keys = open_place(str(place)).keys()
    assert [key.namespace for key in keys] == ["infra", "web"]
    found = restored(place, tmp_path / "new", keys[1].id)
    assert found[f"data/{MODEL}/state/1/raw"] == b"of web"
    assert (tmp_path / f"new/.swamp/web/data/{MODEL}/state/1/raw").exists()


_WRITER = """
import sys
from swampstore import open_repo
with open_repo(sys.argv[1], durable=False) as repo:
    for n in range(100000):
        print(n, flush=True)
        with repo.session(["aws/ec2/i-1", "aws/ec2/i-2"]):
            repo.artifacts.save("aws/ec2/i-1", "pair", str(n))
            repo.artifacts.save("aws/ec2/i-2", "pair", str(n))
            repo.artifacts.save("aws/ec2/i-2", "log", "x", streaming=True)
            if n % 3 == 2:
                repo.artifacts.delete("aws/ec2/i-2", "log")
"""


def test_a_commit_of_others_is_in_a_backup_whole_or_not_at_all(
    index: str, ana: Machine, bob: Machine, place: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _WRITER, str(ana.repo_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ana.environ) as writer:
        assert writer.stdout
        try:
            with bob.open() as repo:
                reports = [backed_up(repo, place) for _ in range(5) if writer.stdout.readline()]
        finally:
            writer.kill()
    pairs = []
    for number, report in enumerate(reports):
        assert not report.manifest.left_out
        restored(place, tmp_path / str(number), report.manifest.key.id)
        with open_repo(tmp_path / str(number), durable=False) as new:
            both = [new.latest(model, "pair", default=None) for model in (MODEL, OTHER)]
            left, right = [one.text() if one else "" for one in both]
            assert left == right
            pairs.append(int(left or -1))
    assert pairs == sorted(pairs)
    assert pairs[-1] > pairs[0]


def test_what_the_settings_kept_away_before_is_in_the_next_backup(
    index: str, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    bob.use(bucket, exclude=["outputs/**"])
    with bob.open() as repo:
        backed_up(repo, place)
    bob.use(bucket, exclude=None)
    for name in ("new", "newer"):
        with bob.open() as repo:
            backed_up(repo, place)
        assert restored(place, tmp_path / name) == held(bucket)


def test_an_index_of_before_a_migration_is_not_taken_for_the_current_one(
    ana: Machine, bob: Machine, bucket: Path, place: Path, tmp_path: Path
) -> None:
    with ana.open() as repo, repo.session():
        fill(repo)
    assert ana("datastore", "migrate-index").status == 0
    with ana.open() as repo, repo.session():
        repo.artifacts.delete(MODEL, "state")
        repo.artifacts.save(MODEL, "extra", "after")
    next(bucket.rglob("_meta.json")).unlink()
    with bob.open() as repo:
        backed_up(repo, place)
    assert restored(place, tmp_path / "new") == held(bucket)
