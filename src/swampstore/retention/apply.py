"""Carrying plans out: every name is looked at again, under its lock, before anything goes.

A plan comes from the catalog, which is only a cache, and may be as old as a person took to say
yes. Whatever is not exactly as planned any more stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.name_lock import Mutations
from swampstore.artifacts.recovery import remove_versions
from swampstore.config import Config
from swampstore.errors import DiskError, SwampstoreError
from swampstore.files import Change, Tree, disk_errors
from swampstore.layout import DataRef

# Names of a batch are announced together, which spares all but one of the waits for the disk.
BATCH_NAMES = 20


class Target(NamedTuple):
    """Versions of one name that are to go, and how to tell from the disk that they still are.

    `versions` is None if the name itself goes.
    """

    ref: DataRef
    versions: tuple[int, ...] | None
    is_still_due: Callable[[], bool]


def carry_out(mutations: Mutations, targets: Sequence[Target]) -> list[str | None]:
    """Remove the targets; return for each, in order, why it is still there, None if it is not."""
    outcome = [_obstacle(mutations.tree, target.ref) for target in targets]
    clear = [index for index, reason in enumerate(outcome) if reason is None]
    for start in range(0, len(clear), BATCH_NAMES):
        batch = clear[start : start + BATCH_NAMES]
        reasons = _remove_batch(mutations, [targets[index] for index in batch])
        for index, reason in zip(batch, reasons, strict=True):
            outcome[index] = reason
    return outcome


def _obstacle(tree: Tree, ref: DataRef) -> str | None:
    """Return why a change of a name must not even be announced, as nobody could finish it."""
    try:
        tree.check_inside(ref.rel)
    except SwampstoreError as error:
        return f"{ref} stays: {error.message}"
    return None


def _remove_batch(mutations: Mutations, batch: Sequence[Target]) -> list[str | None]:
    try:
        with mutations.changing_many([target.ref for target in batch], "delete") as changes:
            return [
                _remove(mutations, target, change)
                for target, change in zip(batch, changes, strict=True)
            ]
    except SwampstoreError as error:
        if len(batch) == 1:
            return [f"{batch[0].ref} stays: {error.message}"]
    # A name that is busy or in trouble must not keep the others of its batch.
    return [reason for target in batch for reason in _remove_batch(mutations, [target])]


def _remove(mutations: Mutations, target: Target, change: Change) -> str | None:
    ref, tree = target.ref, mutations.tree
    try:
        with disk_errors(tree.path(ref.rel)):
            present = on_disk.own_numbers(tree, ref)
            if not target.is_still_due():
                mutations.record_rest(ref)
                return f"{ref} stays: it is not what the catalog said it was"
            _remove_due(mutations, target, change, present)
    except SwampstoreError as error:
        # The intent is still there, so the next change or read brings files and rows together.
        return f"{ref} stays: {error.message}"
    return None


def _remove_due(
    mutations: Mutations, target: Target, change: Change, present: Iterable[int]
) -> None:
    ref = target.ref
    if target.versions is None:
        remove_versions(mutations.tree, change, ref, present)
        mutations.record_rest(ref)
        return
    for version in target.versions:
        change.remove_tree(ref.version_rel(version))
    marker = on_disk.effective_marker(mutations.tree, ref)
    mutations.record(ref, removed=target.versions, marker=marker)


def require_datastore(config: Config) -> None:
    """Raise DiskError if the datastore is not there: then everything would look deleted."""
    if not os.path.isdir(config.base):
        remedy = "Run `swampstore sync`" if config.remote else "Mount or create it"
        raise DiskError(
            f"the datastore {config.base} is not there",
            hint=f"{remedy} and try again; nothing was changed.",
        )
