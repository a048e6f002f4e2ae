"""The catalog from files that Spark read: the same rows, and never older than the files."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from swampstore import Repo, init_repo, open_repo
from swampstore.artifacts.versions import data_names
from swampstore.catalog import disk_rows
from swampstore.catalog import rebuild as rebuilding
from swampstore.catalog.disk_rows import NameOnDisk, is_current, read_early
from swampstore.errors import DiskError
from swampstore.files import signature
from swampstore.index.results import no_progress
from swampstore.layout import LATEST, METADATA, DataRef
from swampstore.pipeline import catalog as bulk
from swampstore.pipeline import places_of
from swampstore.pipeline.engines import SparkOnDemand
from swampstore.pipeline.errors import FilesNotSeenError
from swampstore.pipeline.export import export
from swampstore.pipeline.running import NoSharedDir, run_waves
from swampstore.pipeline.settings import SparkSettings
from tests.catalog.test_catalog import assert_equals_disk, rows
from tests.support.machines import Machine
from tests.support.spark_testing import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER = 1 << 62  # a time at which nothing that is there now is young


def fill(repo: Repo) -> None:
    """Save something of every kind: steps, tags, tombstones, renames, deferred, damaged."""
    for number in range(12):
        for version in range(3):
            repo.artifacts.save(f"aws/ec2/i-{number}", "state", {"n": version}, tags={"v": "x"})
    repo.artifacts.save("aws/ec2/i-1", "old", "x")
    repo.artifacts.rename("aws/ec2/i-1", "old", "new")
    repo.artifacts.delete("aws/ec2/i-2", "state")
    repo.artifacts.save("deep/type/of/model/m", "1", "a numeric name")
    name = Path(repo.tree.path("data/aws/ec2/i-3/state"))
    (name / "2" / METADATA).write_text("no: [yaml")
    (name / LATEST).unlink()
    (name / "9").mkdir()  # claimed, never finalised


def refs(repo: Repo) -> list[DataRef]:
    def fail(place: str, error: OSError) -> None:
        raise AssertionError(place) from error

    return list(data_names(repo.tree, fail))


def run_here(
    _spark: object,
    work: Callable[[Any], Iterable[Any]],
    waves: Iterable[Sequence[Any]],
    *,
    label: str,
    progress: object,
) -> Iterator[Iterator[Any]]:
    """Do what `run_waves` does without Spark, pickling as it does."""
    del label, progress
    for items in waves:
        results = [pickle.dumps(list(pickle.loads(pickle.dumps(work))(item))) for item in items]
        yield (one for result in results for one in pickle.loads(result))


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks run in this process, in a session that is none."""
    monkeypatch.setattr(bulk, "run_waves", run_here)
    fake = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    monkeypatch.setattr(SparkOnDemand, "session", lambda _self, **_: fake)


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[DataRef]:
    """The names that a rebuild read itself, being not sure of what was read early."""
    again: list[DataRef] = []
    read_name = disk_rows.read_name

    def noted(tree: Any, namespace: str, ref: DataRef) -> NameOnDisk:
        again.append(ref)
        return read_name(tree, namespace, ref)

    monkeypatch.setattr(rebuilding, "read_name", noted)
    return again


@pytest.fixture
def nothing_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "RACY_NS", -LATER)


# Readings ----------------------------------------------------------------------------------------


@pytest.fixture
def ref(repo: Repo) -> DataRef:
    for number in range(3):
        repo.artifacts.save("aws/ec2/i-1", "state", {"n": number})
    return repo.ref("aws/ec2/i-1", "state")


def test_what_was_read_is_believed_as_long_as_nothing_looks_different(
    repo: Repo, ref: DataRef
) -> None:
    reading = read_early(repo.tree, "", ref, LATER)
    assert is_current(repo.tree, reading)
    assert [row.version for row in reading.rows] == [3, 2, 1]


def test_what_was_not_read_is_never_believed(repo: Repo, ref: DataRef) -> None:
    assert not is_current(repo.tree, NameOnDisk(ref))


