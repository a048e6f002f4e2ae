"""`run gc`: the records of runs that ended long ago go, with their logs."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from swampstore.artifacts.retention.runs import (
    DEFAULT_RUN_RETENTION,
    RunFacts,
    RunGcPlan,
    plan_run_gc,
)
from swampstore.errors import SwampstoreError
from swampstore.files import Tree, disk_errors
from swampstore.retention.collect import require_datastore
from swampstore.retention.run_records import RunRecords, log_rel

if TYPE_CHECKING:
    from swampstore.repo import Repo


@dataclass(frozen=True, slots=True)
class RunGcReport:
    """What went, or would go, and everything that was kept in doubt or failed."""

    plan: RunGcPlan
    dry_run: bool
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the result document; `warnings` is a member only if there are any."""
        document = self.plan.to_json(dry_run=self.dry_run)
        return document | ({"warnings": list(self.warnings)} if self.warnings else {})


class RunGc:
    """One collection of run records: planned at once, carried out when asked for."""

    def __init__(self, repo: Repo, older_than: timedelta = DEFAULT_RUN_RETENTION) -> None:
        require_datastore(repo.config)
        self._tree = repo.tree
        self._warnings: list[str] = []
        self._records = RunRecords(repo.tree, repo.config.repo_dir, self._warnings.append)
        now = repo.clock()
        before = now.timestamp() - older_than.total_seconds()
        self.plan = plan_run_gc(self._records.unchanged_since(before), now, older_than)

    def preview(self) -> RunGcReport:
        """Return what `run` would do; change nothing."""
        return RunGcReport(self.plan, dry_run=True, warnings=self._distinct_warnings())

    def run(self) -> RunGcReport:
        """Remove what was planned."""
        done = tuple(record for record in self.plan.removals if self._remove(record))
        return RunGcReport(RunGcPlan(done), dry_run=False, warnings=self._distinct_warnings())

    def _distinct_warnings(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._warnings))

    def _remove(self, record: RunFacts) -> bool:
        # A failed run can be resumed; then its record says something else by now.
        if self._records.read(record.path) != record:
            self._warnings.append(f"{record.path} stays: it has changed, or somebody removed it")
            return False
        try:
            # The log goes first: without its record nobody would find it again.
            if record.log_file is not None:
                _remove_log(self._tree, record.log_file)
            with self._tree.changing(record.path) as change:
                change.remove(record.path)
        except SwampstoreError as error:
            self._warnings.append(f"{record.path} stays: {error.message}")
            return False
        return True


def _remove_log(tree: Tree, path: str) -> None:
    rel = log_rel(tree, path)
    if rel is not None and os.path.realpath(tree.path(rel)) == path:
        with tree.changing(rel) as change:
            change.remove(rel)
        return
    # It is in the tier that never leaves this machine, so nobody needs to be told.
    with disk_errors(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def run_gc(
    repo: Repo, *, older_than: timedelta = DEFAULT_RUN_RETENTION, dry_run: bool = False
) -> RunGcReport:
    """Remove records of ended runs older than `older_than`, or tell what would go.

    A record that cannot be understood or removed stays and is named in the warnings. Raises
    DiskError if the datastore is not there.
    """
    collection = RunGc(repo, older_than)
    return collection.preview() if dry_run else collection.run()
