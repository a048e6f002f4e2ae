"""Giving up the files of a datastore that surely are at another one.

Versions go before the markers that name them, content before its metadata: with that, a version
that we are interrupted at is recognised again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from swampstore.index.path_kinds import is_marker, is_metadata
from swampstore.index.workers import Deadline, in_parallel
from swampstore.layout import CLAIM, METADATA
from swampstore.relocate.pairs import Directory, Look, Pairs, names_in
from swampstore.sync.hashing import hash_file

_REMOVERS = 8
# Directories that are looked at, and emptied, together.
_PAGE = 50


class Removed(NamedTuple):
    """How many files were removed, and which are left because they are not safe yet."""

    files: int
    left: list[str]


class _Removal(NamedTuple):
    """The files of a directory that may go, and which of them the destination has as links."""

    directory: Directory
    safe: list[str]
    linked: list[str]


def remove_safe(pairs: Pairs, subdirs: tuple[str, ...]) -> Removed:
    """Remove every file that its destination has, and what directories that leaves empty."""
    return _Removing(pairs, subdirs).run()


class _Removing:
    def __init__(self, pairs: Pairs, subdirs: tuple[str, ...]) -> None:
        self._pairs = pairs
        self._to = pairs.to
        self._subdirs = subdirs
        self._files = 0
        self._left: list[str] = []

    def run(self) -> Removed:
        above: list[Directory] = []
        self._remove(self._versions_or(above))
        # Markers go when the versions that they name are gone, directories when they are empty.
        self._remove(above)
        for directory in above:
            self._remove_empty(directory)
        return Removed(self._files, self._left)

    def _versions_or(self, above: list[Directory]) -> Iterator[Directory]:
        """Yield the directories of versions; the others are added to `above`, lower ones first."""
        for subdir in self._subdirs:
            for directory in self._pairs.walk(subdir):
                if directory.is_version:
                    yield directory
                else:
                    above.append(directory)

    def _remove(self, directories: Iterable[Directory]) -> None:
        """Remove what may go from these directories; a disk removes many files at once."""
        for page, _, error in in_parallel(
            self._remove_page, self._pages(directories), _REMOVERS, Deadline()
        ):
            if error is not None:
                raise error
            self._files += sum(len(one.safe) for one in page)
            self._to.unlinked([rel for one in page for rel in one.linked])

    def _pages(self, directories: Iterable[Directory]) -> Iterator[list[_Removal]]:
        source = iter(directories)
        while page := list(islice(source, _PAGE)):
            looks = [self._pairs.look(directory) for directory in page]
            held = self._to.holds_links(
                {rel: now for one in looks for rel, now in one.linked.items()}
            )
            yield [self._removal(look, held) for look in looks]

    def _removal(self, look: Look, held: set[str]) -> _Removal:
        directory, rels, _ = look
        is_held = look.is_linked and held.issuperset(rels)
        safe = rels if is_held else self._safe(directory, rels, held)
        self._left += sorted(set(rels) - set(safe))
        return _Removal(directory, safe, [rel for rel in safe if rel in held])

    def _safe(self, directory: Directory, payload: list[str], held: set[str]) -> list[str]:
        """Return the files of a directory that may go."""
        if not directory.is_version:
            return [rel for rel in payload if rel in held or self._is_safe(rel)]
        twin = self._pairs.twin(directory.rel)
        if twin is None:
            return []
        is_outgrown = self._pairs.is_outgrown(directory.rel, twin)
        contents: dict[str, str | None] = {f"{twin}/{METADATA}": None}
        for rel in payload:
            name = rel.rpartition("/")[2]
            there = f"{twin}/{name}"
            path = self._to.names.local(there) if is_outgrown else self._pairs.path(rel)
            if name != METADATA or twin == directory.rel:
                contents[there] = hash_file(path)[0]
        return payload if self._to.has_all(contents) else []

    def _is_safe(self, rel: str) -> bool:
        if is_marker(rel):
            # It says nothing without versions, and those were looked at before.
            name = self._pairs.path(os.path.dirname(rel))
            return not any(os.path.lexists(f"{name}/{one}/{METADATA}") for one in names_in(name))
        return self._to.has_all({rel: hash_file(self._pairs.path(rel))[0]})

    def _remove_page(self, page: list[_Removal]) -> None:
        for directory, safe, _ in page:
            if directory.is_version and safe and CLAIM in directory.files:
                # Its writer was killed after the commit. Left alone, it would keep the number.
                os.unlink(self._pairs.path(f"{directory.rel}/{CLAIM}"))
            for rel in sorted(safe, key=is_metadata):
                os.unlink(self._pairs.path(rel))
            self._remove_empty(directory)

    def _remove_empty(self, directory: Directory) -> None:
        if directory.rel not in self._subdirs:
            with contextlib.suppress(OSError):
                os.rmdir(self._pairs.path(directory.rel))
