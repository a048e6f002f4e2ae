"""Keeping a catalog up with whoever else changes the files that it describes.

Two checkouts of one repository share a cache and have a catalog each. Each catalog writes down in
the change log what it changed; the others read on from where they were, and read the files of those
names again. Other programs on the same cache name in the sidecar what they are about to change. A
lookup also compares its row with the marker on disk. That costs a few looks at files, and no walk:
to learn that there is nothing new costs a look at the size of one file. See
docs/decisions/0044-catalogs-of-one-cache-tell-each-other.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from swampstore.artifacts import versions as on_disk
from swampstore.artifacts.versions import names_at
from swampstore.catalog.catalog import Catalog
from swampstore.catalog.schema import Row
from swampstore.files import Tree
from swampstore.files.disk import read_file, replace_file
from swampstore.layout import METADATA, DataRef, ModelRef, ref_of

CHANGE_LOG = "_catalog.db-changes"
EVERYTHING = "*"
# Whoever is not one of ours.
OTHERS = "others"
_LARGEST = 1 << 20
_HEADER = 17


class Position(NamedTuple):
    """How far a catalog has read: in which file, by its first line, and up to which byte."""

    header: str = ""
    size: int = 0
    inode: int = 0


class News(NamedTuple):
    """What others changed, `EVERYTHING` for more than can be told, and how far that is read."""

    rels: frozenset[str]
    seen: Position


class ChangeLog:
    """The log of one datastore directory; any number of processes may use it at once."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{CHANGE_LOG}"

    def note(self, by: str, rels: Iterable[str]) -> None:
        """Write down that a catalog changed names. Without a place to write, nobody is told."""
        data = _lines((by, rel) for rel in rels)
        with contextlib.suppress(OSError), self._held() as fd:
            if os.fstat(fd).st_size + len(data) > _LARGEST:
                self._compact(data)
            else:
                os.write(fd, data)

    def news(self, by: str, seen: Position) -> News | None:
        """Return what others than `by` changed since, None if nothing was written at all."""
        try:
            found = os.stat(self._path)
            if (found.st_size, found.st_ino) == (seen.size, seen.inode):
                return None
            body, read = self._read_on(seen)
        except OSError:
            return None
        return News(frozenset(rel for one, rel in _records(body) if one != by), read)

    def _read_on(self, seen: Position) -> tuple[bytes, Position]:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            now = os.fstat(fd)
            header = os.pread(fd, _HEADER, 0).decode("ascii", "replace")
            is_same = header == seen.header and now.st_size >= seen.size
            start = seen.size if is_same else _HEADER
            body = os.pread(fd, max(now.st_size - start, 0), start)
        finally:
            os.close(fd)
        return body, Position(header, start + len(body), now.st_ino)

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """Open the log to add to it; nobody else does, or replaces it, meanwhile."""
        while True:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                opened = os.fstat(fd)
                if not opened.st_size:
                    os.write(fd, _new_header())
                if os.path.samestat(opened, os.stat(self._path)):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _compact(self, more: bytes) -> None:
        """Say the same with fewer words: who changed how much, if it is too much to be named."""
        _, _, body = (read_file(self._path) or b"").partition(b"\n")
        known = dict.fromkeys([*_records(body), *_records(more)])
        data = _lines(known)
        if len(data) > _LARGEST // 2:
            data = _lines(dict.fromkeys((by, EVERYTHING) for by, _ in known))
        replace_file(self._path, _new_header() + data, durable=False)


def _new_header() -> bytes:
    return os.urandom(8).hex().encode() + b"\n"


def _lines(records: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def _records(body: bytes) -> Iterator[tuple[str, str]]:
    for line in body.splitlines():
        try:
            by, rel = json.loads(line)
        except (ValueError, TypeError):
            yield OTHERS, EVERYTHING  # somebody was stopped in the middle of it
        else:
            yield str(by), str(rel)


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
        self._seen: Position | None = None
        self._noted = Position()
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


def _decoded(text: str) -> Position:
    try:
        header, size, inode = text.split(" ")
        return Position(header, int(size), int(inode))
    except ValueError:
        return Position()
