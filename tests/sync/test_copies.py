"""Content that the remote has already is copied there, on conditions, and not sent again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swampstore.index.errors import SyncError
from swampstore.stores import probe
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Store
from swampstore.stores.wrapper import Request, StoreWrapper
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.staging import metadata_of
from tests.support.sync_harness import Machine

CONTENT = os.urandom(2 << 20)
FIRST = "data/aws/ec2/i-1/image/1/raw"
SECOND = "data/aws/ec2/i-2/image/1/raw"


def save(machine: Machine, rel: str, content: bytes = CONTENT) -> None:
    """Save one version, of which `rel` is the content."""
    home, _, version = os.path.dirname(rel).rpartition("/")
    metadata = metadata_of(os.path.basename(home), int(version), content)
    machine.write(f"{home}/{version}/metadata.yaml", metadata)
    machine.write(f"{home}/latest", version.encode())
    machine.write(rel, content)


@pytest.fixture(params=["memory", "directory", "s3", "gcs", "azure"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """A machine that has pushed the content once."""
    remote: Remote = request.getfixturevalue(f"{request.param}_remote")
    machine = Machine(tmp_path / "here", remote.open())
    save(machine, FIRST)
    machine.push()
    machine.cost()
    return machine


def test_content_that_the_remote_has_is_copied_there(here: Machine) -> None:
    save(here, SECOND)
    pushed = here.push()
    cost = here.cost()
    assert cost.bytes_sent < 20_000
    assert cost.bytes_received < 20_000
    assert pushed.files == 3
    assert pushed.bytes < 1000
    assert here.store.get(SECOND).data == CONTENT


def test_a_copy_costs_two_requests_once_the_store_was_tried(here: Machine) -> None:
    save(here, SECOND)
    here.push()
    here.cost()
    save(here, "data/aws/ec2/i-3/image/1/raw", CONTENT)
    here.push()
    copied = here.cost()
    save(here, "data/aws/ec2/i-4/image/1/raw", os.urandom(2 << 20))
    here.push()
    sent = here.cost()
    # Instead of the one that sends it.
    assert sum(copied.requests.values()) == sum(sent.requests.values()) + 1
    assert copied.requests["copy"] == 1


def test_others_read_what_was_copied(s3_remote: ProxiedRemote, tmp_path: Path) -> None:
    here = Machine(tmp_path / "here", s3_remote.open())
    there = Machine(tmp_path / "there", s3_remote.open())
    save(here, FIRST)
    here.push()
    save(here, SECOND)
    here.push()
    there.pull()
    assert there.files() == here.files()


def test_a_real_server_is_sent_no_content_again(s3_remote: ProxiedRemote, tmp_path: Path) -> None:
    here = Machine(tmp_path / "here", s3_remote.open())
    save(here, FIRST)
    here.push()
    s3_remote.proxy.reset()
    save(here, SECOND)
    here.push()
    requests = s3_remote.proxy.requests
    assert sum(one.sent + one.received for one in requests) < 50_000
    made = [one for one in requests if one.key == SECOND]
    assert [(one.kind, one.sent) for one in made] == [("PUT", 0), ("HEAD", 0)]
    assert made[0].conditions.keys() == {"if-none-match", "x-amz-copy-source-if-match"}


def test_content_that_is_new_costs_no_request_more(here: Machine) -> None:
    def cost_of(rel: str, size: int) -> int:
        save(here, rel, os.urandom(size))
        here.push()
        return sum(here.cost().requests.values())

    large = cost_of("data/aws/ec2/i-2/image/1/raw", 2 << 20)
    small = cost_of("data/aws/ec2/i-3/image/1/raw", 1000)
    assert large == small


def test_little_content_is_sent(here: Machine) -> None:
    save(here, "data/aws/ec2/i-3/image/1/raw", b"x" * 5000)
    here.push()
    save(here, "data/aws/ec2/i-4/image/1/raw", b"x" * 5000)
    here.push()
    assert "copy" not in here.cost().requests


@pytest.mark.parametrize("spoil", ["deleted", "replaced"])
def test_content_whose_source_is_gone_is_sent(here: Machine, spoil: str) -> None:
    if spoil == "deleted":
        here.store.delete(FIRST)
    else:
        here.store.put(FIRST, os.urandom(2 << 20))
    here.cost()
    save(here, SECOND)
    here.push()
    assert here.cost().bytes_sent > len(CONTENT)
    assert here.store.get(SECOND).data == CONTENT


def test_a_copy_replaces_nothing(here: Machine) -> None:
    theirs = os.urandom(1000)
    here.store.put(SECOND, theirs)
    save(here, SECOND)
    here.push()
    assert here.store.get(SECOND).data == theirs
    # Ours has another number, and under that it is copied.
    assert here.store.get(SECOND.replace("/1/", "/2/")).data == CONTENT


def test_a_copy_that_no_index_names_yet_is_not_sent_again(here: Machine) -> None:
    class Failing(StoreWrapper):
        is_down = True

        def around(self, request: Request, send: Callable[[], object]) -> object:  # type: ignore[override]
            if self.is_down and request.kind == "put" and "_index/" in request.key:
                raise StoreUnreachableError("it is gone", hint="Wait.")
            return send()

    failing = Failing(here.store.inner)
    here.store.inner = failing
    save(here, SECOND)
    with pytest.raises((StoreUnreachableError, SyncError)):
        here.push()
    assert here.store.get(SECOND).data == CONTENT
    failing.is_down = False
    here.cost()
    here.push()
    assert here.cost().bytes_sent < 20_000
    assert SECOND in here.base.rels()


def test_content_that_never_came_here_is_sent(memory_remote: Remote, tmp_path: Path) -> None:
    """Nobody on this machine has seen that the object has this content."""
    here = Machine(tmp_path / "here", memory_remote.open())
    lazy = Machine(tmp_path / "lazy", memory_remote.open())
    save(here, FIRST)
    here.push()
    lazy.pull(metadata_only=True)
    lazy.cost()
    save(lazy, SECOND)
    lazy.push()
    assert lazy.cost().bytes_sent > len(CONTENT)


# Stores that cannot be believed -------------------------------------------------------------------


class LaxStore(MemoryStore):
    """It takes conditions on copies, and heeds one of them, or none."""

    heeds_target = heeds_source = False
    capabilities = MemoryStore.capabilities._replace(own_conditions=False)

    def copy_if_absent(self, source: str, target: str, token: str) -> None:
        if not self.heeds_source:
            token = self.head(source).token or ""
        if not self.heeds_target:
            self.delete(target)
        super().copy_if_absent(source, target, token)


class HeedsSource(LaxStore):
    heeds_source = True


class HeedsTarget(LaxStore):
    heeds_target = True


class HeedsBoth(LaxStore):
    heeds_source = heeds_target = True


@pytest.mark.parametrize("kind", [LaxStore, HeedsSource, HeedsTarget])
def test_a_store_that_ignores_a_condition_gets_no_copies(
    kind: type[MemoryStore], tmp_path: Path
) -> None:
    bucket = MemoryBucket()
    here = Machine(tmp_path / "here", kind("remote", bucket))
    save(here, FIRST)
    here.push()
    save(here, SECOND)
    here.push()
    here.cost()
    again = Machine(tmp_path / "here", kind("remote", bucket))
    save(again, "data/aws/ec2/i-3/image/1/raw")
    again.push()
    # What the trial has shown is remembered.
    assert "copy" not in again.cost().requests
    assert list(again.store.list(probe.PREFIX)) == []
    assert again.store.get(SECOND).data == CONTENT


def test_a_store_that_heeds_both_conditions_is_tried_once(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    for number in (1, 2, 3):
        here: Machine = Machine(tmp_path / "here", HeedsBoth("remote", bucket))
        save(here, f"data/aws/ec2/i-{number}/image/1/raw")
        here.push()
        copies = here.cost().requests.get("copy", 0)
        assert copies == 0 if number == 1 else copies > 1 if number == 2 else copies == 1


def test_a_store_without_conditional_copies_gets_none(tmp_path: Path) -> None:
    class Plain(MemoryStore):
        capabilities = MemoryStore.capabilities._replace(conditional_copy=False)

    store: Store = Plain()
    here = Machine(tmp_path / "here", store)
    save(here, FIRST)
    here.push()
    save(here, SECOND)
    here.push()
    assert here.store.get(SECOND).data == CONTENT
    assert "copy" not in here.cost().requests
