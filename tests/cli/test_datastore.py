"""The commands that choose a datastore: moving the data, stopping half-way, looking at it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, marker
from swampstore.datastore_address import Address
from swampstore.relocate import settings as new_settings
from swampstore.relocate import setup as setting_up
from swampstore.relocate.moving import Relocation
from swampstore.relocate.settings import written_settings
from swampstore.stores.directory import DirectoryStore
from swampstore.sync.handover import Handover
from swampstore.sync.service import SyncService
from tests.support.machines import Machine, contents

MODEL = "aws/ec2/i-1"
STATE = "data/aws/ec2/i-1/state"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def url(bucket: Path) -> str:
    return f"file://{bucket}"


@pytest.fixture
def machine(
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Machine]:
    def make(name: str) -> Machine:
        return Machine(tmp_path / name, capsysbinary, monkeypatch)

    return make


@pytest.fixture
def ana(machine: Callable[[str], Machine]) -> Machine:
    """A machine with two versions, a secret and an output, all in its repository."""
    found = machine("ana")
    found.put(MODEL, "state", "one")
    found.put(MODEL, "state", "two")
    for rel in ("secrets/key", "outputs/aws/run.yaml"):
        path = found.repo_dir / ".swamp" / rel
        path.parent.mkdir(parents=True)
        path.write_text(rel)
    return found


@pytest.fixture
def bob(machine: Callable[[str], Machine]) -> Machine:
    return machine("bob")


def settings(machine: Machine) -> Any:
    return marker.read_marker(str(machine.repo_dir)).get("datastore")


def local_files(machine: Machine) -> list[str]:
    """Return what is in the repository's own directory, without bookkeeping."""
    root = machine.repo_dir / ".swamp"
    found = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    return sorted(rel for rel in found if not rel.startswith("swampstore."))


# setup ------------------------------------------------------------------------------------------


def test_setup_takes_the_data_along(ana: Machine, bucket: Path, url: str) -> None:
    document = ana("datastore", "setup", url, "--json").json
    assert document.pop("bytesCopied") > 0
    assert document == {
        "type": "file",
        "location": str(ana.cache),
        "namespace": "",
        "filesCopied": 6,
        "filesPushed": 6,
        "filesPulled": 0,
        "filesRemoved": 6,
        "directoriesMigrated": ["data", "outputs"],
        "warnings": [],
    }
    assert settings(ana) == {"type": "file", "url": url, "hydrationStrategy": "lazy"}
    assert (bucket / f"{STATE}/2/raw").read_text() == "two"
    assert (bucket / "outputs/aws/run.yaml").exists()
    assert local_files(ana) == ["secrets/key"]
    assert not (bucket / "secrets").exists()
    assert ana.get(MODEL, "state") == "two"
    events = 1  # of the setup itself
    assert ana("sync", "--json").json["filesPushed"] == events


def test_setup_tells_it_in_words(ana: Machine, url: str) -> None:
    out = ana("datastore", "setup", url).out
    assert out.startswith(f"The datastore is file now, at {ana.cache}.\nCopied 6 files, ")
    assert "pushed 6, pulled 0, removed 6 where they were.\n" in out


def test_a_machine_without_data_gets_what_is_there(ana: Machine, bob: Machine, url: str) -> None:
    ana("datastore", "setup", url)
    document = bob("datastore", "setup", url, "--json").json
    assert (document["filesCopied"], document["filesPulled"]) == (0, 4)
    assert bob("datastore", "status", "--json").json["notHydrated"] == 2
    assert bob.get(MODEL, "state") == "two"
    assert bob("data", "query", 'name == "state"', "--json").json["total"] == 1


def test_data_of_the_same_name_from_two_machines_is_all_kept(
    ana: Machine, bob: Machine, url: str
) -> None:
    bob.put(MODEL, "state", "of bob")
    ana("datastore", "setup", url)
    document = bob("datastore", "setup", url, "--json").json
    assert any(warning.startswith(STATE) for warning in document["warnings"])
    assert local_files(bob) == []
    ana("sync")
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one", "two", "of bob"]
            assert repo.latest(MODEL, "state").text() == "of bob"


