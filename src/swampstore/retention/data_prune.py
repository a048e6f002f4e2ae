"""`data prune`: data of models that are defined no longer goes.

Whether a model is defined is told from what is *not* there, so a single definition that cannot be
read makes the whole answer worthless: then nothing goes
(docs/decisions/0012-prune-refuses-without-definitions.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.catalog.database import Checkpoint, checkpoint
from swampstore.errors import ConfigError, PruneRefusedError
from swampstore.layout import AUTO_DEFINITIONS, DataRef, ModelRef
from swampstore.repo.definition_files import (
    DefinitionFile,
    read_definition_files,
    source_directory,
)
from swampstore.retention.apply import Target, carry_out, require_datastore
from swampstore.retention.plan import latest_row, require_shared, rows_on_disk
from swampstore.retention.rules import Doubts
from swampstore.stores.errors import StoreError, StoreUnreachableError

if TYPE_CHECKING:
    from swampstore.catalog.catalog import Catalog
    from swampstore.catalog.schema import Row
    from swampstore.repo import Repo

_NO_CHECKPOINT = Checkpoint(0, 0)
# The coordination records of a fleet have no definition by design; none of them is an orphan.
CONTROL_PLANE_TYPES = frozenset(
    {
        "swamp/enrollment-token",
        "swamp/worker",
        "swamp/step-lease",
        "swamp/pending-dispatch",
        "swamp/fleet-probe",
        "swamp/server-token",
        "swamp/grant",
        "swamp/group",
    }
)


class DataTotals(NamedTuple):
    """One data name of a model: how many versions it has and the bytes of their content."""

    data_name: str
    version_count: int
    size: int


class ModelFacts(NamedTuple):
    """One model that owns data, by normalised type; `model_name` is None where nobody knows it.

    `names` leaves out the names whose latest version is a deletion marker: they are never orphans.
    """

    model_type: str
    model_id: str
    model_name: str | None
    names: Sequence[DataTotals]

    @property
    def version_count(self) -> int:
        """How many versions the listed names have."""
        return sum(name.version_count for name in self.names)

    @property
    def size(self) -> int:
        """The bytes of content in the listed names."""
        return sum(name.size for name in self.names)


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The orphaned models, ordered by type and id. Preview and real run both report from it.

    Of each model exactly the listed names go. Someone who carries out only a part of it reports
    the part: `PrunePlan(models=done)`.
    """

    models: tuple[ModelFacts, ...]
    warnings: tuple[str, ...] = ()

    @property
    def name_count(self) -> int:
        """How many data names go."""
        return sum(len(model.names) for model in self.models)

    @property
    def version_count(self) -> int:
        """How many versions go."""
        return sum(model.version_count for model in self.models)

    @property
    def size(self) -> int:
        """The bytes of content that go."""
        return sum(model.size for model in self.models)

    def to_json(
        self, *, dry_run: bool, wal_pages_total: int = 0, wal_pages_checkpointed: int = 0
    ) -> dict[str, object]:
        """Return the result document of `data prune`; the page counts come from the checkpoint."""
        return {
            "modelsReclaimed": len(self.models),
            "dataEntriesReclaimed": self.name_count,
            "versionsDeleted": self.version_count,
            "bytesReclaimed": self.size,
            "dryRun": dry_run,
            "reclaimedModels": [_model_json(model) for model in self.models],
            "walPagesTotal": wal_pages_total,
            "walPagesCheckpointed": wal_pages_checkpointed,
        }


def plan_prune(models: Iterable[ModelFacts], is_live: Callable[[str, str], bool]) -> PrunePlan:
    """Decide which models' data is orphaned.

    `is_live(model_type, model_id)` says whether a definition exists, automatic ones included, or
    for the type `workflow` whether the workflow does; if it raises, the model stays. It is not
    asked about `CONTROL_PLANE_TYPES`, which are always live.
    """
    doubts = Doubts("model")
    orphans = [model for model in models if model.names and _is_orphan(model, is_live, doubts)]
    orphans.sort(key=lambda model: model[:2])
    return PrunePlan(tuple(orphans), doubts.warnings())


def _is_orphan(model: ModelFacts, is_live: Callable[[str, str], bool], doubts: Doubts) -> bool:
    if model.model_type.removeprefix("@") in CONTROL_PLANE_TYPES:
        return False
    try:
        return not is_live(model.model_type, model.model_id)
    except Exception as problem:  # noqa: BLE001 - whatever it was: unknown is not gone
        doubts.add(
            "its definition could not be looked up",
            f"{model.model_type} {model.model_id}: {problem}",
        )
        return False


