"""The facts that retention plans from: a quick look from the catalog, the truth from the disk.

Both go through rows, so a name looks the same from either side unless it really differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.latest import latest_of
from swampstore.artifacts.retention.doubts import Doubts
from swampstore.artifacts.retention.plan import NameFacts, VersionFacts
from swampstore.artifacts.retention.prune import DataTotals, ModelFacts
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.rows import row_of
from swampstore.catalog.schema import Row
from swampstore.clock import from_iso
from swampstore.config import Config
from swampstore.errors import DiskError
from swampstore.files import Tree
from swampstore.layout import DataRef, check_segment


def require_datastore(config: Config) -> None:
    """Raise DiskError if the datastore is not there: then everything would look deleted."""
    if not os.path.isdir(config.base):
        remedy = "Run `swampstore sync`" if config.remote else "Mount or create it"
        raise DiskError(
            f"the datastore {config.base} is not there",
            hint=f"{remedy} and try again; nothing was changed.",
        )


def run_exists(tree: Tree, workflow_id: str, run_id: str) -> bool:
    """Whether the record of a workflow run is on disk; raise if that cannot be told."""
    check_segment("workflow id", workflow_id)
    check_segment("workflow run id", run_id)
    try:
        os.lstat(tree.path(f"workflow-runs/{workflow_id}/workflow-run-{run_id}.yaml"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def rows_on_disk(tree: Tree, namespace: str, ref: DataRef) -> list[Row]:
    """Return the rows that a name should have, ascending, with the marked one as latest."""
    marker = on_disk.effective_marker(tree, ref)
    rows = [
        row_of(namespace, ref, stored.metadata, deferred=stored.deferred)
        for stored in on_disk.stored_versions(tree, ref)
    ]
    rows.reverse()
    latest = latest_of((row.version for row in rows if not row.deferred), marker=marker)
    return [row._replace(is_latest=int(row.version == latest)) for row in rows]


def latest_row(rows: Sequence[Row]) -> Row | None:
    """Return the row that the name's marker means: of several latest ones, the newest."""
    return next((row for row in reversed(rows) if row.is_latest), None)


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


def _policy(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def facts_of_names(names: Iterable[Sequence[Row]], doubts: Doubts) -> Iterator[NameFacts]:
    """Yield the facts of each name; one whose times make no sense is a doubt, and stays."""
    for rows in names:
        try:
            facts = name_facts(rows)
        except ValueError as problem:
            doubts.add("a time of creation cannot be understood", f"{rows[0].ref}: {problem}")
            continue
        if facts is not None:
            yield facts


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
