"""What comes from the remote enters the tree whole, in order, unannounced, and over nobody."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swampstore import Draft, Repo, init_repo, open_repo
from swampstore.artifacts.name_lock import Outcome
from swampstore.artifacts.recovery import sweep
from swampstore.errors import CatalogError, DiskError, NotStreamingError, SwampstoreError
from swampstore.files import Reception, sync_filesystem
from swampstore.files.signature import signature
from swampstore.layout import DEFERRED, LANDING
from swampstore.marker import update_marker
from swampstore.sync import install as install_module
from swampstore.sync.arrivals import Arrival
from swampstore.sync.install import ArtifactInstaller, InstallError, PlainInstaller
from tests.artifacts.test_many_processes import run_all
from tests.catalog.test_catalog import assert_equals_disk
from tests.support.staging import Staged, metadata_of

MODEL = "aws/ec2/i-1"
STATE = f"data/{MODEL}/state"
OTHER = f"data/{MODEL}/other"


@pytest.fixture
def announced() -> list[str]:
    return []


@pytest.fixture
def repo(repo_dir: Path, announced: list[str]) -> Iterator[Repo]:
    with open_repo(repo_dir, durable=False, announce=announced.append) as repo:
        yield repo
        repo.ready(complete=True)
        assert_equals_disk(repo)
        assert repo.catalog.pending() == []


@pytest.fixture(params=[True, False], ids=["at-hand", "on-disk"])
def at_hand(request: pytest.FixtureRequest) -> bool:
    """Whether what arrives was fetched just now, or has to be read."""
    return bool(request.param)


@pytest.fixture
def staged(repo: Repo, at_hand: bool) -> Staged:
    return Staged(repo.tree, at_hand=at_hand)


@pytest.fixture
def installer(repo: Repo) -> ArtifactInstaller:
    return ArtifactInstaller(repo.mutations, repo.catalog)


def path_of(repo: Repo, rel: str) -> Path:
    return Path(repo.tree.shared_path(rel))


def landed_by(installer: PlainInstaller, arrivals: list[Arrival]) -> set[str]:
    return {installed.rel for installed in installer.install(arrivals)}


# What lands ---------------------------------------------------------------------------------


def test_a_new_name_is_not_looked_for_before_it_lands(
    repo: Repo,
    staged: Staged,
    installer: ArtifactInstaller,
    at_hand: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installer.install(staged.version(OTHER, 1, b"so that the model is there"))
    arrivals = [*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)]
    missed: list[str] = []
    for name in ("lstat", "stat", "mkdir"):
        original = getattr(os, name)

        def watching(
            path: Any, *args: Any, original: Any = original, name: str = name, **kwargs: Any
        ) -> Any:
            try:
                return original(path, *args, **kwargs)
            except FileNotFoundError:
                missed.append(f"{name} {str(path).removeprefix(f'{repo.tree.base}/')}")
                raise

        monkeypatch.setattr(os, name, watching)
    assert len(installer.install(arrivals)) == 3
    looked_for = [f"lstat {STATE}"]  # it may be a link
    if not at_hand:
        looked_for.append(f"lstat {STATE}/1/{DEFERRED}")
    assert missed == looked_for


def test_what_is_at_hand_is_not_read_again(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, at_hand: bool
) -> None:
    read: list[str] = []
    original = repo.tree.read

    def reading(rel: str) -> bytes | None:
        read.append(rel)
        return original(rel)

    repo.tree.read = reading  # type: ignore[method-assign]
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)])
    assert read == ([] if at_hand else [f"{STATE}/1/metadata.yaml"])
    assert repo.latest(MODEL, "state").bytes() == b"one"


def is_surely_right(installer: PlainInstaller, arrivals: list[Arrival]) -> bool:
    return any(one.is_right for one in installer.install(arrivals))


def test_a_marker_is_surely_right_if_all_there_is_came_with_it(
    staged: Staged, installer: ArtifactInstaller, at_hand: bool
) -> None:
    whole = [*staged.version(STATE, 1, b"one"), *staged.version(STATE, 2, b"two")]
    assert is_surely_right(installer, [*whole, staged.latest(STATE, 2)]) is at_hand


def test_a_marker_that_does_not_name_the_highest_version_is_not_taken_for_right(
    staged: Staged, installer: ArtifactInstaller
) -> None:
    whole = [*staged.version(STATE, 1, b"one"), *staged.version(STATE, 2, b"two")]
    assert not is_surely_right(installer, [*whole, staged.latest(STATE, 1)])
    assert not is_surely_right(installer, [*staged.version(OTHER, 1, b""), staged.latest(OTHER, 2)])


def test_a_marker_of_a_version_that_is_not_whole_is_not_taken_for_right(
    staged: Staged, installer: ArtifactInstaller
) -> None:
    metadata, raw = staged.version(STATE, 1, b"one")
    assert not is_surely_right(installer, [metadata, staged.latest(STATE, 1)])
    _, raw = staged.version(OTHER, 1, b"one")
    assert not is_surely_right(installer, [raw, staged.latest(OTHER, 1)])


def test_a_marker_is_not_taken_for_right_where_something_was_before(
    staged: Staged, installer: ArtifactInstaller
) -> None:
    installer.install(staged.version(STATE, 7, b"seven"))
    assert not is_surely_right(
        installer, [*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)]
    )


def test_a_version_that_lands_is_the_latest_and_is_not_announced(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, announced: list[str]
) -> None:
    arrivals = [*staged.version(STATE, 3, b"three"), staged.latest(STATE, 3)]
    installed = installer.install(arrivals)
    assert {one.rel for one in installed} == {arrival.rel for arrival in arrivals}
    for one in installed:
        assert one.signature == signature(repo.tree.shared_path(one.rel))
    latest = repo.latest(MODEL, "state")
    assert (latest.version, latest.bytes(), latest.is_latest) == (3, b"three", True)
    assert announced == []
    assert staged.left == []
    assert not path_of(repo, f"{STATE}/3/{LANDING}").exists()


def test_metadata_without_content_is_a_version_whose_content_may_come_later(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    metadata, raw = staged.version(STATE, 1, b"one")
    installer.install([metadata, staged.latest(STATE, 1)])
    assert repo.latest(MODEL, "state").version == 1
    assert os.listdir(path_of(repo, f"{STATE}/1")) == ["metadata.yaml"]
    installer.install([raw])
    assert repo.latest(MODEL, "state").bytes() == b"one"


def test_content_that_comes_before_its_metadata_is_no_claim_and_no_version(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, announced: list[str]
) -> None:
    metadata, raw = staged.version(STATE, 1, b"one")
    assert landed_by(installer, [raw]) == {raw.rel}
    assert repo.list_versions(MODEL, "state") == []
    assert repo.artifacts.save(MODEL, "state", b"mine").version == 2
    announced.clear()
    assert sweep(repo.store, older_than=-10).leftovers == ()
    assert announced == []
    assert landed_by(installer, [metadata]) == {metadata.rel}
    assert repo.version(MODEL, "state", 1).bytes() == b"one"
    assert sorted(os.listdir(path_of(repo, f"{STATE}/1"))) == ["metadata.yaml", "raw"]


def test_any_other_file_of_a_version_lands_with_it(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    extra = staged.arrival(f"{STATE}/1/notes.txt", b"x")
    arrivals = [*staged.version(STATE, 1, b"one"), extra]
    assert len(installer.install(arrivals)) == 3
    assert path_of(repo, extra.rel).read_bytes() == b"x"
    assert repo.version(MODEL, "state", 1).bytes() == b"one"


def test_metadata_that_makes_no_sense_lands_and_gives_no_row(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    wrong = staged.arrival(f"{STATE}/1/metadata.yaml", b"{not: [metadata")
    other = staged.arrival(f"{STATE}/2/metadata.yaml", metadata_of("state", 7, b""))
    installer.install([wrong, other, *staged.version(STATE, 3, b"three")])
    assert repo.list_versions(MODEL, "state") == [3]


def test_a_marker_ahead_of_its_version_shows_the_newest_one_that_is_there(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 2)])
    assert repo.latest(MODEL, "state").version == 1
    assert_equals_disk(repo)
    installer.install(staged.version(STATE, 2, b"two"))
    assert repo.latest(MODEL, "state").version == 2


def test_a_marker_that_was_a_link_is_replaced_by_the_file_that_lands(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    installer.install(staged.version(STATE, 1, b"one"))
    marker = path_of(repo, f"{STATE}/latest")
    marker.symlink_to("1")
    installer.install([*staged.version(STATE, 2, b"two"), staged.latest(STATE, 2)])
    assert not marker.is_symlink()
    assert repo.latest(MODEL, "state").version == 2


def test_what_the_remote_removed_goes_with_its_directories_and_rows(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, announced: list[str]
) -> None:
    versions = [*staged.version(STATE, 1, b"one"), *staged.version(STATE, 2, b"two")]
    installer.install([*versions, staged.latest(STATE, 2)])
    gone = [staged.arrival(f"{STATE}/2/{file}", None) for file in ("raw", "metadata.yaml")]
    installed = installer.install([*gone, staged.latest(STATE, 1)])
    assert [one.signature for one in installed][1:] == [None, None]
    assert repo.latest(MODEL, "state").version == 1
    assert not path_of(repo, f"{STATE}/2").exists()
    rest = [f"{STATE}/1/raw", f"{STATE}/1/metadata.yaml", f"{STATE}/latest"]
    installer.install([staged.arrival(rel, None) for rel in rest])
    assert not path_of(repo, STATE).exists()
    assert repo.latest(MODEL, "state", default=None) is None
    assert announced == []


def test_what_a_killed_writer_left_beside_a_version_goes_with_it_and_blocks_no_other(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    metadata, _ = staged.version(STATE, 1, b"one")
    installer.install([metadata, staged.latest(STATE, 1)])
    left = path_of(repo, f"{STATE}/1/.{uuid.uuid4()}.tmp")
    left.write_bytes(b"half of new metadata")
    gone = [staged.arrival(rel, None) for rel in (metadata.rel, f"{STATE}/latest")]
    installer.install(gone)
    assert not path_of(repo, STATE).exists()
    installer.install([*staged.version(STATE, 1, b"another"), staged.latest(STATE, 1)])
    assert repo.latest(MODEL, "state").bytes() == b"another"


def test_content_without_metadata_that_the_remote_removed_leaves_nothing(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    raw = staged.version(STATE, 1, b"one")[1]
    installer.install([raw])
    installer.install([staged.arrival(raw.rel, None)])
    assert not path_of(repo, STATE).exists()


def test_removing_what_is_not_there_is_done_already(installer: ArtifactInstaller) -> None:
    installed = installer.install(
        [Arrival(f"{STATE}/1/raw", None, None), Arrival("outputs/a", None, None)]
    )
    assert {(one.rel, one.signature) for one in installed} == {
        (f"{STATE}/1/raw", None),
        ("outputs/a", None),
    }


def test_files_that_are_no_artifacts_land_in_the_datastore_tier(repo_dir: Path) -> None:
    update_marker(str(repo_dir), {"datastore": {"path": "shared"}})
    with open_repo(repo_dir, durable=False) as repo:
        staged, installer = Staged(repo.tree), ArtifactInstaller(repo.mutations, repo.catalog)
        rels = ["outputs/aws/start/1.yaml", ".catalog-export.json", "data/stray"]
        installer.install([staged.arrival(rel, rel.encode()) for rel in rels])
        for rel in rels:
            assert (repo_dir / "shared" / rel).read_text() == rel
        installer.install([staged.arrival(rel, None) for rel in rels])
        assert [rel for rel in rels if (repo_dir / "shared" / rel).exists()] == []


# In which order -----------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The changes of files that land, as they happen."""
    seen: list[tuple[str, str]] = []
    for method in ("adopt", "remove"):
        original = getattr(Reception, method)

        def noted(
            self: Reception, rel: str, *more: Any, do: Any = original, what: str = method
        ) -> Any:
            result = do(self, rel, *more)
            if not rel.endswith(LANDING):
                seen.append((what, rel.removeprefix(f"{STATE}/")))
            return result

        monkeypatch.setattr(Reception, method, noted)
    return seen


