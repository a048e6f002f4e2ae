"""Garbage is found on Spark: the same as at home, in all namespaces at once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from swampstore.catalog.schema import Row
from swampstore.clock import from_iso, to_iso
from swampstore.index.format import Entry
from swampstore.layout import check_segment
from swampstore.pipeline import schemas
from swampstore.pipeline.gc import gc
from swampstore.pipeline.gc.candidates import Candidate, fingerprint
from swampstore.pipeline.places import places_of
from swampstore.retention.plan import plan_names
from swampstore.retention.rules import GcPlan, Removal, VersionFacts
from tests.support.garbage import AT_ONCE, MODEL, RUN, garbage_of, healthy, save
from tests.support.machines import Machine, contents

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


STORE = "memory://everything"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)

# --- tables are planned as repositories are -----------------------------------------------------

PLACES = ["", "apps", "infra"]
RUNS = {("", "deploy", "r1"), ("infra", "deploy", "r2"), ("apps", "scan.1", "r1")}
LIFETIMES = ["infinite", "ephemeral", "workflow", "job", "0h", "90m", "1d", "2w", "99999y"]
LIFETIMES += ["for ever", "", "9" * 30 + "y", "1d\n"]
POLICIES = ["1", "2", "3", "10", "9" * 25, "1h", "1d", "2w", "99999y"]
POLICIES += ["0", "0d", "-1", "many", "²"]
WORKFLOWS, RUN_IDS = ["deploy", "scan.1", "", "..", "a/b"], ["r1", "r2", "", "x" * 300]
BLANK = Row(**dict.fromkeys(Row._fields, ""))  # type: ignore[arg-type]  # filled in below
AGES = [86400.0, 5400.0, 1209600.0, 0.0, -3600.0, -1e8]


def random_name(random: Random, number: int) -> list[Row]:
    """Return the rows of one data name, ascending."""
    numbers = sorted(random.sample(range(1, 13), random.randint(1, 6)))
    marked = random.choice([numbers[-1], numbers[-1], random.choice(numbers), 0])
    model_type = random.choice(["aws/vpc", "aws", "@acme/probe"])
    is_dated = random.random() < 0.9
    return [
        BLANK._replace(
            namespace=PLACES[number % len(PLACES)],
            type_normalized=model_type,
            model_id="m1",
            data_name=f"name-{number}",
            version=version,
            # Of each step there is a latest version.
            is_latest=int(version == marked or (version < marked and random.random() < 0.1)),
            deferred=int(random.random() < 0.1),
            lifecycle=random.choice(["active", "active", "active", "deleted"]),
            lifetime=random.choice(LIFETIMES),
            garbage_collection=random.choice(POLICIES),
            size=random.randrange(1 << 40),
            created_at=random_time(random) if is_dated else "2026-02-31T00:00:00Z",
            workflow_id=random.choice(WORKFLOWS),
            workflow_run_id=random.choice(RUN_IDS),
        )
        for version in numbers
    ]


def random_time(random: Random) -> str:
    """Return a moment: just before, at, or after one at which something expires, or any."""
    age = random.choice([*AGES, random.uniform(0, 1e8)])
    return to_iso(NOW - timedelta(seconds=age + random.choice([-0.001, 0, 0.001])))


def run_exists(namespace: str, workflow_id: str, run_id: str) -> bool:
    check_segment("workflow id", workflow_id)
    check_segment("workflow run id", run_id)
    return (namespace, workflow_id, run_id) in RUNS


def plan_alone(names: Iterable[Sequence[Row]], namespace: str) -> GcPlan:
    mine = (rows for rows in names if rows[0].namespace == namespace)
    plan = plan_names(mine, NOW, lambda *run: run_exists(namespace, *run))
    return GcPlan(plan.removals, tuple(sorted(plan.warnings)))


def plan_on_spark(spark: SparkSession, names: Iterable[Sequence[Row]]) -> dict[str, GcPlan]:
    from swampstore.pipeline.gc.planner import planned, warnings

    artifacts = spark.createDataFrame(
        [table_row(row) for rows in names for row in rows], schemas.ARTIFACTS
    )
    records = spark.createDataFrame(
        [(STORE, where, f"workflow-runs/{of}/workflow-run-{run}.yaml") for where, of, run in RUNS],
        "store string, namespace string, rel string",
    )
    with planned(artifacts, records, NOW, {}) as plan:
        going = plan.removals.selectExpr("*", "unix_micros(created_at) AS at")
        found = going.orderBy("type_normalized", "model_id", "data_name", "version").collect()
        doubts = plan.doubts.collect()
    plans = {}
    for namespace in PLACES:
        mine = [row for row in found if row.namespace == namespace]
        told = warnings(row for row in doubts if row.namespace == namespace)
        plans[namespace] = GcPlan(tuple(removals_of(mine)), tuple(sorted(told)))
    return plans


def removals_of(rows: Iterable[Any]) -> Iterator[Removal]:
    by_name = groupby(rows, key=lambda row: (row.type_normalized, row.model_id, row.data_name))
    for name, group in by_name:
        going = list(group)
        versions = tuple(
            VersionFacts(row.version, EPOCH + timedelta(microseconds=row.at), row.size)
            for row in going
        )
        yield Removal(*name, versions, going[0].reason)


def table_row(row: Row) -> tuple[object, ...]:
    """Return a row as the table of artifacts has it."""
    created_at: datetime | None = None
    with contextlib.suppress(ValueError):
        created_at = from_iso(row.created_at)
    members: dict[str, Any] = row._asdict() | {
        "is_latest": bool(row.is_latest),
        "deferred": bool(row.deferred),
        "streaming": False,
        "created_at": created_at,
        "tags": {},
    }
    return (STORE, *members.values())


def without_reason(warnings: Iterable[str]) -> list[str]:
    """Leave out what is wrong with a time: a table cannot hold one that is none."""
    undated = re.compile(r"(a time of creation .* name-\d+): .*?(( and others)?\))$")
    return [undated.sub(r"\1\2", warning) for warning in warnings]


def test_a_table_is_planned_as_a_repository_is(spark: SparkSession) -> None:
    random = Random(20260601)
    names = [random_name(random, number) for number in range(400)]
    plans = plan_on_spark(spark, names)
    for namespace in PLACES:
        alone = plan_alone(names, namespace)
        assert plans[namespace].removals == alone.removals
        assert without_reason(plans[namespace].warnings) == without_reason(alone.warnings)
        assert len(alone.removals) > 15
        assert len(alone.warnings) > 4


# --- fingerprints are those of the last look ---------------------------------------------------


def test_tasks_fingerprint_entries_as_the_last_look_does(spark: SparkSession) -> None:
    from swampstore.pipeline.gc.candidates import candidates_of

    base = f"data/{MODEL}/state"
    entries = {
        f"{base}/1/raw": Entry(1, "2026-01-01T00:00:00.000Z", "aa", commit_seq=7),
        f"{base}/1/metadata.yaml": Entry(1, "2026-01-02T00:00:00.000Z", "bb", commit_seq=0),
        f"{base}/2/raw": Entry(1, "2026-01-03T00:00:00.000Z", None),
        f"{base}/latest": Entry(1, "2026-01-04T00:00:00.000Z", "cc"),
    }
    index = spark.createDataFrame(
        [
            (STORE, place, rel, one.sha256, one.commit_seq, one.last_modified)
            for place in ("apps", "infra")
            for rel, one in entries.items()
        ],
        "store string, namespace string, rel string, sha256 string, commit_seq bigint,"
        " last_modified string",
    )
    model_type, model_id = MODEL.rsplit("/", 1)
    name = (model_type, model_id, "state")
    old, whole = (VersionFacts(1, NOW, 10),), (VersionFacts(1, NOW, 10), VersionFacts(2, NOW, 20))
    removals = spark.createDataFrame(
        [
            *((STORE, "apps", *name, *fact, None) for fact in old),
            *((STORE, "infra", *name, *fact, "job-deleted") for fact in whole),
        ],
        "store string, namespace string, type_normalized string, model_id string,"
        " data_name string, version bigint, created_at timestamp, size bigint, reason string",
    )
    first = {rel: one for rel, one in entries.items() if "/1/" in rel}
    assert candidates_of(removals, index) == {
        (STORE, "apps"): [Candidate(Removal(*name, old), {1: fingerprint(first)})],
        (STORE, "infra"): [
            Candidate(Removal(*name, whole, "job-deleted"), {0: fingerprint(entries)})
        ],
    }


def test_garbage_comes_in_the_order_of_its_names_whatever_the_number_of_pages(
    spark: SparkSession,
) -> None:
    from swampstore.pipeline.gc.candidates import candidates_of

    names = ["b", "a", "é", "Z", "10", "9", "\U0001f40a", "\uffee", "a-b", "a.b", "ab"]
    index = spark.createDataFrame(
        [(STORE, "", f"data/{MODEL}/{name}/1/raw", "aa", 1, "x") for name in names],
        "store string, namespace string, rel string, sha256 string, commit_seq bigint,"
        " last_modified string",
    )
    removals = spark.createDataFrame(
        [(STORE, "", *MODEL.rsplit("/", 1), name, 1, NOW, 10, None) for name in names],
        "store string, namespace string, type_normalized string, model_id string,"
        " data_name string, version bigint, created_at timestamp, size bigint, reason string",
    )
    found = candidates_of(removals, index, pages=4)
    # Marks are found again by going through both in this order.
    assert [one.removal.name for one in found[STORE, ""]] == sorted(names)


# --- all of it, with Spark -----------------------------------------------------------------------


def fill(machine: Machine, namespace: str) -> None:
    """Give a machine a namespace with two old versions and an expired name in it."""
    assert machine("datastore", "namespace", "set", namespace).status == 0
    save(machine, "state", "1", "2", "3", garbage_collection=1)
    save(machine, "step", "1", lifetime="workflow", owner=RUN)


def test_two_namespaces_are_collected_at_once(
    spark: SparkSession, ana: Machine, bob: Machine, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swampstore.pipeline import gc as job
    from swampstore.pipeline.gc.candidates import Candidates, plan_places
    from swampstore.pipeline.gc.local_engine import plan_here

    fill(ana, "apps")
    fill(bob, "infra")
    with bob.open() as repo:
        record = repo.tree.path("workflow-runs/deploy/workflow-run-r1.yaml")
        os.makedirs(os.path.dirname(record))
        Path(record).write_text("status: succeeded\n")
        repo.sync.push(full=True)
    places = places_of(f"file://{bucket}")
    now = datetime.now(UTC)
    apps, infra = (garbage_of(place, now) for place in places)
    plans: list[Candidates] = []

    def observed(*args: Any) -> tuple[Candidates, list[str]]:
        found, warnings = plan_places(*args)
        plans.append(found)
        return found, warnings

    monkeypatch.setattr(job, "plan_places", observed)
    here = plan_here(places, now)
    swept = gc(spark, places, now=now, grace=AT_ONCE)
    assert here == (plans[0], [])
    # The data of a run that has a record is no garbage.
    assert plans == [{(places[0].identity, "apps"): apps, (places[0].identity, "infra"): infra[:1]}]
    assert swept.warnings == ()
    assert [(one.namespace, one.rel.removeprefix(f"data/{MODEL}/")) for one in swept.outcomes] == [
        ("apps", "state/1"),
        ("apps", "state/2"),
        ("apps", "step"),
        ("infra", "state/1"),
        ("infra", "state/2"),
    ]
    assert {one.kind for one in swept.outcomes} == {"swept"}
    for machine in (ana, bob):
        with machine.open() as repo:
            repo.sync.pull()
            assert contents(repo, MODEL, "state") == ["3"]
        assert healthy(machine)
