"""Committing to the remote index while others do the same, and while things break."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.index import changes as merging
from swampstore.index.errors import IndexMovedError
from swampstore.index.fingerprints import Fingerprints, is_named
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.stores.errors import PreconditionFailedError, StoreUnreachableError, changed
from swampstore.stores.memory import MemoryBucket, MemoryStore
from swampstore.stores.protocol import Written
from swampstore.stores.retry import RetryingStore, RetryPolicy
from tests.conftest import FakeClock
from tests.support.broken_store import BrokenStore, Killed
from tests.support.index_machine import (
    ForeignClient,
    IndexMachine,
    digest,
    entry,
    foreign_entry,
    holding,
    known,
    partition,
    raw_rel,
    scope,
    shard_of,
)
from tests.support.remotes import Remote

T = TypeVar("T")
IMPATIENT = RetryPolicy(first_delay=0.0)


@pytest.fixture(autouse=True, scope="module")
def impatience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_LONGEST_PAUSE", 0.001)
        yield


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest) -> Remote:
    remote: Remote = request.getfixturevalue(f"{request.param}_remote")
    return remote


@pytest.fixture
def foreign(place: Remote) -> ForeignClient:
    return ForeignClient(place.open())


@pytest.fixture
def a(place: Remote, tmp_path: Path, clock: FakeClock) -> Iterator[IndexMachine]:
    machine = IndexMachine(tmp_path / "a", place.open(), clock=clock)
    yield machine
    machine.base.close()


@pytest.fixture
def b(place: Remote, tmp_path: Path, clock: FakeClock) -> Iterator[IndexMachine]:
    machine = IndexMachine(tmp_path / "b", place.open(), clock=clock)
    yield machine
    machine.base.close()


# What a commit costs and writes -------------------------------------------------------------------


def test_h34_a_commit_to_version_1_writes_the_monolith_the_touched_shard_and_meta(
    a: IndexMachine,
) -> None:
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    a.cost()
    a.commit({raw_rel("m3"): "y"})
    # _meta.json, the monolith, the shard that is replaced, _meta.json again
    assert a.requests() == {"get": 3, "head": 1, "put": 3}


def test_a_commit_to_version_2_writes_the_touched_shard_and_meta(a: IndexMachine) -> None:
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    a.index.migrate()
    a.cost()
    a.commit({raw_rel("m3"): "y"})
    assert a.requests() == {"get": 2, "put": 2}


def test_after_a_new_shard_commits_to_it_neither_sort_nor_write_the_list_anew(
    a: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("o"): "x"})
    a.index.migrate()
    a.commit({raw_rel("n"): "x"})
    before = a.index.refresh().meta
    a.commit({raw_rel("n", 2): "y"})
    after = a.index.refresh().meta
    assert before is not None
    assert after is not None
    assert after.partitions is before.partitions
    assert isinstance(after.shards, Fingerprints)
    assert foreign.meta()["partitions"] == [*after.partitions] == [shard_of(one) for one in "mno"]
    for one in "mno":
        etag = foreign.store.head(shard_key(shard_of(one))).etag
        assert is_named(after.shards[shard_of(one)], etag)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_who_commits_to_a_partition_that_others_emptied_hears_of_that_with_the_next_pull(
    a: IndexMachine, b: IndexMachine, is_sharded: bool
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("n"): "x"})
    if is_sharded:
        a.index.migrate()
    b.pull()
    a.commit({raw_rel("m", 2): "y"})
    b.pull(scope("t/u/m"))  # what it has as a whole is of an earlier shard since
    a.commit(removals=[raw_rel("m"), raw_rel("m", 2)])
    b.commit({raw_rel("m", 3): "z"})
    b.pull()
    a.pull()
    assert a.has() == b.has() == {raw_rel("m", 3): digest("z"), raw_rel("n"): digest("x")}


def test_commit_numbers_grow_by_one_and_are_in_the_entries(
    a: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()
    assert a.commit({raw_rel("n"): "y"}).commit_seq == 2
    assert a.commit({raw_rel("o"): "z"}).commit_seq == 3
    assert foreign.meta()["commitSeq"] == 3
    numbers = {rel: one.get("commitSeq") for rel, one in foreign.entries().items()}
    assert numbers == {raw_rel("m"): None, raw_rel("n"): 2, raw_rel("o"): 3}
    assert foreign.meta()["partitions"] == [shard_of(model) for model in "mno"]


def test_a_commit_that_is_overtaken_leaves_the_numbers_of_others_alone(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()
    view = a.index.view({shard_of("m"), shard_of("n")})
    b.commit({raw_rel("m", 2): "theirs"})
    a.index.commit(view, {raw_rel("m", 3): entry("ours"), raw_rel("n"): entry("ours")}, ())
    numbers = {rel: one.get("commitSeq") for rel, one in foreign.entries().items()}
    theirs, ours = {raw_rel("m", 2): 2}, {raw_rel("m", 3): 3, raw_rel("n"): 3}
    assert numbers == {raw_rel("m"): None, **theirs, **ours}
    assert foreign.meta()["commitSeq"] == 3


def test_version_1_documents_are_what_other_clients_read(
    a: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel("m"): "x", "logs/a": "y", "definitions-evaluated/t/n.yaml": "z"})
    assert sorted(foreign.meta()["partitions"]) == ["_root", shard_of("m"), "logs"]
    merged: dict[str, object] = {}
    for name in foreign.meta()["partitions"]:
        merged |= foreign.read(shard_key(name))["entries"]
    assert merged == foreign.monolith()["entries"]
    assert "commitSeq" not in foreign.meta()


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_without_entries_is_dropped(
    a: IndexMachine, foreign: ForeignClient, version: int
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        a.index.migrate()
    a.commit(removals=[raw_rel("m")])
    assert foreign.meta()["partitions"] == [shard_of("n")]
    assert foreign.read(shard_key(shard_of("m"))) is None
    a.commit({raw_rel("m"): "again"})
    assert foreign.hashes() == holding(m="again", n="y")


def test_a_store_without_conditional_deletion_keeps_the_empty_shard(
    tmp_path: Path,
) -> None:
    class Undeletable(MemoryStore):
        capabilities = MemoryStore.capabilities._replace(conditional_delete=False)

    store = Undeletable()
    a, foreign = IndexMachine(tmp_path / "a", store), ForeignClient(store)
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()
    a.pull()
    a.commit(removals=[raw_rel("m")])
    assert foreign.meta()["partitions"] == []
    assert foreign.read(shard_key(shard_of("m")))["entries"] == {}
    assert a.index.is_unchanged()
    a.commit({raw_rel("m"): "again"})
    assert a.index.is_unchanged()
    assert foreign.hashes() == holding(m="again")


def test_a_commit_of_nothing_writes_nothing(a: IndexMachine) -> None:
    a.commit({raw_rel("m"): "x"})
    for _ in range(2):
        a.commit()
        a.index.migrate()
        a.cost()
        a.commit()
        assert "put" not in a.requests()


# Others commit meanwhile --------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_h23_a_commit_is_merged_onto_what_others_committed_meanwhile(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient, version: int
) -> None:
    a.commit({raw_rel("m"): "x"})
    if version == 2:
        a.index.migrate()
    view = a.index.view([shard_of("m"), shard_of("n")])
    b.commit({raw_rel("m", 2): "theirs", raw_rel("o"): "theirs"})
    committed = a.index.commit(view, {raw_rel("m", 3): entry("y"), raw_rel("n"): entry("z")}, ())
    a.remember({raw_rel("m", 3): entry("y"), raw_rel("n"): entry("z")}, (), committed)
    a.pull()
    b.pull()
    assert a.has() == b.has() == foreign.hashes()
    assert len(a.has()) == 5


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("theirs", ["edit", "remove"])
def test_entries_that_others_changed_are_reported(
    a: IndexMachine, b: IndexMachine, version: int, theirs: str
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("n"): "x"})
    if version == 2:
        a.index.migrate()
    view = a.index.view([shard_of("m"), shard_of("n")])
    if theirs == "edit":
        b.commit({raw_rel("m"): "theirs"})
    else:
        b.commit(removals=[raw_rel("m")])
    with pytest.raises(IndexMovedError) as caught:
        a.index.commit(view, {raw_rel("m"): entry("y"), raw_rel("n"): entry("z")}, ())
    assert caught.value.rels == {raw_rel("m")}


def test_a_migration_meanwhile_sends_the_commit_back(a: IndexMachine, b: IndexMachine) -> None:
    a.commit({raw_rel("m"): "x"})
    view = a.index.view([shard_of("n")])
    b.index.migrate()
    with pytest.raises(IndexMovedError) as caught:
        a.index.commit(view, {raw_rel("n"): entry("y")}, ())
    assert caught.value.rels == {raw_rel("n")}
    a.commit({raw_rel("n"): "y"})
    b.pull()
    assert b.has() == holding(m="x", n="y")


def test_a_migration_that_leaves_the_monolith_sends_the_commit_back_too(
    a: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel("m"): "x"})
    view = a.index.view([shard_of("n")])
    foreign.migrate()
    with pytest.raises(IndexMovedError):
        a.index.commit(view, {raw_rel("n"): entry("y")}, ())
    assert foreign.meta()["version"] == 2
    a.commit({raw_rel("n"): "y"})
    assert foreign.hashes() == holding(m="x", n="y")


def test_a_slow_writer_does_not_replace_the_meta_of_a_later_monolith(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.commit({raw_rel("m"): "x"})
    put = a.store.put_if_match

    def overtaken(key: str, data: bytes, token: str) -> Written:
        written = put(key, data, token)
        if key == MONOLITH_KEY:
            b.commit({raw_rel("n"): "theirs"})
        return written

    with monkeypatch.context() as patch:
        patch.setattr(a.store, "put_if_match", overtaken)
        a.commit({raw_rel("o"): "ours"})
    assert foreign.hashes() == holding(m="x", n="theirs", o="ours")
    assert foreign.meta()["swampstore"]["monolith"] == b.store.head(MONOLITH_KEY).etag
    for one in (a, b):
        one.pull()
        assert one.has() == foreign.hashes()
        assert one.index.is_unchanged()


@pytest.mark.parametrize("version", [1, 2])
def test_many_committers_at_once_lose_nothing(
    place: Remote, tmp_path: Path, foreign: ForeignClient, version: int
) -> None:
    machines = [IndexMachine(tmp_path / str(number), place.open()) for number in range(4)]
    machines[0].commit({raw_rel("m"): "x"})
    if version == 2:
        machines[0].index.migrate()

    def work(number: int) -> None:
        for turn in range(4):
            machines[number].commit(
                {raw_rel("m", 10 + number * 10 + turn): "y", raw_rel(f"n{number}", turn + 1): "z"}
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(foreign.entries()) == 1 + 4 * 4 * 2
    for machine in machines:
        machine.pull()
        assert machine.has() == foreign.hashes()
        machine.base.close()
    if version == 2:
        assert foreign.meta()["commitSeq"] == 17


# Other kinds of clients ---------------------------------------------------------------------------


def test_the_next_writer_restores_the_agreement_of_shards_and_monolith(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel(f"m{number}"): "x" for number in range(10)})
    b.pull()
    foreign.commit_monolith_only(m1="theirs", m2=None, new="theirs")
    a.cost()
    a.commit({raw_rel("m3"): "ours"})
    # The monolith, _meta.json, and the shards that differ: m1, new and our m3; m2's is removed.
    tally = a.requests()
    assert (tally["put"], tally["delete"], tally["list"]) == (5, 1, 1)
    assert foreign.meta()["swampstore"]["monolith"] == a.store.head(MONOLITH_KEY).etag
    b.cost()
    assert sorted(b.pull(scope("t/u/m1"))) == [shard_of("m1")]
    assert b.requests() == {"get": 2, "head": 1}
    b.pull()
    assert b.has() == foreign.hashes()


def test_two_processes_on_a_cache_never_take_a_monolith_for_one_that_shards_agree_with(
    a: IndexMachine,
    b: IndexMachine,
    foreign: ForeignClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    other = IndexMachine(a.cache, a.store.inner)
    apply = a.base.apply

    def late(**what: Any) -> None:
        if what.get("facts", {}).get("copy_meta"):
            # Here, between the question whose copy it is and the answer, the other one pulls.
            monkeypatch.undo()
            foreign.commit_monolith_only(m="theirs", o="theirs")
            other.pull()
        apply(**what)

    monkeypatch.setattr(a.base, "apply", late)
    a.commit({raw_rel("n"): "z"})
    b.pull()
    a.commit({raw_rel("n"): "w"})
    b.pull()
    other.base.close()
    assert b.has() == foreign.hashes() == holding(m="theirs", n="w", o="theirs")


def test_pulling_first_does_not_make_the_next_writer_write_more(
    a: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel(f"m{number}"): "x" for number in range(10)})
    foreign.commit_v1(m1="theirs")
    a.pull()
    foreign.commit_v1(m2="theirs", new="theirs")
    a.pull()
    a.cost()
    a.commit({raw_rel("m3"): "ours"})
    # The monolith, m3, _meta.json; the shards that the other client wrote are as they should be.
    assert a.requests()["put"] == 3
    assert a.index.is_unchanged()
    assert a.pull() == []
    a.cost()
    a.commit({raw_rel("m4"): "ours"})
    assert a.requests() == {"get": 3, "head": 1, "put": 3}


def test_a_writer_without_a_copy_writes_all_shards(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    foreign.commit_monolith_only(m="x", n="y")
    foreign.write_shard("data--stale", {})
    a.commit({raw_rel("o"): "z"})
    assert foreign.meta()["partitions"] == [shard_of("m"), shard_of("n"), shard_of("o")]
    assert foreign.read(shard_key("data--stale")) is None
    b.pull(scope("t/u/m"))
    assert b.has() == holding(m="x")


def test_a_shard_that_another_client_wrote_incompletely_is_written_again(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    # Others leave paths without a partition of their own out of `_root`.
    a.commit({"definitions-evaluated/t/n.yaml": "x", "root.json": "y", raw_rel("m"): "z"})
    foreign.commit_v1(m="theirs")
    foreign.write_shard("_root", {"root.json": foreign.entries()["root.json"]})
    a.commit({raw_rel("o"): "ours"})
    b.pull(scope("t/n"))
    assert list(b.has()) == ["definitions-evaluated/t/n.yaml"]
    b.pull()
    assert b.has() == foreign.hashes()


class Echo(MemoryStore):
    """A store whose tokens tell the content, as on S3; what is asked of shards comes once more."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__("r", bucket)
        self.late: list[Callable[[], object]] = []

    def _write(self, key: str, data: bytes) -> Written:
        etag = super()._write(key, data).etag
        found = self._bucket.objects[key]
        self._bucket.objects[key] = found._replace(info=found.info._replace(token=etag))
        return Written(etag, etag)

    def _twice(self, key: str, do: Callable[[], T]) -> T:
        if key.startswith("_index/data--"):
            self.late.append(do)
        return do()

    def put(self, key: str, body: bytes | BinaryIO) -> Written:
        send = super().put
        return self._twice(key, lambda: send(key, body))

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        send = super().put_if_absent
        return self._twice(key, lambda: send(key, body))

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        send = super().put_if_match
        return self._twice(key, lambda: send(key, body, token))

    def delete(self, key: str) -> None:
        send = super().delete
        self._twice(key, lambda: send(key))

    def delete_if_match(self, key: str, token: str) -> None:
        send = super().delete_if_match
        self._twice(key, lambda: send(key, token))