def test_setup_again_changes_nothing(ana: Machine, url: str) -> None:
    ana("datastore", "setup", url)
    before = (ana.repo_dir / ".swamp.yaml").read_bytes()
    document = ana("datastore", "setup", url, "--json").json
    assert document["filesCopied"] == document["filesPushed"] == document["filesPulled"] == 0
    assert (ana.repo_dir / ".swamp.yaml").read_bytes() == before


def stop_at(patch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Stop the process, as it were, when something is about to be done."""

    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(owner, name, stop)


STOPS: dict[str, tuple[object, str]] = {
    "probe": (setting_up, "probe"),
    "push": (SyncService, "push"),
    "pull": (SyncService, "pull"),
    "marker": (new_settings, "update_marker"),
    "removal": (Relocation, "remove_safe"),
    "one removal": (os, "unlink"),
}
# Files are moved one by one where others have data, else their directories are.
STOPS_ALONE: dict[str, tuple[object, str]] = {
    "announcement": (Handover, "announce"),
    "renaming": (setting_up, "give"),
}
STOPS_WITH_OTHERS: dict[str, tuple[object, str]] = {
    "copy": (Relocation, "copy"),
    "catalog": (Repo, "rebuild_catalog"),
}


@pytest.mark.parametrize(
    ("with_others", "stop"),
    [
        *((False, one) for one in STOPS | STOPS_ALONE),
        *((True, one) for one in STOPS | STOPS_WITH_OTHERS),
    ],
)
def test_a_setup_that_was_stopped_can_be_run_again(
    ana: Machine,
    bob: Machine,
    url: str,
    stop: str,
    with_others: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = ["one", "two"]
    if with_others:
        bob.put(MODEL, "state", "of bob")
        expected.insert(0, "of bob")
    bob("datastore", "setup", url)
    with monkeypatch.context() as patch:
        stop_at(patch, *(STOPS | STOPS_ALONE | STOPS_WITH_OTHERS)[stop])
        assert ana("datastore", "setup", url).status == 130
    # Whatever happened, everything can be read.
    with ana.open() as repo:
        assert set(contents(repo, MODEL, "state")) >= {"one", "two"}
    assert ana("datastore", "setup", url).status == 0
    assert local_files(ana) == ["secrets/key"]
    bob("sync")
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == expected


@pytest.mark.parametrize(
    ("source", "stride"),
    [("alone", "61"), ("files", "41"), ("repository", "131"), ("remote", "149")],
)
def test_a_setup_that_was_killed_can_be_run_again(tmp_path: Path, source: str, stride: str) -> None:
    """SWAMPSTORE_KILL_STRIDE=1 kills it at every line."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.support.killing_setup"),
            *(os.environ.get("SWAMPSTORE_KILL_STRIDE", stride), tmp_path, source),
        ],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"SWAMPSTORE_FSYNC": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_store_that_cannot_be_trusted_is_refused(
    ana: Machine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: DirectoryStore, key: str, data: bytes, token: str = "") -> object:
        return self.put(key, data)

    monkeypatch.setattr(DirectoryStore, "put_if_absent", careless)
    error = ana("datastore", "setup", url, "--json").error
    assert error["code"] == "store_untrustworthy"
    assert settings(ana) is None
    assert ana.get(MODEL, "state") == "two"


def test_a_store_that_does_not_answer_is_refused(ana: Machine, bucket: Path) -> None:
    error = ana("datastore", "setup", f"file://{bucket}/missing", "--json").error
    assert error["code"] == "store_not_mounted"
    assert settings(ana) is None


@pytest.mark.parametrize("options", [[], ["--skip-migration"], ["--namespace", "infra"]])
def test_a_bucket_that_is_the_repository_itself_is_refused(
    ana: Machine, options: list[str]
) -> None:
    before = sorted(ana.repo_dir.iterdir())
    error = ana("datastore", "setup", f"file://{ana.repo_dir}", *options, "--json").error
    assert error["code"] == "validation_failed"
    assert "is the repository itself" in error["error"]
    assert settings(ana) is None
    assert sorted(ana.repo_dir.iterdir()) == before
    assert ana.get(MODEL, "state") == "two"


