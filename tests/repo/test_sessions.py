"""Sessions: lock, pull, work, push, unlock, on a bucket that two machines share."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from swampstore import Repo
from swampstore.errors import EXIT_LOCK_TIMEOUT, EXIT_NOT_PUSHED, LockTimeoutError, ValidationError
from swampstore.index.errors import NotPushedError
from swampstore.layout import ModelRef
from swampstore.locks.record import LockLostError, global_key, model_key
from swampstore.repo import session
from swampstore.stores.errors import StoreUnreachableError
from swampstore.sync.transfer import Transfer
from tests.support.fault_proxy import Status
from tests.support.locking import eventually, inspect
from tests.support.machines import Machine, contents
from tests.support.remotes import ProxiedRemote

MODEL = "aws/ec2/i-1"
OTHER = "aws/ec2/i-2"
LOCK = model_key("", ModelRef.parse(MODEL))
GLOBAL = global_key("")


@pytest.fixture
def here(ana: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    monkeypatch.setattr(session, "_told_offline", False)
    with ana.open() as repo:
        yield repo


@pytest.fixture
def there(bob: Machine) -> Iterator[Repo]:
    with bob.open() as repo:
        yield repo


def break_the_remote(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no request of this repository reach its remote any more."""

    def fail(*_: object, **__: object) -> None:
        raise StoreUnreachableError("the cable is cut", hint="Plug it in.")

    for operation in ("get", "get_if_changed", "head", "list", "clock", "delete", "download"):
        monkeypatch.setattr(repo.connection.store, operation, fail)
    for operation in ("put", "put_if_absent", "put_if_match", "delete_if_match", "copy"):
        monkeypatch.setattr(repo.connection.store, operation, fail)


# The way of a session ----------------------------------------------------------------------------


def test_a_session_starts_from_what_others_pushed_and_pushes_what_it_saved(
    here: Repo, there: Repo
) -> None:
    with here.session([MODEL]) as session:
        assert here.locks.held == [LOCK]
        here.artifacts.save(MODEL, "state", "one")
    assert session.pushed is not None
    assert session.pushed.files == 3
    with there.session([MODEL]):
        assert there.latest(MODEL, "state").text() == "one"
        there.artifacts.save(MODEL, "state", "two")
    here.sync.pull()
    assert contents(here, MODEL, "state") == ["one", "two"]


def test_afterwards_nothing_is_locked(here: Repo) -> None:
    with here.session([MODEL, OTHER]):
        here.artifacts.save(OTHER, "state", "one")
    store = here.connection.store
    assert [info.key for info in store.list() if "lock" in info.key] == []


def test_two_machines_work_on_different_models_at_once(here: Repo, there: Repo) -> None:
    with here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "of one")
        with there.session([OTHER]):
            there.artifacts.save(OTHER, "state", "of the other")
    here.sync.pull()
    there.sync.pull()
    assert contents(here, OTHER, "state") == ["of the other"]
    assert contents(there, MODEL, "state") == ["of one"]


def test_a_second_session_on_a_model_waits_for_the_first(here: Repo, bob: Machine) -> None:
    saved = threading.Event()

    def work_there() -> None:
        with bob.open() as there, there.session([MODEL]):
            there.artifacts.save(MODEL, "state", "second")
            saved.set()

    with here.session([MODEL]):
        other = threading.Thread(target=work_there)
        other.start()
        assert not saved.wait(0.5)
        here.artifacts.save(MODEL, "state", "first")
    other.join(30)
    here.sync.pull()
    assert contents(here, MODEL, "state") == ["first", "second"]


