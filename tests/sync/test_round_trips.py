"""What a command on a remote asks for, how much of it in a row, and what it may build on."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.index import documents, partition_list, version1_commit, watch
from swampstore.index.partition_list import PartitionList
from swampstore.layout import are_plain
from swampstore.marker import update_marker
from swampstore.stores.wrapper import CountingStore, Request
from tests.support.sync_harness import remote_index

MODEL, OTHER = "aws/ec2/i-1", "aws/ec2/i-2"
_ANSWER = 0.05


class Asked(NamedTuple):
    began: float
    ended: float
    request: Request


class Line:
    """What was asked, with an answer that takes its time."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.delay = 0.0
        self._mutex = threading.Lock()

    def send(self, request: Request, send: Callable[[], Any]) -> Any:
        began = time.monotonic()
        time.sleep(self.delay)
        try:
            return send()
        finally:
            with self._mutex:
                self.asked.append(Asked(began, time.monotonic(), request))

    @property
    def in_a_row(self) -> int:
        """How many there are of which each began after the one before had ended."""
        count, last = 0, 0.0
        for one in sorted(self.asked, key=lambda one: one.ended):
            if one.began >= last:
                count, last = count + 1, one.ended
        return count


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Line:
    line = Line()
    real = CountingStore.around

    def around(self: CountingStore, request: Request, send: Callable[[], Any]) -> Any:
        if os.path.realpath(tmp_path) not in self.identity:
            return real(self, request, send)  # a lock of an earlier test is still refreshed
        return line.send(request, lambda: real(self, request, send))

    monkeypatch.setattr(CountingStore, "around", around)
    return line


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Repo]]:
    """Open the repository of a machine; all have the same remote, with a sharded index."""
    (tmp_path / "bucket").mkdir()
    opened: list[Repo] = []

    def open_machine(name: str) -> Repo:
        place = str(tmp_path / name)
        if not os.path.isdir(place):
            init_repo(place).close()
            update_marker(place, {"datastore": {"url": f"file://{tmp_path}/bucket"}})
        environ = {"SWAMP_HOME": f"{place}-home"}
        repo = open_repo(place, environ=environ, durable=False)
        opened.append(repo)
        repo.sync.push()  # a cache that is new counts as changed
        return repo

    first = open_machine("first")
    first.sync.migrate_index()
    yield open_machine
    for repo in opened:
        repo.close()


def put(repo: Repo, model: str, *names: str) -> None:
    with repo.session([model]):
        for name in names:
            repo.artifacts.save(model, name, os.urandom(8))


def entries(repo: Repo) -> set[str]:
    return set(remote_index(repo.connection.store).entries)


def test_a_put_makes_16_requests_and_waits_for_8_of_them(
    machine: Callable[[str], Repo], line: Line
) -> None:
    repo = machine("a")
    put(repo, MODEL, "state")
    line.delay = _ANSWER
    costs: list[tuple[int, int]] = []
    for _ in range(3):  # on a busy machine one of them may ask again for what has become old
        line.asked.clear()
        put(repo, MODEL, "state")
        costs.append((len(line.asked), line.in_a_row))
    assert min(requests for requests, _ in costs) <= 16, line.asked
    assert min(in_a_row for _, in_a_row in costs) <= 8


def test_a_session_of_many_saves_costs_their_uploads_and_the_same_constant(
    machine: Callable[[str], Repo], line: Line
) -> None:
    repo = machine("a")
    put(repo, MODEL, "state")
    line.asked.clear()
    put(repo, MODEL, *(f"state-{number}" for number in range(40)))
    assert len(line.asked) <= 3 * 40 + 13


def test_what_is_large_is_uploaded_before_the_lock_of_the_commit_is_taken(
    machine: Callable[[str], Repo], line: Line
) -> None:
    repo = machine("a")
    line.delay = _ANSWER
    with repo.session([MODEL]):
        repo.artifacts.save(MODEL, "state", os.urandom(70_000))
        line.asked.clear()
    puts = {one.request.key: one for one in line.asked if one.request.kind == "put"}
    content = next(one for key, one in puts.items() if key.endswith("/raw"))
    assert content.ended <= puts[".datastore.lock"].began


def test_the_index_is_asked_for_once_and_own_shards_are_not_read_again(
    machine: Callable[[str], Repo], line: Line
) -> None:
    repo = machine("a")
    put(repo, MODEL, "state")
    line.asked.clear()
    put(repo, MODEL, "state")
    gets = [one.request.key for one in line.asked if one.request.kind == "get"]
    assert [key for key in gets if key.startswith("_index/")] == ["_index/_meta.json"]


def test_own_shards_are_not_read_again_by_the_next_command(
    machine: Callable[[str], Repo], line: Line
) -> None:
    put(machine("a"), MODEL, "state")
    next_one = machine("a")
    line.asked.clear()
    put(next_one, MODEL, "state")
    gets = [one.request.key for one in line.asked if one.request.kind == "get"]
    assert [key for key in gets if key.startswith("_index/")] == ["_index/_meta.json"]


