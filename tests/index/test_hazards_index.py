"""Ways in which the index of a remote, its shards and its names have gone wrong, played through.

The number in a test's name says which of them; all of them happened, or could have, to clients
that share remotes with us. Those play their part here as `OldPeer`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from swampstore import Repo, init_repo, open_repo
from swampstore.index.errors import UnmigratedDataError
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, partition_of, shard_key
from swampstore.index.removals import REMOVALS
from swampstore.layout import ModelRef
from swampstore.marker import update_marker
from swampstore.stores import Store
from swampstore.stores.config import Limits
from swampstore.stores.errors import StoreError, StoreUnreachableError
from swampstore.stores.memory import MemoryBucket, MemoryStore
from tests.conftest import FakeClock
from tests.support.broken_store import BrokenStore, Killed
from tests.support.fault_proxy import Fault, Meanwhile, Request, Reset, Status, Truncated
from tests.support.old_client import OldPeer
from tests.support.remotes import ProxiedRemote, Remote
from tests.support.staging import metadata_of
from tests.support.sync_harness import Machine, assert_sound, remote_files, remote_index

Open = Callable[..., Machine]

MODEL = ModelRef("aws/ec2", "i-1")
HOME = f"{MODEL.rel}/state"
SHARD = shard_key("data--aws--ec2--i-1")
NOTES = "files/notes"
# Kills must hit the same request every time.
ONE_BY_ONE = Limits(pull_concurrency=1, push_concurrency=1)


def version(number: int, content: bytes = b"") -> dict[str, bytes]:
    """Return the files that saving one more version writes."""
    content = content or b"content %d" % number
    return {
        f"{HOME}/{number}/raw": content,
        f"{HOME}/{number}/metadata.yaml": metadata_of("state", number, content),
        f"{HOME}/latest": b"%d" % number,
    }


def of_model(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the same files of another model of that type."""
    return {rel.replace(f"/{MODEL.id}/", f"/{name}/"): data for rel, data in files.items()}


def save(machine: Machine, files: Mapping[str, bytes]) -> None:
    for rel, data in files.items():
        machine.write(rel, data)


def contents(machine: Machine) -> set[bytes]:
    """Return the contents of all versions of the model that a machine has."""
    return {data for rel, data in machine.files().items() if rel.endswith("/raw")}


@pytest.fixture
def machine(memory_remote: Remote, tmp_path: Path, clock: FakeClock) -> Iterator[Open]:
    """Opens machines by the name of their cache; opening one again is another process on it."""
    opened: list[Machine] = []

    def open_machine(name: str = "a", namespace: str = "") -> Machine:
        opened.append(Machine(tmp_path / name, memory_remote.open(), namespace, clock=clock))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.close()


@pytest.fixture
def on_s3(s3_remote: ProxiedRemote, tmp_path: Path) -> Iterator[Open]:
    """The same, on a real server behind the proxy."""
    opened: list[Machine] = []

    def open_machine(name: str = "a", namespace: str = "") -> Machine:
        opened.append(Machine(tmp_path / name, s3_remote.open(), namespace))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.close()


@pytest.fixture
def peer(memory_remote: Remote) -> OldPeer:
    return OldPeer(memory_remote.open())


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def index_version(request: pytest.FixtureRequest) -> int:
    version: int = request.param
    return version


def made_sharded(machine: Machine, index_version: int) -> None:
    if index_version == 2:
        machine.service.migrate_index()


def about(kind: str, key: str) -> Callable[[Request], bool]:
    return lambda request: request.kind == kind and request.key == key


def puts(remote: ProxiedRemote) -> list[str]:
    return [one.key for one in remote.proxy.requests if one.kind == "PUT"]


# H21, H22: an error is no answer -------------------------------------------------------------


