"""A datastore that is used in place is collected by its repository, without any index."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swampstore.errors import ValidationError
from swampstore.pipeline.collecting.summary import Collected, Kind, Outcome

if TYPE_CHECKING:
    from swampstore.pipeline.places import Place
    from swampstore.repo import Repo
    from swampstore.retention import GcReport


def used_in_place(place: Place) -> ValidationError:
    """Return the error that tells who collects a directory without an index."""
    return ValidationError(
        f"{place} is used in place: it is collected by the repository that uses it",
        hint="Run `swampstore data gc` in that repository.",
    )


def gc_in_place(repo: Repo, *, dry_run: bool = False) -> Collected:
    """Collect the repository's own datastore, which has no index to mark anything against.

    Nobody pushes there: whoever writes holds the lock of the name, so nothing has to wait.
    """
    from swampstore.retention import DataGc

    began = time.monotonic()
    collection = DataGc(repo)
    if dry_run:
        report = collection.preview()
    else:
        with repo.session():
            report = collection.run()
    return Collected(
        dry_run=dry_run,
        places=1,
        outcomes=_outcomes(repo, report, "due" if dry_run else "swept"),
        warnings=report.warnings,
        seconds=time.monotonic() - began,
    )


def _outcomes(repo: Repo, report: GcReport, kind: Kind) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            store=f"file://{repo.config.datastore_dir}",
            namespace=repo.config.namespace,
            kind=kind,
            rel=f"data/{removal.model_type}/{removal.model_id}/{removal.name}",
            detail=removal.reason or "old versions",
            versions=removal.version_count,
            size=removal.size,
        )
        for removal in report.plan.removals
    )