def test_a_copy_of_a_shard_that_arrives_once_more_after_a_migration_replaces_nothing(
    tmp_path: Path,
) -> None:
    bucket = MemoryBucket()
    store = Echo(bucket)
    a = IndexMachine(tmp_path, RetryingStore(store, IMPATIENT))
    a.commit({raw_rel("m"): "x"})
    a.commit({raw_rel("m", 2): "y"})
    a.commit(removals={raw_rel("m", 2)})  # the entries are again what they were
    a.commit({raw_rel("n"): "x"})
    a.commit(removals={raw_rel("n")})
    a.index.migrate()
    late = list(store.late)
    assert len(late) == 6  # m, m, m, n, no n, and m for the migration
    a.commit({raw_rel("n"): "z"})
    before = dict(bucket.objects)
    for again in late:
        with contextlib.suppress(PreconditionFailedError):
            again()
        assert bucket.objects == before
    a.base.close()


def test_h35_a_shard_that_could_not_be_written_is_not_vouched_for(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("n"): "x"})
    b.pull()
    put = a.store.put_if_match

    def fail(key: str, body: bytes, token: str) -> Written:
        if key == shard_key(shard_of("m")):
            raise StoreUnreachableError("503", hint="Wait.")
        return put(key, body, token)

    with monkeypatch.context() as patch:
        patch.setattr(a.store, "put_if_match", fail)
        a.commit({raw_rel("m"): "y"})
    assert "monolith" not in foreign.meta()["swampstore"]
    assert a.index.is_unchanged()
    b.pull(scope("t/u/m"))
    assert b.has()[raw_rel("m")] == digest("y")
    a.commit({raw_rel("n"): "y"})
    assert foreign.read(shard_key(shard_of("m")))["entries"] == {
        raw_rel("m"): foreign.entries()[raw_rel("m")]
    }
    assert foreign.meta()["swampstore"]["monolith"] == a.store.head(MONOLITH_KEY).etag


