"""Removing what interrupted writes left behind, once it is old enough to be surely dead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.store import ArtifactStore
from swampstore.files import remove_old_temps
from swampstore.layout import DEFERRED, METADATA, RAW, DataRef, ModelRef, is_temp, parse_version

DEFAULT_AGE = 24 * 3600.0
_CLAIM_FILES = frozenset({RAW, DEFERRED})


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

    Only what nothing has touched for `older_than` seconds goes: a slow writer keeps touching its
    `raw`. What is left of a version that others have as a whole is no claim, and stays. Walks the
    whole tree.
    """
    before = store.clock().timestamp() - older_than
    leftovers, temps = [], 0
    for directory, parts in _directories(store):
        if not dry_run:
            temps += remove_old_temps(directory, before)
        found = leftover_at(directory, parts, before)
        if found is None or _is_finalised(store, found):
            continue
        if store.was_whole(found.ref.version_rel(found.version)):
            continue
        leftovers.append(found)
        if not dry_run:
            _remove(store, found, before)
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


def leftover_at(directory: str, parts: tuple[str, ...], before: float) -> Leftover | None:
    """Return what was abandoned in a directory, whose place below `data/` is `parts`, if it was."""
    version = parse_version(parts[-1]) if len(parts) >= 4 else None
    if version is None:
        return None
    try:
        names = os.listdir(directory)
        newest = max(
            os.lstat(directory).st_mtime,
            *(os.lstat(f"{directory}/{name}").st_mtime for name in names),
            0,
        )
    except OSError:  # it is being changed right now, so it is not abandoned
        return None
    deferred = DEFERRED in names and METADATA in names
    # Anything but the files of a claim means: not a version at all, so not ours to remove.
    abandoned = deferred or all(name in _CLAIM_FILES or is_temp(name) for name in names)
    if not abandoned or newest > before:
        return None
    ref = DataRef(ModelRef("/".join(parts[:-3]), parts[-3]), parts[-2])
    return Leftover(ref, version, deferred)


def _is_finalised(store: ArtifactStore, found: Leftover) -> bool:
    """Whether the rest of the version is in the other tier, where an exclude pattern sent it."""
    metadata = store.tree.path(found.ref.file_rel(found.version, METADATA))
    return not found.deferred and os.path.lexists(metadata)


def _remove(store: ArtifactStore, found: Leftover, before: float) -> None:
    ref, rel = found.ref, found.ref.version_rel(found.version)
    with store.mutations.changing(ref, "claim") as change:
        parts = tuple(rel.split("/")[1:])
        # Since the walk, its writer may have come back to finish or to commit it.
        gone = []
        if leftover_at(store.tree.path(rel), parts, before) == found:
            change.discard_claim(rel)
            gone.append(found.version)
        marker = on_disk.effective_marker(store.tree, ref)
        store.mutations.record(ref, removed=gone, marker=marker)
