"""Removing what interrupted writes left behind, all over the datastore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from swampstore.artifacts import claims
from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.claims import DEFAULT_AGE
from swampstore.artifacts.save import ArtifactStore
from swampstore.files import Tree, remove_old_temps
from swampstore.layout import DataRef, ModelRef, is_temp, parse_version


@dataclass(frozen=True, slots=True)
class Leftover:
    """A version directory that was claimed, or written for a later commit, and then abandoned."""

    ref: DataRef
    version: int
    deferred: bool


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed, or would remove."""

    leftovers: tuple[Leftover, ...]
    temps: int


def sweep(store: ArtifactStore, older_than: float = DEFAULT_AGE, *, dry_run: bool = False) -> Swept:
    """Remove claims never finalised, deferrals never committed and temporary files.

    What is surely the dead's goes at once. Where that cannot be told, only what nothing has
    touched for `older_than` seconds goes. What is left of a version that others have as a whole is
    no claim, and stays. Walks the whole tree.
    """
    before = store.clock().timestamp() - older_than
    leftovers, temps = [], 0
    for directory, parts in _directories(store):
        if not dry_run:
            temps += remove_old_temps(directory, before)
        found = leftover_at(store.tree, parts, before)
        if found is None:
            continue
        leftovers.append(found)
        if not dry_run:
            store.mutations.clear(found.ref, [found.version], before)
    return Swept(tuple(dict.fromkeys(leftovers)), temps)


def _directories(store: ArtifactStore) -> Iterator[tuple[str, tuple[str, ...]]]:
    for place in store.tree.places("data"):
        stack: list[tuple[str, tuple[str, ...]]] = [(place, ())]
        while stack:
            directory, parts = stack.pop()
            yield directory, parts
            try:
                with os.scandir(directory) as entries:
                    stack.extend(
                        (entry.path, (*parts, entry.name))
                        for entry in entries
                        if entry.is_dir(follow_symlinks=False) and not is_temp(entry.name)
                    )
            except (FileNotFoundError, PermissionError):
                continue


def leftover_at(tree: Tree, parts: tuple[str, ...], before: float) -> Leftover | None:
    """Return what was abandoned in a directory, whose place below `data/` is `parts`, if it was."""
    version = parse_version(parts[-1]) if len(parts) >= 4 else None
    if version is None:
        return None
    ref = DataRef(ModelRef("/".join(parts[:-3]), parts[-3]), parts[-2])
    with claims.abandoned(tree, ref, version, before) as is_dead:
        deferred = on_disk.is_deferred(tree, ref, version)
        return Leftover(ref, version, deferred) if is_dead else None
