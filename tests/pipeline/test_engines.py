"""Threads and Spark do the same: whoever carries the files, the same store and cache come of it."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pickle
import pkgutil
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import swampstore
from swampstore.clock import from_iso
from swampstore.errors import MoveInterruptedError, SwampstoreError
from swampstore.index import changes as merging
from swampstore.index.errors import (
    IncompleteSyncError,
    IndexMovedError,
    MadeAnewError,
    SyncTimeoutError,
)
from swampstore.index.partitions import partition_of
from swampstore.index.path_map import Names
from swampstore.index.results import Step, no_progress
from swampstore.index.workers import Deadline, Done
from swampstore.layout import METADATA, RAW, DataRef, ModelRef
from swampstore.pipeline import engines, transfers
from swampstore.pipeline.engines import (
    BREAK_EVEN,
    NEVER,
    BreakEven,
    EngineTransport,
    SparkOnDemand,
    choose,
)
from swampstore.pipeline.errors import FilesNotSeenError, SparkMissingError
from swampstore.pipeline.running import NoSharedDir, run_tasks
from swampstore.pipeline.settings import SparkSettings
from swampstore.pipeline.transfers import Cargo, Left, Site, SparkTasks, ending
from swampstore.routing import Routing
from swampstore.runs.errors import CommandError, CommandTimeoutError, MethodFailedError
from swampstore.runs.method_request import MethodResult
from swampstore.runs.outputs import Output
from swampstore.stores.config import StoreConfig, store_config
from swampstore.stores.directory import DirectoryConfig
from swampstore.stores.paths import PathsMovedError
from swampstore.stores.retry import RetryingStore
from swampstore.stores.wrapper import Tally
from swampstore.sync import conflicts
from swampstore.sync.context import SyncContext
from swampstore.sync.downloads import Download, Fetched, Staging
from swampstore.sync.install import InstallError, PlainInstaller
from swampstore.sync.transfer import THREADS, Transport
from swampstore.sync.uploads import Upload, Uploaded
from tests.support.machines import Machine as Repository
from tests.support.remotes import BUCKET
from tests.support.servers import S3_KEY, S3Server
from tests.support.staging import metadata_of
from tests.support.sync_harness import Machine, assert_sound, remote_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = "2026-05-14T20:19:51.042Z"
CLOCK: Callable[[], datetime] = partial(from_iso, NOW)
LONG_AGO = 1_700_000_000
CLUSTER = SparkSettings(master="spark://host:7077")


def directory_config(path: Path) -> StoreConfig:
    path.mkdir(exist_ok=True)
    return DirectoryConfig(str(path))


def transport_of(spark: SparkSession, config: StoreConfig) -> SparkTasks:
    return SparkTasks(spark, config, strict=True, progress=no_progress, count=lambda _: None)


def run_here(
    _spark: object,
    work: Callable[[Any], Iterable[Any]],
    items: Sequence[Any],
    *,
    label: str,
    progress: Callable[[Step], None],
) -> Iterator[Any]:
    """Do what `run_tasks` does without Spark, pickling as it does."""
    for number, item in enumerate(items, 1):
        done, given = pickle.loads(pickle.dumps((work, item)))
        yield from pickle.loads(pickle.dumps(list(done(given))))
        progress(Step(label, number, len(items), 0, 0))


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Something that passes for a session; its tasks are run in this process."""
    monkeypatch.setattr(transfers, "run_tasks", run_here)
    tags = dict.fromkeys(("addJobTag", "removeJobTag", "cancelJobsWithTag"), lambda _: None)
    fake: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2, **tags))
    return fake


# Choosing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [0, 1, 10**9])
def test_who_is_asked_for_by_name_does_it_unless_there_is_nothing_to_do(files: int) -> None:
    local = choose("local", files=files, settings=CLUSTER, job="push")
    spark = choose("spark", files=files, settings=SparkSettings(), job="push")
    assert (local, spark) == ("local", "spark" if files else "local")


