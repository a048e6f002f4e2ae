"""The commands below `swampstore data`, and what their documents say of an artifact."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from swampstore.layout import RAW

if TYPE_CHECKING:
    from swampstore.artifact import Artifact
    from swampstore.layout import ModelRef
    from swampstore.repo import Repo


def description(repo: Repo, artifact: Artifact) -> dict[str, Any]:
    """Return everything in an artifact's metadata, whose it is, and where its content is."""
    namespace = artifact.row.namespace
    return {
        **artifact.metadata.to_json(),
        **({} if namespace == repo.config.namespace else {"namespace": namespace}),
        "modelId": artifact.model.id,
        "modelName": artifact.model_name,
        "modelType": artifact.model.type,
        "contentPath": content_path(repo, artifact),
    }


def model_members(ref: ModelRef, artifacts: list[Artifact]) -> dict[str, Any]:
    """Return the members that say whose data this is; the newest data knows the current name."""
    named = [artifact.row for artifact in artifacts if artifact.model_name]
    newest = max(named, key=lambda row: row.created_at, default=None)
    return {
        "modelId": ref.id,
        "modelName": newest.model_name if newest else "",
        "modelType": ref.type,
    }


def content_path(repo: Repo, artifact: Artifact) -> str:
    """Return the content's file relative to the repository; absolute if it is outside of it.

    Content of another namespace has no file here, but a place in the datastore.
    """
    if artifact.row.namespace != repo.config.namespace:
        rel = artifact.ref.file_rel(artifact.version, RAW)
        return f"{repo.others.store.identity}/{artifact.row.namespace}/{rel}"
    path = repo.tree.path(artifact.ref.file_rel(artifact.version, RAW))
    inside = f"{repo.config.repo_dir.rstrip(os.sep)}{os.sep}"
    return path.removeprefix(inside)
