"""From a version's metadata to its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from swampstore.artifacts.metadata import Metadata
from swampstore.catalog.schema import ACTIVE, Row
from swampstore.layout import DataRef


def row_of(namespace: str, ref: DataRef, metadata: Metadata, *, deferred: bool) -> Row:
    """Return the row of a version; whether it is a latest one is settled when it is stored."""
    owner, tags = metadata.owner, metadata.tags
    return Row(
        namespace=namespace,
        type_normalized=ref.model.type,
        model_id=ref.model.id,
        data_name=ref.name,
        version=metadata.version,
        id=metadata.id,
        is_latest=0,
        deferred=int(deferred),
        lifecycle=metadata.lifecycle or ACTIVE,
        renamed_to=metadata.renamed_to,
        model_name=tags.get("modelName", ""),
        spec_name=tags.get("specName", ""),
        data_type=tags.get("type", ""),
        content_type=metadata.content_type,
        lifetime=metadata.lifetime,
        garbage_collection=str(metadata.garbage_collection),
        owner_type=owner.type,
        streaming=int(metadata.streaming),
        size=metadata.size or 0,
        checksum=metadata.checksum or "",
        created_at=metadata.created_at,
        tags=_tags_json(tags),
        owner_ref=owner.ref,
        workflow_id=owner.workflow_id,
        workflow_run_id=owner.workflow_run_id,
        workflow_name=owner.workflow_name,
        job_name=owner.job_name,
        step_name=owner.step_name,
        source=owner.source,
    )


def _tags_json(tags: Mapping[str, Any]) -> str:
    return json.dumps(tags, ensure_ascii=False, separators=(",", ":"))
