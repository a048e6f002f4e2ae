"""Symbolic links on the way to a file: what is behind one is no part of the cache."""

from __future__ import annotations

import os

from swampstore.errors import ValidationError


class Links:
    """Looks at the directories above files of one cache, at each of them once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._plain = {""}

    def above(self, rel: str) -> str | None:
        """Return the directory above a path that is a link, None if there is none."""
        directory = rel.rpartition("/")[0]
        if directory in self._plain:
            return None
        if found := self.above(directory):
            return found
        if os.path.islink(f"{self._root}/{directory}"):
            return directory
        self._plain.add(directory)
        return None

    def check(self, rel: str) -> None:
        """Raise ValidationError if a directory above a path is a link."""
        if link := self.above(rel):
            raise ValidationError(
                f"{self._root}/{link} is a symbolic link, so {rel} is not in the cache",
                hint="Remove the link; nothing is read or written through one.",
            )
