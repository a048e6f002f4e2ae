"""A remote index with parts missing or damaged, one that is not there at all, and migration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from swampstore.index import changes as merging
from swampstore.index import unversioned
from swampstore.index.errors import IndexDamagedError, IndexMovedError, MadeAnewError
from swampstore.index.format import decode_entry
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, shard_key
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Fetched, Written
from tests.conftest import FakeClock
from tests.support.index_machine import (
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
GARBAGE = b"[" * 100_000


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest) -> Remote:
    remote: Remote = request.getfixturevalue(f"{request.param}_remote")
    return remote


@pytest.fixture
def machine(place: Remote, tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
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


@pytest.fixture
def sharded(machine: Open, foreign: ForeignClient) -> IndexMachine:
    """A machine that agrees with a version 2 remote, whose files are there."""
    a = machine()
    a.commit({raw_rel("m"): "x", raw_rel("n"): "x"})
    a.index.migrate()
    a.commit({raw_rel("m", 2): "y"})
    for rel, content in ((raw_rel("m"), "x"), (raw_rel("n"), "x"), (raw_rel("m", 2), "y")):
        foreign.upload(rel, content)
    assert a.index.is_unchanged()
    return a


def lose(foreign: ForeignClient, key: str, harm: str) -> None:
    if harm == "remove":
        foreign.remove(key)
    else:
        foreign.spoil(key, GARBAGE)


HARMS = pytest.mark.parametrize("harm", ["remove", "spoil"])


# _meta.json ---------------------------------------------------------------------------------------


@HARMS
def test_h36_version_2_without_meta_is_read_from_its_shards(
    sharded: IndexMachine, foreign: ForeignClient, harm: str
) -> None:
    lose(foreign, META_KEY, harm)
    assert not sharded.index.is_unchanged()
    state = sharded.index.refresh()
    assert (state.version, state.commit_seq) == (2, 2)
    assert sharded.pull() == []
    assert len(sharded.has()) == 3
    assert not sharded.index.is_unchanged()


@HARMS
def test_h36_a_machine_that_never_saw_the_remote_knows_it_by_its_shards(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient, harm: str
) -> None:
    lose(foreign, META_KEY, harm)
    b = machine("b")
    assert b.index.refresh().version == 2
    b.pull()
    assert b.has() == sharded.has()


@HARMS
def test_h36_the_next_commit_writes_meta_again_and_never_downgrades(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient, harm: str
) -> None:
    for seq in range(3, 8):
        assert sharded.commit({raw_rel("m", seq): "z"}).commit_seq == seq
    origin = foreign.meta()["swampstore"]["origin"]
    lose(foreign, META_KEY, harm)
    b = machine("b")  # it knows of no commit number but those in the entries
    b.commit({raw_rel("o"): "z"})
    assert foreign.meta()["version"] == 2
    assert foreign.meta()["commitSeq"] == 8
    sharded.pull()
    assert sharded.has() == foreign.hashes()
    assert len(sharded.has()) == 9
    # A shard may be lost as well: whoever knew the remote before starts over.
    assert foreign.meta()["swampstore"]["origin"] != origin


@HARMS
def test_h36_a_machine_that_saw_the_last_commit_writes_meta_again_as_it_was(
    sharded: IndexMachine, foreign: ForeignClient, harm: str
) -> None:
    before = foreign.meta()
    lose(foreign, META_KEY, harm)
    sharded.commit({raw_rel("o"): "z"})
    after = foreign.meta()
    assert after["swampstore"]["origin"] == before["swampstore"]["origin"]
    assert after["commitSeq"] == before["commitSeq"] + 1
    assert {*after["partitions"]} == {*before["partitions"], shard_of("o")}


@HARMS
def test_a_damaged_meta_of_version_1_is_as_good_as_none(
    machine: Open, foreign: ForeignClient, harm: str
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    lose(foreign, META_KEY, harm)
    assert b.index.refresh().version == 1
    b.pull()
    assert b.has() == holding(m="x")
    a.commit({raw_rel("n"): "y"})
    assert foreign.meta()["version"] == 1
    b.pull()
    assert b.has() == holding(m="x", n="y")
    assert b.index.is_unchanged()


def test_shards_as_young_as_the_monolith_do_not_make_version_2(
    machine: Open, foreign: ForeignClient
) -> None:
    # A first commit of another client that was stopped before it wrote _meta.json.
    foreign.commit_v1(m="x", n="y")
    foreign.remove(META_KEY)
    a = machine()
    assert a.index.refresh().version == 1
    a.commit({raw_rel("o"): "z"})
    assert foreign.meta()["version"] == 1
    assert foreign.hashes() == holding(m="x", n="y", o="z")


def test_h36_commit_numbers_in_entries_are_a_sign_of_version_2(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x", raw_rel("n"): "x"})
    a.index.migrate()
    a.commit({raw_rel("m"): "x"}, [raw_rel("n")])  # nothing that the monolith does not have
    foreign.remove(META_KEY)
    b = machine("b")
    assert b.index.refresh().version == 2
    b.pull()
    assert b.has() == holding(m="x")


@HARMS
def test_h36_commit_numbers_tell_more_than_the_time_of_the_monolith(
    sharded: IndexMachine,
    machine: Open,
    foreign: ForeignClient,
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unversioned, "_PRECISION", timedelta(0))
    lose(foreign, META_KEY, harm)
    foreign.commit_monolith_only(z="of a client that knows nothing else")
    b = machine("b")
    assert b.index.refresh().version == 2
    b.pull()
    assert b.has() == sharded.has()
    b.commit({raw_rel("o"): "z"})
    assert foreign.meta()["version"] == 2
    assert foreign.hashes() == {**sharded.has(), **holding(o="z")}


def test_h36_a_commit_number_stays_when_all_entries_that_have_it_are_gone(
    machine: Open, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unversioned, "_PRECISION", timedelta(0))
    a = machine()
    a.commit({raw_rel("m"): "x", raw_rel("m", 2): "x"})
    a.index.migrate()
    a.commit(removals=[raw_rel("m", 2)])
    foreign.remove(META_KEY)
    foreign.commit_monolith_only(z="of a client that knows nothing else")
    b = machine("b")
    b.pull()
    assert b.has() == holding(m="x")
    assert b.commit({raw_rel("m"): "y"}).commit_seq == 3


@HARMS
@pytest.mark.parametrize("is_numbered", [True, False])
def test_h36_a_fence_leaves_version_2_what_it_is(
    machine: Open,
    foreign: ForeignClient,
    harm: str,
    is_numbered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unversioned, "_PRECISION", timedelta(0))
    foreign.commit_v1(m="x")
    # A directory gives each file a time of its own within a tick and a millisecond: what is written
    # right after may look older, which is why nobody but this test asks for so much precision.
    time.sleep(0.02)
    foreign.migrate()
    foreign.commit_v2(n="y")
    if is_numbered:
        machine().commit({raw_rel("o"): "z"})
    hashes, frozen = foreign.hashes(), foreign.monolith()
    lose(foreign, META_KEY, harm)
    machine("thief").index.fence()
    assert foreign.monolith() == frozen
    b = machine("b")
    assert b.index.refresh().version == 2
    b.pull()
    assert b.has() == hashes


def test_h36_a_fence_gives_version_2_its_lost_meta_back(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient
) -> None:
    hashes = foreign.hashes()
    foreign.remove(META_KEY)
    machine("thief").index.fence()
    assert foreign.meta()["version"] == 2
    assert foreign.meta()["commitSeq"] == 3
    assert foreign.hashes() == hashes
    sharded.pull()
    assert sharded.has() == hashes


def test_a_lost_meta_and_an_unreachable_store_are_two_things(
    sharded: IndexMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> Fetched:
        raise StoreUnreachableError("503", hint="Wait.")

    monkeypatch.setattr(sharded.store, "get_if_changed", down)
    with pytest.raises(StoreUnreachableError):
        sharded.index.refresh()
    assert sharded.base.fact("index_version") == "2"


def test_all_of_the_index_of_version_2_lost_is_found_again_from_the_files(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient
) -> None:
    for key in (META_KEY, *(shard_key(shard_of(model)) for model in "mn")):
        foreign.remove(key)
    assert sharded.index.refresh().version == 2
    sharded.pull()
    assert len(sharded.has()) == 3
    with pytest.raises(
        MadeAnewError
    ):  # its base has to start over before it writes what it guesses
        sharded.index.migrate()
    machine("fresh").index.migrate()
    assert foreign.meta()["version"] == 2
    assert sorted(foreign.entries()) == sorted(sharded.has())


def test_all_shards_and_meta_lost_is_version_2_for_a_machine_that_never_saw_it(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient
) -> None:
    sharded.commit(removals=[raw_rel("n")])
    foreign.remove(raw_rel("n"))
    for key in (META_KEY, *(shard_key(shard_of(model)) for model in "mn")):
        foreign.remove(key)
    fresh = machine("fresh")
    assert fresh.index.refresh().version == 2
    fresh.pull()
    # The monolith still names what was deleted since, and does not name what was saved since.
    assert sorted(fresh.has()) == [raw_rel("m"), raw_rel("m", 2)]


def save_version(foreign: ForeignClient, model: str, number: int, content: str) -> list[str]:
    raw = raw_rel(model, number)
    metadata = f"{raw.removesuffix('/raw')}/metadata.yaml"
    foreign.upload(raw, content)
    foreign.upload(metadata, f"of {content}")
    return [metadata, raw]


def test_where_other_clients_made_version_2_and_all_of_it_is_lost_objects_count(
    machine: Open, foreign: ForeignClient
) -> None:
    """Nothing tells that the monolith is not the truth but what it does not name."""
    foreign.commit_v1(m="x", n="y")
    foreign.migrate()
    foreign.remove(raw_rel("n"))
    saved = save_version(foreign, "m", 1, "x") + save_version(foreign, "m", 2, "newer")
    for key in (META_KEY, *(shard_key(shard_of(model)) for model in "mn")):
        foreign.remove(key)
    fresh = machine("fresh")
    fresh.pull()
    assert sorted(fresh.has()) == sorted(saved)
    fresh.commit({raw_rel("o"): "z"})
    assert sorted(foreign.entries()) == sorted([*saved, raw_rel("o")])
    b = machine("b")
    b.pull()
    assert sorted(b.has()) == sorted([*saved, raw_rel("o")])


def test_a_doubtful_monolith_is_replaced_before_meta_says_that_it_counts(
    machine: Open, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.commit_monolith_only(n="y")
    saved = save_version(foreign, "m", 1, "x")
    fresh = machine("fresh")

    def down(*_: object, **__: object) -> Written:
        raise StoreUnreachableError("503", hint="Wait.")

    with monkeypatch.context() as context:
        context.setattr(fresh.index._documents, "put_meta", down)
        with pytest.raises(StoreUnreachableError):
            fresh.commit({raw_rel("o"): "z"})
    assert foreign.meta() is None
    assert {*saved, raw_rel("o")} <= foreign.entries().keys()


def test_version_2_without_meta_names_versions_that_only_the_monolith_has(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient
) -> None:
    saved = save_version(foreign, "z", 1, "of a client that knows nothing else")
    foreign.commit_monolith_only(z="of a client that knows nothing else")
    foreign.remove(META_KEY)
    fresh = machine("fresh")
    fresh.pull()
    assert sorted(fresh.has()) == sorted([*sharded.has(), *saved])
    fresh.commit({raw_rel("o"): "z"})
    assert {*saved, *sharded.has()} < foreign.entries().keys()


# Shards on version 2 ------------------------------------------------------------------------------


@HARMS
def test_a_lost_shard_is_made_anew_from_the_files_and_deletes_nothing(
    sharded: IndexMachine, foreign: ForeignClient, harm: str
) -> None:
    sharded.base.drop_shards([shard_of("m")])  # it did not follow the last commit
    foreign.remove(raw_rel("m"))  # not there any more, but that proves nothing now
    lose(foreign, shard_key(shard_of("m")), harm)
    slices = list(sharded.index.changes(everything=True))
    [piece] = [one for one in slices if one.partition == shard_of("m")]
    assert not piece.complete
    assert piece.etag is None
    assert list(piece.entries) == [raw_rel("m", 2)]
    assert sharded.index.agreed() == {}
    assert [one.rel for one in sharded.index.damage] == [shard_key(shard_of("m"))]


@HARMS
def test_a_lost_shard_is_what_a_base_that_followed_it_knows(
    sharded: IndexMachine, foreign: ForeignClient, harm: str
) -> None:
    origin, hashes = foreign.meta()["swampstore"]["origin"], foreign.hashes()
    foreign.remove(raw_rel("m"))  # its content is lost, and that it was there is not
    lose(foreign, shard_key(shard_of("m")), harm)
    sharded.commit({raw_rel("m", 3): "z"})
    assert foreign.hashes() == {**hashes, raw_rel("m", 3): digest("z")}
    assert foreign.meta()["swampstore"]["origin"] == origin


@HARMS
def test_whoever_guesses_a_lost_shard_says_so_before_writing_it(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient, harm: str
) -> None:
    foreign.remove(raw_rel("m"))
    origin = foreign.meta()["swampstore"]["origin"]
    lose(foreign, shard_key(shard_of("m")), harm)
    machine("b").commit({raw_rel("m", 3): "z"})
    assert foreign.meta()["swampstore"]["origin"] != origin
    before = sharded.has()
    sharded.pull()
    assert before.keys() <= sharded.has().keys()


@pytest.mark.parametrize("lost", [shard_key(shard_of("m")), META_KEY])
def test_a_shard_that_is_lost_during_a_commit_is_recovered_first(
    sharded: IndexMachine, foreign: ForeignClient, lost: str
) -> None:
    hashes = foreign.hashes()
    view = sharded.index.view({shard_of("m")})
    foreign.remove(shard_key(shard_of("m")))
    if lost == META_KEY:
        foreign.remove(META_KEY)
    with pytest.raises(IndexMovedError):
        sharded.index.commit(view, {raw_rel("m", 3): entry("z")}, ())
    sharded.commit({raw_rel("m", 3): "z"})
    assert foreign.hashes().keys() == {**hashes, raw_rel("m", 3): ""}.keys()


@HARMS
def test_the_next_commit_writes_a_lost_shard_again(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient, harm: str
) -> None:
    lose(foreign, shard_key(shard_of("m")), harm)
    sharded.commit({raw_rel("m", 3): "z"})
    assert sorted(foreign.entries()) == [
        raw_rel("m", 1),
        raw_rel("m", 2),
        raw_rel("m", 3),
        raw_rel("n"),
    ]
    assert not sharded.index.is_unchanged()
    b = machine("b")
    b.pull()
    assert b.index.damage == []
    assert sorted(b.has()) == sorted(foreign.entries())


@HARMS
def test_a_machine_that_restores_a_lost_shard_still_pulls_it(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient, harm: str
) -> None:
    lose(foreign, shard_key(shard_of("m")), harm)
    b = machine("b")
    b.commit({raw_rel("m", 3): "z"})
    b.pull()
    assert sorted(b.has()) == sorted(foreign.entries())
    assert len(b.has()) == 4


def test_files_that_the_base_knows_get_their_hashes_back(
    sharded: IndexMachine, foreign: ForeignClient
) -> None:
    etag = sharded.store.head(raw_rel("m")).etag
    [known] = sharded.base.get_many([raw_rel("m")]).values()
    sharded.base.apply(known=[known._replace(etag=etag)])
    sharded.base.drop_shards([shard_of("m")])  # it did not follow the last commit
    foreign.remove(shard_key(shard_of("m")))
    view = sharded.index.view([shard_of("m")])
    assert view.entry(raw_rel("m")) == entry("x")
    unknown = view.entry(raw_rel("m", 2))
    assert unknown is not None
    assert unknown.sha256 is None


def test_h21_a_transient_error_on_a_shard_is_raised(
    sharded: IndexMachine, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = sharded.store.get

    def fail(key: str) -> Fetched:
        if key == shard_key(shard_of("m")):
            raise StoreUnreachableError("503", hint="Wait.")
        return get(key)

    monkeypatch.setattr(sharded.store, "get", fail)
    with pytest.raises(StoreUnreachableError):
        sharded.pull(everything=True)
    with pytest.raises(StoreUnreachableError):
        sharded.commit({raw_rel("m"): "z"})
    assert foreign.meta()["version"] == 2
    assert len(sharded.has()) == 3


def test_a_shard_that_vanishes_with_its_partition_while_we_read_is_no_damage(
    sharded: IndexMachine, foreign: ForeignClient, machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = machine("b")
    b.pull()
    foreign.commit_v2(n="changed")
    b.index.refresh()
    foreign.commit_v2(n=None)
    b.pull()
    assert b.index.damage == []
    assert raw_rel("n") not in b.has()


def test_an_entry_in_the_wrong_shard_is_reported_and_migration_moves_it(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient
) -> None:
    rel = "workflows-evaluated/w/x.yaml"
    stray = {**foreign_entry(rel, "z"), "mode": 420}
    foreign.write_shard("workflows-evaluated--w", {rel: stray})
    meta = foreign.meta()
    meta["partitions"].append("workflows-evaluated--w")
    foreign.write(META_KEY, meta)
    sharded.pull()
    assert [one.rel for one in sharded.index.damage] == [rel]
    assert sharded.index.migrate().already
    assert foreign.read(shard_key("workflows-evaluated"))["entries"] == {rel: stray}
    b = machine("b")
    b.pull()
    assert b.index.damage == []
    assert b.has()[rel] == digest("z")
    assert len(b.has()) == 4


# No index -----------------------------------------------------------------------------------------


def test_an_empty_remote_does_not_exist_yet(machine: Open) -> None:
    a = machine()
    state = a.index.refresh()
    assert (state.version, state.exists, state.discovered) == (1, False, False)
    assert a.pull() == []
    assert a.index.agreed() == {}


def test_the_first_commit_makes_version_1_and_agrees_with_it(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    assert foreign.meta()["version"] == 1
    assert a.index.is_unchanged()


def test_a_remote_that_was_emptied_deletes_nothing_here(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    for info in list(foreign.store.list()):
        foreign.store.delete(info.key)
    assert not a.index.is_unchanged()
    assert not a.index.refresh().exists
    assert a.pull() == []
    assert a.has() == holding(m="x")
    a.commit({raw_rel("n"): "y"})
    assert not a.index.is_unchanged()


def test_h20_files_without_an_index_are_discovered_and_nothing_is_written(
    machine: Open, foreign: ForeignClient
) -> None:
    foreign.upload(raw_rel("m"), "x")
    foreign.upload("team/.namespace.json", "{}")
    foreign.upload(f"team/{raw_rel('foreign')}", "x")
    foreign.upload(".locks/team.lock", "{}")
    foreign.upload("data/t/u/m/.lock", "{}")
    foreign.upload("secrets/key", "x")
    a = machine()
    state = a.index.refresh()
    assert (state.version, state.exists, state.discovered) == (1, True, True)
    [piece] = a.index.changes()
    assert (piece.partition, piece.complete, piece.etag) == (shard_of("m"), False, None)
    found = decode_entry(raw_rel("m"), piece.entries[raw_rel("m")])
    assert (found.size, found.sha256) == (1, None)
    assert a.index.agreed() == {}
    assert not {"put", "delete"} & a.requests().keys()
    assert foreign.monolith() is None


def test_the_next_commit_writes_what_was_discovered(machine: Open, foreign: ForeignClient) -> None:
    foreign.upload(raw_rel("m"), "x")
    a = machine()
    a.commit({raw_rel("n"): "y"})
    assert sorted(foreign.entries()) == [raw_rel("m"), raw_rel("n")]
    assert not a.index.is_unchanged()
    a.pull()
    assert sorted(a.has()) == [raw_rel("m"), raw_rel("n")]
    assert a.index.is_unchanged()


def test_our_own_uploads_of_an_interrupted_push_are_not_discovered(
    machine: Open, foreign: ForeignClient
) -> None:
    foreign.upload(raw_rel("m"), "x")
    a = machine()
    a.base.note_uploads({raw_rel("m"): (digest("x"), "etag")})
    assert a.index.view([shard_of("m")]).entry(raw_rel("m")) is None
    a.commit({raw_rel("m"): "x"})
    assert foreign.hashes() == holding(m="x")
    assert a.index.is_unchanged()


def test_a_namespace_discovers_its_own_files_only(machine: Open, foreign: ForeignClient) -> None:
    foreign.upload(f"team/{raw_rel('m')}", "x")
    foreign.upload("team/.namespace.json", "{}")
    foreign.upload(raw_rel("n"), "y")
    a = machine("a", "team")
    a.pull()
    assert list(a.has()) == [raw_rel("m")]


@pytest.mark.parametrize("mark", [".namespace.json", MONOLITH_KEY, META_KEY, "_index/data--t.json"])
def test_a_directory_with_a_manifest_or_a_document_of_an_index_is_that_of_another_namespace(
    machine: Open, foreign: ForeignClient, mark: str
) -> None:
    foreign.upload(f"team/{mark}", "{}")
    foreign.upload(f"team/{raw_rel('m')}", "x")
    foreign.upload(raw_rel("n"), "y")
    foreign.upload("data/.namespace.json", "{}")  # no namespace is called that
    a = machine()
    a.pull()
    assert list(a.has()) == [raw_rel("n")]


def test_a_lost_monolith_of_version_1_is_that_of_its_shards(
    machine: Open, foreign: ForeignClient
) -> None:
    a, b = machine("a"), machine("b")
    foreign.upload(raw_rel("m"), "x")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "lost as well"})
    origin = foreign.meta()["swampstore"]["origin"]
    foreign.remove(MONOLITH_KEY)
    b.pull()
    assert sorted(b.has()) == [raw_rel("m"), raw_rel("n")]
    a.commit({raw_rel("o"): "z"})
    assert sorted(foreign.monolith()["entries"]) == [raw_rel(model) for model in "mno"]
    assert foreign.meta()["swampstore"]["origin"] == origin


def test_a_lost_monolith_of_version_1_is_discovered_where_shards_are_lost_too(
    machine: Open, foreign: ForeignClient
) -> None:
    a, b = machine("a"), machine("b")
    foreign.upload(raw_rel("m"), "x")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "lost as well"})
    origin = foreign.meta()["swampstore"]["origin"]
    foreign.remove(MONOLITH_KEY)
    foreign.remove(shard_key(shard_of("n")))
    b.commit({raw_rel("o"): "z"})
    assert sorted(foreign.monolith()["entries"]) == [raw_rel("m"), raw_rel("o")]
    assert foreign.meta()["swampstore"]["origin"] != origin
    a.pull()
    assert sorted(a.has()) == [raw_rel(model) for model in "mno"]


@HARMS
def test_a_lost_monolith_is_made_anew_from_shards_and_files(
    machine: Open, foreign: ForeignClient, harm: str
) -> None:
    a, b = machine("a"), machine("b")
    for model, content in {"m": "x", "n": "y", "o": "z"}.items():
        foreign.upload(raw_rel(model), content)
    foreign.commit_v1(m="x", n="y", o="z")
    foreign.remove(MONOLITH_KEY)
    foreign.remove(shard_key(shard_of("n")))
    lose(foreign, META_KEY, harm)
    assert a.index.refresh().version == 1
    a.pull()
    assert a.has() == {**holding(m="x", o="z"), raw_rel("n"): None}
    a.commit({raw_rel("p"): "new"})
    assert foreign.meta()["version"] == 1
    assert foreign.hashes() == {**a.has(), **holding(p="new")}
    assert sorted(foreign.meta()["partitions"]) == [shard_of(model) for model in "mnop"]
    # Clients that know nothing but the monolith go on, and are followed.
    foreign.commit_monolith_only(n="y", q="theirs")
    b.pull()
    assert b.has() == holding(m="x", n="y", o="z", p="new", q="theirs")


def test_a_machine_that_knows_the_remote_keeps_it_version_1_as_well(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    foreign.upload(raw_rel("m"), "x")
    a.commit({raw_rel("m"): "x"})
    for key in (MONOLITH_KEY, META_KEY):
        foreign.remove(key)
    assert a.pull() == [shard_of("m")]
    a.commit({raw_rel("n"): "y"})
    assert foreign.meta()["version"] == 1
    assert foreign.monolith()["entries"].keys() == holding(m="x", n="y").keys()
    assert foreign.hashes() == a.has() == holding(m="x", n="y")


@pytest.mark.parametrize("knows_it", [True, False])
def test_a_fence_makes_the_lost_index_of_version_1_anew(
    machine: Open, foreign: ForeignClient, knows_it: bool
) -> None:
    thief = machine("thief")
    foreign.upload(raw_rel("m"), "x")
    foreign.commit_v1(m="x")
    if knows_it:
        thief.pull()
    for key in (MONOLITH_KEY, META_KEY):
        foreign.remove(key)
    thief.index.fence()
    assert foreign.meta()["version"] == 1
    assert foreign.hashes() == holding(m="x")


def test_what_a_shard_tells_of_a_file_that_was_written_since_is_not_believed(
    machine: Open, foreign: ForeignClient
) -> None:
    old = {**foreign_entry(raw_rel("m"), "x"), "mode": 420, "commitSeq": 7}
    foreign.upload(raw_rel("m"), "x")
    foreign.upload(raw_rel("m", 2), "x")
    foreign.upload(raw_rel("m", 3), "of another size")
    foreign.write_shard(
        shard_of("m"), {rel: {**old, "key": rel} for rel in (raw_rel("m", n) for n in range(1, 5))}
    )
    foreign.write(META_KEY, {"version": 1, "partitions": [shard_of("m")]})
    time.sleep(0.02)  # more than the clock of any file system needs to go on
    foreign.upload(raw_rel("m", 2), "y")
    a = machine()
    a.pull()
    assert a.has() == {raw_rel("m"): digest("x"), raw_rel("m", 2): None, raw_rel("m", 3): None}
    a.commit({raw_rel("n"): "z"})
    # What other clients put in stays; version 1 has no commit numbers.
    assert foreign.monolith()["entries"][raw_rel("m")] == {
        **foreign_entry(raw_rel("m"), "x"),
        "mode": 420,
    }


def test_h22_a_damaged_monolith_is_never_replaced(machine: Open, foreign: ForeignClient) -> None:
    a = machine()
    foreign.spoil(MONOLITH_KEY, GARBAGE)
    for use in (a.pull, lambda: a.commit({raw_rel("m"): "x"}), a.index.migrate):
        with pytest.raises(IndexDamagedError, match=MONOLITH_KEY):
            use()
    assert foreign.store.get(MONOLITH_KEY).data == GARBAGE


# Migration ----------------------------------------------------------------------------------------

FILES = {
    raw_rel("m"): "x",
    "data/t/u/m/name/latest": "1",
    "outputs/t/u/run/1.yaml": "o",
    "definitions-evaluated/t/n.yaml": "d",
    "workflows-evaluated/w.yaml": "w",
    "root.json": "r",
    "unknown/dir/file": "u",
}


def test_h24_migration_takes_every_entry_along(machine: Open, foreign: ForeignClient) -> None:
    a, b = machine("a"), machine("b")
    a.commit(FILES)
    before = foreign.entries()
    migrated = a.index.migrate()
    assert migrated == (2, len(foreign.meta()["partitions"]), len(FILES), 1, False)
    assert foreign.meta()["commitSeq"] == 1
    assert foreign.entries() == before
    assert a.index.is_unchanged()
    b.pull()
    assert b.has() == a.has()


def test_h1_migration_writes_the_monolith_once_more(
    machine: Open, foreign: ForeignClient, clock: FakeClock
) -> None:
    a = machine()
    a.commit(FILES)
    before = a.store.head(MONOLITH_KEY).etag
    clock.advance(seconds=1)
    a.index.migrate()
    frozen = a.store.head(MONOLITH_KEY).etag
    assert frozen != before
    assert foreign.monolith()["entries"] == foreign.entries()
    a.commit({raw_rel("n"): "y"})
    assert a.store.head(MONOLITH_KEY).etag == frozen


def test_h11_migrating_again_reverts_nothing(sharded: IndexMachine, foreign: ForeignClient) -> None:
    foreign.spoil(MONOLITH_KEY)
    before = foreign.meta(), foreign.entries()
    sharded.cost()
    assert sharded.index.migrate() == (2, 2, 3, 2, True)
    assert (foreign.meta(), foreign.entries()) == before
    assert "put" not in sharded.requests()


@HARMS
def test_h11_migrating_again_heals_a_lost_shard(
    sharded: IndexMachine, machine: Open, foreign: ForeignClient, harm: str
) -> None:
    lose(foreign, shard_key(shard_of("m")), harm)
    assert sharded.index.migrate() == (2, 2, 3, 3, True)
    assert sorted(foreign.entries()) == [raw_rel("m"), raw_rel("m", 2), raw_rel("n")]
    b = machine("b")
    b.pull()
    assert b.index.damage == []
    assert sorted(b.has()) == sorted(foreign.entries())
    sharded.pull()
    assert sharded.index.is_unchanged()


def test_migrating_again_takes_shards_in_that_meta_does_not_name(
    sharded: IndexMachine, foreign: ForeignClient
) -> None:
    foreign.upload(raw_rel("o"), "z")
    foreign.write_shard(shard_of("o"), {raw_rel("o"): foreign_entry(raw_rel("o"), "z")})
    foreign.write_shard("data--empty", {})
    assert sharded.index.migrate() == (2, 3, 4, 3, True)
    assert foreign.meta()["partitions"] == [shard_of("m"), shard_of("n"), shard_of("o")]
    sharded.pull()
    assert sharded.has() == foreign.hashes()


def test_leftover_shards_of_version_1_do_not_come_back_to_life(
    machine: Open, foreign: ForeignClient
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    foreign.write_shard(shard_of("gone"), {raw_rel("gone"): foreign_entry(raw_rel("gone"), "z")})
    a.index.migrate()
    a.commit({raw_rel("gone", 2): "new"})
    assert sorted(foreign.entries()) == [raw_rel("gone", 2), raw_rel("m")]


def test_an_empty_remote_can_be_migrated(machine: Open, foreign: ForeignClient) -> None:
    a, b = machine("a"), machine("b")
    assert a.index.migrate() == (2, 0, 0, 1, False)
    # A commit that began on version 1 must find a monolith that it does not know.
    assert (foreign.monolith() or {})["entries"] == {}
    b.commit({raw_rel("m"): "x"})
    assert foreign.meta()["commitSeq"] == 2
    a.pull()
    assert a.has() == holding(m="x")


def test_migration_waits_for_commits_that_come_in_between(
    machine: Open, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    commits = iter(["n", "o"])
    put = a.store.put_if_match

    def disturbed(key: str, body: bytes, token: str) -> Written:
        written = put(key, body, token)
        if (model := next(commits, None)) is not None:
            b.commit({raw_rel(model): "theirs"})
        return written

    monkeypatch.setattr(a.store, "put_if_match", disturbed)
    assert not a.index.migrate().already
    assert foreign.hashes() == holding(m="x", n="theirs", o="theirs")


def test_migration_takes_along_what_a_monolith_only_client_commits_meanwhile(
    machine: Open, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = machine()
    a.commit({raw_rel("m"): "x"})
    commits = iter(["n"])
    put = a.store.put_if_match

    def disturbed(key: str, body: bytes, token: str) -> Written:
        if (model := next(commits, None)) is not None:
            foreign.commit_monolith_only(**{model: "theirs"})
        return put(key, body, token)

    monkeypatch.setattr(a.store, "put_if_match", disturbed)
    assert not a.index.migrate().already
    assert foreign.hashes() == holding(m="x", n="theirs")


def test_two_migrations_at_once_are_one(
    machine: Open, foreign: ForeignClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    put = a.store.put_if_match

    def disturbed(key: str, data: bytes, token: str) -> Written:
        if key == META_KEY:
            b.index.migrate()
            b.commit({raw_rel("n"): "theirs"})
        return put(key, data, token)

    monkeypatch.setattr(a.store, "put_if_match", disturbed)
    assert a.index.migrate().already
    assert foreign.hashes() == holding(m="x", n="theirs")
    assert foreign.meta()["commitSeq"] == 2


def test_migration_gives_up_when_others_never_stop(
    machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x"})
    monkeypatch.setattr(merging, "_LONGEST_PAUSE", 0.0)
    put = a.store.put_if_match

    def disturbed(key: str, data: bytes, token: str) -> Written:
        if key == MONOLITH_KEY:
            b.commit({raw_rel("m"): "x"})
        return put(key, data, token)

    monkeypatch.setattr(a.store, "put_if_match", disturbed)
    with pytest.raises(IndexMovedError, match="others keep committing"):
        a.index.migrate()


def test_a_scoped_reader_of_before_the_migration_goes_on_after_it(
    machine: Open, foreign: ForeignClient
) -> None:
    a, b = machine("a"), machine("b")
    a.commit({raw_rel("m"): "x", raw_rel("n"): "y"})
    model = scope("t/u/m")
    b.pull(model)
    a.index.migrate()
    assert not b.index.is_unchanged(model)
    b.pull(model)
    assert b.index.is_unchanged(model)
    a.commit({raw_rel("m", 2): "z"})
    b.pull(model)
    assert sorted(b.has()) == [raw_rel("m"), raw_rel("m", 2)]