def test_a_kind_of_store_that_is_not_installed_is_refused(ana: Machine) -> None:
    error = ana("datastore", "setup", "mongo", "--config", "{}", "--json").error
    assert error["code"] == "config_invalid"
    assert "mongo" in error["error"]


def test_a_type_has_its_members_in_json(ana: Machine, bucket: Path) -> None:
    members = f'{{"path": "{bucket}", "token": "hush", "syncTimeoutMs": 5000}}'
    document = ana("datastore", "setup", "file", "--config", members, "--json").json
    assert settings(ana) == {
        "type": "file",
        "config": {"path": str(bucket)},
        "syncTimeoutMs": 5000,
        "hydrationStrategy": "lazy",
    }
    assert any("token" in warning for warning in document["warnings"])
    assert "hush" not in str(document)


@pytest.mark.parametrize(
    "arguments",
    [
        ["s3://b", "--config", "{}"],
        ["file", "--config", "{"],
        ["file", "--config", "[]"],
        ["/mnt/share"],
        ["filesystem:"],
        ["file:///x", "--namespace", "Not/One"],
        ["file:///x", "--index", "v3"],
    ],
)
def test_what_names_no_datastore_is_refused(ana: Machine, arguments: list[str]) -> None:
    assert ana("datastore", "setup", *arguments, "--json").error["code"] in (
        *("usage", "config_invalid", "validation_failed"),
    )
    assert settings(ana) is None


def test_data_goes_to_its_namespace(ana: Machine, bucket: Path, url: str) -> None:
    ana("datastore", "setup", url, "--namespace", "infra")
    assert settings(ana) == {
        "type": "file",
        "url": url,
        "namespace": "infra",
        "hydrationStrategy": "lazy",
    }
    assert (bucket / f"infra/{STATE}/2/raw").read_text() == "two"
    assert ana.get(MODEL, "state") == "two"
    assert ana("data", "query", 'name == "state"', "--json").json["total"] == 1
    # The namespace stays when nothing is said about it.
    ana("datastore", "setup", url)
    assert settings(ana)["namespace"] == "infra"


def test_data_can_be_left_where_it_is(ana: Machine, bucket: Path, url: str) -> None:
    document = ana("datastore", "setup", url, "--skip-migration", "--json").json
    assert document["filesCopied"] == document["filesPushed"] == 0
    assert list(bucket.rglob("raw")) == []
    assert f"{STATE}/2/raw" in local_files(ana)
    assert ana("data", "get", MODEL, "state").status == 1


def test_other_settings_and_comments_stay(ana: Machine, url: str) -> None:
    marker = ana.repo_dir / ".swamp.yaml"
    marker.write_text(
        f"{marker.read_text()}# ours\ndatastore:\n  type: filesystem  # was\n  exclude: [logs/**]\n"
    )
    ana("datastore", "setup", url)
    assert settings(ana) == {
        "type": "file",
        "exclude": ["logs/**"],
        "url": url,
        "hydrationStrategy": "lazy",
    }
    assert "# ours" in marker.read_text()


def test_setup_can_say_that_pulls_bring_content(ana: Machine, bob: Machine, url: str) -> None:
    ana("datastore", "setup", url)
    document = bob("datastore", "setup", url, "--hydration-strategy", "full", "--json").json
    assert document["filesPulled"] == 6
    assert settings(bob)["hydrationStrategy"] == "full"
    # What the marker says stays, until something else is said.
    bob("datastore", "setup", url)
    assert settings(bob)["hydrationStrategy"] == "full"
    document = bob("datastore", "setup", url, "--hydration-strategy", "lazy", "--json").json
    assert settings(bob)["hydrationStrategy"] == "lazy"
    assert document["filesPulled"] == 0


