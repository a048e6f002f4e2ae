"""Saving rows as versions: `df.write.format("swampstore")`, all of a job or nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types

from swampstore import init_repo, open_repo
from swampstore.errors import (
    LockTimeoutError,
    OwnershipError,
    ValidationError,
)
from swampstore.index.documents import Documents
from swampstore.marker import update_marker
from swampstore.pipeline.errors import NotSavedError
from swampstore.stores.directory import DirectoryStore
from swampstore.stores.errors import StoreUnreachableError
from swampstore.sync.service import SyncService
from tests.support.machines import Machine, contents
from tests.support.markdown_pages import ROOT, Page
from tests.support.spark_testing import Elsewhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.source.writer import ArtifactWriter, Attempt

MODEL = "aws/ec2/i-1"
OTHER = "aws/ec2/i-2"
STAGING = "_control/staging"
TEXT = {"type": "string", "model_id": "string", "name": "string", "content": "string"}


def row(name: str, content: Any, model: str = MODEL, **more: Any) -> dict[str, Any]:
    """A row with the columns of TEXT, and more."""
    kind, _, model_id = model.rpartition("/")
    return {"type": kind, "model_id": model_id, "name": name, "content": content, **more}


def struct(**members: Any) -> types.StructType:
    """A struct, or the columns of a frame, by name and type."""
    found = types.StructType()
    for name, kind in members.items():
        found = found.add(name, kind)
    return found


class Job:
    """A job as Spark drives it, without Spark: `attempt` is a task, perhaps a repeated one."""

    def __init__(self, target: Path | str, columns: dict[str, Any] = TEXT, **options: str) -> None:
        from swampstore.pipeline.source.writer import ArtifactWriter

        self.writer: ArtifactWriter = ArtifactWriter.of(
            {"path": str(target), **options}, struct(**columns), overwrite=False
        )

    def attempt(self, rows: Sequence[dict[str, Any]]) -> Attempt:
        from pyspark.sql import Row

        return self.writer.write(iter([Row(**one) for one in rows]))

    def run(self, *partitions: Sequence[dict[str, Any]]) -> None:
        self.writer.commit([self.attempt(rows) for rows in partitions])


def everything(*directories: Path) -> dict[str, bytes]:
    """Every file below some directories, except locks, which come and go."""
    return {
        str(file): file.read_bytes()
        for directory in directories
        for file in directory.rglob("*")
        if file.is_file() and "lock" not in str(file.relative_to(directory))
    }


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], Path]:
    """Work on a machine, as a driver there would; returns its repository."""

    def work_at(machine: Machine) -> Path:
        for name, value in machine.environ.items():
            monkeypatch.setenv(name, value)
        return machine.repo_dir

    return work_at


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A repository that is used in place."""
    init_repo(tmp_path / "place").close()
    return tmp_path / "place"


# What rows become ----------------------------------------------------------------------------


def test_rows_become_the_next_versions_of_their_names(place: Path) -> None:
    with open_repo(place) as repo:
        repo.artifacts.save(MODEL, "state", "zero")
    Job(place).run([row("state", "one"), row("log", "first", OTHER)], [row("state", "two")])
    with open_repo(place) as repo:
        assert contents(repo, MODEL, "state") == ["zero", "one", "two"]
        assert repo.latest(MODEL, "state").text() == "two"
        assert repo.latest(OTHER, "log").content_type == "text/plain"
    for name, latest in ((f"{MODEL}/state", "3"), (f"{OTHER}/log", "1")):
        assert (place / ".swamp/data" / name / "latest").read_text() == latest
    assert not (place / ".swamp" / STAGING).exists() or not everything(place / ".swamp" / STAGING)


