"""`model delete`: everything that the datastore holds of one model goes.

That is its data, its outputs with their logs, and its evaluated and automatic definitions. What
defines it in git stays, and so do the records of workflows that used it. The data goes last: as
long as there is some, the model is found by its name, so a deletion that was interrupted can be
repeated in the same words.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swampstore.artifacts import versions as on_disk
from swampstore.errors import ModelNotFoundError, SwampstoreError
from swampstore.files import Tree
from swampstore.layout import DataRef, ModelRef
from swampstore.repo.models import ModelFiles
from swampstore.retention.apply import Target, carry_out, require_datastore
from swampstore.retention.data_prune import DataTotals, definition_files
from swampstore.retention.runs import RunRecords, remove_log

if TYPE_CHECKING:
    from swampstore.repo import Repo

_RECORD = ".yaml"
_APPEARED = "it was saved after this was planned, so it stays"


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What goes of a model, by path; `logs` are files that outputs name as theirs, elsewhere.

    `names` has the versions of each data name and their bytes.
    """

    model: ModelRef
    names: tuple[DataTotals, ...] = ()
    outputs: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of the model."""
        return not (self.names or self.outputs or self.logs or self.definitions)

    @property
    def versions(self) -> int:
        """How many versions go."""
        return sum(name.version_count for name in self.names)

    @property
    def size(self) -> int:
        """The bytes of content that go."""
        return sum(name.size for name in self.names)

    @property
    def output_count(self) -> int:
        """How many outputs go, however many files each has."""
        return sum(rel.endswith(_RECORD) for rel in self.outputs)


@dataclass(frozen=True, slots=True)
class ModelDeletionReport:
    """What went, or would go, and everything that stayed: `failed` by path, with the reason.

    `definitions_kept` are the files in git that define the model.
    """

    plan: ModelPlan
    dry_run: bool
    failed: tuple[tuple[str, str], ...] = ()
    definitions_kept: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the document of `model delete`."""
        plan = self.plan
        return {
            "modelType": plan.model.type,
            "modelId": plan.model.id,
            "dataNames": [
                {"dataName": one.data_name, "versions": one.version_count, "bytes": one.size}
                for one in plan.names
            ],
            "versionsDeleted": plan.versions,
            "bytesReclaimed": plan.size,
            "outputsDeleted": plan.output_count,
            "files": [*plan.outputs, *plan.logs, *plan.definitions],
            "failed": [{"path": path, "error": reason} for path, reason in self.failed],
            "definitionsKept": list(self.definitions_kept),
            "dryRun": self.dry_run,
        }


@dataclass(slots=True)
class _Done:
    """What is gone so far, and why the rest is not."""

    names: list[DataTotals] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