def test_content_comes_before_metadata_before_the_marker_and_goes_in_the_opposite_order(
    staged: Staged, installer: ArtifactInstaller, steps: list[tuple[str, str]]
) -> None:
    installer.install(staged.version(STATE, 1, b"one"))
    steps.clear()
    installer.install(
        [
            staged.arrival(f"{STATE}/1/raw", None),
            staged.arrival(f"{STATE}/1/metadata.yaml", None),
            staged.latest(STATE, 2),
            *staged.version(STATE, 2, b"two"),
        ]
    )
    assert steps == [
        ("adopt", "2/raw"),
        ("adopt", "2/metadata.yaml"),
        ("adopt", "latest"),
        ("remove", "1/metadata.yaml"),
        ("remove", "1/raw"),
    ]


@pytest.mark.parametrize("kind", ["artifacts", "plain"])
def test_content_is_durable_before_it_is_seen_and_names_are_before_the_rows(
    repo_dir: Path, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, str]], kind: str
) -> None:
    with open_repo(repo_dir, durable=True) as repo:
        repo.ready(complete=True)
        staged, record = Staged(repo.tree), repo.catalog.record
        arrivals = [*staged.version(STATE, 1, b"one"), staged.arrival("outputs/a", b"x")]

        def note(what: str) -> Any:
            return lambda *_: steps.append((what, ""))

        def store(outcomes: Sequence[Outcome]) -> None:
            steps.append(("rows", ""))
            record(outcomes)

        monkeypatch.setattr(install_module, "sync_filesystem", note("sync"))
        monkeypatch.setattr(os, "fsync", note("fsync"))
        monkeypatch.setattr(repo.catalog, "record", store)
        installer = (
            PlainInstaller(repo.tree)
            if kind == "plain"
            else ArtifactInstaller(repo.mutations, repo.catalog)
        )
        installer.install(arrivals)
    assert [what for what, _ in steps if what != "rows"] == [
        *("sync", "adopt", "adopt", "sync"),
        *("adopt", "sync"),
    ]
    assert kind == "plain" or steps[4] == ("rows", "")


