"""Taking the data of a repository into its namespace and out again, wherever the datastore is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swampstore import init_repo, open_repo
from swampstore.errors import (
    AlreadyExistsError,
    DifferingDataError,
    NamespaceTakenError,
    SwampstoreError,
    ValidationError,
)
from swampstore.layout import MANIFEST
from swampstore.marker import update_marker
from swampstore.relocate import namespace_moving as moving
from swampstore.relocate.namespace import (
    Migration,
    migrate,
    preview_migration,
    set_namespace,
    unset_namespace,
)
from tests.support.command_line import CommandLine
from tests.support.machines import Machine
from tests.support.members import MODEL, Member, Place, bucket_in_a_directory, shared_directory

NAME = f"data/{MODEL}/state"


def namespaced(member: Member, slug: str = "infra") -> None:
    with member.open() as repo:
        set_namespace(repo, slug)


def migrated(member: Member, *, reverse: bool = False) -> Migration:
    with member.open() as repo:
        return migrate(repo, reverse=reverse)


# Into the namespace ----------------------------------------------------------------------------


def test_data_moves_into_the_namespace(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one", "two")
    ana.push()
    before = place.files()
    namespaced(ana)
    done = migrated(ana)
    assert [one.subdir for one in done.plan.directories] == ["data"]
    assert ana.read() == ["one", "two"]
    ana.push()
    after = place.files()
    for rel in (f"{NAME}/{version}/raw" for version in (1, 2)):
        assert after[f"infra/{rel}"] == before[rel]
        # Nothing tells whether others use what is on a remote.
        assert (after.get(rel) == before[rel]) == place.is_remote
    with ana.open() as repo:
        assert [one.name for one in repo.query('modelId == "i-1" && ns == "infra"')] == ["state"]


def test_where_there_is_a_remote_it_is_told_that_others_may_move_what_stays_there(
    place: Place,
) -> None:
    ana = place.member("ana")
    ana.save("one")
    ana.push()
    namespaced(ana)
    told = [one for one in migrated(ana).warnings if "other clients" in one]
    assert [("move those objects" in one, "swampstore sync" in one) for one in told] == (
        [(True, True)] if place.is_remote else []
    )


def test_a_preview_moves_nothing(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one")
    namespaced(ana)
    before = {path for path in ana.base.rglob("*") if path.is_file()}
    with ana.open() as repo:
        planned = preview_migration(repo)
    assert planned.plan.files == 3
    assert {path for path in ana.base.rglob("*") if path.is_file()} == before


def test_migrating_again_moves_nothing(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one")
    namespaced(ana)
    migrated(ana)
    assert migrated(ana).plan.directories == []
    assert ana.read() == ["one"]


def test_content_that_only_the_remote_has_comes_along(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    writer = place.member("writer")
    writer.save("one", "two")
    writer.push()
    ana = place.member("ana", hydrationStrategy="lazy")
    ana.pull(metadata_only=True)
    assert not list(ana.base.rglob("raw"))
    namespaced(ana)
    migrated(ana)
    ana.push()
    assert place.files()[f"infra/{NAME}/2/raw"] == b"two"
    # Even if everything else is gone.
    for key in place.keys(below="data/"):
        (tmp_path / "bucket" / key).unlink()
    shutil.rmtree(ana.base)
    ana.pull()
    assert ana.read() == ["one", "two"]


def test_after_it_was_pushed_nothing_waits_any_more(tmp_path: Path) -> None:
    ana = bucket_in_a_directory(tmp_path).member("ana")
    ana.save("one")
    namespaced(ana)
    migrated(ana)
    with ana.open() as repo:
        assert repo.dirty.peek().bulk
        repo.sync.push()
        assert repo.dirty.peek().is_empty


def test_another_machine_of_the_same_repository_follows(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    ana, copy = place.member("ana"), place.member("copy")
    update_marker(str(copy.repo_dir), {"repoId": ana.repo_id})
    ana.save("one")
    ana.push()
    copy.pull()
    namespaced(ana)
    migrated(ana)
    ana.save("two")
    ana.push()
    update_marker(str(copy.repo_dir), {"datastore": {"namespace": "infra"}})
    copy.pull()
    migrated(copy)
    copy.push()
    assert copy.read() == ["one", "two"]
    ana.pull()
    assert ana.read() == ["one", "two"]


def test_an_unreachable_remote_leaves_everything_where_it_is(tmp_path: Path) -> None:
    ana = bucket_in_a_directory(tmp_path).member("ana")
    ana.save("one")
    namespaced(ana)
    (tmp_path / "bucket").rename(tmp_path / "unmounted")
    with ana.open() as repo, pytest.raises(SwampstoreError):
        migrate(repo)
    assert (ana.base / NAME / "1/raw").exists()
    (tmp_path / "unmounted").rename(tmp_path / "bucket")
    migrated(ana)
    assert ana.read() == ["one"]


# What is in the way ------------------------------------------------------------------------------


def test_other_data_of_the_same_name_stops_it_before_anything_moves(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one", "two")
    namespaced(ana)
    ana.save("another one")
    with ana.open() as repo, pytest.raises(DifferingDataError, match=f"{NAME}/1/raw"):
        migrate(repo)
    assert ana.read() == ["another one"]
    assert (ana.base / NAME / "2/raw").read_text() == "two"


def test_data_beside_namespaces_of_others_is_not_taken(tmp_path: Path) -> None:
    place = shared_directory(tmp_path)
    ana, bob = place.member("ana"), place.member("bob")
    bob.save("of bob")
    for member, slug in ((ana, "infra"), (bob, "web")):
        namespaced(member, slug)
    for member in (ana, bob):
        with member.open() as repo, pytest.raises(AlreadyExistsError, match="may be theirs"):
            migrate(repo)
    assert (tmp_path / "share" / NAME / "1/raw").read_text() == "of bob"


def test_without_a_namespace_there_is_nowhere_to_move(tmp_path: Path) -> None:
    ana = shared_directory(tmp_path).member("ana")
    with ana.open() as repo, pytest.raises(ValidationError, match="no namespace"):
        migrate(repo)


# Out of it ---------------------------------------------------------------------------------------


def test_data_moves_out_again(place: Place) -> None:
    ana = place.member("ana")
    ana.save("one")
    before = {path.relative_to(ana.base) for path in ana.base.rglob("raw")}
    namespaced(ana)
    migrated(ana)
    ana.save("two")
    ana.push()
    with ana.open() as repo:
        assert unset_namespace(repo, move=True).to_json() == {"previousNamespace": "infra"}
    assert ana.read() == ["one", "two"]
    assert {path.relative_to(ana.base) for path in ana.base.rglob("raw")} > before
    assert not (ana.base / "infra").exists()
    ana.push()
    assert place.files()[f"{NAME}/2/raw"] == b"two"
    # Where objects stay, so does the sign that says whose they are.
    assert (f"infra/{MANIFEST}" in place.files()) == place.is_remote


def test_content_that_only_the_remote_has_comes_out_too(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    writer = place.member("writer", namespace="infra")
    writer.save("one")
    writer.push()
    ana = place.member("ana", namespace="infra", hydrationStrategy="lazy")
    ana.pull(metadata_only=True)
    with ana.open() as repo:
        unset_namespace(repo, move=True)
    ana.push()
    assert place.files()[f"{NAME}/1/raw"] == b"one"


def test_data_at_the_top_keeps_it_from_moving_out(tmp_path: Path) -> None:
    place = shared_directory(tmp_path)
    ana, bob = place.member("ana"), place.member("bob")
    namespaced(ana)
    ana.save("of ana")
    bob.save("of bob")
    with ana.open() as repo, pytest.raises(AlreadyExistsError, match="already: data"):
        unset_namespace(repo, move=True)
    assert ana.read() == ["of ana"]
    assert bob.read() == ["of bob"]


def test_a_move_out_alone_says_that_the_namespace_is_still_set(tmp_path: Path) -> None:
    ana = shared_directory(tmp_path).member("ana")
    namespaced(ana)
    ana.save("one")
    assert any("still set" in warning for warning in migrated(ana, reverse=True).warnings)
    with ana.open() as repo:
        unset_namespace(repo)
    assert ana.read() == ["one"]


def test_what_moved_out_goes_back_as_it_was_if_the_namespace_stays(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    ana, bob = place.member("ana", namespace="infra"), place.member("bob")
    ana.save("of ana")
    ana.push()
    bob.save("of bob")
    bob.push()
    migrated(ana, reverse=True)
    migrated(ana)
    ana.push()
    assert ana.read() == ["of ana"]
    assert f"infra/{NAME}/2/raw" not in place.files()
    assert f"{NAME}/2/raw" not in place.files()


def test_what_is_at_the_top_when_a_namespace_is_set_again_comes_along(tmp_path: Path) -> None:
    place = bucket_in_a_directory(tmp_path)
    ana, bob = place.member("ana", namespace="infra"), place.member("bob")
    ana.save("of ana")
    ana.push()
    migrated(ana, reverse=True)
    note = (ana.base / "infra/_catalog.db-moving").read_bytes()
    with ana.open() as repo:
        unset_namespace(repo)
    ana.push()
    bob.pull()
    bob.save("of bob")
    bob.push()
    # As if it had been killed before it could remove the note.
    (ana.base / "infra").mkdir()
    (ana.base / "infra/_catalog.db-moving").write_bytes(note)
    namespaced(ana)
    migrated(ana)
    assert ana.read() == ["of ana", "of bob"]


# The commands ------------------------------------------------------------------------------------


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    cli = CommandLine(repo_dir, capsysbinary, monkeypatch)
    cli("data", "put", MODEL, "state", stdin=b"one")
    return cli


def test_the_documents_of_a_migration(cli: CommandLine, repo_dir: Path) -> None:
    base = f"{repo_dir}/.swamp"
    set_ = cli("datastore", "namespace", "set", "infra", "--json").json
    assert set_["namespace"] == "infra"
    assert set_["datastorePath"] == base
    assert set_["registrationSkipped"] is False
    assert "stays" in set_["warning"]
    preview = cli("datastore", "namespace", "migrate", "--json").json
    data, audit = preview.pop("directories")
    assert data == {
        "subdir": "data",
        "source": f"{base}/data",
        "destination": f"{base}/infra/data",
        "fileCount": 3,
        "totalBytes": preview["totalBytes"] - audit["totalBytes"],
    }
    same = {"namespace": "infra", "datastorePath": base, "isExtensionDatastore": False}
    totals = {"totalFiles": 4, "totalBytes": preview["totalBytes"]}
    assert preview == {**same, **totals, "reverse": False, "confirm": False}
    done = cli("datastore", "namespace", "migrate", "-y", "--json").json
    assert done == {**same, **totals, "reverse": False, "migratedDirectories": ["data", "audit"]}
    assert cli("data", "get", MODEL, "state", "--raw").stdout == b"one"


def test_the_document_of_a_list(cli: CommandLine, repo_dir: Path) -> None:
    empty = cli("datastore", "namespace", "list", "--json").json
    assert empty == {"namespaces": [], "currentNamespace": None}
    assert "No namespace" in cli("datastore", "namespace", "list", "--format", "table").out
    cli("datastore", "namespace", "set", "infra")
    manifest = json.loads((repo_dir / ".swamp/infra" / MANIFEST).read_bytes())
    assert cli("datastore", "namespace", "list", "--json").json == {
        "namespaces": [{**manifest, "isCurrent": True}],
        "currentNamespace": "infra",
    }
    assert "infra" in cli("datastore", "namespace", "list").out


def test_unset_only_moves_when_it_is_confirmed(cli: CommandLine, repo_dir: Path) -> None:
    cli("datastore", "namespace", "set", "infra")
    cli("datastore", "namespace", "migrate", "--confirm")
    preview = cli("datastore", "namespace", "unset", "--migrate", "--json").json
    assert preview["reverse"] is True
    assert (repo_dir / ".swamp/infra" / NAME / "1/raw").exists()
    assert "--confirm" in cli("datastore", "namespace", "unset", "--migrate").out
    done = cli("datastore", "namespace", "unset", "--migrate", "--confirm", "--json").json
    assert done == {"previousNamespace": "infra"}
    assert cli("data", "get", MODEL, "state", "--raw").stdout == b"one"
    assert not (repo_dir / ".swamp/infra").exists()


def test_a_part_that_cannot_move_is_reported(
    cli: CommandLine, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("outputs", "audit"):
        (repo_dir / ".swamp" / name).mkdir(exist_ok=True)
        (repo_dir / ".swamp" / name / "x").write_text("x")
    cli("datastore", "namespace", "set", "infra")
    whole = moving._move_whole

    def fail(source: str, target: str) -> bool:
        if source.endswith("/outputs"):
            raise PermissionError(13, "no", source)
        return whole(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(moving, "_move_whole", fail)
        outcome = cli("datastore", "namespace", "migrate", "-y", "--json")
    assert outcome.status == 1
    document = json.loads(outcome.stdout)
    assert document["succeededDirectories"] == ["data"]
    assert document["failedDirectory"] == "outputs"
    assert document["code"] == "migration_incomplete"
    done = cli("datastore", "namespace", "migrate", "-y", "--json").json
    assert done["migratedDirectories"] == ["outputs", "audit"]


def test_a_variable_that_wins_is_told(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMP_NAMESPACE", "other")
    assert "SWAMP_NAMESPACE is set" in cli("datastore", "namespace", "set", "infra").err


# Kills -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["in place", "remote"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_migration_that_was_killed_can_be_run_again(
    kind: str, direction: str, tmp_path: Path
) -> None:
    """SWAMPSTORE_KILL_STRIDE=1 kills it at every line."""
    stride = os.environ.get("SWAMPSTORE_KILL_STRIDE", "29")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.killing_namespace",
            kind,
            direction,
            stride,
            tmp_path,
        ],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"SWAMPSTORE_FSYNC": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "leaving", [["unset"], ["unset", "--migrate", "--confirm"], ["set", "web"]]
)
def test_what_was_deleted_before_a_namespace_was_left_stays_deleted(
    ana: Machine, leaving: list[str]
) -> None:
    assert ana("datastore", "namespace", "set", "infra").status == 0
    ana.put(MODEL, "state", "one")
    ana.put(MODEL, "other", "two")
    assert ana("sync").status == 0
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    assert ana("datastore", "namespace", *leaving).status == 0
    assert ana("sync").status == 0
    assert ana("datastore", "namespace", "set", "infra").status == 0
    if leaving[0] == "unset":  # the events of the time without one are outside
        assert ana("datastore", "namespace", "migrate", "--confirm").status == 0
    assert ana("sync").status == 0
    assert ana.get(MODEL, "other") == "two"
    assert ana("data", "get", MODEL, "state").status != 0


def test_a_namespace_that_was_never_used_is_given_up_with_the_choice_of_another(
    ana: Machine, bob: Machine
) -> None:
    for name in ("infar", "infra"):
        assert ana("datastore", "namespace", "set", name).status == 0
    assert bob("datastore", "namespace", "set", "infar").status == 0
    assert bob("datastore", "namespace", "set", "infra").status == 1
    ana.put(MODEL, "state", "one")
    assert ana("sync").status == 0
    assert ana("datastore", "namespace", "set", "web").status == 0
    assert bob("datastore", "namespace", "set", "infra").status == 1


@pytest.mark.parametrize("other", ["", "web"])
def test_a_namespace_is_not_given_up_while_something_waits_in_it_to_be_pushed(
    place: Place, other: str
) -> None:
    ana, bob = place.member("ana"), place.member("bob")
    namespaced(ana)
    ana.save("one")
    with ana.open() as repo:
        set_namespace(repo, other) if other else unset_namespace(repo)
    with bob.open() as repo, pytest.raises(NamespaceTakenError):
        set_namespace(repo, "infra")
    namespaced(ana)
    assert ana.read() == ["one"]


def test_what_stays_beside_a_namespace_does_not_keep_data_from_coming_out_of_it(
    tmp_path: Path,
) -> None:
    init_repo(tmp_path).close()
    update_marker(str(tmp_path), {"datastore": {"exclude": ["data/host"]}})
    log = tmp_path / ".swamp/workflow-runs/w/workflow-run-r.log"
    log.parent.mkdir(parents=True)
    log.write_text("of a run")
    with open_repo(tmp_path) as repo:
        set_namespace(repo, "infra")
    with open_repo(tmp_path) as repo:
        repo.artifacts.save(MODEL, "state", "one")
        repo.artifacts.save("host/a", "state", "that stays here")
        repo.tree.replace_file("workflow-runs/w/workflow-run-r.yaml", b"{}")
    with open_repo(tmp_path) as repo:
        assert unset_namespace(repo, move=True).migration is not None
    with open_repo(tmp_path) as repo:
        assert repo.latest(MODEL, "state").text() == "one"
        assert repo.latest("host/a", "state").text() == "that stays here"
    assert log.read_text() == "of a run"
    assert log.with_suffix(".yaml").exists()
