"""Keeping a catalog up with whoever else changes the files that it describes.

Those are other checkouts of the repository, which write down what they change (see `change_log`),
and other programs on the same cache, which name in the sidecar what they are about to change. A
lookup also compares its row with the marker on disk. That costs a few looks at files, and no walk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.versions import names_at
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import Row
from swampstore.files import Tree
from swampstore.files.change_log import EVERYTHING, OTHERS, ChangeLog, Seen
from swampstore.layout import METADATA, DataRef, ModelRef, ref_of

# Reading so many bytes again costs less than writing down that they were read.
_WORTH_NOTING = 4096


class KeepingUp:
    """Keeps one catalog, whose file is `place`, up with a cache.

    `refresh` makes the rows of one name equal to its files. `foreign_marks` returns the paths, with
    the namespace in front, that another program says it changes, as long as it does.
    """

    def __init__(
        self,
        catalog: Catalog,
        tree: Tree,
        *,
        place: str,
        cache_dir: str,
        refresh: Callable[[DataRef], None],
        foreign_marks: Callable[[], Iterable[str]],
    ) -> None:
        self._catalog = catalog
        self._tree = tree
        self._refresh = refresh
        self._foreign_marks = foreign_marks
        self._prefix = f"{catalog.namespace}/" if catalog.namespace else ""
        self._log = ChangeLog(cache_dir)
        self._me = place
        self._seen: Seen | None = None
        self._noted = Seen()
        self._invalidated: object = None
        catalog.on_change = self._note

    def _note(self, rels: Iterable[str]) -> None:
        self._log.note(self._me, [f"{self._prefix}{rel}" for rel in rels])

    def note_foreign(self, marks: Iterable[str]) -> None:
        """Let every catalog hear of changes that another program has announced."""
        self._log.note(OTHERS, marks)

    def catch_up(self) -> None:
        """Read again what other checkouts changed; next to nothing if they did not."""
        if self._seen is None:
            self._seen = self._noted = _decoded(self._catalog.seen_elsewhere)
        news = self._log.news(self._me, self._seen)
        if news is None:
            return
        self._reread(news.rels)
        self._seen = news.seen
        is_far = news.seen.header != self._noted.header or (
            news.seen.size - self._noted.size > _WORTH_NOTING
        )
        if news.rels or is_far:
            self._catalog.note_seen_elsewhere(" ".join(map(str, news.seen)))
            self._noted = news.seen

    def catch_up_with_all(self) -> None:
        """Read again what anybody changed or is about to change, for lists and queries."""
        self.catch_up()
        paths = tuple(self._foreign_marks())
        if EVERYTHING in paths:
            if self._invalidated != paths:
                self._catalog.invalidate()
        else:
            self._reread(paths)
        self._invalidated = paths

    def is_outdated(self, ref: DataRef, row: Row | None) -> bool:
        """Whether the row of the latest version is not what the files of its name say."""
        if row is not None and not self._has(ref, row.version):
            return True
        marker = on_disk.read_marker(self._tree, ref)
        if marker is None or (row is not None and row.version == marker):
            return False
        return self._has(ref, marker)

    def is_version_outdated(self, ref: DataRef, version: int, row: Row | None) -> bool:
        """Whether there is a row without a version, or a version without a row."""
        return self._has(ref, version) != (row is not None)

    def are_versions_outdated(self, ref: DataRef) -> bool:
        """Whether the catalog does not have the versions that are there."""
        found = [one for one in on_disk.version_numbers(self._tree, ref) if self._has(ref, one)]
        return found != self._catalog.version_numbers(ref)

    def _has(self, ref: DataRef, version: int) -> bool:
        return os.path.lexists(self._tree.path(ref.file_rel(version, METADATA)))

    def _reread(self, marks: Iterable[str]) -> None:
        for mark in marks:
            if mark == EVERYTHING:
                self._catalog.invalidate()
            elif mark.startswith(self._prefix):
                for ref in sorted(self._names(mark.removeprefix(self._prefix))):
                    self._refresh(ref)

    def _names(self, path: str) -> set[DataRef]:
        """Return the names at, above and below a path, on disk or in the catalog."""
        parts = path.split("/")
        if parts[0] != "data" or len(parts) < 3:
            return set()
        found = set(names_at(self._tree, path))
        model = ModelRef("/".join(parts[1:-1]), parts[-1])
        found |= {DataRef(model, name) for name in self._catalog.names(model)}
        for end in range(4, len(parts) + 1):
            ref = ref_of("/".join(parts[:end]))
            if self._catalog.version_numbers(ref):
                found.add(ref)
        return found


def _decoded(text: str) -> Seen:
    try:
        header, size, inode = text.split(" ")
        return Seen(header, int(size), int(inode))
    except ValueError:
        return Seen()
