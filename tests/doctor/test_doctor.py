"""The doctor finds what is wrong, says what to do, and repairs only what cannot do harm."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import swampstore
from swampstore import Draft, Owner, Repo
from swampstore.clock import Clock
from swampstore.doctor import Finding, Report, examine, unusable
from swampstore.doctor.findings import LISTED
from swampstore.errors import ConfigError
from swampstore.files import Hold
from swampstore.layout import DataRef, ModelRef

MODEL = "aws/ec2/i-1"
STATE = DataRef(ModelRef("aws/ec2", "i-1"), "state")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    monkeypatch.setattr("os.fsync", lambda _file: None)


@pytest.fixture
def data(repo: Repo) -> Path:
    """A repository with a few names, complete in its catalog; returns the directory of `state`."""
    for number in (1, 2, 3):
        repo.artifacts.save(MODEL, "state", {"n": number})
    repo.artifacts.save(MODEL, "log", b"line\n", streaming=True)
    repo.artifacts.save("@acme/probe/p-1", "207333", b"numeric")
    repo.artifacts.save("@acme/probe/p-1", "gone", {"a": 1})
    repo.artifacts.mark_deleted("@acme/probe/p-1", "gone", method="destroy")
    repo.ready(complete=True)
    return Path(repo.tree.path(STATE.rel))


def finding(report: Report, check: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.check == check]
    return found


def failures(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if not finding.ok}


def make_old(clock: Clock, *paths: Path, days: float = 2) -> None:
    moment = (clock() - timedelta(days=days)).timestamp()
    for path in paths:
        os.utime(path, (moment, moment), follow_symlinks=False)


def snapshot(directory: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_a_sound_repository_passes_every_check(repo: Repo, data: Path) -> None:
    report = examine(repo)
    assert failures(report) == set()
    assert report.ok
    document = report.to_json()
    assert document["overallStatus"] == "pass"
    assert document["datastoreType"] == "filesystem"
    assert document["catalogCompletenessFinding"] == {
        "diskRecords": 4,
        "catalogRecords": 4,
        "shortfalls": [],
        "excess": [],
        "outdated": [],
    }
    assert all(set(found) == {"check", "passed", "message"} for found in document["healthFindings"])
    json.dumps(document)


def test_an_empty_repository_is_sound_and_stays_without_a_catalog(repo: Repo) -> None:
    assert examine(repo).ok
    assert not Path(repo.config.local_dir, "swampstore.db").exists()


def test_a_report_has_one_finding_for_every_check(repo: Repo, data: Path) -> None:
    assert [found.check for found in examine(repo).findings] == [
        "configuration",
        "datastore",
        "catalog",
        "unfinished_changes",
        "latest_markers",
        "metadata",
        "content",
        "content_size",
        "leftovers",
        "tiers",
        "local_only",
        "symlinks",
        "names",
        "strangers",
        "unreadable",
        "catalog_completeness",
    ]


def test_a_marker_file_that_cannot_be_read_is_found(repo: Repo, data: Path) -> None:
    Path(repo.config.repo_dir, ".swamp.yaml").write_text("autoGc: [")
    assert failures(examine(repo)) == {"configuration"}


def test_a_repository_that_cannot_be_opened_has_a_report_too() -> None:
    report = unusable(ConfigError("it is broken", hint="Mend it."))
    assert report.to_json() == {
        "overallStatus": "fail",
        "datastoreType": "filesystem",
        "healthFindings": [
            {
                "check": "configuration",
                "passed": False,
                "message": "it is broken",
                "remedy": "Mend it.",
            }
        ],
        "catalogCompletenessFinding": None,
    }


# The datastore -----------------------------------------------------------------------------


@pytest.fixture
def split_repo(tmp_path: Path, clock: Clock) -> Iterator[Repo]:
    """A repository whose datastore is elsewhere, with rules about what belongs there."""
    swampstore.init_repo(tmp_path / "repo", clock=clock).close()
    with (tmp_path / "repo/.swamp.yaml").open("a") as file:
        file.write(
            "datastore:\n  path: ../store\n  directories: [data, outputs]\n"
            "  exclude: ['data/**/raw', 'outputs/secret/**']\n"
        )
    with swampstore.open_repo(tmp_path / "repo", durable=False, clock=clock) as repo:
        repo.artifacts.save(MODEL, "state", b"content")
        repo.ready(complete=True)
        yield repo


def test_a_missing_datastore_is_found_and_nothing_is_repaired(
    split_repo: Repo, tmp_path: Path
) -> None:
    (tmp_path / "store").rename(tmp_path / "unmounted")
    report = examine(split_repo, repair=True)
    assert failures(report) == {"datastore"}
    assert report.completeness is None
    (tmp_path / "unmounted").rename(tmp_path / "store")
    assert split_repo.list_versions(MODEL, "state") == [1]


def test_a_namespace_that_nobody_saved_to_yet_is_sound(repo_dir: Path) -> None:
    with (repo_dir / ".swamp.yaml").open("a") as file:
        file.write("datastore:\n  namespace: infra\n")
    with swampstore.open_repo(repo_dir) as repo:
        assert examine(repo).ok


def test_a_datastore_that_cannot_be_written_is_found_and_nothing_is_repaired(
    repo: Repo, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "latest").unlink()

    def refuse(*_arguments: Any, **_details: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("swampstore.doctor.try_writing", refuse)
    report = examine(repo, repair=True)
    assert failures(report) == {"datastore", "latest_markers"}
    assert not (data / "latest").exists()


def test_the_probe_leaves_nothing_behind(repo: Repo, data: Path) -> None:
    before = snapshot(Path(repo.config.repo_dir))
    examine(repo)
    after = snapshot(Path(repo.config.repo_dir))
    assert {path for path in before.keys() ^ after.keys() if "swampstore.db" not in path} == set()


def test_files_in_the_right_tiers_pass(split_repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "repo/.swamp/outputs/x").mkdir(parents=True)
    (tmp_path / "repo/.swamp/outputs/x/run.log").write_text("logs are always local")
    (tmp_path / "repo/.swamp/secrets").mkdir()
    (tmp_path / "repo/.swamp/secrets/key").write_text("secrets are too")
    (tmp_path / "repo/.swamp/data/_catalog.db").write_text("another client's catalog")
    assert failures(examine(split_repo)) == set()


@pytest.mark.parametrize(
    "path",
    [
        "store/data/aws/ec2/i-1/state/1/raw",
        "repo/.swamp/data/aws/ec2/i-1/state/latest",
        "store/outputs/secret/a.yaml",
        "repo/.swamp/outputs/public/a.yaml",
        "store/audit/commands.jsonl",
    ],
)
def test_a_file_in_the_wrong_tier_is_found(split_repo: Repo, tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("lost")
    report = examine(split_repo)
    assert finding(report, "tiers").details == (str(tmp_path / path),)
    assert failures(report) == {"tiers"}


def test_data_in_the_tier_that_nobody_looks_at_is_found(repo_dir: Path, tmp_path: Path) -> None:
    with swampstore.open_repo(repo_dir, durable=False) as repo:
        repo.artifacts.save(MODEL, "state", b"content")
    (tmp_path / "elsewhere").mkdir()
    with swampstore.open_repo(repo_dir, datastore=f"filesystem:{tmp_path}/elsewhere") as repo:
        report = examine(repo)
    assert len(finding(report, "tiers").details) == 3


@pytest.mark.parametrize("subdir", ["secrets", "bundles"])
def test_what_must_stay_local_is_found_in_the_datastore(
    split_repo: Repo, tmp_path: Path, subdir: str
) -> None:
    (tmp_path / "store" / subdir).mkdir()
    (tmp_path / "store" / subdir / "key").write_text("x")
    report = examine(split_repo)
    assert failures(report) == {"local_only"}
    assert finding(report, "local_only").details == (str(tmp_path / "store" / subdir / "key"),)


# The catalog -------------------------------------------------------------------------------


def test_a_damaged_catalog_is_found_left_alone_and_replaced_on_request(
    repo: Repo, data: Path
) -> None:
    repo.catalog.close()
    path = Path(repo.config.local_dir, "swampstore.db")
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    damaged = path.read_bytes()
    report = examine(repo)
    assert failures(report) == {"catalog", "catalog_completeness"}
    assert path.read_bytes() == damaged
    assert examine(repo, repair=True).ok
    assert examine(repo).ok
    assert repo.list_versions(MODEL, "state") == [1, 2, 3]


def test_a_catalog_whose_pages_are_damaged_is_found(repo: Repo, data: Path) -> None:
    repo.catalog.rows.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
    repo.catalog.close()
    path = Path(repo.config.local_dir, "swampstore.db")
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    assert "catalog" in failures(examine(repo))
    assert examine(repo, repair=True).ok
    assert examine(repo).ok


def test_a_repair_on_a_full_disk_takes_no_catalog_for_damaged(repo: Repo, data: Path) -> None:
    path = Path(repo.config.local_dir, "swampstore.db")
    repo.close()

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [sys.executable, "-m", "swampstore", "doctor", "--repair", "--json"]
    command += ["--repo", repo.config.repo_dir]
    content = path.read_bytes()
    done = subprocess.run(command, capture_output=True, check=False, preexec_fn=fill_the_disk)
    found = {one["check"]: one for one in json.loads(done.stdout)["healthFindings"]}
    assert "cannot be used" in found["catalog"]["message"]
    assert "nothing is repaired" in found["catalog"]["message"]
    assert done.returncode == 1
    assert path.read_bytes() == content
    assert not list(path.parent.glob("*.damaged*"))


def test_a_catalog_of_another_schema_is_found(repo: Repo, data: Path) -> None:
    repo.catalog.rows.write(lambda db: db.execute("PRAGMA user_version = 0"))
    repo.catalog.close()
    report = examine(repo)
    assert "schema is 0" in finding(report, "catalog").message
    assert examine(repo, repair=True).ok


def test_a_catalog_that_is_missing_lacks_everything_and_is_not_made(repo: Repo, data: Path) -> None:
    repo.catalog.close()
    for path in Path(repo.config.local_dir).glob("swampstore.db*"):
        path.unlink()
    report = examine(repo)
    assert failures(report) == {"catalog_completeness"}
    assert not Path(repo.config.local_dir, "swampstore.db").exists()
    assert report.to_json()["catalogCompletenessFinding"]["shortfalls"] == [
        {"typeNormalized": "@acme/probe", "diskRecords": 2, "catalogRecords": 0},
        {"typeNormalized": "aws/ec2", "diskRecords": 2, "catalogRecords": 0},
    ]
    repaired = examine(repo, repair=True)
    assert repaired.ok
    assert finding(repaired, "catalog_completeness").repaired
    assert examine(repo).ok


def delete_rows(repo: Repo, condition: str) -> None:
    repo.catalog.rows.write(lambda db: db.execute(f"DELETE FROM catalog WHERE {condition}"))


@pytest.mark.parametrize(
    ("condition", "member"),
    [
        ("data_name = 'state'", "shortfalls"),
        ("data_name = 'state' AND version = 1", "outdated"),
        ("data_name = 'state' AND version = 3", "shortfalls"),
    ],
)
def test_rows_that_are_missing_are_found_and_restored(
    repo: Repo, data: Path, condition: str, member: str
) -> None:
    delete_rows(repo, condition)
    report = examine(repo)
    assert failures(report) == {"catalog_completeness"}
    (counted,) = report.to_json()["catalogCompletenessFinding"][member]
    assert counted["typeNormalized"] == "aws/ec2"
    assert counted["diskRecords"] == 2
    assert examine(repo, repair=True).ok
    assert examine(repo).ok


def test_rows_of_data_that_is_gone_are_found_and_removed(repo: Repo, data: Path) -> None:
    data.rename(Path(repo.config.repo_dir, "taken-away"))
    report = examine(repo)
    assert report.to_json()["catalogCompletenessFinding"]["excess"] == [
        {"typeNormalized": "aws/ec2", "diskRecords": 1, "catalogRecords": 2}
    ]
    assert examine(repo, repair=True).ok
    assert repo.list_versions(MODEL, "state") == []


def test_a_version_taken_away_is_out_of_date_and_not_too_many(repo: Repo, data: Path) -> None:
    (data / "3").rename(Path(repo.config.repo_dir, "taken-away"))
    (data / "latest").write_text("2")
    report = examine(repo).completeness
    assert report is not None
    assert (report.total("outdated"), report.total("excess"), report.total("missing")) == (1, 0, 0)


def test_examining_alone_changes_nothing(repo: Repo, data: Path) -> None:
    (data / "latest").write_text("1")
    (data / "9").mkdir()
    delete_rows(repo, "data_name = 'log'")
    repo.catalog.intend({STATE.rel: '{"op": "delete"}'})
    rows = repo.catalog.rows.read(lambda db: db.execute("SELECT * FROM catalog").fetchall())
    before = snapshot(Path(repo.config.local_dir, "data"))
    assert not examine(repo).ok
    assert snapshot(Path(repo.config.local_dir, "data")) == before
    assert repo.catalog.rows.read(lambda db: db.execute("SELECT * FROM catalog").fetchall()) == rows
    assert len(repo.catalog.pending()) == 1


def test_unfinished_changes_are_found_and_finished(repo: Repo, data: Path) -> None:
    repo.catalog.intend({STATE.rel: '{"op": "save"}'})
    report = examine(repo)
    assert failures(report) == {"unfinished_changes"}
    assert finding(report, "unfinished_changes").details == (f"{STATE.rel}: save",)
    repaired = examine(repo, repair=True)
    assert repaired.ok
    assert finding(repaired, "unfinished_changes").repaired
    assert repo.catalog.pending() == []


def test_a_change_that_is_finished_while_we_look_is_none_to_worry_about(
    repo: Repo, data: Path
) -> None:
    repo.catalog.intend({STATE.rel: '{"op": "save"}'})
    finishing = threading.Timer(0.15, lambda: repo.catalog.settle([STATE.rel]))
    finishing.start()
    try:
        assert examine(repo).ok
    finally:
        finishing.join()


# Markers -----------------------------------------------------------------------------------


def remove_marker(data: Path) -> None:
    (data / "latest").unlink()


def fill_marker(text: str) -> Callable[[Path], None]:
    def write(data: Path) -> None:
        (data / "latest").write_text(text)

    return write


@pytest.mark.parametrize(
    "damage",
    [remove_marker, fill_marker(""), fill_marker("x"), fill_marker("2"), fill_marker("7")],
    ids=["missing", "empty", "nonsense", "behind", "dangling"],
)
def test_a_wrong_latest_marker_is_found_and_repointed(
    repo: Repo, data: Path, damage: Callable[[Path], None]
) -> None:
    damage(data)
    report = examine(repo)
    assert "latest_markers" in failures(report)
    assert str(data / "latest") in finding(report, "latest_markers").details[0]
    repaired = examine(repo, repair=True)
    assert repaired.ok
    assert finding(repaired, "latest_markers").repaired
    assert (data / "latest").read_text() == "3"
    assert examine(repo).ok
    assert repo.latest(MODEL, "state").version == 3


def test_a_marker_that_is_a_link_of_old_is_sound(repo: Repo, data: Path) -> None:
    (data / "latest").unlink()
    (data / "latest").symlink_to("3/")
    assert failures(examine(repo)) == set()


def test_a_marker_is_never_pointed_at_a_version_that_cannot_be_read(repo: Repo, data: Path) -> None:
    (data / "latest").unlink()
    (data / "3/metadata.yaml").write_text("id: [")
    assert failures(examine(repo, repair=True)) == {"metadata"}
    assert (data / "latest").read_text() == "2"


def test_a_marker_without_any_version_is_found(repo: Repo, data: Path) -> None:
    stray = Path(repo.tree.path(f"data/{MODEL}/stray/latest"))
    stray.parent.mkdir()
    stray.write_text("1")
    report = examine(repo, repair=True)
    assert failures(report) == {"latest_markers"}
    assert finding(report, "latest_markers").repaired is False


def test_versions_that_wait_for_their_commit_are_sound(repo: Repo, data: Path) -> None:
    draft = Draft(owner=Owner(ref="i-1"))
    with repo.artifacts.deferring() as deferral:
        deferral.save(STATE, b"later", draft)
        deferral.save(STATE._replace(name="new"), b"later", draft)
        assert failures(examine(repo)) == set()


# Versions ----------------------------------------------------------------------------------


def test_metadata_that_cannot_be_decoded_is_found(repo: Repo, data: Path) -> None:
    (data / "2/metadata.yaml").write_text("id: [")
    report = examine(repo)
    assert failures(report) == {"metadata", "catalog_completeness"}
    assert str(data / "2/metadata.yaml") in finding(report, "metadata").details[0]


def test_metadata_of_another_version_is_found(repo: Repo, data: Path) -> None:
    (data / "2/metadata.yaml").write_bytes((data / "1/metadata.yaml").read_bytes())
    assert "metadata" in failures(examine(repo))


def test_no_more_than_twenty_problems_are_named_but_all_are_counted(repo: Repo, data: Path) -> None:
    for number in range(LISTED + 3):
        repo.artifacts.save(MODEL, f"n{number}", b"x")
        Path(repo.tree.path(f"data/{MODEL}/n{number}/1/raw")).unlink()
    found = finding(examine(repo), "content")
    assert len(found.details) == LISTED
    assert found.message.startswith(f"{LISTED + 3} ")


def test_content_that_is_missing_is_found(repo: Repo, data: Path) -> None:
    (data / "2/raw").unlink()
    report = examine(repo)
    assert failures(report) == {"content"}
    assert finding(report, "content").details == (f"{data / '2/raw'} is missing",)


def test_content_of_another_size_is_found_unless_it_is_streaming(repo: Repo, data: Path) -> None:
    (data.parent / "log/1/raw").write_text("a line that is still being written")
    assert failures(examine(repo)) == set()
    (data.parent / "log/1/raw").write_text("less")
    assert "has 4 bytes, not 5" in finding(examine(repo), "content_size").details[0]
    (data.parent / "log/1/raw").write_text("line\n")
    (data / "2/raw").write_text("short")
    report = examine(repo)
    assert failures(report) == {"content_size"}
    assert "has 5 bytes" in finding(report, "content_size").details[0]


# What does not belong ----------------------------------------------------------------------


def test_symbolic_links_are_found(repo: Repo, data: Path, tmp_path: Path) -> None:
    (data.parent / "linked").symlink_to(data)
    (data / "2/raw").rename(tmp_path / "raw")
    (data / "2/raw").symlink_to(tmp_path / "raw")
    found = finding(examine(repo), "symlinks")
    assert set(found.details) == {str(data.parent / "linked"), str(data / "2/raw")}


@pytest.mark.parametrize(
    "place", ["notes.txt", "aws/notes.txt", "aws/ec2/i-1/notes.txt", "aws/ec2/i-1/state/notes.txt"]
)
def test_files_where_directories_belong_are_found(repo: Repo, data: Path, place: str) -> None:
    path = Path(repo.tree.path(f"data/{place}"))
    path.write_text("x")
    report = examine(repo)
    assert failures(report) == {"strangers"}
    assert str(path) in finding(report, "strangers").details[0]


def test_directories_where_files_belong_are_found(repo: Repo, data: Path) -> None:
    (data / "2/attachments").mkdir()
    (data / "latest").unlink()
    (data / "latest").mkdir()
    assert len(finding(examine(repo), "strangers").details) == 2


def test_files_of_other_clients_belong(repo: Repo, data: Path) -> None:
    Path(repo.tree.path("data/_catalog.db")).write_text("x")
    Path(repo.tree.path("data/_catalog.db-wal")).write_text("x")
    Path(repo.tree.path(f"data/{MODEL}/.lock")).write_text("{}")
    assert failures(examine(repo)) == set()


def test_a_directory_that_cannot_be_read_is_found(
    repo: Repo, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse_one(path: str | int) -> Any:
        if str(path).endswith("/@acme"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr("swampstore.doctor.data.os.scandir", refuse_one)
    report = examine(repo, repair=True)
    assert "unreadable" in failures(report)
    assert repo.list_versions("@acme/probe/p-1", "207333") == [1]


# Leftovers ---------------------------------------------------------------------------------


def test_what_interrupted_writes_left_behind_is_found_and_swept_up(
    repo: Repo, data: Path, clock: Clock
) -> None:
    claim = data / "9"
    claim.mkdir()
    (claim / "raw").write_bytes(b"half")
    temp = data / ".12345678-1234-4234-8234-123456789abc.tmp"
    temp.write_bytes(b"half")
    make_old(clock, claim / "raw", claim, temp)
    report = examine(repo)
    assert failures(report) == {"leftovers"}
    assert len(finding(report, "leftovers").details) == 2
    repaired = examine(repo, repair=True)
    assert repaired.ok
    assert not claim.exists()
    assert not temp.exists()
    assert (data / "latest").read_text() == "3"


@pytest.mark.usefixtures("data")
def test_versions_that_nobody_committed_are_found_and_swept_up(repo: Repo) -> None:
    group = Hold()
    repo.store.save(STATE, b"later", Draft(owner=Owner(ref="i-1")), group=group)
    assert failures(examine(repo)) == set()
    group.release()
    assert failures(examine(repo)) == {"leftovers"}
    assert examine(repo, repair=True).ok
    assert repo.list_versions(MODEL, "state") == [1, 2, 3]


def test_writes_that_may_still_go_on_are_left_alone(repo: Repo, data: Path, clock: Clock) -> None:
    with repo.artifacts.writer(MODEL, "state") as writer:
        writer.write(b"x")
        make_old(clock, data / "4/raw", data / "4", days=0.9)
        assert failures(examine(repo, repair=True)) == set()
    assert repo.latest(MODEL, "state").version == 4


def test_content_in_the_other_tier_is_no_leftover(split_repo: Repo, clock: Clock) -> None:
    from swampstore.artifacts.recovery import sweep

    raw = Path(split_repo.tree.path("data/aws/ec2/i-1/state/1/raw"))
    make_old(clock, raw, raw.parent)
    assert failures(examine(split_repo)) == set()
    assert sweep(split_repo.store).leftovers == ()
    assert split_repo.latest(MODEL, "state").bytes() == b"content"


def test_a_name_that_is_being_changed_is_looked_at_again(
    repo: Repo, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look falls between the metadata and the marker of a save."""
    from swampstore import doctor
    from swampstore.doctor import data as doctor_data

    look = doctor_data.examine_name
    looks: list[DataRef] = []

    def look_in_between(tree: Any, ref: DataRef, **options: Any) -> Any:
        looks.append(ref)
        first = ref == STATE and looks.count(STATE) == 1
        (data / "latest").write_text("2" if first else "3")
        return look(tree, ref, **options)

    monkeypatch.setattr(doctor, "examine_name", look_in_between)
    assert examine(repo).ok
    assert looks.count(STATE) == 2


def test_memory_does_not_grow_with_the_number_of_names(repo: Repo) -> None:
    import tracemalloc

    def peak() -> int:
        tracemalloc.start()
        assert examine(repo).ok
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    def fill(first: int, last: int) -> None:
        for number in range(first, last):
            repo.artifacts.save(f"aws/ec2/i-{number // 20}", f"n{number}", b"x")
        repo.ready(complete=True)

    fill(0, 100)
    peak()
    small = peak()
    fill(100, 300)
    assert peak() < small + 100_000


def test_the_read_only_view_refuses_to_write(repo: Repo, data: Path) -> None:
    from swampstore.doctor.catalog import ReadOnlyRows

    rows = ReadOnlyRows(f"{repo.config.local_dir}/swampstore.db")
    with pytest.raises(AssertionError):
        rows.write(lambda db: db.execute("DELETE FROM catalog"))
    with pytest.raises(sqlite3.OperationalError):
        rows.read(lambda db: db.execute("DELETE FROM catalog"))
    rows.close()
