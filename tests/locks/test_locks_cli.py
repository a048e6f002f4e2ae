"""`swampstore datastore lock status` and `release`, on a directory and on a remote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from swampstore import open_repo
from swampstore.locks.record import gate_key, global_key, model_key
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.protocol import Store
from tests.support.command_line import CommandLine
from tests.support.locking import (
    KEY,
    ONE,
    TWO,
    foreign_record,
    is_free,
    keys_of,
    put_foreign,
    record_of,
)
from tests.support.machines import Machine

MODEL = "aws/ec2/i-1"


@pytest.fixture
def cli(
    repo_dir: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    return CommandLine(repo_dir, capsysbinary, monkeypatch)


@pytest.fixture
def store(repo_dir: Path) -> Iterator[Store]:
    """The datastore that is used in place."""
    with DirectoryStore(str(repo_dir / ".swamp"), durable=False) as store:
        yield store


def test_nothing_is_locked(cli: CommandLine) -> None:
    assert cli("datastore", "lock", "status", "--format", "table").out == "Nothing is locked.\n"
    assert cli("datastore", "lock", "status", "--json").json == {"locks": []}


def test_every_lock_is_shown_with_its_holder(
    cli: CommandLine, store: Store, repo_dir: Path
) -> None:
    theirs = put_foreign(store)
    with open_repo(repo_dir, durable=False) as repo, repo.locks.models([TWO]):
        store.put(global_key(""), b"half a rec")
        shown = cli("datastore", "lock", "status", "--json").json["locks"]
        text = cli("datastore", "lock", "status").out
    assert [(one["key"], one["scope"]) for one in shown] == [
        (global_key(""), "global"),
        (KEY, "model"),
        (model_key("", TWO), "model"),
    ]
    unreadable, foreign, ours = shown
    assert (unreadable["holder"], unreadable["nonce"], unreadable["stale"]) == (None, None, False)
    assert foreign["model"] == MODEL
    assert (foreign["holder"], foreign["hostname"], foreign["pid"], foreign["nonce"]) == (
        *("bob@elsewhere", "elsewhere", 4242),
        theirs.nonce,
    )
    assert foreign["since"].endswith("Z")
    assert 0 <= foreign["age"] < 60
    assert ours["pid"] == os.getpid()
    for part in ("global", "cannot be read", MODEL, "bob@elsewhere", "4242", "no"):
        assert part in text


def test_a_stale_lock_is_shown_as_one(cli: CommandLine, store: Store, repo_dir: Path) -> None:
    put_foreign(store)
    os.utime(repo_dir / ".swamp" / KEY, (0, 0))
    [shown] = cli("datastore", "lock", "status", "--json").json["locks"]
    assert shown["stale"] is True
    assert shown["age"] > 1000
    assert not is_free(store)


def test_a_lock_is_only_removed_by_force(cli: CommandLine, store: Store) -> None:
    put_foreign(store, global_key(""))
    refused = cli("datastore", "lock", "release", "--json")
    assert (refused.status, refused.error["code"]) == (2, "usage")
    assert "--force" in refused.error["error"]
    assert not is_free(store, global_key(""))


def test_force_removes_the_locks_of_everything_and_says_who_held_them(
    cli: CommandLine, store: Store
) -> None:
    put_foreign(store, global_key(""))
    put_foreign(store, gate_key(""), holder="eve@elsewhere")
    kept = put_foreign(store)
    out = cli("datastore", "lock", "release", "--force").out
    assert "bob@elsewhere (host elsewhere, pid 4242) held since 20" in out
    assert "eve@elsewhere" in out
    assert keys_of(store) == [KEY]
    assert record_of(store) == kept
    again = cli("datastore", "lock", "release", "--force", "--json").json
    assert again == {"released": False, "locks": []}
    assert cli("datastore", "lock", "release", "--force").out == "Nobody has locked everything.\n"


def test_force_removes_the_lock_of_one_model(cli: CommandLine, store: Store) -> None:
    record = put_foreign(store)
    put_foreign(store, model_key("", TWO))
    done = cli("datastore", "lock", "release", "--force", "--model", "AWS::EC2/i-1", "--json").json
    assert done["released"] is True
    [one] = done["locks"]
    assert (one["key"], one["nonce"], one["released"]) == (KEY, record.nonce, True)
    assert keys_of(store) == [model_key("", TWO)]
    out = cli("datastore", "lock", "release", "--force", "--model", MODEL).out
    assert out == f"Nobody has locked {MODEL}.\n"


def test_a_lock_that_cannot_be_read_is_removed(cli: CommandLine, store: Store) -> None:
    store.put(KEY, b"")
    out = cli("datastore", "lock", "release", "--force", "--model", MODEL).out
    assert "somebody unknown held since some time" in out
    assert is_free(store)


def test_a_lock_that_changed_hands_is_left_alone(
    cli: CommandLine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_foreign(store)
    get = DirectoryStore.get
    reads: list[str] = []

    def replace_after_the_first_read(self: DirectoryStore, key: str) -> object:
        found = get(self, key)
        reads.append(key)
        if len(reads) == 1:
            store.put(KEY, foreign_record(holder="eve").encode())
        return found

    monkeypatch.setattr(DirectoryStore, "get", replace_after_the_first_read)
    out = cli("datastore", "lock", "release", "--force", "--model", MODEL).out
    assert "changed hands meanwhile" in out
    left = record_of(store)
    assert left is not None
    assert left.holder == "eve"


def test_a_model_that_is_none_is_refused(cli: CommandLine) -> None:
    outcome = cli("datastore", "lock", "release", "--force", "--model", "x", "--json")
    assert outcome.error["code"] == "validation_failed"


def test_locks_on_a_remote_are_shown_and_removed(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    machine = Machine(tmp_path / "machine", capsysbinary, monkeypatch)
    machine.use(bucket, namespace="infra")
    with machine.open() as repo, repo.locks.models([ONE]):
        [shown] = machine("datastore", "lock", "status", "--json").json["locks"]
        assert shown["key"] == model_key("infra", ONE)
        assert (bucket / shown["key"]).exists()
        done = machine("datastore", "lock", "release", "--force", "--model", MODEL, "--json").json
        assert done["released"] is True
        assert not (bucket / shown["key"]).exists()
