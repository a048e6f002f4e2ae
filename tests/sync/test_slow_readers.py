"""Content that is on its way while its version changes: readers do not hold the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swampstore import Repo
from swampstore.errors import ContentMissingError, ContentOutdatedError
from swampstore.index.documents import Documents
from swampstore.index.repair import Recovery
from swampstore.index.state import MetaSnapshot
from swampstore.stores.protocol import Fetched
from swampstore.sync.downloads import Downloader
from swampstore.sync.pull_plan import PullPlanner, PullWork
from swampstore.sync.service import SyncService
from tests.support.machines import Machine, contents
from tests.support.remotes import Remote
from tests.support.sync_harness import Machine as Host
from tests.support.sync_harness import remote_index

MODEL = "aws/ec2/i-1"
HOME = "data/aws/ec2/i-1/state"


@pytest.fixture
def reader(ana: Machine, bob: Machine, bucket: Path) -> Machine:
    """A machine that has the metadata of a version which another one has shared."""
    bob.use(bucket, hydrationStrategy=None)
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "state", "one", streaming=True)
        repo.sync.push()
    assert bob("sync").status == 0
    return bob


def meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let something happen, once, after the next object was fetched and before it is here."""
    fetch = Downloader.fetch

    def slow(downloader: Downloader, download: Any) -> Any:
        brought = fetch(downloader, download)
        monkeypatch.setattr(Downloader, "fetch", fetch)
        work()
        return brought

    monkeypatch.setattr(Downloader, "fetch", slow)


def append(ana: Machine) -> None:
    with ana.open() as repo:
        repo.artifacts.append(MODEL, "state", " and two")
        repo.sync.push()


def save_anew(ana: Machine) -> None:
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "state")
        repo.sync.push()
        repo.artifacts.save(MODEL, "state", "new", streaming=True)
        repo.sync.push()


def read(repo: Repo) -> str:
    return repo.latest(MODEL, "state").text()


def hydrated(repo: Repo) -> str:
    repo.hydrate()
    return Path(repo.tree.path(f"{HOME}/1/raw")).read_text()


@pytest.mark.parametrize("way", [read, hydrated])
@pytest.mark.parametrize(("change", "now"), [(append, "one and two"), (save_anew, "new")])
def test_content_that_others_change_while_it_comes_is_not_put_beside_new_metadata(
    ana: Machine,
    reader: Machine,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Machine], None],
    now: str,
    way: Callable[[Repo], str],
) -> None:
    with reader.open() as repo, reader.open() as other:

        def change_and_pull() -> None:
            change(ana)
            other.sync.pull(metadata_only=True)

        meanwhile(monkeypatch, change_and_pull)
        assert way(repo) == now
    assert reader("sync").status == 0
    with reader.open() as repo:
        assert contents(repo, MODEL, "state") == [now]
        assert repo.sync.status().not_hydrated == 0


def test_content_that_others_delete_while_it_comes_does_not_stay(
    ana: Machine, reader: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reader.open() as repo, reader.open() as other:

        def delete_and_pull() -> None:
            with ana.open() as repo:
                repo.artifacts.delete(MODEL, "state")
                repo.sync.push()
            other.sync.pull(metadata_only=True)

        meanwhile(monkeypatch, delete_and_pull)
        with pytest.raises(ContentMissingError):
            read(repo)
    assert not (reader.cache / HOME).exists()


@pytest.mark.parametrize("is_pull", [False, True])
def test_content_of_a_version_that_is_deleted_here_while_it_comes_goes_with_it(
    reader: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch, *, is_pull: bool
) -> None:
    with reader.open() as repo, reader.open() as other:
        meanwhile(monkeypatch, lambda: other.artifacts.delete(MODEL, "state"))
        if is_pull:
            repo.sync.pull()
        else:
            with pytest.raises(ContentMissingError):
                read(repo)
        repo.sync.push()
        assert not [rel for rel in remote_index(repo.connection.store).entries if HOME in rel]
    assert not (reader.cache / HOME).exists()
    assert not (bucket / HOME).exists()


def test_content_that_comes_after_a_pull_has_looked_makes_way_for_what_it_brings(
    ana: Machine, reader: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = bucket / HOME / "1/raw"
    plan = PullPlanner.plan
    append(ana)
    with reader.open() as repo, reader.open() as other:

        def plan_slowly(planner: PullPlanner) -> PullWork:
            work = plan(planner)
            raw.write_text("one")  # as whoever had asked for it before got it
            assert read(other) == "one"
            raw.write_text("one and two")
            return work

        monkeypatch.setattr(PullPlanner, "plan", plan_slowly)
        repo.sync.pull(metadata_only=True)
        assert read(other) == "one and two"


def test_content_that_is_evicted_before_its_reader_has_opened_it_is_fetched_again(
    reader: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hydrate = SyncService.hydrate
    with reader.open() as repo, reader.open() as other:

        def lose_it_once(service: SyncService, path: str) -> bool:
            is_here = hydrate(service, path)
            monkeypatch.setattr(SyncService, "hydrate", hydrate)
            assert other.sync.evict(0).files == 1
            return is_here

        monkeypatch.setattr(SyncService, "hydrate", lose_it_once)
        assert read(repo) == "one"


def test_a_reader_who_hears_late_of_the_index_undoes_no_deletion(
    ana: Machine, reader: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "old", "deleted")
        repo.sync.push()
        repo.sync.migrate_index()
    assert reader("sync").status == 0
    with reader.open() as repo:
        assert contents(repo, MODEL, "old") == ["deleted"]
    append(ana)
    with ana.open() as repo:
        repo.artifacts.delete(MODEL, "old")
        repo.sync.push()
    ask = Documents.meta_unless
    with reader.open() as repo, reader.open() as other:

        def slow(documents: Documents, etag: str) -> Fetched | None:
            answer = ask(documents, etag)
            monkeypatch.setattr(Documents, "meta_unless", ask)
            other.artifacts.save(MODEL, "new", "saved")
            other.sync.push()
            return answer

        monkeypatch.setattr(Documents, "meta_unless", slow)
        with pytest.raises(ContentOutdatedError):
            read(repo)
    for machine in (reader, ana, reader):
        assert machine("sync").status == 0
    for machine in (reader, ana):
        with machine.open() as repo:
            assert contents(repo, MODEL, "new") == ["saved"]
            assert contents(repo, MODEL, "old") == []
            assert contents(repo, MODEL, "state") == ["one and two"]


def test_a_reader_who_hears_late_that_there_is_no_index_yet_undoes_no_deletion(
    tmp_path: Path, memory_remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Host(tmp_path / "a", memory_remote.open()) as here,
        Host(tmp_path / "a", memory_remote.open()) as another_process,
        Host(tmp_path / "b", memory_remote.open()) as there,
    ):
        here.write("files/x", b"x")
        look = Recovery.without_meta

        def slow(recovery: Recovery, etag: str | None, token: str | None) -> MetaSnapshot:
            found = look(recovery, etag, token)
            monkeypatch.setattr(Recovery, "without_meta", look)
            another_process.push()  # the first of all
            return found

        monkeypatch.setattr(Recovery, "without_meta", slow)
        assert not here.service.hydrate(f"{HOME}/1/raw")
        there.pull()
        there.delete("files/x")
        there.push()
        for machine in (here, there):
            machine.sync()
            assert machine.files() == {}
