"""Versions that were begun and never committed: whose they are, and whether that one still lives.

Creating the directory of a version claims its number. A claim has no `metadata.yaml` yet, or waits
for the commit of its group. Who claims holds a file in it; if nobody does, they are dead, and
whoever meets the claim clears it away. A claim without such a file is another program's, or was
left by an older version of this one: then nothing but its age tells.

A version that arrives from the remote takes its number the same way. If its content arrives before
its metadata, perhaps long before, a mark says that the directory waits for the rest, and is
nobody's claim. See docs/decisions/0021-what-arrives-lands-through-intents.md and
docs/decisions/0043-a-claim-ends-with-its-owner.md.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.content import hash_beginning
from swampstore.errors import MetadataError
from swampstore.files import Change, Hold, Reception, Tree, taking_over
from swampstore.layout import CLAIM, DEFERRED, LANDING, METADATA, RAW, DataRef, is_temp

# A slow writer keeps touching what it writes.
DEFAULT_AGE = 24 * 3600.0
_CLAIM_FILES = frozenset({CLAIM, DEFERRED, RAW})


def claim(change: Change, ref: DataRef, version: int, hold: Hold) -> bool:
    """Take the number of a version for whoever has this hold; False if somebody has it."""
    return change.claim_dir_held(ref.version_rel(version), CLAIM, hold)


def adopt(tree: Tree, ref: DataRef, version: int, hold: Hold) -> bool:
    """Become an owner of a claim as well; False if there is none, or its owner is dead."""
    try:
        return hold.join(_claim_file(tree, ref, version))
    except FileNotFoundError:
        return False


def settle(change: Change, ref: DataRef, version: int) -> None:
    """Take the file of a claim away: the version is committed, and nobody's any more."""
    change.drop(ref.version_rel(version), CLAIM)


def is_claim(tree: Tree, ref: DataRef, version: int) -> bool:
    """Whether a version, whose directory is there, was not committed yet."""
    return not on_disk.is_committed(tree, ref, version)


@contextmanager
def abandoned(
    tree: Tree, ref: DataRef, version: int, before: float | None = None
) -> Iterator[bool]:
    """Yield whether a version was begun by somebody who is dead; nobody can adopt it meanwhile.

    `before` is the time before which a claim without an owner counts as abandoned (default: a
    day ago).
    """
    if not is_claim(tree, ref, version) or _is_strange(tree, ref, version):
        yield False
        return
    with taking_over(_claim_file(tree, ref, version)) as is_dead:
        if is_dead is None:
            limit = time.time() - DEFAULT_AGE if before is None else before
            is_old = _newest_touch(tree, ref, version) <= limit
            yield is_old and not tree.was_whole(ref.version_rel(version))
        else:
            # Its owner may have committed it since we looked.
            yield is_dead and is_claim(tree, ref, version)


def is_abandoned(tree: Tree, ref: DataRef, version: int, before: float | None = None) -> bool:
    """Whether a version was begun by somebody who is dead, as far as can be seen in passing."""
    with abandoned(tree, ref, version, before) as is_dead:
        return is_dead


def clear(
    tree: Tree, change: Change | Reception, ref: DataRef, version: int, before: float | None = None
) -> bool:
    """Remove a version that was begun by somebody who is dead; whether it was. Its lock is held."""
    with abandoned(tree, ref, version, before) as is_dead:
        if is_dead:
            change.discard_claim(ref.version_rel(version))
        return is_dead


def clear_all(
    tree: Tree, change: Change | Reception, ref: DataRef, versions: Iterable[int]
) -> list[int]:
    """Remove those of these versions whose owners are dead; return them."""
    return [version for version in versions if clear(tree, change, ref, version)]


def _claim_file(tree: Tree, ref: DataRef, version: int) -> str:
    return f"{tree.path(ref.version_rel(version))}/{CLAIM}"


def _files(tree: Tree, ref: DataRef, version: int) -> Iterator[str]:
    for place in tree.places(ref.rel):
        directory = f"{place}/{version}"
        try:
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield from (f"{directory}/{name}" for name in names)


def _is_strange(tree: Tree, ref: DataRef, version: int) -> bool:
    """Whether there is anything but the files of a claim: not a version at all, so not ours."""
    names = {os.path.basename(path) for path in _files(tree, ref, version)}
    known = _CLAIM_FILES | {METADATA} if DEFERRED in names else _CLAIM_FILES
    return not all(name in known or is_temp(name) for name in names)


def _newest_touch(tree: Tree, ref: DataRef, version: int) -> float:
    places = [f"{place}/{version}" for place in tree.places(ref.rel)]
    paths = [*(place for place in places if os.path.lexists(place)), *_files(tree, ref, version)]
    try:
        return max(os.lstat(path).st_mtime for path in paths)
    except (OSError, ValueError):  # it is being changed right now
        return math.inf


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


def finish_landing(tree: Tree, reception: Reception, ref: DataRef, version: int) -> None:
    """Let a version in that came as a whole, and whose metadata is still the mark.

    Whoever deletes the name now means this version, too: its files would be gone without a trace of
    what they were.
    """
    mark = tree.shared_path(ref.file_rel(version, LANDING))
    try:
        with open(mark, "rb") as file:
            metadata = on_disk.parse_metadata(file.read(), ref, version, mark)
        with open(tree.shared_path(ref.file_rel(version, RAW)), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            is_content = metadata.allows(size, hash_beginning(file.fileno(), None))
    except (OSError, MetadataError):
        return
    if is_content and not os.path.lexists(tree.path(ref.file_rel(version, METADATA))):
        reception.adopt(ref.file_rel(version, METADATA), mark)


def tidy_name(tree: Tree, reception: Reception, ref: DataRef) -> None:
    """Tidy every version of a name; without any, nor a marker, its directory goes."""
    for version in on_disk.version_numbers(tree, ref):
        tidy(tree, reception, ref, version)
    reception.remove_empty_dir(ref.rel)