def _model_json(model: ModelFacts) -> dict[str, object]:
    named = {} if model.model_name is None else {"modelName": model.model_name}
    return {
        "type": model.model_type,
        "modelId": model.model_id,
        **named,
        "dataNames": sorted(name.data_name for name in model.names),
        "versionCount": model.version_count,
        "bytesReclaimed": model.size,
    }


# What is there -----------------------------------------------------------------------------------


def data_totals(rows: Sequence[Row]) -> DataTotals | None:
    """Return what pruning must know of one name, None if it is deleted or was never committed."""
    latest = latest_row(rows)
    if latest is None or latest.is_deleted:
        return None
    return DataTotals(rows[0].data_name, len(rows), sum(row.size for row in rows))


def facts_of_models(catalog: Catalog) -> Iterator[ModelFacts]:
    """Yield every model that owns data, with the totals of its names; holds one at a time."""
    for model, names in groupby(catalog.by_name(), key=lambda rows: rows[0].ref.model):
        totals, model_name = [], ""
        for rows in names:
            found = data_totals(rows)
            if found is not None:
                totals.append(found)
                model_name = rows[-1].model_name or model_name
        yield ModelFacts(model.type, model.id, model_name or None, totals)


# What is defined ---------------------------------------------------------------------------------

WORKFLOW = "workflow"
_LISTED = 20


class Definitions(NamedTuple):
    """The ids of every defined model, automatic ones included, and of every workflow."""

    models: frozenset[str]
    workflows: frozenset[str]

    def is_live(self, model_type: str, model_id: str) -> bool:
        """Whether data of this model has a definition. Only the id counts: types get renamed."""
        if model_type == WORKFLOW and model_id in self.workflows:
            return True
        return model_id in self.models


def read_definitions(repo: Repo) -> Definitions:
    """Read every definition; raise PruneRefusedError if one cannot be read or there is none."""
    reader = _Reader(repo)
    models = reader.ids("modelsDir", "models")
    for place in repo.tree.places(AUTO_DEFINITIONS):
        models |= reader.ids_below(place)
    _check_all_are_here(repo)
    workflows = reader.ids("workflowsDir", "workflows")
    reader.refuse_if_incomplete()
    if not models:
        raise PruneRefusedError(
            f"{repo.config.repo_dir} defines no model at all, so all of its data would go",
            hint="Data saved by hand needs no definitions: use `swampstore data delete` for what"
            " you do not want. Or check that the models directory is complete.",
        )
    return Definitions(frozenset(models), frozenset(workflows))


def _check_all_are_here(repo: Repo) -> None:
    """Raise PruneRefusedError unless the remote has no automatic definition that is not here.

    A sync of some models brings their data, and no definitions.
    """
    if repo.config.remote is None:
        return
    try:
        if repo.config.is_offline:
            raise StoreUnreachableError("SWAMPSTORE_OFFLINE is set")
        root = repo.connection.names.remote("")
        stored = repo.connection.store.list(f"{root}{AUTO_DEFINITIONS}/")
        rels = [info.key.removeprefix(root) for info in stored]
    except StoreError as error:
        raise PruneRefusedError(
            f"nobody tells which definitions others have pushed: {error.message}",
            hint="Without them nobody can tell whose data is left over. Try again with the remote.",
        ) from error
    shared = (rel for rel in rels if not repo.config.routing.is_local(rel))
    if missing := [rel for rel in shared if not os.path.lexists(repo.tree.path(rel))]:
        raise PruneRefusedError(
            f"{len(missing)} definition(s) of others are not here yet, such as {missing[0]}",
            hint="Run `swampstore sync` first.",
        )


def definition_files(repo: Repo, model_id: str) -> tuple[str, ...]:
    """Return the files in git that define a model, relative to the repository; those it can read.

    Only the id counts, as for pruning.
    """
    try:
        files = read_definition_files(source_directory(repo, "modelsDir", "models"))
    except ConfigError:
        return ()
    found = (file.path for file in files if file.document.get("id") == model_id)
    return tuple(sorted(os.path.relpath(path, repo.config.repo_dir) for path in found))