@pytest.mark.parametrize(
    ("where", "from_there"),
    [
        (SparkSettings(), 100),
        (SparkSettings(master="local[4]"), 100),
        (CLUSTER, 10),
        (SparkSettings(remote="sc://host"), 10),
    ],
)
def test_auto_takes_spark_from_the_break_even_of_the_place_on(
    where: SparkSettings, from_there: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "BREAK_EVEN", {"pull": BreakEven(100, 10)})
    below = choose("auto", files=from_there - 1, settings=where, job="pull")
    above = choose("auto", files=from_there, settings=where, job="pull")
    assert (below, above) == ("local", "spark")


def test_a_machine_alone_never_needs_more_than_a_cluster_to_be_worth_it() -> None:
    assert all(found.cluster <= found.one_machine <= NEVER for found in BREAK_EVEN.values())


# Errors ----------------------------------------------------------------------------------------


def every_error(root: type[SwampstoreError] = SwampstoreError) -> Iterator[type[SwampstoreError]]:
    yield root
    for kind in root.__subclasses__():
        yield from every_error(kind)


OUTPUT = Output("id", ModelRef("t", "m"), "run", "failed", "2026-05-14T20:19:51.042Z")
# Errors that are made from more than a message and a hint.
SPECIAL: dict[type[SwampstoreError], SwampstoreError] = {
    InstallError: InstallError({"a": "why"}, []),
    IncompleteSyncError: IncompleteSyncError("push", {"a": "why"}),
    MadeAnewError: MadeAnewError(),
    IndexMovedError: IndexMovedError("moved", frozenset({"a"}), hint="again"),
    PathsMovedError: PathsMovedError("moved", {"a"}, {"b"}, hint="again"),
    MoveInterruptedError: MoveInterruptedError("moved", ["a"], "b", hint="again"),
    MethodFailedError: MethodFailedError("what", MethodResult(OUTPUT, "failed", 3), hint="so"),
    CommandError: CommandError("what", 3, hint="so"),
    CommandTimeoutError: CommandTimeoutError("what", 3, hint="so"),
}


def made(kind: type[SwampstoreError]) -> SwampstoreError:
    return SPECIAL[kind] if kind in SPECIAL else kind("what", hint="so")


def test_every_error_is_the_same_in_another_process() -> None:
    for found in pkgutil.walk_packages(swampstore.__path__, "swampstore."):
        if not found.name.endswith("__main__"):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as missing:  # of an extra that is not installed
                assert not str(missing.name).startswith("swampstore")
    for kind in set(every_error()):
        if not kind.__module__.startswith("swampstore"):
            continue
        error = made(kind)
        revived = pickle.loads(pickle.dumps(error))
        assert type(revived) is kind
        assert (str(revived), revived.args) == (str(error), error.args)
        assert vars(revived) == vars(error)
        assert (revived.code, revived.exit_status) == (error.code, error.exit_status)


# Cutting ---------------------------------------------------------------------------------------

RELS = st.sampled_from([f"data/aws/ec2/i-{n}/state/{v}/raw" for n in range(5) for v in range(1, 9)])
FILES = st.dictionaries(RELS, st.integers(0, 1 << 22), max_size=12)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(FILES, st.integers(1, 9), st.integers(1, 20))
def test_every_file_is_in_one_task_of_one_wave(
    files: dict[str, int], tasks: int, per_wave: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "_WAVE_FILES", per_wave)
        cargo = Cargo("push", [Upload(rel, None) for rel in files], lambda one: files[one.rel])
        waves = list(cargo.waves(tasks))
    assert sorted(one.rel for wave in waves for task in wave for one in task) == sorted(files)
    assert all(len(wave) <= tasks for wave in waves)
    assert all(sum(map(len, wave)) <= per_wave for wave in waves)
    assert all(task for wave in waves for task in wave)