@pytest.mark.parametrize("fault", [Status(503), Reset()], ids=["503", "reset"])
def test_h21_a_shard_that_cannot_be_read_never_downgrades_the_remote(
    s3_remote: ProxiedRemote, on_s3: Open, fault: Fault
) -> None:
    a, b = on_s3("a"), on_s3("b")
    save(a, {**version(1), NOTES: b"1"})
    a.push()
    a.service.migrate_index()
    b.pull()
    save(a, version(2))
    a.push()
    before = remote_index(a.store)
    save(b, version(2, b"of b"))
    cold = on_s3("cold")
    s3_remote.proxy.fail(about("GET", SHARD), fault, times=None)
    s3_remote.proxy.reset()
    for failing in (b.push, b.pull, cold.pull, lambda: cold.pull([MODEL])):
        with pytest.raises(StoreUnreachableError):
            failing()
    assert puts(s3_remote) == []
    # What has nothing to do with that shard gets through, and to the shards.
    save(cold, {"files/cold": b"1"})
    cold.push()
    assert MONOLITH_KEY not in puts(s3_remote)
    s3_remote.proxy.heal()
    after = remote_index(a.store)
    assert after.meta is not None
    assert before.meta is not None
    assert (after.version, after.meta["commitSeq"]) == (2, before.meta["commitSeq"] + 1)
    b.push()
    assert contents(b) == {b"content 1", b"of b"}
    b.pull()
    assert contents(b) == {b"content 1", b"content 2", b"of b"}
    assert_sound(a.store)


@pytest.mark.parametrize("key", [MONOLITH_KEY, META_KEY])
@pytest.mark.parametrize(
    "fault",
    [Status(500), Status(403), Truncated()],
    ids=["500", "403", "truncated"],
)
def test_h22_an_index_that_cannot_be_fetched_is_not_an_empty_one(
    s3_remote: ProxiedRemote, on_s3: Open, key: str, fault: Fault
) -> None:
    a, cold = on_s3("a"), on_s3("cold")
    save(a, {**version(1), NOTES: b"1"})
    a.push()
    a.write(NOTES, b"2")
    on_s3("other").pull()
    save(on_s3("other"), {"files/other": b"1"})
    on_s3("other").push()  # so that there is something to fetch for everybody
    before = remote_index(a.store)
    cold.write("files/cold", b"1")
    s3_remote.proxy.fail(about("GET", key), fault, times=None)
    s3_remote.proxy.reset()
    for failing in (a.push, cold.push, cold.pull):
        with pytest.raises(StoreError):
            failing()
    assert puts(s3_remote) == []
    s3_remote.proxy.heal()
    assert remote_index(a.store) == before
    cold.push()
    a.push()
    assert remote_index(a.store).entries.keys() == {
        *version(1),
        *(NOTES, "files/other", "files/cold"),
    }


# H23: merging onto what others committed -----------------------------------------------------


def test_h23_a_machine_with_few_files_does_not_shorten_the_index(
    machine: Open, index_version: int
) -> None:
    a, few = machine("a"), machine("few")
    made_sharded(a, index_version)
    shared = {**version(1), **{f"files/{number}": b"%d" % number for number in range(20)}}
    save(a, shared)
    a.push()
    few.write("files/few", b"1")
    few.write_unmarked("files/3", b"3")
    few.push(full=True)
    assert remote_index(few.store).entries.keys() == {*shared, "files/few"}
    assert len(few.files()) == 2


WRITES = [
    (1, MONOLITH_KEY),
    (1, SHARD),
    (1, META_KEY),
    (2, SHARD),
    (2, META_KEY),
]


@pytest.mark.parametrize(("index_version", "key"), WRITES)
def test_h23_of_two_pushes_at_once_both_are_in_the_index(
    s3_remote: ProxiedRemote, on_s3: Open, index_version: int, key: str
) -> None:
    a, b = on_s3("a"), on_s3("b")
    save(a, {**version(1), NOTES: b"1"})
    a.push()
    made_sharded(a, index_version)
    b.pull()
    save(a, version(2, b"of a"))
    save(b, version(2, b"of b"))
    b.delete(NOTES)
    b.write("files/b", b"b")
    rule = s3_remote.proxy.fail(about("PUT", key), Meanwhile(b.push))
    a.push()
    assert rule.fired == 1
    for one in (a, b):
        one.pull()
        one.push()
    a.pull()
    b.pull()
    cold = on_s3("cold")
    cold.pull()
    assert a.files() == b.files() == cold.files()
    assert contents(cold) == {b"content 1", b"of a", b"of b"}
    highest = max(int(rel.split("/")[-2]) for rel in cold.files() if rel.endswith("/raw"))
    assert cold.read(f"{HOME}/latest") == b"%d" % highest
    assert cold.files().keys() >= {"files/b"}
    assert NOTES not in cold.files()
    assert_sound(a.store)


