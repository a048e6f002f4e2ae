"""The columns of every table that lists artifacts: whose, which, how large, how old."""

from __future__ import annotations

from typing import Any

from swampstore.catalog.schema import record_of
from swampstore.cli.rendering import age_text, size_text, type_text
from swampstore.cli.row_formats import Column

# What `record_of` says of an artifact, and its content where that is asked for.
MEMBERS = (
    *("id", "name", "version", "isLatest", "createdAt", "namespace", "tags", "modelName"),
    *("modelId", "modelType", "specName", "dataType", "contentType", "lifetime", "ownerType"),
    *("streaming", "size", "checksum", "ownerRef", "workflowId", "workflowRunId", "workflowName"),
    *("jobName", "stepName", "source"),
)


def _model(artifact: Any) -> str:
    row = artifact.row
    return row.model_name or f"{row.type_normalized}/{row.model_id}"


def _note(artifact: Any) -> str:
    row = artifact.row
    gone = f"renamed to {row.renamed_to}" if row.renamed_to else "deleted"
    notes = {"latest": artifact.is_latest, gone: artifact.is_deleted, "streaming": row.streaming}
    return ", ".join(note for note, holds in notes.items() if holds)


NAMESPACE = Column("namespace", lambda one: one.row.namespace, rank=1)
MODEL = Column("model", _model)
NAME = Column("name", lambda one: one.row.data_name)
VERSION = Column("version", lambda one: one.row.version, right=True, heading="v")
SIZE = Column("size", lambda one: one.row.size, size_text, right=True, rank=3)
CREATED = Column("createdAt", lambda one: one.row.created_at, age_text, right=True, heading="age")
DATA_TYPE = Column("dataType", lambda one: one.row.data_type, rank=4, heading="type")
CONTENT_TYPE = Column(
    "contentType", lambda one: one.row.content_type, type_text, rank=5, heading="content"
)
SPEC = Column("specName", lambda one: one.row.spec_name, rank=6, heading="spec")
CHECKSUM = Column("checksum", lambda one: one.checksum, lambda text: text[:12], rank=5)
NOTE = Column("note", _note, rank=1)

FOUND = (MODEL, NAME, VERSION, SIZE, CREATED, DATA_TYPE, CONTENT_TYPE, SPEC)


def artifact_record(artifact: Any) -> dict[str, Any]:
    """Return what an artifact's row says, by the names that predicates use."""
    record = record_of(artifact.row)
    del record["ns"]
    return record