def test_a_shard_stays_together_unless_it_is_more_than_its_share() -> None:
    rels = [f"data/aws/ec2/i-{n}/state/{v}/raw" for n in range(12) for v in range(1, 4)]
    rels += [f"data/aws/ec2/big/state/{v}/raw" for v in range(1, 100)]
    cargo = Cargo("push", [Upload(rel, None) for rel in rels], lambda _: 10)
    [wave] = cargo.waves(4)
    where: dict[str, set[int]] = {}
    for number, task in enumerate(wave):
        for one in task:
            where.setdefault(partition_of(one.rel), set()).add(number)
    assert len(wave) == 4
    assert all(len(tasks) == 1 for shard, tasks in where.items() if "big" not in shard)
    assert [len(tasks) > 1 for shard, tasks in where.items() if "big" in shard] == [True]
    sizes = [len(task) for task in wave]
    assert max(sizes) < 2 * min(sizes)


def test_progress_is_told_in_files_and_never_goes_back(
    tmp_path: Path, without_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "_WAVE_FILES", 8)
    config = directory_config(tmp_path / "bucket")
    steps: list[Step] = []
    on_demand: Any = SimpleNamespace(session=lambda **_: without_spark)
    repo: Any = None
    transport = EngineTransport(repo, "spark", SparkSettings(), on_demand, steps.append)
    tasks = SparkTasks(
        without_spark, config, strict=True, progress=transport.progress, count=lambda _: None
    )
    with Machine(tmp_path / "a", RetryingStore(config.open())) as machine:
        for number in range(20):
            machine.write(f"files/{number}", b"12345")
        machine.service.push(progress=transport.progress, transport=tasks)
    assert [step.phase for step in steps] == ["push"] * len(steps)
    assert {(step.total_files, step.total_bytes) for step in steps} == {(20, 100)}
    done = [step.files for step in steps]
    assert done == sorted(set(done))
    assert steps[-1].files == 20


# Tasks -----------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Where tasks upload and download: a cache with a staging directory, and a bucket."""
    cache = tmp_path / "cache"
    cache.mkdir()
    names = Names(str(cache), "", Routing())
    with Staging(str(cache)) as staging:
        yield Site(directory_config(tmp_path / "bucket"), names, CLOCK, 4, staging.path)


def files_of(site: Site, count: int) -> list[Upload]:
    rels = [f"data/aws/ec2/i-1/state/{n}/raw" for n in range(1, count + 1)]
    for rel in rels:
        path = Path(site.names.local(rel))
        path.parent.mkdir(parents=True)
        path.write_bytes(rel.encode())
    return [Upload(rel, None) for rel in rels]


def placed(results: Iterable[object]) -> list[Uploaded]:
    found = [one for one in results if isinstance(one, Done)]
    uploaded = [one.result for one in found if isinstance(one.result, Uploaded)]
    assert len(uploaded) == len(found), found
    return uploaded


def stored(site: Site) -> dict[str, tuple[bytes, str]]:
    with RetryingStore(site.config.open()) as store:
        found = {info.key: info.etag for info in store.list()}
        return {key: (store.get(key).data, etag or "") for key, etag in found.items()}


def test_a_task_that_runs_again_finds_its_own_objects_and_replaces_none(site: Site) -> None:
    uploads = files_of(site, 30)
    first = placed(site.upload(uploads))
    before = stored(site)
    again = placed(site.upload(uploads))
    assert stored(site) == before
    assert len(before) == 30
    assert {one.rel: one.entry for one in first} == {one.rel: one.entry for one in again}