def test_syncing_a_file_system_tells_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_filesystem(str(tmp_path))

    class Library:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            pass

        def syncfs(self, fd: int) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", Library)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match=str(tmp_path)):
        sync_filesystem(str(tmp_path))
    synced: list[bool] = []
    monkeypatch.delattr(Library, "syncfs")
    monkeypatch.setattr(os, "sync", lambda: synced.append(True))
    sync_filesystem(str(tmp_path))
    assert synced == [True]


# Over nobody --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["artifacts", "plain"])
@pytest.mark.parametrize("rel", [f"{STATE}/latest", "outputs/aws/start/1.yaml"])
def test_a_file_that_is_not_the_expected_one_any_more_is_left_alone(
    repo: Repo, staged: Staged, installer: PlainInstaller, rel: str, kind: str
) -> None:
    if kind == "plain":
        installer = PlainInstaller(repo.tree)
    installer.install([*staged.version(STATE, 1, b"one"), staged.arrival(rel, b"1")])
    path = path_of(repo, rel)
    replacing, removing = staged.arrival(rel, b"theirs"), staged.arrival(rel, None)
    fresh = staged.arrival(rel, b"theirs", expected=None)
    path.write_bytes(b"9")
    assert (
        installer.install([replacing])
        == installer.install([removing])
        == installer.install([fresh])
        == []
    )
    assert path.read_bytes() == b"9"
    path.unlink()
    assert installer.install([replacing]) == installer.install([removing]) == []
    assert not path.exists()
    assert len(staged.left) == 2
    installer.install([fresh])
    path.write_bytes(b"1")


