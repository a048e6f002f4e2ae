"""Noticing and reading changes of the remote index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore.errors import NewerFormatError
from swampstore.index.errors import IndexDamagedError
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.index.path_map import Names
from swampstore.layout import is_internal, is_plain
from swampstore.routing import Routing
from swampstore.stores.errors import StorePermissionError, StoreUnreachableError
from swampstore.stores.memory import MemoryStore
from swampstore.stores.protocol import Fetched, Written
from tests.conftest import FakeClock
from tests.support.index_machine import (
    UPLOADED,
    ForeignClient,
    IndexMachine,
    digest,
    entry,
    foreign_entry,
    holding,
    raw_rel,
    scope,
    shard_of,
)
from tests.support.remotes import Remote

Open = Callable[..., IndexMachine]


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest) -> Remote:
    remote: Remote = request.getfixturevalue(f"{request.param}_remote")
    return remote


@pytest.fixture
def machine(place: Remote, tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    """Opens machines with a cache each, by name."""
    opened: list[IndexMachine] = []

    def open_machine(name: str = "a", namespace: str = "") -> IndexMachine:
        opened.append(IndexMachine(tmp_path / name, place.open(), namespace, clock=clock))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.base.close()


@pytest.fixture
def foreign(place: Remote) -> ForeignClient:
    return ForeignClient(place.open())


def sharded(a: IndexMachine) -> IndexMachine:
    a.index.migrate()
    a.pull()
    a.cost()
    return a


# What a sync costs that has nothing to do ---------------------------------------------------------


def test_a_base_that_never_agreed_is_not_unchanged(machine: Open) -> None:
    assert not machine().index.is_unchanged()


def test_nothing_new_on_version_1_costs_one_request_without_a_body(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    b.pull()
    for one in (a, b):
        one.cost()
        assert one.index.is_unchanged()
        assert one.cost() == ({"get": 1}, 0, 0)


def test_nothing_new_on_version_2_costs_one_request_without_a_body(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    sharded(a)
    a.commit({raw_rel("m", 2): "y"})
    b.pull()
    for one in (a, b):
        one.cost()
        assert one.index.is_unchanged()
        assert one.cost() == ({"get": 1}, 0, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_of_somebody_else_is_a_change(machine: Open, version: int) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    if version == 2:
        a.index.migrate()
    b.pull()
    a.pull()
    b.commit({raw_rel("n"): "y"})
    assert not a.index.is_unchanged()
    assert a.pull() == [shard_of("n")]
    assert a.index.is_unchanged()


def test_what_the_probe_was_told_is_not_asked_again(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    sharded(a)
    b.pull()
    b.commit({raw_rel("m", 2): "y"})
    assert not a.index.is_unchanged()
    assert a.index.refresh().commit_seq == 2
    assert a.pull() == [shard_of("m")]
    assert a.requests() == {"get": 2}  # _meta.json and one shard


def test_a_monolith_only_client_is_noticed_within_a_minute(
    machine: Open, foreign: ForeignClient, clock: FakeClock
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    foreign.commit_monolith_only(n="y")
    assert a.index.is_unchanged()
    clock.advance(seconds=61)
    assert not a.index.is_unchanged()
    a.pull()
    assert a.has() == holding(m="x", n="y")


def test_once_seen_such_a_client_is_looked_for_every_time(
    machine: Open, foreign: ForeignClient, clock: FakeClock
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    foreign.commit_monolith_only(n="y")
    clock.advance(seconds=61)
    a.pull()
    a.cost()
    assert a.index.is_unchanged()
    assert a.requests() == {"get": 1, "head": 1}
    foreign.commit_monolith_only(n="z")
    assert not a.index.is_unchanged()


def test_a_remote_with_a_monolith_alone_is_probed_too(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    foreign.commit_monolith_only(m="x")
    a.pull()
    a.cost()
    assert a.index.is_unchanged()
    assert a.requests() == {"get": 1, "head": 1}
    foreign.commit_monolith_only(m="y")
    assert not a.index.is_unchanged()
    a.pull()
    assert a.has() == holding(m="y")


def test_h1_a_migration_by_others_is_noticed_though_the_monolith_stays(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    foreign.commit_monolith_only(m="x")
    a.pull()
    assert a.index.is_unchanged()
    foreign.migrate()
    foreign.commit_v2(m="y")
    assert not a.index.is_unchanged()
    a.pull()
    assert a.has() == holding(m="y")
    assert a.base.fact("monolith_etag") is None


def test_h1_on_version_2_the_monolith_is_never_asked_for(
    machine: Open, foreign: ForeignClient, clock: FakeClock
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    sharded(a)
    foreign.spoil(MONOLITH_KEY)
    clock.advance(days=1)
    assert a.index.is_unchanged()
    foreign.commit_v2(m="y")
    assert not a.index.is_unchanged()
    a.pull()
    a.commit({raw_rel("n"): "z"})
    assert a.has() == holding(m="y", n="z")


def test_h74_a_lower_commit_number_is_a_change(machine: Open, foreign: ForeignClient) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    sharded(a)
    a.commit({raw_rel("m", 2): "y"})
    foreign.write(META_KEY, {"version": 2, "partitions": [shard_of("m")], "commitSeq": 1})
    assert not a.index.is_unchanged()
    assert a.index.refresh().commit_seq == 1


def test_h51_the_etag_of_a_multipart_upload_proves_nothing(
    machine: Open, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    info = a.store.head(MONOLITH_KEY)
    etag = f"{'0' * 32}-2"
    monkeypatch.setattr(a.store, "head", lambda _: info._replace(etag=etag))
    state = json.dumps([1, a.base.fact("meta_etag"), etag])
    a.base.apply(facts={"agreed": f"0 {state}", "monolith_checked": None})
    assert not a.index.is_unchanged()


def test_h21_h22_an_error_is_never_an_answer(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})

    def down(*_: object) -> Fetched:
        raise StoreUnreachableError("503", hint="Wait.")

    monkeypatch.setattr(a.store, "get", down)
    monkeypatch.setattr(a.store, "get_if_changed", down)
    for ask in (a.index.is_unchanged, a.index.refresh, a.pull):
        with pytest.raises(StoreUnreachableError):
            ask()
    assert a.has() == holding(m="x")


def test_h65_a_refusal_is_not_an_absence(machine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    a = machine()

    def refuse(*_: object) -> Fetched:
        raise StorePermissionError("403", hint="Ask for the right to list.")

    monkeypatch.setattr(a.store, "get", refuse)
    with pytest.raises(StorePermissionError):
        a.index.view(["_root"])


# What a pull costs and brings ---------------------------------------------------------------------


def test_only_changed_shards_are_read_on_version_1(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    b.pull()
    a.commit({raw_rel("m3"): "y"})
    b.cost()
    assert b.pull() == [shard_of("m3")]
    assert b.requests() == {"get": 2, "head": 1}  # _meta.json and a shard; which monolith it is
    assert b.has() == a.has()


def test_only_changed_shards_are_read_on_version_2(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    sharded(a)
    b.pull()
    a.commit({raw_rel("m3"): "y"})
    b.cost()
    assert b.pull() == [shard_of("m3")]
    assert b.requests() == {"get": 2}
    assert b.has() == a.has()


def test_the_first_pull_from_version_1_reads_the_monolith_and_no_shard(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    assert len(b.pull()) == 20
    assert b.requests() == {"get": 2, "head": 1}
    assert b.has() == a.has()
    a.commit({raw_rel("m3"): "y"})
    assert b.pull() == [shard_of("m3")]


@pytest.mark.parametrize("version", [1, 2])
def test_our_own_commit_leaves_nothing_to_pull(machine: Open, version: int) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    if version == 2:
        sharded(a)
    a.commit({raw_rel("m", 2): "y", raw_rel("n"): "z"})
    assert a.index.is_unchanged()
    assert a.pull() == []


@pytest.mark.parametrize("version", [1, 2])
def test_our_commit_does_not_hide_what_others_committed_before(machine: Open, version: int) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    if version == 2:
        a.index.migrate()
    b.pull()
    b.commit({raw_rel("m", 2): "theirs", raw_rel("n"): "theirs"})
    a.commit({raw_rel("m", 3): "ours"})
    assert not a.index.is_unchanged()
    a.pull()
    b.pull()
    assert a.has() == b.has()
    assert len(a.has()) == 4
    assert a.index.is_unchanged()


@pytest.mark.parametrize("version", [1, 2])
def test_our_commit_does_not_hide_what_others_committed_elsewhere(
    machine: Open, version: int
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    if version == 2:
        a.index.migrate()
    b.pull()
    b.commit({raw_rel("n"): "theirs"})
    a.commit({raw_rel("m", 2): "ours"})
    assert not a.index.is_unchanged()
    assert a.pull() == [shard_of("n")]
    assert a.index.is_unchanged()


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_that_is_gone_is_told_once(machine: Open, version: int) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        a.index.migrate()
    b.pull()
    a.pull()
    a.commit(removals=[raw_rel("m")])
    assert b.pull() == [shard_of("m")]
    assert b.has() == holding(n="y")
    a.commit({raw_rel("n"): "z"})
    assert b.pull() == [shard_of("n")]
    a.commit({raw_rel("m"): "again"})
    b.pull()
    assert b.has() == a.has() == holding(m="again", n="z")


@pytest.mark.parametrize("version", [1, 2])
def test_everything_yields_what_the_base_agrees_with_too(machine: Open, version: int) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        sharded(a)
    assert a.pull() == []
    assert sorted(a.pull(everything=True)) == [shard_of("m"), shard_of("n")]


@pytest.mark.parametrize("version", [1, 2])
def test_a_pull_that_is_broken_off_is_not_an_agreement(machine: Open, version: int) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        a.index.migrate()
    slices = b.index.changes()
    next(slices)
    assert b.index.agreed() == {}
    slices.close()  # type: ignore[attr-defined]  # it is a generator
    assert not b.index.is_unchanged()
    assert len(b.pull()) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_partitions_to_be_read_again_come_again(machine: Open, version: int) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        sharded(a)
    a.pull(scope("t/u/m"))
    a.index.read_again([shard_of("m")])
    assert not a.index.is_unchanged()
    assert not a.index.is_unchanged(scope("t/u/m"))
    assert a.pull() == [shard_of("m")]
    assert a.index.is_unchanged()


def test_a_namespace_has_an_index_of_its_own(machine: Open, place: Remote) -> None:
    a, b, solo = machine("a", "team"), machine("b", "team"), machine("c")
    a.commit({raw_rel("m"): "x"})
    assert ForeignClient(place.open(), "team").hashes() == holding(m="x")
    solo.commit({raw_rel("n"): "y"})
    b.pull()
    assert b.has() == holding(m="x")


# Scopes -------------------------------------------------------------------------------------------

MODEL_FILES = {
    raw_rel("m"): "raw",
    "data/t/u/m/name/latest": "1",
    "outputs/t/u/run/1.yaml": "output",
    "definitions-evaluated/t/u/d.yaml": "definition",
}


@pytest.mark.parametrize("version", [1, 2])
def test_h3_a_scoped_pull_brings_everything_of_a_model(machine: Open, version: int) -> None:
    a, b = machine("a"), machine("b")
    a.commit({**MODEL_FILES, raw_rel("n"): "other", "logs/x": "log"})
    if version == 2:
        a.index.migrate()
    b.pull(scope("t/u/m"))
    assert b.has() == {rel: digest(content) for rel, content in sorted(MODEL_FILES.items())}
    assert b.index.is_unchanged(scope("t/u/m"))
    assert not b.index.is_unchanged()
    b.pull()
    assert b.has() == a.has()
    assert b.index.is_unchanged()


def test_a_scoped_pull_on_version_1_leaves_the_monolith_alone(machine: Open) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    assert b.pull(scope("t/u/m3")) == [shard_of("m3")]
    assert b.requests() == {"get": 2, "head": 1}
    assert not (b.cache / MONOLITH_KEY).exists()


def test_h2_a_model_without_a_shard_on_version_2_has_no_data(
    machine: Open, foreign: ForeignClient
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    a.index.migrate()
    foreign.commit_v2(m=None)
    b.pull(scope("t/u/m"))
    assert b.has() == {}
    assert b.base.fact("monolith_etag") is None
    foreign.commit_v2(m="z")
    assert not b.index.is_unchanged(scope("t/u/m"))
    b.pull(scope("t/u/m"))
    assert b.has() == holding(m="z")


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_scope_brought_and_is_gone_is_missed_by_the_whole(
    machine: Open, version: int
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        sharded(a)
    b.pull(scope("t/u/m"))
    a.commit(removals=[raw_rel("m")])
    b.pull()
    assert b.has() == holding(n="y")


@pytest.mark.parametrize("version", [1, 2])
def test_a_commit_in_a_scope_leaves_the_scope_with_nothing_to_pull(
    machine: Open, version: int
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    if version == 2:
        a.index.migrate()
    model = scope("t/u/m")
    b.pull(model)
    b.commit({raw_rel("m", 2): "z"}, scope=model)
    assert b.index.is_unchanged(model)
    assert b.pull(model) == []
    b.pull()
    a.pull()
    assert a.has() == b.has()


# Shards that are not what they should be ----------------------------------------------------------


def test_h35_a_stale_shard_is_not_believed_on_version_1(
    machine: Open, foreign: ForeignClient
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    b.pull()
    a.commit({raw_rel("m"): "y", raw_rel("n"): "z"})
    foreign.write_shard(shard_of("m"), {raw_rel("m"): foreign_entry(raw_rel("m"), "stale")})
    b.pull(scope("t/u/m"))
    assert b.has() == holding(m="y")
    b.pull()
    assert b.has() == holding(m="y", n="z")


@pytest.mark.parametrize("harm", ["remove", "spoil"])
def test_a_lost_or_damaged_shard_does_no_harm_on_version_1(
    machine: Open, foreign: ForeignClient, harm: str
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "z"})
    b.pull()
    a.commit({raw_rel("m"): "y"})
    getattr(foreign, harm)(shard_key(shard_of("m")))
    b.pull()
    assert b.has() == holding(m="y", n="z")
    assert b.index.damage == []


def test_commits_of_other_clients_are_read_from_the_monolith(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    foreign.commit_v1(m="theirs", o="theirs", n=None)
    a.pull()
    assert a.has() == holding(m="theirs", o="theirs")
    assert a.index.is_unchanged()


def test_commits_of_other_clients_are_read_from_their_shards_on_version_2(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel(f"m{number}"): "x" for number in range(20)})
    sharded(a)
    foreign.commit_v2(m3="theirs", m4=None, new="theirs")
    assert sorted(a.pull()) == [shard_of("m3"), shard_of("m4"), shard_of("new")]
    # `_meta.json`, two shards, and the list of origins, because they left that out.
    assert a.requests() == {"get": 4, "list": 1}
    assert a.index.is_unchanged()


def test_h55_the_local_copy_is_used_only_if_the_remote_says_so(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    foreign.commit_monolith_only(m="x")
    a.pull()
    foreign.commit_monolith_only(m="y")
    a.cost()
    view = a.index.view([shard_of("m")])
    assert view.entry(raw_rel("m")) == entry("y")


def test_an_unchanged_monolith_is_not_transferred_again(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    foreign.commit_monolith_only(**{f"m{number}": "x" for number in range(50)})
    a.pull()
    a.cost()
    a.index.view([shard_of("m1")])
    assert a.cost().bytes_received == 0


def test_a_local_copy_that_others_rewrote_is_fetched_again(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    foreign.commit_monolith_only(m="x")
    a.pull()
    copy = a.cache / MONOLITH_KEY
    copy.write_text(json.dumps({"version": 1, "entries": {}}))
    assert a.index.view([shard_of("m")]).entry(raw_rel("m")) == entry("x")
    assert json.loads(copy.read_bytes()) == foreign.monolith()


# Entries that must not pass -----------------------------------------------------------------------

INTERNAL = ("data/t/u/m/.lock", "_catalog.db-wal", ".datastore-sync-state.json")
HOSTILE = ("../outside", "/etc/passwd", "data/../../x", "data//x")


@pytest.mark.parametrize("version", [1, 2])
def test_h26_bookkeeping_and_hostile_paths_are_taken_out(
    machine: Open, foreign: ForeignClient, version: int
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    bad = {rel: foreign_entry(rel, "bad") for rel in (*INTERNAL, *HOSTILE)}
    if version == 2:
        a.index.migrate()
        foreign.write_shard(shard_of("m"), {**foreign.entries(), **bad})
    else:
        monolith = foreign.monolith()
        foreign.write(MONOLITH_KEY, {**monolith, "entries": {**monolith["entries"], **bad}})
    b.pull()
    assert b.has() == holding(m="x")
    assert sorted(one.rel for one in b.index.damage) == sorted(HOSTILE)
    b.commit({raw_rel("m", 2): "y"})
    assert foreign.hashes() == b.has()


@settings(max_examples=500)
@given(st.lists(st.sampled_from([*"._/a\\\0", "_index", "_control", ".lock"])).map("".join))
def test_h26_a_path_that_is_let_through_at_a_glance_is_payload(rel: str) -> None:
    names = Names("/cache", "", Routing())
    if is_plain(rel):
        assert names.local(rel) == f"/cache/{rel}"
        assert not is_internal(rel)


@pytest.mark.parametrize(
    "rel", [*INTERNAL, *HOSTILE, "_catalog.db", "_index/x", "data/_catalog.db-x", ".locks/a", ""]
)
def test_h26_bookkeeping_is_never_let_through_at_a_glance(rel: str) -> None:
    assert not is_plain(rel)


def test_an_entry_that_cannot_be_understood_stays_as_it_is(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    monolith = foreign.monolith()
    monolith["entries"][raw_rel("n")] = {"size": "huge", "from": "the future"}
    foreign.write(MONOLITH_KEY, monolith)
    view = a.index.view([shard_of("m"), shard_of("n")])
    with pytest.raises(IndexDamagedError, match=raw_rel("n")):
        view.entry(raw_rel("n"))
    a.index.commit(view, {raw_rel("m"): entry("y")}, ())
    assert foreign.entries()[raw_rel("n")] == {"size": "huge", "from": "the future"}


def test_members_that_we_do_not_know_survive(machine: Open, foreign: ForeignClient) -> None:
    a = machine()
    monolith = {"version": 1, "lastPulled": UPLOADED, "entries": {}, "future": {"a": 1}}
    monolith["entries"] = {raw_rel("m"): {**foreign_entry(raw_rel("m"), "x"), "mode": 420}}
    foreign.write(MONOLITH_KEY, monolith)
    foreign.write(META_KEY, {"version": 1, "partitions": [], "lastCompacted": UPLOADED})
    a.commit({raw_rel("m"): "y"})
    assert foreign.monolith()["future"] == {"a": 1}
    assert foreign.entries()[raw_rel("m")]["mode"] == 420
    assert foreign.meta()["lastCompacted"] == UPLOADED


def test_what_the_configuration_excludes_here_stays_in_the_index(
    place: Remote, machine: Open, tmp_path: Path, foreign: ForeignClient
) -> None:
    machine().commit({"logs/a": "x"})
    b = IndexMachine(tmp_path / "b", place.open(), routing=Routing(exclude=["logs/**"]))
    b.commit({raw_rel("m"): "y"})
    assert sorted(foreign.entries()) == [raw_rel("m"), "logs/a"]


def test_a_remote_of_a_newer_program_is_refused(machine: Open, foreign: ForeignClient) -> None:
    foreign.write(META_KEY, {"version": 3, "partitions": []})
    with pytest.raises(NewerFormatError, match=r"_meta.json was written by a newer version"):
        machine().index.refresh()


@pytest.mark.parametrize("version", [1, 2])
def test_a_view_knows_what_is_below_a_path(machine: Open, version: int) -> None:
    a = machine()
    rels = [f"data/t/u/m/{rest}/raw" for rest in ("n/1", "n/10", "n0/1", "n-/1")]
    a.commit(dict.fromkeys(rels, "x"))
    if version == 2:
        a.index.migrate()
    view = a.index.view([shard_of("m")])
    assert view.version == version
    assert list(view.entries_below("data/t/u/m/n")) == rels[:2]
    assert list(view.entries_below(rels[0])) == rels[:1]


def test_a_view_of_version_2_does_not_answer_for_other_partitions(machine: Open) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    a.index.migrate()
    with pytest.raises(KeyError):
        a.index.view([shard_of("m")]).entry(raw_rel("n"))


def test_a_read_only_cache_costs_a_notice_only(
    machine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    (b.cache / MONOLITH_KEY).mkdir()
    b.pull()
    assert b.has() == holding(m="x")
    assert "copy of the index" in caplog.text


def test_stores_without_conditions_are_written_plainly(tmp_path: Path) -> None:
    class Plain(MemoryStore):
        capabilities = MemoryStore.capabilities._replace(
            conditional_create=False, conditional_update=False, conditional_delete=False
        )

        def put_if_absent(self, key: str, body: bytes | BinaryIO) -> Written:
            raise AssertionError

        def put_if_match(self, key: str, body: bytes | BinaryIO, token: str) -> Written:
            raise AssertionError

    a = IndexMachine(tmp_path / "a", Plain())
    a.commit({raw_rel("m"): "x"})
    a.commit({raw_rel("m"): "y"})
    a.index.migrate()
    a.pull()
    a.commit({raw_rel("m"): "z"})
    a.commit(removals=[raw_rel("m")])
    assert a.has() == {}
    assert a.index.is_unchanged()
