"""Reports: every figure is what a plain loop over the versions gives; the command writes them."""

from __future__ import annotations

import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swampstore import Repo
from swampstore.artifacts.metadata import Owner
from swampstore.cli.pipeline import Bulk
from swampstore.clock import to_iso
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.index.results import Step
from swampstore.layout import ModelRef
from swampstore.pipeline import places_of, schemas
from swampstore.pipeline.places import Place
from swampstore.pipeline.report import Reported, report
from swampstore.pipeline.report.summary import Copy, RunDay, Source, Summary, Totals, Usage
from swampstore.runs.outputs import Output, Outputs
from tests.conftest import FakeClock
from tests.support.machines import Machine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from swampstore.pipeline.report.figures import Figures

NOW = datetime(2026, 5, 14, 20, 19, 51, tzinfo=UTC)
PLACE = ("store", "namespace")
MODEL = (*PLACE, "type_normalized", "model_id")
NAME = (*MODEL, "data_name")
COLUMNS = [column.split()[0] for column in schemas.ARTIFACTS.split(", ")]
_BLANK: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, ""),
    "deferred": False,
    "streaming": False,
    "tags": {},
    "lifetime": "infinite",
    "garbage_collection": "10",
}

Version = dict[str, Any]


# A loop over the versions ---------------------------------------------------------------------