def test_a_row_may_say_everything_about_its_version(place: Path) -> None:
    columns = {
        "type_normalized": "string",
        "model_id": "string",
        "data_name": "string",
        "content": "binary",
        "content_type": "string",
        "tags": types.MapType(types.StringType(), types.StringType()),
        "lifetime": "string",
        "garbage_collection": "integer",
        "streaming": "boolean",
        "spec_name": "string",
        "owner_type": "string",
        "owner_ref": "string",
        "step_name": "string",
    }
    Job(place, columns).run(
        [
            {
                "type_normalized": "AWS::EC2",
                "model_id": "i-1",
                "data_name": "dump",
                "content": b"\0\1",
                "content_type": "application/x-dump",
                "tags": {"env": "prod"},
                "lifetime": "30d",
                "garbage_collection": 5,
                "streaming": True,
                "spec_name": "dumps",
                "owner_type": "workflow-step",
                "owner_ref": "nightly",
                "step_name": "dump",
            }
        ]
    )
    with open_repo(place) as repo:
        found = repo.latest(MODEL, "dump")
        assert found.bytes() == b"\0\1"
        stored = found.row
    assert (stored.content_type, stored.lifetime) == ("application/x-dump", "30d")
    assert (stored.garbage_collection, stored.streaming) == ("5", 1)
    assert (stored.spec_name, stored.owner_type) == ("dumps", "workflow-step")
    assert (stored.owner_ref, stored.step_name) == ("nightly", "dump")
    assert '"env":"prod"' in stored.tags


def test_the_order_of_versions_is_that_of_the_ordering_column(place: Path) -> None:
    job = Job(place, {**TEXT, "ordering": "double"})
    job.run(
        [row("state", "three", ordering=3.0), row("state", "nan", ordering=float("nan"))],
        [row("state", "none", ordering=None), row("state", "also nan", ordering=float("nan"))],
        [row("state", "one", ordering=1.0), row("state", "also one", ordering=1.0)],
    )
    expected = ["none", "one", "also one", "three", "nan", "also nan"]
    with open_repo(place) as repo:
        assert contents(repo, MODEL, "state") == expected


NAMED = {"type": "string", "model_id": "string", "name": "string"}
DECIMAL = types.DecimalType(38, 2)


def document(value: Any, kind: Any) -> Any:
    """What is saved of attributes."""
    from swampstore.pipeline.source.drafting import Columns

    columns = Columns.of(struct(**NAMED, attributes=kind))
    drafted = columns.drafted({**row("state", None), "attributes": value})
    assert drafted.draft.content_type == "application/json"
    return json.loads(drafted.content)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ('{"a": [1, null]}', "string", {"a": [1, None]}),
        (
            (date(2026, 1, 2), None),
            struct(day="date", no="integer"),
            {"day": "2026-01-02", "no": None},
        ),
        ([b"x"], types.ArrayType(types.BinaryType()), ["eA=="]),
        (
            {"a": Decimal(7), "b": Decimal("1.50")},
            types.MapType(types.StringType(), DECIMAL),
            {"a": 7, "b": 1.5},
        ),
        (
            ([types.VariantVal.parseJson('{"a": 1}')],),
            struct(inner=types.ArrayType(types.VariantType())),
            {"inner": [{"a": 1}]},
        ),
    ],
)
def test_attributes_are_saved_as_json(value: Any, kind: Any, expected: Any) -> None:
    assert document(value, kind) == expected


def test_times_mean_the_same_wherever_a_task_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = struct(at="timestamp", clock="timestamp_ntz")
    # As Spark hands it over: by the clock of the machine that a task runs on.
    noon = datetime.fromisoformat("2026-07-01T12:00")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        found = document((noon, noon), kind)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == {"at": "2026-07-01T10:00:00.000Z", "clock": "2026-07-01T12:00:00"}


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("{", "string", "written as JSON"),
        ("[" * 100_000, "string", "recursion"),
        ((float("nan"),), struct(load="double"), "written as JSON"),
        ((Decimal("12345678901234567.89"),), struct(sum=DECIMAL), "more digits"),
    ],
)
def test_attributes_that_json_cannot_hold_are_refused(value: Any, kind: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=f"data_name 'state' cannot be saved.*{reason}"):
        document(value, kind)


# What is refused before a task runs ----------------------------------------------------------


