"""Reports of a whole run: saved for the model that the workflow is, before the run has ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from swampstore.artifacts.metadata import Owner
from swampstore.redaction import Redactor
from swampstore.runs.reports import WORKFLOW, Report, ReportContext, failure, run_reports
from swampstore.runs.workflow.record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from swampstore.repo import Repo
    from swampstore.runs.workflow.definition import Workflow


def write_reports(
    repo: Repo, workflow: Workflow, record: RunRecord, reports: Sequence[Report]
) -> str | None:
    """Write the reports of a run, name them in its record, and return why one failed, if so.

    Belongs into a session of the workflow. What a killed process wrote, and did not name in the
    record, is taken back.
    """
    _take_back(repo, workflow, record)
    context = ReportContext(
        repo=repo,
        scope=WORKFLOW,
        model=workflow.ref,
        name=workflow.name,
        status=record.status,
        owner=Owner(
            "workflow-step",
            workflow.id,
            workflow_id=workflow.id,
            workflow_run_id=record.id,
            workflow_name=workflow.name,
        ),
        inputs=record.inputs or {},
        run=record.to_json(),
    )
    written = run_reports(reports, context, Redactor())
    record.workflow_data_artifacts = [
        *(record.workflow_data_artifacts or ()),
        *(artifact.to_json() for one in written for artifact in one.artifacts),
    ] or None
    return failure(written)


def _take_back(repo: Repo, workflow: Workflow, record: RunRecord) -> None:
    named = {str(one.get("dataId")) for one in record.workflow_data_artifacts or ()}
    found = repo.query(
        f"modelType == {json.dumps(workflow.ref.type)} && modelId == {json.dumps(workflow.id)}"
        f" && workflowRunId == {json.dumps(record.id)} && version > 0"
        f" && ns == {json.dumps(repo.config.namespace)}"
    )
    for one in found:
        if one.id not in named:
            repo.store.delete_versions(one.ref, [one.version])
