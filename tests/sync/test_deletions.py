"""What a client leaves out or overwrites that takes a lost part of the index for an empty one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from swampstore.artifacts.metadata import Draft, Owner, encode
from swampstore.index.partitions import MONOLITH_KEY
from swampstore.stores.directory import DirectoryStore
from tests.support.machines import Machine
from tests.support.old_client import OldPeer

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


def versions(machine: Machine, name: str = "state") -> dict[int, str]:
    with machine.open() as repo:
        return {found.version: found.text() for found in repo.versions(MODEL, name)}


def version_1(content: bytes) -> dict[str, bytes | None]:
    sha256 = hashlib.sha256(content).hexdigest()
    draft = Draft().checked()
    metadata = draft.metadata("state", 1, Owner(), "2026-06-01T10:00:00.000Z", len(content), sha256)
    return {
        f"{HOME}/1/raw": content,
        f"{HOME}/1/metadata.yaml": encode(metadata),
        f"{HOME}/latest": b"1",
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
