"""`data gc`: expired data and superfluous versions go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.recovery import sweep
from swampstore.catalog.database import Checkpoint, checkpoint
from swampstore.errors import SwampstoreError
from swampstore.layout import RAW, DataRef, ModelRef, workflow_run_rel
from swampstore.notices import notice
from swampstore.retention.apply import Target, carry_out, require_datastore
from swampstore.retention.plan import plan_names, require_shared, rows_on_disk, run_exists
from swampstore.retention.rules import GcPlan, Removal, RunExists
from swampstore.stores.errors import ObjectNotFoundError, StoreError, StoreUnreachableError

if TYPE_CHECKING:
    from swampstore.catalog.schema import Row
    from swampstore.repo import Repo

_NO_CHECKPOINT = Checkpoint(0, 0)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What went, or would go, and everything that was kept in doubt or failed.

    `abandoned` counts versions that were begun and never finished.
    """

    plan: GcPlan
    dry_run: bool
    warnings: tuple[str, ...] = ()
    abandoned: int = 0
    checkpoint: Checkpoint = _NO_CHECKPOINT

    def to_json(self) -> dict[str, object]:
        """Return the result document; `warnings` is a member only if there are any."""
        pages, moved = self.checkpoint
        document = self.plan.to_json(
            dry_run=self.dry_run, wal_pages_total=pages, wal_pages_checkpointed=moved
        )
        document["abandonedVersions"] = self.abandoned
        if self.warnings:
            document["warnings"] = list(self.warnings)
        return document


class DataGc:
    """One garbage collection of a repository: planned at once, carried out when asked for."""

    def __init__(self, repo: Repo) -> None:
        require_datastore(repo.config)
        repo.ready(complete=True)
        self._repo = repo
        self._now = repo.clock()
        self.plan = _plan(repo, repo.catalog.by_name(), self._now)

    def preview(self) -> GcReport:
        """Return what `run` would do; change nothing."""
        abandoned, failures = self._sweep(dry_run=True)
        return GcReport(
            self.plan, dry_run=True, warnings=self.plan.warnings + failures, abandoned=abandoned
        )

    def run(self) -> GcReport:
        """Remove what was planned, sweep up after dead writers, checkpoint the catalog."""
        # First, because what the dead left in a name would keep the name from going.
        abandoned, failures = self._sweep(dry_run=False)
        done, kept = _apply(self._repo, self.plan, self._now)
        return GcReport(
            GcPlan(done),
            dry_run=False,
            warnings=self.plan.warnings + kept + failures,
            abandoned=abandoned,
            checkpoint=checkpoint(self._repo.catalog.rows),
        )

    def _sweep(self, *, dry_run: bool) -> tuple[int, tuple[str, ...]]:
        try:
            return len(sweep(self._repo.store, dry_run=dry_run).leftovers), ()
        except SwampstoreError as error:
            return 0, (f"abandoned versions stay: {error.message}",)


def gc(repo: Repo, *, dry_run: bool = False) -> GcReport:
    """Remove expired data and versions beyond their policy, or tell what would go.

    A name that cannot be removed, or is not on disk what the catalog says, stays and is named in
    the warnings. Raises DiskError if the datastore is not there.
    """
    collection = DataGc(repo)
    return collection.preview() if dry_run else collection.run()


def auto_gc_model(repo: Repo, model: str | ModelRef) -> GcPlan:
    """After a run, collect the data of one model if `autoGc` is on; return what went.

    Never raises: the run is over and must not fail because of housekeeping.
    """
    if not repo.config.auto_gc:
        return GcPlan(())
    try:
        require_datastore(repo.config)
        now = repo.clock()
        plan = _plan(repo, _names_of(repo, repo.model(model)), now)
        done, kept = _apply(repo, plan, now)
    except Exception as error:  # noqa: BLE001 - see above: whatever it was, the run went well
        notice("old data of %s stays for now: %s", model, error)
        return GcPlan(())
    for warning in plan.warnings + kept:
        notice("%s", warning)
    return GcPlan(done, plan.warnings + kept)