@pytest.mark.parametrize(("index_version", "key"), [(1, MONOLITH_KEY), (2, META_KEY)])
def test_h23_of_two_pushes_of_one_file_at_once_both_contents_stay(
    s3_remote: ProxiedRemote, on_s3: Open, index_version: int, key: str
) -> None:
    a, b = on_s3("a"), on_s3("b")
    a.write(NOTES, b"1")
    a.push()
    made_sharded(a, index_version)
    b.pull()
    a.write(NOTES, b"of a")
    b.write(NOTES, b"of b")
    s3_remote.proxy.fail(about("PUT", key), Meanwhile(b.push))
    a.push()
    for one in (a, b, a):
        one.pull()
        one.push()
    assert a.files() == b.files() == remote_files(a.store)
    assert set(a.files().values()) == {b"of a", b"of b"}
    assert_sound(a.store)


def test_h23_a_remote_that_is_migrated_during_a_push_gets_it_into_the_shards(
    s3_remote: ProxiedRemote, on_s3: Open
) -> None:
    for key in (MONOLITH_KEY, META_KEY):
        a = on_s3(f"a {key}".replace("/", " "))
        old = OldPeer(s3_remote.open())
        for info in list(old.store.list()):
            old.store.delete(info.key)
        old.push_v1(version(1))
        a.pull()
        save(a, version(2))
        s3_remote.proxy.fail(about("PUT", key), Meanwhile(old.migrate))
        a.push()
        index = remote_index(a.store)
        assert index.version == 2
        assert index.entries.keys() == a.files().keys()
        assert_sound(a.store)


def test_h23_a_push_that_finds_the_remote_migrated_leaves_the_shards_of_others_alone(
    s3_remote: ProxiedRemote, on_s3: Open
) -> None:
    a, other = on_s3("a"), on_s3("other")
    old = OldPeer(s3_remote.open())
    old.push_v1(version(1))
    for one in (a, other):
        one.pull()
    ours, theirs = "outputs/aws/ec2/run/ours.yaml", "outputs/aws/ec2/run/theirs.yaml"
    a.write(ours, b"1")
    other.write(theirs, b"1")

    def migrate_and_go_on() -> None:
        old.migrate()
        other.push()

    s3_remote.proxy.fail(about("PUT", MONOLITH_KEY), Meanwhile(migrate_and_go_on))
    a.push()
    assert remote_index(a.store).version == 2
    assert remote_index(a.store).entries.keys() == {*version(1), ours, theirs}


# H24, H25: paths that are easily left out of shards ------------------------------------------

SHALLOW = {
    "workflows-evaluated/w.yaml": b"1",
    ".catalog-export.json": b"[]",
    "workflow-runs/w/workflow-run-r.yaml": b"1",
}
KEYLESS = {
    "definitions-evaluated/probe/n.yaml": b"1",
    "definitions/aws/d.yaml": b"1",
    "data/x/y": b"1",
    "workflow-runs/stray.yaml": b"1",
}


@pytest.mark.parametrize("files", [SHALLOW, KEYLESS], ids=["h24", "h25"])
def test_h24_h25_every_path_is_in_a_shard_before_and_after_a_migration(
    machine: Open, files: Mapping[str, bytes]
) -> None:
    a = machine()
    save(a, files)
    a.push()
    sharded = remote_index(a.store).shards
    assert {rel for one in sharded.values() for rel in one["entries"]} == files.keys()
    migrated = a.service.migrate_index()
    assert migrated.entries == len(files)
    assert remote_index(a.store).entries.keys() == files.keys()
    more = {f"{rel}2": b"2" for rel in files if rel != ".catalog-export.json"}
    save(a, more)
    a.push()
    assert remote_index(a.store).entries.keys() == {*files, *more}
    cold = machine("cold")
    cold.pull()
    assert cold.files() == {**files, **more}
    assert cold.push(full=True).changes == 0