def test_the_files_of_a_version_land_together_or_not_at_all(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    installer.install(staged.version(STATE, 1, b"one"))
    again = [*staged.version(STATE, 1, b"uno"), *staged.version(STATE, 2, b"two")]
    os.utime(path_of(repo, f"{STATE}/1/metadata.yaml"), (1, 1))
    assert landed_by(installer, again) == {f"{STATE}/2/raw", f"{STATE}/2/metadata.yaml"}
    assert repo.version(MODEL, "state", 1).bytes() == b"one"
    assert len(staged.left) == 2


def test_a_version_that_is_being_written_here_is_left_alone(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    writer = repo.store.open_writer(repo.ref(MODEL, "state"), Draft())
    writer.write(b"mi")
    metadata, raw = staged.version(STATE, 1, b"theirs")
    assert installer.install([metadata, staged.arrival(f"{STATE}/1/notes", b"x")]) == []
    assert installer.install([metadata, raw]) == []
    assert installer.install([metadata, staged.latest(STATE, 1)]) == []
    writer.write(b"ne")
    writer.finalize()
    assert repo.latest(MODEL, "state").bytes() == b"mine"
    assert installer.install([metadata]) == []
    assert len(staged.left) == 4


def test_a_directory_that_somebody_just_made_is_left_alone_too(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    path_of(repo, f"{STATE}/1").mkdir(parents=True)
    assert installer.install(staged.version(STATE, 1, b"theirs")) == []
    assert path_of(repo, f"{STATE}/1").is_dir()


def test_a_version_that_waits_for_its_commit_is_left_alone(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    group = repo.artifacts.deferring()
    arrivals = staged.version(STATE, 1, b"theirs")
    assert group.save(repo.ref(MODEL, "state"), b"mine", Draft()).version == 1
    assert installer.install(arrivals) == []
    group.commit()
    assert repo.latest(MODEL, "state").bytes() == b"mine"


# What is in the way -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["artifacts", "plain"])
@pytest.mark.parametrize("link", ["data", "data/aws", f"data/{MODEL}", STATE, f"{STATE}/1"])
def test_h61_nothing_lands_through_a_symlinked_directory(
    repo: Repo, staged: Staged, installer: PlainInstaller, tmp_path: Path, link: str, kind: str
) -> None:
    if kind == "plain":
        installer = PlainInstaller(repo.tree)
    outside = tmp_path / "outside"
    outside.mkdir()
    path_of(repo, link).mkdir(parents=True, exist_ok=True)
    path_of(repo, link).rmdir()
    path_of(repo, link).symlink_to(outside)
    behind = staged.version(STATE, 1, b"one")
    beside = staged.arrival("outputs/a", b"x")
    with pytest.raises(InstallError, match="symbolic link") as told:
        installer.install([*behind, beside])
    assert told.value.failures.keys() == {arrival.rel for arrival in behind}
    assert [one.rel for one in told.value.installed] == [beside.rel]
    assert list(outside.iterdir()) == []
    assert len(staged.left) == 2
    path_of(repo, link).unlink()


def test_h61_no_file_is_removed_through_a_symlinked_directory(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, tmp_path: Path
) -> None:
    (tmp_path / "raw").write_bytes(b"precious")
    path_of(repo, STATE).mkdir(parents=True)
    path_of(repo, f"{STATE}/1").symlink_to(tmp_path)
    with pytest.raises(InstallError):
        installer.install([staged.arrival(f"{STATE}/1/raw", None)])
    assert (tmp_path / "raw").read_bytes() == b"precious"


def test_h61_one_name_behind_a_link_does_not_keep_others_from_landing(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, tmp_path: Path
) -> None:
    path_of(repo, STATE).parent.mkdir(parents=True)
    path_of(repo, STATE).symlink_to(tmp_path)
    with pytest.raises(InstallError) as told:
        installer.install([*staged.version(STATE, 1, b"one"), *staged.version(OTHER, 1, b"other")])
    assert len(told.value.failures) == len(told.value.installed) == 2
    assert repo.latest(MODEL, "other").bytes() == b"other"
    path_of(repo, STATE).unlink()


def test_one_name_that_cannot_be_healed_does_not_keep_others_from_landing(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    installer.install(staged.version(STATE, 1, b"one"))
    path_of(repo, f"{STATE}/latest").mkdir()
    repo.catalog.intend({STATE: '{"op": "save"}'})
    with pytest.raises(InstallError, match="cannot be healed") as told:
        installer.install([*staged.version(STATE, 2, b"two"), *staged.version(OTHER, 1, b"other")])
    assert {rel.rpartition("/")[0] for rel in told.value.failures} == {f"{STATE}/2"}
    assert len(told.value.installed) == 2
    path_of(repo, f"{STATE}/latest").rmdir()


@pytest.mark.parametrize("rel", [f"{STATE}/1/raw", f"{STATE}/latest", "outputs/a"])
@pytest.mark.parametrize("obstacle", ["directory", "link"])
def test_what_is_no_file_is_never_replaced(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, rel: str, obstacle: str
) -> None:
    path = path_of(repo, rel)
    path.parent.mkdir(parents=True)
    if obstacle == "link" and not rel.endswith("latest"):
        path.symlink_to("/etc/hostname")
    else:
        path.mkdir()
    with pytest.raises(InstallError) as told:
        installer.install([staged.arrival(rel, b"1"), *staged.version(OTHER, 1, b"other")])
    assert list(told.value.failures) == [rel]
    assert path.is_symlink() or path.is_dir()
    assert repo.latest(MODEL, "other").bytes() == b"other"


@pytest.mark.parametrize(
    ("call", "at"),
    [("mkdir", f"{STATE}/1"), ("rename", f"{STATE}/1/raw"), ("rename", f"{STATE}/1/metadata.yaml")],
)
def test_a_full_disk_leaves_the_rest_intact(
    repo: Repo,
    staged: Staged,
    installer: ArtifactInstaller,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    at: str,
) -> None:
    repo.artifacts.save(MODEL, "kept", b"kept")
    original = getattr(os, call)

    def full(*arguments: Any) -> Any:
        if arguments[-1] == repo.tree.shared_path(at):
            raise OSError(errno.ENOSPC, "", at)
        return original(*arguments)

    arrivals = [
        *staged.version(OTHER, 1, b"other"),
        *staged.version(STATE, 1, b"one"),
        staged.latest(STATE, 1),
        *staged.version(f"data/{MODEL}/third", 1, b"third"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(InstallError, match="disk is full") as told:
            installer.install(arrivals)
    installed = {one.rel for one in told.value.installed}
    assert installed | told.value.failures.keys() == {arrival.rel for arrival in arrivals}
    assert repo.latest(MODEL, "other").bytes() == b"other"
    assert repo.latest(MODEL, "third").bytes() == b"third"
    assert repo.latest(MODEL, "kept").bytes() == b"kept"
    assert repo.list_versions(MODEL, "state") == []
    assert path_of(repo, f"{STATE}/1").exists() == (f"{STATE}/1/raw" in installed)
    assert_equals_disk(repo)
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)])
    assert repo.latest(MODEL, "state").bytes() == b"one"


def test_a_disk_that_loses_what_it_was_given_is_no_place_to_land(
    repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        if not path.endswith(".tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(install_module, "sync_filesystem", fail)
    with open_repo(repo_dir, durable=True) as repo:
        installer = ArtifactInstaller(repo.mutations, repo.catalog)
        with pytest.raises(InstallError) as told:
            installer.install(Staged(repo.tree).version(STATE, 1, b"one"))
        assert told.value.installed == []
        assert_equals_disk(repo)


def test_a_catalog_that_cannot_be_written_gets_its_rows_later(
    repo: Repo,
    staged: Staged,
    installer: ArtifactInstaller,
    monkeypatch: pytest.MonkeyPatch,
    announced: list[str],
) -> None:
    def refuse(outcomes: object) -> None:
        raise CatalogError("no")

    with monkeypatch.context() as patch:
        patch.setattr(repo.catalog, "record", refuse)
        assert (
            len(installer.install([*staged.version(STATE, 1, b"1"), staged.latest(STATE, 1)])) == 3
        )
    assert repo.latest(MODEL, "state").version == 1
    assert announced == []


def test_without_an_intent_nothing_lands(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(actions: object) -> None:
        raise DiskError("no")

    with monkeypatch.context() as patch:
        patch.setattr(repo.catalog, "intend", refuse)
        with pytest.raises(InstallError):
            installer.install(staged.version(STATE, 1, b"one"))
    assert not path_of(repo, STATE).exists()
    assert len(staged.left) == 2


# Markers and what heals ---------------------------------------------------------------------


def test_healing_an_interrupted_landing_moves_no_marker_and_announces_nothing(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, announced: list[str]
) -> None:
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)])
    PlainInstaller(repo.tree).install([*staged.version(STATE, 2, b"two"), staged.latest(STATE, 7)])
    path_of(repo, f"{STATE}/3").mkdir()
    repo.catalog.intend({STATE: '{"op": "land"}'})
    assert repo.latest(MODEL, "state").version == 2
    assert path_of(repo, f"{STATE}/latest").read_bytes() == b"7"
    assert not path_of(repo, f"{STATE}/3").exists()
    assert announced == []


@pytest.mark.parametrize("content", [b"two", b"another", None])
def test_healing_lets_a_version_in_that_came_as_a_whole_and_no_other(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, content: bytes | None
) -> None:
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)])
    PlainInstaller(repo.tree).install(staged.version(STATE, 2, b"two"))
    arrived = path_of(repo, f"{STATE}/2")
    (arrived / "metadata.yaml").rename(arrived / LANDING)
    if content is None:
        (arrived / "raw").unlink()
    else:
        (arrived / "raw").write_bytes(content)
    repo.catalog.intend({STATE: '{"op": "land"}'})
    is_whole = content == b"two"
    assert repo.list_versions(MODEL, "state") == ([1, 2] if is_whole else [1])
    assert (arrived / "metadata.yaml").exists() == is_whole
    assert (arrived / LANDING).exists() == (content == b"another")
    assert_equals_disk(repo)


def test_a_change_that_fails_does_not_move_a_marker_that_came_ahead_of_its_version(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)])
    with pytest.raises(NotStreamingError):
        repo.artifacts.append(MODEL, "state", b"more")
    installer.install([staged.latest(STATE, 2)])
    with pytest.raises(SwampstoreError):
        repo.artifacts.append(MODEL, "state", b"more")
    assert path_of(repo, f"{STATE}/latest").read_bytes() == b"2"


