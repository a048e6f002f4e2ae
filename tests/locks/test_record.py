"""What a lock says, who is dead, and where locks are."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swampstore.layout import ModelRef
from swampstore.locks.process import (
    VARIABLE,
    HolderVariable,
    actor_name,
    is_dead,
    is_of,
    new_record,
)
from swampstore.locks.record import (
    LockRecord,
    decode,
    gate_key,
    global_key,
    model_key,
    model_of_key,
    registry_prefix,
)
from tests.support.locking import foreign_record

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(  # noqa: DTZ001 - see map
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
)
RECORDS = st.builds(
    LockRecord,
    holder=st.text(),
    hostname=st.text(),
    pid=st.integers(-(2**53) + 1, 2**53 - 1),
    acquired_at=MOMENTS,
    ttl_ms=st.integers(1, 24 * 3600 * 1000),
    nonce=st.text(),
    since=st.none() | MOMENTS,
    process=st.text(),
    purpose=st.text(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
NAMES = st.from_regex(r"[a-z0-9@_-]{1,8}", fullmatch=True)
MODELS = st.builds(ModelRef, st.lists(NAMES, min_size=1, max_size=3).map("/".join), NAMES)
NAMESPACES = st.sampled_from(["", "infra", "data", "a-b"])


# Records


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: LockRecord) -> None:
    assert decode(record.encode()) == record


def test_a_record_is_written_as_other_clients_write_theirs() -> None:
    record = LockRecord(
        holder="alice@build-7",
        hostname="build-7",
        pid=4242,
        acquired_at=datetime(2026, 6, 1, 10, tzinfo=UTC),
        ttl_ms=30000,
        nonce="1b4e28ba-2fa1-41d2-883f-0016d3cca427",
    )
    assert record.encode().decode() == (
        "{\n"
        '  "holder": "alice@build-7",\n'
        '  "hostname": "build-7",\n'
        '  "pid": 4242,\n'
        '  "acquiredAt": "2026-06-01T10:00:00.000Z",\n'
        '  "ttlMs": 30000,\n'
        '  "nonce": "1b4e28ba-2fa1-41d2-883f-0016d3cca427"\n'
        "}"
    )


@given(RECORDS, st.data())
def test_a_cut_record_is_no_record(record: LockRecord, data: st.DataObject) -> None:
    content = record.encode()
    assert decode(content[: data.draw(st.integers(0, len(content) - 1))]) is None


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_no_record(content: bytes) -> None:
    assert decode(content) is None


@given(
    RECORDS,
    st.sampled_from(["holder", "hostname", "pid", "acquiredAt", "ttlMs", "nonce"]),
    JSON,
)
def test_a_member_of_another_type_makes_it_no_record(
    record: LockRecord, name: str, value: Any
) -> None:
    members = json.loads(record.encode())
    is_same_type = type(value) is type(members[name])
    found = decode(json.dumps(members | {name: value}).encode())
    assert is_same_type or found is None


@pytest.mark.parametrize("ttl", [0, -1, 10**12, 1.5, True])
def test_a_lock_that_lives_for_ever_or_not_at_all_is_no_record(ttl: object) -> None:
    members = json.loads(foreign_record().encode()) | {"ttlMs": ttl}
    assert decode(json.dumps(members).encode()) is None


def test_deep_nesting_is_no_record() -> None:
    assert decode(b"[" * 100_000) is None


@given(RECORDS, MOMENTS)
def test_a_renewed_record_differs_whatever_the_clock_says(
    record: LockRecord, now: datetime
) -> None:
    renewed = record.renewed(now)
    assert renewed.encode() != record.encode()
    assert renewed._replace(acquired_at=record.acquired_at) == record


def test_two_records_of_one_process_have_different_nonces() -> None:
    assert new_record(1.0).nonce != new_record(1.0).nonce


# Processes


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    code = "from swampstore.locks.process import new_record as r; import sys\n"
    code += "sys.stdout.buffer.write(r(30.0).encode() + b'\\0'); sys.stdout.flush(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def test_a_process_is_dead_once_it_has_ended(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    content = b""
    while not content.endswith(b"\0"):
        content += child.stdout.read(1)
    record = decode(content[:-1])
    assert record is not None
    assert record.pid == child.pid
    assert is_of(record, child.pid)
    assert not is_dead(record)
    child.kill()
    child.wait()
    assert is_dead(record)
    assert not is_of(record, child.pid)


def test_a_pid_that_was_given_to_another_process_is_not_the_holder() -> None:
    record = new_record(30.0)
    assert not is_dead(record)
    assert is_dead(record._replace(process=f"{record.process}0"))


def free_pid() -> int:
    """Return the pid of a process that has just ended."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_h39_nothing_is_known_of_a_process_on_another_machine_or_in_another_container() -> None:
    ours = new_record(30.0)
    boot, namespace, _, start = ours.process.split(":")
    gone = free_pid()
    elsewhere = [
        ours._replace(pid=gone, process=f"{boot}:{namespace}1:{gone}:{start}"),
        ours._replace(pid=gone, process=f"other:{namespace}:{gone}:{start}"),
        ours._replace(pid=gone, process="", hostname="elsewhere"),
        ours._replace(pid=gone, process="garbage"),
        ours._replace(pid=0, process=""),
        ours._replace(pid=-1, process=""),
        ours._replace(pid=2**40, process=""),
    ]
    assert [is_dead(record) for record in elsewhere] == [False] * len(elsewhere)
    assert is_dead(ours._replace(pid=gone, process=f"{boot}:{namespace}:{gone}:{start}"))