def test_a_shared_directory_is_copied_and_left_alone(
    ana: Machine, url: str, tmp_path: Path
) -> None:
    share = tmp_path / "share"
    ana("datastore", "setup", f"filesystem:{share}")
    document = ana("datastore", "setup", url, "--json").json
    events = 1  # of the first setup
    assert document["filesCopied"] == document["filesPushed"] == 6 + events
    assert document["filesRemoved"] == 0
    assert any(str(share) in warning for warning in document["warnings"])
    assert (share / f"{STATE}/2/raw").exists()


# Back to the file system ------------------------------------------------------------------------


def test_a_remote_can_be_left_again(ana: Machine, bob: Machine, bucket: Path, url: str) -> None:
    ana("datastore", "setup", url)
    bob("datastore", "setup", url)
    bob.put(MODEL, "state", "of bob")
    bob("sync")
    ana.put(MODEL, "mine", "not pushed")
    document = ana("datastore", "setup", "filesystem", "--json").json
    events = 1  # of what bob did
    assert (document["type"], document["filesPulled"]) == ("filesystem", 3 + events)
    assert settings(ana) == {"type": "filesystem"}
    assert (ana.get(MODEL, "state"), ana.get(MODEL, "mine")) == ("of bob", "not pushed")
    assert (bucket / f"{STATE}/2/raw").exists()
    with ana.open() as repo:
        assert Path(repo.latest(MODEL, "state").path).is_relative_to(ana.repo_dir)


def test_content_that_never_came_here_comes_before_a_remote_is_left(
    ana: Machine, bob: Machine, bucket: Path, url: str
) -> None:
    ana("datastore", "setup", url)
    bob.use(bucket, hydrationStrategy="lazy")
    bob("sync")
    assert bob("datastore", "setup", "filesystem").status == 0
    assert bob.get(MODEL, "state", "--version", "1") == "one"


def test_data_moves_to_another_directory_and_back(ana: Machine, tmp_path: Path) -> None:
    ana("datastore", "setup", f"filesystem:{tmp_path}/share", "--namespace", "infra")
    assert settings(ana)["path"] == f"{tmp_path}/share"
    assert (tmp_path / f"share/infra/{STATE}/2/raw").read_text() == "two"
    assert local_files(ana) == ["secrets/key"]
    assert ana.get(MODEL, "state") == "two"
    ana("datastore", "setup", "filesystem")
    assert settings(ana) == {"type": "filesystem", "namespace": "infra"}
    assert ana.get(MODEL, "state") == "two"


def test_other_data_in_the_way_is_not_replaced(ana: Machine, tmp_path: Path) -> None:
    theirs = tmp_path / "share/outputs/aws/run.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    error = ana("datastore", "setup", f"filesystem:{tmp_path}/share", "--json").error
    assert error["code"] == "already_exists"
    assert "outputs/aws/run.yaml" in error["error"]
    assert settings(ana) is None
    assert theirs.read_text() == "theirs"
    assert ana.get(MODEL, "state") == "two"


def test_a_remote_can_be_exchanged_for_another_one(
    ana: Machine, bob: Machine, url: str, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    ana("datastore", "setup", url)
    ana.put(MODEL, "state", "three")
    assert ana("datastore", "setup", f"file://{tmp_path}/second").status == 0
    bob("datastore", "setup", f"file://{tmp_path}/second")
    with bob.open() as repo:
        assert contents(repo, MODEL, "state") == ["one", "two", "three"]


# What is written --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "written"),
    [
        (
            Address("s3://bucket/a/b/?region=r&pullConcurrency=3&forcePathStyle=true"),
            {
                "type": "@swamp/s3-datastore",
                "config": {
                    "region": "r",
                    "pullConcurrency": 3,
                    "forcePathStyle": True,
                    "bucket": "bucket",
                    "prefix": "a/b",
                },
            },
        ),
        (
            Address("gs://bucket"),
            {"type": "@swamp/gcs-datastore", "config": {"bucket": "bucket"}},
        ),
        (Address("az://c/p?account=a"), {"type": "az", "url": "az://c/p?account=a"}),
        (
            Address("s3", {"bucket": "b", "secretAccessKey": "s", "hydrationStrategy": "lazy"}),
            {
                "type": "@swamp/s3-datastore",
                "config": {"bucket": "b"},
                "hydrationStrategy": "lazy",
            },
        ),
        (Address("filesystem", path="~/share"), {"type": "filesystem", "path": "~/share"}),
        (Address("filesystem"), {"type": "filesystem"}),
    ],
)
def test_a_datastore_is_written_so_that_other_clients_understand_it(
    address: Address, written: dict[str, Any]
) -> None:
    assert written_settings(address) == written


