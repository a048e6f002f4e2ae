"""The right to let what comes from the remote in, which is no change of ours."""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING

from swampstore.files.disk import remove_old_temps
from swampstore.files.links import check_no_link

if TYPE_CHECKING:
    from swampstore.files.tree import Tree


class Reception:
    """The right to let what comes from the remote in: no link followed, nothing durable yet."""

    def __init__(self, tree: Tree, rel: str) -> None:
        self._tree = tree
        self._rel = rel
        self._known: set[str] = set()

    def _path(self, rel: str) -> str:
        if rel != self._rel and not rel.startswith(f"{self._rel}/"):
            raise AssertionError(f"{rel} may not be received, only {self._rel} may")
        path = self._tree.shared_path(rel)
        if path.rpartition("/")[0] not in self._known and (
            between := rel[len(self._rel) + 1 :].rpartition("/")[0]
        ):
            check_no_link(self._tree.shared_path(self._rel), between, self._known)
        return path

    def adopt(self, rel: str, staged: str) -> str:
        """Put a finished file of the same file system in its place, in one step; return where."""
        path = self._path(rel)
        try:
            os.rename(staged, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.rename(staged, path)
        return path

    def claim_dir(self, rel: str) -> bool:
        """Create a directory with its parents; False if it is there already."""
        path = self._path(rel)
        try:
            os.mkdir(path)
        except FileExistsError:
            check_no_link(os.path.dirname(path), os.path.basename(path), self._known)
            return False
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return self.claim_dir(rel)
        self._known.add(path)
        return True

    def mark(self, rel: str) -> None:
        """Create an empty file; it may exist."""
        os.close(os.open(self._path(rel), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def remove(self, rel: str) -> None:
        """Remove a file; it may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(rel))

    def remove_temps(self, rel: str) -> None:
        """Remove what interrupted writes left in a directory; nobody writes there now."""
        remove_old_temps(self._path(rel), math.inf)

    def discard_claim(self, rel: str) -> None:
        """Remove a claimed directory whose owner is dead, in every tier."""
        self._path(rel)
        self._tree.drop_dir(self._rel, rel)

    def remove_empty_dir(self, rel: str) -> None:
        """Remove a directory if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self._path(rel))
