"""Three questions about a datastore, answered in SQL.

    python docs/examples/three_questions.py

makes two small repositories that share a bucket, as two teams might have them, keeps a snapshot
of the bucket, and asks:

1. Which disks are nearly full, and how fast do they fill?
2. How much does each team keep, how much of it is history, and how much is there twice?
3. Which runs failed, and what had they saved by then?
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import swampstore
from swampstore.artifacts.metadata import Owner
from swampstore.pipeline import Place, Tables, places_of, session
from swampstore.pipeline.snapshots.refresh import refresh

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEARLY_FULL = """
SELECT host, used, round(used - before, 2) AS growth
FROM (
  SELECT tags['host'] AS host,
         is_latest,
         attributes:used::double AS used,
         lag(attributes:used::double)
           OVER (PARTITION BY namespace, model_id ORDER BY version) AS before
  FROM artifacts
  WHERE data_name = 'disk'
)
WHERE is_latest AND used > 0.8
ORDER BY used DESC
"""

KEPT = """
SELECT namespace AS team,
       count(*) AS versions,
       sum(size) AS bytes,
       sum(size) FILTER (WHERE NOT is_latest) AS history,
       sum(size) - sum(size) FILTER (WHERE is_first) AS twice
FROM (
  SELECT *, row_number() OVER (PARTITION BY checksum ORDER BY created_at) = 1 AS is_first
  FROM artifacts
)
GROUP BY namespace
ORDER BY team
"""

FAILED = """
SELECT r.workflow_name AS workflow,
       r.failed_step AS step,
       r.failure_reason AS reason,
       array_sort(collect_list(a.model_id || ' ' || a.data_name || ' v' || a.version)) AS saved
FROM workflow_runs r LEFT JOIN artifacts a ON a.workflow_run_id = r.id
WHERE r.status = 'failed'
GROUP BY ALL
ORDER BY workflow
"""

RUN = """\
id: {id}
workflowId: nightly
workflowName: nightly-scan
status: failed
startedAt: '2026-05-14T02:00:00.000Z'
completedAt: '2026-05-14T02:00:09.000Z'
failedStep: upload
failureReason: connection refused
jobs: []
"""


def make_team(
    directory: Path, bucket: str, team: str, usage: dict[str, list[float]], *, fails: bool = False
) -> None:
    """Save how full the disks of some hosts were, one measurement after the other, and push."""
    own = {"SWAMP_HOME": str(directory / "home" / team), "SWAMP_NAMESPACE": team}
    swampstore.init_repo(directory / team).close()
    environ = {**os.environ, **own, "SWAMP_DATASTORE": bucket}
    with swampstore.open_repo(directory / team, environ=environ) as repo:
        for host, measured in usage.items():
            for used in measured:
                repo.artifacts.save(
                    f"acme/disk/{host}", "disk", {"used": used}, tags={"host": host}
                )
            repo.artifacts.save(f"acme/disk/{host}", "packages", "bash 5.2\npython 3.11\n")
        if fails:
            fail_a_run(repo, *usage)
        repo.sync.push(full=True)


def fail_a_run(repo: swampstore.Repo, host: str) -> None:
    """Leave behind what a run of a workflow leaves behind that fails in the middle."""
    owner = Owner(type="workflow-step", workflow_run_id="run-7", step_name="measure")
    repo.artifacts.save(f"acme/disk/{host}", "scan", {"files": 12}, owner=owner)
    record = Path(repo.config.datastore_dir, "workflow-runs/nightly/workflow-run-run-7.yaml")
    record.parent.mkdir(parents=True)
    record.write_text(RUN.format(id="run-7"), encoding="utf-8")


def fill(directory: Path, bucket: str) -> list[Place]:
    """Make both teams and a snapshot of each; return the places that there are to ask about."""
    make_team(directory, bucket, "web", {"web-1": [0.5, 0.55], "web-2": [0.7, 0.9]})
    make_team(directory, bucket, "db", {"db-1": [0.2, 0.85, 0.95]}, fails=True)
    places = places_of(bucket, ["db", "web"])
    refresh(places)
    return places


def ask(places: Sequence[Place]) -> dict[str, DataFrame]:
    """Return the answers, by question."""
    spark = session()
    tables = Tables(spark, places)
    tables.artifacts(attributes=True).createOrReplaceTempView("artifacts")
    tables.workflow_runs().createOrReplaceTempView("workflow_runs")
    return {
        "Which disks are nearly full, and how fast do they fill?": spark.sql(NEARLY_FULL),
        "How much does each team keep, and for what?": spark.sql(KEPT),
        "Which runs failed, and what had they saved by then?": spark.sql(FAILED),
    }


def main() -> None:
    """Print the answers."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "bucket").mkdir()
        places = fill(Path(directory), f"file://{directory}/bucket")
        for question, answer in ask(places).items():
            print(question)  # noqa: T201 - a script has to say something
            answer.show(truncate=False)


if __name__ == "__main__":
    main()