def test_h25_what_others_left_out_of_every_shard_survives_the_migration(
    machine: Open, peer: OldPeer
) -> None:
    peer.push_v1({**version(1), **KEYLESS})
    assert "_root" not in remote_index(peer.store).shards
    a, b = machine("a"), machine("b")
    b.pull()
    a.service.migrate_index()
    assert remote_index(a.store).entries.keys() == {*version(1), *KEYLESS}
    b.pull()
    assert b.files() == {**version(1), **KEYLESS}
    scoped = machine("scoped")
    scoped.pull([ModelRef("probe", "p")])
    assert scoped.files().keys() == {"definitions-evaluated/probe/n.yaml"}


# H26: entries that should not be there -------------------------------------------------------

ZOMBIES = (
    f"{MODEL.rel}/.lock",
    f"{HOME}/_catalog.db-wal",
    "_catalog.db",
    ".datastore-sync-state.json",
    ".push-queue.json",
    "_control/heartbeats/1",
)


@pytest.mark.parametrize("have_objects", [True, False], ids=["with objects", "dangling"])
def test_h26_bookkeeping_in_an_old_index_does_not_land_and_goes_with_the_next_push(
    machine: Open, peer: OldPeer, index_version: int, have_objects: bool
) -> None:
    peer.push_v1({**version(1), **dict.fromkeys(ZOMBIES, b"zombie")})
    if not have_objects:
        for rel in ZOMBIES:
            peer.store.delete(rel)
    if index_version == 2:
        peer.migrate()
    a = machine()
    assert a.pull().skipped == ()
    assert a.files() == version(1)
    held = [path.read_bytes() for path in a.cache.rglob("*") if path.is_file()]
    assert b"zombie" not in held
    save(a, version(2))
    a.push()
    entries = remote_index(a.store).entries
    touched = {partition_of(rel) for rel in version(2)}
    assert not [rel for rel in ZOMBIES if partition_of(rel) in touched and rel in entries]
    if index_version == 1:
        assert entries.keys() == {*version(1), *version(2)}
    cold = machine("cold")
    cold.pull()
    assert cold.files() == {**version(1), **version(2)}


# H27 .. H32: namespaces ----------------------------------------------------------------------


def test_h27_a_mark_without_the_namespace_publishes_nothing(machine: Open) -> None:
    a = machine("a", "team")
    save(a, version(1))
    a.push()
    for rel, data in version(1).items():
        solo = a.cache / rel
        solo.parent.mkdir(parents=True, exist_ok=True)
        solo.write_bytes(data + b" of nobody")
    a.service.mark_dirty(HOME)
    a.service.mark_dirty("data")
    with pytest.raises(UnmigratedDataError, match="before the namespace"):
        a.push()
    assert remote_files(a.store, "team") == version(1)
    bookkeeping = {f"team/{key}" for key in _index_keys(a.store, "team")}
    published = {info.key for info in a.store.list("")} - bookkeeping
    assert published == {f"team/{rel}" for rel in version(1)}
    assert a.service.status().dirty_paths == (HOME, "data")  # for a cache that is solo again


def _index_keys(store: Store, namespace: str) -> list[str]:
    prefix = f"{namespace}/"
    keys = [info.key.removeprefix(prefix) for info in store.list(prefix)]
    return [key for key in keys if key == MONOLITH_KEY or key.startswith("_index/")]


def test_h27_marks_of_a_namespace_that_is_no_longer_bound_publish_nothing(machine: Open) -> None:
    solo, team = machine("a"), machine("a", "team")
    solo.push()  # so that no walk is due, and it is the marks that count
    (team.cache / "team").mkdir()
    (team.cache / "team/.namespace.json").write_text("{}")
    team.write(NOTES, b"of the team")
    solo.write(NOTES, b"of nobody")
    solo.push()
    assert remote_index(solo.store).entries.keys() == {NOTES}
    assert remote_files(solo.store) == {NOTES: b"of nobody"}