def test_h39_of_another_client_on_this_machine_the_pid_is_asked_for() -> None:
    ours = new_record(30.0)._replace(process="")
    assert not is_dead(ours)
    assert not is_dead(ours._replace(pid=1))
    assert is_dead(ours._replace(pid=free_pid()))


def test_the_lock_of_a_process_on_another_machine_is_never_our_parents() -> None:
    parent = new_record(30.0)._replace(pid=os.getppid(), process="")
    assert is_of(parent, os.getppid())
    assert not is_of(parent._replace(hostname="elsewhere"), os.getppid())
    assert not is_of(parent._replace(process="elsewhere:1:2:3"), os.getppid())
    assert not is_of(parent, None)
    assert not is_of(None, os.getppid())


def test_the_variable_is_put_back_when_the_last_holder_is_done() -> None:
    environ = {VARIABLE: "17"}
    variable = HolderVariable(environ)
    assert variable.parent() == 17
    variable.raise_flag()
    variable.raise_flag()
    variable.lower_flag()
    assert environ[VARIABLE] == str(os.getpid())
    assert variable.parent() == 17
    variable.lower_flag()
    variable.lower_flag()
    assert environ == {VARIABLE: "17"}
    environ.clear()
    variable.raise_flag()
    variable.lower_flag()
    assert environ == {}


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²"])
def test_a_variable_that_is_no_pid_names_no_parent(text: str) -> None:
    assert HolderVariable({VARIABLE: text}).parent() is None


def test_a_process_is_not_its_own_parent() -> None:
    assert HolderVariable({VARIABLE: str(os.getpid())}).parent() is None


def test_a_forked_child_takes_what_was_set_before_for_its_parents() -> None:
    environ: dict[str, str] = {}
    variable = HolderVariable(environ)
    variable.raise_flag()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if variable.parent() == parent else 1)
    assert os.waitpid(child, 0)[1] == 0


# Keys


def test_keys_are_those_of_other_clients() -> None:
    model = ModelRef("aws/ec2", "i-1")
    assert global_key("") == ".datastore.lock"
    assert global_key("infra") == ".locks/infra.lock"
    assert model_key("", model) == "data/aws/ec2/i-1/.lock"
    assert model_key("infra", model) == "infra/data/aws/ec2/i-1/.lock"
    assert gate_key("infra") == "infra/_control/locks/gate.lock"
    assert registry_prefix("") == "_control/locks/sessions/"


@given(MODELS, NAMESPACES)
def test_the_model_of_a_key_is_found_again(model: ModelRef, namespace: str) -> None:
    assert model_of_key(model_key(namespace, model), namespace) == model


@given(MODELS)
def test_a_key_of_another_namespace_is_no_key_of_this_one(model: ModelRef) -> None:
    assert model_of_key(model_key("infra", model), "other") is None
    assert model_of_key(model_key("", model), "infra") is None


@pytest.mark.parametrize(
    "key",
    [
        "data/.lock",
        "data/a/.lock",
        "data/a/b/lock",
        "data/a/b/c",
        "outputs/a/b/.lock",
        "data/A/b/.lock",
        "data/a//b/.lock",
        "data/a/../.lock",
        ".lock",
        "",
    ],
)
def test_other_keys_are_no_locks_of_models(key: str) -> None:
    assert model_of_key(key, "") is None


def test_a_second_refresh_in_one_millisecond_is_later_too() -> None:
    record = new_record(30.0)
    again = record.renewed(record.acquired_at)
    assert again.acquired_at - record.acquired_at == timedelta(milliseconds=1)


def test_without_a_variable_the_account_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.delenv("USERNAME", raising=False)
    assert actor_name() == f"{pwd.getpwuid(os.getuid()).pw_name}@{os.uname().nodename}"
    monkeypatch.setenv("USER", "ana")
    assert actor_name().startswith("ana@")