def test_a_task_that_runs_twice_at_once_places_everything_once(site: Site) -> None:
    uploads = files_of(site, 60)
    found: list[Uploaded] = []
    threads = [
        threading.Thread(target=lambda: found.extend(placed(site.upload(uploads))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 120
    assert {key: data for key, (data, _) in stored(site).items()} == {
        one.rel: one.rel.encode() for one in uploads
    }
    assert len({(one.rel, one.entry) for one in found}) == 60


def test_a_task_that_stopped_in_the_middle_is_completed_by_the_next_attempt(site: Site) -> None:
    uploads = files_of(site, 30)
    site_of_one = Site(site.config, site.names, site.clock, 1, site.staging)
    begun = iter(site_of_one.upload(uploads))
    next(begun)
    del begun
    assert 0 < len(stored(site)) < 30
    assert len(placed(site.upload(uploads))) == 30
    assert len(stored(site)) == 30


def test_a_task_that_replaces_an_object_may_run_twice(site: Site) -> None:
    [upload] = files_of(site, 1)
    [first] = placed(site.upload([upload]))
    Path(site.names.local(upload.rel)).write_bytes(b"newer")
    change = Upload(upload.rel, first.known)
    placed(site.upload([change]))
    before = stored(site)
    placed(site.upload([change]))
    assert stored(site) == before
    assert [data for data, _ in before.values()] == [b"newer"]


def test_a_download_that_runs_twice_is_two_staged_files(site: Site) -> None:
    [upload] = files_of(site, 1)
    [uploaded] = placed(site.upload([upload]))
    downloads = [Download(upload.rel, uploaded.entry)]
    found = [
        one.result for _ in range(2) for one in site.download(downloads) if isinstance(one, Done)
    ]
    paths = [one.path for one in found if isinstance(one, Fetched)]
    assert len(set(paths)) == 2
    assert {Path(path).read_bytes() for path in paths} == {upload.rel.encode()}
    assert all(path.startswith(f"{site.staging}/") for path in paths)


def test_a_task_tells_what_it_asked_of_the_store(site: Site) -> None:
    *_, tally = site.upload(files_of(site, 7))
    assert tally == Tally({"put": 7}, sum(len(data) for data, _ in stored(site).values()), 0)


def test_a_task_that_does_not_see_the_cache_touches_nothing(site: Site) -> None:
    uploads = files_of(site, 3)
    blind = Site(site.config, site.names, site.clock, 4, f"{site.staging}-elsewhere")
    [left] = blind.upload(uploads)
    assert isinstance(left, Left)
    assert left.files == uploads
    assert stored(site) == {}


def blinded(machine: Machine, config: StoreConfig, spark: SparkSession, *, strict: bool) -> object:
    transport = SparkTasks(spark, config, strict=strict, progress=no_progress, count=lambda _: None)
    return machine.service.push(transport=transport)


def test_executors_that_do_not_see_the_cache_are_an_error_that_names_them(
    tmp_path: Path, without_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "missing_shared_dir", lambda _: NoSharedDir("far-away"))
    config = directory_config(tmp_path / "bucket")
    with Machine(tmp_path / "a", RetryingStore(config.open())) as machine:
        machine.write("files/x", b"1")
        with pytest.raises(FilesNotSeenError, match="far-away do not see") as caught:
            blinded(machine, config, without_spark, strict=True)
        assert str(tmp_path / "a") in caught.value.message
        assert machine.service.status().dirty_paths
        assert machine.push().files == 1


def test_if_nobody_insists_on_spark_threads_do_what_executors_cannot_see(
    tmp_path: Path,
    without_spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hosts = itertools.cycle([None, NoSharedDir("far-away")])
    monkeypatch.setattr(transfers, "missing_shared_dir", lambda _: next(hosts))
    config = directory_config(tmp_path / "bucket")
    with Machine(tmp_path / "a", RetryingStore(config.open())) as machine:
        for number in range(40):
            machine.write(f"outputs/m{number}/x", b"1")
        blinded(machine, config, without_spark, strict=False)
        assert len(remote_files(machine.store)) == 40
        assert_sound(machine.store)
    told = [record.getMessage() for record in caplog.records if "far-away" in record.getMessage()]
    assert len(told) == 1


def test_files_count_as_recorded_before_the_tasks_began_whatever_their_clock_says(
    site: Site, without_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time_ns()
    ahead = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr("swampstore.sync.uploads.time", SimpleNamespace(time_ns=lambda: ahead))
    with Machine(tmp_path / "a", RetryingStore(site.config.open())) as machine:
        machine.write("files/x", b"1")
        machine.service.push(transport=transport_of(without_spark, site.config))
        known = machine.base.get("files/x")
    assert known is not None
    assert began <= known.recorded_ns < ahead


# The same store and the same caches ---------------------------------------------------------------

MODELS = [ModelRef("aws/ec2", f"i-{number}") for number in range(4)]
PLAIN = ("files/notes", "outputs/aws/ec2/start/run.yaml", "audit/day", "definitions-evaluated/x")


class Story:
    """What two machines do, the same every time for a seed, and a third one that comes later."""

    def __init__(
        self, directory: Path, config: StoreConfig, transport: Transport, seed: int
    ) -> None:
        self._directory = directory
        self._config = config
        self._transport = transport
        self._chance = random.Random(seed)
        self._numbers = itertools.count()

    def play(self, *, index: int) -> dict[str, dict[str, bytes]]:
        """Return the files of each machine at the end."""
        with self._machine("a") as a, self._machine("b") as b, self._machine("c") as c:
            for _ in range(25):
                self._save(a)
            a.service.push(full=True, transport=self._transport)
            if index == 2:
                a.service.migrate_index()
            b.service.pull(transport=self._transport)
            for machine in (a, b):
                for _ in range(10):
                    self._save(machine)
                self._delete(machine)
            first = b.service.push(transport=self._transport)
            second = a.service.push(full=True, transport=self._transport)
            assert first.deleted
            assert second.conflicts
            b.service.pull(transport=self._transport)
            c.service.pull(transport=self._transport)
            assert_sound(c.store)
            return {one.cache.name: one.files() for one in (a, b, c)}

    def _machine(self, name: str) -> Machine:
        store = RetryingStore(self._config.open())
        return Machine(self._directory / name, store, clock=CLOCK)

    def _save(self, machine: Machine) -> None:
        content = f"content {next(self._numbers)} ".encode() * self._chance.randrange(1, 50)
        if self._chance.random() < 0.3:
            self._write(machine, self._chance.choice(PLAIN), content)
            return
        ref = DataRef(self._chance.choice(MODELS), self._chance.choice(["state", "logs"]))
        version = max(self._versions(machine, ref), default=0) + 1
        metadata = metadata_of(ref.name, version, content).replace(b"id-", content[8:10] + b"-")
        self._write(machine, ref.file_rel(version, RAW), content)
        self._write(machine, ref.file_rel(version, METADATA), metadata)
        self._write(machine, ref.latest_rel, str(version).encode())

    def _delete(self, machine: Machine) -> None:
        """Delete a whole name, which others may have written to meanwhile, and a file."""
        there = [ref for model in MODELS if self._versions(machine, ref := DataRef(model, "logs"))]
        ref = self._chance.choice(there)
        for rel in [rel for rel in machine.files() if rel.startswith(f"{ref.rel}/")]:
            machine.delete(rel)
        machine.delete(self._chance.choice([rel for rel in PLAIN if rel in machine.files()]))

    @staticmethod
    def _versions(machine: Machine, ref: DataRef) -> list[int]:
        place = machine.path(ref.rel)
        children = place.iterdir() if place.exists() else ()
        return [int(child.name) for child in children if child.name.isdigit()]

    @staticmethod
    def _write(machine: Machine, rel: str, content: bytes) -> None:
        machine.write(rel, content)
        os.utime(machine.path(rel), (LONG_AGO, LONG_AGO))


@pytest.fixture
def same_every_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let ids and times of files be the same every time; called, it begins anew."""
    renumber, keep_copy = PlainInstaller.renumber, conflicts.keep_copy

    def renumbered(self: PlainInstaller, name_rel: str, moves: dict[int, int]) -> None:
        renumber(self, name_rel, moves)
        for path in Path(self._tree.path(name_rel)).rglob("*"):
            os.utime(path, (LONG_AGO, LONG_AGO))

    def kept(context: SyncContext, rel: str, sha256: str) -> str:
        copy = keep_copy(context, rel, sha256)
        os.utime(context.names.local(copy), (LONG_AGO, LONG_AGO))
        return copy

    def begin() -> None:
        numbers = itertools.count()
        ids = SimpleNamespace(uuid4=lambda: uuid.UUID(int=next(numbers)))
        monkeypatch.setattr(merging, "uuid", ids)

    monkeypatch.setattr(PlainInstaller, "renumber", renumbered)
    monkeypatch.setattr(conflicts, "keep_copy", kept)
    return begin


def everything(config: StoreConfig) -> dict[str, bytes]:
    with RetryingStore(config.open()) as store:
        return {info.key: store.get(info.key).data for info in store.list()}


@pytest.mark.parametrize(("seed", "index"), [(1, 1), (2, 2)])
def test_both_engines_make_the_same_store_and_the_same_caches_byte_for_byte(
    spark: SparkSession,
    s3_server: S3Server,
    tmp_path: Path,
    same_every_time: Callable[[], None],
    seed: int,
    index: int,
) -> None:
    ends = []
    for engine in ("local", "spark"):
        members = {"bucket": BUCKET, "prefix": uuid.uuid4().hex, "endpoint": s3_server.url}
        config = store_config("s3", members | S3_KEY, environ={})
        transport = THREADS if engine == "local" else transport_of(spark, config)
        same_every_time()
        caches = Story(tmp_path / engine, config, transport, seed).play(index=index)
        ends.append((caches, everything(config)))
    (caches, objects), (other_caches, other_objects) = ends
    assert other_caches == caches
    assert other_objects.keys() == objects.keys()
    assert other_objects == objects
    assert caches["b"] == caches["c"]
    assert len(objects) > 40


def test_the_time_that_is_given_ends_the_tasks(spark: SparkSession) -> None:
    def sleep(_: int) -> Iterator[int]:
        time.sleep(60)
        yield 1

    began = time.monotonic()
    with pytest.raises(SyncTimeoutError), ending(spark, Deadline(3.0)):
        list(run_tasks(spark, sleep, [1, 2], label="sleep", progress=no_progress))
    assert time.monotonic() - began < 30
    # The session is still good for something.
    assert list(run_tasks(spark, lambda n: [n], [5], label="again", progress=no_progress)) == [5]


# Commands -----------------------------------------------------------------------------------------


@pytest.fixture
def on_spark(without_spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give whoever wants a session one that is none."""
    monkeypatch.setattr(SparkOnDemand, "session", lambda _self, **_: without_spark)


def save(machine: Repository, models: int) -> None:
    for number in range(models):
        machine.put(f"aws/ec2/i-{number}", "state", f"content {number}")


@pytest.mark.usefixtures("on_spark")
def test_what_one_machine_pushes_on_spark_another_pulls_on_spark(
    ana: Repository, bob: Repository
) -> None:
    save(ana, 5)
    pushed = ana("pipeline", "push", "--engine", "spark", "--json").json
    assert (pushed["job"], pushed["engine"], pushed["files"]) == ("push", "spark", 15)
    # Those of the tasks are among them.
    assert pushed["requests"] >= 15
    pulled = bob("pipeline", "pull", "--engine", "spark", "--json").json
    assert (pulled["job"], pulled["engine"], pulled["files"]) == ("pull", "spark", 15)
    assert bob.get("aws/ec2/i-3", "state") == "content 3"
    nothing = ana("pipeline", "push", "--engine", "spark", "--json").json
    assert (nothing["engine"], nothing["files"]) == ("local", 0)


@pytest.mark.usefixtures("on_spark")
def test_a_sync_can_be_done_on_spark(ana: Repository, bob: Repository) -> None:
    save(ana, 2)
    assert ana("sync", "--engine", "spark", "--json").json["filesPushed"] == 6
    assert bob("sync", "--engine", "spark", "--json").json["filesPulled"] == 6


def test_the_engine_may_be_a_setting(
    ana: Repository, on_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del on_spark
    save(ana, 1)
    monkeypatch.setenv("SWAMPSTORE_ENGINE", "spark")
    assert ana("pipeline", "push", "--json").json["engine"] == "spark"


def test_nothing_that_is_small_starts_spark(
    ana: Repository, bob: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkOnDemand, "session", lambda *_: pytest.fail("it was started"))
    monkeypatch.setenv("SWAMPSTORE_SPARK_MASTER", "spark://host:7077")
    save(ana, 2)
    assert ana("sync").status == 0
    assert ana("pipeline", "push", "--json").json["engine"] == "local"
    assert bob("pipeline", "pull", "--json").json["files"] == 6
    assert ana("catalog", "rebuild", "--json").json["engine"] == "local"


def test_without_spark_auto_goes_on_with_threads_and_says_so(
    ana: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_settings: object) -> None:
        raise SparkMissingError("PySpark is not installed", hint="Install it.")

    monkeypatch.setattr("swampstore.pipeline.spark.session.session", fail)
    monkeypatch.setattr(engines, "BREAK_EVEN", {"push": BreakEven(1, 1)})
    save(ana, 1)
    forced = ana("pipeline", "push", "--engine", "spark", "--json")
    assert (forced.status, forced.error["code"]) == (1, "spark_not_installed")
    assert ana("pipeline", "push", "--json").json["files"] == 3
    assert "working without Spark: PySpark is not installed" in caplog.text


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.usefixtures("on_spark")
def test_a_dry_run_tells_and_does_nothing(
    ana: Repository, bob: Repository, bucket: Path, engine: str
) -> None:
    save(ana, 3)
    told = ana("pipeline", "push", "--dry-run", "--engine", engine, "--json").json
    assert (told["dryRun"], told["engine"], told["files"]) == (True, engine, 9)
    assert not [path for path in bucket.rglob("*") if path.is_file()]
    ana("sync")
    assert "Would pull 9 files" in bob("pipeline", "pull", "--dry-run").out
    assert not (bob.cache / "data").exists()


@pytest.mark.usefixtures("on_spark")
def test_an_interrupted_push_ends_with_130_and_the_next_one_completes_it(
    ana: Repository, bob: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana.put("aws/ec2/first", "state", "x")
    ana("sync")
    save(ana, 8)

    def interrupted(
        spark: object, work: Any, items: Sequence[Any], **options: Any
    ) -> Iterator[Any]:
        list(run_here(spark, work, items[: len(items) // 2], **options))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "run_tasks", interrupted)
        assert ana("pipeline", "push", "--engine", "spark").status == 130
    with ana.open() as repo:
        status = repo.sync.status()
        assert status.dirty_paths
        assert not [child for child in Path(status.cache_dir).iterdir() if child.suffix == ".tmp"]
    assert bob("pipeline", "pull", "--json").json["files"] == 3
    assert ana("pipeline", "push", "--engine", "spark", "--json").json["files"] == 24
    assert bob("pipeline", "pull", "--json").json["files"] == 24


@pytest.mark.usefixtures("on_spark")
def test_a_push_that_executors_cannot_do_says_that_the_data_is_safe(
    ana: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ana, 1)
    monkeypatch.setattr(transfers, "missing_shared_dir", lambda _: NoSharedDir("far-away"))
    failed = ana("pipeline", "push", "--engine", "spark")
    assert failed.status == 74
    assert "the data is safe here" in failed.err
    assert "far-away" in failed.err


@pytest.mark.parametrize("name", ["found.json", "found"])
def test_findings_of_a_push_can_be_kept(
    ana: Repository, bob: Repository, tmp_path: Path, name: str
) -> None:
    ana.put("aws/ec2/i-1", "state", "ana's")
    bob.put("aws/ec2/i-1", "state", "bob's")
    ana("sync")
    path = tmp_path / name
    assert bob("pipeline", "push", "--findings", str(path)).status == 0
    if path.suffix:
        found = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        found = parquet.read_table(path).to_pylist()
    assert [one["kind"] for one in found] == ["conflict"]
    assert found[0]["rel"].startswith("data/aws/ec2/i-1/state")


def test_a_datastore_in_place_has_nothing_to_push(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Repository(tmp_path / "alone", capsysbinary, monkeypatch)
    for command in ("push", "pull"):
        assert alone("pipeline", command, "--json").error["code"] == "sync_not_supported"