def test_h28_all_keys_of_a_namespace_are_below_it_and_no_entry_says_so(
    machine: Open, index_version: int
) -> None:
    a = machine("a", "team")
    made_sharded(a, index_version)
    save(a, {**version(1), ".catalog-export.json": b"[]"})
    a.push()
    a.delete(f"{HOME}/1/raw")
    a.delete(f"{HOME}/1/metadata.yaml")
    save(a, version(2))
    a.push()
    keys = [info.key for info in a.store.list()]
    assert keys
    assert all(key.startswith("team/") for key in keys)
    index = remote_index(a.store, "team")
    assert index.entries.keys() == a.files().keys()
    assert all(rel == entry["key"] for rel, entry in index.entries.items())
    assert_sound(a.store, "team")


def test_h29_a_namespaced_pull_leaves_nothing_to_push(machine: Open, index_version: int) -> None:
    a, b = machine("a", "team"), machine("b", "team")
    made_sharded(a, index_version)
    save(a, version(1))
    a.push()
    b.pull()
    assert {path.relative_to(b.cache).parts[0] for path in b.cache.rglob("raw")} == {"team"}
    b.cost()
    assert b.push(full=True).changes == 0
    b.service.mark_dirty()
    assert b.push().changes == 0
    assert "put" not in b.cost().requests
    assert b.service.status().not_hydrated == 0


def test_h30_only_directories_of_other_namespaces_are_left_out(machine: Open) -> None:
    a = machine("a", "team")
    own = {NOTES: b"own", "files/deep/x": b"own"}
    for rel, data in own.items():
        a.write_unmarked(rel, data)
    for manifest in ("team", "team/nested", "other"):
        (a.cache / manifest).mkdir(parents=True, exist_ok=True)
        (a.cache / manifest / ".namespace.json").write_text("{}")
    for foreign in ("team/nested/files/x", "other/files/x"):
        (a.cache / foreign).parent.mkdir(parents=True)
        (a.cache / foreign).write_bytes(b"foreign")
    assert a.push(full=True).files == 2
    assert remote_files(a.store, "team") == own
    assert remote_index(a.store, "team").entries.keys() == own.keys()
    solo = machine("a")
    solo.write_unmarked("logs/solo", b"solo")
    solo.push(full=True)
    assert remote_index(solo.store).entries.keys() == {"logs/solo"}


def test_h31_what_is_left_from_before_the_namespace_is_not_pushed(machine: Open) -> None:
    a = machine("a", "team")
    save(a, version(1))
    a.push()
    for rel in (f"{HOME}/1/raw", "files/leftover"):
        (a.cache / rel).parent.mkdir(parents=True, exist_ok=True)
        (a.cache / rel).write_bytes(b"leftover")
    a.service.mark_dirty()
    with pytest.raises(UnmigratedDataError):
        a.push(full=True)
    assert remote_index(a.store, "team").entries.keys() == version(1).keys()
    assert remote_files(a.store, "team")[f"{HOME}/1/raw"] == b"content 1"


@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "not indexed"])
def test_h32_joining_a_shared_bucket_absorbs_nothing_of_others(
    machine: Open, memory_remote: Remote, indexed: bool
) -> None:
    store = memory_remote.open()
    for namespace in ("", "other"):
        OldPeer(store, namespace).push_v1({f"files/of {namespace}": b"theirs"})
    store.put("other/.namespace.json", b"{}")
    store.put(".locks/other.lock", b"{}")
    if not indexed:
        for info in list(store.list()):
            if info.key.endswith(MONOLITH_KEY) or "_index/" in info.key:
                store.delete(info.key)
    before = {info.key: info.etag for info in store.list()}
    team = machine("team", "team")
    assert team.pull().changes == 0
    save(team, {NOTES: b"ours"})
    team.push()
    assert remote_index(store, "team").entries.keys() == {NOTES}
    solo = machine("solo")
    solo.pull()
    assert solo.files() == {"files/of ": b"theirs"}
    solo.write("files/new", b"1")
    solo.push()
    assert remote_index(store).entries.keys() == {"files/of ", "files/new"}
    after = {info.key: info.etag for info in store.list() if info.key in before}
    changed = {key for key in before if before[key] != after[key]}
    assert changed <= {MONOLITH_KEY, META_KEY, "_index/files.json"}


# H33: markers one level up -------------------------------------------------------------------