def _names_of(repo: Repo, model: ModelRef) -> Iterator[Sequence[Row]]:
    """Yield the rows of each name of a model; filling the catalog would be too much for one."""
    repo.ready()
    if repo.catalog.is_populated:
        for name in repo.catalog.names(model):
            yield repo.catalog.versions(DataRef(model, name))[::-1]
        return
    for name in sorted(repo.tree.subdirs(model.rel)):
        if rows := rows_on_disk(repo.tree, repo.config.namespace, DataRef(model, name)):
            yield rows


def _plan(
    repo: Repo, names: Iterable[Sequence[Row]], now: datetime, runs: RunExists | None = None
) -> GcPlan:
    plan = plan_names(names, now, runs or _known_runs(repo))
    stay = {one[:3]: one for one in plan.removals if _may_be_last(repo, one)}
    if not stay:
        return plan
    doubts = (
        f"{_ref_of(one)}: a newer version lacks its content, so old ones stay;"
        " `swampstore doctor` tells more"
        for one in stay.values()
    )
    goes = tuple(one for one in plan.removals if one[:3] not in stay)
    return GcPlan(goes, (*plan.warnings, *doubts))


def _may_be_last(repo: Repo, removal: Removal) -> bool:
    """Whether content is lost of versions that are to stay, newer than one that is to go.

    Then what goes may be the last that can be read.
    """
    if removal.whole_name or repo.config.remote is not None:
        return False
    tree, ref, goes = repo.tree, _ref_of(removal), {one.version for one in removal.versions}
    stay = (one for one in on_disk.committed_versions(tree, ref) if one not in goes)
    newer = (ref.file_rel(one, RAW) for one in stay if one > min(goes, default=one))
    return any(tree.size(raw) is None and not repo.config.may_be_elsewhere(raw) for raw in newer)


def _ref_of(removal: Removal) -> DataRef:
    return DataRef(ModelRef(removal.model_type, removal.model_id), removal.name)


def _known_runs(repo: Repo) -> RunExists:
    """Return what says whether a workflow run has a record, and raises where nobody can tell.

    That it is not here says nothing as long as the remote may have it: a session on some models
    brings no records of runs. What nobody answers once is not asked again.
    """
    failures: list[StoreError] = []

    @cache
    def exists(workflow_id: str, run_id: str) -> bool:
        config, rel = repo.config, workflow_run_rel(workflow_id, run_id)
        if run_exists(repo.tree, workflow_id, run_id):
            return True
        if config.is_shared:
            require_shared(config.routing, rel)
        if config.remote is None:
            return False
        if failures:
            raise failures[0]
        try:
            return _is_on_remote(repo, rel)
        except StoreError as error:
            failures.append(error)
            raise

    return exists


def _is_on_remote(repo: Repo, rel: str) -> bool:
    if repo.config.is_offline:
        raise StoreUnreachableError(
            "the remote is not asked while working offline", hint="Unset SWAMPSTORE_OFFLINE."
        )
    try:
        repo.connection.store.head(repo.connection.names.remote(rel))
    except ObjectNotFoundError:
        return False
    return True


def _apply(repo: Repo, plan: GcPlan, now: datetime) -> tuple[tuple[Removal, ...], tuple[str, ...]]:
    """Return the removals that were carried out, and why the others were not."""
    runs = _known_runs(repo)
    targets = [_target(repo, removal, now, runs) for removal in plan.removals]
    outcome = list(zip(plan.removals, carry_out(repo.mutations, targets), strict=True))
    done = tuple(removal for removal, reason in outcome if reason is None)
    return done, tuple(reason for _, reason in outcome if reason is not None)


def _target(repo: Repo, removal: Removal, now: datetime, runs: RunExists) -> Target:
    ref = _ref_of(removal)
    versions = tuple(version.version for version in removal.versions)
    return Target(
        ref,
        None if removal.whole_name else versions,
        partial(_is_still_due, repo, ref, removal, now, runs),
    )


def _is_still_due(
    repo: Repo, ref: DataRef, removal: Removal, now: datetime, runs: RunExists
) -> bool:
    """Whether the files as they are lead to the same decision. The name's lock is held."""
    if removal.whole_name:
        # Claims of writers at work are no versions yet, but would go with the name.
        present = on_disk.own_numbers(repo.tree, ref)
        if present != [version.version for version in removal.versions]:
            return False
    rows = rows_on_disk(repo.tree, repo.config.namespace, ref)
    return _plan(repo, [rows] if rows else [], now, runs).removals == (removal,)
