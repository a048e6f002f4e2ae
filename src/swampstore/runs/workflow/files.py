"""Where workflows are: files in `workflows/` or `workflowsDir`, found by name, id or path.

`workflows-evaluated/` has each workflow with its inputs put in, as it was last carried out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from swampstore import yaml_dialect
from swampstore.errors import SwampstoreError, ValidationError
from swampstore.files import disk_errors, read_file
from swampstore.layout import EVALUATED_WORKFLOWS
from swampstore.notices import did_you_mean
from swampstore.repo.definition_files import DefinitionFile, definition_paths, workflow_directory
from swampstore.runs.errors import WorkflowNotFoundError
from swampstore.runs.workflow.definition import Workflow, read_workflow
from swampstore.runs.workflow.plan import check_plan
from swampstore.runs.workflow.reading import listed

if TYPE_CHECKING:
    from swampstore.repo import Repo


class BrokenWorkflow(NamedTuple):
    """A file that should hold a workflow, and what is wrong with it."""

    path: str
    error: SwampstoreError


class Workflows:
    """The workflows of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo

    def all(self) -> tuple[list[Workflow], list[BrokenWorkflow]]:
        """Return those that can be read, by name, and those that cannot."""
        found: list[Workflow] = []
        broken: list[BrokenWorkflow] = []
        for path in definition_paths(workflow_directory(self._repo)):
            if isinstance(path, DefinitionFile):
                broken.append(BrokenWorkflow(path.path, path.error or ValidationError(path.path)))
                continue
            try:
                found.append(self.read(path))
            except SwampstoreError as error:
                broken.append(BrokenWorkflow(path, error))
        return sorted(found, key=lambda one: (one.name, one.path or "")), broken

    def read(self, path: str) -> Workflow:
        """Read one file, and check that it can be carried out."""
        shown = os.path.relpath(path, self._repo.config.repo_dir)
        shown = path if shown.startswith("..") else shown
        with disk_errors(path):
            data = read_file(path)
        if data is None:
            raise WorkflowNotFoundError(f"the file {path} does not exist", hint="Check the path.")
        workflow = read_workflow(data, shown)
        try:
            check_plan(workflow)
        except ValidationError as error:
            raise type(error)(f"{shown}: {error.message}", hint=error.hint) from None
        return workflow

    def require(self, wanted: str) -> Workflow:
        """Return the workflow with this name or id, or in this file; raise WorkflowNotFoundError.

        Raises ValidationError if several have the name, and what is wrong with the file.
        """
        if wanted.endswith((".yaml", ".yml")) or os.sep in wanted.removeprefix("@"):
            if os.path.isfile(wanted):
                return self.read(os.path.abspath(wanted))
            if os.path.isfile(path := os.path.join(self._repo.config.repo_dir, wanted)):
                return self.read(path)
        found, broken = self.all()
        named = [one for one in found if wanted == one.name]
        named = named or [one for one in found if wanted == one.id]
        if len(named) == 1:
            return named[0]
        if named:
            raise ValidationError(
                f"{wanted!r} is the name of {len(named)} workflows:"
                f" {listed(one.path or '' for one in named)}",
                hint="Give the path of the one you mean, or its id.",
            )
        for one in broken:
            stem = os.path.splitext(os.path.basename(one.path))[0]
            if wanted in (stem, stem.removeprefix("workflow-")):
                raise one.error
        names = [one.name for one in found]
        hint = did_you_mean(wanted, names, 1) or (
            f"There are: {listed(names)}." if names else "There is none in `workflows/` yet."
        )
        raise WorkflowNotFoundError(f"there is no workflow {wanted!r}", hint=hint)


_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
# Whatever else an expression speaks of is not known yet, or must not be written down.
_OF_INPUTS = re.compile(r"\s*inputs\.\w+\s*")


def evaluated_rel(workflow: Workflow) -> str:
    """Return where the evaluated workflow is kept."""
    name = workflow.name if _FILE_NAME.fullmatch(workflow.name) else workflow.id
    return f"{EVALUATED_WORKFLOWS}/workflow-{name}.yaml"


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
