"""A setup that gives the repository's own directory to the cache of its remote, by renaming.

Whenever it is stopped, the data is where the settings say once anything has opened the repository;
what does not suit it goes the way of all other moves.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.config import Config
from swampstore.datastore_address import Address
from swampstore.errors import DiskError
from swampstore.files.signature import signature
from swampstore.layout import CLAIM, DEFERRED, EXCHANGE
from swampstore.marker import read_marker
from swampstore.relocate import own_directory
from swampstore.relocate import setup as setting_up
from swampstore.relocate.report import SetupReport
from swampstore.relocate.setup import Setup, set_up_datastore
from swampstore.relocate.syncing import Syncing
from swampstore.stores import Store
from swampstore.stores.errors import StoreError
from swampstore.stores.probe import ProbeReport
from swampstore.sync.handover import Handover
from swampstore.sync.push import Push
from swampstore.sync.staged_cache import owner_of_remote
from tests.support.disks import remount, small_disk_at
from tests.support.machines import contents

MODEL = "aws/ec2/i-1"
STATE = "data/aws/ec2/i-1/state"
OUTPUT = "outputs/aws/run.yaml"


def _believe(store: Store, *, racers: int = 0) -> ProbeReport:
    return ProbeReport(store.identity, ())


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWAMPSTORE_FSYNC", "off")
    monkeypatch.setattr(setting_up, "probe", _believe)


class Desk:
    """A machine with a repository on it."""

    def __init__(self, directory: Path) -> None:
        self.repo_dir = directory / "repo"
        self.own = self.repo_dir / ".swamp"
        self.environ = {"SWAMP_HOME": str(directory / "home"), "SWAMPSTORE_FSYNC": "off"}
        init_repo(self.repo_dir).close()

    def open(self) -> Repo:
        return open_repo(self.repo_dir, environ=self.environ)

    def move(self, address: Address, **options: Any) -> SetupReport:
        with self.open() as repo:
            return set_up_datastore(repo, address, environ=self.environ, **options)

    def save(self, name: str, *contents: str) -> None:
        with self.open() as repo:
            for content in contents:
                repo.artifacts.save(MODEL, name, content)

    def texts(self, name: str = "state") -> list[str]:
        with self.open() as repo:
            return contents(repo, MODEL, name)

    def path(self, rel: str) -> Path:
        with self.open() as repo:
            return Path(repo.config.datastore_dir, rel)

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = read_marker(str(self.repo_dir)).get("datastore") or {}
        return found

    def payload(self) -> dict[str, bytes]:
        found = (path for path in self.own.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found if "swampstore." not in str(path)}


@pytest.fixture
def ana(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "ana")
    desk.save("state", "one", "two")
    output = desk.own / OUTPUT
    output.parent.mkdir(parents=True)
    output.write_text("status: ok\n")
    return desk


@pytest.fixture
def bob(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "bob")


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def remote(bucket: Path) -> Address:
    return Address(f"file://{bucket}")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The settings of those who handed something over."""
    found: list[Config] = []
    real = Handover.carry_out

    def noting(self: Handover, config: Config) -> list[str]:
        found.append(config)
        return real(self, config)

    monkeypatch.setattr(Handover, "carry_out", noting)
    return found


def inodes(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_ino
        for top in ("data", "outputs")
        for path in (directory / top).rglob("*")
    }


# What suits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", [None, "infra"])
@pytest.mark.parametrize("index", [None, "sharded"])
def test_files_and_directories_are_the_same_ones_in_the_cache(
    ana: Desk,
    bucket: Path,
    remote: Address,
    given: list[Config],
    namespace: str | None,
    index: Any,
) -> None:
    before = inodes(ana.own)
    report = ana.move(remote, namespace=namespace, index=index)
    assert len(given) == 1
    with ana.open() as repo:
        assert inodes(Path(repo.config.datastore_dir)) == before
        raws = [f"{STATE}/{version}/raw" for version in (1, 2)]
        known = repo.connection.base.get_many(raws)
        for rel in raws:
            assert known[rel].held == signature(repo.tree.path(rel))
        assert repo.dirty.peek().is_empty
        assert repo.sync.status().index_version == (2 if index else 1)
        assert contents(repo, MODEL, "state") == ["one", "two"]
    root = bucket / (namespace or "")
    assert (root / STATE / "2/raw").read_text() == "two"
    assert (report.warnings, report.files_pushed) == ([], 6)
    assert (report.files_copied, report.files_removed) == (6, 6)
    assert sorted(report.directories) == ["data", "outputs"]
    assert not (ana.own / EXCHANGE).exists()
    assert ana.payload() == {}


