"""Places, and the tables of what is stored in them; most of it without Spark."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from pyarrow import parquet

from swampstore import init_repo, open_repo
from swampstore.catalog.schema import Row
from swampstore.config import LockSettings
from swampstore.errors import ConfigError, NotFoundError, RepoNotFoundError
from swampstore.index.errors import IndexMovedError
from swampstore.index.results import Step, no_progress
from swampstore.layout import METADATA
from swampstore.locks.record import global_key
from swampstore.pipeline import load, places_of, running, schemas
from swampstore.pipeline.errors import SparkJobError
from swampstore.pipeline.index_writer import committer, editing
from swampstore.pipeline.places import Place
from swampstore.pipeline.planning import Piece, bins, listed, pieces
from swampstore.pipeline.running import run_tasks
from swampstore.pipeline.schemas import (
    ARTIFACTS,
    Kept,
    arrow_schema,
    write_few_findings,
    write_table,
)
from swampstore.pipeline.snapshots.refresh import refresh
from swampstore.pipeline.source import PUSH_DOWN
from swampstore.pipeline.source.index import Index
from swampstore.pipeline.source.objects import Chosen, Contents, Files, Objects
from tests.support.machines import Machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORE, _NAMESPACE, _REL = 0, 1, 2


@pytest.fixture
def shared(bucket: Path, ana: Machine) -> Path:
    """A bucket with five models of three versions each."""
    ana.use(bucket)
    for number in range(5):
        for version in range(3):
            ana.put(f"aws/ec2/i-{number}", "state", f"{number}.{version}")
    assert ana("sync").status == 0
    return bucket


def rows(table: Any, place: Place, tasks: int = 4) -> list[tuple[Any, ...]]:
    with place.open() as store:
        return [
            row
            for piece in table.plan(place, store, tasks)
            for row in table.rows(place, piece, store)
        ]


def payload(bucket: Path) -> set[str]:
    return {str(path.relative_to(bucket)) for path in bucket.rglob("data/**/*") if path.is_file()}


# Places ----------------------------------------------------------------------------------------


def test_a_url_means_every_namespace_and_what_is_outside_of_them(
    shared: Path, bob: Machine
) -> None:
    bob.use(shared)
    assert bob("datastore", "namespace", "set", "infra").status == 0
    bob.put("aws/ec2/i-9", "state", "x")
    assert bob("sync").status == 0
    url = f"file://{shared}"
    assert [place.namespace for place in places_of(url)] == ["", "infra"]
    assert [place.namespace for place in places_of(url, ["infra"])] == ["infra"]
    assert [place.namespace for place in places_of(url, [""])] == [""]
    assert [place.namespace for place in places_of(url, ["*"])] == ["", "infra"]
    own = places_of(bob.repo_dir)
    assert [(place.namespace, place.root) for place in own] == [("infra", str(shared))]
    with pytest.raises(NotFoundError, match="no namespace 'nobody'"):
        places_of(url, ["nobody"])


def test_a_repository_in_place_is_its_directory(tmp_path: Path) -> None:
    init_repo(tmp_path).close()
    with open_repo(tmp_path, environ={}) as repo:
        repo.artifacts.save("aws/ec2/i-1", "state", "1")
        (place,) = places_of(repo)
    assert not place.indexed
    assert place.root == str(tmp_path / ".swamp")
    assert {row[_REL] for row in rows(Objects(), place) if not row[7]} == {
        f"data/aws/ec2/i-1/state/{file}" for file in ("latest", "1/raw", f"1/{METADATA}")
    }
    (same,) = places_of(f"filesystem:{tmp_path}/.swamp")
    assert not same.indexed
    assert rows(Contents(), same) == rows(Contents(), place)


def test_what_is_no_place_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RepoNotFoundError):
        places_of(tmp_path, environ={})
    with pytest.raises(ConfigError, match="is not there"):
        places_of(f"filesystem:{tmp_path}/nothing")


def test_a_place_travels_with_its_credentials() -> None:
    from swampstore.stores.config import store_config

    members = {"bucket": "abc", "accessKeyId": "k", "secretAccessKey": "s3cret"}
    place = Place(store_config("s3", members, environ={}), "s3://abc", "s3://abc", "infra")
    assert pickle.loads(pickle.dumps(place)) == place
    assert "s3cret" not in repr(place)


# Planning --------------------------------------------------------------------------------------


@given(st.lists(st.integers(min_value=0, max_value=100)), st.integers(min_value=1, max_value=9))
def test_bins_hold_everything_once_and_weigh_about_the_same(weights: list[int], count: int) -> None:
    packed = bins(range(len(weights)), lambda item: weights[item], count)
    assert sorted(item for one in packed for item in one) == [*range(len(weights))]
    assert len(packed) <= count
    loads = sorted(sum(max(1, weights[item]) for item in one) for one in packed)
    if len(packed) == count:
        assert loads[-1] - loads[0] <= max(map(max, [[1], weights]))


@pytest.mark.parametrize("count", [1, 2, 8, 50])
def test_pieces_together_are_the_whole_listing_and_cut_no_name(shared: Path, count: int) -> None:
    (shared / "stray").write_bytes(b"x")
    (shared / "data/aws/lonely").write_bytes(b"x")
    (place,) = places_of(f"file://{shared}")
    with place.open() as store:
        cut = pieces(place, store, count)
        found = [one for piece in cut for one in listed(piece, store)]
        whole = sorted(info.key for info in store.list())
        assert sorted(one.info.key for one in found) == whole
        for piece in cut:
            for one in listed(Piece(place, deep=piece.deep), store):
                if one.rel.endswith("/latest"):
                    home = one.rel.rpartition("/")[0]
                    inner = {two.rel for two in listed(piece, store)}
                    assert f"{home}/3/raw" in inner


def test_what_others_own_is_not_listed(shared: Path) -> None:
    (shared / "other/data").mkdir(parents=True)
    (shared / "other/data/x").write_bytes(b"x")
    (shared / "other/.namespace.json").write_text("{}")
    (place,) = places_of(f"file://{shared}", [""])
    assert not [row for row in rows(Objects(), place) if row[_REL].startswith("other")]
    (theirs,) = places_of(f"file://{shared}", ["other"])
    found = sorted(row[_REL] for row in rows(Objects(), theirs))
    assert found == [".namespace.json", "data/x"]


# Tables ----------------------------------------------------------------------------------------


def test_contents_tell_what_every_object_holds(shared: Path) -> None:
    (place,) = places_of(f"file://{shared}")
    found = {row[_REL]: row for row in rows(Contents(), place)}
    assert found.keys() == payload(shared)
    for rel, row in found.items():
        data = (shared / rel).read_bytes()
        assert row[8:10] == (hashlib.sha256(data).hexdigest(), len(data))
    name = "data/aws/ec2/i-2/state"
    assert found[f"{name}/latest"][10] == 3
    described = found[f"{name}/2/{METADATA}"]
    assert described[11:15] == (hashlib.sha256(b"2.1").hexdigest(), 3, "state", 2)


def test_contents_say_what_cannot_be_understood(shared: Path) -> None:
    name = shared / "data/aws/ec2/i-2/state"
    (name / "latest").write_bytes(b"nonsense")
    (name / "1" / METADATA).write_bytes(b"{")
    (place,) = places_of(f"file://{shared}")
    found = {row[_REL]: row for row in rows(Contents(), place)}
    assert found["data/aws/ec2/i-2/state/latest"][10] is None
    assert METADATA in found[f"data/aws/ec2/i-2/state/1/{METADATA}"][-1]


def test_portions_share_all_contents_among_them(shared: Path) -> None:
    (place,) = places_of(f"file://{shared}")
    portions = [
        {row[_REL] for row in rows(Contents(Chosen(number, 3)), place)} for number in range(3)
    ]
    assert set().union(*portions) == payload(shared)
    assert sum(map(len, portions)) == len(payload(shared))
    sample = {row[_REL] for row in rows(Contents(Chosen(sample=0.5)), place)}
    assert sample < payload(shared)
    assert sample


def test_large_objects_are_hashed_as_well(shared: Path) -> None:
    (shared / "files").mkdir()
    (shared / "files/large").write_bytes(b"x" * (5 << 20))
    (place,) = places_of(f"file://{shared}")
    found = {row[_REL]: row for row in rows(Contents(), place)}["files/large"]
    assert found[8:10] == (hashlib.sha256(b"x" * (5 << 20)).hexdigest(), 5 << 20)


@pytest.mark.parametrize("sharded", [False, True])
def test_the_index_has_a_row_for_every_object(shared: Path, ana: Machine, *, sharded: bool) -> None:
    if sharded:
        assert ana("datastore", "migrate-index").status == 0
    (place,) = places_of(f"file://{shared}")
    found = rows(Index(), place)
    assert {row[4] for row in found} == payload(shared)
    assert len(found) == len(payload(shared))
    for row in found:
        data = (shared / row[4]).read_bytes()
        assert (row[5], row[7]) == (len(data), hashlib.sha256(data).hexdigest())
        assert json.loads(row[10])["key"] == row[4]
        assert row[2].startswith("_index/") is sharded
    every = rows(Index(every_document=True), place)
    assert len(every) == 2 * len(found)


def test_index_documents_that_are_lost_or_damaged_are_rows_with_a_problem(
    shared: Path, ana: Machine
) -> None:
    assert ana("datastore", "migrate-index").status == 0
    (shared / "_index/data--aws--ec2--i-0.json").unlink()
    (shared / "_index/data--aws--ec2--i-1.json").write_bytes(b"{")
    (place,) = places_of(f"file://{shared}")
    problems = {row[3]: row[-1] for row in rows(Index(), place) if row[4] is None}
    assert problems.keys() == {"data--aws--ec2--i-0", "data--aws--ec2--i-1"}
    assert problems["data--aws--ec2--i-0"] == "it is missing"
    assert "cannot be understood" in problems["data--aws--ec2--i-1"]
    (shared / "_index/_meta.json").write_bytes(b"garbage")
    problems = {row[2]: row[-1] for row in rows(Index(every_document=True), place)}
    assert "cannot be understood" in problems["_index/_meta.json"]


def test_an_entry_that_makes_no_sense_is_a_row_with_a_problem(shared: Path) -> None:
    monolith = shared / ".datastore-index.json"
    document = json.loads(monolith.read_bytes())
    rel = next(iter(document["entries"]))
    document["entries"][rel] = {"size": -1}
    monolith.write_text(json.dumps(document))
    (place,) = places_of(f"file://{shared}")
    (bad,) = [row for row in rows(Index(), place) if row[-1]]
    assert (bad[4], json.loads(bad[10])) == (rel, {"size": -1})


def test_files_have_their_hash_only_if_asked(shared: Path) -> None:
    (place,) = places_of(f"file://{shared}")
    plain = {row[3]: row for row in rows(Files(), place)}
    hashed = {row[3]: row for row in rows(Files(hashed=True), place)}
    assert plain.keys() == hashed.keys() == payload(shared)
    for rel, row in hashed.items():
        assert row[-1] == hashlib.sha256((shared / rel).read_bytes()).hexdigest()
        assert plain[rel][-1] is None


# Editing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_an_edit_is_a_commit_that_other_machines_see(
    shared: Path, ana: Machine, bob: Machine, *, sharded: bool
) -> None:
    if sharded:
        assert ana("datastore", "migrate-index").status == 0
    (place,) = places_of(f"file://{shared}")
    gone = {rel for rel in payload(shared) if rel.startswith("data/aws/ec2/i-3/")}
    with editing(place) as writer:
        before = writer.entries()
        assert before.keys() == payload(shared)
        writer.commit({}, gone)
        assert writer.entries().keys() == before.keys() - gone
        one = next(iter(gone))
        writer.commit({one: before[one]}, [])
        assert one in writer.entries()
        writer.commit({}, [one])
    bob.use(shared)
    assert bob("sync").status == 0
    assert not (bob.cache / "data/aws/ec2/i-3").exists()
    assert bob.get("aws/ec2/i-2", "state") == "2.2"


def test_an_edit_keeps_others_from_working_and_a_committer_does_not(shared: Path) -> None:
    from swampstore.errors import LockTimeoutError

    (place,) = places_of(f"file://{shared}")
    with (
        editing(place),
        committer(replace(place, locks=LockSettings(timeout=0.2))) as other,
        pytest.raises(LockTimeoutError),
    ):
        other.commit({}, list(payload(shared))[:1])
    with committer(place) as one, committer(place) as other:
        gone = sorted(payload(shared))
        one.commit({}, gone[:1])
        other.commit({}, gone[1:2])
        assert len(one.entries()) == len(gone) - 2


def test_jobs_wait_for_locks_and_keep_them_as_the_settings_say(shared: Path) -> None:
    from swampstore.errors import LockTimeoutError

    environ = {"SWAMP_LOCK_TIMEOUT_MS": "150", "SWAMPSTORE_LOCK_TTL_MS": "90000"}
    (place,) = places_of(f"file://{shared}", environ=environ)
    with editing(place) as holder:
        state = holder.locks.inspect(global_key(""))
        assert state is not None
        assert state.record is not None
        assert state.record.ttl == 90.0
        with pytest.raises(LockTimeoutError, match="waited 0 s"), editing(place):
            pass


def test_jobs_take_the_lock_settings_of_an_open_repository(shared: Path, ana: Machine) -> None:
    environ = {"SWAMP_LOCK_TIMEOUT_MS": "1500"}
    with open_repo(ana.repo_dir, environ=ana.environ | environ) as repo:
        (place,) = places_of(repo, environ={})
    assert place.locks == LockSettings(timeout=1.5, ttl=30.0)


def test_a_commit_that_was_overtaken_is_refused(shared: Path) -> None:
    (place,) = places_of(f"file://{shared}")
    rel = "data/aws/ec2/i-3/state/latest"
    with committer(place) as one, committer(place) as other:
        seen = one.view([rel])
        entry = other.entries()[rel]
        other.commit({rel: structs.replace(entry, size=2)})
        with pytest.raises(IndexMovedError):
            one.commit({}, [rel], view=seen)


# On Spark --------------------------------------------------------------------------------------


def test_tables_are_data_frames_of_all_their_places(
    spark: SparkSession, shared: Path, tmp_path: Path
) -> None:
    init_repo(tmp_path / "other").close()
    with open_repo(tmp_path / "other", environ={}) as repo:
        repo.artifacts.save("aws/ec2/i-1", "state", "1")
    tables = load(spark, f"file://{shared}")
    both = type(tables)(spark, [*tables.places, *places_of(tmp_path / "other")])
    counts = both.contents().groupBy("store").count().collect()
    assert {row["store"]: row["count"] for row in counts} == {
        tables.places[0].identity: len(payload(shared)),
        both.places[1].identity: 3,
    }
    joined = tables.contents().join(tables.index(), ["rel", "sha256", "size"])
    assert joined.count() == len(payload(shared))
    tables.objects().createOrReplaceTempView("objects")
    (row,) = spark.sql("SELECT max(last_modified) AS newest, count(*) AS n FROM objects").collect()
    assert row["n"] > len(payload(shared))
    findings = tables.index().selectExpr("store", "rel", "problem").limit(3)
    write_table(findings, str(tmp_path / "found.json"))
    lines = (tmp_path / "found.json").read_text().splitlines()
    assert [sorted(json.loads(line)) for line in lines] == [["rel", "store"]] * 3
    for _ in range(2):  # what is there is replaced
        write_table(findings, str(tmp_path / "found"))
    assert spark.read.parquet(str(tmp_path / "found")).count() == 3


@pytest.mark.parametrize("name", ["found.json", "found"])
def test_findings_of_earlier_runs_stay_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = str(tmp_path / name)
    rows = [{"kind": "wrong-size", "rel": rel, "severity": "error"} for rel in "ab"]
    for number, append in enumerate([True, True, False, True]):
        monkeypatch.setattr(schemas, "run_id", lambda number=number: f"2026-01-01T00:0{number}Z")
        write_few_findings(rows, Kept(path, append))
        if name.endswith(".json"):
            found = [json.loads(line) for line in Path(path).read_text().splitlines()]
        else:
            found = parquet.read_table(path).to_pylist()
        runs = Counter(row["run_id"][15] for row in found)
        assert runs == [{"0": 2}, {"0": 2, "1": 2}, {"2": 2}, {"2": 2, "3": 2}][number]
    assert sorted(os.listdir(tmp_path)) == [name]  # nothing is left beside it


def _doubled(number: int) -> Iterator[int]:
    if number < 0:
        raise NotFoundError(f"no {number}", hint="Look elsewhere.")
    yield from (number, number)


def test_tasks_yield_all_results_and_raise_our_errors_as_they_are(spark: SparkSession) -> None:
    steps: list[Step] = []
    found = list(run_tasks(spark, _doubled, range(5), label="double", progress=steps.append))
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert steps[-1] == Step("double", 5, 5, 0, 0, "tasks")
    with pytest.raises(NotFoundError, match="no -1") as caught:
        list(run_tasks(spark, _doubled, [1, -1], label="double", progress=no_progress))
    assert caught.value.hint == "Look elsewhere."
    with pytest.raises(SparkJobError, match="ZeroDivisionError"):
        list(run_tasks(spark, lambda n: [1 // n], [0], label="divide", progress=no_progress))


def test_every_session_finds_the_source_and_tells_what_is_wrong_without_a_stack(
    spark: SparkSession, shared: Path
) -> None:
    # A session of its own, in which nobody registered anything.
    fresh = spark.newSession()

    def read(**options: str) -> int:
        frame = fresh.read.format("swampstore").options(**options).load(f"file://{shared}")
        return int(frame.count())

    assert read(table="objects") > 0
    refresh(places_of(f"file://{shared}"), engine="local")
    for options, reason, hint in (
        ({"table": "zz"}, "there is no table 'zz'", "There are: artifacts"),
        ({"asOf": "yesterday"}, "is neither the number of", "Write for example 841"),
    ):
        with pytest.raises(Exception, match=reason) as caught:
            read(**options)
        assert hint in str(caught.value)
        assert "Traceback" not in str(caught.value)
    pushing = spark.read.format("swampstore").option("pushdown", "true").load(f"file://{shared}")
    spark.conf.set(PUSH_DOWN, "false")
    try:
        with pytest.raises(Exception, match=PUSH_DOWN) as caught:
            pushing.where("version = 1").count()
        assert "[DATA_SOURCE_PUSHDOWN_DISABLED]" in str(caught.value)
        assert "Set it to true" in str(caught.value)
        plain = spark.read.format("swampstore").load(f"file://{shared}")
        assert plain.where("version = 1").count() > 0
    finally:
        spark.conf.set(PUSH_DOWN, "true")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to create it: swampstore.errors.NotFoundError: no x"
            "\nDo y.\n SQLSTATE: 38000",
            "swampstore.errors.NotFoundError: no x",
        ),
        ("An exception was thrown from the Python worker:\nKeyError: 'x'", "KeyError: 'x'"),
        (
            "Job aborted: [E] An exception was thrown from the Python worker: KeyError: 'x'\nat x",
            "KeyError: 'x'",
        ),
        ("x\nTraceback (most recent call last):\n  File \"a\"\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("no memory\nat org.apache", "no memory"),
    ],
)
def test_what_a_task_raised_is_found_in_what_spark_says(said: str, cause: str) -> None:
    assert running._cause(Exception(said)) == cause


def test_the_table_of_artifacts_has_the_columns_of_the_catalog() -> None:
    assert arrow_schema(ARTIFACTS).names == ["store", *Row._fields]