def test_wrong_columns_are_all_named(place: Path) -> None:
    wrong = {"model_id": "integer", "version": "integer", "name": "string", "data_name": "string"}
    with pytest.raises(ValidationError) as caught:
        Job(place, wrong)
    for expected in (
        "model_id is int",
        "a column version",
        "name and data_name mean the same",
        "type_normalized is missing",
        "content, or attributes, is missing",
    ):
        assert expected in str(caught.value)
    assert "garbage_collection" in (caught.value.hint or "")


def test_nothing_can_be_overwritten(place: Path) -> None:
    from swampstore.pipeline.source.writer import ArtifactWriter

    with pytest.raises(ValidationError, match="versions never change"):
        ArtifactWriter.of({"path": str(place)}, struct(), overwrite=True)


def test_a_target_must_be_one_namespace(ana: Machine, bucket: Path, at: Any) -> None:
    ana.use(bucket, namespace="infra")
    with pytest.raises(ValidationError, match="namespace 'infra', not 'web'"):
        Job(at(ana), namespace="web")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (row("state", None), "both content and attributes, or none"),
        (row("la/test", "x"), "slash"),
        ({**row("state", "x"), "model_id": None}, "model_id is NULL"),
        (row("state", "x", lifetime="ephemeral"), "ephemeral"),
        (row("state", "x", lifetime="soon"), "soon"),
    ],
)
def test_a_row_that_cannot_be_saved_is_named_by_its_task(
    place: Path, wrong: dict[str, Any], reason: str
) -> None:
    columns = {**TEXT, "lifetime": "string"} if "lifetime" in wrong else TEXT
    with pytest.raises(ValidationError, match=reason) as caught:
        Job(place, columns).attempt([wrong])
    assert f"data_name {wrong['name']!r}" in str(caught.value)


# All or nothing ------------------------------------------------------------------------------


def test_an_aborted_job_leaves_nothing(place: Path) -> None:
    with open_repo(place) as repo:
        repo.artifacts.save(MODEL, "state", "zero")
    before = everything(place)
    job = Job(place)
    job.attempt([row("state", "one")])
    assert everything(place) != before
    job.writer.abort([])
    assert everything(place) == before


def test_an_attempt_that_is_repeated_counts_once(place: Path) -> None:
    job = Job(place)
    job.attempt([row("state", "one")])  # its task died after that, or is the slower twin
    job.run([row("state", "one")])
    with open_repo(place) as repo:
        assert contents(repo, MODEL, "state") == ["one"]
    assert not everything(place / ".swamp" / "_control")


def test_one_row_that_fails_at_the_commit_takes_all_others_back(place: Path) -> None:
    from swampstore import Owner

    with open_repo(place) as repo:
        repo.artifacts.save(OTHER, "state", "theirs", owner=Owner("model-method", "them"))
    columns = {**TEXT, "owner_ref": "string"}
    rows = [row("state", "ours", owner_ref="us"), row("state", "ours", OTHER, owner_ref="us")]
    with pytest.raises(OwnershipError):
        Job(place, columns).run(rows)
    with open_repo(place) as repo:
        assert repo.list_versions(MODEL, "state") == []
        assert repo.list_versions(OTHER, "state") == [1]
    assert not everything(place / ".swamp" / "_control")


def test_content_in_many_chunks_is_put_together_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.pipeline.source.writer._CHUNK", 10)
    job = Job(place)
    texts = ["x" * size for size in (4, 25, 0, 9, 1, 10)]
    attempt = job.attempt([row("state", text) for text in texts])
    assert [chunk.size for chunk in attempt.batch.chunks] == [4, 25, 10, 10]
    job.writer.commit([attempt])
    with open_repo(place) as repo:
        assert contents(repo, MODEL, "state") == texts


def test_what_dead_jobs_left_is_swept_a_day_later(place: Path) -> None:
    dead, alive = Job(place), Job(place)
    (lost,) = dead.attempt([row("state", "dead")]).batch.chunks
    alive.attempt([row("state", "alive")])
    file = place / ".swamp" / lost.key
    yesterday = (datetime.now(UTC) - timedelta(days=1, minutes=1)).timestamp()
    os.utime(file, (yesterday, yesterday))
    Job(place).run([])
    assert not file.exists()
    assert len(everything(place / ".swamp" / STAGING)) == 1