def test_waiting_for_too_long_ends_with_75_and_names_the_holder(
    here: Repo, bob: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMP_LOCK_TIMEOUT_MS", "200")
    # The commands run in this very process, which would be their parent.
    with here.session([MODEL]):
        monkeypatch.delenv("SWAMP_LOCK_HOLDER_PID")
        outcome = bob("data", "put", MODEL, "state", "--json-value", "1", "--json")
    assert outcome.status == EXIT_LOCK_TIMEOUT
    assert outcome.error["code"] == "lock_timeout"
    assert f"pid {os.getpid()}" in outcome.error["error"]


def test_a_session_within_a_session_is_part_of_it(here: Repo) -> None:
    with here.session([MODEL, OTHER]) as outer:
        with here.session([MODEL]) as inner:
            assert inner is outer
            here.artifacts.save(MODEL, "state", "one")
        assert here.sync.status().dirty_paths
    assert not here.sync.status().dirty_paths


def test_work_on_a_model_outside_of_the_session_is_refused(here: Repo) -> None:
    with here.session([MODEL]):
        with pytest.raises(ValidationError, match=f"{OTHER} is not part of the session"):
            here.artifacts.save(OTHER, "state", "one")
        with pytest.raises(ValidationError, match="not part of"), here.session([OTHER]):
            pass
        with pytest.raises(ValidationError, match="everything is not part of"), here.session():
            pass


def test_a_session_needs_a_model(here: Repo) -> None:
    with pytest.raises(ValidationError, match="without models"), here.session([]):
        pass


def test_a_session_on_everything_keeps_sessions_on_models_out(here: Repo, bob: Machine) -> None:
    with here.session(), bob.open() as there:
        there.locks._timeout = 0.2
        with pytest.raises(LockTimeoutError), there.session([MODEL]):
            pass


def test_reading_takes_no_lock_and_sends_nothing(here: Repo) -> None:
    with here.session([MODEL]):
        here.artifacts.save(MODEL, "state", {"n": 1})
    before = here.connection.counting.tally().requests
    assert here.latest(MODEL, "state").bytes()
    assert here.versions(MODEL, "state")
    assert len(here.query("attributes.n == 1")) == 1
    assert here.connection.counting.tally().requests == before


# What goes wrong -------------------------------------------------------------------------------


def test_after_an_exception_nothing_is_locked_and_the_next_session_pushes_what_was_saved(
    here: Repo, there: Repo
) -> None:
    with pytest.raises(RuntimeError), here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "half of the work")
        raise RuntimeError
    there.sync.pull()
    assert there.latest(MODEL, "state", default=None) is None
    with here.session([OTHER]):
        pass
    there.sync.pull()
    assert there.latest(MODEL, "state").text() == "half of the work"


def test_offline_work_goes_on_and_a_later_session_on_any_model_pushes_it(
    here: Repo, there: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as offline:
        break_the_remote(here, offline)
        for number in range(2):
            with here.session([MODEL]) as session:
                here.artifacts.save(MODEL, "state", f"offline {number}")
            assert session.is_offline
    assert caplog.text.count("working offline") == 1
    with here.session([OTHER]) as session:
        assert not session.is_offline
    there.sync.pull()
    assert contents(there, MODEL, "state") == ["offline 0", "offline 1"]


def test_a_remote_that_fails_at_the_end_leaves_the_data_here_and_says_so(here: Repo) -> None:
    with (
        pytest.MonkeyPatch.context() as broken,
        pytest.raises(NotPushedError, match=r"safe here.*the cable is cut"),
        here.session([MODEL]),
    ):
        here.artifacts.save(MODEL, "state", "one")
        break_the_remote(here, broken)
    assert here.latest(MODEL, "state").text() == "one"
    with here.session([OTHER]):
        pass
    assert not here.sync.status().dirty_paths


def test_two_machines_that_both_saved_version_4_offline_both_keep_it(
    here: Repo, there: Repo
) -> None:
    with here.session([MODEL]):
        for number in (1, 2, 3):
            here.artifacts.save(MODEL, "state", f"{number}")
    there.sync.pull()
    for repo, content in ((here, "four of ana"), (there, "four of bob")):
        with pytest.MonkeyPatch.context() as offline:
            break_the_remote(repo, offline)
            with repo.session([MODEL]):
                assert repo.artifacts.save(MODEL, "state", content).version == 4
    for repo in (here, there, here):
        with repo.session([OTHER]):
            pass
        repo.sync.pull()
    for repo in (here, there):
        assert contents(repo, MODEL, "state") == ["1", "2", "3", "four of ana", "four of bob"]
        assert repo.latest(MODEL, "state").version == 5


def test_a_session_sees_what_others_pushed_though_something_unpushed_has_its_number(
    here: Repo, there: Repo
) -> None:
    with here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "first")
    here.artifacts.save(MODEL, "state", "left behind by a killed process")
    with there.session([MODEL]):
        there.artifacts.save(MODEL, "state", "second")
    with here.session([MODEL]):
        assert contents(here, MODEL, "state") == [
            "first",
            "second",
            "left behind by a killed process",
        ]


