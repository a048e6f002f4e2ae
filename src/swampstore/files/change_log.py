"""Who changed which data name, for the catalogs that describe the same files.

Two checkouts of one repository share a cache and have a catalog each. Each catalog writes down here
what it changed; the others read on from where they were, and read the files of those names again.
To learn that there is nothing new costs a look at the size of one file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from swampstore.files.disk import read_file, replace_file

CHANGE_LOG = "_catalog.db-changes"
EVERYTHING = "*"
# Whoever is not one of ours.
OTHERS = "others"
_LARGEST = 1 << 20
_HEADER = 17


class Seen(NamedTuple):
    """How far a catalog has read: in which file, by its first line, and up to which byte."""

    header: str = ""
    size: int = 0
    inode: int = 0


class News(NamedTuple):
    """What others changed, `EVERYTHING` for more than can be told, and how far that is read."""

    rels: frozenset[str]
    seen: Seen


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

    def news(self, by: str, seen: Seen) -> News | None:
        """Return what others than `by` changed since, None if nothing was written at all."""
        try:
            found = os.stat(self._path)
            if (found.st_size, found.st_ino) == (seen.size, seen.inode):
                return None
            body, read = self._read_on(seen)
        except OSError:
            return None
        return News(frozenset(rel for one, rel in _records(body) if one != by), read)

    def _read_on(self, seen: Seen) -> tuple[bytes, Seen]:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            now = os.fstat(fd)
            header = os.pread(fd, _HEADER, 0).decode("ascii", "replace")
            is_same = header == seen.header and now.st_size >= seen.size
            start = seen.size if is_same else _HEADER
            body = os.pread(fd, max(now.st_size - start, 0), start)
        finally:
            os.close(fd)
        return body, Seen(header, start + len(body), now.st_ino)

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
