"""A cache with a limit: what leaves it, in which order, and what never does."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from swampstore.layout import DEFERRED, LANDING
from swampstore.stores.config import Limits
from swampstore.sync import evict as eviction
from swampstore.sync.access_times import Uses
from tests.support.machines import Machine
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.sync_harness import Machine as Host
from tests.support.sync_harness import assert_sound, remote_files, remote_index

HOME = "data/aws/ec2/i-1/state"
SIZE = 100
HOUR = 3_600_000_000_000

Open = Callable[..., Host]


def raw(version: int) -> str:
    return f"{HOME}/{version}/raw"


def content(version: int) -> bytes:
    return b"%03d" % version + b"." * (SIZE - 3)


def save(host: Host, *versions: int) -> None:
    for version in versions:
        host.write(raw(version), content(version))
        host.write(f"{HOME}/{version}/metadata.yaml", b"version: %d\n" % version)
        host.write(f"{HOME}/latest", b"%d" % version)


def held(host: Host) -> list[int]:
    """Return the versions whose content is on a machine; the base must agree with that."""
    found = sorted(int(path.parent.name) for path in Path(host.names.root).rglob("raw"))
    known = {one.rel: one for one in host.base.below("data")}
    assert [v for v in found if known[raw(v)].held is None] == []
    assert [rel for rel, one in known.items() if one.held and not host.path(rel).exists()] == []
    return found


@pytest.fixture
def host(tmp_path: Path, directory_remote: Remote) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(name: str = "a", remote: Remote = directory_remote, namespace: str = "") -> Host:
            made = Host(tmp_path / name, remote.open(), namespace, limits=Limits())
            return stack.enter_context(made)

        yield make


@pytest.fixture
def ten(host: Open) -> Host:
    """A machine with ten versions, each of 100 bytes, that are all on the remote."""
    made = host()
    for version in range(1, 11):
        save(made, version)
        made.push()
    return made


# What goes --------------------------------------------------------------------------------------


def test_what_came_first_goes_first(ten: Host) -> None:
    evicted = ten.service.evict(500)
    assert (evicted.files, evicted.bytes, evicted.held) == (5, 500, 500)
    assert held(ten) == [6, 7, 8, 9, 10]
    assert ten.service.status().content_bytes == 500


def test_what_was_used_last_stays(ten: Host) -> None:
    uses = Uses(str(ten.cache))
    uses.note([raw(3), raw(1)])
    assert ten.service.evict(200).files == 8
    assert held(ten) == [1, 3]
    uses.close()


def test_the_order_of_uses_is_the_order_of_leaving(ten: Host, tmp_path: Path) -> None:
    now = 2_000_000_000_000_000_000
    for later, version in enumerate((7, 2, 9)):
        uses = Uses(str(ten.cache), lambda later=later: now + later)  # type: ignore[misc]
        uses.note([raw(version)])
        uses.close()
    ten.service.evict(300)
    assert held(ten) == [2, 7, 9]
    ten.service.evict(200)
    assert held(ten) == [2, 9]
    ten.service.evict(100)
    assert held(ten) == [9]


def test_the_order_is_the_same_over_many_pages(ten: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swampstore.index.base._HELD_PAGE", 3)
    monkeypatch.setattr(eviction, "_BATCH", 2)
    uses = Uses(str(ten.cache))
    uses.note([raw(1), raw(6)])
    uses.close()
    ten.service.evict(400)
    assert held(ten) == [1, 6, 9, 10]


def test_nothing_goes_that_need_not(ten: Host) -> None:
    assert ten.service.evict(1000).files == 0
    assert ten.service.evict().files == 0  # there is no limit
    assert len(held(ten)) == 10


def test_content_that_left_can_be_had_again(ten: Host) -> None:
    ten.service.evict(0)
    assert held(ten) == []
    assert ten.service.hydrate(raw(4))
    assert ten.read(raw(4)) == content(4)
    assert held(ten) == [4]


def test_metadata_and_all_that_is_no_content_stays(ten: Host) -> None:
    ten.write("files/report/raw", b"a file that happens to be called so")
    ten.write("outputs/aws/run.yaml", b"ok: true\n")
    ten.push()
    others = {rel for rel in ten.files() if not rel.startswith(HOME) or not rel.endswith("/raw")}
    ten.service.evict(0)
    assert set(ten.files()) == others


def test_a_dry_run_says_what_would_go(ten: Host) -> None:
    planned = ten.service.evict(700, dry_run=True)
    assert len(held(ten)) == 10
    done = ten.service.evict(700)
    assert planned == done
    assert planned.rels == (raw(1), raw(2), raw(3))


def test_in_a_namespace_it_is_the_same(host: Open) -> None:
    a = host("team", namespace="team")
    save(a, 1, 2, 3)
    a.push()
    uses = Uses(str(a.cache))
    uses.note([a.names.mark(raw(1))])
    uses.close()
    a.service.evict(100)
    assert held(a) == [1]
    assert a.service.hydrate(raw(2))


# The limit --------------------------------------------------------------------------------------


def test_a_push_keeps_the_cache_within_its_limit(ten: Host) -> None:
    ten.service.limit_cache(1000)
    save(ten, 11)
    ten.push()
    assert len(held(ten)) == 9  # of 1100 bytes so many go that 900 are left
    assert 11 in held(ten)


def test_a_pull_keeps_the_cache_within_its_limit(ten: Host, host: Open) -> None:
    b = host("b")
    b.service.limit_cache(500)
    b.pull()
    assert len(held(b)) == 4
    b.pull(metadata_only=True)
    assert b.service.status().not_hydrated == 6


def test_reading_keeps_the_cache_within_its_limit(ten: Host, host: Open) -> None:
    b = host("b")
    b.service.limit_cache(300)
    b.pull(metadata_only=True)
    for version in (1, 2, 3):
        assert b.service.hydrate(raw(version))
    assert held(b) == [1, 2, 3]
    b.service.hydrate(raw(4))
    assert held(b) == [3, 4]


def test_what_one_operation_brings_is_not_taken_away_by_it(ten: Host, host: Open) -> None:
    b = host("b")
    b.service.limit_cache(300)
    b.pull(metadata_only=True)
    b.service.hydrate(raw(10))
    rels = [raw(version) for version in range(1, 6)]
    assert b.service.hydrate_many(rels).files == 5
    assert held(b) == [1, 2, 3, 4, 5]
    assert b.service.hydrate(raw(6))
    assert held(b) == [5, 6]


def test_what_is_asked_for_does_not_make_room_for_the_rest_of_it(ten: Host, host: Open) -> None:
    b = host("b")
    b.service.limit_cache(300)
    b.pull(metadata_only=True)
    for version in (1, 2, 3):
        b.service.hydrate(raw(version))
    b.service.hydrate_many([raw(1), raw(4)])
    assert held(b) == [1, 4]


def test_content_larger_than_the_limit_can_be_read(ten: Host, host: Open) -> None:
    b = host("b")
    b.service.limit_cache(50)
    b.pull(metadata_only=True)
    assert b.service.hydrate(raw(1))
    assert b.read(raw(1)) == content(1)
    assert b.service.hydrate(raw(2))
    assert held(b) == [2]


def test_while_a_sync_runs_a_reader_does_not_wait_to_evict(ten: Host, host: Open) -> None:
    b = host("b")
    b.service.limit_cache(100)
    b.pull(metadata_only=True)
    other = host("b")
    with other.service.holding_cache():
        for version in (1, 2, 3):
            assert b.service.hydrate(raw(version))
    assert held(b) == [1, 2, 3]
    assert b.service.hydrate(raw(4))
    assert held(b) == [4]


def test_each_file_that_goes_costs_one_request_and_nothing_else_does(
    s3_remote: ProxiedRemote, host: Open
) -> None:
    a = host("s3", s3_remote)
    save(a, 1, 2, 3)
    a.push()
    s3_remote.proxy.requests.clear()
    assert a.service.evict(0).files == 3
    assert [one.kind for one in s3_remote.proxy.requests] == ["HEAD"] * 3


def test_an_eviction_looks_at_no_directory(ten: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    for name in ("scandir", "listdir", "walk"):
        original = getattr(os, name)

        def spy(path: object = ".", *args: object, _real: object = original) -> object:
            if not str(path).endswith(".tmp"):  # where the files go to be removed
                looked.append(path)
            return _real(path, *args)  # type: ignore[operator]

        monkeypatch.setattr(os, name, spy)
    stats: list[object] = []
    lstat = os.lstat

    def look(path: str) -> os.stat_result:
        stats.append(path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", look)
    ten.service.evict(900)
    assert looked == []
    assert not [path for path in stats if f"{HOME}/5/" in str(path)]


# What never goes --------------------------------------------------------------------------------


def test_what_is_not_on_the_remote_yet_stays(ten: Host) -> None:
    save(ten, 11, 12)
    ten.service.evict(0)
    assert sorted(int(Path(rel).parent.name) for rel in ten.files() if rel.endswith("raw")) == [
        *(11, 12)
    ]


@pytest.mark.parametrize(
    ("mark", "stay"), [(raw(3), [3]), (f"{HOME}/3", [3]), (HOME, list(range(1, 11)))]
)
def test_what_is_marked_stays(ten: Host, mark: str, stay: list[int]) -> None:
    ten.service.mark_dirty(mark)
    ten.service.evict(0)
    assert held(ten) == stay


def test_if_anything_may_have_changed_the_bytes_decide(ten: Host) -> None:
    known = ten.base.get(raw(3))
    assert known is not None
    ten.service.mark_dirty(None)
    ten.service.mark_dirty(raw(4))
    ten.path(raw(3)).write_bytes(b"by hand")
    ten.service.evict(0)
    assert [path.parent.name for path in sorted(ten.cache.rglob("raw"))] == ["3", "4"]


def test_content_that_changed_without_a_mark_stays(ten: Host) -> None:
    ten.path(raw(3)).write_bytes(b"by hand")
    ten.write_unmarked(raw(4), content(5))
    ten.service.evict(0)
    assert ten.read(raw(3)) == b"by hand"
    assert ten.read(raw(4)) == content(5)


def test_content_that_was_changed_within_the_grain_of_its_times_stays(ten: Host) -> None:
    path = ten.path(raw(3))
    known = ten.base.get(raw(3))
    assert known is not None
    assert known.held is not None
    with path.open("r+b") as file:
        file.write(b"xyz")
    os.utime(path, ns=(known.held.mtime_ns, known.held.mtime_ns))
    # A file system that has no finer times would show this:
    seen = known.held._replace(ctime_ns=path.stat().st_ctime_ns)
    ten.base.apply(known=[known._replace(held=seen)])
    ten.service.evict(0)
    assert ten.read(raw(3)).startswith(b"xyz")


def lose(remote: Remote, version: int) -> None:
    remote.open().delete(raw(version))


def test_content_whose_object_is_gone_stays_and_is_sent_again(
    ten: Host, directory_remote: Remote
) -> None:
    lose(directory_remote, 1)
    evicted = ten.service.evict(0)
    assert evicted.unproven == (raw(1),)
    assert held(ten) == [1]
    ten.sync()
    assert remote_files(directory_remote.open())[raw(1)] == content(1)
    assert_sound(directory_remote.open())
    assert ten.service.evict(0).files == 10


def test_content_whose_object_holds_something_else_stays(
    ten: Host, directory_remote: Remote
) -> None:
    directory_remote.open().put(raw(1), b"!" * SIZE)
    directory_remote.open().put(raw(2), b"!")
    assert ten.service.evict(0).unproven == (raw(1), raw(2))
    assert held(ten) == [1, 2]
    assert ten.service.status().dirty_paths == ()


def test_content_that_no_transfer_has_seen_is_compared_and_goes(
    ten: Host, directory_remote: Remote
) -> None:
    directory_remote.open().put(raw(1), content(1))
    assert ten.service.evict(0).unproven == ()
    assert held(ten) == []


def test_a_limit_is_no_reason_to_give_up_the_last_copy(ten: Host, directory_remote: Remote) -> None:
    for version in range(1, 11):
        lose(directory_remote, version)
    ten.service.limit_cache(3 * SIZE)
    save(ten, 11)
    ten.push()
    assert held(ten) == list(range(1, 11))
    ten.sync()
    assert_sound(directory_remote.open())


@pytest.mark.parametrize("instead", [b"!" * SIZE, b"!"], ids=["as long", "shorter"])
def test_a_limit_is_no_reason_to_give_up_what_the_remote_has_damaged(
    ten: Host, directory_remote: Remote, instead: bytes
) -> None:
    for version in range(1, 11):
        directory_remote.open().put(raw(version), instead)
    ten.service.limit_cache(3 * SIZE)
    save(ten, 11)
    ten.push()
    assert held(ten) == list(range(1, 11))


def test_what_others_deleted_is_not_sent_again_because_its_object_is_gone(
    ten: Host, host: Open
) -> None:
    other = host("b")
    other.pull()
    for name in ("metadata.yaml", "raw"):
        other.delete(f"{HOME}/1/{name}")
    other.push()
    assert ten.service.evict(0).unproven == (raw(1),)
    ten.sync()
    assert not ten.path(f"{HOME}/1").exists()
    assert raw(1) not in remote_index(ten.store).entries


@pytest.mark.parametrize("mark", [DEFERRED, LANDING])
def test_versions_that_are_not_whole_stay(ten: Host, mark: str) -> None:
    (ten.path(raw(3)).parent / mark).touch()
    ten.path(f"{HOME}/4/metadata.yaml").unlink()
    ten.service.evict(0)
    assert [path.parent.name for path in sorted(ten.cache.rglob("raw"))] == ["3", "4"]


def test_content_without_a_known_hash_stays(ten: Host) -> None:
    known = ten.base.get(raw(3))
    assert known is not None
    ten.base.apply(known=[known._replace(sha256=None)])
    ten.service.evict(0)
    assert held(ten) == [3]


def test_content_whose_object_is_being_replaced_stays(ten: Host) -> None:
    ten.base.note_uploads({raw(3): ("other", "etag")})
    ten.base.add_pending_deletes([raw(4)])
    ten.service.evict(0)
    assert held(ten) == [3, 4]


def test_content_behind_a_link_stays(ten: Host, tmp_path: Path) -> None:
    directory = ten.path(raw(3)).parent
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    ten.service.evict(0)
    assert (tmp_path / "elsewhere/raw").read_bytes() == content(3)


# Afterwards -------------------------------------------------------------------------------------


def test_what_left_is_not_deleted_on_the_remote(ten: Host, directory_remote: Remote) -> None:
    before = remote_files(directory_remote.open())
    ten.service.evict(0)
    assert ten.push(full=True).changes == 0
    ten.service.mark_dirty(HOME)
    ten.service.mark_dirty(raw(2))
    assert ten.push().changes == 0
    assert remote_files(directory_remote.open()) == before
    assert_sound(directory_remote.open())


def test_deleting_a_version_whose_content_left_deletes_it_everywhere(
    ten: Host, directory_remote: Remote
) -> None:
    ten.service.evict(0)
    ten.delete(f"{HOME}/3/metadata.yaml")
    ten.service.mark_dirty(f"{HOME}/3")
    assert ten.push().deleted == 2
    assert raw(3) not in remote_index(directory_remote.open()).entries
    assert raw(4) in remote_index(directory_remote.open()).entries


def test_a_version_that_is_new_elsewhere_comes_without_its_content(ten: Host, host: Open) -> None:
    b = host("b")
    b.pull(metadata_only=True)
    save(b, 11)
    b.push()
    ten.service.evict(0)
    ten.pull(metadata_only=True)
    assert held(ten) == []
    assert ten.service.hydrate(raw(11))


def test_other_clients_of_the_cache_are_told_that_absence_is_no_deletion(ten: Host) -> None:
    sidecar = ten.cache / ".datastore-sync-state.json"
    assert json.loads(sidecar.read_bytes())["lazyPullActive"] is False
    ten.service.evict(900)
    assert json.loads(sidecar.read_bytes())["lazyPullActive"] is True


def test_content_that_somebody_removed_by_hand_is_no_longer_counted(ten: Host) -> None:
    ten.path(raw(1)).unlink()
    evicted = ten.service.evict(800)
    assert (evicted.files, evicted.held) == (1, 800)
    assert len(held(ten)) == 8


def test_a_push_that_began_before_does_not_take_it_for_present(ten: Host) -> None:
    prepared = ten.service.prepare_push(full=True)
    assert len(prepared.touched) >= 10  # so young that all of it was compared
    ten.service.evict(0)
    ten.service.commit_push(prepared)
    assert held(ten) == []


def test_whoever_has_content_open_goes_on_reading_it(ten: Host) -> None:
    with ten.path(raw(3)).open("rb") as file:
        assert file.read(3) == b"003"
        ten.service.evict(0)
        assert file.read() == content(3)[3:]


# Others at the same time ------------------------------------------------------------------------


def test_a_mark_that_comes_in_between_saves_the_content(
    ten: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a writer in another clone of the repository would, which has locks of its own."""
    rename = os.rename

    def interrupted(source: str, target: str) -> None:
        if source.endswith(raw(1)):
            ten.service.mark_dirty(raw(1))
            with open(source, "ab") as file:
                rename(source, target)
                file.write(b"appended")
        else:
            rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    assert ten.service.evict(0).files == 9
    monkeypatch.undo()
    assert ten.read(raw(1)) == content(1) + b"appended"
    assert ten.push().files == 1
    assert remote_files(ten.store)[raw(1)] == content(1) + b"appended"


