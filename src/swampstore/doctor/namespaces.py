"""Files on the wrong side of a border: of a namespace, or of the tier where they belong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from swampstore.doctor import checks
from swampstore.doctor.findings import Finding, Problems
from swampstore.files import Tree
from swampstore.layout import (
    ALWAYS_LOCAL_SUBDIRS,
    DATASTORE_SUBDIRS,
    OUTPUTS,
    RUNS_INDEX,
    WORKFLOW_RUNS,
    is_always_local,
    is_internal,
)

if TYPE_CHECKING:
    from swampstore.config import Config


def migration(config: Config) -> Finding:
    """Look for data from before the namespace was set: nothing finds it where it is."""
    # Where nothing is shared, nothing of sync is imported.
    from swampstore.sync.unmigrated import holds_files

    problems = Problems(checks.MIGRATION)
    for subdir in _border(config):
        if holds_files(config.base, subdir):
            problems.add(f"{config.base}/{subdir}")
    return problems.finding()


def _border(config: Config) -> tuple[str, ...]:
    """Return the directories beside a namespace that should be empty."""
    from swampstore.sync.unmigrated import SHARED_SUBDIRS

    if config.base != config.local_dir:
        return SHARED_SUBDIRS
    # Here is also what stays on this machine, as logs do, whatever the namespace.
    has_rules = config.routing.exclude or "data" not in config.routing.subdirs
    return () if has_rules else ("data",)


def misplaced_files(tree: Tree) -> Iterator[str]:
    """Yield the paths that the routing rules put elsewhere; the walk of the data sees its own."""
    if tree.base == tree.local:
        return
    for subdir in DATASTORE_SUBDIRS:
        if subdir in ALWAYS_LOCAL_SUBDIRS:
            continue
        right = tree.places(subdir)
        for tier in (tree.base, tree.local):
            place = f"{tier}/{subdir}"
            if place in right and (subdir == "data" or len(right) == 1):
                continue
            for path in _files(place):
                rel = path.removeprefix(f"{tier}/")
                if tree.path(rel) != path and not _may_be_local(rel):
                    yield path


def local_only_files(tree: Tree) -> Iterator[str]:
    """Yield the files in the datastore that must stay on this machine."""
    if tree.base == tree.local:
        return
    for top in _subdirs(tree.base):
        if is_always_local(top):
            yield from _files(f"{tree.base}/{top}")
        elif top not in DATASTORE_SUBDIRS:
            inner = (f"{top}/{name}" for name in _subdirs(f"{tree.base}/{top}"))
            for rel in filter(is_always_local, inner):
                yield from _files(f"{tree.base}/{rel}")


def _may_be_local(rel: str) -> bool:
    """Whether clients keep such a file on this machine, whatever the rules say."""
    is_log = rel.endswith(".log") and rel.partition("/")[0] in (OUTPUTS, WORKFLOW_RUNS)
    return is_log or is_internal(rel) or rel.endswith(f"/{RUNS_INDEX}")


def _subdirs(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as found:
            return sorted(one.name for one in found if one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _files(directory: str) -> Iterator[str]:
    for where, directories, files in os.walk(directory):
        directories.sort()
        for name in sorted(files):
            yield f"{where}/{name}"