# On a remote ---------------------------------------------------------------------------------


def versions(machine: Machine, model: str, name: str) -> list[str]:
    """What others see after a sync."""
    with machine.open() as repo:
        repo.sync.pull()
        return contents(repo, model, name)


@pytest.mark.parametrize("by_url", [False, True])
def test_a_job_is_pushed_in_one_commit(
    ana: Machine, bob: Machine, bucket: Path, at: Any, by_url: bool
) -> None:
    assert bob("datastore", "migrate-index").status == 0
    repo_dir = at(ana)
    with bob.open() as repo:
        before = repo.sync.status().commit_seq or 0
    Job(f"file://{bucket}" if by_url else repo_dir).run(
        [row("state", "one"), row("state", "two")], [row("state", "x", OTHER)]
    )
    assert versions(bob, MODEL, "state") == ["one", "two"]
    assert versions(bob, OTHER, "state") == ["x"]
    with bob.open() as repo:
        assert repo.sync.status().commit_seq == before + 1
    assert not everything(bucket / STAGING)


def test_a_namespace_is_made_by_the_first_job_that_saves_there(
    ana: Machine, bucket: Path, at: Any
) -> None:
    ana.use(bucket, namespace="infra")
    Job(at(ana)).run([row("state", "first")])
    assert (bucket / "infra/data" / MODEL / "state/1/raw").read_text() == "first"


def test_a_url_with_several_namespaces_needs_one(ana: Machine, bob: Machine, bucket: Path) -> None:
    for machine, namespace in ((ana, "infra"), (bob, "web")):
        assert machine("datastore", "namespace", "set", namespace).status == 0
        with machine.open() as repo, repo.session([MODEL]):
            repo.artifacts.save(MODEL, "state", namespace)
    with pytest.raises(ValidationError, match="several namespaces: 'infra', 'web'"):
        Job(f"file://{bucket}")
    Job(f"file://{bucket}", namespace="web").run([row("state", "more")])
    assert versions(bob, MODEL, "state") == ["web", "more"]
    assert versions(ana, MODEL, "state") == ["infra"]


def break_commits(monkeypatch: pytest.MonkeyPatch, *, times: int, after: bool = False) -> None:
    """Let the writes that make a commit count fail, before they are done or after."""
    left = [times]

    def failing(put: Callable[..., Any]) -> Callable[..., Any]:
        def put_or_fail(*args: Any, **details: Any) -> Any:
            is_failing = left[0] > 0
            left[0] -= 1
            done = None if is_failing and not after else put(*args, **details)
            if is_failing:
                raise StoreUnreachableError("the line is dead", hint="Plug it in.")
            return done

        return put_or_fail

    for name in ("put_meta", "put_monolith"):
        monkeypatch.setattr(Documents, name, failing(getattr(Documents, name)))


ROWS = [row("state", "one"), row("new", "two", OTHER)]