# status and migrate-index -----------------------------------------------------------------------


def test_status_of_a_datastore_that_is_used_in_place(ana: Machine) -> None:
    document = ana("datastore", "status", "--json").json
    assert document["type"] == "filesystem"
    assert document["path"] == str(ana.repo_dir / ".swamp")
    assert "data" in document["directories"]
    assert "path " in ana("datastore", "status").out


def test_status_of_a_remote_needs_no_remote(ana: Machine, url: str) -> None:
    ana("datastore", "setup", url)
    ana.put(MODEL, "state", "three")
    document = ana("datastore", "status", "--json").json
    assert document["target"] == url
    assert document["cacheDir"] == str(ana.cache)
    assert (document["files"], document["notHydrated"]) == (6, 0)
    assert document["dirtyPaths"] == [STATE]
    assert document["needsFullWalk"] is False
    assert document["indexVersion"] == 1
    assert document["lastVerified"]
    assert "check" not in document
    out = ana("datastore", "status").out
    assert f"dirty: {STATE}" in out
    assert "needsFullWalk  no" in out


def test_status_asks_the_remote_if_told_to(ana: Machine, url: str) -> None:
    ana("datastore", "setup", url)
    check = ana("datastore", "status", "--check", "--json").json["check"]
    assert check["healthy"] is True
    assert check["latencyMs"] >= 0
    assert {proof["name"] for proof in check["proofs"] if proof["ok"]} >= {
        *("conditional create", "conditional update"),
    }
    assert "conditional update" in ana("datastore", "status", "--check").out


def test_status_tells_that_a_bucket_is_not_mounted(ana: Machine, bucket: Path, url: str) -> None:
    ana("datastore", "setup", url)
    bucket.rename(bucket.with_name("unmounted"))
    document = ana("datastore", "status", "--json").json
    assert document["target"] == url
    assert document["check"]["healthy"] is False
    assert str(bucket) in document["check"]["message"]
    assert "is not a directory" in ana("datastore", "status").out


def test_status_shows_no_credentials(ana: Machine, bucket: Path) -> None:
    config = {"path": str(bucket), "accessKeyId": "hush"}
    marker.update_marker(str(ana.repo_dir), {"datastore": {"type": "file", "config": config}})
    outcome = ana("datastore", "status", "--json")
    assert outcome.json["config"] == {"path": str(bucket)}
    assert "hush" not in ana("datastore", "status").out


def test_the_index_of_a_new_remote_can_be_sharded_at_once(ana: Machine, url: str) -> None:
    ana("datastore", "setup", url, "--index", "sharded")
    document = ana("datastore", "status", "--json").json
    assert document["indexVersion"] == 2
    assert document["commitSeq"] >= 1
    warnings = ana("datastore", "setup", url, "--index", "v1", "--json").json["warnings"]
    assert warnings == ["the index of the remote is the sharded one, and stays so"]


def test_the_index_can_be_made_sharded_later(ana: Machine, bob: Machine, url: str) -> None:
    ana("datastore", "setup", url)
    bob("datastore", "setup", url)
    document = ana("datastore", "migrate-index", "--json").json
    assert document["version"] == 2
    assert document["partitions"] >= 2
    assert "version 2" in ana("datastore", "migrate-index").out
    ana.put(MODEL, "state", "three")
    ana("sync")
    bob("sync")
    assert bob.get(MODEL, "state") == "three"
