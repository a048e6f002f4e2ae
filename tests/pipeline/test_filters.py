"""Filters choose what is read: the right rows, for few requests, however Spark plans."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark_filters

from swampstore import Repo
from swampstore.catalog.schema import Row
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.snapshots.refresh import refresh
from swampstore.pipeline.source import table_of
from swampstore.pipeline.source.artifacts import Artifacts
from swampstore.pipeline.source.scan import (
    Condition,
    Conditions,
    Frame,
    Wanted,
    understood,
)
from swampstore.pipeline.tables import Tables
from swampstore.stores.wrapper import CountingStore
from tests.support.histories import MODELS, NAMES, History
from tests.support.members import bucket_in_a_directory, bucket_on_a_server, shared_directory
from tests.support.remotes import ProxiedRemote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("store", *Row._fields)
MOMENT = datetime(2026, 5, 14, 20, 19, 51, 42000, tzinfo=UTC)


# What Spark says ---------------------------------------------------------------------------


def test_spark_s_filters_become_conditions() -> None:
    found = understood(
        [
            spark_filters.IsNotNull(("version",)),
            spark_filters.EqualTo(("model_id",), "i-1"),
            spark_filters.In(("version",), [1, None, 2]),
            spark_filters.GreaterThanOrEqual(("created_at",), MOMENT),
            spark_filters.Not(spark_filters.EqualTo(("is_latest",), value=True)),
            spark_filters.StringStartsWith(("data_name",), "st"),
        ]
    )

    assert found == (
        Condition("version", "is there"),
        Condition("model_id", "=", "i-1"),
        Condition("version", "in", (1, 2)),
        Condition("created_at", ">=", MOMENT),
        Condition("is_latest", "!=", operand=True),
        Condition("data_name", "starts with", "st"),
    )


def test_filters_that_mean_nothing_here_are_left_to_spark() -> None:
    found = understood(
        [
            spark_filters.IsNull(("version",)),
            spark_filters.EqualTo(("version",), None),
            spark_filters.EqualTo(("size",), 1.5),
            spark_filters.EqualTo(("a", "b"), 1),
            spark_filters.Not(spark_filters.In(("version",), [1])),
            spark_filters.Not(spark_filters.EqualNullSafe(("created_at",), MOMENT)),
            spark_filters.Not(spark_filters.IsNull(("version",))),
            spark_filters.In(("version",), [b"x"]),
        ]
    )

    assert found == ()


@pytest.mark.parametrize(
    ("condition", "passing", "failing"),
    [
        (Condition("x", "=", "a"), ["a"], ["b", None]),
        (Condition("x", "!=", operand=True), [False], [True, None]),
        (Condition("x", ">", 3), [4], [3, 2, None]),
        (Condition("x", ">=", 3), [3], [2, None]),
        (Condition("x", "<", "b"), ["a", "B"], ["b", "é", None]),
        (Condition("x", "<=", 3), [3], [4, None]),
        (Condition("x", "in", (1, 2)), [1, 2], [3, None]),
        (Condition("x", "starts with", "ab"), ["abc"], ["xab", None]),
        (Condition("x", "ends with", "ab"), ["xab"], ["abc", None]),
        (Condition("x", "contains", "ab"), ["xaby"], ["a-b", None]),
        (Condition("x", "is there"), ["", 0, False], [None]),
        (Condition("x", ">", "3"), [4], [None]),  # cannot be compared: Spark has to
    ],
)
def test_a_condition_holds_as_in_sql(
    condition: Condition, passing: list[object], failing: list[object]
) -> None:
    assert [condition.holds(value) for value in passing] == [True] * len(passing)
    assert [condition.holds(value) for value in failing] == [False] * len(failing)


# What a frame was asked --------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def begun(frame_id: str) -> Frame:
    frame = Frame(frame_id)
    frame.begin()
    return frame


def asked(frame_id: str, *conditions: Condition) -> Wanted:
    return Frame(frame_id).asked(conditions)[0]


def version(number: int) -> Condition:
    return Condition("version", "=", number)


def test_a_frame_must_do_for_all_plans_that_have_not_begun(temporary: Path) -> None:
    first = (Condition("version", "in", (1, 2)), Condition("created_at", ">", MOMENT))
    second = (Condition("model_id", "=", "ü\n"),)
    begun("a")
    begun("b")

    assert asked("a", *first).alternatives == (tuple(sorted(first, key=repr)),)
    both = asked("a", *second)
    assert both.admits({"version": 2, "created_at": datetime.now(UTC), "model_id": "x"})
    assert both.admits({"version": 3, "model_id": "ü\n"})
    assert not both.admits({"version": 3, "model_id": "x"})
    assert asked("a", *first) == both
    assert asked("b", *second).alternatives == (second,)
    assert [stat.S_IMODE(one.stat().st_mode) for one in temporary.iterdir()] == [0o600, 0o600]


def test_a_plan_that_has_begun_needs_no_other_reading(temporary: Path) -> None:
    del temporary
    frame = begun("a")
    everything, reading = frame.asked(())
    assert everything.is_everything

    frame.ran(reading)
    frame.ran(reading)  # by its other tasks, and when it runs again

    assert asked("a", version(2)).alternatives == ((version(2),),)


def test_a_reading_that_two_plans_can_have_proves_nothing_about_either(temporary: Path) -> None:
    del temporary
    frame = begun("a")
    _, one = frame.asked((version(1),))
    _, two = frame.asked((version(2),))

    frame.ran(two)
    assert asked("a", version(3)).admits({"version": 1})
    assert asked("a", version(3)).admits({"version": 2})

    frame.ran(one)  # only the first one can have had it
    assert not asked("a", version(3)).admits({"version": 1})
    assert asked("a", version(3)).admits({"version": 2})


def test_a_frame_that_is_asked_too_much_reads_everything(temporary: Path) -> None:
    del temporary
    begun("a")
    wanted = [asked("a", version(number)) for number in range(20)]

    assert not wanted[10].is_everything
    assert wanted[19].is_everything


def test_what_cannot_be_remembered_narrows_nothing(temporary: Path) -> None:
    frame = begun("a")
    frame.asked((version(1),))
    [note] = temporary.iterdir()
    note.write_text("[1, [")
    assert asked("a", version(2)).is_everything

    note.unlink()  # as those who clean up do
    assert asked("a", version(2)).is_everything
    frame.ran(1)
    os.rmdir(temporary)
    begun("b")
    assert asked("b", version(1)).is_everything


def test_notes_of_frames_that_nobody_used_for_long_go(temporary: Path) -> None:
    for name in ("old", "new"):
        begun(name)
    (temporary / "other").touch()
    for old in (temporary / "other", next(temporary.glob("*old*"))):
        os.utime(old, (0, 0))

    begun("newest")

    assert {one.name.removeprefix("swampstore-frame-") for one in temporary.iterdir()} == {
        "new.json",
        "newest.json",
        "other",
    }


# The right rows ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["in place", "version 1", "version 2"])
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place where much has happened."""
    directory = tmp_path_factory.mktemp("lived")
    is_remote = request.param != "in place"
    shared = bucket_in_a_directory(directory) if is_remote else shared_directory(directory)
    member = shared.member("ana")
    with member.open() as repo:
        History(repo, 11).go_on(150)
        if is_remote:
            repo.sync.push()
        if request.param == "version 2":
            repo.sync.migrate_index()
    (place,) = places_of(member.repo_dir, None, member.environ)
    return place


