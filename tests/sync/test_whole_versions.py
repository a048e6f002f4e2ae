"""What is published is complete: no metadata without the content that it speaks of."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.errors import ContentMissingError, DiskError
from swampstore.index.base import Base
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.removals import REMOVALS, Remover
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Fetched
from swampstore.sync.downloads import Download, Downloader
from swampstore.sync.uploads import Uploader, Vanished
from tests.support.broken_store import Killed
from tests.support.machines import Machine, contents, push_and_die
from tests.support.old_client import OldPeer
from tests.support.remotes import Remote
from tests.support.sync_harness import Machine as Host
from tests.support.sync_harness import remote_index

MODEL = "aws/ec2/i-1"
HOME = "data/aws/ec2/i-1/state"
AT = "2026-06-01T10:00:00.000Z"


def synced(machine: Machine, *options: str) -> dict[str, Any]:
    outcome = machine("sync", *options, "--json")
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def named(machine: Machine) -> set[str]:
    """Return what the index of the remote names below the data name of these tests."""
    with machine.open() as repo:
        entries = remote_index(repo.connection.store).entries
    return {rel.removeprefix(f"{HOME}/") for rel in entries if rel.startswith(HOME)}


@pytest.fixture
def eve(
    tmp_path: Path,
    bucket: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Machine:
    machine = Machine(tmp_path / "eve", capsysbinary, monkeypatch)
    machine.use(bucket)
    return machine


def lose_base(machine: Machine) -> None:
    (machine.cache / "_catalog.db-base").unlink()


def forget_a_deletion(ana: Machine, bob: Machine, bucket: Path, version: int) -> None:
    """Let Bob, who holds two versions lazily, lose his base, and Ana delete one of them."""
    bob.use(bucket, hydrationStrategy=None)
    for content in ("one", "two"):
        ana.put(MODEL, "state", content)
    synced(ana)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=version)
    synced(ana)
    lose_base(bob)


@pytest.mark.parametrize("options", [(), ("--full",), ("--model", MODEL)])
def test_metadata_whose_content_was_deleted_elsewhere_goes_after_the_base_was_lost(
    ana: Machine, bob: Machine, bucket: Path, options: tuple[str, ...]
) -> None:
    forget_a_deletion(ana, bob, bucket, 1)
    done = synced(bob, *options)
    assert [one["path"] for one in done["skipped"]] == [f"{HOME}/1"]
    assert sorted(path.name for path in (bob.cache / HOME).iterdir()) == ["2", "latest"]
    assert named(bob) == {"2/raw", "2/metadata.yaml", "latest"}
    assert synced(bob)["skipped"] == []
    assert bob.get(MODEL, "state") == "two"


@pytest.mark.parametrize("options", [(), ("--full",), ("--model", MODEL)])
def test_metadata_whose_content_was_deleted_elsewhere_goes_though_it_is_the_latest_here(
    ana: Machine, bob: Machine, bucket: Path, options: tuple[str, ...]
) -> None:
    forget_a_deletion(ana, bob, bucket, 2)
    done = synced(bob, *options)
    assert f"{HOME}/2" in [one["path"] for one in done["skipped"]]
    assert sorted(path.name for path in (bob.cache / HOME).iterdir()) == ["1", "latest"]
    synced(bob)
    assert named(bob) == {"1/raw", "1/metadata.yaml", "latest"}
    assert bob.get(MODEL, "state") == "one"
    ana.put(MODEL, "state", "another")
    synced(ana)
    synced(bob)
    assert bob.get(MODEL, "state") == "another"


def test_what_was_held_lazily_of_a_name_that_was_deleted_elsewhere_goes_after_the_base_was_lost(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "other", "content")
    forget_a_deletion(ana, bob, bucket, 2)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    synced(bob)
    assert not (bob.cache / HOME).exists()
    assert named(bob) == set()


def lose_index(bucket: Path) -> None:
    (bucket / ".datastore-index.json").unlink()
    shutil.rmtree(bucket / "_index")


@pytest.mark.parametrize("loses_index", [False, True], ids=["base", "index"])
@pytest.mark.parametrize("again", ["one", "two", "one and more"])
def test_what_others_saved_under_the_number_of_a_version_held_lazily_takes_its_place(
    ana: Machine, bob: Machine, bucket: Path, again: str, loses_index: bool
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=again == "one and more")
    synced(ana)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
        synced(ana)
        saved = repo.artifacts.save(MODEL, "state", again.encode())
    synced(ana)
    if loses_index:
        lose_index(bucket)
    else:
        lose_base(bob)
    synced(bob)
    synced(bob)
    with bob.open() as repo:
        assert [one.id for one in repo.versions(MODEL, "state")] == [saved.id]
    assert bob.get(MODEL, "state") == again


def test_what_others_saved_takes_the_place_of_a_version_held_lazily_though_the_index_is_lost_twice(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    ana.put(MODEL, "other", "content")
    ana.put(MODEL, "state", "one")
    for machine in (ana, bob):
        synced(machine)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    synced(ana)
    lose_index(bucket)
    for machine in (ana, bob):
        synced(machine)
    with ana.open() as repo:
        saved = repo.artifacts.save(MODEL, "state", b"two")
    synced(ana)
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", b"three")
    lose_index(bucket)
    for machine in (ana, bob, bob):
        synced(machine)
    with bob.open() as repo:
        assert contents(repo, MODEL, "state") == ["two", "three"]
        assert repo.versions(MODEL, "state")[-1].id == saved.id


def test_what_others_appended_to_a_version_held_lazily_takes_its_place(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    synced(ana)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "state", b" and more")
    synced(ana)
    lose_index(bucket)
    bob.put(MODEL, "state", "two")
    for machine in (bob, ana, bob):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more", "two"]


def pushed_and_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a version that can be appended to; be killed when its push has just committed."""
    with machine.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    push_and_die(machine, monkeypatch)


