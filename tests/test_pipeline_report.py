"""Reports: every figure is what a plain loop over the versions gives; the command writes them."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import Repo
from swampstore.artifacts.metadata import Owner
from swampstore.cli.pipeline import Bulk
from swampstore.clock import to_iso
from swampstore.errors import NotFoundError
from swampstore.pipeline import places_of, schemas
from swampstore.pipeline.report import Reported, report
from swampstore.pipeline.report.summary import Copy, Source, Summary, Totals
from swampstore.sync.report import Step
from tests.command_line import CommandLine
from tests.conftest import FakeClock
from tests.machines import Machine

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

moments = st.none() | st.datetimes(
    datetime(2025, 12, 30),  # noqa: DTZ001 - the strategy wants it so and adds the zone
    datetime(2026, 6, 2),  # noqa: DTZ001 - same
    timezones=st.just(UTC),
)
versions = st.fixed_dictionaries(
    {
        "store": st.sampled_from(["file:///a", "s3://b"]),
        "namespace": st.sampled_from(["", "infra"]),
        "type_normalized": st.sampled_from(["aws/ec2", "dns"]),
        "model_id": st.sampled_from(["i-1", "i-2"]),
        "data_name": st.sampled_from(["state", "<b>"]),
        "version": st.integers(1, 12),
        "is_latest": st.booleans(),
        "lifecycle": st.sampled_from(["active", "active", "deleted"]),
        "content_type": st.sampled_from(["text/plain", "application/json"]),
        "owner_type": st.just("manual"),
        "owner_ref": st.sampled_from(["", "ana"]),
        "workflow_name": st.sampled_from(["", "nightly"]),
        "workflow_run_id": st.sampled_from(["1", "2"]),
        "size": st.none() | st.sampled_from([0, 7, 7, 1 << 40]),
        "checksum": st.sampled_from(["", "c1", "c2", "c3"]),
        "created_at": moments,
        "goes": st.booleans(),
        "why": st.sampled_from([None, "duration-expired"]),
    }
)
datastores = st.lists(
    versions, max_size=40, unique_by=lambda row: tuple(row[key] for key in (*NAME, "version"))
)


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


def collected(table: DataFrame, *columns: str) -> set[tuple[Any, ...]]:
    rows = [tuple(row) for row in table.select(*columns).collect()]
    assert len(set(rows)) == len(rows)
    return set(rows)


TABLES = (
    *("usage_by_namespace", "usage_by_type", "usage_by_model", "usage_by_name", "usage_by_day"),
    *("usage_by_content_type", "usage_by_owner", "usage_by_workflow", "usage_by_lifecycle"),
    *("growth", "largest", "oldest", "duplicates", "collectable"),
)
USE = ("names", "versions", "bytes", "latest_bytes")


@settings(max_examples=3, deadline=None)
@given(rows=datastores)
def test_every_table_is_what_a_loop_over_the_versions_gives(
    spark: SparkSession, rows: list[Version]
) -> None:
    figures = figures_of(spark, rows)
    found = figures.tables()
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
    for name, (columns, due) in expected.items():
        assert collected(found[name], *columns) == due, name


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
    winter = datetime(2026, 1, 2, tzinfo=UTC)
    return [
        made(zone, 1, 100, winter, checksum="z1", why="duration-expired", **going),
        made(zone, 2, 96, None, checksum="z2", lifecycle="deleted", **latest),
        made(web, 1, 2, winter, checksum="c1", **going),
        made(web, 2, 2, winter, checksum="c1"),
        made(web, 3, 4, winter, checksum="c2", model_name="web", **latest),
        made(log, 1, 2, NOW + timedelta(days=1), checksum="c1", **latest),
    ]


def test_a_summary_has_the_totals_and_the_first_rows_in_their_order(spark: SparkSession) -> None:
    from swampstore.pipeline.report.reading import SummaryReader

    rows = six_versions()
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
    assert [row.type_normalized for row in summary.types] == ["dns", "aws/ec2"]
    assert [row.model_id for row in summary.models] == ["zone", "i-1", "i-2"]
    assert [row.model_name for row in summary.models] == ["", "web", ""]
    assert [(row.size, row.data_name) for row in summary.largest[:3]] == [
        (100, "state"),
        (96, "state"),
        (4, "<b>"),
    ]
    assert [row.data_name for row in summary.oldest] == ["<b>", "log"]
    assert summary.oldest[0].created_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert [(row.rule, row.bytes) for row in summary.rules] == [
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


def test_a_summary_of_nothing_is_all_zeros(spark: SparkSession) -> None:
    from swampstore.pipeline.report.reading import SummaryReader

    summary = SummaryReader(figures_of(spark, []), lambda _: None).summary([], NOW)
    assert summary.totals == Totals()
    assert not any(summary.to_json()[name] for name in ("types", "names", "largest", "freed"))


def test_days_are_days_in_utc_whatever_the_time_zone_of_the_session(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        late = made("|dns|zone|state", 1, 1, datetime(2026, 1, 1, 23, 30, tzinfo=UTC))
        days = figures_of(spark, [late]).days
        assert collected(days, "day") == {(date(2026, 1, 1),)}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


# Real datastores ------------------------------------------------------------------------------


def save_some(repo: Repo) -> None:
    """Save two versions beyond a policy, one that is over, and one of a run that is gone."""
    for number in (0, 0, 1):
        repo.artifacts.save("aws/ec2/i-1", "state", {"n": number}, garbage_collection=1)
    repo.artifacts.save("dns/zone", "old <b>", b"x" * 1000, lifetime="1m")
    for run in ("gone", "kept"):
        owner = Owner("workflow-step", workflow_id="w", workflow_run_id=run)
        repo.artifacts.save("dns/zone", run, b"y", lifetime="workflow", owner=owner)


RULES = {("old-versions", 2), ("duration-expired", 1), ("workflow-deleted", 1)}


@pytest.fixture
def shared_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the session of the tests, and leave it as it is."""
    monkeypatch.setattr(Bulk, "spark", lambda *_: contextlib.nullcontext(spark))