def grouped(rows: Iterable[Version], *keys: str) -> dict[tuple[Any, ...], list[Version]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def size(rows: Iterable[Version]) -> int:
    return sum(row["size"] or 0 for row in rows)


def use(rows: Sequence[Version]) -> tuple[int, int, int]:
    return len(rows), size(rows), size(row for row in rows if row["is_latest"])


def usage(rows: Iterable[Version], *keys: str) -> set[tuple[Any, ...]]:
    return {
        (*key, len(grouped(group, *NAME)), *use(group))
        for key, group in grouped(rows, *keys).items()
    }


def latest(rows: Sequence[Version]) -> Version:
    return max(rows, key=lambda row: (row["is_latest"], row["version"]))


def with_lifecycle_of_name(rows: Sequence[Version]) -> list[Version]:
    return [
        row | {"lifecycle": latest(group)["lifecycle"]}
        for group in grouped(rows, *NAME).values()
        for row in group
    ]


def duplicates(rows: Sequence[Version]) -> set[tuple[Any, ...]]:
    found = set()
    copies = [row for row in rows if row["checksum"] and row["size"]]
    for (checksum,), group in grouped(copies, "checksum").items():
        if len(group) > 1:
            wasted = size(group) - max(row["size"] for row in group)
            names = len(grouped(group, *NAME))
            found.add((checksum, len(group), names, size(group), wasted))
    return found


def growth(days: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    found = set()
    days = sorted(days, key=lambda row: (*row[:2], row[2] or date.min))
    for row in days:
        until = [
            one
            for one in days
            if one[:2] == row[:2] and (one[2] or date.min) <= (row[2] or date.min)
        ]
        found.add((*row[:3], sum(one[4] for one in until), sum(one[5] for one in until)))
    return found


def collectable(rows: Iterable[Version]) -> set[tuple[Any, ...]]:
    going = [row | {"rule": row["why"] or "old-versions"} for row in rows if row["goes"]]
    return {row[:-1] for row in usage(going, "rule", *PLACE, "type_normalized")}


# Versions -------------------------------------------------------------------------------------


def many_versions(seed: int) -> list[Version]:
    """Versions of few names, of few kinds, in a few places, with all that can be missing."""
    chance = random.Random(seed)
    choices: dict[str, Sequence[Any]] = {
        "store": ["file:///a", "s3://b"],
        "namespace": ["", "infra"],
        "type_normalized": ["aws/ec2", "dns"],
        "model_id": ["i-1", "i-2"],
        "data_name": ["state", "<b>"],
        "version": range(1, 13),
        "is_latest": [False, True],
        "lifecycle": ["active", "active", "deleted"],
        "content_type": ["text/plain", "application/json"],
        "owner_type": ["manual"],
        "owner_ref": ["", "ana"],
        "workflow_name": ["", "nightly"],
        "workflow_run_id": ["1", "2"],
        "size": [None, 0, 7, 7, 1 << 40],
        "checksum": ["", "c1", "c2", "c3"],
        "created_at": [None, *(NOW + timedelta(hours=hours) for hours in range(-4000, 200, 700))],
        "goes": [False, True],
        "why": [None, "duration-expired"],
    }
    rows = [{name: chance.choice(values) for name, values in choices.items()} for _ in range(60)]
    return list({tuple(row[key] for key in (*NAME, "version")): row for row in rows}.values())


def frame(spark: SparkSession, rows: Iterable[Version]) -> DataFrame:
    filled = [_BLANK | row for row in rows]
    return spark.createDataFrame(
        [tuple(row[name] for name in COLUMNS) for row in filled], schemas.ARTIFACTS
    )


def removals(spark: SparkSession, rows: Iterable[Version]) -> DataFrame:
    going = [
        (*(row[key] for key in (*NAME, "version", "created_at")), row["size"] or 0, row["why"])
        for row in rows
        if row["goes"]
    ]
    strings = ", ".join(f"{key} string" for key in NAME)
    more = "version bigint, created_at timestamp, size bigint, reason string"
    return spark.createDataFrame(going, f"{strings}, {more}")


def figures_of(spark: SparkSession, rows: Sequence[Version]) -> Figures:
    """Return the figures, with what they are made of in memory, as a report has it."""
    from swampstore.pipeline.report.figures import Figures, narrowed

    figures = Figures(narrowed(frame(spark, rows)), removals(spark, rows))
    figures.usage.persist()
    figures.duplicates.persist()
    return figures


def silent(step: Step) -> None:
    """Whom nobody tells anything."""


def as_text(*values: object) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in values)


def collected(tables: Mapping[str, tuple[DataFrame, Sequence[str]]]) -> dict[str, list[Any]]:
    """The rows of tables, with values as text: one question to Spark instead of many."""
    from pyspark.sql import functions as sf

    frames = [
        table.select(sf.lit(name), sf.array(*(sf.col(column).cast("string") for column in columns)))
        for name, (table, columns) in tables.items()
    ]
    found: dict[str, list[Any]] = {name: [] for name in tables}
    for name, values in reduce(lambda one, other: one.union(other), frames).collect():
        found[name].append(tuple(values))
    return found


TABLES = (
    *("usage_by_namespace", "usage_by_type", "usage_by_model", "usage_by_name", "usage_by_day"),
    *("usage_by_content_type", "usage_by_owner", "usage_by_workflow", "usage_by_lifecycle"),
    *("growth", "largest", "oldest", "duplicates", "collectable"),
)
USE = ("names", "versions", "bytes", "latest_bytes")


def test_every_table_is_what_a_loop_over_the_versions_gives(spark: SparkSession) -> None:
    rows = many_versions(seed=4)
    found = figures_of(spark, rows).tables()
    dated = [row | {"day": row["created_at"] and row["created_at"].date()} for row in rows]
    days = usage(dated, *PLACE, "day")
    made = [row for row in rows if row["workflow_name"]]
    names = {(*key, *use(group)) for key, group in grouped(rows, *NAME).items()}
    copies = ("checksum", "copies", "names", "bytes", "wasted_bytes")
    expected: dict[str, tuple[tuple[str, ...], set[tuple[Any, ...]]]] = {
        "usage_by_namespace": ((*PLACE, *USE), usage(rows, *PLACE)),
        "usage_by_type": (("type_normalized", *USE), usage(rows, "type_normalized")),
        "usage_by_model": ((*MODEL, *USE), usage(rows, *MODEL)),
        "usage_by_name": ((*NAME, *USE[1:]), names),
        "usage_by_day": ((*PLACE, "day", *USE), days),
        "usage_by_content_type": (("content_type", *USE), usage(rows, "content_type")),
        "usage_by_owner": (
            ("owner_type", "owner_ref", *USE),
            usage(rows, "owner_type", "owner_ref"),
        ),
        "usage_by_workflow": (("workflow_name", *USE), usage(made, "workflow_name")),
        "usage_by_lifecycle": (
            ("lifecycle", *USE),
            usage(with_lifecycle_of_name(rows), "lifecycle"),
        ),
        "growth": ((*PLACE, "day", "versions", "bytes"), growth(days)),
        "duplicates": (copies, duplicates(rows)),
        "collectable": (("rule", *PLACE, "type_normalized", *USE[:3]), collectable(rows)),
    }
    assert set(found) == {*expected, "largest", "oldest"} == set(TABLES)
    told = collected({name: (found[name], columns) for name, (columns, _) in expected.items()})
    for name, (_, due) in expected.items():
        assert due, name
        assert Counter(told[name]) == Counter(as_text(*row) for row in due), name


def made(address: str, version: int, size: int, moment: datetime | None, **more: Any) -> Version:
    namespace, model_type, model_id, name = address.split("|")
    members = {"store": "s3://b", "namespace": namespace, "type_normalized": model_type}
    members |= {"model_id": model_id, "data_name": name, "lifecycle": "active"}
    facts = {"version": version, "size": size, "created_at": moment, "is_latest": False}
    return _BLANK | members | facts | {"goes": False, "why": None} | more


def six_versions() -> list[Version]:
    """A name that is deleted, one whose old versions are alike, one that is like them too."""
    zone, web, log = "|dns|zone|state", "infra|aws/ec2|i-1|<b>", "infra|aws/ec2|i-2|log"
    latest = {"is_latest": True}
    going = {"goes": True}
    winter = datetime(2026, 1, 2, 23, 30, tzinfo=UTC)
    return [
        made(zone, 1, 100, winter, checksum="z1", why="duration-expired", **going),
        made(zone, 2, 96, None, checksum="z2", lifecycle="deleted", **latest),
        made(web, 1, 2, winter, checksum="c1", **going),
        made(web, 2, 2, winter, checksum="c1"),
        made(web, 3, 4, winter, checksum="c2", model_name="web", **latest),
        made(log, 1, 2, NOW + timedelta(days=1), checksum="c1", **latest),
    ]


@pytest.fixture
def session_in_tokyo(spark: SparkSession) -> Iterator[SparkSession]:
    """A session for which most days in UTC end on the day after."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_summary_has_the_totals_and_the_first_rows_in_their_order(
    session_in_tokyo: SparkSession,
) -> None:
    from swampstore.pipeline.report.figures import SummaryReader

    spark, rows = session_in_tokyo, six_versions()
    figures = figures_of(spark, rows)
    steps: list[int] = []
    sources = [Source("s3://b", ""), Source("s3://b", "infra")]
    summary = SummaryReader(figures, steps.append).summary(sources, NOW)
    assert steps == [*range(1, SummaryReader.STEPS + 1)]
    totals = summary.totals
    assert totals[:7] == (2, 2, 3, 3, 6, 206, 102)
    assert (totals.deleted_names, totals.deleted_bytes) == (1, 196)
    assert (totals.duplicate_contents, totals.duplicate_versions) == (1, 3)
    assert totals.duplicate_bytes == 4
    assert (totals.freed_names, totals.freed_versions, totals.freed_bytes) == (2, 2, 102)
    assert (totals.undated_versions, totals.future_versions) == (1, 1)
    assert [row.name for row in summary.types] == ["dns", "aws/ec2"]
    assert [row.model_id for row in summary.models] == ["zone", "i-1", "i-2"]
    assert [row.model_name for row in summary.models] == ["", "web", ""]
    assert [(row.size, row.data_name) for row in summary.largest[:3]] == [
        (100, "state"),
        (96, "state"),
        (4, "<b>"),
    ]
    assert [row.data_name for row in summary.oldest] == ["<b>", "log"]
    assert summary.oldest[0].created_at == datetime(2026, 1, 2, 23, 30, tzinfo=UTC)
    assert [(row.name, row.bytes) for row in summary.rules] == [
        ("duration-expired", 100),
        ("old-versions", 2),
    ]
    [copied] = summary.duplicates
    assert copied.examples == tuple(
        Copy(*(row[name] for name in Copy._fields)) for row in (rows[2], rows[3], rows[5])
    )
    added = {(row.source and row.source.namespace, row.day, row.bytes) for row in summary.additions}
    winter = date(2026, 1, 2)
    assert added == {
        ("", winter, 100),
        ("", None, 96),
        ("infra", winter, 8),
        ("infra", date(2026, 5, 15), 2),
    }


def summed_up_here(rows: Sequence[Version]) -> Summary:
    from swampstore.pipeline.report.local_engine import SummaryHere
    from swampstore.pipeline.report.local_engine import Version as Stored

    columns = Stored._fields[:-2]
    stored = {
        id(row): Stored(*((_BLANK | row | {"size": row["size"] or 0})[name] for name in columns))
        for row in rows
    }
    going = [
        stored[id(row)]._replace(rule=row["why"] or "old-versions", is_latest=False, model_name="")
        for row in rows
        if row["goes"]
    ]
    return SummaryHere(stored.values(), going).summary([], NOW)


def test_a_summary_of_nothing_is_all_zeros(spark: SparkSession) -> None:
    from swampstore.pipeline.report.figures import SummaryReader

    on_spark = SummaryReader(figures_of(spark, []), lambda _: None).summary([], NOW)
    for summary in (on_spark, summed_up_here([])):
        assert summary.totals == Totals()
        assert not any(summary.to_json()[name] for name in ("types", "names", "largest", "freed"))


@pytest.mark.parametrize("rows", [many_versions(5), six_versions()], ids=["many", "six"])
def test_a_summary_is_the_same_without_spark(spark: SparkSession, rows: list[Version]) -> None:
    from swampstore.pipeline.report.figures import SummaryReader

    expected = SummaryReader(figures_of(spark, rows), lambda _: None).summary([], NOW)
    found = summed_up_here(rows)
    assert set(found.additions) == set(expected.additions)
    assert replace(found, additions=()) == replace(expected, additions=())


# Real datastores ------------------------------------------------------------------------------


def save_some(repo: Repo) -> None:
    """Save two versions beyond a policy, one that is over, and one of a run that is gone."""
    for number in (0, 0, 1):
        repo.artifacts.save("aws/ec2/i-1", "state", {"n": number}, garbage_collection=1)
    repo.artifacts.save("dns/zone", "old <b>", b"x" * 1000, lifetime="1m")
    for run in ("gone", "kept"):
        owner = Owner("workflow-step", workflow_id="w", workflow_run_id=run)
        repo.artifacts.save("dns/zone", run, b"y", lifetime="workflow", owner=owner)


RULES = {("old-versions", 4), ("duration-expired", 2), ("workflow-deleted", 3)}


def test_a_report_of_a_directory_and_a_bucket_comes_with_its_tables(
    spark: SparkSession, repo: Repo, ana: Machine, bucket: Path, tmp_path: Path
) -> None:
    save_some(repo)
    record = Path(repo.tree.path("workflow-runs/w/workflow-run-kept.yaml"))
    record.parent.mkdir(parents=True)
    record.write_text("id: kept\n")
    with ana.open() as shared:
        save_some(shared)  # without any record of a run
        shared.sync.push()
    tables, output = tmp_path / "tables", tmp_path / "report.html"
    steps: list[Step] = []
    reported = report(
        spark,
        [*places_of(repo), *places_of(f"file://{bucket}", environ={})],
        now=datetime.now(UTC) + timedelta(days=1),
        output=str(output),
        tables_dir=str(tables),
        progress=steps.append,
    )
    assert (reported.output, reported.tables_dir) == (str(output), str(tables))
    summary = reported.summary
    assert (summary.totals.versions, summary.totals.names) == (12, 8)
    assert summary.totals.duplicate_contents == 4
    assert {(row.name, row.versions) for row in summary.rules} == RULES
    assert summary.types[0] == Usage(("dns",), 6, 6, 2004, 2004)
    assert {path.name for path in tables.iterdir()} == set(TABLES)
    names = spark.read.parquet(str(tables / "usage_by_name"))
    assert Counter((row.data_name, row.versions) for row in names.collect()) == {
        ("state", 3): 2,
        ("old <b>", 1): 2,
        ("gone", 1): 2,
        ("kept", 1): 2,
    }
    moment = summary.generated_at
    places = [*places_of(repo), *places_of(f"file://{bucket}", environ={})]
    here = report(None, places, now=moment, output=None, progress=silent).summary
    assert set(here.additions) == set(summary.additions)
    assert replace(here, additions=()) == replace(summary, additions=())
    page = output.read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "old &lt;b&gt;" in page
    assert {step.phase for step in steps} == {"reading", "summing up", "writing tables"}


# The command ----------------------------------------------------------------------------------


def test_the_command_says_what_there_is_and_where_the_report_is(
    ana: Machine, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    def done(
        _: object, places: Sequence[Place], *, now: datetime, output: str | None, **more: Any
    ) -> Reported:
        totals = Totals(1, 1, 1, 2, 3, 4096, 1024, 0, 0, 1, 2, 512, 1, 1, 256)
        types = [Usage(("dns",), 2, 3, 4096, 1024)]
        summary = Summary(now, [Source(str(places[0]), "")], totals, types=types)
        return Reported(output, more["tables_dir"], summary, 1.0)

    monkeypatch.setattr("swampstore.pipeline.report.report", done)
    monkeypatch.setattr("swampstore.cli.pipeline.report.system_clock", clock)
    monkeypatch.setattr(Bulk, "spark", lambda *_: contextlib.nullcontext())
    told = ana("pipeline", "report").out
    assert "4.0 KB in 3 versions of 2 names" in told
    assert "256 B in 1 version that gc would remove" in told
    assert "report.html" in told
    document = ana("pipeline", "report", "--output", "r.html", "--tables", "t", "--json").json
    assert (document["report"], document["tables"]) == ("r.html", "t")
    assert document["generatedAt"] == to_iso(clock.now)
    assert document["totals"]["freedBytes"] == 256
    usage = {"names": 2, "versions": 3, "bytes": 4096, "latestBytes": 1024}
    assert document["types"] == [{"type": "dns", **usage}]
    dry = ana("pipeline", "report", "--tables", "t", "--dry-run", "--json").json
    assert (dry["dryRun"], dry["report"], dry["tables"]) == (True, None, None)
    assert dry["totals"] == document["totals"]
    assert "4.0 KB in 3 versions" in ana("pipeline", "report", "--dry-run").out


def test_without_a_file_there_is_only_the_summary(
    spark: SparkSession, repo: Repo, tmp_path: Path
) -> None:
    save_some(repo)
    before = sorted(tmp_path.rglob("*.html"))
    reported = report(spark, places_of(repo), now=NOW, output=None, progress=silent)
    assert (reported.output, reported.summary.totals.versions) == (None, 6)
    assert sorted(tmp_path.rglob("*.html")) == before


def test_tables_are_not_written_without_spark(repo: Repo) -> None:
    with pytest.raises(ValidationError, match="tables of a report are written by Spark"):
        report(None, places_of(repo), now=NOW, output=None, tables_dir="t", progress=silent)


def test_little_is_read_by_tasks_in_one_job_and_summed_up_by_the_driver(
    spark: SparkSession, repo: Repo
) -> None:
    def jobs() -> Any:
        return spark.sparkContext._jsc.sc().statusStore().jobsList(None)

    save_some(repo)
    before = jobs().size()
    found = report(spark, places_of(repo), now=NOW, output=None, progress=silent)
    assert jobs().size() - before == 1
    # A second worker would take longer to start than this one does for all of it.
    assert jobs().head().numTasks() == 1
    here = report(None, places_of(repo), now=NOW, output=None, progress=silent)
    assert found.summary.to_json() == here.summary.to_json()
    for one in (found, here):
        assert one.metrics.requests["list"] > 0
        assert one.to_json()["metrics"]["requests"] == one.metrics.requests


@pytest.mark.parametrize("few", [0, 10**6])
def test_runs_are_counted_by_day_and_by_method(
    spark: SparkSession, repo: Repo, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swampstore.pipeline.report._FEW", few)
    save_some(repo)
    outputs = Outputs(repo)
    for number, (day, method, status, took) in enumerate(
        [
            ("2026-05-14T00:00:00.000Z", "scan", "succeeded", 1000),
            ("2026-05-13T23:59:59.999Z", "scan", "failed", 3000),
            ("2026-05-13T12:00:00.000Z", "probe", "succeeded", 10),
            ("2026-01-01T12:00:00.000Z", "long ago", "failed", 10**9),
        ]
    ):
        model = ModelRef("aws/ec2", "i-1")
        outputs.save(Output(f"id-{number}", model, method, status, day, duration_ms=took))
    path = tmp_path / "r.html"
    reported = report(spark, places_of(repo), now=NOW, output=str(path), progress=silent)
    summary = reported.summary
    here = report(None, places_of(repo), now=NOW, output=None, progress=silent).summary
    assert set(here.additions) == set(summary.additions)
    assert replace(here, additions=()) == replace(summary, additions=())
    assert summary.run_days == (RunDay(date(2026, 5, 14), 1, 0), RunDay(date(2026, 5, 13), 2, 1))
    told = [(one.method_name, one.runs, one.failed, one.mean_ms) for one in summary.methods]
    assert told == [("scan", 2, 1, 2000), ("probe", 1, 0, 10)]
    assert summary.to_json()["runDays"][0] == {"day": "2026-05-14", "runs": 1, "failed": 0}
    assert "of methods in the last 30 days, of which 1 failed." in path.read_text()


@pytest.mark.parametrize(
    ("output", "told"), [("no/r.html", "no directory"), ("", "is a directory")]
)
def test_a_report_that_has_no_place_is_refused_before_the_work(
    repo: Repo, tmp_path: Path, output: str, told: str
) -> None:
    nowhere: Any = None  # Spark is not asked for anything
    with pytest.raises(SwampstoreError, match=told):
        report(nowhere, places_of(repo), now=NOW, output=f"{tmp_path}/{output}", progress=silent)
