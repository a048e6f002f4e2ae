"""The tables of outputs, workflow runs and audit events: whatever was recorded has a row."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swampstore import open_repo
from swampstore.pipeline.places import Place, places_of
from swampstore.pipeline.source import records
from swampstore.pipeline.source.records import Audit, Members, Outputs, WorkflowRuns
from tests.support.command_line import CommandLine
from tests.support.members import Member, bucket_in_a_directory, shared_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTPUT = """\
id: 0b9b5b8e
definitionId: 5d0f2b0a
methodName: execute
status: failed
startedAt: '2026-05-14T20:19:51.042Z'
retryCount: 1
provenance:
  definitionHash: 3f7c
  modelVersion: 2026.02.09.1
  triggeredBy: workflow
  workflowId: 9b2c
  workflowRunId: 77aa
  stepName: measure
artifacts:
  dataArtifacts:
    - { dataId: 4a1e, name: result, version: 3, tags: { type: resource } }
completedAt: '2026-05-14T20:19:52.310Z'
durationMs: 1268
error: { message: "no space", stack: "at line 3" }
logFile: .swamp/outputs/command/shell/execute/5d0f.log
pid: 41233
"""
RUN = """\
id: 77aa
workflowId: 9b2c
workflowName: nightly-scan
status: failed
startedAt: '2026-05-14T20:19:50.000Z'
completedAt: '2026-05-14T20:19:53.000Z'
jobs:
  - jobName: scan
    status: failed
    steps: [ { stepName: measure, status: failed } ]