@pytest.fixture(params=["version 1", "sharded"])
def shared(request: pytest.FixtureRequest, bob: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is there already, and locks that nobody gave back do not last long."""
    if request.param == "sharded":
        assert bob("datastore", "migrate-index").status == 0
    with bob.open() as repo, repo.session([MODEL]):
        repo.artifacts.save(MODEL, "state", "zero")
    monkeypatch.setenv("SWAMPSTORE_LOCK_TTL_MS", "1000")


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("by_url", [False, True])
def test_a_push_that_fails_is_taken_back_and_the_job_can_be_repeated(
    ana: Machine,
    bob: Machine,
    bucket: Path,
    at: Any,
    monkeypatch: pytest.MonkeyPatch,
    by_url: bool,
) -> None:
    target = f"file://{bucket}" if by_url else at(ana)
    before = everything(bucket / "data")
    with monkeypatch.context() as patch:
        break_commits(patch, times=1)
        with pytest.raises(NotSavedError, match="nothing was saved: the line is dead") as caught:
            Job(target).run(ROWS)
    assert "run the job again" in (caught.value.hint or "")
    assert everything(bucket / "data") == before
    assert versions(bob, MODEL, "state") == ["zero"]
    assert versions(bob, OTHER, "new") == []
    Job(target).run(ROWS)
    assert versions(bob, MODEL, "state") == ["zero", "one"]
    assert versions(bob, OTHER, "new") == ["two"]
    assert not everything(bucket / STAGING)


@pytest.mark.usefixtures("shared")
def test_without_an_answer_nobody_knows_whether_rows_were_saved(
    ana: Machine, bob: Machine, bucket: Path, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = at(ana)
    with monkeypatch.context() as patch:
        break_commits(patch, times=99)
        with pytest.raises(NotSavedError, match="not known whether the rows were saved"):
            Job(target).run(ROWS)
    assert versions(bob, MODEL, "state") == ["zero"]
    assert versions(bob, OTHER, "new") == []
    with ana.open() as repo:
        assert contents(repo, MODEL, "state") == ["zero"]
    assert not everything(bucket / STAGING)


@pytest.mark.usefixtures("shared")
def test_a_commit_whose_answer_got_lost_is_taken_back(
    ana: Machine, bob: Machine, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = at(ana)
    with monkeypatch.context() as patch:
        break_commits(patch, times=1, after=True)
        with pytest.raises(NotSavedError, match="nothing was saved"):
            Job(target).run(ROWS)
    assert versions(bob, MODEL, "state") == ["zero"]
    assert versions(bob, OTHER, "new") == []
    with ana.open() as repo:
        assert contents(repo, MODEL, "state") == ["zero"]


@pytest.mark.parametrize("after", [False, True])
def test_what_a_job_would_replace_is_still_there_if_its_push_fails(
    ana: Machine, bob: Machine, at: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setenv("SWAMPSTORE_LOCK_TTL_MS", "1000")
    update_marker(str(ana.repo_dir), {"autoGc": True})
    columns = {**TEXT, "garbage_collection": "integer"}
    rows = [row("state", text, garbage_collection=1) for text in ("one", "two")]
    Job(at(ana), columns).run(rows[:1])
    with monkeypatch.context() as patch:
        break_commits(patch, times=1, after=after)
        with pytest.raises(NotSavedError, match="nothing was saved"):
            Job(at(ana), columns).run(rows[1:])
    assert versions(ana, MODEL, "state") == ["one"]
    assert versions(bob, MODEL, "state") == ["one"]
    Job(at(ana), columns).run(rows[1:])
    assert versions(ana, MODEL, "state") == ["two"]
    assert versions(bob, MODEL, "state") == ["two"]


def test_a_file_that_cannot_be_uploaded_keeps_all_others_invisible(
    ana: Machine, bob: Machine, bucket: Path, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bob.open() as repo, repo.session([MODEL]):
        repo.artifacts.save(MODEL, "state", "zero")
    put = DirectoryStore.put_if_absent

    def refuse(store: DirectoryStore, key: str, data: bytes) -> Any:
        if key.startswith(f"data/{OTHER}/new"):
            raise StoreUnreachableError("the line is dead", hint="Plug it in.")
        return put(store, key, data)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "put_if_absent", refuse)
        patch.setattr("swampstore.stores.retry.time.sleep", lambda _: None)
        with pytest.raises(NotSavedError, match="nothing was saved"):
            Job(at(ana)).run([row("state", "one"), row("new", "two", OTHER)])
    assert versions(bob, MODEL, "state") == ["zero"]
    assert not everything(bucket / STAGING)
    files = {Path(file).relative_to(bucket).as_posix() for file in everything(bucket / "data")}
    assert files == {
        f"data/{MODEL}/state/{rest}" for rest in ("1/raw", "1/metadata.yaml", "latest")
    }


def test_a_lock_that_others_hold_ends_the_job_with_nothing_saved(
    ana: Machine, bob: Machine, bucket: Path, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo_dir = at(ana)
    monkeypatch.setenv("SWAMP_LOCK_TIMEOUT_MS", "300")
    with (
        bob.open() as repo,
        repo.session([MODEL]),
        pytest.raises(LockTimeoutError, match="held by"),
    ):
        Job(repo_dir).run([row("state", "one")])
    assert versions(bob, MODEL, "state") == []
    assert not everything(bucket / STAGING)


def test_the_models_are_locked_while_a_job_is_committed(
    ana: Machine, bob: Machine, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    repo_dir = at(ana)
    with bob.open() as other:
        from swampstore.artifacts.groups import Deferral

        save = Deferral.save

        def look(group: Deferral, *args: Any) -> Any:
            seen.extend(str(model) for model, _ in other.locks.locked_models())
            return save(group, *args)

        monkeypatch.setattr(Deferral, "save", look)
        Job(repo_dir).run([row("state", "one"), row("state", "x", OTHER)])
    assert sorted(set(seen)) == [MODEL, OTHER]


def test_without_a_remote_in_reach_nothing_is_saved(
    ana: Machine, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(at(ana))
    attempt = job.attempt([row("state", "one")])
    monkeypatch.setenv("SWAMPSTORE_OFFLINE", "on")
    with pytest.raises(NotSavedError, match="cannot be reached"):
        job.writer.commit([attempt])
    with ana.open() as repo:
        assert repo.list_versions(MODEL, "state") == []


def run_job(target: str, number: int) -> None:
    """Run a job as the driver does, in a process of its own."""
    Job(target).run([row("state", f"{number}-{n}") for n in range(3)])


def test_two_jobs_on_the_same_models_both_save_everything(bob: Machine, bucket: Path) -> None:
    processes = multiprocessing.get_context("spawn")
    jobs = [
        processes.Process(target=run_job, args=(f"file://{bucket}", number)) for number in (0, 1)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0]
    found = versions(bob, MODEL, "state")
    ours, theirs = ([f"{number}-{n}" for n in range(3)] for number in (0, 1))
    assert found in (ours + theirs, theirs + ours)
    assert not everything(bucket / STAGING)


# On Spark ------------------------------------------------------------------------------------


def frame(spark: SparkSession, rows: int) -> DataFrame:
    """One row per model and run, in some partitions."""
    from swampstore.pipeline import register

    register(spark)
    return spark.range(rows, numPartitions=3).selectExpr(
        "'aws/ec2' AS type",
        "concat('i-', id % 2) AS model_id",
        "'state' AS name",
        "id AS ordering",
        "named_struct('run', id, 'on', array(TIMESTAMP '2026-03-01 12:00:00Z')) AS attributes",
        "map('env', 'prod') AS tags",
    )


def test_spark_saves_what_spark_and_everybody_else_can_read(
    spark: SparkSession, bob: Machine, bucket: Path
) -> None:
    frame(spark, 7).write.format("swampstore").mode("append").save(f"file://{bucket}")
    with bob.open() as repo:
        repo.sync.pull()
        runs = [found.json()["run"] for found in repo.versions("aws/ec2/i-1", "state")]
    assert runs == [5, 3, 1]
    table = spark.read.format("swampstore").option("attributes", "true").load(f"file://{bucket}")
    found = table.where("is_latest").selectExpr(
        "model_id", "version", "tags['env']", "to_json(attributes)"
    )
    assert sorted(tuple(row) for row in found.collect()) == [
        ("i-0", 4, "prod", '{"on":["2026-03-01T12:00:00.000Z"],"run":6}'),
        ("i-1", 3, "prod", '{"on":["2026-03-01T12:00:00.000Z"],"run":5}'),
    ]
    # What was read can be written again, variants included.
    again = table.where("is_latest AND model_id = 'i-1'").selectExpr(
        "type_normalized", "'i-9' AS model_id", "data_name", "attributes"
    )
    again.write.format("swampstore").mode("append").save(f"file://{bucket}")
    with bob.open() as repo:
        repo.sync.pull()
        again_there = repo.latest("aws/ec2/i-9", "state").json()
    assert again_there == {"on": ["2026-03-01T12:00:00.000Z"], "run": 5}


def test_a_task_that_fails_on_spark_leaves_nothing(spark: SparkSession, place: Path) -> None:
    with open_repo(place) as repo:
        repo.artifacts.save(MODEL, "state", "zero")
    before = everything(place)
    bad = frame(spark, 9).selectExpr(
        "type", "model_id", "if(ordering = 8, 'la/test', name) AS name", "'x' AS content"
    )
    with pytest.raises(Exception, match="data_name 'la/test' cannot be saved"):
        bad.write.format("swampstore").mode("append").save(str(place))
    assert everything(place) == before


def test_spark_is_told_what_is_wrong_before_a_task_runs(spark: SparkSession, place: Path) -> None:
    writer = frame(spark, 1).withColumnRenamed("name", "title").write.format("swampstore")
    with pytest.raises(Exception, match=r"a column title.*\n.*Select and rename columns"):
        writer.mode("append").save(str(place))
    refused = {
        "overwrite": "versions never change",
        "ignore": 'cannot be written in the "Ignore" mode',
        "errorifexists": 'cannot be written in the "ErrorIfExists" mode',
    }
    for mode, reason in refused.items():
        with pytest.raises(Exception, match=reason) as caught:
            frame(spark, 1).write.format("swampstore").mode(mode).save(str(place))
        assert "Traceback" not in str(caught.value)
    with open_repo(place) as repo:
        assert len(repo.query()) == 0


def test_the_page_about_writing_is_true(spark: SparkSession, place: Path) -> None:
    page = Page(ROOT / "docs/how-to/write-from-spark.md")
    names = {"spark": spark}
    for block in page.blocks:
        if block.language == "py":
            exec(block.text.replace("/srv/inventory", str(place)), names)
    with open_repo(place) as repo:
        assert len(repo.query()) == 2


def save_with_a_task_that_fails_once(spark: SparkSession, target: str, marker: str) -> None:
    """Save rows; one task, having staged all of its own, fails the first time."""
    from swampstore.pipeline.source import SwampstoreSource
    from swampstore.pipeline.source.writer import ArtifactWriter

    class Failing(ArtifactWriter):
        def write(self, iterator: Any) -> Attempt:
            from pyspark import TaskContext

            attempt = super().write(iterator)
            context = TaskContext.get()
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                Path(marker).write_text("failed")
                raise RuntimeError("after everything was staged")
            return attempt

    class Source(SwampstoreSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def writer(self, schema: types.StructType, overwrite: bool) -> ArtifactWriter:
            return Failing.of(self.options, schema, overwrite=overwrite)

    rows = frame(spark, 7)
    spark.dataSource.register(Source)
    rows.write.format("failing").mode("append").save(target)


def test_a_task_that_is_repeated_counts_once(bob: Machine, bucket: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    # Where a task may fail once, unlike in the session of the tests.
    patient = Elsewhere({"SWAMPSTORE_SPARK_MASTER": "local[2,2]"}, {})
    patient.run(save_with_a_task_that_fails_once, f"file://{bucket}", str(marker))
    assert marker.exists()
    with bob.open() as repo:
        repo.sync.pull()
        for model, runs in ((0, [6, 4, 2, 0]), (1, [5, 3, 1])):
            found = repo.versions(f"aws/ec2/i-{model}", "state")
            assert [one.json()["run"] for one in found] == runs
    assert not everything(bucket / STAGING)


def test_rows_that_made_room_for_others_are_taken_back_as_well(
    ana: Machine, bob: Machine, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWAMPSTORE_LOCK_TTL_MS", "1000")
    target, prepare = at(ana), SyncService.prepare_push
    bob.put(MODEL, "state", "of bob")

    def prepare_after_bob(service: SyncService, *args: Any, **details: Any) -> Any:
        patch.setattr(SyncService, "prepare_push", prepare)
        with bob.open() as repo:
            repo.sync.push()
        break_commits(patch, times=1)
        return prepare(service, *args, **details)

    with monkeypatch.context() as patch:
        patch.setattr(SyncService, "prepare_push", prepare_after_bob)
        with pytest.raises(NotSavedError, match="nothing was saved"):
            Job(target).run([row("state", "of ana")])
    with ana.open() as repo:
        assert contents(repo, MODEL, "state") == ["of bob"]
    assert ana("sync").status == 0
    assert versions(bob, MODEL, "state") == ["of bob"]
