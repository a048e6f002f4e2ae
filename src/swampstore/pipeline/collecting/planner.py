"""What garbage collection removes, planned over all namespaces and stores at once.

The rules are those of `swampstore.retention.rules`, written as windows over the table of
artifacts; both planners decide the same about the same rows, doubts included. Lifetimes, policies
and unusual names of runs are few and repeat. So each distinct text is read once, on the driver, by
the one parser that there is, and what it means comes back to the rows by a join. A Python function
inside Spark would send every row to a Python process and back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from swampstore.catalog.schema import ACTIVE
from swampstore.errors import ValidationError
from swampstore.layout import check_segment
from swampstore.retention.lifetimes import (
    normalise_lifetime,
    normalise_policy,
    parse_duration,
)
from swampstore.retention.rules import Doubts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

PLACE = ("store", "namespace")
NAME = (*PLACE, "type_normalized", "model_id", "data_name")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Longer than any two dates are apart, and still a number that Spark can hold.
_FOR_EVER = 1 << 62
_LATEST_SAYS = (
    "version",
    "deferred",
    "created",
    "lifecycle",
    "lifetime",
    "garbage_collection",
    "workflow_id",
    "workflow_run_id",
)
_LIVES_WITH_RUN = "lives IN ('workflow', 'job')"
_PLAIN_ID = r"\A[A-Za-z0-9_-]{1,64}\z"
_TEXTS = ("lifetime", "garbage_collection", "odd_workflow", "odd_run")
_MEANINGS = (
    "lifetime string, garbage_collection string, odd_workflow string, odd_run string,"
    " lives string, lives_for bigint, lifetime_problem string,"
    " keep bigint, keep_for bigint, policy_problem string, lookup_problem string"
)
_NAME = "concat_ws(' ', type_normalized, model_id, data_name)"
_MAY_EXPIRE = f"NOT dateless AND lifecycle = '{ACTIVE}'"
# What cannot be decided: why, when that is so, and how a name with this problem is told of.
_CASES = (
    (
        "a time of creation cannot be understood",
        "dateless",
        "concat(type_normalized, '/', model_id, ' ', data_name) AS example",
    ),
    (
        "the lifetime cannot be understood",
        f"{_MAY_EXPIRE} AND lifetime_problem IS NOT NULL",
        f"{_NAME} || ': ' || lifetime_problem AS example",
    ),
    (
        "it lives as long as a workflow run, but names none",
        f"{_MAY_EXPIRE} AND {_LIVES_WITH_RUN} AND NOT names_run",
        f"{_NAME} AS example",
    ),
    (
        "its workflow run could not be looked up",
        f"{_MAY_EXPIRE} AND {_LIVES_WITH_RUN} AND lookup_problem IS NOT NULL",
        f"{_NAME} || ': ' || lookup_problem AS example",
    ),
    (
        "the version that latest points at is missing",
        f"{_MAY_EXPIRE} AND lives_for IS NOT NULL AND latest.deferred",
        f"{_NAME} AS example",
    ),
    (
        "the garbageCollection policy cannot be understood",
        "NOT dateless AND reason IS NULL AND versions > 1 AND policy_problem IS NOT NULL",
        f"{_NAME} || ': ' || policy_problem AS example",
    ),
)


class Plan(NamedTuple):
    """What goes, and what stays in doubt.

    `removals` has a row for each version that goes: the columns of `NAME`, `version`,
    `created_at`, `size` and `reason` (NULL: an old version of a name that stays). `doubts` has a
    row for each cause in each place: the columns of `PLACE`, `cause`, `names` and an `example`.
    """

    removals: DataFrame
    doubts: DataFrame


@contextlib.contextmanager
def planned(artifacts: DataFrame, runs: DataFrame, now: datetime) -> Iterator[Plan]:
    """Decide what goes at the time `now`.

    `runs` has the columns of `PLACE` and the path `rel` of every record of a workflow run that
    there is. The artifacts are read once, and what matters of them is kept by Spark until the
    end of the block.
    """
    facts = _facts(artifacts).persist()
    try:
        judged = _expiry(_understood(facts), runs, now)
        judged = judged.withColumn("surplus", _is_surplus(now))
        yield Plan(_removals(judged), _doubts(judged))
    finally:
        facts.unpersist()


def warnings(doubts: Iterable[Row]) -> tuple[str, ...]:
    """Return the sentences about the doubts of one place, as `plan_gc` words them."""
    told = Doubts("data name")
    for doubt in doubts:
        told.add(doubt.cause, doubt.example, doubt.names)
    return told.warnings()


# Facts ---------------------------------------------------------------------------------------


def _facts(artifacts: DataFrame) -> DataFrame:
    """Return the versions that count, each with what the latest version of its name says."""
    by_name = Window.partitionBy(*NAME)
    newest_first = by_name.orderBy(F.col("version").desc())
    counted = artifacts.withColumn("created", F.unix_micros("created_at"))
    latest = F.max(F.when(F.col("is_latest"), F.struct(*_LATEST_SAYS))).over(by_name)
    return (
        counted.withColumn("latest", latest)
        .where("latest IS NOT NULL AND NOT deferred")
        .select(
            *(*NAME, "version", "created_at", "created", "size", "latest"),
            F.row_number().over(newest_first).alias("rank"),
            F.count("version").over(by_name).alias("versions"),
            F.bool_or(F.col("created").isNull()).over(by_name).alias("dateless"),
            *(F.col(f"latest.{name}").alias(name) for name in _LATEST_SAYS[3:]),
        )
    )


def _understood(facts: DataFrame) -> DataFrame:
    """Add what lifetimes, policies and names of runs mean, each distinct text read once."""
    is_plain = F.col("workflow_id").rlike(_PLAIN_ID) & F.col("workflow_run_id").rlike(_PLAIN_ID)
    odd = {"odd_workflow": "workflow_id", "odd_run": "workflow_run_id"}
    facts = facts.withColumns(
        {
            name: F.when(is_plain, "").otherwise(F.coalesce(of, F.lit("")))
            for name, of in odd.items()
        }
    )
    rows = [
        (
            *texts,
            *_lifetime(texts.lifetime),
            *_policy(texts.garbage_collection),
            _lookup(*texts[2:]),
        )
        for texts in facts.select(*_TEXTS).distinct().collect()
    ]
    meanings = facts.sparkSession.createDataFrame(rows, _MEANINGS)
    return facts.join(F.broadcast(meanings), list(_TEXTS), "left")


def _lifetime(text: str) -> tuple[str | None, int | None, str | None]:
    try:
        lifetime = normalise_lifetime(text)
    except ValidationError as problem:
        return None, None, str(problem)
    if lifetime in ("infinite", "ephemeral"):
        return "on", None, None
    if lifetime in ("workflow", "job"):
        return lifetime, None, None
    return "while", _micros(parse_duration(lifetime)), None


def _policy(text: str) -> tuple[int | None, int | None, str | None]:
    try:
        policy = normalise_policy(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as problem:
        return None, None, str(problem)
    if isinstance(policy, int):
        return min(policy, _FOR_EVER), None, None
    return None, _micros(parse_duration(policy)), None


def _lookup(workflow_id: str, run_id: str) -> str | None:
    """Return why there cannot be a record of a run; empty names are those that need no look."""
    try:
        if workflow_id and run_id:
            check_segment("workflow id", workflow_id)
            check_segment("workflow run id", run_id)
    except ValidationError as problem:
        return str(problem)
    return None


def _micros(length: timedelta) -> int:
    return min(length // _MICROSECOND, _FOR_EVER)


# Rules ---------------------------------------------------------------------------------------


def _expiry(facts: DataFrame, runs: DataFrame, now: datetime) -> DataFrame:
    """Add why a name goes as a whole: `reason`, NULL if it stays."""
    names_run = "coalesce(workflow_id, '') != '' AND coalesce(workflow_run_id, '') != ''"
    path = F.concat(
        *(F.lit("workflow-runs/"), "workflow_id"),
        *(F.lit("/workflow-run-"), "workflow_run_id", F.lit(".yaml")),
    )
    is_known = F.expr(f"{_LIVES_WITH_RUN} AND {names_run} AND lookup_problem IS NULL")
    records = runs.select(*PLACE, F.col("rel").alias("record")).distinct()
    records = records.withColumn("is_recorded", F.expr("true"))
    found = facts.withColumns({"names_run": F.expr(names_run), "record": F.when(is_known, path)})
    found = found.join(records, [*PLACE, "record"], "left")
    is_outlived = _age("latest.created", now) > F.col("lives_for")
    reason = (
        F.when(F.col("dateless") | (F.col("lifecycle") != ACTIVE), None)
        .when(F.expr("record IS NOT NULL AND is_recorded IS NULL"), F.expr("lives || '-deleted'"))
        .when(~F.col("latest.deferred") & is_outlived, F.lit("duration-expired"))
    )
    return found.withColumn("reason", reason)


def _is_surplus(now: datetime) -> Column:
    """Whether a version is beyond what the policy of its name keeps."""
    is_old = (F.col("rank") > 1) & (_age("created", now) > F.col("keep_for"))
    is_beyond = F.coalesce(F.col("rank") > F.col("keep"), is_old, F.expr("false"))
    return F.expr("NOT dateless AND version != latest.version") & is_beyond


def _age(created: str, now: datetime) -> Column:
    return F.lit((now - _EPOCH) // _MICROSECOND) - F.col(created)


def _removals(judged: DataFrame) -> DataFrame:
    goes = judged.where("reason IS NOT NULL OR surplus")
    size = F.coalesce("size", F.lit(0)).alias("size")
    return goes.select(*NAME, "version", "created_at", size, "reason")


def _doubts(judged: DataFrame) -> DataFrame:
    """Count what could not be decided, by place and cause."""
    cases = F.array(
        *(
            F.when(F.expr(condition), F.struct(F.lit(cause).alias("cause"), F.expr(example)))
            for cause, condition, example in _CASES
        )
    )
    each = judged.where("rank = 1").select(*PLACE, F.explode(cases).alias("case"))
    return (
        each.where("case IS NOT NULL")
        .groupBy(*PLACE, "case.cause")
        .agg(F.count("case").alias("names"), F.min("case.example").alias("example"))
    )