def append(machine: Machine, content: bytes) -> None:
    with machine.open() as repo:
        repo.artifacts.append(MODEL, "state", content)


def test_what_is_appended_after_a_killed_push_has_committed_makes_no_second_version(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed_and_killed(ana, monkeypatch)
    append(ana, b" and more")
    synced(ana)
    synced(bob)
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more"]


def test_what_is_appended_after_a_killed_push_has_committed_keeps_its_number_below_those_of_others(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed_and_killed(ana, monkeypatch)
    append(ana, b" and more")
    synced(bob)
    bob.put(MODEL, "state", "two")
    for machine in (bob, ana, bob):
        synced(machine)
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more", "two"]


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("sent", [1, 2, 3])
def test_what_is_appended_after_a_push_was_killed_that_had_sent_and_not_noted_it_keeps_its_number(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch, sent: int, is_sharded: bool
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
        if is_sharded:
            repo.sync.migrate_index()
    for machine in (ana, bob):
        synced(machine)
    append(ana, b" and more")
    left, put = [*range(sent)], Uploader.put

    def put_some(uploader: Uploader, upload: Any) -> Any:
        if not left:
            raise Killed
        left.pop()
        return put(uploader, upload)

    with monkeypatch.context() as patch, ana.open() as repo, pytest.raises(Killed):
        patch.setattr(Uploader, "put", put_some)
        patch.setattr(Base, "note_uploads", lambda *_: None)
        patch.setattr(RemoteIndex, "commit", _die)
        repo.sync.push()
    append(ana, b" and still more")
    for machine in (ana, bob, ana):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more and still more"]


def _die(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.mark.parametrize("pushes_first", [False, True], ids=["syncs", "pushes first"])
@pytest.mark.parametrize("loses_index", [False, True], ids=["base", "index"])
def test_what_others_appended_before_a_loss_makes_no_second_version(
    ana: Machine, bob: Machine, bucket: Path, loses_index: bool, pushes_first: bool
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    for machine in (ana, bob):
        synced(machine)
    append(ana, b" and more")
    synced(ana)
    if loses_index:
        lose_index(bucket)
    else:
        lose_base(bob)
    if pushes_first:
        with bob.open() as repo:
            repo.sync.push()
    for machine in (bob, ana, bob):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more"]


@pytest.mark.parametrize("loses_base", [False, True])
def test_what_both_appended_is_kept_twice(ana: Machine, bob: Machine, loses_base: bool) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    for machine in (ana, bob):
        synced(machine)
    append(bob, b" more")
    append(ana, b" and still more")
    synced(ana)
    if loses_base:
        lose_base(bob)
    for machine in (bob, ana, bob):
        synced(machine)
    for machine in (ana, bob):
        with machine.open() as repo:
            assert sorted(contents(repo, MODEL, "state")) == ["one and still more", "one more"]


def test_the_same_line_that_both_appended_is_kept_twice(ana: Machine, bob: Machine) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    for machine in (ana, bob):
        synced(machine)
    append(bob, b" more")
    append(ana, b" more")
    append(ana, b" and still more")
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        with machine.open() as repo:
            kept = sorted(contents(repo, MODEL, "state"))
        assert kept == ["one more", "one more and still more"]


@pytest.mark.parametrize("pushes_first", [False, True], ids=["syncs", "pushes first"])
@pytest.mark.parametrize("hydration", ["full", None])
def test_what_others_append_after_a_killed_push_has_committed_makes_no_second_version(
    ana: Machine,
    bob: Machine,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    hydration: str | None,
    pushes_first: bool,
) -> None:
    ana.use(bucket, hydrationStrategy=hydration)
    pushed_and_killed(ana, monkeypatch)
    synced(bob)
    append(bob, b" and more")
    synced(bob)
    if pushes_first:
        with ana.open() as repo:
            repo.sync.push()
    for machine in (ana, bob, ana):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more"]


def test_content_that_cannot_be_read_after_a_killed_push_does_not_keep_the_rest_from_being_pulled(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed_and_killed(ana, monkeypatch)
    synced(bob)
    append(bob, b" and more")
    bob.put(MODEL, "other", "theirs")
    synced(bob)
    raw = ana.cache / HOME / "1" / "raw"
    raw.rename(raw.with_name("elsewhere"))
    raw.symlink_to("elsewhere")
    with ana.open() as repo:
        repo.sync.pull()
        assert contents(repo, MODEL, "other") == ["theirs"]
    assert raw.read_text() == "one"


def test_what_both_append_after_a_killed_push_has_committed_is_kept_in_two_versions(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed_and_killed(ana, monkeypatch)
    append(ana, b" here")
    synced(bob)
    append(bob, b" there")
    synced(bob)
    for machine in (ana, bob, ana):
        synced(machine)
        with machine.open() as repo:
            assert sorted(contents(repo, MODEL, "state")) == ["one here", "one there"]


def test_metadata_whose_content_is_an_object_that_no_index_names_stays_after_the_base_was_lost(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    forget_a_deletion(ana, bob, bucket, 1)
    (bucket / HOME / "1").mkdir(exist_ok=True)
    (bucket / HOME / "1/raw").write_bytes(b"one")
    synced(bob)
    assert (bob.cache / HOME / "1/metadata.yaml").exists()


def test_metadata_beside_a_link_to_its_content_stays_after_the_base_was_lost(
    ana: Machine, bob: Machine, bucket: Path, tmp_path: Path
) -> None:
    forget_a_deletion(ana, bob, bucket, 1)
    (tmp_path / "elsewhere").write_bytes(b"one")
    (bob.cache / HOME / "1/raw").symlink_to(tmp_path / "elsewhere")
    synced(bob)
    assert (bob.cache / HOME / "1/metadata.yaml").exists()


def test_metadata_without_content_that_is_marked_stays_after_the_base_was_lost(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, "other", "content")
    synced(ana)
    synced(bob)
    bob.put(MODEL, "state", "ours")
    (bob.cache / HOME / "1/raw").rename(bob.cache / "aside")
    lose_base(bob)
    done = synced(bob)
    assert [one["path"] for one in done["skipped"]] == [f"{HOME}/1"]
    assert "data delete aws/ec2/i-1 state --version 1" in done["skipped"][0]["reason"]
    (bob.cache / "aside").rename(bob.cache / HOME / "1/raw")
    synced(bob)
    assert named(bob) == {"1/raw", "1/metadata.yaml", "latest"}


def test_a_lost_base_and_a_remote_without_an_index_cost_no_metadata(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    forget_a_deletion(ana, bob, bucket, 1)
    for path in [one for one in bucket.rglob("*") if one.is_file()]:
        path.unlink()
    bob("sync", "--json")
    assert sorted(path.name for path in (bob.cache / HOME).iterdir()) == ["1", "2", "latest"]


def test_two_that_share_a_version_again_without_their_bases_share_it_once(
    ana: Machine, bob: Machine, eve: Machine
) -> None:
    ana.put(MODEL, "state", "one")
    for machine in (ana, bob, eve):
        synced(machine)
    ana.put(MODEL, "state", "two")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    for machine in (bob, eve):
        lose_base(machine)
        synced(machine)
    for machine in (ana, bob, eve):
        synced(machine)
        with machine.open() as repo:
            assert sorted(contents(repo, MODEL, "state")) == ["one", "two"]
    assert {rel for rel in named(eve) if rel.endswith("raw")} == {"2/raw", "3/raw"}


def test_the_last_copy_of_a_version_stays_if_its_other_number_has_lost_its_object(
    ana: Machine, bob: Machine, eve: Machine, bucket: Path
) -> None:
    eve.use(bucket, hydrationStrategy=None)
    ana.put(MODEL, "state", "one")
    for machine in (ana, bob, eve):
        synced(machine)
    assert eve.get(MODEL, "state") == "one"
    ana.put(MODEL, "state", "two")
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    lose_base(bob)
    synced(bob)  # which shares it again, as version 3
    (bucket / HOME / "3/raw").unlink()
    lose_base(eve)
    eve("sync", "--json")
    assert b"one" in [path.read_bytes() for path in (eve.cache / HOME).rglob("raw")]


def test_metadata_without_content_never_becomes_the_latest(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    for content in ("one", "two"):
        ana.put(MODEL, "state", content)
    synced(ana)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=2)
    synced(ana)
    lose_base(bob)
    synced(bob, "--full")
    assert named(bob) == {"1/raw", "1/metadata.yaml", "latest"}
    assert (bucket / HOME / "latest").read_bytes() == b"1"
    synced(ana)
    assert ana.get(MODEL, "state") == "one"


def test_a_version_whose_content_is_a_link_is_not_published(
    ana: Machine, bob: Machine, tmp_path: Path
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    ana.put(MODEL, "state", "two")
    raw = ana.cache / HOME / "2/raw"
    raw.rename(tmp_path / "elsewhere")
    raw.symlink_to(tmp_path / "elsewhere")
    ana.put(MODEL, "other", "content")
    done = synced(ana)
    assert f"{HOME}/2" in [one["path"] for one in done["skipped"]]
    assert named(ana) == {"1/raw", "1/metadata.yaml", "latest"}
    synced(bob)
    assert bob.get(MODEL, "state") == "one"
    assert bob.get(MODEL, "other") == "content"
    raw.unlink()
    (tmp_path / "elsewhere").rename(raw)
    synced(ana)
    synced(bob)
    assert bob.get(MODEL, "state") == "two"


def test_content_that_vanishes_while_it_is_pushed_takes_its_metadata_along(
    ana: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.put(MODEL, "state", "one")
    put = Uploader.put
    with monkeypatch.context() as patch:
        patch.setattr(
            Uploader,
            "put",
            lambda self, one: Vanished(one.rel) if one.rel.endswith("/raw") else put(self, one),
        )
        synced(ana)
        assert named(ana) == set()
    synced(ana)
    assert named(ana) == {"1/raw", "1/metadata.yaml", "latest"}


def test_a_clashing_version_without_content_gets_no_new_number(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "theirs")
    synced(ana)
    bob.put(MODEL, "state", "ours")
    (bob.cache / HOME / "1/raw").unlink()
    done = synced(bob)
    assert f"{HOME}/1" in [one["path"] for one in done["skipped"]]
    assert named(bob) == {"1/raw", "1/metadata.yaml", "latest"}
    assert sorted(path.name for path in (bob.cache / HOME).iterdir()) == ["1", "latest"]


def a_version(number: int, content: bytes) -> dict[str, bytes]:
    """Return the files of a version."""
    sha256 = hashlib.sha256(content).hexdigest()
    now = "2026-06-01T10:00:00.000Z"
    metadata = Draft().checked().metadata("state", number, Owner(), now, len(content), sha256)
    return {f"{HOME}/{number}/raw": content, f"{HOME}/{number}/metadata.yaml": encode(metadata)}


@pytest.mark.parametrize("other", [b"as long as one", b"longer than the first one"])
def test_an_index_that_is_made_from_objects_joins_no_halves_of_two_versions(
    memory_remote: Remote, tmp_path: Path, other: bytes
) -> None:
    """Two machines were stopped while they uploaded version 2; each has left one file."""
    store = memory_remote.open()
    whole = {**a_version(1, b"one"), f"{HOME}/latest": b"1"}
    ours, theirs = a_version(2, b"as long as two"), a_version(2, other)
    stored = {**whole, **ours, f"{HOME}/2/raw": theirs[f"{HOME}/2/raw"]}
    for rel, data in stored.items():
        store.put(rel, data)
    with Host(tmp_path / "host", memory_remote.open()) as host:
        host.pull()
        assert host.files() == whole


def test_an_index_that_is_made_from_objects_leaves_half_a_version_out(
    memory_remote: Remote, tmp_path: Path
) -> None:
    store = memory_remote.open()
    for rel in ("1/raw", "1/metadata.yaml", "2/metadata.yaml", "latest"):
        store.put(f"{HOME}/{rel}", b"1")
    with Host(tmp_path / "host", memory_remote.open()) as host:
        host.pull()
        assert sorted(host.files()) == [
            f"{HOME}/{rel}" for rel in ("1/metadata.yaml", "1/raw", "latest")
        ]
        host.write("files/notes", b"x")
        host.push()
        assert f"{HOME}/2/metadata.yaml" not in remote_index(store).entries


@pytest.mark.parametrize("is_appended_to_before", [False, True])
def test_content_that_grew_after_its_metadata_was_written_is_the_latest_all_the_same(
    ana: Machine, bob: Machine, bucket: Path, *, is_appended_to_before: bool
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    ana.put(MODEL, "state", "old")
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "one\n", streaming=True)
        if is_appended_to_before:
            repo.artifacts.append(MODEL, "state", "two\n")
        # Whoever appends writes content first, and metadata afterwards: a push may be in between.
        repo.sync.mark_dirty(f"{HOME}/2/raw")
        with open(repo.tree.path(f"{HOME}/2/raw"), "ab") as file:
            file.write(b"more\n")
    synced(ana)
    synced(bob)
    bob.put(MODEL, "other", "x")
    synced(bob)
    assert (bucket / HOME / "latest").read_bytes() == b"2"
    assert bob.get(MODEL, "state").endswith("more\n")


def test_content_of_a_deleted_version_does_not_stay_beside_the_one_in_its_place(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    synced(ana)
    ana.put(MODEL, "state", "other")
    synced(ana)
    (bucket / HOME / "1/raw").unlink()
    synced(bob)
    assert not (bob.cache / HOME / "1/raw").exists()
    synced(ana, "--full")
    synced(bob)
    assert (bob.cache / HOME / "1/raw").read_text() == "other"


def test_content_that_left_the_index_without_its_metadata_stays_and_is_shared_again(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    """Whoever deletes a version deletes all of it: ours may be the last copy."""
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    OldPeer(DirectoryStore(str(bucket))).push_v1({f"{HOME}/1/raw": None})
    assert not (bucket / HOME / "1/raw").exists()
    synced(bob)
    assert bob.get(MODEL, "state") == "one"
    assert (bucket / HOME / "1/raw").read_bytes() == b"one"
    synced(ana)
    assert ana.get(MODEL, "state") == "one"
    assert named(ana) == {"1/raw", "1/metadata.yaml", "latest"}


def test_content_is_not_replaced_by_what_its_metadata_does_not_speak_of(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    OldPeer(DirectoryStore(str(bucket))).push_v1({f"{HOME}/1/raw": b"garbled"})
    for options in ((), ("--full",), ()):
        bob("sync", *options)
        assert bob.get(MODEL, "state") == "one"


def test_one_look_at_the_remotes_metadata_tells_that_a_version_has_grown(
    tmp_path: Path, memory_remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft(streaming=True, id="11111111-2222-4333-8444-555555555555").checked()

    def save(machine: Host, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        metadata = draft.metadata("state", 1, Owner(), AT, len(content), digest)
        machine.write(f"{HOME}/1/raw", content)
        machine.write(f"{HOME}/1/metadata.yaml", encode(metadata))
        machine.write(f"{HOME}/latest", b"1")

    asked: list[str] = []
    with (
        Host(tmp_path / "a", memory_remote.open()) as a,
        Host(tmp_path / "b", memory_remote.open()) as b,
    ):
        save(a, b"one")
        a.push()
        save(b, b"one and more")  # of which b's base tells nothing
        get = b.store.get

        def get_and_tell(key: str) -> Fetched:
            asked.append(key)
            return get(key)

        monkeypatch.setattr(b.store, "get", get_and_tell)
        b.push()
        a.pull()
        assert a.read(f"{HOME}/1/raw") == b"one and more"
        assert named_by(a) == {"1/raw", "1/metadata.yaml", "latest"}
    assert asked.count(f"{HOME}/1/metadata.yaml") == 1


def test_a_version_that_has_grown_is_recognised_by_its_object_where_the_index_has_no_hashes(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "one", streaming=True)
    synced(ana)
    synced(bob)
    index = json.loads((bucket / MONOLITH_KEY).read_bytes())
    for entry in index["entries"].values():
        entry.pop("sha256", None)
    (bucket / MONOLITH_KEY).write_text(json.dumps(index))
    lose_base(bob)
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", " and more")
    for machine in (bob, ana):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more"]


def test_a_version_that_has_grown_keeps_its_number_where_another_one_gets_the_next(
    ana: Machine, bob: Machine
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "old")
        repo.artifacts.save(MODEL, "state", "one", streaming=True)
    synced(ana)
    synced(bob)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=1)
    synced(ana)
    lose_base(bob)
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", " and more")
    for machine in (bob, ana):
        synced(machine)
        with machine.open() as repo:
            # Without its base, bob's machine cannot tell that the first one was deleted.
            assert contents(repo, MODEL, "state") == ["one and more", "old"]


def test_a_version_that_has_grown_keeps_its_number_though_a_fence_left_it_out_of_a_lost_index(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "one", streaming=True)
    synced(ana)
    with ana.open() as repo:
        repo.sync.migrate_index()
    synced(bob)
    ana.put(MODEL, "state", "two")
    synced(ana)
    with bob.open() as repo:
        repo.artifacts.append(MODEL, "state", " and more")
        shutil.rmtree(bucket / "_index")
        (bucket / MONOLITH_KEY).unlink()
        repo.sync.pull()
        prepared = repo.sync.prepare_push()
        # Whoever takes a lock over writes what is lost, without uploads that are about to be named.
        repo.sync.fence()
        repo.sync.commit_push(prepared)
    for machine in (bob, ana):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and more", "two"]


def test_a_version_keeps_its_number_whose_content_and_shard_and_base_are_lost(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    for content in ("one", "two"):
        ana.put(MODEL, "state", content)
    synced(ana)
    with ana.open() as repo:
        repo.sync.migrate_index()
    synced(bob)
    (bucket / HOME / "1/raw").unlink()
    (bucket / "_index/data--aws--ec2--i-1.json").unlink()
    lose_base(bob)
    for machine in (bob, ana, bob):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one", "two"]
    assert {"1/raw", "1/metadata.yaml", "2/raw", "2/metadata.yaml", "latest"} == named(ana)


@pytest.mark.parametrize(("owner", "name"), [(RemoteIndex, "commit"), (Remover, "carry_out")])
def test_a_version_that_somebody_is_removing_does_not_keep_its_number_after_such_losses(
    ana: Machine, bob: Machine, bucket: Path, owner: type[object], name: str
) -> None:
    def be_killed(*_: object, **__: object) -> None:
        raise Killed

    for content in ("one", "two"):
        ana.put(MODEL, "state", content)
    synced(ana)
    with ana.open() as repo:
        repo.sync.migrate_index()
    synced(bob)
    with ana.open() as repo, pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        repo.artifacts.delete(MODEL, "state", version=1)
        patch.setattr(owner, name, be_killed)
        repo.sync.push()
    assert len([*(bucket / REMOVALS).iterdir()]) == 1
    (bucket / HOME / "1/raw").unlink()
    (bucket / "_index/data--aws--ec2--i-1.json").unlink()
    lose_base(bob)
    for machine in (bob, ana, bob):
        synced(machine, "--full")
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["two", "one"]
    assert {"2/raw", "2/metadata.yaml", "3/raw", "3/metadata.yaml", "latest"} == named(ana)
    assert not (bucket / HOME / "1").exists()
    assert not (bucket / REMOVALS).exists()


def named_by(machine: Host) -> set[str]:
    return {rel.removeprefix(f"{HOME}/") for rel in remote_index(machine.store).entries}


def test_who_reads_something_after_the_base_was_lost_has_lost_it_all_the_same(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "other", "other")
    forget_a_deletion(ana, bob, bucket, 1)
    assert bob.get(MODEL, "other") == "other"  # the new base knows that now
    synced(bob)
    assert sorted(path.name for path in (bob.cache / HOME).iterdir()) == ["2", "latest"]


@pytest.mark.parametrize("lazy", [True, False])
def test_who_saves_something_after_the_base_was_lost_gets_what_others_have_put_in_place(
    ana: Machine, bob: Machine, bucket: Path, lazy: bool
) -> None:
    bob.use(bucket, hydrationStrategy=None if lazy else "full")
    ana.put(MODEL, "state", "one")
    synced(ana)
    synced(bob)
    if not lazy:
        with bob.open() as repo:
            repo.sync.evict(0)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
        synced(ana)
        repo.artifacts.save(MODEL, "state", "another")
    synced(ana)
    lose_base(bob)
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", "new")
        with repo.session([MODEL]):  # pushes what waits before it pulls
            pass
    for machine in (bob, ana, bob):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["another", "new"]


def test_what_was_saved_after_a_lost_base_was_noticed_waits_for_its_content(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    """Somebody who removed its content may put that back."""
    ana.put(MODEL, "state", "theirs")
    bob.put(MODEL, "other", "other")
    synced(bob)
    lose_base(bob)
    bob("sync", "--model", "aws/ec2/i-2")
    bob.put(MODEL, "state", "ours")
    raw = bob.cache / HOME / "1/raw"
    raw.rename(bob.cache / "aside")
    synced(ana)
    bob("sync")
    (bob.cache / "aside").rename(raw)
    for machine in (bob, ana, bob):
        synced(machine)
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["theirs", "ours"]


@pytest.mark.parametrize("kept_out", ["raw", "metadata.yaml"])
@pytest.mark.parametrize("is_full", [False, True], ids=["unreadable", "disk full"])
def test_a_version_is_replaced_as_a_whole_or_not_at_all(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch, kept_out: str, is_full: bool
) -> None:
    ana.put(MODEL, "state", "one")
    for machine in (ana, bob):
        synced(machine)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    synced(ana)
    ana.put(MODEL, "state", "another")
    synced(ana)
    fetch = Downloader.fetch

    def fail(downloader: Downloader, download: Download) -> Any:
        if not download.rel.endswith(f"/1/{kept_out}"):
            return fetch(downloader, download)
        if is_full:
            raise DiskError("no room") from OSError(errno.ENOSPC, "no room")
        raise StoreUnreachableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Downloader, "fetch", fail)
        assert bob("sync", "--json").status == 1
    assert bob.get(MODEL, "state") == "one"
    synced(bob)
    assert bob.get(MODEL, "state") == "another"


@pytest.mark.parametrize("pulls_first", [False, True])
def test_a_version_that_was_deleted_here_comes_back_whole_if_others_have_changed_a_part_of_it(
    ana: Machine, bob: Machine, pulls_first: bool
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    for machine in (ana, bob):
        synced(machine)
    append(ana, b" and two")
    synced(ana)
    append(bob, b" and six")  # of the same length: the metadata is equal now, the content is not
    with bob.open() as repo:
        if pulls_first:
            repo.sync.pull()
        repo.artifacts.delete(MODEL, "state")
    for machine in (bob, ana, bob):
        synced(machine)
    for machine in (ana, bob):
        with machine.open() as repo:
            assert contents(repo, MODEL, "state") == ["one and two"]


@pytest.mark.parametrize("strategy", ["lazy", "full"])
def test_content_of_another_version_is_not_read_in_the_place_of_what_nobody_has_any_more(
    ana: Machine, bob: Machine, bucket: Path, strategy: str
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"on", streaming=True)
        repo.artifacts.append(MODEL, "state", b"e\n")  # so its metadata tells no hash
        repo.sync.push()
    synced(bob)
    lose_base(bob)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
        repo.sync.push()
    # Nothing tells its metadata from what somebody is at work on under that name.
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", b"two\n", streaming=True)
    synced(bob)
    synced(ana)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
        assert repo.artifacts.save(MODEL, "state", b"new\n", streaming=True).version == 1
        repo.sync.push()
    bob.use(bucket, hydrationStrategy=strategy)
    synced(bob)
    with bob.open() as repo:
        (left,) = [one for one in repo.versions(MODEL, "state") if one.version == 1]
        with pytest.raises(ContentMissingError):
            left.bytes()
    assert ana.get(MODEL, "state") == "new\n"


def test_a_version_can_be_deleted_whose_content_was_lost_and_whose_number_was_used_before(
    ana: Machine, bob: Machine, eve: Machine, bucket: Path
) -> None:
    bob.use(bucket, hydrationStrategy=None)
    ana.put(MODEL, "state", "old")
    synced(ana)
    synced(bob)  # without content
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
        repo.sync.push()
    eve.put(MODEL, "state", "new")
    synced(eve)
    assert named(eve) == {"1/raw", "1/metadata.yaml", "latest"}
    (bucket / HOME / "1/raw").unlink()
    bob.use(bucket, hydrationStrategy="full")
    synced(bob)
    with bob.open() as repo:
        repo.artifacts.delete(MODEL, "state")
    assert synced(bob)["conflicts"] == []
    for machine in (eve, bob):
        synced(machine)
        assert named(machine) == set()
    assert not (eve.cache / HOME).exists()