def _evict(cache: Path, remote: Path, target: int) -> None:
    from swampstore.stores.directory import DirectoryStore

    with Host(cache, DirectoryStore(str(remote), durable=False)) as machine:
        machine.service.evict(target)


def test_two_processes_may_evict_at_once(ten: Host, tmp_path: Path) -> None:
    ten.close()
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=_evict, args=(ten.cache, tmp_path / "remote", 500)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(held(ten)) == 5


def test_readers_and_evictions_do_not_disturb_each_other(ten: Host, host: Open) -> None:
    other = host("a")
    other.service.limit_cache(300)
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for version in [*range(1, 11)] * 3:
                assert other.service.hydrate(raw(version))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        ten.service.evict(0)
    reader.join()
    assert failures == []
    ten.service.evict(0)
    assert held(ten) == []


@pytest.mark.parametrize("stride", [7])
def test_whenever_it_is_killed_nothing_is_lost_and_the_next_one_goes_on(
    stride: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killing_eviction", str(stride), str(tmp_path)],
        capture_output=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr.decode()


# Uses -------------------------------------------------------------------------------------------


def test_a_use_is_written_once_an_hour(tmp_path: Path) -> None:
    now = 10 * HOUR
    uses = Uses(str(tmp_path), lambda: now)
    uses.note(["a", "b"])
    now += HOUR // 2
    uses.note(["a"])
    assert uses.last(["a", "b", "c"]) == {"a": 10 * HOUR, "b": 10 * HOUR}
    now += HOUR
    uses.note(["a"])
    assert uses.last(["a", "b"]) == {"a": now, "b": 10 * HOUR}
    again = Uses(str(tmp_path), lambda: now)
    again.note(["a", "b"])
    assert again.last(["a", "b"]) == {"a": now, "b": now}
    uses.close()
    again.close()


def test_a_use_that_cannot_be_written_keeps_nobody_from_reading(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Uses(str(tmp_path / "file")).note(["a"])


def test_noting_a_use_leaves_the_content_as_it_was(ten: Host) -> None:
    before = ten.path(raw(1)).stat()
    ten.service.limit_cache(10_000)
    ten.service.hydrate_many([raw(1)])
    after = ten.path(raw(1)).stat()
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
    uses = Uses(str(ten.cache))
    assert raw(1) in uses.last([raw(1)])
    uses.close()


# The command line -------------------------------------------------------------------------------


@pytest.fixture
def ana(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Machine:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    made = Machine(tmp_path / "ana", capsysbinary, monkeypatch)
    made.use(bucket, hydrationStrategy=None, cache={"maxBytes": "1kb"})
    with made.open() as repo:
        for name in ("one", "two", "three"):
            repo.artifacts.save("aws/ec2/i-1", name, name * 60)
        repo.sync.push()
    return made


def test_status_tells_how_much_is_here_and_how_much_may_be(ana: Machine) -> None:
    document = ana("datastore", "status", "--json").json
    assert (document["contentBytes"], document["maxBytes"]) == (660, 1024)
    out = ana("datastore", "status").out
    assert "contentBytes   660 B" in out
    assert "maxBytes       1.0 KB" in out or "maxBytes       1.0 KiB" in out


def test_content_can_be_given_up_by_hand(ana: Machine) -> None:
    planned = ana("datastore", "evict", "--to", "300b", "--dry-run", "--json").json
    assert planned["dryRun"] is True
    assert len(planned["paths"]) == planned["files"] == 2
    gone, stays = planned["bytes"], planned["contentBytes"]
    assert ana("datastore", "evict", "--to", "300").out == (
        f"Evicted 2 files, {gone} B; {stays} B of content stay here.\n"
    )
    assert ana("datastore", "evict", "--json").json["files"] == 0
    for name in ("one", "two", "three"):
        assert ana.get("aws/ec2/i-1", name) == name * 60


def test_reading_decides_what_stays(ana: Machine) -> None:
    ana.get("aws/ec2/i-1", "two")
    assert ana("datastore", "evict", "--to", "200", "--json").json["files"] == 2
    with ana.open() as repo:
        assert len(repo.query("content == " + json.dumps("two" * 60))) == 1


def test_reading_with_a_limit_opens_no_remote(ana: Machine) -> None:
    with ana.open() as repo:
        repo.latest("aws/ec2/i-1", "two").bytes()
        assert "connection" not in repo.__dict__


def test_a_name_that_somebody_is_changing_is_left_alone(ana: Machine) -> None:
    with ana.open() as repo, repo.mutations.holding(repo.ref("aws/ec2/i-1", "two")):
        assert repo.sync.evict(0).files == 2
        assert repo.latest("aws/ec2/i-1", "two").path.exists()


def test_queries_that_need_more_than_the_limit_still_answer(
    ana: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.repo.querying._FIRST_PAGE", 1)
    monkeypatch.setattr("swampstore.repo.querying._LARGEST_PAGE", 1)
    with ana.open() as repo:
        repo.sync.limit_cache(250)
        repo.sync.evict(0)
        results = repo.query('content != ""', select="content.size()", order="name", hydrate=True)
        assert (list(results), results.unhydrated) == ([180, 300, 180], 0)
        assert repo.sync.status().content_bytes <= 300


def test_a_query_does_not_give_up_what_it_is_about_to_look_into(ana: Machine) -> None:
    with ana.open() as repo:
        repo.sync.evict(0)
        repo.sync.limit_cache(500)
        repo.latest("aws/ec2/i-1", "one").bytes()
        assert len(repo.query('content != ""', hydrate=True)) == 3


def test_everything_comes_before_a_remote_is_left(ana: Machine) -> None:
    ana("datastore", "evict", "--to", "0")
    assert ana("datastore", "setup", "filesystem").status == 0
    assert len(list((ana.repo_dir / ".swamp").rglob("raw"))) == 3


@pytest.mark.parametrize("arguments", [["--to", "much"], ["--to", "-1"], []])
def test_how_much_to_leave_must_be_said(ana: Machine, arguments: list[str], tmp_path: Path) -> None:
    ana.use(tmp_path / "bucket", hydrationStrategy="full", cache=None)
    assert ana("datastore", "evict", *arguments, "--json").error["code"] == "usage"
