"""What was appended and whose push was stopped between its uploads and its commit."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from swampstore.index.partitions import MONOLITH_KEY
from swampstore.sync.uploads import Uploader
from tests.support.broken_store import Killed
from tests.support.machines import Machine, contents

MODEL = "aws/ec2/i-1"


def synced(machine: Machine, *options: str) -> None:
    outcome = machine("sync", *options, "--json")
    assert outcome.status == 0, outcome.err


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


def share_a_log(machine: Machine, *, is_sharded: bool) -> None:
    with machine.open() as repo:
        repo.artifacts.save(MODEL, "log", b"one", streaming=True)
        if is_sharded:
            repo.sync.migrate_index()
    synced(machine)


def append_and_die(machine: Machine, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Append; be killed in the push of that, after so many uploads."""
    left, put = itertools.count(after, -1), Uploader.put

    def put_some(uploader: Uploader, upload: Any) -> Any:
        if next(left) <= 0:
            raise Killed
        return put(uploader, upload)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, machine.open() as repo:
        repo.artifacts.append(MODEL, "log", b" and more")
        patch.setattr(Uploader, "put", put_some)
        patch.setattr("swampstore.index.remote_index.RemoteIndex.commit", die)
        with pytest.raises(Killed):
            repo.sync.push()


@pytest.mark.parametrize("is_sharded", [False, True], ids=["version 1", "sharded"])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["full", None], ids=["full", "lazy"])
def test_who_never_had_a_version_gets_it_though_a_push_of_what_was_appended_was_killed(
    ana: Machine,
    eve: Machine,
    bucket: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str | None,
    after: int,
    is_sharded: bool,
) -> None:
    share_a_log(ana, is_sharded=is_sharded)
    append_and_die(ana, monkeypatch, after=after)
    eve.use(bucket, hydrationStrategy=strategy)
    synced(eve)
    assert eve.get(MODEL, "log") == "one"
    synced(ana)
    synced(eve)
    for machine in (ana, eve):
        with machine.open() as repo:
            assert contents(repo, MODEL, "log") == ["one and more"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_who_has_not_fetched_content_reads_what_was_committed_though_more_was_sent(
    ana: Machine, eve: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    share_a_log(ana, is_sharded=False)
    eve.use(bucket, hydrationStrategy=None)
    synced(eve)
    append_and_die(ana, monkeypatch, after=after)
    assert eve.get(MODEL, "log") == "one"
    synced(ana)
    synced(eve)
    assert eve.get(MODEL, "log") == "one and more"


@pytest.mark.parametrize("is_sharded", [False, True], ids=["version 1", "sharded"])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("is_new", [False, True], ids=["had it", "new"])
def test_who_appends_after_a_push_of_an_append_was_killed_loses_nothing(
    ana: Machine,
    eve: Machine,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    is_sharded: bool,
    is_new: bool,
) -> None:
    share_a_log(ana, is_sharded=is_sharded)
    if not is_new:
        synced(eve)
    append_and_die(ana, monkeypatch, after=after)
    synced(eve)
    with eve.open() as repo:
        repo.artifacts.append(MODEL, "log", b" and another")
    for machine in (eve, eve, ana, eve, ana):
        synced(machine)
    for machine in (ana, eve):
        with machine.open() as repo:
            assert sorted(contents(repo, MODEL, "log")) == ["one and another", "one and more"]


@pytest.mark.parametrize("is_sharded", [False, True], ids=["version 1", "sharded"])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("is_new", [False, True], ids=["had it", "new"])
def test_what_was_appended_stays_though_others_deleted_what_was_there_before_it_was_shared(
    ana: Machine,
    eve: Machine,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    is_sharded: bool,
    is_new: bool,
) -> None:
    share_a_log(ana, is_sharded=is_sharded)
    if not is_new:
        synced(eve)
    append_and_die(ana, monkeypatch, after=after)
    synced(eve)
    with eve.open() as repo:
        repo.artifacts.delete(MODEL, "log")
    for machine in (eve, eve, ana, eve, ana):
        synced(machine)
    for machine in (ana, eve):
        with machine.open() as repo:
            assert contents(repo, MODEL, "log") == ["one and more"]


@pytest.mark.parametrize("is_sharded", [False, True], ids=["version 1", "sharded"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_version_whose_append_was_not_shared_stays_deleted(
    ana: Machine, eve: Machine, monkeypatch: pytest.MonkeyPatch, after: int, is_sharded: bool
) -> None:
    share_a_log(ana, is_sharded=is_sharded)
    append_and_die(ana, monkeypatch, after=after)
    synced(eve)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "log")
    for machine in (ana, eve, ana, eve):
        synced(machine)
    for machine in (ana, eve):
        with machine.open() as repo:
            assert contents(repo, MODEL, "log") == []


@pytest.mark.parametrize("after", [1, 2, 3])
def test_who_has_what_was_appended_before_gets_what_was_committed_since(
    ana: Machine, eve: Machine, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    share_a_log(ana, is_sharded=False)
    synced(eve)
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", b" and two")
    synced(ana)
    append_and_die(ana, monkeypatch, after=after)
    synced(eve)
    assert eve.get(MODEL, "log") == "one and two"


def test_an_index_of_long_ago_takes_nothing_of_what_was_appended_since(
    ana: Machine, eve: Machine, bucket: Path, tmp_path: Path
) -> None:
    share_a_log(ana, is_sharded=False)
    shutil.copytree(bucket, tmp_path / "long-ago")
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", b" and two")
    synced(ana)
    synced(eve)
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "log", b" and three")
    synced(ana)
    shutil.rmtree(bucket / "_index")
    shutil.copytree(tmp_path / "long-ago" / "_index", bucket / "_index")
    shutil.copy(tmp_path / "long-ago" / MONOLITH_KEY, bucket)
    eve("sync")
    assert eve.get(MODEL, "log").startswith("one and two")
    for machine in (ana, ana, eve):
        synced(machine)
        assert machine.get(MODEL, "log") == "one and two and three"