def read(table: Artifacts, place: Place) -> list[tuple[Any, ...]]:
    with place.open() as store:
        pieces = list(table.plan(place, store, 3))
        return sorted(row for piece in pieces for row in table.rows(place, piece, store))


TYPES = sorted({model.rpartition("/")[0] for model in MODELS})
IDS = sorted({model.rpartition("/")[2] for model in MODELS})


def about(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Condition]:
    compared = st.tuples(st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), values)
    chosen = st.tuples(st.just("in"), st.lists(values, max_size=3).map(tuple))
    return (compared | chosen).map(lambda test: Condition(column, *test))


def about_text(column: str, texts: list[str]) -> st.SearchStrategy[Condition]:
    text = st.sampled_from([*texts, "", "../..", "zzz"])
    part = st.tuples(
        st.sampled_from(["starts with", "ends with", "contains"]), text.map(lambda it: it[:2])
    )
    return about(column, text) | part.map(lambda test: Condition(column, *test))


CONDITIONS = (
    about_text("type_normalized", TYPES)
    | about_text("model_id", IDS)
    | about_text("data_name", list(NAMES))
    | about_text("namespace", ["infra"])
    | about_text("step_name", ["measure", "check"])
    | about("version", st.integers(0, 12))
    | about("is_latest", st.booleans())
    | about("size", st.integers(0, 70))
    | st.sampled_from(COLUMNS).map(lambda column: Condition(column, "is there"))
)
ALTERNATIVES = st.lists(st.lists(CONDITIONS, max_size=3).map(tuple), min_size=1, max_size=2)