@pytest.mark.parametrize("damaged", [b"", b"[]", b"no JSON\n{}", None])
def test_own_shards_that_are_lost_or_damaged_are_read_again(
    machine: Callable[[str], Repo], line: Line, tmp_path: Path, damaged: bytes | None
) -> None:
    repo = machine("a")
    put(repo, MODEL, "state")
    (kept,) = tmp_path.rglob("a*/**/_catalog.db-own-shards")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-400] if damaged is None else damaged)
    next_one = machine("a")
    line.asked.clear()
    put(next_one, MODEL, "state")
    gets = [one.request.key for one in line.asked if one.request.kind == "get"]
    assert any(key.startswith("_index/data--aws--ec2") for key in gets)
    assert {f"data/{MODEL}/state/{version}/raw" for version in (1, 2)} <= entries(repo)


def test_a_program_that_puts_again_and_again_decodes_no_document_of_the_index(
    machine: Callable[[str], Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, other = machine("a"), machine("b")
    put(repo, MODEL, "state")
    counts = Counter[str]()

    def counted(name: str, work: Callable[..., Any], *args: Any) -> Any:
        counts[name] += 1
        return work(*args)

    for name, module in (("decode_meta", watch), ("decode_shard", documents)):
        monkeypatch.setattr(module, name, partial(counted, name, getattr(module, name)))
    put(repo, MODEL, "state")
    assert counts == {}
    put(other, OTHER, "state")
    counts.clear()
    put(repo, MODEL, "state")  # what others wrote is read
    assert counts["decode_meta"] == 1
    assert counts["decode_shard"]


def test_a_put_writes_the_list_of_partitions_into_the_base_only_if_it_is_another(
    machine: Callable[[str], Repo],
) -> None:
    repo = machine("a")
    put(repo, MODEL, "state")
    seen: list[str] = []
    db = repo.connection.base._file._connection()
    db.set_trace_callback(seen.append)
    put(repo, MODEL, "state")
    assert any("INTO facts VALUES('meta'" in one.replace(" (", "(") for one in seen)
    assert not any("'meta_partitions'" in one for one in seen if one.startswith("INSERT"))
    put(repo, OTHER, "state")
    assert any("'meta_partitions'" in one for one in seen if one.startswith("INSERT"))
    db.set_trace_callback(None)


def test_a_program_that_starts_puts_without_taking_the_list_of_partitions_apart(
    machine: Callable[[str], Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(machine("a"), MODEL, "state")
    again = machine("a")

    def taken_apart(partitions: PartitionList) -> tuple[str, ...]:
        raise AssertionError(f"all names of {partitions.as_json} were asked for")

    def digested(text: str) -> str:
        raise AssertionError(f"the digest of {text!r} is known")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionList, "names", property(taken_apart))
        patch.setattr(partition_list, "_digest", digested)
        put(again, MODEL, "state")
    put(again, OTHER, "state")
    assert {f"data/{MODEL}/state/{version}/raw" for version in (1, 2)} <= entries(again)
    fresh = machine("c")
    fresh.sync.pull()
    assert fresh.list_versions(MODEL, "state") == [1, 2]
    assert fresh.list_versions(OTHER, "state") == [1]


def test_what_others_commit_to_the_same_shard_meanwhile_is_kept(
    machine: Callable[[str], Repo],
) -> None:
    here, there = machine("a"), machine("b")
    put(here, MODEL, "state")
    with here.session([MODEL]):
        here.artifacts.save(MODEL, "state", b"ours")
        put(there, OTHER, "state", "more")
    put(here, MODEL, "state")
    assert {f"data/{MODEL}/state/{version}/raw" for version in (1, 2, 3)} | {
        f"data/{OTHER}/state/1/raw",
        f"data/{OTHER}/more/latest",
    } <= entries(here)
    fresh = machine("c")
    fresh.sync.pull()
    assert fresh.list_versions(MODEL, "state") == [1, 2, 3]
    assert fresh.list_versions(OTHER, "more") == [1]


@pytest.mark.parametrize("damage", [None, b"no shard"])
def test_a_shard_that_is_lost_after_we_wrote_it_is_made_anew(
    machine: Callable[[str], Repo], tmp_path: Path, damage: bytes | None
) -> None:
    repo = machine("a")
    put(repo, MODEL, "state")
    shard = tmp_path / "bucket/_index/data--aws--ec2--i-1.json"
    if damage is None:
        shard.unlink()
    else:
        shard.write_bytes(damage)
    put(repo, MODEL, "state")
    assert {f"data/{MODEL}/state/{version}/raw" for version in (1, 2)} <= entries(repo)


def test_a_commit_that_others_were_killed_in_is_not_lost_by_building_on_our_own_shard(
    machine: Callable[[str], Repo], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = machine("a"), machine("b")
    put(here, MODEL, "state")
    there.sync.pull()

    class KilledError(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("swampstore.index.documents.Documents.put_meta", killed)
        with pytest.raises(KilledError):
            put(there, OTHER, "state")
    there.locks.release()
    put(here, MODEL, "state")
    put(there, OTHER, "more")
    assert {
        f"data/{MODEL}/state/2/raw",
        f"data/{OTHER}/state/1/raw",
        f"data/{OTHER}/state/latest",
        f"data/{OTHER}/more/1/raw",
    } <= entries(here)


def test_shards_that_are_too_large_to_be_kept_are_read_again(
    machine: Callable[[str], Repo], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = machine("a")
    put(repo, MODEL, *(f"state-{number}" for number in range(20)))
    put(repo, MODEL, "state")
    shard = remote_index(repo.connection.store)
    assert len(shard.entries) > 60
    monkeypatch.setattr("swampstore.index.own_shards._MOST_BYTES", 8_000)
    put(repo, MODEL, "state")
    line.asked.clear()
    put(repo, MODEL, "state")
    gets = [one.request.key for one in line.asked if one.request.kind == "get"]
    assert "_index/data--aws--ec2--i-1.json" in gets
    assert "_index/data--aws--ec2.json" not in gets


def test_a_put_on_version_1_decodes_and_encodes_the_monolith_at_most_once_and_sends_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, place = tmp_path / "bucket", str(tmp_path / "a")
    bucket.mkdir()
    init_repo(place).close()
    update_marker(place, {"datastore": {"url": f"file://{bucket}"}})
    counts = Counter[str]()

    def counted(name: str, work: Callable[..., Any], *args: Any) -> Any:
        counts[name] += 1
        return work(*args)

    def is_cheap() -> bool:
        size = os.path.getsize(bucket / ".datastore-index.json")
        tally = repo.connection.counting.tally()
        return tally.bytes_sent + tally.bytes_received <= 1.2 * size

    environ = {"SWAMP_HOME": f"{place}-home"}
    with open_repo(place, environ=environ, durable=False) as repo:
        put(repo, MODEL, *(f"state-{number}" for number in range(40)))
        put(repo, "aws/s3/b-1", "state")
        for name, module in (("decode_monolith", documents), ("encode_monolith", version1_commit)):
            monkeypatch.setattr(module, name, partial(counted, name, getattr(module, name)))
        repo.connection.counting.reset()
        put(repo, "aws/s3/b-1", "state")
        assert is_cheap()
    assert counts == {"encode_monolith": 1}  # it knows what it wrote itself
    counts.clear()
    with open_repo(place, environ=environ, durable=False) as repo:
        put(repo, "aws/s3/b-1", "state")
        assert is_cheap()
    assert counts == {"decode_monolith": 1, "encode_monolith": 1}


def test_what_others_commit_to_a_monolith_after_ours_is_kept(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    here, there = (str(tmp_path / name) for name in ("a", "b"))
    init_repo(here).close()
    shutil.copytree(here, there)
    for place in (here, there):
        update_marker(place, {"datastore": {"url": f"file://{bucket}"}})
    with (
        open_repo(here, environ={"SWAMP_HOME": f"{here}-home"}, durable=False) as ours,
        open_repo(there, environ={"SWAMP_HOME": f"{there}-home"}, durable=False) as theirs,
    ):
        for _ in range(2):
            put(ours, MODEL, "state")
            put(theirs, OTHER, "state")
        put(ours, MODEL, "state")
    entries = json.loads((bucket / ".datastore-index.json").read_bytes())["entries"]
    for model, count in ((MODEL, 3), (OTHER, 2)):
        for version in range(1, count + 1):
            assert f"data/{model}/state/{version}/raw" in entries


def test_a_monolith_is_looked_through_again_only_if_others_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, place = tmp_path / "bucket", str(tmp_path / "a")
    bucket.mkdir()
    init_repo(place).close()
    update_marker(place, {"datastore": {"url": f"file://{bucket}"}})
    looked: list[int] = []
    real = are_plain

    def noted(rels: Collection[str]) -> bool:
        looked.append(len(rels))
        return real(rels)

    monkeypatch.setattr(documents, "are_plain", noted)
    with open_repo(place, environ={"SWAMP_HOME": f"{place}-home"}, durable=False) as repo:
        put(repo, MODEL, *(f"state-{number}" for number in range(40)))
        looked.clear()
        put(repo, "aws/s3/b-1", "state")
        assert not [count for count in looked if count >= 120]
        monolith = bucket / ".datastore-index.json"
        document = json.loads(monolith.read_bytes())
        spoilt = "data/aws/s3/b-1/.lock"
        document["entries"][spoilt] = next(iter(document["entries"].values())) | {"key": spoilt}
        monolith.write_text(json.dumps(document))
        put(repo, "aws/s3/b-1", "state")
        assert [count for count in looked if count >= 120]
        assert spoilt not in json.loads(monolith.read_bytes())["entries"]
