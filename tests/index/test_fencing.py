"""Writing anew what commits build on, so that those that have begun fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swampstore.index.errors import IndexMovedError
from swampstore.index.format import Entry
from swampstore.index.partitions import partition_of
from swampstore.index.remote_index import RemoteIndex
from swampstore.stores.errors import PreconditionFailedError
from tests.support.remotes import Remote
from tests.support.sync_harness import META, MONOLITH, Machine

REL = "outputs/aws/ec2/run/run-1.yaml"
OTHER = "outputs/aws/ec2/run/run-2.yaml"
AFTER = "outputs/aws/rds/run/run-1.yaml"
ENTRY = Entry(1, "2026-01-01T00:00:00.000Z", "a" * 64)


class LostError(Exception):
    """What the guard raises when it is asked again."""


@pytest.fixture
def here(tmp_path: Path, remote: Remote) -> Iterator[Machine]:
    with Machine(tmp_path / "here", remote.open()) as machine:
        yield machine


@pytest.fixture
def there(tmp_path: Path, remote: Remote) -> Iterator[Machine]:
    with Machine(tmp_path / "there", remote.open()) as machine:
        yield machine


def index_of(machine: Machine) -> RemoteIndex:
    return machine.service._context.index


def commit_with_a_pause(here: Machine, there: Machine) -> None:
    """Commit, while somebody else takes the lock over between the last check and the write."""
    asked: list[int] = []

    def guard(_since: float) -> None:
        asked.append(1)
        if len(asked) > 1:
            raise LostError
        there.service.fence()

    index = index_of(here)
    view = index.view([partition_of(OTHER)])
    with index.guarded(guard):
        index.commit(view, {OTHER: ENTRY}, [])


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_that_has_begun_fails(here: Machine, there: Machine, version: int) -> None:
    here.write(REL, b"1")
    here.push()
    if version == 2:
        here.service.migrate_index()
    there.pull()
    with pytest.raises(LostError):
        commit_with_a_pause(here, there)
    there.pull()
    assert set(there.files()) == {REL}


@pytest.mark.parametrize("knows_it", [True, False])
def test_a_commit_that_would_give_a_lost_meta_back_fails(
    here: Machine, there: Machine, knows_it: bool
) -> None:
    here.write(REL, b"1")
    here.push()
    here.service.migrate_index()
    here.write(AFTER, b"2")
    here.push()
    if knows_it:
        there.pull()
    here.store.delete(META)
    with pytest.raises((LostError, IndexMovedError)):
        commit_with_a_pause(here, there)
    there.pull()
    assert set(there.files()) == {REL, AFTER}


def test_where_there_is_no_index_the_first_commit_fails(here: Machine, there: Machine) -> None:
    with pytest.raises((LostError, IndexMovedError, PreconditionFailedError)):
        commit_with_a_pause(here, there)
    assert here.service.pull().files == 0
    here.write(REL, b"1")
    here.push()
    there.pull()
    assert set(there.files()) == {REL}


def test_what_was_there_without_an_index_is_in_the_one_that_is_made(
    here: Machine, there: Machine
) -> None:
    here.store.put(REL, b"of somebody without an index")
    here.service.fence()
    there.pull()
    assert set(there.files()) == {REL}


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_else_changes(here: Machine, there: Machine, version: int) -> None:
    here.write(REL, b"1")
    here.push()
    if version == 2:
        here.service.migrate_index()
    there.pull()
    there.service.fence()
    here.pull()
    assert here.push().files == 0
    assert set(here.files()) == set(there.files()) == {REL}
    there.write(OTHER, b"2")
    there.push()
    here.pull()
    assert set(here.files()) == {REL, OTHER}


def test_a_remote_that_was_emptied_is_not_given_an_index_by_those_who_knew_it(
    here: Machine, there: Machine
) -> None:
    here.write(REL, b"1")
    here.push()
    there.pull()
    for info in list(here.store.list()):
        here.store.delete(info.key)
    there.service.fence()
    assert [info.key for info in here.store.list()] == []
    here.pull()
    assert set(here.files()) == {REL}


def test_an_index_that_is_made_anew_deletes_nothing_from_caches_that_knew_another(
    here: Machine, there: Machine
) -> None:
    here.write(REL, b"1")
    here.push()
    for info in list(here.store.list()):
        here.store.delete(info.key)
    there.service.fence()
    assert {META, MONOLITH} <= {info.key for info in here.store.list()}
    here.pull()
    assert set(here.files()) == {REL}
    here.push()
    there.pull()
    assert set(there.files()) == {REL}
