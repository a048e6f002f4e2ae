"""Making an index anew on Spark: whatever document is lost, a new machine finds everything."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from swampstore.index.documents import Documents
from swampstore.index.errors import IndexMovedError
from swampstore.index.format import RawEntries, decode_shard, merged
from swampstore.index.partitions import META_KEY, MONOLITH_KEY, ORIGINS_KEY, SHARDS, shard_key
from swampstore.index.removals import Removal, Remover, new_note
from swampstore.index.versions import FIRST, version_of
from swampstore.pipeline.evidence.gathering import Claims
from swampstore.pipeline.evidence.rows import decoded_sum
from swampstore.pipeline.index_writer import version_without_meta
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.planning import holds_files
from swampstore.pipeline.reindex import Reindexed, reindex
from swampstore.pipeline.reindex.local_engine import reindex_little
from swampstore.pipeline.reindex.writing import write_shard
from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.source.index import document_of
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StoreUnreachableError
from swampstore.stores.protocol import Written
from swampstore.stores.wrapper import CountingStore
from tests.pipeline.test_verify import MODELS, Home, fill
from tests.support.broken_store import Killed
from tests.support.damage import Bucket
from tests.support.old_client import OldPeer
from tests.support.sync_harness import Machine, remote_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARD = shard_key("data--t--u--m00")
OTHER = shard_key("data--t--u--m01")
MARKERS = shard_key("data--t--u")


class Ground:
    """A store that Ana filled, and what is in it."""

    def __init__(self, directory: Path, version: int) -> None:
        self._directory = directory
        self.ana = Home(directory / "ana", directory / "bucket")
        fill(self.ana, MODELS[:2], version=version)
        self.bucket = Bucket(directory / "bucket")
        self.places: list[Place] = places_of(f"file://{self.bucket.root}")
        self.payload = self.bucket.payload()

    def new_machine(self, name: str) -> dict[str, bytes]:
        """Return what a machine pulls that was never here before."""
        return Home(self._directory / name, self.bucket.root).pulled()

    @property
    def commit_seq(self) -> int:
        return int(self.bucket.document(META_KEY)["commitSeq"])


class Loss(NamedTuple):
    """Documents that are gone, and such that are damaged."""

    version: int
    gone: tuple[str, ...] = ()
    spoiled: tuple[str, ...] = ()

    def happen(self, bucket: Bucket) -> None:
        for rel in self.gone:
            bucket.remove(rel)
        for rel in self.spoiled:
            bucket.put(rel, b'{"version":1,"entries":{')


LOSSES = {
    "a shard of version 2": Loss(2, gone=(SHARD,)),
    "meta of version 2": Loss(2, gone=(META_KEY,), spoiled=(MARKERS,)),
    "the monolith": Loss(1, spoiled=(MONOLITH_KEY,)),
    "everything": Loss(1, gone=(MONOLITH_KEY, META_KEY, SHARD, OTHER, MARKERS)),
}


def reindex_here(places: list[Place], **options: Any) -> Reindexed:
    done = reindex_little(places, "local", SparkSettings(), **options)
    assert done is not None
    return done


@pytest.mark.parametrize("engine", ["spark", "local"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_new_machine_finds_everything_whatever_was_lost(
    request: pytest.FixtureRequest, tmp_path: Path, loss: str, engine: str
) -> None:
    version = LOSSES[loss].version
    ground = Ground(tmp_path, version)
    before = ground.commit_seq if version == 2 else 0
    LOSSES[loss].happen(ground.bucket)
    would = reindex_here(ground.places, dry_run=True)
    if engine == "spark":
        done = reindex(request.getfixturevalue("spark"), ground.places)
    else:
        done = reindex_here(ground.places)
    assert would.documents == done.documents
    assert done.entries == done.kept + done.made == len(ground.payload)
    assert done.documents
    assert ground.bucket.version == version
    assert version == 1 or ground.commit_seq > before
    assert ground.new_machine("bob") == ground.payload
    hashes = [one["sha256"] for one in _entries(ground.bucket).values()]
    assert len(hashes) == len(ground.payload)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_version_a_lost_index_had_is_told_by_its_documents_alone(
    tmp_path: Path, loss: str
) -> None:
    ground = Ground(tmp_path, LOSSES[loss].version)
    LOSSES[loss].happen(ground.bucket)
    (ground.bucket.root / META_KEY).unlink(missing_ok=True)
    [place] = ground.places
    with place.open() as inner:
        store = CountingStore(inner)
        documents = 1 + len(list(store.list(SHARDS)))
        store.reset()
        version = version_without_meta(place, store)
        assert version is version_of(LOSSES[loss].version)
        assert store.tally().requests.get("get", 0) <= documents


@pytest.mark.parametrize("mark", [".namespace.json", MONOLITH_KEY, META_KEY, "_index/data--t.json"])
def test_a_bucket_without_a_file_of_this_namespace_is_empty(tmp_path: Path, mark: str) -> None:
    [place] = places_of(f"file://{tmp_path}")
    with place.open() as store:
        assert version_without_meta(place, store) is None
        store.put("_control/runs/_/1.json", b"{}")
        assert version_without_meta(place, store) is None
        store.put(f"other/{mark}", b"{}")
        store.put("other/data/t/m/x/1/raw", b"theirs")
        assert version_without_meta(place, store) is None
        store.put("data/t/m/x/1/raw", b"ours")
        assert version_without_meta(place, store) is FIRST


def _entries(bucket: Bucket) -> dict[str, Any]:
    if bucket.version == 1:
        return dict(bucket.document(MONOLITH_KEY)["entries"])
    found: dict[str, Any] = {}
    for partition in bucket.document(META_KEY)["partitions"]:
        found |= bucket.document(shard_key(partition))["entries"]
    return found


def test_a_sound_index_stays_as_it_is_and_a_dry_run_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    ground = Ground(tmp_path, 2)
    documents = _documents(ground.bucket)
    assert reindex(spark, ground.places, rehash=True).documents == 0
    assert _documents(ground.bucket) == documents

    ground.bucket.remove(SHARD)
    documents = _documents(ground.bucket)
    would = reindex(spark, ground.places, dry_run=True)
    assert (would.entries, would.documents) == (len(ground.payload), 2)
    assert reindex_here(ground.places, dry_run=True).documents == 2
    assert _documents(ground.bucket) == documents
    assert reindex_here(ground.places).documents == 2
    assert reindex_here(ground.places, rehash=True).documents == 0


def _documents(bucket: Bucket) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (bucket.root / "_index").iterdir()}


def test_a_push_in_flight_succeeds_after_a_reindex_and_what_others_wrote_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    ground = Ground(tmp_path, 2)
    document = ground.bucket.document(SHARD)
    document["theirs"] = {"of": "another client"}
    rel = "data/t/u/m00/alone/1/raw"
    document["entries"][rel] |= {"mark": 7}
    del document["entries"][rel]["sha256"]
    ground.bucket.put_document(SHARD, document)
    with ground.ana.open() as repo:
        repo.artifacts.save("t/u/m00", "alone", "in flight")
        prepared = repo.sync.prepare_push()
        ground.bucket.remove(OTHER)
        done = reindex(spark, ground.places)
        assert (done.hashed, done.waiting) == (1, 2)
        repo.sync.commit_push(prepared)
    payload = ground.bucket.payload()
    assert payload["data/t/u/m00/alone/4/raw"] == b"in flight"
    assert ground.new_machine("bob") == payload
    after = ground.bucket.document(SHARD)
    assert after["theirs"] == {"of": "another client"}
    assert after["entries"][rel]["mark"] == 7
    assert after["entries"][rel]["sha256"]


def test_a_reindex_that_was_killed_before_meta_is_finished_by_the_next_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, 2)
    before = ground.commit_seq
    ground.bucket.remove(SHARD)
    ground.bucket.remove(META_KEY)

    put_meta, kills = Documents.put_meta, iter([KeyboardInterrupt])

    def killed(self: Documents, data: bytes, token: str | None, *, commits: bool) -> Written:
        for kill in kills:
            raise kill
        return put_meta(self, data, token, commits=commits)

    with monkeypatch.context() as patched:
        patched.setattr(Documents, "put_meta", killed)
        with pytest.raises(KeyboardInterrupt):
            reindex(spark, ground.places)
    # Whoever is interrupted shuts himself out before he gives the lock back, which heals the list.
    (ground.bucket.root / META_KEY).unlink(missing_ok=True)
    done = reindex(spark, ground.places)
    # Who takes the lock over settles what there is, so perhaps there is nothing left to write.
    assert done.made == 0
    assert ground.commit_seq > before
    assert ground.new_machine("bob") == ground.payload


def test_an_object_that_is_not_what_its_entry_says_does_not_become_the_truth(
    spark: SparkSession, tmp_path: Path
) -> None:
    ground = Ground(tmp_path, 1)
    rel = "data/t/u/m00/alone/1/raw"
    said = _entries(ground.bucket)[rel]
    ground.bucket.put(rel, b"short")
    ground.bucket.put("files/old.txt", b"nobody named it")
    done = reindex(spark, ground.places, grace=timedelta(0))
    assert (done.contradicted, done.adopted) == (1, 1)
    assert _entries(ground.bucket)[rel] == said
    assert done.findings is not None
    told = {(row["kind"], row["rel"], row["repaired"]) for row in done.findings.collect()}
    assert told == {("contradicted", rel, False), ("adopted", "files/old.txt", True)}


# Shards in tasks: without Spark -------------------------------------------------------------------

WANTED: RawEntries = {rel: msgspec.Raw(b'{"size":1}') for rel in ("b", "a")}


def test_a_shard_keeps_its_order_and_new_entries_come_last_sorted() -> None:
    current = {"b": msgspec.Raw(b"{}"), "gone": msgspec.Raw(b"{}")}
    wanted = {rel: msgspec.Raw(b"1") for rel in ("d", "c", "b")}
    assert list(merged(current, wanted)) == ["b", "c", "d"]


def test_a_task_that_is_tried_again_finds_its_own_shard(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (place,) = places_of(f"file://{tmp_path / 'bucket'}")
    with place.open() as store:
        first = write_shard(place, store, "audit", WANTED, None)
        again = write_shard(place, store, "audit", WANTED, None)
    assert first[2]
    assert again == (*first[:2], False)
    shard = json.loads((tmp_path / "bucket/_index/audit.json").read_bytes())
    assert shard["version"] == 1
    assert shard["entries"] == {"a": {"size": 1}, "b": {"size": 1}}


def test_a_shard_of_version_2_tells_which_commit_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (place,) = places_of(f"file://{tmp_path / 'bucket'}")
    with place.open() as store:
        write_shard(place, store, "audit", WANTED, None, commit_seq=7)
        found = decode_shard(store.get(shard_key("audit")).data)
    assert found.commit_seq == 7
    rows = Claims().rows(0, place, (shard_key("audit"),), place.open())
    summary = decoded_sum([*rows][-1][-1])
    assert (summary.entries, summary.highest, summary.written) == (2, 0, 7)


def test_a_shard_that_somebody_else_wrote_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (place,) = places_of(f"file://{tmp_path / 'bucket'}")
    with place.open() as store:
        store.put("_index/audit.json", b'{"version":1,"entries":{"theirs":{}}}')
        with pytest.raises(IndexMovedError):
            write_shard(place, store, "audit", WANTED, None)


def test_what_a_migration_left_of_the_monolith_tells_what_a_lost_shard_said(tmp_path: Path) -> None:
    ground = Ground(tmp_path, 2)
    entries = {rel: one for rel, one in _entries(ground.bucket).items() if "/m00/" in rel}
    ground.bucket.remove(SHARD)
    done = reindex_here(ground.places)
    assert (done.kept, done.made) == (len(ground.payload), 0)
    assert entries.items() <= _entries(ground.bucket).items()


def test_what_a_migration_left_of_the_monolith_is_read_once_by_whoever_only_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.pipeline.source.index._WORTH_A_PART", 1)
    [place] = Ground(tmp_path, 2).places

    def readings(table: Claims) -> int:
        with place.open() as store:
            parts = [one for piece in table.plan(place, store, 8) for one in piece]
        return [document_of(one) for one in parts].count(MONOLITH_KEY)

    assert readings(Claims()) == 1
    assert readings(Claims(with_frozen=True)) > 1


def test_results_of_several_places_add_up() -> None:
    both = Reindexed(places=1, kept=2, seconds=0.5) + Reindexed(places=1, made=3, dry_run=True)
    assert (both.places, both.entries, both.dry_run) == (2, 5, True)
    assert both.to_json()["seconds"] == 0.5


def test_what_is_left_of_a_deletion_is_not_adopted_but_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, 2)

    def fail(_store: DirectoryStore, _key: str, _token: str = "") -> None:
        raise StoreUnreachableError("503", hint="Wait.")

    with ground.ana.open() as repo, monkeypatch.context() as patch:
        repo.artifacts.delete("t/u/m00", "alone")
        patch.setattr(DirectoryStore, "delete", fail)
        patch.setattr(DirectoryStore, "delete_if_match", fail)
        repo.sync.push()
    left = {rel for rel in ground.bucket.payload() if rel.startswith("data/t/u/m00/alone/")}
    assert left
    would = reindex(spark, ground.places, grace=timedelta(0), dry_run=True)
    assert (would.adopted, would.leaving) == (0, len(left))
    done = reindex(spark, ground.places, grace=timedelta(0))
    assert (done.adopted, done.leaving) == (0, 0)
    assert not left & ground.bucket.payload().keys()
    assert ground.new_machine("bob") == ground.bucket.payload()


def test_what_is_left_of_a_deletion_is_no_reason_for_an_index(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (place,) = places_of(f"file://{tmp_path}/bucket")
    rel = "data/t/u/m/n/1/raw"
    with place.open() as store:
        store.put(rel, b"content")
        assert holds_files(place, store)
        sha256 = hashlib.sha256(b"content").hexdigest()
        Remover(store, place.names(), 1).note(new_note(), [Removal(rel, 7, sha256)])
        assert not holds_files(place, store)


@pytest.mark.parametrize("version", [1, 2])
def test_a_deletion_whose_machine_is_killed_before_its_objects_are_gone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    ground = Ground(tmp_path, version)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, ground.ana.open() as repo, pytest.raises(Killed):
        repo.artifacts.delete("t/u/m00", "alone")
        patch.setattr(Remover, "carry_out", killed)
        repo.sync.push()
    assert "data/t/u/m00/alone/1/raw" in ground.bucket.payload()
    for left in ground.bucket.root.rglob("*.lock"):
        left.unlink()  # it is stale meanwhile
    assert reindex_here(ground.places, grace=timedelta(0)).adopted == 0
    pulled = ground.new_machine("bob")
    assert {*ground.payload} - {*pulled} == {
        rel for rel in ground.payload if rel.startswith("data/t/u/m00/alone/")
    }


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    (tmp_path / "bucket").mkdir()
    opened: list[Machine] = []

    def open_machine(name: str) -> Machine:
        opened.append(Machine(tmp_path / name, DirectoryStore(str(tmp_path / "bucket"))))
        return opened[-1]

    yield open_machine
    for one in opened:
        one.close()


NAME = "data/t/u/m00/state"


def save_version(machine: Machine, number: int) -> None:
    files = {
        f"{NAME}/{number}/raw": b"content %d" % number,
        f"{NAME}/{number}/metadata.yaml": b"version: %d\n" % number,
        f"{NAME}/latest": b"%d" % number,
    }
    for rel, data in files.items():
        machine.write(rel, data)


def agreeing(fleet: Callable[[str], Machine], version: int) -> tuple[Machine, Machine]:
    here, there = fleet("here"), fleet("there")
    if version == 2:
        here.service.migrate_index()
    for number in (1, 2):
        save_version(here, number)
    here.push()
    there.sync()
    return here, there


@pytest.mark.parametrize("version", [1, 2])
def test_a_deletion_stays_though_another_client_committed_before_the_index_was_made_anew(
    fleet: Callable[[str], Machine], tmp_path: Path, version: int
) -> None:
    here, there = agreeing(fleet, version)
    here.service.mark_dirty(f"{NAME}/1")
    shutil.rmtree(here.path(f"{NAME}/1"))
    here.push()
    peer = OldPeer(here.store)  # which leaves the origin out
    (peer.push_v2 if version == 2 else peer.push_v1)({f"{NAME}/note": b"theirs"})
    (tmp_path / "bucket" / NAME / "unnamed").write_bytes(b"there is something to do")
    reindex_here([*places_of(f"file://{tmp_path}/bucket")], grace=timedelta(0))
    for machine in (there, here, there):
        machine.sync()
        assert not machine.path(f"{NAME}/1").exists()
        assert f"{NAME}/1/raw" not in remote_files(machine.store)


@pytest.mark.parametrize("gone", ["raw", "metadata.yaml", "raw metadata.yaml"])
@pytest.mark.parametrize(("version", "document"), [(1, MONOLITH_KEY), (2, SHARD)])
def test_what_is_lost_with_the_document_that_told_of_it_stays_in_the_caches_that_have_it(
    fleet: Callable[[str], Machine], tmp_path: Path, version: int, document: str, gone: str
) -> None:
    here, there = agreeing(fleet, version)
    here.sync()
    for rel in (document, *(f"{NAME}/1/{name}" for name in gone.split())):
        (tmp_path / "bucket" / rel).unlink()
    reindex_here([*places_of(f"file://{tmp_path}/bucket")], grace=timedelta(0))
    for machine in (there, here, there):
        machine.sync()
        assert machine.read(f"{NAME}/1/raw") == b"content 1"
        assert machine.read(f"{NAME}/1/metadata.yaml") == b"version: 1\n"
    assert remote_files(here.store) == here.files() == there.files()


@pytest.mark.parametrize(("version", "document"), [(1, MONOLITH_KEY), (2, SHARD)])
def test_nobody_concludes_anything_from_a_guess_that_is_written_half(
    fleet: Callable[[str], Machine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    document: str,
) -> None:
    here, there = agreeing(fleet, version)
    save_version(here, 3)
    here.push()  # which the other one has not heard of
    for rel in (document, f"{NAME}/1/raw", f"{NAME}/1/metadata.yaml"):
        (tmp_path / "bucket" / rel).unlink()

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(f"swampstore.index.version{version}.encode_meta", killed)
        reindex_here([*places_of(f"file://{tmp_path}/bucket")], grace=timedelta(0))
    for machine in (there, here, there):
        machine.sync()
        assert machine.read(f"{NAME}/1/raw") == b"content 1"
    assert remote_files(here.store) == here.files() == there.files()


@pytest.mark.parametrize(("version", "document"), [(1, MONOLITH_KEY), (2, SHARD)])
def test_a_dry_run_writes_nothing_where_a_document_is_lost(
    fleet: Callable[[str], Machine], tmp_path: Path, version: int, document: str
) -> None:
    here, _ = agreeing(fleet, version)
    (tmp_path / "bucket" / document).unlink()
    if version == 2:
        here.store.delete(ORIGINS_KEY)
    before = [info.key for info in here.store.list()], here.store.get(META_KEY).data
    places = [*places_of(f"file://{tmp_path}/bucket")]
    assert reindex_here(places, grace=timedelta(0), dry_run=True).documents
    assert ([info.key for info in here.store.list()], here.store.get(META_KEY).data) == before
