"""`data prune`: data of models that are defined no longer goes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.retention.prune import DataTotals, ModelFacts, PrunePlan, plan_prune
from swampstore.catalog.compact import Checkpoint, checkpoint
from swampstore.layout import DataRef, ModelRef
from swampstore.retention.apply import Target, carry_out
from swampstore.retention.collect import (
    data_totals,
    facts_of_models,
    require_datastore,
    rows_on_disk,
)
from swampstore.retention.definitions import read_definitions

if TYPE_CHECKING:
    from swampstore.repo import Repo

_NO_CHECKPOINT = Checkpoint(0, 0)


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
        self.plan = plan_prune(facts_of_models(repo.catalog), definitions.is_live)

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
    present = len(on_disk.version_numbers(repo.tree, ref))
    return present == planned.version_count and data_totals(rows) == planned


def prune(repo: Repo, *, dry_run: bool = False) -> PruneReport:
    """Remove the data of models that no definition stands for, or tell what would go.

    Raises PruneRefusedError if a definition cannot be read or there is none at all, DiskError if
    the datastore is not there.
    """
    pruning = DataPrune(repo)
    return pruning.preview() if dry_run else pruning.run()
