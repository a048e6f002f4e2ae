"""`workflows-evaluated/`: a workflow with its inputs put in, as it was last carried out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from swampstore import yaml_dialect
from swampstore.errors import SwampstoreError
from swampstore.runs.workflow.definition import Workflow

if TYPE_CHECKING:
    from swampstore.repo import Repo

EVALUATED = "workflows-evaluated"
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
# Whatever else an expression speaks of is not known yet, or must not be written down.
_OF_INPUTS = re.compile(r"\s*inputs\.\w+\s*")


def evaluated_rel(workflow: Workflow) -> str:
    """Return where the evaluated workflow is kept."""
    name = workflow.name if _FILE_NAME.fullmatch(workflow.name) else workflow.id
    return f"{EVALUATED}/workflow-{name}.yaml"


def evaluated(workflow: Workflow, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with every expression that is an input replaced by its value.

    Inputs that the schema calls sensitive stay as they are, and so does everything that is only
    known when its step begins: data, the environment, secrets, items.
    """
    properties = (workflow.inputs or {}).get("properties") or {}
    open_inputs = {
        name: value
        for name, value in inputs.items()
        if not (isinstance(found := properties.get(name), Mapping) and found.get("sensitive"))
    }
    document = {**workflow.document, "id": workflow.id}
    return {
        key: value if key == "inputs" else _put_in(value, open_inputs)
        for key, value in document.items()
    }


def _put_in(value: Any, inputs: Mapping[str, Any]) -> Any:
    match value:
        case str():
            found = _EXPRESSION.fullmatch(value.strip())
            if found and _OF_INPUTS.fullmatch(found[1]):
                return inputs.get(found[1].strip().removeprefix("inputs."), value)
            return value
        case Mapping():
            return {key: _put_in(one, inputs) for key, one in value.items()}
        case list():
            return [_put_in(one, inputs) for one in value]
    return value


def save_evaluated(repo: Repo, workflow: Workflow, inputs: Mapping[str, Any]) -> None:
    """Keep it, unless it is there already. What cannot be written as YAML is not kept."""
    rel = evaluated_rel(workflow)
    try:
        data = yaml_dialect.dump(evaluated(workflow, inputs)).encode()
    except SwampstoreError:
        return
    if repo.tree.read(rel) != data:
        repo.tree.replace_file(rel, data)