def test_a_marker_that_moves_back_takes_the_flags_of_every_step_with_it(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    for version, step in enumerate(["scan", "report", "scan", "report", ""], 1):
        installer.install(staged.version(STATE, version, b"x", step=step))
    for marker in (5, 2, 4, 1, 3, 5):
        installer.install([staged.latest(STATE, marker)])
        assert repo.latest(MODEL, "state").version == marker
        assert_equals_disk(repo)


# A first pull -------------------------------------------------------------------------------


def test_the_first_pull_into_an_empty_cache_needs_no_walk_afterwards(
    repo: Repo, staged: Staged, installer: ArtifactInstaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer.install([*staged.version(STATE, 1, b"one"), staged.latest(STATE, 1)])
    assert repo.catalog.is_populated


def test_a_pull_into_a_cache_whose_catalog_is_lost_does_not_pass_for_a_complete_one(
    repo: Repo, staged: Staged, installer: ArtifactInstaller
) -> None:
    repo.artifacts.save(MODEL, "other", b"mine")
    os.unlink(repo.catalog.rows.path)  # type: ignore[attr-defined]
    installer.install(staged.version(STATE, 1, b"one"))
    assert not repo.catalog.is_populated
    assert {found.name for found in repo.query()} == {"state", "other"}


# Everything at once -------------------------------------------------------------------------

remotes = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(1, 4)),
    st.tuples(st.binary(max_size=3), st.sampled_from(["", "scan", "report"])),
    max_size=6,
)