@pytest.mark.parametrize("way", ["renaming", "copying"])
def test_what_a_machine_keeps_beside_its_runs_stays_where_it_is_both_ways(
    ana: Desk,
    bucket: Path,
    remote: Address,
    given: list[Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    left: list[list[str]] = []

    def giving(config: Config, handover: Handover) -> list[str]:
        left.append(own_directory.give(config, handover))
        return left[-1]

    monkeypatch.setattr(setting_up, "give", giving)
    record, log, index = (
        f"workflow-runs/1/{name}"  # as a version is called
        for name in ("workflow-run-r.yaml", "workflow-run-r.log", ".runs-index.json")
    )
    if way == "copying":
        (ana.own / "data/odd").symlink_to(tmp_path)
    for rel in (record, log, index):
        (ana.own / rel).parent.mkdir(parents=True, exist_ok=True)
        (ana.own / rel).write_text("as it was")
    ana.move(remote)
    assert bool(given) == (way == "renaming")
    assert (bucket / record).exists()
    assert left == ([[]] if given else [])
    (ana.own / log).write_text("going on")  # as whoever resumes that run does
    with ana.open() as repo:
        repo.sync.push(full=True)
    for rel in (log, index):
        assert not (bucket / rel).exists()
        assert not ana.path(rel).exists()
    ana.move(Address("filesystem"))
    texts = {rel: (ana.own / rel).read_text() for rel in (record, log, index)}
    assert texts == {record: "as it was", log: "going on", index: "as it was"}
    assert ana.texts() == ["one", "two"]


def test_the_rows_of_the_catalog_stay(
    ana: Desk, remote: Address, given: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ana.open() as repo:
        repo.rebuild_catalog()
    with monkeypatch.context() as patch:
        patch.setattr(Repo, "rebuild_catalog", lambda *_: pytest.fail("a walk for nothing"))
        ana.move(remote)
        with ana.open() as repo:
            found = {(one.name, one.version) for one in repo.query("version > 0")}
    assert given
    assert found == {("state", 1), ("state", 2)}


def test_a_cache_with_a_limit_is_within_it_afterwards(
    ana: Desk, remote: Address, given: list[Config]
) -> None:
    marker = ana.repo_dir / ".swamp.yaml"
    marker.write_text(f"{marker.read_text()}\ndatastore:\n  cache:\n    maxBytes: 4\n")
    ana.move(remote)
    assert given
    with ana.open() as repo:
        assert repo.sync.status().content_bytes <= 4
    assert ana.texts() == ["one", "two"]


def test_a_file_with_another_link_keeps_it(ana: Desk, remote: Address, tmp_path: Path) -> None:
    os.link(ana.own / STATE / "1/raw", tmp_path / "backup")
    ana.move(remote)
    assert ana.path(f"{STATE}/1/raw").samefile(tmp_path / "backup")


# What does not suit ---------------------------------------------------------------------------


def _link(desk: Desk) -> None:
    (desk.own / "outputs/link").symlink_to("/etc/hostname")


def _fifo(desk: Desk) -> None:
    os.mkfifo(desk.own / "outputs/fifo")


def _hollow(desk: Desk) -> None:
    (desk.own / STATE / "1/raw").unlink()


def _unfinished(desk: Desk) -> None:
    (desk.own / STATE / "3").mkdir()
    (desk.own / STATE / "3/raw").write_text("half")


def _deferred(desk: Desk) -> None:
    (desk.own / STATE / "2" / DEFERRED).touch()


def _claimed(desk: Desk) -> None:
    (desk.own / STATE / "2" / CLAIM).touch()


def _directory_elsewhere(desk: Desk) -> None:
    elsewhere = desk.repo_dir.parent / "elsewhere"
    (desk.own / "data").rename(elsewhere)
    (desk.own / "data").symlink_to(elsewhere)


def _excluded(desk: Desk) -> None:
    marker = desk.repo_dir / ".swamp.yaml"
    marker.write_text(f"{marker.read_text()}\ndatastore:\n  exclude: ['outputs/**']\n")


@pytest.mark.parametrize(
    "spoil", [_link, _fifo, _hollow, _unfinished, _deferred, _claimed, _excluded]
)
def test_a_directory_with_something_that_has_to_stay_is_moved_file_by_file(
    ana: Desk, remote: Address, given: list[Config], spoil: Callable[[Desk], None]
) -> None:
    spoil(ana)
    ana.move(remote)
    assert given == []
    assert ana.settings["url"] == remote.target
    if spoil is _excluded:
        assert (ana.own / OUTPUT).read_text() == "status: ok\n"


def test_a_directory_that_is_a_link_is_not_renamed(
    ana: Desk, remote: Address, given: list[Config]
) -> None:
    _directory_elsewhere(ana)
    ana.move(remote)
    assert given == []
    assert ana.texts() == ["one", "two"]


def test_where_directories_cannot_be_renamed_files_are_moved(
    ana: Desk, remote: Address, given: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_directory, "_can_rename", lambda *_: False)
    ana.move(remote)
    assert given == []
    assert ana.texts() == ["one", "two"]


def test_where_others_have_data_files_are_moved(
    ana: Desk, bob: Desk, remote: Address, given: list[Config]
) -> None:
    bob.save("state", "of bob")
    bob.move(remote)
    given.clear()
    ana.move(remote)
    assert given == []
    assert ana.texts() == ["of bob", "one", "two"]


def test_where_the_cache_has_data_files_are_moved(
    ana: Desk, tmp_path: Path, remote: Address, given: list[Config]
) -> None:
    (tmp_path / "first").mkdir()
    ana.move(Address(f"file://{tmp_path}/first"))
    ana.move(Address("filesystem"))
    given.clear()
    ana.move(remote)
    assert given == []
    assert ana.texts() == ["one", "two"]


# Others are faster ----------------------------------------------------------------------------


def _others_push(patch: pytest.MonkeyPatch, moment: str, then: Callable[[], object]) -> None:
    """Have something happen, once, before a push looks at the remote, or before it commits."""
    real = Push.prepare
    waiting = [then]

    def preparing(self: Push, **options: Any) -> Any:
        happening = waiting.pop() if waiting else lambda: None
        if moment == "before":
            happening()
        prepared = real(self, **options)
        if moment == "after":
            happening()
        return prepared

    patch.setattr(Push, "prepare", preparing)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_push_that_meets_others_changes_nothing_where_the_files_still_count(
    ana: Desk,
    bob: Desk,
    remote: Address,
    given: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    bob.save("state", "of bob")
    (bob.own / OUTPUT).parent.mkdir(parents=True)
    (bob.own / OUTPUT).write_text("status: other\n")
    before = ana.payload()
    real = Setup._move_files
    seen: list[dict[str, bytes]] = []

    def looking(self: Setup, *args: Any, **options: Any) -> None:
        seen.append(ana.payload())
        real(self, *args, **options)

    monkeypatch.setattr(Setup, "_move_files", looking)
    _others_push(monkeypatch, moment, lambda: bob.move(remote))
    ana.move(remote)
    assert seen[-1] == before
    assert [one for one in given if one.repo_dir == str(ana.repo_dir)] == []
    assert sorted(ana.texts()) == ["of bob", "one", "two"]
    with bob.open() as repo:
        repo.sync.pull()
        assert sorted(contents(repo, MODEL, "state")) == ["of bob", "one", "two"]


# Somebody still works with the old settings ---------------------------------------------------


def _while_settings_are_written(patch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    real = Setup._write_settings

    def writing(self: Setup) -> None:
        then()
        real(self)

    patch.setattr(Setup, "_write_settings", writing)


def test_what_is_written_after_the_push_comes_along_and_is_pushed(
    ana: Desk, bucket: Path, remote: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> None:
        (ana.own / OUTPUT).write_text("status: failed\n")
        (ana.own / "outputs/new.yaml").write_text("status: new\n")

    _while_settings_are_written(monkeypatch, write)
    report = ana.move(remote)
    assert report.warnings == []
    assert (bucket / OUTPUT).read_text() == "status: failed\n"
    assert (bucket / "outputs/new.yaml").read_text() == "status: new\n"
    assert ana.path(OUTPUT).read_text() == "status: failed\n"


def test_what_is_written_after_the_push_waits_if_the_remote_is_out_of_reach_then(
    ana: Desk, bucket: Path, remote: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    _while_settings_are_written(
        monkeypatch, lambda: (ana.own / OUTPUT).write_text("status: failed\n")
    )

    def unreachable(*_: object, **__: object) -> None:
        raise StoreError("nobody answers", hint="")

    with monkeypatch.context() as patch:
        patch.setattr(Syncing, "pull", unreachable)
        (warning,) = ana.move(remote).warnings
    assert "nobody answers" in warning
    assert (bucket / OUTPUT).read_text() == "status: ok\n"
    with ana.open() as repo:
        repo.sync.push()
    assert (bucket / OUTPUT).read_text() == "status: failed\n"


def test_what_is_appended_to_a_file_that_was_open_all_the_time_comes_along(
    ana: Desk, bucket: Path, remote: Address
) -> None:
    with (ana.own / OUTPUT).open("a") as file:
        ana.move(remote)
        file.write("more: yes\n")
    assert ana.path(OUTPUT).read_text() == "status: ok\nmore: yes\n"
    with ana.open() as repo:
        repo.sync.push(full=True)
    assert (bucket / OUTPUT).read_text() == "status: ok\nmore: yes\n"


def test_what_is_written_to_the_old_place_afterwards_stays_there_and_is_named(
    ana: Desk, remote: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Setup.remove_moved

    def removing(self: Setup, there: Repo) -> None:
        (ana.own / "outputs/late.yaml").write_text("status: late\n")
        real(self, there)

    with monkeypatch.context() as patch:
        patch.setattr(Setup, "remove_moved", removing)
        (warning,) = ana.move(remote).warnings
    assert warning.startswith("outputs/late.yaml: not on the new datastore")
    ana.move(remote)
    assert ana.path("outputs/late.yaml").read_text() == "status: late\n"
    assert not (ana.own / "outputs/late.yaml").exists()


def test_a_writer_that_is_saving_has_the_files_moved_one_by_one(
    ana: Desk, remote: Address, given: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.environ["SWAMP_LOCK_TIMEOUT_MS"] = "50"
    real = Setup._hand_over

    def while_saving(self: Setup, own: Any) -> bool:
        with ana.open() as repo, repo.mutations.quiet():
            return real(self, own)

    monkeypatch.setattr(Setup, "_hand_over", while_saving)
    ana.move(remote)
    assert given == []
    assert ana.texts() == ["one", "two"]


def test_a_version_that_somebody_begins_after_the_push_stays_with_its_writer(
    ana: Desk, remote: Address, given: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    half = ana.own / STATE / "3"
    real = Setup._hand_over

    def beginning(self: Setup, own: Any) -> bool:
        half.mkdir()
        (half / "raw").write_text("half")
        return real(self, own)

    monkeypatch.setattr(Setup, "_hand_over", beginning)
    report = ana.move(remote)
    assert given == []
    assert any("never finished" in one for one in report.warnings)
    assert (half / "raw").read_text() == "half"
    assert ana.texts() == ["one", "two"]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take everything for older than what time stamps cannot tell apart."""
    monkeypatch.setattr("swampstore.files.signature.RACY_NS", -(1 << 60))


@pytest.mark.usefixtures("settled")
def test_the_last_look_before_the_settings_lists_no_directory_that_is_as_it_was(
    ana: Desk, remote: Address, given: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.save("other", "one")
    late = ana.own / STATE / "late.txt"
    listed: list[str] = []
    scandir, real = os.scandir, Setup._hand_over

    def listing(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    def counting(self: Setup, own: Any) -> bool:
        late.write_text("late")
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", listing)
            assert own.is_whole()
        return real(self, own)

    monkeypatch.setattr(Setup, "_hand_over", counting)
    ana.move(remote)
    assert listed == [str(late.parent)]
    assert len(given) == 1


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("spoil", [_link, _fifo, _hollow, _unfinished, _deferred, _claimed])
def test_what_would_have_to_stay_is_seen_by_the_last_look_as_well(
    ana: Desk,
    remote: Address,
    given: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Desk], None],
) -> None:
    real = Setup._hand_over

    def spoiling(self: Setup, own: Any) -> bool:
        spoil(ana)
        return real(self, own)

    monkeypatch.setattr(Setup, "_hand_over", spoiling)
    ana.move(remote)
    assert given == []
    assert ana.settings["url"] == remote.target


# Stopped --------------------------------------------------------------------------------------


def stop(*_arguments: object, **_options: object) -> Any:
    raise KeyboardInterrupt


def stopped(desk: Desk, remote: Address, where: object, name: str, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, name, stop)
        desk.move(remote, **options)


def stopped_at_rename(desk: Desk, remote: Address, number: int) -> None:
    """Stop a setup when it is to rename the n-th directory into the cache."""
    real, seen = os.rename, []

    def rename(source: str, target: str) -> None:
        if os.path.dirname(source) == str(desk.own) and "/repos/" in target:
            if not source.endswith(".tmp"):
                seen.append(source)
            if len(seen) == number:
                raise KeyboardInterrupt
        real(source, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", rename)
        desk.move(remote)


@pytest.mark.parametrize("number", [1, 2])
def test_whoever_comes_next_finishes_it_without_the_remote(
    ana: Desk, bucket: Path, remote: Address, number: int
) -> None:
    before = inodes(ana.own)
    stopped_at_rename(ana, remote, number)
    assert ana.settings["url"] == remote.target
    bucket.rename(bucket.with_name("unmounted"))
    assert ana.texts() == ["one", "two"]
    assert inodes(Path(ana.path(""))) == before
    assert not (ana.own / EXCHANGE).exists()
    bucket.with_name("unmounted").rename(bucket)
    with ana.open() as repo:
        repo.sync.push()
        repo.sync.pull(full=True)
        assert repo.dirty.peek().is_empty
    assert {path.read_text() for path in bucket.rglob("raw")} == {"one", "two"}


def test_what_was_changed_between_a_kill_and_the_end_is_pushed(
    ana: Desk, bucket: Path, remote: Address
) -> None:
    stopped_at_rename(ana, remote, 1)
    (ana.own / OUTPUT).write_text("status: failed\n")
    (ana.own / "outputs/new.yaml").write_text("status: new\n")
    with ana.open() as repo:
        repo.sync.push()
    assert (bucket / OUTPUT).read_text() == "status: failed\n"
    assert (bucket / "outputs/new.yaml").read_text() == "status: new\n"


def _read(repo_dir: Path, environ: dict[str, str], found: Any) -> None:
    with open_repo(repo_dir, environ=environ) as repo:
        found.put(contents(repo, MODEL, "state"))


def test_two_commands_may_find_it_unfinished_at_once(ana: Desk, remote: Address) -> None:
    for name in ("a", "b", "c"):
        ana.save(name, "one")
    stopped_at_rename(ana, remote, 1)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    commands = [
        context.Process(target=_read, args=(ana.repo_dir, ana.environ, found)) for _ in range(4)
    ]
    for one in commands:
        one.start()
    assert [found.get(timeout=60) for _ in commands] == [["one", "two"]] * 4
    for one in commands:
        one.join()
    assert ana.payload() == {}


def test_whoever_opens_it_while_the_setup_is_at_it_waits_for_that(
    ana: Desk, remote: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    command = context.Process(target=_read, args=(ana.repo_dir, ana.environ, found))
    real = Handover.carry_out

    def slowly(self: Handover, config: Config) -> list[str]:
        command.start()
        command.join(0.5)
        assert command.is_alive()
        return real(self, config)

    monkeypatch.setattr(Handover, "carry_out", slowly)
    ana.move(remote)
    assert found.get(timeout=60) == ["one", "two"]
    command.join()


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (Push, "prepare"),
        (Push, "_upload"),
        (Push, "commit"),
        (Setup, "_check_none_wrong"),
        (Setup, "_hand_over"),
        (Setup, "_write_settings"),
    ],
)
def test_before_the_settings_everything_stays_as_it_was_and_it_can_be_done_again(
    ana: Desk, bucket: Path, remote: Address, where: object, name: str
) -> None:
    before, settings = ana.payload(), ana.settings
    stopped(ana, remote, where, name)
    assert (ana.payload(), ana.settings) == (before, settings)
    ana.save("state", "three")
    ana.move(remote)
    assert ana.texts() == ["one", "two", "three"]
    assert {path.read_text() for path in bucket.rglob("raw")} == {"one", "two", "three"}
    assert not (ana.own / EXCHANGE).exists()
    with ana.open() as repo:
        repo.sync.pull(full=True)
        repo.sync.push(full=True)
        assert contents(repo, MODEL, "state") == ["one", "two", "three"]
    assert {path.read_text() for path in bucket.rglob("raw")} == {"one", "two", "three"}


def test_what_was_deleted_after_a_kill_and_is_on_the_remote_comes_back_from_there(
    ana: Desk, bucket: Path, remote: Address
) -> None:
    stopped(ana, remote, Setup, "_write_settings")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=2)
    ana.move(remote)
    assert ana.texts() == ["one", "two"]
    assert (bucket / STATE / "2/raw").exists()


@pytest.mark.parametrize("first", ["another", "back"])
def test_after_a_kill_it_can_be_set_up_elsewhere(
    ana: Desk, tmp_path: Path, remote: Address, first: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stopped(ana, remote, Setup, "_write_settings")
    assert (ana.own / EXCHANGE).exists()
    ana.move(Address(f"file://{other}") if first == "another" else Address("filesystem"))
    assert not (ana.own / EXCHANGE).exists()
    assert ana.texts() == ["one", "two"]
    ana.move(remote)
    assert ana.texts() == ["one", "two"]


def test_an_announcement_for_another_remote_moves_nothing(
    ana: Desk, tmp_path: Path, remote: Address
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stopped(ana, remote, Setup, "_write_settings")
    before = ana.payload()
    marker = ana.repo_dir / ".swamp.yaml"
    text = marker.read_text()
    marker.write_text(f"{text}\ndatastore:\n  type: file\n  url: file://{other}\n")
    assert ana.texts() == []
    assert {path: data for path, data in ana.payload().items() if path in before} == before
    marker.write_text(text)
    assert ana.texts() == ["one", "two"]


@pytest.mark.parametrize("namespace", ["", "../.."])
@pytest.mark.parametrize("subdir", ["secrets", "../../outside", "bundles"])
def test_whatever_an_announcement_says_nothing_but_data_of_the_repository_is_moved(
    ana: Desk, remote: Address, subdir: str, namespace: str
) -> None:
    outside = ana.repo_dir.parent / "outside"
    for directory in (outside, ana.own / "secrets", ana.own / "bundles"):
        directory.mkdir(exist_ok=True)
        (directory / "key").write_text("mine")
    ana.move(remote)
    with ana.open() as repo:
        owner = owner_of_remote(repo.config)
        Handover(owner, namespace, (subdir,), "swampstore.db").announce(repo.config)
    with ana.open() as repo:
        assert not list(Path(repo.config.base).rglob("key"))
    for directory in (outside, ana.own / "secrets", ana.own / "bundles"):
        assert (directory / "key").read_text() == "mine"


def test_a_full_disk_leaves_it_to_the_next_command(
    ana: Desk, remote: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def full(source: str, target: str) -> None:
        if source == str(ana.own / "outputs"):
            raise OSError(errno.ENOSPC, "No space left on device", target)
        real(source, target)

    with monkeypatch.context() as patch, pytest.raises(DiskError):
        patch.setattr(os, "rename", full)
        ana.move(remote)
    assert ana.texts() == ["one", "two"]
    assert ana.path(OUTPUT).read_text() == "status: ok\n"


@pytest.mark.parametrize("is_alone", [True, False])
def test_where_the_cache_cannot_be_written_nothing_moves_until_it_can(
    ana: Desk, bob: Desk, remote: Address, bucket: Path, tmp_path: Path, is_alone: bool
) -> None:
    if not is_alone:
        bob.save("state", "of bob")
        bob.move(remote)
    before, there = ana.payload(), sorted(bucket.rglob("raw"))
    with small_disk_at(tmp_path / "read-only") as home:
        ana.environ["SWAMP_HOME"] = str(home)
        remount(home, "ro")
        with pytest.raises(DiskError, match=f"{home}.*[Rr]ead-only") as told:
            ana.move(remote)
        assert told.value.hint
        assert (ana.settings, ana.payload()) == ({}, before)
        assert sorted(bucket.rglob("raw")) == there
        assert ana.texts() == ["one", "two"]
        ana.save("state", "three")
        remount(home, "rw")
        ana.move(remote)
        assert ana.texts() == [*([] if is_alone else ["of bob"]), "one", "two", "three"]
        assert ana.payload() == {}


# In the way -----------------------------------------------------------------------------------


def test_where_a_rename_fails_at_the_last_moment_files_are_linked(
    ana: Desk, remote: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def other_disk(source: str, target: str) -> None:
        if source == str(ana.own / "data"):
            raise OSError(errno.EXDEV, "Invalid cross-device link", target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", other_disk)
        report = ana.move(remote)
    assert report.warnings == []
    assert ana.texts() == ["one", "two"]
    assert ana.payload() == {}
    with ana.open() as repo:
        assert repo.dirty.peek().is_empty


@pytest.mark.parametrize("killed", [False, True])
def test_nothing_that_others_put_into_the_cache_meanwhile_is_replaced(
    ana: Desk, bucket: Path, remote: Address, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    with ana.open() as repo:
        config = repo.config
    cache = Path(ana.environ["SWAMP_HOME"], "repos", config.repo_id)

    def other_checkout() -> None:
        # It has the same cache, and saves something of the same name.
        for rel, text in ((f"{STATE}/1/raw", "other"), (OUTPUT, "status: other\n")):
            (cache / rel).parent.mkdir(parents=True, exist_ok=True)
            (cache / rel).write_text(text)
        metadata = (ana.own / STATE / "1/metadata.yaml").read_text()
        lines = [
            line for line in metadata.splitlines() if not line.startswith(("checksum", "size"))
        ]
        text = "\n".join("id: other" if line.startswith("id:") else line for line in lines)
        (cache / STATE / "1/metadata.yaml").write_text(f"{text}\n")

    with monkeypatch.context() as patch:
        _while_settings_are_written(patch, other_checkout)
        if killed:
            stopped(ana, remote, setting_up, "give")
        else:
            ana.move(remote)
    with ana.open():
        assert (cache / STATE / "2/raw").read_text() == "two"
    ana.move(remote)
    with ana.open() as repo:
        repo.sync.push(full=True)
        repo.sync.pull(full=True)
    assert {path.read_text() for path in bucket.rglob("raw")} == {"one", "two", "other"}
    assert sorted(ana.texts()) == ["one", "other", "two"]
    shared = [path.read_text() for path in bucket.rglob("*run.yaml*")]
    assert sorted(shared) == ["status: ok\n", "status: other\n"]
    assert ana.payload() == {}


def test_after_everything_the_cache_can_be_thrown_away(ana: Desk, remote: Address) -> None:
    ana.move(remote)
    shutil.rmtree(ana.path(""))
    with ana.open() as repo:
        repo.sync.pull()
    assert ana.texts() == ["one", "two"]
