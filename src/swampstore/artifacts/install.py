"""Directories of versions that are filled from the remote, and how they differ from claims.

Whoever writes a version here creates its directory first, and that is the claim of its number. A
version that arrives takes its number the same way. If its content arrives before its metadata,
perhaps long before, a mark says that the directory waits for the rest, and is nobody's claim.
"""

from __future__ import annotations

import os
from enum import Enum, auto

from swampstore.artifacts import versions as on_disk
from swampstore.files import Reception, Tree
from swampstore.layout import LANDING, METADATA, DataRef


class Way(Enum):
    """How arriving files find the directory of their version."""

    FRESH = auto()
    """It was not there, and holds nothing yet, no mark either."""
    OPEN = auto()
    """It is there, and holds the version, or waits for the rest of it."""
    TAKEN = auto()
    """It is there, and somebody is writing that version here."""


def make_way(tree: Tree, reception: Reception, ref: DataRef, version: int) -> Way:
    """Take a version's number for what arrives, unless somebody has it."""
    if reception.claim_dir(ref.version_rel(version)):
        return Way.FRESH
    is_whole = os.path.lexists(tree.path(ref.file_rel(version, METADATA)))
    is_waiting = os.path.lexists(tree.shared_path(ref.file_rel(version, LANDING)))
    return Way.OPEN if is_whole or is_waiting else Way.TAKEN


def tidy(tree: Tree, reception: Reception, ref: DataRef, version: int) -> None:
    """Take the mark off a version that is whole, and remove a directory that holds nothing."""
    mark = ref.file_rel(version, LANDING)
    if os.path.lexists(tree.path(ref.file_rel(version, METADATA))):
        reception.remove(mark)
        return
    try:
        left = os.listdir(tree.shared_path(ref.version_rel(version)))
    except (FileNotFoundError, NotADirectoryError):
        return
    if left == [LANDING]:
        reception.remove(mark)
    reception.remove_empty_dir(ref.version_rel(version))


def tidy_name(tree: Tree, reception: Reception, ref: DataRef) -> None:
    """Tidy every version of a name; without any, nor a marker, its directory goes."""
    for version in on_disk.version_numbers(tree, ref):
        tidy(tree, reception, ref, version)
    reception.remove_empty_dir(ref.rel)