class _Reader:
    """Collects ids, and everything that stands in the way of collecting them all."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._problems: list[str] = []

    def ids(self, setting: str, default: str) -> set[str]:
        """Return the ids of all definitions in a directory of the source."""
        try:
            return self.ids_below(source_directory(self._repo, setting, default))
        except ConfigError as error:
            path, _, reason = error.message.partition(": ")
            self._problem(path, reason)
            return set()

    def ids_below(self, directory: str) -> set[str]:
        """Return the ids of all definitions below a directory, which need not be there."""
        return {found for file in read_definition_files(directory) if (found := self._id(file))}

    def refuse_if_incomplete(self) -> None:
        if not self._problems:
            return
        listed = "; ".join(self._problems[:_LISTED])
        more = len(self._problems) - _LISTED
        raise PruneRefusedError(
            f"{len(self._problems)} definition(s) cannot be read: {listed}"
            + (f"; and {more} more" if more > 0 else ""),
            hint="Without them nobody can tell whose data is left over. Repair or remove them.",
        )

    def _id(self, file: DefinitionFile) -> str:
        """Return a definition's id; empty, and noted as a problem, if there is none to be had."""
        if file.error:
            self._problem(file.path, str(file.error).removeprefix(file.path).lstrip(",: "))
            return ""
        found = file.document.get("id")
        if not isinstance(found, str) or not found:
            self._problem(file.path, "it has no id that is text")
            return ""
        return found

    def _problem(self, path: str, reason: str) -> None:
        self._problems.append(f"{os.path.relpath(path, self._repo.config.repo_dir)} ({reason})")


# Pruning -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What went, or would go, and everything that was kept in doubt or failed."""

    plan: PrunePlan
    dry_run: bool
    warnings: tuple[str, ...] = ()
    checkpoint: Checkpoint = _NO_CHECKPOINT

    def to_json(self) -> dict[str, object]:
        """Return the result document; `warnings` is a member only if there are any."""
        pages, moved = self.checkpoint
        document = self.plan.to_json(
            dry_run=self.dry_run, wal_pages_total=pages, wal_pages_checkpointed=moved
        )
        return document | ({"warnings": list(self.warnings)} if self.warnings else {})


class DataPrune:
    """One pruning of a repository: planned at once, carried out when asked for."""

    def __init__(self, repo: Repo) -> None:
        require_datastore(repo.config)
        definitions = read_definitions(repo)
        repo.ready(complete=True)
        self._repo = repo
        self.plan = plan_prune(facts_of_models(repo.catalog), partial(self._is_live, definitions))

    def _is_live(self, definitions: Definitions, model_type: str, model_id: str) -> bool:
        """Whether a model is defined; raise ConfigError if another machine may define it."""
        if definitions.is_live(model_type, model_id):
            return True
        config = self._repo.config
        if config.is_shared:
            require_shared(config.routing, f"{AUTO_DEFINITIONS}/{model_type}/{model_id}.yaml")
        return False

    def preview(self) -> PruneReport:
        """Return what `run` would do; change nothing."""
        return PruneReport(self.plan, dry_run=True, warnings=self.plan.warnings)

    def run(self) -> PruneReport:
        """Remove what was planned, checkpoint the catalog."""
        # A model defined while its data was being looked at would seem orphaned: ask again.
        definitions = read_definitions(self._repo)
        warnings = list(self.plan.warnings)
        orphans = []
        for model in self.plan.models:
            if definitions.is_live(model.model_type, model.model_id):
                warnings.append(f"{_address(model)} stays: it is defined again")
            else:
                orphans.append(model)
        return PruneReport(
            PrunePlan(self._remove(orphans, warnings)),
            dry_run=False,
            warnings=tuple(warnings),
            checkpoint=checkpoint(self._repo.catalog.rows),
        )

    def _remove(self, models: list[ModelFacts], warnings: list[str]) -> tuple[ModelFacts, ...]:
        """Remove the names of these models; return what is gone."""
        planned = [(model, name) for model in models for name in model.names]
        reasons = carry_out(self._repo.mutations, [self._target(*pair) for pair in planned])
        gone: dict[ModelRef, list[DataTotals]] = {}
        for (model, name), reason in zip(planned, reasons, strict=True):
            if reason is None:
                gone.setdefault(_address(model), []).append(name)
            else:
                warnings.append(reason)
        return tuple(
            model._replace(names=names) for model in models if (names := gone.get(_address(model)))
        )

    def _target(self, model: ModelFacts, name: DataTotals) -> Target:
        ref = DataRef(_address(model), name.data_name)
        return Target(ref, None, partial(_is_unchanged, self._repo, ref, name))


def _address(model: ModelFacts) -> ModelRef:
    return ModelRef(model.model_type, model.model_id)


def _is_unchanged(repo: Repo, ref: DataRef, planned: DataTotals) -> bool:
    """Whether the files say what the catalog said. The name's lock is held."""
    rows = rows_on_disk(repo.tree, repo.config.namespace, ref)
    # Claims of writers at work are no versions yet, but would go with the name.
    present = len(on_disk.own_numbers(repo.tree, ref))
    return present == planned.version_count and data_totals(rows) == planned


def prune(repo: Repo, *, dry_run: bool = False) -> PruneReport:
    """Remove the data of models that no definition stands for, or tell what would go.

    Raises PruneRefusedError if a definition cannot be read or there is none at all, DiskError if
    the datastore is not there.
    """
    pruning = DataPrune(repo)
    return pruning.preview() if dry_run else pruning.run()