def test_a_foreign_commit_to_version_2_does_not_cost_every_reader_a_listing(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    a.index.migrate()
    b.pull()
    foreign.commit_v2(m="theirs")
    a.commit({raw_rel("n"): "ours"})
    b.cost()
    assert sorted(b.pull()) == [shard_of("m"), shard_of("n")]
    assert b.requests() == {"get": 3}


# Things break -------------------------------------------------------------------------------------


def push(machine: IndexMachine, upserts: dict[str, str], removals: set[str]) -> None:
    """Do what a push does until all is committed: look, adopt what is there, commit the rest."""
    for _ in range(30):
        view = machine.index.view({partition(rel) for rel in (*upserts, *removals)})
        wanted = {rel: entry(content) for rel, content in upserts.items()}
        left = {rel: one for rel, one in wanted.items() if not same_content(view.entry(rel), one)}
        gone = {rel for rel in removals if view.entry(rel) is not None}
        machine.base.apply(
            known=[known(rel, one) for rel, one in wanted.items() if rel not in left],
            forgotten=removals - gone,
        )
        if not left and not gone and not view.is_unfinished:
            return
        try:
            committed = machine.index.commit(view, left, gone)
        except (IndexMovedError, StoreUnreachableError):
            continue
        machine.remember(left, gone, committed)
    raise AssertionError("the push never ends")


def same_content(one: object, other: object) -> bool:
    return getattr(one, "sha256", None) == getattr(other, "sha256", None)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_that_is_killed_anywhere_is_finished_by_the_next_push(
    tmp_path: Path, version: int, is_done: bool
) -> None:
    for requests in range(16):  # more than it needs
        bucket = MemoryBucket()
        broken = BrokenStore(MemoryStore("r", bucket))
        place = tmp_path / f"{requests}"
        clock = FakeClock()
        a = IndexMachine(place / "a", broken, clock=clock)
        a.commit({raw_rel("m"): "x", raw_rel("gone"): "x"})
        if version == 2:
            a.index.migrate()
            a.pull()
        reader = IndexMachine(place / "b", MemoryStore("r", bucket), clock=clock)
        reader.pull()
        upserts, removals = {raw_rel("m"): "y", raw_rel("new"): "z"}, {raw_rel("gone")}
        broken.fail_after(requests, is_done=is_done, kills=True)
        with contextlib.suppress(Killed):
            push(a, upserts, removals)
        a.base.close()
        again = IndexMachine(place / "a", MemoryStore("r", bucket), clock=clock)
        push(again, upserts, removals)
        clock.advance(seconds=61)
        for one in (reader, again):
            if not one.index.is_unchanged():
                one.pull()
            assert one.has() == holding(m="y", new="z"), requests
            assert one.index.is_unchanged()
            one.base.close()


class Spoiler(MemoryStore):
    """A store that does to each conditional write what a script says, and then nothing."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__("r", bucket)
        self.script: Iterator[str] = iter(())
        self.others: Callable[[], None] = lambda: None

    def _spoilt(self, key: str, write: Callable[[], Written]) -> Written:
        match next(self.script, "pass"):
            case "drop":
                raise StoreUnreachableError("the request got lost", hint="Try again.")
            case "lose":
                write()
                raise StoreUnreachableError("the answer got lost", hint="Try again.")
            case "refuse":
                raise changed(key, self.identity)
            case "race":
                self.others()
        return write()

    def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
        write = super().put_if_absent
        return self._spoilt(key, lambda: write(key, body))

    def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
        write = super().put_if_match
        return self._spoilt(key, lambda: write(key, body, token))


rels = st.sampled_from([raw_rel("m", 1), raw_rel("m", 2), raw_rel("n", 1)])
steps = st.fixed_dictionaries(
    {
        "who": st.integers(0, 1),
        "upserts": st.dictionaries(rels, st.sampled_from("xyz"), max_size=2),
        "removals": st.sets(rels, max_size=1),
        "script": st.lists(
            st.sampled_from(["pass", "drop", "lose", "refuse", "race", "race"]), max_size=6
        ),
        "other": st.dictionaries(rels, st.sampled_from("uvw"), max_size=2),
        "pulls": st.booleans(),
    }
)


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=60, deadline=None)
@given(script=st.lists(steps, min_size=1, max_size=5))
def test_no_interleaving_of_two_committers_loses_an_entry(version: int, script: list[dict]) -> None:  # type: ignore[type-arg]
    with TemporaryDirectory() as directory:
        bucket = MemoryBucket()
        spoilers = [Spoiler(bucket), Spoiler(bucket)]
        machines = [
            IndexMachine(Path(directory) / str(number), RetryingStore(one, IMPATIENT))
            for number, one in enumerate(spoilers)
        ]
        machines[0].commit({raw_rel("root"): "x"})
        if version == 2:
            machines[0].index.migrate()
        expected = {raw_rel("root"): digest("x")}
        for step in script:
            _take(step, machines, spoilers, expected)
        foreign = ForeignClient(MemoryStore("r", bucket))
        assert foreign.hashes() == dict(sorted(expected.items()))
        for machine in machines:
            machine.pull()
            assert machine.has() == foreign.hashes()
            assert machine.pull() == []
            machine.base.close()
        _check_shards(foreign, version)


def _take(
    step: dict,  # type: ignore[type-arg]
    machines: list[IndexMachine],
    spoilers: list[Spoiler],
    expected: dict[str, str],
) -> None:
    """Let one machine push its own paths while the other pushes its own in between."""
    who = step["who"]
    removals = step["removals"] - step["upserts"].keys()
    ours, theirs = f"{'ab'[who]}/", f"{'ab'[1 - who]}/"
    upserts = {rel.replace("name/", f"name-{ours}"): one for rel, one in step["upserts"].items()}
    gone = {rel.replace("name/", f"name-{ours}") for rel in removals}
    other = {rel.replace("name/", f"name-{theirs}"): one for rel, one in step["other"].items()}

    def others() -> None:
        push(machines[1 - who], other, set())
        expected.update({rel: digest(content) for rel, content in other.items()})

    if step["pulls"]:
        machines[who].pull()
    spoilers[who].script, spoilers[who].others = iter(step["script"]), others
    push(machines[who], upserts, gone)
    spoilers[who].script = iter(())
    expected.update({rel: digest(content) for rel, content in upserts.items()})
    for rel in gone:
        expected.pop(rel, None)


def _check_shards(foreign: ForeignClient, version: int) -> None:
    """On version 1, shards that are vouched for must be those of the monolith."""
    meta = foreign.meta()
    if version == 1 and meta["swampstore"].get("monolith") == foreign.store.head(MONOLITH_KEY).etag:
        merged: dict[str, object] = {}
        for name in meta["partitions"]:
            assert foreign.store.head(shard_key(name)).etag == meta["swampstore"]["shards"][name]
            merged |= foreign.read(shard_key(name))["entries"]
        assert merged == foreign.entries()


def test_a_commit_that_never_gets_through_says_so(
    a: IndexMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()

    def refuse(key: str, *_: object) -> Written:
        raise PreconditionFailedError(f"{key} was changed", hint="Read it again.")

    view = a.index.view([shard_of("m")])
    monkeypatch.setattr(a.store, "put_if_match", refuse)
    with pytest.raises(IndexMovedError, match="others keep committing"):
        a.index.commit(view, {raw_rel("m"): entry("y")}, ())


def test_an_interrupted_commit_to_version_2_is_seen_by_its_view(
    a: IndexMachine, b: IndexMachine, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()
    b.pull()
    put = a.store.put_if_match

    def stop(key: str, data: bytes, token: str) -> Written:
        if key == META_KEY:
            raise StoreUnreachableError("503", hint="Wait.")
        return put(key, data, token)

    with monkeypatch.context() as patch:
        patch.setattr(a.store, "put_if_match", stop)
        with pytest.raises(StoreUnreachableError):
            a.commit({raw_rel("m"): "y"})
    assert b.index.is_unchanged()
    view = a.index.view([shard_of("m")])
    assert view.is_unfinished
    a.index.commit(view, {}, ())
    assert not a.index.view([shard_of("m")]).is_unfinished
    b.pull()
    assert b.has() == holding(m="y")


# Shards that nobody tells of ----------------------------------------------------------------------


@pytest.fixture
def sharded(a: IndexMachine) -> IndexMachine:
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()
    a.cost()
    return a


def leave_untold(machine: IndexMachine, upserts: dict[str, str]) -> None:
    """Upload, and begin a commit to version 2 that ends before `_meta.json` tells of it."""
    for rel, content in upserts.items():
        machine.store.put(rel, content.encode())
    put = machine.store.put_if_match

    def stop(key: str, data: bytes, token: str) -> Written:
        if key == META_KEY:
            raise StoreUnreachableError("503", hint="Wait.")
        return put(key, data, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.store, "put_if_match", stop)
        with pytest.raises(StoreUnreachableError):
            machine.commit(upserts)


def test_new_shards_are_written_without_being_looked_for(
    sharded: IndexMachine, foreign: ForeignClient
) -> None:
    upserts = {raw_rel(f"n{number}"): entry("y") for number in range(20)}
    view = sharded.index.view((), additions=[partition(rel) for rel in upserts])
    assert view.entry(raw_rel("n1")) is None
    sharded.index.commit(view, upserts, ())
    assert sharded.requests() == {"get": 1, "put": 21}
    assert foreign.hashes() == {raw_rel("m"): digest("x"), **dict.fromkeys(upserts, digest("y"))}


def test_shards_that_are_told_of_are_read_to_be_added_to(sharded: IndexMachine) -> None:
    view = sharded.index.view((), additions=[shard_of("m"), shard_of("n")])
    assert sharded.requests() == {"get": 2}
    found = view.entry(raw_rel("m"))
    assert found is not None
    assert found.sha256 == digest("x")


def test_what_an_interrupted_commit_left_in_a_new_shard_is_looked_at_before_anything_joins_it(
    sharded: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    leave_untold(sharded, {raw_rel("n", 5): "theirs"})
    ours = {raw_rel("n", 2): entry("ours"), raw_rel("o"): entry("ours"), raw_rel("p"): entry("p")}
    additions = [partition(rel) for rel in ours]
    view = b.index.view((), additions=additions)
    with pytest.raises(IndexMovedError) as caught:
        b.index.commit(view, ours, ())
    assert caught.value.rels == {raw_rel("n", 2)}
    assert foreign.hashes() == holding(m="x")
    view = b.index.view((), additions=additions)
    found = view.entry(raw_rel("n", 5))
    assert found is not None
    assert found.sha256 == digest("theirs")
    assert view.is_unfinished
    b.index.commit(view, ours, ())
    assert foreign.hashes() == {
        **holding(m="x", o="ours", p="p"),
        raw_rel("n", 2): digest("ours"),
        raw_rel("n", 5): digest("theirs"),
    }


@pytest.mark.parametrize("healing", [False, True])
def test_a_request_that_makes_a_shard_once_more_after_its_last_entry_was_removed_revives_nothing(
    sharded: IndexMachine, foreign: ForeignClient, *, healing: bool
) -> None:
    sharded.store.put(raw_rel("n"), b"gone")
    sharded.commit({raw_rel("n"): "gone"})
    shard = shard_key(shard_of("n"))
    sent = sharded.store.get(shard).data
    sharded.commit(removals=[raw_rel("n")])
    sharded.store.delete(raw_rel("n"))
    sharded.store.put_if_absent(shard, sent)  # which arrives a second time
    if healing:
        sharded.index.migrate()
        assert foreign.hashes() == holding(m="x")
        assert not list(sharded.store.list(shard))
    with contextlib.suppress(IndexMovedError):
        view = sharded.index.view((), additions=[shard_of("n")])
        sharded.index.commit(view, {raw_rel("n", 2): entry("y")}, ())
    view = sharded.index.view((), additions=[shard_of("n")])
    sharded.index.commit(view, {raw_rel("n", 2): entry("y")}, ())
    assert foreign.hashes() == {**holding(m="x"), raw_rel("n", 2): digest("y")}


def test_an_entry_whose_object_is_lost_stays_in_a_shard_that_was_told_of_after_the_look(
    sharded: IndexMachine, b: IndexMachine, foreign: ForeignClient
) -> None:
    b.index.refresh()
    sharded.commit({raw_rel("n"): "lost"})
    view = b.index.view([shard_of("n")])
    with pytest.raises(IndexMovedError):
        b.index.commit(view, {raw_rel("n", 2): entry("y")}, ())
    assert foreign.hashes() == holding(m="x", n="lost")


def test_an_empty_shard_that_was_left_behind_is_filled_again(
    sharded: IndexMachine, foreign: ForeignClient
) -> None:
    foreign.write_shard(shard_of("n"), {})
    view = sharded.index.view((), additions=[shard_of("n")])
    sharded.index.commit(view, {raw_rel("n"): entry("y")}, ())
    assert foreign.hashes() == holding(m="x", n="y")


def test_a_damaged_shard_that_nobody_tells_of_sends_the_commit_back_if_there_are_files(
    sharded: IndexMachine, foreign: ForeignClient
) -> None:
    sharded.store.put(shard_key(shard_of("n")), b"{")
    sharded.store.put(raw_rel("n", 3), b"theirs")
    additions = [shard_of("n")]
    view = sharded.index.view((), additions=additions)
    with pytest.raises(IndexMovedError):
        sharded.index.commit(view, {raw_rel("n"): entry("y")}, ())
    view = sharded.index.view((), additions=additions)
    assert view.entry(raw_rel("n", 3)) is not None
    sharded.index.commit(view, {raw_rel("n"): entry("y")}, ())
    assert foreign.entries().keys() == {raw_rel("m"), raw_rel("n"), raw_rel("n", 3)}


def test_a_store_that_could_replace_a_shard_unseen_is_always_asked(tmp_path: Path) -> None:
    class Plain(MemoryStore):
        capabilities = MemoryStore.capabilities._replace(conditional_create=False)

    machine = IndexMachine(tmp_path / "a", Plain())
    machine.commit({raw_rel("m"): "x"})
    machine.index.migrate()
    ForeignClient(machine.store).write_shard(
        shard_of("n"), {raw_rel("n", 5): foreign_entry(raw_rel("n", 5), "theirs")}
    )
    machine.store.put(raw_rel("n", 5), b"theirs")
    view = machine.index.view((), additions=[shard_of("n")])
    assert view.entry(raw_rel("n", 5)) is not None
    machine.base.close()