@settings(deadline=None, max_examples=40)
@given(alternatives=ALTERNATIVES.map(tuple))
def test_what_is_wanted_is_found_as_if_everything_were_read(
    lived: Place, alternatives: tuple[Conditions, ...]
) -> None:
    wanted = Wanted(alternatives)
    everything = _everything(lived)

    expected = [row for row in everything if wanted.admits(dict(zip(COLUMNS, row, strict=True)))]

    assert read(Artifacts(wanted=wanted), lived) == expected


_read_before: dict[str, list[tuple[Any, ...]]] = {}


def _everything(place: Place) -> list[tuple[Any, ...]]:
    if place.identity not in _read_before:
        _read_before[place.identity] = read(Artifacts(), place)
        assert len(_read_before[place.identity]) > 40
    return _read_before[place.identity]


# Few requests ------------------------------------------------------------------------------


PLANNING = 2  # _meta.json, and a look whether there is a snapshot


class Counted:
    """Reads a place and counts what that costs, planning apart from reading."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __call__(self, *conditions: Condition, content: bool = False) -> tuple[int, int, int]:
        """Return the rows, and the requests of the driver and of the tasks."""
        table = Artifacts(content=content, wanted=Wanted((conditions,)))
        with self._place.open() as opened:
            store = CountingStore(opened)
            pieces = list(table.plan(self._place, store, 2))
            planning = sum(store.tally().requests.values())
            store.reset()
            rows = [row for piece in pieces for row in table.rows(self._place, piece, store)]
            return len(rows), planning, sum(store.tally().requests.values())


def populate(repo: Repo) -> None:
    """Five models with two names of four versions each."""
    for number in range(5):
        for name in ("state", "log"):
            for version in range(4):
                repo.artifacts.save(f"aws/ec2/i-{number}", name, f"{version}")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Place:
    member = bucket_in_a_directory(tmp_path_factory.mktemp("bucket")).member("ana")
    with member.open() as repo:
        populate(repo)
        repo.sync.push()
        repo.sync.migrate_index()
    (place,) = places_of(member.repo_dir, None, member.environ)
    return place


def test_a_model_costs_its_own_shard_only(bucket: Place) -> None:
    read = Counted(bucket)
    markers_shard = 1  # aws/ec2 could be the model ec2 of type aws, too
    versions = 2 * 4

    assert read() == (40, PLANNING, 5 + markers_shard + 5 * (versions + 2))
    assert read(Condition("model_id", "=", "i-3")) == (8, PLANNING, 1 + versions + 2)
    both = (
        Condition("type_normalized", "=", "aws/ec2"),
        Condition("model_id", "in", ("i-1", "i-2")),
    )
    assert read(*both) == (16, PLANNING, 2 * (1 + versions + 2))
    assert read(Condition("type_normalized", "=", "aws")) == (0, PLANNING, 5 + markers_shard)
    assert read(Condition("type_normalized", "starts with", "gcp")) == (0, PLANNING, 0)
    assert read(Condition("model_id", "=", "i-1"), Condition("model_id", "=", "i-2")) == (
        0,
        PLANNING,
        0,
    )


def test_a_name_costs_its_own_metadata_only(bucket: Place) -> None:
    shard = 1
    read = Counted(bucket)
    model = Condition("model_id", "=", "i-3")

    assert read(model, Condition("data_name", "=", "log")) == (4, PLANNING, shard + 1 + 4)
    assert read(model, Condition("data_name", "=", "nothing")) == (0, PLANNING, shard)


def test_a_version_costs_itself_the_marker_and_what_tells_whether_it_is_latest(
    bucket: Place,
) -> None:
    shard, names = 1, 2
    read = Counted(bucket)
    model = Condition("model_id", "=", "i-3")

    assert read(model, Condition("version", "=", 4)) == (2, PLANNING, shard + names * (1 + 1))
    assert read(model, Condition("version", "=", 2)) == (2, PLANNING, shard + names * (1 + 2))
    assert read(model, Condition("version", ">", 2)) == (4, PLANNING, shard + names * (1 + 2))
    assert read(model, Condition("version", ">", 9)) == (0, PLANNING, shard)


def test_content_costs_the_wanted_rows_only(bucket: Place) -> None:
    read = Counted(bucket)
    model = Condition("model_id", "=", "i-3")
    latest = Condition("is_latest", "=", operand=True)
    _, _, without = read(model)

    assert read(model, latest, content=True) == (2, PLANNING, without + 2)
    assert read(model, Condition("size", ">", 1), content=True) == (0, PLANNING, without)


def test_a_directory_in_place_is_listed_no_further_than_needed(tmp_path: Path) -> None:
    member = shared_directory(tmp_path).member("ana")
    with member.open() as repo:
        populate(repo)
    (place,) = places_of(member.repo_dir, None, member.environ)
    read = Counted(place)
    everything = read()
    model = (Condition("type_normalized", "=", "aws/ec2"), Condition("model_id", "=", "i-3"))

    found = read(*model)

    assert everything[0] == 40
    assert found[0] == 8
    assert found[1] + found[2] < (everything[1] + everything[2]) / 2


def test_whoever_loads_a_frame_alone_is_told_what_reading_everything_costs(
    bucket: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def told(**options: str) -> bool:
        caplog.clear()
        with bucket.open() as store:
            list(table_of(options).plan(bucket, store, 2))
        return any("--refresh" in one.getMessage() for one in caplog.records)

    assert told()
    assert not told(pushdown="false")
    refresh([bucket], engine="local")
    assert not told()
    assert told(snapshot="false")


# On Spark ----------------------------------------------------------------------------------


def test_this_version_of_spark_still_gives_a_query_the_reading_of_another(
    spark: SparkSession, bucket: Place
) -> None:
    """If it fails, Spark keeps readings with scans: push-down can be the default (decision 31)."""
    for ask in ("count", "explain"):
        frame = spark.read.format("swampstore").option("pushdown", "true").load(bucket.target)
        getattr(frame.filter("model_id = 'i-1'"), ask)()
        assert frame.count() == 8
    assert spark.read.format("swampstore").load(bucket.target).count() == 40


def test_frames_give_right_answers_however_they_are_used(
    spark: SparkSession, bucket: Place
) -> None:
    frame = Tables(spark, [bucket]).artifacts()
    one = frame.filter("model_id = 'i-1' AND is_latest")
    two = frame.filter("model_id = 'i-2' AND version = 1")

    # Both sides have but one reading, and Spark would still know their filters afterwards.
    assert one.join(two, "data_name").count() == 2
    frame.createOrReplaceTempView("filtered")
    either, named, everything = (
        f"(SELECT count(*) FROM filtered {condition})"
        for condition in (
            "WHERE model_id = 'i-3' OR version = 4",
            "WHERE data_name LIKE 'l%' AND model_id = 'i-4'",
            "",
        )
    )
    [counts] = spark.sql(f"SELECT {either}, {named}, {everything}").collect()
    assert tuple(counts) == (16, 4, 40)


def test_whatever_ran_before_the_answers_are_right(spark: SparkSession, bucket: Place) -> None:
    frame = Tables(spark, [bucket]).artifacts()
    frame.createOrReplaceTempView("used")
    random = Random(7)
    rows = [(row.model_id, row.data_name, row.version) for row in frame.collect()]
    planned: list[tuple[DataFrame, int]] = []

    def narrow() -> tuple[str, int]:
        model, name, number = random.choice(rows)
        return random.choice(
            [
                (f"model_id = '{model}'", sum(one[0] == model for one in rows)),
                (f"data_name = '{name}'", sum(one[1] == name for one in rows)),
                (f"version < {number}", sum(one[2] < number for one in rows)),
            ]
        )

    for _ in range(14):
        condition, expected = narrow()
        match random.randrange(6):
            case 0:
                assert frame.count() == len(rows)
            case 1:
                planned.append((frame.filter(condition), expected))
                planned[-1][0].explain()
            case 2 if planned:
                query, expected = random.choice(planned)
                assert len(query.collect()) == expected
            case 3:
                other, others = narrow()
                both = f"SELECT 1 FROM used WHERE {condition} UNION ALL SELECT 2 FROM used WHERE"
                assert len(spark.sql(f"{both} {other}").collect()) == expected + others
            case 4:
                query = frame.filter(condition).cache()
                assert query.count() == expected
                query.unpersist()
                planned.append((query, expected))
            case _:
                query = frame.filter(condition)
                assert len(query.collect()) == expected
                planned.append((query, expected))


@pytest.mark.parametrize("snapshot", [False, True])
def test_the_same_question_costs_the_same_whatever_was_asked_before(
    spark: SparkSession, tmp_path: Path, s3_remote: ProxiedRemote, snapshot: bool
) -> None:
    member = bucket_on_a_server(tmp_path, s3_remote).member("ana")
    with member.open() as repo:
        populate(repo)
        repo.sync.push()
        repo.sync.migrate_index()
    places = places_of(member.repo_dir, None, member.environ)
    if snapshot:
        refresh(places, engine="local")

    def cost(question: Callable[[], object]) -> tuple[int, int]:
        """How many descriptions of versions, and how many contents, were fetched."""
        s3_remote.proxy.reset()
        question()
        keys = [one.key for one in s3_remote.proxy.requests if one.kind == "GET"]
        return (
            sum(key.endswith("/metadata.yaml") for key in keys),
            sum(key.endswith("/raw") for key in keys),
        )

    frame = Tables(spark, places).artifacts(content=True, attributes=True)
    one = "model_id = 'i-3' AND data_name = 'log'"
    described = 0 if snapshot else 4
    everything = 0 if snapshot else 40

    assert cost(lambda: frame.filter(one).select("version").collect()) == (described, 0)
    assert cost(frame.count) == (everything, 0)
    assert cost(lambda: frame.select("data_name", "size").collect()) == (everything, 0)
    assert cost(lambda: frame.filter(one).select("version").collect()) == (described, 0)
    latest = f"{one} AND is_latest"
    assert cost(lambda: frame.filter(latest).select("content").collect()) == (described, 1)
    assert cost(lambda: frame.filter(one).select("content").collect()) == (described, 4)


def test_filters_reach_the_reading(spark: SparkSession, bucket: Place, tmp_path: Path) -> None:
    # Whoever read more than the shard of i-1 would stumble.
    broken = tmp_path / "broken"
    assert bucket.root is not None
    shutil.copytree(bucket.root, broken)
    for shard in (broken / "_index").glob("data--aws--ec2*"):
        if "i-1" not in shard.name:
            shard.write_bytes(b"{")
    (place,) = places_of(f"file://{broken}")

    rows = Tables(spark, [place]).artifacts().filter("model_id = 'i-1' AND version < 3").collect()

    assert sorted((row.data_name, row.version) for row in rows) == [
        ("log", 1),
        ("log", 2),
        ("state", 1),
        ("state", 2),
    ]