def test_the_command_reports_about_a_repository_used_in_place(
    repo: Repo,
    clock: FakeClock,
    tmp_path: Path,
    shared_spark: None,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_some(repo)
    record = Path(repo.tree.path("workflow-runs/w/workflow-run-kept.yaml"))
    record.parent.mkdir(parents=True)
    record.write_text("id: kept\n")
    cli = CommandLine(Path(repo.config.repo_dir), capsysbinary, monkeypatch)
    clock.advance(days=1)
    monkeypatch.setattr("swampstore.clock.system_clock", clock)
    output = tmp_path / "usage.html"
    told = cli("pipeline", "report", "--output", str(output), "--json").json
    assert told["report"] == str(output)
    assert told["generatedAt"] == to_iso(clock.now)
    assert told["totals"]["versions"] == 6
    assert told["totals"]["names"] == 4
    assert told["totals"]["duplicateContents"] == 2
    assert {(row["rule"], row["versions"]) for row in told["rules"]} == RULES
    assert told["types"][0] == {
        "type": "dns",
        "names": 3,
        "versions": 3,
        "bytes": 1002,
        "latestBytes": 1002,
    }
    assert "old &lt;b&gt;" in output.read_text("utf-8")


def test_a_report_of_a_bucket_comes_with_its_tables(
    spark: SparkSession, ana: Machine, bucket: Path, tmp_path: Path
) -> None:
    ana.use(bucket)
    with ana.open() as repo:
        save_some(repo)
        repo.sync.push()
    tables, output = tmp_path / "tables", tmp_path / "report.html"
    steps: list[Step] = []
    reported = report(
        spark,
        places_of(f"file://{bucket}", environ={}),
        now=datetime.now(UTC) + timedelta(days=1),
        output=str(output),
        tables_dir=str(tables),
        tell=steps.append,
    )
    assert reported.summary.totals.versions == 6
    assert {path.name for path in tables.iterdir()} == set(TABLES)
    names = spark.read.parquet(str(tables / "usage_by_name"))
    assert {(row.data_name, row.versions) for row in names.collect()} == {
        ("state", 3),
        ("old <b>", 1),
        ("gone", 1),
        ("kept", 1),
    }
    assert output.read_text("utf-8").startswith("<!doctype html>")
    assert {step.phase for step in steps} == {"reading", "summing up", "writing tables"}


def test_the_command_says_where_the_report_is(
    ana: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(*_: object, output: str, **__: object) -> Reported:
        totals = Totals(1, 1, 1, 2, 3, 4096, 1024, 0, 0, 1, 2, 512, 1, 1, 256)
        return Reported(output, None, Summary(NOW, (), totals), 1.0)

    monkeypatch.setattr("swampstore.pipeline.report.report", done)
    monkeypatch.setattr(Bulk, "spark", lambda *_: contextlib.nullcontext())
    told = ana("pipeline", "report").out
    assert "4.0 KB in 3 versions of 2 names" in told
    assert "256 B in 1 version that gc would remove" in told
    assert "report.html" in told


def test_a_report_into_a_directory_that_is_not_there_is_refused_before_the_work(
    repo: Repo, tmp_path: Path
) -> None:
    nowhere: Any = None  # Spark is not asked for anything
    with pytest.raises(NotFoundError, match="no directory"):
        report(nowhere, places_of(repo), now=NOW, output=f"{tmp_path}/no/r.html", tell=silent)
