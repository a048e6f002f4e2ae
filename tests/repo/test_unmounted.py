"""A share that is not mounted: nothing is taken for deleted, and with a remote work goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swampstore.errors import EXIT_NOT_PUSHED
from swampstore.marker import update_marker
from swampstore.pipeline.places import places_of
from swampstore.stores.directory import LOCKS, DirectoryStore
from swampstore.stores.errors import StoreNotMountedError
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"


def gone(bucket: Path) -> None:
    """A share whose mount point is not there either."""
    bucket.rename(bucket.with_name("away"))


def empty(bucket: Path) -> None:
    """A share of which the mount point is left."""
    gone(bucket)
    bucket.mkdir()


def signposted(bucket: Path) -> None:
    """A mount point in which somebody left a note and a file system its directory."""
    empty(bucket)
    (bucket / "NOT-MOUNTED").write_text("mount it first")
    (bucket / "lost+found").mkdir()


def mounted_again(bucket: Path) -> None:
    if bucket.exists():
        shutil.rmtree(bucket)
    bucket.with_name("away").rename(bucket)


def everything_in(bucket: Path) -> set[str]:
    return {str(path) for path in bucket.rglob("*")} if bucket.exists() else set()


@pytest.fixture
def saved(ana: Machine, bob: Machine) -> None:
    """Two names that both machines know."""
    for name in ("state", "old"):
        assert ana("data", "put", MODEL, name, stdin=b"one").status == 0
    assert bob("sync").status == 0


unmounted = pytest.mark.parametrize("unmount", [gone, empty, signposted])


@unmounted
@pytest.mark.usefixtures("saved")
def test_without_its_share_a_command_does_its_work_and_the_share_gets_it_later(
    ana: Machine, bob: Machine, bucket: Path, unmount: Callable[[Path], None]
) -> None:
    unmount(bucket)
    before = everything_in(bucket)
    put = ana("data", "put", MODEL, "state", stdin=b"two")
    assert put.status == EXIT_NOT_PUSHED
    assert "Saved aws/ec2/i-1 state version 2" in put.out
    assert ana("data", "delete", MODEL, "old", "--yes").status == EXIT_NOT_PUSHED
    assert ana.get(MODEL, "state") == "two"
    assert everything_in(bucket) == before
    mounted_again(bucket)
    assert (ana("sync").status, bob("sync").status) == (0, 0)
    assert bob.get(MODEL, "state") == "two"
    assert bob.get(MODEL, "state", "--version", "1") == "one"
    assert bob("data", "get", MODEL, "old").status == 1


@unmounted
@pytest.mark.usefixtures("saved")
def test_a_share_that_is_not_mounted_is_no_empty_remote(
    ana: Machine, bob: Machine, bucket: Path, unmount: Callable[[Path], None]
) -> None:
    unmount(bucket)
    before = everything_in(bucket)
    for command in (["sync"], ["sync", "--full"], ["pull"], ["push"], ["doctor", "--repair"]):
        assert bob(*command).status != 0
    with ana.open() as repo, pytest.raises(StoreNotMountedError):
        places_of(repo)
    assert everything_in(bucket) == before
    mounted_again(bucket)
    for machine in (ana, bob):
        report = machine("sync", "--json").json
        assert (report["filesDeletedHere"], report["filesDeletedRemotely"]) == (0, 0)
        assert machine.get(MODEL, "state") == machine.get(MODEL, "old") == "one"


@pytest.mark.usefixtures("saved")
def test_a_run_leaves_nothing_where_a_share_would_be_mounted(ana: Machine, bucket: Path) -> None:
    empty(bucket)
    assert ana("run", MODEL, "greet", "--", "echo", "hello").status == EXIT_NOT_PUSHED
    assert everything_in(bucket) == set()


@pytest.mark.usefixtures("saved")
def test_whoever_emptied_a_share_says_so_and_it_is_filled_again(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    empty(bucket)
    hint = json.loads(ana("sync", "--json").stderr)["hint"]
    assert f"mkdir {bucket}/{LOCKS}" in hint
    (bucket / LOCKS).mkdir()
    assert (ana("sync").status, bob("sync").status) == (0, 0)
    assert (bucket / "data/aws/ec2/i-1/old/1/raw").read_bytes() == b"one"
    assert bob.get(MODEL, "state") == "one"


def test_a_share_that_nobody_has_synced_with_may_be_empty(ana: Machine, bucket: Path) -> None:
    shutil.rmtree(bucket)
    bucket.mkdir()
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == 0
    assert (bucket / "data/aws/ec2/i-1/state/1/raw").read_bytes() == b"one"


@pytest.fixture
def in_place(bucket: Path, ana: Machine) -> Machine:
    """A machine that uses a share in place, and has saved two versions there."""
    section = {"type": "filesystem", "path": str(bucket), "url": None, "hydrationStrategy": None}
    update_marker(str(ana.repo_dir), {"datastore": section})
    for content in (b"one", b"two"):
        assert ana("data", "put", MODEL, "state", stdin=content).status == 0
    return ana


@unmounted
@pytest.mark.parametrize(
    "command",
    [
        ["data", "put", MODEL, "state", "--json-value", "3"],
        ["data", "get", MODEL, "state"],
        ["data", "delete", MODEL, "state", "--version", "1"],
        ["run", MODEL, "greet", "--", "echo", "hello"],
        ["catalog", "rebuild"],
        ["doctor", "--repair"],
        ["datastore", "setup", "filesystem"],
    ],
    ids=" ".join,
)
def test_a_share_that_is_used_in_place_and_not_mounted_is_neither_written_nor_believed(
    in_place: Machine, bucket: Path, unmount: Callable[[Path], None], command: list[str]
) -> None:
    unmount(bucket)
    before = everything_in(bucket)
    outcome = in_place(*command)
    assert (outcome.status, "ount" in outcome.out + outcome.err) == (1, True)
    assert everything_in(bucket) == before
    mounted_again(bucket)
    assert in_place.get(MODEL, "state") == "two"
    assert "2 versions" in in_place("data", "versions", MODEL, "state", "--format", "table").out


@unmounted
def test_a_save_without_a_session_needs_the_share_that_it_knows_data_of(
    in_place: Machine, bucket: Path, unmount: Callable[[Path], None]
) -> None:
    unmount(bucket)
    with in_place.open() as repo, pytest.raises(StoreNotMountedError):
        repo.artifacts.save(MODEL, "state", b"three")
    mounted_again(bucket)
    in_place.put(MODEL, "state", "three")
    assert in_place.get(MODEL, "state", "--version", "3") == "three"


def test_whoever_emptied_a_share_that_is_used_in_place_says_so(
    in_place: Machine, bucket: Path
) -> None:
    empty(bucket)
    hint = in_place("data", "put", MODEL, "state", stdin=b"x").err
    assert f"mkdir {bucket}/{LOCKS}" in hint
    (bucket / LOCKS).mkdir()
    assert in_place("data", "put", MODEL, "state", stdin=b"x").status == 0
    assert in_place.get(MODEL, "state") == "x"


def test_a_directory_that_is_removed_under_a_store_does_not_look_empty(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with DirectoryStore(str(bucket), durable=False) as store:
        store.put("a/b", b"x")
        shutil.rmtree(bucket)
        bucket.mkdir()
        for ask in (
            lambda: store.get("a/b"),
            lambda: store.head("a/b"),
            lambda: list(store.list()),
            lambda: store.put("c", b"y"),
            lambda: store.delete("a/b"),
        ):
            with pytest.raises(StoreNotMountedError, match="was removed"):
                ask()
    assert os.listdir(bucket) == []