def files_of(remote: dict[tuple[str, int], tuple[bytes, str]], marker: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for (name, version), (content, step) in remote.items():
        rel = f"data/{MODEL}/{name}"
        found[f"{rel}/{version}/raw"] = content
        found[f"{rel}/{version}/metadata.yaml"] = metadata_of(name, version, content, step=step)
        found[f"{rel}/latest"] = b"%d" % marker
    return found


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    states=st.lists(st.tuples(remotes, st.integers(1, 5)), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_whatever_lands_in_whatever_pieces_the_rows_are_those_of_the_files(
    states: list[tuple[dict[tuple[str, int], tuple[bytes, str]], int]], seed: int
) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        init_repo(directory).close()
        with open_repo(directory, durable=False) as repo:
            staged, installer = Staged(repo.tree), ArtifactInstaller(repo.mutations, repo.catalog)
            held: dict[str, bytes] = {}
            for remote, marker in states:
                wanted = files_of(remote, marker)
                rels = sorted(rel for rel in {*held, *wanted} if held.get(rel) != wanted.get(rel))
                rng.shuffle(rels)
                while rels:
                    piece = [rels.pop() for _ in range(rng.randint(1, len(rels)))]
                    arrivals = [staged.arrival(rel, wanted.get(rel)) for rel in piece]
                    assert landed_by(installer, arrivals) == set(piece)
                    assert_equals_disk(repo)
                held = wanted
                assert on_disk(repo) == held


def on_disk(repo: Repo) -> dict[str, bytes]:
    """Return every file and, as None would be, no empty directory below `data`."""
    root = path_of(repo, "data")
    for path in root.rglob("*"):
        assert path.is_file() or any(path.iterdir()) or path.name == "i-1"
    return {
        f"data/{path.relative_to(root)}": path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_nobody_loses_a_version_when_writers_and_a_pull_race_for_numbers(repo_dir: Path) -> None:
    """Two processes save and stream while one lands versions of the same name."""
    theirs, mine = 40, 30

    def work(number: int) -> None:
        with open_repo(repo_dir, durable=False) as repo:
            if number == 0:
                _pull_all(repo, theirs)
            else:
                _write(repo, number, mine)

    run_all(3, work)
    with open_repo(repo_dir, durable=False) as repo:
        found = {one.version: one.text() for one in repo.versions(MODEL, "state")}
        assert_equals_disk(repo)
        assert repo.catalog.pending() == []
    saved = Path(repo_dir / "saved").read_text().split()
    installed = Path(repo_dir / "landed").read_text().split()
    expected = dict(line.split("=") for line in saved)
    assert len(expected) == 2 * mine
    assert not expected.keys() & set(installed)
    expected |= {version: f"theirs-{version}" for version in installed}
    assert {str(version): text for version, text in found.items()} == expected
    assert installed


def _pull_all(repo: Repo, count: int) -> None:
    staged, installer = Staged(repo.tree), ArtifactInstaller(repo.mutations, repo.catalog)
    installed: set[str] = set()
    for version in range(1, count * 3, 3):
        arrivals = staged.version(STATE, version, f"theirs-{version}".encode())
        if any(arrival.expected for arrival in arrivals):
            continue
        installed |= landed_by(installer, arrivals)
    versions = {rel.split("/")[-2] for rel in installed}
    assert len(installed) == 2 * len(versions)
    Path(repo.config.repo_dir, "landed").write_text(" ".join(versions))


def _write(repo: Repo, number: int, count: int) -> None:
    with open(Path(repo.config.repo_dir, "saved"), "a") as log:
        for turn in range(count):
            text = f"mine-{number}-{turn}"
            if turn % 3:
                version = repo.artifacts.save(MODEL, "state", text.encode()).version
            else:
                with repo.artifacts.writer(MODEL, "state") as writer:
                    writer.write(text.encode())
                version = writer.version
            log.write(f"{version}={text}\n")
            log.flush()