class ModelDeletion:
    """One deletion: planned at once, carried out when asked for.

    Raises ModelNotFoundError if the datastore holds nothing of the model, DiskError if the
    datastore itself is not there.
    """

    def __init__(self, repo: Repo, model: str | ModelRef) -> None:
        require_datastore(repo.config)
        self._repo = repo
        self._tree = repo.tree
        self._files = ModelFiles(repo.tree, repo.model(model))
        repo.ready()
        self._kept = definition_files(repo, self._files.model.id)
        self._versions: dict[DataRef, list[int]] = {}
        self.plan = self._planned()
        if self.plan.is_empty:
            raise _nothing_of(repo, self.plan.model, self._kept)

    def _clear_claims(self) -> None:
        """Take away what dead writers left of names that never had a version."""
        for ref in self._files.claims():
            self._repo.mutations.clear(ref, on_disk.own_numbers(self._tree, ref))

    def _planned(self) -> ModelPlan:
        outputs = self._files.outputs()
        beside = {os.path.realpath(self._tree.path(rel)) for rel in outputs}
        logs = {log for rel in outputs if (log := self._log(rel)) and log not in beside}
        return ModelPlan(
            self._files.model,
            tuple(self._totals(ref) for ref in self._files.names()),
            tuple(outputs),
            tuple(sorted(logs)),
            tuple(self._files.definitions()),
        )

    def _totals(self, ref: DataRef) -> DataTotals:
        versions = on_disk.own_numbers(self._tree, ref)
        self._versions[ref] = versions
        # Damaged metadata keeps nobody from deleting what it describes.
        stored = on_disk.stored_versions(self._tree, ref, lambda *_: None)
        size = sum(one.metadata.size or 0 for one in stored)
        return DataTotals(ref.name, len(versions), size)

    def _log(self, rel: str) -> str | None:
        if not rel.endswith(_RECORD):
            return None
        records = RunRecords(self._tree, self._repo.config.repo_dir, lambda _: None)
        facts = records.read(rel)
        return facts.log_file if facts else None

    def preview(self) -> ModelDeletionReport:
        """Return what `run` would do; nothing that anybody has is changed."""
        return ModelDeletionReport(self.plan, dry_run=True, definitions_kept=self._kept)

    def run(self) -> ModelDeletionReport:
        """Delete what was planned. A data name that has changed since stays, and is named."""
        done = _Done()
        self._clear_claims()
        done.failed += [(ref.rel, _APPEARED) for ref in self._new_names()]
        for rel in self.plan.definitions:
            self._try(rel, done.definitions, done, partial(_remove, self._tree, rel))
        for log in self.plan.logs:
            # It goes before its record, without which nobody would find it again.
            self._try(log, done.logs, done, partial(remove_log, self._tree, log))
        for rel in sorted(self.plan.outputs, key=lambda rel: rel.endswith(_RECORD)):
            self._try(rel, done.outputs, done, partial(_remove, self._tree, rel))
        self._delete_data(done)
        self._drop_directory()
        plan = ModelPlan(
            self.plan.model,
            tuple(done.names),
            tuple(sorted(done.outputs)),
            tuple(done.logs),
            tuple(done.definitions),
        )
        return ModelDeletionReport(
            plan, dry_run=False, failed=tuple(done.failed), definitions_kept=self._kept
        )

    def _new_names(self) -> list[DataRef]:
        return [ref for ref in self._files.names() if ref not in self._versions]

    @staticmethod
    def _try(path: str, gone: list[str], done: _Done, remove: Callable[[], None]) -> None:
        try:
            remove()
        except SwampstoreError as error:
            done.failed.append((path, error.message))
        else:
            gone.append(path)

    def _delete_data(self, done: _Done) -> None:
        targets = [
            Target(ref, None, partial(self._is_as_planned, ref, versions))
            for ref, versions in self._versions.items()
        ]
        reasons = carry_out(self._repo.mutations, targets)
        for target, totals, reason in zip(targets, self.plan.names, reasons, strict=True):
            if reason is None:
                done.names.append(totals)
            else:
                done.failed.append((target.ref.rel, reason))

    def _is_as_planned(self, ref: DataRef, versions: list[int]) -> bool:
        """Whether nobody saved or deleted a version since; one that is gone altogether is."""
        now = on_disk.own_numbers(self._tree, ref)
        return not now or now == versions

    def _drop_directory(self) -> None:
        """Remove the directory of the model if nothing is left in it; no file changes by that."""
        rel = self.plan.model.rel
        with contextlib.suppress(SwampstoreError), self._tree.receiving(rel) as reception:
            reception.remove_empty_dir(rel)


def _remove(tree: Tree, rel: str) -> None:
    with tree.changing(rel) as change:
        change.remove(rel)


def _nothing_of(repo: Repo, model: ModelRef, kept: tuple[str, ...]) -> ModelNotFoundError:
    known = [str(one) for one in repo.catalog.models(12, like=model.type)]
    hint = f"Models with data: {', '.join(known)}." if known else "No model has data."
    if kept:
        hint = f"What defines it is in git, and stays: {', '.join(kept)}."
    return ModelNotFoundError(f"the datastore holds nothing of the model {model}", hint=hint)


def delete_model(
    repo: Repo, model: str | ModelRef, *, dry_run: bool = False
) -> ModelDeletionReport:
    """Delete everything the datastore holds of a model, or tell what would go.

    Everything is locked meanwhile, and the deletion is pushed at the end. Raises
    ModelNotFoundError if there is nothing, and what `repo.session` raises.
    """
    if dry_run:
        return ModelDeletion(repo, model).preview()
    with repo.session():
        return ModelDeletion(repo, model).run()