def test_a_session_sees_what_others_pushed_though_its_number_is_taken_here_while_it_is_pulled(
    here: Repo, there: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with there.session([MODEL]):
        there.artifacts.save(MODEL, "state", "theirs")
    install = Transfer._install
    todo = ["saved by another process"]

    def after_a_save(transfer: Transfer, *args: Any) -> None:
        if todo:
            with Repo(here.config) as another:
                another.artifacts.save(MODEL, "state", todo.pop())
        install(transfer, *args)

    monkeypatch.setattr(Transfer, "_install", after_a_save)
    with here.session([MODEL]):
        assert contents(here, MODEL, "state") == ["theirs", "saved by another process"]


# Losing a lock ---------------------------------------------------------------------------------


def take_over(there: Repo, key: str) -> None:
    """Do what another machine does when the holder of a lock was silent for too long."""
    state = inspect(there.connection.store, key)
    assert state is not None
    lock = there.locks._new_lock(key)
    assert lock.take_over(state)


def test_whoever_lost_its_lock_cannot_change_anything_more(here: Repo, there: Repo) -> None:
    with pytest.raises(LockLostError, match=LOCK), here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "in time")
        take_over(there, LOCK)
        here.locks._locks[LOCK].beat()
        here.artifacts.save(MODEL, "state", "too late")
    assert contents(here, MODEL, "state") == ["in time"]


@pytest.mark.parametrize("version", [1, 2])
def test_whoever_lost_its_lock_does_not_commit(here: Repo, there: Repo, version: int) -> None:
    if version == 2:
        here.sync.migrate_index()
    with here.session([OTHER]):
        here.artifacts.save(OTHER, "state", "so that there is an index")
    with pytest.raises(LockLostError), here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "of the one who was paused")
        take_over(there, LOCK)
    there.sync.pull()
    assert there.latest(MODEL, "state", default=None) is None
    assert here.latest(MODEL, "state").text() == "of the one who was paused"


def test_whoever_lost_its_lock_is_told_though_others_have_pushed_what_it_saved(
    here: Repo, there: Repo
) -> None:
    with pytest.raises(LockLostError), here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "pushed by another process on this machine")
        here.sync.push()
        take_over(there, LOCK)


