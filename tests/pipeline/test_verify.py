"""Verifying a store on Spark: nothing that is wrong is missed, and nothing else is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from swampstore import Repo, init_repo, open_repo
from swampstore.artifacts.latest import marker_sha256
from swampstore.cli.pipeline import verify as cli
from swampstore.errors import ValidationError
from swampstore.index.partitions import META_KEY
from swampstore.index.results import no_progress
from swampstore.layout import DEFERRED
from swampstore.marker import update_marker
from swampstore.pipeline.evidence import reading
from swampstore.pipeline.evidence.gathering import Budget, everything
from swampstore.pipeline.evidence.reading import Evidence, Reading
from swampstore.pipeline.evidence.rows import Total, paths_in, rows_in
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.source.objects import Content
from swampstore.pipeline.verify import Finding, Verified, kinds, verify
from swampstore.pipeline.verify.local_engine import verify_here
from swampstore.pipeline.verify.mending import (
    Action,
    Find,
    Mender,
    Wanted,
)
from swampstore.pipeline.verify.rules import File
from swampstore.stores import store_config
from tests.support.damage import Bucket, inject
from tests.support.remotes import ProxiedRemote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_SPARK: Any = None
MODELS = [f"t/u/m{number:02}" for number in range(14)]
NAMES = ["alone", "one-twin", "other-twin"]
AT_ONCE = timedelta(0)


class Home:
    """A repository on a machine of its own, with a directory as remote."""

    def __init__(self, directory: Path, bucket: Path, **settings: object) -> None:
        self.repo_dir = directory / "repo"
        self.environ = {"SWAMP_HOME": str(directory / "home"), "SWAMPSTORE_FSYNC": "off"}
        if not self.repo_dir.exists():
            bucket.mkdir(parents=True, exist_ok=True)
            init_repo(self.repo_dir).close()
            section = {"type": "file", "url": f"file://{bucket}", "hydrationStrategy": "full"}
            update_marker(str(self.repo_dir), {"datastore": {**section, **settings}})

    def open(self) -> Repo:
        return open_repo(self.repo_dir, environ=self.environ)

    def pulled(self) -> dict[str, bytes]:
        """Pull everything and return all data files of the cache."""
        with self.open() as repo:
            repo.sync.pull()
            return Bucket(Path(repo.config.base)).payload()


def fill(home: Home, models: Iterable[str] = MODELS, *, version: int = 1) -> None:
    with home.open() as repo:
        for model in models:
            for number in (1, 2, 3):
                repo.artifacts.save(model, "alone", f"{model} alone {number}")
                repo.artifacts.save(model, "one-twin", f"{model} twins {number}")
                repo.artifacts.save(model, "other-twin", f"{model} twins {number}")
        repo.sync.push()
        if version == 2:
            repo.sync.migrate_index()
            repo.artifacts.save("t/u/after", "migration", "written to a sharded index")
            repo.sync.push()


def places_at(bucket: Path) -> list[Place]:
    return places_of(f"file://{bucket}")


def found(verified: Verified) -> set[tuple[str, str]]:
    rows = verified.findings.where("severity != 'info'").collect()
    return {(row["kind"], row["rel"]) for row in rows}


@pytest.mark.parametrize(("version", "seed"), [(1, 11), (2, 22)])
def test_every_kind_of_damage_is_found_and_repaired(
    spark: SparkSession, tmp_path: Path, version: int, seed: int
) -> None:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), version=version)
    bucket = Bucket(tmp_path / "bucket")
    before = bucket.payload()
    injected = inject(bucket, MODELS, NAMES, seed)
    places = places_at(bucket.root)

    seen = verify(spark, places, grace=AT_ONCE)
    assert found(seen) == injected.found
    assert not seen.ok
    here = verify_here(places, grace=AT_ONCE)
    assert sorted(here.findings) == sorted(map(tuple, seen.findings.collect()))
    assert (here.kinds, here.open, here.first) == (seen.kinds, seen.open, seen.first)
    assert (here.objects, here.bytes) == (seen.objects, seen.bytes)

    repaired = verify(spark, places, repair=True, grace=AT_ONCE)
    assert repaired.open == 0
    assert repaired.repaired >= len(injected.found)

    quarantine = (bucket.root / "_control/quarantine").rglob("*")
    kept = {
        str(path).partition("/_control/quarantine/")[2].partition("/")[2] for path in quarantine
    }
    for kind, rel in injected.found:
        if kind == kinds.UNDECODABLE_SHARD:
            assert rel in kept
        if kind == kinds.UNDECODABLE_ENTRY:
            assert kept.issuperset(bucket.homes(rel))

    after = verify(spark, places, grace=AT_ONCE)
    assert found(after) == set()
    assert after.ok
    _check_data(before, bucket.payload(), injected.touched)
    _check_data(before, Home(tmp_path / "bob", bucket.root).pulled(), injected.touched)


def _check_data(before: Mapping[str, bytes], now: Mapping[str, bytes], touched: set[str]) -> None:
    """Check that nothing else was touched, and that what is left of damaged names is right."""

    def is_touched(rel: str) -> bool:
        return any(rel.startswith(f"{name}/") for name in touched)

    assert {rel: data for rel, data in now.items() if not is_touched(rel)} == {
        rel: data for rel, data in before.items() if not is_touched(rel)
    }
    for rel, data in now.items():
        if not rel.endswith("/latest"):
            assert data == before[rel], rel
    for name in touched:
        kept = {
            int(rel.split("/")[-2]) for rel in now if rel.startswith(f"{name}/") and "raw" in rel
        }
        assert len(kept) >= 2
        assert int(now[f"{name}/latest"]) in kept


def test_a_bucket_on_a_server_is_verified_and_repaired(
    spark: SparkSession, tmp_path: Path, s3_remote: ProxiedRemote
) -> None:
    home = Home(tmp_path / "ana", tmp_path / "unused")
    section = {"type": "s3", "url": None, "config": dict(s3_remote.config)}
    update_marker(str(home.repo_dir), {"datastore": section})
    fill(home, MODELS[:1], version=2)
    place = Place(store_config("s3", s3_remote.config, environ={}), "s3", "s3://by-hand")
    damaged, lost = "data/t/u/m00/one-twin/1/raw", "data/t/u/m00/alone/1/raw"
    with place.open() as store:
        content = store.get(damaged).data
        store.put(damaged, b"x" * len(content))
        store.delete(lost)
        done = verify(spark, [place], repair=True, grace=AT_ONCE)
        assert store.get(damaged).data == content
        kept = [info.key for info in store.list("_control/quarantine/")]
    assert {(one.kind, one.rel) for one in done.first} == {
        (kinds.CORRUPT, damaged),
        (kinds.MISSING_OBJECT, lost),
        (kinds.LOST, "data/t/u/m00/alone/1"),
    }
    assert (done.open, done.repaired, done.lost) == (0, 2, 1)
    assert not done.ok
    assert {key.partition("/data/")[2] for key in kept} == {
        "t/u/m00/one-twin/1/raw",
        "t/u/m00/alone/1/metadata.yaml",
    }


def test_contents_that_changed_places_a_moment_ago_are_found_and_go_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), MODELS[:8], version=2)
    bucket = Bucket(tmp_path / "bucket")
    before = bucket.payload()
    pairs = [[f"data/{model}/alone/{number}/raw" for number in (1, 2)] for model in MODELS[:8]]
    for one, other in pairs:
        mine, theirs = bucket.get(one), bucket.get(other)
        bucket.put(one, theirs)
        bucket.put(other, mine)
    sized = "data/t/u/m00/one-twin/1/raw"
    bucket.edit(sized, lambda entries: entries[sized].update(size=1_000))

    done = verify(spark, places_at(bucket.root), repair=True)
    expected = {(kinds.CORRUPT, rel) for pair in pairs for rel in pair}
    assert found(done) == {*expected, (kinds.WRONG_ENTRY, sized)}
    assert dict(done.actions) == {"restore": 16, "adopt": 1, "document": 0}
    assert (done.open, done.repaired, done.lost) == (0, 17, 0)
    assert done.ok
    assert bucket.payload() == before
    (quarantine,) = done.quarantine
    assert sum(path.is_file() for path in (bucket.root / quarantine).rglob("*")) == 16
    assert verify(spark, places_at(bucket.root), grace=AT_ONCE).ok


# No false alarm ------------------------------------------------------------------------------


def test_nothing_is_wrong_with_healthy_stores_of_any_kind(
    spark: SparkSession, tmp_path: Path
) -> None:
    places = [
        *_used(tmp_path / "one", version=1),
        *_used(tmp_path / "two", version=2),
        *_shared(tmp_path / "shared"),
        *_of_another_client(tmp_path / "other"),
        *_in_place(tmp_path / "in-place"),
        *places_at(_made(tmp_path / "empty")),
    ]
    seen = verify(spark, places, grace=AT_ONCE)
    assert found(seen) == set()
    assert seen.ok
    assert seen.kinds == {}
    assert seen.objects > 40


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _used(directory: Path, *, version: int) -> list[Place]:
    """A store in which things were deleted, renamed and collected, with a lock that is free."""
    home = Home(directory / "ana", directory / "bucket")
    fill(home, MODELS[:2], version=version)
    with home.open() as repo, repo.session():
        repo.artifacts.delete("t/u/m00", "alone", version=3)
        repo.artifacts.delete("t/u/m01", "alone")
        repo.artifacts.rename("t/u/m00", "one-twin", "renamed")
    return places_at(directory / "bucket")


def _shared(directory: Path) -> list[Place]:
    """Two namespaces of one store."""
    for namespace in ("infra", "team-a"):
        home = Home(directory / namespace, directory / "bucket", namespace=namespace)
        fill(home, MODELS[:1])
    return places_of(f"file://{directory / 'bucket'}", ["infra", "team-a"])


def _of_another_client(directory: Path) -> list[Place]:
    """A store whose entries have nothing that is not needed, and no `_meta.json` of ours."""
    fill(Home(directory / "ana", directory / "bucket"), MODELS[:2], version=2)
    bucket = Bucket(directory / "bucket")
    meta = bucket.document(META_KEY)
    del meta["swampstore"]
    bucket.put_document(META_KEY, meta)
    for path in (directory / "bucket/_index").glob("data--*.json"):
        document = json.loads(path.read_bytes())
        for entry in document["entries"].values():
            for member in ("sha256", "localMtime", "commitSeq"):
                entry.pop(member, None)
        path.write_text(json.dumps(document))
    return places_at(directory / "bucket")


def _in_place(directory: Path) -> list[Place]:
    """A directory without an index, where one version is not committed yet."""
    init_repo(directory).close()
    with open_repo(directory, environ={"SWAMPSTORE_FSYNC": "off"}) as repo:
        repo.artifacts.save("t/u/m00", "alone", "once")
        repo.artifacts.save("t/u/m00", "alone", "twice")
        unfinished = Path(repo.tree.path("data/t/u/m00/alone/3"))
    unfinished.mkdir()
    (unfinished / DEFERRED).touch()
    (unfinished / "raw").write_text("without metadata, which would be wrong")
    return places_of(directory)


def test_what_may_belong_to_a_push_is_no_failure(spark: SparkSession, tmp_path: Path) -> None:
    home = Home(tmp_path / "ana", tmp_path / "bucket")
    fill(home, MODELS[:1], version=2)
    with home.open() as repo:
        repo.artifacts.save("t/u/m00", "alone", "uploaded, and not committed")
        repo.sync.prepare_push()
    seen = verify(spark, places_at(tmp_path / "bucket"))
    name = "data/t/u/m00/alone"
    rows = {(row["kind"], row["rel"]) for row in seen.findings.collect()}
    assert rows == {
        (kinds.IN_FLIGHT, f"{name}/4/raw"),
        (kinds.IN_FLIGHT, f"{name}/4/metadata.yaml"),
        (kinds.IN_FLIGHT, f"{name}/latest"),
    }
    assert seen.ok


# Parts and portions ----------------------------------------------------------------------------


def test_slices_together_see_everything_and_what_was_read_is_not_read_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), MODELS[:6])
    bucket = Bucket(tmp_path / "bucket")
    rels = {f"data/{model}/alone/1/raw" for model in MODELS[:6]}
    for rel in rels:
        bucket.put(rel, b"x" * len(bucket.get(rel)))
    halves = [
        found(verify(spark, places_at(bucket.root), shard=(part, 2), grace=AT_ONCE))
        for part in (1, 2)
    ]
    assert halves[0] | halves[1] == {(kinds.CORRUPT, rel) for rel in rels}
    assert not halves[0] & halves[1]


def test_a_run_that_was_stopped_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), MODELS[:2])
    bucket, work = Bucket(tmp_path / "bucket"), tmp_path / "work"
    places = dict(enumerate(places_at(bucket.root)))
    monkeypatch.setattr(reading, "_OBJECTS", 8)
    whole = Total(objects=len(bucket.payload()))
    with (
        pytest.raises(KeyboardInterrupt),
        _Stopped(spark, places, str(work), no_progress) as stopped,
    ):
        stopped.look(places, whole, everything, everything)
    first = sorted(path.name for path in work.iterdir())
    assert first == ["portion-000000", "portion-000001"]
    before = _contents(spark, work)
    assert before

    bucket.put("data/t/u/m00/alone/1/raw", b"changed meanwhile")
    with Reading(spark, places, str(work), no_progress) as goes_on:
        look = goes_on.look(places, whole, everything, everything)
        found = {
            path.rel: path.content.sha256
            for *_, paths in paths_in(look.rows.toArrow().to_batches(), look.number)
            for path in paths.values()
            if path.content
        }
        assert found == {
            rel: hashlib.sha256(data).hexdigest() for rel, data in bucket.payload().items()
        }
        read_now = _contents(spark, work) - before
        assert not read_now & before
        assert {rel for rel, _ in read_now | before} == set(bucket.payload())
    assert not work.exists()


def _contents(spark: SparkSession, work: Path) -> set[tuple[str, str]]:
    """Return the path and ETag of all that was read and is kept."""
    paths = [str(path) for path in work.iterdir()]
    batches = spark.read.parquet(*paths).where("unit IS NOT NULL").toArrow().to_batches()
    kept = [(rel, seen.etag) for rel, seen in _items(batches) if seen.content]
    assert len(kept) == len(set(kept))
    return set(kept)


def _items(batches: Iterable[Any]) -> list[tuple[str, Any]]:
    return [item for _, _, items in rows_in(batches) for item in items]


class _Stopped(Reading):
    """A reading that somebody stops after two portions."""

    def _kept(self, frame: DataFrame, *, is_all: bool) -> DataFrame:
        if len(self._portions()) == 2:
            raise KeyboardInterrupt
        return super()._kept(frame, is_all=is_all)


def test_what_one_task_should_not_read_alone_is_read_by_all(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), MODELS[:1])
    bucket = Bucket(tmp_path / "bucket")
    places = dict(enumerate(places_at(bucket.root)))
    monkeypatch.setattr(reading, "_WORTH_A_TASK", Budget(2, 1 << 20))
    with Reading(spark, places, None, no_progress) as read:
        look = read.look(places, Total(), everything, everything)
        assert look.total.unread
        seen = [body for _, body in _items(look.rows.toArrow().to_batches())]
    assert sum(one.content is not None for one in seen) == len(bucket.payload())


def test_a_sample_reads_a_part_and_a_missing_object_is_found_all_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(Home(tmp_path / "ana", tmp_path / "bucket"), MODELS[:4])
    bucket = Bucket(tmp_path / "bucket")
    damaged = {f"data/{model}/alone/{number}/raw" for model in MODELS[:4] for number in (1, 2)}
    for rel in damaged:
        bucket.put(rel, b"x" * len(bucket.get(rel)))
    lost = "data/t/u/m03/alone/3/raw"
    bucket.remove(lost)
    seen = found(verify(spark, places_at(bucket.root), sample=0.5, grace=AT_ONCE))
    assert (kinds.MISSING_OBJECT, lost) in seen
    corrupt = {rel for kind, rel in seen if kind == kinds.CORRUPT}
    assert set() < corrupt < damaged


def test_a_dry_run_tells_what_would_be_done_and_a_repair_restores_from_the_cache(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = Home(tmp_path / "ana", tmp_path / "bucket")
    for variable, value in ana.environ.items():
        monkeypatch.setenv(variable, value)
    fill(ana, MODELS[:1])
    bucket = Bucket(tmp_path / "bucket")
    before = bucket.payload()
    bucket.put("data/t/u/m00/alone/1/raw", b"?" * 16)
    bucket.remove("data/t/u/m00/alone/2/raw")
    damaged = bucket.payload()
    places = places_of(ana.repo_dir)

    would = verify(spark, places, repair=True, dry_run=True, grace=AT_ONCE)
    assert would.dry_run
    assert (would.open, would.repaired, dict(would.actions)) == (2, 0, {"restore": 2})
    assert bucket.payload() == damaged
    done = verify(spark, places, repair=True, grace=AT_ONCE)
    assert (done.open, done.repaired, done.lost) == (0, 2, 0)
    assert done.ok
    assert bucket.payload() == before


def test_what_looks_wrong_only_because_others_commit_is_not_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = Home(tmp_path / "ana", tmp_path / "bucket")
    fill(ana, MODELS[:1], version=2)
    bucket = Bucket(tmp_path / "bucket")
    damaged = "data/t/u/m00/one-twin/1/raw"
    bucket.put(damaged, b"x" * len(bucket.get(damaged)))
    looks = []

    def look(self: Reading, *args: Any) -> Evidence:
        # The entries have been read; now somebody deletes a name, and its objects go.
        looks.append(1)
        if len(looks) == 1:
            with ana.open() as repo, repo.session():
                repo.artifacts.delete("t/u/m00", "alone")
        return unhurried(self, *args)

    unhurried = Reading.look
    monkeypatch.setattr(Reading, "look", look)
    seen = verify(spark, places_at(bucket.root), grace=AT_ONCE)
    assert found(seen) == {(kinds.CORRUPT, damaged)}
    assert len(looks) == 2


def test_a_sample_is_no_ground_for_a_repair(tmp_path: Path) -> None:
    places = places_at(_made(tmp_path / "bucket"))
    with pytest.raises(ValidationError, match="too little"):
        verify(NO_SPARK, places, sample=0.5, repair=True)
    with pytest.raises(ValidationError, match="no slice"):
        verify(NO_SPARK, places, shard=(3, 2))


# What is done about damage: rules without Spark --------------------------------------------------

NAME = "data/t/u/m/n"


def _version(number: int, **raw: object) -> dict[str, File]:
    digest = hashlib.sha256(b"content").hexdigest()
    metadata = File(
        f"{NAME}/{number}/metadata.yaml",
        size=9,
        there=9,
        hash="m",
        sha256="m",
        checksum=digest,
        claimed_size=7,
        described=("n", number),
    )
    members: dict[str, object] = {"size": 7, "there": 7, "hash": digest, "sha256": digest}
    content = File(f"{NAME}/{number}/raw", **(members | raw))  # type: ignore[arg-type]
    return {"metadata.yaml": metadata, "raw": content}


def _latest(number: int, **members: object) -> File:
    digest = marker_sha256(number)
    known = {"size": 1, "there": 1, "hash": digest, "sha256": digest, "marker": number}
    return File(f"{NAME}/latest", **(known | members))  # type: ignore[arg-type]


def _nowhere(wanted: Wanted) -> Content | None:
    return None


def _everywhere(wanted: Wanted) -> Content | None:
    return Content(wanted.sha256)


def mend_name(
    name: str, versions: Mapping[int, dict[str, File]], latest: File | None, find: Find
) -> Iterator[Action]:
    return Mender(find).mend_name(name, versions, latest)


def mend_file(file: File, find: Find) -> Iterator[Action]:
    return Mender(find).mend_file(file)


def test_nothing_is_done_about_a_name_that_is_whole() -> None:
    versions = {1: _version(1), 2: _version(2)}
    assert not list(mend_name(NAME, versions, _latest(2), _nowhere))


def test_content_is_restored_from_a_copy_if_there_is_one() -> None:
    digest = hashlib.sha256(b"content").hexdigest()
    versions = {1: _version(1), 2: _version(2, kind=kinds.CORRUPT, hash="other")}
    assert list(mend_name(NAME, versions, _latest(2), _everywhere)) == [
        Action("restore", f"{NAME}/2/raw", digest)
    ]


def test_a_version_that_is_beyond_repair_goes_as_a_whole_and_latest_moves() -> None:
    versions = {1: _version(1), 2: _version(2, kind=kinds.CORRUPT, hash="other")}
    actions = list(mend_name(NAME, versions, _latest(2), _nowhere))
    assert Action("quarantine", f"{NAME}/2/raw") in actions
    assert Action("quarantine", f"{NAME}/2/metadata.yaml") in actions
    assert Action("write", f"{NAME}/latest", "1") in actions
    assert [action.rel for action in actions if action.do == "lost"] == [f"{NAME}/2"]


def test_what_is_wrong_and_young_is_restored_or_left_but_not_given_up() -> None:
    damaged = {"kind": kinds.CORRUPT, "hash": "other", "is_young": True}
    versions = {1: _version(1), 2: _version(2, **damaged)}
    assert not list(mend_name(NAME, versions, _latest(2), _nowhere))
    assert [one.do for one in mend_name(NAME, versions, _latest(2), _everywhere)] == ["restore"]
    file = File("logs/a", size=3, there=3, sha256="x", **damaged)  # type: ignore[arg-type]
    assert not list(mend_file(file, _nowhere))
    assert [one.do for one in mend_file(file, _everywhere)] == ["restore"]


def test_an_entry_that_contradicts_content_and_metadata_is_put_right() -> None:
    versions = {1: _version(1, kind=kinds.CORRUPT, sha256="wrong")}
    assert list(mend_name(NAME, versions, _latest(1), _nowhere)) == [
        Action("adopt", f"{NAME}/1/raw")
    ]


def test_a_version_of_a_push_that_stopped_is_adopted_with_its_marker() -> None:
    orphan = {"kind": kinds.ORPHAN, "is_named": False, "size": None, "sha256": None}
    second = {name: structs.replace(file, **orphan) for name, file in _version(2).items()}
    latest = _latest(2, kind=kinds.CORRUPT, sha256=marker_sha256(1))
    actions = list(mend_name(NAME, {1: _version(1), 2: second}, latest, _nowhere))
    assert {(action.do, action.rel) for action in actions} == {
        ("adopt", f"{NAME}/2/raw"),
        ("adopt", f"{NAME}/2/metadata.yaml"),
        ("adopt", f"{NAME}/latest"),
    }


def test_what_is_in_flight_is_left_alone_with_its_marker() -> None:
    versions = {1: _version(1), 2: _version(2, kind=kinds.IN_FLIGHT, is_named=False)}
    assert not list(mend_name(NAME, versions, _latest(7, kind=kinds.CORRUPT), _nowhere))


def test_a_marker_without_any_version_goes() -> None:
    assert list(mend_name(NAME, {}, _latest(1), _nowhere)) == [
        Action("quarantine", f"{NAME}/latest")
    ]


def test_a_plain_file_without_a_copy_is_lost_and_an_orphan_is_only_set_aside() -> None:
    file = File("logs/a", kind=kinds.MISSING_OBJECT, size=3, sha256="x")
    assert [one.do for one in mend_file(file, _nowhere)] == ["forget", "lost"]
    assert [one.do for one in mend_file(file, _everywhere)] == ["restore"]
    orphan = File("logs/b", kind=kinds.ORPHAN, is_named=False, there=3, hash="y")
    assert [one.do for one in mend_file(orphan, _nowhere)] == ["quarantine"]


# What people read --------------------------------------------------------------------------------


def _verified(**members: Any) -> Verified:
    empty: dict[str, Any] = {
        **dict.fromkeys(("places", "objects", "bytes", "open", "repaired", "lost"), 0),
        "kinds": {},
        "actions": {},
        "first": (),
        "dry_run": False,
        "seconds": 0.0,
        "findings": None,
    }
    return Verified(**(empty | members))


def test_a_store_without_damage_is_told_so() -> None:
    told = cli._text(_verified(objects=1))
    assert told == "Verified 1 object, 0 B: 0 wrong, 0 repaired. All is well."


def test_what_is_lost_is_said_loudly() -> None:
    why = "its content is lost"
    finding = Finding("s", "", kinds.LOST, f"{NAME}/2", None, why, "error", repaired=False)
    lost = _verified(objects=9, repaired=1, lost=1, first=(finding,), actions={"quarantine": 2})
    told = cli._text(lost)
    assert "LOST FOR GOOD: 1." in told
    assert "Done: 2 objects moved to quarantine." in told
    assert f"{NAME}/2" in told
    assert not lost.ok
    assert "WOULD BE LOST: 1." in cli._text(replace(lost, dry_run=True))
