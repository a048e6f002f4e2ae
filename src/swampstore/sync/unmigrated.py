"""Data that was written before the repository got its namespace, and is still at the old place."""

from __future__ import annotations

import os
from collections.abc import Callable

from swampstore.files import disk_errors
from swampstore.index.errors import UnmigratedDataError
from swampstore.layout import ALWAYS_LOCAL_SUBDIRS, DATASTORE_SUBDIRS, is_internal

SHARED_SUBDIRS = tuple(name for name in DATASTORE_SUBDIRS if name not in ALWAYS_LOCAL_SUBDIRS)


def check_migrated(base_dir: str, namespace: str) -> None:
    """Raise UnmigratedDataError if a namespace is set and data is outside all namespaces.

    `base_dir` is a cache, or a directory that is used in place. Usually costs one look at each
    directory that data could be in.
    """
    if not namespace:
        return
    found = unmigrated_subdirs(base_dir)
    if found:
        raise UnmigratedDataError(
            f"{', '.join(found)} in {base_dir} holds data from before the namespace"
            f" {namespace!r} was set",
            hint="Run `swampstore datastore namespace migrate` to take it along.",
        )


def unmigrated_subdirs(base_dir: str) -> list[str]:
    """Return the directories at the top of a datastore that hold files."""
    return [name for name in SHARED_SUBDIRS if holds_files(base_dir, name)]


def _none(rel: str) -> bool:
    del rel
    return False


def holds_files(root: str, rel: str, is_apart: Callable[[str], bool] = _none) -> bool:
    """Whether there is a user's file below a directory; looks no further than the first.

    Files that `is_apart` tells of are there whatever the namespace, and do not count.
    """
    subdirs = []
    with disk_errors(f"{root}/{rel}"):
        try:
            with os.scandir(f"{root}/{rel}") as entries:
                for entry in entries:
                    child = f"{rel}/{entry.name}"
                    if is_internal(child):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        subdirs.append(child)
                    elif entry.is_file(follow_symlinks=False) and not is_apart(child):
                        return True
        except (FileNotFoundError, NotADirectoryError):
            return False
    return any(holds_files(root, child, is_apart) for child in subdirs)
