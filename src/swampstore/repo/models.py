"""Which models there are, and which files belong to one of them.

A model has its data below a directory of its own. Its outputs and evaluated definitions are filed
by type, together with those of all other models of that type, and below a type there may be another
one (`aws` and `aws/ec2`); `ModelFiles` tells whose they are. Definitions in git are no files of the
datastore: nothing here looks at them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from swampstore import yaml_dialect
from swampstore.artifacts import versions as on_disk
from swampstore.catalog.catalog import ModelTotals
from swampstore.errors import ModelNotFoundError, SwampstoreError
from swampstore.files import Tree, disk_errors, read_file
from swampstore.layout import (
    AUTO_DEFINITIONS,
    EVALUATED_DEFINITIONS,
    OUTPUTS,
    DataRef,
    ModelRef,
    is_temp,
)

if TYPE_CHECKING:
    from swampstore.repo.lookups import Repo

# `{model id}-{start of the run}.yaml`, and the log beside it.
OUTPUT_FILE = re.compile(r"(.+)-(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d{3,9}Z)\.(?:yaml|log)", re.DOTALL)
_YAML = ".yaml"


class ModelSummary(NamedTuple):
    """One model: how much data it has, when that last changed, and how many outputs.

    `last_change` is empty for a model that has outputs only.
    """

    totals: ModelTotals
    outputs: int

    @property
    def model(self) -> ModelRef:
        """Its address."""
        return self.totals.model

    def to_json(self) -> dict[str, object]:
        """Return one item of the document of `model list`."""
        model, name, names, versions, size, changed = self.totals
        return {
            "modelType": model.type,
            "modelId": model.id,
            "modelName": name,
            "dataNames": names,
            "versions": versions,
            "bytes": size,
            "lastChange": changed or None,
            "outputs": self.outputs,
        }


class NameTotals(NamedTuple):
    """One data name: its versions, their bytes, and when the newest was created."""

    name: str
    versions: int
    size: int
    last_change: str


def list_models(repo: Repo) -> list[ModelSummary]:
    """Return the own models that have data or outputs, sorted by address.

    Data is told by the catalog, outputs by the names of their files, of which none is read.
    """
    totals = repo.reading(lambda: repo.ready(complete=True), repo.catalog.model_totals)
    outputs = count_outputs(repo.tree)
    found = {one.model: one for one in totals}
    found |= {one: _nothing(one) for one in outputs if one not in found}
    return [ModelSummary(found[model], outputs[model]) for model in sorted(found)]


def summary_of(repo: Repo, model: str | ModelRef) -> ModelSummary:
    """Return one model; raise ModelNotFoundError if it has neither data nor outputs."""
    ref = repo.model(model)
    known = list_models(repo)
    for one in known:
        if one.model == ref:
            return one
    alike = sorted(known, key=lambda one: one.model.type != ref.type)[:12]
    listed = ", ".join(str(one.model) for one in alike)
    raise ModelNotFoundError(
        f"the model {ref} has neither data nor outputs",
        hint=f"Models: {listed}." if listed else "No model has any yet.",
    )


def name_totals(repo: Repo, model: ModelRef) -> list[NameTotals]:
    """Return what the catalog knows of each data name of a model, deleted ones included."""
    found = []
    for name in repo.catalog.names(model):
        rows = [row for row in repo.catalog.versions(DataRef(model, name)) if not row.deferred]
        if rows:
            size = sum(row.size for row in rows)
            found.append(NameTotals(name, len(rows), size, rows[0].created_at))
    return found


def _nothing(model: ModelRef) -> ModelTotals:
    return ModelTotals(model, "", 0, 0, 0, "")


def count_outputs(tree: Tree) -> Counter[ModelRef]:
    """Return how many outputs each model has, by the names of their files."""
    found: Counter[ModelRef] = Counter()
    for place in tree.places(OUTPUTS):
        for directory, below, files in os.walk(place):
            below[:] = [name for name in below if not is_temp(name)]
            kind = directory.removeprefix(place).strip("/").rpartition("/")[0]
            for name in files if kind else ():
                record = OUTPUT_FILE.fullmatch(name)
                if record and name.endswith(_YAML):
                    found[ModelRef(kind, record[1])] += 1
    return found


class ModelFiles:
    """What the datastore holds of one model, as it is on disk now."""

    def __init__(self, tree: Tree, model: ModelRef) -> None:
        self._tree = tree
        self.model = model

    def names(self) -> list[DataRef]:
        """Return its data names, deleted ones included, in order.

        Below its directory there may be other models, of a type that continues its address.
        """
        found = on_disk.names_at(self._tree, self.model.rel)
        return sorted(ref for ref in found if ref.model == self.model)

    def claims(self) -> list[DataRef]:
        """Return the names that somebody, who may be dead, began and never gave a version."""
        finished = set(self.names())
        refs = (DataRef(self.model, name) for name in self._tree.subdirs(self.model.rel))
        return sorted(
            ref for ref in refs if ref not in finished and on_disk.version_numbers(self._tree, ref)
        )

    def outputs(self) -> list[str]:
        """Return the paths of its records of method runs, and of the logs beside them."""
        top = f"{OUTPUTS}/{self.model.type}"
        found = set()
        for method in self._tree.subdirs(top):
            for rel in self._files(f"{top}/{method}"):
                if self._is_output(rel):
                    found.add(rel)
        return sorted(found)

    def definitions(self) -> list[str]:
        """Return the paths of its evaluated and automatic definitions."""
        tops = (f"{top}/{self.model.type}" for top in (EVALUATED_DEFINITIONS, AUTO_DEFINITIONS))
        return sorted(
            rel
            for top in tops
            for rel in self._files(top)
            if rel.endswith(_YAML) and self._is_definition(rel)
        )

    def _files(self, rel: str) -> Iterator[str]:
        """Yield the regular files in a directory that are where the settings have them."""
        for place in self._tree.places(rel):
            try:
                with disk_errors(place), os.scandir(place) as entries:
                    names = [one.name for one in entries if one.is_file(follow_symlinks=False)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except SwampstoreError as error:
                if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                    continue
                raise
            for name in names:
                if not is_temp(name) and self._tree.path(f"{rel}/{name}") == f"{place}/{name}":
                    yield f"{rel}/{name}"

    def _is_output(self, rel: str) -> bool:
        """Whether a record is of this model: it says so, or is called so and says nothing else."""
        record = OUTPUT_FILE.fullmatch(rel.rpartition("/")[2])
        if record is not None and record[1] != self.model.id:
            return False
        if not rel.endswith(_YAML):
            return record is not None
        told = self._told(rel, "definitionId")
        return told == self.model.id if told else record is not None

    def _is_definition(self, rel: str) -> bool:
        told = self._told(rel, "id")
        return told == self.model.id if told else rel.endswith(f"/{self.model.id}{_YAML}")

    def _told(self, rel: str, member: str) -> str:
        """Return a member of a file, an empty text if that cannot be told."""
        try:
            data = read_file(self._tree.path(rel))
            value = yaml_dialect.load_mapping(data or b"", what=rel).get(member)
        except (SwampstoreError, OSError):
            return ""
        return value if isinstance(value, str) else ""
