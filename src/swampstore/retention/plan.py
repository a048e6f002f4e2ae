"""From rows to a plan: what garbage collection removes of names whose rows somebody has read.

Rows come from the catalog, from the disk, or from tasks that read a bucket; all of them go through
`NamePlanner`, so a name is judged in the same way wherever it is looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import latest_of
from swampstore.catalog.disk_rows import row_of
from swampstore.catalog.schema import Row
from swampstore.clock import from_iso
from swampstore.errors import ConfigError
from swampstore.files import Tree
from swampstore.formats import whole_number
from swampstore.layout import DataRef, workflow_run_rel
from swampstore.retention.rules import (
    GcPlan,
    GcRules,
    NameFacts,
    Removal,
    RunExists,
    VersionFacts,
)
from swampstore.routing import Routing


class NamePlanner:
    """Decides about one data name after the other, at the time `now`; `doubts` tell what stayed.

    `run_exists(workflow_id, workflow_run_id)` says whether that run record is still there; if it
    raises, the name stays.
    """

    def __init__(self, now: datetime, run_exists: RunExists) -> None:
        self._rules = GcRules(now, run_exists)
        self.doubts = self._rules.doubts

    def removal(self, rows: Sequence[Row]) -> Removal | None:
        """Return what goes of the name that has these rows, ascending; None if nothing does."""
        try:
            facts = name_facts(rows)
        except ValueError as problem:
            cause = "a time of creation cannot be understood"
            self.doubts.add(cause, f"{rows[0].ref}: {problem}")
            return None
        return None if facts is None else self._rules.removal(facts)


def plan_names(names: Iterable[Sequence[Row]], now: datetime, run_exists: RunExists) -> GcPlan:
    """Decide what goes of names, each given by its rows; `names` is read once and not kept."""
    planner = NamePlanner(now, run_exists)
    removals = [removal for rows in names if (removal := planner.removal(rows)) is not None]
    removals.sort(key=lambda removal: removal[:3])
    return GcPlan(tuple(removals), planner.doubts.warnings())


def name_facts(rows: Sequence[Row]) -> NameFacts | None:
    """Return what garbage collection must know of one name, None if nothing of it counts yet.

    Versions that wait for their commit do not exist as far as retention goes. Raises ValueError
    for a time of creation that is none.
    """
    latest = latest_row(rows)
    if latest is None:
        return None
    return NameFacts(
        model_type=latest.type_normalized,
        model_id=latest.model_id,
        name=latest.data_name,
        lifetime=latest.lifetime,
        garbage_collection=_policy(latest.garbage_collection),
        deleted=latest.is_deleted,
        workflow_id=latest.workflow_id or None,
        workflow_run_id=latest.workflow_run_id or None,
        versions=[
            VersionFacts(row.version, from_iso(row.created_at), row.size)
            for row in rows
            if not row.deferred
        ],
        latest=latest.version,
    )


def latest_row(rows: Sequence[Row]) -> Row | None:
    """Return the row that the name's marker means: of several latest ones, the newest."""
    return next((row for row in reversed(rows) if row.is_latest), None)


def _policy(text: str) -> int | str:
    count = whole_number(text)
    return text if count is None else count


def rows_on_disk(tree: Tree, namespace: str, ref: DataRef) -> list[Row]:
    """Return the rows that a name should have, ascending, with the marked one as latest."""
    marker = on_disk.effective_marker(tree, ref)
    rows = [
        row_of(namespace, ref, stored.metadata, deferred=stored.deferred)
        for stored in on_disk.stored_versions(tree, ref)
    ]
    rows.reverse()
    return marked(rows, marker)


def marked(rows: Iterable[Row], marker: int | None) -> list[Row]:
    """Return the rows of a name with the one as latest that its marker means, and no other."""
    rows = list(rows)
    latest = latest_of((row.version for row in rows if not row.deferred), marker=marker)
    return [row._replace(is_latest=int(row.version == latest)) for row in rows]


def require_shared(routing: Routing, rel: str) -> None:
    """Raise ConfigError if the settings keep a file on its machine.

    Elsewhere nobody can tell then whether it was deleted, and the remote cannot either.
    """
    if routing.is_local(rel):
        top = rel.partition("/")[0]
        raise ConfigError(
            f"the settings keep {top} on their machines",
            hint=f"Delete such data by name, or keep `{top}` in the datastore.",
        )


def run_exists(tree: Tree, workflow_id: str, run_id: str) -> bool:
    """Whether the record of a workflow run is on disk; raise if that cannot be told."""
    try:
        os.lstat(tree.path(workflow_run_rel(workflow_id, run_id)))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
