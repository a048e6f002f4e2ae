"""Runs of before: finding one, listing them; those whose process died are marked on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from swampstore.runs.workflow.record import RunRecord, RunRecords
from swampstore.runs.workflow.resume import reap

if TYPE_CHECKING:
    from swampstore.repo import Repo


def find_run(repo: Repo, run_id: str) -> RunRecord:
    """Return the run whose id is or begins with this; raise RunNotFoundError without one."""
    record = RunRecords(repo).find(run_id)
    reap(repo, record)
    return record


def past_runs(repo: Repo, workflow_id: str | None = None) -> Iterator[RunRecord]:
    """Yield the runs, those that began last first."""
    for record in RunRecords(repo).all(workflow_id):
        reap(repo, record)
        yield record