@pytest.mark.parametrize("lost", [LOCK, GLOBAL])
@pytest.mark.parametrize("version", [1, 2])
def test_a_pause_between_the_last_check_and_the_commit_is_noticed(
    here: Repo, there: Repo, version: int, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with here.session([OTHER]):
        here.artifacts.save(OTHER, "state", "so that there is an index")
    if version == 2:
        here.sync.migrate_index()
    verify = here.locks.verify
    checks: list[int] = []

    def verify_and_pause(since: float) -> None:
        verify(since)
        if not checks:
            take_over(there, lost)
        checks.append(1)

    monkeypatch.setattr(here.locks, "verify", verify_and_pause)
    with pytest.raises(LockLostError, match=lost), here.session([MODEL]):
        here.artifacts.save(MODEL, "state", "of the one who was paused")
    assert checks == [1]
    there.sync.pull()
    if version == 1:  # of version 2, entries in a shard may be left behind, as after a crash
        assert there.versions(MODEL, "state") == []
    # Later it is committed in the ordinary way, and nothing is lost.
    monkeypatch.setattr(here.locks, "verify", verify)
    here.connection.store.delete(lost)
    with here.session([MODEL]):
        pass
    there.sync.pull()
    assert there.latest(MODEL, "state").text() == "of the one who was paused"


# What a commit costs others ----------------------------------------------------------------------


@pytest.mark.parametrize("models", [5, 60])
def test_what_is_done_under_the_global_lock_does_not_grow_with_the_store(
    tmp_path: Path,
    s3_remote: ProxiedRemote,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    models: int,
) -> None:
    machine = Machine(tmp_path / "machine", capsysbinary, monkeypatch)
    machine.use_remote("@swamp/s3-datastore", s3_remote.config)
    with machine.open() as repo:
        repo.sync.migrate_index()
        with repo.session():
            for number in range(models):
                repo.artifacts.save(f"aws/ec2/i-{number}", "state", f"{number}")
        s3_remote.proxy.reset()
        with repo.session([MODEL]):
            repo.artifacts.save(MODEL, "state", "new")
    requests = [(request.kind, request.key) for request in s3_remote.proxy.requests]
    mine = [at for at, (_, key) in enumerate(requests) if key == GLOBAL]
    under = requests[mine[1] : mine[-1] + 1]
    # Releases are sent at once, so that one of another lock may arrive before the last one.
    work = [kind for kind, key in under if key not in (GLOBAL, LOCK) and kind != "DELETE"]
    # Two shards and `_meta.json`; three small files may still be on their way.
    assert work.count("PUT") == len(work) <= 3 + 3
    assert sum(key.startswith("_index/") for _, key in under) == 3


# From the shell ----------------------------------------------------------------------------------


def test_a_command_pushes_what_it_saved(ana: Machine, bob: Machine) -> None:
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == 0
    assert bob("sync", "--pull").status == 0
    assert bob.get(MODEL, "state") == "one"
    assert bob("data", "rename", MODEL, "state", "status").status == 0
    assert bob("data", "delete", MODEL, "status", "--version", "1", "-y").status == 0
    assert ana("sync", "--pull").status == 0
    assert ana("data", "get", MODEL, "status").status == 1


def test_garbage_collection_is_pushed_too(ana: Machine, bob: Machine) -> None:
    for number in range(3):
        assert ana("data", "put", MODEL, "state", "--gc", "1", stdin=b"%d" % number).status == 0
    assert bob("data", "gc", "-y").status == 0
    assert ana("sync", "--pull").status == 0
    with ana.open() as repo:
        assert contents(repo, MODEL, "state") == ["2"]


def test_a_command_that_cannot_push_shows_its_result_and_ends_with_74(
    ana: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnreachableError("the cable is cut", hint="Plug it in.")

    monkeypatch.setattr("swampstore.sync.service.SyncService.push", fail)
    outcome = ana("data", "put", MODEL, "state", "--json", stdin=b"one")
    assert outcome.status == EXIT_NOT_PUSHED
    assert json.loads(outcome.stdout)["version"] == 1
    assert json.loads(outcome.stderr)["code"] == "not_pushed"


def test_offline_a_command_does_its_work_and_ends_with_74(
    ana: Machine, s3_remote: ProxiedRemote
) -> None:
    ana.use_remote("@swamp/s3-datastore", s3_remote.config)
    s3_remote.proxy.fail(lambda _: True, Status(503), times=None)
    outcome = ana("data", "put", MODEL, "state", stdin=b"one")
    assert outcome.status == EXIT_NOT_PUSHED
    assert "Saved aws/ec2/i-1 state version 1" in outcome.out
    assert "could not be reached" in outcome.err
    s3_remote.proxy.heal()
    assert ana("data", "put", OTHER, "state", stdin=b"two").status == 0
    # All that is left are the events of the two commands.
    assert json.loads(ana("sync", "--json").out)["filesPushed"] == 1
    assert json.loads(ana("sync", "--json").out)["filesPushed"] == 0


def test_whoever_wants_to_be_offline_is_and_that_is_no_failure(
    ana: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMPSTORE_OFFLINE", "1")
    assert ana("data", "put", MODEL, "state", stdin=b"one").status == 0
    monkeypatch.delenv("SWAMPSTORE_OFFLINE")
    events = 1
    assert json.loads(ana("sync", "--json").out)["filesPushed"] == 3 + events


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_gives_its_locks_back(
    ana: Machine, bucket: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with ana.open() as repo:
        repo.artifacts.save(MODEL, "log", b"one\n", streaming=True)
    source = tmp_path / "source"
    os.mkfifo(source)  # nobody ever writes to it
    command = [sys.executable, "-m", "swampstore.cli", "data", "put", MODEL, "log", str(source)]
    with subprocess.Popen(
        [*command, "--append"], env=ana.environ, stderr=subprocess.PIPE
    ) as process:
        end = time.monotonic() + 20
        while not (bucket / LOCK).exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=20)
    assert process.returncode == status
    assert not (bucket / LOCK).exists()


def test_a_command_that_reads_for_long_keeps_nobody_waiting(ana: Machine, bob: Machine) -> None:
    command = [sys.executable, "-m", "swampstore.cli", "data", "put", MODEL, "state", "-"]
    with subprocess.Popen(command, env=ana.environ, stdin=subprocess.PIPE) as slow:
        assert slow.stdin is not None
        slow.stdin.write(b"sl")
        slow.stdin.flush()
        eventually(lambda: _unread(slow.stdin) == 0)
        assert bob("data", "put", MODEL, "state", stdin=b"quick").status == 0
        slow.communicate(b"ow", timeout=60)
    assert slow.returncode == 0
    assert bob("sync", "--pull").status == 0
    with bob.open() as repo:
        assert contents(repo, MODEL, "state") == ["quick", "slow"]


def _unread(pipe: IO[bytes] | None) -> int:
    """Return how many bytes wait in a pipe."""
    assert pipe is not None
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_child_process_works_within_the_session_of_its_parent(ana: Machine, here: Repo) -> None:
    command = [sys.executable, "-m", "swampstore.cli", "data", "put", MODEL, "state", "-"]
    with here.session([MODEL]):
        environ = ana.environ | {"SWAMP_LOCK_HOLDER_PID": os.environ["SWAMP_LOCK_HOLDER_PID"]}
        subprocess.run(command, env=environ, input=b"of the child", check=True, timeout=60)
        assert here.locks.held == [LOCK]
        here.locks.verify()
    assert contents(here, MODEL, "state") == ["of the child"]


# In place --------------------------------------------------------------------------------------


def test_sessions_on_a_shared_directory_lock_it_as_other_clients_do(
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(tmp_path / "machine", capsysbinary, monkeypatch)
    mount = tmp_path / "mount"
    with machine.open(datastore=f"filesystem:{mount}") as repo:
        with repo.session([MODEL]) as session:
            record = json.loads((mount / LOCK).read_text())
            assert record["pid"] == os.getpid()
            repo.artifacts.save(MODEL, "state", "one")
        assert session.pushed is None
        assert not (mount / LOCK).exists()
        with repo.session():
            assert json.loads((mount / GLOBAL).read_text())["pid"] == os.getpid()
    assert not (mount / GLOBAL).exists()


def test_a_session_on_a_shared_directory_sees_what_another_repository_saved(
    tmp_path: Path, ana: Machine, bob: Machine
) -> None:
    mount = f"filesystem:{tmp_path / 'mount'}"
    with ana.open(mount) as here, bob.open(mount) as there:
        here.rebuild_catalog()
        there.rebuild_catalog()
        for repo, other, content in ((here, there, "one"), (there, here, "two")):
            with repo.session([MODEL]):
                repo.artifacts.save(MODEL, "state", content)
            with other.session([MODEL]):
                assert other.latest(MODEL, "state").text() == content
        there.artifacts.delete(MODEL, "state")
        with here.session():
            assert here.versions(MODEL, "state") == []
