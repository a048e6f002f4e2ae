"""What a client leaves out or overwrites that takes a lost part of the index for an empty one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.files.tree import Tree
from swampstore.index.partitions import (
    META_KEY,
    MONOLITH_KEY,
    partition_of,
    shard_key,
    wire_partition,
)
from swampstore.index.remote_index import RemoteIndex
from swampstore.index.removals import REMOVALS, Remover
from swampstore.stores.directory import DirectoryStore
from swampstore.sync import start_over
from swampstore.sync.journal import JOURNAL
from swampstore.sync.transfer import Transfer
from tests.support.broken_store import Killed
from tests.support.machines import Machine, push_and_die
from tests.support.old_client import SIDECAR, OldPeer

MODEL = "aws/ec2/i-1"
HOME = f"data/{MODEL}/state"


@pytest.fixture
def peer(bucket: Path) -> OldPeer:
    return OldPeer(DirectoryStore(str(bucket)))


def synced(machine: Machine, *options: str) -> dict[str, Any]:
    outcome = machine("sync", *options, "--json")
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def deleted(machine: Machine) -> None:
    """Delete something without a session."""
    with machine.open() as repo:
        repo.artifacts.delete(MODEL, "state")


def versions(machine: Machine, name: str = "state") -> dict[int, str]:
    with machine.open() as repo:
        return {found.version: found.text() for found in repo.versions(MODEL, name)}


def version_1(content: bytes, name: str = "state") -> dict[str, bytes | None]:
    sha256 = hashlib.sha256(content).hexdigest()
    draft = Draft().checked()
    metadata = draft.metadata(name, 1, Owner(), "2026-06-01T10:00:00.000Z", len(content), sha256)
    home = f"data/{MODEL}/{name}"
    return {
        f"{home}/1/raw": content,
        f"{home}/1/metadata.yaml": encode(metadata),
        f"{home}/latest": b"1",
    }


def test_a_version_that_was_overwritten_after_the_index_was_lost_is_kept_under_another_number(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    done = synced(ana)
    assert {one["path"]: one["reason"] for one in done["skipped"]}[HOME] == (
        "the version was taken by another machine; ours was kept: 1 is 2 now"
    )
    synced(bob)
    synced(ana)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 2: "ours"}
        assert versions(machine, "other") == {1: "other"}


def test_a_version_that_was_overwritten_is_kept_though_all_else_was_deleted_here(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "other")
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 2: "ours"}
        assert versions(machine, "other") == {}


def test_a_version_that_was_overwritten_is_kept_though_somebody_named_again_what_was_left_out(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.use(bucket, hydrationStrategy=None)
    bob.put(MODEL, "state", "ours")
    bob.put(MODEL, "other", "other")
    for machine in (bob, ana):
        synced(machine)
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 2: "ours"}
        assert versions(machine, "other") == {1: "other"}


def test_what_is_deleted_stays_deleted_though_others_brought_back_an_index_of_long_ago(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.put(MODEL, "state", "first")
    for machine in (ana, bob):
        synced(machine)
    peer.migrate()
    deleted(bob)
    synced(bob)
    bob.put(MODEL, "state", "second")
    synced(bob)
    assert versions(bob) == {1: "second"}
    (bucket / META_KEY).unlink()
    peer.push_v1(version_1(b"theirs", "other"))  # the monolith of before names the first one
    deleted(bob)
    for machine in (bob, ana, bob):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {}
        assert versions(machine, "other") == {1: "theirs"}
    assert not (bucket / HOME).exists()


def test_a_version_that_was_removed_by_hand_and_left_out_of_an_index_is_fetched_again(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.put(MODEL, "state", "ours")
    synced(ana)
    with ana.open() as repo:
        shutil.rmtree(repo.tree.path(f"{HOME}/1"))
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs", "other"))
    for machine in (ana, bob):
        synced(machine)
        assert versions(machine) == {1: "ours"}
        assert versions(machine, "other") == {1: "theirs"}


def test_metadata_that_was_removed_by_hand_stays_away_if_its_content_is_gone_everywhere(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.put(MODEL, "state", "ours")
    synced(ana)
    with ana.open() as repo:
        shutil.rmtree(repo.tree.path(f"{HOME}/1"))
    (bucket / HOME / "1/raw").unlink()
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs", "other"))
    for machine in (ana, bob):
        synced(machine)
        assert versions(machine) == {}
        assert versions(machine, "other") == {1: "theirs"}


@pytest.mark.parametrize("lazy", [False, True])
def test_what_was_left_out_of_an_index_and_is_deleted_after_a_pull_stays_deleted(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer, lazy: bool
) -> None:
    if lazy:
        ana.use(bucket, hydrationStrategy=None)
    ana.put(MODEL, "state", "one")
    ana.put(MODEL, "state", "two")
    synced(ana)
    shutil.rmtree(bucket / "_index")
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    synced(ana, "--pull")
    assert versions(ana) == {1: "theirs", 2: "two", 3: "one"}
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state", version=2)
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 3: "one"}


@pytest.mark.parametrize("sharded", [False, True])
def test_a_version_that_was_overwritten_is_kept_where_all_of_an_index_without_origin_was_lost(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer, sharded: bool
) -> None:
    peer.push_v1(version_1(b"other", "other"))
    if sharded:
        peer.migrate()
    ana.put(MODEL, "state", "ours")
    synced(ana)
    shutil.rmtree(bucket / "_index")
    (bucket / MONOLITH_KEY).unlink()
    peer.push_monolith_only(version_1(b"theirs"))
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 2: "ours"}
        assert versions(machine, "other") == {1: "other"}


def test_a_version_that_was_overwritten_is_kept_where_the_new_meta_of_a_sharded_index_was_lost_too(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    ana.use(bucket, hydrationStrategy=None)
    peer.push_v1(version_1(b"one"))
    with ana.open() as repo:
        repo.sync.migrate_index()
    synced(ana)
    ana.put(MODEL, "state", "two")
    synced(ana)
    assert versions(ana) == {1: "one", 2: "two"}
    shutil.rmtree(bucket / "_index")
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    (bucket / META_KEY).unlink()
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 2: "two", 3: "one"}


def test_only_a_version_whose_number_was_taken_gets_another_one_where_all_of_an_index_was_lost(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer
) -> None:
    peer.push_v1(version_1(b"one"))
    peer.migrate()
    ana.put(MODEL, "state", "two")
    synced(ana)
    bob.put(MODEL, "state", "three")
    synced(bob)
    shutil.rmtree(bucket / "_index")
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "theirs", 2: "two", 3: "three", 4: "one"}


@pytest.mark.parametrize("sharded", [False, True])
def test_what_only_the_store_has_is_named_again_if_somebody_left_entries_out_of_the_index(
    ana: Machine, bob: Machine, bucket: Path, peer: OldPeer, sharded: bool
) -> None:
    push = peer.push_v2 if sharded else peer.push_v1
    ana.put(MODEL, "other", "other")
    synced(ana)
    if sharded:
        assert ana("datastore", "migrate-index").status == 0
    push(version_1(b"never seen"))
    lost = [shard_key(wire_partition(rel) or "") for rel in version_1(b"")] if sharded else []
    for key in {*lost} or {MONOLITH_KEY}:
        (bucket / key).unlink()
    push(version_1(b"third", "third"))
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {1: "never seen"}
        assert versions(machine, "other") == {1: "other"}
        assert versions(machine, "third") == {1: "third"}


def test_what_arrives_where_something_of_our_own_was_deleted_is_not_deleted_by_its_absence(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, "state", "of ana")
    synced(ana)
    with bob.open() as repo:
        repo.artifacts.save(MODEL, "state", b"never pushed")
        repo.artifacts.delete(MODEL, "state")
        repo.sync.pull()
        assert repo.latest(MODEL, "state").text() == "of ana"
    shutil.rmtree(bob.cache / HOME / "1")
    synced(bob)
    synced(ana)
    assert versions(ana) == {1: "of ana"}


def test_a_preview_tells_of_it_and_moves_nothing(ana: Machine, bucket: Path, peer: OldPeer) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    (bucket / MONOLITH_KEY).unlink()
    peer.push_v1(version_1(b"theirs"))
    told = synced(ana, "--dry-run")
    assert f"{HOME}/1" in told["conflicts"]
    assert not any(rel.startswith(f"{HOME}/1/") for rel in told["pull"])
    assert versions(ana) == {1: "ours"}


def test_a_number_that_is_used_again_after_a_deletion_brings_nothing_back(
    ana: Machine, bob: Machine, peer: OldPeer
) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    synced(bob)
    peer.push_v1(dict.fromkeys(version_1(b"")))
    peer.push_v1(version_1(b"theirs"))
    for machine in (ana, bob, ana):
        assert synced(machine)["conflicts"] == []
    assert versions(ana) == versions(bob) == {1: "theirs"}


def test_what_was_deleted_last_stays_deleted_when_the_empty_monolith_is_lost(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "ours")
    synced(ana)
    synced(bob)
    deleted(bob)
    synced(bob)
    (bucket / MONOLITH_KEY).unlink()
    synced(bob, "--full")
    assert json.loads((bucket / MONOLITH_KEY).read_bytes())["entries"] == {}
    synced(ana)
    assert versions(ana) == {}


def test_a_deletion_of_which_no_mark_is_left_is_told_and_undone_at_once(
    ana: Machine, bob: Machine
) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    synced(bob)
    deleted(bob)
    for name in (SIDECAR, JOURNAL):
        (bob.cache / name).unlink()
    done = synced(bob)
    assert [one["path"] for one in done["conflicts"]] == [HOME]
    assert versions(bob) == versions(ana) == {1: "ours"}
    assert versions(bob, "other") == {1: "other"}
    assert synced(bob)["conflicts"] == []


def test_a_deletion_counts_though_everything_is_looked_at(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    synced(bob)
    deleted(bob)
    (bob.cache / SIDECAR).unlink()
    assert synced(bob)["conflicts"] == []
    synced(ana)
    assert versions(bob) == versions(ana) == {}


def test_a_deletion_stays_if_another_machine_makes_a_lost_shard_anew(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "ours")
    ana.put(MODEL, "other", "other")
    synced(ana)
    assert ana("datastore", "migrate-index").status == 0
    (bucket / shard_key(wire_partition(f"{HOME}/1/raw") or "")).unlink()
    deleted(ana)
    synced(bob, "--full")
    synced(ana)
    synced(bob)
    synced(ana)
    for machine in (ana, bob):
        assert versions(machine) == {}
        assert versions(machine, "other") == {1: "other"}


def test_a_note_that_nobody_can_read_stops_nobody(
    ana: Machine,
    bob: Machine,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ana.put(MODEL, "state", "ours")
    synced(ana)
    synced(bob)
    deleted(ana)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, ana.open() as repo:
        patched.setattr(Remover, "carry_out", die)
        with pytest.raises(Killed):
            repo.sync.push()
    note = bucket / REMOVALS / "damaged.json"
    note.write_text("{")
    synced(bob, "--pull")
    assert "damaged.json cannot be understood" in caplog.text
    for machine in (ana, bob):
        synced(machine)
        assert versions(machine) == {}
    assert [*(bucket / REMOVALS).iterdir()] == [note]


def test_objects_that_no_document_tells_of_take_no_version_away(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "ours")
    synced(ana)
    (bucket / MONOLITH_KEY).unlink()
    for rel, content in version_1(b"theirs").items():
        assert content is not None
        (bucket / rel).write_bytes(content)  # and whoever did that was stopped
        os.utime(bucket / rel, (time.time() + 60,) * 2)
    synced(ana)
    synced(ana, "--full")
    synced(bob)
    assert sorted(versions(ana).values()) == sorted(versions(bob).values()) == ["ours", "theirs"]


@pytest.mark.parametrize("version", [None, 1])
def test_a_deletion_stays_if_another_checkout_pushes_between_its_mark_and_its_removal(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    ana.put(MODEL, "state", "one")
    ana.put(MODEL, "state", "two")
    synced(ana)
    drop = Tree.drop_dir

    def push_before(tree: Tree, *arguments: Any) -> None:
        with monkeypatch.context() as patch, ana.open() as other:
            patch.setattr(Tree, "drop_dir", drop)
            other.sync.push()
        drop(tree, *arguments)

    with monkeypatch.context() as patch, ana.open() as repo:
        patch.setattr(Tree, "drop_dir", push_before)
        repo.artifacts.delete(MODEL, "state", version=version)
    for machine in (ana, bob):
        synced(machine)
        assert versions(machine) == ({2: "two"} if version else {})


@pytest.mark.parametrize("lazy", [False, True])
def test_content_of_a_deleted_version_that_is_healed_elsewhere_goes_with_it(
    ana: Machine, bob: Machine, bucket: Path, lazy: bool
) -> None:
    if lazy:
        bob.use(bucket, hydrationStrategy=None)
    ana.put(MODEL, "state", "one")
    synced(ana)
    (bucket / HOME / "1/raw").unlink()
    bob("sync")  # cannot have the content
    deleted(bob)
    synced(ana, "--full")  # sends it again
    synced(bob, "--pull")
    assert not (bob.cache / HOME / "1").exists()
    for machine in (bob, ana):
        synced(machine)
    assert not [path for path in bucket.glob("data/**/*") if path.is_file()]
    assert json.loads((bucket / MONOLITH_KEY).read_bytes())["entries"] == {}


def test_what_is_deleted_while_another_process_pulls_everything_stays_deleted(
    ana: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    changes = RemoteIndex.changes

    def deleting(self: RemoteIndex, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(RemoteIndex, "changes", changes)
        deleted(ana)
        return changes(self, *args, **options)

    monkeypatch.setattr(RemoteIndex, "changes", deleting)
    synced(ana, "--full")
    assert versions(ana) == {}


@pytest.mark.parametrize("steps", [["--pull", "--push"], ["--push", "--pull"]])
def test_what_a_killed_push_had_committed_stays_deleted_if_another_process_does_that_meanwhile(
    ana: Machine, bob: Machine, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    ana.put(MODEL, "state", "one")
    push_and_die(ana, monkeypatch)
    learn = start_over.learn_own_commits

    def learn_and_delete(context: Any) -> bool:
        found = learn(context)
        monkeypatch.setattr(start_over, "learn_own_commits", learn)
        deleted(ana)
        return found

    monkeypatch.setattr(start_over, "learn_own_commits", learn_and_delete)
    for step in steps:
        synced(ana, step)
    synced(bob)
    for machine in (ana, bob):
        assert versions(machine) == {}


@pytest.mark.parametrize("is_deleted_here", [False, True])
def test_what_a_killed_pull_had_removed_comes_again_if_somebody_shares_just_that_once_more(
    ana: Machine,
    bob: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_deleted_here: bool,
) -> None:
    ana.put(MODEL, "state", "one")
    for machine in (ana, bob):
        synced(machine)
    shutil.copytree(ana.cache / HOME, tmp_path / "as-it-was")
    deleted(ana)
    synced(ana)
    install = Transfer.install

    def install_and_die(*arguments: Any) -> Any:
        install(*arguments)
        raise Killed

    with monkeypatch.context() as patch, bob.open() as repo, pytest.raises(Killed):
        patch.setattr(Transfer, "install", install_and_die)
        repo.sync.pull()
    assert not (bob.cache / HOME).exists()
    if is_deleted_here:  # by somebody who had looked before
        with bob.open() as repo:
            repo.sync.mark_dirty(HOME)
    for one in ana.cache.glob("_catalog.db-base*"):
        one.unlink()
    shutil.copytree(tmp_path / "as-it-was", ana.cache / HOME)
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == ({} if is_deleted_here else {1: "one"})


def appended(machine: Machine, piece: bytes) -> None:
    with machine.open() as repo:
        repo.artifacts.append(MODEL, "state", piece)


def test_what_was_appended_here_stays_though_others_appended_as_much_and_somebody_deleted_that(
    ana: Machine, bob: Machine
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", b"one", streaming=True)
    for machine in (ana, bob):
        synced(machine)
    for machine, piece in ((ana, b" and two"), (bob, b" or more")):
        appended(machine, piece)
    mine, theirs = ((one.cache / HOME / "1/metadata.yaml").read_bytes() for one in (ana, bob))
    assert mine == theirs, "it tells of no difference"
    synced(ana)
    synced(bob, "--pull")
    deleted(ana)
    synced(ana)
    for machine in (bob, ana, bob):
        synced(machine)
    for machine in (ana, bob):
        assert list(versions(machine).values()) == ["one or more"]


def test_damaged_content_keeps_no_version_that_somebody_deleted(ana: Machine, bob: Machine) -> None:
    ana.put(MODEL, "state", "one")
    for machine in (ana, bob):
        synced(machine)
    (bob.cache / HOME / "1/raw").write_bytes(b"0ne")
    deleted(ana)
    for machine in (ana, bob, ana):
        synced(machine)
    for machine in (ana, bob):
        assert versions(machine) == {}


def test_what_a_push_had_sent_when_a_shard_turned_out_to_be_lost_is_there_once(
    ana: Machine, bob: Machine, bucket: Path
) -> None:
    ana.put(MODEL, "state", "one")
    synced(ana)
    with ana.open() as repo:
        repo.sync.migrate_index()
    synced(bob)
    with bob.open() as repo:
        for content in ("two", "three"):
            repo.artifacts.save(MODEL, "state", content)
    # A client of another make was killed before it committed.
    for rel, data in version_1(b"theirs").items():
        path = bucket / rel.replace("/1/", "/2/")
        path.parent.mkdir(exist_ok=True)
        if not rel.endswith("latest"):
            path.write_bytes((data or b"").replace(b"version: 1", b"version: 2"))
    (bucket / shard_key(partition_of(f"{HOME}/1/raw"))).unlink()
    for machine in (bob, ana, bob):
        synced(machine)
    for machine in (ana, bob):
        assert sorted(versions(machine).values()) == ["one", "theirs", "three", "two"]