def test_what_was_young_when_it_was_read_is_not_believed(repo: Repo, ref: DataRef) -> None:
    metadata = Path(repo.tree.path(ref.file_rel(3, METADATA)))
    written = metadata.stat().st_mtime_ns
    second = 10**9
    assert not is_current(repo.tree, read_early(repo.tree, "", ref, written + second))
    assert is_current(repo.tree, read_early(repo.tree, "", ref, written + 60 * second))


CHANGES: dict[str, Callable[[Repo, DataRef], object]] = {
    "another version": lambda repo, ref: repo.artifacts.save(ref.model, ref.name, {"n": 9}),
    "a deleted version": lambda repo, ref: repo.artifacts.delete(ref.model, ref.name, version=1),
    "a tombstone": lambda repo, ref: repo.artifacts.delete(ref.model, ref.name),
    "metadata that is written in place": lambda repo, ref: os.utime(
        repo.tree.path(ref.file_rel(2, METADATA))
    ),
    "a marker that is written in place": lambda repo, ref: Path(
        repo.tree.path(ref.latest_rel)
    ).write_text("1"),
    "a version that is deferred": lambda repo, ref: Path(
        repo.tree.path(ref.file_rel(3, ".deferred"))
    ).touch(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_read_is_not_believed_after(repo: Repo, ref: DataRef, change: str) -> None:
    reading = read_early(repo.tree, "", ref, LATER)
    CHANGES[change](repo, ref)
    assert not is_current(repo.tree, reading)


# Rebuilding --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_spark", "nothing_is_young")
def test_what_was_read_early_and_did_not_change_is_not_read_again(
    repo: Repo, read_again: list[DataRef]
) -> None:
    fill(repo)
    read_again.clear()
    rebuilt = bulk.rebuild(repo, engine="spark")
    assert rebuilt.engine == "spark"
    assert rebuilt.names == len(refs(repo))
    assert read_again == []
    assert repo.catalog.is_populated
    assert_equals_disk(repo)


def somebody_else_writes(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> None:
    """Have another thread write something after a wave was read and before it is stored."""

    def late(*args: Any, **options: Any) -> Iterator[Any]:
        for results in run_here(*args, **options):
            writer = threading.Thread(target=write)
            writer.start()
            writer.join()
            yield results

    monkeypatch.setattr(bulk, "run_waves", late)


@pytest.mark.usefixtures("without_spark", "nothing_is_young")
def test_a_name_that_changes_after_it_was_read_is_read_again(
    repo: Repo, read_again: list[DataRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)

    def write() -> None:
        repo.artifacts.save("aws/ec2/i-4", "state", {"n": "late"})
        repo.artifacts.delete("aws/ec2/i-5", "state", version=1)
        repo.artifacts.save("aws/ec2/fresh", "state", "x")

    somebody_else_writes(monkeypatch, write)
    repo.catalog.clear()
    read_again.clear()
    bulk.rebuild(repo, engine="spark")
    assert {ref.model.id for ref in read_again} == {"i-4", "i-5"}
    assert repo.latest("aws/ec2/i-4", "state").version == 4
    assert_equals_disk(repo)


@pytest.mark.usefixtures("without_spark")
def test_names_of_just_now_are_believed_as_long_as_nobody_writes_anything(
    repo: Repo, read_again: list[DataRef]
) -> None:
    fill(repo)
    read_again.clear()
    bulk.rebuild(repo, engine="spark")
    assert read_again == []
    assert_equals_disk(repo)


@pytest.mark.usefixtures("without_spark")
def test_names_of_just_now_are_all_read_again_if_somebody_writes_one(
    repo: Repo, read_again: list[DataRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)
    somebody_else_writes(monkeypatch, lambda: repo.artifacts.save("aws/ec2/i-4", "state", "x"))
    read_again.clear()
    bulk.rebuild(repo, engine="spark")
    assert sorted(read_again) == sorted(refs(repo))
    assert_equals_disk(repo)


@pytest.mark.usefixtures("without_spark")
def test_nothing_read_early_is_believed_once_the_catalog_is_another_file(
    repo: Repo, read_again: list[DataRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)

    def lose() -> None:
        for path in Path(repo.config.local_dir).glob("swampstore.db*"):
            path.unlink()
        repo.artifacts.save("aws/ec2/i-4", "state", "x")

    somebody_else_writes(monkeypatch, lose)
    read_again.clear()
    bulk.rebuild(repo, engine="spark")
    assert sorted(read_again) == sorted(refs(repo))
    assert_equals_disk(repo)


def test_a_rebuild_leaves_rows_alone_that_are_right(repo: Repo) -> None:
    fill(repo)
    repo.rebuild_catalog()
    before = repo.catalog.rows.read(lambda db: db.total_changes)
    repo.rebuild_catalog()
    after = repo.catalog.rows.read(lambda db: db.total_changes)
    assert after - before <= 1  # that it is complete


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.usefixtures("without_spark")
def test_a_rebuild_tells_what_was_left_out_and_what_is_gone(repo: Repo, engine: Any) -> None:
    fill(repo)
    shutil.rmtree(repo.tree.path("data/aws/ec2/i-7"))
    noted: list[rebuilding.Noted] = []
    rebuilt = bulk.rebuild(repo, engine=engine, note=noted.append)
    assert [(one.kind, one.rel) for one in noted] == [
        ("undecodable-metadata", "data/aws/ec2/i-3/state/2/metadata.yaml"),
        ("removed-name", "data/aws/ec2/i-7/state"),
    ]
    assert rebuilt.findings == {"removed-name": 1, "undecodable-metadata": 1}
    assert rebuilt.removed == 1


@pytest.mark.usefixtures("without_spark", "nothing_is_young")
def test_a_damaged_version_is_told_once_whoever_read_it(
    repo: Repo, caplog: pytest.LogCaptureFixture
) -> None:
    fill(repo)
    caplog.clear()
    bulk.rebuild(repo, engine="spark")
    assert len([one for one in caplog.records if "i-3/state/2" in one.getMessage()]) == 1


@pytest.mark.usefixtures("without_spark", "nothing_is_young")
def test_waves_lose_nothing(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_FIRST_WAVE", 2)
    monkeypatch.setattr(bulk, "_WAVE_VERSIONS", 6)
    monkeypatch.setattr(rebuilding, "_HUGE", 2)
    fill(repo)
    repo.catalog.clear()
    assert bulk.rebuild(repo, engine="spark").names == len(refs(repo))
    assert_equals_disk(repo)


@pytest.mark.usefixtures("without_spark")
def test_executors_that_do_not_see_the_files_are_an_error_that_names_them(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)
    monkeypatch.setattr(bulk, "missing_shared_dir", lambda _: NoSharedDir("far-away"))
    with pytest.raises(FilesNotSeenError, match="far-away"):
        bulk.rebuild(repo, engine="spark")


@pytest.mark.usefixtures("without_spark")
def test_if_nobody_insists_on_spark_names_that_it_cannot_see_are_read_here(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(repo)
    repo.catalog.clear()
    monkeypatch.setattr(bulk, "missing_shared_dir", lambda _: NoSharedDir("far-away"))
    monkeypatch.setattr(bulk, "break_even", lambda *_: 5)
    bulk.rebuild(repo, engine="auto")
    assert_equals_disk(repo)
    assert "far-away" in caplog.text


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_datastore_that_cannot_be_written_is_read_without_spark_or_not_at_all(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    fill(repo)
    repo.catalog.clear()

    def refuse(_directory: str) -> Any:
        raise DiskError("read-only", hint="mount it")

    monkeypatch.setattr(bulk, "Staging", refuse)
    monkeypatch.setattr(bulk, "break_even", lambda *_: 1)
    if engine == "spark":
        with pytest.raises(DiskError):
            bulk.rebuild(repo, engine=engine)
    else:
        bulk.rebuild(repo, engine=engine)
        assert_equals_disk(repo)


def test_few_names_are_never_a_reason_to_start_spark(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repo)
    monkeypatch.setattr(SparkOnDemand, "session", lambda *_: pytest.fail("it was started"))
    cluster = SparkSettings(master="spark://host:7077")
    assert bulk.rebuild(repo, engine="auto", settings=cluster).engine == "local"
    assert_equals_disk(repo)


def test_a_dry_run_counts_and_changes_nothing(repo: Repo) -> None:
    fill(repo)
    repo.catalog.clear()
    found = bulk.rebuild(repo, engine="spark", dry_run=True)
    assert (found.names, found.engine) == (len(refs(repo)), "spark")
    assert not repo.catalog.is_populated
    assert rows(repo.catalog) == []


# On Spark ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark", "nothing_is_young")
def test_spark_makes_the_same_rows_as_this_process(
    repo: Repo, read_again: list[DataRef], caplog: pytest.LogCaptureFixture
) -> None:
    fill(repo)
    repo.catalog.clear()
    rebuilding.rebuild(repo.catalog, repo.mutations)
    local = rows(repo.catalog)
    repo.catalog.clear()
    read_again.clear()
    caplog.clear()
    rebuilt = bulk.rebuild(repo, engine="spark")
    assert rebuilt.engine == "spark"
    assert read_again == []
    assert rows(repo.catalog) == local
    assert "i-3/state/2" in caplog.text
    assert_equals_disk(repo)


@pytest.mark.usefixtures("spark")
def test_no_row_is_lost_or_stale_if_somebody_writes_meanwhile(
    repo_dir: Path, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_FIRST_WAVE", 4)
    monkeypatch.setattr(bulk, "_WAVE_VERSIONS", 12)
    monkeypatch.setattr(rebuilding, "BATCH_NAMES", 3)
    fill(repo)
    repo.catalog.clear()
    over = threading.Event()

    def write() -> None:
        number = 0
        with open_repo(repo_dir, durable=False) as other:
            while not over.is_set():
                number += 1
                model = f"aws/ec2/i-{number % 14}"
                other.artifacts.save(model, "state", {"n": number})
                if number % 5 == 0:
                    other.artifacts.delete(f"aws/ec2/i-{number % 7}", "state")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        bulk.rebuild(repo, engine="spark")
    finally:
        over.set()
        writer.join()
    assert_equals_disk(repo)


def test_the_next_wave_runs_while_the_results_of_one_are_looked_at(
    spark: SparkSession, tmp_path: Path
) -> None:
    def work(number: int) -> Iterator[int]:
        (tmp_path / str(number)).touch()
        yield number

    waves = run_waves(spark, work, iter([[1], [2, 3]]), label="waves", progress=no_progress)
    first = next(waves)
    wait_for(tmp_path / "3")
    assert list(first) == [1]
    assert [sorted(results) for results in waves] == [[2, 3]]


def test_a_wave_that_nobody_waits_for_any_more_is_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    def work(number: int) -> Iterator[int]:
        (tmp_path / str(number)).touch()
        if number == 2:
            time.sleep(600)
        yield number

    waves = run_waves(spark, work, iter([[1], [2]]), label="waves", progress=no_progress)
    next(waves)
    wait_for(tmp_path / "2")
    waves.close()
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 60
    while tracker.getActiveJobsIds() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tracker.getActiveJobsIds()) == []


def test_catalogs_of_all_namespaces_are_one_parquet_table(
    spark: SparkSession, tmp_path: Path, bucket: Path, ana: Machine, bob: Machine
) -> None:
    for machine, namespace in ((ana, "team-a"), (bob, "team-b")):
        assert machine("datastore", "namespace", "set", namespace).status == 0
        machine.put("aws/ec2/i-1", "state", namespace)
        machine.put("aws/ec2/i-1", "state", "newer")
        assert machine("sync").status == 0
    output = tmp_path / "catalogs"
    exported = export(places_of(f"file://{bucket}"), str(output))
    assert {name: exported.rows[name] for name in ("team-a", "team-b")} == {
        "team-a": 2,
        "team-b": 2,
    }
    table = spark.read.parquet(str(output)).orderBy("namespace", "version")
    found = [(row.namespace, row.version, row.is_latest) for row in table.collect()]
    assert found == [
        *(("team-a", 1, False), ("team-a", 2, True)),
        *(("team-b", 1, False), ("team-b", 2, True)),
    ]


# The command -------------------------------------------------------------------------------------


def test_the_command_rebuilds_the_local_catalog(ana: Machine) -> None:
    ana.put("aws/ec2/i-1", "state", "x")
    told = ana("pipeline", "catalog", "--json").json
    assert told["export"] is None
    assert (told["sqlite"]["names"], told["sqlite"]["engine"]) == (1, "local")
    dry = ana("pipeline", "catalog", "--dry-run", "--engine", "spark", "--json").json
    assert (dry["dryRun"], dry["sqlite"]["names"], dry["sqlite"]["engine"]) == (True, 1, "spark")
    assert "Read the files by this process: 1 data name" in ana("pipeline", "catalog").out


@pytest.mark.parametrize("name", ["found.json", "found"])
def test_the_command_keeps_what_it_found(ana: Machine, tmp_path: Path, name: str) -> None:
    for model in ("aws/ec2/i-1", "aws/ec2/i-2"):
        ana.put(model, "state", "x")
    with ana.open() as repo:
        metadata = Path(repo.tree.path("data/aws/ec2/i-1/state/1/metadata.yaml"))
        base = repo.tree.base
        shutil.rmtree(repo.tree.path("data/aws/ec2/i-2"))
    metadata.write_text("no: [yaml")
    path = tmp_path / name
    told = ana("pipeline", "catalog", "--findings", str(path), "--json").json
    assert told["sqlite"]["findings"] == {"removed-name": 1, "undecodable-metadata": 1}
    if path.is_dir():
        found = parquet.read_table(path).to_pylist()
    else:
        found = list(map(json.loads, path.read_text().splitlines()))
    assert [(row["kind"], row["rel"], row["severity"], row["repaired"]) for row in found] == [
        ("undecodable-metadata", "data/aws/ec2/i-1/state/1/metadata.yaml", "warning", False),
        ("removed-name", "data/aws/ec2/i-2/state", "info", True),
    ]
    assert {row["store"] for row in found} == {f"file://{base}"}
    assert "metadata.yaml" in found[0]["detail"]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("is_shared", [True, False])
def test_the_command_keeps_what_catalogs_have_to_do_without(
    ana: Machine, bucket: Path, tmp_path: Path, *, is_shared: bool
) -> None:
    for content in ("old", "new"):
        ana.put("aws/ec2/i-1", "state", content)
    ana.put("aws/ec2/1", "2", "a name like a version")
    assert ana("sync").status == 0
    target, root = f"file://{bucket}", bucket
    if not is_shared:
        target, root = str(tmp_path / "alone"), tmp_path / "alone/.swamp"
        init_repo(target).close()
        shutil.copytree(bucket / "data", root / "data", dirs_exist_ok=True)
    rel = "data/aws/ec2/i-1/state/1/metadata.yaml"
    (root / rel).write_text("no: [yaml")
    path = tmp_path / "found.json"
    arguments = ["pipeline", "catalog", target, "--output", str(tmp_path / "catalogs")]
    told = ana(*arguments, "--findings", str(path), "--json").json
    assert told["export"]["rows"] == {"": 2}
    [found] = map(json.loads, path.read_text().splitlines())
    assert (found["kind"], found["rel"], found["key"]) == ("undecodable-metadata", rel, rel)
    assert (found["store"], found["namespace"]) == (f"file://{root}", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["file:///nowhere"], "--output URL"),
        (["--namespace", "infra"], "--output URL"),
        (["--no-sqlite"], "--output URL"),
        (["file:///nowhere", "--output", "x", "--sqlite"], "--sqlite is about the repository"),
    ],
)
def test_the_command_says_what_does_not_go_together(
    ana: Machine, arguments: list[str], said: str
) -> None:
    outcome = ana("pipeline", "catalog", *arguments)
    assert outcome.status == 2
    assert said in outcome.err


@pytest.mark.usefixtures("spark")
def test_the_command_does_both_in_one_session(
    ana: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.pipeline.spark.session.stop", lambda _: None)
    ana.put("aws/ec2/i-1", "state", "x")
    ana("sync")
    output = tmp_path / "catalogs"
    told = ana("pipeline", "catalog", "--output", str(output), "--engine", "spark", "--json").json
    assert told["export"]["rows"] == {"": 1}
    assert (told["sqlite"]["names"], told["sqlite"]["engine"]) == (1, "spark")
    assert list(output.rglob("*.parquet"))
