"""Data on the wrong side of a namespace's border."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.sync.unmigrated import SHARED_SUBDIRS, holds_files

if TYPE_CHECKING:
    from swampstore.config import Config
    from swampstore.repo import Repo


def migration(config: Config) -> Finding:
    """Look for data from before the namespace was set: nothing finds it where it is."""
    problems = Problems(checks.MIGRATION)
    for subdir in _border(config):
        if holds_files(config.base, subdir):
            problems.add(f"{config.base}/{subdir}")
    return problems.finding()


def _border(config: Config) -> tuple[str, ...]:
    """Return the directories beside a namespace that should be empty."""
    if config.base != config.local_dir:
        return SHARED_SUBDIRS
    # Here is also what stays on this machine, as logs do, whatever the namespace.
    has_rules = config.routing.exclude or "data" not in config.routing.subdirs
    return () if has_rules else ("data",)


def contamination(repo: Repo, *, repair: bool) -> Finding:
    """Look for files of other namespaces; those that their own namespace has are not needed."""
    from swampstore.namespaces.contamination import find_contamination, repair_contamination

    problems = Problems(checks.CONTAMINATION)
    findings = find_contamination(repo)
    if not repair:
        for found in findings:
            problems.add(f"{found.namespace} ({found.place})", count=found.files)
        return problems.finding()
    for done in repair_contamination(repo) if findings else ():
        if done.removed:
            where = f"{done.finding.namespace} ({done.finding.place})"
            problems.add(where, count=done.removed, repaired=True)
        for key in done.differing:
            problems.add(f"{key} is not what its own namespace has, and stays")
    return problems.finding(repair=True)