def _repo(directory: Path, bucket: Path) -> Repo:
    init_repo(directory / "repo").close()
    section = {"type": "file", "url": f"file://{bucket}", "hydrationStrategy": "full"}
    update_marker(str(directory / "repo"), {"datastore": section})
    environ = {"SWAMP_HOME": str(directory / "home")}
    return open_repo(directory / "repo", durable=False, environ=environ)


def test_h33_a_version_that_is_finished_after_a_push_becomes_the_latest_elsewhere(
    tmp_path: Path,
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with _repo(tmp_path / "a", bucket) as a, _repo(tmp_path / "b", bucket) as b:
        a.artifacts.save(MODEL, "state", b"first")
        with a.artifacts.writer(MODEL, "state") as writer:
            writer.write(b"second, ")
            a.sync.push()
            b.sync.pull()
            assert b.latest(MODEL, "state").text() == "first"
            writer.write(b"whole")
        a.sync.push()
        b.sync.pull()
        assert b.latest(MODEL, "state").text() == "second, whole"
        assert b.list_versions(MODEL, "state") == a.list_versions(MODEL, "state") == [1, 2]


# H34, H35: shards of version 1 ---------------------------------------------------------------


def test_h34_only_touched_shards_are_written_between_the_monolith_and_meta(
    s3_remote: ProxiedRemote, on_s3: Open
) -> None:
    a = on_s3()
    models = [f"outputs/aws/i-{number}/run/1.yaml" for number in range(20)]
    save(a, dict.fromkeys(models, b"1"))
    a.push()
    s3_remote.proxy.reset()
    a.write(models[3], b"2")
    a.delete(models[4])
    a.push()
    written = puts(s3_remote)
    shard = shard_key(partition_of(models[3]))
    [note] = [key for key in written if key.startswith(REMOVALS)]  # of what is to be removed
    assert written == [models[3], note, MONOLITH_KEY, shard, META_KEY]
    gone = shard_key(partition_of(models[4]))
    removed = [one.key for one in s3_remote.proxy.requests if one.kind == "DELETE"]
    assert removed == [gone, models[4], note]


@pytest.mark.parametrize("key", [SHARD, shard_key("data--aws--ec2")])
def test_h35_a_shard_that_was_not_written_makes_no_scoped_reader_stale(
    s3_remote: ProxiedRemote, on_s3: Open, key: str
) -> None:
    a, b = on_s3("a"), on_s3("b")
    save(a, version(1))
    a.push()
    b.pull([MODEL])
    save(a, version(2))
    rule = s3_remote.proxy.fail(about("PUT", key), Status(503), times=None)
    a.push()
    assert rule.fired
    for reader in (b, on_s3("cold")):
        reader.pull([MODEL])
        assert reader.files() == {**version(1), **version(2)}
    s3_remote.proxy.heal()
    a.write(NOTES, b"1")
    a.push()
    shards = remote_index(a.store).shards
    assert {rel for one in shards.values() for rel in one["entries"]} == a.files().keys()
    s3_remote.proxy.reset()
    fresh = on_s3("fresh")
    fresh.pull([MODEL])
    assert fresh.files() == {**version(1), **version(2)}
    # They are believed again.
    assert not [one for one in s3_remote.proxy.requests if about("GET", MONOLITH_KEY)(one)]


def test_h35_a_push_that_cannot_write_meta_says_so_and_is_finished_by_the_next(
    s3_remote: ProxiedRemote, on_s3: Open
) -> None:
    a = on_s3("a")
    save(a, version(1))
    a.push()
    save(a, version(2))
    s3_remote.proxy.fail(about("PUT", META_KEY), Status(503), times=None)
    with pytest.raises(StoreUnreachableError):
        a.push()
    s3_remote.proxy.heal()
    for models in (None, [MODEL]):
        reader = on_s3(f"reader of {models}")
        reader.pull(models)
        assert reader.files() == {**version(1), **version(2)}
    a = on_s3("a")
    a.push()
    assert a.service.status().dirty_paths == ()
    assert_sound(a.store)


def test_h35_stale_shards_of_other_clients_make_no_scoped_reader_stale(
    machine: Open, peer: OldPeer, clock: FakeClock
) -> None:
    a = machine()
    peer.push_v1(version(1))
    a.pull([MODEL])
    # A shard whose last entry goes stays as it was, and a client before shards writes none.
    peer.push_v1(dict.fromkeys(version(1)))
    machine("a").pull([MODEL])
    assert a.files() == {}
    peer.push_monolith_only(version(2))
    clock.advance(seconds=61)
    machine("a").pull([MODEL])
    assert a.files() == version(2)


# H36: a lost _meta.json ----------------------------------------------------------------------


@pytest.mark.parametrize("damage", [None, b"", b"{ no json", b'{"version": 2}'])
@pytest.mark.parametrize("knows", [True, False], ids=["knows the remote", "is new"])
@pytest.mark.parametrize("writer", ["ours", "theirs"])
def test_h36_a_sharded_remote_without_meta_stays_sharded_and_is_healed_by_a_push(
    machine: Open, peer: OldPeer, damage: bytes | None, knows: bool, writer: str
) -> None:
    a = machine()
    peer.push_v1(version(1))
    peer.migrate()
    if knows or writer == "ours":
        a.pull()
    if writer == "ours":
        save(a, version(2))
        a.push()
    else:
        peer.push_v2(version(2))
    frozen = peer.store.get(MONOLITH_KEY).data
    if damage is None:
        peer.store.delete(META_KEY)
    else:
        peer.store.put(META_KEY, damage)
    b = machine("a" if knows else "b")
    b.pull()
    assert b.files() == {**version(1), **version(2)}
    b.write(NOTES, b"1")
    b.push()
    meta = peer.read(META_KEY)
    assert meta["version"] == 2
    if knows or writer == "ours":
        assert meta["commitSeq"] >= 2
    assert peer.store.get(MONOLITH_KEY).data == frozen
    assert remote_index(b.store).entries.keys() == b.files().keys()
    cold = machine("cold")
    cold.pull()
    assert cold.files() == b.files()


def test_h36_a_lost_shard_is_made_anew_from_its_files(machine: Open, peer: OldPeer) -> None:
    a = machine()
    save(a, {**version(1), NOTES: b"1"})
    a.push()
    a.service.migrate_index()
    peer.store.delete(SHARD)
    b = machine("b")
    assert SHARD in [one.rel for one in b.pull().skipped]
    assert b.files() == a.files()
    save(b, version(2))
    b.push()
    assert remote_index(b.store).entries.keys() == b.files().keys()
    assert remote_index(b.store).version == 2


# A push that ends anywhere -------------------------------------------------------------------


class Accident(contextlib.ExitStack):
    """Machines on one remote, of which one is killed while it pushes, and another one watches."""

    def __init__(self, remote: Remote, directory: Path, index_version: int) -> None:
        super().__init__()
        self._remote = remote
        self._directory = directory
        self._clock = FakeClock()
        self.store = BrokenStore(remote.open())
        self.victim = self.open("victim", self.store)
        self.witness = self.open("witness")
        made_sharded(self.victim, index_version)
        save(self.victim, {**version(1), NOTES: b"1", "files/gone": b"1"})
        self.victim.push()
        self.witness.pull()
        self.witness.push()

    def open(self, name: str, store: Store | None = None) -> Machine:
        directory, store = self._directory / name, store or self._remote.open()
        return self.enter_context(Machine(directory, store, limits=ONE_BY_ONE, clock=self._clock))

    def strike(self, requests: int, *, is_done: bool) -> bool:
        """Kill the victim at a request of its push; return False if it made no more of them.

        `is_done`: the request takes effect, and the victim does not hear of it.
        """
        self.store.fail_after(requests, is_done=is_done, kills=True)
        try:
            self.victim.push()
        except Killed:
            struck = True
        else:
            struck = False
        # Whatever it did is noticed after a minute at the latest.
        self._clock.advance(seconds=61)
        return struck


PUSHED = {**version(1), **version(2), NOTES: b"2", "files/new": b"2"}


def accidents(
    factory: Callable[[], Remote], directory: Path, index_version: int, *, is_done: bool
) -> Iterator[Accident]:
    """Yield one accident for every request that a push makes."""
    for requests in range(100):
        with Accident(factory(), directory / str(requests), index_version) as accident:
            save(accident.victim, {**version(2), NOTES: b"2", "files/new": b"2"})
            accident.victim.delete("files/gone")
            struck = accident.strike(requests, is_done=is_done)
            yield accident
        if not struck:
            assert requests > 8
            return


@pytest.fixture
def new_remote() -> Callable[[], Remote]:
    def new() -> Remote:
        bucket = MemoryBucket()
        return Remote(lambda: MemoryStore("remote", bucket))

    return new


def test_h35_a_push_that_is_killed_anywhere_misleads_no_reader_and_is_finished_later(
    new_remote: Callable[[], Remote], tmp_path: Path, index_version: int
) -> None:
    old = {**version(1), NOTES: b"1", "files/gone": b"1"}
    for accident in accidents(new_remote, tmp_path, index_version, is_done=True):
        for reader in (accident.witness, accident.open("cold")):
            # Replaced by the victim, and not in the index: neither content is known to be it.
            left_out = {one.rel for one in reader.pull().skipped}
            assert left_out <= {NOTES, f"{HOME}/latest"}
            for rel, data in reader.files().items():
                assert data in (old.get(rel), PUSHED.get(rel)), rel
        victim = accident.open("victim")
        victim.push()
        for reader in (victim, accident.witness, accident.open("cold")):
            reader.pull()
            assert reader.files() == PUSHED
        assert remote_files(victim.store) == PUSHED
        assert_sound(victim.store)


@pytest.mark.parametrize("is_done", [True, False])
def test_h35_a_first_push_of_several_models_that_is_killed_anywhere_is_finished_later(
    new_remote: Callable[[], Remote], tmp_path: Path, index_version: int, is_done: bool
) -> None:
    """Their shards are new, and without `_meta.json` nobody tells of them."""
    new = {**of_model("i-2", version(1, b"two")), **of_model("i-3", version(1, b"three"))}
    theirs = of_model("i-3", version(2, b"theirs"))
    for requests in range(100):
        with Accident(new_remote(), tmp_path / str(requests), index_version) as accident:
            save(accident.victim, new)
            struck = accident.strike(requests, is_done=is_done)
            witness, victim = accident.witness, accident.open("victim")
            save(witness, theirs)
            for one in (witness, victim, witness, victim):
                one.push()
                one.pull()
            witness.pull()  # what the victim had to give another number
            assert_sound(victim.store)
            assert victim.files() == witness.files()
            assert contents(victim) == {b"content 1", b"two", b"three", b"theirs"}
        if not struck:
            assert requests > 8
            return


def test_h35_versions_that_a_killed_push_left_cost_the_next_one_a_single_attempt(
    memory_remote: Remote, tmp_path: Path
) -> None:
    with Accident(memory_remote, tmp_path, 1) as accident:
        for number in range(2, 20):
            save(accident.victim, version(number))
        assert accident.strike(30, is_done=True)
        witness = accident.witness
        save(witness, version(2, b"of the witness"))
        assert len(witness.push().conflicts) == 1
        assert b"of the witness" in remote_files(witness.store).values()
        accident.open("victim").push()
        witness.pull()
        assert len(contents(witness)) == 20
        assert_sound(witness.store)


def test_h35_after_a_push_that_was_killed_others_go_on_and_lose_nothing(
    new_remote: Callable[[], Remote], tmp_path: Path, index_version: int
) -> None:
    for accident in accidents(new_remote, tmp_path, index_version, is_done=False):
        witness = accident.witness
        save(witness, {**version(2, b"of the witness"), NOTES: b"of the witness"})
        witness.push()
        witness.pull()
        assert_sound(witness.store)
        cold = accident.open("cold")
        cold.pull()
        assert cold.files() == witness.files()
        assert {b"content 1", b"of the witness"} <= contents(cold)
        victim = accident.open("victim")
        for one in (victim, witness, cold, victim):
            one.pull()
            one.push()
        witness.pull()
        assert victim.files() == witness.files() == cold.files()
        assert contents(cold) == {b"content 1", b"content 2", b"of the witness"}
        assert {b"2", b"of the witness"} <= set(cold.files().values())
        assert "files/gone" not in cold.files()
        assert_sound(victim.store)