tags: { env: prod }
initiatedBy: user:ana
triggerSource: schedule
failedStep: measure
failureReason: no space
logFile: .swamp/workflow-runs/9b2c/workflow-run-77aa.log
"""
COMMANDS = [
    {"timestamp": "2026-05-14T20:19:51.042Z", "command": "swamp data list", "cwd": "/w"},
    {
        "timestamp": "2026-05-14T20:20:00.000Z",
        "command": "swamp sync",
        "cwd": "/w",
        "sessionId": "s-1",
        "exitCode": 1,
        "error": "no network",
    },
]
VAULT = {
    "action": "put",
    "timestamp": "2026-05-14T20:21:00.000Z",
    "vaultName": "main",
    "vaultType": "local_encryption",
    "secretKey": "token",
    "callerContext": "cli",
}
FILES = {
    "outputs/command/shell/execute/5d0f2b0a-2026-05-14T20-19-51-042Z.yaml": OUTPUT,
    "workflow-runs/9b2c/workflow-run-77aa.yaml": RUN,
    "audit/commands-2026-05-14.jsonl": "".join(f"{json.dumps(one)}\n" for one in COMMANDS),
    "audit/vault-audit-2026-05-14.jsonl": json.dumps(VAULT),
    # Of none of these kinds:
    "outputs/command/shell/execute/5d0f.log": "a log",
    "workflow-runs/9b2c/.runs-index.json": "{}",
    "workflow-runs/9b2c/workflow-run-77aa.log": "a log",
    "workflow-runs/9b2c/notes.yaml": "a: 1",
    "audit/readme.txt": "hello",
}


def write(member: Member, files: Mapping[str, str | bytes]) -> None:
    with member.open() as repo:
        for rel, text in files.items():
            path = Path(repo.config.base, repo.config.namespace, rel)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        if repo.config.remote is not None:
            repo.sync.push(full=True)


@pytest.fixture(params=["in place", "version 1", "version 2", "namespace"])
def member(request: pytest.FixtureRequest, tmp_path: Path) -> Member:
    """A repository over each kind of place."""
    if request.param == "in place":
        return shared_directory(tmp_path).member("ana")
    settings: dict[str, object] = {"namespace": "infra"} if request.param == "namespace" else {}
    ana = bucket_in_a_directory(tmp_path).member("ana", **settings)
    if request.param == "version 2":
        with ana.open() as repo:
            repo.sync.push(full=True)
            repo.sync.migrate_index()
    return ana


@pytest.fixture
def in_place(tmp_path: Path) -> Member:
    return shared_directory(tmp_path).member("ana")


def place_of(member: Member) -> Place:
    (found,) = places_of(member.repo_dir, None, member.environ)
    return found


def read(table: Outputs | WorkflowRuns | Audit, place: Place) -> list[dict[str, Any]]:
    """Do what the driver and its tasks do; documents as Python has them."""
    from pyspark.sql.types import VariantVal

    columns = [column.split()[0] for column in table.schema.split(", ")]
    with place.open() as store:
        pieces = pickle.loads(pickle.dumps(list(table.plan(place, store, 2))))
        rows = [row for piece in pieces for row in table.rows(place, piece, store)]
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    for row in found:
        if variant := row["document"]:
            row["document"] = VariantVal(variant["value"], variant["metadata"]).toPython()
    return sorted(found, key=lambda row: (row["rel"], row.get("line", 0)))


# Sound records -----------------------------------------------------------------------------


def test_an_output_tells_what_ran_and_how_it_ended(member: Member) -> None:
    write(member, FILES)

    (row,) = read(Outputs(), place_of(member))

    document = row.pop("document")
    assert row == {
        "store": place_of(member).identity,
        "namespace": place_of(member).namespace,
        "rel": "outputs/command/shell/execute/5d0f2b0a-2026-05-14T20-19-51-042Z.yaml",
        "id": "0b9b5b8e",
        "type_normalized": "command/shell",
        "method_name": "execute",
        "definition_id": "5d0f2b0a",
        "status": "failed",
        "started_at": datetime(2026, 5, 14, 20, 19, 51, 42000, UTC),
        "completed_at": datetime(2026, 5, 14, 20, 19, 52, 310000, UTC),
        "duration_ms": 1268,
        "retry_count": 1,
        "triggered_by": "workflow",
        "workflow_id": "9b2c",
        "workflow_run_id": "77aa",
        "step_name": "measure",
        "error": "no space",
        "log_file": ".swamp/outputs/command/shell/execute/5d0f.log",
        "size": len(OUTPUT),
        "problem": None,
    }
    assert document["artifacts"]["dataArtifacts"][0]["version"] == 3


def test_a_workflow_run_tells_how_it_went(member: Member) -> None:
    write(member, FILES)

    (row,) = read(WorkflowRuns(), place_of(member))

    document = row.pop("document")
    assert row == {
        "store": place_of(member).identity,
        "namespace": place_of(member).namespace,
        "rel": "workflow-runs/9b2c/workflow-run-77aa.yaml",
        "id": "77aa",
        "workflow_id": "9b2c",
        "workflow_name": "nightly-scan",
        "status": "failed",
        "started_at": datetime(2026, 5, 14, 20, 19, 50, 0, UTC),
        "completed_at": datetime(2026, 5, 14, 20, 19, 53, 0, UTC),
        "failed_step": "measure",
        "failure_reason": "no space",
        "initiated_by": "user:ana",
        "trigger_source": "schedule",
        "tags": [("env", "prod")],
        "log_file": ".swamp/workflow-runs/9b2c/workflow-run-77aa.log",
        "size": len(RUN),
        "problem": None,
    }
    assert document["jobs"][0]["steps"][0]["stepName"] == "measure"


def test_an_audit_file_has_a_row_per_line(member: Member) -> None:
    write(member, FILES)

    first, second, vault = read(Audit(), place_of(member))

    assert (first["line"], first["kind"], first["command"]) == (1, "command", "swamp data list")
    assert (first["session_id"], first["exit_code"], first["action"]) == (None, None, None)
    assert second["line"] == 2
    assert (second["exit_code"], second["error"]) == (1, "no network")
    assert second["at"] == datetime(2026, 5, 14, 20, 20, 0, 0, UTC)
    assert (vault["kind"], vault["action"], vault["vault_name"]) == ("vault", "put", "main")
    assert vault["document"] == VAULT
    assert [row["problem"] for row in (first, second, vault)] == [None] * 3


def test_what_was_really_written_has_rows_without_problems(
    repo_dir: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli = CommandLine(repo_dir, capsysbinary, monkeypatch)
    assert cli("run", "host/local/me", "check", "--", "false").status != 0
    assert cli("data", "put", "host/local/me", "note", stdin=b"x").status == 0
    with open_repo(repo_dir) as repo:
        (place,) = places_of(repo)
        (output,) = read(Outputs(), place)
        ran, put = read(Audit(), place)
    assert (output["type_normalized"], output["method_name"]) == ("host/local", "check")
    assert (output["status"], output["problem"]) == ("failed", None)
    assert output["duration_ms"] is not None
    assert (ran["kind"], put["kind"]) == ("run", "data")
    assert ran["models"] == put["models"] == ["host/local/me"]
    assert put["actor"].endswith(f"@{os.uname().nodename}")
    assert (put["exit_code"], ran["problem"], put["problem"]) == (0, None, None)


def test_a_record_tells_what_its_path_says_if_it_does_not(in_place: Member) -> None:
    write(
        in_place, {"workflow-runs/w-1/workflow-run-1.yaml": "id: r", "outputs/t/m/a.yaml": "id: o"}
    )

    (run,) = read(WorkflowRuns(), place_of(in_place))
    (output,) = read(Outputs(), place_of(in_place))

    assert (run["id"], run["workflow_id"]) == ("r", "w-1")
    assert (output["id"], output["type_normalized"], output["method_name"]) == ("o", "t", "m")
    assert run["problem"] == "status is missing; startedAt is missing"


def test_an_old_audit_event_without_an_action_was_a_read(in_place: Member) -> None:
    event = {key: value for key, value in VAULT.items() if key != "action"}
    write(in_place, {"audit/vault-reads-2026-05-14.jsonl": json.dumps(event)})

    (row,) = read(Audit(), place_of(in_place))

    assert (row["kind"], row["action"]) == ("vault", "get")


# Damaged ones ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds nothing"),
        ("id: [", "expected"),
        ("- a list", "holds a list"),
        (b"\xff\xfe", "not UTF-8"),
        ("id: &a [*a]", "alias"),
        ("id: 7\nstatus: failed\nstartedAt: '2026-05-14T20:19:51Z'", "id is not text"),
        ("id: a\nstatus: [failed]\nstartedAt: now", "status is not text; startedAt is not a time"),
        ("id: a\nstatus: b\nstartedAt: '2026-13-14T00:00:00Z'", "startedAt is not a time"),
        ("id: a\nstatus: b\nstartedAt: '0001-01-01T00:00:00+14:00'", "startedAt is not a time"),
    ],
)
@pytest.mark.parametrize(
    ("table", "rel"),
    [(Outputs(), "outputs/t/m/a.yaml"), (WorkflowRuns(), "workflow-runs/w/workflow-run-1.yaml")],
)
def test_a_damaged_record_has_a_row_that_says_so(
    in_place: Member, table: Outputs | WorkflowRuns, rel: str, text: str | bytes, problem: str
) -> None:
    write(in_place, {rel: text})

    (row,) = read(table, place_of(in_place))

    assert problem in row["problem"]
    assert (row["rel"], row["size"]) == (rel, len(text))


def test_a_damaged_line_has_a_row_and_harms_no_other(in_place: Member) -> None:
    lines = [
        *(b"{", b"[1]", b"", b"\xff", b'"\\ud800"', b"[" * 50_000),
        b'{"timestamp": "never", "exitCode": "1", "command": "\\ud800"}',
        b'{"timestamp": "2026-05-14T20:20:00Z", "exitCode": 99999999999999999999}',
        json.dumps(COMMANDS[0]).encode(),
    ]
    write(in_place, {"audit/commands-x.jsonl": b"\n".join(lines)})

    rows = read(Audit(), place_of(in_place))

    assert [row["line"] for row in rows] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert all(row["problem"] for row in rows[:-1])
    assert rows[5]["problem"] == (
        "timestamp is not a time; command is not text; exitCode is not a whole number"
    )
    assert (rows[-1]["problem"], rows[-1]["command"]) == (None, "swamp data list")


def test_what_is_too_long_is_not_read_as_a_whole(
    in_place: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LONGEST_RECORD", 100)
    lines = [
        b'{"a": "' + b"x" * 500 + b'"}',
        json.dumps({"timestamp": "2026-05-14T20:20:00Z"}).encode(),
    ]
    write(in_place, {"outputs/t/m/a.yaml": OUTPUT, "audit/commands-x.jsonl": b"\n".join(lines)})

    (output,) = read(Outputs(), place_of(in_place))
    long, short = read(Audit(), place_of(in_place))

    assert "too long" in output["problem"]
    assert output["size"] == len(OUTPUT)
    assert "not JSON" in long["problem"]
    assert (short["line"], short["problem"]) == (2, None)


def test_records_that_vanish_meanwhile_have_no_row(in_place: Member) -> None:
    write(in_place, FILES)
    place = place_of(in_place)

    with place.open() as store:
        (piece, *_) = Outputs().plan(place, store, 1)
        rows = Outputs().rows(place, piece, store)
        for path in Path(str(place.root)).rglob("*.yaml"):
            path.unlink()
        assert list(rows) == []


def test_many_requests_at_once_find_the_same_records(tmp_path: Path) -> None:
    member = bucket_in_a_directory(tmp_path).member("ana")
    write(member, FILES | {f"outputs/t/m/{number}.yaml": OUTPUT for number in range(40)})
    place = place_of(member)

    rows = read(Outputs(), replace(place, root=None))

    assert len(rows) == 41
    assert rows == read(Outputs(), place)


VALUES = st.sampled_from(
    [
        *(None, True, 7, 2**70, -1.5, "", "a", "\ud800", "2026-05-14T20:19:51Z", [], ["a"], {}),
        *({"message": 3}, {"message": "m", "stepName": []}, {"a": "\ud800"}, {"a": None}),
    ]
)
KEYS = st.sampled_from(["id", "status", "startedAt", "tags", "error", "provenance", "durationMs"])


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES))
def test_no_document_is_too_strange(document: dict[str, Any]) -> None:
    for table, rel in ((Outputs(), "outputs/t/m/a.yaml"), (WorkflowRuns(), "workflow-runs/w/x")):
        members = Members(document)
        columns = table.own_columns(rel, members)
        assert all(isinstance(one, str | int | datetime | list | None) for one in columns)
        for one in columns:
            pa.array([one])  # as Spark will have it: no half characters, no endless numbers


# On Spark ----------------------------------------------------------------------------------


def test_spark_reads_what_happened(spark: SparkSession, in_place: Member) -> None:
    from swampstore.pipeline import load

    write(in_place, FILES | {"outputs/t/m/bad.yaml": "- no record"})
    with in_place.open() as repo:
        tables = load(spark, repo)
        tables.outputs().createOrReplaceTempView("outputs")
        tables.workflow_runs().createOrReplaceTempView("runs")
        tables.audit().createOrReplaceTempView("audit")
        question = """
            SELECT r.workflow_name, r.tags['env'], o.document:error.stack::string,
                   (SELECT count(*) FROM audit WHERE kind = 'command'),
                   (SELECT count(*) FROM outputs WHERE problem IS NOT NULL)
            FROM outputs o JOIN runs r ON r.id = o.workflow_run_id
            WHERE o.problem IS NULL AND o.completed_at > r.started_at
        """
        (row,) = spark.sql(question).collect()

    assert tuple(row) == ("nightly-scan", "prod", "at line 3", 2, 1)
